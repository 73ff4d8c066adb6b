"""Questions that only the leader of a shard can answer: what became of a batch, what waits in the limbo, where the
log ends, where it was at some time, where subscriptions stand, and how far sinks have come.

A question follows the leader, as appends and reads do, until it is answered or its time is over.
Stays out: how long an answer may take on the node; what it means (the core's rules L19 and L20).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from typing import Any, TypeVar

import grpc.aio
from tidemark_core.base.entry import NO_PRODUCER
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import RETRIED, Reason
from tidemark_core.limbo.view import LimboView
from tidemark_core.replication.messages import (
    Fate,
    Outcome,
    PositionCommitted,
    SinkDeleted,
    SinkJoined,
    SinkMarked,
    SubscriptionDeleted,
)
from tidemark_core.sinks.fold import SinkEnd
from tidemark_core.sinks.view import SinksView
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_core.upr.history import FailoverLog
from tidemark_wire import channel as wire
from tidemark_wire.changes import CHANGES, AskIndex, Index, NoIndex, decode_answers, encode_request
from tidemark_wire.frames import ReadFrame, decode_read
from tidemark_wire.limbo import ENTRIES_MAX, limbo_from_proto, outcome_from_proto
from tidemark_wire.sinks import (
    joined_from_proto,
    marked_from_proto,
    marks_to_proto,
    sink_deleted_from_proto,
    sinks_from_proto,
)
from tidemark_wire.subscriptions import committed_from_proto, deleted_from_proto, subscriptions_from_proto
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from .errors import InvalidArgument, Trimmed, Unavailable
from .retrying import BACKOFF_MAX_S, SILENCE_S, Backoff, closed_below, follow
from .routing import Channels, Leader, Routing
from .settings import at_least

T = TypeVar("T")

LOOK_EVERY_S = 0.25  # while an answer is awaited: is there a newer leader?
BEYOND_EVERYTHING = 1 << 62  # an offset no log reaches


class Questions:
    """Asks leaders."""

    def __init__(self, routing: Routing, channels: Channels) -> None:
        self._routing = routing
        self._channels = channels

    async def outcome(
        self, group_name: str, shard: int, producer: bytes, sequence: int, *, wait: bool, timeout_s: float
    ) -> Outcome:
        """Return what became of a batch; raises InvalidArgument, RequestRefused, Unavailable."""
        if type(producer) is not bytes or len(producer) != len(NO_PRODUCER) or producer == NO_PRODUCER:
            raise InvalidArgument(
                "producer", f"must be {len(NO_PRODUCER)} bytes and not all zero, as answers and errors carry it"
            )
        if type(sequence) is not int or not 0 <= sequence < 1 << 63:
            raise InvalidArgument("sequence", f"is {sequence!r}, must be a number of at least 0")
        deadline = self._deadline(timeout_s)
        group_id = await self._check(group_name, shard)
        request = node_pb2.OutcomeRequest(
            group=group_name, group_id=group_id, shard=shard, producer=producer, sequence=sequence, wait=wait
        )

        answer: Outcome | None = None
        while answer is None or (wait and answer.fate is Fate.UNKNOWN):
            try:
                answer = await self._answer("Outcome", request, outcome_from_proto, deadline, timeout_s)
            except Unavailable:
                if answer is None:
                    raise
                break  # nobody has said more than that it is unknown
        return answer

    async def limbo(self, group_name: str, shard: int, *, entries_max: int, timeout_s: float) -> LimboView:
        """Return the limbo of a shard, its oldest entries first; raises as `outcome`."""
        if type(entries_max) is not int or not 0 <= entries_max <= ENTRIES_MAX:
            raise InvalidArgument("entries_max", f"is {entries_max!r}, must be a number from 0 to {ENTRIES_MAX}")
        return await self._question(
            "Limbo", node_pb2.LimboRequest, limbo_from_proto, group_name, shard, timeout_s, entries_max=entries_max
        )

    async def commit_position(
        self, group_name: str, shard: int, name: str, offset: int, *, lease_ms: int, seek: bool, timeout_s: float,
        group_id: int = 0,
    ) -> PositionCommitted:
        """Commit where a subscription stands; raises as `outcome`, and GroupReplaced where a `group_id` is given."""
        return await self._question(
            "CommitPosition", node_pb2.CommitPositionRequest, committed_from_proto, group_name, shard, timeout_s,
            group_id=group_id, subscription=name, offset=offset, lease_ms=lease_ms, seek=seek,
        )

    async def subscriptions(
        self, group_name: str, shard: int, *, timeout_s: float, group_id: int = 0
    ) -> SubscriptionsView:
        """Return where all subscriptions of a shard stand; raises as `commit_position`."""
        return await self._question(
            "Subscriptions", node_pb2.SubscriptionsRequest, subscriptions_from_proto, group_name, shard, timeout_s,
            group_id=group_id,
        )

    async def delete_subscription(
        self, group_name: str, shard: int, name: str, *, timeout_s: float
    ) -> SubscriptionDeleted:
        """Delete a subscription of a shard; raises as `outcome`."""
        return await self._question(
            "DeleteSubscription", node_pb2.DeleteSubscriptionRequest, deleted_from_proto, group_name, shard, timeout_s,
            subscription=name,
        )

    async def join_sink(
        self, group_name: str, shard: int, sink: str, batch: int, part: int, *, lease_ms: int, timeout_s: float
    ) -> SinkJoined:
        """Let a part of a batch join it; raises as `outcome`."""
        return await self._question(
            "JoinSink", node_pb2.JoinSinkRequest, joined_from_proto, group_name, shard, timeout_s,
            sink=sink, batch=batch, part=part, lease_ms=lease_ms,
        )

    async def mark_sink(
        self, group_name: str, shard: int, sink: str, batch: int, parts: int, marks: tuple[SinkEnd, ...], *,
        lease_ms: int, timeout_s: float,
    ) -> SinkMarked:
        """Mark a batch as complete; raises as `outcome`."""
        return await self._question(
            "MarkSink", node_pb2.MarkSinkRequest, marked_from_proto, group_name, shard, timeout_s,
            sink=sink, batch=batch, parts=parts, ends=marks_to_proto(marks), lease_ms=lease_ms,
        )

    async def sinks(self, group_name: str, shard: int, sink: str, *, timeout_s: float) -> SinksView:
        """Return how far a sink has come, or all of them; raises as `outcome`."""
        return await self._question(
            "Sinks", node_pb2.SinksRequest, sinks_from_proto, group_name, shard, timeout_s, sink=sink)

    async def delete_sink(self, group_name: str, shard: int, sink: str, *, timeout_s: float) -> SinkDeleted:
        """Forget a sink; raises as `outcome`."""
        return await self._question(
            "DeleteSink", node_pb2.DeleteSinkRequest, sink_deleted_from_proto, group_name, shard, timeout_s, sink=sink)

    async def latest(self, group_name: str, shard: int, *, timeout_s: float, group_id: int = 0) -> int:
        """Return the last offset that may be read now, all that was acknowledged included; -1: none (O46)."""
        deadline = self._deadline(timeout_s)
        group_id = group_id or await self._check(group_name, shard)
        frame = await self._frame_at(group_name, group_id, shard, BEYOND_EVERYTHING, -1, deadline, timeout_s)
        return frame.released

    async def earliest(self, group_name: str, shard: int, *, timeout_s: float) -> int:
        """Return the first offset that retention has left, the one behind the end where nothing is left."""
        deadline = self._deadline(timeout_s)
        group_id = await self._check(group_name, shard)
        latest = await self._frame_at(group_name, group_id, shard, BEYOND_EVERYTHING, -1, deadline, timeout_s)
        if latest.released < 0:
            return 0
        try:
            await self._frame_at(group_name, group_id, shard, 0, 0, deadline, timeout_s)
        except Trimmed as trimmed:
            return trimmed.first
        return 0

    async def offset_at(self, group_name: str, shard: int, logged_ms: int, *, timeout_s: float) -> int:
        """Return the first offset logged at a time or later, by its leader's clock, which never falls along a log.

        What was logged later than all there is has the offset behind the end.  Found by halves, an entry at a time.
        """
        deadline = self._deadline(timeout_s)
        group_id = await self._check(group_name, shard)
        latest = await self._frame_at(group_name, group_id, shard, BEYOND_EVERYTHING, -1, deadline, timeout_s)
        low, high = 0, latest.released + 1
        while low < high:
            middle = (low + high) // 2
            try:
                frame = await self._frame_at(group_name, group_id, shard, middle, middle, deadline, timeout_s)
                while frame.holes:  # a hole's time is that of the record behind it
                    end = frame.holes[-1][1] + 1
                    frame = await self._frame_at(group_name, group_id, shard, end, end, deadline, timeout_s)
            except Trimmed as trimmed:
                low = max(low, trimmed.first)
                continue
            entry = frame.entries[0]
            if entry.logged_ms < logged_ms:
                low = entry.last + 1
            else:
                high = min(middle, entry.base)
        return max(low, 0)

    async def read_index(self, group_name: str, shard: int, *, timeout_s: float) -> tuple[int, FailoverLog]:
        """Return a seqno of documents that covers everything confirmed before the call, and the history there (U68)."""
        deadline = self._deadline(timeout_s)
        group_id = await self._check(group_name, shard)
        request = encode_request(AskIndex(1, group_name, shard))

        async def send(address: str, left_s: float) -> tuple[int, FailoverLog]:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channels.to(address).stream_stream(CHANGES)
            call = method(timeout=left_s, metadata=wire.hello_metadata())
            try:
                await call.write(request)
                frame: Any = await call.read()
                for answer in decode_answers(frame) if frame is not grpc.aio.EOF else ():
                    if isinstance(answer, Index):
                        return answer.seqno, answer.failover
                    if isinstance(answer, NoIndex):
                        raise RemoteViolation(f"no read index: {answer.message}")
                raise RemoteViolation("the node ended the stream")
            except asyncio.InvalidStateError as error:   # the call ended while we wrote; its status says why
                raise RemoteViolation(f"the call ended: {error}") from error
            finally:
                call.cancel()

        return await self.ask(group_name, group_id, shard, send, deadline, timeout_s)

    async def _frame_at(
        self, group_name: str, group_id: int, shard: int, first: int, until: int, deadline: float, timeout_s: float
    ) -> ReadFrame:
        """Return the first frame of a read from the leader that has what was asked for."""
        request = node_pb2.ReadRequest(group=group_name, group_id=group_id, shard=shard, until=until)
        setattr(request, "from", first)  # a keyword of Python

        async def send(address: str, left_s: float) -> ReadFrame:
            method: grpc.aio.UnaryStreamMultiCallable[Any, bytes] = self._channels.to(address).unary_stream(
                wire.READ, request_serializer=node_pb2.ReadRequest.SerializeToString
            )
            call = method(request, timeout=left_s, metadata=wire.hello_metadata())
            data: Any
            try:
                while (data := await call.read()) is not grpc.aio.EOF:
                    frame = decode_read(data)
                    if until < 0 or frame.through >= until:
                        return frame
                raise RemoteViolation("the node ended the stream")
            finally:
                call.cancel()

        return await self.ask(group_name, group_id, shard, send, deadline, timeout_s)

    async def _question(
        self, method: str, make: Callable[..., Any], parse: Callable[[Any], T], group_name: str, shard: int,
        timeout_s: float, *, group_id: int = 0, **fields: object,
    ) -> T:
        """Return the leader's answer about a shard that the map knows; `group_id` 0 is the group of that name now."""
        deadline = self._deadline(timeout_s)
        group_id = group_id or await self._check(group_name, shard)
        request = make(group=group_name, group_id=group_id, shard=shard, **fields)
        return await self._answer(method, request, parse, deadline, timeout_s)

    async def _answer(
        self, method: str, request: Any, parse: Callable[[Any], T], deadline: float, timeout_s: float
    ) -> T:
        async def send(address: str, left_s: float) -> T:
            stub = node_pb2_grpc.TidemarkStub(self._channels.to(address))
            return parse(await getattr(stub, method)(request, timeout=left_s, metadata=wire.hello_metadata()))

        return await self.ask(request.group, request.group_id, request.shard, send, deadline, timeout_s)

    def _deadline(self, timeout_s: float) -> float:
        return asyncio.get_running_loop().time() + at_least("timeout_s", timeout_s, 0.001)

    async def _check(self, group_name: str, shard: int) -> int:
        """Return the id of the group that has the name now."""
        group = await self._routing.find_group(group_name)
        self._routing.check_shard(group, shard)
        return group.group_id

    async def ask(
        self, group_name: str, group_id: int, shard: int, send: Callable[[str, float], Awaitable[T]], deadline: float,
        timeout_s: float, retried: Set[Reason] = RETRIED,
    ) -> T:
        """Return the answer of the leader of a shard.

        Raises RequestRefused but for what is `retried`, Unavailable; UnknownGroup and GroupReplaced as soon as the
        map says so.
        """
        now, routing = asyncio.get_running_loop().time, self._routing
        trouble, backoff = "no leader is known", Backoff()
        while (left_s := deadline - now()) > 0:
            routing.check_life(group_name, group_id)
            pause_s = BACKOFF_MAX_S
            leader = routing.leader(group_name, shard)
            if leader is None:
                routing.refresh_soon()
            else:
                try:
                    with closed_below():
                        answer = await self._while_leading(send(leader.address, left_s), group_name, shard, leader)
                    if answer is None:
                        continue  # another one leads
                    return answer
                except RemoteViolation as error:
                    trouble = f"{leader.address} sent a malformed answer: {error}"
                except grpc.aio.AioRpcError as error:
                    trouble = f"{leader.address}: {error.code().name} {error.details()}"
                    pause_s = follow(routing, group_name, shard, error, retried)
            pause_s = max(pause_s, backoff.next())
            await routing.wait_changed(min(pause_s, max(0.0, deadline - now())))
        raise Unavailable(
            f"the leader of shard {shard} of {group_name!r} did not answer within {timeout_s:g} s ({trouble})"
        )

    async def _while_leading(
        self, call: Awaitable[T], group_name: str, shard: int, leader: Leader
    ) -> T | None:
        """Return the answer of a call, or None once another leader is known: a paused one never says so."""
        asking, silent_s = asyncio.ensure_future(call), 0.0
        try:
            while not (await asyncio.wait({asking}, timeout=LOOK_EVERY_S))[0]:
                silent_s += LOOK_EVERY_S
                if silent_s >= SILENCE_S:
                    self._routing.refresh_soon()
                newest = self._routing.leader(group_name, shard)
                if newest is not None and newest.epoch > leader.epoch and newest.address != leader.address:
                    return None
            return asking.result()
        finally:
            asking.cancel()
