"""Latencies: how fast nodes answered lately, the order in which to ask them, and when a second read is due.

A measurement is forgotten after a while, so that a node which was slow once is tried again.
Stays out: calls, and which nodes own a key.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

NEWEST_SHARE = 0.2
"""Weight of the newest measurement in the mean."""
MEASURED_S = 30.0
"""So long a mean counts after its last measurement; a node without one is tried first."""
AVOIDED_S = 5.0
"""A node that failed is asked last for so long."""
READS = 512
READS_MIN = 20
SORT_EVERY = 32
SECOND_READ_S = 0.1
"""A second read is due after so long while fewer than READS_MIN reads are known."""
SECOND_READ_MIN_S, SECOND_READ_MAX_S = 0.002, 1.0
SECOND_READS_EACH = 0.05
"""Second reads for each read, at most, once SECOND_READS_SAVED are spent."""
SECOND_READS_SAVED = 10.0


class Latencies:
    """Measurements of one client, by the addresses of nodes.  `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._means: dict[str, tuple[float, float]] = {}   # seconds, and when it was measured last
        self._avoided: dict[str, float] = {}               # until when
        self._reads: deque[float] = deque(maxlen=READS)
        self._unsorted = 0
        self._slow_s = SECOND_READ_S
        self._saved = SECOND_READS_SAVED

    def measured(self, address: str, seconds: float) -> None:
        """Note how long a call took; of one that was given up, how long it took at least."""
        known = self._known(address)
        mean = seconds if known is None else known + NEWEST_SHARE * (seconds - known)
        self._means[address] = (mean, self._now())
        self._avoided.pop(address, None)

    def failed(self, address: str) -> None:
        """Note that a node does not serve at the moment."""
        self._avoided[address] = self._now() + AVOIDED_S

    def known(self, address: str) -> bool:
        """Say whether a node was measured lately."""
        return self._known(address) is not None

    def avoided(self, address: str) -> bool:
        """Say whether a node failed lately."""
        return self._avoided.get(address, 0.0) > self._now()

    def order(self, addresses: Iterable[str]) -> list[str]:
        """Return addresses in the order to ask: those not measured, then by their means, then those that failed."""
        mixed = list(addresses)
        random.shuffle(mixed)
        return sorted(mixed, key=lambda address: (self.avoided(address), self._known(address) or 0.0))

    def forget(self, kept: Iterable[str]) -> None:
        """Forget every address but these: nodes come and go."""
        kept = set(kept)
        for known in (self._means, self._avoided):
            for address in known.keys() - kept:
                del known[address]

    def _known(self, address: str) -> float | None:
        mean, at = self._means.get(address, (0.0, 0.0))
        return mean if address in self._means and self._now() - at < MEASURED_S else None

    # --- second reads

    def read(self, seconds: float) -> None:
        """Note how long one read took."""
        self._reads.append(seconds)
        self._saved = min(SECOND_READS_SAVED, self._saved + SECOND_READS_EACH)
        self._unsorted += 1
        if len(self._reads) >= READS_MIN and (self._unsorted >= SORT_EVERY or len(self._reads) == READS_MIN):
            self._unsorted = 0
            slow_s = sorted(self._reads)[len(self._reads) * 99 // 100]
            self._slow_s = min(max(slow_s, SECOND_READ_MIN_S), SECOND_READ_MAX_S)

    @property
    def second_read_s(self) -> float:
        """Seconds after which a read is slow: the p99 of recent reads."""
        return self._slow_s

    def may_read_twice(self) -> bool:
        """Take one second read from those that are allowed; say whether there was one."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
