"""Gaps: offsets that a reader passes over on evidence, for those who want to see them.

Stays out: finding them; nodes say where they are (cursor).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class GapKind(StrEnum):
    """Why there is nothing to read."""

    HOLE = "HOLE"  # appended and rolled back: in nobody's log, now and for ever


class Gap(NamedTuple):
    """The offsets from `first` to `last`, inclusive, hold no record of the shard and never will."""

    kind: GapKind
    shard: int
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1
