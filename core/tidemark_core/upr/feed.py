"""Feed: the entries that a member folded and a stream has not sent yet, bounded in bytes (rule U61).

Entries without a row for the stream take no room: neighbours become one.  When the feed overflows it is emptied and
takes nothing more until it is opened again, for the stream scans from its position then.  Stays out: sending.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .filters import Filter
from .history import Point
from .messages import Row, Summary, size_of_row

ENTRY_BYTES = 128
"""Bytes that an entry takes beside its rows."""


class Folded(NamedTuple):
    """One entry as a member folded it: `point` is its end, a cut; `rows` are what it changed, in log order.

    `size` is its bytes in the log; `summary` is the shard behind it, where it is known.
    """

    point: Point
    rows: tuple[Row, ...]
    size: int
    summary: Summary | None = None


class Feed:
    """The bounded buffer of one stream between the fold and the network."""

    __slots__ = ("_bytes", "_bytes_max", "_filter", "entries", "lost", "open", "skipped_bytes", "skipped_ms")

    def __init__(self, wanted: Filter, bytes_max: int) -> None:
        self._filter = wanted
        self._bytes_max = bytes_max
        self._bytes = 0
        self.entries: deque[Folded] = deque()
        self.open = False
        self.lost = False
        self.skipped_bytes = 0      # of entries without rows since the last `taken`
        self.skipped_ms: int | None = None

    def begin(self) -> None:
        """Take in entries from now on; called before the snapshot is taken, so that none falls between (U56)."""
        self._clear()
        self.open, self.lost = True, False

    def close(self) -> None:
        self._clear()
        self.open = False

    def add(self, now_ms: int, folded: Folded) -> None:
        """Take in the next folded entry, as this stream shows it."""
        if not self.open:
            return
        rows = tuple(self._filter.passed(folded.rows))
        if not rows:
            self.skipped_bytes += folded.size
            if self.skipped_ms is None:
                self.skipped_ms = now_ms
            if self.entries and not self.entries[-1].rows:
                self.entries[-1] = folded._replace(rows=(), size=0)
                return
        size = ENTRY_BYTES + sum(map(size_of_row, rows))
        self.entries.append(folded._replace(rows=rows, size=size))
        self._bytes += size
        if self._bytes > self._bytes_max:
            self.close()
            self.lost = True

    def drop_to(self, seqno: int) -> None:
        """Drop what the scan's snapshot holds already (U56)."""
        while self.entries and self.entries[0].point.seqno <= seqno:
            self._pop()

    def take(self, bytes_max: int) -> list[Folded]:
        """Return whole entries from the front, at least one if there is one, up to about `bytes_max`."""
        taken: list[Folded] = []
        size = 0
        while self.entries and (not taken or size + self.entries[0].size <= bytes_max):
            taken.append(self._pop())
            size += taken[-1].size
        if not self.entries:
            self.skipped_bytes, self.skipped_ms = 0, None
        return taken

    @property
    def has_rows(self) -> bool:
        """Say whether an entry with rows waits: two without any never stand side by side."""
        return any(entry.rows for entry in (self.entries[0], self.entries[-1])) if self.entries else False

    @property
    def end(self) -> int:
        """The seqno up to which the feed reaches, -1 when it is empty."""
        return self.entries[-1].point.seqno if self.entries else -1

    def _pop(self) -> Folded:
        entry = self.entries.popleft()
        self._bytes -= entry.size if entry.rows else ENTRY_BYTES
        return entry

    def _clear(self) -> None:
        self.entries.clear()
        self._bytes = 0
        self.skipped_bytes, self.skipped_ms = 0, None
