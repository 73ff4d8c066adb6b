"""SIGTERM: a node hands its leaderships over before it goes; nobody notices but for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster
from .test_crashes import other_leader
from .workload import Workload, check_every_copy

GAP_MS_MAX = 5_000
DRAIN_S = 3


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4, "--drain-seconds", str(DRAIN_S))


async def test_stopped_leader_hands_over_first(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group, timeout_s=20) as load:
        await load.more(200)
        stopped = await cluster.leader(group)
        stopping = asyncio.create_task(cluster.runtime.stop(stopped))
        await until(lambda: other_leader(cluster, group, stopped), "another member leads")
        led_on = not cluster.node(stopped).running
        await stopping
        await load.more_on_every_shard()
        await cluster.start(stopped)
    assert not led_on, "the node ended before its leadership had moved"
    assert "node stopped" in (cluster.directory / "logs" / f"{stopped}.log").read_text()
    assert load.longest_gap_ms < GAP_MS_MAX, f"appends stood still for {load.longest_gap_ms:.0f} ms"
    await check_every_copy(cluster, client, load)


async def test_rolling_restart_fails_no_append(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group, timeout_s=20) as load:
        await load.more()
        for name in cluster.nodes:
            await cluster.runtime.stop(name)
            await cluster.start(name)
            await cluster.replicated(group)
        await load.more_on_every_shard()
    assert load.longest_gap_ms < GAP_MS_MAX, f"appends stood still for {load.longest_gap_ms:.0f} ms"
    await check_every_copy(cluster, client, load)


async def test_last_member_that_can_lead_stops_all_the_same(cluster: Cluster, client: Client):
    """With the others gone there is nobody to hand over to: the node waits for a bounded time and goes."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, *others = await cluster.members(group)
        cluster.kill(*others)
        await asyncio.wait_for(cluster.runtime.stop(leader), 30)
        assert "node stopped" in (cluster.directory / "logs" / f"{leader}.log").read_text()
        await cluster.start(leader, *others)
    await check_every_copy(cluster, client, load)
