"""Pages of a scan: the rows of one shard's documents by seqno, from one snapshot of the store (U56, U59).

Work for a thread.  Stays out: which pages are read, and when (`upr.serving`).
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from tidemark_core.base.ids import ShardId
from tidemark_core.document_changes import row_of
from tidemark_core.documents.rows import BYSEQ, DOCS, decode_row, doc_key, prefix, seqno_key, seqno_of
from tidemark_core.upr.messages import Row

from .database import Rows, Snapshot
from .store_errors import StoreDamaged

VALUES_AT_ONCE = 8
"""So many values are in memory beside the page: their sizes are known behind the read, and each may have some MiB."""
_SEQNO_BYTES = 8


class Page(NamedTuple):
    """Rows in order; the snapshot holds no other row up to `through`."""

    rows: list[Row]
    through: int
    size: int


def page(newest: Rows, snapshot: Snapshot, shard: ShardId, after: int, upto: int, bytes_max: int) -> Page:
    """Return rows of the snapshot in (after, upto], at least one where there is one; the last one reaches `bytes_max`.

    Raises StoreDamaged.
    """
    found = snapshot.each(BYSEQ, seqno_key(shard, after + 1), seqno_key(shard, upto + 1))
    rows: list[Row] = []
    size = 0
    head = len(prefix(shard))
    while part := list(islice(found, VALUES_AT_ONCE)):
        keys = [doc_key(shard, value[1:]) for _, value in part]
        # The newest version is the one of the snapshot as long as its seqno is the same; that costs no seek.
        for (of_seqno, _), key, stored in zip(part, keys, newest.many([(DOCS, key) for key in keys]), strict=True):
            if stored is None or stored[:_SEQNO_BYTES] != of_seqno[head:]:
                stored = snapshot.get(DOCS, key)
                if stored is None or stored[:_SEQNO_BYTES] != of_seqno[head:]:
                    raise StoreDamaged(f"no document has the seqno {seqno_of(of_seqno)} of shard {shard:#x}")
            rows.append(row_of(key[head:], decode_row(stored)))
            size += len(key) + len(stored)
            if size >= bytes_max:
                return Page(rows, rows[-1].seqno, size)
    return Page(rows, upto, size)
