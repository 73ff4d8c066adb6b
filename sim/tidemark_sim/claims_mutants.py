"""The product minus one rule about claimed producers, each named by its rule (L26-L28).

Stays out: rules about all producers (`producing_mutants`, `limbo_mutants`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tidemark_core.base.effects import Effect, Reply
from tidemark_core.base.refusals import Refused
from tidemark_core.producing.messages import Ending
from tidemark_core.producing.producer import Producer
from tidemark_core.replication import claims
from tidemark_core.replication.confirmations import Confirmations
from tidemark_core.replication.producers import Known, Place, ProducerTable, Verdict

from .mutant import Mutant, substitute


def _l26_no_fence(stack: ExitStack) -> None:
    """A batch of an older claim is appended."""
    def judge(self: ProducerTable, producer: bytes, sequence: int, now_logged_ms: int) -> Verdict:
        verdict = original(self, producer, sequence, now_logged_ms)
        return Verdict(None, sequence, False) if verdict.fence else verdict

    original = ProducerTable.judge
    substitute(stack, ProducerTable, "judge", judge)


def _l26_same_fence(stack: ExitStack) -> None:
    """Of two claims with one fence, the one with the higher number is taken for the newer one."""
    substitute(stack, claims, "fence_of", lambda sequence: sequence)


def _l27_at_once(stack: ExitStack) -> None:
    """A claim is answered before its record is confirmed."""
    def when(self: Confirmations, at: int, now_ms: int, request: int, answer: Callable[[], Any]) -> list[Effect]:
        return [Reply(request, answer())]

    substitute(stack, Confirmations, "when", when)


def _l27_forgets(stack: ExitStack) -> None:
    """A rollback takes all that is remembered of a producer, and the batch in front of it is not known."""
    substitute(stack, Known, "behind", lambda self, first, at: self._replace(hit=at))


def _l27_covered(stack: ExitStack) -> None:
    """The newest batch in front of a claim counts, also where a rollback covers it."""
    def standing(self: ProducerTable, producer: bytes, upto: int, covering: Callable[[int], object]) -> Place:
        return original(self, producer, upto, lambda offset: None)

    original = ProducerTable.standing
    substitute(stack, ProducerTable, "standing", standing)


def _l28_goes_on(stack: ExitStack) -> None:
    """Batches are appended behind one that a node refused or a rollback took."""
    def end_claim(self: Producer, why: Refused | None, ending: Ending = Ending.ENDED) -> None:
        if why is None or ending is Ending.FENCED:
            original(self, why, ending)

    original = Producer._end_claim
    substitute(stack, Producer, "_end_claim", end_claim)


CLAIMS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("L26 fence", "an older claim writes nothing behind a newer one", _l26_no_fence, "claims"),
    Mutant("L26 number", "one of two claims with the same fence has the producer", _l26_same_fence, "claims"),
    Mutant("L27 confirmed", "a claim is answered once its record is confirmed", _l27_at_once, "claims"),
    Mutant("L27 anchor", "what stands is known behind any rollback", _l27_forgets, "claims"),
    Mutant("L27 covered", "what a rollback covers does not stand", _l27_covered, "claims"),
    Mutant("L28", "what a claim appends is a prefix", _l28_goes_on, "claims"),
)
