"""Previewing: the leader's side of one stream at tentative level (rules U65, U66).

It begins as a stream at committed level.  Behind its first scan the stream shows every entry as soon as the leader has
appended it, takes back what is rolled back, and says up to where all is confirmed.  Stays out: the speculative fold
that makes rows of undecided entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..base.errors import LocalMisuse
from ..base.ids import EntryId
from .decision import Asked
from .feed import ENTRY_BYTES, Folded
from .filters import ALL, Filter
from .history import Point
from .messages import Confirmed, EndReason, RolledBack, Row, Tentative, size_of_row
from .serving import Cut, Limits, Phase, Serving, Step, TakeCut, Wait

Preview = Tentative | RolledBack | Confirmed


class Appended(NamedTuple):
    """An undecided entry as the speculative fold shows it: the applied state and all undecided entries before it."""

    entry: EntryId
    rows: tuple[Row, ...]


class Previewing(Serving):
    """One stream at tentative level; it belongs to the leadership of `epoch` and ends with it (U65).

    The shell gives the undecided entries above the cut with `took`, in the turn that takes the snapshot, and from then
    on every append, rollback and confirmation in their order.
    """

    __slots__ = ("_bytes_max", "_queue", "_queue_bytes", "_shown", "epoch")

    def __init__(
        self, now_ms: int, asked: Asked, epoch: int, wanted: Filter = ALL, limits: Limits | None = None, *,
        skip_deletes: bool = False,
    ) -> None:
        super().__init__(now_ms, asked, wanted, limits, skip_deletes=skip_deletes)
        if self.all_versions:
            raise LocalMisuse("U65: a stream of all versions has no tentative level")
        self.epoch = epoch
        self._queue: deque[tuple[Preview, int]] = deque()     # with the bytes that each takes
        self._queue_bytes = 0
        self._bytes_max = self.limits.feed_bytes
        self._shown = -1      # the last offset of which tentative rows were sent

    # --- what happens -------------------------------------------------------------------------------------

    def folded(self, now_ms: int, folded: Folded) -> None:
        """Everything up to the entry's end is confirmed and folded: the tentative rows are final (U66)."""
        if not self.feed.open:
            return
        if self.feed.skipped_ms is None:
            self.feed.skipped_ms = now_ms
        confirmed = Confirmed(folded.point)
        if self._queue and isinstance(self._queue[-1][0], Confirmed):
            self._queue[-1] = (confirmed, ENTRY_BYTES)     # nothing came between: the later one says both
            return
        self._put(confirmed)

    def appended(self, appended: Appended) -> None:
        """The leader has appended an entry; its rows are those of the speculative fold."""
        if appended.entry.epoch != self.epoch:
            self.state_changed()
            return
        rows = tuple(self._wanted.passed(appended.rows))
        if rows and self.feed.open:
            self._put(Tentative(appended.entry, rows))

    def rolled_back(self, first: int) -> None:
        """The leader has appended a ROLLBACK of everything undecided from the offset `first` on (U66)."""
        if not self.feed.open:
            return
        # Rows of the range that were not sent yet are dropped, in one pass: thousands of entries may wait.
        self._queue = deque(
            each for each in self._queue if not isinstance(each[0], Tentative) or each[0].entry.offset < first
        )
        self._queue_bytes = sum(size for _, size in self._queue)
        self._put(RolledBack(first - 1))

    def state_changed(self) -> None:
        """The member changes its role or epoch, or truncates: nothing more may be sent (U65)."""
        self._queue.clear()
        self.end(EndReason.STATE_CHANGED, f"the leadership of epoch {self.epoch} is over")

    # --- the next step ------------------------------------------------------------------------------------

    def took(self, now_ms: int, cut: Cut, undecided: Sequence[Appended] = ()) -> None:
        """Decide and begin the scan; `undecided` are the entries above the cut that no ROLLBACK covers, in order."""
        super().took(now_ms, cut)
        self._clear()
        if self.phase not in (Phase.SCAN, Phase.LIVE):
            return
        # The speculative fold keeps these rows anyway.  If they counted, many of them would overflow after every scan.
        taken = sum(ENTRY_BYTES + sum(map(size_of_row, each.rows)) for each in undecided)
        self._bytes_max = self.limits.feed_bytes + taken
        for each in undecided:
            rows = tuple(self._wanted.passed(each.rows))
            if rows:
                self._put(Tentative(each.entry, rows))

    def _next(self, now_ms: int, stalls_ms: int | None) -> Step | None:
        step = super()._next(now_ms, stalls_ms)
        if isinstance(step, TakeCut):
            self._clear()
        return step

    def _live(self, now_ms: int) -> Step | None:
        if self.feed.lost:
            # U66: take everything back that is not confirmed, then scan from the position.
            self._clear()
            self._out.append(RolledBack(self.position.seqno))
            self._shown = self.position.seqno
            self._rescan()
            return None
        if not self._queue:
            return Wait()
        message, size = self._queue[0]
        if isinstance(message, Confirmed) and not self._due(now_ms, message.point):
            return Wait((self.feed.skipped_ms or 0) + self.limits.advance_ms)
        self._queue.popleft()
        self._queue_bytes -= size
        self._out.append(message)
        match message:
            case Tentative():
                self._shown = max(self._shown, message.entry.offset)
            case RolledBack():
                self._shown = min(self._shown, message.to)
            case Confirmed():
                self.feed.skipped_ms = None
                self._moved(message.point)
        return None

    def _due(self, now_ms: int, point: Point) -> bool:
        """Say whether a confirmation goes out now: it confirms rows, a barrier waits, or others follow (U60)."""
        if self._shown > self.position.seqno or self._target > self.position.seqno or len(self._queue) > 1:
            return True
        return self.feed.skipped_ms is None or now_ms >= self.feed.skipped_ms + self.limits.advance_ms

    def _put(self, message: Preview) -> None:
        rows = message.rows if isinstance(message, Tentative) else ()
        size = ENTRY_BYTES + sum(map(size_of_row, rows))
        self._queue.append((message, size))
        self._queue_bytes += size
        if self._queue_bytes > self._bytes_max:
            self._clear()
            self.feed.close()
            self.feed.lost = True

    def _clear(self) -> None:
        self._queue.clear()
        self._queue_bytes = 0
