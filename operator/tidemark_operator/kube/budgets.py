"""Budget: so many of something in a second, and some more at once: a token bucket that is told the time.

Stays out: what is counted, and what becomes of what is too much.
"""

from __future__ import annotations


class Budget:
    """`per_s` tokens come in each second, and never more than `burst` are there."""

    __slots__ = ("_at", "_burst", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst, self._tokens, self._at = per_s, burst, burst, now

    def take(self, now: float) -> bool:
        """Take one if there is one."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def borrow(self, now: float) -> float:
        """Take one even where there is none yet; return after how many seconds it is there."""
        self._fill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_s)

    def wait_s(self) -> float:
        """Return how long it takes from the last look until there is one to take."""
        return max(0.0, (1 - self._tokens) / self._per_s)

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
