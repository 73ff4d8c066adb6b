"""One client takes all that it can get: nodes stay small, no election follows, and another client goes on.

The attacks run with the certificate of a client that may read and write, as one whose key was stolen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import psutil
import pytest
import tidemark
from tidemark_core.base.refusals import Reason
from tidemark_core.delivery.messages import Start
from tidemark_core.delivery.order import Mode
from tidemark_operator.certificates.rotation import Policy
from tidemark_wire import channel
from tidemark_wire.delivery import StartCall, encode_request
from tidemark_wire.identity import Kind
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import FileCredentials, TlsSettings
from tidemark_wire.v1 import node_pb2

from tests.waiting import LOOK_MAX_S, until

from .cluster import Cluster
from .workload import Workload, check_read_back

MIB = 1 << 20
FRAME_BYTES_MAX = 128 * MIB
WATCHES_MAX = 200
STREAMS = 150
"""Of each kind; a node without budgets holds some MiB for each of them."""

GROWTH_OF_STREAMS_MAX = FRAME_BYTES_MAX // 2 + 128 * MIB
GROWTH_OF_REQUESTS_MAX = 160 * MIB
LARGE_REQUESTS = 20
SEARCHES = 32
TRIES = 5


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    flags = ("--frame-bytes-max", str(FRAME_BYTES_MAX), "--watches-max", str(WATCHES_MAX))
    return start_cluster(3, *flags, tls=True, silence_ms=None)


@pytest.fixture(scope="module")
def stolen(cluster: Cluster) -> TlsSettings:
    return TlsSettings.of_directory(cluster.runtime.certificates().issue(Policy(), Kind.CLIENT, "eve"))


class Greedy:
    """Calls with the stolen key, over a few connections to one node."""

    def __init__(self, channels: list[grpc.aio.Channel], group: str) -> None:
        self._channels = channels
        self._group = group
        self._calls: list[Any] = []

    def _next(self) -> grpc.aio.Channel:
        return self._channels[len(self._calls) % len(self._channels)]

    def read(self) -> None:
        method = self._next().unary_stream(
            channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        request = node_pb2.ReadRequest(group=self._group, shard=0, until=-1, tail=True, bytes_max=4 * MIB)
        self._calls.append(method(request, metadata=channel.hello_metadata()))

    async def deliver(self, ensemble: list[str]) -> None:
        start = encode_request(StartCall(
            self._group, 0, Start(1, 0, -1, Mode.ALL_SEND_ALL, (), tuple(ensemble), (), 1 << 30), 4 * MIB))
        for left in reversed(range(TRIES)):
            call = self._next().stream_stream(channel.DELIVER)(metadata=channel.hello_metadata())
            try:
                await call.write(start)
            except grpc.aio.AioRpcError:
                if not left:    # a busy machine loses connections of a caller that it starves; the caller goes on
                    raise
            else:
                self._calls.append(call)
                return

    def watch(self) -> Any:
        call = self._next().unary_stream("/tidemark.v1.Tidemark/WatchShardMap")(b"")
        self._calls.append(call)
        return call

    async def unary(self, name: str, request: bytes) -> bytes:
        method = self._next().unary_unary(f"/tidemark.v1.Tidemark/{name}")
        return await method(request, metadata=channel.hello_metadata(), timeout=60)

    def leave(self) -> None:
        for call in self._calls:
            call.cancel()


@asynccontextmanager
async def greedy(cluster: Cluster, group: str, key: TlsSettings) -> AsyncIterator[Greedy]:
    leader = await cluster.leader(group)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                channel.open_channel(cluster.address(leader), FileCredentials(key), server_name=leader))
            for _ in range(4)
        ]
        caller = Greedy(channels, group)
        stack.callback(caller.leave)
        yield caller


def resident_bytes(cluster: Cluster, name: str) -> int:
    return int(psutil.Process(cluster.pid(name)).memory_info().rss)


class Peak:
    """The most that a process grew by while a block ran."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._before = self.bytes = 0

    async def __aenter__(self) -> Peak:
        self._before = resident_bytes(self._cluster, self._name)
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._look()
        self._task.cancel()

    def _look(self) -> None:
        self.bytes = max(self.bytes, resident_bytes(self._cluster, self._name) - self._before)

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_MAX_S)


async def filled(cluster: Cluster, client: tidemark.Client, records: int, size: int) -> str:
    """Create a group of one shard, with records that are a batch each."""
    group = await cluster.create_group()
    await client.group(group)
    async with client.appender(group, timeout_s=60, batch_bytes=1) as appender:
        places = [appender.append(bytes(size), key=b"%d" % number) for number in range(records)]
        await asyncio.gather(*places)
    return group


@asynccontextmanager
async def undisturbed(cluster: Cluster, client: tidemark.Client, attacked: str) -> AsyncIterator[None]:
    """Append as another client meanwhile; every append is acknowledged, and no shard has another leader."""
    own = await cluster.create_group()
    before = [(await cluster.shard(group))["epoch"] for group in (attacked, own)]
    async with Workload(client, own, per_second=50) as load:
        await load.more(20)
        yield
        await load.more(20)
    assert before == [(await cluster.shard(group))["epoch"] for group in (attacked, own)], "there was an election"
    await check_read_back(client, load)


async def test_t12_streams_that_are_not_read_stay_within_their_budget(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await filled(cluster, client, 160, 256_000)
    leader, members = await cluster.leader(group), await cluster.members(group)
    async with undisturbed(cluster, client, group), greedy(cluster, group, stolen) as eve:
        async with Peak(cluster, leader) as grown:
            for _ in range(STREAMS):
                eve.read()
                await eve.deliver(members)
            waiting = 'tidemark_budget_waiting{budget="frame_bytes"}'

            async def crowded() -> bool:
                return await cluster.metric(leader, 'tidemark_budget_used{budget="streams"}') >= 2 * STREAMS and (
                    await cluster.metric(leader, waiting) > STREAMS)

            await until(crowded, "most streams wait for room", 30)
            assert await cluster.metric(leader, 'tidemark_budget_used{budget="frame_bytes"}') <= FRAME_BYTES_MAX
            records = [record async for record in client.read(group)]
            assert 160 == len(records), "another client reads all of it meanwhile"
        assert grown.bytes < GROWTH_OF_STREAMS_MAX, f"the node grew by {grown.bytes >> 20} MiB"


async def test_t12_searches_in_numbers_cause_no_election(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await filled(cluster, client, 4_000, 10)
    async with undisturbed(cluster, client, group), greedy(cluster, group, stolen) as eve:
        for number in range(20):
            commit = node_pb2.CommitPositionRequest(
                group=group, shard=0, subscription=f"s{number}", offset=0, lease_ms=60_000)
            await eve.unary("CommitPosition", commit.SerializeToString())
        explain = node_pb2.ExplainReadRequest(group=group, shard=0, count=10_000).SerializeToString()
        listing = node_pb2.SubscriptionsRequest(group=group, shard=0).SerializeToString()
        answers = await asyncio.gather(
            *(eve.unary("ExplainRead", explain) for _ in range(SEARCHES)),
            *(eve.unary("Subscriptions", listing) for _ in range(SEARCHES)),
        )
        assert len(node_pb2.ExplainReadResponse.FromString(answers[0]).items) >= 4_000
        assert 20 == len(node_pb2.SubscriptionsResponse.FromString(answers[-1]).subscriptions)


@pytest.fixture
def padding() -> Iterator[bytes]:
    """An unknown field of 15 MiB, which a parser would keep."""
    size = 15 * MIB
    length = bytes([*(size >> bits & 0x7F | 0x80 for bits in (0, 7, 14)), size >> 21])
    yield b"\xfa\x3f" + length + bytes(size)


async def test_t12_large_requests_are_refused_and_not_held(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings, padding: bytes
) -> None:
    group = await cluster.create_group()
    leader = await cluster.leader(group)
    request = node_pb2.SubscriptionsRequest(group=group, shard=0).SerializeToString()
    assert node_pb2.SubscriptionsRequest.FromString(request + padding).group == group, "it would be served"
    async with undisturbed(cluster, client, group), greedy(cluster, group, stolen) as eve:
        async with Peak(cluster, leader) as grown:
            answers = await asyncio.gather(
                *(eve.unary("Subscriptions", request + padding) for _ in range(LARGE_REQUESTS)), return_exceptions=True)
        assert grown.bytes < GROWTH_OF_REQUESTS_MAX, f"the node grew by {grown.bytes >> 20} MiB"
        for answer in answers:
            assert isinstance(answer, grpc.aio.AioRpcError)
            hinted = refusal_from_rpc_error(answer)
            assert hinted is not None and Reason.INVALID_SPEC is hinted.refused.reason, answer
        assert await eve.unary("Subscriptions", request)


async def test_t12_watches_are_bounded_and_others_get_theirs(
    cluster: Cluster, client: tidemark.Client, stolen: TlsSettings
) -> None:
    group = await cluster.create_group()
    async with undisturbed(cluster, client, group), greedy(cluster, group, stolen) as eve:
        maps = await asyncio.gather(*(eve.watch().read() for _ in range(WATCHES_MAX)), return_exceptions=True)
        refused = [error for error in maps if isinstance(error, grpc.aio.AioRpcError)]
        assert WATCHES_MAX // 3 < len(refused) < WATCHES_MAX
        assert {grpc.StatusCode.RESOURCE_EXHAUSTED} == {error.code() for error in refused}
        assert "client/eve holds" in refused[0].details() and "--watches-max" in refused[0].details()
        assert cluster.runtime.tls is not None
        async with greedy(cluster, group, cluster.runtime.tls) as other:
            assert await other.watch().read()
