"""Stamps from the future: taken back at all owners, whatever the order of messages and wherever a repair stops."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import NEVER as NEVER_EXPIRES
from tidemark_core.optimistic.cells import Meta, Place, Retracted, Retraction, Sort, StringCell
from tidemark_core.optimistic.coordinating import reading
from tidemark_core.optimistic.coordinating.inspecting import Inspection, InspectStep
from tidemark_core.optimistic.coordinating.operations import ReadStep, RetractStep, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.reading import Found, Read
from tidemark_core.optimistic.coordinating.retracting import Ended, Repaired, Retracting, futures, repair_future
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.exchanging.tree import END
from tidemark_core.optimistic.inspection import Facts, inspected
from tidemark_core.optimistic.messages import (
    Change,
    Inspect,
    Load,
    LoadAnswer,
    RetractWrite,
    RingTold,
    RowsWrite,
    Span,
    Store,
    StoreAnswer,
    StringWrite,
)
from tidemark_core.optimistic.owner import STORED, Fate, Source, Verdict
from tidemark_core.optimistic.plane import Assign, Cluster
from tidemark_core.optimistic.retracting import KEYS_MAX, STAMPS_MAX
from tidemark_core.optimistic.stamps import ZERO, Actor, Clock, Stamp
from tidemark_core.optimistic.storing import of_string
from tidemark_core.optimistic.writes import put

from tests.registers import NEVER, Act, is_register
from tests.seeds import every_seed

from .cases import A as ACTOR
from .cases import stamp
from .machine import Machine
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D, Owning
from .test_copying import cluster, settle
from .test_copying import put as put_rows
from .test_plane import NEW, UNIT
from .test_reading import run as run_read
from .test_repairing import World as Nodes

CALLERS = 4
LOST, LATE, RARE = 0.1, 0.1, 0.03
AHEAD_MS = 50_000
STRING, RETRACTED = Place(Sort.STRING, KEY), Place(Sort.RETRACTED, KEY)
CALLS = {"ahead": 3, "right": 14, "later": 4}
"""How many calls begin while the clocks are so."""

Operation = Read | Write | Retracting


class World:
    """Callers of one String while all clocks are ahead, then set back by a restart, then past the time they had shown.

    Meanwhile stamps are taken back; each of these repairs may stop anywhere, and be repeated.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.members = {member: Owning(member) for member in (A, B, C)}
        self.flying: list[tuple[int, Member, Any]] = []
        self.open: dict[int, tuple[Operation, Member, Act | None]] = {}     # by operation
        self.history: list[Act] = []
        self.steps = count(1)
        self.repaired = 0
        self.state = ""

    def run(self) -> World:
        for number, (self.state, calls) in enumerate(CALLS.items()):
            self._restart(number)
            for call in range(calls):
                if self.state == "right" and self.dice.random() < 0.4:
                    self._retract()
                self._begin(call % CALLERS, f"{number}/{call}")
                for _ in range(self.dice.randint(0, 40)):
                    self._step()
            if self.state == "right" and self.dice.random() < 0.5:
                self.repair()
        while self.open:
            self._step()
        return self

    def repair(self) -> None:
        """Take back all that is from the future, without a fault; then a write is possible, and owners are equal."""
        while (was := self._stamp()) is not None:
            self._call(Retracting(next(self.steps), INDEX, CALM, self.clocks[A], KEY, was))
            self.repaired += 1
        write = Write(next(self.steps), INDEX, CALM, self.clocks[B], lambda dot: StringWrite(KEY, put(dot, b"done")))
        act = Act(9, False, "done", next(self.steps), NEVER)
        assert self._call(write).outcome is Outcome.OK
        self.history.append(act._replace(ended=next(self.steps)))

    def _call(self, operation: Retracting | Write) -> Any:
        waiting = list(operation.begin() if isinstance(operation, Retracting) else operation.begin(self.now(B)))
        while waiting:
            to = waiting.pop(0)
            if isinstance(to, To):
                answer = self.members[to.member].answer(to.message)
                assert isinstance(answer, StoreAnswer)
                waiting += operation.on_answer(self.now(A), to.member, answer)
        assert operation.done is not None and operation.done.outcome is Outcome.OK, operation.done
        return operation.done

    def _restart(self, number: int) -> None:
        """Every process begins again: its operations end, and their messages are still under way."""
        for _, _, act in self.open.values():
            if act is not None and not act.reads:
                self.history.append(act)
        self.open.clear()
        self.clocks = {member: Clock(Actor(member.node, b"%s-----%d" % (member.node.encode(), number)), SKEW_MS)
                       for member in self.members}
        self.ahead_ms = {member: self.dice.randint(-30, 30) for member in self.clocks}
        for member, owner in self.members.items():
            owner.now_ms = self.now(member)

    def now(self, me: Member) -> int:
        at_ms = {"ahead": AHEAD_MS, "right": 0, "later": AHEAD_MS + 10_000}[self.state]
        return 1_000 + at_ms + next(self.steps) // 20 + self.ahead_ms[me]

    def _stamp(self) -> Stamp | None:
        """Return the least stamp that is from the future at some owner, or whose repair stopped half way."""
        found = [owner.cell.stamp for owner in self.members.values()
                 if owner.cell is not None and owner.cell.stamp.ms > 1_000 + AHEAD_MS // 2]
        rows = [retractions(owner) for owner in self.members.values()]
        noted = {was for row in rows for was in row}
        found += [was for was in noted if not all(
            row.get(was, ZERO) != ZERO for row in rows)]
        return min(found, default=None)

    def _retract(self) -> None:
        if (was := self._stamp()) is not None:
            me, number = self.dice.choice((A, B, C)), next(self.steps)
            retracting = Retracting(number, INDEX, CALM, self.clocks[me], KEY, was)
            self.open[number] = retracting, me, None
            self._take(number, retracting.begin())

    def _begin(self, caller: int, value: str) -> None:
        if any(act is not None and act.client == caller for _, _, act in self.open.values()):
            return
        me, number = self.dice.choice((A, B, C)), next(self.steps)
        reads = self.dice.random() < 0.5 and self.state != "ahead"
        clock, act = self.clocks[me], Act(caller, reads, None if reads else value, number, NEVER)
        if act.reads:
            read = Read(number, INDEX, CALM, clock, of_string(KEY), me=me, order=self.dice.sample((A, B, C), 3))
            self.open[number] = read, me, act
            self._take(number, read.begin())
            return
        write = Write(number, INDEX, CALM, clock, lambda dot: StringWrite(KEY, put(dot, value.encode())))
        self.open[number] = write, me, act
        self._take(number, write.begin(self.now(me)))

    def _step(self) -> None:
        """Deliver a message, lose it, or deliver it twice; now and then send again or give up."""
        if not self.flying or self.dice.random() < RARE:
            for number, (operation, _, _) in list(self.open.items()):
                late = self.dice.random() < (0.4 if isinstance(operation, Retracting) else LATE)
                self._take(number, operation.on_deadline() if late else operation.resend())
            return
        place = self.dice.randrange(len(self.flying))
        number, member, message = self.flying[place] if self.dice.random() < LATE else self.flying.pop(place)
        if self.dice.random() < LOST:
            return
        if not isinstance(message, StoreAnswer | LoadAnswer):
            answer = self.members[member].answer(message)
            if answer is not None:
                self.flying.append((number, member, answer))
            return
        operation, me, _ = self.open.get(number, (None, A, None))
        if isinstance(operation, Read):
            self._take(number, operation.on_loaded(self.now(me), member, message) if isinstance(message, LoadAnswer)
                       else operation.on_stored(member, message))
        elif operation is not None:
            assert isinstance(message, StoreAnswer)
            self._take(number, operation.on_answer(self.now(me), member, message))

    def _take(self, number: int, found: Any) -> None:
        for effect in found:
            if isinstance(effect, To):
                self.flying.append((number, effect.member, effect.message))
                continue
            assert isinstance(effect, Done | Found | Ended)
            _, _, act = self.open.pop(number)
            if isinstance(effect, Ended):
                self.repaired += effect.outcome is Outcome.OK
                continue
            assert act is not None
            if effect.outcome is Outcome.OK:
                act = act._replace(ended=next(self.steps))
            if isinstance(effect, Done):
                self.history.append(act)
            elif effect.outcome is Outcome.OK:
                cell = effect.rows.get(STRING)
                assert cell is None or isinstance(cell, StringCell)
                self.history.append(act._replace(value=None if cell is None else cell.value.decode()))


@every_seed(120)
def test_d84_a_string_is_a_register_while_stamps_from_the_future_are_taken_back(seed: int) -> None:
    world = World(seed).run()
    assert is_register(world.history), world.history


def test_a_read_that_believes_a_member_which_has_not_heard_of_a_repair_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "replaced", lambda cell, retracted: cell)
    assert any(not is_register(World(seed).run().history) for seed in range(300))


# --- traces: what no walk finds soon --------------------------------------------------------------------------------

WAS, THEN, LATER = stamp(9_000), stamp(1_010), stamp(1_020)
ASKED, OVER = Retracted((Retraction(WAS),)), Retracted((Retraction(WAS, THEN),))


def cell(at: Stamp, value: bytes = b"x") -> StringCell:
    return StringCell(at, False, NEVER_EXPIRES, value)


def members(*cells: StringCell | None) -> dict[Member, Owning]:
    """Return owners that hold these cells."""
    found = {member: Owning(member) for member in (A, B, C)}
    for owner, held in zip(found.values(), cells, strict=True):
        if held is not None:
            owner.cell = held
    return found


def retractions(owner: Owning) -> dict[Stamp, Stamp]:
    """Return the stamps that an owner has noted, each with the one that stands in for it."""
    row = owner.rows.get(RETRACTED, Retracted())
    assert isinstance(row, Retracted)
    return dict(row.stamps)


def let_answer(repair: Retracting, now_ms: int, of: dict[Member, Owning], to: Any) -> list[Any]:
    """Give a member what a repair sends it; return what the repair does with the answer."""
    answer = of[to.member].answer(to.message)
    assert isinstance(answer, StoreAnswer)
    return list(repair.on_answer(now_ms, to.member, answer))


def tell(owner: Owning, change: Change, source: Source = Source.CLIENT) -> Verdict:
    answer = owner.answer(Store(INDEX, 7, 10, 1, 1, source, change))
    assert isinstance(answer, StoreAnswer)
    return answer.verdict


def write(at: Stamp, value: bytes = b"new") -> StringWrite:
    return StringWrite(KEY, cell(at, value))


def read(of: dict[Member, Owning], *order: Member) -> Any:
    reading_ = Read(1, INDEX, CALM, Clock(ACTOR, SKEW_MS), of_string(KEY), me=A, order=order)
    found = run_read(reading_, of, list(reading_.begin()))
    return found.rows[STRING].value if found is not None else None


def retract(of: dict[Member, Owning], *reached: Member, now_ms: int = 1_000, node: Actor = ACTOR) -> Retracting:
    """Take `WAS` back as far as these members answer."""
    repair = Retracting(5, INDEX, CALM, Clock(node, SKEW_MS), KEY, WAS)
    waiting: list[Any] = list(repair.begin())
    while waiting:
        to = waiting.pop(0)
        if isinstance(to, To) and to.member in reached:
            waiting += let_answer(repair, now_ms, of, to)
    return repair


def test_d84_a_stamp_is_taken_back_and_the_key_is_written_again() -> None:
    of = members(cell(WAS, b"ahead"), cell(WAS, b"ahead"), cell(stamp(1_080), b"before"))
    done = retract(of, A, B, C).done
    assert done is not None and (Outcome.OK, ()) == (done.outcome, done.missing)
    assert stamp(1_080) < done.became < stamp(1_090)
    assert [b"ahead", b"ahead", b"before"] == [owner.cell.value for owner in of.values() if owner.cell is not None]
    assert b"ahead" == read(of, C, A) == read(of, C, B)
    assert STORED == tell(of[A], write(stamp(1_095))) == tell(of[C], write(stamp(1_095)))
    assert [b"new", b"new"] == [read(of, B, C), read(of, A, B)]


def test_d84_a_stamp_that_was_taken_back_hides_nothing_when_it_comes_again() -> None:
    of = members(cell(WAS), cell(WAS), None)
    retract(of, A, B, C)
    assert STORED == tell(of[A], write(LATER)) == tell(of[C], write(LATER))
    for owner in of.values():
        owner.now_ms = 20_000     # the time has come
    for source in (Source.CLIENT, Source.HINT, Source.BACKUP, Source.OWNER):
        for owner in of.values():
            tell(owner, write(WAS, b"x"), source)
            assert owner.cell is not None and owner.cell.stamp in (LATER, retractions(owner)[WAS])
    assert b"new" == read(of, A, B) == read(of, B, C)


def test_d84_before_all_have_noted_it_nothing_is_replaced() -> None:
    """A holds the stamp and hears nothing: an acknowledged write of B and C would be hidden by it."""
    of = members(cell(WAS, b"ahead"), cell(WAS, b"ahead"), None)
    repair = retract(of, B, C)
    assert [Outcome.UNKNOWN] == [each.outcome for each in repair.on_deadline()]
    assert Ended(Outcome.UNKNOWN, ZERO, (A,)) == repair.done
    assert cell(WAS, b"ahead") == of[B].cell and Fate.NOT_READY is tell(of[B], write(LATER)).fate
    assert b"ahead" == read(of, A, B)

    again = retract(of, A, B, C).done
    assert again is not None and again.outcome is Outcome.OK and b"ahead" == read(of, A, C)


def test_d84_no_member_takes_a_write_before_the_stamp_is_replaced_there() -> None:
    """C holds no cell.  A write by C and B would be hidden by the stamp at A, of which C alone could say nothing."""
    of = members(cell(WAS), cell(WAS), None)
    for owner in of.values():
        assert STORED == tell(owner, RetractWrite(KEY, WAS))
    assert STORED == tell(of[B], RetractWrite(KEY, WAS, THEN))
    for source in (Source.CLIENT, Source.HINT, Source.BACKUP):
        assert Fate.NOT_READY is tell(of[C], write(LATER), source).fate, "also a hint: it would be lost"
    assert STORED == tell(of[C], write(LATER), Source.OWNER)
    assert STORED == tell(of[B], write(LATER)), "alone it is no quorum"
    assert b"new" == read(of, B, A), "what B knows counts for the cell of A"
    assert of[A].cell is not None and LATER == of[A].cell.stamp, "and was repaired"


def test_d84_the_first_stamp_that_stands_in_counts_for_every_coordinator() -> None:
    of = members(cell(WAS), cell(WAS), None)
    one = retract(of, A, B, C, node=Actor("b", b"b" * 8))
    other = retract(of, A, B, C, now_ms=1_050, node=Actor("c", b"c" * 8))
    assert one.done == other.done

    of = members(cell(WAS), cell(WAS), None)
    for owner in of.values():
        tell(owner, RetractWrite(KEY, WAS))
    assert STORED == tell(of[A], RetractWrite(KEY, WAS, THEN)), "the member that decides"
    assert Verdict(Fate.NEWER, THEN) == tell(of[A], RetractWrite(KEY, WAS, LATER))
    done = retract(of, A, B, C, now_ms=1_050).done
    assert done is not None and THEN == done.became
    assert [OVER] * 3 == [owner.rows[RETRACTED] for owner in of.values()]


def test_d84_one_owner_decides_before_any_other_replaces() -> None:
    """Two coordinators have drawn a stamp each, and no member has stored one."""
    of = members(cell(WAS), cell(WAS), None)
    repairs = [Retracting(number, INDEX, CALM, Clock(Actor("b", b"%d" % number * 8), SKEW_MS), KEY, WAS)
               for number in (5, 6)]
    asked = []
    for now_ms, repair in zip((1_000, 1_050), repairs, strict=True):
        for to in repair.begin():
            answer: Any = of[to.member].answer(to.message)
            found = repair.on_answer(now_ms, to.member, answer)
        asked.append(found)
        assert [A] == [to.member for to in found if isinstance(to, To)]
        assert [] == repair.on_answer(now_ms, A, answer), "a late answer to the phase before"
    for repair, [to] in zip(reversed(repairs), reversed(asked), strict=True):
        assert [A, B, C] == [each.member for each in let_answer(repair, 1_060, of, to)]
    assert {1_050} == {repair._became.ms for repair in repairs}


def test_d84_under_a_newer_record_all_of_its_members_note_the_stamp_first() -> None:
    of = members(cell(WAS), cell(WAS), None)
    of[D] = Owning(D, MOVING)
    repair = Retracting(5, INDEX, CALM, Clock(ACTOR, SKEW_MS), KEY, WAS)
    for to in repair.begin():
        let_answer(repair, 1_000, of, to)
    again: list[Any] = repair.on_record(MOVING)
    assert [A, B, C, D] == [to.member for to in again]
    assert {ZERO} == {to.message.change.became for to in again}
    assert [] == repair.on_record(CALM)


def test_d84_a_stamp_whose_time_came_stands_in_for_itself() -> None:
    """All have noted it when its time comes.  A write above it is acknowledged, and the repair goes on after that."""
    of = members(cell(WAS, b"ahead"), cell(WAS, b"ahead"), None)
    for owner in of.values():
        assert STORED == tell(owner, RetractWrite(KEY, WAS))
        owner.now_ms = 9_100
    above = stamp(9_001)
    assert STORED == tell(of[B], write(above)) == tell(of[C], write(above))
    done = retract(of, A, B, C, now_ms=9_100).done
    assert done is not None and (Outcome.OK, WAS) == (done.outcome, done.became)
    assert b"new" == read(of, A, B) == read(of, C, A)
    assert Fate.NEWER is tell(of[A], write(stamp(8_999))).fate, "no write waits any more"


def test_d84_a_hint_does_not_wait_for_a_repair_that_was_given_up() -> None:
    """A and B noted the stamp, C was silent; then the time of the stamp came."""
    of = members(cell(WAS), cell(WAS), None)
    for owner in (of[A], of[B]):
        assert STORED == tell(owner, RetractWrite(KEY, WAS))
        assert Fate.NOT_READY is tell(owner, write(WAS, b"x"), Source.HINT).fate
        owner.now_ms = 9_100
    assert [STORED, STORED] == [tell(owner, write(WAS, b"x"), Source.HINT) for owner in (of[A], of[B])]


def test_d84_a_stamp_that_stands_in_is_taken_back_in_its_turn() -> None:
    """Clocks were set back twice; an owner shows the first stamp again."""
    between = stamp(5_000)
    twice = Retracted((Retraction(between, THEN), Retraction(WAS, between)))
    of = members(cell(THEN, b"ahead"), cell(THEN, b"ahead"), None)
    for owner in of.values():
        owner.rows[RETRACTED] = twice
    assert STORED == tell(of[B], write(LATER)) == tell(of[C], write(LATER))
    tell(of[B], write(WAS, b"ahead"), Source.OWNER)
    assert b"new" == read(of, A, B) == read(of, B, C)


def test_d84_a_lesser_stamp_from_the_future_comes_first() -> None:
    """It would be shown otherwise once the greater one is replaced."""
    of = members(cell(WAS, b"last"), cell(stamp(8_000), b"first"), None)
    assert Verdict(Fate.BELOW, stamp(8_000)) == tell(of[B], RetractWrite(KEY, WAS))
    of[B].rows[RETRACTED] = ASKED
    assert Verdict(Fate.BELOW, stamp(8_000)) == tell(of[B], RetractWrite(KEY, WAS)), "also where it is noted"
    del of[B].rows[RETRACTED]
    assert repaired(of) == [8_000, 9_000]
    assert b"last" == read(of, A, B) == read(of, B, C) == read(of, C, A)


@pytest.mark.parametrize("change,fate", [
    (RetractWrite(KEY, stamp(1_050)), Fate.PAST),
    (RetractWrite(KEY, WAS, stamp(1_101)), Fate.FUTURE),
])
def test_d84_an_owner_refuses_what_would_change_the_order_of_writes(change: RetractWrite, fate: Fate) -> None:
    owner = Owning(A)
    assert fate is tell(owner, change).fate and not owner.rows


def test_d84_a_key_and_a_range_have_so_many_stamps() -> None:
    owner = Owning(A)
    for number in range(STAMPS_MAX):
        assert STORED == tell(owner, RetractWrite(KEY, stamp(9_000 + number)))
    assert Fate.FULL is tell(owner, RetractWrite(KEY, WAS._replace(ms=10_000))).fate
    assert STORED == tell(owner, RetractWrite(KEY, WAS)), "a repetition"

    machine = Machine()
    machine.settle()
    for number in range(KEYS_MAX + 1):
        machine.hear(Store(INDEX, 7, 10, number, 1, Source.CLIENT, RetractWrite(b"%d" % number, WAS)))
        machine.settle()
    fates = [m.verdict.fate for m in machine.take(StoreAnswer)]
    assert [Fate.STORED] * KEYS_MAX + [Fate.FULL] == fates


def test_d84_only_owners_say_what_was_taken_back() -> None:
    owner = Owning(A)
    owner.cell = cell(WAS)
    change = RowsWrite(((STRING, cell(LATER)), (RETRACTED, OVER)))
    assert Fate.DROPPED is tell(owner, replace(change, rows=change.rows[1:]), Source.BACKUP).fate
    assert STORED == tell(owner, change, Source.OWNER), "what was taken back is taken first"
    assert LATER == owner.cell.stamp


def test_d84_what_was_taken_back_is_on_disk_and_goes_with_the_floor() -> None:
    machine = Machine()
    machine.put({STRING: cell(WAS)})
    machine.start()
    for became in (ZERO, THEN):
        machine.hear(Store(INDEX, 7, 10, 1, 1, Source.CLIENT, RetractWrite(KEY, WAS, became)))
        machine.settle()
        machine.start()
        assert Retracted((Retraction(WAS, became),)) == machine.rows()[RETRACTED]
    machine.hear(Store(INDEX, 7, 10, 2, 1, Source.CLIENT, write(LATER)))
    machine.settle()
    machine.now_ms = 20_000
    machine.hear(Store(INDEX, 7, 10, 3, 1, Source.HINT, write(WAS)))
    machine.settle()
    assert cell(LATER, b"new") == machine.rows()[STRING]
    machine.hear(Load(INDEX, 7, 10, 4, 1, (), Span(Place(Sort.STRING, b""), Place(Sort.META, b""), 10)))
    machine.settle()
    [found] = machine.take(LoadAnswer)
    assert {STRING, RETRACTED} == {place for place, _ in found.rows}

    machine.unit.standing = machine.unit.standing._replace(promise_ms=9_000)
    machine.hear(RingTold(INDEX, CALM._replace(floor_ms=9_000)))
    machine.settle()
    machine.run(machine.unit.grow())
    machine.settle()
    assert RETRACTED not in machine.rows() and not machine.unit._hands.retracted
    machine.hear(Store(INDEX, 7, 9_000, 5, 1, Source.HINT, write(WAS)))
    machine.settle()
    assert Fate.BELOW is machine.take(StoreAnswer)[-1].verdict.fate


def test_d66_d84_an_owner_that_missed_it_and_one_that_joins_get_it_by_an_exchange() -> None:
    machines = cluster(A, B)
    put_rows(machines[A], {STRING: cell(LATER, b"new"), RETRACTED: OVER})
    put_rows(machines[B], {STRING: cell(WAS, b"ahead")})
    settle(machines.values())
    machines[A].pull(B)
    settle(machines.values())
    machines[B].pull(A)
    settle(machines.values())
    assert {STRING: cell(LATER, b"new"), RETRACTED: OVER} == machines[A].rows() == machines[B].rows()
    assert machines[A].unit.tree.tally(b"", END) == machines[B].unit.tree.tally(b"", END)


# --- the operation ----------------------------------------------------------------------------------------------------


def repaired(of: dict[Member, Owning], *away: Member) -> Any:
    """Run a repair of the key; return the times that were taken back, or why it ended."""
    steps = repair_future(KEY, lambda: 1_000 + SKEW_MS)
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            done = end.value
            return [was.ms for was, _ in done.stamps] if done.outcome is Outcome.OK else done
        match step:
            case InspectStep(places):
                answers = {
                    member: inspected(Inspect(INDEX, 1, places), CALM, Facts(), owner.standing, owner.rows)
                    for member, owner in of.items() if member not in away}
                outcome = Outcome.OK if len(answers) == len(of) else Outcome.UNKNOWN
                result = Inspection(outcome, CALM, answers, away)
            case RetractStep(_, was):
                repair = Retracting(5, INDEX, CALM, Clock(ACTOR, SKEW_MS), KEY, was)
                waiting: list[Any] = list(repair.begin())
                while waiting:
                    to = waiting.pop(0)
                    if isinstance(to, To):
                        answer: Any = of[to.member].answer(to.message)
                        waiting += repair.on_answer(1_000, to.member, answer)
                result = repair.done
            case ReadStep(places):
                rows = {place: of[A].rows[place] for place in places if place in of[A].rows}
                result = Found(Outcome.OK, rows, None, 10, (A, B), ())


def test_d84_a_repair_says_what_it_replaced_and_names_the_owners_that_did_not_answer() -> None:
    of = members(cell(WAS), cell(WAS), None)
    assert Repaired(Outcome.UNKNOWN, (), (C,)) == repaired(of, C)
    assert [9_000] == repaired(of)
    assert [] == repaired(of), "nothing is left"
    assert WAS not in {owner.cell.stamp for owner in of.values() if owner.cell is not None}


def test_d84_a_repair_names_the_owner_that_refused() -> None:
    of = members(cell(WAS), cell(WAS), None)
    of[B].now_ms = 9_000     # its process runs since the clocks were ahead
    assert Repaired(Outcome.PAST, (), (B,)) == repaired(of)


def test_d84_a_repair_that_stopped_half_way_goes_on() -> None:
    of = members(cell(WAS), cell(WAS), None)
    for owner in of.values():
        tell(owner, RetractWrite(KEY, WAS))
    tell(of[A], RetractWrite(KEY, WAS, THEN))
    assert [9_000] == repaired(of)
    assert [OVER] * 3 == [owner.rows[RETRACTED] for owner in of.values()]

    of[C].rows[RETRACTED] = ASKED      # no cell shows the stamp any more
    assert [9_000] == repaired(of) and OVER == of[C].rows[RETRACTED]


@pytest.mark.parametrize("meta", [Meta(greatest=WAS), Meta(cleared=WAS, greatest=WAS)])
def test_d58_d84_elements_and_clears_are_not_taken_back(meta: Meta) -> None:
    """A lower clear would bring elements back, and a lower greatest stamp would let a clear leave some."""
    of = members(None, None, None)
    for owner in of.values():
        owner.rows[Place(Sort.META, KEY)] = meta
    assert Repaired(Outcome.ELEMENTS) == repaired(of)
    assert {meta} == {owner.rows[Place(Sort.META, KEY)] for owner in of.values()}


@pytest.mark.parametrize(("first", "shown"), [
    (Place(Sort.RETRACTED, b""), {b"stopped", KEY, b"set"}),
    (Place(Sort.STRING, b""), {KEY, b"set"}),    # of the page before
])
def test_d84_the_keys_of_a_range_with_stamps_from_the_future_are_found(first: Place, shown: set[bytes]) -> None:
    rows = {STRING: cell(WAS), Place(Sort.STRING, b"right"): cell(stamp(900)),
            Place(Sort.META, b"set"): Meta(greatest=WAS), Place(Sort.RETRACTED, b"over"): OVER,
            Place(Sort.RETRACTED, b"stopped"): ASKED}
    steps = futures(first, lambda: 1_100)
    asked = next(steps)
    assert isinstance(asked, ReadStep) and asked.span is not None and first == asked.span.first
    with pytest.raises(StopIteration) as end:
        steps.send(Found(Outcome.OK, rows, None, 10, (A, B, C), ()))
    assert {(key, 9_000, key == b"set") for key in shown} == {
        (each.key, each.stamp.ms, each.elements) for each in end.value.value.found}


def test_d84_nodes_take_a_stamp_back_once_every_owner_answers() -> None:
    world = Nodes(repair_every_ms=0)
    for node in world.nodes.values():
        node.now_ms = 9_000
    world.operate(A, set_(KEY, b"ahead"))
    for node in world.nodes.values():
        node.start()      # with the clock set back
        node.now_ms = 1_000
        node.step(Assign(UNIT, NEW))
        node.step(Cluster((A, B, C)))
    world.leave(C)
    world.operate(B, repair_future(KEY, lambda: 1_500))
    world.run(2_000)
    assert [Repaired(Outcome.UNKNOWN, (), (C,))] == world[B].replies

    world.come_back(C)
    world[C].step(Assign(UNIT, NEW))
    world.operate(A, repair_future(KEY, lambda: 4_500))
    world.run(200)
    [done] = world[A].replies
    assert Outcome.OK is done.outcome and [9_000] == [was.ms for was, _ in done.stamps]
    world.operate(C, set_(KEY, b"new"))
    assert Outcome.OK is world[C].replies[-1].outcome
    row: Any = world.rows()[0][STRING]
    assert world.equal() and b"new" == row.value

    world[A].start()
    assert {KEY} == world[A].plane.holders[UNIT].unit._hands.retracted
