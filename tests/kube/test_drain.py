"""Machines that are emptied, as `kubectl drain` does it, while appends go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.load import Load
from tests.kube.operators import Operator, addresses, allow_operator, cluster, log_group
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

CLUSTERS, GROUPS, SHARDS = (f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards"))
BUDGET = ("poddisruptionbudgets.policy", "prod-nodes")


@pytest.fixture
async def operator(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Operator]:
    await allow_operator(kube, control_plane, tmp_path)
    made = Operator(control_plane, kube.namespace, control_plane.network.next_address(), tmp_path)
    made.start()
    yield made
    made.stop()
    print(made.tail(20_000))


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


async def serving(kube: Kube) -> Object:
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    return await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Ready") == "True")


async def cordon(kube: Kube, machine: str, wanted: bool = True) -> None:
    await kube.patch("nodes", machine, {"spec": {"unschedulable": wanted}})


async def test_leaderships_leave_before_the_eviction_and_one_pod_goes_at_a_time(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    await kube.create(anywhere(metadata_etcd))
    await kube.create(log_group(3))
    before = await serving(kube)
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
        again = await kube.wait("pods", leader, lambda found: (
            found["metadata"]["uid"] != pod["metadata"]["uid"] and condition(found, "Ready") == "True"))
        assert again["spec"]["nodeName"] != machine
        after = await serving(kube)
        assert state(after, leader) == "Active", "where it stands now nobody is sent away"
        assert [node["incarnation"] for node in after["status"]["nodes"]] == [
            node["incarnation"] for node in before["status"]["nodes"]]
        await load.more()
