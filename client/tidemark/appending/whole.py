"""Whole batches: Arrow columns that one call puts into one batch of a shard, checked column by column.

No record becomes a Python object.
Stays out: the limits of a group (checks), the bytes of a payload (payload), when a batch leaves (batches).
"""

from __future__ import annotations

import asyncio

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


class PendingWhole(Pending):
    """A batch that no other writes join.  It is sealed from the start, so it holds nothing of its caller's memory."""

    __slots__ = ("_sealed", "future")

    def __init__(self, sealed: Sealed, size: int, durability: Durability, now: float, timeout_s: float) -> None:
        super().__init__(durability, now, timeout_s)
        self._sealed: Sealed | None = sealed
        self.count, self.bytes, self.whole = sealed.records, size, True
        self.future: asyncio.Future[AppendedRange] = asyncio.get_running_loop().create_future()

    def seal(self, compression: str | None) -> Sealed:
        sealed, self._sealed = self._sealed, None
        assert sealed is not None, "a batch is sent to its producer once"
        return sealed

    def settle(self, shard: int, answer: AppendedMessage | Written, durability: Durability, batch: Batch) -> None:
        if not self.future.done():
            self.future.set_result(AppendedRange(
                shard, answer.base, self.count, answer.epoch, durability, batch.producer, batch.sequence))
        self.done()

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
        self.done()


def sealed(columns: pa.RecordBatch, note: bytes, compression: str | None) -> Sealed:
    """Return the bytes of checked columns."""
    times = pc.min_max(columns.column("timestamp").view(pa.int64()))
    payload = encode_columns(columns, compression, note)
    return Sealed(payload, columns.num_rows, times["min"].as_py(), times["max"].as_py())


def checked_note(note: bytes) -> bytes:
    """Return the note.  Raises InvalidArgument."""
    if type(note) is not bytes:
        raise InvalidArgument("note", f"must be bytes, not {type(note).__name__}")
    if len(note) > NOTE_BYTES_MAX:
        raise InvalidArgument("note", f"has {len(note)} bytes, must have at most {NOTE_BYTES_MAX}")
    return note


def checked_columns(columns: pa.RecordBatch, checks: Checks, now_us: int) -> pa.RecordBatch:
    """Return all columns of SCHEMA, those that are missing filled in, `timestamp` with `now_us`.

    Raises InvalidArgument naming the column, RecordTooLarge, KeyRequired.
    """
    if not isinstance(columns, pa.RecordBatch):
        raise InvalidArgument("columns", f"must be a pyarrow.RecordBatch, not {type(columns).__name__}")
    if not 1 <= columns.num_rows <= RECORDS_MAX:
        raise InvalidArgument("columns", f"have {columns.num_rows} records, must have 1 to {RECORDS_MAX}")
    for name in columns.schema.names:
        if name not in SCHEMA.names:
            raise InvalidArgument(f"columns.{name}", f"is no column of a record; those are {', '.join(SCHEMA.names)}")
    stored = pa.RecordBatch.from_arrays([_stored(columns, field, now_us) for field in SCHEMA], schema=SCHEMA)
    keys, _, timestamps, headers = stored.columns
    if not are_dates(timestamps.view(pa.int64())):
        raise InvalidArgument("columns.timestamp", "has a time outside the years 1 to 9999")
    if headers.null_count < len(headers):
        pairs = _pairs(headers)
        if any(each.null_count for each in (pairs, pairs.field("key"), pairs.field("value"))):
            raise InvalidArgument("columns.headers", "has a header that is null, or has a null name or value")
    if checks.keys_required and (row := pc.index(pc.fill_null(pc.binary_length(keys), 0), 0).as_py()) >= 0:
        raise checks.no_key("columns.key", keys[row].as_py())
    if (largest := pc.max(_sizes(stored)).as_py()) > checks.record_bytes_max:
        raise checks.too_large("columns.value", largest)
    return stored


def _stored(columns: pa.RecordBatch, field: pa.Field, now_us: int) -> pa.Array:
    """Return a column as it is stored.  Raises InvalidArgument."""
    name, count = f"columns.{field.name}", columns.num_rows
    found = columns.schema.get_all_field_indices(field.name)
    if not found and field.name == "timestamp":
        return pa.repeat(pa.scalar(now_us, field.type), count)
    if not found and field.nullable:
        return pa.nulls(count, field.type)
    if len(found) != 1:
        raise InvalidArgument(name, "is missing" if not found else f"is there {len(found)} times")
    column = columns.column(found[0])
    if column.type != field.type:
        raise InvalidArgument(name, f"has the type {column.type}, must have {field.type}")
    if column.null_count and not field.nullable:
        raise InvalidArgument(name, f"has {column.null_count} nulls, must have none")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(name, f"is no valid Arrow array: {error}") from error
    # Bytes under nulls are written too, and a reader refuses nulls among them.
    return pa.nulls(count, field.type) if column.null_count == count else column


def _pairs(headers: pa.ListArray) -> pa.StructArray:
    """Return the headers of all records, one behind the other."""
    first, end = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    return headers.values.slice(first, end - first)


def _sizes(stored: pa.RecordBatch) -> pa.Array:
    """Return the bytes of key, value and headers of each record, as `Checks.record` counts them."""
    keys, values, _, headers = stored.columns
    sizes = pc.add(pc.binary_length(values).cast(pa.int64()), pc.fill_null(pc.binary_length(keys), 0))
    if headers.null_count == len(headers):
        return sizes
    pairs = _pairs(headers)
    each = pc.add(pc.binary_length(pairs.field("key")), pc.binary_length(pairs.field("value")))
    each = pc.add(each.cast(pa.int64()), HEADER_OVERHEAD_BYTES)
    before = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    at = pc.take(before, pc.subtract(headers.offsets, headers.offsets[0]))
    return pc.add(sizes, pc.subtract(at[1:], at[:-1]))
