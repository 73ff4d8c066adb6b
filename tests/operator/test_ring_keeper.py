"""Keyspaces served by the operator: ranges in etcd, in the map and in the status; moves, adoption and deletion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_node import FakeNode
from operator_views import node, nodes, to_come
from test_service import CLUSTER, service, three
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member
from tidemark_core.optimistic.mover import Wanted
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Quorum, Range
from tidemark_core.optimistic.settings import DEFAULTS, KeyspaceSettings
from tidemark_operator import rings
from tidemark_operator.etcd import OPERATIONS_MAX, Conflict, Outcome, Saved, Unavailable, Write
from tidemark_operator.etcd import StoreUnavailable as Away
from tidemark_operator.metadata import Keys, NodeLife, NodeRecord, StoredObject
from tidemark_operator.mirror import Mirror
from tidemark_operator.model import Node
from tidemark_operator.patience import TO_COME_S, Patience
from tidemark_operator.resources import load_manifests, load_resource
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_operator.rings import RingKeeper
from tidemark_operator.service import OperatorService
from tidemark_wire.rings import ring_of, settings_of
from tidemark_wire.v1 import common_pb2

from tests.waiting import until

__all__ = ["service", "three"]  # fixtures

KEYS = Keys("/t")
CARTS = """
apiVersion: tidemark.dev/v1alpha1
kind: Keyspace
metadata: {name: carts}
spec: {clusterRef: {name: dev}, partitions: 8%s}
"""


# --- the keeper alone ---------------------------------------------------------------------------------------


class Store:
    """Takes everything, or answers as it should next."""

    def __init__(self) -> None:
        self.revision = 100
        self.transactions: list[tuple[list[Write], dict[str, int]]] = []
        self.next: list[Outcome] = []

    async def transact(self, writes: Sequence[Write], unchanged: Mapping[str, int]) -> Outcome:
        self.transactions.append((list(writes), dict(unchanged)))
        self.revision += 1
        return self.next.pop(0) if self.next else Saved(self.revision)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Room:
    def __init__(self) -> None:
        self.clock, self.mirror, self.store, self.fed = Clock(), Mirror(KEYS), Store(), list[Any]()
        self.keeper = RingKeeper(
            self.store, KEYS, self.mirror, self,  # type: ignore[arg-type]
            lambda plane, event: self.fed.append((plane, event)), Patience(self.clock))
        self.numbered: list[str] = []
        (cluster,) = load_manifests(CLUSTER, "test")
        self.put("TidemarkCluster", cluster.manifest(), 1)

    def put(self, kind: str, manifest: Mapping[str, Any], number: int, **more: Any) -> None:
        stored = StoredObject(dict(manifest), "uid", "2026-01-01T00:00:00Z", number=number, **more)
        self.store.revision += 1
        self.mirror.learn(KEYS.object(kind, stored.name), stored.encode(), self.store.revision)

    def keyspace(
        self, name: str = "carts", number: int = 7, partitions: int = 8, more: Any = None, **spec: Any,
    ) -> None:
        manifest = load_resource({
            "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "dev"}, "partitions": partitions, **spec}}, "test").manifest()
        self.put("Keyspace", manifest, number, **(more or {}))

    async def number(self, kind: str, name: str) -> bool:
        self.numbered.append(f"{kind}/{name}")
        return True

    @property
    def ranges(self) -> dict[int, Range]:
        return {unit: item.value.range for unit, item in self.mirror.ranges.items()}

    async def look(self, known: Mapping[str, Node], moves_max: int = 4) -> float | None:
        return await self.keeper.look(known, self.ranges, moves_max)


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize("n", [1, 3, 7])
async def test_ranges_are_written_once_in_transactions_that_etcd_takes(room: Room, n: int) -> None:
    quorum = {"replicas": n, "readQuorum": n, "writeQuorum": n}
    room.keyspace(partitions=4096, replication=quorum)
    known = nodes(9, "abc")
    for name in known:
        room.mirror.learn(KEYS.node(name), NodeRecord(name, "").encode(), 3)
    await room.look(known)
    assert sorted(room.ranges) == [7 << 32 | index for index in range(4096)]
    assert {record.own.quorum for record in room.ranges.values()} == {Quorum(n, n, n)}
    for writes, unchanged in room.store.transactions:
        assert len(writes) + len(unchanged) <= OPERATIONS_MAX
        assert {write.expected for write in writes} == {0}
        assert KEYS.object("Keyspace", "carts") in unchanged
        owners = {each.node for write in writes for each in RangeRecord.decode(write.value or b"").range.own.members}
        assert {KEYS.node(each) for each in owners} <= set(unchanged)
    load = Counter(each.node for record in room.ranges.values() for each in record.own.members)
    assert max(load.values()) - min(load.values()) <= 1
    room.store.transactions.clear()
    await room.look(known)
    assert room.store.transactions == [] and room.fed == []


async def test_what_another_operator_wrote_meanwhile_ends_the_page_and_the_rest_is_created_later(room: Room) -> None:
    room.keyspace(partitions=64)
    room.store.next = [Saved(200), Conflict()]
    room.store.revision = 300
    await room.look(nodes(3))
    first = dict(room.ranges)
    assert 0 < len(first) < 64
    await room.look(nodes(3))
    assert len(room.ranges) == 64 and room.ranges.items() >= first.items()
    room.keyspace("other", 8)
    room.store.next = [Unavailable("away")]
    with pytest.raises(Away):
        await room.look(nodes(3))


async def test_a_node_that_begins_to_leave_is_given_no_range(room: Room) -> None:
    room.keyspace()
    leaves = NodeRecord("n2", "", life=NodeLife.LEAVES)
    room.mirror.learn(KEYS.node("n2"), leaves.encode(), 3)
    await room.look(nodes(3))
    assert room.ranges == {}, "its record is newer than what is known of the node"


@pytest.mark.parametrize(("spec", "known", "reason", "fact"), [
    ({}, nodes(2), "NotEnoughNodes", "replicas 3 needs as many nodes that are up, 2 are eligible"),
    ({"placement": {"nodePools": ["default"]}}, {**nodes(3), "n3": node("n3", pool="old")}, "NotEnoughNodes",
     "2 are eligible in pools default"),
    ({"placement": {"nodePools": ["fast"]}}, nodes(3), "PoolNotFound",
     "spec.placement.nodePools: the cluster has no pool 'fast'"),
])
async def test_why_no_range_is_created_is_said_until_it_can_be(room: Room, spec, known, reason: str, fact: str) -> None:
    room.keyspace(**spec)
    await room.look(known)
    found, message = room.keeper.trouble["carts"]
    assert found == ConditionReason(reason) and fact in message and not room.ranges
    room.keyspace()
    await room.look(nodes(3))
    assert room.keeper.trouble == {} and len(room.ranges) == 8


async def test_a_keyspace_that_an_older_release_took_with_quorums_that_need_not_meet_is_refused(room: Room) -> None:
    room.keyspace(consistency="Eventual", replication={"readQuorum": 3, "writeQuorum": 1})
    known = room.mirror.keyspaces["carts"].value
    manifest = {**known.manifest, "spec": {**known.spec, "consistency": "Overlapping"}}
    room.put("Keyspace", manifest, 7)
    await room.look(nodes(3))
    reason, message = room.keeper.trouble["carts"]
    assert reason == ConditionReason.INVALID_SPEC and message.startswith("spec.replication.writeQuorum: ")


async def test_ranges_of_a_cluster_are_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "RANGES_MAX", 16)
    room.keyspace(partitions=8)
    room.keyspace("other", 8, partitions=16)
    await room.look(nodes(3))
    reason, message = room.keeper.trouble["other"]
    assert reason == ConditionReason.INVALID_SPEC
    assert message.startswith("spec.partitions: other keyspaces have 8 ranges, and a cluster has at most 16: ")
    room.keyspace("other", 8, partitions=8)
    await room.look(nodes(3))
    assert len(room.ranges) == 16 and room.keeper.trouble == {}


async def test_a_keyspace_waits_for_the_zone_of_a_node_that_comes_and_not_for_ever(room: Room) -> None:
    room.keyspace()
    known = {**nodes(2, "ab"), "n4": node("n4", "a"), "n3": to_come("n3", "c")}
    assert await room.look(known) == TO_COME_S
    assert not room.ranges and not room.keeper.trouble
    room.clock.now += TO_COME_S
    assert await room.look(known) is None
    assert len(room.ranges) == 8


async def test_a_keyspace_without_a_number_is_numbered_first(room: Room) -> None:
    room.keyspace(number=0)
    await room.look(nodes(3))
    assert room.numbered == ["Keyspace/carts"] and not room.ranges


async def test_few_ranges_move_at_once_over_all_keyspaces(room: Room) -> None:
    room.keyspace()
    room.keyspace("other", 8)
    await room.look(nodes(3))
    known = {**nodes(3), "n3": replace(node("n3"), member=Member("n3", "another-life"))}
    await room.look(known, moves_max=3)
    assert len(room.fed) == 3 and {plane for plane, _ in room.fed} == {KEYSPACE_PLANE}
    assert all(event.owners.members[0] and event.gone == {Member("n3", "n3-life-1")} for _, event in room.fed)
    room.fed.clear()
    await room.look(known, moves_max=0)
    assert room.fed == []
    await room.look({**nodes(3), "n3": node("n3", up=False)})
    assert room.fed == [], "a node that is down may come back"


async def test_a_range_that_moves_takes_room_and_hears_who_is_gone(room: Room) -> None:
    room.keyspace(partitions=2)
    await room.look(nodes(3))
    one, two = sorted(room.ranges)
    record = room.ranges[one]
    moving = record._replace(version=2, pending=record.own._replace(
        members=(*record.own.members[:2], Member("n4", "n4-life-1"))))
    known = {**nodes(2), "n4": replace(node("n4"), member=Member("n4", "another-life"))}
    await room.keeper.look(known, {one: moving, two: room.ranges[two]}, 1)
    ((_, event),) = room.fed
    gone = {each for each in moving.members if each.node in ("n3", "n4")}
    assert event == Wanted(Address(KEYSPACE_PLANE, one), None, frozenset(gone))


async def test_ranges_of_a_keyspace_that_is_detached_are_kept_and_none_is_created(room: Room) -> None:
    room.keyspace(more={"detached": True})
    await room.look(nodes(3))
    assert room.ranges == {}


# --- put together -------------------------------------------------------------------------------------------


def shown(one: FakeNode) -> common_pb2.KeyspaceInfo | None:
    return next(iter(one.newest_map.keyspaces), None)


def ring(one: FakeNode) -> tuple[Range, ...]:
    found = shown(one)
    return ring_of(found) if found is not None else ()


def status(service: OperatorService) -> dict[str, Any]:
    (item,) = service.show("Keyspace", "carts") or ()
    found = item["status"]
    return {**found, **{each["type"]: (each["status"], each["reason"]) for each in found["conditions"]}}


async def test_a_keyspace_is_in_the_map_of_every_node(service: OperatorService, three: list[FakeNode]) -> None:
    more = (", hintedHandoff: {windowSeconds: 70}, antiEntropy: {intervalSeconds: 80, bytesPerSecond: 1Mi}, "
            "tombstoneGraceSeconds: 9000, readRepair: Blocking, clientOverrides: Denied, defaultTTLSeconds: 60, "
            "consistency: Eventual, replication: {quorumMode: Sloppy}, access: {readers: [a], writers: [b]}")
    await service.objects.apply(CLUSTER + "---" + CARTS % more)
    await until(lambda: all(shown(one) is not None for one in three))
    found = shown(three[0])
    assert found is not None
    assert (found.name, found.keyspace_id, found.read_repair) == ("carts", 1, "Blocking")
    assert (found.sloppy, found.eventual, found.overrides_allowed) == (True, True, False)
    assert found.default_ttl_ms == 60_000
    assert settings_of(found) == KeyspaceSettings(70_000, 80_000, 9_000_000, 1 << 20)
    assert (list(found.access.readers), list(found.access.writers)) == (["a"], ["b"])
    ranges = ring(three[0])
    assert [len({each.node for each in record.own.members}) for record in ranges] == [3] * 8
    assert {(record.version, record.own.quorum, record.pending) for record in ranges} == {(1, (3, 2, 2), None)}
    await until(lambda: status(service)["Ready"] == ("True", "RingStable"))
    assert status(service)["PlacementSatisfied"] == ("False", "NotEnoughDomains"), "two zones for three owners"
    assert status(service)["partitions"]["fullyReplicated"] == 8

    await service.objects.apply(CARTS % ", readRepair: 'Off', hintedHandoff: {mode: Disabled}")
    await until(lambda: all((new := shown(one)) is not None and new.read_repair == "Off" for one in three))
    changed = shown(three[0])
    assert changed is not None and settings_of(changed) == replace(DEFAULTS, hint_window_ms=0)
    assert not changed.sloppy and not changed.HasField("access") and ring(three[0]) == ranges


async def test_an_owner_that_is_down_is_shown_and_keeps_its_ranges(
    service: OperatorService, three: list[FakeNode]
) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % "")
    await until(lambda: status(service)["Ready"][0] == "True")
    await three[2].stop()
    await until(lambda: status(service)["FullyReplicated"] == ("False", "CopiesMissing"))
    assert (status(service)["Ready"][0], status(service)["partitions"]) == (
        "True", {"desired": 8, "quorumAvailable": 8, "fullyReplicated": 0, "moving": 0})
    await three[1].stop()
    await until(lambda: status(service)["Available"] == ("False", "PartitionsBelowQuorum"))
    assert status(service)["partitions"]["quorumAvailable"] == 0
    assert {record.version for record in service.ranges().values()} == {1}


async def test_d67_ranges_move_to_the_new_disk_of_an_owner_and_quorums_change_in_place(
    service: OperatorService, three: list[FakeNode]
) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % "")
    await until(lambda: status(service)["Ready"][0] == "True")
    three[2].description.incarnation, three[2].description.boot = "n3-again", "boot-2"
    await three[2].stop()
    await three[2].start()

    def owners() -> set[str]:
        return {each.incarnation for record in ring(three[0]) for each in record.own.members if each.node == "n3"}

    await until(lambda: owners() == {"n3-again"})
    await until(lambda: status(service)["Ready"] == ("True", "RingStable"))
    assert {(record.version, record.pending) for record in ring(three[0])} == {(3, None)}
    assert status(service)["ringVersion"] == 24

    await service.objects.apply(CARTS % ", replication: {readQuorum: 1, writeQuorum: 3}")
    await until(lambda: {record.own.quorum for record in ring(three[1])} == {Quorum(3, 1, 3)})
    await until(lambda: status(service)["quorums"] == "3/1/3")


async def test_d67_a_move_that_waits_is_finished_by_the_next_operator(
    service: OperatorService, three: list[FakeNode], etcd
) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % "")
    await until(lambda: status(service)["Ready"][0] == "True")
    for one in three:
        one.copies = False
    await service.objects.apply(CARTS % ", replication: {readQuorum: 1, writeQuorum: 3}")
    await until(lambda: status(service)["Ready"] == ("False", "RangesMoving"))
    assert 0 < status(service)["partitions"]["moving"] <= service.settings().max_concurrent_moves
    await service.stop()
    for one in three:
        one.copies = True
    successor = OperatorService([etcd.url], "/t", "dev")
    await successor.start()
    try:
        await until(lambda: {record.own.quorum for record in successor.ranges().values()} == {Quorum(3, 1, 3)})
        await until(lambda: status(successor)["Ready"] == ("True", "RingStable"))
    finally:
        await successor.stop()


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_a_deleted_keyspace_leaves_the_map_and_a_number_is_given_once(
    service: OperatorService, three: list[FakeNode], policy: str
) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % f", deletionPolicy: {policy}")
    await until(lambda: shown(three[0]) is not None)
    before = ring(three[0])
    assert await service.objects.delete("Keyspace", "carts") is None
    await until(lambda: shown(three[0]) is None)
    assert service.show("Keyspace", "carts") == []
    if policy == "Delete":
        await until(lambda: not service.mirror.ranges and not service.mirror.keyspaces)
    assert len(service.mirror.ranges) == (8 if policy == "Retain" else 0)
    (done,) = await service.objects.apply(CARTS % "")
    assert done == f"Keyspace/carts {'adopted' if policy == 'Retain' else 'created'}"
    await until(lambda: shown(three[0]) is not None)
    found = shown(three[0])
    assert found is not None and found.keyspace_id == (1 if policy == "Retain" else 2)
    assert (ring(three[0]) == before) is (policy == "Retain")


async def test_a_keyspace_of_an_older_release_is_served_as_it_is_stored(
    service: OperatorService, three: list[FakeNode]
) -> None:
    manifest = load_manifests(CARTS % "", "test")[0].manifest()
    older = StoredObject(manifest, "uid", "2026-01-01T00:00:00Z", generation=3)
    raw = {key: value for key, value in json.loads(older.encode()).items() if key != "kept"}
    await service.store.put(service.keys.object("Keyspace", "carts"), json.dumps(raw).encode(), expected=0)
    await service.objects.apply(CLUSTER)
    await until(lambda: shown(three[0]) is not None)
    assert (status(service)["keyspaceID"], status(service)["observedGeneration"]) == (1, 3)


async def test_ranges_are_part_of_what_a_node_holds(service: OperatorService, three: list[FakeNode]) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % "")
    await until(lambda: status(service)["Ready"][0] == "True")
    world = service.whole_world()
    assert world.owned() == world.holdings() == {"n1": 8, "n2": 8, "n3": 8} and not world.replicas()
    assert [each.name for each in world.keyspaces] == ["carts"]
