"""Offsets: what a user writes to begin or end somewhere, and the position that a checkpoint stores.

Spark compares positions as text, so equal positions have equal text: keys are sorted and every shard is there (P6).
Stays out: how positions become partitions (planning), where a log begins and ends (the readers).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoints import UnreadableCheckpoint, check_stored
from ..options import InvalidOption
from ..schema import Mode

EARLIEST, LATEST = -2, -1
"""In place of an offset, as in Spark's Kafka source."""

WORDS: Mapping[str, int] = {"earliest": EARLIEST, "latest": LATEST}
OFFSET_MAX = 2**63 - 1
SHARD_MAX = 2**31 - 1

VERSION = 2
"""Of the form of a position in a checkpoint.  Releases read every version up to theirs (P20); 1 has no `groupId`."""


@dataclass(frozen=True, slots=True)
class Given:
    """Where to begin or end as a user wrote it: at one place of all shards, or shard by shard."""

    everywhere: int | None
    by_shard: Mapping[int, int]

    def of(self, option: str, shards: Sequence[int]) -> dict[int, int]:
        """Return an offset, EARLIEST or LATEST for each of the group's shards.

        Raises InvalidOption where the shards that were named are not exactly these (P11).
        """
        if self.everywhere is not None:
            return dict.fromkeys(sorted(shards), self.everywhere)
        missing, extra = sorted(set(shards) - set(self.by_shard)), sorted(set(self.by_shard) - set(shards))
        if missing or extra:
            wrong = [f"{_listed(missing)} not named"] if missing else []
            wrong += [f"{_listed(extra)} not there"] if extra else []
            raise InvalidOption(
                option, f"must name exactly the shards of the group ({_listed(sorted(shards))}): {', '.join(wrong)}")
        return {shard: self.by_shard[shard] for shard in sorted(shards)}


def fixed(option: str, text: str, group: str, without: int) -> Given:
    """Read offsets of a batch, in which one of EARLIEST and LATEST has no place.  Raises InvalidOption."""
    given = parsed(option, text, group)
    if without in (given.everywhere, *given.by_shard.values()):
        word = next(word for word, place in WORDS.items() if place == without)
        raise InvalidOption(option, f"cannot be {word} ({without}) in a batch query")
    return given


def parsed(option: str, text: str, group: str) -> Given:
    """Read `earliest`, `latest`, {"orders": "earliest"} or {"orders": {"0": 23, "1": -2}}.  Raises InvalidOption."""
    text = text.strip()
    if text.lower() in WORDS:
        return Given(WORDS[text.lower()], {})
    form = f'earliest, latest, {{"{group}": "earliest"}} or {{"{group}": {{"0": 23, "1": -2}}}}'
    found = _loaded(option, text, form)
    if not isinstance(found, dict):
        raise InvalidOption(option, f"must be {form}")
    if others := sorted(set(found) - {group}):
        raise InvalidOption(option, f"names group {others[0]!r}, and the query reads {group!r}")
    if group not in found:
        raise InvalidOption(option, f"does not name group {group!r}; it must be {form}")
    said = found[group]
    if isinstance(said, str):
        if said.lower() not in WORDS:
            raise InvalidOption(option, f"{said!r} of group {group!r} is neither earliest nor latest")
        return Given(WORDS[said.lower()], {})
    if not isinstance(said, dict) or not said:
        raise InvalidOption(option, f"group {group!r} needs offsets by shard; it must be {form}")
    return Given(None, {_shard(option, shard): _offset(option, shard, offset) for shard, offset in said.items()})


def _loaded(option: str, text: str, form: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidOption(option, f"names {twice!r} twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidOption(option, f"is no JSON ({error}); it must be {form}") from None


def _shard(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) <= SHARD_MAX):
        raise InvalidOption(option, f"{text!r} is not the number of a shard")
    return int(text)


def _offset(option: str, shard: str, offset: Any) -> int:
    if type(offset) is not int or not EARLIEST <= offset <= OFFSET_MAX:
        raise InvalidOption(
            option, f"{offset!r} of shard {shard} is no offset: give a number from 0 on, -2 (earliest) or -1 (latest)")
    return offset


def _listed(shards: Sequence[int]) -> str:
    return ", ".join(map(str, shards)) or "none"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query stands: the next offset of every shard, and what else decides the partitions behind it (P6)."""

    group: str
    shards: Mapping[int, int]
    partitions_min: int = 0
    """The option minPartitions when this position was made: a replayed batch is divided as it was."""
    group_id: int = 0
    """The id of the group whose offsets these are; 0 in a position of version 1 (P25)."""

    def encoded(self) -> dict[str, Any]:
        """Return the position as Spark stores it; equal positions give equal text."""
        shards = {str(shard): offset for shard, offset in self.shards.items()}
        return {
            "group": self.group, "groupId": self.group_id, "minPartitions": self.partitions_min,
            "shards": dict(sorted(shards.items())), "version": VERSION,
        }

    @classmethod
    def decoded(cls, stored: Mapping[str, Any], group: str) -> Position:
        """Read a position of a checkpoint.

        Raises UnreadableCheckpoint for one of another query, of a newer release, or that is damaged.
        """
        check_stored(stored, group, Mode.LOG, VERSION)
        shards, partitions_min = stored.get("shards"), _number(stored, "minPartitions")
        group_id = _number(stored, "groupId") if stored["version"] > 1 else 0
        if not isinstance(shards, Mapping):
            raise UnreadableCheckpoint("The checkpoint is damaged: shards are missing.")
        try:
            read = {_shard("shards", shard): _offset("shards", shard, offset) for shard, offset in shards.items()}
        except InvalidOption as error:
            raise UnreadableCheckpoint(f"The checkpoint is damaged: {error}.") from None
        if any(offset < 0 for offset in read.values()):
            raise UnreadableCheckpoint("The checkpoint is damaged: shards have offsets below 0.")
        return cls(group, dict(sorted(read.items())), partitions_min, group_id)


def _number(stored: Mapping[str, Any], field: str) -> int:
    value = stored.get(field)
    if type(value) is not int or value < 0:
        raise UnreadableCheckpoint(f"The checkpoint is damaged: {field} is {value!r}.")
    return value
