"""Tallying: rows of another member are counted as they come, and believed when they are what their summary says (U73).

Each row is read first (`checking`).  Stays out: storing rows (`document_shard`).
"""

from __future__ import annotations

import struct

from xxhash import xxh3_128_intdigest

from ..base.errors import RemoteViolation
from ..base.ids import ShardId
from .checking import check_row, check_summary
from .pinning import PINS_MAX
from .rows import (
    BYSEQ,
    DIGEST_MASK,
    DOCS,
    EFFECTS,
    EXPIRY,
    FAMILIES,
    LIVE_CLASS,
    PINNED,
    PINS,
    SUMMARY,
    TOMBSTONE_CLASS,
    Pin,
    Row,
    Summary,
    decode_row,
    due_of,
    hash_of,
    name_of_pin,
    pinned_of,
    prefix,
    seqno_of,
    superseded,
)

_PLACES = {family: place for place, family in enumerate(FAMILIES)}
_VERSION = struct.Struct(">QB")
_DUE = struct.Struct(">BQQ")


class Tally:
    """Rows of one state of a store: they come in order of family and key, those of a summary last.

    The rows of `docs` say which rows `byseq` and `expiry` have to hold: both are summed as the documents are.
    """

    __slots__ = (
        "_by_key", "_by_seqno", "_count", "_dead", "_digest", "_due", "_expiring", "_highest", "_last", "_listed",
        "_stored", "pins", "shard",
    )

    def __init__(self, shard: ShardId) -> None:
        self.shard = shard
        self.pins: dict[str, Pin] = {}
        self._last = (-1, b"")
        self._highest = -1                  # the newest offset that a row names
        self._count = self._digest = self._expiring = self._dead = 0   # of the rows of `docs`
        self._stored: bytes | None = None   # the summary as it came
        self._by_key = self._by_seqno = 0   # sums over (seqno, live, key): of `docs` and of `byseq`
        self._due = self._listed = 0        # sums over (class, ms, seqno, key): of `docs` and of `expiry`

    def take(self, family: str, key: bytes, value: bytes) -> None:
        """Take the next row; raises RemoteViolation when it cannot be read, or comes out of order."""
        check_row(self.shard, family, key, value)
        place = (_PLACES[family], key)
        if place <= self._last:
            raise RemoteViolation(f"U47: a snapshot of {self.shard} brings a row of {family!r} out of order")
        self._last = place
        if family == DOCS:
            self._document(key[len(prefix(self.shard)):], decode_row(value))
        elif family == BYSEQ:
            self._by_seqno += _of_version(seqno_of(key), bool(value[0]), value[1:])
        elif family == EXPIRY:
            due = due_of(key, value)
            self._listed += _of_due(key[len(prefix(self.shard))], due.ms, due.seqno, due.key)
            self._highest = max(self._highest, due.last)
        elif family == EFFECTS:
            self._highest = max(self._highest, seqno_of(key))
        elif family == PINS:
            self.pins[name_of_pin(key)] = Pin.decode(value)
            if len(self.pins) > PINS_MAX:
                raise RemoteViolation(f"U70: a snapshot of {self.shard} has more than {PINS_MAX} pins")
        elif family == PINNED:
            replaced_by, row = superseded(value)
            self._check_hash(pinned_of(key)[0], row)
            self._highest = max(self._highest, replaced_by)
        elif family == SUMMARY:
            self._stored = value

    def _document(self, key: bytes, row: Row) -> None:
        self._check_hash(key, row)
        self._highest = max(self._highest, row.seqno)
        self._by_key += _of_version(row.seqno, row.live, key)
        if not row.live or row.ms:
            self._due += _of_due(LIVE_CLASS if row.live else TOMBSTONE_CLASS, row.ms, row.seqno, key)
        if row.live:
            self._count += 1
            self._digest = self._digest + row.number & DIGEST_MASK
            self._expiring += row.ms > 0
        else:
            self._dead += 1

    def _check_hash(self, key: bytes, row: Row) -> None:
        if row.live and row.hash != hash_of(key, row.seqno, row.ms, row.value):
            raise RemoteViolation(f"U73: the document of seqno {row.seqno} in shard {self.shard} fails its hash")

    def summary(self) -> Summary:
        """Return the summary of all rows, an empty one when none came; raises RemoteViolation when they differ."""
        pulled = Summary() if self._stored is None else Summary.decode(self._stored, self.pins)
        check_summary(pulled)
        told = (pulled.count, pulled.digest, pulled.expiring, pulled.tombstones)
        found = (self._count, self._digest, self._expiring, self._dead)
        if told != found:
            raise RemoteViolation(
                f"U73: a snapshot of {self.shard} says count, digest, expiring and tombstones {told}, its rows {found}"
            )
        if self._by_key != self._by_seqno or self._due != self._listed:
            raise RemoteViolation(f"U48: a snapshot of {self.shard} has other rows by seqno or by time than by key")
        if self._highest > pulled.applied:
            raise RemoteViolation(
                f"U47: a snapshot of {self.shard} has a row of offset {self._highest}, it is folded up to "
                f"{pulled.applied}"
            )
        return pulled


def _of_version(seqno: int, live: bool, key: bytes) -> int:
    return xxh3_128_intdigest(_VERSION.pack(seqno, live) + key)


def _of_due(of_class: int, ms: int, seqno: int, key: bytes) -> int:
    return xxh3_128_intdigest(_DUE.pack(of_class, ms, seqno) + key)
