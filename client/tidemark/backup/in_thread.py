"""Work that ends before its caller does, a cancelled one too: on files beside the event loop, and on many parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

from tidemark_wire.tasks import cancelled

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return what `work` returns; a cancelled call waits for it, so that no thread writes to the folder later."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **options))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:   # it may come more than once
            cancelled = error
    if cancelled is not None:
        task.exception()   # the cancellation wins over it
        raise cancelled
    return task.result()


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do some work for all items, a few at a time; the first error ends all of it."""
    left = list(items)[::-1]

    async def some() -> None:
        while left:
            await work(left.pop())

    tasks = [asyncio.create_task(some(), name="tidemark-backup-part") for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancelled(*tasks)
