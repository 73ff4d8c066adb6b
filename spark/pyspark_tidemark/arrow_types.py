"""Arrow schemas of Spark schemas, as Spark wants the record batches of a source: field by field the same.

PySpark's own function for this is private, and its parameters differ between releases.
Stays out: which types a query may ask for (schema).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
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
    StructType,
    TimestampType,
)

ATOMS: Mapping[type[DataType], pa.DataType] = {
    BinaryType: pa.binary(), BooleanType: pa.bool_(), DoubleType: pa.float64(), FloatType: pa.float32(),
    IntegerType: pa.int32(), LongType: pa.int64(), StringType: pa.string(), TimestampType: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of record batches for Spark."""
    return pa.schema(_fields(schema))


def _fields(schema: StructType) -> list[pa.Field]:
    return [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema.fields]


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of one of the types that `schema` lets through."""
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, StructType):
        return pa.struct(_fields(kind))
    return ATOMS[type(kind)]
