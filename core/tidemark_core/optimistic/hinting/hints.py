"""Hints: the changes that a node keeps for owners, in memory, with its bounds (D73, D69).

A hint names no member that it is for: it is replayed as a write under the record of the day.  One that was counted as
an acknowledgement is *obliged*: it stays until a write quorum has stored it.  Another one is a cache that may go at any
time.
Stays out: the disk, which is written before a hint counts.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ...base.errors import RemoteViolation
from ..cells import Meta, Place, Retracted, Row, StringCell, decode_place, decode_row, encode_place, encode_row
from ..inspection import HintsKept
from ..messages import Refusal
from ..ring import keyspace_of
from ..stamps import ZERO, Stamp

_HEAD = struct.Struct(">BQI")      # obliged, range, bytes of the place


class Hint(NamedTuple):
    """A change: one row and its place.  `stamp` is the least one that a promise may refuse; `size` is in bytes."""

    range: int
    place: Place
    row: Row
    stamp: Stamp
    size: int
    obliged: bool


def hint_of(index: int, place: Place, row: Row, *, obliged: bool) -> Hint:
    """Return the hint of a row of the range `index`."""
    return Hint(index, place, row, _least(row), _HEAD.size + len(encode_place(place)) + len(encode_row(row)), obliged)


def encode_hint(hint: Hint) -> bytes:
    """Return the bytes of a hint; its size is their number."""
    place = encode_place(hint.place)
    return _HEAD.pack(hint.obliged, hint.range, len(place)) + place + encode_row(hint.row)


def decode_hint(data: bytes) -> Hint:
    """Read `encode_hint`; raises RemoteViolation when it is damaged."""
    if len(data) < _HEAD.size:
        raise RemoteViolation("the bytes of a hint are cut short")
    obliged, index, size = _HEAD.unpack_from(data)
    behind = _HEAD.size + size
    place = decode_place(data[_HEAD.size:behind])
    return hint_of(index, place, decode_row(place.sort, data[behind:]), obliged=bool(obliged))


def _least(row: Row) -> Stamp:
    """Return the least stamp of the cells of a row: owners refuse a row of which one cell is too old (D62)."""
    match row:
        case StringCell():
            return row.stamp
        case Meta():
            return row.cleared
        case Retracted():
            return ZERO     # no coordinator asks a node to keep it
        case _:
            return min((cell.stamp for cell in row.values()), default=ZERO)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a node."""

    write_window_ms: int
    bytes_max: int


class Hints:
    """The hints of one node, for all ranges, by number; the numbers are in the order they came."""

    def __init__(self, bounds: Bounds) -> None:
        self.held: dict[int, Hint] = {}
        self.lost: dict[int, int] = {}          # of a range: obliged hints that a floor overtook
        self.dropped: dict[int, int] = {}       # when a range last lost hints which were no more than a cache
        self.promised_ms: dict[int, int] = {}   # of a range: no hint up to here is taken any more
        self._bounds = bounds
        self._began_ms: int | None = None
        self._now_ms = 0
        self._numbers: dict[tuple[int, Place, Stamp], int] = {}
        self._of: dict[int, dict[int, None]] = {}   # numbers by range, in their order
        self._bytes_of: dict[int, int] = {}
        self._next = 0
        self._bytes = self._obliged = 0

    def recover(self, held: dict[int, Hint], promised_ms: dict[int, int]) -> None:
        """Load what is on the disk."""
        self.promised_ms = dict(promised_ms)
        for number, hint in sorted(held.items()):
            self._add(number, hint)
        self._next = max(held, default=-1) + 1

    def began(self, now_ms: int) -> None:
        """Take the time; that of the first event is the start of the process.

        The store is open by then, so a disk that was created or wiped is older than this time, and so is every round
        that this disk has forgotten: a clock within its bound is ahead of each floor by most of a write window (D68).
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        self._now_ms = now_ms

    def number_of(self, hint: Hint) -> int | None:
        """Return the number of an equal hint that is held, None where there is none."""
        number = self._numbers.get((hint.range, hint.place, hint.stamp))
        return number if number is not None and self.held[number] == hint else None

    def refusal(self, now_ms: int, hint: Hint, window_ms: int) -> Refusal | None:
        """Say why a hint is not taken, None where it is.  No obliged hint goes for another one.

        Where one of the range lies here for `window_ms`, its owners are away for too long.
        """
        assert self._began_ms is not None
        promised_ms = self.promised_ms.get(hint.range, -1)
        if hint.stamp.ms <= max(promised_ms, self._began_ms, now_ms - self._bounds.write_window_ms // 2):
            return Refusal.OLD
        oldest_ms = self.kept(hint.range).oldest_ms
        waited_ms = now_ms - oldest_ms if oldest_ms is not None else 0
        full = self._obliged + hint.size > self._bounds.bytes_max or waited_ms >= window_ms
        return Refusal.FULL if full else None

    def take(self, hint: Hint) -> tuple[int, list[int]]:
        """Keep a hint that is not refused; return its number, and those of hints that go for it."""
        gone = []
        left = self._bytes
        for number, each in self.held.items():
            if left + hint.size <= self._bounds.bytes_max:
                break
            if not each.obliged:
                gone.append(number)
                left -= each.size
                self.dropped[each.range] = self._now_ms
        for number in gone:
            self.delivered(number)
        number, self._next = self._next, self._next + 1
        self._add(number, hint)
        return number, gone

    def delivered(self, number: int) -> None:
        """Forget a hint that a write quorum of the range has stored."""
        hint = self.held.pop(number, None)
        if hint is None:
            return
        self._bytes -= hint.size
        self._obliged -= hint.size * hint.obliged
        del self._of[hint.range][number]
        self._bytes_of[hint.range] -= hint.size
        if not self._of[hint.range]:
            del self._of[hint.range], self._bytes_of[hint.range]
        key = hint.range, hint.place, hint.stamp
        if self._numbers.get(key) == number:
            del self._numbers[key]

    def repaired(self, index: int, began_ms: int) -> None:
        """Take the begin of an exchange behind which the owners of a range lack nothing of before it."""
        if index in self.dropped and began_ms > self.dropped[index]:
            del self.dropped[index]

    def of(self, index: int, places: Collection[Place]) -> list[Hint]:
        """Return the hints that are held at some places of a range."""
        return [hint for number in self._of.get(index, ()) if (hint := self.held[number]).place in places]

    def kept(self, index: int) -> HintsKept:
        """Return what is held of a range; the oldest hint is the one that is held for longest."""
        numbers = self._of.get(index, {})
        oldest = next((self.held[number].stamp.ms for number in numbers), None)
        return HintsKept(len(numbers), self._bytes_of.get(index, 0), oldest, self.lost.get(index, 0))

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return self._bytes

    def overtaken(self, number: int) -> None:
        """Forget a hint that the floor refuses for good, and count it where it was obliged (D70)."""
        hint = self.held.get(number)
        if hint is not None and hint.obliged:
            self.lost[hint.range] = self.lost.get(hint.range, 0) + 1
        self.delivered(number)

    def promise(self, index: int, floor_ms: int) -> tuple[set[int], list[int]]:
        """Take no hint of a range up to a time any more (D69).

        Return the numbers of obliged hints that must be delivered first, and of those that go: they were a cache.
        """
        self.promised_ms[index] = max(self.promised_ms.get(index, -1), floor_ms)
        due = {number: each for number in self._of.get(index, ()) if (each := self.held[number]).stamp.ms <= floor_ms}
        gone = [number for number, each in due.items() if not each.obliged]
        for number in gone:
            self.delivered(number)
        return {number for number, each in due.items() if each.obliged}, gone

    def forget(self, keyspace: int) -> None:
        """Forget promises and what was lost of a keyspace that is deleted; its hints go by `page`."""
        for known in (self.lost, self.dropped, self.promised_ms):
            for index in [index for index in known if keyspace_of(index) == keyspace]:
                del known[index]

    def page(self, keyspace: int, most: int) -> list[int]:
        """Return the numbers of some hints of a keyspace."""
        found = (number for index, numbers in self._of.items() if keyspace_of(index) == keyspace for number in numbers)
        return list(islice(found, most))

    def _add(self, number: int, hint: Hint) -> None:
        self.held[number] = hint
        self._numbers[hint.range, hint.place, hint.stamp] = number
        self._bytes += hint.size
        self._obliged += hint.size * hint.obliged
        self._of.setdefault(hint.range, {})[number] = None
        self._bytes_of[hint.range] = self._bytes_of.get(hint.range, 0) + hint.size
