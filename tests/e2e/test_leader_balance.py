"""Leaderships after faults: the operator makes them even by itself, unless the cluster says that people do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster
from .workload import Workload, check_every_copy

SHARDS = 6
QUARANTINE_S = 3


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3)


async def balance(cluster: Cluster, how: str) -> None:
    """Have leaderships balanced (`Automatic`) or not (`Manual`)."""
    (item,) = await cluster.runtime.objects("TidemarkCluster")
    spec = item["spec"]
    spec["reconfiguration"] = {**spec["reconfiguration"], "leaderBalance": how}
    spec["failureDetection"] = {**spec["failureDetection"], "leaderQuarantineSeconds": QUARANTINE_S}
    manifest: dict[str, Any] = {key: item[key] for key in ("apiVersion", "kind")}
    await cluster.apply({**manifest, "metadata": {"name": item["metadata"]["name"]}, "spec": spec})


async def test_leaderships_are_even_again_after_two_nodes_died(cluster: Cluster, client: Client):
    """Every shard ends at one node, which stays so until the switch is on; then each leads two, and none moves more."""
    group = await cluster.create_group(shards=SHARDS)

    async def leaders() -> Counter[str]:
        return Counter([await cluster.leader(group, index) for index in range(SHARDS)])

    async def epochs() -> list[int]:
        return [(await cluster.shard(group, index))["epoch"] for index in range(SHARDS)]

    async with Workload(client, group, keys=60) as load:
        left, *others = cluster.nodes
        for other in others:
            for index in range(SHARDS):
                await cluster.transfer(group, index, left)
            cluster.kill(other)
            await load.more_on_every_shard()
            await cluster.start(other)
            await cluster.replicated(group)
        assert await leaders() == {left: SHARDS}
        before = await epochs()
        await balance(cluster, "Automatic")

        async def even() -> bool:
            return set((await leaders()).values()) == {SHARDS // len(cluster.nodes)}

        await until(even, "each node leads as many shards")
        await load.more_on_every_shard()
        moved = [after - was for was, after in zip(before, await epochs(), strict=True)]
        assert sorted(moved) == [0, 0, 1, 1, 1, 1], "each that moved did so once"
        await until(lambda: len(cluster.operator_said(r"leadership balanced: ")) == 4, "the log names each of them")
        await balance(cluster, "Manual")
        await cluster.transfer(group, 0, left)
    await check_every_copy(cluster, client, load)
