"""Columns: which ones each mode has, and whether the schema of a query names some of them.

The schema that a user gives decides (P4): any of the columns, in any order.
Stays out: the values of the columns (the readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS, RANGE, VALUE = "headers", "range", "value"

IN_JSON = (BooleanType, IntegerType, LongType, FloatType, DoubleType, StringType, TimestampType)
"""Types of fields that JSON is parsed into, beside arrays and structs of them."""


class Mode(StrEnum):
    """The rows of a query: a group's records, its documents, their changes, or the Strings of a keyspace."""

    LOG = "log"
    DOCUMENTS = "documents"
    CHANGES = "changes"
    KEYSPACE = "keyspace"


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

COLUMNS: Mapping[Mode, Mapping[str, DataType]] = {
    Mode.LOG: {
        "group": StringType(), "shard": IntegerType(), "offset": LongType(), "epoch": LongType(),
        "key": BinaryType(), "value": BinaryType(), HEADERS: ArrayType(_HEADER), "timestamp": TimestampType(),
    },
    Mode.DOCUMENTS: {"key": BinaryType(), "value": BinaryType(), "seqno": LongType()},
    Mode.CHANGES: {
        "shard": IntegerType(), "seqno": LongType(), "op": StringType(), "key": BinaryType(), "value": BinaryType(),
        "timestamp": TimestampType(), "history_id": StringType(),
    },
    Mode.KEYSPACE: {"key": BinaryType(), "value": BinaryType(), RANGE: IntegerType()},
}
"""Columns by mode, in the order of a query that has no schema of its own."""

WRITTEN: Mapping[str, Sequence[str]] = {
    "key": ("binary", "string"), VALUE: ("binary", "string"), "timestamp": ("timestamp",),
    HEADERS: (ArrayType(_HEADER).simpleString(),),
}
"""Columns of rows that are written, and their types."""


class InvalidSchema(ValueError):
    """The schema of a query names what this source does not have.  Nothing was read or written."""


def default_schema(mode: Mode, *, include_headers: bool, parses_json: bool = False) -> StructType:
    """Return the columns of a mode; headers only where they are asked for, as Spark's Kafka source does.

    Raises InvalidSchema where values are parsed: only a schema of the query says into what.
    """
    if parses_json:
        raise InvalidSchema(
            "valueFormat=json needs a schema whose column value is a struct, "
            "such as .schema('key binary, value struct<name: string, size: bigint>').")
    return StructType([
        StructField(name, kind) for name, kind in COLUMNS[mode].items() if name != HEADERS or include_headers])


def check_schema(schema: StructType, mode: Mode, *, parses_json: bool = False) -> None:
    """Raise InvalidSchema unless each field is a column of the mode, of its type, nullable, and named once (P4).

    With `parses_json` the type of the column value is a struct of types that JSON has.
    """
    known = COLUMNS[mode]
    listed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
    if not schema.fields:
        raise InvalidSchema(f"The schema names no column; mode={mode} has {listed}.")
    seen: set[str] = set()
    for each in schema.fields:
        if each.name not in known:
            raise InvalidSchema(f"There is no column {each.name!r} in mode={mode}; there are {listed}.")
        if each.name in seen:
            raise InvalidSchema(f"The schema names column {each.name!r} twice.")
        seen.add(each.name)
        wanted, given = known[each.name].simpleString(), each.dataType.simpleString()
        if parses_json and each.name == VALUE:
            _check_parsed(each.dataType)
        elif wanted != given:
            raise InvalidSchema(
                f"Column {each.name!r} is {wanted}, not {given}: cast it behind the read; mode={mode} has {listed}.")
        if not each.nullable:
            raise InvalidSchema(f"Column {each.name!r} must be nullable: leave NOT NULL away.")


def check_written(schema: StructType) -> None:
    """Raise InvalidSchema unless each column is one that an append has, named once, with `value` among them (P15)."""
    listed = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in WRITTEN.items())
    for each in schema.fields:
        if each.name not in WRITTEN:
            raise InvalidSchema(
                f"Column {each.name!r} cannot be written to a log: select the columns to write; there are {listed}.")
        if schema.names.count(each.name) > 1:
            raise InvalidSchema(f"The rows have column {each.name!r} twice.")
        if each.dataType.simpleString() not in WRITTEN[each.name]:
            raise InvalidSchema(
                f"Column {each.name!r} is {each.dataType.simpleString()}: cast it; there are {listed}.")
    if VALUE not in schema.names:
        raise InvalidSchema(f"The rows have no column 'value': give one that name; there are {listed}.")


def _check_parsed(given: DataType) -> None:
    """Raise InvalidSchema unless the type of the column value is one that JSON is parsed into."""
    if not isinstance(given, StructType) or not given.fields:
        raise InvalidSchema(f"With valueFormat=json column 'value' is a struct, not {given.simpleString()}.")
    _check_in_json("value", given)


def _check_in_json(path: str, given: DataType) -> None:
    if isinstance(given, ArrayType):
        _check_in_json(f"{path}[]", given.elementType)
    elif isinstance(given, StructType):
        for each in given.fields:
            _check_in_json(f"{path}.{each.name}", each.dataType)
            if given.names.count(each.name) > 1:
                raise InvalidSchema(f"The schema names {path}.{each.name} twice.")
    elif not isinstance(given, IN_JSON):
        known = ", ".join(kind().simpleString() for kind in IN_JSON)
        raise InvalidSchema(
            f"JSON is not parsed into {path} {given.simpleString()}; there are {known}, arrays and structs.")
