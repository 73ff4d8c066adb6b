"""KeyedQueue: work by key; one worker at a time per key, what is asked for twice is done once.

A key that is asked for while it is worked on is worked on again behind it.  A failure is retried, later each time.
Keys begin one to a turn of the loop: work that never waits for anything would else keep the loop for the whole queue,
and leases, probes and answers that came in time would pass for late.
Stays out: what a key means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from tidemark_wire.tasks import background, cancelled

from .health import QUEUE_DEPTH, QUEUE_OLDEST, RECONCILE_SECONDS, RECONCILE_SUCCESS, RECONCILES

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 10.0

Key = tuple[str, ...]
"""What to do, then to what: ("pods", "data", "prod")."""


class Later(Exception):
    """Not now, for a reason that is no fault: the key is tried again as after a failure."""


class KeyedQueue:
    """`workers` keys at once; `work` is called with each.  Failures that are `expected` are told without a trace."""

    def __init__(
        self, work: Callable[[Key], Awaitable[None]], workers: int = 8, expected: tuple[type[Exception], ...] = (),
    ) -> None:
        self._work = work
        self._expected: tuple[type[Exception], ...] = (Later, *expected)
        self._workers = workers
        self._due: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: dict[Key, float] = {}    # in `_due`, and since when, in order
        self._running: set[Key] = set()
        self._again: set[Key] = set()      # asked for while running
        self._timers: dict[Key, tuple[float, asyncio.Handle]] = {}    # uvloop's do not always know when they are due
        self._failures: Counter[Hashable] = Counter()
        self._turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        QUEUE_OLDEST.set_function(self.oldest_s)
        self._tasks = [background(self._run(), f"worker {number}") for number in range(self._workers)]

    def oldest_s(self) -> float:
        """Return how long the first that waits has waited."""
        return max((time.monotonic() - since for since in list(self._waiting.values())[:1]), default=0.0)

    async def stop(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        await cancelled(*self._tasks)

    def add(self, key: Key) -> None:
        """Have `key` worked on as soon as there is a worker."""
        if (known := self._timers.pop(key, None)) is not None:
            known[1].cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = time.monotonic()
            self._due.put_nowait(key)
            QUEUE_DEPTH.set(len(self._waiting))

    def add_after(self, key: Key, seconds: float) -> None:
        """Have `key` worked on by then at the latest; what is due earlier counts."""
        loop = asyncio.get_running_loop()
        due, known = loop.time() + seconds, self._timers.get(key)
        if key in self._waiting or (known is not None and known[0] <= due):
            return
        if known is not None:
            known[1].cancel()
        self._timers[key] = due, loop.call_later(seconds, self.add, key)

    async def _run(self) -> None:
        while True:
            key = await self._due.get()
            async with self._turn:
                await asyncio.sleep(0)
            self._waiting.pop(key, None)
            self._running.add(key)
            QUEUE_DEPTH.set(len(self._waiting))
            started = time.monotonic()
            try:
                await self._work(key)
            except Exception as error:
                self._failed(key, error)
                RECONCILES.labels(key[0], "failed").inc()
            else:
                self._failures.pop(key, None)
                RECONCILES.labels(key[0], "done").inc()
                RECONCILE_SUCCESS.labels(key[0]).set(time.time())
            finally:
                RECONCILE_SECONDS.labels(key[0]).observe(time.monotonic() - started)
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                if key not in self._failures:
                    self.add(key)  # else its retry serves both

    def _failed(self, key: Key, error: Exception) -> None:
        self._failures[key] += 1
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(16, self._failures[key] - 1))
        if isinstance(error, self._expected):
            log.warning("%s waits: %s", "/".join(key), error)
        else:
            log.error("%s failed, again in %.1f s", "/".join(key), delay_s, exc_info=error)
        self.add_after(key, delay_s)
