"""A task that fails at any row, once, in each mode: the rows of the query stay exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import tidemark.sync
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread

from .groups import THINGS, add_things
from .log.stored import batch_of

COUNT = 60
MODES = {"log": "orders", "documents": THINGS, "changes": THINGS}


@pytest.fixture
def filled(fake: FakeInAThread) -> FakeInAThread:
    """Records and documents with the same keys and values."""
    for shard in (0, 1):
        records = [Record(b"%d" % number, b"%d" % number, 1) for number in range(shard, COUNT, 2)]
        for first in range(0, len(records), 7):
            fake.call(fake.added(shard, batch_of(records[first:first + 7])))
    add_things(fake)
    with tidemark.sync.connect(fake.address) as client, client.documents(THINGS) as documents:
        documents.put_many([(b"%d" % number, b"%d" % number) for number in range(COUNT)])
    return fake


def failing_at(frame: DataFrame, row: int, mark: Path) -> DataFrame:
    """Let the first attempt of each task end with an error behind so many rows, and make a file then."""
    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        left = row if context.attemptNumber() == 0 else COUNT
        for batch in batches:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                mark.touch()
                raise RuntimeError(f"the task fails behind row {row}")

    return frame.mapInArrow(pass_on, frame.schema)


@pytest.mark.parametrize("mode", MODES)
def test_p13_a_task_that_fails_at_any_row_leaves_no_half_batch(
    spark: SparkSession, filled: FakeInAThread, tmp_path: Path, mode: str
) -> None:
    for row in range(0, 21, 4):
        mark = tmp_path / f"failed behind row {row}"
        frame = spark.read.format("tidemark").options(
            endpoints=",".join(filled.cluster.addresses()), group=MODES[mode], mode=mode).load()
        failing_at(frame.select("key", "value"), row, mark).write.mode("overwrite").parquet(str(tmp_path / "rows"))
        found = [bytes(each.value) for each in spark.read.parquet(str(tmp_path / "rows")).collect()]
        assert mark.exists() and sorted(found) == sorted(b"%d" % number for number in range(COUNT)), mark.name
