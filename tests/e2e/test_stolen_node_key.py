"""The key of a node that is stolen: with it a thief attacks a shard of which that node is no member (T10-T10d).

The cluster has mutual TLS, and the node itself runs on.  Its shard goes on to take appends, keeps its leader and its
epoch, and every copy holds what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import tidemark
from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Entry, Kind, seal
from tidemark_core.base.ids import NOTHING, EntryId, Member, ShardId, of_shard
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    AppendRefused,
    BecomeLeader,
    DeleteShard,
    Drop,
    Fence,
    Fetch,
    Fetched,
    Fill,
    Filled,
    ReadRound,
    Truncate,
)
from tidemark_wire import channel, frames, identity
from tidemark_wire.tls import Credentials, FileCredentials, TlsSettings
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import until

from .cluster import Cluster, offset_of
from .workload import Workload, check_every_copy

SERIES = "tidemark_strangers_refused_total"
PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4, tls=True)


class Thief:
    """A caller with the files of one node's certificate."""

    def __init__(self, cluster: Cluster, me: Member) -> None:
        files = cluster.runtime.certificates().files.folder(identity.Identity("e2e", identity.Kind.NODE, me.node))
        self._credentials: Credentials = FileCredentials(TlsSettings.of_directory(files))
        self._cluster = cluster
        self._hello = channel.hello_metadata(
            node=me.node, incarnation=me.incarnation, address=cluster.address(me.node))

    def _open(self, victim: Member) -> grpc.aio.Channel:
        return channel.open_channel(
            self._cluster.address(victim.node), self._credentials, server_name=victim.node)

    @asynccontextmanager
    async def link(self, shard: ShardId, victim: Member) -> AsyncIterator[Callable[..., Any]]:
        """Yield a function that sends messages about the shard; what comes back about it must hold no entry."""
        async with self._open(victim) as opened:
            call = opened.stream_stream(channel.REPLICATION_LINK)(metadata=self._hello)
            heard: list[Any] = []

            async def listen() -> None:
                while (frame := await call.read()) is not grpc.aio.EOF:
                    heard.extend(said for at, _, said in frames.decode_messages(frame) if at == of_shard(shard))

            async def send(*messages: Any) -> None:
                for message in messages:
                    await call.write(frames.encode_message(of_shard(shard), victim, message))

            async with asyncio.timeout(PATIENCE_S):
                await channel.answered_hello(call)
            listening = asyncio.create_task(listen())
            try:
                yield send
            finally:
                listening.cancel()
                call.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            assert [] == heard, "a stranger gets no answer"

    async def pull(self, shard: ShardId, victim: Member, epoch: int, last: int) -> int:
        """Pull the log of the shard; return how many entries came.  Raises AioRpcError when the pull is refused."""
        request = node_pb2.PullSnapshotRequest(shard=shard, epoch=epoch, first=0, last=last)
        async with self._open(victim) as opened, asyncio.timeout(PATIENCE_S):
            call = node_pb2_grpc.ReplicationStub(opened).PullSnapshot(request, metadata=self._hello)
            return sum([len(chunk.headers) async for chunk in call])


def forged(epoch: int, base: int) -> Entry:
    """Return an entry with right checksums in the place of another."""
    payload = b"forged"
    batch = Batch(b"t" * 16, 0, 1, 1, 2, crc32c(payload), payload)
    return seal(batch, kind=Kind.DATA, epoch=epoch, prev=EntryId(epoch, base - 1), prev_chain=0, logged_ms=1)


def attacks(epoch: int, head: int, me: Member) -> list[Any]:
    """Return messages that each did harm, or could, when one sent them that is no member."""
    last = EntryId(epoch, head)
    return [
        # Trim everything, rewrite every record, read every record.
        *(Fetched(base, None, 1 << 60) for base in range(head + 1)),
        *(Fetched(base, forged(epoch, base)) for base in range(head + 1)),
        *(Fetch(base, epoch) for base in range(head + 1)),
        # Depose the leader.
        *(AppendRefused(epoch, own, last, Reason.STALE_EPOCH) for own in (epoch + 1, epoch + (1 << 32), 1 << 63)),
        # Use up the epochs, lead, cut and trim the log.
        *(Append(high, last, (), head, head, head, head) for high in (epoch, epoch + 1, (1 << 64) - 1)),
        Append(epoch + 1, last, (forged(epoch + 1, head + 1),), head + 1, -1, -1, 0),
        *(Truncate(high, NOTHING) for high in (epoch, epoch + 1)), ReadRound(epoch + 1, 1),
        Drop(epoch, (me,), 1, (head,), head), Fill(epoch, (me,), 1, head),
        # Acknowledge what is on no disk.
        AppendAck(epoch, 1 << 60, 1 << 60), Filled(epoch, 1 << 60),
        # Speak as an operator.
        Fence(epoch + 1, 1, 1, (me,)), BecomeLeader(epoch, 1, (me,), ()), DeleteShard(epoch + 1, 1),
    ]


async def test_t10_a_stolen_node_key_does_nothing_to_a_shard_of_other_nodes(
    cluster: Cluster, client: tidemark.Client
) -> None:
    group = await cluster.create_group()
    shard = await cluster.shard_number(group)
    async with Workload(client, group) as load:
        await load.more_on_every_shard()
        names = await cluster.members(group)
        (spare,) = await cluster.spares(group)
        me = await cluster.member(spare)
        thief = Thief(cluster, me)
        before = await cluster.shard(group)
        view = await cluster.replica(names[0], group)
        epoch, head = view["epoch"], offset_of(view["head"])
        sent = attacks(epoch, head, me)
        for name in names:
            victim = await cluster.member(name)
            counted = await cluster.metric(name, SERIES)
            async with thief.link(shard, victim) as send:
                await send(*sent)
                await until_refused(cluster, name, counted + len(sent))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await thief.pull(shard, victim, epoch, head)
            assert grpc.StatusCode.PERMISSION_DENIED is refused.value.code()
            assert await cluster.told(name, "stranger_refused")
        await load.more_on_every_shard()

    after = await cluster.shard(group)
    assert (before["leader"], before["epoch"]) == (after["leader"], after["epoch"]), "no leader is deposed"
    for name in names:
        replica = await cluster.replica(name, group)
        assert (epoch, 0) == (replica["epoch"], replica["first"]), f"{name} kept its epoch and its log"
    await check_every_copy(cluster, client, load)


async def until_refused(cluster: Cluster, name: str, count: float) -> None:
    """Wait until a node has refused so many messages and pulls."""
    async def refused() -> bool:
        return await cluster.metric(name, SERIES) >= count

    await until(refused, f"{name} refuses {count} messages")


async def test_t10_the_key_of_a_newcomer_opens_its_shard_once_an_operator_announces_it(
    cluster: Cluster, client: tidemark.Client
) -> None:
    """The node that the thief stole from joins by a swap, is seeded, and the shard goes on with it."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more_on_every_shard()
        leader, leaver, _ = await cluster.members(group)
        (spare,) = await cluster.spares(group)
        await cluster.change("SWAP", group, 0, from_node=leaver, to_node=spare)
        await load.more_on_every_shard()
        cluster.kill(leader)
        await load.more_on_every_shard()
        await cluster.start(leader)
    await check_every_copy(cluster, client, load)
