"""Hints: changes that a node keeps for owners that could not be reached, until a write quorum has them (D73, D69).

A hint names no member that it is for: it is replayed as a write under the record of the day.  One that was counted as
an acknowledgement is *obliged*: it stays until a write quorum has stored it.  Another one is a cache that may go at any
time.
Stays out: the disk, which is written before a hint counts; replaying (`coordinating.writing` with the source HINT).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .messages import Change
from .stamps import Stamp


class Refusal(Enum):
    """Why a node takes no hint."""

    OLD = "old"      # owners may have settled everything of that time already
    FULL = "full"


class Hint(NamedTuple):
    """A change with its stamp.  `size` is in bytes."""

    range: int
    change: Change
    stamp: Stamp
    size: int
    obliged: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a node.  `began_ms` is the later of the start of its process and the creation of its disk."""

    began_ms: int
    write_window_ms: int
    bytes_max: int


class Hints:
    """The hints of one node, for all ranges, by number; the numbers are in the order they came."""

    def __init__(self, bounds: Bounds) -> None:
        self.held: dict[int, Hint] = {}
        self.lost: dict[int, int] = {}          # of a range: obliged hints that a floor overtook
        self.dropped: dict[int, None] = {}      # ranges that lost hints which were no more than a cache
        self._bounds = bounds
        self._promised_ms: dict[int, int] = {}  # of a range: no hint up to here is taken any more
        self._next = 0
        self._bytes = 0

    def recover(self, held: dict[int, Hint], promised_ms: dict[int, int]) -> None:
        """Load what is on the disk."""
        self.held, self._promised_ms = dict(sorted(held.items())), dict(promised_ms)
        self._next = max(held, default=-1) + 1
        self._bytes = sum(hint.size for hint in held.values())

    def refusal(self, now_ms: int, hint: Hint) -> Refusal | None:
        """Say why a hint is not taken, None where it is.  No obliged hint goes for another one."""
        bounds = self._bounds
        promised_ms = self._promised_ms.get(hint.range, -1)
        if hint.stamp.ms <= max(promised_ms, bounds.began_ms, now_ms - bounds.write_window_ms // 2):
            return Refusal.OLD
        kept = sum(each.size for each in self.held.values() if each.obliged)
        return Refusal.FULL if kept + hint.size > bounds.bytes_max else None

    def take(self, hint: Hint) -> tuple[int, list[int]]:
        """Keep a hint that is not refused; return its number, and those of hints that go for it."""
        gone = []
        for number, each in self.held.items():
            if self._bytes + hint.size <= self._bounds.bytes_max:
                break
            if not each.obliged:
                gone.append(number)
                self._bytes -= each.size
                self.dropped[each.range] = None
        for number in gone:
            del self.held[number]
        number, self._next = self._next, self._next + 1
        self.held[number] = hint
        self._bytes += hint.size
        return number, gone

    def delivered(self, number: int) -> None:
        """Forget a hint that a write quorum of the range has stored."""
        hint = self.held.pop(number, None)
        if hint is not None:
            self._bytes -= hint.size

    def overtaken(self, number: int) -> None:
        """Forget a hint that the floor refuses for good, and count it where it was obliged (D70)."""
        hint = self.held.get(number)
        if hint is not None and hint.obliged:
            self.lost[hint.range] = self.lost.get(hint.range, 0) + 1
        self.delivered(number)

    def promise(self, index: int, floor_ms: int) -> bool:
        """Take no hint of a range up to a time any more; say whether the round may go on (D69).

        Where it returns True, the answer leaves once the promise is durable.  Hints that are no more than a cache go.
        """
        self._promised_ms[index] = max(self._promised_ms.get(index, -1), floor_ms)
        due = [number for number, each in self.held.items() if each.range == index and each.stamp.ms <= floor_ms]
        for number in due:
            if not self.held[number].obliged:
                self.delivered(number)
        return not any(number in self.held for number in due)
