"""Failure detector: which unanswered nodes count as down, when, and how late our own loop is.

The decision is pure; `Trial` drives it as the prober does, on a clock of its own.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tidemark_operator.detector import (
    HUNG_FACTOR,
    SLOWEST_FACTOR,
    DetectorSettings,
    LoopLateness,
    Suspicion,
    Verdict,
)

from tests.waiting import until

DEFAULTS = DetectorSettings()
SETTINGS = DetectorSettings(probe_interval_ms=100, probe_timeout_ms=200, failure_threshold=3)
NEVER = float("inf")
TEN_MINUTES_MS = 600_000.0


def quick(_now_ms: float) -> float:
    return 1.0


def never(_now_ms: float) -> float:
    return NEVER


@dataclass
class Trial:
    """One node under a detector: `answer` and `accept` give the milliseconds until a probe, or a knock, is answered.

    `late` gives by how many milliseconds our own loop is late at a time.
    """

    answer: Callable[[float], float] = quick
    accept: Callable[[float], float] = quick
    late: Callable[[float], float] = lambda _now_ms: 0.0
    settings: DetectorSettings = DEFAULTS
    now_ms: float = 0.0
    knocks: int = 0
    hangs: bool = False
    probes: list[float] = field(default_factory=list)

    def down_ms(self, until_ms: float) -> float | None:
        """Return when the node counts as down, None if it does not until `until_ms`."""
        suspicion = Suspicion(self.settings)
        ties = itertools.count()
        arriving: list[tuple[float, int, bool, float]] = []   # when, tie, of a probe, when that left
        while self.now_ms < until_ms:
            while arriving and arriving[0][0] <= self.now_ms:
                at_ms, _, probe, sent_ms = heapq.heappop(arriving)
                if probe:
                    suspicion.answered(sent_ms, at_ms)
                else:
                    suspicion.accepted(at_ms)
            look = suspicion.look(self.now_ms, self.late(self.now_ms))
            if look.verdict is Verdict.DOWN:
                self.hangs = look.hangs
                return self.now_ms
            if look.probe:
                suspicion.probed(self.now_ms)
                self.probes.append(self.now_ms)
                heapq.heappush(arriving, (self.now_ms + self.answer(self.now_ms), next(ties), True, self.now_ms))
            if look.knock:
                suspicion.knocked(self.now_ms)
                self.knocks += 1
                heapq.heappush(arriving, (self.now_ms + self.accept(self.now_ms), next(ties), False, self.now_ms))
            soonest = min(look.again_ms, arriving[0][0] if arriving else NEVER)
            assert soonest > self.now_ms or look.probe or look.knock, "a look that comes to nothing is not repeated"
            self.now_ms = max(soonest, self.now_ms)
        return None


def gone_from(at_ms: float, before: Callable[[float], float] = quick) -> Callable[[float], float]:
    """Return answers that end at `at_ms`: what would arrive later does not."""
    def answer(now_ms: float) -> float:
        after = before(now_ms)
        return after if now_ms + after < at_ms else NEVER

    return answer


# --- what vanishes, hangs, or is slow ----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [2.0, 100.0, 250.0, 499.0])
def test_a_machine_that_vanishes_is_down_within_the_time_of_its_probes(phase: float) -> None:
    gone_ms = 10_000.0 + phase
    down_ms = Trial(answer=gone_from(gone_ms), accept=gone_from(gone_ms)).down_ms(60_000)
    probes_ms = (DEFAULTS.failure_threshold - 1) * DEFAULTS.probe_interval_ms + DEFAULTS.probe_timeout_ms
    assert down_ms is not None
    assert probes_ms <= down_ms - gone_ms <= probes_ms + DEFAULTS.probe_interval_ms <= 2_500


def test_a_machine_of_a_slow_process_is_down_as_fast_when_it_vanishes() -> None:
    trial = Trial(answer=gone_from(60_000, lambda _now: 2_500.0), accept=gone_from(60_000))
    down_ms = trial.down_ms(120_000)
    assert down_ms is not None and not trial.hangs
    assert down_ms - 60_000 <= 2_500
    beside = Trial(answer=gone_from(60_000, lambda _now: 2_500.0)).down_ms(120_000)
    assert beside is not None and beside > down_ms + 2_000, "the machine is there"


def test_a_process_that_hangs_is_down_later_than_a_machine_that_vanished() -> None:
    trial = Trial(answer=gone_from(10_002.0))
    down_ms = trial.down_ms(60_000)
    assert down_ms is not None and trial.hangs
    patience_ms = 2 * DEFAULTS.probe_interval_ms + HUNG_FACTOR * DEFAULTS.probe_timeout_ms
    assert patience_ms <= down_ms - 10_002.0 <= patience_ms + DEFAULTS.probe_interval_ms


def test_a_process_that_answers_slowly_gets_longer_to_answer_and_not_without_bound() -> None:
    def hung_after_slow(slow_ms: float) -> float:
        down_ms = Trial(answer=gone_from(30_000, lambda _now: slow_ms)).down_ms(90_000)
        assert down_ms is not None
        return down_ms - 30_000

    assert hung_after_slow(1_800) > hung_after_slow(10) + 1_000
    assert hung_after_slow(4_000) <= DEFAULTS.answer_timeout_ms + 2 * DEFAULTS.probe_interval_ms
    assert DEFAULTS.answer_timeout_ms == HUNG_FACTOR * SLOWEST_FACTOR * DEFAULTS.probe_timeout_ms


def test_an_answer_that_comes_late_clears_the_probes_before_it() -> None:
    suspicion = Suspicion(SETTINGS)
    for sent_ms in (0, 100, 200):
        suspicion.probed(sent_ms)
    assert suspicion.verdict(399, 0) is Verdict.SUSPECT
    suspicion.answered(100, 399)
    assert suspicion.since_ms == 200
    assert suspicion.verdict(10_000, 0) is Verdict.SUSPECT, "one of three is unanswered"
    suspicion.probed(300)
    suspicion.probed(400)
    assert suspicion.verdict(798, 0) is Verdict.SUSPECT, "the machine was heard at 399"
    assert suspicion.verdict(799, 0) is Verdict.DOWN


def test_fewer_probes_than_the_threshold_are_never_enough() -> None:
    suspicion = Suspicion(SETTINGS)
    suspicion.probed(0)
    suspicion.probed(100)
    assert suspicion.verdict(1_000_000, 0) is Verdict.SUSPECT


def test_other_settings_count_for_probes_that_are_unanswered() -> None:
    suspicion = Suspicion(DetectorSettings(100, 200, 9))
    for sent_ms in (0, 100, 200, 300):
        suspicion.probed(sent_ms)
    assert suspicion.verdict(10_000, 0) is Verdict.SUSPECT
    suspicion.settings = SETTINGS
    assert suspicion.verdict(10_000, 0) is Verdict.DOWN


def test_a_machine_that_accepted_a_knock_is_gone_when_it_has_been_silent_for_as_long_as_probes_take() -> None:
    suspicion = Suspicion(SETTINGS)
    for sent_ms in (100, 200, 300):
        suspicion.probed(sent_ms)
    assert suspicion.look(500, 0).hangs is False and suspicion.verdict(500, 0) is Verdict.DOWN
    suspicion.accepted(450)
    assert suspicion.verdict(849, 0) is Verdict.SUSPECT
    assert suspicion.verdict(850, 0) is Verdict.DOWN and not suspicion.look(850, 0).hangs
    suspicion.accepted(800)
    assert suspicion.verdict(300 + 200 * HUNG_FACTOR - 1, 0) is Verdict.SUSPECT
    assert suspicion.look(300 + 200 * HUNG_FACTOR, 0).hangs


def test_our_own_lateness_is_not_held_against_a_node() -> None:
    gone_ms = 10_002.0
    punctual = Trial(answer=gone_from(gone_ms), accept=gone_from(gone_ms)).down_ms(60_000)
    late = Trial(answer=gone_from(gone_ms), accept=gone_from(gone_ms), late=lambda _now: 700.0).down_ms(60_000)
    assert punctual is not None and late == punctual + 2 * 700.0


# --- a simulator of slow answers: nothing that lives is ever down --------------------------------------------------


def stalls(dice: random.Random, longest_ms: float) -> Callable[[float], float]:
    """Return answers of a process that stalls now and then, and answers what came meanwhile at the end of the stall."""
    spans: list[tuple[float, float]] = []
    at_ms = 0.0
    while at_ms < TEN_MINUTES_MS:
        at_ms += dice.expovariate(1 / 5_000)
        spans.append((at_ms, at_ms + dice.uniform(0, longest_ms)))
        at_ms = spans[-1][1]

    def answer(now_ms: float) -> float:
        end_ms = next((end for begin, end in spans if begin <= now_ms < end), now_ms)
        return end_ms - now_ms + dice.uniform(0.2, 20)

    return answer


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_stalls_for_seconds_is_never_down_while_its_machine_answers(seed: int) -> None:
    for run in range(25):
        dice = random.Random(f"{seed} {run}")
        trial = Trial(answer=stalls(dice, HUNG_FACTOR * DEFAULTS.probe_timeout_ms - 100))
        assert trial.down_ms(TEN_MINUTES_MS) is None, f"seed {seed}, run {run}"


@pytest.mark.parametrize("seed", range(4))
def test_lost_packets_are_no_vanished_machine(seed: int) -> None:
    """One in ten connections is never accepted, and TCP repeats what is lost on the stream."""
    for run in range(25):
        dice = random.Random(f"{seed} {run} lossy")

        def resent(_now_ms: float, dice: random.Random = dice) -> float:
            resends = next(count for count in itertools.count() if dice.random() >= 0.1)
            return 1.0 + 200.0 * (2**resends - 1)

        def lossy(_now_ms: float, dice: random.Random = dice) -> float:
            return NEVER if dice.random() < 0.1 else 1.0

        trial = Trial(answer=resent, accept=lossy)
        assert trial.down_ms(TEN_MINUTES_MS) is None, f"seed {seed}, run {run}"
        assert trial.knocks, "some answers were late"


def test_a_node_that_answers_is_probed_at_the_interval_and_never_knocked_at() -> None:
    trial = Trial()
    assert trial.down_ms(60_000) is None
    assert trial.probes == [500.0 * count for count in range(120)] and not trial.knocks


# --- how late our own loop is --------------------------------------------------------------------------------------


HELD_S = 0.2
"""For so long the loop of this test is held."""


async def ticks(lateness: LoopLateness) -> None:
    last = lateness._last_tick
    await until(lambda: lateness._last_tick > last)


async def test_lateness_sees_a_blocked_loop_during_and_after() -> None:
    lateness = LoopLateness(tick_ms=10)
    lateness.start()
    await ticks(lateness)
    started = time.monotonic()
    time.sleep(HELD_S)
    assert lateness.worst_ms_since(started) > HELD_S * 500
    await ticks(lateness)
    assert lateness.worst_ms_since(started) > HELD_S * 500

    async def punctual() -> bool:
        later = time.monotonic()
        await ticks(lateness)
        return lateness.worst_ms_since(later) < HELD_S * 500

    await until(punctual, "the loop is no longer late")
    await lateness.stop()
