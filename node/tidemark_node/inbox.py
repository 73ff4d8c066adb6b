"""The inbox of the driver: events in order, bounded by number and bytes, with barriers between them.

Stays out: what events mean, and when a turn is run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

TURN_EVENTS_MAX = 4096
EVENTS_MAX = 16_384
BYTES_MAX = 64 << 20


class Barrier:
    """A place in the inbox: resolved when everything posted before it has been stepped and is durable."""

    __slots__ = ("done",)

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done

    def resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Inbox:
    """Whoever posts much awaits `room` first; what is posted anyway is kept, for nothing may be lost here."""

    def __init__(self) -> None:
        self._items: deque[tuple[Any, int]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, event: Any, size: int) -> None:
        """Append an event of `size` bytes."""
        self._items.append((event, size))
        self.bytes_held += size
        if self.bytes_held > BYTES_MAX or len(self._items) > EVENTS_MAX:
            self._room.clear()

    async def room(self) -> None:
        """Wait while the inbox is over its bounds."""
        await self._room.wait()

    def take_turn(self) -> tuple[list[Any], Barrier | None]:
        """Remove the events of one turn, and the barrier that ends it if there is one."""
        events: list[Any] = []
        items = self._items
        barrier: Barrier | None = None
        while items and len(events) < TURN_EVENTS_MAX and barrier is None:
            event, size = items.popleft()
            self.bytes_held -= size
            if type(event) is Barrier:
                barrier = event
            else:
                events.append(event)
        if self.bytes_held <= BYTES_MAX // 2 and len(items) <= EVENTS_MAX // 2:
            self._room.set()
        return events, barrier

    def clear(self) -> list[Barrier]:
        """Drop everything; return the barriers, whose waiters must be told."""
        barriers = [event for event, _ in self._items if type(event) is Barrier]
        self._items.clear()
        self.bytes_held = 0
        self._room.set()
        return barriers
