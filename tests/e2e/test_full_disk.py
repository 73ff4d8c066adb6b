"""A full disk: writes are refused by name, reads go on, and everything resumes when space returns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest
from tidemark import Client
from tidemark.errors import Unavailable
from tidemark_core.base.refusals import Reason, Refused

from tests.waiting import remains, until

from .cluster import Cluster, condition
from .disk import SmallDisk, failing_disk, small_disk
from .wire import append_stream, batch
from .workload import Workload, check_every_copy, read_all, stands_still

SIZE_BYTES, RESERVE_BYTES = 1 << 30, 384 << 20
FULL_BYTES = 300 << 20    # left free: less than the reserve, more than two thirds of it
CAREFUL, CARELESS = "e2e-1", "e2e-2"
"""The first keeps a reserve on a small disk; the second's fails a write before the node had looked at it."""


@pytest.fixture(scope="module")
def disks() -> dict[str, SmallDisk]:
    return {}


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster], disks: dict[str, SmallDisk]) -> Cluster:
    cluster = start_cluster(3)

    async def shrink() -> None:
        disks[CAREFUL] = await small_disk(
            cluster, CAREFUL, SIZE_BYTES, "--disk-reserve-bytes", str(RESERVE_BYTES))
        disks[CARELESS] = await failing_disk(cluster, CARELESS)

    asyncio.run(shrink())
    return cluster


async def test_leader_with_a_full_disk_refuses_writes_and_serves_reads(
    cluster: Cluster, client: Client, disks: dict[str, SmallDisk]
):
    group = await cluster.create_group()
    await cluster.transfer(group, 0, CAREFUL)
    async with Workload(client, group) as load:
        await load.more()
        epoch = (await cluster.shard(group))["epoch"]
        disks[CAREFUL].fill(FULL_BYTES)
        await until(lambda: said_full(cluster, CAREFUL), f"{CAREFUL} says that its disk is full")
        async with append_stream(cluster.address(CAREFUL), group) as stream:
            refused = await stream.append(batch(0))
        assert isinstance(refused, Refused) and refused.reason == Reason.DISK_FULL, refused
        assert refused.retry_after_ms > 0
        acked = await stands_still(load)
        assert len(await read_all(client, group)) == acked, "reads go on"
        await remains(lambda: len(load.acked) == acked, "nothing is acknowledged on a full disk", 0.3)
        shard = await cluster.shard(group)
        assert (shard["leader"], shard["epoch"]) == (CAREFUL, epoch)
        disks[CAREFUL].free()
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_follower_with_a_full_disk_is_not_missed_and_catches_up(
    cluster: Cluster, client: Client, disks: dict[str, SmallDisk]
):
    group = await cluster.create_group()
    await cluster.transfer(group, 0, "e2e-3")
    async with Workload(client, group) as load:
        await load.more()
        disks[CAREFUL].fill(FULL_BYTES)
        await until(lambda: said_full(cluster, CAREFUL), f"{CAREFUL} says that its disk is full")
        await load.more(100)
        behind = (await cluster.replica(CAREFUL, group))["head"]
        assert behind != (await cluster.replica("e2e-3", group))["head"], "its disk took no more entries"
        disks[CAREFUL].free()
    await check_every_copy(cluster, client, load)


async def test_k20_appends_that_two_full_disks_of_three_cannot_store_end_as_not_appended(
    cluster: Cluster, client: Client, disks: dict[str, SmallDisk]
):
    """Many at once: each ends as Unavailable with the reason, none with an unknown outcome; reads go on."""
    group = await cluster.create_group()
    await cluster.transfer(group, 0, "e2e-3")
    async with Workload(client, group) as load:
        await load.more()
        for node in (CAREFUL, CARELESS):
            disks[node].fill(FULL_BYTES)
            await until(lambda node=node: said_full(cluster, node), f"{node} says that its disk is full")
        acked = await stands_still(load)
        async with client.appender(group, batch_records=1, linger_ms=0, timeout_s=10) as appender:
            ended = await asyncio.gather(
                *(appender.append_nowait(b"%d" % number) for number in range(200)), return_exceptions=True)
        assert {Unavailable} == {type(error) for error in ended}
        assert all("DISK_FULL" in str(error) for error in ended), ended[:5]
        assert acked == len(await read_all(client, group)), "reads go on, and nothing was appended"
        await until(lambda: told(cluster, group, "True", "AppendsRefused"), "group and cluster say so")
        for node in (CAREFUL, CARELESS):
            disks[node].free()
        await load.more()
        await until(lambda: told(cluster, group, "", ""), "the condition is gone")
    await check_every_copy(cluster, client, load)


async def told(cluster: Cluster, group: str, status: str, reason: str) -> bool:
    """Whether group and cluster have condition DiskFull so, and Ready only without it."""
    seen = await cluster.objects("TidemarkCluster") + [
        item for item in await cluster.objects("LogGroup") if item["metadata"]["name"] == group]
    return [(status, reason, "False" if status else "True")] * 2 == [
        (*condition(item, "DiskFull")[:2], condition(item, "Ready")[0]) for item in seen]


async def test_k21_a_shorter_retention_frees_full_disks_and_writing_resumes(
    cluster: Cluster, client: Client, disks: dict[str, SmallDisk]
):
    """The remedy of the runbook: nothing but the retention changes, and the file system has its space again."""
    group = await cluster.create_group()
    await cluster.transfer(group, 0, "e2e-3")
    async with client.appender(group, compression=None, timeout_s=60) as appender:
        for _ in range(160):
            await appender.append(os.urandom(1_000_000))
        for node in (CAREFUL, CARELESS):
            disks[node].fill(FULL_BYTES)
            await until(lambda node=node: said_full(cluster, node), f"{node} says that its disk is full")
        before = (await cluster.replica(CAREFUL, group))["first"]
        await change(cluster, group, retention={"seconds": 0, "size": "4Mi"})

        async def trimmed() -> bool:
            return before < (await cluster.replica(CAREFUL, group))["first"]

        await until(trimmed, "the member with the full disk hears of the trim")
        await until(lambda: is_free(cluster, CAREFUL), "its file system has the space again", timeout_s=60)
        disks[CARELESS].free()      # this one is full by word alone
        await appender.append(b"later")
        disks[CAREFUL].free()


async def change(cluster: Cluster, group: str, **spec: object) -> None:
    found = next(item for item in await cluster.objects("LogGroup") if item["metadata"]["name"] == group)
    await cluster.apply({
        "apiVersion": found["apiVersion"], "kind": "LogGroup", "metadata": {"name": group},
        "spec": {**found["spec"], **spec},
    })


async def is_free(cluster: Cluster, node: str) -> bool:
    return not await said_full(cluster, node)


async def test_leader_whose_disk_fails_a_write_hands_over_and_returns(
    cluster: Cluster, client: Client, disks: dict[str, SmallDisk]
):
    group = await cluster.create_group()
    await cluster.transfer(group, 0, CARELESS)
    async with Workload(client, group) as load:
        await load.more()
        boot = (await cluster.dump(CARELESS))["boot"]
        disks[CARELESS].fill(0)
        await load.more_on_every_shard()
        assert await cluster.leader(group) != CARELESS
        disks[CARELESS].free()
        await load.more()
        await cluster.ready()
        assert (await cluster.dump(CARELESS))["boot"] != boot, "it loaded its shards again, as after a crash"
    await check_every_copy(cluster, client, load)


async def test_disk_full_to_the_last_byte_at_once(cluster: Cluster, client: Client, disks: dict[str, SmallDisk]):
    """Whether the node sees it coming or a write fails first: nothing is lost, and it takes part again afterwards."""
    group = await cluster.create_group()
    await cluster.transfer(group, 0, CAREFUL)
    async with Workload(client, group) as load:
        await load.more()
        boot = (await cluster.dump(CAREFUL))["boot"]
        disks[CAREFUL].fill(0)
        await until(lambda: noticed(cluster, CAREFUL, boot), f"{CAREFUL} notices its full disk")
        disks[CAREFUL].free()
        await load.more_on_every_shard()
        await cluster.ready()
    await check_every_copy(cluster, client, load)


async def noticed(cluster: Cluster, node: str, boot: str) -> bool:
    dump = await cluster.dump(node)
    return bool(dump["disk_full"] or dump["reloading"] or dump["boot"] != boot)


async def said_full(cluster: Cluster, node: str) -> bool:
    return bool((await cluster.dump(node))["disk_full"])
