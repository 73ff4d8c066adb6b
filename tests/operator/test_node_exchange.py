"""Nodes that a NodeSwap makes and takes away, in a real etcd: by one operator, by several in turn, canceled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from operator_views import group, member
from tidemark_core.base.ids import shard_id
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished
from tidemark_core.replication.records import ShardRecord, first_record
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.disruption import Act, Disruption
from tidemark_operator.etcd import EtcdStore
from tidemark_operator.groups import GroupKeeper
from tidemark_operator.kube.nodes import missing_nodes
from tidemark_operator.metadata import Keys, NodeLife
from tidemark_operator.mirror import Mirror
from tidemark_operator.model import Node, cluster_view
from tidemark_operator.node_exchange import NodeExchange
from tidemark_operator.node_records import NodeRecords
from tidemark_operator.objects import Identity, Objects
from tidemark_operator.plan import World
from tidemark_operator.reconfiguration_run import ReconfigurationRun
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.turns import Slot

from tests import waiting

KEYS = Keys("/t")
CLUSTER: dict[str, Any] = {
    "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "dev", "namespace": "data"},
    "spec": {
        "version": "0.1.0", "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
        "nodePools": [{"name": "default", "replicas": 2, "zones": ["a", "b"], "storage": {"data": {"size": "1Gi"}}}]}}
DEADLINE_S = 20


async def nobody_says(_asked: Any) -> dict[int, int]:
    return {}


class Room:
    """What one operator process knows, and the nodes as Kubernetes would run them: all that have a record are up."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.mirror = Mirror(KEYS)
        self.objects = Objects(store, KEYS, self.mirror, "dev", set)
        self.nodes = NodeRecords(store, KEYS, self.mirror, "dev")
        self.turn = Disruption(store, KEYS.disruption, "op", lambda: self.mirror.disruption, self.mirror.learn)
        self.shards: dict[Any, ShardRecord] = {}
        self.starting: set[str] = set()

    async def load(self) -> Room:
        self.mirror.apply(await self.store.load("/t/"))
        return self

    def world(self) -> World:
        return World({"orders": group()}, {}, {
            name: Node(name, "x", record.zone, pool=record.pool, member=member(name), life=record.life,
                       up=record.life is not NodeLife.REMOVED and name not in self.starting)
            for name, record in self.mirror.nodes.items()}, {"default": ("a", "b")})

    def run(self, name: str) -> ReconfigurationRun:
        driver: Any = SimpleNamespace(records=lambda plane: self.shards)
        assert self.mirror.cluster is not None
        settings = cluster_view(self.mirror.cluster.value)
        return ReconfigurationRun(
            self.mirror.reconfigurations[name].value, driver, self.objects, self.mirror, self.world, lambda: settings,
            ConditionMemory(), self.turn, self.nodes, nobody_says, Slot(lambda _name: True, lambda: None))


@asynccontextmanager
async def operator_beside(store: EtcdStore) -> AsyncIterator[Room]:
    """A room that follows etcd, as operators do: what one before began to write may land behind the first load."""
    room = Room(store)
    loaded = asyncio.Event()

    async def follow() -> None:
        async for news in store.follow("/t/"):
            room.mirror.apply(news)
            loaded.set()

    following = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await loaded.wait()
        yield room
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


@pytest.fixture
async def room(store: EtcdStore) -> Room:
    made = await Room(store).load()
    await made.objects.adopt(CLUSTER, Identity("uid-1", 1, "2026-01-01T00:00:00Z"))
    await made.nodes.make(lambda known: missing_nodes(CLUSTER["spec"]["nodePools"], known))
    return made


async def ask(room: Room, **swap: Any) -> None:
    assert await room.objects.request("swap", {"type": "NodeSwap", "nodeSwap": swap})


@asynccontextmanager
async def carried_out(room: Room) -> AsyncIterator[ReconfigurationRun]:
    run = room.run("swap")
    task = asyncio.create_task(run.run())
    try:
        yield run
    finally:
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(run: ReconfigurationRun, holds: Any) -> None:
    def woken() -> bool:
        run.wake.set()
        return bool(holds())

    await waiting.until(woken, timeout_s=DEADLINE_S)


def status(room: Room) -> dict[str, Any]:
    return room.mirror.reconfigurations["swap"].value.status


async def test_a_new_node_first_then_the_source_is_removed(room: Room) -> None:
    room.starting = {"dev-3"}
    await ask(room, **{"from": "dev-2", "to": {"provision": {}}})
    async with carried_out(room) as run:
        await until(run, lambda: "dev-3" in room.mirror.nodes)
        uid = room.mirror.reconfigurations["swap"].value.uid
        assert (room.mirror.nodes["dev-3"].zone, room.mirror.nodes["dev-3"].made_for) == ("b", uid)
        assert room.mirror.nodes["dev-2"].life is NodeLife.LEAVES
        await until(run, lambda: status(room).get("targetNode") == "dev-3")
        assert status(room)["stage"] == "Provisioning", "its node does not answer yet"
        room.starting.clear()
        await until(run, lambda: room.mirror.nodes["dev-2"].life is NodeLife.REMOVED)
        assert status(room)["stage"] == "CleaningUp"
        assert room.turn.hold is not None and room.turn.hold.has(Act.RECONFIGURATION, "swap")
        await room.nodes.forget("dev-2")
        await until(run, lambda: status(room).get("stage") == "Finished" and room.turn.hold is None)
    assert sorted(room.mirror.nodes) == ["dev-1", "dev-3"]
    assert run.status()["conditions"][2]["reason"] == R.NOTHING_TO_DO.value


async def test_an_operator_that_comes_after_goes_on_at_every_step(room: Room, store: EtcdStore) -> None:
    await ask(room, **{"from": "dev-2", "to": {"provision": {"zone": "a"}}})
    steps = [
        lambda now: status(now).get("stage") == "Provisioning",
        lambda now: "dev-3" in now.mirror.nodes,
        lambda now: status(now).get("stage") == "CleaningUp",
        lambda now: now.mirror.nodes["dev-2"].life is NodeLife.REMOVED,
    ]
    for number, step in enumerate(steps):
        async with operator_beside(store) as now:
            now.starting = {"dev-3"} if number < 2 else set()  # or the first stage is over before anybody looks
            async with carried_out(now) as run:
                await until(run, lambda now=now, step=step: step(now))
    async with operator_beside(store) as last:
        await last.nodes.forget("dev-2")
        async with carried_out(last) as run:
            await until(run, lambda: status(last).get("stage") == "Finished")
        assert sorted(last.mirror.nodes) == ["dev-1", "dev-3"], "all operators together made one node"
        assert last.mirror.nodes["dev-3"].zone == "a"


async def test_a_later_swap_of_the_same_name_makes_a_node_of_its_own(room: Room) -> None:
    for source, made in (("dev-2", "dev-3"), ("dev-3", "dev-4")):
        await ask(room, **{"from": source, "to": {"provision": {}}})
        async with carried_out(room) as run:
            await until(run, lambda source=source: room.mirror.nodes[source].life is NodeLife.REMOVED)
            assert status(room)["targetNode"] == made
            await room.nodes.forget(source)
            await until(run, lambda: status(room).get("stage") == "Finished")
        assert await room.objects.delete("Reconfiguration", "swap") is None
    assert sorted(room.mirror.nodes) == ["dev-1", "dev-4"]


async def test_a_node_that_was_asked_for_is_made_once(room: Room, store: EtcdStore) -> None:
    """Its maker may be gone before it could say which one it was."""
    pool = CLUSTER["spec"]["nodePools"][0]
    rooms = [room, *[await Room(store).load() for _ in range(3)]]
    assert set(await asyncio.gather(*(each.nodes.make_for("swap", pool, "b") for each in rooms))) == {"dev-3"}
    assert await room.nodes.make_for("another", pool, "b") == "dev-4"


async def test_canceled_in_time_the_source_stays(room: Room) -> None:
    room.starting = {"dev-3"}
    await ask(room, **{"from": "dev-2", "to": {"provision": {}}})
    async with carried_out(room) as run:
        await until(run, lambda: status(room).get("targetNode") == "dev-3")
        stored = room.mirror.reconfigurations["swap"]
        manifest = {**stored.value.manifest, "spec": {**stored.value.spec, "cancel": True}}
        key = KEYS.object("Reconfiguration", "swap")
        assert await room.objects._write(key, replace(stored.value, manifest=manifest), stored.revision)
        await until(run, lambda: status(room).get("stage") == "Finished")
    assert {name: record.life for name, record in room.mirror.nodes.items()} == dict.fromkeys(
        ("dev-1", "dev-2", "dev-3"), NodeLife.STAYS)


@pytest.mark.parametrize("keeps", ["Keep", "scope"])
async def test_what_is_to_stay_is_not_removed(room: Room, keeps: str) -> None:
    swap: dict[str, Any] = {"from": "dev-2", "to": {"spread": {}}}
    if keeps == "Keep":
        await ask(room, **swap, removeSource="Keep")
    else:
        assert await room.objects.request(
            "swap", {"type": "NodeSwap", "nodeSwap": swap, "scope": {"logGroups": ["orders"]}})
    async with carried_out(room) as run:
        await until(run, lambda: status(room).get("stage") == "Finished")
    assert {record.life for record in room.mirror.nodes.values()} == {NodeLife.STAYS}


async def test_a_node_that_is_a_member_of_anything_is_never_removed(room: Room) -> None:
    """Kept data without a group, say, which no plan of this world moves."""
    room.shards = {shard_id(9, 0): first_record((member("dev-1"), member("dev-2")), 0)}
    await ask(room, **{"from": "dev-2", "to": {"spread": {}}})
    async with carried_out(room) as run:
        await until(run, lambda: status(room).get("stage") == "Finished")
    assert room.mirror.nodes["dev-2"].life is NodeLife.STAYS
    assert run.status()["conditions"][2]["reason"] == R.MOVES_FAILED.value


async def test_replicas_that_were_deleted_are_waited_for_unless_the_node_is_down(room: Room) -> None:
    record = replace(first_record((member("dev-1"),), 0), removed=(member("dev-2"),))
    exchange = NodeExchange(
        "swap", {"nodeSwap": {"from": "dev-2", "to": {"spread": {}}}}, room.nodes, room.mirror)
    assert exchange.cleans(room.world(), {shard_id(1, 0): record})
    room.starting = {"dev-2"}
    assert not exchange.cleans(room.world(), {shard_id(1, 0): record})


async def test_a_source_that_owns_ranges_of_keyspaces_is_not_removed_before_they_left(room: Room) -> None:
    exchange = NodeExchange(
        "swap", {"nodeSwap": {"from": "dev-2", "to": {"spread": {}}}}, room.nodes, room.mirror)
    own = Owners((member("dev-1"), member("dev-3")), Quorum(2, 2, 2))
    moving = begun(Range(1, own), Owners((member("dev-1"), member("dev-2")), own.quorum))
    assert not exchange.cleans(replace(room.world(), ranges={7 << 32: Range(1, own)}), {})
    assert exchange.cleans(replace(room.world(), ranges={7 << 32: moving}), {})
    assert exchange.cleans(replace(room.world(), ranges={7 << 32: finished(moving)}), {})


def test_warnings_say_what_becomes_of_the_source(room: Room) -> None:
    assert room.mirror.cluster is not None
    settings = cluster_view(room.mirror.cluster.value)

    def warn(spec: dict[str, Any], nodes: NodeRecords | None = room.nodes) -> list[str]:
        return NodeExchange("swap", spec, nodes, room.mirror).warnings(settings)

    spread: dict[str, Any] = {"nodeSwap": {"from": "dev-2", "to": {"spread": {}}}}
    assert warn(spread) == [
        "a new, empty node takes the place of dev-2; to shrink, lower replicas of node pool default"]
    assert "does not remove nodes" in warn(spread, None)[0]
    assert "stays" in warn({**spread, "scope": {"logGroups": ["orders"]}})[0]
    assert warn({"nodeSwap": {"from": "dev-2", "to": {"provision": {}}}}) == []
    assert warn({"nodeSwap": {**spread["nodeSwap"], "removeSource": "Keep"}}) == []
    assert warn({}) == []


async def test_a_node_that_is_removed_stays_removed_and_keeps_its_mark(room: Room, store: EtcdStore) -> None:
    other = await Room(store).load()
    assert await room.nodes.set_life("dev-1", NodeLife.REMOVED)
    known = other.mirror.nodes["dev-1"]
    await other.nodes.set_place(replace(known, address="10.0.0.7:6690"))  # by one that knows the record of before
    assert await room.nodes.set_life("dev-1", NodeLife.STAYS)
    await room.load()
    assert (room.mirror.nodes["dev-1"].life, room.mirror.nodes["dev-1"].address) == (
        NodeLife.REMOVED, "10.0.0.7:6690")
    await room.nodes.forget("dev-2")
    assert "dev-2" in room.mirror.nodes, "only what is removed is forgotten"
    await room.nodes.forget("dev-1")
    assert "dev-1" not in room.mirror.nodes
    assert not await room.nodes.set_life("dev-1", NodeLife.LEAVES)


async def test_a_group_is_not_placed_on_a_node_that_begins_to_leave(room: Room, store: EtcdStore) -> None:
    keeper = GroupKeeper(store, KEYS, room.mirror)
    orders = group(shards=2, factor=2)
    other = await Room(store).load()
    await other.nodes.set_life("dev-2", NodeLife.LEAVES)  # and the news of it is under way
    await keeper.look([orders], room.world())
    assert not room.mirror.shards
    await room.load()
    await keeper.look([orders], room.world())
    assert keeper.trouble["orders"][0] is R.NOT_ENOUGH_NODES
    await other.nodes.set_life("dev-2", NodeLife.STAYS)
    await room.load()
    await keeper.look([orders], room.world())
    assert len(room.mirror.shards) == 2
