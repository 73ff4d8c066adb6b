"""Records and the batch payload: one Arrow IPC record-batch message whose schema both sides know.

Encoding goes from Python lists to one message; decoding is lazy and copies nothing until records are asked for.
Stays out: entries and their headers (core), sizes and limits (appender).
"""

from __future__ import annotations

import datetime
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import pyarrow as pa
from tidemark_core.base.entry import Durability, Entry

from .errors import InvalidArgument, UndecodableBatch

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=True),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.timestamp("us"), nullable=False),
        pa.field("headers", pa.list_(_HEADER), nullable=True),
    ]
)
COMPRESSIONS = (None, "lz4", "zstd")

_KEY, _VALUE, _TIMESTAMP, _HEADERS = (field.type for field in SCHEMA)
_UTC = datetime.UTC

RECORD_OVERHEAD_BYTES = 32  # offsets, timestamp and validity of one record in the payload, rounded up
HEADER_OVERHEAD_BYTES = 16
BATCH_OVERHEAD_BYTES = 2048
TIMESTAMP_US_MIN, TIMESTAMP_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999

Headers = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
RecordHeaders = tuple[tuple[str, bytes], ...] | None


class Record(NamedTuple):
    """One record.  The last three fields are where it lies; they are -1 on records not yet appended.

    `timestamp_us` is microseconds since 1970 (UTC); None means "now" on append.
    """

    value: bytes
    key: bytes | None = None
    timestamp_us: int | None = None
    headers: tuple[tuple[str, bytes], ...] | None = None
    shard: int = -1
    offset: int = -1
    epoch: int = -1

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp as an aware datetime in UTC."""
        if self.timestamp_us is None:
            return None
        seconds, micros = divmod(self.timestamp_us, 1_000_000)
        return datetime.datetime.fromtimestamp(seconds, _UTC).replace(microsecond=micros)


class Appended(NamedTuple):
    """Where a record lies, and what stands behind the promise.

    `producer` and `sequence` are those of the batch it was sent in, which is what `Client.outcome` asks by.
    """

    shard: int
    offset: int
    epoch: int
    durability: Durability
    producer: bytes = b""
    sequence: int = -1


def headers_of(headers: Headers | None) -> RecordHeaders:
    """Return headers in their canonical form; raises InvalidArgument naming the header that is wrong."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = []
    for pair in pairs:
        try:
            name, value = pair
        except (TypeError, ValueError):
            raise InvalidArgument("headers", "must be a mapping or a sequence of (name, value) pairs") from None
        if not isinstance(name, str):
            raise InvalidArgument("headers", f"name {name!r} must be str, not {type(name).__name__}")
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgument("headers", f"value of {name!r} must be bytes, not {type(value).__name__}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("headers", f"name {name!r} cannot be written as UTF-8") from None
        checked.append((name, bytes(value)))
    return tuple(checked)


def timestamp_us_of(timestamp: datetime.datetime | int | None) -> int | None:
    """Return microseconds since 1970; an int is taken as such, a datetime must know its time zone."""
    if timestamp is None:
        return None
    if type(timestamp) is int:
        if not TIMESTAMP_US_MIN <= timestamp <= TIMESTAMP_US_MAX:
            raise InvalidArgument("timestamp", f"{timestamp} microseconds lie outside the years 1 to 9999")
        return timestamp
    if not isinstance(timestamp, datetime.datetime):
        raise InvalidArgument("timestamp", f"must be a datetime or microseconds, not {type(timestamp).__name__}")
    if timestamp.tzinfo is None:
        raise InvalidArgument("timestamp", "has no time zone; use datetime.now(timezone.utc) or the like")
    delta = timestamp - datetime.datetime(1970, 1, 1, tzinfo=_UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def encode(
    values: list[bytes],
    keys: list[bytes | None] | None,
    timestamps_us: list[int],
    headers: list[tuple[tuple[str, bytes], ...] | None] | None,
    compression: str | None = None,
) -> bytes:
    """Return the payload of a batch.  `keys` and `headers` are None when no record has any."""
    count = len(values)
    columns = [
        pa.nulls(count, _KEY) if keys is None else pa.array(keys, _KEY),
        pa.array(values, _VALUE),
        pa.Array.from_buffers(_TIMESTAMP, count, [None, pa.py_buffer(array("q", timestamps_us))]),
        pa.nulls(count, _HEADERS) if headers is None else pa.array(headers, _HEADERS),
    ]
    record_batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if compression is None:
        return cast(bytes, record_batch.serialize().to_pybytes())
    # Only the stream writer compresses; what it writes behind the schema is the same kind of message.
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(record_batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return cast(bytes, reader.read_next_message().serialize().to_pybytes())


def decode(payload: bytes, count: int) -> pa.RecordBatch:
    """Return the payload as a record batch that shares its memory; raises UndecodableBatch."""
    try:
        record_batch = pa.ipc.read_record_batch(payload, SCHEMA)
        record_batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UndecodableBatch(f"payload is no Arrow record batch of the schema: {error}") from error
    if record_batch.num_rows != count:
        raise UndecodableBatch(f"payload holds {record_batch.num_rows} records, its header says {count}")
    return record_batch


class ReadBatch:
    """A batch as it was read: the entry's place, and its records decoded when asked for.

    `first` and `last` are the offsets wanted of it, inclusive; a read may begin or end inside an entry.
    """

    __slots__ = ("_record_batch", "entry", "first", "last", "shard", "size")

    def __init__(self, shard: int, entry: Entry, first: int, last: int) -> None:
        self.shard = shard
        self.entry = entry
        self.first = max(first, entry.base)
        self.last = min(last, entry.last)
        self.size = entry.size      # bytes of the whole entry, header and payload
        self._record_batch: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def payload(self) -> bytes:
        """The stored bytes of the whole entry."""
        return self.entry.payload

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The records as Arrow columns key, value, timestamp, headers; no copy is made."""
        if self._record_batch is None:
            whole = decode(self.entry.payload, self.entry.count)
            part = len(self) < self.entry.count
            self._record_batch = whole.slice(self.first - self.entry.base, len(self)) if part else whole
        return self._record_batch

    def records(self) -> Iterator[Record]:
        """Yield the records in offset order."""
        columns = self.record_batch
        values = columns.column(1).to_pylist()
        keys = _pylist_or_nones(columns.column(0))
        timestamps = columns.column(2).view(pa.int64()).to_pylist()
        headers = _pylist_or_nones(columns.column(3))
        shard, epoch, offset = self.shard, self.entry.epoch, self.first
        for value, key, timestamp_us, pairs in zip(values, keys, timestamps, headers, strict=True):
            if pairs is not None:
                pairs = tuple((pair["key"], pair["value"]) for pair in pairs)
            yield Record(value, key, timestamp_us, pairs, shard, offset, epoch)
            offset += 1

    def __repr__(self) -> str:
        return f"ReadBatch(shard={self.shard}, first={self.first}, last={self.last}, epoch={self.epoch})"


def _pylist_or_nones(column: pa.Array) -> list[Any]:
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()
