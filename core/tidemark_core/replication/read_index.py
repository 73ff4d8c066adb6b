"""Read index: where the log ends for a caller who asks now, proved by one round to a majority (rule O46).

A leader that was replaced may not hear of it.  So a leader notes where its log ends, asks its members whether a newer
epoch has fenced them, and answers only when a majority, itself included, says no.  Callers that ask while a round is
under way share the next one, so no round is older than the question.  Without callers nothing is sent.
A member of a release that knows no rounds counts by its acknowledgement of an entry that is younger than the round.
Stays out: what a reader gets, and when (`stages`); who leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..base.effects import Effect, Reply, SetTimer, Space
from ..base.entry import Kind
from ..base.ids import Member
from ..base.quorum import majority
from ..base.refusals import Reason, Refused
from .clients import LatestRequest
from .cursor import Cursor, CursorStatus
from .messages import Latest, ReadRound, ReadRoundAck

if TYPE_CHECKING:
    from .leader import Leader

READ_INDEX_TIMER = "read_index"

WAITERS_MAX = 4096
"""Callers of one shard that wait for a round; more are refused."""

RETRY_MS = 50

Caller = tuple[int, int]
"""The number of a request, and until when it waits."""


class ReadIndex:
    """Callers of one leadership who ask where the log ends."""

    __slots__ = ("_answered", "_armed", "_asking", "_callers", "_end", "_head", "_number", "leader", "replica")

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.replica = leader.replica
        self._callers: list[Caller] = []          # of the round under way
        self._asking: list[Caller] = []           # of the next round
        self._number = 0                          # of the newest round
        self._end = -1                            # where the log ended when that round began
        self._head = -1                           # our head then: an acknowledgement beyond it is younger
        self._answered: dict[Member, int] = {}    # the newest round that each member answered
        self._armed = False

    @property
    def waiting(self) -> bool:
        return bool(self._callers or self._asking)

    def everybody(self) -> list[int]:
        """Return every request that waits."""
        return [request for request, _ in (*self._callers, *self._asking)]

    # --- asking -------------------------------------------------------------------------------------------

    def on_request(self, now_ms: int, m: LatestRequest) -> list[Effect]:
        """Let a caller wait for a round that begins from now on."""
        if len(self._callers) + len(self._asking) >= WAITERS_MAX:
            many = f"{WAITERS_MAX} callers ask for the latest offset already"
            return [Reply(m.request, Refused(Reason.OVERLOADED, many, self.leader.epoch, -1, RETRY_MS))]
        self._asking.append((m.request, now_ms + self.replica.limits.read_index_ms))
        return self._arm(now_ms)

    def begin(self) -> list[Effect]:
        """Begin a round when callers wait for one, none is under way and the leadership is durable."""
        if self._callers or not self._asking or not self.leader.active:
            return []
        self._callers, self._asking = self._asking, []
        self._number += 1
        self._head = self.leader.head
        # All that was confirmed before this epoch lies below its first entry (L12).
        self._end = max(self.replica.confirmed, self.leader.epoch_first)
        return [*self._ask(), *self.advance()]

    def _ask(self) -> list[Effect]:
        message = ReadRound(self.leader.epoch, self._number)
        return [
            self.replica.send(cursor.follower, message)
            for cursor in self._counted() if cursor.up and not self._answers(cursor)
        ]

    def _counted(self) -> Iterator[Cursor]:
        """Yield the members whose word counts: those that count for a commit."""
        leader = self.leader
        return (
            cursor for cursor in leader.cursors.values()
            if cursor.status is CursorStatus.ATTACHED and cursor.follower in leader.ensemble
        )

    # --- answers ------------------------------------------------------------------------------------------

    def on_ack(self, sender: Member, m: ReadRoundAck) -> list[Effect]:
        if m.epoch != self.leader.epoch:
            return []
        self._answered[sender] = max(m.number, self._answered.get(sender, 0))
        return self.advance()

    def advance(self) -> list[Effect]:
        """Answer the callers of the round under way once a majority is known to be in no newer epoch."""
        if not self._callers:
            return []
        if 1 + sum(map(self._answers, self._counted())) < majority(len(self.leader.ensemble)):
            return []
        callers, self._callers = self._callers, []
        answer = Latest(self.leader.epoch, self._end)
        return [Reply(request, answer) for request, _ in callers]

    def _answers(self, cursor: Cursor) -> bool:
        return self._answered.get(cursor.follower, 0) >= self._number or cursor.match > self._head

    # --- time ---------------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Refuse the callers who have waited long enough; ask the members again for the others."""
        self._armed = False
        late = [request for request, until_ms in (*self._callers, *self._asking) if until_ms <= now_ms]
        self._callers = [caller for caller in self._callers if caller[1] > now_ms]
        self._asking = [caller for caller in self._asking if caller[1] > now_ms]
        refusal = Refused(
            Reason.NO_LEADER, f"no majority answered the leader within {self.replica.limits.read_index_ms} ms",
            self.leader.epoch, -1, RETRY_MS,
        )
        effects: list[Effect] = [Reply(request, refusal) for request in late]
        if self._callers:
            effects += self._ask()
            self._mark(now_ms)
        return effects + self._arm(now_ms)

    def _arm(self, now_ms: int) -> list[Effect]:
        if self._armed or not self.waiting:
            return []
        self._armed = True
        return [SetTimer(self.replica.address, READ_INDEX_TIMER, now_ms + self.replica.limits.resend_ms)]

    def _mark(self, now_ms: int) -> None:
        """Append an entry for members that never answered a round: those of wire version 4 acknowledge it instead.

        An entry that is not committed is under way to them already, so a leader without a majority appends no second.
        """
        leader, replica = self.leader, self.replica
        silent = any(cursor.up and cursor.follower not in self._answered for cursor in self._counted())
        settled = leader.head == self._head == replica.commit and replica.confirmed >= leader.epoch_first
        if silent and settled and replica.space is not Space.EXHAUSTED and leader.transfer is None:
            leader.append_control(now_ms, Kind.CONFIRM, argument=replica.confirmed)
