"""The product minus one rule about producers, as clients run them, each named by its rule.

Stays out: the log's side of these rules (`limbo_mutants`, `mutants`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from tidemark_core.base.refusals import Refused
from tidemark_core.producing.flights import Flight, Rollbacks
from tidemark_core.producing.producer import Producer

from .mutant import Mutant, substitute


def _l21_any_gap(stack: ExitStack) -> None:
    """A gap counts as a loss, also where its refusal was under way before the acknowledgement came."""
    def on_gap(self: Producer, flight: Flight, value: Refused) -> None:
        flight.sent_number = self._heard_number + 1
        original(self, flight, value)

    original = Producer._on_gap
    substitute(stack, Producer, "_on_gap", on_gap)


def _l22_no_question(stack: ExitStack) -> None:
    """Once one batch was rolled back, all get new sequences, also those with an unknown fate."""
    def to_ask(self: Rollbacks, flights: Iterable[Flight]) -> list[Flight]:
        flights = list(flights)
        return [] if any(flight.ended for flight in flights) else original(self, flights)

    original = Rollbacks.to_ask
    substitute(stack, Rollbacks, "to_ask", to_ask)


def _l22_new_first(stack: ExitStack) -> None:
    """A batch that was refused behind a rolled back one keeps its sequence, and the rolled back one goes last."""
    def settle(self: Rollbacks, flights: list[Flight], given_up: list[Flight], next_sequence: int) -> int:
        ended = [flight for flight in flights if flight.ended]
        for flight in ended:
            flights.remove(flight)
        flights.extend(ended)
        return original(self, flights, given_up, next_sequence)

    original = Rollbacks.settle
    substitute(stack, Rollbacks, "settle", settle)


PRODUCING_MUTANTS: tuple[Mutant, ...] = (
    Mutant("L21 proof", "a refusal from before an acknowledgement proves no loss", _l21_any_gap, "swaps"),
    Mutant("L22 ask", "every fate is known before sequences are given again", _l22_no_question, "limbo"),
    Mutant("L22 order", "rolled back batches go first", _l22_new_first, "limbo"),
)
