"""Named readers on real processes: killed with their leaders they go on where they were, and the log waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import Client, Gap, GapKind

from tests.waiting import until

from .cluster import Cluster
from .workload import Workload

READER = """
import sys
import tidemark

async def main():
    async with await tidemark.connect(sys.argv[1].split(",")) as client:
        async for record in client.read(sys.argv[2], subscription="one", until=None, auto_commit_s=0.1):
            print(record.shard, record.offset, flush=True)

tidemark.run(main())
"""
HALF_MIB = 1 << 19


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


class Reading:
    """A reader in a process of its own, and the (shard, offset) of everything it wrote."""

    def __init__(self, cluster: Cluster, group: str, output: Path) -> None:
        self._addresses = ",".join(cluster.address(name) for name in cluster.nodes)
        self._group = group
        self._output = output
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        with self._output.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", READER, self._addresses, self._group, stdout=output,
            )

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    def on_both(self) -> bool:
        return {0, 1} == {shard for shard, _ in self.seen()}

    def seen(self) -> list[tuple[int, int]]:
        whole = self._output.read_text().rpartition("\n")[0]
        return [(int(shard), int(offset)) for shard, offset in map(str.split, whole.splitlines())]


async def standing(client: Client, group: str) -> dict[int, int]:
    """Where the subscription `one` stands, by shard; asked of the leaders."""
    seen = await client.subscriptions(group)
    return {shard: each.offset for shard, view in seen.items() for each in view.subscriptions if each.name == "one"}


async def first_of(cluster: Cluster, group: str) -> int:
    return int((await cluster.replica(await cluster.leader(group), group)).get("first", -1))


async def append(client: Client, group: str, count: int) -> list[int]:
    """Append records that do not compress, one a batch; return their offsets."""
    async with client.appender(group, batch_records=1) as appender:
        return [(await appender.append(os.urandom(HALF_MIB))).offset for _ in range(count)]


async def test_a_reader_killed_with_its_leader_reads_on_and_skips_nothing(
    cluster: Cluster, client: Client, tmp_path: Path
):
    group = await cluster.create_group(shards=2)
    lives: list[list[tuple[int, int]]] = []
    stood: dict[int, int] = {}
    async with Workload(client, group, per_second=150) as load:
        for life in range(4):
            reading = Reading(cluster, group, tmp_path / f"life-{life}")
            await reading.start()
            await until(reading.on_both, "both shards are read")
            if life % 2:
                killed = await cluster.leader(group)
                cluster.kill(killed)
                await load.more_on_every_shard()
                await cluster.start(killed)

            async def moved(before: dict[int, int] = stood) -> bool:
                now = await standing(client, group)
                return len(now) == 2 and all(now[shard] > before.get(shard, 0) for shard in now)

            await until(moved, "the subscription moves on")
            await reading.kill()
            seen = reading.seen()
            for shard in (0, 1):
                offsets = [offset for each, offset in seen if each == shard]
                assert sorted(set(offsets)) == offsets, "a life reads in order, and nothing twice"
                assert offsets[0] >= stood.get(shard, 0), "what was committed is not read again"
            lives.append(seen)
            now = await standing(client, group)
            assert all(now[shard] >= stood.get(shard, 0) for shard in (0, 1)), "a committed position never goes back"
            ends = {shard: max(o for life_ in lives for s, o in life_ if s == shard) for shard in (0, 1)}
            assert all(now[shard] <= ends[shard] + 1 for shard in (0, 1)), "no more is committed than was handed out"
            stood = now
    async for record in client.read(group, subscription="one"):
        lives[-1].append((record.shard, record.offset))
    read = {place for life_ in lives for place in life_}
    assert read == {(place.shard, place.offset) for _, _, place in load.acked}


async def test_a_pin_holds_the_log_and_the_hard_bound_leaves_one_gap(cluster: Cluster, client: Client):
    group = await cluster.create_group(retention={"seconds": 0, "size": "2Mi", "maxSize": "8Mi"})
    offsets = await append(client, group, 2)
    assert offsets == [record.offset async for record in client.read(group, subscription="slow")]
    stands = (await client.subscriptions(group))[0].subscriptions[0].offset
    offsets = await append(client, group, 10)
    leader = await cluster.leader(group)

    async def blocked() -> list[str]:
        return [told for told in await cluster.told(leader, "retention_blocked") if "'slow'" in told]

    assert f"subscription 'slow' stands at {stands}" in (await until(blocked, "retention says who holds it up"))[0]
    assert await first_of(cluster, group) <= stands
    assert await cluster.metric(leader, "tidemark_subscription_pinned_bytes") > 5 * HALF_MIB * 2

    offsets += await append(client, group, 14)
    await until(lambda: cluster.metric(leader, "tidemark_pin_overruns_total"), "the hard bound overruns the pin")
    first = await first_of(cluster, group)
    assert stands < first
    seen = [item async for item in client.read(group, subscription="slow", gaps=True)]
    gaps = [item for item in seen if isinstance(item, Gap)]
    assert [(GapKind.TRIM, stands)] == [(gap.kind, gap.first) for gap in gaps]
    assert [offset for offset in offsets if offset > gaps[0].last] == [
        item.offset for item in seen if not isinstance(item, Gap)
    ]
    assert [] == [record async for record in client.read(group, subscription="slow")], "it is met once"


async def test_an_expired_lease_lets_go(cluster: Cluster, client: Client):
    group = await cluster.create_group(retention={"seconds": 0, "size": "2Mi"})
    await append(client, group, 2)
    async for _ in client.read(group, subscription="gone", lease_s=1):
        pass
    (view,) = (await client.subscriptions(group)).values()
    stands = view.subscriptions[0].offset
    await append(client, group, 10)

    async def trimmed() -> bool:
        return await first_of(cluster, group) > stands

    await until(trimmed, "retention no longer waits", timeout_s=90)
    await append(client, group, 1)
    assert () == (await client.subscriptions(group))[0].subscriptions, "the log has outlived it"


async def test_what_is_committed_and_deleted_outlives_leaders(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    await append(client, group, 2)
    assert 2 == await client.commit_position(group, 0, "kept", 2)
    assert 1 == await client.commit_position(group, 0, "dropped", 1)
    assert [0] == await client.delete_subscription(group, "dropped")
    for _ in range(2):
        killed = await cluster.leader(group)
        cluster.kill(killed)
        (view,) = (await client.subscriptions(group, timeout_s=40)).values()
        assert [("kept", 2)] == [(each.name, each.offset) for each in view.subscriptions]
        await cluster.start(killed)
    listed = await cluster.cli("subscriptions", "list", group, "--json")
    assert [("kept", 2)] == [
        (each["name"], each["offset"]) for each in listed.document["shards"][0]["subscriptions"]
    ]
