"""One seed, one run, one result.

Stays out: printing, processes; see `__main__`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from struct import error
from typing import Any

from tidemark_core.replication import log as core_log

from . import liveness
from .crowd import remembered
from .dice import Dice
from .keyspaces.run import AHEAD, run_ahead
from .keyspaces.run import PROFILE as KEYSPACE
from .keyspaces.run import run as run_keyspace
from .profiles import PROFILES, Options, draw
from .trace import Trace, Violation
from .world import World

STEPS = 2_000

DEFECTS = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError, error)
"""What a core may raise when it is broken; reported like a broken promise."""


@dataclass(slots=True)
class Result:
    """What is worth knowing of a finished run; `rule` is empty when it passed."""

    seed: int
    profile: str
    events: int = 0
    time_ms: int = 0
    rule: str = ""
    message: str = ""
    step: int = 0
    digest: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    replay: str = ""

    @property
    def passed(self) -> bool:
        return not self.rule

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


KEYSPACES = {KEYSPACE: run_keyspace, AHEAD: run_ahead}
"""The profiles of keyspaces; those of shards are `PROFILES`."""


def profile_of(seed: int, profile: str | None) -> str:
    """Return the profile a seed runs with: all of shards in turn, unless one was asked for."""
    names = list(PROFILES)
    return profile or names[seed % len(names)]


@contextmanager
def _marks_every(entries: int) -> Iterator[None]:
    """Let logs be trimmed in steps of a few entries: runs are short."""
    before, core_log.MARK_ENTRIES = core_log.MARK_ENTRIES, entries
    try:
        yield
    finally:
        core_log.MARK_ENTRIES = before


def run_seed(
    seed: int,
    profile: str | None = None,
    *,
    steps: int = STEPS,
    live: bool = False,
    mutant: Callable[[], AbstractContextManager[Any]] = nullcontext,
    checkers: tuple[Any, ...] = (),
    adjust: Callable[[Options], None] | None = None,
) -> Result:
    """Run one seed to its end or to the first broken promise.

    `mutant` makes a context in which the product lacks a repair; `checkers` are judges beside the usual ones.
    """
    name = profile_of(seed, profile)
    result, dice, trace = Result(seed, name), Dice(seed), Trace(live)
    with mutant():
        try:
            if name in KEYSPACES:
                assert not checkers and adjust is None, "runs of keyspaces have a judge and options of their own"
                KEYSPACES[name](dice, trace, steps)
                result.time_ms = trace.now_ms
            else:
                _run_shards(result, dice, trace, steps, checkers, adjust)
        except Violation as violation:
            result.rule, result.message = violation.rule, str(violation)
        except DEFECTS as defect:
            where = traceback.extract_tb(defect.__traceback__)[-1]
            result.rule = str(defect).split(":")[0][:40] or type(defect).__name__
            result.message = f"{type(defect).__name__}: {defect} ({where.name}, line {where.lineno})"
    result.step = trace.step
    result.events = result.events or trace.step
    result.counts = dict(sorted(trace.counts.items()))
    result.digest = trace.digest()
    if not result.passed:
        result.story = trace.story()
        extra = "" if steps == STEPS else f" --steps {steps}"
        result.replay = f"python -m tidemark_sim --seed {seed} --profile {name}{extra}"
    return result


def _run_shards(
    result: Result, dice: Dice, trace: Trace, steps: int, checkers: tuple[Any, ...],
    adjust: Callable[[Options], None] | None,
) -> None:
    options = draw(result.profile, dice)
    if adjust:
        adjust(options)
    with _marks_every(options.cluster.mark_entries), remembered(options.crowd):
        world = World(options, dice, trace, checkers)
        try:
            world.begin()
            world.run_faults(steps)
            liveness.finish(world)
        finally:
            result.events, result.time_ms = world.events, world.now_ms
