"""A fold that no product file knows: records per producer, of confirmed data entries that no rollback covers."""

from __future__ import annotations

import struct
from collections import Counter, deque
from typing import NamedTuple

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.folds import Covering, Fold

_COUNTS = struct.Struct(">II")
_COUNTED = struct.Struct(">16sQ")
_WAITING = struct.Struct(">qI16s")


class Waiting(NamedTuple):
    """An entry that is not decided yet."""

    base: int
    records: int
    producer: bytes

    @property
    def last(self) -> int:
        return self.base + self.records - 1


class Tally(Fold):
    """The toy fold.  Its clusters never ran without it, so it may begin empty."""

    __slots__ = ("counted", "waiting")

    tag = b"toy1"
    kinds = frozenset((Kind.DATA,))
    begins_empty = True

    def __init__(self) -> None:
        self.counted: Counter[bytes] = Counter()
        self.waiting: deque[Waiting] = deque()

    def note(self, entry: Entry) -> None:
        self.waiting.append(Waiting(entry.base, entry.count, entry.producer))

    def undo_to(self, head: int) -> None:
        while self.waiting and self.waiting[-1].last > head:
            self.waiting.pop()

    def decide(self, confirmed: int, covering: Covering) -> None:
        while self.waiting and self.waiting[0].last <= confirmed:
            entry = self.waiting.popleft()
            if covering(entry.base) is None:
                self.counted[entry.producer] += entry.records

    def upto(self, offset: int, logged_ms: int) -> Tally:
        copy = type(self)()
        copy.counted = self.counted.copy()
        copy.waiting = deque(entry for entry in self.waiting if entry.last <= offset)
        return copy

    def encode(self) -> bytes:
        parts = [_COUNTS.pack(len(self.counted), len(self.waiting))]
        parts += (_COUNTED.pack(producer, self.counted[producer]) for producer in sorted(self.counted))
        parts += (_WAITING.pack(*entry) for entry in self.waiting)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Tally, int]:
        fold = cls()
        counted, waiting = _COUNTS.unpack_from(data, at)
        at += _COUNTS.size
        for _ in range(counted):
            producer, records = _COUNTED.unpack_from(data, at)
            fold.counted[producer] = records
            at += _COUNTED.size
        for _ in range(waiting):
            fold.waiting.append(Waiting(*_WAITING.unpack_from(data, at)))
            at += _WAITING.size
        return fold, at


def tallied(entries: list[Entry], confirmed: int) -> Counter[bytes]:
    """Return what the toy fold must have counted: a plain replay of the log up to the cut `confirmed`."""
    covered = [(entry.sequence, entry.base) for entry in entries if entry.kind is Kind.ROLLBACK]
    counted: Counter[bytes] = Counter()
    for entry in entries:
        hidden = any(first <= entry.base < at <= confirmed for first, at in covered)
        if entry.kind is Kind.DATA and entry.last <= confirmed and not hidden:
            counted[entry.producer] += entry.count
    return counted
