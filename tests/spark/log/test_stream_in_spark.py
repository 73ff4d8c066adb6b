"""mode=log in streaming queries of a real Spark session, over a fake cluster that tests script."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark_tidemark.progress import TidemarkProgressListener
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import wait_until

from .stored import batch_of

GOLDEN = Path(__file__).parent / "data" / "checkpoint-1"
"""The checkpoint of a query that had read offsets 0 to 5 of shard 0 and 0 to 3 of shard 1, as version 1 wrote it."""

PATIENCE_S = 60


def fill(fake: FakeInAThread, count: int, shard: int) -> None:
    for first in range(0, count, 10):
        fake.call(fake.added(shard, batch_of([Record(b"%d" % number, None, 1) for number in range(first, first + 10)])))


class Sink:
    """Rows of a query, by micro-batch, as its files say; a query that starts again goes on in the same place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"

    def run(self, frame: DataFrame) -> StreamingQuery:
        """Run a query to the end of what is there."""
        query = (
            frame.select("shard", "offset").writeStream.format("json")
            .option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
            .start(str(self.folder / "rows")))
        assert query.awaitTermination(PATIENCE_S), "the run ends"
        return query

    def rows(self) -> list[tuple[int, int]]:
        """Return what was written, repetitions included, sorted."""
        lines = [line for file in (self.folder / "rows").glob("part-*.json") for line in file.read_text().splitlines()]
        return sorted((row["shard"], row["offset"]) for row in map(json.loads, lines))


def stream(spark: SparkSession, fake: FakeInAThread, name: str = "", **options: str) -> DataFrame:
    reader = spark.readStream.format("tidemark").options(**{
        "endpoints": ",".join(fake.cluster.addresses()), "group": "orders", "startingOffsets": "earliest", **options})
    return (reader.name(name) if name else reader).load()


def test_a_limited_run_and_a_restart_read_each_offset_once(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    fill(fake, 60, shard=0)
    fill(fake, 20, shard=1)
    sink = Sink(tmp_path)
    first = sink.run(stream(spark, fake, maxOffsetsPerTrigger="30"))
    expected = [(0, offset) for offset in range(1, 61)] + [(1, offset) for offset in range(1, 21)]
    assert sink.rows() == expected
    assert [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]] == [28, 30, 22]
    fill(fake, 10, shard=1)
    second = sink.run(stream(spark, fake, minPartitions="4"))
    assert sink.rows() == [*expected, *((1, offset) for offset in range(21, 31))]
    end = second.recentProgress[-1]["sources"][0]["endOffset"]
    assert (json.loads(end) if isinstance(end, str) else end) == {
        "group": "orders", "groupId": 1, "minPartitions": 4, "shards": {"0": 61, "1": 31}, "version": 2}


def test_p18_a_listener_tells_the_lag_of_a_limited_query(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    listener = TidemarkProgressListener(registry)
    fill(fake, 40, shard=0)
    fill(fake, 20, shard=1)
    labels = {"query": "orders to noop", "group": "orders"}
    spark.streams.addListener(listener)
    with caplog.at_level(logging.INFO, "pyspark_tidemark"):
        query = (
            stream(spark, fake, maxOffsetsPerTrigger="30").writeStream.format("noop").queryName("orders to noop")
            .option("checkpointLocation", str(tmp_path)).start())
        try:
            wait_until(lambda: registry.get_sample_value("tidemark_spark_rows_total", labels) == 60)
            lags = [
                registry.get_sample_value("tidemark_spark_lag_offsets", {**labels, "shard": shard}) for shard in "01"]
        finally:
            query.stop()
        wait_until(lambda: registry.get_sample_value("tidemark_spark_rows_total", labels) is None)
    spark.streams.removeListener(listener)
    assert lags == [0, 0]
    assert [record.message for record in caplog.records if record.name == "pyspark_tidemark"] == [
        f"query orders to noop, batch {number}: group 'orders' is read up to {lag} offsets before its end ({shards})"
        for number, (lag, shards) in enumerate([
            (32, "shard 0: 21, shard 1: 11"), (2, "shard 0: 1, shard 1: 1"), (0, "shard 0: 0, shard 1: 0")])]


def test_p20_a_checkpoint_of_version_1_is_read_on(spark: SparkSession, fake: FakeInAThread, tmp_path: Path) -> None:
    fill(fake, 10, shard=0)
    fill(fake, 10, shard=1)
    sink = Sink(tmp_path)
    shutil.copytree(GOLDEN, sink.checkpoint)
    sink.run(stream(spark, fake))
    assert sink.rows() == [(0, offset) for offset in range(6, 11)] + [(1, offset) for offset in range(4, 11)]
    assert (sink.checkpoint / "offsets" / "1").is_file()


def test_p20_a_source_with_a_name_reads_on_under_it(spark: SparkSession, fake: FakeInAThread, tmp_path: Path) -> None:
    evolution = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(evolution, "true")
    try:
        sink = Sink(tmp_path)
        for _ in range(2):
            fill(fake, 10, shard=0)
            sink.run(stream(spark, fake, name="orders"))
        assert sink.rows() == [(0, offset) for offset in range(1, 21)]
    finally:
        spark.conf.unset(evolution)


def test_p20_a_checkpoint_of_another_group_stops_the_query(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    sink = Sink(tmp_path)
    shutil.copytree(GOLDEN, sink.checkpoint)
    stored = sink.checkpoint / "offsets" / "0"
    stored.write_text(stored.read_text().replace("orders", "others"))
    (sink.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="belongs to group 'others', and the query reads 'orders'"):
        sink.run(stream(spark, fake))


def test_p10_a_stream_whose_offsets_are_gone_fails_or_goes_on(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    fill(fake, 20, shard=0)
    sink = Sink(tmp_path)
    sink.run(stream(spark, fake))
    fill(fake, 20, shard=0)
    fake.shard(0).trimmed_to = 31
    with pytest.raises(StreamingQueryException, match="were removed by retention"):
        sink.run(stream(spark, fake))
    sink.run(stream(spark, fake, failOnDataLoss="false"))
    assert sink.rows() == [(0, offset) for offset in (*range(1, 21), *range(31, 41))]
