"""Positions: what a leader does with commits of subscriptions (rules B6-B9).

Stays out: the fold itself (`subscriptions.fold`), who waits for a record (`confirmations`), what positions keep from
trimming (`retention`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.effects import Effect, Reply
from ..base.entry import Kind
from ..base.refusals import Reason, Refused
from ..subscriptions.fold import LEASE_MS_MAX, LEASE_MS_MIN, NAMES_MAX, Noted, position_payload, wrong_name
from ..subscriptions.view import SubscriptionsView, SubscriptionView
from .clients import CommitPosition, DeleteSubscription, PositionEvent, SubscriptionsRequest
from .log import Log
from .messages import PositionCommitted, SubscriptionDeleted
from .replica import Replica

if TYPE_CHECKING:
    from .leader import Leader

RENEWALS = 10
"""A reader that stands still renews its lease when such a part of it is over."""

Answer = PositionCommitted | SubscriptionDeleted


class Positions:
    """Commits of one leadership."""

    __slots__ = ("leader",)

    def __init__(self, leader: Leader) -> None:
        self.leader = leader

    def on_request(self, now_ms: int, m: PositionEvent) -> list[Effect]:
        leader = self.leader
        if not leader.active:
            return [Reply(m.request, Refused(Reason.NOT_LEADER, "leadership is being established", leader.epoch))]
        match m:
            case CommitPosition():
                return self._on_commit(now_ms, m)
            case DeleteSubscription():
                return self._on_delete(now_ms, m)
            case SubscriptionsRequest():
                return self._on_look(now_ms, m)

    # --- committing ---------------------------------------------------------------------------------------

    def _on_commit(self, now_ms: int, m: CommitPosition) -> list[Effect]:
        log, logged_ms = self._log, self._logged_ms(now_ms)
        if (wrong := self._what_is_wrong(m)) is not None:
            return self._refuse(m.request, Reason.INVALID_SPEC, wrong)
        newest, offset = self._newest(m.name, logged_ms), m.offset
        stands = newest.position.offset if newest is not None else -1
        if newest is not None and (offset == stands or (offset < stands and not m.seek)):      # B6
            offset, logged, lease_ms = newest.position
            if lease_ms == m.lease_ms and logged_ms - logged < lease_ms // RENEWALS:           # B7
                return self._when(newest.at, now_ms, m.request, PositionCommitted(self.leader.epoch, offset))
        if newest is None and not log.subscriptions.room_for(m.name, logged_ms):
            held = f"the shard holds {NAMES_MAX} subscriptions already"
            return self._refuse(m.request, Reason.TOO_MANY_SUBSCRIPTIONS, held)
        if (refused := self._cannot_write()) is not None:
            return [Reply(m.request, refused)]
        at = self._append(now_ms, m.name, offset, m.lease_ms)
        return self._when(at, now_ms, m.request, PositionCommitted(self.leader.epoch, offset))

    def _what_is_wrong(self, m: CommitPosition) -> str | None:
        if (wrong := wrong_name(m.name)) is not None:
            return wrong
        if not LEASE_MS_MIN <= m.lease_ms <= LEASE_MS_MAX:
            return f"lease_ms is {m.lease_ms}, must be {LEASE_MS_MIN} to {LEASE_MS_MAX}"
        end = self.leader.head + 1
        return f"offset is {m.offset}, must be 0 to {end}, the log's end" if not 0 <= m.offset <= end else None

    def _on_delete(self, now_ms: int, m: DeleteSubscription) -> list[Effect]:
        epoch = self.leader.epoch
        if (wrong := wrong_name(m.name)) is not None:
            return self._refuse(m.request, Reason.INVALID_SPEC, wrong)
        subscriptions, covering = self._log.subscriptions, self._log.decisions.covering
        newest = subscriptions.newest(m.name, covering)
        if newest is None:
            return [Reply(m.request, SubscriptionDeleted(epoch, False))]
        if newest.position.lease_ms == 0:
            return self._when(newest.at, now_ms, m.request, SubscriptionDeleted(epoch, True))  # B8
        if (refused := self._cannot_write()) is not None:
            return [Reply(m.request, refused)]
        at = self._append(now_ms, m.name, newest.position.offset, 0)
        return self._when(at, now_ms, m.request, SubscriptionDeleted(epoch, True))

    def _append(self, now_ms: int, name: str, offset: int, lease_ms: int) -> int:
        self.leader.append_control(now_ms, Kind.POSITION, position_payload(name, lease_ms), argument=offset)
        return self.leader.head

    def _cannot_write(self) -> Refused | None:
        if self._log.subscriptions.crowded:
            return Refused(Reason.OVERLOADED, "too many positions wait for their quorum", self.leader.epoch, -1, 50)
        return self.leader.refuse_control()

    # --- answering ----------------------------------------------------------------------------------------

    def _when(self, at: int, now_ms: int, request: int, answer: Answer) -> list[Effect]:
        """Answer once the record at `at` is confirmed (B8)."""
        return self.leader.confirmations.when(at, now_ms, request, lambda: self._unless_covered(at, answer))

    def _unless_covered(self, at: int, answer: Answer) -> Answer | Refused:
        if self._log.decisions.covering(at) is None:
            return answer
        return Refused(Reason.BEHIND, "a rollback took the position with it; retry", self.leader.epoch, -1, 10)

    def _refuse(self, request: int, reason: Reason, message: str, retry_after_ms: int = -1) -> list[Effect]:
        return [Reply(request, Refused(reason, message, self.leader.epoch, -1, retry_after_ms))]

    # --- looking ------------------------------------------------------------------------------------------

    def _on_look(self, now_ms: int, m: SubscriptionsRequest) -> list[Effect]:
        """A new leader does not know yet what it inherited is confirmed: it would show older positions (L12)."""
        replica = self.leader.replica
        if replica.confirmed < self.leader.outcomes.limbo.opening:
            return self._refuse(m.request, Reason.BEHIND, "what this leader inherited is not confirmed yet", 20)
        return [Reply(m.request, subscriptions_view(replica, self.leader.epoch, now_ms))]

    @property
    def _log(self) -> Log:
        return self.leader.replica.log

    def _logged_ms(self, now_ms: int) -> int:
        """The log's clock as the next entry would set it."""
        return self.leader.clocks.next_stamp(now_ms)

    def _newest(self, name: str, logged_ms: int) -> Noted | None:
        """Return where a subscription stands or will stand; None when it is deleted or forgotten (B5)."""
        found = self._log.subscriptions.newest(name, self._log.decisions.covering)
        return found if found is not None and found.position.lease_ms and found.position.live(logged_ms) else None


def subscriptions_view(replica: Replica, epoch: int, now_ms: int) -> SubscriptionsView:
    """Return what is confirmed and not forgotten, and how far each is behind."""
    log, released = replica.log, replica.released
    return SubscriptionsView(
        epoch, log.first, released,
        tuple(
            SubscriptionView(
                name, position.offset, position.lease_ms, position.logged_ms,
                position.logged_ms + position.lease_ms - now_ms, max(0, released + 1 - position.offset),
                log.bytes_from(position.offset),
            )
            for name, position in log.subscriptions.known(log.logged_ms)
        ),
    )
