"""Writes at their coordinator, against members that store by the rules of owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Place, Sort, StringCell
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.writing import Done, Effect, Write
from tidemark_core.optimistic.messages import RowsWrite, Store, StoreAnswer, StringWrite
from tidemark_core.optimistic.owner import Fate, Source, Verdict
from tidemark_core.optimistic.ring import Range, finished
from tidemark_core.optimistic.stamps import Actor, Clock, Dot
from tidemark_core.optimistic.writes import delete, put

from .cases import stamp
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D, Owning, owners


def a_write(
    make: Callable[[Dot], StringCell] = lambda dot: put(dot, b"new"), record: Range = CALM, node: str = "a"
) -> Write:
    clock = Clock(Actor(node, node.encode() * 8), SKEW_MS)
    return Write(5, INDEX, record, clock, lambda dot: StringWrite(KEY, make(dot)))


def run(write: Write, members: dict[Member, Owning], effects: Sequence[Effect], now_ms: int = 1_000) -> Done | None:
    """Deliver every message and answer in order, until none is left."""
    waiting = list(effects)
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, To) and effect.member in members:
            answer = members[effect.member].answer(effect.message)
            if isinstance(answer, StoreAnswer):
                waiting += write.on_answer(now_ms, effect.member, answer)
    return write.done


def outcome_of(write: Write, members: dict[Member, Owning]) -> Outcome:
    """Run a write that ends."""
    done = run(write, members, write.begin(1_000))
    assert done is not None
    return done.outcome


def test_d60_a_write_is_done_once_a_write_quorum_has_stored_it() -> None:
    write, members = a_write(), owners(A, B)
    done = run(write, members, write.begin(1_000))

    assert done == Done(Outcome.OK, stamp(1_000)._replace(start=b"a" * 8), (A, B))
    assert members[A].cell == members[B].cell == put(Dot(1, done.stamp), b"new")


def test_d60_a_coordinator_with_a_slow_clock_sends_again_above_what_it_did_not_know() -> None:
    """An acknowledged delete lies ahead of its clock; both count for nothing until the write is the greatest."""
    write, members = a_write(), owners(A, B, C)
    gone = delete(Dot(1, stamp(1_050)))
    members[A].cell = members[B].cell = gone
    done = run(write, members, write.begin(1_000))

    assert done is not None and done.outcome is Outcome.OK and done.stamp > gone.stamp
    assert b"new" == members[A].cell.value  # type: ignore[union-attr]


def test_d54_a_write_that_meets_a_stamp_from_the_future_leaves_other_keys_alone() -> None:
    """The attempt above it is refused; the next write of the node has a stamp that owners take."""
    clock, members = Clock(Actor("a", b"a" * 8), SKEW_MS), owners(A, B, C)
    for member in members.values():
        member.cell = put(Dot(1, stamp(9_000)), b"ahead")

    def write(key: bytes) -> Write:
        return Write(5, INDEX, CALM, clock, lambda dot: StringWrite(key, put(dot, b"new")))

    hidden = write(KEY)
    assert run(hidden, members, hidden.begin(1_000)) is None
    assert [Outcome.UNKNOWN] == [done.outcome for done in hidden.on_deadline()]

    other = write(b"other")
    done = run(other, members, other.begin(1_000))
    assert done is not None and (Outcome.OK, 1_000) == (done.outcome, done.stamp.ms)


def test_d60_an_answer_to_an_earlier_attempt_counts_for_nothing() -> None:
    write = a_write()
    [first, *_] = write.begin(1_000)
    assert isinstance(first, To) and isinstance(first.message, Store)
    newer = StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.NEWER, stamp(1_050)))
    again = write.on_answer(1_000, A, newer)

    assert [2, 2, 2] == [
        each.message.attempt for each in again if isinstance(each, To) and isinstance(each.message, Store)]
    assert [] == write.on_answer(1_000, B, StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.STORED)))
    assert [] == write.on_answer(1_000, C, StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.STORED)))
    assert write.done is None
    assert [] == write.on_answer(1_000, B, StoreAnswer(INDEX, 7, 10, 5, 2, Verdict(Fate.STORED)))
    assert [Done] == [type(each) for each in write.on_answer(1_000, C, StoreAnswer(
        INDEX, 7, 10, 5, 2, Verdict(Fate.STORED)))]


def test_d60_below_the_floor_or_the_promise_the_write_is_sent_again_above_it() -> None:
    write, members = a_write(), owners(A, B, C)
    for member in members.values():
        member.standing = member.standing._replace(promise_ms=1_080)
    done = run(write, members, write.begin(1_000))

    assert done is not None and (Outcome.OK, 1_081) == (done.outcome, done.stamp.ms)


def test_d64_d65_a_write_that_meets_a_newer_record_goes_on_under_it_and_counts_from_none() -> None:
    write, members = a_write(), owners(A, B, C)
    members[D] = Owning(D, MOVING)
    members[B].standing = members[B].standing._replace(record=MOVING)
    done = run(write, members, write.begin(1_000))

    assert done is not None and done.outcome is Outcome.OK
    assert MOVING == write.record and MOVING.write(done.stored)
    assert {8} == {members[member].standing.record.version for member in done.stored}


def test_d65_a_member_with_an_older_record_is_given_ours_first() -> None:
    write, members = a_write(record=MOVING), owners(A, B, C)
    members[D] = Owning(D, MOVING)
    done = run(write, members, write.begin(1_000))

    assert done is not None and done.outcome is Outcome.OK
    assert MOVING == members[A].standing.record


def test_d76_a_write_that_too_few_have_answered_is_unknown_and_stays_where_it_is() -> None:
    write, members = a_write(), owners(A)
    assert run(write, members, write.begin(1_000)) is None
    assert [B, C] == [each.member for each in write.resend()]

    [done] = write.on_deadline()
    assert isinstance(done, Done) and (Outcome.UNKNOWN, (A,)) == (done.outcome, done.stored)
    assert members[A].cell is not None
    late = StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.STORED))
    assert [] == write.on_answer(1_000, B, late) == write.on_deadline() == write.resend()


def test_d76_members_are_asked_again_less_often_the_longer_they_are_silent() -> None:
    write = a_write()
    write.begin(1_000)
    assert [1, 2, 4, 8, 16, 24] == [tick for tick in range(1, 30) if write.resend()]


@pytest.mark.parametrize(("rows", "ticks"), [(1, [1, 2, 4, 8, 16, 24]), (2, [4, 8, 16])])
def test_d76_many_rows_are_sent_again_later_than_one(rows: int, ticks: list[int]) -> None:
    clock = Clock(Actor("a", b"a" * 8), SKEW_MS)
    write = Write(5, INDEX, CALM, clock, lambda dot: RowsWrite(tuple(
        (Place(Sort.STRING, bytes([number])), put(dot, b"new")) for number in range(rows))))
    write.begin(1_000)
    assert ticks == [tick for tick in range(1, 30) if write.resend()]


def test_d54_d76_a_coordinator_whose_clock_is_ahead_hears_that_nothing_was_stored() -> None:
    write, members = a_write(), owners(A, B, C)
    done = run(write, members, write.begin(1_000 + SKEW_MS + 1), 1_000 + SKEW_MS + 1)

    assert done is not None and (Outcome.FUTURE, ()) == (done.outcome, done.stored)
    assert {None} == {member.cell for member in members.values()}


def test_d54_d76_what_one_owner_may_have_stored_is_not_called_refused() -> None:
    write, members = a_write(), owners(A, B, C)
    members[A].now_ms += 1_000
    assert run(write, members, write.begin(1_000 + SKEW_MS + 1), 1_000 + SKEW_MS + 1) is None

    assert Outcome.UNKNOWN is write.on_deadline()[0].outcome
    assert members[A].cell is not None


def test_d54_d76_what_an_earlier_attempt_may_have_stored_is_not_called_refused() -> None:
    write = a_write()
    write.begin(1_000)
    write.on_answer(1_000, B, StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.NEWER, stamp(9_000))))
    for member in (A, B, C):
        assert [] == write.on_answer(1_000, member, StoreAnswer(INDEX, 7, 10, 5, 2, Verdict(Fate.FUTURE)))

    assert Outcome.UNKNOWN is write.on_deadline()[0].outcome


def test_d65_an_older_record_changes_nothing() -> None:
    write = a_write(record=MOVING)
    sent = write.begin(1_000)

    assert [] == write.on_record(CALM) == write.on_record(MOVING)
    assert MOVING == write.record and sent == write.resend()


# --- any order of anything ----------------------------------------------------------------------------------

RECORDS = [CALM, MOVING, finished(MOVING)]


@settings(max_examples=150)
@given(st.data())
def test_d60_d64_an_acknowledged_write_is_the_greatest_on_a_write_quorum_when_it_is_acknowledged(
    data: st.DataObject
) -> None:
    """Two coordinators write at once while a move runs: messages are lost, late and doubled."""
    members = {member: Owning(member, data.draw(st.sampled_from(RECORDS)), 1_000) for member in (A, B, C, D)}
    writes = [a_write(lambda dot: put(dot, b"one"), data.draw(st.sampled_from(RECORDS)), "a"),
              a_write(delete, data.draw(st.sampled_from(RECORDS)), "b")]
    flying: list[tuple[Write, Member, Any]] = []
    acknowledged: list[Done] = []

    def fly(write: Write, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Done):
                acknowledged.append(effect)
                holders = [member for member, owning in members.items() if owning.cell is not None
                           and owning.cell.stamp >= effect.stamp]
                assert effect.outcome is not Outcome.OK or write.record.write(holders)
            else:
                flying.append((write, effect.member, effect.message))

    for write in writes:
        fly(write, write.begin(data.draw(st.integers(995, 1_005))))
    for _ in range(data.draw(st.integers(0, 60))):
        if not flying:
            break
        write, member, message = flying[data.draw(st.integers(0, len(flying) - 1))]
        if data.draw(st.integers(0, 9)):    # else it comes once more
            flying.remove((write, member, message))
        if isinstance(message, StoreAnswer):
            fly(write, write.on_answer(1_000, member, message))
        elif data.draw(st.integers(0, 9)):  # else it is lost
            answer = members[member].answer(message)
            if answer is not None:
                flying.append((write, member, answer))
    for write in writes:
        fly(write, write.on_deadline())
    assert 2 == len(acknowledged)


def test_d60_d73_given_stamps_are_not_drawn_again() -> None:
    """A hint was acknowledged with its stamp; what the floor refuses at too many members will never be stored."""
    cell = StringCell(stamp(900), False, 0, b"x")
    write, members = a_hint(cell), owners(A, B, C)
    members[A].standing = members[A].standing._replace(promise_ms=950)
    assert Outcome.OK is outcome_of(write, members)
    assert [None, cell, cell] == [members[member].cell for member in (A, B, C)]

    write = a_hint(cell)
    for member in members.values():
        member.standing = member.standing._replace(promise_ms=950)
    members[D] = Owning(D)
    assert Outcome.OK is outcome_of(write, members), "two hold it"
    members[B] = Owning(B)
    members[B].standing = members[A].standing
    write = a_hint(cell)
    assert Outcome.BELOW is outcome_of(write, members)
    assert [] == write.resend()


def a_hint(cell: StringCell) -> Write:
    return Write(6, INDEX, CALM, Clock(Actor("d", b"d" * 8), SKEW_MS), lambda _: StringWrite(KEY, cell),
                 source=Source.HINT, fixed=True)


@pytest.mark.parametrize("fate", [Fate.NOT_OWNER, Fate.DROPPED])
def test_d62_a_member_that_takes_no_part_is_no_acknowledgement(fate: Fate) -> None:
    write = a_write()
    write.begin(1_000)

    assert [] == write.on_answer(1_000, A, StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(fate)))
    assert write.done is None
