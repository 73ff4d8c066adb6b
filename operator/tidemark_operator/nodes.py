"""Links to the nodes: one bidi stream of raw frames per node, with a prober beside it.

A node is up while its stream stands and its prober does not give it up.  A broken stream is verified at once: a refused
connection means down now, an answer means a new stream and nothing happened.  Each (re)made stream is told
as `on_up`, so that whatever was in flight before can be sent again.  Queues are bounded; what does not fit
or has no stream is dropped, because every request of the core is repeated until it is answered.
Stays out: when to probe (`probing`), judging probes (`detector`), what messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark_core.base.effects import Space
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Address, Member, OperatorId, ShardId
from tidemark_core.base.marks import DiskMark
from tidemark_wire.channel import (
    CONTROL_LINK,
    answered_hello,
    hello_metadata,
    open_channel,
)
from tidemark_wire.convert import DiskReport, Draining
from tidemark_wire.frames import SLICE_WORK, NotOnThisWire, decode_messages, encode_message, work_of
from tidemark_wire.recovery import SIZES_MAX
from tidemark_wire.tasks import background, cancelled
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WIRE_VERSION, WireVersionMismatch, agreed

from .detector import DetectorSettings, LoopLateness, Outcome, Suspicion, Verdict
from .metadata import NodeRecord
from .metrics import NODE_REQUESTS, counted
from .probing import CLEAR_NO, Prober, knock, now_ms

log = logging.getLogger(__name__)

QUEUE_MESSAGES_MAX = 8_192
FRAME_BYTES_TARGET = 1 << 20
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 0.5
CALL_TIMEOUT_S = 5.0
"""Of what is no probe: a map of many shards takes a busy node longer than an answer to a probe may take."""
CLOCK_LOOK_S = 30.0
"""How often a node is asked for its clock."""
CLOCK_STEP_MS = 5_000
"""Smaller differences are the time that the answer was under way."""
OPENING_FACTOR = 2
"""A link may take so many timeouts of a probe to open: it connects first, and TLS greets."""

Answer = TypeVar("Answer")


class LinkListener(Protocol):
    """Who is told what the links see."""

    def on_up(self, link: NodeLink, member: Member, boot: str) -> None: ...
    def on_down(self, node: str, reason: str) -> None: ...
    def on_message(self, address: Address, sender: Member, boot: str, message: Any) -> None: ...
    def on_draining(self, node: str, draining: bool) -> None: ...
    def on_clock(self, node: str) -> None: ...
    def on_space(self, node: str, space: Space) -> None: ...


Vet = Callable[[Member, grpc.aio.Channel], Awaitable[None]]
"""Looks at a node that answers, before it counts as up."""


class NodeLink:
    """The link to one node at one address."""

    def __init__(
        self,
        record: NodeRecord,
        operator: OperatorId,
        settings: DetectorSettings,
        lateness: LoopLateness,
        listener: LinkListener,
        tls: Credentials | None = None,
        vet: Vet | None = None,
        cluster: str = "",
    ) -> None:
        self.record = record
        self.tried = asyncio.Event()   # one attempt is over, whatever came of it
        self.up = False
        self.told_down = False
        self.member: Member | None = None
        self.description: node_pb2.NodeDescription | None = None
        self.draining = False
        self.clock_ahead_ms: int | None = None   # of our monotonic clock; None: it has not said
        self.space = Space.FREE        # of the node's disk, as the node says
        self.free_bytes = 0
        self.reason = "not reached yet"
        self.of_other_cluster = False   # the process that answers at the address belongs to another cluster
        self.dropped = 0
        self._cluster = cluster
        self._operator = operator
        self._lateness = lateness
        self._listener = listener
        self._tls = tls
        self._vet = vet
        self._channel: grpc.aio.Channel | None = None
        self._suspicion = Suspicion(settings)
        self._wire_version = WIRE_VERSION       # of the stream; known once there is one
        # Encoded when the stream takes them: the next stream may speak another wire version than this one.
        self._queue: deque[tuple[Address, Member, Any]] = deque()
        self._queued = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task = background(self._run(), f"the link to {record.node}")

    @property
    def node(self) -> str:
        return self.record.node

    @property
    def settings(self) -> DetectorSettings:
        return self._suspicion.settings

    def set_settings(self, settings: DetectorSettings) -> None:
        """Use other settings from the next probe on."""
        self._suspicion.settings = settings

    def send(self, address: Address, to: Member, message: Any) -> None:
        """Queue one message; drop it without a stream or room."""
        if not self.up or len(self._queue) >= QUEUE_MESSAGES_MAX:
            self.dropped += 1
            return
        self._queue.append((address, to, message))
        self._queued.set()

    def _encoded(self, address: Address, to: Member, message: Any) -> bytes:
        """Return a frame for the stream that is up, empty when the node's release has no form for the message."""
        try:
            return encode_message(address, to, message, self._wire_version)
        except NotOnThisWire as error:
            self.dropped += 1
            log.warning("%s runs an older release and cannot be sent a message: %s", self.node, error)
            return b""

    async def push_map(self, shard_map: common_pb2.ShardMap) -> int:
        """Hand over a shard map; return the version the node holds now.  Raises grpc.aio.AioRpcError."""
        channel = self._channel
        if channel is None:
            raise ConnectionError(f"{self.node} is not linked")
        answer = await counted(NODE_REQUESTS, "PushShardMap", node_pb2_grpc.ControlStub(channel).PushShardMap(
            shard_map, timeout=CALL_TIMEOUT_S))
        return int(answer.version)

    async def tls_fingerprint(self) -> str:
        """Ask which certificate and CAs the node has loaded.  Raises grpc.aio.AioRpcError, ConnectionError."""
        return str((await self._asked(partial(self._describe, timeout_s=CALL_TIMEOUT_S))).tls_fingerprint)

    async def lagging(self) -> set[str]:
        """Ask whom the shards that the node leads wait for.  Raises grpc.aio.AioRpcError, ConnectionError."""
        return set((await self._asked(partial(self._describe, timeout_s=CALL_TIMEOUT_S))).lagging)

    async def log_bytes(self, shards: Sequence[ShardId]) -> dict[ShardId, int]:
        """Ask how much log the node holds of each of these shards; what it has none of is left out.

        Raises grpc.aio.AioRpcError, ConnectionError.
        """
        found: dict[ShardId, int] = {}
        for first in range(0, len(shards), SIZES_MAX):
            request = node_pb2.SizesRequest(shards=shards[first:first + SIZES_MAX])
            answer = await self._asked(partial(self._sizes, request))
            found.update((ShardId(each.shard), each.bytes) for each in answer.shards)
        return found

    async def check_disk(self, known: DiskMark | None, *, give_up: bool) -> tuple[DiskMark, bool]:
        """Ask how many writes are durable on the node's disk, and have it give up one older than `known` says (D52).

        Returns the mark and whether the disk is given up.  Raises grpc.aio.AioRpcError, ConnectionError.
        """
        mark = known or DiskMark("", 0)
        request = node_pb2.CheckDiskRequest(incarnation=mark.incarnation, writes=mark.writes, give_up=give_up)
        answer = await self._asked(partial(self._check_disk, request))
        return DiskMark(answer.incarnation, answer.writes), answer.given_up

    async def _check_disk(
        self, request: node_pb2.CheckDiskRequest, channel: grpc.aio.Channel
    ) -> node_pb2.CheckDiskResponse:
        return await counted(NODE_REQUESTS, "CheckDisk", node_pb2_grpc.ControlStub(channel).CheckDisk(
            request, timeout=CALL_TIMEOUT_S))

    async def _sizes(self, request: node_pb2.SizesRequest, channel: grpc.aio.Channel) -> node_pb2.SizesResponse:
        return await counted(NODE_REQUESTS, "Sizes", node_pb2_grpc.ControlStub(channel).Sizes(
            request, timeout=CALL_TIMEOUT_S))

    async def _asked(self, ask: Callable[[grpc.aio.Channel], Awaitable[Answer]]) -> Answer:
        channel = self._channel
        if channel is None:
            raise ConnectionError(f"{self.node} is not linked")
        try:
            return await ask(channel)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the call's
                raise
            raise ConnectionError(f"the link to {self.node} was closed") from None

    def retry_now(self) -> None:
        """Cut the wait for the next attempt short: there is news of this node."""
        self._hurry.set()

    async def close(self) -> None:
        await cancelled(self._task)

    # --- the life of a link -------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            started = time.monotonic()
            channel = self._channel = open_channel(self.record.address, self._tls, server_name=self.node)
            self._suspicion.probed(started * 1000)
            try:
                outcome, reason = await self._greet(channel)
                verdict = self._judge(outcome, started)
                if verdict is Verdict.UP:
                    verdict, reason = await self._stay(channel)
            finally:
                self.tried.set()
                self._channel = None
                await channel.close()
            self.reason = reason
            lasted_s = time.monotonic() - started
            if verdict is Verdict.UP and lasted_s > BACKOFF_MAX_S:
                backoff_s = BACKOFF_FIRST_S
                continue  # only the stream broke: verify, and link again, at once
            if verdict is Verdict.DOWN and not self.told_down:
                self._go_down(reason)
                backoff_s = BACKOFF_FIRST_S
            if verdict is Verdict.SUSPECT and self.up:  # the next probe is due one interval behind this one
                pause_s = max(0.0, self.settings.probe_interval_ms / 1000 - lasted_s)
            else:
                pause_s, backoff_s = backoff_s, min(BACKOFF_MAX_S, backoff_s * 2)
            self._hurry.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause_s)

    def _judge(self, outcome: Outcome, started: float) -> Verdict:
        """Judge one attempt to link, which began at `started` (`time.monotonic()`)."""
        if outcome in CLEAR_NO:
            return Verdict.DOWN
        if outcome is Outcome.SERVING:
            self._suspicion.answered(started * 1000, now_ms())
        return self._suspicion.verdict(now_ms(), self._lateness.worst_ms_since(started))

    @property
    def _opening_timeout_s(self) -> float:
        return OPENING_FACTOR * self.settings.probe_timeout_ms / 1000

    async def _greet(self, channel: grpc.aio.Channel) -> tuple[Outcome, str]:
        """Ask who is there and whether it serves."""
        try:
            description = await self._describe(channel, self._opening_timeout_s)
        except grpc.aio.AioRpcError as error:
            self.of_other_cluster = False   # the process that answered before is gone
            return await self._failed_probe(error)
        theirs = description.cluster   # empty: a node without --cluster, or of an older release
        self.of_other_cluster = bool(self._cluster and theirs) and theirs != self._cluster
        if self.of_other_cluster:
            return Outcome.REFUSED, (
                f"{self.record.address} is a node of the cluster {theirs!r}, not of {self._cluster!r}")
        if description.node != self.node:
            return Outcome.REFUSED, f"{self.record.address} is {description.node!r}, another node"
        try:
            agreed(description.wire_version, description.wire_version_newest or description.wire_version)
        except WireVersionMismatch as mismatch:
            return Outcome.REFUSED, str(mismatch)
        self.description, self.draining = description, description.draining
        self._take_space(description.disk_space, description.disk_free_bytes)
        return await self._check(channel, self._opening_timeout_s)

    async def _describe(self, channel: grpc.aio.Channel, timeout_s: float) -> node_pb2.NodeDescription:
        asked_ms = now_ms()
        description = await counted(NODE_REQUESTS, "Describe", node_pb2_grpc.ControlStub(channel).Describe(
            node_pb2.DescribeRequest(), timeout=timeout_s))
        if description.HasField("clock_ms"):
            self._hear_clock(description.clock_ms - round((asked_ms + now_ms()) / 2))
        return description

    def _hear_clock(self, ahead_ms: int) -> None:
        """Keep how far the node's clock is ahead of ours; a step of it is news (C5)."""
        known = self.clock_ahead_ms
        if known is None or abs(ahead_ms - known) > CLOCK_STEP_MS:
            self.clock_ahead_ms = ahead_ms
            self._listener.on_clock(self.node)

    async def _watch_clock(self, channel: grpc.aio.Channel) -> None:
        """Look at the node's clock for as long as the link stands; the prober judges a node that does not answer."""
        while True:
            await asyncio.sleep(CLOCK_LOOK_S)
            with suppress(grpc.aio.AioRpcError):
                await self._describe(channel, CALL_TIMEOUT_S)

    async def _check(self, channel: grpc.aio.Channel, timeout_s: float) -> tuple[Outcome, str]:
        """Ask whether the node serves; raises nothing of gRPC."""
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await counted(NODE_REQUESTS, "Check", stub.Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            return await self._failed_probe(error)
        if answer.status == health_pb2.HealthCheckResponse.SERVING or self.draining:
            return Outcome.SERVING, ""
        # A draining node tells its clients to go away; it still leads until its leaderships have moved.
        try:
            self.description = await self._describe(channel, timeout_s)
        except grpc.aio.AioRpcError as error:
            return await self._failed_probe(error)
        if self.description.draining:
            self.draining = True
            self._listener.on_draining(self.node, True)
            return Outcome.SERVING, ""
        return Outcome.NOT_SERVING, "says that it is not serving"

    async def _failed_probe(self, error: grpc.aio.AioRpcError) -> tuple[Outcome, str]:
        """Tell a refused connection from silence; gRPC itself words both alike."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            match await knock(self.record.address, self.settings.probe_timeout_ms / 1000):
                case Outcome.REFUSED:
                    return Outcome.REFUSED, f"{self.record.address} refuses connections"
                case Outcome.SERVING:
                    self._suspicion.accepted(now_ms())
        why = f" ({error.details()})" if self._tls is not None else ""  # it may be a certificate
        return Outcome.SILENT, f"no answer: {error.code().name}{why}"

    async def _stay(self, channel: grpc.aio.Channel) -> tuple[Verdict, str]:
        """Hold the stream until it breaks (UP: to be verified) or the prober gives the node up (DOWN)."""
        assert self.description is not None
        started = time.monotonic()
        self._suspicion.probed(started * 1000)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CONTROL_LINK)
        call = method(metadata=hello_metadata(operator=self._operator))
        jobs: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(self._opening_timeout_s):
                hello = await answered_hello(call)  # the node has the link now, not just the connection
            self._wire_version = hello.version
            member = Member(hello.node, hello.incarnation)
            if self._vet is not None:
                await self._vet(member, channel)
            self._go_up(member)
            check = partial(self._check, channel)
            prober = asyncio.ensure_future(
                Prober(self.record.address, self._suspicion, self._lateness, check).run())
            jobs = [
                prober,
                asyncio.ensure_future(self._read(call, member, self.description.boot)),
                asyncio.ensure_future(self._write(call)),
                asyncio.ensure_future(self._watch_clock(channel)),
            ]
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            return (Verdict.DOWN, prober.result()) if prober.done() else (Verdict.UP, "the stream broke")
        except (TimeoutError, ConnectionError, WireVersionMismatch) as error:
            return self._judge(Outcome.SILENT, started), str(error) or "no answer to the link's opening"
        except grpc.aio.AioRpcError as error:
            outcome, reason = await self._failed_probe(error)
            return self._judge(outcome, started), reason
        finally:
            call.cancel()
            for problem in await cancelled(*jobs):
                if isinstance(problem, AssertionError):
                    raise problem

    async def _read(self, call: Any, member: Member, boot: str) -> None:
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                await self._on_frame(frame, member, boot)
        except grpc.aio.AioRpcError as error:
            log.info("link to %s broke: %s %s", self.node, error.code().name, error.details())

    async def _on_frame(self, frame: bytes, member: Member, boot: str) -> None:
        work = 0
        try:
            for unit, _to, message in decode_messages(frame, self._wire_version, skipped=self._skipped):
                if isinstance(message, Draining):
                    self.draining = message.draining
                    self._listener.on_draining(self.node, message.draining)
                elif isinstance(message, DiskReport):
                    self._take_space(message.space, message.free_bytes)
                else:
                    self._listener.on_message(unit, member, boot, message)
                if (work := work + work_of(unit.plane, message)) >= SLICE_WORK:
                    work = 0
                    await asyncio.sleep(0)   # the frame of a hostile node must not silence the loop
        except RemoteViolation as error:
            log.warning("frame of %s dropped: %s", self.node, error)

    def _take_space(self, space: int, free_bytes: int) -> None:
        before, self.free_bytes = self.space, free_bytes
        self.space = Space(min(space, max(Space)))   # a level of a newer release is as bad as the worst one here
        if self.space is not before:
            self._listener.on_space(self.node, self.space)

    def _skipped(self, why: str) -> None:
        log.warning("message of %s dropped, a newer release wrote it: %s", self.node, why)

    async def _write(self, call: Any) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader learns why
            while True:
                await self._queued.wait()
                parts, size = [], 0
                while self._queue:
                    message = self._encoded(*self._queue[0])
                    if size and size + len(message) > FRAME_BYTES_TARGET:
                        break   # a snapshot may fill a frame of its own
                    self._queue.popleft()
                    parts.append(message)
                    size += len(message)
                if not self._queue:
                    self._queued.clear()
                if size:
                    await call.write(b"".join(parts))

    def _go_up(self, member: Member) -> None:
        assert self.description is not None
        self._suspicion = Suspicion(self.settings)
        if self._queue:
            self._queued.set()  # of the moments between a broken stream and this one
        self.up, self.told_down = True, False
        self.tried.set()
        self.member, self.reason = member, ""
        self._listener.on_up(self, member, self.description.boot)

    def _go_down(self, reason: str) -> None:
        self.up, self.told_down = False, True
        self._queue.clear()
        self._queued.clear()
        log.warning("%s is down: %s", self.node, reason)
        self._listener.on_down(self.node, reason)


class NodeLinks:
    """The links to all nodes of the cluster, as the node records say."""

    def __init__(
        self,
        operator: OperatorId,
        listener: LinkListener,
        lateness: LoopLateness,
        settings: DetectorSettings | None = None,
        tls: Credentials | None = None,
        vet: Vet | None = None,
        cluster: str = "",
    ) -> None:
        """Nodes that say that they belong to another cluster than `cluster` are not linked; empty: none is asked."""
        self._cluster = cluster
        self._tls = tls
        self._vet = vet
        self._operator = operator
        self._listener = listener
        self._lateness = lateness
        self._settings = settings or DetectorSettings()
        self._links: dict[str, NodeLink] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[NodeLink]:
        return iter(list(self._links.values()))

    def get(self, node: str) -> NodeLink | None:
        return self._links.get(node)

    def set_settings(self, settings: DetectorSettings) -> None:
        """Use other detector settings from the next probe on."""
        self._settings = settings
        for link in self._links.values():
            link.set_settings(settings)

    def set_node(self, record: NodeRecord) -> None:
        """Learn of a node, or that it answers elsewhere now."""
        known = self._links.get(record.node)
        if known is not None:
            if known.record.address == record.address:
                known.record = record
                known.retry_now()
                return
            self._replace(known, f"it moved to {record.address}")
        self._links[record.node] = NodeLink(
            record, self._operator, self._settings, self._lateness, self._listener, self._tls, self._vet,
            self._cluster)

    def remove_node(self, node: str) -> None:
        known = self._links.pop(node, None)
        if known is not None:
            self._replace(known, "it was removed")

    def send(self, address: Address, to: Member, message: Any) -> None:
        link = self._links.get(to.node)
        if link is not None:
            link.send(address, to, message)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()), *self._closing)

    def _replace(self, link: NodeLink, reason: str) -> None:
        closing = asyncio.ensure_future(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        if link.up:
            link.up = False
            self._listener.on_down(link.node, reason)
