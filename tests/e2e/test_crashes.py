"""kill -9 of everything there is, one by one and all at once, under load: nothing is lost, nothing is doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark import Client
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended

from tests.waiting import until

from .cluster import Cluster
from .wire import append_stream, batch
from .workload import Workload, check_every_copy, check_read_back


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5)


async def test_killed_leader_loses_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more()
        killed = await cluster.leader(group)
        cluster.kill(killed)
        await load.more_on_every_shard()
        assert await cluster.leader(group) != killed
        await cluster.start(killed)
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_leaders_killed_one_after_another(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        for _ in range(4):
            await load.more()
            killed = await cluster.leader(group)
            cluster.kill(killed)
            await load.more_on_every_shard()
            await cluster.start(killed)
    await check_every_copy(cluster, client, load)


async def test_killed_follower_is_not_missed_and_catches_up(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, killed, _ = await cluster.members(group)
        cluster.kill(killed)
        await load.more(100)
        assert await cluster.leader(group) == leader
        await cluster.start(killed)
    await check_every_copy(cluster, client, load)


async def test_operator_is_not_needed_while_nothing_fails(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    before = (await cluster.shard(group))["epoch"]
    async with Workload(client, group) as load:
        await load.more()
        cluster.kill("operator")
        await load.more(100)
        await cluster.start("operator")
        await cluster.ready()
        await load.more()
    assert (await cluster.shard(group))["epoch"] == before, "a restarted operator elects nobody without need"
    await check_read_back(client, load)


async def test_leader_killed_while_there_is_no_operator(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        killed = await cluster.leader(group)
        cluster.kill("operator", killed)
        await cluster.start("operator")
        await load.more_on_every_shard()
        assert await cluster.leader(group) != killed
        await cluster.start(killed)
    await check_every_copy(cluster, client, load)


async def test_power_cut(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more(150)
        cluster.kill(*cluster.nodes, "operator", "etcd")
        await cluster.heal()
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def test_retry_after_a_change_of_leader_is_answered_with_its_first_place(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    leader, *others = await cluster.members(group)
    async with append_stream(cluster.address(leader), group) as stream:
        first = await stream.append(batch(0))
        second = await stream.append(batch(1))
        assert isinstance(first, Appended) and isinstance(second, Appended)
        for name in others:
            cluster.pause(name)
        await stream.send(batch(2))  # on the leader's disk at most: nobody else can hear of it
        await until(lambda: head_of(cluster, leader, group, second.base + 1), "the third batch is in the log")
        cluster.kill(leader)
    for name in others:
        cluster.resume(name)
    heir = await until(lambda: other_leader(cluster, group, leader), "another member leads")
    async with append_stream(cluster.address(heir), group) as stream:
        assert await stream.append(batch(1)) == second
        assert await stream.append(batch(0)) == first
        third = await stream.append(batch(2))
        assert isinstance(third, Appended) and third.base > second.base
        assert await stream.append(batch(2)) == third
        skipped = await stream.append(batch(9))
        assert isinstance(skipped, Refused) and (skipped.reason, skipped.expected) == (Reason.SEQUENCE_GAP, 3)
    await cluster.start(leader)
    await cluster.replicated(group)
    for name in (leader, *others):  # the old leader's own third batch is gone from its disk too
        await cluster.transfer(group, 0, name)
        payloads = [entry.entry.payload async for entry in client.read(group, mode="leader").batches()]
        assert payloads == [batch(0).payload, batch(1).payload, batch(2).payload], name


async def head_of(cluster: Cluster, node: str, group: str, offset: int) -> bool:
    head = (await cluster.replica(node, group)).get("head", "0:-1")
    return int(str(head).split(":")[1]) >= offset


async def other_leader(cluster: Cluster, group: str, than: str) -> str | None:
    leader = await cluster.leader(group)
    return leader if leader and leader != than else None
