"""Effects of ranges ride on the writes that warrant them: in front of each write they are caught."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tidemark_core.optimistic.plane import KeyspacePlane
from tidemark_sim.keyspaces.run import PROFILE
from tidemark_sim.runner import Result, run_seed

from tests.sim.range_warrants import QUESTIONS, WARRANTS, RangeWatch
from tests.sim.warrants import CRASHED, sites

SEEDS = range(18)
SEEDS_MAX = 24
"""A mutant is caught within so many seeds."""

ORDERED = "ScanRows"
"""A read that rides on a write promises nothing; what it must find is tested with the unit (D66)."""

EMPTY = {"optimistic.holding.hands.Hands._run", "optimistic.deleting.Deletions.page"}
"""Functions that may write nothing of their own: their effects wait for the writes in front, if they show them."""


class Watched(NamedTuple):
    watch: RangeWatch
    failed: list[Result]


def run(watch: RangeWatch, seed: int) -> Result:
    return run_seed(seed, PROFILE, mutant=lambda: watch.watching(seed))


@pytest.fixture(scope="module")
def watched() -> Watched:
    watch = RangeWatch()
    return Watched(watch, [result for seed in SEEDS if not (result := run(watch, seed)).passed])


def test_nothing_of_a_range_leaves_before_the_write_that_warrants_it(watched: Watched) -> None:
    assert [] == [f"{result.replay}: {result.message}" for result in watched.failed]
    rooms = ("messages", "moving", "floors", "deleting")
    said = {kind.__name__ for kind in WARRANTS if kind.__module__.endswith(rooms)}
    assert set() == said - {kind.removeprefix("feed ") for kind in watched.watch.left}, "never left"


def test_every_message_has_a_row_or_is_a_question(watched: Watched) -> None:
    asked_by_operators = {kind for kind, voice in KeyspacePlane.voices.items() if voice.value == "operator"}
    assert set() == KeyspacePlane.voices.keys() - WARRANTS.keys() - set(QUESTIONS) - asked_by_operators


def test_every_write_of_ranges_is_reached(watched: Watched) -> None:
    assert set() == set(sites(of_ranges=True)) - watched.watch.reached


def test_every_effect_behind_a_write_of_a_range_sees_it(watched: Watched) -> None:
    watch = watched.watch
    for pair, count in watch.pairs.items():
        if pair[1] in (ORDERED, "Trace"):
            assert not watch.seen[pair], f"{pair} is not harmless: {watch.seen[pair]}"
        elif pair[0] in EMPTY:
            assert watch.seen[pair] or count < 10, f"{pair} never waited for a write in {count} times"
        else:
            assert watch.seen[pair][CRASHED], f"{pair} would go before its write unseen"


def test_each_effect_of_a_range_that_goes_before_its_write_is_caught(watched: Watched) -> None:
    """A mutant for every pair that the runs found."""
    mutants = watched.watch.first_seen
    assert len(mutants) >= 12, sorted(mutants)
    for pair, first in mutants.items():
        said = (run(RangeWatch(early=pair), seed).rule for seed in range(first, first + SEEDS_MAX))
        assert "warrant" in said, f"{pair} goes early, and from seed {first} on nothing says so"
