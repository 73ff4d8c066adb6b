"""A plane, a column family, a fold and an RPC that no product file knows: in the simulator and on real nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from node_harness import SHARD, Appender, OperatorHand, batch, shard_map
from tidemark_core.base.effects import DiskSpace, Reply
from tidemark_core.base.ids import Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.planes import PlaneTable, planes
from tidemark_node.families import FAMILIES, Family
from tidemark_node.main import Node
from tidemark_node.methods import Method, Shape
from tidemark_node.settings import Settings
from tidemark_sim.profiles import Options
from tidemark_sim.runner import run_seed
from tidemark_sim.trace import Violation
from tidemark_wire.channel import open_channel
from tidemark_wire.codecs import Codec, Codecs
from tidemark_wire.convert import PLANE_CODECS
from tidemark_wire.identity import Kind
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests import toy_plane
from tests.core.toy_fold import Tally
from tests.toy_plane import Copied, Copy, GetValue, Join, Kept, PutValue, ToyLimits, ToyPlane
from tests.waiting import until

RING = 3
WITH_TALLY = Limits(extra_folds=(Tally,))


def with_toy(limits: Limits) -> PlaneTable:
    return {**planes(limits), toy_plane.NUMBER: partial(ToyPlane, limits=ToyLimits())}


# --- in the simulator ---------------------------------------------------------------------------------------------

SEEDS = range(4_000, 4_009)
PASSED_THROUGH = ("crashes", "torn_tails", "toy_kept", "toy_got", "toy_refused", "core_toy_joined")
PUTS = 80


class Keepers:
    """A client of the ring and the judge of its one promise: an answered value is on a majority of disks, for good."""

    last: Keepers

    def __init__(self, world: Any, history: Any) -> None:
        type(self).last = self
        self.world = world
        self.kept: dict[bytes, bytes] = {}
        self._asked = 0
        world.after(1, self._tick)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(node.member for node in self.world.nodes.values())

    def _tick(self) -> None:
        world, number = self.world, self._asked
        node = world.dice.pick(list(world.nodes.values()))
        if node.core is not None and RING not in rings_of(node):
            node.feed(node.life, Join(RING, self.members))
        else:
            self._asked += 1
            key, value = b"key %d" % number, b"value %d" % number
            put = PutValue(RING, world.request_number(), key, value)
            node.request(put, lambda answer: self._answered(key, value, answer))
        if self._asked < PUTS:
            world.after(world.dice.around(10), self._tick)

    def _answered(self, key: bytes, value: bytes, answer: Kept | Refused) -> None:
        if isinstance(answer, Refused):
            self.world.trace.count("toy_refused")
            return
        self.world.trace.count("toy_kept")
        self.kept[key] = value
        self._check(key)
        node = self.world.dice.pick(list(self.world.nodes.values()))
        if node.core is not None and RING in rings_of(node):
            node.request(GetValue(RING, self.world.request_number(), key), lambda found: self._got(key, found))

    def _got(self, key: bytes, found: bytes | None) -> None:
        """A member that has a value has this one."""
        if found not in (None, self.kept[key]):
            raise Violation("toy", f"{key!r} is {self.kept[key]!r}, a member has {found!r}")
        self.world.trace.count("toy_got" if found else "toy_not_there_yet")

    def _check(self, key: bytes) -> None:
        holders = [node for node in self.world.nodes.values() if key in durable_rows(node)]
        if len(holders) * 2 <= len(self.world.nodes):
            raise Violation("toy", f"{key!r} was answered and is on {len(holders)} disks")

    def node_crashed(self, node: Any) -> None:
        for key in self.kept:
            self._check(key)


def rings_of(node: Any) -> Any:
    return node.core.planes[toy_plane.NUMBER].rings


def durable_rows(node: Any) -> dict[bytes, bytes]:
    return {key[8:]: value for key, value in node.disk.durable_tables.scan(toy_plane.FAMILY)}


def with_toys(options: Options) -> None:
    options.planes, options.limits = with_toy, replace(options.limits, extra_folds=(Tally,))
    options.faults.wipe = 0.0       # a ring of the toy cannot change its members
    options.faults.disk_full = 1.0


def test_the_simulator_runs_a_plane_that_no_product_file_knows() -> None:
    met: set[str] = set()
    for seed in SEEDS:
        result = run_seed(seed, ("swarm", "replication", "disks")[seed % 3], checkers=(Keepers,), adjust=with_toys)
        assert result.passed, f"{result.message}\n{result.replay}\n" + "\n".join(result.story)
        met |= {what for what in PASSED_THROUGH if result.counts.get(what)}
        world, kept = Keepers.last.world, Keepers.last.kept
        world.run_until(world.now_ms + 5_000)
        for node in world.nodes.values():
            assert durable_rows(node) == rings_of(node)[RING].values, f"seed {seed}: memory and disk of {node.name}"
            assert kept.items() <= durable_rows(node).items(), f"seed {seed}: {node.name} lacks what was answered"
    assert met == set(PASSED_THROUGH)


def test_the_simulator_finds_a_plane_that_answers_before_its_write_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    put = ToyPlane._put

    def hasty(self: ToyPlane, now_ms: int, asked: PutValue) -> Any:
        return [*put(self, now_ms, asked), Reply(asked.request, Kept(2))]

    monkeypatch.setattr(ToyPlane, "_put", hasty)
    results = [run_seed(seed, "replication", checkers=(Keepers,), adjust=with_toys) for seed in SEEDS[:4]]
    assert "toy" in {result.rule for result in results}


# --- on real nodes ------------------------------------------------------------------------------------------------

MESSAGES = {**PLANE_CODECS, toy_plane.NUMBER: Codecs([
    Codec(1, Copy, lambda m: len(m.key).to_bytes(2, "big") + m.key + m.value,
          lambda body: Copy(body[2:2 + int.from_bytes(body[:2], "big")], body[2 + int.from_bytes(body[:2], "big"):])),
    Codec(2, Copied, lambda m: m.key, Copied),
])}


class ToyPart:
    """Serves `key=value` to keep, and the value of a key."""

    def __init__(self, node: Node) -> None:
        self._driver = node.driver

    async def put(self, request: bytes, context: Any) -> bytes:
        key, _, value = request.partition(b"=")
        answer = await self._driver.ask_and_wait(lambda number: PutValue(RING, number, key, value))
        return b"kept by %d" % answer.members if isinstance(answer, Kept) else answer.reason.encode()

    async def get(self, request: bytes, context: Any) -> bytes:
        found: bytes | None = await self._driver.ask_and_wait(lambda number: GetValue(RING, number, request))
        return found or b""

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method("Toy.Put", Shape.UNARY, put, kinds=frozenset({Kind.CLIENT})),
        Method("Toy.Get", Shape.UNARY, get, kinds=frozenset({Kind.CLIENT})),
    )


async def started(stack: AsyncExitStack, directory: Path, name: str) -> Node:
    """Return a running node that has the toys beside what every node has."""
    settings = Settings(node=name, data=directory / name, metrics_listen="off", disk_reserve_bytes=1 << 20)
    node = Node(
        settings, WITH_TALLY, families=(*FAMILIES, Family(toy_plane.FAMILY, "toy")), planes_of=with_toy,
        messages=MESSAGES, contributes=lambda node: [ToyPart(node)])
    await node.start()
    stack.push_async_callback(node.stop)
    return node


def introduce(nodes: Sequence[Node], version: int) -> None:
    for node in nodes:
        node.routing.push(shard_map([(each.me, each.address) for each in nodes], "a", version))


async def call(node: Node, method: str, request: bytes) -> bytes:
    async with open_channel(node.address) as channel:
        answer: bytes = await channel.unary_unary(f"/tidemark.v1.Toy/{method}")(request, timeout=20)
        return answer


async def test_real_nodes_serve_a_plane_that_no_product_file_knows(tmp_path: Path) -> None:
    async with AsyncExitStack() as all_nodes:
        a, b = [await started(all_nodes, tmp_path, name) for name in "ab"]
        async with AsyncExitStack() as one_life:
            c = await started(one_life, tmp_path, "c")
            introduce([a, b, c], 1)
            for node in (a, b, c):
                node.driver.post(Join(RING, (a.me, b.me, c.me)))
            answer = await call(a, "Put", b"color=blue")
            assert answer in (b"kept by 2", b"kept by 3")
            for node in (a, b, c):
                await until(lambda node=node: _has(node, b"color", b"blue"), "every member has it")
        assert (await call(a, "Put", b"size=9")).startswith(b"kept by 2"), "a majority is enough"

        c = await started(all_nodes, tmp_path, "c")
        assert b"blue" == await call(c, "Get", b"color"), "a restarted node has what it stored"
        introduce([a, b, c], 2)
        await until(lambda: _has(c, b"size", b"9"), "and gets what it missed")

        a.driver.post(DiskSpace(True))
        assert Reason.DISK_FULL.encode() == await call(a, "Put", b"more=1"), "news of the node reaches the plane"
        async with open_channel(a.address) as channel:
            dump = json.loads((await node_pb2_grpc.ControlStub(channel).DebugDump(
                node_pb2.DebugDumpRequest(all=True), timeout=20)).json)
        assert {"keys": 2, "full": True} == {key: dump["planes"]["ring"][str(RING)][key] for key in ("keys", "full")}
        assert [{"ring": str(RING), "what": "toy_joined", "detail": "3"}] == [
            {key: told[key] for key in ("ring", "what", "detail")} for told in dump["story"] if "ring" in told]


async def _has(node: Node, key: bytes, value: bytes) -> bool:
    return await call(node, "Get", key) == value


async def test_the_log_beside_the_toy_plane_has_the_toy_fold(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node, operator = await started(stack, tmp_path, "a"), OperatorHand()
        stack.push_async_callback(operator.close)
        introduce([node], 1)
        await operator.link("a", node.address)
        await operator.elect(1, node.me, (node.me,))
        appender = Appender(node.address)
        for sequence in range(3):
            await appender.append(batch(sequence))
        await appender.close()
        counted = node.driver.core.log.shards[SHARD].replica.log.fold(Tally).counted
        assert 3 == sum(counted.values())


def test_a_plane_without_a_row_for_its_messages_is_refused_at_start(tmp_path: Path) -> None:
    settings = Settings(node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20)
    with pytest.raises(ValueError, match="messages: plane 77 has no row"):
        Node(settings, planes_of=with_toy)
    assert not list(tmp_path.iterdir()), "nothing was begun"
