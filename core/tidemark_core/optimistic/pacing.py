"""Pacing: how many bytes a node sends for the repair of a keyspace (D74).

A bucket holds what may be sent in a second.  One message may overdraw it, so a row that is larger than the bucket still
goes; then nothing goes until the bucket has recovered.
Stays out: what is sent, and what a sender says instead.
"""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """The bucket of one keyspace.  `rate` returns its bytes a second; 0: there is no limit."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._owed = 0.0        # bytes that were sent and not yet recovered
        self._at_ms = 0

    def free(self, now_ms: int) -> bool:
        """Say whether something may be sent now."""
        rate = self._rate()
        self._owed = max(0.0, self._owed - rate * (now_ms - self._at_ms) / 1_000) if rate else 0.0
        self._at_ms = now_ms
        return self._owed < rate or not rate

    def spend(self, size: int) -> None:
        """Count bytes that are sent."""
        self._owed += size


UNBOUND = Pace(lambda: 0)
