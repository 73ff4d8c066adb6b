"""Filters in a real Spark session, over a fake cluster: with push-down on and off a query shows the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tidemark.sync
from pyspark.sql import DataFrame, SparkSession
from tidemark import Record

from tests.fake_in_a_thread import FakeInAThread

from .groups import add_things, documents_of
from .log.stored import batch_of

SETTING = "spark.sql.python.filterPushdown.enabled"
KEYS = [b"k%02d" % number for number in range(40)]


@pytest.fixture
def filled(fake: FakeInAThread) -> Iterator[FakeInAThread]:
    """Records of two shards, some without a key, and documents."""
    add_things(fake)
    for shard in (0, 1):
        records = [Record(b"%d" % number, KEYS[number] if number % 3 else None, number) for number in range(30)]
        fake.call(fake.added(shard, batch_of(records)))
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many([(key, key) for key in KEYS])
    yield fake


def scans(fake: FakeInAThread) -> list[int]:
    """Return the shards of documents that were scanned, and forget them."""
    found = []
    for index in (0, 1):
        documents = documents_of(fake, index)
        found += [index for _, method in documents.asked if method == "Scan"]
        documents.asked.clear()
    return found


def test_p3_a_query_shows_the_same_rows_with_push_down_on_and_off(spark: SparkSession, filled: FakeInAThread) -> None:
    def read(mode: str, group: str) -> DataFrame:
        return spark.read.format("tidemark").options(
            endpoints=filled.address, group=group, mode=mode, pushDown=True).load()

    def queries() -> list[DataFrame]:
        log, documents = read("log", "orders"), read("documents", "things")
        return [
            log.where("shard = 1 and offset between 3 and 9 and key is not null").select("shard", "offset", "key"),
            documents.where("key = X'6b3037' and value is not null"),
        ]

    shown = []
    for pushes in (False, True):
        spark.conf.set(SETTING, pushes)
        try:
            shown.append([sorted(query.collect()) for query in queries()])
            read_shards = scans(filled)
        finally:
            spark.conf.unset(SETTING)
    assert shown[0] == shown[1]
    assert [len(rows) for rows in shown[0]] == [5, 1]
    assert len(read_shards) == 1, "one key lies in one shard"


def test_p3_queries_of_one_dataframe_do_not_share_filters(spark: SparkSession, filled: FakeInAThread) -> None:
    log = spark.read.format("tidemark").options(endpoints=filled.address, group="orders").load()
    spark.conf.set(SETTING, True)
    try:
        assert log.where("shard = 1 and offset < 9").count() == 8
        assert log.count() == 60
        assert log.where("offset < 9 or shard = 1").count() == 38
    finally:
        spark.conf.unset(SETTING)
