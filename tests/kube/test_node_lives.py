"""Nodes that go and come, on a real API server: scaled down and replaced under load, wiped, lost, given more room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kube.client import Kube, Object, Refused, condition, said
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.events import reasons, until
from tests.kube.load import Load
from tests.kube.operators import (
    CLAIMS,
    CLUSTERS,
    GROUPS,
    RECONFIGURATIONS,
    Operator,
    addresses,
    cluster,
    log_group,
    reconfiguration,
    served,
    settled,
    succeeded,
)
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver


def node_names(found: Object) -> list[str]:
    return [node["name"] for node in found.get("status", {}).get("nodes", ())]


def node_of(found: Object, name: str) -> Object:
    return next((node for node in found.get("status", {}).get("nodes", ()) if node["name"] == name), {})


async def set_pool(kube: Kube, **changes: object) -> None:
    pools = (await kube.get(CLUSTERS, "prod"))["spec"]["nodePools"]
    await kube.patch(CLUSTERS, "prod", {"spec": {"nodePools": [{**pools[0], **changes}]}})


async def test_nodes_are_scaled_down_and_replaced_under_load(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    before = await served(kube, cluster(metadata_etcd, replicas=4), log_group(4))
    assert node_names(before) == ["prod-1", "prod-2", "prod-3", "prod-4"]
    async with Load(await addresses(kube)) as appends:
        await appends.more()
        await set_pool(kube, replicas=3)
        down = await succeeded(kube, "prod-4-scale-down-2")
        assert down["metadata"]["labels"]["tidemark.dev/created-by"] == "operator"
        fewer = await settled(kube, 2)
        assert node_names(fewer) == ["prod-1", "prod-2", "prod-3"], "of the zone that had two"
        assert said(fewer, "ScaleDownBlocked")[:2] == ("False", "NotScaling")
        assert await kube.find("pods", "prod-4") is None
        await kube.wait_gone(CLAIMS, "data-prod-4")
        told = await until(kube, "TidemarkCluster", "prod", lambda found: "NodeRemoved" in reasons(found))
        assert "NodeUnreachable" not in reasons(told), "it was sent away"
        await appends.more()

        await kube.create(reconfiguration(
            "replace", "NodeSwap", nodeSwap={"from": "prod-2", "to": {"provision": {}}, "removeSource": "Delete"}))
        done = await succeeded(kube, "replace")
        assert (done["status"]["targetNode"], done["status"]["plan"].get("warnings", [])) == ("prod-5", [])
        replaced = await settled(kube, 2)
        assert node_names(replaced) == ["prod-1", "prod-3", "prod-5"]
        assert (node_of(replaced, "prod-5")["zone"], replaced["status"]["lastNodeID"]) == ("zone-b", 5)
        assert await kube.find("pods", "prod-2") is None
        await kube.wait_gone(CLAIMS, "data-prod-2")
        await appends.more()

        pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await kube.list("pods")}
        await set_pool(kube, storage={"data": {"size": "2Gi"}})
        await settled(kube, 3)
        for name in pods:
            claim = await kube.get(CLAIMS, f"data-{name}")
            assert claim["status"]["capacity"]["storage"] == "2Gi"
        assert pods == {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await kube.list("pods")}, (
            "a volume that grows while it is in use needs no restart")

        # Three copies do not fit on two nodes: it says so, and nothing goes.
        await set_pool(kube, replicas=2)
        blocked = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "ScaleDownBlocked") == "True")
        assert said(blocked, "ScaleDownBlocked")[1:] == (
            "FactorExceedsNodes", "log group orders has 3 copies of each shard; without prod-5 it has 2 nodes for them")
        assert len(await kube.list("pods")) == 3
        await appends.more()


@pytest.fixture
async def two_machines_in_zone_b(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    runner = PodRunner(kube, control_plane.network, tmp_path / "pods", ("zone-a", "zone-b", "zone-c", "zone-b"))
    await runner.start()
    yield runner
    await runner.stop()


async def test_local_disks_that_are_wiped_and_lost_are_filled_and_replaced(
    kube: Kube, two_machines_in_zone_b: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    runner = two_machines_in_zone_b
    wanted = cluster(metadata_etcd)
    wanted["spec"]["nodePools"][0]["storage"]["data"]["storageClassName"] = "local"
    wanted["spec"]["disruption"] = {"nodeLostAfterSeconds": 10}
    before = await served(kube, wanted, log_group(2))
    async with Load(await addresses(kube)) as appends:
        await appends.more()

        # A claim is deleted by hand: the node comes back with an empty disk, is another member, and is filled again.
        claim = await kube.get(CLAIMS, "data-prod-1")
        await kube.delete(CLAIMS, "data-prod-1")
        await kube.delete("pods", "prod-1")
        await kube.wait_gone(CLAIMS, "data-prod-1", uid=claim["metadata"]["uid"])
        wiped = await kube.wait(CLUSTERS, "prod", lambda found: (
            node_of(found, "prod-1").get("ready") and condition(found, "FullyReplicated") == "True"
            and node_of(found, "prod-1")["incarnation"] != node_of(before, "prod-1")["incarnation"]))
        assert node_names(wiped) == ["prod-1", "prod-2", "prod-3"], "the slot and the name stay"
        told = await until(kube, "TidemarkCluster", "prod", lambda found: "NodeDiskReplaced" in reasons(found))
        assert reasons(told).count("NodeDiskReplaced") == 1
        await kube.wait(CLAIMS, "data-prod-1", lambda found: (
            found["metadata"].get("annotations", {}).get("tidemark.dev/incarnation")
            == node_of(wiped, "prod-1")["incarnation"]))
        await appends.more()

        # A machine is gone, and with it the disk of prod-2.  Nobody said that it should be replaced.
        machine = (await kube.get("pods", "prod-2"))["spec"]["nodeName"]
        await runner.remove_node(machine)
        lost = await kube.wait(CLUSTERS, "prod", lambda found: node_of(found, "prod-2").get("state") == "Lost")
        assert said(lost, "FullyReplicated")[1:] == ("NodeLost", f"prod-2 was on {machine}, which is gone")
        assert lost["status"]["nodeSummary"]["lost"] == 1
        assert await kube.list(RECONFIGURATIONS) == []
        await appends.more()

        await kube.patch(CLUSTERS, "prod", {"spec": {"disruption": {"onNodeLost": "Replace"}}})
        done = await succeeded(kube, "prod-2-lost")
        assert done["status"]["targetNode"] == "prod-4"
        replaced = await settled(kube, 2)
        assert node_names(replaced) == ["prod-1", "prod-3", "prod-4"]
        assert node_of(replaced, "prod-4")["zone"] == "zone-b"
        assert await kube.find("pods", "prod-2") is None
        await kube.wait_gone(CLAIMS, "data-prod-2")
        await appends.more()

        # The class of these volumes cannot grow; nothing is tried, and it says so.
        await set_pool(kube, storage={"data": {"size": "2Gi", "storageClassName": "local"}})
        stuck = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Stalled") == "True")
        assert said(stuck, "Stalled")[1] == "VolumeExpansionUnsupported"
        assert "data-prod-1" in said(stuck, "Stalled")[2]
        assert (await kube.get(CLAIMS, "data-prod-1"))["spec"]["resources"]["requests"]["storage"] == "1Gi"
        with pytest.raises(Refused, match="never shrunk"):
            await set_pool(kube, storage={"data": {"size": "1Gi", "storageClassName": "local"}})
        await appends.more()


async def test_a_group_goes_with_its_data_where_that_was_asked_for(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    group = log_group(2)
    group["spec"]["deletionPolicy"] = "Delete"
    await served(kube, cluster(metadata_etcd), group)
    first = await kube.get(GROUPS, "orders")
    assert first["metadata"]["finalizers"] == ["tidemark.dev/data-deletion"]
    async with Load(await addresses(kube)) as appends:
        await appends.more()

    # One of the nodes is away: the object stays, and says for whom.
    machine = (await kube.get("pods", "prod-2"))["spec"]["nodeName"]
    await pod_runner.fail_node(machine)
    await kube.wait(CLUSTERS, "prod", lambda found: not node_of(found, "prod-2").get("ready", True))
    await kube.delete(GROUPS, "orders")
    waits = await kube.wait(GROUPS, "orders", lambda found: said(found, "Ready")[2] == "2 shards are left, on prod-2.")
    assert said(waits, "Ready")[:2] == ("False", "Deleting")
    await pod_runner.recover_node(machine)
    await kube.wait_gone(GROUPS, "orders")

    # The name is free, and nothing of before is read again.
    await settled(kube)
    await kube.create(log_group(2))
    again = await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    assert again["status"]["groupID"] != first["status"]["groupID"]
    assert "finalizers" not in again["metadata"]
    async with Load(await addresses(kube)) as appends:
        await appends.more()
