"""Ctrl-C as a quiet end of work that has none of its own.

Stays out: what the work is, and the exit code.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_interrupted(work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work` until it ends or Ctrl-C, which ends it quietly; say whether it was that."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return interrupted
