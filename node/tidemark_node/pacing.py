"""Pacing: long work in a thread, in slices, so that the event loop gets the interpreter in between.

A thread that computes gives the interpreter up only when it is made to, each time after milliseconds that the loop
waits.  Stays out: which work is long; reads of frames are not, and go on unpaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

SLICE_SECONDS = 0.002
PAUSE_SECONDS = 0.001

T = TypeVar("T")


def paced(items: Iterable[T]) -> Iterator[T]:
    """Yield `items`, with a pause after each slice of time that was spent on them."""
    ends = time.perf_counter() + SLICE_SECONDS
    for item in items:
        yield item
        if time.perf_counter() >= ends:
            time.sleep(PAUSE_SECONDS)
            ends = time.perf_counter() + SLICE_SECONDS
