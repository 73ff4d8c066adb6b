"""Documents on a real cluster: leaders die while clients put, members are swapped, and bad input changes nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import tidemark
from tidemark import Client
from tidemark.errors import ConditionFailed, TidemarkError
from tidemark_core.base.refusals import Reason
from tidemark_core.documents.payload import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import documents_pb2, documents_pb2_grpc

from tests.waiting import until

from .cluster import Cluster


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


async def described(cluster: Cluster, node: str, group: str, shard: int) -> documents_pb2.DescribeDocumentsResponse:
    async with open_channel(cluster.address(node), cluster.runtime.tls) as opened:
        return await documents_pb2_grpc.DocumentsStub(opened).Describe(
            documents_pb2.DescribeDocumentsRequest(group=group, shard=shard), timeout=10)


async def members_agree(cluster: Cluster, group: str, shards: int, at_least: dict[int, int]) -> None:
    """Wait until all members of each shard have folded equally far, and compare what they have (U73)."""

    async def equal() -> bool:
        for shard in range(shards):
            try:
                found = [await described(cluster, node, group, shard) for node in await cluster.members(group, shard)]
            except grpc.aio.AioRpcError:
                return False   # one has just started
            if len({each.applied for each in found}) > 1 or found[0].applied < at_least.get(shard, 0):
                return False
            assert len({(each.count, each.digest) for each in found}) == 1, found
        return True

    await until(equal, "all members have folded equally far")


class Putting:
    """A task that puts documents, one after another on each of some keys, and knows what was acknowledged."""

    def __init__(self, documents: tidemark.Documents, tasks: int = 8) -> None:
        self.documents = documents
        self.acknowledged: dict[bytes, tuple[int, bytes]] = {}   # the newest of each key: seqno and value
        self.answered = 0
        self._tasks = tasks

    async def _one(self, number: int) -> None:
        for turn in itertools.count():
            key, value = b"key-%d-%d" % (number, turn % 50), b"%d of %d" % (turn, number) * 20
            written = await self.documents.put(key, value)
            self.acknowledged[key] = (written.seqno, value)
            self.answered += 1

    @asynccontextmanager
    async def running(self) -> Any:
        tasks = [asyncio.ensure_future(self._one(number)) for number in range(self._tasks)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []

    async def more(self, count: int = 200) -> None:
        wanted = self.answered + count

        async def reached() -> bool:
            return self.answered >= wanted

        await until(reached, "more puts are acknowledged")

    async def check(self) -> None:
        """Each key has what was acknowledged last, or a later value that was under way when the putting ended."""
        found = {each.key: each async for each in self.documents.scan()}
        for key, (seqno, value) in self.acknowledged.items():
            assert key in found and found[key].seqno >= seqno, key
            assert found[key].seqno > seqno or found[key].value == value, key


async def test_leaders_die_while_clients_put_and_nothing_acknowledged_is_lost(cluster: Cluster, client: Client):
    group = await cluster.create_group(shards=2, kind="Documents")
    async with client.documents(group) as documents:
        putting = Putting(documents)
        async with putting.running():
            await putting.more()
            for shard in (0, 1, 0):
                killed = await cluster.leader(group, shard)
                cluster.kill(killed)
                await putting.more(400)
                await cluster.start(killed)
            await putting.more()
        await putting.check()
        await members_agree(cluster, group, 2, documents.written)


async def test_a_member_is_swapped_under_puts_and_shows_the_pin(cluster: Cluster, client: Client):
    group = await cluster.create_group(kind="Documents")
    async with client.documents(group) as documents:
        old = {b"pinned-%03d" % number: b"old" * 50 for number in range(300)}
        await documents.put_many(old.items())
        pin = await documents.pin("before", 600.0)
        putting = Putting(documents)
        async with putting.running():
            await documents.put_many((key, b"new") for key in old)
            leader, follower, _ = await cluster.members(group)
            (spare,) = await cluster.spares(group)
            swapped = await cluster.cli("swap", group, "0", "--from", follower, "--to", spare, "--json")
            assert swapped.document["ensemble"].count(spare) == 1
            await putting.more()
            cluster.kill(leader)
            await putting.more()
            await cluster.start(leader)
        await putting.check()
        await members_agree(cluster, group, 1, documents.written)
        cut = pin.cuts[0].seqno
        async with open_channel(cluster.address(spare), cluster.runtime.tls) as opened:
            call = documents_pb2_grpc.DocumentsStub(opened).Scan(documents_pb2.ScanDocumentsRequest(
                group=group, pin=documents_pb2.PinnedCut(name="before", at=cut)), timeout=30)
            shown = {each.key: each.value async for page in call for each in page.documents}
        assert shown == old, "the new member shows the cut of a pin that is older than its copy"


async def test_bad_input_is_named_and_changes_nothing(cluster: Cluster, client: Client):
    group = await cluster.create_group(kind="Documents")
    async with client.documents(group) as documents:
        first = await documents.put(b"k", b"v")
        with pytest.raises(ConditionFailed) as failed:
            await documents.put(b"k", b"w", expected=first.seqno + 1)
        assert str(first.seqno) in str(failed.value)
        before = await described(cluster, await cluster.leader(group), group, 0)
        for key, value, options in (
            (b"x" * (KEY_BYTES_MAX + 1), b"v", {}), (b"", b"v", {}), (b"k", bytes(VALUE_BYTES_MAX + 1), {}),
            (b"k", b"v", {"ttl_s": -1.0}), (b"k", b"v", {"durability": "Local"}),
        ):
            with pytest.raises(TidemarkError):
                await documents.put(key, value, **options)
        with pytest.raises(TidemarkError) as wrong:
            client.appender(group)
        assert getattr(wrong.value, "reason", "") == Reason.WRONG_KIND
        after = await described(cluster, await cluster.leader(group), group, 0)
        assert (after.count, after.digest) == (before.count, before.digest) == (1, before.digest)
        found = await documents.get(b"k")
        assert found is not None and (found.seqno, found.value) == (first.seqno, b"v")


async def test_a_group_of_documents_is_shown_as_what_it_is(cluster: Cluster, client: Client):
    group = await cluster.create_group(kind="Documents", shards=3)
    (item,) = [each for each in await cluster.objects("LogGroup") if each["metadata"]["name"] == group]
    assert item["spec"]["kind"] == "Documents"
    assert {each["type"]: each["status"] for each in item["status"]["conditions"]}["Ready"] == "True"
    lineages = set()
    for shard in range(3):
        found = await described(cluster, await cluster.leader(group, shard), group, shard)
        lineages |= {each.lineage for each in found.failover_log}
    assert len(lineages) == 3 and all(len(each) == 16 for each in lineages), "one for each shard"
