"""Rows on their way into a log: the form that is stored, and the shard of each row (P15)."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_tidemark.schema import InvalidSchema, check_written
from pyspark_tidemark.sink.columns import UnwritableRows, stored_form
from pyspark_tidemark.sink.spreading import BLOCK_ROWS, Spreading
from tidemark import QUORUM
from tidemark.payload import SCHEMA
from tidemark.routing import Group

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
NAMED: dict[str, DataType] = {
    "value": BinaryType(), "key": StringType(), "timestamp": TimestampType(), "headers": HEADERS, "offset": LongType()}


def schema_of(*names: str, **others: DataType) -> StructType:
    return StructType(
        [*(StructField(name, NAMED[name]) for name in names), *(StructField(*each) for each in others.items())])


def group(shards: int) -> Group:
    """Return a group whose shards have equal parts of the hash range."""
    ends = [((each + 1) << 32) // shards - 1 for each in range(shards)]
    return Group("orders", 1, 1 << 20, 1 << 20, False, QUORUM, 10.0, tuple(range(shards)), tuple(ends))


def test_rows_are_stored_with_the_columns_that_they_have() -> None:
    rows = pa.RecordBatch.from_pydict({
        "timestamp": pa.array([datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)], pa.timestamp("us", tz="UTC")),
        "value": pa.array(["ü"], pa.string()),
        "headers": pa.array(
            [[("h", b"1")]], pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    })
    stored = stored_form(rows, 0)
    assert stored.schema.equals(pa.schema([SCHEMA.field(name) for name in ("value", "timestamp", "headers")]))
    assert stored.to_pylist() == [{
        "value": "ü".encode(), "timestamp": datetime.datetime(2026, 1, 31), "headers": [{"key": "h", "value": b"1"}]}]


@pytest.mark.parametrize(("rows", "said"), [
    ({"value": pa.array([b"a", None])}, "row 8 of the task has a null value"),
    ({"value": pa.array([b"a", b"b"]), "timestamp": pa.array([None, 1], pa.timestamp("us", tz="UTC"))},
     "row 7 of the task has a null timestamp"),
])
def test_rows_that_no_record_can_be_are_refused_by_name(rows: dict[str, pa.Array], said: str) -> None:
    with pytest.raises(UnwritableRows, match=said):
        stored_form(pa.RecordBatch.from_pydict(rows), 7)


@pytest.mark.parametrize(("schema", "said"), [
    (schema_of("value", "offset"), "Column 'offset' cannot be written to a log: select the columns to write"),
    (schema_of(value=IntegerType()), "Column 'value' is int: cast it"),
    (schema_of("key"), "The rows have no column 'value'"),
    (schema_of("value", "headers", "headers"), "The rows have column 'headers' twice"),
])
def test_p15_columns_that_a_log_does_not_have_are_refused_by_name(schema: StructType, said: str) -> None:
    with pytest.raises(InvalidSchema, match=said):
        check_written(schema)


def test_p15_columns_of_a_log_are_taken_in_any_order() -> None:
    check_written(schema_of("headers", "timestamp", "key", value=StringType()))


def test_p15_rows_with_a_key_go_to_the_shard_of_their_key_in_their_order() -> None:
    keys = [b"%d" % number for number in range(50)] * 2
    rows = pa.RecordBatch.from_pydict({
        "key": pa.array(keys, pa.binary()), "value": pa.array([b"%d" % number for number in range(100)], pa.binary())})
    spreading, found = Spreading(group(3), 0), {}
    for shard, some in spreading.of(rows):
        found[shard] = some.to_pylist()
    assert sorted(found) == [0, 1, 2] and sum(map(len, found.values())) == 100 == spreading.rows
    for shard, some in found.items():
        assert [int(each["value"]) for each in some] == sorted(int(each["value"]) for each in some)
        assert {group(3).shard_of(each["key"]) for each in some} == {shard}


def test_p15_rows_without_a_key_go_round_by_their_number_however_they_are_divided() -> None:
    def places(part: int, sizes: list[int]) -> list[int]:
        spreading, found = Spreading(group(2), part), {}
        for size in sizes:
            numbers = range(spreading.rows, spreading.rows + size)
            rows = pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % each for each in numbers], pa.binary())})
            for shard, some in spreading.of(rows):
                found.update((int(each["value"]), shard) for each in some.to_pylist())
        return [found[number] for number in range(spreading.rows)]

    whole = places(0, [2 * BLOCK_ROWS + 5])
    assert whole == places(0, [BLOCK_ROWS - 1, 3, 0, BLOCK_ROWS + 3]) == [
        *[0] * BLOCK_ROWS, *[1] * BLOCK_ROWS, *[0] * 5]
    assert places(1, [3]) == [1, 1, 1], "tasks begin at different shards"
    assert places(0, [0]) == []
