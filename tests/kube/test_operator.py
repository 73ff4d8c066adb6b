"""The operator on a real API server: applied objects become pods, shards and statuses; pods come back as they were."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable

import pytest
import tidemark

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import (
    CLAIMS,
    CLUSTERS,
    GROUPS,
    PAUSE,
    RECONFIGURATIONS,
    SHARDS,
    Operator,
    addresses,
    cluster,
    log_group,
    reconfiguration,
    replaced,
    served,
    succeeded,
)
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

REST_S = 6.0
RECORDS = 100


def is_true(kind: str, generation: int = 1) -> Callable[[Object], bool]:
    return lambda found: (
        condition(found, kind) == "True" and found.get("status", {}).get("observedGeneration") == generation)


def writes(control_plane: ControlPlane, operator: Operator) -> dict[str, int]:
    """Return the writes that the operator counts, and those to Tidemark's kinds that the API server counts.

    Other objects are counted by the operator alone: controllers still clear away the namespaces of tests before.
    """
    found = {
        line.rpartition(" ")[0]: int(float(line.rpartition(" ")[2])) for line in operator.ask("/metrics").splitlines()
        if line.startswith(("tidemark_operator_kube_requests_total", "tidemark_operator_status_writes_total"))
        and 'method="GET"' not in line}
    assert found
    for line in control_plane.admin.open("/metrics").decode().splitlines():
        if line.startswith("apiserver_request_total"):
            said = dict(re.findall(r'(\w+)="([^"]*)"', line))
            reads_or_clears = said["verb"] in ("GET", "LIST", "WATCH", "DELETE", "DELETECOLLECTION")
            if said["group"] == "tidemark.dev" and not reads_or_clears:
                found[line.rpartition(" ")[0]] = int(line.rpartition(" ")[2])
    return found


def member(found: Object, name: str) -> Object:
    return next(node for node in found["status"]["nodes"] if node["name"] == name)


async def test_from_manifests_to_a_served_log(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await kube.patch("namespaces", kube.namespace, {"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": "restricted"}}})
    made = await served(kube, cluster(metadata_etcd), log_group())
    assert [(node["name"], node["nodeID"], node["zone"], node["state"]) for node in made["status"]["nodes"]] == [
        ("prod-1", 1, "zone-a", "Active"), ("prod-2", 2, "zone-b", "Active"), ("prod-3", 3, "zone-c", "Active")]
    assert made["status"]["lastNodeID"] == 3
    group = await kube.get(GROUPS, "orders")
    assert group["status"]["onlineShards"] == "2/2"
    shards = {}
    for name in ("orders-0000", "orders-0001"):
        shards[name] = await kube.get(SHARDS, name)
        assert shards[name]["metadata"]["ownerReferences"][0]["uid"] == group["metadata"]["uid"]
    for name in ("prod-1", "prod-2", "prod-3"):
        await kube.wait("pods", name, lambda found: condition(found, "Ready") == "True")
        claim = await kube.wait(
            CLAIMS, f"data-{name}",
            lambda found: "tidemark.dev/incarnation" in found["metadata"].get("annotations", {}))
        assert claim["metadata"]["annotations"]["tidemark.dev/incarnation"] == member(made, name)["incarnation"]
    budget = await kube.get("poddisruptionbudgets.policy", "prod-nodes")
    assert budget["spec"]["minAvailable"] == 2

    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        appender = client.appender("orders", timeout_s=60)
        for number in range(RECORDS):
            await appender.append(f"{number}".encode())

        leader = shards["orders-0000"]["status"]["leader"]
        before = await kube.get("pods", leader)
        await kube.delete("pods", leader)
        await replaced(kube, before)
        again = await kube.wait(CLUSTERS, "prod", is_true("FullyReplicated"))
        assert member(again, leader)["incarnation"] == member(made, leader)["incarnation"], "the same disk is back"
        assert again["status"]["lastNodeID"] == 3
        for number in range(RECORDS, 2 * RECORDS):
            await appender.append(f"{number}".encode())
        await appender.close()
        values = sorted([int(record.value) async for record in client.read("orders")])
        assert values == list(range(2 * RECORDS))
    assert operator.ask("/livez") == operator.ask("/readyz") == "ok\n"
    assert 'tidemark_operator_leader{cluster="prod"' in operator.ask("/metrics")
    assert {json.loads(line)["level"] for line in operator.log.read_text().splitlines()} <= {"info", "warning"}


async def test_nothing_is_written_at_rest_and_a_paused_spec_rests(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, operator: Operator
) -> None:
    await served(kube, cluster(metadata_etcd), log_group())
    async with asyncio.timeout(60):
        before: dict[str, int] = {}
        while before != (before := writes(control_plane, operator)):  # the last news of the start are written
            await asyncio.sleep(REST_S / 2)
    await asyncio.sleep(REST_S)
    assert writes(control_plane, operator) == before

    await kube.patch(CLUSTERS, "prod", {"metadata": {"annotations": {PAUSE: "true"}}})
    rests = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Paused") == "True")
    assert condition(rests, "Ready") == "False"
    pools = cluster(metadata_etcd, replicas=4)["spec"]["nodePools"]
    await kube.patch(CLUSTERS, "prod", {"spec": {"nodePools": pools}})
    await kube.create(log_group(1, "served-meanwhile"))
    await kube.wait(GROUPS, "served-meanwhile", is_true("Ready"))
    assert (await kube.get(CLUSTERS, "prod"))["status"]["observedGeneration"] == 1
    assert len(await kube.list("pods")) == 3

    await kube.patch(CLUSTERS, "prod", {"metadata": {"annotations": {PAUSE: None}}})
    grown = await kube.wait(CLUSTERS, "prod", is_true("Ready", 2))
    assert [node["name"] for node in grown["status"]["nodes"]] == ["prod-1", "prod-2", "prod-3", "prod-4"]
    assert (grown["status"]["lastNodeID"], condition(grown, "Paused")) == (4, "")

    refused = log_group(1, "nonsense")
    refused["spec"]["replication"] = {"synchroQuorum": "N +"}
    await kube.create(refused)
    told = await kube.wait(GROUPS, "nonsense", lambda found: condition(found, "Stalled") == "True")
    assert "synchroQuorum" in str(told["status"]["conditions"])
    lost = log_group(1, "lost")
    lost["spec"]["clusterRef"]["name"] = "nowhere"
    await kube.create(lost)
    told = await kube.wait(GROUPS, "lost", lambda found: condition(found, "Stalled") == "True")
    assert "ClusterNotFound" in str(told["status"]["conditions"])


async def test_reconfigurations_run_and_are_shown(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    group = log_group(factor=3, spread="Node")
    await served(kube, cluster(metadata_etcd, replicas=4), group)
    shards = await kube.list(SHARDS)
    source = shards[0]["status"]["ensemble"][0]["node"]
    await kube.create(reconfiguration("drain", "NodeSwap", approval="Required", nodeSwap={
        "from": source, "to": {"spread": {}}, "removeSource": "Keep"}))
    planned = await kube.wait(
        RECONFIGURATIONS, "drain", lambda found: found.get("status", {}).get("stage") == "AwaitingApproval")
    await kube.patch(RECONFIGURATIONS, "drain", {"spec": {"approvedPlan": planned["status"]["plan"]["hash"]}})
    await succeeded(kube, "drain")
    for shard in shards:
        await kube.wait(SHARDS, shard["metadata"]["name"], lambda found: (
            source not in [each["node"] for each in found["status"]["ensemble"]]
            and condition(found, "FullyReplicated") == "True"))

    await kube.patch(GROUPS, "orders", {"spec": {"replication": {"factor": 4}}})
    await succeeded(kube, "orders-expand-2")
    grown = await kube.wait(GROUPS, "orders", is_true("Ready", 2))
    assert grown["status"]["factorInForce"] == {"min": 4, "max": 4}

    await kube.delete(RECONFIGURATIONS, "drain")
    await kube.wait_gone(RECONFIGURATIONS, "drain")
    await kube.delete(GROUPS, "orders")
    await kube.wait_gone(SHARDS, "orders-0000")
    await kube.create({**group, "spec": {**group["spec"], "replication": {"factor": 4, "spread": "Node"}}})
    back = await kube.wait(GROUPS, "orders", is_true("Ready"))
    assert back["status"]["groupID"] == grown["status"]["groupID"], "the data of before is taken up again"
