"""Background tasks whose failure is never silent: it reaches the event loop's exception handler.

Stays out: what the handler does (`main` ends the process).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def background(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Run `work` beside everything else; whoever calls keeps the task and cancels it at the end."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} failed", "exception": task.exception(), "task": task})


async def cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait for their ends."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
