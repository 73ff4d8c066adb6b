"""Document changes: the rows of one shard's documents as change streams show them (rules U54, U56, U59).

Rows come from the fold, batch by batch, or from one snapshot of the store.  The failover log of the documents is a row
beside their summary, and the fold writes both together.
Stays out: streams (`upr.serving`), what entries do to rows (`documents.fold`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from .base.entry import Kind
from .base.errors import RemoteViolation
from .base.ids import ShardId
from .documents.fold import Folded, Step
from .documents.rows import SUMMARY, Row, Rows, Summary, prefix
from .upr import messages
from .upr.decision import Here
from .upr.feed import Folded as Fed
from .upr.history import FailoverLog, Opening
from .upr.serving import Cut

_FAILOVER = b"failover"


class Changes(NamedTuple):
    """One batch of the fold, which began behind `since`; `failover` is the log behind it."""

    since: int
    steps: tuple[Step, ...]
    folded: Folded
    failover: FailoverLog


def failover_key(shard: ShardId) -> bytes:
    """Return the key of the failover log in the family of summaries."""
    return prefix(shard) + _FAILOVER


def failover_of(shard: ShardId, rows: Rows) -> FailoverLog:
    """Return the stored failover log of a shard; raises RemoteViolation when it is damaged."""
    stored = rows.get(SUMMARY, failover_key(shard))
    return FailoverLog.decode(stored) if stored is not None else FailoverLog()


def opened(failover: FailoverLog, steps: Iterable[Step]) -> FailoverLog:
    """Return the failover log behind these entries; an opening without a lineage is none (U54)."""
    for step in steps:
        if step.entry.kind is Kind.EPOCH_START:
            try:
                failover = failover.opened(*Opening.of(step.entry))
            except RemoteViolation:
                continue   # the shard is older than lineages: its streams are refused
    return failover


def cut_of(
    shard: ShardId, rows: Rows, first_kept: int = 0, read_index: int | None = None, map_version: int = 0
) -> Cut:
    """Return the shard as one snapshot of the store shows it; raises RemoteViolation when a row is damaged (U56)."""
    stored = rows.get(SUMMARY, prefix(shard))
    failover = failover_of(shard, rows)
    if stored is None or not failover.openings:
        return Cut(Here(-1, 0, failover, first_kept, read_index), None, map_version)
    summary = Summary.decode(stored, {})
    here = Here(summary.applied, max(summary.purged, 0), failover, first_kept, read_index)
    return Cut(here, said(summary), map_version)


def said(summary: Summary) -> messages.Summary:
    return messages.Summary(summary.count, summary.digest.to_bytes(16, "big"))


def row_of(key: bytes, row: Row) -> messages.Row:
    """Return a row of `docs` as a stream shows it; the store does not say when a live document was written."""
    if row.live:
        return messages.Row(row.seqno, key, messages.Op.PUT, row.value, row.ms)
    op = messages.Op.EXPIRE if row.expired else messages.Op.DELETE
    return messages.Row(row.seqno, key, op, b"", 0, b"", row.ms)


def fed(changes: Changes) -> Fed:
    """Return a batch as the feeds of streams take it: whole entries, the last row of each key (U59)."""
    steps, summary = changes.steps, changes.folded.summary
    bases = [step.entry.base for step in steps]
    rows: list[messages.Row] = []
    for key, row in changes.folded.rows.items():
        if row is None:
            continue
        entry = steps[bisect_right(bases, row.seqno) - 1].entry
        op = messages.Op.PUT if row.live else messages.Op.DELETE
        if entry.kind is Kind.EXPIRE:
            op = messages.Op.EXPIRE
        rows.append(messages.Row(
            row.seqno, key, op, row.value, row.ms if row.live else 0, b"", entry.logged_ms))
    rows.sort()   # by seqno, which is unique
    point = changes.failover.point(summary.applied)
    return Fed(point, tuple(rows), sum(step.entry.size for step in steps), said(summary))
