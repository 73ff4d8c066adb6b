"""Timers of all units in one heap, with a single wake-up of the event loop: an idle one costs nothing.

Stays out: what a timer means.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from tidemark_core.base.effects import TimerFired
from tidemark_core.base.ids import Address

_Key = tuple[Address, str]


class Timers:
    """Named timers per unit; setting one replaces the last of that name."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Key]] = []
        self._live: dict[_Key, tuple[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, address: Address, name: str, at_ms: int | None) -> None:
        """Fire at `at_ms` or later; None cancels."""
        key = (address, name)
        if at_ms is None:
            self._live.pop(key, None)
            return
        self._count += 1
        self._live[key] = (at_ms, self._count)
        heapq.heappush(self._heap, (at_ms, self._count, key))
        if len(self._heap) > 64 + 4 * len(self._live):
            self._heap = [(at, number, key) for key, (at, number) in self._live.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def next_ms(self) -> int | None:
        """Return when the next live timer is due, None when there is none."""
        heap = self._heap
        while heap and self._live.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def fire(self, now_ms: int, post: Callable[[TimerFired], None]) -> None:
        """Post every timer that is due."""
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            _, _, key = heapq.heappop(self._heap)
            del self._live[key]
            post(TimerFired(*key))
