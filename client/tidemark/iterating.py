"""Iteration: an asynchronous iterator that a timeout does not end.

A cancelled task ends an asynchronous generator where it stands, and its next item looks like the end of the data.  An
`Iteration` goes on: what a cancelled `__anext__` waited for comes with the next one.
Stays out: where items come from (reader, changes, document_scans).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from tidemark_wire.tasks import cancelled

T = TypeVar("T")

Take = Callable[[], Awaitable[Iterable[T] | None]]

_closing: set[asyncio.Task[None]] = set()


class Iteration(AsyncIterator[T]):
    """One pass over what `take` returns: the next items, None at the end; where it is cancelled it has taken nothing.

    `begin` is awaited before the first take, until it has returned once.  `close` is awaited at the end, by `aclose`,
    and behind an error once the iteration has begun: where `begin` raises, another iteration may have what `close`
    would end.  An iteration that is dropped before its end closes behind the scenes.
    """

    __slots__ = ("_begin", "_close", "_items", "_loop", "_over", "_take")

    def __init__(
        self, take: Take[T], *, begin: Callable[[], Awaitable[None]] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._take = take
        self._begin = begin
        self._close = close
        self._items: Iterator[T] = iter(())
        self._over = False
        self._loop: asyncio.AbstractEventLoop | None = None    # of the first item; an iteration may be made elsewhere

    async def __anext__(self) -> T:
        try:
            while True:
                for item in self._items:
                    return item
                if self._over:
                    raise StopAsyncIteration
                items = await self._taken()
                if items is None:
                    await self.aclose()
                else:
                    self._items = iter(items)
        except (asyncio.CancelledError, StopAsyncIteration):
            raise
        except BaseException:
            if self._begin is None and self._close is not None:
                await self._close()
            raise

    async def _taken(self) -> Iterable[T] | None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._begin is not None:
            await self._begin()
            self._begin = None
        return await self._take()

    async def aclose(self) -> None:
        """End the iteration."""
        self._over, self._items = True, iter(())
        if self._close is not None:
            await self._close()

    def __del__(self) -> None:
        loop = self._loop
        if self._begin is not None or self._over or self._close is None:
            return
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_close_soon, self._close)


def _close_soon(close: Callable[[], Awaitable[None]]) -> None:
    async def closed() -> None:
        await close()

    closing = asyncio.create_task(closed(), name="tidemark-close-iteration")
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


class Steps(Generic[T]):
    """The items of an asynchronous generator, each made by a task, which goes on where the wait for it is cancelled."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._step: asyncio.Task[T | None] | None = None

    async def next(self) -> T | None:
        """Return the next item, None at the end."""
        step = self._step
        if step is None:
            step = self._step = asyncio.create_task(self._next(), name="tidemark-step")
        await asyncio.wait((step,))
        self._step = None
        return step.result()

    async def _next(self) -> T | None:
        return await anext(self._items, None)

    async def close(self) -> None:
        """End the generator, and the step that is under way."""
        await cancelled(self._step)
        await self._items.aclose()
