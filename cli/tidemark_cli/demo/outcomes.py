"""Outcomes: what every append was told, what became of it, and whether readers see just that.

An append that was confirmed, or acknowledged by the leader's disk while nobody failed over, is read exactly once, at
the place that was promised.  One that was rolled back is read by nobody, and its offsets are a hole.  Anything else
is a contradiction.  Stays out: appending, asking and reading (majority).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tidemark import LOCAL, Appended, Fate, Gap, Outcome, Record
from tidemark.errors import OutcomeUnknown, RolledBack


class Kind(StrEnum):
    """What the writer of an append was told."""

    WAITING = "waiting"          # nothing yet
    CONFIRMED = "confirmed"
    LOCAL = "local"              # on the leader's disk
    UNKNOWN = "unknown"          # the wait was over before it was decided
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"            # refused, or never sent


@dataclass(slots=True)
class Told:
    """One append of one record; `outcome` was asked for later."""

    value: bytes
    answer: Appended | None = None
    error: BaseException | None = None
    outcome: Outcome | None = None

    @property
    def kind(self) -> Kind:
        if self.answer is not None:
            return Kind.LOCAL if self.answer.durability is LOCAL else Kind.CONFIRMED
        if isinstance(self.error, OutcomeUnknown):
            return Kind.UNKNOWN
        if isinstance(self.error, RolledBack):
            return Kind.ROLLED_BACK
        return Kind.WAITING if self.error is None else Kind.FAILED

    @property
    def is_read(self) -> bool | None:
        """Whether readers must see it, None while that is not decided."""
        if self.outcome is not None and self.outcome.fate is not Fate.UNKNOWN:
            return self.outcome.fate is Fate.CONFIRMED
        return {Kind.CONFIRMED: True, Kind.LOCAL: True, Kind.ROLLED_BACK: False, Kind.FAILED: False}.get(self.kind)


class Findings(NamedTuple):
    """Appends counted by what their writers were told and by what became of the unknown ones; what is wrong."""

    confirmed: int
    local: int
    unknown: int
    rolled_back: int
    then_confirmed: int
    then_rolled_back: int
    read: int
    contradictions: tuple[str, ...]


def judge(told: Sequence[Told], seen: Iterable[Record | Gap]) -> Findings:
    """Compare what was told with what is read from the whole log, records and gaps."""
    found: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    holes: set[tuple[int, int]] = set()
    read = 0
    for item in seen:
        if isinstance(item, Gap):
            holes.update((item.shard, offset) for offset in range(item.first, item.last + 1))
        else:
            read += 1
            found[item.value].append((item.shard, item.offset))
    wrong: list[str] = []
    for append in told:
        wrong += _contradictions(append, found.pop(append.value, []), holes)
    wrong += [f"{value!r} is read at {places}, nobody appended it" for value, places in found.items()]
    kinds = [append.kind for append in told]
    fates = [append.outcome.fate for append in told if append.kind is Kind.UNKNOWN and append.outcome is not None]
    return Findings(
        kinds.count(Kind.CONFIRMED), kinds.count(Kind.LOCAL), kinds.count(Kind.UNKNOWN),
        kinds.count(Kind.ROLLED_BACK), fates.count(Fate.CONFIRMED), fates.count(Fate.ROLLED_BACK), read, tuple(wrong),
    )


def _contradictions(append: Told, places: list[tuple[int, int]], holes: set[tuple[int, int]]) -> list[str]:
    """Return what is wrong with one append that is read at `places`."""
    name, outcome = repr(append.value), append.outcome
    if append.is_read is None:
        return [f"what became of {name} is not known: {append.error!r}"]
    final = outcome if outcome is not None and outcome.fate is not Fate.UNKNOWN else None
    wrong = []
    if append.kind is Kind.CONFIRMED and not append.is_read:
        wrong.append(f"{name} was confirmed, then {outcome}")
    if append.kind is Kind.ROLLED_BACK and append.is_read:
        wrong.append(f"{name} was rolled back, then {outcome}")
    if not append.is_read:
        if places:
            wrong.append(f"{name} is read at {places}, but {outcome or append.error!r}")
        error = append.error
        if final is not None and final.fate is Fate.ROLLED_BACK and isinstance(error, OutcomeUnknown | RolledBack):
            offsets = range(final.base, final.base + final.count)
            if not all((error.shard, offset) in holes for offset in offsets):
                wrong.append(f"{name} was rolled back, but readers are not told of a hole at {final.base}")
    elif len(places) != 1:
        wrong.append(f"{name} is in the log, but it is read at {places or 'no place'}")
    elif append.answer is not None and places[0] != (append.answer.shard, append.answer.offset):
        wrong.append(f"{name} is read at {places[0]}, promised was offset {append.answer.offset}")
    elif final is not None and not final.base <= places[0][1] < final.base + final.count:
        wrong.append(f"{name} is read at {places[0]}, its batch lies at {final.base}")
    return wrong
