"""Records of one call as parallel lists, so that a large call costs little per record and leaves the garbage
collector nothing to look at.

Stays out: checking records and filling batches (appender).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from ..batch import RECORD_OVERHEAD_BYTES, RecordHeaders


class Columns:
    """Records that go to one shard, or keyless ones.  A column that no record of the call uses is None."""

    __slots__ = ("_bytes_before", "headers", "keys", "positions", "timestamps_us", "values")

    def __init__(
        self,
        values: list[bytes],
        sizes: list[int],
        positions: range | list[int],
        keys: list[bytes | None] | None = None,
        timestamps_us: list[int | None] | None = None,
        headers: list[RecordHeaders] | None = None,
    ) -> None:
        self.values = values
        self.positions = positions      # of the records within the call
        self.keys = keys
        self.timestamps_us = timestamps_us
        self.headers = headers
        self._bytes_before = list(accumulate(sizes, initial=0))

    @classmethod
    def of_values(cls, values: list[bytes]) -> Columns:
        """Return plain values as keyless records."""
        return cls(values, [size + RECORD_OVERHEAD_BYTES for size in map(len, values)], range(len(values)))

    def __len__(self) -> int:
        return len(self.values)

    def bytes_of(self, start: int, end: int) -> int:
        """Return the bytes that the records [start, end) take in the buffer."""
        return self._bytes_before[end] - self._bytes_before[start]

    def end_within(self, start: int, bytes_max: int) -> int:
        """Return the highest end for which [start, end) takes at most `bytes_max` bytes."""
        return bisect_right(self._bytes_before, self._bytes_before[start] + bytes_max) - 1

    def end_reaching(self, start: int, bytes_min: int) -> int:
        """Return the lowest end for which [start, end) takes at least `bytes_min` bytes, or one behind the last."""
        return bisect_left(self._bytes_before, self._bytes_before[start] + bytes_min)
