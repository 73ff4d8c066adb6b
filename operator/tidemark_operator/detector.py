"""Failure detector: when an unanswered node counts as down, and how late our own event loop is.

A node is probed at every interval, whether or not it answered the probes before.  Its process answers probes; the
kernel of its machine answers a knock, which is a connection to its port, while the process is too busy to answer.

Rules: a node that says NOT_SERVING, or refuses the connection, is down at once.  Otherwise `failure_threshold` probes
in a row must stay unanswered for `probe_timeout_ms`.  While the machine accepts knocks, only the process hangs: it gets
`HUNG_FACTOR` times as long, and more the slower it answered lately.  Lateness of our own loop is added to both.
`Suspicion` is pure.  Stays out: gRPC and sockets (`probing`), links (`nodes`), what a node's failure means
(`replication.coordinator`).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from tidemark_wire.tasks import background, cancelled

HUNG_FACTOR = 3
"""A process on a machine that accepts connections may take so many timeouts: it is busy far more often than dead."""

SLOWEST_FACTOR = 3
"""Answers of a slow process stretch its timeout to at most so many times the configured one."""

ANSWERS_KEPT = 128
"""About one minute of answers at the default interval."""


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """A machine that vanishes is down after 2 to 2.5 s with these defaults, a process that hangs after 4 to 4.5 s."""

    probe_interval_ms: int = 500
    probe_timeout_ms: int = 1_000
    failure_threshold: int = 3

    @property
    def answer_timeout_ms(self) -> int:
        """The longest time for which the answer to one probe can matter."""
        return self.probe_timeout_ms * HUNG_FACTOR * SLOWEST_FACTOR


class Outcome(Enum):
    """What one probe, or one attempt to link, saw."""

    SERVING = auto()
    NOT_SERVING = auto()  # the node says so itself
    REFUSED = auto()      # no process listens at its address
    SILENT = auto()       # no answer in time


class Verdict(Enum):
    UP = auto()
    SUSPECT = auto()
    DOWN = auto()


@dataclass(frozen=True, slots=True)
class Look:
    """What to do now: `again_ms` is when to look again, unless an answer comes before."""

    verdict: Verdict
    probe: bool = False
    knock: bool = False
    again_ms: float = 0.0
    hangs: bool = False   # with DOWN: the machine accepts connections


class Suspicion:
    """The probes of one link.  Times are milliseconds of one monotonic clock.  The settings may change meanwhile.

    A link begins with a new one, so that no probe of an older link counts.
    """

    def __init__(self, settings: DetectorSettings) -> None:
        self.settings = settings
        self._unanswered: list[float] = []   # when the oldest probes in a row without an answer left
        self._probed_ms = -math.inf
        self._knocked_ms = -math.inf
        self._machine_ms = -math.inf         # when anything of the machine arrived last
        self._answers: deque[float] = deque(maxlen=ANSWERS_KEPT)

    # --- what happens ---------------------------------------------------------------------------------------

    def probed(self, now_ms: float) -> None:
        """A probe leaves."""
        self._probed_ms = now_ms
        if len(self._unanswered) < self.settings.failure_threshold:
            self._unanswered.append(now_ms)

    def answered(self, sent_ms: float, now_ms: float) -> None:
        """The probe of `sent_ms` was answered; those before it need no answer any more."""
        self._answers.append(now_ms - sent_ms)
        self._unanswered = [sent for sent in self._unanswered if sent > sent_ms]
        self._machine_ms = now_ms

    def knocked(self, now_ms: float) -> None:
        """A knock leaves."""
        self._knocked_ms = now_ms

    def accepted(self, now_ms: float) -> None:
        """The machine accepted a knock."""
        self._machine_ms = now_ms

    # --- what follows ---------------------------------------------------------------------------------------

    @property
    def since_ms(self) -> float | None:
        """When the oldest unanswered probe left, None where each was answered."""
        return self._unanswered[0] if self._unanswered else None

    def look(self, now_ms: float, own_lateness_ms: float) -> Look:
        """Judge; `own_lateness_ms` is the worst lateness of our loop since the oldest unanswered probe."""
        gone_ms, hung_ms = self._deadlines(own_lateness_ms)
        if now_ms >= min(gone_ms, hung_ms):
            return Look(Verdict.DOWN, again_ms=now_ms, hangs=now_ms < gone_ms)
        interval_ms = self.settings.probe_interval_ms
        probe_ms = self._probed_ms + interval_ms
        knock_ms = math.inf
        if self._unanswered:   # the machine is asked as soon as an answer is due, and again at every interval
            due_ms = self._unanswered[0] + min(interval_ms, self.settings.probe_timeout_ms) / 2
            knock_ms = max(due_ms, self._knocked_ms + interval_ms)
        probe, knock = now_ms >= probe_ms, now_ms >= knock_ms
        return Look(
            Verdict.SUSPECT if self._unanswered else Verdict.UP, probe, knock, min(
                gone_ms, hung_ms, now_ms + interval_ms if probe else probe_ms,
                now_ms + interval_ms if knock else knock_ms))

    def verdict(self, now_ms: float, own_lateness_ms: float) -> Verdict:
        """Judge, and do nothing more."""
        return self.look(now_ms, own_lateness_ms).verdict

    def _deadlines(self, own_lateness_ms: float) -> tuple[float, float]:
        """Return when the machine counts as gone, and when the process counts as hung."""
        settings, threshold = self.settings, self.settings.failure_threshold
        if len(self._unanswered) < threshold:
            return math.inf, math.inf
        last_ms, timeout_ms = self._unanswered[threshold - 1], float(settings.probe_timeout_ms)
        # An answer passes our loop twice: when the probe leaves and when the answer is read.
        excuse_ms = 2 * own_lateness_ms
        silent_ms = self._machine_ms + (threshold - 1) * settings.probe_interval_ms
        slowest_ms = min(max(self._answers, default=0.0), SLOWEST_FACTOR * timeout_ms)
        return (
            max(last_ms, silent_ms) + timeout_ms + excuse_ms,
            last_ms + HUNG_FACTOR * max(timeout_ms, slowest_ms) + excuse_ms,
        )


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
