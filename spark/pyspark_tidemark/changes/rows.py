"""Rows of changes as Arrow record batches in the schema of a query.

Stays out: which rows there are (showing), parsing values (values).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from ..arrow_types import arrow_schema
from ..values import Values, shown
from .showing import Row

if TYPE_CHECKING:
    from tidemark import HistoryEntry

HISTORY_ID = "history_id"


class Rows:
    """Builds the columns of one schema, and only those (P4); `histories` has the shard's epochs, newest first."""

    def __init__(self, group: str, shard: int, schema: StructType, histories: Sequence[HistoryEntry] = ()) -> None:
        self._shard = shard
        self._schema: pa.Schema = arrow_schema(schema)
        self._values = Values(f"group {group!r}", self._schema)
        self._histories = [(entry.head, str(uuid.UUID(bytes=entry.history))) for entry in histories]
        self._builders: Mapping[str, Callable[[Sequence[Row]], list[Any]]] = {
            "shard": lambda rows: [shard] * len(rows),
            "seqno": lambda rows: [row.seqno for row in rows],
            "op": lambda rows: [row.op for row in rows],
            "key": lambda rows: [row.key for row in rows],
            "timestamp": lambda rows: [row.logged_ms * 1000 or None for row in rows],
            HISTORY_ID: lambda rows: [self._history(row.seqno) for row in rows],
        }

    def of(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return the columns of some rows, exactly in the schema.  Raises UnreadableRows."""
        return pa.RecordBatch.from_arrays([self._column(rows, field) for field in self._schema], schema=self._schema)

    def _column(self, rows: Sequence[Row], field: pa.Field) -> pa.Array:
        if (build := self._builders.get(field.name)) is not None:
            return pa.array(build(rows), field.type)

        def place(number: int) -> str:
            return f"of key {shown(rows[number].key)} at seqno {rows[number].seqno} of shard {self._shard}"

        return self._values.of(pa.array([row.value for row in rows], pa.binary()), place)

    def _history(self, seqno: int) -> str | None:
        """Return the history that wrote a seqno: of the largest head below it (U54); None for one that is forgotten."""
        return next((history for head, history in self._histories if head < seqno), None)
