"""The sink on real node processes: a stream is stopped in the middle of batches and started again while leaders die."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import tidemark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest

pytestmark = [pytest.mark.servers, pytest.mark.full]
PATIENCE_S = 120
FILES, ROWS = 40, 500


class Job:
    """A query from text files into the group, which it goes on with from its checkpoint, a file in each batch."""

    def __init__(self, spark: SparkSession, endpoints: str, folder: Path) -> None:
        self.spark, self.endpoints, self.folder = spark, endpoints, folder
        (folder / "files").mkdir()
        for number in range(FILES):
            rows = range(number * ROWS, (number + 1) * ROWS)
            (folder / "files" / f"{number:03}.txt").write_text("\n".join(map(str, rows)))

    def start(self) -> StreamingQuery:
        frame = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "files"))
        return (
            frame.repartition(2, "value").selectExpr("value", "value as key").writeStream.format("tidemark")
            .options(endpoints=self.endpoints, group="orders", checkpointLocation=str(self.folder / "checkpoint"))
            .trigger(availableNow=True).start())


async def values_of(client: tidemark.Client) -> list[int]:
    return [int(record.value) async for record in client.read("orders")]


async def leader_of(client: tidemark.Client, shard: int) -> str:
    return str((await until(lambda: client.routing.leader("orders", shard))).node)


async def another_leader(client: tidemark.Client, shard: int, than: str) -> None:
    await until(
        lambda: (leader := client.routing.leader("orders", shard)) and leader.node != than, timeout_s=PATIENCE_S)


@pytest.mark.timeout(400)
async def test_p15_a_stream_that_is_stopped_anywhere_while_leaders_die_writes_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    runtime = await local.up(tmp_path / "cluster", nodes=3, cluster="real")
    try:
        await runtime.apply(manifest("orders"))
        job = Job(spark, ",".join(runtime.bootstrap()), tmp_path)
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await leader_of(client, 0)      # the map has the group then
            await leader_of(client, 1)

            async def killed() -> None:
                node = await leader_of(client, 0)
                await asyncio.to_thread(runtime.kill, node)
                await another_leader(client, 0, node)
                await runtime.start(node)

            async def paused() -> None:
                node = await leader_of(client, 1)
                await asyncio.to_thread(runtime.pause, node)
                await another_leader(client, 1, node)
                await asyncio.to_thread(runtime.resume, node)

            async def undisturbed() -> None:
                pass

            faults: list[Callable[[], Awaitable[None]]] = [undisturbed, killed, paused, undisturbed]
            for fault in faults:
                there = len(await values_of(client))
                query = job.start()
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        while len(await values_of(client)) < there + ROWS:
                            assert query.exception() is None
                    await fault()
                finally:
                    await asyncio.to_thread(query.stop)     # in the middle of a batch, as a rule
            there = len(await values_of(client))
            last = job.start()
            assert await asyncio.to_thread(last.awaitTermination, PATIENCE_S), "the run ends"
            found = await values_of(client)
    finally:
        await local.down(tmp_path / "cluster", wipe=True)
    assert there < FILES * ROWS, "the faults came while rows were left"
    assert Counter(found) == dict.fromkeys(range(FILES * ROWS), 1)
