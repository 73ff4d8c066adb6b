"""A cluster in this process: real gRPC servers over one shared, scripted log per shard.

It speaks the real frames and keeps the producer rules (the core's own table), so that what the client sends is
judged as a node would judge it.  Faults are scripted by the test: refusals, silence, lost answers, dead nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import grpc
import grpc.aio
from tidemark_core.base.entry import Durability, Entry, Kind, check_batch, control, seal
from tidemark_core.base.ids import NOTHING
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended
from tidemark_core.replication.producers import ProducerTable
from tidemark_wire import channel as wire
from tidemark_wire import frames
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc

BATCH_BYTES_MAX = 8 << 20


@dataclass
class FakeShard:
    """The log of one shard as a quorum would hold it; `leader` is a node's name or empty."""

    index: int
    leader: str
    epoch: int = 1
    entries: list[Entry] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    refusals: deque[Refused] = field(default_factory=deque)  # given to the next appends, in turn
    silent: int = 0  # so many appends are taken and never answered
    deaf: bool = False  # appends are neither taken nor answered
    trimmed_to: int = 0
    sent: list[tuple[bytes, int]] = field(default_factory=list)  # every (producer, sequence) that arrived
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def head(self) -> int:
        return self.entries[-1].last if self.entries else -1

    def add(self, batch, kind: Kind = Kind.DATA) -> Entry:  # type: ignore[no-untyped-def]
        last = self.entries[-1] if self.entries else None
        place = {"epoch": self.epoch, "prev": last.id if last else NOTHING, "prev_chain": last.chain if last else 0}
        if kind is Kind.DATA:
            entry = seal(batch, kind=kind, logged_ms=1000, **place)
            self.producers.note(entry)
        else:
            entry = control(kind, b"", logged_ms=1000, **place)
        self.entries.append(entry)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
        return entry

    def drop_last(self, count: int) -> None:
        """Lose the newest entries, as a failover may lose LOCAL ones."""
        del self.entries[len(self.entries) - count :]
        self.producers = ProducerTable()
        for entry in self.entries:
            if entry.kind is Kind.DATA:
                self.producers.note(entry)

    def append(self, batch) -> Appended | Refused | None:  # type: ignore[no-untyped-def]
        self.sent.append((batch.producer, batch.sequence))
        if self.deaf:
            return None
        if self.refusals:
            return self.refusals.popleft()
        wrong = check_batch(batch, BATCH_BYTES_MAX)
        if wrong is not None:
            return Refused(Reason.INVALID_BATCH, wrong, self.epoch)
        verdict = self.producers.judge(batch.producer, batch.sequence, 1000)
        if verdict.place is not None:
            place = verdict.place
            return Appended(place.epoch, place.base, place.count, Durability.QUORUM)
        if verdict.too_old:
            return Refused(Reason.SEQUENCE_TOO_OLD, "forgotten", self.epoch, verdict.expected)
        if batch.sequence != verdict.expected:
            return Refused(Reason.SEQUENCE_GAP, f"expected {verdict.expected}", self.epoch, verdict.expected)
        entry = self.add(batch)
        if self.silent:
            self.silent -= 1
            return None
        return Appended(entry.epoch, entry.base, entry.count, batch.durability)


class FakeNode:
    """One gRPC server."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = ""
        self.frames = 0
        self.calls = 0
        self.streams = 0
        self.delay_s = 0.0
        self.read_delay_s = 0.0  # between two frames of a read
        self.known = common_pb2.ShardMap()  # what it would say of the map; set by FakeCluster.push
        self.paused = asyncio.Event()
        self.paused.set()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        server = self._server = grpc.aio.server(options=wire.server_options())
        servicer = _Servicer(self)
        node_pb2_grpc.add_TidemarkServicer_to_server(servicer, server)
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "tidemark.v1.Tidemark",
                    {
                        "Append": grpc.stream_stream_rpc_method_handler(servicer.append),
                        "Read": grpc.unary_stream_rpc_method_handler(
                            servicer.read, request_deserializer=node_pb2.ReadRequest.FromString
                        ),
                    },
                )
            ]
        )
        bound = wire.bind(server, f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{bound}"
        await server.start()

    async def kill(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    @property
    def alive(self) -> bool:
        return self._server is not None


class _Servicer(node_pb2_grpc.TidemarkServicer):
    def __init__(self, node: FakeNode) -> None:
        self.node = node

    async def GetShardMap(self, request, context):  # type: ignore[no-untyped-def]
        await self.node.paused.wait()
        return self.node.known

    async def WatchShardMap(self, request, context):  # type: ignore[no-untyped-def]
        version = request.known_version
        while True:
            await self.node.paused.wait()
            if self.node.known.version > version:
                version = self.node.known.version
                yield self.node.known
            await self.node.cluster.pushed.wait()

    async def append(self, stream, context):  # type: ignore[no-untyped-def]
        node = self.node
        node.streams += 1
        wire.read_hello(context.invocation_metadata())
        async for frame in stream:
            node.frames += 1
            answers = []
            for call in frames.decode_appends(frame):
                node.calls += 1
                answer = self._answer(call)
                if answer is not None:
                    answers.append(answer)
            if node.delay_s:
                await asyncio.sleep(node.delay_s)
            await node.paused.wait()
            if answers:
                yield frames.encode_answers(answers)

    def _answer(self, call: frames.AppendCall) -> frames.AppendAnswer | None:
        cluster = self.node.cluster
        shards = cluster.groups.get(call.group)
        if shards is None:
            return frames.AppendAnswer(call.request, Refused(Reason.UNKNOWN_GROUP, f"no group {call.group}"))
        shard = shards[call.shard]
        if shard.leader != self.node.name:
            leader = cluster.nodes.get(shard.leader)
            return frames.AppendAnswer(
                call.request, Refused(Reason.NOT_LEADER, "not the leader", shard.epoch),
                shard.leader, leader.address if leader and cluster.hints else "", self.node.known.version,
            )
        value = shard.append(call.batch)
        return None if value is None else frames.AppendAnswer(call.request, value)

    async def read(self, request, context):  # type: ignore[no-untyped-def]
        cluster = self.node.cluster
        shard = cluster.groups[request.group][request.shard]
        if shard.leader != self.node.name:
            error = to_rpc_error(Refused(Reason.NOT_LEADER, "not the leader", shard.epoch))
            await context.abort(error.code, error.details, error.trailing_metadata)
        position = getattr(request, "from")
        if position < shard.trimmed_to:
            error = to_rpc_error(Refused(Reason.TRIMMED, "gone", shard.epoch, shard.trimmed_to))
            await context.abort(error.code, error.details, error.trailing_metadata)
        until = request.until if request.until >= 0 else shard.head
        cluster.reads.append((request.shard, position, until, request.tail))
        while True:
            changed = shard.changed
            await self.node.paused.wait()
            entries = tuple(e for e in shard.entries if e.last >= position and (request.tail or e.base <= until))
            for start in range(0, len(entries), 3):
                some = entries[start : start + 3]
                yield frames.encode_read(frames.ReadFrame(position, some[-1].last, shard.head, some))
                position = some[-1].last + 1
                await asyncio.sleep(self.node.read_delay_s)
                await self.node.paused.wait()
            if not request.tail and position > until:
                if not entries:
                    yield frames.encode_read(frames.ReadFrame(position, position - 1, shard.head, ()))
                return
            await changed.wait()


class FakeCluster:
    """Nodes n0, n1, ... and groups of shards spread over them."""

    def __init__(self) -> None:
        self.nodes: dict[str, FakeNode] = {}
        self.groups: dict[str, dict[int, FakeShard]] = {}
        self.version = 0
        self.pushed = asyncio.Event()
        self.hints = True
        self.reads: list[tuple[int, int, int, bool]] = []
        self.keys_required = False
        self.max_record_bytes = 1 << 20
        self.default_ack = "Quorum"

    async def start(self, nodes: int = 3, shards: int = 4, group: str = "orders") -> FakeCluster:
        for number in range(nodes):
            node = self.nodes[f"n{number}"] = FakeNode(self, f"n{number}")
            await node.start()
        self.groups[group] = {index: FakeShard(index, f"n{index % nodes}") for index in range(shards)}
        for shard in self.groups[group].values():
            shard.add(None, Kind.EPOCH_START)
        self.push()
        return self

    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values() if node.alive]

    def shard_map(self) -> common_pb2.ShardMap:
        result = common_pb2.ShardMap(version=self.version, cluster="fake")
        for node in self.nodes.values():
            result.nodes.add(node=node.name, address=node.address, available=node.alive)
        for number, (name, shards) in enumerate(self.groups.items()):
            group = result.groups.add(
                name=name, group_id=number + 1, kind="Log", max_batch_bytes=BATCH_BYTES_MAX,
                max_record_bytes=self.max_record_bytes, keys_required=self.keys_required, default_ack=self.default_ack,
            )
            width = (1 << 32) // len(shards)
            for index, shard in shards.items():
                last = index == len(shards) - 1
                group.shards.add(
                    index=index, epoch=shard.epoch, leader=shard.leader, ensemble=list(self.nodes), status="STEADY",
                    hash_min=index * width, hash_max=(1 << 32) - 1 if last else (index + 1) * width - 1,
                )
        return result

    def push(self, to: list[str] | None = None) -> None:
        """Give every node, or only these, the map as it is now."""
        self.version += 1
        for name in self.nodes if to is None else to:
            self.nodes[name].known = self.shard_map()
        pushed, self.pushed = self.pushed, asyncio.Event()
        pushed.set()

    def elect(self, shard: FakeShard, leader: str, *, push: bool = True) -> None:
        """Let `leader` lead the shard in a new epoch."""
        shard.epoch += 1
        shard.leader = leader
        shard.add(None, Kind.EPOCH_START)
        if push:
            self.push()

    async def stop(self) -> None:
        for node in self.nodes.values():
            node.paused.set()
            await node.kill()
