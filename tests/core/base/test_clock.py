"""Rule C1: the clock of a shell follows the wall clock, never falls, and says when it was set."""

from __future__ import annotations

from random import Random

from tidemark_core.base.clock import SLEWED_PERCENT, ShellClock
from tidemark_core.base.effects import ClockStepped

DAY = 86_400_000
BEGAN = 1_700_000_000_000


def test_c1_the_clock_follows_the_wall_clock_ahead() -> None:
    clock = ShellClock(BEGAN, 0)

    assert BEGAN + 5 == clock.advance(BEGAN + 5, 5)
    assert clock.take_step() is None
    assert BEGAN + DAY == clock.advance(BEGAN + DAY, 10)
    assert ClockStepped(DAY - 10, 0) == clock.take_step()
    assert clock.take_step() is None, "the clock reports a step once"


def test_c1_a_step_back_is_slewed() -> None:
    """A node that boots eight days ahead and is put right a minute later knows what time it is."""
    clock = ShellClock(BEGAN + 8 * DAY, 0)
    ahead = clock.advance(BEGAN + 8 * DAY + 60_000, 60_000)

    later = clock.advance(BEGAN + 61_000, 61_000)

    assert later == ahead + 1_000 * SLEWED_PERCENT // 100
    assert ClockStepped(-100 + 0, later - BEGAN - 61_000) == clock.take_step()


def test_c1_the_clock_never_falls_and_ends_at_the_wall_clock() -> None:
    dice = Random(7)
    for _ in range(50):
        offset, monotonic = 0, 0
        clock = ShellClock(BEGAN, 0)
        last = told = 0
        for _ in range(300):
            monotonic += dice.randrange(0, 400)
            if dice.random() < 0.05:
                offset += dice.randrange(-20_000, 20_000)
            now = clock.advance(BEGAN + monotonic + offset, monotonic)
            assert now >= max(last, BEGAN + monotonic + offset)
            last = now
            if (step := clock.take_step()) is not None:
                told += step.by_ms
            assert abs(now - monotonic - BEGAN - told) < 1_000, "the core can tell passed time from steps"
        for _ in range(1_000):
            monotonic += 2_000
            now = clock.advance(BEGAN + monotonic + offset, monotonic)
        assert now == BEGAN + monotonic + offset


def test_c1_turns_of_less_than_a_millisecond_move_a_slewed_clock_too() -> None:
    clock = ShellClock(BEGAN, 0)
    for monotonic in range(1, 1_001):
        clock.advance(BEGAN - 60_000 + monotonic, monotonic)

    assert BEGAN + 1_000 * SLEWED_PERCENT // 100 == clock.now_ms


def test_c1_a_timer_waits_as_long_as_it_should() -> None:
    clock = ShellClock(BEGAN, 500)

    assert 900 == clock.at_monotonic(BEGAN + 400)
    clock.advance(BEGAN + DAY, 600)
    assert 1_000 == clock.at_monotonic(BEGAN + DAY + 400)
