"""Serving: the member's side of one stream of one shard at committed level (rules U56, U59-U61, U63, U64).

A pure state machine.  The shell asks for the next step, runs it, gives back what it read, and asks again; it hands in
every entry that the member folds.  A stream scans from its position, then follows the feed; a feed that overflows sends
it back to a scan.  Stays out: reading the store, the connection and its other streams, how long a consumer is silent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..base.errors import LocalMisuse, RemoteViolation
from .credit import WINDOW_BYTES_DEFAULT, Credit
from .decision import Accepted, Asked, Here, HistoryTrimmed, NotMyShard, Refusal, decide
from .feed import Feed, Folded
from .filters import ALL, Filter, skipped
from .history import Point
from .messages import (
    Advanced,
    Confirmed,
    End,
    EndReason,
    Marker,
    Message,
    Row,
    Rows,
    StreamEnd,
    Summary,
    size_of,
    size_of_row,
)
from .positions import History, Position


class Limits(NamedTuple):
    """Bounds of one stream; bytes and milliseconds."""

    window_bytes: int = WINDOW_BYTES_DEFAULT
    feed_bytes: int = 4 << 20        # entries folded and not sent
    page_bytes: int = 256 << 10      # read from the store in one go
    message_bytes: int = 256 << 10   # rows in one message, if more than one
    row_bytes_max: int = 8 << 20     # the largest row that a message can carry
    live_bytes: int = 1 << 20        # entries in one live snapshot, if more than one
    advance_ms: int = 1_000          # ADVANCED waits no longer (U60)
    advance_bytes: int = 1 << 20     # nor for more log without a row
    stall_ms: int = 60_000           # a scan without an acknowledgement ends (U61)


class Cut(NamedTuple):
    """One member's shard in one snapshot, read in the turn that takes the snapshot (U56).

    `here` is None when the node does not serve the shard, as `map_version` of the shard map says.
    """

    here: Here | None
    summary: Summary | None = None
    map_version: int = 0


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Take a snapshot, read `Cut` from it and call `took`; a leader's read index begins after the request."""


@dataclass(frozen=True, slots=True)
class ReadPage:
    """Read rows of the snapshot in (after, upto] by seqno, about `bytes_max` of them, and call `scanned`."""

    after: int
    upto: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read visible entries of the log in (after, upto], about `bytes_max` of them, and call `replayed` (U64)."""

    after: int
    upto: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Release:
    """Free the snapshot."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send this to the consumer."""

    message: Message


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before something happens, or before `until_ms`."""

    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The stream is over."""


Step = TakeCut | ReadPage | ReadEntries | Release | Say | Wait | Done


class Phase(Enum):
    CUT = 0     # a scan is to begin
    SCAN = 1
    LIVE = 2
    OVER = 3


class Serving:
    """One stream.  `position` is the end of what was decided to be sent last; `said` of what was sent."""

    __slots__ = (
        "_asked", "_cut", "_first_end", "_holding", "_out", "_reading", "_skip_deletes", "_target", "_through", "_upto",
        "_wanted", "credit", "feed", "limits", "phase", "position", "said",
    )

    def __init__(
        self, now_ms: int, asked: Asked, wanted: Filter = ALL, limits: Limits | None = None, *,
        skip_deletes: bool = False,
    ) -> None:
        if asked.scope.filter != wanted.digest:
            raise LocalMisuse("U63: the scope of a stream names its filter")
        self.limits = limits if limits is not None else Limits()
        self.credit = Credit(self.limits.window_bytes, now_ms)
        self.feed = Feed(wanted, self.limits.feed_bytes)
        self.phase = Phase.CUT
        self.position = asked.position.point
        self.said = self.position.seqno
        self._asked = asked
        self._wanted = wanted
        self._skip_deletes = skip_deletes
        self._out: deque[Message] = deque()
        self._cut: Cut | None = None
        self._holding = False     # the shell holds a snapshot for us
        self._reading = False
        self._through = 0         # the scan has read so far
        self._upto = 0
        self._first_end: int | None = None
        self._target = -1         # the highest seqno that a barrier waits for

    @property
    def all_versions(self) -> bool:
        return self._asked.scope.history is History.ALL

    @property
    def unsent(self) -> bool:
        """Say whether messages wait to be sent."""
        return bool(self._out)

    # --- what happens -------------------------------------------------------------------------------------

    def folded(self, now_ms: int, folded: Folded) -> None:
        """Take in the next entry that the member folded; entries come in log order, from `TakeCut` on."""
        self.feed.add(now_ms, folded)

    def acknowledged(self, now_ms: int, total: int) -> None:
        """Count an acknowledgement of `total` bytes since the stream began; ends the stream when it cannot be."""
        try:
            self.credit.acknowledge(total, now_ms)
        except RemoteViolation as error:
            self.end(EndReason.PROTOCOL_ERROR, str(error))

    def barrier(self, target: int) -> None:
        """Move the position to `target` as soon as the member has folded that far (U60, U69)."""
        self._target = max(self._target, target)

    def end(self, reason: EndReason, message: str = "", refusal: Refusal | None = None) -> None:
        """End the stream; what was not sent yet is dropped."""
        if self.phase is Phase.OVER:
            return
        self.phase = Phase.OVER
        self.feed.close()
        self._out.clear()
        self._out.append(StreamEnd(reason, refusal, message))

    # --- answers of the shell -----------------------------------------------------------------------------

    def took(self, now_ms: int, cut: Cut) -> None:
        """Decide on the snapshot that was taken, and begin the scan; every scan decides again (U56, U57)."""
        self._reading, self._holding = False, True
        if self.phase is not Phase.CUT:
            return   # ended meanwhile
        answer = decide(self._asked, cut.here, cut.map_version)
        if not isinstance(answer, Accepted):
            moved = "this node does not serve the shard" if isinstance(answer, NotMyShard) else ""
            self.end(EndReason.REFUSED, moved, answer)
            return
        assert cut.here is not None
        self._cut = cut
        self._begin(cut.here, answer.resume)

    def scanned(self, rows: Sequence[Row], through: int) -> None:
        """Take in a page of rows, in order; the snapshot holds no other row up to `through`."""
        self._reading = False
        if self.phase is not Phase.SCAN:
            return
        assert not rows or self._through < rows[0].seqno <= rows[-1].seqno <= through, "U59: rows of a scan ascend"
        self._through = through
        if self._skip_deletes and self._first_end is not None:
            rows = [row for row in rows if not skipped(row, self._first_end)]
        self._say_rows(self._wanted.passed(rows))

    def replayed(self, entries: Sequence[Folded], through: int) -> None:
        """Take in visible entries of the log, in order; there is no other up to `through` (U64)."""
        self._reading = False
        if self.phase is not Phase.SCAN:
            return
        self._through = through
        self._say_entries(entry._replace(rows=tuple(self._wanted.passed(entry.rows))) for entry in entries)

    def trimmed(self, first: int) -> None:
        """The log begins at `first` now, above what was to be read (U64)."""
        self._reading = False
        self.end(EndReason.REFUSED, "", HistoryTrimmed(first))

    def failed(self, message: str) -> None:
        """The store could not be read."""
        self._reading = False
        self.end(EndReason.READ_FAILED, message)

    # --- the next step ------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> Step:
        """Return what to do next; a step that reads is given once, and the next one waits for what it brings."""
        stalls_ms = self._stalls_ms()
        if stalls_ms is not None and now_ms >= stalls_ms:
            waited = f"{self.credit.owed} bytes were not acknowledged for {self.limits.stall_ms} ms"
            self.end(EndReason.TOO_SLOW, waited)
        if self._holding and self.phase is not Phase.SCAN:
            self._holding = False
            return Release()
        while True:
            if self._out:
                return self._say(now_ms, stalls_ms)
            if self._reading:
                return Wait(stalls_ms)
            found = self._next(now_ms, stalls_ms)
            if self._holding and self.phase is not Phase.SCAN:
                self._holding = False
                return Release()
            if found is not None:
                return found

    def _next(self, now_ms: int, stalls_ms: int | None) -> Step | None:
        """Return the next step, None when something is to be sent or the phase has changed."""
        match self.phase:
            case Phase.CUT:
                self._reading = True
                self.feed.begin()
                return TakeCut()
            case Phase.SCAN:
                return self._scan(stalls_ms)
            case Phase.LIVE:
                return self._live(now_ms)
            case Phase.OVER:
                return Done()

    def _say(self, now_ms: int, stalls_ms: int | None) -> Step:
        message = self._out[0]
        if isinstance(message, StreamEnd):
            return Say(self._out.popleft())
        if not self.credit.free:
            return Wait(stalls_ms)
        self._out.popleft()
        self.credit.spend(size_of(message), now_ms)
        if isinstance(message, End):
            self.said = message.seqno
        elif isinstance(message, Advanced | Confirmed):
            self.said = message.point.seqno
        return Say(message)

    def _stalls_ms(self) -> int | None:
        """Return when a scan without an acknowledgement ends: it holds a snapshot of the store (U61)."""
        if not self._holding or not self.credit.owed:
            return None
        return self.credit.progress_ms + self.limits.stall_ms

    # --- scanning -----------------------------------------------------------------------------------------

    def _begin(self, here: Here, resume: int) -> None:
        """Rule U56: what the snapshot holds is not taken from the feed too."""
        start, partial, upto = self.position.seqno, self._asked.partial, here.applied
        self.feed.drop_to(upto)
        self._through, self._upto = resume, upto
        if start == upto and self.position.epoch and partial is None:
            self._settle()
            return
        self.phase = Phase.SCAN
        if self.all_versions:
            return
        self._first_end = None
        if start == 0:
            self._first_end = upto if partial is None else partial.first_end
        assert self._cut is not None
        count = self._cut.summary.documents if self._cut.summary is not None else -1
        end = here.failover.point(upto)
        self._out.append(Marker(start, end, True, here.purged, self._first_end, count))

    def _scan(self, stalls_ms: int | None) -> Step | None:
        if self._through < self._upto:
            if not self.credit.free:
                return Wait(stalls_ms)
            self._reading = True
            read = ReadEntries if self.all_versions else ReadPage
            return read(self._through, self._upto, self.limits.page_bytes)
        assert self._cut is not None and self._cut.here is not None
        point = self._cut.here.failover.point(self._upto)
        if not self.all_versions:
            self._end_snapshot(point, self._cut.summary)
        elif self.position != point:
            self._advance(point)
        self._settle()
        return None

    def _settle(self) -> None:
        """The scan is over: follow the feed, and let later scans start at the position."""
        self.phase, self._cut, self._first_end = Phase.LIVE, None, None
        asked = self._asked
        self._asked = Asked(asked.shard, asked.scope, Position(asked.scope, asked.shard, self.position))

    # --- following ----------------------------------------------------------------------------------------

    def _live(self, now_ms: int) -> Step | None:
        feed = self.feed
        if feed.lost:
            self._rescan()
            return None
        if not feed.entries:
            return Wait()
        if not feed.has_rows:
            due_ms = self._advance_due_ms(now_ms)
            if now_ms < due_ms:
                return Wait(due_ms)
        entries = feed.take(self.limits.live_bytes)
        if self.all_versions:
            self._say_entries(entries)
        elif any(entry.rows for entry in entries):
            self._say_snapshot(entries)
        else:
            self._advance(entries[-1].point)
        return None

    def _rescan(self) -> None:
        """The whole feed is gone; what was under way is sent or queued, and a scan starts behind it (U61)."""
        asked = self._asked
        self._asked = asked._replace(position=asked.position._replace(point=self.position))
        self.phase = Phase.CUT

    def _advance_due_ms(self, now_ms: int) -> int:
        """Return when the position is to move over entries without a row (U60)."""
        feed = self.feed
        if self._target > self.position.seqno or feed.skipped_bytes >= self.limits.advance_bytes:
            return now_ms
        return now_ms if feed.skipped_ms is None else feed.skipped_ms + self.limits.advance_ms

    def _say_snapshot(self, entries: Sequence[Folded]) -> None:
        """Rule U59: a live snapshot has the last row of each key, over whole entries."""
        latest: dict[bytes, Row] = {}
        for entry in entries:
            for row in entry.rows:
                latest.pop(row.key, None)
                latest[row.key] = row
        self._out.append(Marker(self.position.seqno, entries[-1].point, False))
        self._say_rows(list(latest.values()))
        self._end_snapshot(entries[-1].point, entries[-1].summary)

    def _say_entries(self, entries: Iterable[Folded]) -> None:
        """Rule U64: one snapshot for each entry, with every version that it brought."""
        passed: Point | None = None
        for entry in entries:
            if self.phase is Phase.OVER:
                return
            if not entry.rows:
                passed = entry.point
                continue
            passed = None
            self._out.append(Marker(self.position.seqno, entry.point, False, may_duplicate=True))
            self._say_rows(entry.rows)
            self._end_snapshot(entry.point, entry.summary)
        if passed is not None:
            self._advance(passed)

    # --- messages -----------------------------------------------------------------------------------------

    def _say_rows(self, rows: Sequence[Row]) -> None:
        for part in self._parts(rows):
            self._out.append(Rows(part))

    def _parts(self, rows: Sequence[Row]) -> Iterable[tuple[Row, ...]]:
        """Cut rows into messages; a row that no message can carry ends the stream, here and at every retry."""
        part: list[Row] = []
        size = 0
        for row in rows:
            bytes_ = size_of_row(row)
            if bytes_ > self.limits.row_bytes_max:
                most = self.limits.row_bytes_max
                found = f"document {row.key!r} at seqno {row.seqno} takes {bytes_} bytes, a message {most}"
                self.end(EndReason.CANNOT_SEND, found)
                return
            if part and size + bytes_ > self.limits.message_bytes:
                yield tuple(part)
                part, size = [], 0
            part.append(row)
            size += bytes_
        if part:
            yield tuple(part)

    def _end_snapshot(self, point: Point, summary: Summary | None) -> None:
        if self.phase is Phase.OVER:
            return
        self._out.append(End(point.seqno, summary if self._wanted.whole else None))
        self._moved(point)

    def _advance(self, point: Point) -> None:
        if self.phase is Phase.OVER:
            return
        self._out.append(Advanced(point))
        self._moved(point)

    def _moved(self, point: Point) -> None:
        assert point.seqno >= self.position.seqno, f"U60: the position falls from {self.position} to {point}"
        self.position = point
