"""One Spark session that writes the same rows to a log, to Kafka and to a sink that drops them, in turns, on two cores.

The rows lie in Spark's memory before the first write.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from .spark_round import TOPIC, session

TASKS = 2


class Dropping(DataSource):
    """The ceiling: a sink that takes every record batch and keeps none."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return DroppingWriter()


class DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def _seconds(writer: DataFrameWriter) -> float:
    began = time.perf_counter()
    writer.mode("append").save()
    return time.perf_counter() - began


def main(
    endpoints: str, group: str, rows: int, value_bytes: int, rounds: int, kafka: str = "", jars: str = ""
) -> None:
    """Print the seconds of each write in each round; the first round warms Spark up and is not among them.

    `kafka` names the brokers and `jars` the connector's, where Spark's Kafka sink is measured as well.
    """
    spark = session(jars)
    spark.dataSource.register(Dropping)
    value = f"cast(lpad(cast(id as string), {value_bytes}, 'x') as binary) as value"

    def made(*columns: str) -> DataFrame:
        frame = spark.range(rows, numPartitions=TASKS).selectExpr(*columns).cache()
        assert frame.count() == rows
        return frame

    plain, keyed = made(value), made(value, "cast(cast(id as string) as binary) as key")

    def tidemark(frame: DataFrame) -> DataFrameWriter:
        return frame.write.format("tidemark").options(endpoints=endpoints, group=group)

    writes: dict[str, Callable[[], DataFrameWriter]] = {
        "tidemark": lambda: tidemark(plain), "keyed": lambda: tidemark(keyed),
        "dropped": lambda: plain.write.format("dropping")}
    if kafka:
        writes["kafka"] = lambda: plain.write.format("kafka").options(
            **{"kafka.bootstrap.servers": kafka, "topic": TOPIC})
    told: dict[str, list[float]] = {name: [] for name in writes}
    for number in range(rounds + 1):
        for name, writer in writes.items():
            seconds = _seconds(writer())
            if number:
                told[name].append(seconds)
    read = spark.read.format("tidemark").options(endpoints=endpoints, group=group).load().count()
    assert read == 2 * rows * (rounds + 1), f"the log holds {read} rows, not {2 * rows * (rounds + 1)}"
    print(json.dumps({"spark": spark.version, "seconds": told}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
