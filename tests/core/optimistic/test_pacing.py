"""The bytes that a node sends for the repair of a keyspace have a bound, and repair goes on below it."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import Received
from tidemark_core.base.ids import Address
from tidemark_core.optimistic.cells import Place, Sort, StringCell
from tidemark_core.optimistic.exchanging.giving import weight_of
from tidemark_core.optimistic.exchanging.messages import (
    Drawn,
    Exchange,
    Given,
    Listed,
    Open,
    Opened,
    Sketch,
    Unanswered,
    Want,
)
from tidemark_core.optimistic.exchanging.tree import END, UNKNOWN, Part
from tidemark_core.optimistic.messages import Keep, Store
from tidemark_core.optimistic.owner import Fate, Source
from tidemark_core.optimistic.pacing import UNBOUND, Pace
from tidemark_core.optimistic.plane import Assign, KeyspaceLimits, Settle
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.stamps import Clock
from tidemark_core.optimistic.standing import Standing

from .cases import stamp
from .machine import Machine
from .owning import CALM, INDEX, A, B, C, D
from .test_plane import Node

RATE = 10_000
EXCHANGE = Exchange(INDEX, CALM.version, CALM.floor_ms, 1)
PLACES = tuple(Place(Sort.STRING, b"%03d" % number) for number in range(100))


class Giver(Machine):
    """A source of 100 rows of 1,000 bytes, at a rate of ten of them a second."""

    rate = RATE

    def make(self, standing: Standing, clock: Clock) -> Any:
        unit = super().make(standing, clock)
        unit._pace = Pace(lambda: self.rate)
        return unit


def giver() -> Giver:
    machine = Giver()
    machine.put({place: StringCell(stamp(500), False, 0, bytes(1_000)) for place in PLACES})
    machine.start()
    machine.settle()
    return machine


def ask(machine: Machine, m: Any) -> Any:
    machine.hear(m)
    machine.settle()
    [answer] = [sent.message for sent in machine.sent]
    machine.sent.clear()
    return answer


def test_d74_a_source_gives_no_more_than_its_rate_and_is_asked_again() -> None:
    machine, given = giver(), 0
    for now_ms in range(10_000, 20_000, 50):
        machine.now_ms = now_ms
        answer = ask(machine, Want(EXCHANGE, PLACES[:5]))
        if isinstance(answer, Given):
            given += weight_of(answer)
        else:
            assert answer == Unanswered(EXCHANGE, Fate.NOT_READY), "the puller asks the source again at its next tick"
    assert 9 * RATE < given < 12 * RATE


@pytest.mark.parametrize(("m", "counts"), [
    (Sketch(EXCHANGE, (Drawn(b"", END),)), True), (Want(EXCHANGE, PLACES[:1]), True),
    (Open(EXCHANGE, (Part(b"", END, UNKNOWN),)), False)])
def test_d74_what_a_source_gives_counts(m: Any, counts: bool) -> None:
    """That it has a leaf is no more than a question."""
    machine = giver()
    machine.rate = 1    # one answer overdraws it
    machine.now_ms = 10_000
    first, again = ask(machine, m), ask(machine, m)
    assert isinstance(first, Opened | Listed | Given) and isinstance(again, Unanswered) is counts


def test_d74_a_bucket_recovers_and_holds_no_more_than_a_second() -> None:
    pace = Pace(lambda: RATE)
    assert pace.free(1_000)
    pace.spend(3 * RATE)
    assert not pace.free(1_000) and not pace.free(2_990)
    assert pace.free(3_010)
    assert pace.free(100_000)
    pace.spend(RATE)
    assert not pace.free(100_000), "what was not sent earlier is not sent later"
    for _ in range(5):
        UNBOUND.spend(1 << 40)
        assert UNBOUND.free(1_000)


def test_d73_replays_of_hints_have_the_same_bound_and_other_keyspaces_go_on() -> None:
    node = Node(limits=KeyspaceLimits(settings=KeyspaceSettings(repair_every_ms=0)))
    record = Range(1, Owners((B, C, D), Quorum(3, 2, 2)))
    units = 5 << 32, 6 << 32
    for unit in units:
        node.step(Assign(unit, record))
        node.step(Settle(unit >> 32, KeyspaceSettings(repair_every_ms=0, repair_bytes=2_000 * (unit >> 32 == 5))))
        for number in range(40):
            row = StringCell(stamp(1_500), False, 0, bytes(1_000))
            node.step(Received(Address(7, unit), B, A, Keep(unit, number, 1, PLACES[number], row)))
    node.take()
    replayed = dict.fromkeys(units, 0)
    for now_ms in range(2_000, 12_000, 1_000):
        node.tick(now_ms)
        for _, m in node.take():
            if isinstance(m, Store):
                assert Source.HINT is m.source
                replayed[m.range] += 1
    assert 0 < replayed[units[0]] < replayed[units[1]]


def test_d74_a_limit_that_changes_counts_at_once() -> None:
    node, unit = Node(), 5 << 32
    node.step(Assign(unit, Range(1, Owners((A, B, C), Quorum(3, 2, 2)))))
    pace = node.plane._pace_of(unit)
    pace.spend(100 << 20)
    assert not pace.free(1_000)
    node.step(Settle(5, KeyspaceSettings(repair_bytes=0)))
    assert pace.free(1_000)
