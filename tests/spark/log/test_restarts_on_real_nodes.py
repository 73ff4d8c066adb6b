"""mode=log on real node processes: a query is stopped and started again while nodes die, stand still and leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import tidemark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest

pytestmark = pytest.mark.servers
PATIENCE_S = 120
BATCH = 40

Acked = dict[tuple[int, int], bytes]
"""Values by shard and offset."""


class Job:
    """A query from the group into JSON files, which it goes on with from its checkpoint."""

    def __init__(self, spark: SparkSession, endpoints: str, folder: Path) -> None:
        self.spark, self.endpoints, self.folder = spark, endpoints, folder

    def start(self, *, to_the_end: bool = False) -> StreamingQuery:
        """Start it in small batches; `to_the_end` lets it end at what is there."""
        reader = (
            self.spark.readStream.format("tidemark").option("endpoints", self.endpoints).option("group", "orders")
            .option("startingOffsets", "earliest"))
        writer = (
            (reader if to_the_end else reader.option("maxOffsetsPerTrigger", 200)).load()
            .selectExpr("shard", "offset", "cast(value as string) as value").writeStream.format("json")
            .option("checkpointLocation", str(self.folder / "checkpoint")))
        return (writer.trigger(availableNow=True) if to_the_end else writer).start(str(self.folder / "rows"))

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Return the rows of the batches that were committed."""
        found = self.spark.read.schema("shard int, offset bigint, value string").json(str(self.folder / "rows"))
        return [(row.shard, row.offset, row.value.encode()) for row in found.collect()]


@contextlib.asynccontextmanager
async def appending(client: tidemark.Client) -> AsyncIterator[Acked]:
    """Append batch after batch for as long as the block lasts; yield what was acknowledged."""
    acked: Acked = {}
    going = True

    async def append() -> None:
        number = 0
        await leader_of(client, 0)      # the map has the group then
        async with client.appender("orders", timeout_s=PATIENCE_S) as appender:
            while going:
                values = [b"%d:%d" % (number, each) for each in range(BATCH)]
                for value, place in zip(values, await appender.append_batch(values), strict=True):
                    acked[place.shard, place.offset] = value
                number += 1

    task = asyncio.create_task(append())
    try:
        yield acked
    finally:
        going = False
        await task


async def leader_of(client: tidemark.Client, shard: int) -> str:
    leader = await until(lambda: client.routing.leader("orders", shard))
    return str(leader.node)


async def another_leader(client: tidemark.Client, shard: int, than: str) -> None:
    await until(
        lambda: (leader := client.routing.leader("orders", shard)) and leader.node != than, timeout_s=PATIENCE_S)


async def swap(runtime: local.Runtime, source: str) -> None:
    """Move every copy away from a node, and wait until that is done."""
    await runtime.apply(json.dumps({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": "swap"},
        "spec": {
            "clusterRef": {"name": "real"}, "type": "NodeSwap",
            "nodeSwap": {"from": source, "to": {"spread": {}}, "removeSource": "Keep"}}}))
    await runtime.wait_for("Reconfiguration", _succeeded, f"{source} is swapped", PATIENCE_S)


def _succeeded(objects: list[dict[str, Any]]) -> bool:
    conditions = [each for item in objects for each in (item.get("status") or {}).get("conditions", ())]
    return any(each["type"] == "Succeeded" and each["status"] == "True" for each in conditions)


@pytest.mark.timeout(400)
async def test_a_query_that_is_restarted_while_nodes_die_and_leave_reads_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    runtime = await local.up(tmp_path / "cluster", nodes=4, cluster="real")
    try:
        await runtime.apply(manifest("orders"))
        job = Job(spark, ",".join(runtime.bootstrap()), tmp_path)
        async with await tidemark.connect(runtime.bootstrap()) as client, appending(client) as acked:
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

            async def swapped() -> None:
                await swap(runtime, await leader_of(client, 0))

            async def undisturbed() -> None:
                pass

            faults: list[Callable[[], Awaitable[None]]] = [killed, swapped, undisturbed, paused, killed]
            for fault in faults:
                query = job.start()
                try:
                    await until(lambda query=query: _took_something(query), timeout_s=PATIENCE_S)
                    await fault()
                    there = len(acked)
                    await until(lambda there=there: len(acked) >= there + 5 * BATCH, timeout_s=PATIENCE_S)
                finally:
                    await asyncio.to_thread(query.stop)     # in the middle of a batch, as a rule
        last = job.start(to_the_end=True)
        assert await asyncio.to_thread(last.awaitTermination, PATIENCE_S), "the run ends"
        rows = await asyncio.to_thread(job.rows)
    finally:
        await local.down(tmp_path / "cluster", wipe=True)
    assert len(acked) >= len(faults) * 5 * BATCH
    assert sorted((shard, offset) for shard, offset, _ in rows) == sorted(acked), "each record once"
    assert {(shard, offset): value for shard, offset, value in rows} == acked


def _took_something(query: StreamingQuery) -> bool:
    return any(each["numInputRows"] for each in query.recentProgress)
