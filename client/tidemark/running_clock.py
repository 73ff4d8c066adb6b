"""RunningClock: time as a reader may hold it against others, which is time in which our own loop ran.

While the application blocks the loop, or the process is stopped, nobody's silence can be noticed, so nobody is blamed
for it: this clock all but stands still.
Stays out: what is measured by it.
"""

from __future__ import annotations

import asyncio

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
