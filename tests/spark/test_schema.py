"""Columns of the modes, and the schemas that queries may give."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, DecimalType, LongType, MapType, StringType, StructField, StructType
from pyspark_tidemark.schema import COLUMNS, InvalidSchema, Mode, check_schema, default_schema


def of(text: str) -> StructType:
    """Return the schema of a DDL text without a session: name and type of each column."""
    kinds = {kind.simpleString(): kind for columns in COLUMNS.values() for kind in columns.values()}
    fields = [part.split() for part in text.split(", ")]
    return StructType([StructField(name, kinds[kind]) for name, kind in fields])


@pytest.mark.parametrize("mode", Mode)
def test_the_schema_of_a_mode_is_one_that_it_accepts(mode: Mode) -> None:
    schema = default_schema(mode, include_headers=mode is Mode.LOG)
    assert schema.names == list(COLUMNS[mode])
    assert all(field.nullable for field in schema.fields)
    check_schema(schema, mode)


def test_headers_are_a_column_where_they_are_asked_for() -> None:
    without = default_schema(Mode.LOG, include_headers=False).names
    assert without == ["group", "shard", "offset", "epoch", "key", "value", "timestamp"]


@pytest.mark.parametrize("text", [
    "value binary", "offset bigint, group string, key binary", "timestamp timestamp, epoch bigint",
    "headers array<struct<key:string,value:binary>>, shard int"])
def test_p4_any_columns_in_any_order_are_a_schema(text: str) -> None:
    check_schema(of(text), Mode.LOG)
    with pytest.raises(InvalidSchema):
        check_schema(StructType([*of(text).fields, StructField("other", COLUMNS[Mode.LOG]["key"])]), Mode.LOG)


BIGINT: DataType = COLUMNS[Mode.LOG]["offset"]


@pytest.mark.parametrize(("fields", "mode", "said"), [
    ([StructField("offsets", BIGINT)], Mode.LOG,
     "There is no column 'offsets' in mode=log; there are group string, shard int, offset bigint"),
    ([StructField("offset", BIGINT)], Mode.DOCUMENTS,
     "There is no column 'offset' in mode=documents; there are key binary, value binary, seqno bigint."),
    ([StructField("shard", BIGINT)], Mode.LOG,
     "Column 'shard' is int, not bigint: cast it behind the read; mode=log has group string"),
    ([StructField("offset", BIGINT), StructField("offset", BIGINT)], Mode.LOG, "names column 'offset' twice"),
    ([StructField("offset", BIGINT, nullable=False)], Mode.LOG, "Column 'offset' must be nullable"),
    ([], Mode.CHANGES, "The schema names no column; mode=changes has shard int, seqno bigint"),
])
def test_p4_a_wrong_schema_is_refused_with_the_columns(fields: list[StructField], mode: Mode, said: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        check_schema(StructType(fields), mode)
    assert said in str(refused.value)


def value(kind: DataType) -> StructType:
    return StructType([StructField("offset", BIGINT), StructField("value", kind)])


INNER = StructType([StructField("names", ArrayType(StringType())), StructField("size", LongType())])


def test_with_parsed_values_the_column_value_is_a_struct() -> None:
    check_schema(value(StructType([StructField("inner", INNER)])), Mode.LOG, parses_json=True)
    check_schema(StructType([StructField("offset", BIGINT)]), Mode.LOG, parses_json=True)
    with pytest.raises(InvalidSchema, match="Column 'value' is binary, not struct"):
        check_schema(value(INNER), Mode.LOG)


@pytest.mark.parametrize(("kind", "said"), [
    (COLUMNS[Mode.LOG]["value"], "With valueFormat=json column 'value' is a struct, not binary."),
    (StructType([]), "column 'value' is a struct, not struct<>"),
    (StructType([StructField("d", DecimalType())]),
     "JSON is not parsed into value.d decimal(10,0); there are boolean, int"),
    (StructType([StructField("a", ArrayType(MapType(StringType(), StringType())))]),
     "JSON is not parsed into value.a[] map<string,string>"),
    (StructType([StructField("x", LongType()), StructField("x", LongType())]), "The schema names value.x twice"),
])
def test_what_json_is_not_parsed_into_is_refused(kind: DataType, said: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        check_schema(value(kind), Mode.LOG, parses_json=True)
    assert said in str(refused.value)


def test_parsed_values_need_a_schema_of_the_query() -> None:
    with pytest.raises(InvalidSchema, match="valueFormat=json needs a schema whose column value is a struct"):
        default_schema(Mode.LOG, include_headers=False, parses_json=True)
