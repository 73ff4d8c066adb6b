"""Moves of ranges: what is copied, when a move ends, and what a reader and a writer find meanwhile."""

from __future__ import annotations

from itertools import combinations

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.moving import Copy, sources_needed, unfinished
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun

from .owning import CALM, MOVING, A, B, C, D

WIDE = Range(7, Owners((A, B, C), Quorum(3, 1, 3)))


def test_d66_a_newcomer_copies_from_so_many_owners_that_one_has_each_acknowledged_write() -> None:
    copy = Copy(D, MOVING)
    assert (2, [A, B, C]) == (sources_needed(MOVING), copy.sources())
    copy.copied(A, 8)
    assert not copy.done and [B, C] == copy.sources()
    copy.copied(A, 8)
    copy.copied(B, 7)
    copy.copied(D, 8)
    assert not copy.done, "twice, under another version, from no owner"
    copy.copied(C, 8)
    assert copy.done and [] == copy.sources()


def test_d66_a_staying_owner_copies_too_and_itself_counts() -> None:
    copy = Copy(A, MOVING)
    assert [B, C] == copy.sources()
    copy.copied(C, 8)
    assert copy.done
    assert Copy(A, begun(WIDE, Owners((A, B, D), Quorum(3, 1, 3)))).done, "each write is on every owner"


@pytest.mark.parametrize("me", [C, D])
def test_d66_who_is_no_pending_owner_copies_nothing(me: Member) -> None:
    with pytest.raises(ValueError, match="is no pending owner"):
        Copy(me, CALM if me is D else MOVING)


@pytest.mark.parametrize("quorum", [Quorum(3, 2, 2), Quorum(3, 1, 3), Quorum(3, 3, 2), Quorum(3, 2, 3)])
def test_d66_every_write_quorum_has_a_member_that_is_copied_from(quorum: Quorum) -> None:
    record = Range(1, Owners((A, B, C), quorum))
    for sources in combinations((A, B, C), sources_needed(record)):
        assert all(set(sources) & set(stored) for stored in combinations((A, B, C), quorum.w))


def test_d67_a_move_ends_when_all_have_copied_and_enough_owners_know_of_it() -> None:
    everybody, two = [A, B, D], [A, B]
    assert unfinished(MOVING, everybody, two, []) is None
    assert f"{D} copies the range" == unfinished(MOVING, two, two, [])
    assert "1 of 2 owners know of the move" == unfinished(MOVING, everybody, [A, D], [])
    assert unfinished(MOVING, everybody, [A], [C]) is None, "a member that is gone reads and writes nothing"
    assert "no move of the range is open" == unfinished(CALM, everybody, two, [])


@pytest.mark.parametrize("quorum", [Quorum(3, 2, 2), Quorum(3, 1, 3), Quorum(3, 3, 2), Quorum(3, 2, 3)])
def test_d67_no_read_and_no_write_of_the_version_before_finds_enough_owners(quorum: Quorum) -> None:
    record = begun(Range(1, Owners((A, B, C), quorum)), Owners((A, B, D), quorum))
    for count in range(4):
        for knows in combinations((A, B, C), count):
            others = {A, B, C} - set(knows)
            safe = not record.own.read(others) and record.own.missing(others) > 0
            assert safe == (unfinished(record, [A, B, D], knows, []) is None)
