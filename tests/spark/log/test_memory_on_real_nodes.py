"""mode=log in a worker of Spark whose memory is limited: a task holds its window, however long its range is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tidemark
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest

pytestmark = pytest.mark.servers
RECORD_BYTES = 1 << 20
LOG_BYTES, WORKER_BYTES = 5 << 30, 1 << 30
AT_ONCE = 64
# Spark limits the address space, of which glibc would reserve 64 MiB for every thread.
ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "MALLOC_ARENA_MAX": "2"}

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, length, sum

endpoints, bytes_ = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.pyspark.memory", bytes_ + "b")
    .getOrCreate())


def limits(_):
    import resource

    yield resource.getrlimit(resource.RLIMIT_AS)[0]


limit = max(spark.sparkContext.parallelize([0], 1).mapPartitions(limits).collect())
rows = spark.read.format("tidemark").options(endpoints=endpoints, group="orders").schema("value binary").load()
found = rows.select(count("*").alias("count"), sum(length(col("value"))).alias("bytes")).first()
print(json.dumps({"limit": limit, "count": found["count"], "bytes": found["bytes"]}))
spark.stop()
"""


async def fill(endpoints: list[str]) -> int:
    """Append records that take little room where they are compressed, so that it takes seconds; return their number."""
    records = LOG_BYTES // RECORD_BYTES
    async with await tidemark.connect(endpoints) as client:
        await until(lambda: client.routing.leader("orders", 1) is not None)
        async with client.appender("orders", timeout_s=120) as appender:
            for first in range(0, records, AT_ONCE):
                await appender.append_batch([
                    b"%08d" % number + bytes(RECORD_BYTES - 64) for number in range(first, first + AT_ONCE)])
    return records


@pytest.mark.timeout(400)
async def test_five_gib_are_read_by_workers_of_one_gib(tmp_path: Path) -> None:
    runtime = await local.up(tmp_path / "cluster", nodes=3, cluster="real")
    try:
        await runtime.apply(manifest("orders"))
        records = await fill(runtime.bootstrap())
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", PROGRAM, ",".join(runtime.bootstrap()), str(WORKER_BYTES)],
            capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False,
            env={**os.environ, **ENVIRONMENT})
    finally:
        await local.down(tmp_path / "cluster", wipe=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"limit": WORKER_BYTES, "count": records, "bytes": records * (RECORD_BYTES - 56)}
