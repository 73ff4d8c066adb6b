"""Cells for backups and cells of backups, through a coordinator and members that answer by the rules of owners."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.archive import BEGIN, END, Archived, archived, decoded, key_of, mark_of, place_of
from tidemark_core.optimistic.cells import (
    ElementCell,
    Meta,
    Place,
    Retracted,
    Retraction,
    Row,
    Sort,
    StringCell,
    encode_place,
    encode_row,
)
from tidemark_core.optimistic.coordinating.archiving import CellsPage, Imported, import_cells, read_cells
from tidemark_core.optimistic.coordinating.operations import (
    ReadStep,
    clear,
    get_element,
    put_element,
    remove_element,
    unset,
)
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Found
from tidemark_core.optimistic.merge import merge_rows
from tidemark_core.optimistic.owner import Source
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_core.optimistic.stamps import Actor, Stamp

from . import cases
from .cases import A as ONE
from .cases import B as OTHER
from .cases import dead, live, stamp
from .owning import CALM, INDEX, KEY, A, B, C
from .test_operations import ACTOR, Node

FRESH = CALM._replace(floor_ms=0)
STRING = Place(Sort.STRING, KEY)
META = Place(Sort.META, KEY)


def element(name: bytes, key: bytes = KEY) -> Place:
    return Place(Sort.ELEMENT, key, name)


def a_node(record: Range = CALM, *reached: Member) -> Node:
    node = Node(*(reached or (A, B, C)))
    node.records[INDEX] = record
    for owning in node.members.values():
        owning.standing = owning.standing._replace(record=record, promise_ms=record.floor_ms)
    return node


def hold(node: Node, rows: dict[Place, Row], *members: Member) -> None:
    for member in members or node.members:
        node.members[member].rows.update(rows)


def pages(node: Node, rows_max: int = 1_000, bytes_max: int = 1 << 20) -> list[CellsPage]:
    """Read to the end, page by page."""
    first, found = b"", []
    while True:
        page = node.ask(read_cells(first, rows_max, bytes_max))
        assert page.outcome is Outcome.OK
        found.append(page)
        if page.behind is None:
            return found
        assert page.behind > first, "each page goes on"
        first = page.behind


def rows_of(cells: Any) -> dict[Place, Row]:
    """Merge cells to rows, without the greatest stamps of keys."""
    rows: dict[Place, Row] = {}
    for place, row in map(decoded, cells):
        rows[place] = merge_rows(rows[place], row) if place in rows else row
    return rows


def archive_of(node: Node) -> list[Archived]:
    return [cell for page in pages(node) for cell in page.cells]


def restore(node: Node, cells: list[Archived]) -> Imported:
    done = node.ask(import_cells([decoded(cell) for cell in cells]), source=Source.BACKUP)
    assert isinstance(done, Imported)
    return done


# --- bytes and order ----------------------------------------------------------------------------------------------

names = st.sampled_from([b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"b", b"\xff"])
places = st.builds(lambda sort, key: Place(sort, key), st.sampled_from([Sort.STRING, Sort.META]), names) | st.builds(
    Place, st.just(Sort.ELEMENT), names, names)


@given(places, places)
def test_d82_marks_have_the_order_of_places(one: Place, other: Place) -> None:
    assert (mark_of(one) < mark_of(other)) == (one < other)
    assert one == place_of(mark_of(one))
    if one.sort is Sort.ELEMENT:
        assert one == place_of(mark_of(one) + b"\0" * 8 + b"\1a"), "a mark of one of its cells"


@given(st.dictionaries(names.map(lambda name: element(name)), cases.elements, max_size=4))
def test_d82_the_cells_of_rows_make_the_same_rows_and_each_has_its_own_mark(rows: dict[Place, Row]) -> None:
    cells = archived(rows)
    marks = [cell.mark for cell in cells]
    assert sorted(set(marks)) == marks
    assert {place: row for place, row in rows.items() if row} == rows_of(cells)
    assert [encode_place(place_of(mark)) for mark in marks] == [cell.place for cell in cells]


def test_d82_the_first_and_the_last_place_hold_every_row_between_them() -> None:
    longest = Place(Sort.ELEMENT, b"\xff" * KEY_BYTES_MAX, b"\xff" * ELEMENT_BYTES_MAX)
    assert BEGIN == place_of(b"") < Place(Sort.STRING, b"\0") < longest < END
    assert encode_place(longest) < encode_place(END)


STAMP = stamp(50)


@pytest.mark.parametrize(("place", "row", "wrong"), [
    (Place(Sort.STRING, b""), StringCell(STAMP, False, 0, b"v"), "a key has 0 bytes"),
    (Place(Sort.STRING, b"k" * 1025), StringCell(STAMP, False, 0, b"v"), "a key has 1025 bytes"),
    (element(b"e" * 1025), {ONE: live(1, STAMP)}, "an element has 1025 bytes"),
    (STRING, StringCell(STAMP, False, 0, b"v" * (VALUE_BYTES_MAX + 1)), "a value has 1048577 bytes"),
    (STRING, StringCell(STAMP, False, -1, b"v"), "an expiry is -1"),
    (STRING, StringCell(STAMP, True, 0, b"v"), "a dead cell has a value"),
    (STRING, StringCell(Stamp(0, 0, "a", b"a" * 8), False, 0, b"v"), "a stamp has the time 0"),
    (STRING, StringCell(Stamp(1 << 62, 0, "a", b"a" * 8), False, 0, b"v"), "a stamp has the time 4611686018427387904"),
    (STRING, StringCell(Stamp(5, 0, "", b"a" * 8), False, 0, b"v"), "the name of a node is empty"),
    (META, Meta(), "the name of a node is empty"),
    (META, Meta(STAMP, stamp(51)), "a clear has a stamp beside its own"),
    (META, Meta(STAMP, Stamp(-1, 0, "a", b"a" * 8)), "a clear has a stamp beside its own"),
    (Place(Sort.RETRACTED, KEY), Retracted((Retraction(STAMP),)), "which stamps are taken back"),
    (element(b"e"), {}, "a row has 0 cells"),
    (element(b"e"), {ONE: live(1, STAMP), OTHER: live(1, STAMP)}, "a row has 2 cells"),
    (element(b"e"), {ONE: live(0, STAMP)}, "a dot has the number 0"),
    (element(b"e"), {Actor("", b"a" * 8): live(1, STAMP)}, "the name of a node is empty"),
])
def test_d83_what_no_archive_has_is_refused(place: Place, row: Row, wrong: str) -> None:
    with pytest.raises(RemoteViolation, match=wrong):
        decoded(Archived(encode_place(place), encode_row(row)))


WHOLE = archived({
    STRING: StringCell(STAMP, False, 70, b"value"), META: Meta(STAMP), element(b"e"): {ONE: live(1, STAMP, b"v")},
})


@given(st.sampled_from(WHOLE), st.booleans(), st.integers(0, 100), st.binary(max_size=2))
def test_d83_a_cell_with_other_bytes_is_refused_or_is_another_whole_cell(
    cell: Archived, of_row: bool, at: int, other: bytes
) -> None:
    data = cell.row if of_row else cell.place
    at %= len(data)
    data = data[:at] + other + data[at + 1:]
    place, row = (cell.place, data) if of_row else (data, cell.row)
    with contextlib.suppress(RemoteViolation):
        at_place, of = decoded(Archived(place, row))
        assert (place, row) == (encode_place(at_place), encode_row(of))


@pytest.mark.parametrize("mark", [b"\4k", b"\0", b"\3k", b"\1" + b"k" * 1026, b"\1" + b"k" * 9_000])
def test_d82_a_mark_that_is_none_is_refused(mark: bytes) -> None:
    with pytest.raises(RemoteViolation):
        place_of(mark)


# --- reading ------------------------------------------------------------------------------------------------------


def test_d82_a_backup_has_cells_of_every_sort_with_stamps_dots_and_expiries() -> None:
    node = a_node()
    rows: dict[Place, Row] = {
        STRING: StringCell(stamp(500), False, 9_000, b"v"), Place(Sort.STRING, b"gone"): StringCell(
            stamp(501), True, 0, b""),
        META: Meta(stamp(300), stamp(600)),
        element(b"e"): {ONE: live(3, stamp(600), b"x", 7_000), OTHER: dead(9, stamp(601, OTHER))},
        Place(Sort.META, b"plain"): Meta(greatest=stamp(400)), element(b"e", b"plain"): {ONE: live(2, stamp(400))},
    }
    hold(node, rows)
    [page] = pages(node)
    wanted = {**rows, META: Meta(stamp(300), stamp(300))}
    del wanted[Place(Sort.META, b"plain")]
    assert wanted == rows_of(page.cells) and CALM.floor_ms == page.floor_ms
    assert 6 == len(page.cells)


def test_d82_a_live_cell_below_the_floor_is_there_and_a_dead_one_is_not() -> None:
    node = a_node(CALM._replace(floor_ms=400))
    hold(node, {
        STRING: StringCell(stamp(100), False, 0, b"old"), Place(Sort.STRING, b"gone"): StringCell(
            stamp(400), True, 0, b""),
        element(b"e"): {ONE: dead(1, stamp(400)), OTHER: dead(1, stamp(401, OTHER))},
        META: Meta(stamp(200), stamp(401)),
    })
    assert {STRING: StringCell(stamp(100), False, 0, b"old"), element(b"e"): {OTHER: dead(1, stamp(401, OTHER))}
            } == rows_of(archive_of(node))


def test_d82_d84_a_string_has_the_stamp_that_stands_in_and_what_is_taken_back_is_no_cell() -> None:
    node = a_node()
    was, cell = stamp(900), StringCell(stamp(900), False, 0, b"v")
    other = Place(Sort.STRING, KEY + b"2")
    hold(node, {STRING: cell, other: cell})
    hold(node, {Place(Sort.RETRACTED, KEY): Retracted((Retraction(was, stamp(600)),))}, A, B)
    wanted = {STRING: cell._replace(stamp=stamp(600)), other: cell}
    for rows_max in (1, 10):
        assert wanted == rows_of([each for page in pages(node, rows_max) for each in page.cells])


def test_d82_each_row_is_merged_of_a_read_quorum_and_nothing_is_repaired() -> None:
    node = a_node()
    old, new = StringCell(stamp(500), False, 0, b"old"), StringCell(stamp(600), False, 0, b"new")
    hold(node, {STRING: old, element(b"e"): {ONE: live(1, stamp(510))}}, A)
    hold(node, {STRING: new, element(b"e"): {OTHER: live(1, stamp(520, OTHER))}}, B)
    before = {member: dict(owning.rows) for member, owning in node.members.items()}
    assert {STRING: new,
            element(b"e"): {ONE: live(1, stamp(510)), OTHER: live(1, stamp(520, OTHER))}} == rows_of(archive_of(node))
    assert before == {member: owning.rows for member, owning in node.members.items()}
    assert CellsPage(Outcome.UNKNOWN) == unanswered(a_node(CALM, A))


def unanswered(node: Node) -> Any:
    """Read where too few members answer, and let the deadline pass."""
    assert node.ask(read_cells(b"", 10, 1_000)) is None
    node.now_ms += 2_000
    node.run(node.coordinator.on_tick(node.now_ms))
    return node.answers[1]


def test_d58_d82_an_element_that_a_clear_removed_on_another_owner_is_not_in_a_backup() -> None:
    """The owner with the clear has removed the element already, so the page of elements has no row of it there."""
    node = a_node()
    hold(node, {element(b"e"): {ONE: live(1, stamp(500))}, META: Meta(greatest=stamp(500))}, A)
    hold(node, {META: Meta(stamp(600), stamp(600))}, B)
    first = mark_of(element(b""))
    page = node.ask(read_cells(first, 10, 1_000))
    assert () == page.cells, "a page that begins behind the rows of keys"


def test_d59_d82_an_element_that_a_clear_below_the_floor_made_void_is_not_in_a_backup() -> None:
    node = a_node(CALM._replace(floor_ms=600))
    hold(node, {element(b"e"): {ONE: live(1, stamp(500))}, META: Meta(stamp(550), stamp(550))})
    assert [] == archive_of(node)


def test_d82_a_floor_that_rises_between_the_reads_of_a_page_begins_it_again() -> None:
    steps = read_cells(b"", 10, 1_000)
    next(steps)
    row = {element(b"e"): {ONE: live(1, stamp(500))}}

    def found(rows: dict[Place, Row], floor_ms: int) -> Found:
        return Found(Outcome.OK, rows, None, floor_ms, (A, B), ())

    again = steps.send(found({**row, STRING: StringCell(stamp(400), True, 0, b"")}, 10))
    assert isinstance(again, ReadStep) and {META, element(b"e")} == set(again.places)
    second = steps.send(found(row, 600))
    assert isinstance(second, ReadStep) and second.span is not None
    with pytest.raises(StopIteration, match=r"cells=\(\)"):
        steps.send(found({}, 600))


@pytest.mark.parametrize(("rows_max", "bytes_max"), [(1, 1 << 20), (2, 1 << 20), (1_000, 1), (3, 120), (1_000, 200)])
def test_d82_pages_are_bounded_by_rows_and_bytes_and_skip_nothing(rows_max: int, bytes_max: int) -> None:
    node = a_node()
    rows: dict[Place, Row] = {
        **{Place(Sort.STRING, b"k%d" % n): StringCell(stamp(500 + n), n % 2 == 0, 0, b"" if n % 2 == 0 else b"value")
           for n in range(5)},
        META: Meta(stamp(90), stamp(600)),
        **{element(b"\0" * n): {
            ONE: live(1, stamp(600)), OTHER: dead(2, stamp(601, OTHER)), cases.C: live(3, stamp(602, cases.C), b"xx")}
           for n in range(4)},
        **{element(b"e", b"voided-%d" % n): {ONE: live(1, stamp(80))} for n in range(2)},
        **{Place(Sort.META, b"voided-%d" % n): Meta(stamp(85), stamp(85)) for n in range(2)},
    }
    hold(node, rows)
    found = pages(node, rows_max, bytes_max)
    cells = [cell for page in found for cell in page.cells]
    assert archive_of(node) == cells
    assert all(sum(cell.size for cell in page.cells) <= bytes_max or len(page.cells) == 1 for page in found)
    assert 5 + 1 + 12 + 2 == len(cells)


def test_d82_a_page_of_members_with_different_rows_is_bounded_and_skips_nothing() -> None:
    node = a_node()
    rows: dict[Place, Row] = {element(b"e%d" % n): {ONE: live(1, stamp(500 + n))} for n in range(8)}
    hold(node, dict(list(rows.items())[::2]), A)
    hold(node, dict(list(rows.items())[1::2]), B)
    found = pages(node, rows_max=2)
    assert rows == rows_of(cell for page in found for cell in page.cells)
    assert all(len(page.cells) <= 2 for page in found)


# --- importing ----------------------------------------------------------------------------------------------------


def a_source() -> Node:
    """A range with everything: live, dead, expiring and cleared cells, of two runs."""
    node = a_node()
    hold(node, {
        STRING: StringCell(stamp(500), False, 9_000, b"v"), Place(Sort.STRING, b"gone"): StringCell(
            stamp(501), True, 0, b""),
        META: Meta(stamp(300), stamp(600)),
        element(b"e"): {ONE: live(3, stamp(600), b"x", 7_000), OTHER: dead(9, stamp(601, OTHER))},
    })
    return node


def test_d83_a_restore_into_a_fresh_range_gives_the_same_cells_on_a_write_quorum() -> None:
    cells = archive_of(a_source())
    target = a_node(FRESH, A, B)
    assert Imported(Outcome.OK) == restore(target, cells)
    assert cells == archive_of(target)
    assert all(cells == archived(owning.rows) for owning in target.members.values())


def test_d83_a_second_restore_changes_nothing() -> None:
    cells, target = archive_of(a_source()), a_node(FRESH)
    restore(target, cells)
    before = {member: dict(owning.rows) for member, owning in target.members.items()}
    assert Imported(Outcome.OK) == restore(target, cells)
    assert before == {member: owning.rows for member, owning in target.members.items()}


def test_d83_what_is_at_or_below_a_floor_or_a_promise_is_refused_and_named_and_the_rest_is_stored() -> None:
    cells = archive_of(a_source())
    for record, promise_ms in ((CALM._replace(floor_ms=500), 500), (FRESH, 500)):
        target = a_node(record)
        for owning in target.members.values():
            owning.standing = owning.standing._replace(promise_ms=promise_ms)
        done = restore(target, cells)
        named = {key_of(cells[number]): outcome for number, outcome in done.refused}
        assert Outcome.OK is done.outcome
        assert {(KEY, None): Outcome.BELOW} == named
        assert [STRING, META] == [decoded(cells[number])[0] for number, _ in sorted(done.refused)]
        assert [cell for number, cell in enumerate(cells) if number not in dict(done.refused)] == archive_of(target)


def test_d83_what_is_there_already_is_no_refusal_below_a_floor() -> None:
    cells, target = archive_of(a_source()), a_node(FRESH)
    restore(target, cells)
    for owning in target.members.values():
        owning.standing = owning.standing._replace(promise_ms=10_000)
    assert Imported(Outcome.OK) == restore(target, cells)


def test_d83_a_stamp_from_the_future_is_refused_and_named() -> None:
    early, late = StringCell(stamp(900), False, 0, b"v"), StringCell(stamp(5_000), False, 0, b"v")
    target = a_node(FRESH)
    cells = archived({STRING: early, Place(Sort.STRING, b"late"): late})
    assert Imported(Outcome.OK, ((1, Outcome.FUTURE),)) == restore(target, cells)
    assert {STRING: early} == rows_of(archive_of(target))


def test_d83_a_stamp_from_the_future_is_named_while_an_owner_is_away() -> None:
    target = a_node(FRESH, A, B)
    cells = archived({STRING: StringCell(stamp(5_000), False, 0, b"v")})
    assert Imported(Outcome.OK, ((0, Outcome.FUTURE),)) == restore(target, cells)


def test_d83_newer_cells_stay_and_a_restore_counts_them_as_stored() -> None:
    cells, target = archive_of(a_source()), a_node(FRESH)
    newer: dict[Place, Row] = {
        STRING: StringCell(stamp(700), True, 0, b""), META: Meta(stamp(800), stamp(800)),
        Place(Sort.STRING, b"gone"): StringCell(stamp(800), False, 0, b"back"),
    }
    hold(target, newer)
    assert Imported(Outcome.OK) == restore(target, cells)
    assert newer == rows_of(archive_of(target)), "the clear is newer than the element"


def test_d56_d83_a_removed_element_does_not_come_back_by_the_dot_that_was_removed() -> None:
    cells, target = archive_of(a_source()), a_node(FRESH)
    restore(target, cells)
    target.ask(remove_element(KEY, b"e"))
    assert Imported(Outcome.OK) == restore(target, cells)
    assert target.ask(get_element(KEY, b"e", target.now)).value is None


def test_d53_d83_the_dots_of_a_restored_keyspace_are_not_drawn_again() -> None:
    """The runs of the source have other ids; the same run goes on behind the numbers that it has drawn."""
    source = Node(A, B, C)
    source.ask(put_element(KEY, b"e", b"old"))
    cells = archive_of(source)
    source.ask(remove_element(KEY, b"e"))
    source.ask(put_element(KEY, b"e", b"new"))
    restore(source, cells)
    assert b"new" == source.ask(get_element(KEY, b"e", source.now)).value, "the same run"
    other = Node(A, B, C, actor=Actor("a", b"later run"[:8]))
    restore(other, cells)
    other.ask(put_element(KEY, b"e", b"other"))
    row = other.members[B].rows[element(b"e")]
    assert isinstance(row, dict) and {ACTOR, Actor("a", b"later ru")} == set(row), "another run of the same name"
    assert b"other" == other.ask(get_element(KEY, b"e", other.now)).value


def test_d83_an_import_that_too_few_owners_answer_is_unknown() -> None:
    target = a_node(FRESH, A)
    assert target.ask(import_cells([(STRING, StringCell(stamp(500), False, 0, b"v"))]), source=Source.BACKUP) is None
    target.now_ms += 2_000
    target.run(target.coordinator.on_tick(target.now_ms))
    assert Imported(Outcome.UNKNOWN) == target.answers[1]


def test_d83_clears_and_deletes_of_a_backup_work_at_the_target() -> None:
    source, target = a_node(), a_node(FRESH)
    older = {STRING: StringCell(stamp(100), False, 0, b"v"), element(b"e"): {ONE: live(1, stamp(110))},
             META: Meta(greatest=stamp(110))}
    hold(source, older)
    hold(target, older)
    source.ask(unset(KEY))
    source.ask(clear(KEY))
    assert Imported(Outcome.OK) == restore(target, archive_of(source))
    assert archive_of(source) == archive_of(target)
    assert target.ask(get_element(KEY, b"e", target.now)).value is None


def test_d83_of_cells_that_are_refused_each_is_found() -> None:
    rows: dict[Place, Row] = {
        Place(Sort.STRING, b"k%02d" % n): StringCell(stamp(400 + n), False, 0, b"v") for n in range(20)}
    target = a_node(CALM._replace(floor_ms=406))
    done = restore(target, archived(rows))
    assert [(n, Outcome.BELOW) for n in range(7)] == sorted(done.refused)
    assert 13 == len(archive_of(target))


def test_d83_a_cell_alone_is_a_row() -> None:
    cell = ElementCell(1, False, STAMP, 0, b"v")
    assert (element(b"e"), {ONE: cell}) == decoded(Archived(encode_place(element(b"e")), encode_row({ONE: cell})))
