"""The product minus one part of the read index (O46).

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack

from tidemark_core.base.effects import Effect
from tidemark_core.base.ids import Member
from tidemark_core.replication.clients import LatestRequest
from tidemark_core.replication.follower import Follower
from tidemark_core.replication.messages import ReadRound, ReadRoundAck
from tidemark_core.replication.read_index import ReadIndex

from .mutant import Mutant, substitute


def _no_round(stack: ExitStack) -> None:
    """A leader believes itself."""
    substitute(stack, ReadIndex, "_answers", lambda self, cursor: True)


def _joins(stack: ExitStack) -> None:
    """A caller joins the round under way."""

    def on_request(self: ReadIndex, now_ms: int, m: LatestRequest) -> list[Effect]:
        effects = original(self, now_ms, m)
        if self._callers:
            self._callers += self._asking
            self._asking = []
        return effects

    original = ReadIndex.on_request
    substitute(stack, ReadIndex, "on_request", on_request)


def _any_ack(stack: ExitStack) -> None:
    """An answer to an older round counts."""
    substitute(stack, ReadIndex, "_answers", lambda self, cursor: cursor.follower in self._answered)


def _fenced_answer(stack: ExitStack) -> None:
    """A member answers whatever epoch has fenced it."""

    def on_read_round(self: Follower, sender: Member, m: ReadRound) -> list[Effect]:
        return [self.replica.send(sender, ReadRoundAck(m.epoch, m.number))]

    substitute(stack, Follower, "on_read_round", on_read_round)


def _no_mark(stack: ExitStack) -> None:
    """Members that know no rounds never count on an idle log."""
    substitute(stack, ReadIndex, "_mark", lambda self, now_ms: None)


LATEST_MUTANTS: tuple[Mutant, ...] = (
    Mutant("O46", "a majority answers before the end is said", _no_round, "latest"),
    Mutant("O46 joins", "a round begins after the question", _joins, "latest"),
    Mutant("O46 older", "an answer counts for its own round and older ones", _any_ack, "latest"),
    Mutant("O46 fenced", "a member that a newer epoch fenced does not answer", _fenced_answer, "latest"),
    Mutant("O46 mark", "an entry stands in for rounds that members do not know", _no_mark, "latest"),
)
