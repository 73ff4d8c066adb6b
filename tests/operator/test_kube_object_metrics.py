"""Metrics out of statuses: what alerts and dashboards read."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.object_metrics import ObjectMetrics

KINDS = ("TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration")


def told(**statuses: dict[str, Any]) -> dict[str, float]:
    """Return what is told of one object of each kind given."""
    caches = {kind: Cache() for kind in KINDS}
    for kind, status in statuses.items():
        caches[kind].learn({
            "metadata": {"namespace": "data", "name": "it", "resourceVersion": "1"},
            **({"status": status} if status else {})})
    registry = CollectorRegistry()
    registry.register(ObjectMetrics(caches))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_nodes_are_counted_by_state_with_zeros() -> None:
    found = told(TidemarkCluster={
        "nodes": [{"state": state} for state in ("Active", "Active", "Lost")],
        "nodeSummary": {"desired": 3}, "certificates": {"earliestExpirationTime": "1970-01-02T00:00:00Z"}})
    of = 'tidemark_cluster_nodes{cluster="it",namespace="data",state="%s"}'
    assert (found[of % "Active"], found[of % "Lost"], found[of % "Draining"]) == (2, 1, 0)
    assert found['tidemark_cluster_nodes_desired{cluster="it",namespace="data"}'] == 3
    assert found['tidemark_certificate_expiry_timestamp_seconds{cluster="it",namespace="data"}'] == 86400


def test_shards_are_told_as_the_status_counts_them() -> None:
    found = told(LogGroup={"groupID": 7, "shards": {"desired": 4, "online": 3, "leaderless": 1, "underReplicated": 2}})
    of = 'tidemark_loggroup_shards{group="it",namespace="data",state="%s"}'
    assert {state: found[of % state] for state in ("desired", "online", "leaderless", "under_replicated")} == {
        "desired": 4, "online": 3, "leaderless": 1, "under_replicated": 2}
    assert found['tidemark_loggroup_info{group="it",group_id="7",namespace="data"}'] == 1


def test_conditions_are_one_nought_or_minus_one() -> None:
    found = told(LogGroup={"conditions": [
        {"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "False"},
        {"type": "Available", "status": "Unknown"}]})
    of = 'tidemark_object_condition{kind="LogGroup",name="it",namespace="data",type="%s"}'
    assert [found[of % kind] for kind in ("Ready", "Stalled", "Available")] == [1, 0, -1]


def test_a_reconfiguration_that_is_over_is_told_no_more() -> None:
    status = {"stage": "Moving", "plan": {"moves": 5}, "progress": {"completed": 2, "inProgress": 1, "failed": 0},
              "conditions": [{"type": "Stalled", "status": "True"}]}
    found = told(Reconfiguration=status)
    of = 'tidemark_reconfiguration_moves{namespace="data",reconfiguration="it",state="%s"}'
    assert [found[of % state] for state in ("planned", "completed", "in_progress", "failed")] == [5, 2, 1, 0]
    assert found['tidemark_object_condition{kind="Reconfiguration",name="it",namespace="data",type="Stalled"}'] == 1
    assert told(Reconfiguration={**status, "stage": "Finished"}) == {}


def test_an_object_without_a_status_is_no_trouble() -> None:
    found = told(TidemarkCluster={}, LogGroup={}, Keyspace={}, Reconfiguration={})
    assert set(found.values()) == {0}
