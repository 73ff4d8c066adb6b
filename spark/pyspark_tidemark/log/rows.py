"""Rows of a log as Arrow record batches: whole columns of stored batches, put together and never touched row by row.

Stays out: reading (tasks), parsing values (values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType
from tidemark import ReadBatch
from tidemark.errors import UndecodableBatch

from ..arrow_types import arrow_schema
from ..values import UnreadableRows, Values

KEY, STORED_VALUE, TIMESTAMP, HEADERS = range(4)
"""Columns of a stored batch."""


class Rows:
    """Builds the columns of one schema, and only those (P4)."""

    def __init__(self, group: str, schema: StructType) -> None:
        self._group = group
        self._schema: pa.Schema = arrow_schema(schema)
        self._values = Values(group, self._schema)
        self._builders: Mapping[str, Callable[[Sequence[ReadBatch], pa.DataType], pa.Array]] = {
            "group": lambda batches, kind: pa.repeat(pa.scalar(group, kind), sum(map(len, batches))),
            "shard": lambda batches, kind: pa.repeat(pa.scalar(batches[0].shard, kind), sum(map(len, batches))),
            "offset": _offsets,
            "epoch": _epochs,
            "key": lambda batches, kind: _stored(batches, KEY, kind),
            "value": self._value,
            "headers": lambda batches, kind: _stored(batches, HEADERS, kind),
            "timestamp": lambda batches, kind: _stored(batches, TIMESTAMP, kind),
        }

    def of(self, batches: Sequence[ReadBatch]) -> pa.RecordBatch:
        """Return the rows of some batches of one shard, exactly in the schema.  Raises UnreadableRows."""
        try:
            for batch in batches:
                batch.check()
            columns = [self._builders[field.name](batches, field.type) for field in self._schema]
        except UndecodableBatch as error:
            raise UnreadableRows(f"group {self._group!r}: {error.message}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _value(self, batches: Sequence[ReadBatch], kind: pa.DataType) -> pa.Array:
        def place(row: int) -> str:
            return f"at offset {_offsets(batches, pa.int64())[row].as_py()} of shard {batches[0].shard}"

        return self._values.of(_stored(batches, STORED_VALUE, pa.binary()), place)


def _stored(batches: Sequence[ReadBatch], column: int, kind: pa.DataType) -> pa.Array:
    parts = [batch.record_batch.column(column) for batch in batches]
    array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    return array if array.type == kind else array.cast(kind)


def _offsets(batches: Sequence[ReadBatch], kind: pa.DataType) -> pa.Array:
    """Count up from the first offset of each run of batches that follow one another: no number is a Python object."""
    runs: list[list[int]] = []      # first offset and length
    for batch in batches:
        if runs and batch.first == sum(runs[-1]):
            runs[-1][1] += len(batch)
        else:
            runs.append([batch.first, len(batch)])
    one = pa.scalar(1, kind)
    return pa.concat_arrays([pc.cumulative_sum(pa.repeat(one, length), start=first - 1) for first, length in runs])


def _epochs(batches: Sequence[ReadBatch], kind: pa.DataType) -> pa.Array:
    runs = [(epoch, sum(map(len, some))) for epoch, some in groupby(batches, key=lambda batch: batch.epoch)]
    return pa.concat_arrays([pa.repeat(pa.scalar(epoch, kind), length) for epoch, length in runs])
