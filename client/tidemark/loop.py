"""The event loop of programs that leave the choice to us: uvloop where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, the fastest that is installed."""
    try:
        import uvloop
    except ImportError:  # not built for this platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program: `asyncio.run` on the fastest loop installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
