"""Copying: how a pending owner gets the rows of a range, from one owner after the other (D66).

Stays out: which owners are enough (`moving`), the exchange itself (`pulls`).
"""

from __future__ import annotations

from ...base.effects import Effect
from ...base.ids import Member
from ..exchanging.pulling import Ended, Outcome
from ..moving import Copy
from .pulls import Pulls, Series, mismatch
from .unit import Unit


class Copying:
    """The copy of one range under the record that the unit has now."""

    def __init__(self, unit: Unit, pulls: Pulls) -> None:
        self.series = Series(pulls)
        self._unit = unit
        self._copy: Copy | None = None

    @property
    def done(self) -> int | None:
        """The version of the record under which the range is copied, None where it is not."""
        copy = self._copy
        return copy.record.version if copy is not None and copy.done else None

    @property
    def idle(self) -> bool:
        """Whether no move is open here, or its copy is done."""
        return self._copy is None or self._copy.done

    def go_on(self, now_ms: int) -> list[Effect]:
        """Pull from the next owner; nothing where no move is open, or the exchange before has not ended."""
        unit, record = self._unit, self._unit.standing.record
        if record.pending is None or unit.standing.me not in record.pending.members:
            self.series.stop()
            self._copy = None
            return []
        if self._copy is None or self._copy.record != record:
            self.series.stop()
            self._copy = Copy(unit.standing.me, record)
        sources = self._copy.sources()
        if not sources or not self.series.free or not unit.compares(now_ms):
            return []
        source = sources[0]
        return self.series.begin(now_ms, source, lambda ended: self._ended(now_ms, source, ended))

    def give_up(self) -> None:
        """End the exchange that is under way: its source is silent, and another owner comes first now."""
        if self._copy is not None and self.series.source is not None:
            self._copy.failed(self.series.source)
        self.series.stop()

    def _ended(self, now_ms: int, source: Member, ended: Ended) -> list[Effect]:
        """Go on with another owner; one that gave nothing is asked again behind the others, later."""
        copy = self._copy
        if copy is None:
            return []
        if ended.outcome is Outcome.COMPLETE:
            copy.copied(source, copy.record.version)
            if copy.done and self._unit.standing.copying:
                return self._unit.copied(copy.record.version)
            return self.go_on(now_ms)
        copy.failed(source)
        if ended.outcome is Outcome.MISMATCH:
            copy.mismatched(source)
            return [mismatch(self._unit.address, source)]
        return self._unit.adopt(ended.record) if ended.record is not None else []
