"""Reader of mode=documents without Spark: one pin for all tasks, against a fake cluster."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
import tidemark.sync
from pyspark.sql.types import IntegerType, StructField, StructType
from pyspark_tidemark import DefaultSource, gathering
from pyspark_tidemark.documents.reader import DocumentsReader
from pyspark_tidemark.documents.tasks import DocumentsPartition, PinEnded
from pyspark_tidemark.schema import COLUMNS, InvalidSchema, Mode
from pyspark_tidemark.values import UnreadableRows
from tidemark.sync import SyncDocuments

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import wait_until

from ..groups import add_things, assert_refused, documents_of

STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(50)}


@pytest.fixture
def things(fake: FakeInAThread) -> Iterator[SyncDocuments]:
    """The documents of a group of two shards, filled."""
    add_things(fake)
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many(list(STORED.items()))
        yield documents


KEY, VALUE, SEQNO = (StructField(name, kind) for name, kind in COLUMNS[Mode.DOCUMENTS].items())
NUMBER = StructField("value", StructType([StructField("number", IntegerType())]))


def reader_of(fake: FakeInAThread, *fields: StructField, **options: str) -> DocumentsReader:
    source = DefaultSource({
        "endpoints": ",".join(fake.cluster.addresses()), "group": "things", "mode": "documents", **options})
    reader = source.reader(StructType(list(fields)) if fields else source.schema())
    assert isinstance(reader, DocumentsReader)
    return reader


def batches(reader: DocumentsReader, partitions: list[DocumentsPartition]) -> list[pa.RecordBatch]:
    """Read partitions as tasks do: the reader and the partition are pickled on their way."""
    found = []
    for partition in partitions:
        copy, task = pickle.loads(pickle.dumps((reader, partition)))
        found += copy.read(task)
    return found


def rows(reader: DocumentsReader, partitions: list[DocumentsPartition]) -> dict[bytes, bytes]:
    found = [row for batch in batches(reader, partitions) for row in batch.to_pylist()]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row["value"] for row in found}


def test_p23_all_tasks_and_their_retries_show_the_cut_of_one_pin(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = reader_of(fake)
    tasks = reader.partitions()
    assert [task.shard for task in tasks] == [0, 1] and len({task.pinned.name for task in tasks}) == 1
    things.put_many([(key, b"new") for key in list(STORED)[:20]])
    things.put(b"another", b"new")
    for key in list(STORED)[20:25]:
        things.delete(key)
    assert rows(reader, tasks) == STORED == rows(reader, tasks)
    now = reader_of(fake)
    assert rows(now, now.partitions()).keys() == {*list(STORED)[:20], *list(STORED)[25:], b"another"}


def test_p23_another_member_goes_on_where_one_breaks(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = reader_of(fake)
    tasks = reader.partitions()
    things.put_many([(key, b"new") for key in STORED])
    for index in (0, 1):
        documents_of(fake, index).breaks.extend([1, 0, 2])
        documents_of(fake, index).lagging["n1"] = 3
    assert rows(reader, tasks) == STORED


def test_p23_a_task_renews_the_lease_of_all_shards(
    fake: FakeInAThread, things: SyncDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "ROWS_MAX", 1)
    reader = reader_of(fake, pinLease="60s")
    tasks = reader.partitions()
    monkeypatch.setattr("pyspark_tidemark.pin_lease.time", lambda: tasks[0].pinned.since + 21)
    for index in (0, 1):
        fake.cluster.groups["things"][index].logged_ms += 59_000
    assert left(things) == [1000, 1000]
    reading = reader.read(tasks[0])
    next(reading)
    wait_until(lambda: min(left(things)) > 1000)
    assert left(things) == [60_000, 60_000]
    reading.close()


def test_p23_a_shard_that_was_read_is_kept_for_a_retry_only(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = reader_of(fake, pinLease="6h")
    tasks = reader.partitions()
    assert left(things) == [21_600_000, 21_600_000]
    list(reader.read(tasks[0]))
    assert left(things) == [60_000, 21_600_000]
    dropped = reader.read(tasks[1])
    next(dropped)
    dropped.close()
    assert left(things) == [60_000, 60_000], "a limit is an end too"
    things.unpin(tasks[0].pinned.name)
    things.put_many([(key, b"[") for key in STORED])
    failing = reader_of(fake, NUMBER, pinLease="6h", valueFormat="json")
    with pytest.raises(UnreadableRows):
        list(failing.read(failing.partitions()[0]))
    assert left(things) == [21_600_000, 21_600_000], "a task that failed is tried again"


def test_p23_a_shard_whose_task_is_done_ends_without_the_others(
    fake: FakeInAThread, things: SyncDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "ROWS_MAX", 1)
    reader = reader_of(fake, pinLease="60s")
    first, second = reader.partitions()
    name = first.pinned.name
    list(reader.read(first))
    things.unpin(name, shards=[0])      # as its lease ends, which is a minute
    things.put_many([(key, b"new") for key in STORED])
    monkeypatch.setattr("pyspark_tidemark.pin_lease.time", lambda: second.pinned.since + 21)
    fake.cluster.groups["things"][1].logged_ms += 59_000
    reading = reader.read(second)
    shown = next(reading).to_pylist()
    wait_until(lambda: max(left(things)) > 1000)
    shown += [row for batch in reading for row in batch.to_pylist()]
    assert {row["key"]: row["value"] for row in shown} == {
        key: value for key, value in STORED.items() if things_shard(things, key) == 1}
    assert [pin.name for pin in things.describe(shards=[0])[0].pins] == [], "the renewal began no other pin there"


def things_shard(things: SyncDocuments, key: bytes) -> int:
    found = things.get(key)
    assert found is not None
    return found.shard


def left(things: SyncDocuments) -> list[int]:
    """Return the rest of the leases of all pins of both shards, in milliseconds."""
    return [pin.expires_in_ms for each in things.describe().values() for pin in each.pins]


def test_p23_a_pin_that_ended_is_an_error_that_says_what_to_do(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = reader_of(fake, pinLease="2m")
    tasks = reader.partitions()
    things.unpin(tasks[0].pinned.name)
    with pytest.raises(PinEnded, match=r"of group 'things'.*pinLease=120s.*Load the DataFrame again") as ended:
        rows(reader, tasks)
    assert tasks[0].pinned.name in str(ended.value)


def test_p4_columns_of_a_schema_and_parsed_values(fake: FakeInAThread, things: SyncDocuments) -> None:
    keys = reader_of(fake, SEQNO, KEY)
    found = batches(keys, keys.partitions())
    assert found[0].schema.names == ["seqno", "key"]
    assert {row["key"]: row["seqno"] for batch in found for row in batch.to_pylist()} == {
        each.key: each.seqno for each in things.scan()}
    parsed = reader_of(fake, NUMBER, KEY, valueFormat="json")
    assert {row["key"]: row["value"] for batch in batches(parsed, parsed.partitions()) for row in batch.to_pylist()} \
        == {key: json.loads(value) for key, value in STORED.items()}
    things.put(b"k007", b"[]")
    wrong = reader_of(fake, NUMBER, valueFormat="json")
    with pytest.raises(UnreadableRows, match=r"the value of key b'k007' in shard [01] of group 'things' does not fit"):
        batches(wrong, wrong.partitions())
    with pytest.raises(InvalidSchema, match="no column 'offset' in mode=documents; there are key binary, value"):
        reader_of(fake, StructField("offset", SEQNO.dataType))


def test_an_empty_group_of_documents_has_no_rows(fake: FakeInAThread) -> None:
    add_things(fake)
    reader = reader_of(fake)
    assert rows(reader, reader.partitions()) == {}


@pytest.mark.parametrize(("options", "field", "said"), [
    ({"group": "orders"}, "group", "'orders' is of kind Log: read it with mode=log"),
    ({"group": "nothing"}, "group", "nothing"),
    ({"pinLease": "0s"}, "pinLease", "'0s' is below 1s"),
    ({"pinLease": "long"}, "pinLease", "'long' is no time such as 30s, 15m or 2h"),
    ({"minPartitions": "3"}, "minPartitions", "goes with mode=log alone, and this is mode=documents"),
    ({"mode": "log", "pinLease": "3s"}, "pinLease", "goes with mode=documents and mode=changes alone"),
])
def test_a_wrong_query_of_documents_is_refused(
    fake: FakeInAThread, things: SyncDocuments, options: dict[str, str], field: str, said: str
) -> None:
    assert_refused(lambda: reader_of(fake, **options).partitions(), field, said)
