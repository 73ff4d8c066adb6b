"""Idempotent producers: the fold of a log that says where a (producer, sequence) lies (rules L18-L20).

It covers the whole log, pending entries included.  An entry that is truncated is undone exactly.  A producer
that was idle for a week of *logged* time is forgotten: decided at look-up from the log's own clock, so every
replica decides alike.  Stays out: what an entry's fate is; that is a matter of watermarks.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..base.entry import Entry

REMEMBERED_MAX = 5
IDLE_MS_MAX = 7 * 24 * 3600 * 1000

_PRODUCER = struct.Struct(">16sqB")
_PLACE = struct.Struct(">qQQI")


class Place(NamedTuple):
    """Where a remembered batch lies."""

    sequence: int
    epoch: int
    base: int
    count: int  # type: ignore[assignment]  # records; hides tuple.count

    @property
    def last(self) -> int:
        return self.base + self.count - 1


class Known(NamedTuple):
    """What is remembered of one producer: when it last wrote (log's clock) and its last batches, oldest first."""

    logged_ms: int
    places: tuple[Place, ...]


class Verdict(NamedTuple):
    """What to do with a batch: `place` when it is in the log, else the one `expected` sequence.

    `too_old` says that the sequence was used and its place forgotten.
    """

    place: Place | None
    expected: int
    too_old: bool


class ProducerTable:
    """The fold.  `undo` values returned by `note` restore the table in reverse order."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def oldest_base(self) -> int:
        """Return the lowest offset remembered, a very high one when there is none."""
        return min((known.places[0].base for known in self._known.values()), default=1 << 62)

    def places(self, producer: bytes) -> tuple[Place, ...]:
        """Return where the remembered batches of a producer lie, oldest first."""
        known = self._known.get(producer)
        return known.places if known else ()

    def note(self, entry: Entry) -> Known | None:
        """Fold one data entry in; return what to hand to `restore` when it is truncated."""
        before = self._known.get(entry.producer)
        place = Place(entry.sequence, entry.epoch, entry.base, entry.count)
        # Entries arrive here in log order, so a sequence that starts anew means the producer had been forgotten.
        continues = before is not None and entry.sequence == before.places[-1].sequence + 1
        places = (*before.places[-(REMEMBERED_MAX - 1):], place) if before and continues else (place,)
        self._known[entry.producer] = Known(entry.logged_ms, places)
        return before

    def restore(self, producer: bytes, before: Known | None) -> None:
        """Undo the newest `note` of this producer."""
        if before is None:
            self._known.pop(producer, None)
        else:
            self._known[producer] = before

    def judge(self, producer: bytes, sequence: int, now_logged_ms: int) -> Verdict:
        """Say what a batch with this sequence is to the log whose newest entry was logged at `now_logged_ms`."""
        known = self._known.get(producer)
        if known is None or now_logged_ms - known.logged_ms > IDLE_MS_MAX:
            return Verdict(None, 0, False)
        newest = known.places[-1].sequence
        if sequence > newest:
            return Verdict(None, newest + 1, False)
        for place in reversed(known.places):
            if place.sequence == sequence:
                return Verdict(place, newest + 1, False)
        return Verdict(None, newest + 1, True)

    def purge(self, committed_logged_ms: int) -> None:
        """Free the memory of producers that a committed entry proves forgotten; changes no verdict."""
        self._known = {
            producer: known
            for producer, known in self._known.items()
            if committed_logged_ms - known.logged_ms <= IDLE_MS_MAX
        }

    def copy(self) -> ProducerTable:
        """Return an independent table; the remembered values are shared, being immutable."""
        twin = ProducerTable()
        twin._known = dict(self._known)
        return twin

    def snapshot(self) -> dict[bytes, Known]:
        """Return the table as a plain mapping, for invariants and dumps."""
        return dict(self._known)

    def encode(self) -> bytes:
        parts = [struct.pack(">I", len(self._known))]
        for producer in sorted(self._known):
            known = self._known[producer]
            parts.append(_PRODUCER.pack(producer, known.logged_ms, len(known.places)))
            parts.extend(_PLACE.pack(*place) for place in known.places)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> ProducerTable:
        """Read `encode`'s bytes; raises struct.error when they are cut short."""
        table = cls()
        (count,) = struct.unpack_from(">I", data)
        at = 4
        for _ in range(count):
            producer, logged_ms, size = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            places = []
            for _ in range(size):
                places.append(Place(*_PLACE.unpack_from(data, at)))
                at += _PLACE.size
            table._known[producer] = Known(logged_ms, tuple(places))
        return table
