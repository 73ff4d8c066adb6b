"""Confirmations: requests that a leader answers once the record that stands for them is confirmed (rules B8, L26).

Stays out: appending the record, and what the answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.effects import Effect, Reply, SetTimer
from ..base.refusals import Reason, Refused

if TYPE_CHECKING:
    from .leader import Leader

CONFIRMATION_TIMER = "confirmation"
WAITERS_MAX = 4096


class Waiter(NamedTuple):
    """A request that waits for the record at offset `at`; `answer` makes its answer then."""

    at: int
    deadline_ms: int
    request: int
    answer: Callable[[], Any]


class Confirmations:
    """Everybody who waits for a record of one leadership."""

    __slots__ = ("_armed", "_waiting", "leader")

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._waiting: list[Waiter] = []
        self._armed = False

    def when(self, at: int, now_ms: int, request: int, answer: Callable[[], Any]) -> list[Effect]:
        """Answer once the record at `at` is confirmed; at once when it is."""
        if at <= self.leader.replica.confirmed:
            return [Reply(request, answer())]
        if len(self._waiting) >= WAITERS_MAX:
            text = f"{WAITERS_MAX} requests wait for their records already"
            return [Reply(request, Refused(Reason.OVERLOADED, text, self.leader.epoch, -1, 50))]
        self._waiting.append(Waiter(at, now_ms + self.leader.outcomes.timeout_ms, request, answer))
        return self._arm()

    def on_confirmed(self) -> list[Effect]:
        """More of the log is confirmed: answer whose record is among it, in log order."""
        confirmed = self.leader.replica.confirmed
        done = sorted((each for each in self._waiting if each.at <= confirmed), key=lambda each: each.at)
        if done:
            self._waiting = [each for each in self._waiting if each.at > confirmed]
        return [Reply(each.request, each.answer()) for each in done]

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Requests that have waited long enough are to be asked again: their records may still be confirmed."""
        self._armed = False
        late = [each for each in self._waiting if each.deadline_ms <= now_ms]
        self._waiting = [each for each in self._waiting if each.deadline_ms > now_ms]
        again = Refused(Reason.BEHIND, "the record is not confirmed yet; retry", self.leader.epoch, -1, 50)
        return [*(Reply(each.request, again) for each in late), *self._arm()]

    def everybody(self) -> list[int]:
        """Return every waiting request, and let them go: this leadership is over."""
        requests = [each.request for each in self._waiting]
        self._waiting.clear()
        return requests

    def _arm(self) -> list[Effect]:
        if self._armed or not self._waiting:
            return []
        self._armed = True
        soonest_ms = min(each.deadline_ms for each in self._waiting)
        return [SetTimer(self.leader.replica.address, CONFIRMATION_TIMER, soonest_ms)]
