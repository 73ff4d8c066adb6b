"""Expecting: appends that are refused where another record came first (rule L29).

Stays out: which records there are (`producers`), who waits for one (`confirmations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.effects import Effect
from ..base.refusals import Reason, Refused
from .clients import AppendRequest

if TYPE_CHECKING:
    from .leader import Leader
    from .log import Log


def refuse(leader: Leader, now_ms: int, m: AppendRequest) -> list[Effect] | None:
    """Return None where no other record comes first; else answer once that is so for good.

    An undecided record may yet be lost with this leadership, and the batch may lie in the log that wins.  A record that
    is confirmed is in front of whatever any leader appends.
    """
    end = end_of_records(leader.replica.log)
    if m.expect < 0 or end <= m.expect:
        return None
    return leader.confirmations.when(end - 1, now_ms, m.request, lambda: _refused(leader, m.expect))


def _refused(leader: Leader, expect: int) -> Refused:
    end = end_of_records(leader.replica.log)
    text = f"a record lies at offset {end - 1}, none is expected from {expect} on"
    return Refused(Reason.RECORD_CAME_FIRST, text, leader.epoch, end)


def end_of_records(log: Log) -> int:
    """Return the offset behind the newest record: a batch or claim, decided or not, rolled back or not."""
    newest = log.producers.newest
    if newest is not None:
        return newest.base + max(newest.count, 1)
    # A table of a release that forgot its newest producer too has no answer, where the log ever had a record.
    return log.head.offset + 1 if log.orders else 0
