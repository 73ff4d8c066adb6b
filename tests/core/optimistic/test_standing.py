"""A member's part in a range under newer records and higher floors."""

from __future__ import annotations

import pytest
from tidemark_core.optimistic.ring import Owners, Quorum, aborted, begun, finished
from tidemark_core.optimistic.standing import Standing, adopted

from .owning import CALM, MOVING, A, B, C, D

OWNER = Standing(A, CALM, promise_ms=10)


@pytest.mark.parametrize("record", [CALM, CALM._replace(version=6), CALM._replace(floor_ms=9)])
def test_d65_a_record_that_is_no_newer_changes_nothing(record: object) -> None:
    assert OWNER is adopted(OWNER, record)  # type: ignore[arg-type]


def test_d65_a_pending_owner_that_was_none_copies_the_range() -> None:
    stranger = Standing(D, CALM)
    joining = adopted(stranger, MOVING)
    assert joining.copying and not joining.withdrawn and MOVING == joining.record
    assert not adopted(OWNER, MOVING).copying, "it holds the range already"

    again = begun(aborted(MOVING), Owners((A, B, D), Quorum(3, 2, 2)))
    assert adopted(joining._replace(copying=False), again).copying, "what it copied for another move is gone"
    assert not adopted(joining._replace(copying=False), finished(MOVING)).copying


def test_d65_a_member_that_leaves_is_no_owner() -> None:
    left = adopted(Standing(C, MOVING), finished(MOVING))
    assert not left.record.holds(C) and not left.copying and not left.withdrawn


def test_d71_an_owner_adopts_a_floor_that_it_has_promised() -> None:
    risen = CALM._replace(floor_ms=50)
    assert Standing(A, risen, 50) == adopted(OWNER._replace(promise_ms=50), risen)
    assert adopted(OWNER._replace(promise_ms=49), risen).withdrawn
    assert adopted(OWNER, begun(risen, Owners((A, B, D), Quorum(3, 2, 2)))).withdrawn, "it missed the round"


def test_d71_a_member_that_withdrew_stays_so_under_each_newer_record() -> None:
    withdrawn = OWNER._replace(withdrawn=True, promise_ms=90)
    assert adopted(withdrawn, MOVING).withdrawn and adopted(withdrawn, CALM._replace(floor_ms=60)).withdrawn


def test_d71_a_pending_owner_that_copied_at_a_floor_needs_no_promise_for_it() -> None:
    risen = begun(CALM._replace(floor_ms=50), Owners((A, B, D), Quorum(3, 2, 2)))
    joined = adopted(adopted(Standing(D, CALM), risen)._replace(copying=False), finished(risen))
    assert not joined.withdrawn and D in joined.record.own.members
