"""Events on a real API server, as `kubectl describe` shows them: nodes, shards, leaders, and an act from end to end."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.events import reasons, told, until
from tests.kube.operators import (
    CLUSTERS,
    EVENTS,
    GROUPS,
    KEYSPACES,
    RECONFIGURATIONS,
    SHARDS,
    Operator,
    cluster,
    log_group,
    reconfiguration,
    served,
)
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver


async def at_rest(kube: Kube) -> dict[str, str]:
    """Return the versions of all that the operator writes, when nothing has changed for a while."""
    seen: dict[str, str] = {}
    async with asyncio.timeout(60):
        while True:
            now = {
                f"{resource}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
                for resource in (EVENTS, CLUSTERS, GROUPS, SHARDS, RECONFIGURATIONS, "pods")
                for item in await kube.list(resource)}
            if now == seen:
                return seen
            seen = now
            await asyncio.sleep(3)


def in_order(told: list[str], *wanted: str) -> bool:
    """Say whether events have each wanted reason, in this order; those of a move tried again may stand between."""
    left = iter(told)
    return all(reason in left for reason in wanted)


def swap(name: str, source: str, **spec: object) -> Object:
    return reconfiguration(
        name, "NodeSwap", nodeSwap={"from": source, "to": {"spread": {}}, "removeSource": "Keep"}, **spec)


async def test_a_keyspace_is_served_and_goes_with_its_ranges(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await served(kube, cluster(metadata_etcd, replicas=3))
    spec = {"clusterRef": {"name": "prod"}, "deletionPolicy": "Delete"}
    await kube.create({**log_group(name="carts"), "kind": "Keyspace", "spec": spec})
    item = await kube.wait(KEYSPACES, "carts", lambda found: condition(found, "Ready") == "True")
    assert item["metadata"]["finalizers"] == ["tidemark.dev/data-deletion"]
    assert (item["status"]["keyspaceID"], item["status"]["partitions"]["fullyReplicated"]) == (1, 64)
    (event,) = await until(kube, "Keyspace", "carts", lambda found: bool(found))
    assert (event["reason"], event["note"]) == ("RangesCreated", "64 ranges")
    await at_rest(kube)
    assert await kube.list(SHARDS) == [] and await kube.list(RECONFIGURATIONS) == []
    await kube.delete(KEYSPACES, "carts")
    await kube.wait_gone(KEYSPACES, "carts")
    assert reasons(await told(kube, "Keyspace", "carts")) == ["RangesCreated", "Deleted"]


async def test_what_happens_is_told(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, operator: Operator
) -> None:
    await served(kube, cluster(metadata_etcd, replicas=4), log_group(factor=3, spread="Node"))

    joined = await until(kube, "TidemarkCluster", "prod", lambda found: reasons(found).count("NodeJoined") == 4)
    for reason in ("NodeProvisioned", "NodeJoined"):
        pods = {event["related"]["name"] for event in joined if event["reason"] == reason}
        assert pods == {"prod-1", "prod-2", "prod-3", "prod-4"}, reason
    created = await until(kube, "LogGroup", "orders", lambda found: "ShardsCreated" in reasons(found))
    assert [event["note"] for event in created] == ["2 shards"]
    shard = await kube.wait(SHARDS, "orders-0000", lambda found: condition(found, "Available") == "True")
    (elected,) = await until(kube, "Shard", "orders-0000", lambda found: "LeaderElected" in reasons(found))
    assert elected["related"]["name"] == shard["status"]["leader"]
    assert f"leads epoch {shard['status']['epoch']}" in elected["note"]

    # Two acts: the second waits for the first, which was approved and is suspended.
    shards = await kube.list(SHARDS)
    holders = [member["node"] for shard in shards for member in shard["status"]["ensemble"]]
    source = max(holders, key=holders.count)
    await kube.create(swap("first", source, approval="Required", suspend=True))
    await until(kube, "Reconfiguration", "first", lambda found: "PlanReady" in reasons(found))
    planned = await kube.get(RECONFIGURATIONS, "first")
    await kube.patch(RECONFIGURATIONS, "first", {"spec": {"approvedPlan": planned["status"]["plan"]["hash"]}})
    await until(kube, "Reconfiguration", "first", lambda found: "Suspended" in reasons(found))
    await kube.create(swap("second", source))
    await until(kube, "Reconfiguration", "second", lambda found: "Queued" in reasons(found))
    await kube.patch(RECONFIGURATIONS, "first", {"spec": {"cancel": True}})
    done = await until(kube, "Reconfiguration", "second", lambda found: (
        "Completed" in reasons(found) and any(event.get("series", {}).get("count") == 2 for event in found)))
    assert in_order(reasons(done), "Queued", "PlanReady", "Approved", "Started", "MoveCompleted", "Completed")
    assert "first" in done[0]["note"]
    canceled = await until(kube, "Reconfiguration", "first", lambda found: "Canceled" in reasons(found))
    assert in_order(reasons(canceled), "PlanReady", "Approved", "Started", "Suspended", "Canceled")
    assert canceled[-1]["type"] == "Warning"
    await until(kube, "TidemarkCluster", "prod", lambda found: "NodeDrained" in reasons(found))

    # A node that dies, and one whose pod only takes long to come back.
    leader = (await kube.get(SHARDS, "orders-0000"))["status"]["leader"]
    pod_runner.container(leader).process.send_signal(signal.SIGKILL)
    lost = await until(kube, "TidemarkCluster", "prod", lambda found: "NodeUnreachable" in reasons(found))
    (event,) = [event for event in lost if event["reason"] == "NodeUnreachable"]
    assert (event["related"]["name"], event["type"], event["action"]) == (leader, "Warning", "Observe")
    await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Ready") == "True")

    # An operator that starts again writes nothing of what is as it was, and tells nothing again.
    before = await at_rest(kube)
    operator.stop()
    operator.start()
    await operator.follows()
    assert await at_rest(kube) == before
    await kube.patch(GROUPS, "orders", {"spec": {"retention": {"seconds": 86400}}})
    await kube.wait(GROUPS, "orders", lambda found: found["status"]["observedGeneration"] == 2)

    described = await asyncio.to_thread(
        subprocess.run,
        [str(control_plane.programs["kubectl"]), f"--kubeconfig={control_plane.kubeconfig()}",
         f"--namespace={kube.namespace}", "describe", "trc", "second"],
        capture_output=True, text=True, timeout=60, check=True)
    for reason in reasons(done):
        assert reason in described.stdout.partition("\nEvents:")[2]
