"""Room: the bound on the bytes an appender holds, counted from append to answer.

Who finds no room waits in line; nobody overtakes.  Stays out: what the bytes are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Room:
    """`used` of `limit` bytes.  `on_wait` is called when somebody has to wait, so that batches are sent early."""

    __slots__ = ("_line", "_on_wait", "limit", "used")

    def __init__(self, limit: int, on_wait: Callable[[], None]) -> None:
        self.limit = limit
        self.used = 0
        self._on_wait = on_wait
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        return self.limit - self.used

    @property
    def wanted(self) -> bool:
        """Say whether somebody waits."""
        return bool(self._line)

    def fits(self, size: int) -> bool:
        """Say whether `size` bytes may be taken now."""
        return not self._line and self.used + size <= self.limit

    async def wait(self, size: int) -> None:
        """Wait in line for `size` bytes; raises what `close` was given."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, waiter))
        self._on_wait()
        await waiter

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes and let those in line go on who fit; a waiter that gave up holds nobody up."""
        self.used -= size
        free = self.free
        while self._line and (self._line[0][1].done() or self._line[0][0] <= free):
            wanted, waiter = self._line.popleft()
            if not waiter.done():
                free -= wanted
                waiter.set_result(None)

    def close(self, error: Exception) -> None:
        """Send everyone in line away."""
        line, self._line = self._line, deque()
        for _, waiter in line:
            if not waiter.done():
                waiter.set_exception(error)
