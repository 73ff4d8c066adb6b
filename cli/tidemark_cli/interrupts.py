"""Ctrl-C and SIGTERM as quiet ends of work that has none of its own.

Stays out: what the work is.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from .failures import INTERRUPTED, TERMINATED


async def until_interrupted(work: Coroutine[Any, Any, Any]) -> int:
    """Run `work` until it ends, or Ctrl-C or SIGTERM end it quietly; return the exit code of these, else 0."""
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    code = 0

    def interrupt(which: int) -> None:
        nonlocal code
        code = which
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt, INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, interrupt, TERMINATED)
    try:
        await task
    except asyncio.CancelledError:
        if not code:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
    return code
