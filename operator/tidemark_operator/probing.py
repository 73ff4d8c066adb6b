"""Prober: asks a node whether it serves, and knocks at its machine's port, as its `Suspicion` says.

Probes overlap: the next one leaves when it is due, and an answer that comes late still counts.
Stays out: when a node counts as down (`detector`), links and descriptions (`nodes`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from tidemark_wire.tasks import background, cancelled

from .detector import LoopLateness, Outcome, Suspicion, Verdict

Check = Callable[[float], Awaitable[tuple[Outcome, str]]]
"""Ask the process, with a timeout in seconds; return what it said and why that is no answer."""

CLEAR_NO = frozenset({Outcome.NOT_SERVING, Outcome.REFUSED})


def now_ms() -> float:
    """Return the clock of `Suspicion` and of `LoopLateness`."""
    return time.monotonic() * 1000


async def knock(address: str, timeout_s: float) -> Outcome:
    """Open a connection to host:port and close it: SERVING means that the machine accepted it."""
    host, _, port = address.rpartition(":")
    try:
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), timeout_s)
    except ConnectionRefusedError:
        return Outcome.REFUSED
    except (OSError, TimeoutError):
        return Outcome.SILENT
    writer.close()
    return Outcome.SERVING


class Prober:
    """Probes the node of one link.  Use `run` while the link stands."""

    def __init__(self, address: str, suspicion: Suspicion, lateness: LoopLateness, check: Check) -> None:
        self._address = address
        self._suspicion = suspicion
        self._lateness = lateness
        self._check = check
        self._clear_no = ""   # why the node is down at once
        self._trouble = ""    # what the newest probe without an answer met
        self._news = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> str:
        """Probe until the node is down; return why."""
        try:
            while not self._clear_no:
                self._news.clear()
                now = now_ms()
                look = self._suspicion.look(now, self._own_lateness_ms())
                if look.verdict is Verdict.DOWN:
                    return self._why_down(now, hangs=look.hangs)
                if look.probe:
                    self._suspicion.probed(now)
                    self._begin(self._probe(now))
                if look.knock:
                    self._suspicion.knocked(now)
                    self._begin(self._knock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, look.again_ms - now_ms()) / 1000):
                        await self._news.wait()
            return self._clear_no
        finally:
            await cancelled(*self._running)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = background(work, f"a probe of {self._address}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._news.set()

    def _own_lateness_ms(self) -> float:
        since = self._suspicion.since_ms
        return 0.0 if since is None else self._lateness.worst_ms_since(since / 1000)

    def _why_down(self, now: float, *, hangs: bool) -> str:
        silent_s = (now - (self._suspicion.since_ms or now)) / 1000
        machine = "accepts" if hangs else "does not accept"
        trouble = f" ({self._trouble})" if self._trouble else ""
        return f"no answer for {silent_s:.1f} s, and its machine {machine} connections{trouble}"

    async def _probe(self, sent_ms: float) -> None:
        outcome, reason = await self._check(self._suspicion.settings.answer_timeout_ms / 1000)
        if outcome is Outcome.SERVING:
            self._suspicion.answered(sent_ms, now_ms())
        elif outcome in CLEAR_NO:
            self._clear_no = reason
        else:
            self._trouble = reason

    async def _knock(self) -> None:
        match await knock(self._address, self._suspicion.settings.probe_timeout_ms / 1000):
            case Outcome.SERVING:
                self._suspicion.accepted(now_ms())
            case Outcome.REFUSED:
                self._clear_no = f"{self._address} refuses connections"
