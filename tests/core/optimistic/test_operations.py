"""Operations of clients, through a coordinator and members that answer by the rules of owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Place, Sort, StringCell
from tidemark_core.optimistic.coordinating.operations import (
    Page,
    Steps,
    Value,
    clear,
    elements,
    get,
    get_element,
    getdel,
    put_element,
    remove_element,
    set_,
    set_many,
    strings,
    unset,
)
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import Answer, Asked, Coordinator, Hold, Policy
from tidemark_core.optimistic.coordinating.writing import Done
from tidemark_core.optimistic.messages import Load, LoadAnswer, Store, StoreAnswer
from tidemark_core.optimistic.ring import Owners, Quorum
from tidemark_core.optimistic.stamps import Actor, Clock, Dot
from tidemark_core.optimistic.writes import put

from .cases import dead, live, stamp
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D, Owning, owners

ACTOR = Actor("a", b"a" * 8)
NONE = Value(Outcome.OK)


class Node:
    """A coordinator at member A, with the members that it reaches."""

    def __init__(self, *reached: Member, me: Member = A, actor: Actor = ACTOR) -> None:
        self.members = owners(*reached)
        self.me = me
        self.now_ms = 1_000
        self.records = {INDEX: CALM}
        self.coordinator = Coordinator(me, Clock(actor, SKEW_MS), self.records)
        self.coordinator.nearest = reached
        self.answers: dict[int, Any] = {}
        self.lost: list[tuple[Member, Any]] = []

    def now(self) -> int:
        return self.now_ms

    def ask(self, steps: Steps[Any], **options: Any) -> Any:
        """Run an operation until nothing is under way; None when it waits."""
        request = len(self.answers) + 1
        self.answers[request] = None
        asked = Asked(request, INDEX, self.now_ms + 1_000, **options)
        self.run(self.coordinator.begin(self.now_ms, asked, steps))
        return self.answers[request]

    def run(self, effects: list[Any]) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            match effect:
                case To(member, message):
                    answer = self.members[member].answer(message) if member in self.members else None
                    if answer is not None:
                        waiting += self.coordinator.on_answer(self.now_ms, member, answer)
                case Hold(number, _, places):
                    held = self.members[self.me].rows if self.me in self.members else {}
                    found = {place: held[place] for place in places if place in held}
                    waiting += self.coordinator.on_held(self.now_ms, number, found)
                case Answer(request, value):
                    self.answers[request] = value


@pytest.fixture
def node() -> Node:
    return Node(A, B, C)


def test_d60_a_string_is_set_read_and_deleted(node: Node) -> None:
    assert NONE == node.ask(get(KEY, node.now))
    done = node.ask(set_(KEY, b"one"))
    assert isinstance(done, Done) and Outcome.OK is done.outcome
    assert Value(Outcome.OK, b"one") == node.ask(get(KEY, node.now))
    assert Value(Outcome.OK, b"one") == node.ask(getdel(KEY, node.now))
    assert NONE == node.ask(get(KEY, node.now)) == node.ask(getdel(KEY, node.now))
    node.ask(set_(KEY, b"two"))
    node.ask(unset(KEY))
    assert NONE == node.ask(get(KEY, node.now))
    assert node.coordinator.idle


def test_d60_many_strings_are_one_write_and_all_get_the_stamp_that_one_of_them_needs(node: Node) -> None:
    other = KEY + b"z"
    for member in node.members.values():
        member.rows[Place(Sort.STRING, other)] = StringCell(stamp(1_050), False, 0, b"newer")
    done = node.ask(set_many([(KEY, b"one", 0), (other, b"two", 0)]))
    assert Outcome.OK is done.outcome and done.stamp > stamp(1_050)
    assert {done.stamp} == {node.members[A].rows[Place(Sort.STRING, key)].stamp for key in (KEY, other)}
    assert [Value(Outcome.OK, b"one"), Value(Outcome.OK, b"two")] == [
        node.ask(get(key, node.now)) for key in (KEY, other)]


def test_d59_a_string_is_there_until_its_time(node: Node) -> None:
    node.ask(set_(KEY, b"one", 1_500))
    assert b"one" == node.ask(get(KEY, node.now)).value
    node.now_ms = 1_500
    assert NONE == node.ask(get(KEY, node.now)) == node.ask(getdel(KEY, node.now))


def test_d57_elements_are_added_read_and_removed(node: Node) -> None:
    for element in (b"b", b"a", b"c"):
        node.ask(put_element(KEY, element, element * 2, shown=True))
    assert Value(Outcome.OK, b"aa") == node.ask(get_element(KEY, b"a", node.now))
    node.ask(remove_element(KEY, b"b"))
    assert NONE == node.ask(get_element(KEY, b"b", node.now))
    assert Page(Outcome.OK, ((b"a", b"aa"), (b"c", b"cc"))) == node.ask(elements(KEY, node.now))
    node.ask(clear(KEY))
    assert Page(Outcome.OK) == node.ask(elements(KEY, node.now))
    node.ask(put_element(KEY, b"b"))
    assert Page(Outcome.OK, ((b"b", b""),)) == node.ask(elements(KEY, node.now))


def test_d57_an_add_by_an_owner_replaces_what_it_holds_of_others(node: Node) -> None:
    other = Node(B, C, A, me=B, actor=Actor("b", b"b" * 8))
    other.members = node.members
    other.ask(put_element(KEY, b"e", b"theirs"))
    node.now_ms = 1_010
    node.ask(put_element(KEY, b"e", b"ours", shown=True))
    row = node.members[C].rows[Place(Sort.ELEMENT, KEY, b"e")]
    assert isinstance(row, dict)
    assert {Actor("b", b"b" * 8): True, ACTOR: False} == {actor: cell.dead for actor, cell in row.items()}


def test_d54_what_has_a_stamp_from_the_future_is_read_and_leaves_other_keys_alone(node: Node) -> None:
    """An owner refuses to remove it; what the node draws for other keys has the time of its clock."""
    for member in node.members.values():
        member.cell = put(Dot(1, stamp(9_000)), b"ahead")
        member.holds(b"e", {ACTOR: live(1, stamp(9_001), b"ahead")})
    assert Value(Outcome.OK, b"ahead") == node.ask(get(KEY, node.now)) == node.ask(get_element(KEY, b"e", node.now))
    assert Outcome.FUTURE is node.ask(remove_element(KEY, b"e")).outcome

    done = node.ask(set_(b"other", b"new"))
    assert (Outcome.OK, 1_000) == (done.outcome, done.stamp.ms)


def test_d57_a_remove_whose_stamps_the_floor_passed_reads_again(node: Node) -> None:
    """The floor rises between its read and its write."""
    node.ask(put_element(KEY, b"e"))

    def raised() -> Iterator[Any]:
        for member in node.members.values():
            member.standing = member.standing._replace(promise_ms=1_050)
        yield

    steps = remove_element(KEY, b"e")
    effects = node.coordinator.begin(node.now_ms, Asked(90, INDEX, 5_000), steps)
    loads = [effect for effect in effects if isinstance(effect, To) and isinstance(effect.message, Load)]
    answers = [(load.member, node.members[load.member].answer(load.message)) for load in loads]
    next(raised())
    later: list[Any] = []
    for member, answer in answers:
        assert isinstance(answer, LoadAnswer)
        later += node.coordinator.on_answer(node.now_ms, member, answer)
    node.run(later)
    assert Outcome.OK is node.answers[90].outcome and node.answers[90].stamp.ms > 1_050
    assert NONE == node.ask(get_element(KEY, b"e", node.now))


def test_d57_a_remove_of_what_is_dead_below_a_promise_ends(node: Node) -> None:
    """One owner has the tombstone of an earlier remove, and all have promised beyond it; the round was given up."""
    other = Actor("b", b"b" * 8)
    node.members[B].holds(b"e", {other: dead(1, stamp(600))})
    for member in (A, C):
        node.members[member].holds(b"e", {other: live(1, stamp(500, other))})
    for owning in node.members.values():
        owning.standing = owning.standing._replace(promise_ms=1_050)
    assert Outcome.OK is node.ask(remove_element(KEY, b"e"), policy=Policy(Repair.OFF)).outcome
    node.coordinator.nearest = (A, C)
    assert NONE == node.ask(get_element(KEY, b"e", node.now))


def test_d60_a_late_answer_to_the_step_before_is_no_acknowledgement() -> None:
    """A read repairs with the same member that its write then asks: both answers are STORED."""
    node = Node(A, B)
    old = StringCell(stamp(500), False, 0, b"old")
    node.members[A].cell = old
    sent = node.coordinator.begin(node.now_ms, Asked(1, INDEX, 5_000), getdel(KEY, node.now))
    stores = []
    for effect in sent:
        assert isinstance(effect, To)
        answer = node.members[effect.member].answer(effect.message)
        assert isinstance(answer, LoadAnswer)
        stores += node.coordinator.on_answer(node.now_ms, effect.member, answer)
    repair = next(each for each in stores if isinstance(each, To) and each.member == B)
    stored = node.members[B].answer(repair.message)
    assert isinstance(stored, StoreAnswer)
    deletes = node.coordinator.on_answer(node.now_ms, B, stored)
    assert [Store] * 3 == [type(each.message) for each in deletes if isinstance(each, To)]
    for member in (B, A, C):
        assert [] == node.coordinator.on_answer(node.now_ms, member, stored)


def test_d76_an_operation_over_its_deadline_is_unknown_and_begins_no_other_step() -> None:
    node = Node(A)
    assert node.ask(getdel(KEY, node.now)) is None and node.ask(set_(KEY, b"x")) is None
    assert not [each for each in node.coordinator.on_tick(1_500) if not isinstance(each, To)]
    node.run(node.coordinator.on_tick(2_000))
    assert [Outcome.UNKNOWN, Outcome.UNKNOWN] == [answer.outcome for answer in node.answers.values()]
    assert node.coordinator.idle

    whole = Node(A, B, C)
    whole.members[A].cell = whole.members[B].cell = StringCell(stamp(500), False, 0, b"old")
    effects = whole.coordinator.begin(whole.now_ms, Asked(1, INDEX, 1_001), getdel(KEY, whole.now))
    whole.now_ms = 1_001
    whole.run(effects)
    assert Value(Outcome.UNKNOWN, b"old") == whole.answers[1]
    assert not whole.members[A].cell.deleted


def test_d65_operations_go_on_under_a_newer_record(node: Node) -> None:
    node.members.pop(C)
    node.members.pop(B)
    assert node.ask(set_(KEY, b"x")) is None
    node.members.update({B: Owning(B, MOVING), D: Owning(D, MOVING)})
    node.records[INDEX] = MOVING
    node.run(node.coordinator.on_record(node.now_ms, INDEX))
    assert Outcome.OK is node.answers[1].outcome and node.members[D].cell is not None


def test_d64_pages_go_on_where_the_one_before_ended(node: Node) -> None:
    for number in range(7):
        node.ask(put_element(KEY, b"%d" % number))
        node.ask(set_(b"s%d" % number, b"v"))
    node.ask(remove_element(KEY, b"3"))
    seen, first = [], b""
    while True:
        page = node.ask(elements(KEY, node.now, first, 2), policy=Policy(Repair.OFF))
        seen += [element for element, _ in page.values]
        if page.behind is None:
            break
        first = page.behind
    assert [b"0", b"1", b"2", b"4", b"5", b"6"] == seen
    assert [b"s1", b"s2"] == [key for key, _ in node.ask(strings(b"s1", b"s3", node.now)).values]
    page = node.ask(strings(b"", b"z", node.now, 5))
    assert (5, b"s5") == (len(page.values), page.behind)


# --- quorums of a request -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("r", "w", "reached"), [(1, 1, (B,)), (2, 2, (A, B)), (3, 3, (A, B, C)), (9, 9, (A, B, C))])
def test_d77_a_request_may_name_its_own_quorums(r: int, w: int, reached: tuple[Member, ...]) -> None:
    """With as many members as it names, and no fewer; more than a list has are all of them."""
    whole, lacking = Node(*reached), Node(*reached[1:])
    policy = Policy(Repair.OFF, r=r, w=w)
    written, read = (Outcome.WEAK if wanted == 1 else Outcome.OK for wanted in (w, r))
    assert written is whole.ask(set_(KEY, b"v"), policy=policy).outcome
    assert Value(read, b"v") == whole.ask(get(KEY, whole.now), policy=policy)
    assert lacking.ask(set_(KEY, b"v"), policy=policy) is None
    assert lacking.ask(get(KEY, lacking.now), policy=policy) is None


def test_d77_while_a_move_is_open_the_quorums_of_a_request_stand_in_for_those_of_both_lists() -> None:
    moved = CALM._replace(pending=Owners((B, C, D), Quorum(3, 2, 2)))
    assert moved.read([A], 1) is False and moved.read([A, D], 1) is True
    assert moved.write([A], 1) is False and moved.write([A, D], 1) is True
    assert (moved.missing([A], 1), moved.missing([A, D], 1)) == (1, 0)


def test_d57_d77_a_remove_reads_by_the_quorum_of_the_keyspace() -> None:
    """A read of one member may miss an acknowledged add, which the remove would leave alive."""
    node = Node(A, B, C)
    node.ask(put_element(KEY, b"x"))
    few = Node(A)
    assert few.ask(remove_element(KEY, b"x"), policy=Policy(r=1, w=1)) is None
    assert Outcome.OK is node.ask(remove_element(KEY, b"x"), policy=Policy(r=1)).outcome
    assert Outcome.WEAK is node.ask(remove_element(KEY, b"x"), policy=Policy(r=1, w=1)).outcome
