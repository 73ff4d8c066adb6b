"""Operators killed in every phase of what they carry out, two at once, and a minute without the API server.

Appends go on through all of it; in the end every acknowledged record is read once and in order.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
import tidemark

from tests.e2e.cluster import until
from tests.e2e.workload import Workload, check_read_back
from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import (
    GROUPS,
    RECONFIGURATIONS,
    SHARDS,
    Operators,
    addresses,
    cluster,
    log_group,
    reconfiguration,
    replaced,
    served,
    settled,
    succeeded,
)
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

AWAY_S = 60.0
SLOW_SNAPSHOTS = "256Ki"
FILLING = 3_000
"""Records of a kilobyte: so much that a copy takes some six seconds, in which operators are killed."""


@pytest.fixture
def pair(operators: Operators) -> Operators:
    """Two operators at a time."""
    for _ in range(2):
        operators.start()
    return operators


@pytest.mark.timeout(300)
async def test_whoever_follows_a_killed_operator_goes_on_where_it_was(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, pair: Operators
) -> None:
    slow = cluster(metadata_etcd, replicas=4)
    slow["spec"]["reconfiguration"] = {
        "throttle": {"bytesPerSecondPerNode": SLOW_SNAPSHOTS, "maxConcurrentMoves": 1}}
    await served(kube, slow, log_group(factor=3, spread="Node"))
    source, target = who_may_be_swapped(await kube.list(SHARDS), [f"prod-{number}" for number in range(1, 5)])

    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        async with Workload(client, "orders", per_second=1500, keys=64, value_bytes=1000, name="filling") as filling:
            await filling.more(FILLING, 60)
        async with Workload(client, "orders", per_second=50, value_bytes=1000) as workload:
            await kube.create(reconfiguration("swap", "NodeSwap", approval="Required", nodeSwap={
                "from": source, "to": {"node": target}, "removeSource": "Keep"}))
            planned = await kube.wait(RECONFIGURATIONS, "swap", lambda found: stage(found) == "AwaitingApproval")
            await pair.kill_active()
            await kube.patch(RECONFIGURATIONS, "swap", {"spec": {"approvedPlan": planned["status"]["plan"]["hash"]}})
            await kube.wait(RECONFIGURATIONS, "swap", lambda found: stage(found) == "Moving" and steps(found))
            await pair.kill_active()
            await kube.wait(RECONFIGURATIONS, "swap", lambda found: "Snapshot" in steps(found))
            await pair.kill_active()
            await kube.wait(RECONFIGURATIONS, "swap", lambda found: (
                int(found["status"]["progress"]["completed"]) > 0), timeout_s=120)
            await pair.kill_active()
            done = await succeeded(kube, "swap", timeout_s=120)
            assert done["status"]["progress"]["percent"] == 100
            assert done["status"]["plan"]["hash"] == planned["status"]["plan"]["hash"], "no other than was approved"

            for factor, made in ((4, "orders-expand-2"), (3, "orders-contract-3")):
                await kube.patch(GROUPS, "orders", {"spec": {"replication": {"factor": factor}}})
                await kube.wait(RECONFIGURATIONS, made, lambda found: bool(stage(found)))
                await pair.kill_active()
                await succeeded(kube, made, timeout_s=120)
                await kube.wait(GROUPS, "orders", lambda found, factor=factor: (
                    found["status"]["factorInForce"] == {"min": factor, "max": factor}))
            await workload.more_on_every_shard()
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        await check_read_back(client, filling, workload)


def who_may_be_swapped(shards: list[Object], nodes: list[str]) -> tuple[str, str]:
    """Return a node with copies, and one that holds none of the same shards."""
    held: dict[str, set[str]] = {node: set() for node in nodes}
    for shard in shards:
        for member in shard["status"]["ensemble"]:
            held[member["node"]].add(shard["metadata"]["name"])
    return next((one, other) for one in nodes for other in nodes if held[one] and not held[one] & held[other])


class Leadership(NamedTuple):
    node: str
    epoch: int


def leaderships(client: tidemark.Client) -> dict[int, Leadership]:
    """Who leads each shard, as the nodes tell clients: the API server has no part in it."""
    (group,) = [each for each in client.shard_map.groups if each.name == "orders"]
    return {shard.index: Leadership(shard.leader, shard.epoch) for shard in group.shards}


async def kill_leader(client: tidemark.Client, pod_runner: PodRunner, workload: Workload, shard: int) -> None:
    """Kill who leads a shard; returns when another one was elected, appends go on and the killed one is back."""
    before = leaderships(client)[shard]
    container = pod_runner.container(before.node)
    restarts = container.restarts
    container.kill()
    await until(lambda: leaderships(client)[shard].epoch > before.epoch, f"shard {shard} has another leader")
    await workload.more_on_every_shard()
    await until(lambda: container.restarts > restarts and container.ready, f"{before.node} is back")


@pytest.mark.timeout(300)
async def test_a_minute_without_the_api_server_stops_no_append_and_no_election(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, pair: Operators
) -> None:
    await served(kube, cluster(metadata_etcd), log_group())
    before = {each["metadata"]["name"]: each["status"] for each in await kube.list(SHARDS)}
    async with (
        await tidemark.connect(await addresses(kube), timeout_s=60) as client,
        Workload(client, "orders") as workload,
    ):
        await workload.more()
        control_plane.stop_api()
        try:
            loop = asyncio.get_running_loop()
            over = loop.time() + AWAY_S
            while loop.time() < over:
                for shard in (0, 1):
                    await kill_leader(client, pod_runner, workload, shard)
            elected = leaderships(client)
        finally:
            await asyncio.to_thread(control_plane.start_api)
        for index, name in enumerate(sorted(before)):
            assert elected[index].epoch > before[name]["epoch"]
            await kube.wait(SHARDS, name, lambda found, index=index: (
                found["status"]["epoch"] >= elected[index].epoch and condition(found, "Available") == "True"))
        await workload.more_on_every_shard()

        # What is asked of the API server from now on is done, by whichever operator.
        await kube.patch(GROUPS, "orders", {"spec": {"retention": {"seconds": 86_400}}})
        await kube.wait(GROUPS, "orders", lambda found: found["status"]["observedGeneration"] == 2)
        await settled(kube)
        await pair.kill_active()
        pod = await kube.get("pods", leaderships(client)[0].node)
        await kube.delete("pods", pod["metadata"]["name"])
        await replaced(kube, pod)
        await settled(kube)
        await workload.more_on_every_shard()
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        await check_read_back(client, workload)


def stage(found: Object) -> str:
    return str(found.get("status", {}).get("stage", ""))


def steps(found: Object) -> set[str]:
    """What the moves under way are at."""
    return {each["step"] for each in found.get("status", {}).get("activeMoves", ())}
