"""A snapshot under way, slowed by its rate limit, while somebody is killed: the swap goes on or leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster, condition
from .workload import Workload, check_every_copy

BYTES_PER_SECOND = 2 << 20
SLOWED = 64 << 10
RECORD_BYTES, RECORDS = 40_000, 260


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5, "--snapshot-bytes-per-second", str(BYTES_PER_SECOND))


async def filled_group(cluster: Cluster, client: Client) -> tuple[str, Workload]:
    """Return a group whose snapshot takes a few seconds, and what was appended to it."""
    group = await cluster.create_group()
    async with Workload(client, group, value_bytes=RECORD_BYTES, per_second=600, name="old") as load:
        await load.more(RECORDS)
    await cluster.replicated(group)
    return group, load


async def pulled_bytes(cluster: Cluster, node: str, group: str) -> int:
    """Return how much of a group's log a node that is being seeded holds; 0 when it is not."""
    replica = await cluster.replica(node, group)
    return int(replica.get("bytes", 0)) if replica.get("role") == "SEEDING" else 0


async def half_pulled(cluster: Cluster, node: str, group: str) -> int:
    """Wait until a good part of the snapshot is on the puller's disk, and not all of it."""
    return int(await until(lambda: enough(cluster, node, group), f"{node} has pulled some of {group}"))


async def enough(cluster: Cluster, node: str, group: str) -> int:
    pulled = await pulled_bytes(cluster, node, group)
    return pulled if pulled > 3 << 20 else 0


async def begin_swap(cluster: Cluster, group: str, **spec: Any) -> tuple[str, str, str, str]:
    """Begin to swap a follower for a spare; return the Reconfiguration, the leader, who leaves, who joins.

    Copies of other groups stay: what a node has pulled is counted, and who leaves may have those of all tests before.
    """
    leader, leaver, _ = await cluster.members(group)
    spare = (await cluster.spares(group))[0]
    name = await cluster.reconfigure(
        "NodeSwap", {"from": leaver, "to": {"node": spare}, "removeSource": "Keep"},
        scope={"logGroups": [group]}, **spec)
    return name, leader, leaver, spare


async def check_swapped(
    cluster: Cluster, client: Client, swap: tuple[str, str, str, str], *loads: Workload
) -> dict[str, Any]:
    name, _, leaver, spare = swap
    item = await cluster.finished(name)
    assert condition(item, "Succeeded")[0] == "True", item["status"]
    members = await cluster.members(loads[0].group)
    assert spare in members and leaver not in members
    await check_every_copy(cluster, client, *loads)
    return item


@pytest.mark.parametrize("victim", ["operator", "source", "puller"])
async def test_swap_ends_well_though_somebody_was_killed(cluster: Cluster, client: Client, victim: str):
    group, old = await filled_group(cluster, client)
    async with Workload(client, group) as new:
        swap = await begin_swap(cluster, group, throttle={"bytesPerSecondPerNode": "1Mi"})
        _, leader, _, spare = swap
        await half_pulled(cluster, spare, group)
        await amend(cluster, swap[0], throttle={"bytesPerSecondPerNode": str(SLOWED)})
        killed = {"operator": "operator", "source": leader, "puller": spare}[victim]
        cluster.kill(killed)
        await new.more(30)
        await cluster.start(killed)
        await check_all_served(cluster, new)
        await until(lambda: all_send_at(cluster, SLOWED), "whoever was killed, every node is throttled by the act")
        await amend(cluster, swap[0], throttle={"bytesPerSecondPerNode": "1Gi"})
        await cluster.finished(swap[0])
        await until(lambda: all_send_at(cluster, BYTES_PER_SECOND), "every node is throttled by the cluster again")
    await check_swapped(cluster, client, swap, old, new)


async def amend(cluster: Cluster, name: str, **spec: Any) -> None:
    """Change fields of a Reconfiguration that runs."""
    (item,) = [item for item in await cluster.objects("Reconfiguration") if item["metadata"]["name"] == name]
    await cluster.apply({
        "apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": {"name": name},
        "spec": {**item["spec"], **spec}})


async def all_send_at(cluster: Cluster, bytes_per_second: int) -> bool:
    rates = [await cluster.metric(node, "tidemark_snapshot_bytes_per_second") for node in cluster.nodes]
    return rates == [bytes_per_second] * len(rates)


async def check_all_served(cluster: Cluster, load: Workload) -> None:
    await cluster.ready()
    await load.more_on_every_shard()


async def test_killed_puller_goes_on_where_its_disk_ends(cluster: Cluster, client: Client):
    """It was back before the operator missed it, so the same snapshot goes on instead of beginning anew."""
    group, old = await filled_group(cluster, client)
    swap = await begin_swap(cluster, group, throttle={"bytesPerSecondPerNode": "1Mi"})
    spare = swap[3]
    before = await half_pulled(cluster, spare, group)
    cluster.pause("operator")
    cluster.kill(spare)
    await cluster.start(spare)
    kept = await pulled_bytes(cluster, spare, group)
    cluster.resume("operator")
    assert kept > before // 2, f"{kept} of {before} bytes survived"
    await cluster.finished(swap[0])
    received = await cluster.metric(spare, "tidemark_snapshot_received_bytes_total")
    assert received < len(old.acked) * RECORD_BYTES - kept // 2, "what was on its disk was not pulled again"
    await check_swapped(cluster, client, swap, old)


async def test_change_of_one_shard_whose_source_dies_leaves_no_trace(cluster: Cluster, client: Client):
    """Asked for at the command line it is not repeated: the command says that nothing changed."""
    group, old = await filled_group(cluster, client)
    leader, leaver, third = await cluster.members(group)
    spare = (await cluster.spares(group))[0]
    process = await cluster.start_cli("swap", group, "0", "--from", leaver, "--to", spare, "--json")
    await half_pulled(cluster, spare, group)
    cluster.kill(leader)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1 and b"ABORTED" in out and b"nothing changed" in out, (out, err)
    await cluster.start(leader)
    await cluster.ready()
    assert sorted(await cluster.members(group)) == sorted([leader, leaver, third])
    await check_every_copy(cluster, client, old)
    await until(lambda: forgotten(cluster, spare, group), f"{spare} has deleted its half of a copy")


async def forgotten(cluster: Cluster, node: str, group: str) -> bool:
    return (await cluster.replica(node, group)).get("role") in (None, "DELETED")


async def test_swap_cancelled_half_way_leaves_no_trace(cluster: Cluster, client: Client):
    group, old = await filled_group(cluster, client)
    before = sorted(await cluster.members(group))
    async with Workload(client, group) as new:
        name, _, leaver, spare = await begin_swap(cluster, group, throttle={"bytesPerSecondPerNode": "1Mi"})
        await half_pulled(cluster, spare, group)
        await amend(cluster, name, throttle={"bytesPerSecondPerNode": str(SLOWED)})
        await amend(cluster, name, cancel=True)
        ended = await cluster.finished(name)
        assert condition(ended, "Succeeded")[:2] == ("False", "Canceled"), ended["status"]
        await new.more()
    assert sorted(await cluster.members(group)) == before and leaver in before
    await check_every_copy(cluster, client, old, new)
    await until(lambda: forgotten(cluster, spare, group), f"{spare} has deleted its half of a copy")


async def test_snapshots_keep_to_their_rate(cluster: Cluster, client: Client):
    group, old = await filled_group(cluster, client)
    began = asyncio.get_running_loop().time()
    swap = await begin_swap(cluster, group)
    await cluster.finished(swap[0])
    seconds = asyncio.get_running_loop().time() - began
    size = len(old.acked) * RECORD_BYTES
    assert seconds > size * 0.6 / BYTES_PER_SECOND, f"{size} bytes took {seconds:.1f} s"
    await check_swapped(cluster, client, swap, old)
