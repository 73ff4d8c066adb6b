"""Real nodes hold ranges: operations pass their links, and what they store outlives their processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from node_harness import NodeProcess, OperatorHand, push_map, shard_map
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member, ShardId
from tidemark_core.optimistic.coordinating.operations import Steps, elements, get, put_element, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import STRICT, Policy
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_core.optimistic.floors import HintsAsked, HintsGone
from tidemark_core.optimistic.hinting.keeping import HINTS, PROMISES
from tidemark_core.optimistic.holding.layout import FAMILIES
from tidemark_core.optimistic.moving import Announced, Known
from tidemark_core.optimistic.plane import Assign, KeyspacePlane, Operate
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

pytestmark = pytest.mark.servers

UNIT = (5 << 32) + 3
AT = Address(KEYSPACE_PLANE, UNIT)
TIMEOUT_MS = 10_000


async def started(stack: AsyncExitStack, directory: Path, name: str) -> Node:
    settings = Settings(node=name, data=directory / name, metrics_listen="off", disk_reserve_bytes=1 << 20)
    node = Node(settings)
    await node.start()
    stack.push_async_callback(node.stop)
    return node


def introduce(nodes: Sequence[Node], version: int) -> None:
    for node in nodes:
        node.routing.push(shard_map([(each.me, each.address) for each in nodes], nodes[0].me.node, version))


def plane_of(node: Node) -> KeyspacePlane:
    plane = node.driver.core.planes[KEYSPACE_PLANE]
    assert isinstance(plane, KeyspacePlane)
    return plane


def assign(nodes: Sequence[Node], *owners: Member, quorum: Quorum) -> None:
    for node in nodes:
        node.driver.post(Assign(UNIT, Range(1, Owners(owners, quorum))))


async def operate(node: Node, steps: Steps[Any], policy: Policy = STRICT) -> Any:
    return await node.driver.ask_and_wait(lambda number: Operate(UNIT, number, TIMEOUT_MS, steps, policy))


async def test_d85_the_setting_of_a_node_bounds_its_digests(tmp_path: Path) -> None:
    node = Node(Settings(
        node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20, repair_memory_bytes=5 << 20))
    await node.start()
    try:
        assert 5 << 20 == plane_of(node).limits.repair_memory_bytes
    finally:
        await node.stop()


async def test_three_nodes_hold_a_range_and_a_node_that_restarts_has_it_still(tmp_path: Path) -> None:
    async with AsyncExitStack() as all_nodes:
        a, b = [await started(all_nodes, tmp_path, name) for name in "ab"]
        async with AsyncExitStack() as one_life:
            c = await started(one_life, tmp_path, "c")
            introduce([a, b, c], 1)
            assert plane_of(a).idle and not list(plane_of(a).units()), "a node without ranges does nothing for them"
            assign([a, b, c], a.me, b.me, c.me, quorum=Quorum(3, 1, 3))
            done = await operate(a, set_(b"color", b"blue"))
            assert Outcome.OK is done.outcome and {a.me, b.me, c.me} == set(done.stored)
            found = await operate(b, get(b"color", b.driver.now_ms))
            assert (Outcome.OK, b"blue") == found
            added = await operate(b, put_element(b"set", b"one"))
            assert Outcome.OK is added.outcome
            assert (Outcome.OK, ((b"one", b""),), None) == await operate(c, elements(b"set", c.driver.now_ms))

        c = await started(all_nodes, tmp_path, "c")
        assert [UNIT] == list(plane_of(c).units()), "the range is on its disk"
        alone = await operate(c, get(b"color", c.driver.now_ms), Policy(Repair.OFF))
        assert (Outcome.OK, b"blue") == alone, "it reaches no other node, so the row is its own"

        async with open_channel(c.address) as channel:
            dump = json.loads((await node_pb2_grpc.ControlStub(channel).DebugDump(
                node_pb2.DebugDumpRequest(all=True), timeout=20)).json)
        assert {"version": 1, "withdrawn": False, "owners": [str(node.me) for node in (a, b, c)]} == {
            key: dump["planes"]["range"]["5/3"][key] for key in ("version", "withdrawn", "owners")}


async def one_owner(
    stack: AsyncExitStack, tmp_path: Path, start_node: Callable[..., NodeProcess], operator: OperatorHand
) -> tuple[NodeProcess, Node, Range]:
    """Return a process that owns the range with an acknowledged write, its coordinator, and the record."""
    stack.push_async_callback(operator.close)
    owner = start_node("owner")
    asking = await started(stack, tmp_path, "asking")
    record = Range(1, Owners((owner.member,), Quorum(1, 1, 1)))
    members = [(asking.me, asking.address), (owner.member, owner.address)]
    asking.routing.push(shard_map(members, "asking", 1))
    await push_map(owner.address, shard_map(members, "asking", 1))
    await operator.link("owner", owner.address)
    await operator.send_at(AT, owner.member, Announced(UNIT, record))
    assert Known(UNIT, 1) == await operator.wait_for("owner", Known, ShardId(UNIT))
    asking.driver.post(Assign(UNIT, record))
    done = await operate(asking, set_(b"color", b"blue"))
    assert (Outcome.OK, (owner.member,)) == (done.outcome, done.stored)
    return owner, asking, record


async def test_an_owner_that_is_killed_has_what_it_acknowledged(
    tmp_path: Path, start_node: Callable[..., NodeProcess]
) -> None:
    """The coordinator owns no copy, so the only one is on the disk of the process that dies."""
    async with AsyncExitStack() as stack:
        owner, asking, _ = await one_owner(stack, tmp_path, start_node, OperatorHand())
        assert not list(plane_of(asking).units())

        owner.kill()
        again = await started(stack, tmp_path, "owner")
        assert owner.member == again.me and [UNIT] == list(plane_of(again).units())
        assert (Outcome.OK, b"blue") == await operate(again, get(b"color", again.driver.now_ms))


async def test_d81_an_owner_that_forgot_a_keyspace_and_is_killed_has_nothing_of_it(
    tmp_path: Path, start_node: Callable[..., NodeProcess]
) -> None:
    async with AsyncExitStack() as stack:
        operator = OperatorHand()
        owner, _, record = await one_owner(stack, tmp_path, start_node, operator)
        await operator.send_at(AT, owner.member, HintsAsked(UNIT, 1, 1_000))
        await operator.wait_for("owner", HintsGone, ShardId(UNIT))
        await operator.send_at(AT, owner.member, ForgetAsked(5))
        assert Forgotten(5) == await operator.wait_for("owner", Forgotten, ShardId(5 << 32))

        owner.kill()
        again = await started(stack, tmp_path, "owner")
        again.driver.post(Assign(UNIT, record))
        await again.driver.durable()
        store = again.driver.store
        assert [] == [*plane_of(again).units(), *store.units(KEYSPACE_PLANE)]
        assert [] == [row for family in (*FAMILIES.values(), HINTS, PROMISES) for row in store.rows.scan(
            family, b"", None, 10)]
