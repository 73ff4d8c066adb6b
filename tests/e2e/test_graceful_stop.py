"""SIGTERM: a node hands its leaderships over before it goes; nobody notices but for a moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from tidemark import Client

from tests.waiting import PATIENCE_S, until

from .cluster import Cluster
from .test_crashes import other_leader
from .workload import Workload, check_every_copy

DRAIN_S = 8
GAP_MS_MAX = 20_000
"""No client waits out its timeout; a slow machine elects slowly."""


async def led_when_drained(cluster: Cluster, name: str, group: str) -> list[set[str]]:
    """Return which shards of a group a node still led at the end of each of its drains, as its log says."""
    prefix = f"{await cluster.shard_number(group) >> 32}/"
    led, found = set[str](), list[set[str]]()
    lines = (cluster.directory / "logs" / f"{name}.log").read_text().splitlines()
    for line in (json.loads(line) for line in lines if line.startswith("{")):     # gRPC writes lines of its own
        match line["message"]:
            case "node serves":
                led.clear()
            case "became_leader" if line["shard"].startswith(prefix):
                led.add(line["shard"])
            case "resigned":
                led.discard(line["shard"])
            case "drained":
                found.append(set(led))
    return found


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4, "--drain-seconds", str(DRAIN_S))


async def test_stopped_leader_hands_over_first(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group, timeout_s=20) as load:
        await load.more(200)
        stopped = await cluster.leader(group)
        await asyncio.wait_for(cluster.runtime.stop(stopped), PATIENCE_S)
        await until(lambda: other_leader(cluster, group, stopped), "another member leads")
        await load.more_on_every_shard()
        await cluster.start(stopped)
    assert await led_when_drained(cluster, stopped, group) == [set()], "the node ended before its leadership had moved"
    assert load.longest_gap_ms < GAP_MS_MAX, f"appends stood still for {load.longest_gap_ms:.0f} ms"
    assert "node stopped" in (cluster.directory / "logs" / f"{stopped}.log").read_text()
    await check_every_copy(cluster, client, load)


async def test_rolling_restart_fails_no_append(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group, timeout_s=20) as load:
        await load.more()
        for name in cluster.nodes:
            await asyncio.wait_for(cluster.runtime.stop(name), PATIENCE_S)
            assert (await led_when_drained(cluster, name, group))[-1] == set(), f"{name} ended while it led"
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
        await asyncio.wait_for(cluster.runtime.stop(leader), PATIENCE_S)
        assert "node stopped" in (cluster.directory / "logs" / f"{leader}.log").read_text()
        await cluster.start(leader, *others)
    await check_every_copy(cluster, client, load)
