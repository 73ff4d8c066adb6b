"""Overlay: the consumer's side of one stream at tentative level (rule U67).

Two layers: the base, which is confirmed and stored with its position, and the overlay of undecided rows, which lives in
memory only.  A new stream starts at the base with an empty overlay, so nothing undecided is ever looked up or undone
later.  Stays out: the base and how it is stored (`consuming`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import RemoteViolation
from ..base.ids import ShardId
from .consuming import RETRY_MS, Apply, Consuming, Effect, Move, OnLost, Reopen, Stage, Where
from .history import START, Point
from .messages import Confirmed, Marker, Message, RolledBack, Row, Tentative, size_of_row
from .positions import Scope

OVERLAY_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Show:
    """Undecided rows came; they may be shown above the base, and may be taken back."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The undecided rows above the seqno `to` are no longer shown."""

    to: int


class Overlaying(Consuming):
    """One shard of a consumer at tentative level.  `overlay` has the undecided rows in log order."""

    __slots__ = ("_bytes", "_bytes_max", "overlay")

    def __init__(
        self, scope: Scope, shard: ShardId, point: Point = START, *, on_lost: OnLost = OnLost.FAIL,
        bytes_max: int = OVERLAY_BYTES_MAX,
    ) -> None:
        super().__init__(scope, shard, point, on_lost=on_lost)
        self.overlay: list[Row] = []
        self._bytes = 0
        self._bytes_max = bytes_max

    def _take(self, message: Message) -> list[Effect | Show | Withdraw]:   # type: ignore[override]
        match message:
            case Tentative():
                return self._on_tentative(message)
            case RolledBack():
                return self._on_rolled_back(message)
            case Confirmed():
                return [*self._on_confirmed(message)]
            case Marker() if self.overlay:
                raise RemoteViolation("U66: a snapshot begins above undecided rows")
        return [*super()._take(message)]

    def _on_tentative(self, m: Tentative) -> list[Effect | Show | Withdraw]:
        if self._inside is not None or self.resume.epoch == 0:
            raise RemoteViolation(f"U65: undecided rows of {m.entry} came inside a snapshot")
        last = self.overlay[-1].seqno if self.overlay else self.point.seqno
        for row in m.rows:
            if not last < row.seqno <= m.entry.offset:
                raise RemoteViolation(f"U65: row {row.seqno} of entry {m.entry} came behind {last}")
            last = row.seqno
        self.overlay += m.rows
        self._bytes += sum(map(size_of_row, m.rows))
        if self._bytes > self._bytes_max:
            # Too much is undecided to be kept: go on with what is confirmed.
            return [*self._close(), Reopen(Where.ANY, RETRY_MS)]
        return [Show(m.rows)]

    def _on_rolled_back(self, m: RolledBack) -> list[Effect | Show | Withdraw]:
        if m.to < self.point.seqno:
            raise RemoteViolation(f"U66: ROLLED_BACK to {m.to} reaches below the confirmed {self.point.seqno}")
        return [*self._withdraw(m.to)]

    def _on_confirmed(self, m: Confirmed) -> list[Effect]:
        if self._inside is not None or m.point.seqno < self.point.seqno:
            raise RemoteViolation(f"U66: CONFIRMED of {m.point.seqno} came at {self.point.seqno}")
        confirmed = tuple(row for row in self.overlay if row.seqno <= m.point.seqno)
        del self.overlay[: len(confirmed)]
        self._bytes -= sum(map(size_of_row, confirmed))
        self._storing = m.point
        if not confirmed:
            return [Move(m.point)]
        return [Stage(confirmed), Apply(self.point.seqno, m.point, False)]

    def _withdraw(self, to: int) -> list[Withdraw]:
        gone = [row for row in self.overlay if row.seqno > to]
        if not gone:
            return []
        del self.overlay[-len(gone):]
        self._bytes -= sum(map(size_of_row, gone))
        return [Withdraw(to)]

    def _close(self) -> list[Effect | Withdraw]:   # type: ignore[override]
        """Rule U67: every new stream starts at the base; the overlay is dropped."""
        return [*self._withdraw(self.point.seqno), *super()._close()]
