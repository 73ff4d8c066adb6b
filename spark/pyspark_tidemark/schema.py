"""Columns: which ones each mode has, and whether the schema of a query names some of them.

The schema that a user gives decides (P4): any of the columns, in any order.
Stays out: the values of the columns (the readers).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

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

HEADERS = "headers"


class Mode(StrEnum):
    """The rows of a query: a group's records, its documents, or the changes of its documents."""

    LOG = "log"
    DOCUMENTS = "documents"
    CHANGES = "changes"


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
}
"""Columns by mode, in the order of a query that has no schema of its own."""


class InvalidSchema(ValueError):
    """The schema of a query names what this source does not have.  Nothing was read."""


def default_schema(mode: Mode, *, include_headers: bool) -> StructType:
    """Return the columns of a mode; headers only where they are asked for, as Spark's Kafka source does."""
    return StructType([
        StructField(name, kind) for name, kind in COLUMNS[mode].items() if name != HEADERS or include_headers])


def check_schema(schema: StructType, mode: Mode) -> None:
    """Raise InvalidSchema unless each field is a column of the mode, of its type, nullable, and named once (P4)."""
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
        if wanted != given:
            raise InvalidSchema(
                f"Column {each.name!r} is {wanted}, not {given}: cast it behind the read; mode={mode} has {listed}.")
        if not each.nullable:
            raise InvalidSchema(f"Column {each.name!r} must be nullable: leave NOT NULL away.")
