"""Position: where a query of changes stands in each shard, and what lies between two positions.

Spark compares positions as text and replays a batch from the stored ones (P6).
Stays out: asking the cluster (facts), which rows lie there (showing).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..checkpoints import UnreadableCheckpoint, check_stored
from ..schema import Mode

VERSION = 1
"""The form of a stored position that this release writes; it reads all up to this one."""

SEQNO_MAX = 2**63 - 1
LINEAGE_CHARS = 32
_FIELDS = {"seqno": int, "epoch": int, "lineage": str, "pinned": int, "digest": str}


class Place(NamedTuple):
    """Everything up to `seqno` was read; `epoch` of `lineage` (hexadecimal) wrote it."""

    seqno: int = 0
    epoch: int = 0
    lineage: str = ""
    pinned: int = 0     # cut of the position's pin, which is higher where nothing changed; 0: no pin
    digest: str = ""    # number and digest of the documents there, by which a shard without changes is known


BEGINNING = Place()
"""Before everything: no document has the seqno 0."""


class Stretch(NamedTuple):
    """The changes of a shard that a batch shows: behind `start`, up to `end`."""

    shard: int
    start: Place
    end: Place


class ShardGone(RuntimeError):
    """A shard that a query has read is there no longer."""


@dataclass(frozen=True, slots=True)
class Position:
    """The places in all shards, and the pin that shows the documents there; without a pin it is empty."""

    group: str
    shards: Mapping[int, Place]
    pin: str = ""

    def pinned(self) -> dict[int, int]:
        """Return the cuts of the pin, by shard."""
        return {shard: place.pinned for shard, place in self.shards.items() if place.pinned}

    def encoded(self) -> dict[str, Any]:
        """Return the position as Spark stores it; equal positions give equal text."""
        shards = {str(shard): dict(sorted(place._asdict().items())) for shard, place in self.shards.items()}
        return {
            "group": self.group, "mode": str(Mode.CHANGES), "pin": self.pin, "shards": dict(sorted(shards.items())),
            "version": VERSION,
        }

    @classmethod
    def decoded(cls, stored: Mapping[str, Any], group: str) -> Position:
        """Read a position of a checkpoint.  Raises UnreadableCheckpoint."""
        check_stored(stored, group, Mode.CHANGES, VERSION)
        shards, pin = stored.get("shards"), stored.get("pin")
        if not isinstance(shards, Mapping) or not isinstance(pin, str):
            raise UnreadableCheckpoint("The checkpoint is damaged: shards or pin are missing.")
        return cls(group, {_shard(shard): _place(shard, place) for shard, place in sorted(shards.items())}, pin)

    def of(self, shards: Collection[int]) -> Position:
        """Return the position in some shards alone."""
        return replace(self, shards={shard: place for shard, place in self.shards.items() if shard in shards})

    def reached(self, end: Position) -> Position:
        """Return `end`, with this one's places in shards that have not changed since: they have no task then.

        Without a pin, shards that `end` lacks did not answer and keep their places too; else they are gone.
        """
        places = dict(self.shards) if not end.pin else {}
        for shard, place in end.shards.items():
            before = self.shards.get(shard, BEGINNING)
            same = before.digest == place.digest != "" and before.lineage == place.lineage
            places[shard] = before._replace(pinned=place.pinned) if same else place
        return replace(end, shards=dict(sorted(places.items())))

    def moved(self, end: Position) -> bool:
        """Say whether a shard has another place at `end`."""
        return bool(stretches(self, end))


def stretches(start: Position, end: Position) -> list[Stretch]:
    """Return what lies between two positions, in the order of shards.  Raises ShardGone."""
    if gone := sorted(set(start.shards) - set(end.shards)):
        seqno = start.shards[gone[0]].seqno
        raise ShardGone(
            f"Shard {gone[0]} of group {start.group!r} is gone: the query stands at seqno {seqno}. "
            "Give the query a new checkpoint.")
    found = []
    for shard, place in sorted(end.shards.items()):
        before = start.shards.get(shard, BEGINNING)
        if (before.seqno, before.lineage) != (place.seqno, place.lineage):
            found.append(Stretch(shard, before, place))
    return found


def _shard(text: str) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal()):
        raise UnreadableCheckpoint(f"The checkpoint is damaged: {text!r} is not the number of a shard.")
    return int(text)


def _place(shard: str, stored: Any) -> Place:
    if not isinstance(stored, Mapping) or any(type(stored.get(name)) is not kind for name, kind in _FIELDS.items()):
        raise UnreadableCheckpoint(f"The checkpoint is damaged: shard {shard} needs {', '.join(_FIELDS)}.")
    place = Place(**{name: stored[name] for name in _FIELDS})
    hexadecimal = not place.lineage.strip("0123456789abcdef") and len(place.lineage) in (0, LINEAGE_CHARS)
    if not hexadecimal or any(not 0 <= number <= SEQNO_MAX for number in (place.seqno, place.epoch, place.pinned)):
        raise UnreadableCheckpoint(f"The checkpoint is damaged: shard {shard} has a place that cannot be.")
    return place
