"""Reader of mode=keyspace without Spark: a task for each range or for some, against a fake cluster."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter

import grpc
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType
from pyspark_tidemark import DefaultSource, filters, gathering
from pyspark_tidemark.keyspaces.reader import KeyspaceReader, grouped
from pyspark_tidemark.keyspaces.tasks import KeyspacePartition
from pyspark_tidemark.options import Options
from pyspark_tidemark.schema import COLUMNS, InvalidSchema, Mode
from pyspark_tidemark.source import NotServed
from pyspark_tidemark.values import UnreadableRows
from tidemark.errors import GroupReplaced, UnknownKeyspace

from tests.fake_in_a_thread import FakeInAThread, FakeKeyspace

from ..groups import assert_refused

RANGES = 4
STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(100)}


def add_carts(fake: FakeInAThread, **fields: object) -> FakeKeyspace:
    """Add the keyspace `carts`, filled; one that is there is replaced."""
    async def add() -> FakeKeyspace:
        return fake.cluster.add_keyspace("carts", RANGES, **fields)

    made: FakeKeyspace = fake.call(add())
    made.strings = dict(STORED)
    return made


@pytest.fixture
def carts(fake: FakeInAThread) -> FakeKeyspace:
    return add_carts(fake)


KEY, VALUE, RANGE = (StructField(name, kind) for name, kind in COLUMNS[Mode.KEYSPACE].items())
NUMBER = StructField("value", StructType([StructField("number", IntegerType())]))


def reader_of(fake: FakeInAThread, *fields: StructField, **options: str) -> KeyspaceReader:
    source = DefaultSource({
        "endpoints": ",".join(fake.cluster.addresses()), "keyspace": "carts", "mode": "keyspace", **options})
    reader = source.reader(StructType(list(fields)) if fields else source.schema())
    assert isinstance(reader, KeyspaceReader)
    return reader


def batches(reader: KeyspaceReader, partitions: list[KeyspacePartition]) -> list[pa.RecordBatch]:
    """Read partitions as tasks do: the reader and the partition are pickled on their way."""
    found = []
    for partition in partitions:
        copy, task = pickle.loads(pickle.dumps((reader, partition)))
        found += copy.read(task)
    return found


def rows(reader: KeyspaceReader, partitions: list[KeyspacePartition]) -> dict[bytes, bytes]:
    found = [row for batch in batches(reader, partitions) for row in batch.to_pylist()]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row["value"] for row in found}


def asked(fake: FakeInAThread) -> Counter[int]:
    """Return how many pages of each range nodes were asked for."""
    return Counter(
        request.range for node in fake.cluster.nodes.values() for request in node.keyspaces.requests)


def test_p26_a_task_for_each_range_shows_its_keys_and_so_does_its_retry(
    fake: FakeInAThread, carts: FakeKeyspace
) -> None:
    reader = reader_of(fake)
    tasks = reader.partitions()
    assert [list(task.ranges) for task in tasks] == [[index] for index in range(RANGES)]
    assert asked(fake) == {}, "planning reads nothing"
    first = batches(reader, tasks)
    assert [index for batch in first for index in set(batch.column("range").to_pylist())] == list(range(RANGES))
    assert rows(reader, tasks) == STORED and batches(reader, tasks[3:4]) == first[3:4]
    assert asked(fake) == {**dict.fromkeys(range(RANGES), 2), 3: 3}
    carts.strings[b"new"] = b"later"
    assert rows(reader, tasks) == {**STORED, b"new": b"later"}, "a scan shows what is there when a page is read"


def test_p26_ranges_are_put_together_where_a_query_asks_for_fewer_tasks(
    fake: FakeInAThread, carts: FakeKeyspace
) -> None:
    reader = reader_of(fake, maxPartitions="3")
    tasks = reader.partitions()
    assert [list(task.ranges) for task in tasks] == [[0], [1], [2, 3]]
    assert rows(reader, tasks) == STORED
    assert all(len(set(batch.column("range").to_pylist())) == 1 for batch in batches(reader, tasks))
    for count, most in ((4096, 100), (5, 5), (3, 7), (1, 1), (0, 9)):
        parts = grouped(range(count), most)
        assert [index for part in parts for index in part] == list(range(count))
        assert len(parts) == min(count, most) and len({len(part) for part in parts}) <= 2


def test_p26_a_task_goes_through_pages_at_other_nodes_where_some_fail(
    fake: FakeInAThread, carts: FakeKeyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.keyspace._rows", lambda _: 7)
    for node in list(fake.cluster.nodes.values())[:2]:
        node.keyspaces.lost.extend([grpc.StatusCode.UNAVAILABLE] * 5)
    reader = reader_of(fake, maxPartitions="2")
    assert rows(reader, reader.partitions()) == STORED
    assert all(count > 1 for count in asked(fake).values())


def test_p12_a_task_that_is_dropped_reads_no_further_range(
    fake: FakeInAThread, carts: FakeKeyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "ROWS_MAX", 1)
    reader = reader_of(fake, maxPartitions="1")
    (task,) = reader.partitions()
    reading = reader.read(task)
    next(reading)
    reading.close()
    assert set(asked(fake)) == {0}
    assert not [thread for thread in threading.enumerate() if thread.name == "tidemark-sync"], "its client is closed"


def test_p26_a_keyspace_that_was_made_again_or_deleted_ends_the_task(fake: FakeInAThread, carts: FakeKeyspace) -> None:
    reader = reader_of(fake)
    tasks = reader.partitions()
    add_carts(fake)
    with pytest.raises(GroupReplaced, match="'carts' was deleted and made again"):
        rows(reader, tasks)

    async def delete() -> None:
        del fake.cluster.keyspaces["carts"]
        fake.cluster.push()

    fake.call(delete())
    with pytest.raises(UnknownKeyspace, match="'carts'"):
        rows(reader, tasks)


def test_a_query_may_name_its_quorum_where_the_keyspace_allows_that(fake: FakeInAThread, carts: FakeKeyspace) -> None:
    reader = reader_of(fake, r="1")
    assert rows(reader, reader.partitions()) == STORED
    assert {1} == {request.r for node in fake.cluster.nodes.values() for request in node.keyspaces.requests}
    assert_refused(lambda: reader_of(fake, r="3").partitions(), "r", "3 owners are wanted, keyspace 'carts' has 2")
    add_carts(fake, overrides_allowed=False)
    assert_refused(lambda: reader_of(fake, r="1").partitions(), "r", "'carts' lets no call name a quorum of its own")
    assert len(reader_of(fake).partitions()) == RANGES


def test_p3_a_filter_on_the_range_leaves_out_the_tasks_of_others(
    fake: FakeInAThread, carts: FakeKeyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(filters.sys.modules, filters.PUSHES, filters)
    reader = reader_of(fake, pushDown="true")
    given = [filters.datasource.In(("range",), (1, 3, 70)), filters.datasource.EqualTo(("key",), b"k001")]
    assert list(reader.pushFilters(given)) == given[1:]
    assert [list(task.ranges) for task in reader.partitions()] == [[1], [3]]
    none = reader_of(fake, pushDown="true")
    assert list(none.pushFilters([filters.datasource.GreaterThan(("range",), RANGES)])) == []
    assert none.partitions() == [] and list(none.read(None)) == []


def test_p4_columns_of_a_schema_and_parsed_values(fake: FakeInAThread, carts: FakeKeyspace) -> None:
    keys = reader_of(fake, RANGE, KEY)
    found = batches(keys, keys.partitions())
    assert found[0].schema.names == ["range", "key"]
    assert {key for batch in found for key in batch.column("key").to_pylist()} == STORED.keys()
    parsed = reader_of(fake, NUMBER, KEY, valueFormat="json")
    assert {row["key"]: row["value"] for batch in batches(parsed, parsed.partitions()) for row in batch.to_pylist()} \
        == {key: json.loads(value) for key, value in STORED.items()}
    carts.strings[b"k007"] = b"[]"
    wrong = reader_of(fake, NUMBER, valueFormat="json")
    with pytest.raises(
        UnreadableRows, match=r"the value of key b'k007' in range \d of keyspace 'carts' does not fit the schema"
    ):
        batches(wrong, wrong.partitions())
    with pytest.raises(InvalidSchema, match="no column 'shard' in mode=keyspace; there are key binary, value binary"):
        reader_of(fake, StructField("shard", RANGE.dataType))


def test_p5_record_batches_are_bounded_and_ranges_without_keys_have_none(
    fake: FakeInAThread, carts: FakeKeyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.keyspace._rows", lambda _: 1)
    monkeypatch.setattr(gathering, "BYTES_MAX", 130)
    reader = reader_of(fake)
    (first, *_) = tasks = reader.partitions()
    keys = [row["key"] for batch in batches(reader, [first]) for row in batch.to_pylist()][:6]
    carts.strings = {key: bytes(60 if key < keys[4] else 500) for key in keys}
    assert [2, 2, 1, 1] == [batch.num_rows for batch in batches(reader, tasks)]
    carts.strings.clear()
    assert batches(reader, tasks) == []


def test_a_stream_of_a_keyspace_is_not_served_and_says_so() -> None:
    source = DefaultSource({"keyspace": "carts", "mode": "keyspace"})
    with pytest.raises(NotServed, match=r"Keyspaces have no change stream: read one with spark\.read"):
        source.streamReader(source.schema())


@pytest.mark.parametrize(("options", "field", "said"), [
    ({"keyspace": "orders"}, "keyspace", "no keyspace is named 'orders'; there are: carts"),
    ({"keyspace": " "}, "keyspace", "is missing: name the keyspace to read"),
    ({"group": "orders"}, "group", "goes with mode=log and mode=documents and mode=changes alone"),
    ({"mode": "log"}, "keyspace", "goes with mode=keyspace alone, and this is mode=log"),
    ({"maxPartitions": "0"}, "maxPartitions", "'0' is no number from 1 to 100000"),
    ({"minPartitions": "3"}, "minPartitions", "goes with mode=log alone, and this is mode=keyspace"),
    ({"r": "all"}, "r", "'all' is no number from 1 to 100"),
    ({"r": "0"}, "r", "'0' is no number"),
    ({"elements": "true"}, "elements", "mode=keyspace shows Strings alone"),
    ({"pinLease": "3s"}, "pinLease", "goes with mode=documents and mode=changes alone"),
])
def test_a_wrong_query_of_a_keyspace_is_refused(
    fake: FakeInAThread, carts: FakeKeyspace, options: dict[str, str], field: str, said: str
) -> None:
    assert_refused(lambda: reader_of(fake, **options).partitions(), field, said)


def test_other_modes_take_no_options_of_keyspaces() -> None:
    for name in ("keyspace", "maxPartitions", "r"):
        assert_refused(lambda name=name: Options.of({"group": "orders", name: "1"}), name, "goes with mode=keyspace")
