"""Sweeping: rows that no reader may need any more, found and removed in bounded slices on each member alone.

Purged tombstones (U52) and superseded versions that no pin shows (U71).  A removal changes no answer, so
members need not agree on when.  Stays out: what is purged or pinned (`fold`); when a slice runs (`document_shard`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.effects import Delete, StoreWrite
from ..base.ids import ShardId
from .rows import BYSEQ, DOCS, EXPIRY, PINNED, Due, Summary, doc_key, due_of, pinned_of, seqno_key, superseded

Found = Iterable[tuple[bytes, bytes]]


def swept(shard: ShardId, summary: Summary, found: Found) -> tuple[tuple[StoreWrite, ...], tuple[bytes, ...]]:
    """Return the writes that remove the purged ones among these tombstones, rows of class 1 of `expiry`.

    The second value are the keys of their documents.
    """
    writes: list[StoreWrite] = []
    keys: list[bytes] = []
    for key, value in found:
        due = due_of(key, value)
        if due.seqno <= summary.purged:
            keys.append(due.key)
            writes += (
                Delete(EXPIRY, key), Delete(BYSEQ, seqno_key(shard, due.seqno)), Delete(DOCS, doc_key(shard, due.key))
            )
    return tuple(writes), tuple(keys)


def purgeable(found: Found, before_ms: int, at_most: int) -> int:
    """Return up to which offset tombstones may be purged, -1 when none may: a cut.

    `found` are the oldest tombstones.  Those up to `at_most` and deleted before `before_ms` count (U52).
    """
    cut = -1
    for key, value in found:
        due: Due = due_of(key, value)
        if due.ms >= before_ms or due.last > at_most:
            break
        cut = due.last
    return cut


def collected(summary: Summary, found: Found) -> tuple[StoreWrite, ...]:
    """Return the writes that remove superseded versions that no active pin shows, among these rows of `pinned`."""
    cuts = [pin.at for pin in summary.pins.values()]
    writes: list[StoreWrite] = []
    for key, value in found:
        _, seqno = pinned_of(key)
        replaced_by, _ = superseded(value)
        if not any(seqno <= cut < replaced_by for cut in cuts):
            writes.append(Delete(PINNED, key))
    return tuple(writes)
