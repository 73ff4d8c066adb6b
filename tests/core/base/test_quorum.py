from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.quorum import has_majority, majority, quorum_offset

from tests.core.support import A, B, C, D


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_majority(count: int, expected: int) -> None:
    assert expected == majority(count)


@pytest.mark.parametrize("count", range(1, 8))
def test_o10_two_majorities_always_share_a_voter(count: int) -> None:
    voters = range(count)
    for one in combinations(voters, majority(count)):
        for other in combinations(voters, majority(count)):
            assert set(one) & set(other), f"{one} and {other} have nobody in common"


def test_has_majority_counts_only_the_electorate() -> None:
    assert has_majority([A, B, C], [A, B])
    assert not has_majority([A, B, C], [A, D])
    assert not has_majority([A, B, C], [A, A, D])


def test_quorum_offset_is_the_highest_that_enough_reached() -> None:
    assert 4 == quorum_offset([9, 4, 1], 2)
    assert 1 == quorum_offset([9, 4, 1], 3)


def test_quorum_offset_of_too_few_is_nothing() -> None:
    assert -1 == quorum_offset([9], 2)


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=7), st.data())
def test_k5_quorum_offset_is_held_by_the_quorum_and_nothing_above_it_is(
    offsets: list[int], data: st.DataObject
) -> None:
    quorum = data.draw(st.integers(1, len(offsets)))
    found = quorum_offset(offsets, quorum)

    assert sum(offset >= found for offset in offsets) >= quorum
    assert sum(offset > found for offset in offsets) < quorum
