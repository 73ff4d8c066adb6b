"""Consuming: the consumer's side of one stream of one shard at committed level (rules U55, U58, U59, U62).

A pure state machine.  The shell opens a stream with what `ask` says, hands in each message and runs the effects in
order.  Rows are staged until END, and the sink takes them over together with the position.  Stays out: sinks, choosing
a member, the tentative overlay (`overlay`), barriers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..base.errors import LocalMisuse, RemoteViolation
from ..base.ids import ShardId
from .decision import Asked, Behind, HistoryLost, HistoryTrimmed, NotMyShard, Purged, Refusal
from .history import START, Point
from .messages import Advanced, End, EndReason, Marker, Message, Row, Rows, StreamEnd, Summary, size_of
from .positions import History, Partial, Position, PositionRefused, Scope

BEHIND_MAX = 3
"""After so many members in a row that are behind, the leader is asked: it alone can say that history was lost (U57)."""
RETRY_MS = 200


class OnLost(Enum):
    """The reaction of a consumer when deletes were purged behind it, or its history is not the shard's (U58)."""

    FAIL = "fail"
    REBUILD = "rebuild"


class Where(Enum):
    """Which member to ask next."""

    ANY = "any"
    OTHER = "other"     # the shard map may be old
    LEADER = "leader"   # with a read index that begins after the request


@dataclass(frozen=True, slots=True)
class Stage:
    """Add rows to the staging area; none of them may be shown yet."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply what is staged and store `point`, in one transaction, then empty the staging area and call `stored`.

    `fresh`: what is staged replaces the whole view.  A sink without transactions stores `START` and empties the view
    where it is replaced, then applies each row that is newer than its own, and stores the position last (U55).  Without
    `START` a member that lags behind the purge would accept the old position of a view that is half empty.
    """

    start: int
    point: Point
    fresh: bool
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Nothing changed up to `point`: store it, now or with the next rows, and call `stored`."""

    point: Point


@dataclass(frozen=True, slots=True)
class Discard:
    """Empty the staging area."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Tell the application that its view will be replaced, and why; the view stays as it is until then (U58)."""

    refusal: Purged | HistoryLost


@dataclass(frozen=True, slots=True)
class Reopen:
    """Open the stream again with what `ask` says, after `delay_ms`."""

    where: Where
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The stream is over; a retry ends the same way."""

    reason: EndReason
    refusal: Refusal | None
    message: str


Effect = Stage | Apply | Move | Discard | Rebuild | Reopen | Fail


class Consuming:
    """One shard of a consumer.  `point` is stored by the sink; what is staged lies behind it.

    A rebuild leaves the stored position alone until the new view is complete: a consumer that crashes meanwhile starts
    where it was, and is refused again.
    """

    __slots__ = (
        "_behind", "_ended", "_inside", "_storing", "on_lost", "partial", "point", "rebuilding", "received", "scope",
        "shard",
    )

    def __init__(
        self, scope: Scope, shard: ShardId, point: Point = START, *, on_lost: OnLost = OnLost.FAIL
    ) -> None:
        self.scope = scope
        self.shard = shard
        self.point = point
        self.on_lost = on_lost
        self.partial: Partial | None = None
        self.rebuilding = False
        self.received = 0                     # bytes since the stream was opened: what to acknowledge
        self._inside: Marker | None = None    # the snapshot under way on this stream
        self._storing: Point | None = None
        self._behind = 0
        self._ended = True

    @property
    def resume(self) -> Point:
        """Where the next stream starts: at the beginning while the view is rebuilt."""
        return START if self.rebuilding else self.point

    def ask(self) -> Asked:
        """Return the request for a stream, and begin to count its bytes."""
        self.received, self._ended, self._inside = 0, False, None
        return Asked(self.shard, self.scope, Position(self.scope, self.shard, self.resume), self.partial)

    def stored(self, point: Point) -> None:
        """The sink has stored the position `point`."""
        if point != self._storing:
            raise LocalMisuse(f"U55: {point} was stored, {self._storing} was to be stored")
        self.point, self._storing = point, None
        self.rebuilding = False

    def disconnected(self) -> list[Effect]:
        """The stream broke: go on inside the snapshot, at any member (U62)."""
        if self._ended:
            return []
        return [*self._close(), Reopen(Where.ANY, RETRY_MS)]

    def _close(self) -> list[Effect]:
        """The stream is over: keep the part of a snapshot that another stream can go on with."""
        self._ended, self._inside = True, None
        part, whole = self.partial, self.scope.history is History.ALL
        if part is None or not (whole or part.last == part.start):
            return []
        self.partial = None   # nothing of it was received, or it is one entry
        return [Discard()]

    def on_message(self, message: Message) -> list[Effect]:
        """Take in the next message; raises RemoteViolation when the member broke the protocol.

        The shell acknowledges `received` bytes once it has run the effects.
        """
        if self._ended:
            return []
        if self._storing is not None:
            raise LocalMisuse(f"U55: {self._storing} is not stored yet")
        effects = self._take(message)
        if not isinstance(message, StreamEnd):
            self.received += size_of(message)
        return effects

    def _take(self, message: Message) -> list[Effect]:
        match message:
            case Marker():
                return self._on_marker(message)
            case Rows():
                return self._on_rows(message)
            case End():
                return self._on_end(message)
            case Advanced():
                return self._on_advanced(message)
            case StreamEnd():
                return self._on_stream_end(message)
        raise RemoteViolation(f"U59: {type(message).__name__} came on a stream at committed level")

    # --- snapshots ----------------------------------------------------------------------------------------

    def _on_marker(self, m: Marker) -> list[Effect]:
        partial, start = self.partial, self.resume.seqno
        if self._inside is not None:
            raise RemoteViolation(f"U59: a snapshot begins inside the one that ends at {self._inside.end.seqno}")
        if m.start != start or m.end.seqno < m.start:
            raise RemoteViolation(f"U59: snapshot [{m.start}, {m.end.seqno}] does not follow {start}")
        if partial is not None and m.end.seqno < partial.end.seqno:
            raise RemoteViolation(f"U62: snapshot ends at {m.end.seqno}, the part received at {partial.end.seqno}")
        self._behind = 0
        self._inside = m
        last = m.start if partial is None else partial.last
        self.partial = Partial(m.start, last, m.end, m.purged, m.first_end)
        return []

    def _on_rows(self, m: Rows) -> list[Effect]:
        marker, partial = self._inside, self.partial
        if marker is None or partial is None:
            raise RemoteViolation("U59: rows came outside a snapshot")
        last, end = partial.last, marker.end.seqno
        for row in m.rows:
            if not last < row.seqno <= end:
                raise RemoteViolation(f"U59: row {row.seqno} came behind {last} in a snapshot up to {end}")
            last = row.seqno
        self.partial = partial._replace(last=last)
        return [Stage(m.rows)]

    def _on_end(self, m: End) -> list[Effect]:
        marker = self._inside
        if marker is None or m.seqno != marker.end.seqno:
            raise RemoteViolation(f"U59: END of {m.seqno} came in {marker}")
        self.partial = self._inside = None
        self._storing = marker.end
        return [Apply(marker.start, marker.end, marker.start == 0, m.summary)]

    def _on_advanced(self, m: Advanced) -> list[Effect]:
        first = self.resume.epoch == 0 and self.scope.history is History.LATEST
        if self._inside is not None or self.partial is not None or first:
            raise RemoteViolation(f"U60: ADVANCED to {m.point.seqno} came inside a snapshot")
        if m.point.seqno < self.point.seqno:
            raise RemoteViolation(f"U60: ADVANCED to {m.point.seqno} came at {self.point.seqno}")
        self._storing = m.point
        return [Move(m.point)]

    # --- ends ---------------------------------------------------------------------------------------------

    def _on_stream_end(self, m: StreamEnd) -> list[Effect]:
        closed = self._close()
        match m.reason:
            case EndReason.REFUSED:
                return [*closed, *self._on_refusal(m)]
            case (
                EndReason.STATE_CHANGED | EndReason.TOO_SLOW | EndReason.READ_FAILED | EndReason.SHUTTING_DOWN
                | EndReason.OVERLOADED
            ):
                return [*closed, Reopen(Where.OTHER, RETRY_MS)]
        return [*closed, Fail(m.reason, None, m.message)]

    def _on_refusal(self, m: StreamEnd) -> list[Effect]:
        match m.refusal:
            case NotMyShard():
                return [Reopen(Where.OTHER, RETRY_MS)]
            case Behind():
                self._behind += 1
                where = Where.LEADER if self._behind >= BEHIND_MAX else Where.OTHER
                return [Reopen(where, RETRY_MS)]
            case Purged() | HistoryLost() as refusal:
                return self._on_lost(refusal, m.message)
            case PositionRefused() | HistoryTrimmed() | None:
                return [Fail(m.reason, m.refusal, m.message)]

    def _on_lost(self, refusal: Purged | HistoryLost, message: str) -> list[Effect]:
        """Rule U58.  A part of a snapshot can be lost while the position behind it is good: ask without the part."""
        self._behind = 0
        if self.partial is not None:
            self.partial = None
            return [Discard(), Reopen(Where.ANY)]
        if self.on_lost is OnLost.FAIL or self.scope.history is History.ALL:
            return [Fail(EndReason.REFUSED, refusal, message)]
        self.rebuilding = True
        return [Rebuild(refusal), Discard(), Reopen(Where.ANY)]
