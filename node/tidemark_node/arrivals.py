"""Requests that are on their way: a request that takes too long to arrive gives its place to others (T12).

Stays out: the places (`budgets`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS = 20.0
CROWDED_SECONDS = 2.0
"""A request may take this long while others wait for its place."""
LOOK_SECONDS = 1.0


class TooLate(Exception):
    """A request did not arrive within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request did not arrive within {seconds:.0f} s")


class Arrivals:
    """Waits for requests.  One timer looks at all of them: a timer for each would cost as much as a small request.

    Time counts in looks, so that a loop that stood still refuses no request that lies there.
    """

    def __init__(self, others: Callable[[], int]) -> None:
        self._others = others   # the number of requests that wait for a place
        self._looks: dict[asyncio.Task[Any], int] = {}   # at a task that waits
        self._late: dict[asyncio.Task[Any], TooLate] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, reading: Coroutine[Any, Any, T]) -> T:
        """Return what `reading` returns; raises TooLate."""
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        self._looks[task] = 0
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        try:
            return await reading
        except asyncio.CancelledError:
            late = self._late.get(task)
            if late is None or task.uncancel() > cancelled:
                raise       # its caller went away
            raise late from None
        finally:
            self._looks.pop(task, None)
            self._late.pop(task, None)

    def _look(self) -> None:
        self._timer = None
        others = self._others()
        for task, looks in list(self._looks.items()):
            seconds = CROWDED_SECONDS if others > 0 else SECONDS
            if looks * LOOK_SECONDS < seconds:      # the first look begins the count
                self._looks[task] = looks + 1
                continue
            del self._looks[task]
            others -= 1
            self._late[task] = TooLate(seconds)
            task.cancel()
        if self._looks:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
