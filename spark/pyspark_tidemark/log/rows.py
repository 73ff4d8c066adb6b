"""Rows of a log as Arrow record batches: whole columns of stored batches, put together and never touched row by row.

Stays out: reading (tasks), parsing values (values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.types import StructType
from tidemark import ReadBatch
from tidemark.arrow import HEADERS, KEY, TIMESTAMP, epochs, offsets, stored
from tidemark.arrow import VALUE as STORED_VALUE
from tidemark.batch import check_all
from tidemark.errors import UndecodableBatch

from ..arrow_types import arrow_schema
from ..values import UnreadableRows, Values


class Rows:
    """Builds the columns of one schema, and only those (P4)."""

    def __init__(self, group: str, schema: StructType) -> None:
        self._group = group
        self._schema: pa.Schema = arrow_schema(schema)
        self._values = Values(f"group {group!r}", self._schema)
        self._builders: Mapping[str, Callable[[Sequence[ReadBatch], pa.DataType], pa.Array]] = {
            "group": lambda batches, kind: pa.repeat(pa.scalar(group, kind), sum(map(len, batches))),
            "shard": lambda batches, kind: pa.repeat(pa.scalar(batches[0].shard, kind), sum(map(len, batches))),
            "offset": lambda batches, _: offsets(batches),
            "epoch": lambda batches, _: epochs(batches),
            "key": lambda batches, kind: stored(batches, KEY, kind),
            "value": self._value,
            "headers": lambda batches, kind: stored(batches, HEADERS, kind),
            "timestamp": lambda batches, kind: stored(batches, TIMESTAMP, kind),
        }

    def of(self, batches: Sequence[ReadBatch]) -> pa.RecordBatch:
        """Return the rows of some batches of one shard, exactly in the schema.  Raises UnreadableRows."""
        with self._named():
            check_all(batches)
            columns = [self._builders[field.name](batches, field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def bytes_of(self, batch: ReadBatch) -> int:
        """Return what a batch takes in memory: a compressed one may be a thousand times smaller where it is stored.

        Raises UnreadableRows.
        """
        with self._named():
            return int(batch.record_batch.nbytes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except UndecodableBatch as error:
            raise UnreadableRows(f"group {self._group!r}: {error.message}") from error

    def _value(self, batches: Sequence[ReadBatch], kind: pa.DataType) -> pa.Array:
        def place(row: int) -> str:
            return f"at offset {offsets(batches)[row].as_py()} of shard {batches[0].shard}"

        return self._values.of(stored(batches, STORED_VALUE, pa.binary()), place)
