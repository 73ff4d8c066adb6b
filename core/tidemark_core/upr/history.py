"""History: which epochs wrote a shard's log, and from which offset on; so two positions can be compared (rule U54).

A history id names one epoch of one lineage.  A lineage is drawn at random when a shard is created, restored or rebuilt,
so an epoch number that is used twice still names two histories.  Stays out: who draws lineages, what follows from a
difference (`decision`).
"""

from __future__ import annotations

import json
import struct
from hashlib import sha1
from itertools import pairwise
from typing import NamedTuple

from ..base.entry import Entry
from ..base.errors import RemoteViolation
from ..base.ids import NO_LINEAGE, wrong_lineage

ENTRIES_MAX = 25

_COUNT = struct.Struct(">BB")
_ENTRY = struct.Struct(">16sQq")
_VERSION = 1


def history_id(lineage: bytes, epoch: int) -> bytes:
    """Return the 16 bytes of uuid5(`lineage`, decimal `epoch`); `lineage` has 16 bytes (U54)."""
    digest = bytearray(sha1(lineage + str(epoch).encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


class Opening(NamedTuple):
    """One EPOCH_START: `epoch` of `lineage` wrote everything above the offset `head`, up to the next opening's."""

    epoch: int
    lineage: bytes
    head: int       # inherited head, -1 for an epoch that began an empty log

    @property
    def id(self) -> bytes:
        return history_id(self.lineage, self.epoch)

    @classmethod
    def of(cls, entry: Entry) -> Opening:
        """Read an EPOCH_START with its payload; raises RemoteViolation when it names no lineage (U54)."""
        try:
            lineage = bytes.fromhex(json.loads(entry.payload)["lineage"])
        except (ValueError, KeyError, TypeError) as error:
            raise RemoteViolation(f"U54: EPOCH_START at {entry.base} names no lineage: {error!r}") from error
        if (wrong := wrong_lineage(lineage)) is not None:
            raise RemoteViolation(f"U54: EPOCH_START at {entry.base}: {wrong}")
        return cls(entry.epoch, lineage, entry.base - 1)


class FailoverLog(NamedTuple):
    """The newest openings among the applied entries of one shard, newest first, at most `ENTRIES_MAX` (U54)."""

    openings: tuple[Opening, ...] = ()

    @property
    def newest(self) -> Opening:
        return self.openings[0]

    @property
    def oldest(self) -> Opening:
        return self.openings[-1]

    def opened(self, epoch: int, lineage: bytes, head: int) -> FailoverLog:
        """Return the log with one more EPOCH_START, which is folded behind all others."""
        if self.openings:
            assert epoch > self.newest.epoch, f"U54: epoch {epoch} opens behind epoch {self.newest.epoch}"
            assert head > self.newest.head, f"U54: epoch {epoch} inherits {head}, not above {self.newest.head}"
        return FailoverLog((Opening(epoch, lineage, head), *self.openings[: ENTRIES_MAX - 1]))

    def id_at(self, seqno: int) -> Opening:
        """Return the opening with the largest head below `seqno`, the oldest one kept when there is none (U54)."""
        return next((opening for opening in self.openings if opening.head < seqno), self.oldest)

    def covers(self, point: Point) -> bool:
        """Say whether a point of this lineage lies in this history, as far as the log can prove it (U54).

        Its epoch wrote the seqno or inherited it.  Of epochs that are no longer kept, one wrote it.
        """
        opening = next((each for each in self.openings if each.epoch == point.epoch), None)
        if opening is None:
            return point.epoch < self.oldest.epoch and point.seqno <= self.oldest.head
        return point.seqno <= opening.head or self.id_at(point.seqno) == opening

    def point(self, seqno: int) -> Point:
        """Return `seqno` with the epoch that wrote it, or with the oldest one kept, which inherited it."""
        opening = self.id_at(seqno)
        return Point(opening.lineage, opening.epoch, seqno)

    def encode(self) -> bytes:
        return _COUNT.pack(_VERSION, len(self.openings)) + b"".join(
            _ENTRY.pack(opening.lineage, opening.epoch, opening.head) for opening in self.openings
        )

    @classmethod
    def decode(cls, data: bytes) -> FailoverLog:
        """Read `encode`'s bytes; raises RemoteViolation when they are cut short or say what cannot be."""
        try:
            version, count = _COUNT.unpack_from(data)
            read = [_ENTRY.unpack_from(data, _COUNT.size + at * _ENTRY.size) for at in range(count)]
        except struct.error as error:
            raise RemoteViolation(f"U54: failover log cannot be read: {error}") from error
        openings = tuple(Opening(epoch, lineage, head) for lineage, epoch, head in read)
        pairs = list(pairwise(openings))
        if version != _VERSION or count > ENTRIES_MAX or len(data) != _COUNT.size + count * _ENTRY.size:
            raise RemoteViolation(f"U54: failover log has version {version}, {count} entries and {len(data)} bytes")
        if any(newer.epoch <= older.epoch or newer.head <= older.head for newer, older in pairs):
            raise RemoteViolation("U54: failover log is not in order")
        return cls(openings)


class Point(NamedTuple):
    """A place in the history of one shard: `epoch` of `lineage` wrote the entry at the offset `seqno`."""

    lineage: bytes
    epoch: int
    seqno: int


START = Point(NO_LINEAGE, 0, 0)
"""Before everything.  Offset 0 of a shard is an EPOCH_START, so no document has the seqno 0."""
