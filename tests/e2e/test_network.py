"""Cut, one-way and slow networks between real processes, through a TCP fault proxy in front of every node."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio
import pytest
from tidemark import Client
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire import channel
from tidemark_wire.frames import ReadFrame, decode_read
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from tests.waiting import remains, until

from .cluster import Cluster, condition, offset_of
from .fault_proxy import CLIENT, Network
from .test_crashes import other_leader
from .wire import append_stream, batch
from .workload import Workload, check_every_copy, read_all, read_shown, stands_still

SNAPSHOT_BYTES_PER_SECOND = 2 << 20


pytestmark = pytest.mark.usefixtures("faultless")


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Leaders that reach no follower stay: test_partial_partitions is about those that are replaced."""
    return start_cluster(
        4, "--snapshot-bytes-per-second", str(SNAPSHOT_BYTES_PER_SECOND), quorum_silence_ms=600_000)


def others(cluster: Cluster, name: str) -> list[str]:
    return [node for node in cluster.nodes if node != name]


async def test_follower_that_was_cut_off_catches_up(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, follower, _ = await cluster.members(group)
        network.cut(follower, *others(cluster, follower), "operator")
        await load.more(200)
        assert await cluster.leader(group) == leader
        network.heal()
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_leader_without_a_majority_commits_nothing(cluster: Cluster, client: Client, network: Network):
    """The operator still sees it, so it stays leader; its appends wait, and are not lost."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        epoch = (await cluster.shard(group))["epoch"]
        network.cut(leader, *others(cluster, leader))
        acked = await stands_still(load, mode="leader")
        head = offset_of((await cluster.replica(leader, group))["head"])
        await remains(lambda: len(load.acked) == acked, "nothing is acknowledged without a majority", 1.0)
        seen = max(record.offset for record in await read_shown(client, group))
        assert seen < head, "nobody reads what is not committed"
        refused = await first_frame(cluster.address(leader), group)
        assert isinstance(refused, Refused) and Reason.NO_LEADER is refused.reason, refused
        assert (await cluster.shard(group))["leader"] == leader
        network.heal()
        await load.more_on_every_shard()
        assert (await cluster.shard(group))["epoch"] == epoch
    await check_every_copy(cluster, client, load)


async def test_leader_cut_off_from_everybody_but_clients_is_replaced(
    cluster: Cluster, client: Client, network: Network
):
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    async with append_stream(cluster.address(leader), group) as stream:
        await stream.append(batch(0))
        network.cut(leader, *others(cluster, leader), "operator")
        heir = await until(lambda: other_leader(cluster, group, leader), "another member leads")
        await stream.send(batch(1, b"written by a deposed leader"))
        with pytest.raises(TimeoutError):
            await stream.answer(timeout_s=1.0)  # it takes the batch, and can promise nothing
        async with Workload(client, group) as load:
            await load.more()
            network.heal()
            answer = await stream.answer()
            assert isinstance(answer.value, Refused), answer
            await load.more()
    await cluster.replicated(group)
    for name in (leader, heir):
        await cluster.transfer(group, 0, name)
        payloads = [entry.entry.payload async for entry in client.read(group, mode="leader").batches()]
        assert b"written by a deposed leader" not in payloads
        assert payloads.count(batch(0).payload) == 1


async def first_frame(address: str, group: str) -> ReadFrame | Refused:
    """Read up to latest from one node: its first frame, which says where that is, or its refusal."""
    async with channel.open_channel(address) as opened:
        method = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        call = method(node_pb2.ReadRequest(group=group, until=-1), metadata=channel.hello_metadata(), timeout=20)
        try:
            return decode_read(await call.read())
        except grpc.aio.AioRpcError as error:
            hinted = refusal_from_rpc_error(error)
            assert hinted is not None, error
            return hinted.refused


async def test_o46_a_deposed_leader_that_clients_reach_names_no_old_end(
    cluster: Cluster, client: Client, network: Network
):
    """Its reads up to latest are refused until it learns of its heir; a client asks on and reads everything."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        network.cut(leader, *others(cluster, leader), "operator")
        await until(lambda: other_leader(cluster, group, leader), "another member leads")
        await load.more()
    acked = max(place.offset for _, _, place in load.acked)
    assert (await cluster.replica(leader, group))["confirmed"] < acked, "the deposed leader knows an older end"

    refused = await first_frame(cluster.address(leader), group)
    assert isinstance(refused, Refused), refused
    assert Reason.NO_LEADER is refused.reason and refused.retry_after_ms > 0
    assert await client.latest(group, 0) >= acked
    assert len(load.acked) == len(await read_all(client, group))
    network.heal()
    await check_every_copy(cluster, client, load)


async def test_acknowledgements_that_do_not_arrive_do_not_count(cluster: Cluster, client: Client, network: Network):
    """One way only: entries reach the followers, what they answer does not reach the leader."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        for name in others(cluster, leader):
            network.cut_one_way(name, leader)
        acked = await stands_still(load)
        await remains(lambda: len(load.acked) == acked, for_s=0.5)
        network.heal()
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def test_slow_follower_slows_nobody(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, slow, _ = await cluster.members(group)
        network.delay(leader, slow, 0.4)
        load.longest_gap_ms = 0.0
        await load.more(300)
        assert load.longest_gap_ms < 5_000, f"appends stood still for {load.longest_gap_ms:.0f} ms"
        network.heal()
    await check_every_copy(cluster, client, load)


async def test_operator_cut_off_from_a_node_elects_around_it(cluster: Cluster, client: Client, network: Network):
    """The node is alive, its followers hear it, only the operator does not: it is fenced, and no record is lost."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        network.cut(leader, "operator")
        await until(lambda: other_leader(cluster, group, leader), "another member leads")
        await load.more_on_every_shard()
        network.heal()
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_client_cut_off_from_the_leader_waits_and_goes_on(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader = await cluster.leader(group)
        network.cut(CLIENT, leader)
        await stands_still(load, readable=False)
        network.heal()
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def test_snapshot_goes_on_where_the_network_broke_it(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group()
    async with Workload(client, group, value_bytes=40_000, per_second=600) as load:
        await load.more(250)
    await cluster.replicated(group)
    leader, leaver, _ = await cluster.members(group)
    (spare,) = await cluster.spares(group)
    whole = len(load.acked) * 40_000
    before = await cluster.metric(spare, PULLED)
    swap = await cluster.reconfigure(
        "NodeSwap", {"from": leaver, "to": {"node": spare}, "removeSource": "Keep"})
    await until(lambda: pulled(cluster, spare, before + whole / 3), "a third of the snapshot is pulled")
    network.break_off(spare, leader)
    item = await cluster.finished(swap)
    assert condition(item, "Succeeded")[0] == "True", item["status"]
    assert (await cluster.metric(spare, 'tidemark_traces_total{what="snapshot_pull_failed"}')) > 0
    received = await cluster.metric(spare, PULLED) - before
    assert received < whole * 1.4, f"{received:.0f} bytes were pulled for a snapshot of {whole}"
    await check_every_copy(cluster, client, load)


PULLED = "tidemark_snapshot_received_bytes_total"


async def pulled(cluster: Cluster, node: str, least: float) -> bool:
    return await cluster.metric(node, PULLED) >= least
