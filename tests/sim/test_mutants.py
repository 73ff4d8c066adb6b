"""Every mutant, the product minus one repair, is caught: proof that the checkers see what they are there for."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import test_scenarios_losses as losses
import test_scenarios_partial as partitions
import test_scenarios_reseeding as reseeding
import test_scenarios_upr as upr
from tidemark_sim.mutant import RUNS_MAX, Mutant
from tidemark_sim.mutants import MUTANTS
from tidemark_sim.runner import run_seed
from tidemark_sim.trace import Violation

from tests.core import test_operator_crashes as crashes
from tests.core import test_trust as trust
from tests.core.copies import test_fetching as fetching
from tests.core.documents import test_document_shard as document_shard
from tests.core.optimistic import test_copying as keyspace_copies
from tests.core.optimistic import test_hinting as keyspace_hints
from tests.core.replication import test_coordinator as coordinator
from tests.core.replication import test_recovery as recovery
from tests.core.support import A, Node, begun_cluster


def _desk(story: Callable[..., None], *arguments: str) -> Callable[[], None]:
    return lambda: story(coordinator.Desk(), *arguments)


def _patched(story: Callable[..., None], *arguments: str) -> Callable[[], None]:
    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            story(patch, *arguments)

    return run


STORIES: dict[str, Callable[[], None]] = {
    "N5": recovery.test_n5_a_swap_in_doubt_leaves_its_old_and_its_new_member_in_the_record,
    "N5 seeded": recovery.test_n5_a_swap_whose_new_member_is_silent_is_not_recovered,
    "N11 nonce": _desk(
        coordinator.test_n11_an_answer_from_before_the_change_does_not_have_a_whole_replica_seeded_again),
    "N11b": reseeding.test_n11b_a_replica_that_became_whole_is_not_wiped_by_the_swap_that_found_it_missing,
    "K16": partial(fetching.test_k16_a_member_that_never_answers_is_not_asked_for_ever, begun_cluster),
    "O42 nonce": _desk(
        coordinator.test_o42_a_leader_in_doubt_stays_in_doubt_until_it_answers_the_fence_that_asked, "leads"),
    "O3b progress": crashes.test_o3b_a_second_operator_leaves_a_change_to_the_driver_that_shows_progress,
    "N4": recovery.test_n4_a_leader_that_still_leads_may_have_a_commit_under_way_to_it,
    "K14c": losses.test_k14c_the_copy_that_holds_more_is_not_destroyed_without_an_explicit_wish,
    "K14c guard": losses.test_k14c_the_copy_that_holds_more_is_not_destroyed_without_an_explicit_wish,
    "K14d fence": losses.test_k14d_the_source_leads_only_once_a_majority_is_fenced,
    "K14d source": partial(losses.test_k14d_another_operator_goes_on_and_the_source_is_waited_for, "fenced"),
    "K14d copies": partial(
        losses.test_k14d_every_acknowledged_record_comes_back_from_the_member_that_holds_it, 3, 4, 1),
    "O43 links only": partial(partitions.test_o43_o44_a_leader_cut_off_from_its_followers_is_replaced, noticed=False),
    "U47 adopted": _patched(document_shard.test_u47_rows_of_another_member_are_shown_once_they_are_stored),
    "U47b": _patched(upr.test_u47b_a_member_that_cannot_fold_on_takes_the_rows_of_another_one),
    "U73b fold": upr.test_u73b_members_that_fold_alike_are_compared_and_agree,
    "U73b": upr.test_u73b_members_that_fold_alike_are_compared_and_agree,
    "T10b chain": lambda: trust.test_t10b_a_copy_is_compared_with_the_headers_around_it(Node(A)),
    "D61": keyspace_copies.test_d61_rows_that_come_under_another_record_are_not_stored,
    "D73 start": keyspace_hints.test_d73_a_wiped_node_that_starts_again_refuses_a_hint_older_than_its_start,
    "O44 no patience": partitions.test_o44_elections_become_rare_where_they_do_not_help,
}
"""Mutants that fewer than one seed in thousands shows: a story leads straight to the moment that they break."""

BROKEN = ("AttributeError", "NameError", "TypeError", "KeyError", "IndexError")
"""A mutant must break a promise, not stumble over its own feet."""


SEEDS: dict[str, int] = json.loads(Path(__file__).with_name("mutant_seeds.json").read_text())
"""Where the search for each begins: `make mutants` finds the first seed that catches it."""
SEEDED = [mutant for mutant in MUTANTS if mutant.name not in STORIES]


@pytest.mark.parametrize("mutant", SEEDED, ids=[mutant.name for mutant in SEEDED])
def test_mutant_is_caught(mutant: Mutant) -> None:
    first = SEEDS[mutant.name]
    for seed in range(first, first + RUNS_MAX):
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
    with mutant.active(), pytest.raises((AssertionError, Violation)):
        STORIES[name]()

    STORIES[name]()


def test_every_mutant_has_a_seed_or_a_story() -> None:
    assert set(SEEDS) == {mutant.name for mutant in SEEDED}


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
