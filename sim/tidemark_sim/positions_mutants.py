"""Named subscriptions minus one repair, each named by its rule: which positions count, what they keep from trimming.

Stays out: everything that holds without subscriptions as well; see `mutants`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.effects import Reply
from tidemark_core.base.entry import Entry
from tidemark_core.base.folds import Covering
from tidemark_core.replication.clients import CommitPosition
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.positions import Positions
from tidemark_core.subscriptions.fold import Subscriptions

from .mutant import Mutant, substitute

# --- which count (B2, B3) -------------------------------------------------------------------------------------


def _rolled_back_count(stack: ExitStack) -> None:
    def decide(self: Subscriptions, confirmed: int, covering: Covering) -> None:
        original(self, confirmed, lambda at: None)

    original = Subscriptions.decide
    substitute(stack, Subscriptions, "decide", decide)


def _unconfirmed_count(stack: ExitStack) -> None:
    def note(self: Subscriptions, entry: Entry) -> None:
        original(self, entry)
        self.decide(entry.base, lambda at: None)

    original = Subscriptions.note
    substitute(stack, Subscriptions, "note", note)


def _not_in_checkpoint(stack: ExitStack) -> None:
    substitute(stack, Subscriptions, "upto", lambda self, offset, logged_ms: Subscriptions())


def _not_undone(stack: ExitStack) -> None:
    substitute(stack, Subscriptions, "undo_to", lambda self, head: None)


# --- committing (B6, B8) --------------------------------------------------------------------------------------


def _go_back(stack: ExitStack) -> None:
    def on_commit(self: Positions, now_ms: int, m: CommitPosition) -> list[Any]:
        return original(self, now_ms, replace(m, seek=True))

    original = Positions._on_commit
    substitute(stack, Positions, "_on_commit", on_commit)


def _told_at_once(stack: ExitStack) -> None:
    def when(self: Positions, at: int, now_ms: int, request: int, answer: Any) -> list[Any]:
        return [Reply(request, answer)]

    substitute(stack, Positions, "_when", when)


# --- trimming (B10) -------------------------------------------------------------------------------------------


def _pins_ignored(stack: ExitStack) -> None:
    substitute(stack, Subscriptions, "lowest", lambda self, now_ms: None)


def _trims_before_it_knows(stack: ExitStack) -> None:
    def trim(self: Leader, before: int) -> list[Any]:
        limbo = self.outcomes.limbo
        opening, limbo.opening = limbo.opening, -1
        try:
            return original(self, before)
        finally:
            limbo.opening = opening

    original = Leader.trim
    substitute(stack, Leader, "trim", trim)


POSITIONS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("B2", "a position that was rolled back does not count", _rolled_back_count, "successors"),
    Mutant("B2 confirmed", "a position counts once it is confirmed", _unconfirmed_count, "successors"),
    Mutant("B3 undo", "positions are undone on truncation", _not_undone, "successors"),
    Mutant("B3", "positions are part of checkpoints", _not_in_checkpoint, "clocks"),
    Mutant("B6", "a position moves back by a seek alone", _go_back, "clocks"),
    Mutant("B8", "a position is told once it is confirmed", _told_at_once, "clocks"),
    Mutant("B10", "trimming stops at positions", _pins_ignored, "clocks"),
    Mutant("B10 opening", "a new leader trims only when it knows who pins", _trims_before_it_knows, "successors"),
)
