"""One Spark session that reads a group, prebuilt Arrow batches and empty sources, in turns, on two cores.

A query ends in Spark's sink `noop`, which takes every row and writes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_ROWS = 1 << 16
SCHEMA = "group string, shard int, offset bigint, epoch bigint, key binary, value binary, timestamp timestamp"


class Prebuilt(DataSource):
    """The ceiling: rows of the same shape, built once for each task and yielded again and again from memory."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return PrebuiltReader(int(self.options["rows"]), int(self.options["tasks"]), int(self.options["bytes"]))


class PrebuiltReader(DataSourceReader):
    def __init__(self, rows: int, tasks: int, value_bytes: int) -> None:
        self.rows, self.tasks, self.value_bytes = rows, tasks, value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.tasks) for _ in range(self.tasks)] if self.rows else []

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        left = partition.value if partition is not None and partition.value else 0  # Spark hands over an empty one
        whole = _rows(min(left, BATCH_ROWS), self.value_bytes)
        while left:
            yield whole.slice(0, min(left, BATCH_ROWS))
            left -= min(left, BATCH_ROWS)


def _rows(count: int, value_bytes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "group": pa.repeat("bench", count), "shard": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()), "epoch": pa.repeat(pa.scalar(1, pa.int64()), count),
        "key": pa.nulls(count, pa.binary()), "value": pa.array([os.urandom(value_bytes)] * count, pa.binary()),
        "timestamp": pa.array(range(count), pa.timestamp("us", tz="UTC"))})


def _seconds(frame: Callable[[], DataFrame]) -> float:
    began = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main(endpoints: str, group: str, small: str, rows: int, value_bytes: int, shards: int, rounds: int) -> None:
    """Print the seconds of each query in each round; the first round warms Spark up and is not among them."""
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate())
    spark.dataSource.register(Prebuilt)

    def tidemark(name: str) -> DataFrame:
        return spark.read.format("tidemark").option("endpoints", endpoints).option("group", name).load()

    def prebuilt(count: int) -> DataFrame:
        options = {"rows": count, "tasks": shards, "bytes": value_bytes}
        return spark.read.format("prebuilt").options(**options).load()

    queries = {
        "tidemark": lambda: tidemark(group), "ceiling": lambda: prebuilt(rows),
        "small": lambda: tidemark(small), "empty": lambda: prebuilt(0)}
    read = tidemark(group).count()
    assert read == rows, f"the group holds {read} rows, not {rows}"
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
