"""Tasks beside the main one: their failure is never silent, and their end is certain.

A cancel can be lost: gRPC swallows one that comes while a stream is being opened, when the opening fails in the same
moment, and the task goes on as if nobody had asked.  So whoever ends a task asks until it has ended.
Stays out: what the event loop's exception handler does with a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

ASK_AGAIN_S = 0.5  # what a task does at its end may take time, and is cut short by the second cancel


def background(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Run `work` beside everything else; whoever calls keeps the task and cancels it at the end."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} failed", "exception": task.exception(), "task": task})


async def cancelled(*tasks: asyncio.Task[Any] | None) -> list[BaseException]:
    """Cancel tasks and wait for their ends; return what they failed with."""
    running = {task for task in tasks if task is not None}
    waiting = running
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=ASK_AGAIN_S)
    return [error for task in running if not task.cancelled() and (error := task.exception()) is not None]
