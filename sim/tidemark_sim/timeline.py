"""The timeline of one run: a queue of events ordered by time and birth.

Stays out: what happens at an event; the parts of a world know.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from .dice import Dice
from .trace import Trace


class Timeline:
    """True time, which moves from event to event."""

    def __init__(self, dice: Dice, trace: Trace) -> None:
        self.dice = dice
        self.trace = trace
        self.now_ms = 0
        self.events = 0
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._born = 0
        self._requests = 0

    def after(self, delay_ms: int, action: Callable[..., object], *arguments: Any) -> None:
        """Run `action(*arguments)` in `delay_ms`."""
        self._born += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._born, action, arguments))

    def idle(self) -> None:
        """The event under way found nothing to do: it does not count."""
        self.events -= 1

    def step(self) -> None:
        """Let the next event happen."""
        self.now_ms, _, action, arguments = heapq.heappop(self._queue)
        self.events += 1
        self.trace.step += 1
        self.trace.now_ms = self.now_ms
        action(*arguments)

    def request_number(self) -> int:
        self._requests += 1
        return self._requests

    def run_faults(self, events: int) -> None:
        while self.events < events:
            self.step()

    def run_until(self, deadline_ms: int) -> None:
        """Let everything happen that is due up to `deadline_ms`."""
        while self._queue and self._queue[0][0] <= deadline_ms:
            self.step()
        self.now_ms = max(self.now_ms, deadline_ms)
