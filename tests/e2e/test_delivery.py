"""Single copy delivery under faults: four readers tail a group while a node that sends is killed, paused, cut off,
slow, damaged or started again; each sees every record once and in order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import tidemark
from tidemark import Client, Record

from tests.waiting import until

from .cluster import Cluster
from .disk import flip_payloads
from .fault_proxy import CLIENT, Network
from .workload import Workload, judge

READERS = 4
SHARDS = 2
SCD_TIMEOUT_S = 1.0


pytestmark = pytest.mark.usefixtures("faultless")


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


class Tail:
    """A reader with connections of its own, and what it has read."""

    def __init__(self, client: Client, group: str, **options: object) -> None:
        timeouts = {"scd_timeout_s": SCD_TIMEOUT_S, "all_send_all_timeout_s": 4.0, "started_timeout_s": 2.0}
        self.client = client
        self.reader = client.read(group, until=None, **{"mode": "scd", **timeouts, **options})
        self.records: list[Record] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for record in self.reader:
            self.records.append(record)

    def alive(self) -> bool:
        if self._task.done():
            self._task.result()
            raise AssertionError("the tail ended")
        return True

    async def more(self, count: int = 100) -> None:
        """Wait for so many more records."""
        wanted = len(self.records) + count
        await self.until(lambda: len(self.records) >= wanted, lambda: f"a tail reads {count} more records")

    async def judge(self, load: Workload) -> int:
        """Wait for every acknowledged record; assert each was read once, each shard in order; return their count."""
        def missing() -> str:
            seen = {(record.shard, record.offset) for record in self.records}
            left = {(place.shard, place.offset) for _, _, place in load.acked} - seen
            return f"every record is read, {len(left)} are missing, the first at {min(left, default=None)}"

        await self.until(lambda: len(self.records) >= len(load.acked), missing)
        judge(self.records, load)
        for shard in range(SHARDS):
            offsets = [record.offset for record in self.records if record.shard == shard]
            assert offsets == sorted(set(offsets))
        return len(load.acked)

    async def until(self, true: Callable[[], bool], what: Callable[[], str]) -> None:
        try:
            await until(lambda: self.alive() and true(), "")
        except AssertionError as error:
            raise AssertionError(f"{error}{what()}; {self.state()}") from error

    def state(self) -> str:
        return f"{self.reader.positions} {self.reader.stats}"

    def heard(self, node: str) -> int:
        """Return how many bytes came from a node."""
        return self.reader.stats.received_from[node]

    async def close(self) -> None:
        await self.reader.close()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.client.close()


class Tails(list[Tail]):
    """All readers of a test."""

    async def more(self, count: int = 100) -> None:
        await asyncio.gather(*(tail.more(count) for tail in self))

    async def judge(self, load: Workload) -> int:
        """Judge every reader; return how many acknowledged records each has read."""
        return min(await asyncio.gather(*(tail.judge(load) for tail in self)))

    def sender(self) -> str:
        """Return the node that most of shard 0 came from so far: at the tail it sends what comes next too."""
        received = sum((tail.reader.cursors[0].stats.received_from for tail in self), Counter[str]())
        return received.most_common(1)[0][0]

    async def fail_over(self) -> None:
        """Wait until every reader has passed over somebody."""
        for tail in self:
            await tail.until(lambda tail=tail: tail.reader.stats.failovers > 0, lambda: "somebody is passed over")

    async def hear(self, node: str) -> None:
        """Wait until every reader hears a node (again)."""
        for tail in self:
            heard = tail.heard(node)
            await tail.until(lambda tail=tail, heard=heard: tail.heard(node) > heard, lambda: f"{node} is heard")


@asynccontextmanager
async def tailing(cluster: Cluster, group: str, **options: object) -> AsyncIterator[Tails]:
    tails = Tails([Tail(await cluster.connect(), group, **options) for _ in range(READERS)])
    try:
        yield tails
    finally:
        await asyncio.gather(*(tail.close() for tail in tails))


@pytest.mark.parametrize("role", ["leader", "sender"])
async def test_killed_and_started_again(cluster: Cluster, client: Client, network: Network, role: str):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            killed = tails.sender() if role == "sender" else await cluster.leader(group)
            cluster.kill(killed)
            await tails.fail_over()
            await tails.more(200)
            await cluster.start(killed)
            await tails.more(200)
            await tails.hear(killed)
        assert await tails.judge(load) > 0


async def test_paused_with_open_sockets(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            paused = tails.sender()
            cluster.pause(paused)
            await tails.fail_over()
            await tails.more(200)
            cluster.resume(paused)
            await tails.more(200)
            await tails.hear(paused)
        assert await tails.judge(load) > 0


async def test_cut_off_from_everybody(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            lost = tails.sender()
            network.cut(lost, CLIENT, "operator", *(name for name in cluster.nodes if name != lost))
            await tails.more(300)
            network.heal()
            await tails.more(200)
            await tails.hear(lost)
        assert await tails.judge(load) > 0


async def test_cut_off_from_readers_alone(cluster: Cluster, client: Client, network: Network):
    """Its peers are content with it, so nothing else will help the readers."""
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            lost = tails.sender()
            for shard in range(SHARDS):  # appends go on
                members = [name for name in await cluster.members(group, shard) if name != lost]
                await cluster.transfer(group, shard, members[0])
            network.cut_one_way(lost, CLIENT)
            await tails.fail_over()
            await tails.more(200)
            network.heal()
            await tails.more(200)
            await tails.hear(lost)
        assert await tails.judge(load) > 0


async def test_connections_that_break_again_and_again(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            for turn in range(6):
                await tails.more(60)
                network.break_off(CLIENT, cluster.nodes[turn % len(cluster.nodes)])
        assert await tails.judge(load) > 0


async def test_slow_on_the_way(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            network.delay(CLIENT, tails.sender(), 0.4)
            await tails.more(300)
            network.heal()
        assert await tails.judge(load) > 0


async def test_damaged_on_disk(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with Workload(client, group) as load:
        await load.more(400)
    await cluster.replicated(group)
    for shard in range(SHARDS):
        victim = (await cluster.members(group, shard))[-1]
        number = await cluster.shard_number(group, shard)
        cluster.kill("operator", victim)
        assert flip_payloads(cluster, victim, number, every=3)
        await cluster.heal()
    async with tailing(cluster, group) as tails:
        assert await tails.judge(load) > 0


async def test_swapped_out(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            for shard in range(SHARDS):
                leaver = (await cluster.members(group, shard))[-1]
                (spare,) = await cluster.spares(group, shard)
                await cluster.change("SWAP", group, shard, from_node=leaver, to_node=spare)
                await tails.more()
        assert await tails.judge(load) > 0
        assert all(tail.reader.stats.rewinds["ENSEMBLE"] for tail in tails)


async def test_readers_that_want_everything_from_everybody(cluster: Cluster, client: Client, network: Network):
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group, mode="all") as tails:
        async with Workload(client, group) as load:
            await tails.more()
            cluster.kill(tails.sender())
            await tails.more(200)
        assert await tails.judge(load) > 0
        for tail in tails:     # duplicates are entries, and the slower the machine the more records an entry has
            await tail.until(
                lambda tail=tail: tail.reader.stats.received_over_delivered > 1.5, lambda: "two members send each byte")
            assert tail.reader.stats.duplicates > 0


async def test_a_reader_may_change_its_mind(cluster: Cluster, client: Client, network: Network):
    """Positions of one mode go on in another."""
    group = await cluster.create_group(shards=SHARDS)
    async with Workload(client, group) as load:
        await load.more(300)
    records: list[Record] = []
    positions: dict[int, int] | str = tidemark.EARLIEST
    for turn, mode in enumerate(("scd", "leader", "all", "scd"), start=1):
        reader = client.read(group, from_=positions, mode=mode)
        async for record in reader:
            records.append(record)
            if turn < 4 and len(records) >= turn * 60:
                break
        await reader.close()
        positions = reader.positions
    judge(records, load)
    assert turn == 4 and len(records) == len(load.acked), "four readers, one after the other, have read all"
