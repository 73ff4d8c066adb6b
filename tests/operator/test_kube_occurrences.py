"""What happened, told from two statuses of an object; nothing where they are the same."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_operator.kube.occurrences import Occurrence, leaderless_since, occurrences
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.conditions import ConditionType as T
from tidemark_operator.resources.events import EVENTS
from tidemark_operator.resources.events import EventReason as E

Status = dict[str, Any]


def told(kind: str, before: Status, after: Status) -> list[str]:
    """Return the reasons told, each with its count where it happened more than once; all must be on the list."""
    found = occurrences(kind, before, after)
    assert {each.reason for each in found} <= {rule.reason for rule in EVENTS[kind]}
    assert occurrences(kind, after, after) == []
    return [f"{each.reason} x{each.times}" if each.times > 1 else str(each.reason) for each in found]


def only(kind: str, before: Status, after: Status) -> Occurrence:
    (found,) = occurrences(kind, before, after)
    return found


def condition(type_: T, status: str, reason: R, message: str = "", at: str = "2026-01-01T00:00:00Z") -> Status:
    return {"type": str(type_), "status": status, "reason": str(reason), "message": message, "lastTransitionTime": at}


# --- nodes of a cluster -------------------------------------------------------------------------------------


def node(name: str = "prod-1", **more: Any) -> Status:
    return {"name": name, "zone": "a", "state": "Active", "ready": True, "incarnation": "life-1", "revision": "r1",
            "leaders": 1, "replicas": 2, "message": "", **more}


NEW = node(state="Joining", ready=False, incarnation="", revision="", leaders=0, replicas=0)
STARTED = {**NEW, "revision": "r1"}
UP = {**STARTED, "state": "Active", "ready": True, "incarnation": "life-1"}


@pytest.mark.parametrize(("before", "after", "reasons"), [
    (None, NEW, []),
    (None, STARTED, ["NodeProvisioned"]),
    (NEW, STARTED, ["NodeProvisioned"]),
    (STARTED, UP, ["NodeJoined"]),
    (None, UP, ["NodeProvisioned", "NodeJoined"]),
    (NEW, node(), ["NodeProvisioned", "NodeJoined"]),
    (UP, node(), []),
    (node(), node(ready=False, state="Restarting"), ["NodeUnreachable"]),
    (node(ready=False, state="Restarting", revision=""), node(), []),
    (node(ready=False, state="Joining", incarnation=""), node(), []),      # an operator that had not reached it yet
    (node(), node(state="Draining", leaders=0), ["LeadershipsHandedOver"]),
    (node(state="Draining"), node(ready=False, state="Restarting"), []),   # it said that it would go
    (node(replicas=0), node(ready=False, state="Removing", replicas=0), []),   # a scale-down of an empty node
    (node(), node(incarnation="life-2", state="Reseeding"), ["NodeDiskReplaced"]),
    (node(ready=False, state="Restarting"), node(incarnation="life-2", state="Reseeding"), ["NodeDiskReplaced"]),
    (node(ready=False, state="Restarting"), node(ready=False, state="Lost"), ["NodeLost"]),
])
def test_what_happens_to_a_node(before: Status | None, after: Status, reasons: list[str]) -> None:
    assert told("TidemarkCluster", {"nodes": [before]} if before else {}, {"nodes": [after]}) == reasons


def test_a_node_is_drained_when_its_copies_went_elsewhere() -> None:
    before = {"nodes": [node("prod-1"), node("prod-2", replicas=0)]}
    assert told("TidemarkCluster", before, {"nodes": [node("prod-1", replicas=0), node("prod-2")]}) == ["NodeDrained"]
    assert told("TidemarkCluster", before, {"nodes": [node("prod-1", replicas=0), node("prod-2", replicas=0)]}) == []
    assert told("TidemarkCluster", before, {"nodes": [node("prod-1")]}) == ["NodeRemoved"]
    assert told("TidemarkCluster", before, {"conditions": []}) == [], "a status that says nothing of nodes"


def test_an_event_of_a_node_names_its_pod_and_why() -> None:
    found = only("TidemarkCluster", {"nodes": [node()]}, {"nodes": [node(ready=False, message="refuses connections")]})
    assert found == Occurrence(E.NODE_UNREACHABLE, "prod-1: refuses connections", "prod-1")


# --- conditions ---------------------------------------------------------------------------------------------


def conditions(*found: Status) -> Status:
    return {"conditions": list(found)}


REACHABLE = conditions(condition(T.METADATA_STORE_REACHABLE, "True", R.CONNECTED))
AWAY = conditions(condition(T.METADATA_STORE_REACHABLE, "False", R.CONNECTION_FAILED, "refused"))
FOREIGN = conditions(condition(T.METADATA_STORE_REACHABLE, "False", R.CLUSTER_ID_MISMATCH, "it holds another cluster"))
VALID = conditions(condition(T.STALLED, "False", R.RECONCILED))
INVALID = conditions(condition(T.STALLED, "True", R.INVALID_SPEC, "spec.shards: no"))


@pytest.mark.parametrize(("before", "after", "reasons"), [
    ({}, REACHABLE, []),
    ({}, AWAY, ["MetadataStoreUnreachable"]),
    (REACHABLE, AWAY, ["MetadataStoreUnreachable"]),
    (AWAY, REACHABLE, ["MetadataStoreRecovered"]),
    (VALID, INVALID, ["InvalidSpec"]),
    (INVALID, conditions(condition(T.STALLED, "True", R.INVALID_SPEC, "spec.factor: no")), ["InvalidSpec"]),
    (INVALID, VALID, []),
    (REACHABLE, FOREIGN, ["ForeignOperator"]),
    (AWAY, FOREIGN, ["ForeignOperator"]),
    (FOREIGN, FOREIGN, []),
    (FOREIGN, AWAY, []),
    (FOREIGN, REACHABLE, ["MetadataStoreRecovered"]),
    ({}, conditions(condition(T.READY, "False", R.CLUSTER_ID_MISMATCH, "dev-1 is of cluster test")), ["ForeignNode"]),
    ({}, conditions(condition(T.SCALE_DOWN_BLOCKED, "True", R.NOT_DRAINED, "4")), ["ScaleDownBlocked"]),
    (conditions(condition(T.SCALE_DOWN_BLOCKED, "True", R.NOT_DRAINED, "4")),
     conditions(condition(T.SCALE_DOWN_BLOCKED, "True", R.NOT_DRAINED, "3")), []),
    (conditions(condition(T.UPGRADE_BLOCKED, "False", R.NOT_UPGRADING)),
     conditions(condition(T.UPGRADE_BLOCKED, "True", R.VERSION_SKEW)), ["UpgradeBlocked"]),
    ({}, conditions(condition(T.CERTIFICATES_VALID, "False", R.EXPIRING_SOON)), ["CertificateExpiring"]),
    ({}, conditions(condition(T.CERTIFICATES_VALID, "False", R.NOT_SUPPORTED)), []),
    (conditions(condition(T.READY, "True", R.RECONCILED)),
     conditions(condition(T.READY, "False", R.ROLLOUT_IN_PROGRESS)), ["RolloutStarted"]),
    (conditions(condition(T.READY, "False", R.ROLLOUT_IN_PROGRESS)),
     conditions(condition(T.READY, "False", R.NODES_NOT_READY)), []),
    (conditions(condition(T.READY, "False", R.ROLLOUT_IN_PROGRESS)),
     conditions(condition(T.READY, "True", R.RECONCILED)), ["RolloutCompleted"]),
    (VALID, conditions(condition(T.STALLED, "True", R.NODE_READY_TIMEOUT)), ["NodeReadyTimeout"]),
    (VALID, conditions(condition(T.STALLED, "True", R.VOLUME_EXPANSION_UNSUPPORTED)), ["VolumeResizeFailed"]),
    (conditions(condition(T.READY, "False", R.VOLUME_RESIZING)),
     conditions(condition(T.READY, "True", R.RECONCILED)), ["VolumeResized"]),
    (conditions(condition(T.READY, "False", R.VOLUME_RESIZING)),
     conditions(condition(T.READY, "False", R.NODES_NOT_READY)), []),
    ({"certificates": {"earliestExpirationTime": "2026-01-01T00:00:00Z"}},
     {"certificates": {"earliestExpirationTime": "2026-02-01T00:00:00Z"}}, ["CertificateIssued"]),
])
def test_what_the_conditions_of_a_cluster_tell(before: Status, after: Status, reasons: list[str]) -> None:
    assert told("TidemarkCluster", before, after) == reasons


def test_refusals_of_other_kinds_tell_the_field() -> None:
    for kind in ("LogGroup", "Keyspace"):
        assert only(kind, VALID, INVALID) == Occurrence(E.INVALID_SPEC, "spec.shards: no")
    not_served = conditions(condition(T.READY, "False", R.NOT_SUPPORTED, "later"))
    assert told("LogGroup", {}, not_served) == ["NotSupported"]
    assert told("LogGroup", not_served, not_served) == []


def test_the_ring_of_a_keyspace_tells_what_became_of_it() -> None:
    def ring(version: int, ready: R, available: R = R.QUORUMS_AVAILABLE) -> Status:
        found = conditions(
            condition(T.READY, "True" if ready is R.RING_STABLE else "False", ready),
            condition(T.AVAILABLE, "True" if available is R.QUORUMS_AVAILABLE else "False", available, "Ranges 3"))
        return {**found, "ringVersion": version, "partitions": {"desired": 64}}

    creating, made = ring(0, R.CREATING_RING, R.CREATING_RING), ring(64, R.RING_STABLE)
    assert only("Keyspace", creating, made) == only("Keyspace", {}, made) == Occurrence(E.RANGES_CREATED, "64 ranges")
    moving = ring(65, R.RANGES_MOVING)
    assert told("Keyspace", made, moving) == told("Keyspace", made, made) == []
    assert told("Keyspace", moving, ring(66, R.RING_STABLE)) == ["RingChanged"]
    below = ring(64, R.PARTITIONS_BELOW_QUORUM, R.PARTITIONS_BELOW_QUORUM)
    assert only("Keyspace", made, below) == Occurrence(E.QUORUM_LOST, "Ranges 3")
    assert told("Keyspace", below, below) == told("Keyspace", below, made) == []


def test_leaders_are_restored_only_where_they_were_missed() -> None:
    def available(status: str, reason: R, at: str) -> Status:
        return conditions(condition(T.AVAILABLE, status, reason, "", at))

    away = available("False", R.SHARDS_LEADERLESS, "2026-01-01T00:00:00Z")
    assert told("LogGroup", away, available("True", R.LEADERS_ELECTED, "2026-01-01T00:00:30Z")) == ["LeadersRestored"]
    assert told("LogGroup", away, available("True", R.LEADERS_ELECTED, "2026-01-01T00:00:29Z")) == []
    created = available("False", R.CREATING_SHARDS, "2026-01-01T00:00:00Z")
    assert told("LogGroup", created, available("True", R.LEADERS_ELECTED, "2026-01-01T00:05:00Z")) == []
    since = leaderless_since(away)
    assert since is not None
    assert since.isoformat() == "2026-01-01T00:00:00+00:00"
    assert leaderless_since(created) is None
    assert leaderless_since({}) is None


# --- shards -------------------------------------------------------------------------------------------------


def shard(epoch: int, leader: str, *members: str, state: str = "Online", **more: Any) -> Status:
    return {"epoch": epoch, "leader": leader, "state": state, "payloadCopies": 3,
            "ensemble": [{"node": name} for name in members or ("a", "b", "c")], **more}


CHANGE = {"operation": {"type": "Swap"}, "state": "Reconfiguring"}


@pytest.mark.parametrize(("before", "after", "reasons"), [
    ({}, shard(1, "", state="Electing"), []),
    ({}, shard(1, "a"), ["LeaderElected"]),
    (shard(1, "", state="Electing"), shard(1, "a"), ["LeaderElected"]),
    (shard(1, "a"), shard(2, "b"), ["LeaderElected"]),
    (shard(1, "a"), shard(2, "a"), ["LeaderElected"]),
    (shard(1, "a"), shard(1, "a", state="Leaderless"), []),
    (shard(1, "a"), shard(2, "a", **CHANGE), []),
    (shard(2, "a", **CHANGE), shard(2, "a", "a", "b", "d"), []),
    (shard(1, "a"), shard(2, "a", "a", "b", "d"), []),
    (shard(1, "a", **CHANGE), shard(2, "b", **CHANGE), ["LeaderElected"]),
])
def test_a_leader_is_elected(before: Status, after: Status, reasons: list[str]) -> None:
    assert told("Shard", before, after) == reasons


# --- reconfigurations ---------------------------------------------------------------------------------------


def act(stage: str, *, done: int = 0, runs: int = 0, failed: int = 0, succeeded: tuple[str, R] | None = None,
        approved: bool = True, planned: bool = True, stalled: bool = False, **more: Any) -> Status:
    status, reason = succeeded or ("Unknown", R.MOVING)
    made = conditions(
        condition(T.VALIDATED, "True" if planned else "False", R.PLAN_ACCEPTED if planned else R.NODE_NOT_FOUND,
                  "" if planned else "nodeSwap.from: there is no node 'x'"),
        condition(T.APPROVED, str(approved and planned), R.AUTOMATIC_APPROVAL),
        condition(T.SUCCEEDED, status, reason, "so it ended"),
        condition(T.STALLED, str(stalled), R.UNDER_REPLICATED))
    if planned:
        made["plan"] = {"hash": "sha256:12", "moves": 4}
    return {**made, "stage": stage, "progress": {"completed": done, "inProgress": runs, "failed": failed}, **more}


QUEUED = {"stage": "Queued", **conditions(condition(T.SUCCEEDED, "Unknown", R.QUEUED, "other runs"))}
MOVING = act("Moving", done=1, runs=2)


@pytest.mark.parametrize(("before", "after", "reasons"), [
    ({}, QUEUED, ["Queued"]),
    (QUEUED, act("AwaitingApproval", approved=False), ["PlanReady"]),
    (act("AwaitingApproval", approved=False), act("Moving", runs=2), ["Approved", "Started"]),
    (QUEUED, MOVING, ["PlanReady", "Approved", "Started", "MoveCompleted"]),
    (MOVING, act("Moving", done=4), ["MoveCompleted x3"]),
    (MOVING, act("Suspended", done=3), ["Suspended", "MoveCompleted x2"]),
    (act("Suspended", done=3), act("Moving", done=3), ["Resumed"]),
    (MOVING, act("Moving", done=1, runs=1, stalled=True), ["Stalled"]),
    (MOVING, act("Moving", done=1, runs=1, failed=1, failedMoves=[{"name": "o", "shard": 3, "message": "no"}]),
     ["MoveFailed"]),
    (MOVING, act("Finished", done=4, succeeded=("True", R.COMPLETED)), ["MoveCompleted x3", "Completed"]),
    (QUEUED, act("Finished", done=4, succeeded=("True", R.COMPLETED)),
     ["PlanReady", "Approved", "Started", "MoveCompleted x4", "Completed"]),
    ({}, act("Finished", planned=False, succeeded=("False", R.REJECTED)), ["Rejected"]),
    (MOVING, act("Finished", done=2, succeeded=("False", R.CANCELED)), ["MoveCompleted", "MoveAborted", "Canceled"]),
    (MOVING, act("Finished", done=3, succeeded=("False", R.DEADLINE_EXCEEDED)),
     ["MoveCompleted x2", "DeadlineExceeded"]),
])
def test_how_an_act_goes(before: Status, after: Status, reasons: list[str]) -> None:
    assert told("Reconfiguration", before, after) == reasons


def test_a_rejection_tells_the_field_and_moves_share_one_note() -> None:
    found = only("Reconfiguration", {}, act("Finished", planned=False, succeeded=("False", R.REJECTED)))
    assert found.note == "NodeNotFound: nodeSwap.from: there is no node 'x'"
    first = only("Reconfiguration", MOVING, act("Moving", done=2, runs=1))
    assert first.note == only("Reconfiguration", MOVING, act("Moving", done=4)).note, "else it were no series"


@pytest.mark.parametrize("kind", list(EVENTS))
def test_what_somebody_else_wrote_into_a_status_breaks_nothing(kind: str) -> None:
    for before in ({}, {"nodes": None, "conditions": None, "plan": None, "progress": None, "ensemble": None},
                   {"nodes": [{"name": "prod-1", "state": "Active"}], "progress": {}}):
        occurrences(kind, before, before)
        occurrences(kind, before, {**act("Moving"), **shard(1, "a"), "nodes": [node()]})
        occurrences(kind, {**act("Moving"), **shard(1, "a"), "nodes": [node()]}, before)
