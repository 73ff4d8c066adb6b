"""Machines that are emptied, as `kubectl drain` does it, while appends go on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import Etcd
from tests.kube.load import Load
from tests.kube.operators import (
    CLUSTERS,
    SHARDS,
    Operator,
    addresses,
    cluster,
    log_group,
    replaced,
    served,
    settled,
    succeeded,
)
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

NODES = [f"prod-{number}" for number in (1, 2, 3, 4)]
BUDGET = ("poddisruptionbudgets.policy", "prod-nodes")


def anywhere(etcd: Etcd, **more: Any) -> Object:
    """A cluster whose nodes may stand on any machine."""
    made = cluster(etcd)
    del made["spec"]["nodePools"][0]["zones"]
    made["spec"].update(more)
    return made


def state(found: Object, node: str) -> str:
    return next(each["state"] for each in found["status"]["nodes"] if each["name"] == node)


def budget(allowed: int) -> Any:
    return lambda found: found.get("status", {}).get("disruptionsAllowed") == allowed


async def cordon(kube: Kube, machine: str, wanted: bool = True) -> None:
    await kube.patch("nodes", machine, {"spec": {"unschedulable": wanted}})


async def test_leaderships_leave_before_the_eviction_and_one_pod_goes_at_a_time(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await served(kube, anywhere(metadata_etcd), log_group(3))
    before = await kube.wait(CLUSTERS, "prod", lambda found: len({
        each.get("zone", "") for each in found["status"]["nodes"]} & {"zone-a", "zone-b", "zone-c"}) == 3)
    leader = (await kube.wait(SHARDS, "orders-0000", lambda found: found["status"]["leader"]))["status"]["leader"]
    other = next(f"prod-{number}" for number in (1, 2, 3) if f"prod-{number}" != leader)
    for node in ("prod-1", "prod-2", "prod-3"):
        await kube.wait("pods", node, lambda found: condition(found, "Ready") == "True")
    pod = await kube.get("pods", leader)
    machine = pod["spec"]["nodeName"]
    async with Load(await addresses(kube)) as load:
        await load.more()
        await cordon(kube, machine)
        for shard in ("orders-0000", "orders-0001", "orders-0002"):
            await kube.wait(SHARDS, shard, lambda found: found["status"]["leader"] not in ("", leader))
        emptying = await kube.wait(CLUSTERS, "prod", lambda found: state(found, leader) == "Draining")
        assert emptying["status"]["nodeSummary"]["ready"] == 3, "it holds its copies until it is evicted"
        await kube.wait(*BUDGET, budget(1))
        await kube.evict(leader)
        with pytest.raises(Refused) as refused:
            await kube.evict(other)
        assert refused.value.code == 429
        again = await replaced(kube, pod)
        assert again["spec"]["nodeName"] != machine
        after = await settled(kube)
        assert state(after, leader) == "Active", "where it stands now nobody is sent away"
        await kube.wait(CLUSTERS, "prod", lambda found: all(node["leaders"] for node in found["status"]["nodes"]))
        assert [node["incarnation"] for node in after["status"]["nodes"]] == [
            node["incarnation"] for node in before["status"]["nodes"]]
        await load.more()


async def test_copies_leave_before_the_budget_opens_where_they_are_to_be_relocated(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    made = anywhere(metadata_etcd, disruption={"onNodeDrain": "Relocate"})
    made["spec"]["nodePools"][0]["replicas"] = 4
    await served(kube, made, log_group(2, factor=3, spread="Node"))
    pods = {}
    for node in NODES:
        pods[node] = await kube.wait("pods", node, lambda found: condition(found, "Ready") == "True")
    machines = [pod["spec"]["nodeName"] for pod in pods.values()]
    shards = await kube.list(SHARDS)
    node = next(each["node"] for each in shards[0]["status"]["ensemble"]
                if machines.count(pods[each["node"]]["spec"]["nodeName"]) == 1)
    await kube.wait(*BUDGET, lambda found: found.get("status", {}).get("currentHealthy") == 4)

    async def held(*nodes: str) -> None:
        for each in nodes:
            with pytest.raises(Refused) as refused:
                await kube.evict(each)
            assert refused.value.code == 429, each

    async with Load(await addresses(kube)) as load:
        await load.more()
        await held(*NODES)  # whatever the operator has seen of a cordon
        await cordon(kube, pods[node]["spec"]["nodeName"])
        await held(node)
        name = f"{node}-relocate-{pods[node]['metadata']['uid'][:8]}"
        await succeeded(kube, name)
        for shard in shards:
            await kube.wait(SHARDS, shard["metadata"]["name"], lambda found: (
                node not in [each["node"] for each in found["status"]["ensemble"]]))
        await kube.wait("pods", node, lambda found: found["metadata"]["labels"].get("tidemark.dev/relocated") == "true")
        await held(*(each for each in NODES if each != node))
        await kube.evict(node)
        again = await replaced(kube, pods[node])
        assert again["spec"]["nodeName"] != pods[node]["spec"]["nodeName"]
        await load.more()
