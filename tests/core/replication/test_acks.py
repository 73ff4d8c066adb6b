from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.base.quorum import majority
from tidemark_core.replication.acks import committable
from tidemark_core.replication.log import Log

from tests.core.support import A, Author, B, C, D, E

FIVE = (A, B, C, D, E)


def log_of_epochs(*epochs: int) -> Log:
    """One entry of one record per offset, written by these epochs."""
    author = Author()
    for epoch in epochs:
        author.epoch = epoch
        author.data()
    return author.log


def test_o24_commit_needs_a_majority_of_the_ensemble() -> None:
    log = log_of_epochs(1, 1, 1)

    assert 1 == committable(log, 1, (A, B, C), {A: 2, B: 1, C: -1})
    assert 2 == committable(log, 1, (A, B, C), {A: 2, B: 1, C: 2})
    assert -1 == committable(log, 1, (A, B, C), {A: 2, B: -1, C: -1})
    assert -1 == committable(log, 1, (A, B, C), {A: 2})


def test_o24_commit_needs_an_entry_of_the_current_epoch() -> None:
    log = log_of_epochs(1, 1, 3)

    assert -1 == committable(log, 3, (A, B, C), {A: 2, B: 1, C: 1})
    assert 2 == committable(log, 3, (A, B, C), {A: 2, B: 2, C: 1})


def test_o25_entries_of_older_epochs_commit_below_one_of_the_current_epoch() -> None:
    log = log_of_epochs(1, 2, 2, 4)

    assert -1 == committable(log, 4, (A, B, C), {A: 3, B: 2, C: 2})
    assert 3 == committable(log, 4, (A, B, C), {A: 3, B: 3, C: 0})


def test_o24_a_match_vouches_for_its_whole_prefix() -> None:
    log = log_of_epochs(1, 1, 1, 1, 1)

    assert 2 == committable(log, 1, FIVE, {A: 4, B: 0, C: 2, D: 3, E: -1})


def test_k5_a_member_outside_the_ensemble_is_not_counted() -> None:
    log = log_of_epochs(1, 1)

    assert -1 == committable(log, 1, (A, B, C), {A: 1, D: 1, E: 1})
    assert 1 == committable(log, 1, (A, B, C), {A: 1, D: 1, B: 1})


def test_k5_the_quorum_is_a_majority_of_the_ensemble_in_force_not_of_who_answers() -> None:
    log = log_of_epochs(1)

    assert -1 == committable(log, 1, FIVE, {A: 0, B: 0})
    assert 0 == committable(log, 1, FIVE, {A: 0, B: 0, C: 0})
    assert 0 == committable(log, 1, (A,), {A: 0})
    assert -1 == committable(log, 1, (A, B), {A: 0})


def test_l2_no_log_no_commit() -> None:
    assert -1 == committable(Log(), 1, (A, B, C), {A: -1, B: -1, C: -1})


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=10).map(sorted),
    st.lists(st.integers(-1, 9), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_o24_whatever_is_committable_is_of_the_epoch_and_on_a_majority(
    epochs: list[int], offsets: list[int], epoch: int
) -> None:
    ensemble = FIVE[: len(offsets)]
    log = log_of_epochs(*epochs)
    matches: dict[Member, int] = {
        m: min(offset, log.head.offset) for m, offset in zip(ensemble, offsets, strict=True)
    }

    found = committable(log, epoch, ensemble, matches)

    if found >= 0:
        assert epoch == log.epoch_at(found)
        assert sum(match >= found for match in matches.values()) >= majority(len(ensemble))
