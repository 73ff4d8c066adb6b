"""Arrow schemas of Spark schemas, as Spark wants the record batches of a source: field by field the same.

PySpark's own function for this is private, and its parameters differ between releases.
Stays out: which types a query may ask for (schema).
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import DataType, StructType

ATOMS: Mapping[type[DataType], pa.DataType] = {
    types.BinaryType: pa.binary(), types.BooleanType: pa.bool_(), types.DoubleType: pa.float64(),
    types.FloatType: pa.float32(), types.IntegerType: pa.int32(), types.LongType: pa.int64(),
    types.StringType: pa.string(), types.TimestampType: pa.timestamp("us", tz="UTC"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of record batches for Spark."""
    return pa.schema(_fields(schema))


def _fields(schema: StructType) -> list[pa.Field]:
    return [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema.fields]


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of one of the types that `schema` lets through."""
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, StructType):
        return pa.struct(_fields(kind))
    return ATOMS[type(kind)]
