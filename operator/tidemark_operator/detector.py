"""Failure detector: what a row of probes says about a node, and how late our own event loop is.

Rules: a node that says NOT_SERVING, or refuses the connection, is down at once; silence counts, and
`failure_threshold` silences in a row are needed; a probe that timed out while our own loop was late proves
nothing about the node and is not counted.
Stays out: gRPC and the links (`nodes`), what a node's failure means (`replication.coordinator`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from tidemark_wire.tasks import background, cancelled


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    probe_interval_ms: int = 2_000
    probe_timeout_ms: int = 5_000
    failure_threshold: int = 3


class Outcome(Enum):
    """What one probe saw."""

    SERVING = auto()
    NOT_SERVING = auto()  # the node says so itself
    REFUSED = auto()      # nobody listens at its address
    SILENT = auto()       # no answer in time


class Verdict(Enum):
    UP = auto()
    SUSPECT = auto()
    DOWN = auto()


class Suspicion:
    """What is known of one node.  A new one is made for every link; its settings may change while it lives."""

    __slots__ = ("settings", "silences")

    def __init__(self, settings: DetectorSettings) -> None:
        self.settings = settings
        self.silences = 0

    def observe(self, outcome: Outcome, own_lateness_ms: float) -> Verdict:
        """Judge one probe.  `own_lateness_ms` is how late our loop was while the probe ran."""
        match outcome:
            case Outcome.SERVING:
                self.silences = 0
                return Verdict.UP
            case Outcome.NOT_SERVING | Outcome.REFUSED:
                return Verdict.DOWN
            case Outcome.SILENT:
                # Half a timeout of our own lateness is enough to have missed a good answer.
                if own_lateness_ms * 2 < self.settings.probe_timeout_ms:
                    self.silences += 1
                return Verdict.DOWN if self.silences >= self.settings.failure_threshold else Verdict.SUSPECT


class LoopLateness:
    """Measures how late the event loop runs, by a tick that should come every `tick_ms`."""

    def __init__(self, tick_ms: int = 20, history_ms: int = 30_000) -> None:
        self._tick_ms = tick_ms
        self._ticks: deque[tuple[float, float]] = deque(maxlen=history_ms // tick_ms)
        self._last_tick = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._last_tick = time.monotonic()
        self._task = background(self._run(), "the lateness of the loop")

    async def stop(self) -> None:
        await cancelled(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            now = time.monotonic()
            late_ms = (now - self._last_tick) * 1000 - self._tick_ms
            if late_ms > self._tick_ms:
                self._ticks.append((now, late_ms))
            self._last_tick = now

    def worst_ms_since(self, started: float) -> float:
        """Return the worst lateness since `started` (`time.monotonic()`), the running tick included."""
        overdue_ms = (time.monotonic() - self._last_tick) * 1000 - self._tick_ms
        # From the newest back, and no further: it is asked for each probe.
        since = itertools.takewhile(lambda tick: tick[0] >= started, reversed(self._ticks))
        return max([0.0, overdue_ms, *(late for _at, late in since)])
