"""Whole Arrow batches: columns that one append puts into one batch of a shard, with a note of their writer.

No record becomes a Python object.  Stays out: building payloads (payload), when a batch goes out (shell, batches).
"""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pyarrow.compute as pc
from tidemark_core.base.entry import RECORDS_MAX, Batch, Durability
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import Appended as AppendedMessage

from ..batch import HEADER_OVERHEAD_BYTES, AppendedRange, are_dates
from ..checks import Checks
from ..errors import InvalidArgument
from ..payload import NOTE_BYTES_MAX, SCHEMA, encode_columns
from .pending import Pending, Sealed


class PendingColumns(Pending):
    """A batch that is whole from the beginning."""

    __slots__ = ("_columns", "_future", "_note")

    def __init__(
        self, columns: pa.RecordBatch, note: bytes, durability: Durability, now: float, timeout_s: float,
        future: asyncio.Future[AppendedRange],
    ) -> None:
        super().__init__(durability, now, timeout_s)
        self._columns = columns
        self._note = note
        self._future = future
        self.count = columns.num_rows
        self.bytes = columns.nbytes + len(note)
        self.whole = True

    def seal(self, compression: str | None) -> Sealed:
        times = pc.min_max(self._columns.column("timestamp").view(pa.int64()))
        payload = encode_columns(self._columns, compression, self._note)
        return Sealed(payload, self.count, times["min"].as_py(), times["max"].as_py())

    def settle(self, shard: int, answer: AppendedMessage | Written, durability: Durability, batch: Batch) -> None:
        if not self._future.done():
            self._future.set_result(AppendedRange(
                shard, answer.base, self.count, answer.epoch, durability, batch.producer, batch.sequence))
        self.done()

    def fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)
        self.done()


def stored_columns(columns: pa.RecordBatch, checks: Checks) -> pa.RecordBatch:
    """Return all columns of the schema, of which `key`, `timestamp` and `headers` may have been left out.

    Raises InvalidArgument naming the column, KeyRequired, RecordTooLarge.
    """
    if not isinstance(columns, pa.RecordBatch):
        raise InvalidArgument("columns", f"must be a pyarrow.RecordBatch, not {type(columns).__name__}")
    count, names = columns.num_rows, columns.schema.names
    if not 1 <= count <= RECORDS_MAX:
        raise InvalidArgument("columns", f"has {count} records, must have 1 to {RECORDS_MAX}")
    if unknown := set(names) - set(SCHEMA.names):
        raise InvalidArgument("columns", f"has {min(unknown)!r}; records have {', '.join(SCHEMA.names)}")
    if "value" not in names or len(names) != len(set(names)):
        raise InvalidArgument("columns", "must have 'value', and each column once")
    found = []
    for field in SCHEMA:
        if field.name not in names:
            now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us"))
            found.append(pa.repeat(now, count) if field.name == "timestamp" else pa.nulls(count, field.type))
            continue
        column = columns.column(field.name)
        if column.type != field.type:
            raise InvalidArgument(f"columns.{field.name}", f"is {column.type}, must be {field.type}")
        if column.null_count and not field.nullable:
            raise InvalidArgument(f"columns.{field.name}", "has nulls")
        found.append(column)
    whole = pa.RecordBatch.from_arrays(found, schema=SCHEMA)
    _check(whole, checks)
    return whole


def _check(columns: pa.RecordBatch, checks: Checks) -> None:
    """Judge records as one by one, by their columns."""
    keys, values, timestamps, headers = columns.columns
    if not are_dates(timestamps.view(pa.int64())):
        raise InvalidArgument("columns.timestamp", "lies outside the years 1 to 9999")
    sizes = pc.add(pc.binary_length(values), pc.fill_null(pc.binary_length(keys), 0))
    smallest_key = pc.min(pc.fill_null(pc.binary_length(keys), 0)).as_py()
    checks.sizes(pc.max(sizes).as_py() + _headers_bytes(headers), smallest_key)
    if columns.nbytes > checks.payload_bytes_max:
        text = f"have {columns.nbytes} bytes, a batch of the group may have {checks.payload_bytes_max}: divide them"
        raise InvalidArgument("columns", text)


def _headers_bytes(headers: pa.Array) -> int:
    """Return at least what the headers of any record take."""
    if headers.null_count == len(headers):
        return 0
    most: int = pc.max(pc.fill_null(pc.list_value_length(headers), 0)).as_py()
    pairs = headers.flatten()
    if pairs.null_count or any(pairs.field(name).null_count for name in ("key", "value")):
        raise InvalidArgument("columns.headers", "has a pair, a name or a value that is null")
    longest = [pc.max(pc.binary_length(pairs.field(name))).as_py() or 0 for name in ("key", "value")]
    return most * (HEADER_OVERHEAD_BYTES + sum(longest))


def checked_note(note: bytes) -> bytes:
    """Return a note.  Raises InvalidArgument."""
    if not isinstance(note, bytes):
        raise InvalidArgument("note", f"must be bytes, not {type(note).__name__}")
    if len(note) > NOTE_BYTES_MAX:
        raise InvalidArgument("note", f"has {len(note)} bytes, may have {NOTE_BYTES_MAX}")
    return note
