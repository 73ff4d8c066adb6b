"""Hints of a node: which it takes, when they go, and what it answers to a round."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.hinting.hints import Bounds, Hint, Hints, decode_hint, encode_hint, hint_of
from tidemark_core.optimistic.messages import Refusal
from tidemark_core.optimistic.stamps import ZERO

from .cases import A as ACTOR
from .cases import B, dead, elements, live, metas, stamp, strings
from .owning import INDEX, KEY

NOW_MS = 2_000
BOUNDS = Bounds(write_window_ms=1_000, bytes_max=100)
STRING = Place(Sort.STRING, KEY)
WINDOW_MS = 700


def a_hint(ms: int = 1_900, size: int = 10, *, obliged: bool = True, index: int = INDEX) -> Hint:
    return Hint(index, STRING, StringCell(stamp(ms), False, 0, b"x"), stamp(ms), size, obliged)


def started(began_ms: int = 1_000) -> Hints:
    hints = Hints(BOUNDS)
    hints.began(began_ms)
    return hints


def refused(hints: Hints, hint: Hint, now_ms: int = NOW_MS) -> Refusal | None:
    return hints.refusal(now_ms, hint, WINDOW_MS)


def test_d73_a_hint_must_be_newer_than_the_node_its_promise_and_half_of_the_write_window() -> None:
    hints = started()
    assert refused(hints, a_hint(1_501)) is None
    assert Refusal.OLD is refused(hints, a_hint(1_500))
    hints.began(1_950)
    assert refused(hints, a_hint(1_950)) is None, "it began once"
    assert Refusal.OLD is refused(started(1_950), a_hint(1_950))
    hints.promise(INDEX, 1_800)
    assert Refusal.OLD is refused(hints, a_hint(1_800)) and refused(hints, a_hint(1_801)) is None
    assert refused(hints, a_hint(1_800, index=9)) is None, "of another range"


def test_d73_a_full_store_refuses_obliged_hints_and_drops_no_obliged_one() -> None:
    hints = started()
    for number in range(9):
        assert refused(hints, a_hint()) is None and (number, []) == hints.take(a_hint())
    assert Refusal.FULL is refused(hints, a_hint(size=11))
    assert Refusal.FULL is refused(hints, a_hint(size=11, obliged=False))
    assert (9, []) == hints.take(a_hint()) and Refusal.FULL is refused(hints, a_hint(size=1))


def test_d73_a_range_of_which_a_hint_lies_here_for_the_window_takes_no_more() -> None:
    hints = started()
    first, _ = hints.take(a_hint(1_400))
    hints.take(a_hint(1_600))
    now_ms = 1_400 + WINDOW_MS
    assert refused(hints, a_hint(2_000), now_ms - 1) is None
    assert Refusal.FULL is refused(hints, a_hint(2_000), now_ms)
    assert refused(hints, a_hint(2_000, index=9), now_ms) is None, "of another range"
    hints.delivered(first)
    assert refused(hints, a_hint(2_000), now_ms) is None, "the next one is younger"
    assert Refusal.FULL is started().refusal(NOW_MS, a_hint(), 0), "no hint is kept"


def test_d73_hints_that_were_not_counted_go_first_and_their_range_needs_repair() -> None:
    hints = started()
    hints.take(a_hint(size=50, obliged=False, index=8))
    hints.take(a_hint(size=50, obliged=False, index=9))
    assert refused(hints, a_hint(size=50)) is None
    assert (2, [0]) == hints.take(a_hint(size=50))
    assert {8: 1_000} == hints.dropped and [1, 2] == list(hints.held)


def test_d73_a_hint_stays_until_a_write_quorum_has_it() -> None:
    hints = started()
    number, _ = hints.take(a_hint(size=100))
    hints.delivered(number)
    hints.delivered(number)
    assert {} == hints.held and refused(hints, a_hint(size=100)) is None


def test_d69_d73_a_round_waits_for_obliged_hints_up_to_the_floor_and_for_no_others() -> None:
    hints = started()
    old, _ = hints.take(a_hint(1_600))
    cached, _ = hints.take(a_hint(1_600, obliged=False))
    hints.take(a_hint(1_900))
    hints.take(a_hint(1_600, index=9))
    assert ({old}, [cached]) == hints.promise(INDEX, 1_700) and cached not in hints.held
    hints.delivered(old)
    assert (set(), []) == hints.promise(INDEX, 1_700) and 2 == len(hints.held)


def test_d69_a_lower_floor_takes_no_promise_back() -> None:
    hints = started()
    hints.promise(INDEX, 1_800)
    hints.promise(INDEX, 1_700)
    assert Refusal.OLD is refused(hints, a_hint(1_750))


@pytest.mark.parametrize(("obliged", "lost"), [(True, {INDEX: 1}), (False, {})])
def test_d70_an_obliged_hint_that_the_floor_overtook_is_counted(obliged: bool, lost: dict[int, int]) -> None:
    hints = started()
    number, _ = hints.take(a_hint(obliged=obliged))
    hints.overtaken(number)
    hints.overtaken(number)
    assert lost == hints.lost and {} == hints.held


def test_d73_what_was_on_the_disk_is_kept_and_counted_on() -> None:
    hints = started()
    hints.recover({5: a_hint(size=60), 3: a_hint(size=20)}, {INDEX: 1_800})
    assert [3, 5] == list(hints.held) and Refusal.OLD is refused(hints, a_hint(1_750))
    assert Refusal.FULL is refused(hints, a_hint(size=21)) and (6, []) == hints.take(a_hint(size=20))


def test_d73_an_equal_hint_is_held_once() -> None:
    hints = started()
    number, _ = hints.take(a_hint(1_900))
    assert [number, None, None, None] == [
        hints.number_of(each) for each in (a_hint(1_900), a_hint(1_901), a_hint(1_900, index=9), a_hint(size=11))]
    later, _ = hints.take(a_hint(1_900, size=11))
    hints.delivered(number)
    assert later == hints.number_of(a_hint(size=11))
    hints.delivered(later)
    assert hints.number_of(a_hint(size=11)) is None


@pytest.mark.parametrize(("sort", "row", "least"), [
    (Sort.STRING, StringCell(stamp(7), False, 0, b""), 7),
    (Sort.META, Meta(stamp(7), stamp(9)), 7),
    (Sort.ELEMENT, {ACTOR: live(1, stamp(9)), B: dead(2, stamp(7))}, 7),
    (Sort.ELEMENT, {}, 0),
])
def test_d69_d73_a_hint_is_as_old_as_its_oldest_cell(sort: Sort, row: Row, least: int) -> None:
    """An owner refuses a row of which one cell is at or below its promise (D62)."""
    assert least == hint_of(INDEX, Place(sort, KEY), row, obliged=True).stamp.ms


@settings(max_examples=60)
@given(st.one_of(strings.map(lambda row: (STRING, row)), metas.map(lambda row: (Place(Sort.META, KEY), row)),
                 elements.map(lambda row: (Place(Sort.ELEMENT, b"\0k", b"e\0"), row))), st.booleans())
def test_d73_the_bytes_of_a_hint_say_all_of_it(at: tuple[Place, Row], obliged: bool) -> None:
    hint = hint_of(5 << 32, *at, obliged=obliged)
    data = encode_hint(hint)
    assert hint == decode_hint(data) and hint.size == len(data)
    with pytest.raises(RemoteViolation):
        decode_hint(data[:12])
    assert ZERO <= hint.stamp
