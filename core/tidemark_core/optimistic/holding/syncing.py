"""Syncing: an owner pulls from every other owner for a round of the floor, and says when all of it is durable (D69).

Stays out: the rounds of the operator (`floors`), the exchange itself (`pulls`).
"""

from __future__ import annotations

from ...base.effects import Effect, Send
from ...base.ids import Member, Peer
from ..exchanging.pulling import Ended, Outcome
from ..floors import SyncAsked, Synced
from ..inspection import Block
from .pulls import Pulls, Series, mismatch
from .unit import Unit


class Syncing:
    """The exchanges of one range for the newest round that was asked for."""

    def __init__(self, unit: Unit, pulls: Pulls) -> None:
        self.series = Series(pulls)
        self._unit = unit
        self._asked: SyncAsked | None = None
        self._operator: Peer | None = None
        self._left: dict[Member, None] = {}     # sources without a complete exchange
        self._mismatched = False    # the round never ends here
        self._since_ms = 0

    @property
    def idle(self) -> bool:
        """Whether no round waits for an exchange here."""
        return self._operator is None or self._mismatched

    def on_asked(self, now_ms: int, sender: Peer, m: SyncAsked) -> list[Effect]:
        """Begin a round, or answer again where this one is done; an older version is not pulled under."""
        if m.version != self._unit.standing.record.version:
            return []
        self._operator = sender
        if self._asked != m:
            self.series.stop()
            self._asked, self._mismatched, self._since_ms = m, False, now_ms
            self._left = dict.fromkeys(m.sources)
        return self.go_on(now_ms)

    def blocks(self) -> list[Block]:
        """Say which exchanges a round waits for here."""
        if self._operator is None:
            return []
        what = f"an exchange with it has {'ended as a mismatch (D74)' if self._mismatched else 'not ended (D69)'}"
        return [Block(what, self._since_ms, source) for source in self._left]

    def go_on(self, now_ms: int) -> list[Effect]:
        """Pull from the next source; say so when none is left."""
        m, operator = self._asked, self._operator
        if m is not None and m.version != self._unit.standing.record.version:
            self.series.stop()
            self._asked = m = self._operator = operator = None
        if m is None or operator is None or self._mismatched or not self.series.free:
            return []
        if not self._left:
            self._operator = None
            return [Send(self._unit.address, operator, Synced(m.range, m.round))]
        if not self._unit.compares(now_ms):
            return []
        source = next(iter(self._left))
        return self.series.begin(now_ms, source, lambda ended: self._ended(now_ms, source, ended))

    def give_up(self) -> None:
        """End the exchange that is under way: its source is silent, and comes again behind the others."""
        if self.series.source is not None:
            self._put_behind(self.series.source)
        self.series.stop()

    def _ended(self, now_ms: int, source: Member, ended: Ended) -> list[Effect]:
        if ended.outcome is Outcome.COMPLETE:
            del self._left[source]
            return self.go_on(now_ms)
        self._put_behind(source)
        if ended.outcome is Outcome.MISMATCH:
            self._mismatched = True
            return [mismatch(self._unit.address, source)]
        return self._unit.adopt(ended.record) if ended.record is not None else []

    def _put_behind(self, source: Member) -> None:
        """Pull from a source that gave nothing behind the others."""
        del self._left[source]
        self._left[source] = None
