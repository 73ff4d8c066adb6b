"""Home: the event loop that a client and its parts belong to.

Their tasks, timers and connections live on it: a call from another loop or thread would hang, and break the owner.
Stays out: the synchronous client, which hands every call to its own loop (sync).
"""

from __future__ import annotations

import asyncio
import os
from threading import get_ident

from .errors import WrongLoop

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Home:
    """The loop that runs where it is made."""

    __slots__ = ("_forks", "_thread", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._forks = _forks

    def check(self) -> None:
        """Raise WrongLoop unless this loop runs here.  For every record: it asks the system for nothing."""
        if self._thread == get_ident() and self._forks == _forks and self.loop.is_running():
            return
        raise WrongLoop(
            "called in a forked child, which has no connection" if self._forks != _forks
            else "called in another event loop, or another thread, than the one that connected")
