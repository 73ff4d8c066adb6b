"""Failure detector: what a row of probes amounts to."""

from __future__ import annotations

import time

import pytest
from tidemark_operator.detector import DetectorSettings, LoopLateness, Outcome, Suspicion, Verdict

from tests.waiting import until

SETTINGS = DetectorSettings(probe_interval_ms=100, probe_timeout_ms=200, failure_threshold=3)


def judge(*probes: tuple[Outcome, float]) -> list[Verdict]:
    suspicion = Suspicion(SETTINGS)
    return [suspicion.observe(outcome, late) for outcome, late in probes]


def test_silence_counts_up_to_the_threshold() -> None:
    silent = (Outcome.SILENT, 0.0)
    assert judge(silent, silent, silent) == [Verdict.SUSPECT, Verdict.SUSPECT, Verdict.DOWN]


def test_an_answer_wipes_the_count() -> None:
    silent, serving = (Outcome.SILENT, 0.0), (Outcome.SERVING, 0.0)
    assert judge(silent, silent, serving, silent, silent) == [
        Verdict.SUSPECT, Verdict.SUSPECT, Verdict.UP, Verdict.SUSPECT, Verdict.SUSPECT]


@pytest.mark.parametrize("outcome", [Outcome.NOT_SERVING, Outcome.REFUSED])
def test_a_clear_no_is_down_at_once(outcome: Outcome) -> None:
    assert judge((outcome, 0.0)) == [Verdict.DOWN]


def test_our_own_lateness_is_not_held_against_a_node() -> None:
    assert judge(*[(Outcome.SILENT, 150.0)] * 10) == [Verdict.SUSPECT] * 10


def test_small_lateness_excuses_nothing() -> None:
    assert judge(*[(Outcome.SILENT, 30.0)] * 3)[-1] is Verdict.DOWN


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
