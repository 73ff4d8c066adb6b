"""Work on files beside the event loop that ends before its caller does, a cancelled one too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
