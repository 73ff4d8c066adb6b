"""Rows of documents as Arrow record batches in the schema of a query, column by column.

Stays out: reading (tasks), parsing values (values).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from ..arrow_types import arrow_schema
from ..schema import VALUE
from ..values import Values, shown


class Rows:
    """Builds the columns of one schema, and only those (P4)."""

    def __init__(self, group: str, shard: int, schema: StructType) -> None:
        self._shard = shard
        self._schema: pa.Schema = arrow_schema(schema)
        self._values = Values(f"group {group!r}", self._schema)

    def of(self, pages: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows of some pages of a scan, exactly in the schema.  Raises UnreadableRows."""
        columns = [self._column(pages, name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, pages: Sequence[pa.RecordBatch], name: str) -> pa.Array:
        parts = [page.column(name) for page in pages]
        stored = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return stored if name != VALUE else self._values.of(stored, lambda row: self._place(pages, row))

    def _place(self, pages: Sequence[pa.RecordBatch], row: int) -> str:
        return f"of key {shown(self._column(pages, 'key')[row].as_py())} in shard {self._shard}"
