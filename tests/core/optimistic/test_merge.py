from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.optimistic.cells import Element, Meta, StringCell, encode_element
from tidemark_core.optimistic.merge import (
    collectable,
    collected,
    collected_meta,
    live_cells,
    merge_elements,
    merge_metas,
    merge_strings,
    string_of,
    value_of,
)
from tidemark_core.optimistic.stamps import ZERO, Stamp

from .cases import A, B, C, dead, elements, live, metas, stamp, stamps, strings, times

NOW_MS = 3
KINDS = [
    pytest.param(strings, merge_strings, id="String"),
    pytest.param(elements, merge_elements, id="Element"),
    pytest.param(metas, merge_metas, id="Meta"),
]


# --- the laws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "merge"), KINDS)
@given(data=st.data())
def test_d55_d56_d58_merges_are_commutative_associative_and_idempotent(
    rows: st.SearchStrategy[Any], merge: Callable[[Any, Any], Any], data: st.DataObject
) -> None:
    one, two, three = (data.draw(rows) for _ in range(3))

    assert merge(one, one) == one
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(merge(one, two), two) == merge(one, two), "a repeat changes nothing"


def test_d56_every_triple_of_cells_of_one_actor_merges_to_the_same() -> None:
    """Every kind of cell: live, dead, the same dot and a later one, equal stamps, other values and expiries."""
    cells = [
        *(live(n, stamp(ms), value, expires_at_ms)
          for n, ms, value, expires_at_ms in product((1, 2), (1, 2), (b"x", b"y"), (0, 4))),
        *(dead(n, stamp(ms, actor)) for n, ms, actor in product((1, 2), (1, 2), (A, B))),
    ]
    for one, two, three in product(cells, repeat=3):
        merged = merge_elements(merge_elements({A: one}, {A: two}), {A: three})
        assert merged == merge_elements({A: three}, merge_elements({A: two}, {A: one}))
        assert merged == {A: max(one, two, three)}


# --- what wins ----------------------------------------------------------------------------------------------


def test_d55_of_equal_stamps_the_delete_wins_and_then_the_contents_decide() -> None:
    at = stamp(5)
    value, other, gone = StringCell(at, False, 0, b"x"), StringCell(at, False, 0, b"y"), StringCell(at, True, 0, b"")

    assert gone == merge_strings(value, gone) == merge_strings(gone, other)
    assert merge_strings(value, other) == merge_strings(other, value)
    assert StringCell(stamp(6), False, 0, b"x") == merge_strings(gone, StringCell(stamp(6), False, 0, b"x"))


def test_d56_of_two_removes_of_one_dot_the_later_stamp_stays() -> None:
    early, late = {A: dead(1, stamp(3, B))}, {A: dead(1, stamp(4, C))}

    assert late == merge_elements(early, late) == merge_elements(late, early)


def test_d56_an_actors_later_write_replaces_its_own_and_concurrent_writes_of_two_actors_both_stay() -> None:
    """Three owners: B adds without having seen A's add, then A adds once more."""
    first, concurrent, later = {A: live(1, stamp(1))}, {B: live(1, stamp(1, B))}, {A: live(2, stamp(2))}

    assert {A: live(2, stamp(2)), B: live(1, stamp(1, B))} == merge_elements(
        merge_elements(later, concurrent), first)


def test_d56_the_dead_cell_of_a_dot_wins_over_its_live_one_and_a_later_dot_over_both() -> None:
    added, removed, again = {A: live(1, stamp(1))}, {A: dead(1, stamp(2, B))}, {A: live(2, stamp(2))}

    assert removed == merge_elements(added, removed)
    assert again == merge_elements(removed, again) == merge_elements(again, added)


# --- what is shown ------------------------------------------------------------------------------------------


def test_d56_an_element_is_present_by_any_live_cell_and_a_map_shows_the_newest_value() -> None:
    row = {A: live(1, stamp(2), b"older"), B: live(7, stamp(3, B), b"newer"), C: dead(1, stamp(9, C))}

    assert b"newer" == value_of(row, ZERO, NOW_MS)
    assert b"older" == value_of({**row, B: dead(7, stamp(4))}, ZERO, NOW_MS)
    assert value_of({C: dead(1, stamp(9, C))}, ZERO, NOW_MS) is None
    assert value_of({}, ZERO, NOW_MS) is None


def test_d58_a_clear_removes_what_has_its_stamp_or_an_older_one() -> None:
    row = {A: live(1, stamp(2), b"older"), B: live(7, stamp(3, B), b"newer")}

    assert [b"newer", b"newer", None] == [value_of(row, cleared, NOW_MS) for cleared in (
        ZERO, stamp(2), stamp(3, B))]


@pytest.mark.parametrize(("now_ms", "floor_ms", "shown"), [(3, 0, True), (4, 0, False), (5, 0, False), (3, 4, False)])
def test_d59_a_value_is_shown_until_its_time_by_the_readers_clock_or_the_floor(
    now_ms: int, floor_ms: int, shown: bool
) -> None:
    assert shown is (string_of(StringCell(stamp(1), False, 4, b"x"), now_ms, floor_ms) is not None)
    assert shown is (value_of({A: live(1, stamp(1), b"x", 4)}, ZERO, now_ms, floor_ms) is not None)
    assert string_of(StringCell(stamp(1), False, 0, b"x"), 1 << 60) == b"x", "0 is never"


def test_d55_a_deleted_string_and_one_that_was_never_written_show_nothing() -> None:
    assert string_of(StringCell(stamp(1), True, 0, b""), NOW_MS) is None
    assert string_of(None, NOW_MS) is None


# --- what goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "goes"),
    [
        (dead(1, stamp(3)), True),
        (dead(1, stamp(4)), False),
        (live(1, stamp(3)), False),
        (live(1, stamp(3), b"x", 3), True),
        (live(1, stamp(3), b"x", 4), False),
        (live(1, stamp(4), b"x", 2), False),
        (StringCell(stamp(3), True, 0, b""), True),
        (StringCell(stamp(4), True, 0, b""), False),
        (StringCell(stamp(1), False, 0, b"x"), False),
    ],
)
def test_d59_a_floor_collects_what_is_dead_or_expired_at_or_below_it(cell: Any, goes: bool) -> None:
    assert goes is collectable(cell, 3)


def test_d58_a_cell_up_to_a_clear_is_void_at_any_floor() -> None:
    row = {A: live(1, stamp(7)), B: live(1, stamp(7, B)), C: dead(1, stamp(6, C))}

    assert {B: row[B]} == collected(row, 3, stamp(7))
    assert row == collected(row, 3, ZERO)


@pytest.mark.parametrize(("meta", "left"), [
    (Meta(stamp(2), stamp(3)), None),
    (Meta(ZERO, stamp(3)), None),
    (Meta(stamp(3), stamp(4)), Meta(ZERO, stamp(4))),
    (Meta(stamp(4), stamp(4)), Meta(stamp(4), stamp(4))),
])
def test_d59_a_floor_collects_a_clear_and_then_the_row_of_the_key(meta: Meta, left: Meta | None) -> None:
    assert left == collected_meta(meta, 3)


@given(elements, stamps | st.just(ZERO), times, st.integers(0, 3))
def test_d59_what_a_floor_collects_was_shown_to_no_reader(
    row: Element, cleared: Stamp, floor_ms: int, later_ms: int
) -> None:
    now_ms = floor_ms + later_ms
    left = collected(row, floor_ms, cleared)

    assert list(live_cells(row, cleared, now_ms)) == list(live_cells(left, cleared, now_ms))


@given(elements, elements, stamps | st.just(ZERO), times)
def test_d59_owners_that_collect_before_or_behind_a_merge_are_equal_where_both_collect(
    one: Element, other: Element, cleared: Stamp, floor_ms: int
) -> None:
    """Rows may differ in what one of them collected; they are equal once both leave out what is collectable."""
    merged = merge_elements(one, other)
    apart = merge_elements(merged, collected(one, floor_ms, cleared))

    assert encode_element(collected(merged, floor_ms, cleared)) == encode_element(collected(apart, floor_ms, cleared))


def test_d58_both_stamps_of_a_meta_row_only_rise() -> None:
    assert Meta(stamp(3), stamp(9)) == merge_metas(Meta(stamp(3), stamp(4)), Meta(stamp(2), stamp(9)))
