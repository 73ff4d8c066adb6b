from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.optimistic.cells import Element, Meta, StringCell
from tidemark_core.optimistic.merge import merge_elements, merge_strings, string_of, value_of
from tidemark_core.optimistic.stamps import ZERO, Clock, Dot
from tidemark_core.optimistic.writes import add, clear, delete, put, remove

from .cases import A, B, C, dead, elements, live, stamp

NOW_MS = 10


def above(row: Element) -> Dot:
    """Return the first dot of a coordinator C that has seen a row."""
    clock = Clock(C, 0)
    for cell in row.values():
        clock.saw(cell.stamp, NOW_MS)
    return clock.draw(NOW_MS)


def test_d55_a_set_and_a_delete_write_one_cell() -> None:
    value, gone = put(Dot(1, stamp(1)), b"x", 12), delete(Dot(2, stamp(2)))

    assert (StringCell(stamp(1), False, 12, b"x"), StringCell(stamp(2), True, 0, b"")) == (value, gone)
    assert b"x" == string_of(value, NOW_MS)
    assert string_of(merge_strings(value, gone), NOW_MS) is None


def test_d57_an_add_makes_the_cells_of_others_dead_and_leaves_dead_ones_alone() -> None:
    held = {A: live(1, stamp(2), b"x"), B: dead(4, stamp(3, A)), C: live(1, stamp(1, C), b"y")}

    row = add(C, Dot(2, stamp(5, C)), held, b"new", 99)

    assert {A: dead(1, stamp(5, C)), C: live(2, stamp(5, C), b"new", 99)} == row
    assert b"new" == value_of(merge_elements(held, row), ZERO, NOW_MS)


def test_d57_an_add_of_a_coordinator_that_owns_no_copy_has_one_cell() -> None:
    assert {C: live(1, stamp(5, C))} == add(C, Dot(1, stamp(5, C)), {})


@given(elements)
def test_d57_an_add_is_seen_by_everybody_who_has_it_and_an_earlier_row(held: Element) -> None:
    row = merge_elements(held, add(C, above(held)._replace(n=4), held, b"new"))

    assert [b"new"] == [cell.value for actor, cell in row.items() if not cell.dead]
    assert b"new" == value_of(row, ZERO, NOW_MS)


def test_d57_a_remove_covers_what_was_found_with_one_stamp_and_mints_no_dot() -> None:
    found = {A: live(1, stamp(2), b"x"), B: dead(4, stamp(3, A)), C: live(7, stamp(4, C))}

    assert {A: dead(1, stamp(5)), B: dead(4, stamp(3, A)), C: dead(7, stamp(5))} == remove(stamp(5), found)


@given(elements, elements)
def test_d57_a_remove_hides_what_it_found_and_nothing_that_it_did_not_find(found: Element, unseen: Element) -> None:
    removed = remove(above(found).stamp, found)

    assert value_of(merge_elements(found, removed), ZERO, 0) is None
    later = {actor: cell._replace(n=cell.n + 10) for actor, cell in unseen.items()}
    assert value_of(later, ZERO, 0) == value_of(merge_elements(merge_elements(found, removed), later), ZERO, 0)


@pytest.mark.parametrize("ms", [3, 2])
def test_d57_a_stamp_that_is_not_above_what_it_removes_is_refused(ms: int) -> None:
    """Such a tombstone would be collected before a late copy of the add, which would be visible again."""
    found = {A: live(1, stamp(3), b"x")}

    with pytest.raises(ValueError, match="above all that it removes"):
        remove(stamp(ms), found)
    with pytest.raises(ValueError, match="above all that it removes"):
        add(B, Dot(1, stamp(ms, A)), found)


def test_d58_a_clear_has_the_stamp_of_all_that_it_removes() -> None:
    assert Meta(stamp(5), stamp(5)) == clear(stamp(5))


@given(elements, st.integers(1, 3))
def test_d58_an_add_behind_a_clear_is_there_and_what_was_before_is_not(held: Element, n: int) -> None:
    clock = Clock(C, 0)
    for cell in held.values():
        clock.saw(cell.stamp, NOW_MS)
    cleared = clear(clock.draw(NOW_MS).stamp).cleared

    assert value_of(held, cleared, 0) is None
    row = merge_elements(held, add(C, clock.draw(NOW_MS)._replace(n=n + 3), {}, b"new"))
    assert b"new" == value_of(row, cleared, 0)
