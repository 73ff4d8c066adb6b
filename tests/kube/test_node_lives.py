"""Nodes that go and come, on a real API server: scaled down and replaced under load, wiped, lost, given more room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidemark

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import Operator, addresses, allow_operator, cluster, log_group
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

CLUSTERS, GROUPS, SHARDS, RECONFIGURATIONS = (
    f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards", "reconfigurations"))
CLAIMS = "persistentvolumeclaims"


@pytest.fixture
async def operator(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Operator]:
    await allow_operator(kube, control_plane, tmp_path)
    made = Operator(control_plane, kube.namespace, control_plane.network.next_address(), tmp_path)
    made.start()
    yield made
    made.stop()
    print(made.tail(20_000))  # shown where the test failed


def says(found: Object, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    one = next((one for one in found.get("status", {}).get("conditions", ()) if one["type"] == kind), {})
    return one.get("status", ""), one.get("reason", ""), one.get("message", "")


def node_names(found: Object) -> list[str]:
    return [node["name"] for node in found.get("status", {}).get("nodes", ())]


def node_of(found: Object, name: str) -> Object:
    return next((node for node in found.get("status", {}).get("nodes", ()) if node["name"] == name), {})


async def settled(kube: Kube, generation: int = 1) -> Object:
    """Wait until the cluster is as it is asked to be."""
    return await kube.wait(CLUSTERS, "prod", lambda found: (
        condition(found, "Ready") == "True" and condition(found, "FullyReplicated") == "True"
        and found["status"]["observedGeneration"] == generation))


async def succeeded(kube: Kube, name: str) -> Object:
    return await kube.wait(RECONFIGURATIONS, name, lambda found: condition(found, "Succeeded") == "True")


async def set_pool(kube: Kube, **changes: object) -> None:
    pools = (await kube.get(CLUSTERS, "prod"))["spec"]["nodePools"]
    await kube.patch(CLUSTERS, "prod", {"spec": {"nodePools": [{**pools[0], **changes}]}})


class Load:
    """Appends numbers, one after the other, until it is stopped."""

    def __init__(self, client: tidemark.Client) -> None:
        self.client = client
        self.appended = 0
        self._stop = asyncio.Event()
        self._appender = client.appender("orders", timeout_s=60)

    async def run(self) -> None:
        while not self._stop.is_set():
            await self._appender.append(f"{self.appended}".encode())
            self.appended += 1

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = self.appended + count
        async with asyncio.timeout(60):
            while self.appended < wanted:
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._stop.set()

    async def check(self) -> None:
        """Everything that was acknowledged is there, once, and nothing else."""
        await self._appender.close()
        values = sorted([int(record.value) async for record in self.client.read("orders")])
        assert values == list(range(self.appended))


@asynccontextmanager
async def load(kube: Kube) -> AsyncIterator[Load]:
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        made = Load(client)
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            await made.stop()
            await task
        await made.check()


async def test_nodes_are_scaled_down_and_replaced_under_load(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await kube.create(cluster(metadata_etcd, replicas=4))
    assert node_names(await settled(kube)) == ["prod-1", "prod-2", "prod-3", "prod-4"]
    await kube.create(log_group(4))  # now: one that is placed while a node is still to come leaves that empty
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    async with load(kube) as appends:
        await appends.more()
        await set_pool(kube, replicas=3)
        down = await succeeded(kube, "prod-4-scale-down-2")
        assert down["metadata"]["labels"]["tidemark.dev/created-by"] == "operator"
        fewer = await settled(kube, 2)
        assert node_names(fewer) == ["prod-1", "prod-2", "prod-3"], "of the zone that had two"
        assert says(fewer, "ScaleDownBlocked")[:2] == ("False", "NotScaling")
        assert await kube.find("pods", "prod-4") is None
        await kube.wait_gone(CLAIMS, "data-prod-4")
        await appends.more()

        await kube.create({
            "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": "replace"},
            "spec": {"clusterRef": {"name": "prod"}, "type": "NodeSwap",
                     "nodeSwap": {"from": "prod-2", "to": {"provision": {}}, "removeSource": "Delete"}}})
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
        assert says(blocked, "ScaleDownBlocked")[1:] == (
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
    await kube.create(wanted)
    await kube.create(log_group(2))
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    before = await settled(kube)
    async with load(kube) as appends:
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
        await kube.wait(CLAIMS, "data-prod-1", lambda found: (
            found["metadata"].get("annotations", {}).get("tidemark.dev/incarnation")
            == node_of(wiped, "prod-1")["incarnation"]))
        await appends.more()

        # A machine is gone, and with it the disk of prod-2.  Nobody said that it should be replaced.
        machine = (await kube.get("pods", "prod-2"))["spec"]["nodeName"]
        await runner.remove_node(machine)
        lost = await kube.wait(CLUSTERS, "prod", lambda found: node_of(found, "prod-2").get("state") == "Lost")
        assert says(lost, "FullyReplicated")[1:] == ("NodeLost", f"prod-2 was on {machine}, which is gone")
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
        assert says(stuck, "Stalled")[1] == "VolumeExpansionUnsupported"
        assert "data-prod-1" in says(stuck, "Stalled")[2]
        assert (await kube.get(CLAIMS, "data-prod-1"))["spec"]["resources"]["requests"]["storage"] == "1Gi"
        with pytest.raises(Refused, match="never shrunk"):
            await set_pool(kube, storage={"data": {"size": "1Gi", "storageClassName": "local"}})
        await appends.more()


async def test_a_group_goes_with_its_data_where_that_was_asked_for(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    group = log_group(2)
    group["spec"]["deletionPolicy"] = "Delete"
    await kube.create(cluster(metadata_etcd))
    await kube.create(group)
    first = await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    assert first["metadata"]["finalizers"] == ["tidemark.dev/data-deletion"]
    await settled(kube)
    async with load(kube) as appends:
        await appends.more()

    # One of the nodes is away: the object stays, and says for whom.
    machine = (await kube.get("pods", "prod-2"))["spec"]["nodeName"]
    await pod_runner.fail_node(machine)
    await kube.wait(CLUSTERS, "prod", lambda found: not node_of(found, "prod-2").get("ready", True))
    await kube.delete(GROUPS, "orders")
    waits = await kube.wait(GROUPS, "orders", lambda found: says(found, "Ready")[2] == "2 shards are left, on prod-2.")
    assert says(waits, "Ready")[:2] == ("False", "Deleting")
    await pod_runner.recover_node(machine)
    await kube.wait_gone(GROUPS, "orders")

    # The name is free, and nothing of before is read again.
    await settled(kube)
    await kube.create(log_group(2))
    again = await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    assert again["status"]["groupID"] != first["status"]["groupID"]
    assert "finalizers" not in again["metadata"]
    async with load(kube) as appends:
        await appends.more()
