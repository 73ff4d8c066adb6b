"""mode=log in a streaming query on real node processes: a leader is killed while the query goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tidemark
from pyspark.sql import SparkSession
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest

pytestmark = pytest.mark.servers
ROUND, AFTER_THE_KILL = 50, 20


async def test_a_stream_reads_each_offset_once_while_a_leader_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    runtime = await local.up(tmp_path / "cluster", nodes=3, cluster="real")
    query: Any = None
    try:
        await runtime.apply(manifest("orders"))
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await until(lambda: client.routing.leader("orders", 1) is not None)
            rows = (
                spark.readStream.format("tidemark").option("endpoints", ",".join(runtime.bootstrap()))
                .option("group", "orders").option("startingOffsets", "earliest").load()
                .select("shard", "offset", "value"))
            query = (
                rows.writeStream.format("memory").queryName("streamed")
                .option("checkpointLocation", str(tmp_path / "checkpoint")).start())
            acked = await append_over_a_kill(runtime, client, query)
            last = await asyncio.gather(*(client.latest("orders", shard) for shard in (0, 1)))
        await asyncio.to_thread(query.processAllAvailable)
        read = [(row.shard, row.offset, bytes(row.value)) for row in spark.sql("select * from streamed").collect()]
        assert sorted((shard, offset) for shard, offset, _ in read) == sorted(acked), "each record once"
        assert {(shard, offset): value for shard, offset, value in read} == acked
        assert all(offset <= last[shard] for shard, offset in acked)
    finally:
        if query is not None:
            query.stop()
        await local.down(tmp_path / "cluster", wipe=True)


async def append_over_a_kill(
    runtime: local.Runtime, client: tidemark.Client, query: Any
) -> dict[tuple[int, int], bytes]:
    """Append rounds, kill the leader of shard 0 when the query has taken something, and append on."""
    acked: dict[tuple[int, int], bytes] = {}

    async def append(number: int) -> None:
        values = [b"%d:%d" % (number, each) for each in range(ROUND)]
        for value, place in zip(values, await appender.append_batch(values), strict=True):
            acked[place.shard, place.offset] = value

    async with client.appender("orders", timeout_s=60) as appender:
        await append(0)
        await until(lambda: any(each["numInputRows"] for each in query.recentProgress), timeout_s=60)
        leader = client.routing.leader("orders", 0)
        assert leader is not None
        await asyncio.to_thread(runtime.kill, leader.node)
        for number in range(1, AFTER_THE_KILL):
            await append(number)
    return acked
