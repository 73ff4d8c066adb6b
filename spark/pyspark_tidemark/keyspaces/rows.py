"""Rows of a keyspace as Arrow record batches in the schema of a query, column by column.

Stays out: reading (tasks), parsing values (values).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from ..arrow_types import arrow_schema
from ..schema import RANGE, VALUE
from ..values import Values, shown

Page = list[tuple[bytes, bytes]]
"""Keys and values, as a scan gives them."""


def bytes_of(page: Page) -> int:
    """Return what a page takes in a record batch."""
    return sum(len(key) + len(value) for key, value in page)


class Rows:
    """Builds the columns of one schema, and only those (P4)."""

    def __init__(self, keyspace: str, schema: StructType) -> None:
        self._schema: pa.Schema = arrow_schema(schema)
        self._values = Values(f"keyspace {keyspace!r}", self._schema)

    def of(self, index: int, pages: Sequence[Page]) -> pa.RecordBatch:
        """Return the rows of some pages of a range, exactly in the schema.  Raises UnreadableRows."""
        pairs = [pair for page in pages for pair in page]
        columns = [self._column(index, pairs, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, index: int, pairs: Page, field: pa.Field) -> pa.Array:
        if field.name == RANGE:
            return pa.repeat(pa.scalar(index, field.type), len(pairs))
        if field.name != VALUE:
            return pa.array([key for key, _ in pairs], field.type)
        return self._values.of(
            pa.array([value for _, value in pairs], pa.binary()),
            lambda row: f"of key {shown(pairs[row][0])} in range {index}")
