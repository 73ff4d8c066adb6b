"""mode=changes in a streaming query of a real Spark session, over a fake cluster whose members serve by the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tidemark.sync
from pyspark.sql import DataFrame, SparkSession

from tests.fake_in_a_thread import FakeInAThread

from ..groups import add_things
from .support import applied

STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(40)}


def test_p24_a_query_is_stopped_and_started_again_and_its_view_is_the_documents(
    spark: SparkSession, fake: FakeInAThread, tmp_path: Path
) -> None:
    add_things(fake)
    options = {"endpoints": fake.address, "group": "things", "mode": "changes", "startingOffsets": "earliest"}
    batches: dict[int, list[Any]] = {}

    def take(frame: DataFrame, number: int) -> None:
        batches[number] = [
            (row.shard, row.seqno, row.op, bytes(row.key), None if row.value is None else bytes(row.value))
            for row in frame.collect()]

    def run() -> None:
        stream = spark.readStream.format("tidemark").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start())
        assert query.awaitTermination(60)

    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many(list(STORED.items()))
        run()
        for number in range(10):
            documents.put(b"k%03d" % number, b"changed")
            documents.delete(b"k%03d" % (20 + number))
        run()
        state: dict[bytes, bytes] = {}
        for number in sorted(batches):
            state = applied(state, batches[number])
        assert state == {each.key: each.value for each in documents.scan()} and len(state) == 30
        versions = [row[:2] for found in batches.values() for row in found]
        assert len(versions) == len(set(versions)) == 40 + 20
