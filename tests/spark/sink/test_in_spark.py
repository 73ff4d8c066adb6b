"""The sink in a Spark session: batches and streams, retried, started again, and refused (P15, P17)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import tidemark.sync
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.fake_in_a_thread import FakeInAThread


def values(fake: FakeInAThread) -> list[int]:
    with tidemark.sync.connect(fake.address) as client:
        return sorted(int(record.value) for record in client.read("orders"))


def numbers(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    found = spark.range(count, numPartitions=parts)
    return found.selectExpr("cast(id as string) as value", "cast(id as string) as key")


def save(frame: DataFrame, fake: FakeInAThread, **options: str) -> None:
    endpoints = ",".join(fake.cluster.addresses())
    frame.write.format("tidemark").options(endpoints=endpoints, group="orders", **options).mode("append").save()


def failing_once(frame: DataFrame, behind: int) -> DataFrame:
    """Let the first attempt of each task end with an error behind so many rows."""
    def pass_on(batches):  # type: ignore[no-untyped-def]
        context = TaskContext.get()
        assert context is not None
        left = behind
        for batch in batches:
            if context.attemptNumber() == 0 and batch.num_rows > left:
                yield batch.slice(0, left)
                raise RuntimeError("the task fails")
            left -= batch.num_rows
            yield batch

    return frame.mapInArrow(pass_on, frame.schema)


def test_p15_a_write_appends_each_row_once_though_each_task_fails_once(
    spark: SparkSession, fake: FakeInAThread
) -> None:
    save(failing_once(numbers(spark, 3000), 700), fake)
    assert values(fake) == list(range(3000))


def test_p15_a_write_with_an_id_goes_on_and_one_without_is_a_new_one(spark: SparkSession, fake: FakeInAThread) -> None:
    for _ in range(2):
        save(numbers(spark, 40), fake, writeId="nightly 7")
    assert values(fake) == list(range(40))
    save(numbers(spark, 40), fake)
    assert Counter(values(fake)) == dict.fromkeys(range(40), 2)
    with pytest.raises(PySparkException, match="NONDETERMINISTIC_RETRY"):
        save(numbers(spark, 41), fake, writeId="nightly 7")


def test_p16_a_write_that_is_repeated_with_fewer_tasks_is_refused(spark: SparkSession, fake: FakeInAThread) -> None:
    read = spark.read.format("tidemark").options(endpoints=fake.address, group="orders", committedBatches="true")
    save(numbers(spark, 40), fake, writeId="nightly")
    assert read.load().count() == 40
    with pytest.raises(PySparkException, match="NONDETERMINISTIC_RETRY: batch 0 of sink 'nightly'"):
        save(numbers(spark, 40).where("value < 26").coalesce(2), fake, writeId="nightly")
    assert values(fake) == list(range(40))


def test_p15_a_stream_writes_each_row_once_though_it_is_started_again(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    """The last batch is written, and its end not noted: Spark writes it once more."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def run() -> None:
        frame = spark.readStream.schema("value string").text(str(source))
        query = (
            frame.writeStream.format("tidemark")
            .options(endpoints=",".join(fake.cluster.addresses()), group="orders")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
        query.awaitTermination()

    source.mkdir()
    (source / "1.txt").write_text("\n".join(map(str, range(500))))
    run()
    (source / "2.txt").write_text("\n".join(map(str, range(500, 900))))
    run()
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert values(fake) == list(range(900))


@pytest.mark.parametrize(("schema", "options", "said"), [
    ("value binary, offset bigint", {}, "Column 'offset' cannot be written"),
    ("value binary", {"startingOffsets": "latest"}, "startingOffsets: means nothing in a write"),
    ("value binary", {"mode": "documents"}, "This release writes to logs alone"),
    ("value binary", {"writeId": ""}, "writeId: must have 1 to 200 characters"),
])
def test_p15_a_write_that_cannot_be_is_refused_before_a_row_is_written(
    spark: SparkSession, fake: FakeInAThread, schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        save(spark.createDataFrame([], schema), fake, **options)
    assert values(fake) == []


def test_p17_a_log_is_not_overwritten(spark: SparkSession, fake: FakeInAThread, tmp_path: Path) -> None:
    writer = numbers(spark, 1).write.format("tidemark").options(endpoints=fake.address, group="orders")
    never = r"never overwritten: use %s\('append'\)"
    with pytest.raises(PySparkException, match=never % "mode"):
        writer.mode("overwrite").save()
    rate = spark.readStream.format("rate").load()
    counts = rate.groupBy("value").count().selectExpr("cast(value as string) as value")
    for mode, said in (("complete", never % "outputMode"), ("update", "does not support Update mode")):
        stream = counts.writeStream.format("tidemark").options(endpoints=fake.address, group="orders")
        with pytest.raises(PySparkException, match=said):
            stream.outputMode(mode).option("checkpointLocation", str(tmp_path / mode)).start().awaitTermination()
