"""The rows that a member reads and writes for a message, and its answer."""

from __future__ import annotations

import pytest
from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.messages import (
    Change,
    ClearWrite,
    ElementWrite,
    Load,
    RowsWrite,
    Store,
    StringWrite,
)
from tidemark_core.optimistic.owner import STORED, Fate, Source, Verdict
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import kept, of_element, of_string, on_load, on_store, places_of, with_related

from .cases import A as ACTOR
from .cases import B as OTHER
from .cases import dead, live, stamp
from .owning import CALM, INDEX, KEY, A, D

ME = Standing(A, CALM)
STRING, META, ELEMENT = Place(Sort.STRING, KEY), Place(Sort.META, KEY), Place(Sort.ELEMENT, KEY, b"e")
CELL = StringCell(stamp(50), False, 0, b"x")
ROW = {ACTOR: live(1, stamp(50))}


def store(change: Change, source: Source = Source.CLIENT, version: int = 7) -> Store:
    return Store(INDEX, version, CALM.floor_ms, 5, 1, source, change)


def test_d60_a_change_names_the_rows_that_a_member_must_know() -> None:
    assert (STRING,) == of_string(KEY) == places_of(StringWrite(KEY, CELL))
    assert (META, ELEMENT) == of_element(KEY, b"e") == places_of(ElementWrite(KEY, b"e", ROW))
    assert (META,) == places_of(ClearWrite(KEY, stamp(50)))
    assert (META, ELEMENT, STRING) == places_of(RowsWrite(((ELEMENT, ROW), (META, Meta()), (STRING, CELL))))


def test_d60_the_answer_to_a_change_repeats_what_it_is_for_and_names_version_and_floor() -> None:
    answer, rows = on_store(ME, store(StringWrite(KEY, CELL)), 1_000, {})
    assert (INDEX, 7, 10, 5, 1, STORED, None) == (
        answer.range, answer.version, answer.floor_ms, answer.operation, answer.attempt, answer.verdict, answer.record)
    assert {STRING: CELL} == rows


def test_d58_d60_an_element_is_written_with_the_row_of_its_key() -> None:
    _, rows = on_store(ME, store(ElementWrite(KEY, b"e", ROW)), 1_000, {})
    assert {ELEMENT: ROW, META: Meta(greatest=stamp(50))} == rows
    answer, rows = on_store(ME, store(ClearWrite(KEY, stamp(49))), 1_000, rows)
    assert (Verdict(Fate.NEWER, stamp(50)), {}) == (answer.verdict, rows)


def test_d61_rows_of_an_owner_are_taken_one_behind_the_other() -> None:
    other = Place(Sort.ELEMENT, KEY, b"f")
    rows: tuple[tuple[Place, Row], ...] = (
        (META, Meta(stamp(40), stamp(99))), (ELEMENT, ROW), (other, {OTHER: live(1, stamp(60, OTHER))}), (STRING, CELL))
    answer, changed = on_store(ME, store(RowsWrite(rows), Source.OWNER), 1_000, {})

    assert STORED == answer.verdict
    assert {**dict(rows), META: Meta(stamp(40), stamp(60, OTHER))} == changed, "its own elements' greatest stamp"
    assert {} == on_store(ME, store(RowsWrite(rows), Source.OWNER), 1_000, changed)[1], "once is enough"


@pytest.mark.parametrize(
    ("me", "version", "fate"), [(A, 6, Fate.OLD_RING), (A, 8, Fate.NEEDS_RING), (D, 7, Fate.NOT_OWNER)])
def test_d62_d65_a_refusal_changes_nothing_and_gives_a_newer_record(me: object, version: int, fate: Fate) -> None:
    standing = ME._replace(me=me)  # type: ignore[arg-type]
    answer, rows = on_store(standing, store(StringWrite(KEY, CELL), version=version), 1_000, {})
    found = on_load(standing, Load(INDEX, version, 10, 5, 1, (STRING,)), [(STRING, CELL)])

    assert (fate, {}, ()) == (answer.verdict.fate, rows, found.rows) and fate is found.refused
    assert (CALM if fate is Fate.OLD_RING else None) == answer.record == found.record


def test_d72_a_read_is_given_nothing_that_the_floor_collects() -> None:
    rows: dict[Place, Row] = {
        STRING: StringCell(stamp(9), True, 0, b""),
        META: Meta(stamp(9), stamp(60)),
        ELEMENT: {ACTOR: live(1, stamp(8)), OTHER: live(1, stamp(50, OTHER))},
        Place(Sort.ELEMENT, KEY, b"f"): {ACTOR: dead(1, stamp(10))},
        Place(Sort.ELEMENT, b"another", b"f"): {ACTOR: live(1, stamp(8))},
    }
    shown = {
        META: Meta(greatest=stamp(60)),
        ELEMENT: {OTHER: live(1, stamp(50, OTHER))},
        Place(Sort.ELEMENT, b"another", b"f"): {ACTOR: live(1, stamp(8))},
    }
    assert shown == kept(rows, 10) == dict(on_load(ME, Load(INDEX, 7, 10, 5, 1, ()), rows.items()).rows)
    assert {**rows, ELEMENT: shown[ELEMENT]} == kept(rows, 7), "a clear above the floor makes void too"


def test_d59_the_row_of_a_key_is_left_out_below_the_floor_and_what_its_clear_made_void_too() -> None:
    rows: dict[Place, Row] = {META: Meta(stamp(8), stamp(9)), ELEMENT: {ACTOR: live(1, stamp(8)),
                                                                        OTHER: live(1, stamp(9, OTHER))}}
    assert {ELEMENT: {OTHER: live(1, stamp(9, OTHER))}} == kept(rows, 10)


def test_d58_an_element_is_read_with_the_row_of_its_key() -> None:
    assert (META, ELEMENT, STRING) == with_related((ELEMENT, STRING, META))
