"""Repairing: which range of a node pulls from its other owners next, without being asked (D74).

Each range comes up again and again, a few of them at once.  One that missed an owner comes up earlier, and at once when
that owner is back.
Stays out: the exchanges (`holding.mending`), timers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

RETRY_MS = 30_000
"""A range that missed an owner comes up again behind so much time, or earlier where all of them do."""


class Rota:
    """The ranges of one node, each with the time at which it comes up; one whose `every_ms` is 0 never does."""

    def __init__(self, every_ms: Callable[[int], int], at_once_max: int) -> None:
        self._every_ms = every_ms
        self._at_once_max = at_once_max
        self._due_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []      # also of times that do not hold any more
        self._running: dict[int, bool] = {}         # whether a range comes up again at once behind this turn

    @property
    def running(self) -> tuple[int, ...]:
        """The ranges whose turn it is."""
        return tuple(self._running)

    def add(self, now_ms: int, unit: int) -> None:
        """Let a range come up at once; one that is known keeps its time."""
        if self._every_ms(unit) and unit not in self._due_ms:
            self._put(unit, now_ms)

    def changed(self, now_ms: int, units: Iterable[int]) -> None:
        """Take other intervals: a shorter one than what is left counts at once, a longer one from the next turn on."""
        for unit in units:
            every_ms, due_ms = self._every_ms(unit), self._due_ms.get(unit)
            if not every_ms:
                self.forget(unit)
            elif due_ms is None or due_ms > now_ms + every_ms:
                self._put(unit, now_ms if due_ms is None else now_ms + every_ms)

    def forget(self, unit: int) -> None:
        """Let a range come up no more; a turn that is under way ends as it would."""
        self._due_ms.pop(unit, None)

    def hasten(self, now_ms: int, units: Iterable[int]) -> None:
        """Let ranges come up at once; one whose turn it is comes up again behind it."""
        for unit in units:
            if unit in self._running:
                self._running[unit] = True
            elif unit in self._due_ms:
                self._put(unit, now_ms)

    def begin(self, now_ms: int) -> list[int]:
        """Return the ranges whose turn begins now; answer each with `ended`."""
        begun = []
        while len(self._running) < self._at_once_max and (due_ms := self.next_ms()) is not None and due_ms <= now_ms:
            _, unit = heapq.heappop(self._heap)
            self._running[unit] = False
            begun.append(unit)
        return begun

    def ended(self, now_ms: int, unit: int, *, missed: bool) -> None:
        """Take the end of a turn; `missed`: an owner gave nothing."""
        again = self._running.pop(unit, None)
        if again is None:
            return
        every_ms = self._every_ms(unit)
        if not every_ms:
            self.forget(unit)
            return
        rest_ms = min(every_ms, RETRY_MS) if missed else every_ms
        self._put(unit, now_ms if again else now_ms + rest_ms)

    def next_ms(self) -> int | None:
        """Return when the next range comes up, None where none waits."""
        heap = self._heap
        while heap and (heap[0][1] in self._running or self._due_ms.get(heap[0][1]) != heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _put(self, unit: int, due_ms: int) -> None:
        self._due_ms[unit] = due_ms
        heapq.heappush(self._heap, (due_ms, unit))
        if len(self._heap) > 64 + 2 * len(self._due_ms):
            self._heap = [(each_ms, each) for each, each_ms in self._due_ms.items() if each not in self._running]
            heapq.heapify(self._heap)
