"""Client on real node processes: leaders killed, paused and stopped gracefully while writers and a tail go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark
from tidemark import LOCAL, Record
from tidemark_operator import local

from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.servers
PACE_S = 0.002  # each writer pauses so long between appends: the load need not fill the machine
WRITERS = 12


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[local.Runtime]:
    started = await local.up(tmp_path, nodes=4, cluster="real")
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": "orders"},
        "spec": {
            "clusterRef": {"name": "real"}, "shards": 3,
            "replication": {"factor": 3, "defaultAck": "Quorum", "spread": "Node"},
        },
    }
    try:
        await started.apply(json.dumps(manifest))
        yield started
    finally:
        await local.down(tmp_path, wipe=True)


@pytest.fixture
async def client(runtime: local.Runtime) -> AsyncIterator[tidemark.Client]:
    async with await tidemark.connect(runtime.bootstrap()) as opened:
        async with asyncio.timeout(20):
            while len((await opened.group("orders")).shards) < 3 or leader(opened, 0) is None:
                await opened.routing.wait_changed(0.1)
        yield opened


def leader(client: tidemark.Client, shard: int) -> str | None:
    found = client.routing.leader("orders", shard)
    return found.node if found else None


class Load:
    """Writers that each append numbers under a key of their own, and what was acknowledged to them."""

    def __init__(self, client: tidemark.Client) -> None:
        self.client = client
        self.stop = asyncio.Event()
        self.acked: dict[tuple[int, int], bytes] = {}
        self.numbers = [0] * WRITERS

    async def run(self) -> None:
        async with self.client.appender("orders", timeout_s=60) as appender:
            await asyncio.gather(*(self._write(appender, writer) for writer in range(WRITERS)))

    async def _write(self, appender: tidemark.Appender, writer: int) -> None:
        while not self.stop.is_set():
            value = b"%d:%d" % (writer, self.numbers[writer])
            place = await appender.append(value, key=b"w%d" % writer)
            self.numbers[writer] += 1
            assert (place.shard, place.offset) not in self.acked, "two appends were answered with one place"
            self.acked[place.shard, place.offset] = value
            await asyncio.sleep(PACE_S)

    async def progress(self, count: int = 200) -> None:
        """Wait for so many more acknowledgements on every shard together."""
        goal = len(self.acked) + count
        await until(lambda: len(self.acked) >= goal, f"{goal} appends are acknowledged")

    def check(self, records: list[Record]) -> None:
        assert {(r.shard, r.offset): r.value for r in records} == self.acked
        assert len(records) == len(self.acked) == sum(self.numbers)
        by_writer: dict[bytes | None, list[int]] = {}
        for record in records:
            by_writer.setdefault(record.key, []).append(int(record.value.partition(b":")[2]))
        assert all(numbers == list(range(len(numbers))) for numbers in by_writer.values())


async def test_killed_paused_and_stopped_leaders_lose_and_repeat_nothing(
    runtime: local.Runtime, client: tidemark.Client
):
    load = Load(client)
    writing = asyncio.create_task(load.run())
    tailed: list[Record] = []
    reader = client.read("orders", subscription="tail", until=None)

    async def tail() -> None:
        async for record in reader:
            tailed.append(record)

    tailing = asyncio.create_task(tail())
    await load.progress()

    killed = leader(client, 0)
    assert killed is not None
    await asyncio.to_thread(runtime.kill, killed)
    await load.progress(400)
    await runtime.start(killed)
    await load.progress()

    paused = leader(client, 1)
    assert paused is not None
    runtime.pause(paused)
    await load.progress(400)
    runtime.resume(paused)
    await load.progress()

    stopped = leader(client, 2)
    assert stopped is not None
    await runtime.stop(stopped)
    await load.progress(400)
    await runtime.start(stopped)
    await load.progress()

    load.stop.set()
    await asyncio.wait_for(writing, 30)
    records = [record async for record in client.read("orders")]
    load.check(records)
    await until(lambda: len(tailed) >= len(records))
    await reader.commit()
    await reader.close()
    await asyncio.wait_for(tailing, PATIENCE_S)
    assert [] == [record async for record in client.read("orders", subscription="tail")], "the name is at the end"
    load.check(tailed)
    for shard in range(3):
        offsets = [record.offset for record in tailed if record.shard == shard]
        assert offsets == sorted(offsets)


async def test_after_local_appends_and_a_kill_the_shard_goes_on(runtime: local.Runtime, client: tidemark.Client):
    """A lost LOCAL append is reported; what is read is a subset of what was answered, and later appends work."""
    losses: list[tidemark.errors.LocalAppendsLost] = []
    answered: dict[tuple[int, int], bytes] = {}
    async with client.appender("orders", on_loss=losses.append, timeout_s=60) as appender:
        for number in range(300):
            place = await appender.append(b"local %d" % number, key=b"k", durability=LOCAL)
            answered[place.shard, place.offset] = b"local %d" % number
        victim = leader(client, place.shard)
        assert victim is not None
        await asyncio.to_thread(runtime.kill, victim)
        after = await appender.append(b"after", key=b"k")
    records = [record async for record in client.read("orders", shards=[after.shard])]
    assert records[-1].value == b"after"
    kept = records[:-1]
    assert all(answered[record.shard, record.offset] == record.value for record in kept)
    assert len(kept) + sum(loss.records for loss in losses) == 300


async def test_l27_a_named_producer_that_restarts_amid_dying_leaders_copies_each_line_once(
    runtime: local.Runtime, client: tidemark.Client
):
    """Each process leaves batches in flight behind, and the next one reads where to go on."""
    lines, key = 4000, b"file-7"
    starts: list[int] = []
    shard = (await client.group("orders")).shard_of(key)

    async def copy(until_line: int) -> tidemark.Appender:
        """Append up to a line and some more without waiting for them; return the appender, still open."""
        appender = client.appender("orders", batch_records=7, producer=tidemark.ProducerId("copy-job/7"), timeout_s=60)
        last = (await appender.claimed())[shard].last
        start = 0
        if last is not None:
            async for record in client.read("orders", shards=[shard], from_=last.base, until=last.last):
                start = int(record.value) + 1
        starts.append(start)
        sent = [appender.append_nowait(b"%d" % line, key=key) for line in range(start, lines)]
        for each in sent:
            each.add_done_callback(lambda done: done.exception())   # of the older process some fail
        await asyncio.wait_for(asyncio.gather(*sent[: max(0, until_line - start)]), PATIENCE_S)
        return appender

    first = await copy(200)
    second = await copy(600)
    killed = leader(client, shard)
    assert killed is not None
    await asyncio.to_thread(runtime.kill, killed)
    third = await copy(1000)
    fourth = await copy(lines)
    for older in (first, second, third):
        with pytest.raises((tidemark.errors.ProducerFenced, tidemark.errors.ProducerEnded)):
            await asyncio.wait_for(older.append(b"never", key=key), PATIENCE_S)
        await older.close()
    await fourth.close()
    found = [int(record.value) async for record in client.read("orders", shards=[shard])]
    assert found == list(range(lines))
    assert starts == sorted(set(starts)), "each process found more than the one before"
