from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.ring import Owners, Quorum, Range, aborted, begun, finished, range_of, risen, wrong_move

A, B, C, D, E = (Member(name, f"{name}-disk") for name in "abcde")
N3 = Quorum(3, 2, 2)
OLD, NEW = Owners((A, B, C), N3), Owners((A, B, D), N3)
CALM = Range(7, OLD, floor_ms=50)
MOVING = begun(CALM, NEW)


def test_d63_ranges_are_equally_long_and_cover_every_key() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[range_of(b"key %d" % number, 8)] += 1

    assert all(850 < count < 1_150 for count in counts)
    assert 0 == range_of(b"whatever", 1)
    assert all(0 <= range_of(b"%d" % number, 4096) < 4096 for number in range(1_000))


def test_d63_each_step_of_a_move_has_the_next_version() -> None:
    assert (8, OLD, NEW) == MOVING[:3]
    assert Range(9, NEW, None, 50) == finished(MOVING)
    assert Range(9, OLD, None, 50) == aborted(MOVING)


@pytest.mark.parametrize("change", [finished, aborted])
def test_d63_a_move_that_is_not_open_neither_ends_nor_is_given_up(change: object) -> None:
    with pytest.raises(ValueError, match="no move"):
        change(CALM)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("before", "members", "quorum", "wrong"),
    [
        (MOVING, (A, B, E), N3, "a move of the range is open"),
        (CALM, (A, B), N3, "3 owners are wanted, 2 are named"),
        (CALM, (A, B, B), N3, "3 owners are wanted, 2 are named"),
        (CALM, (A, B, C, D, E), Quorum(5, 3, 3), "N can change by 1 at a time, not from 3 to 5"),
        (CALM, (A, B, D), Quorum(3, 1, 2), "the range is strict: R + W must be more than N, and 2 W too"),
        (CALM, (A, B, D), Quorum(3, 3, 1), "the range is strict: R + W must be more than N, and 2 W too"),
        (CALM, (A, B, C, D), Quorum(4, 3, 2), "the range is strict: R + W must be more than N, and 2 W too"),
        (CALM, (A, B, D), Quorum(3, 4, 2), "R 4 and W 2 must be at least 1 and at most N, which is 3"),
        (CALM, (A, B, D), Quorum(3, 2, 0), "R 2 and W 0 must be at least 1 and at most N, which is 3"),
        (CALM, (A, B, C, D), Quorum(4, 2, 3), None),
        (CALM, (A, B), Quorum(2, 1, 2), None),
        (CALM, (A, B, C), Quorum(3, 1, 3), None),
        (Range(1, Owners((A, B, C), Quorum(3, 1, 1))), (A, B, D), Quorum(3, 1, 1), None),
    ],
)
def test_d63_a_move_that_cannot_keep_the_promise_does_not_begin(
    before: Range, members: tuple[Member, ...], quorum: Quorum, wrong: str | None
) -> None:
    pending = Owners(members, quorum)
    assert wrong == wrong_move(before, pending)
    if wrong is None:
        assert before.version + 1 == begun(before, pending).version
    else:
        with pytest.raises(ValueError, match="^" + wrong.replace("+", "[+]")):
            begun(before, pending)


def test_d63_a_floor_rises_while_no_move_is_open_and_never_falls() -> None:
    assert 60 == risen(CALM, 60).floor_ms and 7 == risen(CALM, 60).version
    with pytest.raises(ValueError, match="while a move is open"):
        risen(MOVING, 60)
    with pytest.raises(ValueError, match="cannot fall to 49"):
        risen(CALM, 49)


def test_d64_a_move_needs_quorums_of_both_lists() -> None:
    assert (A, B, C, D) == MOVING.members and (A, B, C) == CALM.members
    assert CALM.write({A, C}) and not MOVING.write({A, C}), "the next owners would miss it"
    assert MOVING.write({A, B}) and MOVING.write({A, C, D}) and not MOVING.write({C, D})
    assert not CALM.write({A, D}) and not MOVING.write({A, D}), "the owners would miss it"
    assert MOVING.read({B, C, D}) and not MOVING.read({B, C}) and not MOVING.read({B, D})


def test_d64_another_life_of_an_owner_counts_for_nothing() -> None:
    again = Member("a", "a-new-disk")

    assert not CALM.holds(again) and not CALM.write({again, B}) and not CALM.read({again, B})


quorums = st.integers(1, 4).flatmap(
    lambda n: st.builds(Quorum, st.just(n), st.integers(1, n), st.integers(1, n))).filter(lambda quorum: quorum.strict)


@st.composite
def moves(draw: st.DrawFn) -> tuple[Range, Range]:
    before, after = draw(quorums), draw(quorums)
    names = draw(st.permutations([A, B, C, D, E]))
    calm = Range(1, Owners(tuple(names[: before.n]), before))
    pending = Owners(tuple(draw(st.permutations(names))[: after.n]), after)
    if wrong_move(calm, pending) is not None:
        pending = calm.own
    return calm, begun(calm, pending)


@given(moves())
def test_d64_every_read_meets_every_write_before_during_and_behind_a_move(move: tuple[Range, Range]) -> None:
    """An acknowledged write and an answered read of two records in a row have a member in common."""
    calm, moving = move
    records = [calm, moving, finished(moving)]
    groups = [set(chosen) for size in range(6) for chosen in combinations((A, B, C, D, E), size)]
    for wrote, reads in [(0, 0), (0, 1), (1, 1), (1, 0), (1, 2), (2, 2)]:
        for stored in groups:
            if records[wrote].write(stored):
                for answered in groups:
                    assert not records[reads].read(answered) or stored & answered


def test_d77_the_quorums_of_a_list_are_never_cut_to_its_members() -> None:
    """A damaged record with fewer members than its W acknowledges nothing; a request's own W asks for all there are."""
    short = Owners((Member("a", "1"), Member("b", "1")), Quorum(3, 3, 3))

    assert (short.missing(short.members), short.read(short.members)) == (1, False)
    assert (short.missing(short.members, 9), short.read(short.members, 9)) == (0, True)
