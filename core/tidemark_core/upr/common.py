"""Common: up to which seqno a consumer and a member have the same history, by the comparison of failover logs.

The comparison decides nothing: at committed level no consumer rolls back.  A sink that can undo changes uses the result
to keep the part of its data that is common (rule U57).  Stays out: whether history was lost (`decision`).
"""

from __future__ import annotations

from typing import NamedTuple

from .history import FailoverLog


class Had(NamedTuple):
    """A consumer's state: `seqno` received last, inside the snapshot from `start` to `end`, in the history `id`.

    `purged` is the purge seqno that the consumer knows, None when it knows none.
    """

    id: bytes | None
    seqno: int
    start: int
    end: int
    purged: int | None = None


def common(had: Had, log: FailoverLog, high: int, purged: int) -> int:
    """Return the seqno to which the consumer has to undo changes; its own seqno when it has to undo none.

    `high` is the member's highest seqno, `purged` its purge seqno.  A de-duplicated snapshot cannot be resumed inside,
    so the result is the start of the snapshot unless the branch lies below it (U57).
    """
    seqno, start, end = had.seqno, had.start, had.end
    if not start <= seqno <= end:
        raise ValueError(f"seqno {seqno} lies outside its snapshot [{start}, {end}]")
    if seqno == 0:
        return 0
    if seqno < purged and had.purged != purged:
        return 0
    found = next((at for at, opening in enumerate(log.openings) if opening.id == had.id), None)
    if found is None:
        return 0
    upper = log.openings[found - 1].head if found else high
    if seqno == start:
        end = seqno     # nothing of the snapshot was received
    if end <= upper:
        return seqno
    if seqno == end:
        start = seqno   # all of the snapshot was received
    return min(upper, start)
