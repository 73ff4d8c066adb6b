"""A node gives a range back: what stays where a range moved away."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import Received
from tidemark_core.optimistic.cells import Place, Sort
from tidemark_core.optimistic.exchanging.messages import Exchange, Open, Opened, Unanswered
from tidemark_core.optimistic.exchanging.tree import END, UNKNOWN, Part
from tidemark_core.optimistic.messages import Load, LoadAnswer, RingTold, Span, Store, StoreAnswer, StringWrite
from tidemark_core.optimistic.moving import Announced, Known
from tidemark_core.optimistic.owner import Fate, Source
from tidemark_core.optimistic.plane import Assign
from tidemark_core.optimistic.ring import Owners, Quorum, Range, aborted, begun, finished
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import of_string

from .machine import Machine
from .owning import INDEX, KEY, A, B, C, D
from .test_plane import AT, OPERATOR, UNIT, Node
from .test_unit import cell

QUORUM = Quorum(3, 2, 2)
FIRST = Range(1, Owners((A, B, C), QUORUM))
LEAVES = begun(FIRST, Owners((D, B, C), QUORUM))
LEFT = finished(LEAVES)
BACK = begun(LEFT, Owners((A, B, C), QUORUM))


def owner(record: Range = FIRST) -> Node:
    node = Node()
    node.step(Assign(UNIT, record))
    node.hear(B, store(record.version))
    node.take()
    rest(node)
    return node


def store(version: int, ms: int = 500) -> Store:
    return Store(UNIT, version, 0, 5, 1, Source.CLIENT, StringWrite(KEY, cell(ms)))


def load(version: int) -> Load:
    return Load(UNIT, version, 0, 6, 1, of_string(KEY))


def rest(node: Node) -> None:
    while node.timers:
        node.tick()


def rows(node: Node) -> int:
    return sum(len(node.tables.get(family, {})) for family in ("ks_strings", "ks_keys", "ks_elements"))


def test_d80_a_node_that_left_a_range_holds_nothing_of_it_but_the_record() -> None:
    node = owner()
    assert 1 == rows(node)
    node.step(Assign(UNIT, LEAVES))
    rest(node)
    assert 1 == rows(node) and [UNIT] == list(node.plane.units()), "it is an owner until the move is over"
    node.step(Assign(UNIT, LEFT))
    rest(node)
    assert 0 == rows(node) and [] == list(node.plane.units())
    assert node.plane.idle and LEFT == node.plane.records[UNIT] and not node.plane._rota.running


def test_d65_d80_who_asks_a_node_that_left_is_given_its_record() -> None:
    node = owner(LEAVES)
    node.step(Assign(UNIT, LEFT))
    rest(node)
    for _ in range(2):
        node.hear(B, store(LEAVES.version))
        node.hear(B, load(LEAVES.version))
        node.hear(B, Open(Exchange(UNIT, LEAVES.version, 0, 1), (Part(b"", END, UNKNOWN),)))
        stored, loaded, opened = [message for _, message in node.take()]
        assert isinstance(stored, StoreAnswer) and isinstance(loaded, LoadAnswer) and isinstance(opened, Unanswered)
        assert [(Fate.OLD_RING, LEFT)] * 3 == [
            (stored.verdict.fate, stored.record), (loaded.refused, loaded.record), (opened.why, opened.record)]
        node.start()    # and behind a restart


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("stale", [
    Assign(UNIT, FIRST), Assign(UNIT, LEAVES), Received(AT, B, A, RingTold(UNIT, LEAVES)),
    Received(AT, OPERATOR, A, Announced(UNIT, FIRST))], ids=str)
def test_d80_no_older_record_makes_a_node_that_left_an_owner_again(stale: Any, restarts: bool) -> None:
    """An owner without rows would count for a write of before the move (D67)."""
    node = owner(LEAVES)
    node.step(Assign(UNIT, LEFT))
    rest(node)
    if restarts:
        node.start()
    node.step(stale)
    rest(node)
    node.take()
    node.hear(B, store(LEAVES.version))
    [(_, answer)] = node.take()
    assert Fate.OLD_RING is answer.verdict.fate
    assert [] == list(node.plane.units()) and 0 == rows(node)


@pytest.mark.parametrize("restarts", [False, True])
def test_d80_an_operator_whose_record_is_behind_hears_of_the_one_that_was_left(restarts: bool) -> None:
    node = owner(LEAVES)
    node.step(Assign(UNIT, LEFT))
    rest(node)
    if restarts:
        node.start()
    node.hear(OPERATOR, Announced(UNIT, FIRST))
    assert [(OPERATOR, Known(UNIT, LEFT.version))] == node.take()
    node.hear(OPERATOR, Announced(UNIT, BACK))
    assert [(OPERATOR, Known(UNIT, BACK.version))] == node.take() and [UNIT] == list(node.plane.units())


@pytest.mark.parametrize("restarts", [False, True])
def test_d66_d80_a_node_that_comes_back_begins_without_rows(restarts: bool) -> None:
    node = owner(LEAVES)
    node.step(Assign(UNIT, LEFT))
    rest(node)
    if restarts:
        node.start()
    node.step(Assign(UNIT, BACK))
    assert node.plane.status(UNIT)["copying"] and 0 == rows(node) and 0 == node.plane.status(UNIT)["promise_ms"]
    node.hear(B, store(BACK.version))
    assert 1 == rows(node)


def test_d80_a_node_that_is_to_come_back_before_its_disk_has_answered_keeps_its_part() -> None:
    node = owner()
    node.slow = True
    node.step(Assign(UNIT, LEFT))
    node.tick()
    node.step(Assign(UNIT, BACK))
    while node.queue:
        node.sync()
    node.tick()
    assert [UNIT] == list(node.plane.units()) and node.plane.status(UNIT)["copying"]
    node.start()
    assert [UNIT] == list(node.plane.units()) and node.plane.status(UNIT)["copying"]


def test_d80_a_node_that_is_killed_on_the_way_out_is_an_owner_or_has_left() -> None:
    for durable in range(4):
        node = owner()
        node.slow = True
        node.step(Assign(UNIT, LEFT))
        for _ in range(durable):
            if node.queue:
                node.sync()
            node.tick()
        node.start()
        held = list(node.plane.units())
        assert (1, [UNIT], FIRST) == (rows(node), held, node.plane.records[UNIT]) or (0, [], LEFT) == (
            rows(node), held, node.plane.records[UNIT])


def test_d80_a_member_has_not_left_while_its_disk_still_reads() -> None:
    """Late rows of before would be taken for those that it copies when it comes back."""
    machine = Machine(A, Standing(A, FIRST))
    machine.settle()
    machine.hear(Load(INDEX, 1, 0, 6, 1, (), Span(Place(Sort.STRING, b""), Place(Sort.STRING, b"z"), 10)))
    machine.run(machine.unit.adopt(LEFT))
    while machine.queue:
        machine.sync()
    assert 1 == len(machine.reads) and not machine.unit.left
    machine.settle()
    assert machine.unit.left


def test_d80_a_member_has_not_left_while_a_row_is_read_that_no_message_needs_any_more() -> None:
    machine = Machine(A, Standing(A, FIRST))
    machine.settle()
    machine.hear(load(1))
    machine.run(machine.unit.adopt(LEFT))
    machine.hear(Load(INDEX, 1, 0, 7, 1, of_string(b"another")))
    machine.read()
    while machine.queue:
        machine.sync()
    assert 2 == len(machine.sent) and 1 == len(machine.reads) and not machine.unit.left
    machine.settle()
    assert machine.unit.left


def test_d80_a_member_has_not_left_before_its_record_is_on_the_disk() -> None:
    machine = Machine(A, Standing(A, FIRST))
    machine.settle()
    machine.run(machine.unit.adopt(LEFT))
    assert not machine.unit.left
    machine.settle()
    machine.hear(load(2))
    assert 1 == len(machine.reads) and not machine.unit.left
    machine.settle()
    assert machine.unit.left


def test_d66_d80_an_answer_to_an_exchange_of_before_counts_for_nothing() -> None:
    """The node is asked to copy, leaves, and is to copy again: that there is nothing comes from the time before."""
    node = Node(D)
    node.step(Assign(UNIT, LEAVES))
    node.tick()
    [(source, opened)] = node.take()
    assert isinstance(opened, Open)
    gone = aborted(LEAVES)
    node.step(Assign(UNIT, gone))
    rest(node)
    assert [] == list(node.plane.units())
    node.step(Assign(UNIT, begun(gone, LEAVES.pending)))
    node.tick()
    assert [(source, Open)] == [(to, type(message)) for to, message in node.take()]
    node.hear(source, Opened(opened.exchange, b"", END))
    assert [] == node.take(), "it does not go on to the next owner"
