"""The product minus one rule about partial partitions, each named by its rule.

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.ids import EntryId, Member
from tidemark_core.replication import coordinator as core_coordinator
from tidemark_core.replication import reach as core_reach
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.hearing import Hearing
from tidemark_core.replication.reach import Patience

from .mutant import Mutant, substitute


def _o43_says_nothing(stack: ExitStack) -> None:
    """A leader that hears no answer waits for ever."""
    substitute(stack, Hearing, "look", lambda self, now_ms, silence_ms: (None, False))


def _o43_only_links(stack: ExitStack) -> None:
    """Only a link that broke counts, not one that is silent."""
    original = Hearing.look

    def look(self: Hearing, now_ms: int, silence_ms: int) -> Any:
        return original(self, now_ms, 1 << 40)

    substitute(stack, Hearing, "look", look)


def _o44_longest_log(stack: ExitStack) -> None:
    """The highest head leads, also where it reaches no other member."""
    substitute(stack, core_coordinator, "choose", _first)


def _first(ensembles: Any, heads: Any, first: Member, *_: Any) -> Member:
    return first


def _o44_any_head(stack: ExitStack) -> None:
    """Any member that reaches a majority leads, whatever it lacks."""

    def choose(
        ensembles: Any, heads: Mapping[Member, EntryId], first: Member, *rest: Any
    ) -> Member:
        flat = {member: EntryId(0, 0) for member in heads}
        return original(ensembles, flat, first, *rest)

    original = core_reach.choose
    substitute(stack, core_coordinator, "choose", choose)


def _o44_no_patience(stack: ExitStack) -> None:
    """Elect as often as a node says that a leader hears no majority."""
    substitute(stack, Patience, "has_ended", lambda self, now_ms: True)


def _o44_for_any_member(stack: ExitStack) -> None:
    """Elect when the leader does not hear one of its followers."""
    original = Coordinator.on_unheard

    def on_unheard(self: Coordinator, now_ms: int, sender: Member, m: Any) -> Any:
        return original(self, now_ms, sender, replace(m, silent_ms=1 << 40))

    substitute(stack, Coordinator, "on_unheard", on_unheard)


REACH_MUTANTS: tuple[Mutant, ...] = (
    Mutant("O43", "a leader says that it hears no majority", _o43_says_nothing, "partial"),
    Mutant("O43 links only", "silence on a link that stands counts", _o43_only_links, "partial"),
    Mutant("O44 longest log", "a member that reaches a majority is chosen", _o44_longest_log, "partial"),
    Mutant("O44 any head", "a majority's highest head is the candidate's own", _o44_any_head, "partial"),
    Mutant("O44 no patience", "one election in a wait that doubles", _o44_no_patience, "partial"),
    Mutant("O44 any member", "a leader that hears a majority goes on", _o44_for_any_member, "partial"),
)
