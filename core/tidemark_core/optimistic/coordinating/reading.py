"""Reading: enough owners say what they hold, and the read answers the merge of it (D64, D65, D72, D75).

One object is one read at its coordinator.  Methods return messages and, once, what was found.
Stays out: what the rows show to a caller (`merge`); sending, timers and clocks of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ...base.ids import Member
from ..cells import Meta, Place, Retracted, Row, Sort, StringCell
from ..merge import greatest, merge_retracted, merge_rows, replaced
from ..messages import Load, LoadAnswer, RingTold, RowsWrite, Span, Store, StoreAnswer
from ..owner import Fate, Source
from ..ring import Range
from ..stamps import ZERO, Clock
from ..storing import kept
from .outcomes import Outcome, To


class Repair(Enum):
    """The members that a read gives what it found and they lack (D75)."""

    OFF = "off"
    LOCAL = "local"          # the coordinator itself
    ASYNC = "async"          # all that answered, behind the answer
    BLOCKING = "blocking"    # as many as a write needs, before the answer


class Found(NamedTuple):
    """The answer: rows by place, without what `floor_ms` collects; none but with the outcome OK.

    `behind` is the place that a span goes on from, None where it is at its end.
    """

    outcome: Outcome
    rows: Mapping[Place, Row]
    behind: Place | None
    floor_ms: int
    read_from: tuple[Member, ...]
    given: tuple[Member, ...]    # they got rows to repair theirs


Effect = To | Found


class Read:
    """One read of places and a span.  `order` are members, those to ask first in front; `me` is the coordinator's.

    `r` is that of the request, 0 where it names none (D77).
    """

    def __init__(
        self, operation: int, index: int, record: Range, clock: Clock, places: tuple[Place, ...],
        span: Span | None = None, *, me: Member, order: Sequence[Member] = (), repair: Repair = Repair.BLOCKING,
        r: int = 0,
    ) -> None:
        self.operation = operation
        self.index = index          # of the range
        self.record = record        # with the highest floor that some member has
        self.done: Found | None = None
        self._clock = clock
        self._places = places
        self._span = span
        self._me = me
        self._order = order
        self._repair = repair
        self._r = r
        self._attempt = 0
        self._asked: dict[Member, None] = {}
        self._refused: dict[Member, None] = {}
        self._answers: dict[Member, LoadAnswer] = {}
        self._merged: Mapping[Place, Row] | None = None   # once enough have answered
        self._behind: Place | None = None
        self._retracted: dict[bytes, Retracted] = {}      # of Strings, by key
        self._stored: dict[Member, None] = {}             # they hold all that was found
        self._given: dict[Member, None] = {}

    def begin(self) -> list[To]:
        """Ask the first members that are enough."""
        self._attempt += 1
        self._asked, self._refused, self._answers, self._stored = {}, {}, {}, {}
        self._merged = None
        return self._ask_enough()

    def resend(self) -> Sequence[Effect]:
        """Ask every member that has not answered, also those that were not asked before."""
        if self.done is not None:
            return []
        if self._merged is not None:
            return self._give(self._lackers())
        missing = [member for member in self._nearest() if member not in self._answers]
        self._asked.update(dict.fromkeys(missing))
        return [To(member, self._load) for member in missing]

    def on_loaded(self, now_ms: int, sender: Member, m: LoadAnswer) -> Sequence[Effect]:
        """Take what a member holds.  Only answers to this attempt with the highest floor count (D65, D72)."""
        if (effects := self._on_news(m)) is not None:
            return effects
        if m.refused is Fate.NEEDS_RING or m.floor_ms < self.record.floor_ms:
            return [To(sender, RingTold(self.index, self.record)), To(sender, self._load)]
        if self._merged is not None:
            return []
        if m.refused is not None:
            self._refused[sender] = None
            return self._ask_enough()
        for _, row in m.rows:
            self._clock.saw(greatest(row), now_ms)
        self._answers[sender] = m
        return self._on_enough() if self.record.read(self._answers, self._r) else []

    def on_stored(self, sender: Member, m: StoreAnswer) -> Sequence[Effect]:
        """Take what became of a repair at a member."""
        if (effects := self._on_news(m)) is not None:
            return effects
        if self._merged is None:
            return []
        if m.verdict.fate is Fate.NEEDS_RING or m.floor_ms < self.record.floor_ms:
            return [To(sender, RingTold(self.index, self.record)), *self._give([sender])]
        if m.verdict.fate is Fate.STORED:
            self._stored[sender] = None
        return self._finish(Outcome.OK) if self.record.write(self._stored) else []

    def on_record(self, record: Range) -> list[To]:
        """Start over under a newer record, or a higher floor: cells that were read before may be collected (D61)."""
        known = self.record
        if self.done is not None or (record.version, record.floor_ms) <= (known.version, known.floor_ms):
            return []
        self.record = record
        return self.begin()

    @property
    def weak(self) -> bool:
        """Whether fewer members are enough than the record asks for (D77)."""
        return self.record.weak(self._r)

    def on_deadline(self) -> list[Found]:
        """End without an answer: too few members gave one, or too few hold what was found."""
        if self.done is not None:
            return []
        self._merged = None
        return self._finish(Outcome.UNKNOWN)

    def _on_news(self, m: LoadAnswer | StoreAnswer) -> Sequence[Effect] | None:
        """Take a newer record or a higher floor; return None where the answer is one to this attempt."""
        known = self.record
        if self.done is not None:
            return []
        if m.record is not None and m.record.version > known.version:
            return self.on_record(m.record)
        if m.attempt != self._attempt:
            return []
        if m.version == known.version and m.floor_ms > known.floor_ms:
            return self.on_record(known._replace(floor_ms=m.floor_ms))
        return None

    # --- asking -------------------------------------------------------------------------------------------

    def _nearest(self) -> list[Member]:
        members = dict.fromkeys((*self._order, *self.record.members))
        return [member for member in members if self.record.holds(member) and member not in self._refused]

    def _ask_enough(self) -> list[To]:
        """Ask the first members that are enough, without those that refused."""
        wanted: dict[Member, None] = {}
        for member in self._nearest():
            if not self.record.read(wanted, self._r):
                wanted[member] = None
        asked = [member for member in wanted if member not in self._asked]
        self._asked.update(dict.fromkeys(asked))
        return [To(member, self._load) for member in asked]

    @property
    def _load(self) -> Load:
        return Load(
            self.index, self.record.version, self.record.floor_ms, self.operation, self._attempt, self._places,
            self._span,
        )

    # --- what was found -----------------------------------------------------------------------------------

    def _on_enough(self) -> Sequence[Effect]:
        """Merge the answers and repair as asked; of a span, as far as every answer goes."""
        ends = [m.behind for m in self._answers.values() if m.behind is not None]
        self._behind = min(ends, default=None)
        merged: dict[Place, Row] = {}
        self._note_retracted()
        for m in self._answers.values():
            for place, row in m.rows:
                if self._covers(place):
                    row = self._replaced(place, row)
                    merged[place] = merge_rows(merged[place], row) if place in merged else row
        self._merged = kept(merged, self.record.floor_ms)
        self._stored = {member: None for member in self._answers if not self._lacking(member)}
        if self._repair is Repair.BLOCKING and self._merged and not self.record.write(self._stored):
            return self._give(self._lackers())
        given = [] if self._repair is Repair.BLOCKING else self._give(self._lackers())
        return [*self._finish(Outcome.OK), *given]

    def _note_retracted(self) -> None:
        """Learn from all answers what was taken back: a member that has not heard of it shows the old stamp (D84)."""
        self._retracted = {}
        for m in self._answers.values():
            for place, row in m.rows:
                if isinstance(row, Retracted):
                    known = self._retracted.get(place.key, Retracted())
                    self._retracted[place.key] = merge_retracted(known, row)

    def _replaced(self, place: Place, row: Row) -> Row:
        if self._retracted and place.sort is Sort.STRING and isinstance(row, StringCell):
            return replaced(row, self._retracted.get(place.key, Retracted()))
        return row

    def _covers(self, place: Place) -> bool:
        """Say whether all answers cover a place: those of a span may end early."""
        return self._behind is None or self._span is None or place < self._behind or place < self._span.first

    def _lackers(self) -> list[Member]:
        """Return the members to repair."""
        match self._repair:
            case Repair.OFF:
                return []
            case Repair.LOCAL:
                return [self._me] if self._me in self._answers and self._me not in self._stored else []
            case Repair.ASYNC:
                return [member for member in self._answers if member not in self._stored]
            case Repair.BLOCKING:
                return [member for member in self.record.members if member not in self._stored]

    def _lacking(self, member: Member) -> tuple[tuple[Place, Row], ...]:
        """Return the rows that a member must be given to hold all that was found."""
        assert self._merged is not None
        answer = self._answers.get(member)
        held = dict(answer.rows) if answer is not None else {}
        return tuple((place, row) for place, row in self._merged.items() if _differs(held.get(place), row))

    def _give(self, members: Sequence[Member]) -> Sequence[Effect]:
        """Send the members what they lack, as cells that owners hold under this record (D61)."""
        record = self.record
        self._given.update(dict.fromkeys(members))
        return [
            To(member, Store(
                self.index, record.version, record.floor_ms, self.operation, self._attempt, Source.OWNER,
                RowsWrite(self._lacking(member)),
            ))
            for member in members
        ]

    def _finish(self, outcome: Outcome) -> list[Found]:
        rows, behind = self._merged or {}, self._behind if outcome is Outcome.OK else None
        self.done = Found(outcome, rows, behind, self.record.floor_ms, tuple(self._answers), tuple(self._given))
        return [self.done]


def _differs(held: Row | None, row: Row) -> bool:
    """Say whether a member must be given a row; the greatest stamp of a key is each member's own (D58)."""
    if isinstance(held, Meta) and isinstance(row, Meta):
        return held.cleared != row.cleared
    return held != row and not (held is None and isinstance(row, Meta) and row.cleared == ZERO)
