"""Past their bounds nodes say no and stay small; clients wait and finish; a reader that stalls holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import psutil
import pytest
from tidemark import Client
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended
from tidemark_wire import channel, frames
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import node_pb2

from tests.waiting import until

from .cluster import Cluster
from .wire import append_stream, batch
from .workload import Workload, check_read_back, read_all

APPEND_BYTES_MAX = 800_000
"""Of which one client gets half."""

GROWTH_BYTES_MAX = 160 << 20
RECORDS = 640


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3, "--append-bytes-max", str(APPEND_BYTES_MAX))


def resident_bytes(cluster: Cluster) -> dict[str, int]:
    return {name: psutil.Process(cluster.pid(name)).memory_info().rss for name in cluster.nodes}


async def test_node_past_its_bound_says_no_with_a_hint(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    leader, *followers = await cluster.members(group)
    async with append_stream(cluster.address(leader), group) as stream:
        assert isinstance(await stream.append(batch(0)), Appended)
        for name in followers:
            cluster.pause(name)  # no quorum, so nothing is answered and everything waits in the leader
        await stream.send(*(batch(sequence, b"x" * 100_000) for sequence in range(1, 9)))
        refused = [await stream.answer() for _ in range(5)]
        for answer in refused:
            assert isinstance(answer.value, Refused), answer
            assert answer.value.reason == Reason.OVERLOADED and answer.value.retry_after_ms > 0
            assert to_rpc_error(answer.value).code == grpc.StatusCode.RESOURCE_EXHAUSTED
        for name in followers:
            cluster.resume(name)
        for sequence in (1, 2, 3):
            answer = await stream.answer()
            assert answer.request == sequence and isinstance(answer.value, Appended)


async def test_clients_wait_and_finish_and_no_process_grows(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2)
    before = resident_bytes(cluster)
    value = bytes(50_000)
    keys = [f"k{number}".encode() for number in range(8)]
    await client.group(group)  # the map may be a moment behind
    async with client.appender(group, timeout_s=60, batch_bytes=100_000) as appender:
        answers = [appender.append(b"%d:" % number + value, key=keys[number % len(keys)]) for number in range(RECORDS)]
        places = await asyncio.gather(*answers)
    assert len(set((place.shard, place.offset) for place in places)) == RECORDS
    after = resident_bytes(cluster)
    grown = {name: (after[name] - before[name]) >> 20 for name in after}
    assert all(after[name] - before[name] < GROWTH_BYTES_MAX for name in after), f"nodes grew by MiB: {grown}"
    records = await read_all(client, group)
    for key in keys:
        numbers = [int(record.value.split(b":")[0]) for record in records if record.key == key]
        assert numbers == sorted(numbers) and len(numbers) == RECORDS // len(keys)
    leader = await cluster.leader(group)
    refused = await cluster.metric(leader, 'tidemark_appends_total{outcome="OVERLOADED"}')
    assert refused > 0, "the bound was never reached: the test shows nothing"


async def test_stalled_reader_holds_up_nobody(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    before = resident_bytes(cluster)[leader]
    request = node_pb2.ReadRequest(group=group, shard=0, until=-1, tail=True)
    async with channel.open_channel(cluster.address(leader)) as opened:
        method = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        stalled = method(request, metadata=channel.hello_metadata())
        frames.decode_read(await stalled.read())  # and then it reads no more
        tail: list[int] = []

        async def follow() -> None:
            async for record in client.read(group, until=None):
                tail.append(record.offset)

        following = asyncio.create_task(follow())
        async with Workload(client, group, value_bytes=20_000, per_second=1_000) as load:
            await load.more(500)
            acked = len(load.acked)
            await until(lambda: len(tail) >= acked, "the other reader has all that is acknowledged", 20)
        following.cancel()
        assert resident_bytes(cluster)[leader] - before < GROWTH_BYTES_MAX
        stalled.cancel()
    await check_read_back(client, load)
