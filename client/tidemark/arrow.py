"""Arrow: records and documents as columns, for tables and for programs that take them, such as DuckDB or Polars.

Whole columns are put together; no record becomes a Python object.
Stays out: reading (reader, document_scans), decoding a stored batch (payload).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from .batch import ReadBatch, check_all
from .gaps import Gap
from .payload import SCHEMA

KEY, VALUE, TIMESTAMP, HEADERS = range(4)
"""Columns of a stored batch."""

RECORDS = pa.schema([
    ("shard", pa.int32()), ("offset", pa.int64()), ("epoch", pa.int64()), ("key", pa.binary()), ("value", pa.binary()),
    ("timestamp", pa.timestamp("us", tz="UTC")), ("headers", SCHEMA.field("headers").type),
])
"""Columns of records that were read: where each lies, and what was appended."""

DOCUMENTS = pa.schema([
    ("shard", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("seqno", pa.int64()),
    ("expires_at_ms", pa.int64()),
])
"""Columns of documents; `expires_at_ms` is null for one that never expires."""


def record_batch(batches: Sequence[ReadBatch]) -> pa.RecordBatch:
    """Return some batches of one shard as the columns `RECORDS`, in their order.  Raises UndecodableBatch."""
    check_all(batches)
    count = sum(map(len, batches))
    shard = pa.repeat(pa.scalar(batches[0].shard, pa.int32()), count)
    columns = [stored(batches, number, RECORDS.field(name).type) for number, name in enumerate(SCHEMA.names)]
    return pa.RecordBatch.from_arrays([shard, offsets(batches), epochs(batches), *columns], schema=RECORDS)


def stored(batches: Sequence[ReadBatch], column: int, kind: pa.DataType) -> pa.Array:
    """Return one of the stored columns of some batches, as `kind`.  Raises UndecodableBatch."""
    parts = [batch.record_batch.column(column) for batch in batches]
    array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    return array if array.type == kind else array.cast(kind)


def offsets(batches: Sequence[ReadBatch]) -> pa.Array:
    """Count up from the first offset of each run of batches that follow one another: no number is a Python object."""
    runs: list[list[int]] = []      # first offset and length
    for batch in batches:
        if runs and batch.first == sum(runs[-1]):
            runs[-1][1] += len(batch)
        else:
            runs.append([batch.first, len(batch)])
    one = pa.scalar(1, pa.int64())
    return pa.concat_arrays([pc.cumulative_sum(pa.repeat(one, length), start=first - 1) for first, length in runs])


def epochs(batches: Sequence[ReadBatch]) -> pa.Array:
    """Return the epoch of each record."""
    runs = [(epoch, sum(map(len, some))) for epoch, some in groupby(batches, key=lambda batch: batch.epoch)]
    return pa.concat_arrays([pa.repeat(pa.scalar(epoch, pa.int64()), length) for epoch, length in runs])


def by_shard(batches: Iterable[ReadBatch | Gap]) -> Iterator[pa.RecordBatch]:
    """Yield batches that are there at once as columns, those of one shard together; gaps have none and are left out.

    Raises UndecodableBatch.
    """
    for _, some in groupby((each for each in batches if isinstance(each, ReadBatch)), key=lambda batch: batch.shard):
        yield record_batch(list(some))


def reader_of(schema: pa.Schema, batches: Iterator[pa.RecordBatch], close: Callable[[], None]) -> pa.RecordBatchReader:
    """Return a reader of batches that come one by one; it calls `close` when it is at its end or dropped."""
    def each() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        finally:
            close()

    return pa.RecordBatchReader.from_batches(schema, each())
