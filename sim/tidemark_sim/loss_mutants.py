"""The product minus one rule about a majority that lost the synced end of its logs (K14c, K14d).

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.quorum import has_majority
from tidemark_core.replication import ensembles
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.ensembles import Ensembles
from tidemark_core.replication.follower import Follower

from .mutant import Mutant, substitute


def _not_reported(stack: ExitStack) -> None:
    substitute(stack, Follower, "_report_loss", lambda self, m, operator: [])


def _destroyed(stack: ExitStack) -> None:
    substitute(stack, ensembles, "_last_copy", lambda record, leaver, nodes: None)


def _unfenced(stack: ExitStack) -> None:
    """The source leads though the others can still commit without it."""

    def answered(self: Ensembles, heads: dict[Any, Any]) -> bool:
        return has_majority(self.fencing, heads) or has_majority(self.final, heads)

    substitute(stack, Ensembles, "answered", answered)


def _given_up(stack: ExitStack) -> None:
    """An election after the act was stored goes back to the majority that lost its end."""
    elect = Coordinator._elect

    def forgetful(self: Coordinator, now_ms: int) -> Any:
        if self.record is not None:
            self.record = replace(self.record, source=None)
        return elect(self, now_ms)

    substitute(stack, Coordinator, "_elect", forgetful)


def _deleted_at_once(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_alone", staticmethod(lambda record: False))


LOSS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("K14c", "a refused truncation below commit is reported", _not_reported),
    Mutant("K14c guard", "the last copy does not leave by a change", _destroyed),
    Mutant("K14d fence", "a majority is fenced before the source leads", _unfenced),
    Mutant("K14d source", "once stored, only the source is elected", _given_up),
    Mutant("K14d copies", "the other copies stay until a second one of the source's is there", _deleted_at_once),
)
