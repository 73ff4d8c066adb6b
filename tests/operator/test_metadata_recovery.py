"""Recovery: the plan around the shard records (M1-M4), writing it into a real etcd, and the witness that finds loss."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from fake_node import FakeNode
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId, Member, ShardKind, shard_id
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ShardRecord, Status
from tidemark_core.replication.recovery import NEAR_GAP, Doubt, ReplicaReport
from tidemark_core.replication.replica import Pending, Role
from tidemark_operator.etcd import EtcdStore, Item, Saved, Snapshot, Write
from tidemark_operator.metadata import (
    GROUP_IDS,
    KEYSPACE_IDS,
    MAP_TERMS,
    NODE_IDS,
    Keys,
    StoredObject,
    Tombstone,
    allocate,
)
from tidemark_operator.mirror import Mirror
from tidemark_operator.recovery import (
    Address,
    RecoveryRefused,
    ask_nodes,
    ask_promises,
    carry_out,
    check_prefix,
    look,
)
from tidemark_operator.recovery_plan import (
    Asked,
    NodeAnswer,
    RecoveryPlan,
    SilentNode,
    make_plan,
    records_behind,
    unpromised,
)
from tidemark_operator.resources import load_manifests
from tidemark_operator.witness import Witness
from tidemark_wire.channel import open_channel
from tidemark_wire.recovery import report_from_proto, report_to_proto
from tidemark_wire.v1 import common_pb2, node_pb2

KEYS = Keys("/tidemark/default/main")
EMPTY = Snapshot({}, 7)
MEMBERS = [Member(f"main-{number}", f"disk-{number}") for number in (1, 2, 3)]
ASKED = Asked("main")
ORDERS = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata: {name: orders}
spec: {clusterRef: {name: main}, shards: 2, replication: {factor: 3}, retention: {seconds: 86400}}
"""


def remembered(
    groups: dict[int, tuple[str, int]], term: int = 4, nodes: tuple[str, ...] = ("main-1", "main-2", "main-3")
) -> node_pb2.RememberedCluster:
    return node_pb2.RememberedCluster(
        cluster="main", map_version=(term << 32) + 9,
        groups=[
            node_pb2.RememberedGroup(group_id=number, name=name, shards=shards, kind="Log")
            for number, (name, shards) in groups.items()],
        nodes=[common_pb2.NodeInfo(node=name, address=f"10.0.0.{name[-1]}:6680", zone="z") for name in nodes])


def report(member: Member, group: int, index: int, epoch: int = 5) -> ReplicaReport:
    return ReplicaReport(
        shard_id(group, index), member, Role.FOLLOWER, epoch, epoch * 10, epoch, tuple(MEMBERS), 0, epoch, None,
        EntryId(epoch, 7), 7)


def answer(member: Member, groups: dict[int, tuple[str, int]], **changes: Any) -> NodeAnswer:
    reports = tuple(report(member, number, index) for number, (_, shards) in groups.items() for index in range(shards))
    made = NodeAnswer(
        f"10.0.0.{member.node[-1]}:6680", "default", member, "z", "zone=z", reports, remembered(groups),
        {one.shard: one.epoch + NEAR_GAP for one in reports})
    return replace(made, **changes)


def answers(groups: dict[int, tuple[str, int]]) -> list[NodeAnswer]:
    return [answer(member, groups) for member in MEMBERS]


def stored(plan: RecoveryPlan) -> Mirror:
    """Return what an operator sees once the plan is written."""
    mirror = Mirror(KEYS)
    for revision, write in enumerate(plan.writes, 10):
        assert write.value is not None
        mirror.learn(write.key, write.value, revision)
    return mirror


# --- the plan ---------------------------------------------------------------------------------------------


def test_m2_a_group_keeps_its_id_and_waits_detached_for_its_manifest() -> None:
    plan = make_plan(answers({3: ("orders", 2)}), [], EMPTY, KEYS, ASKED)
    assert not plan.problems
    seen = stored(plan)
    assert set(seen.shards) == {shard_id(3, 0), shard_id(3, 1)}
    assert {item.value.epoch for item in seen.shards.values()} == {5 + NEAR_GAP}
    held = seen.groups["orders"].value
    assert (held.number, held.detached, held.spec["shards"]) == (3, True, 2)
    assert set(seen.nodes) == {"main-1", "main-2", "main-3"} and seen.nodes["main-2"].location == "zone=z"
    assert "apply its manifest" in plan.notes[0]


def test_n13_a_shard_of_documents_is_one_in_the_plan() -> None:
    told = answers({3: ("orders", 1)})
    told = [
        replace(each, reports=tuple(
            replace(one, kind=ShardKind.DOCUMENTS, lineage=b"1" * 16) for one in each.reports)) for each in told]
    [item] = stored(make_plan(told, [], EMPTY, KEYS, ASKED)).shards.values()
    assert (item.value.kind, item.value.lineage) == (ShardKind.DOCUMENTS, (b"1" * 16).hex())
    lost = replace(ASKED, accepted=[("orders", 0)])
    [item] = stored(make_plan(told[:1], [SilentNode("10.0.0.2:6680", "gone")], EMPTY, KEYS, lost)).shards.values()
    assert item.value.kind is ShardKind.DOCUMENTS
    assert len(item.value.lineage) == 32 and item.value.lineage != (b"1" * 16).hex()


def test_m2_with_its_manifest_a_group_is_served_as_it_says() -> None:
    asked = replace(ASKED, manifests=load_manifests(ORDERS, "orders.yaml"))
    held = stored(make_plan(answers({3: ("orders", 2)}), [], EMPTY, KEYS, asked)).groups["orders"].value
    assert not held.detached and held.spec["retention"]["seconds"] == 86400
    wrong = replace(ASKED, manifests=load_manifests(ORDERS.replace("shards: 2", "shards: 4"), "orders.yaml"))
    plan = make_plan(answers({3: ("orders", 2)}), [], EMPTY, KEYS, wrong)
    assert any("spec.shards" in problem for problem in plan.problems)


def test_m1_a_group_whose_name_nobody_remembers_is_asked_for() -> None:
    nameless = [replace(one, remembered=node_pb2.RememberedCluster()) for one in answers({3: ("orders", 2)})]
    plan = make_plan(nameless, [], EMPTY, KEYS, ASKED)
    assert plan.problems == ("nodes hold shards of group 3 and none remembers its name: --group 3=NAME",)
    plan = make_plan(nameless, [], EMPTY, KEYS, replace(ASKED, names={3: "orders"}))
    assert "give its manifest" in plan.problems[0]
    asked = replace(ASKED, names={3: "orders"}, manifests=load_manifests(ORDERS, "orders.yaml"))
    plan = make_plan(nameless, [], EMPTY, KEYS, asked)
    assert not plan.problems and stored(plan).groups["orders"].value.number == 3
    assert "to the nodes, not 'bills'" in make_plan(
        answers({3: ("orders", 2)}), [], EMPTY, KEYS, replace(ASKED, names={3: "bills"})).problems[0]


def test_m3_counters_begin_above_everything_that_was_ever_seen() -> None:
    groups = {3: ("orders", 1), 9: ("long-gone", 1)}
    here = [
        replace(one, reports=one.reports[:1], remembered=remembered(groups, nodes=("main-1", "main-12")))
        for one in answers(groups)]
    plan = make_plan(here, [], EMPTY, KEYS, replace(ASKED, accepted={("long-gone", 0)}))
    minutes = plan.counters.pop(KEYSPACE_IDS)
    assert 0 <= time.time() // 60 - minutes <= 1, "no node says which keyspaces there were: more than were ever made"
    assert plan.counters == {NODE_IDS: 13, GROUP_IDS: 10, MAP_TERMS: 5}
    items = {KEYS.counter(NODE_IDS): b"40", KEYS.counter(GROUP_IDS): b"2"}
    snapshot = Snapshot({key: Item(value, 3) for key, value in items.items()}, 7)
    plan = make_plan(here, [], snapshot, KEYS, ASKED)
    assert plan.counters.pop(KEYSPACE_IDS) >= minutes
    assert plan.counters == {NODE_IDS: 40, GROUP_IDS: 10, MAP_TERMS: 5}
    assert KEYS.counter(NODE_IDS) not in {write.key for write in plan.writes}, "never lowered"


def test_a_group_whose_data_was_deleted_is_no_loss_unless_somebody_is_silent() -> None:
    groups = {3: ("orders", 1), 9: ("deleted", 1)}
    here = answers(groups)
    for one in here:
        one.remembered.groups[0].current = True
    dead = [replace(one, reports=(
        one.reports[0], replace(one.reports[1], role=Role.DELETED, ensemble=(), told=0))) for one in here]
    plan = make_plan(dead, [], EMPTY, KEYS, ASKED)
    assert not plan.problems and [line.name for line in plan.groups] == ["orders"] and plan.counters[GROUP_IDS] == 10
    assert "it was deleted" in plan.notes[0] + plan.notes[1]
    plan = make_plan(dead[:2], [SilentNode("10.0.0.3:6680", "no")], EMPTY, KEYS, ASKED)
    assert any("--accept-loss deleted/0" in problem for problem in plan.problems)
    assert not make_plan(here, [], EMPTY, KEYS, ASKED).problems, "detached, and its data kept: not deleted"


async def test_a_shard_that_is_being_deleted_is_no_loss_of_metadata(store: EtcdStore) -> None:
    node = Holder("main-1", "disk-1")
    node.reports = (report(MEMBERS[0], 3, 0),)
    await node.start()
    found: list[str] = []
    key = KEYS.tombstone(shard_id(3, 0))
    await store.put(key, Tombstone(6, 60, tuple(MEMBERS)).encode(), expected=0)
    async with open_channel(node.address, None) as channel:
        await Witness(store, KEYS, dict, found.append).vet(MEMBERS[0], channel)
    await node.stop()
    assert not found
    snapshot = await store.load(KEYS.everything)
    plan = make_plan(answers({3: ("orders", 1)}), [], snapshot, KEYS, ASKED)
    assert [line.note for line in plan.shards] == ["being deleted"]


def test_m1_a_shard_that_nobody_can_vouch_for_is_refused_until_its_loss_is_accepted() -> None:
    here = answers({3: ("orders", 2)})[:1]
    silent = [SilentNode("10.0.0.2:6680", "no"), SilentNode("10.0.0.3:6680", "no")]
    plan = make_plan(here, silent, EMPTY, KEYS, ASKED)
    assert plan.silent == ("main-2", "main-3"), "known by name, counted once"
    assert {line.action for line in plan.shards} == {"refuse"} and len(plan.problems) == 2
    assert "--accept-loss orders/1" in plan.problems[1] and plan.shards[0].doubt == Doubt.NO_MAJORITY
    both = replace(ASKED, accepted={("orders", 0), ("orders", 1)})
    plan = make_plan(here, silent, EMPTY, KEYS, both)
    assert not plan.problems and {line.ensemble for line in plan.shards} == {("main-1",)}
    plan = make_plan(here, silent, EMPTY, KEYS, replace(both, manifests=load_manifests(ORDERS, "orders.yaml")))
    assert not plan.problems and [line.action for line in plan.groups] == ["create"], "with the group's own manifest"
    assert {line.ensemble for line in plan.shards} == {("main-1",)}


def test_a_disk_that_is_gone_counts_as_silent_though_its_node_answers() -> None:
    here = answers({3: ("orders", 1)})
    here[2] = answer(Member("main-3", "another-disk"), {3: ("orders", 1)}, reports=())
    plan = make_plan(here, [], EMPTY, KEYS, ASKED)
    assert plan.silent == ("main-3/disk-3",) and not plan.problems


def test_nodes_of_another_cluster_and_addresses_given_twice_are_refused() -> None:
    here = answers({3: ("orders", 1)})
    plan = make_plan([*here, here[0]], [], EMPTY, KEYS, replace(ASKED, cluster="other"))
    assert "two addresses are the node main-1" in plan.problems[0]
    assert "belong to the cluster 'main', not to 'other'" in plan.problems[1]
    assert make_plan([], [], EMPTY, KEYS, ASKED).problems == ("no node answered",)


def test_an_id_that_was_given_out_again_is_refused() -> None:
    """Somebody made a group on metadata that was set back: its id is another group's to the nodes."""
    (manifest,) = load_manifests(ORDERS.replace("orders", "bills"), "bills.yaml")
    held = StoredObject(manifest.manifest(), "uid", "now", number=3)
    snapshot = Snapshot({KEYS.object("LogGroup", "bills"): Item(held.encode(), 4)}, 7)
    plan = make_plan(answers({3: ("orders", 2)}), [], snapshot, KEYS, ASKED)
    assert "gave the id 3 to the log group 'bills'" in plan.problems[0]


# --- writing ----------------------------------------------------------------------------------------------


async def test_the_plan_is_written_once_and_the_marker_is_gone(store: EtcdStore) -> None:
    """Rule M4."""
    here = answers({3: ("orders", 2)})
    await carry_out(store, KEYS, here, [], ASKED, merge=False)
    found = await store.load(KEYS.everything)
    assert KEYS.recovery not in found.items and KEYS.shard(shard_id(3, 1)) in found.items
    assert await allocate(store, KEYS, GROUP_IDS) == 4 and await allocate(store, KEYS, MAP_TERMS) == 5
    with pytest.raises(RecoveryRefused, match="is not empty: it holds groups, shards"):
        await look(store, KEYS, here, [], ASKED, merge=False)
    plan, _ = await look(store, KEYS, here, [], ASKED, merge=True)
    assert not plan.writes, "M4: what is there is kept"


async def test_a_recovery_that_was_cut_short_is_taken_up_again(store: EtcdStore, monkeypatch: Any) -> None:
    here = answers({3: ("orders", 2)})
    real, pages = EtcdStore.transact, 0

    async def dies(self: EtcdStore, writes: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages == 4:
            raise RuntimeError("killed")
        return await real(self, writes)

    monkeypatch.setattr("tidemark_operator.recovery.PAGE_WRITES", 2)
    monkeypatch.setattr(EtcdStore, "transact", dies)
    with pytest.raises(RuntimeError):
        await carry_out(store, KEYS, here, [], ASKED, merge=False)
    half = await store.load(KEYS.everything)
    assert KEYS.recovery in half.items and KEYS.shard(shard_id(3, 1)) not in half.items
    monkeypatch.setattr(EtcdStore, "transact", real)
    await carry_out(store, KEYS, here, [], ASKED, merge=False)
    found = await store.load(KEYS.everything)
    assert KEYS.recovery not in found.items and KEYS.shard(shard_id(3, 1)) in found.items


async def test_no_recovery_beside_an_active_operator(store: EtcdStore) -> None:
    await store.put(KEYS.operator, b"main-operator-1", expected=0)
    with pytest.raises(RecoveryRefused, match="main-operator-1 is active"):
        await carry_out(store, KEYS, answers({3: ("orders", 2)}), [], ASKED, merge=True)
    snapshot = await store.load(KEYS.everything)
    assert set(snapshot.items) == {KEYS.operator}


async def test_a_record_that_was_set_back_is_replaced_and_others_stay(store: EtcdStore) -> None:
    here = answers({3: ("orders", 2)})
    await carry_out(store, KEYS, here, [], ASKED, merge=False)
    behind = ShardRecord(4, 1, Status.STEADY, (*MEMBERS[:2], Member("main-9", "disk-9")), MEMBERS[0])
    key = KEYS.shard(shard_id(3, 0))
    assert isinstance(await store.transact([Write(key, behind.encode(), None)]), Saved)
    plan = await carry_out(store, KEYS, here, [], ASKED, merge=True)
    assert [line.action for line in plan.shards] == ["write", "keep"]
    item = await store.get(key)
    assert item is not None and ShardRecord.decode(item.value).ensemble == tuple(MEMBERS)


def test_n14_lost_disks_beside_a_whole_etcd_are_given_up_by_name() -> None:
    """Rule N14: two of three nodes are back with other disks, and no operator will elect a leader from the record."""
    here = answers({3: ("orders", 2)})
    here[1:] = [
        answer(Member(each.member.node, "another-disk"), {3: ("orders", 2)}, reports=()) for each in here[1:]]
    records = {KEYS.shard(shard_id(3, index)): ShardRecord(6, 5, Status.ELECTION, tuple(MEMBERS)) for index in (0, 1)}
    whole = Snapshot({key: Item(record.encode(), 4) for key, record in records.items()}, 7)
    plan = make_plan(here, [], whole, KEYS, replace(ASKED, accepted={("orders", 0)}))
    assert not plan.problems and [line.action for line in plan.shards] == ["write", "keep"]
    assert plan.shards[0].ensemble == ("main-1",) and "the disks of main-2, main-3 are lost" in plan.shards[0].note
    [write] = [write for write in plan.writes if write.key == KEYS.shard(shard_id(3, 0))]
    assert write.expected == 4 and ShardRecord.decode(write.value or b"").source == MEMBERS[0]
    assert plan.floors == {shard_id(3, 0): plan.shards[0].epoch}, "nodes promise it first (N10)"
    here[0] = replace(here[0], reports=(replace(here[0].reports[0], copies=2), here[0].reports[1]))
    selective = Snapshot({
        key: Item(replace(record, copies=2).encode(), 4) for key, record in records.items()}, 7)
    [problem] = make_plan(here, [], selective, KEYS, replace(ASKED, accepted={("orders", 0)})).problems
    assert "keep each payload" in problem and "--accept-loss" not in problem


def test_what_an_operator_writes_by_itself_does_not_make_a_prefix_full() -> None:
    item = Item(b"1", 4)
    own = {KEYS.object("TidemarkCluster", ""): item, KEYS.counter(MAP_TERMS): item, KEYS.node("a"): item}
    check_prefix(KEYS, Snapshot(own, 5), merge=False)
    with pytest.raises(RecoveryRefused, match="keyspaces"):
        check_prefix(KEYS, Snapshot({KEYS.object("Keyspace", "k"): item}, 5), merge=False)


async def test_n10_nothing_is_written_from_answers_of_nodes_that_have_not_promised(store: EtcdStore) -> None:
    here = answers({3: ("orders", 2)})
    here[1] = replace(here[1], floors={})
    with pytest.raises(RecoveryRefused, match="have not promised"):
        await carry_out(store, KEYS, here, [], ASKED, merge=False)
    assert not (await store.load(KEYS.everything)).items


# --- asking and comparing ---------------------------------------------------------------------------------


class Holder(FakeNode):
    """A node with replicas, told in pages of one."""

    reports: tuple[ReplicaReport, ...] = ()
    floors: dict[int, int] | None = None
    late: tuple[ReplicaReport, ...] = ()    # what it holds once it was asked for a promise

    async def Promise(self, request: Any, context: Any) -> node_pb2.PromiseResponse:
        if self.floors is None:
            return await super().Promise(request, context)
        self.floors.update((floor.shard, floor.epoch) for floor in request.floors)
        self.reports, self.late = self.late or self.reports, ()
        return node_pb2.PromiseResponse(
            node=self.description.node, incarnation=self.description.incarnation,
            replicas=[report_to_proto(one) for one in self.reports if one.shard in self.floors])

    async def Replicas(self, request: Any, context: Any) -> node_pb2.ReplicasResponse:
        left = [one for one in self.reports if one.shard >= getattr(request, "from")]
        return node_pb2.ReplicasResponse(
            node=self.description.node, incarnation=self.description.incarnation, more=len(left) > 1,
            replicas=[report_to_proto(one) for one in left[:1]], cluster=remembered({3: ("orders", 2)}))


async def test_nodes_are_asked_page_by_page_and_silent_ones_are_named() -> None:
    node = Holder("main-1", "disk-1")
    node.reports = tuple(report(MEMBERS[0], 3, index) for index in range(3))
    await node.start()
    here, silent = await ask_nodes([Address(node.address, "fast"), Address("127.0.0.1:1")], None, 1.5)
    await node.stop()
    assert here[0].reports == node.reports and here[0].pool == "fast" and here[0].remembered.groups[0].name == "orders"
    assert [one.address for one in silent] == ["127.0.0.1:1"]


async def planned(here: list[NodeAnswer], silent: list[SilentNode]) -> RecoveryPlan:
    return make_plan(here, silent, EMPTY, KEYS, ASKED)


async def test_n10_the_second_answers_count_and_a_node_that_does_not_promise_is_silent() -> None:
    nodes = [Holder(member.node, member.incarnation) for member in MEMBERS]
    for node, member in zip(nodes, MEMBERS, strict=True):
        node.reports = tuple(report(member, 3, index) for index in range(2))
        await node.start()
    nodes[0].floors, nodes[1].floors = {}, {}
    nodes[0].late = tuple(replace(one, role=Role.DEPOSED) for one in nodes[0].reports)
    where = [Address(node.address) for node in nodes]
    first = await planned(*await ask_nodes(where, None, 1.5))
    assert first.floors == {shard_id(3, 0): 5 + NEAR_GAP, shard_id(3, 1): 5 + NEAR_GAP}
    assert not nodes[0].floors, "the first question asks for no promise"

    here, silent = await ask_promises(first, where, None, 1.5, planned)
    for node in nodes:
        await node.stop()
    assert [one.member for one in here] == MEMBERS[:2] and [one.address for one in silent] == [nodes[2].address]
    assert "cannot promise" in silent[0].reason
    assert {one.role for one in here[0].reports} == {Role.DEPOSED}
    assert nodes[0].floors == nodes[1].floors == first.floors
    assert not unpromised(await planned(here, silent), here)


async def test_n10_a_promise_that_an_operator_overtook_is_asked_for_again() -> None:
    node = Holder("main-1", "disk-1")
    node.floors, node.reports = {}, (replace(report(MEMBERS[0], 3, 0), ensemble=(MEMBERS[0],)),)
    node.late = (replace(node.reports[0], epoch=40),)
    await node.start()

    async def plan(here: list[NodeAnswer], silent: list[SilentNode]) -> RecoveryPlan:
        here = [replace(one, remembered=remembered({3: ("orders", 1)}, nodes=("main-1",))) for one in here]
        return make_plan(here, silent, EMPTY, KEYS, ASKED)

    where = [Address(node.address)]
    first = await plan(*await ask_nodes(where, None, 1.5))
    here, silent = await ask_promises(first, where, None, 1.5, plan)
    await node.stop()
    assert {shard_id(3, 0): 40 + NEAR_GAP} == node.floors == (await plan(here, silent)).floors


def test_reports_cross_the_wire_whole() -> None:
    for pending in (None, Pending(Operation.SWAP, MEMBERS[0], MEMBERS[1], 2), Pending(Operation.COPIES, None, None, 0)):
        told = replace(report(MEMBERS[2], 3, 1), pending=pending, role=Role.DEPOSED, copies=2, floor=9)
        assert report_from_proto(MEMBERS[2], report_to_proto(told)) == told
        documents = replace(told, kind=ShardKind.DOCUMENTS, lineage=b"1" * 16)
        assert report_from_proto(MEMBERS[2], report_to_proto(documents)) == documents
    wrong = report_to_proto(replace(told, lineage=bytes(16)))
    with pytest.raises(RemoteViolation, match="zero bytes alone"):
        report_from_proto(MEMBERS[2], wrong)


async def test_a_node_that_knows_more_than_etcd_is_noticed_and_a_late_mirror_is_not(store: EtcdStore) -> None:
    node = Holder("main-1", "disk-1")
    node.reports = (report(MEMBERS[0], 3, 0),)
    await node.start()
    found: list[str] = []
    late: dict[Any, ShardRecord] = {}
    witness = Witness(store, KEYS, lambda: late, found.append)
    key = KEYS.shard(shard_id(3, 0))
    await store.put(key, ShardRecord(5, 50, Status.STEADY, tuple(MEMBERS), MEMBERS[0]).encode(), expected=0)
    async with open_channel(node.address, None) as channel:
        await witness.vet(MEMBERS[0], channel)
        assert not found, "etcd knows, only the mirror did not yet"
        await store.transact([Write(key, ShardRecord(4, 40, Status.STEADY, tuple(MEMBERS), None).encode(), None)])
        await witness.vet(MEMBERS[0], channel)
        assert len(found) == 1 and "main-1 holds shard 3/0 in epoch 5, etcd has it in epoch 4" in found[0]
        await store.transact([Write(key, None, None)])
        await witness.vet(MEMBERS[0], channel)
        assert "has no record of it" in found[1] and "recover-metadata" in found[1]
    await node.stop()


def test_tombstones_of_deleted_replicas_prove_nothing_where_there_is_no_record() -> None:
    gone = replace(report(MEMBERS[0], 3, 0), role=Role.DELETED)
    assert records_behind([gone], {}) == ()
    assert records_behind([gone], {shard_id(3, 0): ShardRecord(4, 40, Status.STEADY, tuple(MEMBERS))}) == (gone,)


async def test_an_etcd_that_went_back_is_noticed(store: EtcdStore) -> None:
    """Answers are linearizable, so a lower revision than one that was seen means another history."""
    seen: list[tuple[int, int]] = []
    store.on_set_back = lambda before, now: seen.append((before, now))
    await store.put("/t/a", b"1", expected=0)
    await store.get("/t/a")
    assert not seen
    store._revision += 1_000
    await store.get("/t/a")
    assert len(seen) == 1 and seen[0][0] > seen[0][1]
