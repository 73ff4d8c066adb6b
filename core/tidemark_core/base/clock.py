"""The clock that a shell hands to a core: it follows the wall clock and never falls (rule C1).

A wall clock that is ahead is followed at once.  One that was set back is waited for: the clock goes on slower until the
wall clock has caught up.  The core hears of both by an event, because it compares times of this clock with times that
it took from others.
Stays out: reading clocks, which is the shell's; which clock decides what has expired (`replication.clocks`).
"""

from __future__ import annotations

from .effects import ClockStepped

SLEWED_PERCENT = 90
"""How fast the clock runs while the wall clock is behind it."""
STEP_MS = 1_000
"""Smaller differences are not announced."""


class ShellClock:
    """The clock of one life of a shell.  All times are milliseconds."""

    __slots__ = ("_credit", "_told_ahead_ms", "_told_behind_ms", "monotonic_ms", "now_ms", "wall_ms")

    def __init__(self, wall_ms: int, monotonic_ms: int) -> None:
        self.now_ms = wall_ms
        self.wall_ms = wall_ms
        self.monotonic_ms = monotonic_ms
        self._credit = 0    # hundredths of a millisecond that the slewed clock has not shown yet
        self._told_ahead_ms = wall_ms - monotonic_ms
        self._told_behind_ms = 0

    def advance(self, wall_ms: int, monotonic_ms: int) -> int:
        """Return the time now; call it at least once a turn."""
        elapsed_ms = max(0, monotonic_ms - self.monotonic_ms)
        self.monotonic_ms += elapsed_ms
        self.wall_ms = wall_ms
        if wall_ms >= self.now_ms:
            self.now_ms, self._credit = wall_ms, 0
            return wall_ms
        slewed_ms, self._credit = divmod(self._credit + elapsed_ms * SLEWED_PERCENT, 100)
        self.now_ms += slewed_ms
        return self.now_ms

    def at_monotonic(self, at_ms: int) -> int:
        """Return when the monotonic clock reaches a time of this clock: what is set to it waits as long as it should.

        A wall clock that is set meanwhile moves no timer.
        """
        return self.monotonic_ms + at_ms - self.now_ms

    def take_step(self) -> ClockStepped | None:
        """Return the event that the core is owed since the last call, None while the clocks agree."""
        ahead_ms, behind_ms = self.now_ms - self.monotonic_ms, self.now_ms - self.wall_ms
        by_ms = ahead_ms - self._told_ahead_ms
        if abs(by_ms) < STEP_MS and abs(behind_ms - self._told_behind_ms) < STEP_MS:
            return None
        self._told_ahead_ms, self._told_behind_ms = ahead_ms, behind_ms
        return ClockStepped(by_ms, behind_ms)
