"""Columns of rows that are written, in the form that a log stores.

Stays out: which columns there may be (schema), which shard a row goes to (spreading).
"""

from __future__ import annotations

import pyarrow as pa
from tidemark.payload import SCHEMA


class UnwritableRows(ValueError):
    """A row has no form in a log; nothing of its record batch was appended."""


def stored_form(rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return the columns of rows as a log stores them, those alone that the rows have; `first` is the number of row 0.

    Raises UnwritableRows naming the row.
    """
    fields = [field for field in SCHEMA if field.name in rows.schema.names]
    columns = []
    for field in fields:
        column = rows.column(field.name)
        if field.name == "timestamp":
            column = column.cast(pa.timestamp("us", tz="UTC")).view(field.type)
        if column.null_count and not field.nullable:
            number = first + column.is_null().index(True).as_py()
            raise UnwritableRows(f"row {number} of the task has a null {field.name}: a record has one")
        columns.append(column.cast(field.type))   # Spark names the elements of lists otherwise, and has strings
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
