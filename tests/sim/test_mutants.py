"""Every mutant, the product minus one repair, is caught: proof that the checkers see what they are there for."""

from __future__ import annotations

import pytest
from tidemark_sim.mutant import RUNS_MAX, Mutant
from tidemark_sim.mutants import MUTANTS
from tidemark_sim.runner import run_seed

from tests.core.replication import test_recovery as recovery

STORIES = {"N4": recovery.test_n4_a_leader_that_still_leads_may_have_a_commit_under_way_to_it}
"""Mutants that fewer than one seed in thousands shows: a story leads straight to the moment that they break."""

BROKEN = ("AttributeError", "NameError", "TypeError", "KeyError", "IndexError")
"""A mutant must break a promise, not stumble over its own feet."""


SEEDED = [mutant for mutant in MUTANTS if mutant.name not in STORIES]


@pytest.mark.parametrize("mutant", SEEDED, ids=[mutant.name for mutant in SEEDED])
def test_mutant_is_caught(mutant: Mutant) -> None:
    for seed in range(mutant.first_seed, mutant.first_seed + RUNS_MAX):
        result = run_seed(seed, mutant.profile, mutant=mutant.active)
        if not result.passed:
            break
    else:
        pytest.fail(f"{mutant.name} without '{mutant.missing}' passes {RUNS_MAX} seeds of {mutant.profile}")

    assert not result.message.startswith(BROKEN), f"{mutant.name} does not run: {result.message}"
    product = run_seed(seed, mutant.profile)
    assert product.passed, f"seed {seed} fails on the product too: {product.message}"


@pytest.mark.parametrize("name", STORIES)
def test_mutant_is_caught_by_its_story(name: str) -> None:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    with mutant.active(), pytest.raises(AssertionError):
        STORIES[name]()

    STORIES[name]()


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
