"""Waiting for facts: the only places where tests look again and again.

`until` waits for something to become true, `remains` shows that something stays true, `wait_until` is `until` without
an event loop, `end_tasks` ends what a loop has under way.  `tests/house/test_sleeping.py` counts the short sleeps
everywhere else.
Stays out: what a test waits for.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

LOOK_S, LOOK_MAX_S = 0.01, 0.1
"""Between two looks: the first, and what it grows to."""
PATIENCE_S = 40.0
"""Far above what anything takes on an idle machine; where the deadline is the promise, the test names its own."""


async def until(condition: Callable[[], Any], what: str = "", timeout_s: float = PATIENCE_S) -> Any:
    """Look until `condition`, a function or a coroutine function, returns something true; return that.

    Raises AssertionError that names `what`, or the condition, when it is not true within `timeout_s`.
    """
    deadline, pauses = time.monotonic() + timeout_s, _pauses()
    while not (value := await _value(condition)):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or _source(condition)}"
        await asyncio.sleep(next(pauses))
    return value


def wait_until(condition: Callable[[], Any], what: str = "", timeout_s: float = PATIENCE_S) -> Any:
    """Do as `until` does, in a thread that may block."""
    deadline, pauses = time.monotonic() + timeout_s, _pauses()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what or _source(condition)}"
        time.sleep(next(pauses))
    return value


async def remains(condition: Callable[[], Any], what: str = "", for_s: float = 0.2) -> None:
    """Look for `for_s` seconds and raise AssertionError as soon as `condition` returns something false.

    A test of what must not happen: it gives a wrong program the time to do it.
    """
    end = time.monotonic() + for_s
    while True:
        ending = time.monotonic() >= end  # looks once more at the end, however late that is
        assert await _value(condition), f"no longer true: {what or _source(condition)}"
        if ending:
            return
        await asyncio.sleep(LOOK_S)


def _pauses() -> Iterator[float]:
    pause_s = LOOK_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 1.2, LOOK_MAX_S)


async def _value(condition: Callable[[], Any]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value


def _source(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except OSError:
        return repr(condition)


async def end_tasks() -> None:
    """End the other tasks of the loop, such as the calls of a client that is gone, before the loop stops.

    A task that its loop leaves pending is reported when it is collected, in the midst of another test.
    """
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
