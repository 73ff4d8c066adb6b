"""Decisions: what the CONFIRM and ROLLBACK records of one log say, folded in log order (rules L5, L9, L11).

Kept for as long as an entry or a remembered producer lies in a range.  Undone by truncation, carried in checkpoints.
Stays out: who may decide, and when; how far the log is confirmed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from ..base.folds import Fold

_HEAD = struct.Struct(">qqI")
_RANGE = struct.Struct(">qq")


class Range(NamedTuple):
    """Offsets [first, at) are rolled back by the record at offset `at`, once that is confirmed."""

    first: int
    at: int


class Decisions(Fold):
    """The fold.  Ranges are disjoint and in log order: a rollback starts behind everything decided before it."""

    __slots__ = ("confirmed", "openings", "ranges")

    tag = b"deci"
    kinds = frozenset((Kind.EPOCH_START, Kind.CONFIRM, Kind.ROLLBACK))
    begins_empty = False

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.confirmed = -1             # highest L of a CONFIRM(L): true for ever, wherever it was read (L13)
        self.openings: list[int] = []   # offsets of EPOCH_STARTs, of which only the last matters once it is committed

    def note(self, entry: Entry) -> None:
        """Fold one control entry in; raises RemoteViolation when it decides what is decided already."""
        if entry.kind is Kind.EPOCH_START:
            self.openings.append(entry.base)
        elif entry.kind is Kind.CONFIRM:
            if not -1 <= entry.sequence < entry.base:
                raise RemoteViolation(f"L11: CONFIRM at {entry.base} names offset {entry.sequence}")
            if (found := self.covering(entry.sequence)) is not None:
                raise RemoteViolation(f"L3: CONFIRM at {entry.base} names offset {entry.sequence} inside {found}")
            self.confirmed = max(self.confirmed, entry.sequence)
        elif entry.kind is Kind.ROLLBACK:
            decided = max(self.confirmed, self.openings[-1] if self.openings else -1, self.last_record)
            if not decided < entry.sequence < entry.base:
                raise RemoteViolation(
                    f"L7: ROLLBACK at {entry.base} reaches back to {entry.sequence}, decided is {decided}"
                )
            self.ranges.append(Range(entry.sequence, entry.base))

    @property
    def last_record(self) -> int:
        """Offset of the newest ROLLBACK record, -1 when there is none."""
        return self.ranges[-1].at if self.ranges else -1

    def covering(self, offset: int) -> Range | None:
        """Return the range that holds `offset`, decided or not."""
        if offset >= self.last_record:
            return None
        at = bisect_right(self.ranges, offset, key=lambda found: found.first) - 1
        return self.ranges[at] if at >= 0 and offset < self.ranges[at].at else None

    def safe_cut(self, value: int, confirmed: int) -> int:
        """Lower a watermark out of the range it lies in, so that no receiver shows a part of one (L9)."""
        found = self.covering(value)
        return found.first - 1 if found is not None and found.at <= confirmed else value

    def holes(self, first: int, last: int, confirmed: int) -> list[tuple[int, int]]:
        """Return the parts of [first, last] that are rolled back at the cut `confirmed`, inclusive ranges in order."""
        at = max(bisect_right(self.ranges, first, key=lambda found: found.first) - 1, 0)
        holes: list[tuple[int, int]] = []
        for found in self.ranges[at:]:
            if found.first > last or found.at > confirmed:
                break
            if first < found.at and first <= last:
                holes.append((max(found.first, first), min(found.at - 1, last)))
        return holes

    def undo_to(self, head: int) -> None:
        """Forget records behind `head`."""
        while self.ranges and self.ranges[-1].at > head:
            self.ranges.pop()
        while self.openings and self.openings[-1] > head:
            self.openings.pop()
        if self.confirmed > head:
            self.confirmed = -1

    def trim(self, first: int) -> None:
        """Forget ranges that end below `first`, where neither entries nor remembered producers lie any more."""
        keep = next((index for index, found in enumerate(self.ranges) if found.at >= first), len(self.ranges))
        del self.ranges[:keep]
        del self.openings[:max(0, sum(opening < first for opening in self.openings) - 1)]

    def upto(self, offset: int, logged_ms: int) -> Decisions:
        """Return the fold as it was behind `offset`."""
        copy = Decisions()
        copy.ranges = [found for found in self.ranges if found.at <= offset]
        copy.openings = [opening for opening in self.openings if opening <= offset][-1:]
        copy.confirmed = self.confirmed if self.confirmed <= offset else -1  # a lowered one might lie in a range
        return copy

    def encode(self) -> bytes:
        head = _HEAD.pack(self.confirmed, self.openings[-1] if self.openings else -1, len(self.ranges))
        return head + b"".join(_RANGE.pack(*found) for found in self.ranges)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Decisions, int]:
        """Read `encode`'s bytes at `at`; return the fold and where it ended.  Raises struct.error when cut short."""
        fold = cls()
        fold.confirmed, opening, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if opening >= 0:
            fold.openings.append(opening)
        for _ in range(count):
            fold.ranges.append(Range(*_RANGE.unpack_from(data, at)))
            at += _RANGE.size
        return fold, at
