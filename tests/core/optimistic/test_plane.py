"""The plane: which range an event reaches, and what it costs when nothing happens."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    DropUnit,
    Effect,
    Feed,
    Persist,
    Put,
    PutMany,
    PutState,
    ReadRows,
    Received,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    TimerFired,
    Trace,
)
from tidemark_core.base.ids import Address, Member, OperatorId
from tidemark_core.base.plane import NodeFacts
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.coordinating.operations import get, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.exchanging.messages import Exchange, Open, Opened, Unanswered
from tidemark_core.optimistic.exchanging.tree import END, UNKNOWN, Part
from tidemark_core.optimistic.floors import HintsAsked, HintsGone
from tidemark_core.optimistic.messages import Load, LoadAnswer, RingTold, Store, StoreAnswer, StringWrite
from tidemark_core.optimistic.moving import Announced, CopyAsked, Known
from tidemark_core.optimistic.owner import Fate, Source, Verdict
from tidemark_core.optimistic.plane import TICK, Assign, KeyspaceLimits, KeyspacePlane, Operate
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.storing import of_string

from .owning import CALM, KEY, MOVING, A, B, C, D
from .test_unit import cell

UNIT = 9
AT = Address(7, UNIT)
OPERATOR = OperatorId("op/1")
NEW = CALM._replace(floor_ms=0)
"""The record of a range whose floor has never risen."""


class Node:
    """A plane with a disk that answers at once, unless it is slow to write; messages to others are kept."""

    def __init__(self, me: Member = A, limits: KeyspaceLimits | None = None, boot: str = "boot") -> None:
        self.facts = NodeFacts(me, boot)
        self.limits = limits or KeyspaceLimits(settings=KeyspaceSettings(repair_every_ms=0))
        self.now_ms = 1_000
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.states: list[PutState] = []
        self.durable: dict[int, bytes] = {}     # the newest state of each range
        self.slow = False
        self.start()

    def start(self) -> None:
        """Begin with what is durable."""
        self.plane = KeyspacePlane(self.facts, 7, self.limits)
        self.queue: deque[Persist] = deque()
        self.sent: list[tuple[Any, Any]] = []
        self.replies: list[Any] = []
        self.timers: list[SetTimer] = []
        self.traces: list[Trace] = []
        self.plane.recover(Stored(self.durable, self.tables))

    def step(self, event: Any, now_ms: int | None = None) -> None:
        now_ms = self.now_ms if now_ms is None else now_ms
        self.run(self.plane.step(now_ms, event), now_ms)

    def run(self, effects: list[Effect], now_ms: int) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.queue.append(effect)
                    if not self.slow:
                        self.sync(now_ms)
                case ReadRows(address, tag, keys):
                    values = tuple(self.tables.get(family, {}).get(key) for family, key in keys)
                    self.step(RowsRead(address, tag, values), now_ms)
                case ScanRows(address, tag, family, first, behind):
                    rows = sorted(row for row in self.tables.get(family, {}).items() if first <= row[0] < behind)
                    self.step(RowsScanned(address, tag, tuple(rows), False), now_ms)
                case Feed(event):
                    self.step(event, now_ms)
                case Trace():
                    self.traces.append(effect)
                case Send(_, to, message):
                    assert to != self.plane.me
                    self.sent.append((to, message))
                case Reply(_, value):
                    self.replies.append(value)
                case SetTimer():
                    self.timers.append(effect)

    def sync(self, now_ms: int = 1_000) -> None:
        """Make the oldest write durable."""
        persist = self.queue.popleft()
        for write in persist.writes:
            match write:
                case PutState(state):
                    self.states.append(write)
                    self.durable[persist.address.id] = state
                case DropUnit():
                    self.durable.pop(persist.address.id, None)
                case Put(family, key, value):
                    self.tables.setdefault(family, {})[key] = value
                case PutMany(family, rows):
                    self.tables.setdefault(family, {}).update(rows)
                case Delete(family, key):
                    self.tables.get(family, {}).pop(key, None)
                case DeleteRange(family, first, behind):
                    held = self.tables.get(family, {})
                    self.tables[family] = {key: held[key] for key in held if not first <= key < behind}
        self.run(list(persist.then), now_ms)

    def hear(self, sender: Any, message: Any) -> None:
        self.step(Received(AT, sender, self.plane.me, message))

    def tick(self, now_ms: int | None = None) -> None:
        self.timers.clear()
        self.step(TimerFired(Address(7, 0), TICK), self.now_ms + 50 if now_ms is None else now_ms)

    def take(self) -> list[tuple[Any, Any]]:
        sent, self.sent = self.sent, []
        return sent


def store() -> Store:
    return Store(UNIT, 7, 10, 5, 1, Source.CLIENT, StringWrite(KEY, cell(500)))


def test_d62_a_node_asks_for_the_record_of_a_range_that_it_has_heard_nothing_of() -> None:
    node = Node()
    node.hear(B, store())
    node.hear(B, Load(UNIT, 7, 10, 6, 1, of_string(KEY)))
    node.hear(B, Open(Exchange(UNIT, 7, 10, 1), (Part(b"", END, UNKNOWN),)))
    assert [StoreAnswer(UNIT, 0, 0, 5, 1, Verdict(Fate.NEEDS_RING)),
            LoadAnswer(UNIT, 0, 0, 6, 1, refused=Fate.NEEDS_RING),
            Unanswered(Exchange(UNIT, 7, 10, 1), Fate.NEEDS_RING)] == [message for _, message in node.take()]
    node.hear(B, CopyAsked(UNIT, 7))
    assert [] == node.take() and not node.plane.holders
    node.hear(B, RingTold(UNIT, NEW))
    node.hear(B, store())
    [(to, answer)] = node.take()
    assert B == to and Fate.STORED is answer.verdict.fate and [UNIT] == list(node.plane.units())


def test_d64_a_node_that_owns_no_copy_coordinates_and_holds_nothing() -> None:
    node = Node(D)
    node.step(Assign(UNIT, CALM))
    node.step(Operate(UNIT, 1, 500, set_(KEY, b"x")))
    assert [A, B, C] == [to for to, _ in node.sent] and not node.plane.holders
    for to, message in node.take():
        node.hear(to, StoreAnswer(UNIT, 7, 10, message.operation, message.attempt, Verdict(Fate.STORED)))
    assert [Outcome.OK] == [done.outcome for done in node.replies]


def test_d60_an_answer_to_an_earlier_run_of_the_coordinator_counts_for_nothing() -> None:
    """The node starts again, and answers to its last operation come late, while it runs another one."""
    first, again = Node(D), Node(D, boot="another boot")
    for node in (first, again):
        node.step(Assign(UNIT, CALM))
        node.step(Operate(UNIT, 1, 500, set_(KEY, b"x")))
    for to, message in first.take():
        again.hear(to, StoreAnswer(UNIT, 7, 10, message.operation, message.attempt, Verdict(Fate.STORED)))
    assert [] == again.replies
    for to, message in again.take():
        again.hear(to, StoreAnswer(UNIT, 7, 10, message.operation, message.attempt, Verdict(Fate.STORED)))
    assert [Outcome.OK] == [done.outcome for done in again.replies]


def test_d66_an_answer_to_an_exchange_of_an_earlier_run_counts_for_nothing() -> None:
    """The node begins its copy again after a restart: the answer that it has all comes from the time before."""
    first, again = Node(D), Node(D, boot="another boot")
    for node in (first, again):
        node.step(Assign(UNIT, MOVING._replace(floor_ms=0)))
        node.tick()
    [(source, opened)] = first.take()
    assert [(source, Open)] == [(to, type(message)) for to, message in again.take()]
    again.hear(source, Opened(opened.exchange, b"", END))
    assert [] == again.take(), "it does not go on to the next owner"


def test_an_operation_on_a_range_without_a_record_is_refused() -> None:
    node = Node()
    node.step(Operate(UNIT, 1, 500, get(KEY, lambda: 0)))
    assert [Reason.UNKNOWN_SHARD] == [reply.reason for reply in node.replies if isinstance(reply, Refused)]


def test_d60_a_nodes_own_range_is_asked_like_any_other() -> None:
    """One owner is enough here: nothing leaves the node."""
    node = Node()
    node.step(Assign(UNIT, Range(1, Owners((A,), Quorum(1, 1, 1)))))
    node.step(Operate(UNIT, 1, 500, set_(KEY, b"x")))
    assert [Outcome.OK] == [done.outcome for done in node.replies] and [] == node.sent


def test_a_range_at_which_nothing_happens_costs_nothing() -> None:
    node = Node()
    node.step(Assign(UNIT, CALM))
    assert [TICK] == [timer.name for timer in node.timers]
    node.tick()
    node.tick()
    assert [] == node.timers
    node.step(Operate(UNIT, 1, 500, set_(KEY, b"x")))
    assert [TICK] == [timer.name for timer in node.timers]
    node.tick(2_000)
    node.tick(2_050)
    assert [Outcome.UNKNOWN] == [done.outcome for done in node.replies] and [] == node.timers


def test_d67_the_operator_hears_when_a_record_is_on_disk() -> None:
    node = Node()
    node.hear(OPERATOR, Announced(UNIT, CALM))
    assert [(OPERATOR, Known(UNIT, 7))] == node.take() and 1 == len(node.states)
    node.hear(OPERATOR, Announced(UNIT, CALM))
    assert [(OPERATOR, Known(UNIT, 7))] == node.take() and 1 == len(node.states)
    node.hear(OPERATOR, CopyAsked(UNIT, 6))
    node.tick()
    node.tick()
    assert [] == node.timers, "that move is over"


def test_d69_a_node_promises_to_take_no_hint_up_to_the_floor() -> None:
    node = Node()
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 600))
    assert [(OPERATOR, HintsGone(UNIT, 3))] == node.take()


def test_a_range_is_shown_to_people() -> None:
    node = Node()
    node.step(Assign(UNIT, MOVING._replace(floor_ms=0)))
    assert "0/9" == node.plane.name(UNIT)
    shown = node.plane.status(UNIT)
    assert (8, 3, 3, False) == (
        shown["version"], len(shown["owners"]), len(shown["pending"]), shown["withdrawn"])


def test_d71_an_owner_that_never_heard_of_its_range_before_a_floor_withdraws() -> None:
    node = Node()
    node.step(Assign(UNIT, CALM))
    assert node.plane.status(UNIT)["withdrawn"]


class Stored:
    def __init__(self, states: dict[int, bytes], tables: dict[str, dict[bytes, bytes]] | None = None) -> None:
        self.states = states
        self.tables = tables or {}

    def units(self) -> list[int]:
        return list(self.states)

    def unit(self, unit: int) -> tuple[bytes, bytes | None]:
        return self.states[unit], None

    def headers(self, shard: Any, first: int) -> Any:
        raise AssertionError("no logs")

    def rows(self, family: str, first: bytes = b"", behind: bytes | None = None) -> Any:
        few = ("ks_hints", "ks_promises", "ks_deleted", "ks_retracted")
        assert family in few, "rows are read when they are asked for"
        return iter(sorted(self.tables.get(family, {}).items()))


def test_d65_a_node_that_starts_again_acts_under_the_record_on_its_disk() -> None:
    node = Node()
    node.step(Assign(UNIT, MOVING))
    again = Node()
    again.plane.recover(Stored({UNIT: node.states[-1].state}))
    again.hear(B, store())
    [(_, answer)] = again.take()
    assert (Fate.OLD_RING, MOVING) == (answer.verdict.fate, answer.record)


@pytest.mark.parametrize("message", [RingTold(UNIT, MOVING), Announced(UNIT, MOVING)])
def test_d65_an_older_record_changes_nothing_at_a_node(message: Any) -> None:
    node = Node()
    node.step(Assign(UNIT, MOVING))
    states = len(node.states)
    node.step(Assign(UNIT, CALM))
    node.hear(OPERATOR if isinstance(message, Announced) else B, message)
    assert states == len(node.states) and MOVING == node.plane.records[UNIT]
