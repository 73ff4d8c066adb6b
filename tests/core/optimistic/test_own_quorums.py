"""Requests with quorums of their own: how many answers they wait for, and what their answer says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import StringCell
from tidemark_core.optimistic.coordinating.operations import (
    Page,
    Steps,
    Value,
    elements,
    get,
    getdel,
    put_element,
    remove_element,
    set_,
)
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import Policy
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.messages import Kept, Load, StoreAnswer, StringWrite
from tidemark_core.optimistic.owner import Fate, Verdict
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun
from tidemark_core.optimistic.stamps import Clock
from tidemark_core.optimistic.writes import put

from .cases import stamp
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D, Owning
from .test_operations import ACTOR, Node

OLD = StringCell(stamp(500), False, 0, b"old")


def outcome_of(node: Node, steps: Steps[Any], **policy: Any) -> Outcome | None:
    """Return the outcome of an operation, None where it waits."""
    answer = node.ask(steps, policy=Policy(**policy))
    return answer.outcome if answer is not None else None


@pytest.mark.parametrize(("reached", "w", "wanted"), [
    ((A,), 1, Outcome.WEAK), ((A,), 0, None), ((A, B), 1, Outcome.WEAK), ((A, B), 2, Outcome.OK),
    ((A, B), 3, None), ((A, B, C), 3, Outcome.OK),
])
def test_d77_a_write_waits_for_as_many_owners_as_it_says(
    reached: tuple[Member, ...], w: int, wanted: Outcome | None
) -> None:
    assert wanted is outcome_of(Node(*reached), set_(KEY, b"x"), w=w)


@pytest.mark.parametrize(("reached", "r", "wanted"), [
    ((A,), 1, Outcome.WEAK), ((A,), 0, None), ((A, B), 2, Outcome.OK), ((A, B), 3, None), ((A, B, C), 3, Outcome.OK),
])
def test_d77_a_read_waits_for_as_many_owners_as_it_says(
    reached: tuple[Member, ...], r: int, wanted: Outcome | None
) -> None:
    assert wanted is outcome_of(Node(*reached), get(KEY, lambda: 1_000), r=r)


def test_d77_a_weak_read_waits_for_no_repair() -> None:
    node = Node(A)
    node.members[A].cell = OLD
    assert Value(Outcome.WEAK, b"old") == node.ask(get(KEY, node.now), policy=Policy(Repair.BLOCKING, r=1))
    assert node.ask(get(KEY, node.now), policy=Policy(Repair.BLOCKING)) is None, "a strict one has too few owners"


def test_d77_a_read_with_the_quorum_of_the_keyspace_waits_for_its_repair() -> None:
    node = Node(A, B)
    node.members[A].cell = OLD
    b = node.members[B]
    node.members[B] = SimpleNamespace(answer=lambda m: b.answer(m) if isinstance(m, Load) else None)  # type: ignore[assignment]
    assert node.ask(get(KEY, node.now), policy=Policy(Repair.BLOCKING, r=2)) is None
    node.members[B] = b
    node.run(node.coordinator.on_tick(node.now_ms))
    assert Value(Outcome.OK, b"old") == node.answers[1] and OLD == b.cell


def test_d77_an_operation_of_several_steps_is_weak_where_one_is() -> None:
    node = Node(A, B)
    node.members[A].cell = node.members[B].cell = OLD
    assert Value(Outcome.WEAK, b"old") == node.ask(getdel(KEY, node.now), policy=Policy(r=1))
    assert Value(Outcome.OK) == node.ask(getdel(KEY, node.now), policy=Policy(w=1)), "there is none to delete"
    node.ask(set_(KEY, b"new"))
    assert Value(Outcome.WEAK, b"new") == node.ask(getdel(KEY, node.now), policy=Policy(w=1))
    node.ask(put_element(KEY, b"e"))
    assert Outcome.OK is outcome_of(node, remove_element(KEY, b"e"), r=1), "its read is strict"
    assert Outcome.WEAK is outcome_of(node, remove_element(KEY, b"e"), w=1)
    assert Page(Outcome.WEAK) == node.ask(elements(KEY, node.now), policy=Policy(r=1))


def test_d77_what_is_unknown_is_not_called_weak() -> None:
    node = Node()
    assert node.ask(set_(KEY, b"x"), policy=Policy(w=1)) is None
    node.run(node.coordinator.on_tick(2_000))
    assert Outcome.UNKNOWN is node.answers[1].outcome


def test_d64_d77_a_quorum_of_a_request_holds_for_both_lists_of_a_move() -> None:
    """A is in both lists, so it is enough for both; C and D are each in one."""
    for reached, wanted in (((A,), Outcome.WEAK), ((C,), None), ((D,), None), ((C, D), Outcome.WEAK)):
        for steps in (set_(KEY, b"x"), get(KEY, lambda: 1_000)):
            node = Node(*reached)
            node.members = {member: Owning(member, MOVING) for member in reached}
            node.records[INDEX] = MOVING
            assert wanted is outcome_of(node, steps, r=1, w=1), (reached, steps)


def test_d77_a_list_with_fewer_members_than_the_request_wants_needs_all_of_them() -> None:
    """N falls from 3 to 2 behind the request, which else would wait for ever."""
    falling = begun(CALM, Owners((A, B), Quorum(2, 2, 2)))
    assert falling.write((A, B, C), 3) and falling.read((A, B, C), 3)
    assert not falling.write((A, C), 3) and not falling.write((A, B), 3)
    assert falling.weak(r=1) and falling.weak(w=1) and not falling.weak(3, 3) and not falling.weak()


def test_d77_a_list_that_asks_for_more_makes_a_request_weak() -> None:
    rising = Range(7, CALM.own, Owners((A, B, C, D), Quorum(4, 3, 3)))
    assert not CALM.weak(2, 2) and rising.weak(r=2) and rising.weak(w=2)


def test_d73_d77_a_sloppy_write_lacks_as_many_as_the_request_says() -> None:
    for w, needed in ((0, 2), (1, 1), (3, 3)):
        write = Write(5, INDEX, CALM, Clock(ACTOR, SKEW_MS), lambda dot: StringWrite(KEY, put(dot, b"x")),
                      nodes=(D, Member("e", "e1"), Member("f", "f1")), w=w)
        write.begin(1_000)
        write.resend()
        asked = [each.member for each in write.resend()[3:]]
        assert needed == len(asked)
        ends = [end for node in asked for end in write.on_kept(node, Kept(INDEX, 5, 1))]
        assert [Outcome.SLOPPY] == [end.outcome for end in ends if isinstance(end, Done)]


def test_d77_a_write_of_given_stamps_ends_when_too_few_owners_are_left_for_the_request() -> None:
    for w, refusals in ((1, 3), (0, 2), (3, 1)):
        write = Write(5, INDEX, CALM, Clock(ACTOR, SKEW_MS), lambda dot: StringWrite(KEY, put(dot, b"x")),
                      fixed=True, w=w)
        write.begin(1_000)
        below = StoreAnswer(INDEX, 7, 10, 5, 1, Verdict(Fate.BELOW, stamp(2_000)))
        ends = [len(list(write.on_answer(1_000, member, below))) for member in (A, B, C)[:refusals]]
        assert [0] * (refusals - 1) + [1] == ends
