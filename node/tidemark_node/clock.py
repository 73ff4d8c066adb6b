"""The clock of this process: the wall clock as the core may use it (rule C1).

Stays out: how it follows the machine's clocks, which is `tidemark_core.base.clock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemark_core.base.clock import ShellClock
from tidemark_core.base.effects import ClockStepped

NS_PER_MS = 1_000_000


class WallClock:
    """Reads the machine's clocks; every answer is in milliseconds."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._clock = ShellClock(wall_ns() // NS_PER_MS, monotonic_ns() // NS_PER_MS)

    def now_ms(self) -> int:
        """Return the wall clock; it never falls, and runs slower while the wall clock is behind it."""
        return self._clock.advance(self._wall_ns() // NS_PER_MS, self._monotonic_ns() // NS_PER_MS)

    def monotonic_ms(self) -> int:
        """Return the time by which timers fire."""
        return self._monotonic_ns() // NS_PER_MS

    def timer_ms(self, at_ms: int | None) -> int | None:
        """Return the monotonic time at which a timer fires that the core sets to `at_ms`; None cancels it."""
        return None if at_ms is None else self._clock.at_monotonic(at_ms)

    def take_step(self) -> ClockStepped | None:
        """Return what the core has to hear of the clock before its next turn, None when it moved with the time."""
        return self._clock.take_step()
