"""mode=keyspace in queries of a real Spark session, over a fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.fake_in_a_thread import FakeInAThread

STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(50)}


def test_p26_a_query_shows_each_key_once_with_its_range(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    async def add() -> None:
        fake.cluster.add_keyspace("carts", 4).strings = dict(STORED)

    fake.call(add())
    reader = spark.read.format("tidemark").options(endpoints=fake.address, keyspace="carts", mode="keyspace")
    frame = reader.load()
    found = frame.collect()
    assert len(found) == 50 and {bytes(row.key): bytes(row.value) for row in found} == STORED
    assert frame.rdd.getNumPartitions() == 4 and {row.range for row in found} == {0, 1, 2, 3}
    fewer = reader.option("maxPartitions", 2).option("valueFormat", "json").schema(
        "range int, value struct<number: int>").load()
    assert fewer.rdd.getNumPartitions() == 2
    (row,) = fewer.where("range < 4").selectExpr("count(*)", "sum(value.number)").collect()
    assert tuple(row) == (50, sum(range(50)))
    with pytest.raises(PySparkException, match="no keyspace is named 'orders'; there are: carts"):
        reader.option("keyspace", "orders").load().collect()
    stream = spark.readStream.format("tidemark").options(keyspace="carts", mode="keyspace").load()
    with pytest.raises(StreamingQueryException, match="Keyspaces have no change stream"):
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().awaitTermination()
