"""Leaderships after faults: the operator makes them even by itself, unless the cluster says that people do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tidemark import Client
from tidemark_operator.model import shard_name

from tests.waiting import remains, until

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
    """Every shard ends at one node, which stays so until the switch is on; then each leads two, and none moves more.

    A shard moves once, and once more for each election that the target of its transfer did not win.
    """
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

        async def stays() -> bool:
            return await leaders() == {left: SHARDS}

        await remains(stays, "one node leads every shard", for_s=QUARANTINE_S)   # the others may lead again behind it
        before = await epochs()
        await balance(cluster, "Automatic")

        async def even() -> bool:
            return set((await leaders()).values()) == {SHARDS // len(cluster.nodes)}

        await until(even, "each node leads as many shards")
        await load.more_on_every_shard()
        moved = [after - was for was, after in zip(before, await epochs(), strict=True)]

        def told(pattern: str) -> Counter[str]:
            return Counter(match[1] for match in cluster.operator_said(pattern))

        def explained() -> bool:
            balanced = told(r"leadership balanced: (\S+):")
            lost = told(r"(\S+): leadership not handed over: .* leads instead")
            assert sum(balanced.values()) <= 4 + sum(lost.values()), (balanced, lost)
            names = [shard_name(group, index) for index in range(SHARDS)]
            return [balanced[name] + lost[name] for name in names] == moved

        await until(explained, "the log names each election")
        await remains(even, "leaderships stay even")
        await balance(cluster, "Manual")
        await cluster.transfer(group, 0, left)
    await check_every_copy(cluster, client, load)
