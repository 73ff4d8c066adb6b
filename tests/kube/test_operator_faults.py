"""Operators killed in every phase of what they carry out, two at once, and a minute without the API server.

Appends go on through all of it; in the end every acknowledged record is read once and in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark

from tests.e2e.workload import Workload, check_read_back
from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import Operator, addresses, allow_operator, cluster, log_group
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

CLUSTERS, GROUPS, SHARDS, RECONFIGURATIONS = (
    f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards", "reconfigurations"))
AWAY_S = 60.0
SLOW_SNAPSHOTS = "256Ki"
FILLING = 2_000


class Pair:
    """Two operators at a time: whoever is active can be killed, and another one takes its place."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self._plane, self._namespace, self._directory = plane, namespace, directory
        self._all: list[Operator] = []

    def begin(self) -> None:
        for _ in range(2):
            self._add()

    def _add(self) -> None:
        made = Operator(self._plane, self._namespace, self._plane.network.next_address(), self._directory)
        self._all.append(made)
        made.start()

    async def active(self) -> Operator:
        async with asyncio.timeout(60):
            while True:
                said = [(each, await asyncio.to_thread(_answered, each)) for each in self._all if each.running]
                leading = [each for each, lines in said if any(map(_leads, lines))]
                if len(leading) == 1:
                    return leading[0]
                await asyncio.sleep(0.1)

    async def kill_active(self) -> None:
        """Kill -9, and have another one stand by; returns when somebody is active again."""
        victim = await self.active()
        victim.kill()
        self._add()
        await self.active()

    def stop(self) -> None:
        for each in self._all:
            if each.running:
                each.stop()
            print(each.tail(6_000))  # shown where the test failed


@pytest.fixture
async def operators(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Pair]:
    await allow_operator(kube, control_plane, tmp_path)
    pair = Pair(control_plane, kube.namespace, tmp_path)
    pair.begin()
    yield pair
    pair.stop()


async def test_whoever_follows_a_killed_operator_goes_on_where_it_was(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operators: Pair
) -> None:
    slow = cluster(metadata_etcd, replicas=4)
    slow["spec"]["reconfiguration"] = {
        "throttle": {"bytesPerSecondPerNode": SLOW_SNAPSHOTS, "maxConcurrentMoves": 1}}
    await kube.create(slow)
    group = log_group()
    group["spec"]["replication"] = {"factor": 3, "spread": "Node"}
    await kube.create(group)
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    shard = (await kube.list(SHARDS))[0]["status"]
    source = next(each["node"] for each in shard["ensemble"] if each["node"] != shard["leader"])
    target = next(name for name in (f"prod-{number}" for number in range(1, 5)) if name not in shard["members"])

    async with (
        await tidemark.connect(await addresses(kube), timeout_s=60) as client,
        Workload(client, "orders", per_second=200, value_bytes=1000) as workload,
    ):
        await workload.more(FILLING, 60)
        await kube.create({
            "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": "swap"},
            "spec": {"clusterRef": {"name": "prod"}, "type": "NodeSwap", "approval": "Required",
                     "nodeSwap": {"from": source, "to": {"node": target}, "removeSource": "Keep"}}})
        planned = await kube.wait(RECONFIGURATIONS, "swap", lambda found: stage(found) == "AwaitingApproval")
        await operators.kill_active()
        await kube.patch(RECONFIGURATIONS, "swap", {"spec": {"approvedPlan": planned["status"]["plan"]["hash"]}})
        await kube.wait(RECONFIGURATIONS, "swap", lambda found: stage(found) == "Moving" and steps(found))
        await operators.kill_active()
        await kube.wait(RECONFIGURATIONS, "swap", lambda found: "Snapshot" in steps(found))
        await operators.kill_active()
        await kube.wait(
            RECONFIGURATIONS, "swap", lambda found: int(found["status"]["progress"]["completed"]) > 0, timeout_s=120)
        await operators.kill_active()
        done = await kube.wait(
            RECONFIGURATIONS, "swap", lambda found: condition(found, "Succeeded") == "True", timeout_s=120)
        assert done["status"]["progress"]["percent"] == 100
        assert done["status"]["plan"]["hash"] == planned["status"]["plan"]["hash"], "the approved plan, and no other"

        for factor, made in ((4, "orders-expand-2"), (3, "orders-contract-3")):
            await kube.patch(GROUPS, "orders", {"spec": {"replication": {"factor": factor}}})
            await kube.wait(RECONFIGURATIONS, made, lambda found: bool(stage(found)))
            await operators.kill_active()
            await kube.wait(
                RECONFIGURATIONS, made, lambda found: condition(found, "Succeeded") == "True", timeout_s=120)
            await kube.wait(GROUPS, "orders", lambda found, factor=factor: (
                found["status"]["factorInForce"] == {"min": factor, "max": factor}))
        await workload.more_on_every_shard()
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        await check_read_back(client, workload)


async def test_a_minute_without_the_api_server_stops_no_append_and_no_election(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, operators: Pair
) -> None:
    await kube.create(cluster(metadata_etcd))
    await kube.create(log_group())
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    before = {each["metadata"]["name"]: each["status"] for each in await kube.list(SHARDS)}
    async with (
        await tidemark.connect(await addresses(kube), timeout_s=60) as client,
        Workload(client, "orders") as workload,
    ):
        await workload.more()
        control_plane.stop_api()
        try:
            until = asyncio.get_running_loop().time() + AWAY_S
            while asyncio.get_running_loop().time() < until:
                for name in sorted({status["leader"] for status in before.values()}):
                    pod_runner.container(name).kill()
                    await workload.more_on_every_shard()
        finally:
            await asyncio.to_thread(control_plane.start_api)
        for name, status in before.items():
            await kube.wait(SHARDS, name, lambda found, epoch=status["epoch"]: (
                found["status"]["epoch"] > epoch and condition(found, "Available") == "True"), timeout_s=90)
        await workload.more_on_every_shard()
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        await check_read_back(client, workload)


def stage(found: Object) -> str:
    return str(found.get("status", {}).get("stage", ""))


def steps(found: Object) -> set[str]:
    """What the moves under way are at."""
    return {each["step"] for each in found.get("status", {}).get("activeMoves", ())}


def _leads(line: str) -> bool:
    return line.startswith('tidemark_operator_leader{cluster="prod"') and line.endswith(" 1.0")


def _answered(operator: Operator) -> list[str]:
    """What an operator says of itself, nothing while it does not answer."""
    try:
        return operator.ask("/metrics").splitlines()
    except OSError:
        return []
