"""SIGSTOP: a leader that was only paused and does not know that another one was elected meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tidemark import Client
from tidemark_core.base.ids import EntryId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    Append,
    AppendRefused,
    BecomeLeader,
    Fence,
    Rejected,
)

from tests.waiting import until

from .cluster import Cluster
from .test_crashes import other_leader
from .wire import append_stream, batch, say
from .workload import Workload, check_every_copy


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3)


async def test_paused_leader_is_replaced_and_wakes_up_as_a_follower(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        paused = await cluster.leader(group)
        cluster.pause(paused)
        await load.more_on_every_shard()
        assert await cluster.leader(group) != paused
        cluster.resume(paused)
        await load.more()
    await check_every_copy(cluster, client, load)
    assert any("epoch" in detail for detail in await cluster.told(paused, "resigned"))


async def test_appends_that_waited_in_a_paused_leader_are_not_acknowledged(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    paused = await cluster.leader(group)
    async with append_stream(cluster.address(paused), group) as stream:
        await stream.append(batch(0))
        cluster.pause(paused)
        await stream.send(*(batch(sequence, b"never acknowledged") for sequence in (1, 2, 3)))
        await until(lambda: other_leader(cluster, group, paused), "another member leads")
        async with Workload(client, group, name="new") as load:
            await load.more()
            cluster.resume(paused)  # it finds the batches on its stream, and itself still believes to lead
            try:
                answers = [(await stream.answer()).value for _ in range(3)]
            except grpc.aio.AioRpcError:
                answers = []  # its keepalive found the stream dead: not acknowledged either
            assert all(isinstance(answer, Refused) for answer in answers), answers
            await load.more()
    await cluster.replicated(group)
    for name in await cluster.members(group):
        await cluster.transfer(group, 0, name)
        payloads = [entry.entry.payload async for entry in client.read(group, mode="leader").batches()]
        assert b"never acknowledged" not in payloads, f"{name} kept what a deposed leader wrote"
        assert payloads.count(batch(0).payload) == 1


async def test_messages_of_an_older_epoch_change_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    await cluster.transfer(group, 0, (await cluster.members(group))[1])  # so that there is an older epoch
    await cluster.replicated(group)
    leader, follower, other = await cluster.members(group)
    number, epoch = await cluster.shard_number(group), (await cluster.shard(group))["epoch"]

    async def acknowledged() -> bool:
        view = await cluster.replica(leader, group)
        return all(cursor["commit"] == view["commit"] for cursor in view["leader"]["cursors"].values())

    await until(acknowledged)
    before = [await facts(cluster, name, group) for name in (leader, follower, other)]
    for name in (leader, follower):
        member = await cluster.member(name)
        said = await say(
            cluster.address(name), number, member, Fence(epoch - 1, epoch - 1), Rejected, operator="a-stale-operator")
        assert (said.refusal.reason, said.refusal.epoch) == (Reason.STALE_EPOCH, epoch)
        lead = BecomeLeader(epoch - 1, epoch - 1, (member,), ())
        said = await say(cluster.address(name), number, member, lead, Rejected, operator="a-stale-operator")
        assert said.refusal.reason == Reason.STALE_EPOCH
    member = await cluster.member(follower)
    log = await cluster.replica(follower, group)
    stale = await cluster.member(leader)
    said = await say(
        cluster.address(follower), number, member, stale_append(epoch - 1, log), AppendRefused,
        node=stale.node, incarnation="0" * 32, address=cluster.address(leader))
    assert (said.reason, said.own_epoch) == (Reason.STALE_EPOCH, epoch)
    after = [await facts(cluster, name, group) for name in (leader, follower, other)]
    assert after == before


async def facts(cluster: Cluster, name: str, group: str) -> dict[str, Any]:
    """Return a node's view of the shard without what it measures of clocks, which each acknowledgement changes."""
    view = await cluster.replica(name, group)
    view.get("leader", {}).pop("clock_skews_ms", None)
    return view


def stale_append(epoch: int, replica: dict) -> Append:
    """Return the heartbeat of a leader of an older epoch."""
    at, offset = (int(part) for part in str(replica["head"]).split(":"))
    return Append(epoch, EntryId(at, offset), (), offset, offset, offset, 0)


async def test_only_the_leader_takes_appends_and_serves_reads(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    leader, follower, _ = await cluster.members(group)
    async with append_stream(cluster.address(follower), group) as stream:
        await stream.send(batch(0))
        answer = await stream.answer()
    assert isinstance(answer.value, Refused) and answer.value.reason == Reason.NOT_LEADER
    assert (answer.leader_node, answer.leader_address) == (leader, cluster.address(leader))
    assert [record async for record in client.read(group)] == []
