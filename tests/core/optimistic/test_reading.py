"""Reads at their coordinator, against members that answer by the rules of owners."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Meta, Place, Sort, StringCell
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.reading import Effect, Found, Read, Repair
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.merge import string_of, value_of
from tidemark_core.optimistic.messages import (
    ClearWrite,
    ElementWrite,
    Load,
    LoadAnswer,
    Span,
    Store,
    StoreAnswer,
    StringWrite,
)
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.stamps import Actor, Clock
from tidemark_core.optimistic.storing import of_element, of_string
from tidemark_core.optimistic.writes import put, remove

from .cases import A as ACTOR
from .cases import B as OTHER
from .cases import dead, live, stamp
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D, Owning, owners

AT = Place(Sort.STRING, KEY)
OLD, NEW = (StringCell(stamp(ms), False, 0, value) for ms, value in ((500, b"old"), (600, b"new")))


def a_read(record: Range = CALM, order: tuple[Member, ...] = (A, B, C), **options: Any) -> Read:
    options = {"places": of_string(KEY), "clock": Clock(ACTOR, SKEW_MS), **options}
    clock, places = options.pop("clock"), options.pop("places")
    return Read(5, INDEX, record, clock, places, me=A, order=order, **options)


def run(operation: Read | Write, members: dict[Member, Owning], effects: list[Any], now_ms: int = 1_000) -> Any:
    """Deliver every message and answer in order, until none is left."""
    waiting = list(effects)
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, To) and effect.member in members:
            answer = members[effect.member].answer(effect.message)
            if answer is not None:
                waiting += give(operation, effect.member, answer, now_ms)
    return operation.done


def give(operation: Read | Write, sender: Member, answer: LoadAnswer | StoreAnswer, now_ms: int = 1_000) -> list[Any]:
    if isinstance(operation, Write):
        return list(operation.on_answer(now_ms, sender, answer)) if isinstance(answer, StoreAnswer) else []
    heard = operation.on_loaded(now_ms, sender, answer) if isinstance(answer, LoadAnswer) else operation.on_stored(
        sender, answer)
    return list(heard)


def asked(effects: list[Effect], kind: type = Load) -> list[Member]:
    return [each.member for each in effects if isinstance(each, To) and isinstance(each.message, kind)]


# --- strings ------------------------------------------------------------------------------------------------


def test_d64_a_read_asks_the_nearest_members_that_are_enough_and_the_others_when_it_takes_long() -> None:
    read = a_read(order=(C, A, B))
    assert [C, A] == asked(read.begin())
    assert [C, A, B] == asked(read.resend())
    assert [C, D, A] == asked(a_read(MOVING, (C, D, A)).begin()), "a quorum of both lists"


def test_d64_a_read_answers_the_merge_of_what_enough_members_hold() -> None:
    members = owners(A, B, C)
    members[A].cell, members[B].cell = OLD, NEW
    found = run(read := a_read(), members, read.begin())

    assert (Outcome.OK, {AT: NEW}, (A, B)) == (found.outcome, found.rows, found.read_from)


def test_d75_a_blocking_read_answers_once_a_write_quorum_holds_what_it_found() -> None:
    members = owners(A, B)
    members[A].cell, members[B].cell = OLD, NEW
    read = a_read()
    read.begin()
    effects = [*give(read, A, load(members[A], read)), *give(read, B, load(members[B], read))]
    assert read.done is None and [A, C] == asked(effects, Store)
    found = run(read, members, effects)

    assert {AT: NEW} == found.rows and NEW == members[A].cell and A in found.given


def load(member: Owning, read: Read) -> LoadAnswer:
    """The answer of a member to the read's newest attempt."""
    [message] = [each.message for each in read.resend() if isinstance(each, To) and each.member == member.standing.me]
    assert isinstance(message, Load)
    answer = member.answer(message)
    assert isinstance(answer, LoadAnswer)
    return answer


def test_d75_a_blocking_read_of_what_a_write_quorum_holds_stores_nothing() -> None:
    members = owners(A, B, C)
    members[A].cell = members[B].cell = NEW
    read = a_read()
    sent = [effect for member in (A, B) for effect in give(read, member, load(members[member], read))]

    assert [Found] == [type(each) for each in sent] and read.done is not None and () == read.done.given


def test_d75_a_blocking_read_by_fewer_than_a_write_needs_stores_what_it_found() -> None:
    """R is 1 and W is 3: the member that answered may be the only one that holds it."""
    record = CALM._replace(own=CALM.own._replace(quorum=CALM.own.quorum._replace(r=1, w=3)))
    members = owners(A, B, C, record=record)
    members[A].cell = NEW
    read = a_read(record)
    assert {AT: NEW} == run(read, members, read.begin()).rows
    assert {NEW} == {member.cell for member in members.values()}


@pytest.mark.parametrize(("repair", "given"), [(Repair.OFF, ()), (Repair.LOCAL, (A,)), (Repair.ASYNC, (A, C))])
def test_d75_a_read_that_does_not_wait_repairs_behind_its_answer(repair: Repair, given: tuple[Member, ...]) -> None:
    members = owners(A, B, C)
    members[A].cell, members[B].cell = OLD, NEW
    read = a_read(repair=repair)
    read.begin()
    effects = [effect for member in (A, C, B) if read.done is None
               for effect in (give(read, member, load(members[member], read)))]
    if repair is Repair.ASYNC:
        assert read.done is not None and read.done.outcome is Outcome.OK
        effects = [each for each in effects if isinstance(each, To)]
    assert read.done is not None
    stores = asked(effects, Store)
    assert set(stores) <= set(given) and stores == list(read.done.given)


def test_d65_a_read_that_meets_a_newer_record_starts_over_under_it() -> None:
    members = owners(A, B, C)
    members[C].standing = members[C].standing._replace(record=MOVING)
    members[D] = Owning(D, MOVING)
    members[D].cell = NEW
    found = run(read := a_read(order=(C, D, A)), members, read.begin())

    assert MOVING == read.record and {AT: NEW} == found.rows
    assert MOVING.read(found.read_from) and MOVING == members[A].standing.record


def test_d72_of_unequal_floors_the_highest_counts_and_an_old_disk_takes_no_part() -> None:
    """A member came back with an old disk: what was deleted and collected meanwhile lives on there."""
    members = owners(A, B, C, record=CALM._replace(floor_ms=700))
    members[A] = Owning(A, CALM)
    members[A].cell = OLD
    found = run(read := a_read(), members, read.begin())

    assert ({}, 700, (B, C)) == (found.rows, found.floor_ms, found.read_from)
    assert members[A].standing.withdrawn


def test_d72_a_member_that_promised_adopts_the_floor_and_answers_again() -> None:
    members = owners(A, B, record=CALM._replace(floor_ms=700))
    members[A] = Owning(A, CALM)
    members[A].standing = members[A].standing._replace(promise_ms=700)
    members[A].cell = StringCell(stamp(600), True, 0, b"")
    found = run(read := a_read(), members, read.begin())

    assert ({}, 700, {A, B}) == (found.rows, found.floor_ms, set(found.read_from))


def test_d72_a_coordinator_that_knows_the_higher_floor_counts_no_answer_below_it() -> None:
    members = owners(A, B, C)
    for member in members.values():
        member.standing = member.standing._replace(promise_ms=700)
    found = run(read := a_read(CALM._replace(floor_ms=700)), members, read.begin())

    assert 700 == found.floor_ms == members[A].standing.record.floor_ms


def test_d75_a_read_without_enough_answers_ends_without_any() -> None:
    members = owners(A)
    members[A].cell = NEW
    read = a_read()
    assert run(read, members, read.begin()) is None
    [found] = read.on_deadline()

    assert Found(Outcome.UNKNOWN, {}, None, 10, (A,), ()) == found
    assert [] == read.on_deadline() == read.resend() == read.on_loaded(1_000, B, load_of(NEW))


def test_d75_what_cannot_be_stored_is_not_answered() -> None:
    read = a_read()
    read.begin()
    read.on_loaded(1_000, A, load_of(NEW))
    read.on_loaded(1_000, B, load_of(OLD))

    assert Outcome.UNKNOWN is read.on_deadline()[0].outcome


def load_of(cell: StringCell) -> LoadAnswer:
    return LoadAnswer(INDEX, 7, 10, 5, 1, ((AT, cell),))


def test_d65_a_late_answer_to_an_earlier_attempt_counts_for_nothing() -> None:
    read = a_read()
    read.begin()
    read.on_record(CALM._replace(floor_ms=20))

    assert [] == read.on_loaded(1_000, A, load_of(NEW)) == read.on_loaded(1_000, B, load_of(NEW)) and read.done is None


# --- elements -----------------------------------------------------------------------------------------------


def test_d57_a_remove_of_what_a_read_found_has_a_stamp_above_all_of_it() -> None:
    """The coordinator's clock is behind those of the actors that added it."""
    clock, members = Clock(ACTOR, SKEW_MS), owners(A, B, C)
    for member, row in ((A, {OTHER: live(1, stamp(990, OTHER))}), (B, {}), (C, {OTHER: live(1, stamp(990, OTHER))})):
        if row:
            members[member].holds(b"e", row)
    found = run(read := a_read(clock=clock, places=of_element(KEY, b"e")), members, read.begin())
    row = found.rows[Place(Sort.ELEMENT, KEY, b"e")]
    write = Write(6, INDEX, CALM, clock, lambda dot: ElementWrite(KEY, b"e", remove(dot.stamp, row)))
    done = run(write, members, write.begin(900), 900)

    assert done.outcome is Outcome.OK and done.stamp > stamp(990, OTHER)
    row = members[A].rows[Place(Sort.ELEMENT, KEY, b"e")]
    assert isinstance(row, dict) and value_of(row, stamp(1), 1_000) is None


def test_d57_a_remove_of_what_is_dead_already_waits_for_a_write_quorum() -> None:
    """The earlier remove is on one owner alone; a read of the two others would show the element."""
    members = owners(A, B, C)
    members[A].holds(b"e", {OTHER: dead(1, stamp(600))})
    for member in (B, C):
        members[member].holds(b"e", {OTHER: live(1, stamp(500, OTHER))})
    clock = Clock(ACTOR, SKEW_MS)
    found = run(read := a_read(clock=clock, places=of_element(KEY, b"e"), repair=Repair.OFF), members, read.begin())
    row = found.rows[Place(Sort.ELEMENT, KEY, b"e")]
    write = Write(6, INDEX, CALM, clock, lambda dot: ElementWrite(KEY, b"e", remove(dot.stamp, row)))
    assert run(write, {A: members[A]}, write.begin(1_000)) is None
    run(write, members, write.resend())

    again = run(later := a_read(places=of_element(KEY, b"e"), order=(B, C, A)), members, later.begin())
    assert value_of(again.rows[Place(Sort.ELEMENT, KEY, b"e")], stamp(1), 1_000) is None


def test_d58_d75_a_clear_that_one_member_missed_is_repaired() -> None:
    members = owners(A, B, C)
    for member in members.values():
        member.holds(b"e", {OTHER: live(1, stamp(500, OTHER))})
    clock = Clock(ACTOR, SKEW_MS)
    write = Write(6, INDEX, CALM, clock, lambda dot: ClearWrite(KEY, dot.stamp))
    run(write, {A: members[A], C: members[C]}, write.begin(1_000))
    read = a_read(places=of_element(KEY, b"e"), repair=Repair.ASYNC)
    members.pop(C)
    found = run(read, members, effects := read.begin())

    meta = found.rows[Place(Sort.META, KEY)]
    assert effects and isinstance(meta, Meta)
    assert Place(Sort.ELEMENT, KEY, b"e") not in found.rows
    assert (B,) == found.given


# --- pages --------------------------------------------------------------------------------------------------

ELEMENTS = [bytes([letter]) for letter in b"abcdefgh"]
FIRST, END = Place(Sort.ELEMENT, KEY), Place(Sort.ELEMENT, KEY + b"\0")


@given(st.lists(st.sets(st.sampled_from(ELEMENTS)), min_size=3, max_size=3), st.data())
def test_d64_pages_skip_no_element_that_enough_members_hold(held: list[set[bytes]], data: st.DataObject) -> None:
    """Members hold different elements and end their pages at different places; a move begins meanwhile."""
    members = owners(A, B, C)
    members[D] = Owning(D, CALM)
    for member, elements in zip((A, B, C), held, strict=True):
        for element in elements:
            members[member].holds(element, {ACTOR: live(1, stamp(500))})
    for element in held[1] & held[0] & held[2]:
        members[D].holds(element, {ACTOR: live(1, stamp(500))})
    seen: list[bytes] = []
    at: Place | None = FIRST
    while at is not None:
        record = data.draw(st.sampled_from([CALM, MOVING]))
        order = data.draw(st.permutations([A, B, C, D]))
        read = a_read(record, tuple(order), places=(), span=Span(at, END, data.draw(st.integers(1, 3))))
        found = run(read, members, read.begin())
        assert found.outcome is Outcome.OK and (found.behind is None or found.behind > at)
        seen += [place.element for place in sorted(found.rows) if place.sort is Sort.ELEMENT]
        at = found.behind
    everywhere = [element for element in ELEMENTS if sum(element in elements for elements in held) >= 2]
    assert sorted(set(seen)) == seen and set(everywhere) <= set(seen)


# --- any order of anything ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_d64_d75_a_read_shows_every_write_and_every_read_before_it(data: st.DataObject) -> None:
    """Writes and reads follow each other while a move begins: messages are lost, late and doubled."""
    records = [CALM, MOVING]
    members = {member: Owning(member, data.draw(st.sampled_from(records)), 1_000) for member in (A, B, C, D)}
    flying: list[tuple[Read | Write, Member, Any]] = []
    after: dict[int, Any] = {}     # of a read: the greatest stamp that was answered before it began
    answered: list[Any] = [stamp(0)]

    def fly(operation: Read | Write, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, To):
                flying.append((operation, effect.member, effect.message))
            elif isinstance(effect, Done) and effect.outcome is Outcome.OK:
                answered.append(effect.stamp)
            elif isinstance(effect, Found) and effect.outcome is Outcome.OK:
                cell = effect.rows.get(AT)
                assert cell is None or isinstance(cell, StringCell)
                shown = stamp(0) if cell is None else cell.stamp
                assert shown >= after[id(operation)]
                answered.append(shown)

    started: list[Read | Write] = []
    for number in range(data.draw(st.integers(2, 5))):
        record = data.draw(st.sampled_from(records))
        clock = Clock(Actor("a", bytes([number]) * 8), SKEW_MS)
        operation: Read | Write
        if data.draw(st.booleans()):
            operation = Write(number, INDEX, record, clock, lambda dot: StringWrite(KEY, put(dot, b"x")))
            begin = operation.begin(data.draw(st.integers(995, 1_005)))
        else:
            operation = Read(number, INDEX, record, clock, of_string(KEY), me=A,
                             order=data.draw(st.permutations([A, B, C, D])))
            after[id(operation)] = max(answered)
            begin = operation.begin()
        started.append(operation)
        fly(operation, list(begin))
        for _ in range(data.draw(st.integers(0, 25))):
            if not flying:
                break
            source, member, message = flying[data.draw(st.integers(0, len(flying) - 1))]
            if data.draw(st.integers(0, 9)):    # else it comes once more
                flying.remove((source, member, message))
            if isinstance(message, StoreAnswer | LoadAnswer):
                fly(source, give(source, member, message))
            elif data.draw(st.integers(0, 9)):  # else it is lost
                answer = members[member].answer(message)
                if answer is not None:
                    flying.append((source, member, answer))
    for operation in started:
        fly(operation, list(operation.on_deadline()))
    assert all(operation.done for operation in started)


def test_d59_a_read_says_the_floor_by_which_its_rows_are_shown() -> None:
    members = owners(A, B, C, record=CALM._replace(floor_ms=400))
    for member in members.values():
        member.cell = StringCell(stamp(500), False, 300, b"x")
    found = run(read := a_read(), members, read.begin())

    cell = found.rows[AT]
    assert isinstance(cell, StringCell)
    assert string_of(cell, 200, found.floor_ms) is None and b"x" == string_of(cell, 200)
