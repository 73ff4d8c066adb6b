"""Status of groups and shards: the quorum in force and whether it can be reached follow ensemble and nodes."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from operator_views import group, member, node, nodes, record, ring, shard
from tidemark_core.optimistic.ring import Quorum, Range, begun
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.floors import Late
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import CertificatesView, Group, Node, Shard
from tidemark_operator.plan import World
from tidemark_operator.resources import load_resource
from tidemark_operator.resources.cluster import ClusterStatus
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.conditions import required_types
from tidemark_operator.resources.keyspace import KeyspaceStatus
from tidemark_operator.resources.loggroup import LogGroupStatus
from tidemark_operator.resources.shard import Shard as ShardResource
from tidemark_operator.resources.shard import ShardStatus
from tidemark_operator.status.cluster import ClusterFacts, cluster_status
from tidemark_operator.status.group import GroupFacts, group_status
from tidemark_operator.status.keyspace import KeyspaceFacts, keyspace_status
from tidemark_operator.status.kubernetes import IssuanceFacts, KubernetesFacts, RolloutFacts
from tidemark_operator.status.shard import ShardFacts, shard_object, shard_state
from tidemark_operator.status.standing import Standing


def stamped(kind: str, status: dict[str, Any], generation: int | None = 1) -> dict[str, Any]:
    return ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp(kind, "x", generation, status)


def of_shard(one: Group, known: dict[str, Node], *names: str) -> dict[str, Any]:
    made = shard_object(ShardFacts(shard(0, *names, of=one), record(*names, leader=names[0]), 7, one, known))
    return stamped("Shard", made["status"], None)


def of_group(one: Group, known: dict[str, Node], *ensembles: tuple[str, ...]) -> dict[str, Any]:
    shards: dict[Any, Shard] = {}
    records: dict[Any, ShardRecord] = {}
    for index, names in enumerate(ensembles):
        made = shard(index, *names, of=one)
        shards[made.shard], records[made.shard] = made, record(*names, leader=names[0])
    return stamped("LogGroup", group_status(GroupFacts(one, 3, shards, records, known, 7)), 3)


def condition(status: dict[str, Any], type_: str) -> tuple[str, str, str]:
    (found,) = [item for item in status["conditions"] if item["type"] == type_]
    return found["status"], found["reason"], found["message"]


def test_k15c_a_group_names_the_member_and_the_offset_of_the_damage_that_keeps_a_shard_without_a_leader() -> None:
    one, made = group(shards=1), shard(0, "n1", "n2", "n3")
    waits = "damaged at offset 9 of n1: a majority of members without damage must answer"
    facts = GroupFacts(
        one, 1, {made.shard: made}, {made.shard: record("n1", "n2", "n3", leader=None)}, nodes(3, "abc"), 7,
        damage={made.shard: waits})
    status = stamped("LogGroup", group_status(facts))

    assert condition(status, "Ready") == (
        "False", "ShardsNotOnline", f"{made.name} have no leader; {made.name} is {waits}.")


@pytest.mark.parametrize(("quorum", "three", "four", "five"), [
    (None, 2, 3, 3), ("N", 3, 4, 5), ("N-1", 2, 3, 4), ("max(N-1, 4)", 3, 4, 4), (4, 3, 4, 4), ("1", 2, 3, 3),
])
def test_the_quorum_shown_is_that_of_the_ensemble_in_force(
    quorum: int | str | None, three: int, four: int, five: int
) -> None:
    one = group(factor=5, synchro_quorum=quorum)
    seen = [
        of_shard(one, nodes(5), *[f"n{i}" for i in range(1, size + 1)])["synchroQuorum"] for size in (3, 4, 5)]
    assert [three, four, five] == seen


def test_a_group_is_not_ready_while_shards_keep_other_payload_copies_than_declared() -> None:
    one = group(shards=2, factor=5, payload_copies=3)
    names, known = ("n1", "n2", "n3", "n4", "n5"), nodes(5)
    shards = {(made := replace(shard(i, *names, of=one), copies=3 - 3 * i)).shard: made for i in (0, 1)}
    records = {key: replace(record(*names, leader="n1"), copies=made.copies) for key, made in shards.items()}
    second = shard(1, *names, of=one).shard
    facts = GroupFacts(one, 3, shards, records, known, 7, copies_trouble={second: "orders-0001 waits for n4"})
    status = stamped("LogGroup", group_status(facts))
    assert status["payloadCopiesInForce"] == {"min": 3, "max": 5}
    assert condition(status, "Ready") == (
        "False", "PayloadCopiesPending",
        "1 of 2 shards do not keep 3 payload copies yet; orders-0001 waits for n4")
    LogGroupStatus.model_validate_json(json.dumps(status))
    shards[second] = replace(shards[second], copies=3)
    assert condition(stamped("LogGroup", group_status(facts)), "Ready")[0] == "True"


def test_a_shard_shows_its_payload_copies() -> None:
    one, names = group(factor=3), ("n1", "n2", "n3")
    assert of_shard(one, nodes(3), *names)["payloadCopies"] == 3


def test_a_group_shows_the_quorum_of_its_largest_ensemble() -> None:
    one = group(shards=2, factor=4, synchro_quorum="N")
    small, large = ("n1", "n2", "n3"), ("n1", "n2", "n3", "n4")
    assert of_group(one, nodes(4), small, small)["quorum"] == "3/3"
    status = of_group(one, nodes(4), small, large)
    assert status["quorum"] == "4/4" and status["factorInForce"] == {"min": 3, "max": 4}
    assert of_group(group(shards=2), nodes(4), large, large)["quorum"] == "3/4"


def test_a_group_without_shards_shows_no_quorum_whatever_its_formula() -> None:
    status = of_group(group(synchro_quorum="6/N"), nodes(3))
    assert status["quorum"] == ""
    assert condition(status, "QuorumReachable") == ("False", "CreatingShards", "")


def test_a_quorum_out_of_reach_is_said_of_its_shards_and_their_group() -> None:
    one = group(shards=2, synchro_quorum="N", spread_zones=False)
    members = ("n1", "n2", "n3")
    assert condition(of_shard(one, nodes(3), *members), "QuorumReachable") == ("True", "QuorumAvailable", "")
    assert condition(of_group(one, nodes(3), members, members), "QuorumReachable") == (
        "True", "QuorumAvailable", "")
    known = {**nodes(3), "n3": node("n3", up=False)}
    message = "orders-0000 needs 3 members, 2 are there"
    assert condition(of_shard(one, known, *members), "QuorumReachable") == ("False", "NotEnoughMembers", message)
    assert condition(of_group(one, known, members, members), "QuorumReachable") == (
        "False", "NotEnoughMembers", f"{message}, {message.replace('0000', '0001')}")
    majority = group(shards=2, spread_zones=False)
    assert condition(of_group(majority, known, members, members), "QuorumReachable")[0] == "True"


def test_a_node_that_came_back_with_another_disk_is_not_there() -> None:
    one = group(shards=1, synchro_quorum="N")
    known = {**nodes(3), "n2": node("n9")}
    assert condition(of_shard(one, known, "n1", "n2", "n3"), "QuorumReachable")[1] == "NotEnoughMembers"


@pytest.mark.parametrize(("zones", "asked", "verdict"), [
    ("abc", 3, "QuorumAvailable"),
    ("ab", 3, "NotEnoughZones"),
    ("ab", 2, "QuorumAvailable"),
    ("", 2, "NotEnoughZones"),  # a node without a zone counts for none
    ("", 1, "QuorumAvailable"),
    ("", 0, "QuorumAvailable"),
])
def test_zones_are_counted_among_the_members_that_are_there(zones: str, asked: int, verdict: str) -> None:
    one = group(shards=1, synchro_zones=asked)
    assert condition(of_shard(one, nodes(3, zones), "n1", "n2", "n3"), "QuorumReachable")[1] == verdict


def test_a_zone_that_is_gone_is_missed_though_a_majority_is_there() -> None:
    one = group(shards=1, synchro_zones=3)
    known = {**nodes(3, "abc"), "n3": node("n3", "c", up=False)}
    assert condition(of_group(one, known, ("n1", "n2", "n3")), "QuorumReachable") == (
        "False", "NotEnoughZones", "orders-0000 needs members in 3 zones, they are in 2")


def test_what_is_shown_of_a_group_is_what_its_resource_allows() -> None:
    one = group(shards=1, synchro_quorum="max(N-1, 2)", synchro_zones=2)
    shown = of_group(one, nodes(3, "abc"), ("n1", "n2", "n3"))
    taken = LogGroupStatus.model_validate_json(json.dumps(shown))
    assert taken.model_dump(mode="json", by_alias=True, exclude_unset=True) == shown


CLUSTER = StoredObject(
    load_resource({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "dev"},
        "spec": {
            "version": "0.1.0",
            "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}],
        },
    }, "test").manifest(), "uid", "2026-01-01T00:00:00Z")


def of_cluster(
    known: dict[str, Node], *ensembles: tuple[str, ...], version: str = "0.1.0",
    certificates: CertificatesView | None = None, stored: StoredObject | None = None,
    standing: Standing = Standing(), kubernetes: KubernetesFacts | None = None,  # noqa: B008 - it is frozen
) -> dict[str, Any]:
    one = group(shards=len(ensembles))
    shards = {made.shard: made for i, names in enumerate(ensembles) if (made := shard(i, *names, of=one))}
    records = {made: record(*view.ensemble, leader=view.leader) for made, view in shards.items()}
    return stamped("TidemarkCluster", cluster_status(ClusterFacts(
        stored=stored or CLUSTER, world=World({one.name: one}, shards, known), records=records, key_prefix="/t",
        endpoints=1, last_node_id=3, version=version, certificates=certificates, standing=standing,
        kubernetes=kubernetes)))


def test_what_is_shown_of_a_cluster_is_what_its_resource_allows() -> None:
    for status in (of_cluster({}), of_cluster(nodes(3, "abc"), ("n1", "n2", "n3")), of_cluster(nodes(3))):
        ClusterStatus.model_validate_json(json.dumps(status))
        assert {item["type"] for item in status["conditions"]} == set(required_types("TidemarkCluster"))


def test_what_is_shown_of_a_shard_is_what_its_resource_allows() -> None:
    one = group(shards=2)
    steady = record("n1", "n2", "n3", leader="n1")
    electing_ = replace(steady, status=Status.ELECTION, leader=None)
    swapping = replace(
        steady, status=Status.RECONFIGURATION,
        change=Change(Operation.SWAP, Phase.PREPARE, member("n2"), member("n2", "2")))
    thinning = replace(steady, status=Status.RECONFIGURATION, change=Change(
        Operation.COPIES, Phase.PREPARE, None, None, copies=2))
    for index, known in enumerate((steady, electing_, swapping, thinning)):
        shown = shard_object(
            ShardFacts(shard(0, "n1", "n2", "n3", of=one), known, 7, one, nodes(3, "abc"), "swap"))
        shown["status"] = stamped("Shard", shown["status"], None)
        ShardStatus.model_validate_json(json.dumps(shown["status"]))
        spec = {key: value for key, value in shown.items() if key != "status"}
        assert isinstance(load_resource(spec, f"shard {index}"), ShardResource)
        assert {item["type"] for item in shown["status"]["conditions"]} == set(required_types("Shard"))
        # `kubectl wait` would wait for ever for a generation that is behind.
        assert not [item for item in shown["status"]["conditions"] if "observedGeneration" in item]


def of_keyspace(
    ranges: Mapping[int, Range], nodes: Mapping[str, Node], trouble: tuple[R, str] | None = None,
    late: Late | None = None, **spec: Any,
) -> dict[str, Any]:
    """Return the status of a keyspace of two ranges."""
    manifest = load_resource({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": "carts"},
        "spec": {"clusterRef": {"name": "dev"}, "partitions": 2, **spec},
    }, "test").manifest()
    stored = StoredObject(manifest, "uid", "2026-01-01T00:00:00Z", generation=2, number=7)
    status = stamped("Keyspace", keyspace_status(KeyspaceFacts(stored, ranges, nodes, 40, trouble, late=late)), 2)
    KeyspaceStatus.model_validate_json(json.dumps(status))
    blocked = {"GCBlocked"} if late is not None else set()
    assert {item["type"] for item in status["conditions"]} == {*required_types("Keyspace"), *blocked}
    return status


FULL = dict(enumerate(ring("n1 n2 n3", "n2 n3 n1")))


def test_a_keyspace_whose_owners_are_all_up_is_ready() -> None:
    status = of_keyspace(FULL, nodes(3, "abc"))
    assert condition(status, "Ready") == ("True", "RingStable", "2 ranges have their owners.")
    for type_, found in {
        "Available": ("True", "QuorumsAvailable"), "FullyReplicated": ("True", "AllCopiesInSync"),
        "PlacementSatisfied": ("True", "DomainsDistinct"), "Reconciling": ("False", "Reconciled"),
        "Stalled": ("False", "Reconciled"),
    }.items():
        assert condition(status, type_)[:2] == found
    assert {key: status[key] for key in ("keyspaceID", "metadataRevision", "ringVersion", "quorums", "partitions")} == {
        "keyspaceID": 7, "metadataRevision": 40, "ringVersion": 2, "quorums": "3/2/2",
        "partitions": {"desired": 2, "quorumAvailable": 2, "fullyReplicated": 2, "moving": 0}}


def test_owners_that_are_down_or_have_another_disk_are_shown_and_below_the_quorum_a_range_is_not_available() -> None:
    known = {**nodes(4, "abc"), "n3": node("n3", "c", up=False)}
    ranges = dict(enumerate(ring("n1 n2 n3", "n1 n2 n4")))
    status = of_keyspace(ranges, known)
    assert condition(status, "Ready")[:2] == ("True", "RingStable"), "a quorum of each range is up"
    assert condition(status, "FullyReplicated") == ("False", "CopiesMissing", "n3: 1 ranges lack owners.")
    assert status["partitions"] == {"desired": 2, "quorumAvailable": 2, "fullyReplicated": 1, "moving": 0}
    known["n2"] = replace(known["n2"], member=member("n2", "2"))
    status = of_keyspace(ranges, known)
    below = ("False", "PartitionsBelowQuorum", "Ranges 0 have fewer owners up than their quorums need.")
    assert condition(status, "Ready") == condition(status, "Available") == below
    assert condition(status, "FullyReplicated") == ("False", "CopiesMissing", "n2, n3: 2 ranges lack owners.")
    assert status["partitions"] == {"desired": 2, "quorumAvailable": 1, "fullyReplicated": 0, "moving": 0}


def test_ranges_that_move_or_wait_for_their_quorums_are_shown() -> None:
    moving = {**FULL, 1: begun(FULL[1], ring("n2 n4 n1")[0].own)}
    status = of_keyspace(moving, nodes(4, "abcd"))
    assert condition(status, "Ready") == ("False", "RangesMoving", "1 of 2 ranges move.")
    assert condition(status, "Reconciling")[:2] == ("True", "RangesMoving")
    assert condition(status, "FullyReplicated")[:2] == ("False", "CopiesCatchingUp")
    assert (status["partitions"]["moving"], status["ringVersion"]) == (1, 3)
    more = {"replication": {"replicas": 4, "readQuorum": 3, "writeQuorum": 3}}
    status = of_keyspace(FULL, nodes(3, "abc"), **more)
    assert condition(status, "Ready") == (
        "False", "FactorChangePending", "declared 4/3/3, 2 of 2 ranges have 3/2/2; 3 nodes are eligible.")
    assert status["quorums"] == "3/2/2"


@pytest.mark.parametrize(("quorum", "pending", "served"), [
    (Quorum(3, 2, 2), "", True), (Quorum(3, 1, 3), "", False), (Quorum(3, 3, 1), "", False),
    (Quorum(3, 2, 2), "n1 n2 n4", True), (Quorum(3, 2, 2), "n1 n3 n4", False),
])
def test_a_range_is_served_while_read_and_write_quorums_of_both_lists_are_up(
    quorum: Quorum, pending: str, served: bool
) -> None:
    known = {**nodes(4), "n3": node("n3", up=False), "n4": node("n4", up=False)}
    (one,) = ring("n1 n2 n3", quorum=quorum)
    if pending:
        one = begun(one, ring(pending, quorum=quorum)[0].own)
    known["n4"] = known["n4"] if pending == "n1 n3 n4" else node("n4")
    assert of_keyspace({0: one}, known, partitions=1)["partitions"]["quorumAvailable"] == served


def test_a_keyspace_without_ranges_says_why() -> None:
    status = of_keyspace({0: FULL[0]}, nodes(3))
    assert condition(status, "Ready") == ("False", "CreatingRing", "1 of 2 ranges exist.")
    assert condition(status, "Available")[:2] == condition(status, "FullyReplicated")[:2] == ("False", "CreatingRing")
    status = of_keyspace({}, nodes(2), (R.NOT_ENOUGH_NODES, "2 are eligible"))
    assert condition(status, "Ready") == ("False", "Stalled", "2 are eligible")
    assert condition(status, "Stalled") == ("True", "NotEnoughNodes", "2 are eligible")
    assert condition(status, "PlacementSatisfied") == ("False", "NotEnoughNodes", "2 are eligible")
    assert status["quorums"] == "3/2/2"


def test_a_cluster_shows_ranges_of_keyspaces_that_lack_owners() -> None:
    def found(known: dict[str, Node]) -> dict[str, Any]:
        there = World({}, {}, known, ranges=dict(enumerate(ring("n1 n2 n3", "n1 n2 n4"))))
        return stamped("TidemarkCluster", cluster_status(ClusterFacts(
            stored=CLUSTER, world=there, records={}, key_prefix="/t", endpoints=1, last_node_id=4, version="0.1.0")))

    whole = nodes(4, "abc")
    assert condition(found(whole), "Available")[:2] == ("True", "QuorumsAvailable")
    assert condition(found(whole), "FullyReplicated") == ("True", "AllCopiesInSync", "")
    known = {**whole, "n3": node("n3", "c", up=False)}
    assert condition(found(known), "Available")[0] == "True"
    assert condition(found(known), "FullyReplicated") == (
        "False", "CopiesMissing", "1 ranges of keyspaces move or lack owners")
    known["n2"] = node("n2", "b", up=False)
    assert condition(found(known), "Available") == (
        "False", "PartitionsBelowQuorum", "1 ranges of keyspaces have fewer owners up than their quorums need.")


def test_owners_that_share_a_zone_are_shown_where_they_should_not() -> None:
    known = nodes(3, "abb")
    assert condition(of_keyspace(FULL, known), "PlacementSatisfied") == (
        "False", "NotEnoughDomains", "Ranges 0, 1: two owners share a zone, of 2.")
    anywhere = of_keyspace(FULL, known, replication={"spread": "Node"})
    assert condition(anywhere, "PlacementSatisfied")[0] == "True"
    assert condition(of_keyspace(FULL, nodes(3)), "PlacementSatisfied")[0] == "True", "there are no zones"


@pytest.mark.parametrize(("spec", "strict"), [
    ({}, ("True", "QuorumsOverlap", "R + W = 4, N = 3.")),
    ({"replication": {"readQuorum": 1}, "consistency": "Eventual"}, ("False", "EventualByChoice", "R + W = 3, N = 3.")),
    ({"replication": {"quorumMode": "Sloppy"}, "consistency": "Eventual"},
     ("False", "SloppyByChoice", "R + W = 4, N = 3.")),
])
def test_a_keyspace_says_whether_its_quorums_meet(spec: dict[str, Any], strict: tuple[str, str, str]) -> None:
    assert condition(of_keyspace(FULL, nodes(3), **spec), "StrictQuorum") == strict


def test_a_keyspace_whose_floors_are_late_says_for_whom_they_wait() -> None:
    late = Late(2, 5 * 3_600_000, R.NODES_AWAY, "range 1: owners are away (D70): n2")
    assert condition(of_keyspace(FULL, nodes(3), late=late), "GCBlocked") == (
        "True", "NodesAway", "Floors of 2 ranges are late, the last one by 5 h: range 1: owners are away (D70): n2.")


def test_a_cluster_says_what_a_local_one_does_not_do() -> None:
    calm = of_cluster(nodes(3, "abc"), ("n1", "n2", "n3"))
    assert condition(calm, "ScaleDownBlocked")[:2] == ("False", "NotScaling")
    assert condition(calm, "UpgradeBlocked")[:2] == ("False", "NotUpgrading")
    assert condition(calm, "PlacementSatisfied")[:2] == ("True", "DomainsDistinct")
    assert condition(calm, "CertificatesValid")[:2] == ("False", "NotSupported")
    asked = of_cluster(nodes(4, "aab"), ("n1", "n2", "n3"), version="0.2.0")
    assert condition(asked, "ScaleDownBlocked")[:2] == ("True", "NotSupported")
    assert condition(asked, "UpgradeBlocked")[:2] == ("True", "NotSupported")
    assert condition(asked, "PlacementSatisfied") == ("False", "NotEnoughDomains", "orders-0000")


@pytest.mark.parametrize(("mode", "reason", "shown"), [
    ("Managed", "Issued", ("True", "Issued", "")),
    ("Managed", "ExpiringSoon", ("False", "ExpiringSoon", "")),
    ("Managed", "Expired", ("False", "Expired", "")),
    ("Managed", None, (
        "False", "NotSupported",
        "Not in force in a local cluster, which is insecure: security.tls.mode Managed.")),
    ("Disabled", None, ("True", "Disabled", "")),
    ("CertManager", "Issued", (
        "False", "NotSupported", "Not in force in a local cluster: security.tls.mode CertManager.")),
])
def test_a_cluster_shows_what_is_in_force_of_its_certificates(
    mode: str, reason: str | None, shown: tuple[str, str, str]
) -> None:
    manifest = copy.deepcopy(CLUSTER.manifest)
    manifest["spec"]["security"] = {"tls": {"mode": mode}}
    ends = datetime(2027, 11, 2, 9, tzinfo=UTC), datetime(2027, 1, 30, 9, tzinfo=UTC)
    view = CertificatesView(*ends, reason) if reason is not None else None
    status = of_cluster(nodes(3, "abc"), ("n1", "n2", "n3"), certificates=view, stored=replace(
        CLUSTER, manifest=manifest))
    assert shown == condition(status, "CertificatesValid")
    assert ("certificates" in status) is (view is not None)
    if view is not None:
        assert {
            "caExpirationTime": "2027-11-02T09:00:00Z", "earliestExpirationTime": "2027-01-30T09:00:00Z",
        } == status["certificates"]
    ClusterStatus.model_validate_json(json.dumps(status))


def test_a_group_without_shards_says_why_and_shows_every_condition() -> None:
    status = of_group(group(), nodes(3))
    assert {item["type"] for item in status["conditions"]} == set(required_types("LogGroup"))
    for type_ in ("Ready", "Available", "FullyReplicated", "PlacementSatisfied"):
        assert condition(status, type_)[:2] == ("False", "CreatingShards"), type_


@pytest.mark.parametrize(("status", "leader_up", "state"), [
    (Status.STEADY, True, "Online"),
    (Status.STEADY, False, "Leaderless"),
    (Status.ELECTION, True, "Electing"),
    (Status.RECONFIGURATION, True, "Reconfiguring"),
    (Status.RECONFIGURATION, False, "Leaderless"),
])
def test_the_state_of_a_shard(status: Status, leader_up: bool, state: str) -> None:
    known = {**nodes(3), "n1": node("n1", up=leader_up)}
    assert shard_state(shard(0, "n1", "n2", "n3"), record("n1", "n2", "n3", leader="n1", status=status), known) == state


@pytest.mark.parametrize(("standing", "ready", "stalled"), [
    (Standing(), ("True", "AllShardsOnline"), ("False", "Reconciled")),
    (Standing(paused=True), ("False", "Paused"), ("False", "Reconciled")),
    (Standing(refused="spec.shards: no"), ("False", "Stalled"), ("True", "InvalidSpec")),
    (Standing(refused="shards (AdoptionMismatch)"), ("False", "Stalled"), ("True", "AdoptionMismatch")),
    (Standing(paused=True, refused="spec.shards: no"), ("False", "Paused"), ("True", "InvalidSpec")),
])
def test_a_spec_that_is_paused_or_refused_stands_in_the_status_of_its_group(
    standing: Standing, ready: tuple[str, str], stalled: tuple[str, str]
) -> None:
    one, made = group(shards=1), shard(0, "n1", "n2", "n3")
    facts = GroupFacts(
        one, 1, {made.shard: made}, {made.shard: record("n1", "n2", "n3", leader="n1")}, nodes(3, "abc"), 7,
        standing=standing)
    status = stamped("LogGroup", group_status(facts))
    assert condition(status, "Ready")[:2] == ready
    assert condition(status, "Stalled")[:2] == stalled
    assert condition(status, "Available")[:2] == ("True", "LeadersElected"), "what is accepted serves"
    assert ("Paused" in {each["type"] for each in status["conditions"]}) is standing.paused
    LogGroupStatus.model_validate_json(json.dumps(status))


PODS = KubernetesFacts(
    client_endpoint="prod.data.svc:7400", internal_endpoint="prod-nodes.data.svc", target_revision="new",
    revisions={"n1": "new", "n2": "new", "n3": "old"}, machines={"n1": "m1", "n2": "m2", "n3": ""}, outdated=1,
    version_before="0.0.9", certificates=IssuanceFacts(enabled=False), scale_down=(False, R.NOT_SCALING, ""))


def on_kubernetes(facts: KubernetesFacts, standing: Standing = Standing()) -> dict[str, Any]:  # noqa: B008
    status = of_cluster(nodes(3, "abc"), ("n1", "n2", "n3"), standing=standing, kubernetes=facts)
    ClusterStatus.model_validate_json(json.dumps(status))
    assert {item["type"] for item in status["conditions"]} >= set(required_types("TidemarkCluster"))
    return status


def test_a_cluster_on_kubernetes_shows_its_pods_and_keeps_its_version_until_all_run_the_new_one() -> None:
    status = on_kubernetes(PODS)
    assert (status["version"], status["nodeSummary"]["updated"]) == ("0.0.9", 2)
    assert [(node["name"], node["revision"], node.get("kubernetesNode")) for node in status["nodes"]] == [
        ("n1", "new", "m1"), ("n2", "new", "m2"), ("n3", "old", None)]
    assert status["endpoints"] == {"client": "prod.data.svc:7400", "internal": "prod-nodes.data.svc"}
    assert condition(status, "Ready")[:2] == ("True", "Reconciled")
    done = on_kubernetes(replace(PODS, outdated=0, disks_before={"n1": "older"}))
    assert [node["incarnation"] for node in done["nodes"]] == [node["incarnation"] for node in status["nodes"]]
    assert (done["version"], done["nodeSummary"]["updated"]) == ("0.1.0", 3)


@pytest.mark.parametrize(("changes", "shown"), [
    ({"rollout": RolloutFacts(pods=3, wanted=("n3",), under_way=("n3",))}, {
        "Ready": ("False", "RolloutInProgress"), "Reconciling": ("True", "RolloutInProgress"),
        "UpgradeBlocked": ("False", "Progressing")}),
    ({"rollout": RolloutFacts(pods=3, wanted=("n3",), waits="waits for n1")}, {
        "UpgradeBlocked": ("True", "DisruptionUnderWay")}),
    ({"rollout": RolloutFacts(pods=3, wanted=("n3",), closed=(R.NODE_READY_TIMEOUT, "n1")), "outdated": 0}, {
        "UpgradeBlocked": ("True", "UnderReplicated")}),
    ({"rollout": RolloutFacts(pods=3, wanted=("n3",), overdue=("n1",))}, {
        "Ready": ("False", "Stalled"), "Stalled": ("True", "NodeReadyTimeout")}),
    ({"rollout": RolloutFacts(pods=3, for_a_window=1)}, {"UpgradeBlocked": ("True", "OutsideMaintenanceWindow")}),
    ({"rollout": RolloutFacts(pods=3, misread="no time")}, {"Stalled": ("True", "InvalidSpec")}),
    ({"lost": {"n3": "m3"}}, {"FullyReplicated": ("False", "NodeLost")}),
    ({"scaling": (R.SCALING_IN_PROGRESS, "To go: n3.")}, {"Ready": ("False", "ScalingInProgress")}),
    ({"resizing_volumes": ("n1",)}, {"Ready": ("False", "VolumeResizing")}),
    ({"unready_pods": ("n2",)}, {"Ready": ("False", "NodesNotReady"), "Reconciling": ("True", "NodesNotReady")}),
    ({"stuck_volumes": ("n1",), "resizing_volumes": ("n1",)}, {
        "Ready": ("False", "Stalled"), "Stalled": ("True", "VolumeExpansionUnsupported")}),
    ({"certificates": IssuanceFacts(enabled=True)}, {"CertificatesValid": ("False", "IssuerNotReady")}),
])
def test_the_facts_of_kubernetes_decide_the_conditions_of_a_cluster(
    changes: dict[str, Any], shown: dict[str, tuple[str, str]]
) -> None:
    status = on_kubernetes(replace(PODS, **changes))
    assert {type_: condition(status, type_)[:2] for type_ in shown} == shown
    paused = on_kubernetes(replace(PODS, **changes), Standing(paused=True))
    assert condition(paused, "Ready")[:2] == ("False", "Paused"), "the spec comes before the rollout"


def test_a_lost_node_is_counted_and_its_machine_named() -> None:
    status = on_kubernetes(replace(PODS, lost={"n3": "m3"}))
    assert status["nodeSummary"]["lost"] == 1
    assert [(node["state"], node["message"]) for node in status["nodes"]][2] == (
        "Lost", "its volume was on m3, which is gone")
