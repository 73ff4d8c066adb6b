"""Filters: which keys a stream shows, and which parts of a document (rule U63).

A filter looks at keys only, so every version of a document passes or none does.  Stays out: parsing what a user typed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from .messages import Op, Row
from .positions import DIGEST_BYTES, NO_FILTER

RANGES_MAX = 64
KEY_BYTES_MAX = 4096
_COUNT = struct.Struct(">BI")
_SIZE = struct.Struct(">I")


class KeyRange(NamedTuple):
    """Keys from `first` on, below `end`; an `end` of None is open."""

    first: bytes
    end: bytes | None

    def holds(self, key: bytes) -> bool:
        return self.first <= key and (self.end is None or key < self.end)


def prefix(key: bytes) -> KeyRange:
    """Return the range of all keys that begin with `key`."""
    stem = key.rstrip(b"\xff")
    return KeyRange(key, stem[:-1] + bytes([stem[-1] + 1]) if stem else None)


class Filter(NamedTuple):
    """The part of a shard that a stream shows: keys in any of `ranges` (none: all), with or without values, headers."""

    ranges: tuple[KeyRange, ...] = ()
    values: bool = True
    headers: bool = True

    @property
    def whole(self) -> bool:
        """Say whether the stream shows whole documents under all keys."""
        return not self.ranges and self.values and self.headers

    @property
    def digest(self) -> bytes:
        """Return 16 bytes that a position keeps; zero where everything passes (U55)."""
        if self.whole:
            return NO_FILTER
        parts = [_COUNT.pack(self.values * 2 + self.headers, len(self.ranges))]
        for first, end in sorted(self.ranges, key=lambda each: (each.first, each.end is None, each.end or b"")):
            parts += (_SIZE.pack(len(first)), first, b"\0" if end is None else b"\1" + _SIZE.pack(len(end)) + end)
        return sha256(b"".join(parts)).digest()[:DIGEST_BYTES]

    def passed(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that the stream shows, as it shows them (U63)."""
        if self.ranges:
            rows = (row for row in rows if any(each.holds(row.key) for each in self.ranges))
        if not self.values:
            rows = (row._replace(value=b"", before=None) for row in rows)
        if not self.headers:
            rows = (row._replace(headers=b"") for row in rows)
        return list(rows)


ALL = Filter()


def wrong_filter(wanted: Filter) -> str | None:
    """Return what is wrong with a filter, naming the field, or None."""
    if len(wanted.ranges) > RANGES_MAX:
        return f"filter has {len(wanted.ranges)} ranges, the most is {RANGES_MAX}"
    for first, end in wanted.ranges:
        if len(first) > KEY_BYTES_MAX or (end is not None and len(end) > KEY_BYTES_MAX):
            return f"filter has a key of more than {KEY_BYTES_MAX} bytes"
        if end is not None and end <= first:
            return f"filter has an empty range: {end!r} is not above {first!r}"
    return None


def skipped(row: Row, first_end: int | None) -> bool:
    """Say whether a first scan that skips deletes leaves this row out (U63).

    A delete above the end of the first scan may concern a document that a part of it has brought already.
    """
    return first_end is not None and row.op is not Op.PUT and row.seqno <= first_end
