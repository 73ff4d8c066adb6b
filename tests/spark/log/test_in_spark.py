"""mode=log in a batch query of a real Spark session, over a fake cluster that tests script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import wait_until

from .stored import batch_of

RECORDS = [
    Record(b'{"number": %d, "name": "%s"}' % (number, b"x" * (number % 7)),
           b"k%d" % (number % 10) if number % 3 else None,
           1_700_000_000_000_000 + number, (("h", b"%d" % number),) if number % 5 == 0 else None)
    for number in range(3000)]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeInAThread]:
    """Three nodes; shard 0 has even records, shard 1 odd ones, shard 2 none."""
    started = FakeInAThread(shards=3, nodes=3)
    for first in range(0, len(RECORDS), 100):
        some = RECORDS[first:first + 100]
        for shard in (0, 1):
            started.call(started.added(shard, batch_of(some[shard::2])))
    yield started
    started.stop()


def read(spark: SparkSession, fake: FakeInAThread, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("tidemark").options(
        **{"endpoints": ",".join(fake.cluster.addresses()), "group": "orders", **options})
    return (reader.schema(schema) if schema else reader).load()


def test_a_batch_equals_the_store(spark: SparkSession, fake: FakeInAThread) -> None:
    rows = read(spark, fake, includeHeaders="true", minPartitions="5").collect()
    found = {(row.shard, row.offset): row for row in rows}
    assert len(rows) == len(found) == len(RECORDS)
    for number, record in enumerate(RECORDS):
        row = found[number % 2, 1 + number // 2]
        assert (row.group, row.epoch) == ("orders", 1)
        assert (row.key and bytes(row.key), bytes(row.value)) == (record.key, record.value)
        headers = row.headers and tuple((each.key, bytes(each.value)) for each in row.headers)
        assert headers == record.headers
    micros = read(spark, fake).selectExpr("unix_micros(timestamp) as at").agg({"at": "sum"}).first()
    assert micros is not None and micros[0] == sum(record.timestamp_us or 0 for record in RECORDS)


def test_sql_over_columns_of_a_schema(spark: SparkSession, fake: FakeInAThread) -> None:
    frame = read(spark, fake, "value struct<number: bigint, name: string>, key binary", valueFormat="json")
    frame.createOrReplaceTempView("orders")
    (row,) = spark.sql(
        "select count(*), sum(value.number), max(length(value.name)), count(key), sum(if(key = X'6b31', 1, 0)) "
        "from orders").collect()
    keys = [record.key for record in RECORDS]
    assert tuple(row) == (
        len(RECORDS), sum(range(len(RECORDS))), 6, sum(key is not None for key in keys), keys.count(b"k1"))


def test_p12_limit_leaves_no_stream_on_any_node(spark: SparkSession, fake: FakeInAThread) -> None:
    assert read(spark, fake).limit(10).count() == 10
    assert len(read(spark, fake).take(10)) == 10
    wait_until(lambda: not any(node.delivery.streams for node in fake.cluster.nodes.values()))


def test_p13_a_task_that_fails_once_leaves_no_half_batch(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    mark = tmp_path / "failed"

    def once(offset: int) -> int:
        if offset == 1400 and not mark.exists():
            mark.touch()
            raise RuntimeError("once")
        return offset

    seen = udf(once, "bigint", useArrow=False)(col("offset"))
    failing = read(spark, fake, "shard int, offset bigint").withColumn("seen", seen)
    rows = sorted((row.shard, row.seen) for row in failing.collect())
    assert mark.exists()
    assert rows == [(shard, 1 + number) for shard in (0, 1) for number in range(len(RECORDS) // 2)]


def test_a_group_without_records_and_wrong_values_and_lost_offsets_in_spark(
    spark: SparkSession, fake: FakeInAThread
) -> None:
    only_shard_2 = '{"orders": {"0": 0, "1": 0, "2": -1}}'
    assert read(spark, fake, endingOffsets=only_shard_2).collect() == []
    with pytest.raises(PySparkException, match=r"the value at offset 1 of shard [01] of group 'orders' does not fit"):
        read(spark, fake, "value struct<number: string>", valueFormat="json").collect()
    beyond = '{"orders": {"0": 0, "1": 0, "2": 99}}'
    with pytest.raises(PySparkException, match="shard 2 of group 'orders' ends at offset 1, below 99"):
        read(spark, fake, startingOffsets=beyond).collect()
    assert read(spark, fake, startingOffsets=beyond, failOnDataLoss="false").count() == len(RECORDS)
