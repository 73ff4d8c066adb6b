"""The product minus one rule about full disks, each named by its rule.

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tidemark_core.base.effects import Space
from tidemark_core.replication.cursor import Cursor
from tidemark_core.replication.leader import Leader

from .mutant import Mutant, substitute


def _k20_own_disk_only(stack: ExitStack) -> None:
    """The leader looks at its own disk alone, as it did."""
    def no_space(self: Leader, durability: Any) -> str | None:
        return "the leader's disk is full" if self.replica.space else None

    substitute(stack, Leader, "_no_space", no_space)


def _k20_not_its_own(stack: ExitStack) -> None:
    """The leader looks at the disks of the others alone."""
    def no_space(self: Leader, durability: Any) -> str | None:
        return None if self._enough_space(durability) else "others are full"

    substitute(stack, Leader, "_no_space", no_space)


def _k21_no_heartbeat(stack: ExitStack) -> None:
    """A member with a full disk hears of nothing before it has space."""
    def resend(self: Leader, cursor: Cursor) -> list[Any]:
        return [] if cursor.space else original(self, cursor)

    original = Leader._resend
    substitute(stack, Leader, "_resend", resend)


def _k20_for_ever(stack: ExitStack) -> None:
    """A member that was full once is full until the leader ends."""
    def acknowledged(self: Cursor, upto: int, commit: int, space: Space = Space.FREE) -> None:
        original(self, upto, commit, max(self.space, space))

    original = Cursor.acknowledged
    substitute(stack, Cursor, "acknowledged", acknowledged)


SPACE_MUTANTS: tuple[Mutant, ...] = (
    Mutant("K20", "no append while too few members have space", _k20_own_disk_only, "space"),
    Mutant("K20 own", "no append while the leader's disk is full", _k20_not_its_own, "space"),
    Mutant("K20 ends", "an acknowledgement says when there is space again", _k20_for_ever, "space"),
    Mutant("K21", "a member with a full disk hears of trims", _k21_no_heartbeat, "space"),
)
