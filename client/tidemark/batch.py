"""Records, and batches as they were read: decoding is lazy and copies nothing until records are asked for.

Stays out: the bytes of a batch (payload), entries and their headers (core), sizes and limits (appender).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from tidemark_core.base.entry import Durability, Entry

from .errors import InvalidArgument, UndecodableBatch
from .payload import DECODED_BYTES_MAX, UndecodablePayload, decode, note_of

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


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """Where the records of one batch lie: `count` of them from offset `first` on; the rest is as in `Appended`."""

    shard: int
    first: int
    count: int
    epoch: int
    durability: Durability
    producer: bytes
    sequence: int

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.first + self.count - 1


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


class ReadBatch:
    """A batch as it was read: the entry's place, and its records decoded when asked for.

    `first` and `last` are the offsets wanted of it, inclusive; a read may begin or end inside an entry.
    """

    __slots__ = ("_decoded_bytes_max", "_record_batch", "entry", "first", "last", "shard", "size")

    def __init__(
        self, shard: int, entry: Entry, first: int, last: int, decoded_bytes_max: int = DECODED_BYTES_MAX
    ) -> None:
        self.shard = shard
        self.entry = entry
        self.first = max(first, entry.base)
        self.last = min(last, entry.last)
        self.size = entry.size      # bytes of the whole entry, header and payload
        self._decoded_bytes_max = decoded_bytes_max
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
        """The records as Arrow columns key, value, timestamp, headers; an uncompressed payload is not copied.

        Raises UndecodableBatch where the payload is not what an appender writes (T11).
        """
        if self._record_batch is None:
            try:
                whole = decode(self.entry.payload, self.entry.count, self._decoded_bytes_max)
            except UndecodablePayload as error:
                raise self._undecodable(error) from error
            part = len(self) < self.entry.count
            self._record_batch = whole.slice(self.first - self.entry.base, len(self)) if part else whole
        return self._record_batch

    @property
    def note(self) -> bytes:
        """The note of the whole entry, which `Appender.append_arrow` took; b"" where there is none.

        The records are not decoded.  Raises UndecodableBatch (T11).
        """
        try:
            return note_of(self.entry.payload)
        except UndecodablePayload as error:
            raise self._undecodable(error) from error

    def _undecodable(self, why: object) -> UndecodableBatch:
        return UndecodableBatch(
            f"offsets {self.first} to {self.last} of shard {self.shard}: {why}",
            shard=self.shard, first=self.first, last=self.last,
        )

    def check(self) -> None:
        """Raise UndecodableBatch unless `records` can yield all of them."""
        self._timestamps_us()

    def _timestamps_us(self) -> pa.Int64Array:
        times = self.record_batch.column(2).view(pa.int64())
        if not are_dates(times):
            raise self._undecodable("a timestamp lies outside the years 1 to 9999")
        return times

    def records(self) -> Iterator[Record]:
        """Yield the records in offset order; raises UndecodableBatch before the first one."""
        columns = self.record_batch
        timestamps = self._timestamps_us().to_pylist()
        values = columns.column(1).to_pylist()
        keys = _pylist_or_nones(columns.column(0))
        headers = _pylist_or_nones(columns.column(3))
        shard, epoch, offset = self.shard, self.entry.epoch, self.first
        for value, key, timestamp_us, pairs in zip(values, keys, timestamps, headers, strict=True):
            if pairs is not None:
                pairs = tuple((pair["key"], pair["value"]) for pair in pairs)
            yield Record(value, key, timestamp_us, pairs, shard, offset, epoch)
            offset += 1

    def __repr__(self) -> str:
        return f"ReadBatch(shard={self.shard}, first={self.first}, last={self.last}, epoch={self.epoch})"


def check_all(batches: Sequence[ReadBatch]) -> None:
    """Check batches as `ReadBatch.check` does, with one look at all of their times."""
    if not are_dates(pa.concat_arrays([batch.record_batch.column(2) for batch in batches]).view(pa.int64())):
        for batch in batches:
            batch.check()


def are_dates(times_us: pa.Int64Array) -> bool:
    """Say whether all times, microseconds since 1970, lie in the years 1 to 9999."""
    bounds = pc.min_max(times_us).as_py()
    return not len(times_us) or bool(bounds["min"] >= TIMESTAMP_US_MIN and bounds["max"] <= TIMESTAMP_US_MAX)


def _pylist_or_nones(column: pa.Array) -> list[Any]:
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()
