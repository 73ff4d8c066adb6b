"""Rows of mode=log: stored batches become Arrow columns of exactly the query's schema."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from pyspark_tidemark import gathering
from pyspark_tidemark.log.rows import Rows
from pyspark_tidemark.schema import COLUMNS, Mode, default_schema
from pyspark_tidemark.values import UnreadableRows
from tidemark import ReadBatch, Record

from .stored import stored

EVERYTHING = default_schema(Mode.LOG, include_headers=True)
RECORDS = [
    Record(b"one", b"k", 0, (("h", b"x"), ("h", b""))),
    Record(b"", None, -1, None),
    Record(b"\xff\x00", b"", 1_700_000_000_123_456, ()),
]


def of(names: str) -> StructType:
    return StructType([StructField(name, COLUMNS[Mode.LOG][name]) for name in names.split()])


def test_p5_nulls_empty_values_headers_and_old_times_are_rows_as_they_are() -> None:
    rows = Rows("orders", EVERYTHING).of([stored(RECORDS, base=7, shard=3, epoch=5)])
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    micro = datetime.timedelta(microseconds=1)
    common = {"group": "orders", "shard": 3, "epoch": 5}
    assert rows.to_pylist() == [
        {**common, "offset": 7, "key": b"k", "value": b"one",
         "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": b""}], "timestamp": moment},
        {**common, "offset": 8, "key": None, "value": b"", "headers": None, "timestamp": moment - micro},
        {**common, "offset": 9, "key": b"", "value": b"\xff\x00", "headers": [],
         "timestamp": moment + 1_700_000_000_123_456 * micro},
    ]
    assert [field.type for field in rows.schema] == [
        pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), rows.schema.field("headers").type,
        pa.timestamp("us", tz="UTC")]
    assert all(field.nullable for field in rows.schema)


def test_p4_only_the_columns_of_the_schema_are_built_in_its_order() -> None:
    rows = Rows("orders", of("timestamp offset value")).of([stored(RECORDS, base=7)])
    assert rows.schema.names == ["timestamp", "offset", "value"]
    assert rows.column("offset").to_pylist() == [7, 8, 9]


def test_batches_that_differ_make_rows_of_one_schema() -> None:
    """One without keys and headers, one with them, and a part of one: the types stay the same."""
    plain = [Record(b"a", None, 1, None), Record(b"b", None, 2, None)]
    whole = stored(RECORDS, base=20, epoch=2)
    rows = Rows("orders", EVERYTHING).of([
        stored(plain, base=10), stored(RECORDS, base=12, epoch=2), ReadBatch(0, whole.entry, 21, 21)])
    assert rows.schema == Rows("orders", EVERYTHING).of([stored(plain)]).schema
    assert rows.column("offset").to_pylist() == [10, 11, 12, 13, 14, 21]
    assert rows.column("epoch").to_pylist() == [1, 1, 2, 2, 2, 2]
    assert rows.column("key").to_pylist() == [None, None, b"k", None, b"", None]
    assert rows.column("value").to_pylist() == [b"a", b"b", b"one", b"", b"\xff\x00", b""]


def test_offsets_count_on_over_batches_and_jump_over_holes() -> None:
    batches = [stored(RECORDS, base=base, epoch=epoch) for base, epoch in ((0, 1), (3, 1), (9, 2), (12, 3))]
    rows = Rows("orders", of("offset epoch")).of(batches)
    assert rows.column("offset").to_pylist() == [*range(6), *range(9, 15)]
    assert rows.column("epoch").to_pylist() == [1] * 6 + [2] * 3 + [3] * 3


def test_p5_batches_are_put_together_up_to_bounds_and_a_large_one_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(batches: list[ReadBatch]) -> list[int]:
        return [len(some) for some in gathering.gathered(batches, lambda batch: batch.size)]

    monkeypatch.setattr(gathering, "ROWS_MAX", 7)
    small = [stored(RECORDS, base=3 * number) for number in range(5)]
    assert together(small) == [2, 2, 1]
    monkeypatch.setattr(gathering, "BYTES_MAX", 2 * small[0].size)
    large = stored([Record(b"x" * 4 * small[0].size, None, 1)], base=15)
    assert together([*small[:3], large, *small[3:]]) == [2, 1, 1, 2]
    assert together([]) == []


def test_p5_a_time_out_of_range_is_an_error_that_names_group_shard_and_offsets() -> None:
    beyond = stored([Record(b"a", None, 1), Record(b"b", None, 2**62)], base=40, shard=2)
    with pytest.raises(UnreadableRows, match="group 'orders': offsets 40 to 41 of shard 2: a timestamp lies outside"):
        Rows("orders", EVERYTHING).of([beyond])


PARSED = StructType([StructField("offset", COLUMNS[Mode.LOG]["offset"]),
                     StructField("value", StructType([StructField("name", StringType())]))])


def test_values_are_parsed_where_the_schema_has_a_struct() -> None:
    rows = Rows("orders", PARSED).of([stored([Record(b'{"name": "a", "more": 1}', None, 1), Record(b"null", None, 1)])])
    assert rows.to_pylist() == [{"offset": 0, "value": {"name": "a"}}, {"offset": 1, "value": None}]


def test_a_value_that_does_not_fit_is_named_by_group_shard_and_offset() -> None:
    good = [Record(b'{"name": "a"}', None, 1)] * 3
    with pytest.raises(UnreadableRows) as refused:
        Rows("orders", PARSED).of([
            stored(good, base=5, shard=4), stored([*good, Record(b"{", None, 1)], base=20, shard=4)])
    assert "the value at offset 23 of shard 4 of group 'orders' does not fit the schema" in str(refused.value)
    assert "valueFormat=binary" in str(refused.value)
