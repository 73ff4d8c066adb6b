"""Budgets of a node: what callers may hold of it at once, all together and each of them (T12).

Each call of a client or an admin passes here before its request is received: it takes a stream, a watch or a call of
the budgets, its request is bounded, and a search of the log waits for its turn.  Nodes and operators pass.
Stays out: how a budget is shared (wire's `budgets`), who may call at all (`access`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.budgets import RETRY_AFTER_MS, Budget, Grant, Line, Pace, name_of
from tidemark_wire.identity import Kind
from tidemark_wire.status import to_rpc_error

from .access import Access, Handler
from .arrivals import Arrivals, TooLate
from .half_sent import HalfSent
from .methods import PEOPLE, Cost, Method, Shape
from .settings import FRAME_COPIES, Settings
from .sockets import Sockets

REQUESTS_AT_ONCE = 4
"""Each may be as large as the server's bound of a message before it is refused, so there are few."""
LARGE_REQUEST_SECONDS = 0.5
"""So long a request above its bound keeps the place of the next one: to take it in costs the loop milliseconds."""

LARGE_FRAME_SECONDS = 10.0
"""So long a frame beside the budget may be under way while another one waits for its place."""
SEND_LOOK_SECONDS = 1.0

SEARCHES_AT_ONCE = 2
HALF_SENT_BYTES_MAX = 256 << 20
"""Of messages that did not come whole yet, on streams and calls of the health service (T12b)."""
MAP_BYTES_MAX = 64 << 20
"""Of shard maps on their way to watches.  A map counts once: all watches share its bytes, gRPC copies them."""
CHANGE_STREAMS_MAX = 1024
FEED_BYTES = 512 << 10
"""Of one change stream, at most: entries that were folded and are not sent yet."""
SNAPSHOTS_MAX = 64
"""Of the store, held by scans of change streams; meanwhile what is overwritten stays on the disk."""
SCANS_MAX = 256
"""States of the store that scans of documents hold, apart from change streams: their readers set the pace.

A scan in the order of keys holds one of each shard to its end.
"""
OUTCOMES_MAX = 1024
POSITIONS_MAX = 4096
KEYSPACE_BYTES_MAX = 64 << 20
"""Of operations on keyspaces that have not ended; each read and each page counts for what it may bring."""
NEWS_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Budgets:
    """Everything that callers share."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self._access = access
        self._told_at = -NEWS_SECONDS
        self.streams = Budget("streams", settings.streams_max, "--streams-max")
        self.watches = Budget("watches", settings.watches_max, "--watches-max")
        self.calls = Budget("calls", settings.calls_max, "--calls-max")
        self.appends = Budget("bytes of unanswered batches", settings.append_bytes_max, "--append-bytes-max")
        self.half_sent = HalfSent(Budget("bytes of half-sent messages", HALF_SENT_BYTES_MAX), self.refusal, Sockets())
        self.outcomes = Budget("waits for an outcome", OUTCOMES_MAX)
        self.positions = Budget("waits for a position", POSITIONS_MAX)
        self.frames = Line("bytes of frames", settings.frame_bytes_max, "--frame-bytes-max")
        self.maps = Line("bytes of shard maps", MAP_BYTES_MAX)
        self.change_streams = Budget("change streams", CHANGE_STREAMS_MAX)
        self.feed_bytes = FEED_BYTES
        self.snapshots = Line("snapshots of change streams", SNAPSHOTS_MAX)
        self.scans = Line("scans of documents", SCANS_MAX)
        self.keyspaces = Budget("bytes of operations on keyspaces", KEYSPACE_BYTES_MAX)
        self._requests = Line("requests under way", REQUESTS_AT_ONCE)
        self._arrivals = Arrivals(lambda: self._requests.waiting)
        self._searches = Line("searches", SEARCHES_AT_ONCE)
        self._sends = Pace()
        self._of_cost = {
            Cost.STREAM: self.streams, Cost.WATCH: self.watches, Cost.CALL: self.calls, Cost.SEARCH: self.calls,
        }

    def __iter__(self) -> Iterator[tuple[str, Budget]]:
        """Yield every budget with its name in metrics."""
        yield "streams", self.streams
        yield "watches", self.watches
        yield "calls", self.calls
        yield "append_bytes", self.appends
        yield "half_sent_bytes", self.half_sent.budget
        yield "outcomes", self.outcomes
        yield "positions", self.positions
        yield "frame_bytes", self.frames
        yield "map_bytes", self.maps
        yield "change_streams", self.change_streams
        yield "change_snapshots", self.snapshots
        yield "document_scans", self.scans
        yield "keyspace_bytes", self.keyspaces
        yield "requests", self._requests
        yield "searches", self._searches

    def who(self, context: Any) -> str:
        """Return what a caller counts as."""
        return name_of(*self._access.caller(context))

    def refusal(self, budget: Budget, who: str, retry_after_ms: int = RETRY_AFTER_MS) -> Refused:
        """Return what a caller over its share is answered; the log names one such caller a second."""
        refused = budget.refusal(who, retry_after_ms)
        now = time.monotonic()
        if now - self._told_at >= NEWS_SECONDS:
            self._told_at = now
            _log.warning("a caller is over its share", extra={"caller": who, "reason": refused.message})
        return refused

    def frame_now(self, who: str, least: int, most: int) -> Grant | None:
        """Return room for a frame of `least` to `most` bytes, `frame_bytes` says how many; None where there is none."""
        return self.frames.grant_now(who, FRAME_COPIES * least, FRAME_COPIES * most)

    async def frame(self, who: str, least: int, most: int) -> Grant:
        """Wait for room for a frame of `least` to `most` bytes."""
        return await self.frames.grant(who, FRAME_COPIES * least, FRAME_COPIES * most)

    async def send(self, who: str, context: Any, frame: Callable[[], bytes], grant: Grant | None = None) -> None:
        """Encode a frame and hand it to gRPC, one in each turn of the loop; return when the caller's side has it.

        A frame beside the budget (its grant says so) ends the call where it takes long and another such frame waits.
        """
        refused = await self.sent(who, context, frame, grant)
        if refused is not None:
            await context.abort(*to_rpc_error(refused))

    async def sent(
        self, who: str, context: Any, frame: Callable[[], bytes], grant: Grant | None = None
    ) -> Refused | None:
        """Send a frame as `send` does; return what ends the call instead of ending it."""
        await self._sends.turn(who)
        writing = context.write(frame())    # gRPC copies and encrypts it on the loop
        if grant is None or not grant.beside:
            await writing
            return None
        if await self._written(asyncio.ensure_future(writing)):
            return None
        refused = self.refusal(self.frames, who)
        grant.release()     # the status waits behind the frame until the caller reads; its place is free now
        return refused

    async def _written(self, writing: asyncio.Future[None]) -> bool:
        """Wait for a frame beside the budget; return whether its caller took it in time."""
        waited = 0.0
        try:
            while not (await asyncio.wait((writing,), timeout=SEND_LOOK_SECONDS))[0]:
                waited += SEND_LOOK_SECONDS
                if waited >= LARGE_FRAME_SECONDS and self.frames.wants_beside:
                    return False
        finally:
            writing.cancel()
        writing.result()
        return True

    def limited(self, method: Method, handler: Handler) -> Handler:
        """Return a gRPC handler that takes what a call costs and receives its request, unless that is a stream."""
        budget = self._of_cost[method.cost_of_call]
        bidi = method.shape is Shape.BIDI
        received = handler if bidi else self._received(method, handler)
        counted = self.bounded(handler) if bidi else received

        async def call(_: Any, context: Any) -> Any:
            if not self._counts(method, context):
                return await received(_, context)
            who = self.who(context)
            if not budget.take(who):
                await context.abort(*to_rpc_error(self.refusal(budget, who)))
            try:
                return await counted(_, context)
            finally:
                budget.give_back(who)

        return call

    async def read(self, context: Any) -> Any:
        """Return the next message of a stream, or gRPC's end of it."""
        frame = await context.read()
        if frame is not grpc.aio.EOF:
            self.half_sent.given(context, len(frame))
        return frame

    def bounded(self, handler: Handler) -> Handler:
        """Return the handler of a stream, which ends where its caller has too much half sent (T12b)."""

        async def call(_: Any, context: Any) -> Any:
            stream = self.half_sent.enter(self.who(context), context)
            try:
                return await handler(_, context)
            except asyncio.CancelledError:
                if stream.refused is None:
                    raise
                await context.abort(*to_rpc_error(stream.refused))
            finally:
                self.half_sent.leave(context)

        return call

    def _counts(self, method: Method, context: Any) -> bool:
        """Say whether a call is one of those that are limited; without TLS those that a client may make are."""
        identity = self._access.caller(context).identity
        return Kind.CLIENT in method.callers if identity is None else identity.kind in PEOPLE

    def _received(self, method: Method, handler: Handler) -> Handler:
        """Return a handler that receives one request: few at once, so that large ones stay with their senders."""

        async def call(_: Any, context: Any) -> Any:
            counts, who = self._counts(method, context), self.who(context)
            request = await (self._request(method, who, context) if counts else _read(method, context))
            if isinstance(request, Refused):
                await context.abort(*to_rpc_error(request))
            if not counts or method.cost_of_call is not Cost.SEARCH:
                return await handler(request, context)
            async with self._searches.granted(who):
                return await handler(request, context)

        return call

    async def _request(self, method: Method, who: str, context: Any) -> Any:
        grant = await self._requests.grant(who)
        try:
            request = await self._arrivals.wait(_read(method, context, method.request_bytes_max))
            if isinstance(request, Refused):
                await asyncio.sleep(LARGE_REQUEST_SECONDS)
            return request
        except TooLate as late:
            return Refused(Reason.OVERLOADED, str(late), retry_after_ms=RETRY_AFTER_MS)
        finally:
            grant.release()


def frame_bytes(grant: Grant) -> int:
    """Return how many bytes a frame may have that is sent under a grant."""
    return grant.count // FRAME_COPIES


def fitted(grant: Grant, size: int) -> bool:
    """Make a grant that of a frame of `size` bytes, if that fits at once; say whether it does."""
    grant.shrink(FRAME_COPIES * size)
    return grant.grow(FRAME_COPIES * size)


async def _read(method: Method, context: Any, bytes_max: int = 0) -> Any:
    """Return the request as its method wants it, or what is wrong with it."""
    raw = await context.read()
    if raw is grpc.aio.EOF:
        return Refused(Reason.INVALID_SPEC, f"{method.name} was called without a request")
    if 0 < bytes_max < len(raw):
        large = f"the request has {len(raw)} bytes, {method.name} takes at most {bytes_max}: ask for less at once"
        return Refused(Reason.INVALID_SPEC, large)
    if method.request is None:
        return raw
    try:
        return method.request.FromString(raw)
    except DecodeError as error:
        return Refused(Reason.INVALID_SPEC, f"the request is no {method.request.DESCRIPTOR.name}: {error}")
