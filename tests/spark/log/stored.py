"""Stored batches for the tests of rows, as an appender makes them, and a log to read them from."""

from __future__ import annotations

from collections.abc import Sequence

from google_crc32c import value as crc32c
from tidemark import ReadBatch, Record
from tidemark.payload import encode
from tidemark_core.base.entry import Batch, Kind, seal
from tidemark_core.base.ids import EntryId


def batch_of(records: Sequence[Record], compression: str | None = None) -> Batch:
    times = [record.timestamp_us or 0 for record in records]
    payload = encode(
        [record.value for record in records], [record.key for record in records], times,
        [record.headers for record in records], compression)
    return Batch(b"p" * 16, 0, len(records), times[0], times[-1], crc32c(payload), payload)


def stored(records: Sequence[Record], *, base: int = 0, shard: int = 0, epoch: int = 1) -> ReadBatch:
    """Return a whole batch whose first record lies at offset `base`."""
    entry = seal(
        batch_of(records), kind=Kind.DATA, epoch=epoch, prev=EntryId(epoch, base - 1), prev_chain=0, logged_ms=1)
    return ReadBatch(shard, entry, entry.base, entry.last)
