"""Retracting at the coordinator: a stamp from the future is taken back at every owner and pending owner (D84).

All of them note the stamp; then one of them stores which stamp stands in for it, and then all others do.
Stays out: what a member does (`optimistic.retracting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, cast

from ...base.ids import Member
from ..cells import Meta, Place, Row, Sort, StringCell
from ..merge import greatest
from ..messages import RetractWrite, RingTold, Span, Store, StoreAnswer
from ..owner import Fate, Source
from ..retracting import STAMPS_MAX
from ..ring import Range
from ..stamps import ZERO, Clock, Stamp
from ..storing import of_retracted
from .inspecting import Inspection, InspectStep
from .operations import ReadStep, RetractStep, Steps
from .outcomes import Outcome, To
from .reading import Found, Repair


class Ended(NamedTuple):
    """The stamp that stands in for another one, and the members that did not answer, or the one that refused."""

    outcome: Outcome
    became: Stamp
    missing: tuple[Member, ...]


class Repaired(NamedTuple):
    """The answer for one key: pairs of a stamp that was taken back and the one that stands in for it.

    OK: nothing of the String is in the future at any owner.  `missing` did not answer; with another outcome than
    UNKNOWN it is the member that refused.
    """

    outcome: Outcome
    stamps: tuple[tuple[Stamp, Stamp], ...] = ()
    missing: tuple[Member, ...] = ()


class Future(NamedTuple):
    """A key with a stamp from the future; `elements`: of its Set or Map, which no repair takes back."""

    key: bytes
    stamp: Stamp
    elements: bool


class Futures(NamedTuple):
    """A page of keys with stamps from the future.  The next page begins at `behind`."""

    outcome: Outcome
    found: tuple[Future, ...] = ()
    behind: Place | None = None


TRIES_MAX = 4 * STAMPS_MAX
"""A repair takes so many steps at most: owners whose clocks differ may name the same stamp again and again."""

Latest = Callable[[], int]
"""The latest time that a stamp may have by the coordinator's clock, in milliseconds."""


def repair_future(key: bytes, latest: Latest) -> Steps[Repaired]:
    """Take back every stamp from the future of a String, the least one first: values keep their order."""
    done: list[tuple[Stamp, Stamp]] = []
    came: set[Stamp] = set()    # their time came before another one could stand in
    for _ in range(TRIES_MAX):
        found: Inspection = yield InspectStep(of_retracted(key), owners_alone=True)
        if found.outcome is not Outcome.OK:
            return Repaired(found.outcome, tuple(done), tuple(
                member for member in found.record.members if member not in found.answers))
        was = min(_open(found, latest()) - came, default=None)
        if was is None:
            outcome = yield from _beside(key, latest)
            return Repaired(outcome, tuple(done))
        ended: Ended = yield RetractStep(key, was)
        if ended.outcome is Outcome.BELOW:
            continue    # another one came meanwhile, and it is less
        if ended.outcome is not Outcome.OK:
            return Repaired(ended.outcome, tuple(done), ended.missing)
        if ended.became == was:
            came.add(was)
        else:
            done.append((was, ended.became))
    return Repaired(Outcome.UNKNOWN, tuple(done))


def _beside(key: bytes, latest: Latest) -> Steps[Outcome]:
    """Look for elements of the key with stamps from the future, which no repair takes back."""
    found: Found = yield ReadStep((Place(Sort.META, key),), repair=Repair.OFF)
    ahead = any(greatest(row).ms > latest() for row in found.rows.values())
    return Outcome.ELEMENTS if ahead else found.outcome


def futures(first: Place, latest: Latest, count_max: int = 1_000) -> Steps[Futures]:
    """Find keys of a range with stamps from the future, at as many owners as the policy of the operation says."""
    span = Span(first, Place(Sort.ELEMENT, b""), count_max)
    found: Found = yield ReadStep((), span, repair=Repair.OFF)
    latest_ms = latest()
    keys: dict[tuple[bytes, bool], Stamp] = {}
    for place, row in sorted(found.rows.items(), key=lambda item: item[0]):
        if place < first:
            continue    # what is taken back comes with each page
        elements = place.sort is Sort.META
        for stamp in _stamps_of(row):
            if stamp.ms > latest_ms:
                at = place.key, elements
                keys[at] = max(keys.get(at, ZERO), stamp)
    return Futures(
        found.outcome, tuple(Future(key, stamp, elements) for (key, elements), stamp in keys.items()), found.behind)


def _stamps_of(row: Row) -> Sequence[Stamp]:
    """Return the stamps of a row that a repair is for: of what is taken back those without one that stands in."""
    match row:
        case StringCell():
            return (row.stamp,)
        case Meta():
            return (greatest(row),)
        case _:
            return [was for was, became in cast("Any", row).stamps if became == ZERO]


def _open(found: Inspection, latest_ms: int) -> set[Stamp]:
    """Return the stamps in the future that some owner shows, and those whose repair stopped half way."""
    owners = [found.answers[member] for member in found.record.members]
    cells = [cell for m in owners for cell in m.cells]
    ahead = {cell.stamp for cell in cells if cell.place.sort is Sort.STRING and cell.stamp.ms > latest_ms}
    noted = [{cell.stamp for cell in m.cells if cell.place.sort is Sort.RETRACTED} for m in owners]
    over = [{cell.stamp for cell in m.cells if cell.place.sort is Sort.RETRACTED and cell.dead} for m in owners]
    return ahead | {stamp for stamp in set().union(*noted) if not all(stamp in each for each in over)}


class _Phase(Enum):
    NOTE = 1      # all members note the stamp, and store nothing up to it from outside
    DECIDE = 2    # one member stores the stamp that stands in for it: the first one counts
    SETTLE = 3    # all members do


Effect = To | Ended


class Retracting:
    """One stamp that is taken back, at its coordinator."""

    weak = False

    def __init__(
        self, operation: int, index: int, record: Range, clock: Clock, key: bytes, was: Stamp,
    ) -> None:
        self.done: Ended | None = None
        self._operation = operation
        self._index = index
        self._record = record
        self._clock = clock
        self._key = key
        self._was = was
        self._attempt = 0
        self._begin_noting()

    def _begin_noting(self) -> None:
        self._phase = _Phase.NOTE
        self._became = ZERO
        self._beside = ZERO     # the greatest stamp beside it, of those that are not from the future
        self._answered: dict[Member, None] = {}
        self._attempt += 1

    def begin(self) -> list[To]:
        """Ask the members of this phase."""
        return [To(member, self._message) for member in self._asked]

    def resend(self) -> list[To]:
        """Ask those again that have not answered."""
        return [] if self.done else [To(member, self._message) for member in self._missing]

    def on_answer(self, now_ms: int, sender: Member, m: StoreAnswer) -> Sequence[Effect]:
        """Take the answer of a member; every one of them must have stored each phase under one record (D65)."""
        if self.done is not None:
            return []
        if m.record is not None and m.record.version > self._record.version:
            return self.on_record(m.record)
        if m.attempt != self._attempt or sender not in self._asked:
            return []
        fate, above = m.verdict
        match fate:
            case Fate.STORED:
                if self._phase is _Phase.NOTE:
                    self._beside = max(self._beside, above)
            case Fate.NEWER:
                self._became = above
            case Fate.NEEDS_RING:
                return [To(sender, RingTold(self._index, self._record)), To(sender, self._message)]
            case Fate.FUTURE | Fate.BELOW | Fate.PAST | Fate.FULL:
                return self._end(Outcome(fate.value), (sender,))
            case _:
                return []
        self._answered[sender] = None
        return [] if self._missing else self._next(now_ms)

    def on_record(self, record: Range) -> list[To]:
        """Begin again under a newer record: members of it may not have noted the stamp."""
        if self.done is not None or record.version <= self._record.version:
            return []
        self._record = record
        self._begin_noting()
        return self.begin()

    def on_deadline(self) -> list[Ended]:
        """End without those that did not answer; a repetition goes on."""
        return [] if self.done else self._end(Outcome.UNKNOWN, self._missing)

    def _next(self, now_ms: int) -> Sequence[Effect]:
        match self._phase:
            case _Phase.NOTE:
                self._phase = _Phase.DECIDE
                if self._became == ZERO:
                    floor = Stamp(self._record.floor_ms, 0, "", ZERO.start)
                    drawn = self._clock.draw(now_ms, max(self._beside, floor)).stamp
                    self._became = min(drawn, self._was)    # above it, a write that came meanwhile would be hidden
            case _Phase.DECIDE:
                self._phase = _Phase.SETTLE
            case _Phase.SETTLE:
                return self._end(Outcome.OK, ())
        self._answered = {}
        self._attempt += 1
        return self.begin()

    @property
    def _asked(self) -> tuple[Member, ...]:
        return self._record.own.members[:1] if self._phase is _Phase.DECIDE else self._record.members

    @property
    def _missing(self) -> tuple[Member, ...]:
        return tuple(member for member in self._asked if member not in self._answered)

    @property
    def _message(self) -> Store:
        record = self._record
        return Store(
            self._index, record.version, record.floor_ms, self._operation, self._attempt, Source.CLIENT,
            RetractWrite(self._key, self._was, self._became))

    def _end(self, outcome: Outcome, missing: tuple[Member, ...]) -> list[Ended]:
        self.done = Ended(outcome, self._became, missing)
        return [self.done]
