"""The operator on a real API server: applied objects become pods, shards and statuses; pods come back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidemark

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import Operator, addresses, allow_operator, cluster, log_group
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

CLUSTERS, GROUPS, SHARDS = (f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards"))
RECORDS = 100


@pytest.fixture
async def operator(
    kube: Kube, control_plane: ControlPlane, tmp_path: Path
) -> Iterator[Operator]:  # type: ignore[misc]
    await allow_operator(kube, control_plane, tmp_path)
    made = Operator(control_plane, kube.namespace, control_plane.network.next_address(), tmp_path)
    made.start()
    yield made
    made.stop()
    print(made.tail(20_000))  # shown where the test failed


def is_true(kind: str, generation: int = 1) -> object:
    return lambda found: (
        condition(found, kind) == "True" and found.get("status", {}).get("observedGeneration") == generation)


def member(found: Object, name: str) -> Object:
    return next(node for node in found["status"]["nodes"] if node["name"] == name)


async def test_from_manifests_to_a_served_log(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await kube.patch("namespaces", kube.namespace, {"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": "restricted"}}})
    await kube.create(cluster(metadata_etcd))
    await kube.create(log_group())
    made = await kube.wait(CLUSTERS, "prod", is_true("Ready"))
    assert [(node["name"], node["nodeID"], node["zone"], node["state"]) for node in made["status"]["nodes"]] == [
        ("prod-1", 1, "zone-a", "Active"), ("prod-2", 2, "zone-b", "Active"), ("prod-3", 3, "zone-c", "Active")]
    assert made["status"]["lastNodeID"] == 3
    group = await kube.wait(GROUPS, "orders", is_true("Ready"))
    assert group["status"]["onlineShards"] == "2/2"
    shards = {}
    for name in ("orders-0000", "orders-0001"):
        shards[name] = await kube.wait(SHARDS, name, lambda found: condition(found, "Available") == "True")
        assert shards[name]["metadata"]["ownerReferences"][0]["uid"] == group["metadata"]["uid"]
    for name in ("prod-1", "prod-2", "prod-3"):
        await kube.wait("pods", name, lambda found: condition(found, "Ready") == "True")
        claim = await kube.wait(
            "persistentvolumeclaims", f"data-{name}",
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
        await kube.wait("pods", leader, lambda found: (
            found["metadata"]["uid"] != before["metadata"]["uid"] and condition(found, "Ready") == "True"))
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
