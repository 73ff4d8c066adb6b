from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Element, Meta, StringCell
from tidemark_core.optimistic.merge import merge_elements, merge_strings
from tidemark_core.optimistic.owner import (
    STORED,
    Fate,
    Origin,
    Source,
    Taken,
    Verdict,
    closed,
    take_clear,
    take_element,
    take_string,
)
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun
from tidemark_core.optimistic.stamps import ZERO
from tidemark_core.optimistic.standing import Standing

from .cases import A, B, C, dead, elements, live, metas, stamp, strings

ME, OTHER, THIRD, NEWCOMER = (Member(name, f"{name}-disk") for name in "abcd")
FLOOR_MS, PROMISE_MS, LATEST_MS = 20, 30, 1_000
RANGE = Range(7, Owners((ME, OTHER, THIRD), Quorum(3, 2, 2)), floor_ms=FLOOR_MS)
MOVING = begun(RANGE, Owners((ME, OTHER, NEWCOMER), Quorum(3, 2, 2)))
OWNER = Standing(ME, RANGE, PROMISE_MS)
COPYING = Standing(NEWCOMER, MOVING, PROMISE_MS, copying=True)
EXTERNAL = [Source.CLIENT, Source.HINT, Source.BACKUP]


def of(source: Source, floor_ms: int = FLOOR_MS) -> Origin:
    return Origin(source, floor_ms, LATEST_MS)


def value(ms: int, data: bytes = b"x", expires_at_ms: int = 0) -> StringCell:
    return StringCell(stamp(ms), False, expires_at_ms, data)


def gone(ms: int) -> StringCell:
    return StringCell(stamp(ms, B), True, 0, b"")


def below(limit_ms: int) -> Verdict:
    return Verdict(Fate.BELOW, stamp(limit_ms + 1)._replace(node="", start=ZERO.start))


# --- who is let in ------------------------------------------------------------------------------------------


def test_d62_d65_a_message_of_another_version_changes_nothing() -> None:
    assert closed(OWNER, 7) is None
    assert Fate.OLD_RING is closed(OWNER, 6)
    assert Fate.NEEDS_RING is closed(OWNER, 8)


def test_d62_who_owns_no_part_of_the_range_or_has_an_old_disk_takes_nothing() -> None:
    assert Fate.NOT_OWNER is closed(OWNER._replace(me=NEWCOMER), 7)
    assert Fate.NOT_OWNER is closed(OWNER._replace(me=Member("a", "another disk")), 7)
    assert Fate.NOT_OWNER is closed(OWNER._replace(withdrawn=True), 7)
    assert closed(COPYING, 8) is None, "a pending owner takes all writes"


# --- Strings ------------------------------------------------------------------------------------------------


def test_d60_only_what_is_the_greatest_now_is_stored() -> None:
    origin = of(Source.CLIENT)
    assert Taken(STORED, string=value(50)) == take_string(OWNER, origin, None, value(50))
    assert Taken(STORED, string=gone(60)) == take_string(OWNER, origin, value(50), gone(60))
    assert Taken(STORED) == take_string(OWNER, origin, value(50), value(50)), "a repeat is acknowledged again"
    assert Taken(Verdict(Fate.NEWER, stamp(60, B))) == take_string(OWNER, origin, gone(60), value(50))


@pytest.mark.parametrize("source", [Source.HINT, Source.BACKUP, Source.OWNER])
def test_d60_for_all_others_the_greater_one_is_enough(source: Source) -> None:
    assert Taken(STORED) == take_string(OWNER, of(source), gone(60), value(50))


@pytest.mark.parametrize("source", Source)
def test_d54_d62_a_stamp_from_the_future_is_refused_from_every_source(source: Source) -> None:
    assert Taken(STORED, string=value(LATEST_MS)) == take_string(OWNER, of(source), None, value(LATEST_MS))
    assert Taken(Verdict(Fate.FUTURE)) == take_string(OWNER, of(source), None, value(LATEST_MS + 1))
    assert Fate.FUTURE is take_clear(OWNER, of(source), Meta(), stamp(LATEST_MS + 1)).verdict.fate


@pytest.mark.parametrize("source", EXTERNAL)
def test_d62_nothing_external_is_taken_at_or_below_the_floor_or_the_promise(source: Source) -> None:
    for ms in (1, FLOOR_MS):
        assert Taken(below(FLOOR_MS)) == take_string(OWNER, of(source), None, value(ms))
        assert Taken(below(FLOOR_MS)) == take_string(COPYING, of(source), None, value(ms))
    for ms in (FLOOR_MS + 1, PROMISE_MS):
        assert Taken(below(PROMISE_MS)) == take_string(OWNER, of(source), None, value(ms))
    assert Taken(STORED, string=value(PROMISE_MS + 1)) == take_string(OWNER, of(source), None, value(PROMISE_MS + 1))


def test_d62_what_is_there_already_is_acknowledged_below_the_floor_too() -> None:
    assert Taken(STORED) == take_string(OWNER, of(Source.CLIENT), value(5), value(5))


def test_d61_d62_a_promise_does_not_refuse_what_owners_exchange() -> None:
    assert Taken(STORED, string=value(FLOOR_MS + 1)) == take_string(OWNER, of(Source.OWNER), None, value(FLOOR_MS + 1))


@pytest.mark.parametrize(
    ("standing", "cell", "floor_ms", "taken"),
    [
        (COPYING, value(5), FLOOR_MS, True),
        (COPYING, gone(5), FLOOR_MS, False),
        (COPYING, value(5, b"x", FLOOR_MS), FLOOR_MS, False),
        (COPYING, value(5, b"x", FLOOR_MS + 1), FLOOR_MS, True),
        (COPYING, value(5), FLOOR_MS - 1, False),
        (COPYING._replace(copying=False), value(5), FLOOR_MS, False),
        (OWNER, value(5), FLOOR_MS, False),
    ],
)
def test_d62_below_the_floor_only_live_cells_are_copied_to_a_new_owner_from_the_same_floor(
    standing: Standing, cell: StringCell, floor_ms: int, taken: bool
) -> None:
    """Anything else from below the floor would bring back what was removed."""
    origin = of(Source.OWNER, floor_ms)

    assert (Taken(STORED, string=cell) if taken else Taken(Verdict(Fate.DROPPED))) == take_string(
        standing, origin, None, cell)


# --- elements -----------------------------------------------------------------------------------------------

HELD: Element = {A: live(1, stamp(50), b"x"), B: dead(2, stamp(60))}


def test_d60_an_add_or_a_removal_that_is_overtaken_counts_as_stored() -> None:
    origin = of(Source.CLIENT)
    assert Taken(STORED) == take_element(OWNER, origin, HELD, Meta(greatest=stamp(60)), {B: live(2, stamp(55))})
    late = {A: dead(1, stamp(70))}
    assert Taken(STORED, element={**HELD, **late}, meta=Meta(greatest=stamp(70))) == take_element(
        OWNER, origin, HELD, Meta(), late)


def test_d60_a_field_that_is_set_must_be_the_one_that_is_shown() -> None:
    origin, meta = of(Source.CLIENT), Meta(greatest=stamp(99))
    mine = {C: live(1, stamp(40, C), b"new")}

    assert Verdict(Fate.NEWER, stamp(50)) == take_element(OWNER, origin, HELD, meta, mine, shown=True).verdict
    assert STORED == take_element(OWNER, origin, HELD, meta, mine).verdict, "of a Set any copy will do"
    later = {C: live(1, stamp(70, C), b"new")}
    assert STORED == take_element(OWNER, origin, HELD, meta, later, shown=True).verdict
    overtaken = {B: live(2, stamp(55, B), b"new")}
    assert Verdict(Fate.NEWER, stamp(60)) == take_element(OWNER, origin, HELD, meta, overtaken, shown=True).verdict


def test_d58_an_add_at_or_below_a_clear_is_refused_and_void_cells_of_others_are_not_stored() -> None:
    meta, row = Meta(stamp(70), stamp(70)), {A: live(4, stamp(70), b"x")}

    assert Taken(Verdict(Fate.BELOW, stamp(70))) == take_element(OWNER, of(Source.CLIENT), {}, meta, row)
    for source in (Source.HINT, Source.BACKUP, Source.OWNER):
        assert Taken(STORED) == take_element(OWNER, of(source), {}, meta, row)
    above = {B: live(1, stamp(71, B))}
    assert Taken(STORED, element=above, meta=Meta(stamp(70), stamp(71, B))) == take_element(
        OWNER, of(Source.OWNER), {}, meta, {**row, **above})


@pytest.mark.parametrize("source", Source)
def test_d58_a_dead_cell_up_to_a_clear_is_not_stored_from_any_source(source: Source) -> None:
    """A remove of what a read found before the clear came; also below a floor."""
    for ms in (5, 70):
        assert Taken(STORED) == take_element(OWNER, of(source), {}, Meta(stamp(70), stamp(70)), {A: dead(4, stamp(ms))})


def test_d58_a_void_cell_hides_no_cell_of_a_lesser_dot() -> None:
    """An owner that has removed the void cell stores the dead one; both must end with the same row."""
    meta, incoming = Meta(stamp(40), stamp(60)), {A: dead(1, stamp(60, B)), B: live(1, stamp(60, B))}
    held = {A: live(2, stamp(35)), C: live(3, stamp(50, C))}
    here = take_element(OWNER, of(Source.OWNER), held, meta, incoming)
    there = take_element(OWNER, of(Source.OWNER), {C: held[C]}, meta, incoming)
    assert here.element == there.element == {**incoming, C: held[C]} and STORED == here.verdict


def test_d58_d62_an_owner_that_removed_what_a_clear_made_void_takes_none_of_it_below_the_floor() -> None:
    meta = Meta(stamp(70), stamp(70))
    assert Taken(STORED) == take_element(OWNER, of(Source.OWNER), {}, meta, {A: live(4, stamp(5))})


def test_d62_of_cells_with_different_verdicts_the_worst_is_told_and_all_that_may_be_stored_is() -> None:
    row = {A: dead(1, stamp(70)), B: dead(9, stamp(25)), C: live(1, stamp(LATEST_MS + 1, C))}

    taken = take_element(OWNER, of(Source.CLIENT), {}, Meta(), row)

    assert Taken(Verdict(Fate.FUTURE), element={A: row[A]}, meta=Meta(greatest=stamp(70))) == taken
    del row[C]
    assert below(PROMISE_MS) == take_element(OWNER, of(Source.CLIENT), {}, Meta(), row).verdict


# --- clears -------------------------------------------------------------------------------------------------


def test_d58_a_clear_is_above_every_element_or_the_client_hears_of_the_newer_one() -> None:
    held, origin = Meta(stamp(40), stamp(80)), of(Source.CLIENT)

    assert Taken(Verdict(Fate.NEWER, stamp(80))) == take_clear(OWNER, origin, held, stamp(79))
    assert Taken(STORED, meta=Meta(stamp(80), stamp(80))) == take_clear(OWNER, origin, held, stamp(80))
    assert Taken(STORED) == take_clear(OWNER, origin, held, stamp(40)), "a repeat"
    assert Taken(Verdict(Fate.NEWER, stamp(40))) == take_clear(OWNER, origin, held, stamp(39))


@pytest.mark.parametrize("source", [Source.HINT, Source.OWNER])
def test_d58_a_clear_that_was_acknowledged_elsewhere_is_stored_with_its_stamp(source: Source) -> None:
    assert Taken(STORED, meta=Meta(stamp(79), stamp(80))) == take_clear(
        OWNER, of(source), Meta(stamp(40), stamp(80)), stamp(79))


@pytest.mark.parametrize("source", EXTERNAL)
def test_d62_an_external_clear_at_or_below_the_promise_is_refused(source: Source) -> None:
    assert Taken(below(PROMISE_MS)) == take_clear(OWNER, of(source), Meta(), stamp(PROMISE_MS))


# --- of all -------------------------------------------------------------------------------------------------

sources = st.sampled_from(Source)
standings = st.builds(
    lambda floor_ms, promise_ms, copying: Standing(
        ME, RANGE._replace(floor_ms=floor_ms), max(floor_ms, promise_ms), copying),
    st.integers(0, 4), st.integers(0, 4), st.booleans())
origins = st.builds(Origin, sources, st.integers(0, 4), st.integers(3, 9))


@given(standings, origins, st.none() | strings, strings)
def test_d60_a_string_that_is_told_as_stored_is_there_or_a_greater_one(
    standing: Standing, origin: Origin, held: StringCell | None, cell: StringCell
) -> None:
    taken = take_string(standing, origin, held, cell)
    now = taken.string or held
    if taken.verdict.fate is Fate.STORED:
        assert now is not None and merge_strings(now, cell) == now
        assert origin.source is not Source.CLIENT or now == cell, "a client hears of nothing but its own cell"
    else:
        assert taken.string is None, "a refusal changes nothing"


@given(standings, origins, elements, metas, elements.filter(bool), st.booleans())
def test_d60_an_element_that_is_told_as_stored_is_there_or_greater_cells(
    standing: Standing, origin: Origin, held: Element, meta: Meta, row: Element, shown: bool
) -> None:
    taken = take_element(standing, origin, held, meta, row, shown=shown)
    now, greatest = taken.element or held, (taken.meta or meta).greatest
    there = {actor: cell for actor, cell in held.items() if cell.stamp > meta.cleared}
    assert merge_elements(now, there) == now, "nothing that was there is lost, but for what is void"
    assert all(cell.stamp <= greatest for actor, cell in now.items() if held.get(actor) != cell)
    if taken.verdict.fate is Fate.STORED:
        lasting = {actor: cell for actor, cell in row.items() if cell.stamp > meta.cleared}
        assert merge_elements(now, lasting) == now
    assert all(cell.stamp > meta.cleared for actor, cell in now.items() if held.get(actor) != cell), "none is void"
