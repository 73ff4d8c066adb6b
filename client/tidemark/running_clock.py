"""RunningClock: time as a reader may hold it against others: time in which our own loop ran; and an Alarm by it.

While the application blocks the loop, or the process is stopped, nobody's silence can be noticed, so nobody is blamed
for it: this clock all but stands still.
Stays out: what is measured by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_S = 0.25
BLOCKED_S = 2 * TICK_S  # no tick for longer than this: the rest of the time does not count


class RunningClock:
    """Milliseconds since some moment, never falling."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticked_at = loop.time()
        self._lost_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick."""
        if self._timer is None:
            self._ticked_at = self._loop.time()
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ms(self) -> int:
        """Return the time."""
        return int((min(self._loop.time(), self._ticked_at + BLOCKED_S) - self._lost_s) * 1000)

    def _tick(self) -> None:
        now = self._loop.time()
        self._lost_s += max(0.0, now - self._ticked_at - BLOCKED_S)
        self._ticked_at = now
        self._timer = self._loop.call_later(TICK_S, self._tick)


class Alarm:
    """Calls once when the clock shows a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: RunningClock, ring: Callable[[], object]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._at_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, at_ms: int | None) -> None:
        """Replace the time; None: do not call.  A timer that is set for an earlier one is left and looks again."""
        self._at_ms = at_ms
        if self._timer is not None:
            if at_ms is not None and self._timer_ms <= at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer_ms = at_ms
            pause_s = max(0.0, (at_ms - self._clock.ms()) / 1000)
            self._timer = self._loop.call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer, at_ms = None, self._at_ms
        if at_ms is None:
            return
        if self._clock.ms() < at_ms:
            self.set(at_ms)
        else:
            self._at_ms = None
            self._ring()
