"""One Spark session that reads a log, documents, prebuilt Arrow batches and empty sources, in turns, on two cores.

A query ends in Spark's sink `noop`, which takes every row and writes nothing.  Where Kafka runs, the session first
copies the log into a topic, and Spark's own Kafka source takes turns too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import tidemark.sync
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_ROWS = 1 << 16
TOPIC = "bench"
PRODUCER = {"kafka.batch.size": "110000", "kafka.linger.ms": "20"}
"""Settings of Spark's Kafka sink that make batches as large as the 500 records of the log's; else its defaults."""
SCHEMAS = {
    "log": "group string, shard int, offset bigint, epoch bigint, key binary, value binary, timestamp timestamp",
    "documents": "key binary, value binary, seqno bigint",
}


class Prebuilt(DataSource):
    """The ceiling: rows of the same shape, built once for each task and yielded again and again from memory."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return SCHEMAS[self.options["mode"]]

    def reader(self, schema: Any) -> DataSourceReader:
        rows, tasks, value_bytes = (int(self.options[name]) for name in ("rows", "tasks", "bytes"))
        return PrebuiltReader(rows, tasks, value_bytes, self.options["mode"])


class PrebuiltReader(DataSourceReader):
    def __init__(self, rows: int, tasks: int, value_bytes: int, mode: str) -> None:
        self.rows, self.tasks, self.value_bytes, self.mode = rows, tasks, value_bytes, mode

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.tasks) for _ in range(self.tasks)] if self.rows else []

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        left = partition.value if partition is not None and partition.value else 0  # Spark hands over an empty one
        whole = BUILDERS[self.mode](min(left, BATCH_ROWS), self.value_bytes)
        while left:
            yield whole.slice(0, min(left, BATCH_ROWS))
            left -= min(left, BATCH_ROWS)


def _records(count: int, value_bytes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "group": pa.repeat("bench", count), "shard": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()), "epoch": pa.repeat(pa.scalar(1, pa.int64()), count),
        "key": pa.nulls(count, pa.binary()), "value": pa.array([os.urandom(value_bytes)] * count, pa.binary()),
        "timestamp": pa.array(range(count), pa.timestamp("us", tz="UTC"))})


def _documents(count: int, value_bytes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "key": pa.array([key_of(number) for number in range(count)], pa.binary()),
        "value": pa.array([os.urandom(value_bytes)] * count, pa.binary()), "seqno": pa.array(range(count), pa.int64())})


BUILDERS = {"log": _records, "documents": _documents}


def key_of(number: int) -> bytes:
    return b"%012d" % number


def _fill(endpoints: str, group: str, count: int, value_bytes: int) -> None:
    """Put documents of as many bytes as the records of the log, whatever their shards."""
    value = os.urandom(value_bytes)
    with tidemark.sync.connect(endpoints.split(",")) as client, client.documents(group) as documents:
        documents.put_many((key_of(number), value) for number in range(count))


def _copy(log: DataFrame, kafka: str) -> None:
    """Write the records of the log to the topic, each shard to the partition of its number, with Spark's Kafka sink."""
    records = log.select(log.shard.alias("partition"), "key", "value")
    records.write.format("kafka").options(**{"kafka.bootstrap.servers": kafka, "topic": TOPIC}, **PRODUCER).save()


def session(jars: str) -> SparkSession:
    """Start Spark on two cores, with these jars, separated by commas."""
    builder = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1"))
    return (builder.config("spark.jars", jars) if jars else builder).getOrCreate()


def _seconds(frame: Callable[[], DataFrame]) -> float:
    began = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main(
    endpoints: str, group: str, small: str, rows: int, value_bytes: int, shards: int, rounds: int, documents: str,
    count: int, kafka: str = "", jars: str = "",
) -> None:
    """Print the seconds of each query in each round; the first round warms Spark up and is not among them.

    `kafka` names the brokers and `jars` the connector's, where Spark's Kafka source is measured as well.
    """
    _fill(endpoints, documents, count, value_bytes)
    spark = session(jars)
    spark.dataSource.register(Prebuilt)

    def read(name: str, mode: str = "log") -> DataFrame:
        return spark.read.format("tidemark").options(endpoints=endpoints, group=name, mode=mode).load()

    def prebuilt(count: int, mode: str = "log") -> DataFrame:
        return spark.read.format("prebuilt").options(rows=count, tasks=shards, bytes=value_bytes, mode=mode).load()

    def topic() -> DataFrame:
        return spark.read.format("kafka").options(**{"kafka.bootstrap.servers": kafka, "subscribe": TOPIC}).load()

    kafkas: dict[str, Callable[[], DataFrame]] = {"kafka": topic} if kafka else {}
    queries = {
        "tidemark": lambda: read(group), **kafkas, "ceiling": lambda: prebuilt(rows),
        "small": lambda: read(small), "empty": lambda: prebuilt(0),
        "documents": lambda: read(documents, "documents"),
        "documents ceiling": lambda: prebuilt(count, "documents"), "changes": lambda: read(documents, "changes")}
    for name, mode, wanted in ((group, "log", rows), (documents, "documents", count), (documents, "changes", count)):
        found = read(name, mode).count()
        assert found == wanted, f"{name} holds {found} rows, not {wanted}"
    if kafka:
        _copy(read(group), kafka)
        found = topic().count()
        assert found == rows, f"the topic holds {found} records, not {rows}"
    told: dict[str, list[float]] = {name: [] for name in queries}
    for number in range(rounds + 1):
        for name, frame in queries.items():
            seconds = _seconds(frame)
            if number:
                told[name].append(seconds)
    print(json.dumps({"spark": spark.version, "seconds": told}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
