"""The product minus one rule about clocks, each named by its rule.

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack

from tidemark_core.replication.clocks import Clocks

from .mutant import Mutant, substitute


def _c2_own_clock(stack: ExitStack) -> None:
    """Age is judged by whatever clock the leader has."""
    substitute(stack, Clocks, "agreed_ms", lambda self, now_ms: now_ms)


def _c3_own_stamp(stack: ExitStack) -> None:
    """The log's clock goes wherever the leader's clock is."""
    substitute(stack, Clocks, "next_stamp", lambda self, now_ms: max(now_ms, self._replica.log.logged_ms))


def _c2_fences_say_nothing(stack: ExitStack) -> None:
    def heard(self: Clocks, member: object, clock_ms: int | None, now_ms: int) -> None:
        return None

    def agreed_ms(self: Clocks, now_ms: int) -> int:
        return self._replica.wall_behind(now_ms)

    substitute(stack, Clocks, "heard", heard)
    substitute(stack, Clocks, "agreed_ms", agreed_ms)


CLOCK_MUTANTS: tuple[Mutant, ...] = (
    Mutant("C2", "the median of a majority says what is of age", _c2_own_clock, "ages"),
    Mutant("C2 unheard", "nothing expires without a majority", _c2_fences_say_nothing, "ages"),
    Mutant("C3", "the log's clock does not follow one clock that is wrong", _c3_own_stamp, "ages"),
)
