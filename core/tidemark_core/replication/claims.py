"""Claims: how a process has a producer to itself, and where it goes on (rules L26 and L27).

Stays out: the fold that remembers claims (`producers`), who waits for the record (`confirmations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.effects import Effect, Reply
from ..base.entry import Kind
from ..base.refusals import Reason, Refused
from .clients import ClaimRequest
from .messages import Claimed
from .producer_ids import fence_of

if TYPE_CHECKING:
    from .leader import Leader


def on_request(leader: Leader, now_ms: int, m: ClaimRequest) -> list[Effect]:
    """Append a claim that is newer than any before, and answer it once everything in front of it is decided."""
    log = leader.replica.log
    if not leader.active:
        return [Reply(m.request, Refused(Reason.NOT_LEADER, "leadership is being established", leader.epoch))]
    verdict = log.producers.judge(m.producer, m.sequence, log.logged_ms)
    if verdict.place is not None and not verdict.place.count:
        at = verdict.place.base   # a repetition; a batch may have the number that another process drew
    elif verdict.known and fence_of(m.sequence) <= fence_of(verdict.expected - 1):
        return [Reply(m.request, _refused(leader, Reason.FENCE_TOO_LOW, fence_of(verdict.expected - 1)))]
    elif (refused := leader.refuse_control()) is not None:
        return [Reply(m.request, refused)]
    else:
        leader.append_control(now_ms, Kind.CLAIM, argument=m.sequence, producer=m.producer)
        at = leader.head
    return leader.confirmations.when(at, now_ms, m.request, lambda: _answer(leader, m, at))


def _answer(leader: Leader, m: ClaimRequest, at: int) -> Claimed | Refused:
    """Say what stands in front of the claim; a newer claim may have come while it was not confirmed."""
    log, epoch = leader.replica.log, leader.epoch
    newest = log.producers.judge(m.producer, m.sequence, log.logged_ms).expected - 1
    if fence_of(newest) > fence_of(m.sequence):
        # Final: two processes that claimed again whenever the other one did would keep each other from ever writing.
        return _refused(leader, Reason.PRODUCER_FENCED, fence_of(newest))
    standing = log.producers.standing(m.producer, at, log.decisions.covering)
    return Claimed(epoch, at, standing.sequence, standing.epoch, standing.base, standing.count)


def _refused(leader: Leader, reason: Reason, fence: int) -> Refused:
    return Refused(reason, f"the producer was claimed with fence {fence}", leader.epoch, fence)
