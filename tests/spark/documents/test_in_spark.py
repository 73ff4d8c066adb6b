"""mode=documents in queries of a real Spark session, over a fake cluster."""

from __future__ import annotations

import tidemark.sync
from pyspark.sql import SparkSession

from tests.fake_in_a_thread import FakeInAThread

from ..groups import add_things

STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(50)}


def test_p23_uses_of_one_plan_show_one_state_and_a_new_query_shows_a_new_one(
    spark: SparkSession, fake: FakeInAThread
) -> None:
    add_things(fake)
    reader = spark.read.format("tidemark").options(endpoints=fake.address, group="things", mode="documents")
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many(list(STORED.items()))
        frame = reader.load()
        first = frame.collect()
        assert len(first) == 50 and {bytes(row.key): bytes(row.value) for row in first} == STORED
        for number in range(10):
            documents.put(b"k%03d" % number, b'{"number": 1000}')
        assert sorted(frame.collect()) == sorted(first)
        parsed = reader.option("valueFormat", "json").schema("value struct<number: int>, seqno bigint").load()
        (row,) = parsed.selectExpr("count(*)", "sum(value.number)", "max(seqno)").collect()
        assert tuple(row) == (50, 10 * 1000 + sum(range(10, 50)), max(documents.written.values()))
