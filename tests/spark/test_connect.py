"""The source under Spark Connect: a client without a JVM of its own, and a server that finds the source by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread

from .log.stored import batch_of

pytestmark = pytest.mark.servers

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

endpoints, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"endpoints": endpoints, "group": "orders", "startingOffsets": "earliest"}
batch = spark.read.format("tidemark").options(**options).load()
read = sorted([row.shard, row.offset] for row in batch.select("shard", "offset").collect())
stream = spark.readStream.format("tidemark").options(**options).load().select("shard", "offset")
query = (
    stream.writeStream.format("json").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start(folder + "/rows"))
ended = query.awaitTermination(60)
rows = spark.read.schema("shard int, offset bigint").json(folder + "/rows")
streamed = sorted([row.shard, row.offset] for row in rows.collect())
print(json.dumps({"session": type(spark).__module__, "read": read, "ended": ended, "streamed": streamed}))
spark.stop()
"""


def test_batches_and_streams_are_read_over_spark_connect(fake: FakeInAThread, tmp_path: Path) -> None:
    for shard in (0, 1):
        fake.call(fake.added(shard, batch_of([Record(b"%d" % number, None, 1) for number in range(10)])))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(fake.cluster.addresses()), str(tmp_path)], capture_output=True,
        text=True, timeout=100, env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    expected = [[shard, offset] for shard in (0, 1) for offset in range(1, 11)]
    assert told["session"] == "pyspark.sql.connect.session"
    assert told["read"] == expected
    assert told["ended"] and told["streamed"] == expected
