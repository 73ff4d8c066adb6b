"""Held snapshot: one state of the store that a caller reads piece by piece, over many turns of the loop.

Its iterators belong to the one thread that makes, reads and closes them.
Stays out: how long one is held, and when the store closes (`driver`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from .database import Snapshot
from .store import Store
from .store_errors import StoreFailed

T = TypeVar("T")


class InThread(Protocol):
    """Runs work on the open store in a thread.  Raises StoreFailed while the store is closed."""

    def __call__(self, threads: ThreadPoolExecutor, work: Callable[[Store], T]) -> Awaitable[T]: ...


class HeldSnapshot:
    """Reads of some families as all of them were when it was opened."""

    def __init__(self, in_thread: InThread, thread: ThreadPoolExecutor) -> None:
        self._in_thread = in_thread
        self._thread = thread
        self._snapshot: Snapshot | None = None
        self._closed = False

    async def open(self, families: tuple[str, ...]) -> None:
        """Take the snapshot.  Raises StoreFailed, UnknownFamily."""
        await self._in_thread(self._thread, lambda store: self._take(store, families))

    def _take(self, store: Store, families: tuple[str, ...]) -> None:
        if not self._closed:    # its caller may have gone away meanwhile
            self._snapshot = store.take_snapshot(families)

    async def read(self, work: Callable[[Snapshot], T]) -> T:
        """Run `work`, which reads a piece, in the thread of the snapshot.  Raises StoreFailed once it is closed."""
        return await self._in_thread(self._thread, lambda _: work(self._opened()))

    def _opened(self) -> Snapshot:
        if self._snapshot is None:
            raise StoreFailed("the store was loaded again, and the snapshot is gone", no_space=False)
        return self._snapshot

    def close_later(self) -> None:
        """Let the database drop what was overwritten since, behind the reads under way."""
        with suppress(RuntimeError):   # the thread has ended: it closed everything before
            self._thread.submit(self._close)

    def _close(self, *_: Any) -> None:
        self._closed = True
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()
