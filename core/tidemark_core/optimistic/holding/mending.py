"""Mending: an owner pulls from each other owner in turn, without being asked, so that all of them become equal (D74).

Stays out: when the turn of a range comes (`repairing`), the exchange itself (`pulls`).
"""

from __future__ import annotations

from collections.abc import Container

from ...base.effects import Effect
from ...base.ids import Member
from ..exchanging.pulling import Ended, Outcome
from ..inspection import Block
from .pulls import Pulls, Series, mismatch
from .unit import Unit

TRIES = 3
"""A source whose exchange ends early, under a newer record above all, is pulled from again so often in a turn."""


class Mending:
    """The turns of one range."""

    def __init__(self, unit: Unit, pulls: Pulls) -> None:
        self.series = Series(pulls)
        self.missed = False                         # in the last turn some owner gave nothing
        self.mismatched: dict[Member, tuple[int, int]] = {}   # owners with a row that cannot be taken: version and time
        self._unit = unit
        self._pulls = pulls
        self._left: dict[Member, int] = {}          # sources of this turn, and how often each may still fail

    @property
    def idle(self) -> bool:
        """Whether no turn is under way."""
        return not self._left

    def begin(self, now_ms: int, away: Container[Member]) -> list[Effect]:
        """Begin a turn with the other owners that are not away."""
        others = self._unit.standing.others
        self._left = {member: TRIES for member in others if member not in away and not self._refuses(member)}
        self.missed = any(member in away for member in others)
        return self.go_on(now_ms)

    def go_on(self, now_ms: int) -> list[Effect]:
        """Pull from the next source, where the exchange before has ended."""
        if not self._left:
            return []
        others = self._unit.standing.others
        self._left = {member: tries for member, tries in self._left.items() if member in others}
        if self.series.source is not None and self.series.source not in self._left:
            self.series.stop()
        if not self._left or not self.series.free or not self._unit.compares(now_ms):
            return []
        source = next(iter(self._left))
        return self.series.begin(now_ms, source, lambda ended: self._ended(now_ms, source, ended))

    def blocks(self) -> list[Block]:
        """Say which owners hold a row that cannot be taken: no exchange with them ends well."""
        return [Block("it holds a row below the floor that cannot be taken (D74)", since_ms, member)
                for member, (_, since_ms) in self.mismatched.items() if self._refuses(member)]

    def give_up(self) -> list[Effect]:
        """End the exchange that is under way: its source is silent."""
        source = self.series.source
        self.series.stop()
        return self._leave(source) if source is not None else []

    def _ended(self, now_ms: int, source: Member, ended: Ended) -> list[Effect]:
        effects = self._unit.adopt(ended.record) if ended.record is not None else []
        match ended.outcome:
            case Outcome.COMPLETE:
                del self._left[source]
                return self._note()     # the next exchange begins at a later time than this one
            case Outcome.MISMATCH:
                self.mismatched[source] = self._unit.standing.record.version, now_ms
                return [mismatch(self._unit.address, source), *self._leave(source)]
        tries = self._left.pop(source) - 1
        if tries:
            self._left[source] = tries
            return effects
        self.missed = True
        return [*effects, *self._note()]

    def _leave(self, source: Member) -> list[Effect]:
        """Leave a source out of this turn."""
        self._left.pop(source, None)
        self.missed = True
        return self._note()

    def _note(self) -> list[Effect]:
        """Note on disk what is complete, behind the last source."""
        return [] if self._left else self._unit.exchanged(self._pulls.complete)

    def _refuses(self, member: Member) -> bool:
        version, _ = self.mismatched.get(member, (-1, 0))
        return version == self._unit.standing.record.version
