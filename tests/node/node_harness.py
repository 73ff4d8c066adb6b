"""Node processes under test, and the two callers they need: an operator's hand and a client's."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Durability
from tidemark_core.base.ids import Address, EntryId, Member, ShardId, ShardKind, of_shard, shard_id
from tidemark_core.limbo.view import LimboView
from tidemark_core.replication.messages import BecameLeader, BecomeLeader, Fence, Fenced, Outcome
from tidemark_operator.local_state import free_ports
from tidemark_wire import channel, frames
from tidemark_wire.limbo import limbo_from_proto, outcome_from_proto
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc

from tests.waiting import PATIENCE_S, wait_until

GROUP, GROUP_ID = "orders", 7
SHARD = shard_id(GROUP_ID, 0)
AT = of_shard(SHARD)
START_SECONDS = 60.0
LINEAGE = b"one history ----"
VERSIONS = itertools.count(1)
"""Versions of shard maps for nodes that tests share: a node ignores a map that is older than its own."""


class Group(NamedTuple):
    """A group with one shard."""

    name: str = GROUP
    group_id: int = GROUP_ID

    @property
    def shard(self) -> ShardId:
        return shard_id(self.group_id, 0)


ORDERS = Group()
_group_ids = itertools.count(GROUP_ID + 1)


def fresh_group() -> Group:
    """Return a group that no other test of this process has."""
    number = next(_group_ids)
    return Group(f"{GROUP}-{number}", number)


class NodeProcess:
    """One node as a child process."""

    def __init__(self, name: str, directory: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
        self.name = name
        self.directory = directory / name
        self.ready_file = directory / f"{name}.ready"
        self.log_file = directory / f"{name}.log"
        self.arguments = arguments
        self.prefix = (*prefix, str(self.directory)) if prefix else ()
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self.group = ORDERS   # the helpers of a test ask the node for it

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        command = [
            *self.prefix, sys.executable, "-m", "tidemark_node", "--node", self.name, "--data", str(self.directory),
            "--listen", self.listen, "--ready-file", str(self.ready_file), *self.arguments,
        ]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        wait_until(self._is_ready, f"{self.name} is ready", START_SECONDS)
        self.ready = json.loads(self.ready_file.read_text())
        self.listen = self.address  # a restarted node keeps its address

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _is_ready(self) -> bool:
        assert self.process is not None
        ended = self.process.poll()
        assert ended is None or self.ready_file.exists(), f"{self.name} ended with {ended}:\n{self.log()}"
        return self.ready_file.exists()

    @property
    def address(self) -> str:
        return self.ready["address"]

    @property
    def member(self) -> Member:
        return Member(self.name, self.ready["incarnation"])

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def log(self) -> str:
        return self.log_file.read_text()


class SharedNodes:
    """Three nodes that the tests of a file share."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders = folders
        self.nodes: list[NodeProcess] = []
        self.failed = 0

    def renew(self, failed: int) -> list[NodeProcess]:
        """Return the nodes when all of them run; `failed` tests of this process failed so far.

        New nodes replace them after a failed test, so that one failure causes no second.
        """
        if failed > self.failed or not self.nodes:
            self.kill()
            directory = self.folders.mktemp("nodes")
            self.nodes, self.failed = [NodeProcess(name, directory) for name in "abc"], failed
        for node in self.nodes:
            if not node.running:
                node.start()
        return self.nodes

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


class OperatorHand:
    """Speaks on Control/Link as an operator would, one message at a time."""

    def __init__(self, name: str = "hand", tls: Credentials | None = None) -> None:
        self.name = name
        self.tls = tls
        self._links: dict[str, tuple[grpc.aio.Channel, Any]] = {}
        self.received: list[tuple[str, ShardId, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    async def link(self, node: str, address: str) -> None:
        opened = channel.open_channel(address, self.tls)
        call = opened.stream_stream(channel.CONTROL_LINK)(metadata=channel.hello_metadata(operator=self.name))
        hello = await channel.answered_hello(call)
        assert hello.node == node
        self._links[node] = (opened, call)
        self._tasks.append(asyncio.ensure_future(self._receive(node, call)))

    async def _receive(self, node: str, call: Any) -> None:
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                for unit, _, message in frames.decode_messages(frame):
                    self.received.append((node, unit.shard, message))
                self._news.set()
        except grpc.RpcError:
            pass  # the node went away; the test knows why

    async def send(self, to: Member, message: Any, shard: ShardId = SHARD) -> None:
        await self.send_at(of_shard(shard), to, message)

    async def send_at(self, unit: Address, to: Member, message: Any) -> None:
        """Send to a unit of any plane."""
        await self._links[to.node][1].write(frames.encode_message(unit, to, message))

    async def ask(
        self, to: Member, message: Any, answer: type, shard: ShardId = SHARD, timeout_seconds: float = 10.0
    ) -> Any:
        """Send and wait for the next answer of that class from that node."""
        seen = len(self.received)
        await self.send(to, message, shard)
        return await self.wait_for(to.node, answer, shard, seen, timeout_seconds)

    async def wait_for(
        self, node: str, answer: type, shard: ShardId = SHARD, seen: int = 0, timeout_seconds: float = 10.0
    ) -> Any:
        async with asyncio.timeout(timeout_seconds):
            while True:
                for sender, of, message in self.received[seen:]:
                    if sender == node and of == shard and isinstance(message, answer):
                        return message
                self._news.clear()
                await self._news.wait()

    async def elect(
        self, epoch: int, leader: Member, ensemble: tuple[Member, ...], shard: ShardId = SHARD,
        kind: ShardKind = ShardKind.LOG, up: tuple[Member, ...] = (),
    ) -> None:
        """Fence the members that are `up`, all by default, and make `leader` lead, as a coordinator would."""
        heads: list[tuple[Member, EntryId]] = []
        for member in up or ensemble:
            fenced = await self.ask(member, Fence(epoch, epoch, kind=kind), Fenced, shard)
            heads.append((member, fenced.head))
        followers = tuple(pair for pair in heads if pair[0] != leader)
        lineage = LINEAGE if kind is ShardKind.DOCUMENTS else b""
        await self.ask(
            leader, BecomeLeader(epoch, epoch, ensemble, followers, lineage=lineage), BecameLeader, shard)

    async def close(self) -> None:
        for opened, call in self._links.values():
            call.cancel()
            await opened.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def shard_map(
    nodes: Iterable[tuple[Member, str]], leader: str, version: int, max_batch_bytes: int = 1 << 20, shards: int = 1,
    zones: dict[str, str] | None = None, kind: str = "Log", of: Group = ORDERS, **group: Any,
) -> common_pb2.ShardMap:
    """Build a map of the group `of`; `group` are more of its fields."""
    nodes = list(nodes)
    return common_pb2.ShardMap(
        version=version,
        nodes=[
            common_pb2.NodeInfo(
                node=m.node, incarnation=m.incarnation, address=address, available=True,
                zone=(zones or {}).get(m.node, ""),
            )
            for m, address in nodes
        ],
        groups=[
            common_pb2.GroupInfo(
                name=of.name, group_id=of.group_id, kind=kind, max_batch_bytes=max_batch_bytes,
                shards=[
                    common_pb2.ShardInfo(
                        index=i, epoch=1, leader=leader, ensemble=[m.node for m, _ in nodes],
                        hash_min=(i << 32) // shards, hash_max=((i + 1 << 32) // shards) - 1,
                    )
                    for i in range(shards)
                ],
                **group,
            )
        ],
    )


async def push_map(address: str, pushed: common_pb2.ShardMap, tls: Credentials | None = None) -> int:
    async with channel.open_channel(address, tls) as opened:
        return (await node_pb2_grpc.ControlStub(opened).PushShardMap(pushed)).version


def batch(
    sequence: int, payload: bytes = b"", producer: bytes = b"p" * 16, count: int = 1,
    durability: Durability = Durability.QUORUM,
) -> Batch:
    payload = payload or f"payload {sequence}".encode()
    return Batch(producer, sequence, count, 1, 2, crc32c(payload), payload, durability)


class Appender:
    """An append stream; answers by request number."""

    def __init__(self, address: str, tls: Credentials | None = None) -> None:
        self._channel = channel.open_channel(address, tls)
        self._call = self._channel.stream_stream(channel.APPEND)()

    async def send(self, *calls: frames.AppendCall) -> None:
        await self._call.write(frames.encode_appends(calls))

    async def answers(self, count: int, timeout_seconds: float = 10.0) -> list[frames.AppendAnswer]:
        got: list[frames.AppendAnswer] = []
        async with asyncio.timeout(timeout_seconds):
            while len(got) < count:
                frame = await self._call.read()
                assert frame is not grpc.aio.EOF
                got += frames.decode_answers(frame)
        return got

    async def append(
        self, sent: Batch, group: str = GROUP, shard: int = 0, resume_after: int = -1, expect: int = -1
    ) -> Any:
        await self.send(frames.AppendCall(sent.sequence, group, shard, sent, resume_after, expect=expect))
        (answer,) = await self.answers(1)
        assert answer.request == sent.sequence
        return answer.value

    async def finish(self) -> None:
        await self._call.done_writing()
        assert await self._call.read() is grpc.aio.EOF
        await self._channel.close()

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


async def read(address: str, timeout_seconds: float = 20.0, **fields: Any) -> AsyncIterator[frames.ReadFrame]:
    """Read frames of a shard; `first` is sent as `from`."""
    first = fields.pop("first", 0)
    request = node_pb2.ReadRequest(**{"group": GROUP, "shard": 0, "until": -1, "from": first, **fields})
    async with channel.open_channel(address) as opened:
        call = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)(request)
        async with asyncio.timeout(timeout_seconds):
            while (frame := await call.read()) is not grpc.aio.EOF:
                yield frames.decode_read(frame)


async def read_all(address: str, **fields: Any) -> list[Any]:
    """Return every entry of a read, checking its coverage."""
    entries: list[Any] = []
    position = fields.get("first", 0)
    async for frame in read(address, **fields):
        assert frame.first == position
        entries += frame.entries
        position = frame.through + 1
    return entries


async def outcome(
    address: str, sequence: int, wait: bool = True, producer: bytes = b"p" * 16, **fields: Any
) -> Outcome:
    """Ask what became of a batch."""
    request = node_pb2.OutcomeRequest(
        **{"group": GROUP, "shard": 0, "producer": producer, "sequence": sequence, "wait": wait, **fields}
    )
    async with channel.open_channel(address) as opened:
        return outcome_from_proto(await node_pb2_grpc.TidemarkStub(opened).Outcome(request, timeout=10))


async def limbo(address: str, entries_max: int = 100, **fields: Any) -> LimboView:
    """Look at the limbo of a shard."""
    request = node_pb2.LimboRequest(**{"group": GROUP, "shard": 0, "entries_max": entries_max, **fields})
    async with channel.open_channel(address) as opened:
        return limbo_from_proto(await node_pb2_grpc.TidemarkStub(opened).Limbo(request, timeout=10))


class Three:
    """Nodes that hold the one shard of a fresh group of documents, and a client of its leader."""

    def __init__(self, nodes: list[NodeProcess], operator: OperatorHand) -> None:
        self.nodes = nodes
        self.operator = operator
        self.epoch = 0
        self.leader = nodes[0]
        self.group = fresh_group()
        for node in nodes:
            node.group = self.group

    async def lead(self, leader: NodeProcess, of: list[NodeProcess] | None = None) -> None:
        """Elect `leader` in a new epoch by those that are up."""
        of = of or self.nodes
        self.leader, self.epoch = leader, self.epoch + 1
        pushed = self.map(self.nodes)
        for node in of:
            await push_map(node.address, pushed)
            await self.operator.link(node.name, node.address)
        ensemble = tuple(node.member for node in self.nodes)
        up = tuple(node.member for node in of)
        await self.operator.elect(
            self.epoch, leader.member, ensemble, self.group.shard, kind=ShardKind.DOCUMENTS, up=up)

    def map(self, nodes: list[NodeProcess]) -> common_pb2.ShardMap:
        """Build a new map, in which the shard is on `nodes`."""
        placed = [(node.member, node.address) for node in nodes]
        return shard_map(placed, self.leader.name, next(VERSIONS), kind="Documents", of=self.group)

    async def ask(self, to: NodeProcess, message: Any, answer: type, timeout_seconds: float = 10.0) -> Any:
        """Ask a node as the operator of the shard."""
        return await self.operator.ask(to.member, message, answer, self.group.shard, timeout_seconds)

    async def write(self, *sent: Batch) -> list[Any]:
        appender = Appender(self.leader.address)
        try:
            return [await appender.append(each, self.group.name) for each in sent]
        finally:
            await appender.close()
