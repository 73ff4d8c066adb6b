"""Strings as registers: callers at the same time, messages in any order, and a judge of all that they were shown."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import StringCell
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.reading import Found, Read, Repair
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.messages import LoadAnswer, Store, StoreAnswer, StringWrite
from tidemark_core.optimistic.owner import STORED, Fate
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.stamps import Actor, Clock
from tidemark_core.optimistic.storing import of_string
from tidemark_core.optimistic.writes import delete, put

from tests.registers import NEVER, Act, is_register
from tests.seeds import every_seed

from .cases import A as ACTOR
from .cases import B as OTHER
from .owning import CALM, INDEX, KEY, SKEW_MS, A, B, C, Owning, owners
from .test_reading import AT, run

CALLERS, CALLS = 4, 14
LOST, LOST_WRITES, LATE, RARE = 0.02, 0.7, 0.05, 0.01    # a write that one owner has stays so for a while


class World:
    """Callers that read, write and delete one String through coordinators whose clocks differ."""

    def __init__(self, seed: int, repair: Repair = Repair.BLOCKING) -> None:
        self.dice = random.Random(seed)
        self.repair = repair
        self.members = {member: Owning(member) for member in (A, B, C)}
        self.clocks = {member: Clock(Actor(member.node, member.node.encode() * 8), SKEW_MS) for member in (A, B, C)}
        self.ahead_ms = {member: self.dice.randint(-30, 30) for member in self.clocks}
        self.flying: list[tuple[int, Member, Any]] = []
        self.open: dict[int, tuple[Read | Write, Member, Act]] = {}     # by caller
        self.history: list[Act] = []
        self.steps = count(1)
        self.now = 0

    def run(self) -> list[Act]:
        for number in range(CALLS):
            self._begin(number % CALLERS, str(number))
            for _ in range(self.dice.randint(0, 12)):
                self._step()
        while self.open:
            self._step()
        return self.history

    def _begin(self, caller: int, value: str) -> None:
        if caller in self.open:
            return
        die, me = self.dice.random(), self.dice.choice((A, B, C))
        written = value if die < 0.4 else None
        act = Act(caller, die >= 0.5, written, next(self.steps), NEVER)
        number, clock = act.call, self.clocks[me]     # of the operation
        operation: Read | Write
        if act.reads:
            operation = Read(number, INDEX, CALM, clock, of_string(KEY), me=me, repair=self.repair,
                             order=self.dice.sample((A, B, C), 3))
        else:
            operation = Write(number, INDEX, CALM, clock, lambda dot: StringWrite(
                KEY, delete(dot) if written is None else put(dot, written.encode())))
        self.open[caller] = operation, me, act
        self._take(caller, operation.begin() if isinstance(operation, Read) else operation.begin(self._clock(me)))

    def _clock(self, me: Member) -> int:
        return 1_000 + next(self.steps) // 20 + self.ahead_ms[me]

    def _step(self) -> None:
        """Deliver a message, lose it, or deliver it twice; now and then send again or give up."""
        if not self.flying or self.dice.random() < RARE:
            for caller, (operation, _, _) in list(self.open.items()):
                self._take(caller, operation.resend() if self.dice.random() > LATE else operation.on_deadline())
            return
        place = self.dice.randrange(len(self.flying))
        caller, member, message = self.flying[place] if self.dice.random() < LATE else self.flying.pop(place)
        if self.dice.random() < (LOST_WRITES if isinstance(message, Store) else LOST):
            return
        if not isinstance(message, StoreAnswer | LoadAnswer):
            answer = self.members[member].answer(message)
            if answer is not None:
                self.flying.append((caller, member, answer))
            return
        operation, me, _ = self.open.get(caller, (None, A, None))
        if operation is None or message.operation != operation.operation:
            return
        if isinstance(operation, Write):
            assert isinstance(message, StoreAnswer)
            self._take(caller, operation.on_answer(self._clock(me), member, message))
        else:
            self._take(caller, operation.on_loaded(self._clock(me), member, message) if isinstance(message, LoadAnswer)
                       else operation.on_stored(member, message))

    def _take(self, caller: int, found: Any) -> None:
        for effect in found:
            if isinstance(effect, To):
                self.flying.append((caller, effect.member, effect.message))
                continue
            assert isinstance(effect, Done | Found)
            _, _, act = self.open.pop(caller)
            if effect.outcome is Outcome.OK:
                act = act._replace(ended=next(self.steps))
            if isinstance(effect, Done):
                self.history.append(act)
            elif effect.outcome is Outcome.OK:
                cell = next(iter(effect.rows.values()), None)
                assert cell is None or isinstance(cell, StringCell)
                value = None if cell is None or cell.dead else cell.value.decode()
                self.history.append(act._replace(value=value))


@every_seed(300)
def test_d60_d64_d75_a_string_is_a_register_whatever_the_order_of_messages(seed: int) -> None:
    history = World(seed).run()
    assert is_register(history), history


@pytest.fixture
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repair]:
    """Leave one rule out; return what reads repair."""
    heard = Write.on_answer

    def taken(write: Write, now_ms: int, sender: Member, m: StoreAnswer) -> Any:
        newer = m.verdict.fate is Fate.NEWER
        return heard(write, now_ms, sender, replace(m, verdict=STORED) if newer else m)

    match request.param:
        case "the first answer to a read counts":
            monkeypatch.setattr(Range, "read", lambda record, members, r=0: bool(members))
        case "one stored copy is enough":
            monkeypatch.setattr(Range, "write", lambda record, members, w=0: bool(members))
        case "an owner that holds a newer one counts":
            monkeypatch.setattr(Write, "on_answer", taken)
    yield Repair.ASYNC if request.param == "reads do not wait for repair" else Repair.BLOCKING


@pytest.mark.parametrize("broken", [
    "the first answer to a read counts", "one stored copy is enough", "an owner that holds a newer one counts",
    "reads do not wait for repair",
], indirect=True)
def test_a_register_without_one_of_its_rules_is_noticed(broken: Repair) -> None:
    assert any(not is_register(World(seed, broken).run()) for seed in range(300))


def test_d60_a_write_that_is_sent_again_may_take_effect_at_two_moments() -> None:
    """An owner shows the first attempt, a write of another caller comes between, and the second attempt is above it."""
    members = owners(A, B, C)

    def write(actor: Actor, value: bytes, now_ms: int) -> Write:
        return Write(now_ms, INDEX, CALM, Clock(actor, SKEW_MS), lambda dot: StringWrite(KEY, put(dot, value)))

    def shown() -> str:
        found = run(read := Read(1, INDEX, CALM, Clock(ACTOR, SKEW_MS), of_string(KEY), me=C, order=(C, A, B)),
                    members, list(read.begin()))
        return str(found.rows[AT].value.decode())

    slow = write(ACTOR, b"slow", 1_000)
    at_once, later = slow.begin(1_000)[2:], slow.resend()[:2]
    assert [C, A, B] == [each.member for each in (*at_once, *later)]
    run(slow, members, at_once)
    history = [Act(1, True, shown(), 2, 3)]
    between = write(OTHER, b"between", 1_010)
    assert Outcome.OK is run(between, members, list(between.begin(1_010))).outcome
    history += [Act(2, False, "between", 4, 5), Act(1, True, shown(), 6, 7)]
    assert Outcome.OK is run(slow, members, list(later)).outcome
    history += [Act(3, False, "slow", 1, 8), Act(1, True, shown(), 9, 10)]
    assert ["slow", "between", "slow"] == [act.value for act in history if act.reads]
    assert is_register(history) and not is_register(history, once=True)
