"""A pending owner copies a range from other members, each with a disk of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.exchanging.messages import Given, Listed, Open, Opened, Unanswered
from tidemark_core.optimistic.exchanging.pulling import Ended, Outcome
from tidemark_core.optimistic.exchanging.tree import END
from tidemark_core.optimistic.holding.copying import Copying
from tidemark_core.optimistic.holding.pulls import LookedAt, Pulls, Taken
from tidemark_core.optimistic.messages import RingTold
from tidemark_core.optimistic.ring import Range, finished
from tidemark_core.optimistic.stamps import Actor, numbers_of
from tidemark_core.optimistic.standing import Standing

from .cases import A as ACTOR
from .cases import dead, live, stamp
from .machine import Machine
from .owning import CALM, INDEX, KEY, MOVING, A, B, C, D


class Puller(Machine):
    """A member that takes part in exchanges."""

    def start(self) -> None:
        self.ends: list[Ended] = []
        super().start()
        self.pulls = Pulls(self.unit, numbers_of(Actor(self.me.node, b"12345678")))
        self.copying = Copying(self.unit, self.pulls)

    def on_event(self, event: Any) -> list[Any]:
        if isinstance(event, Taken | LookedAt):
            return self.pulls.on_event(self.now_ms, event)
        return super().on_event(event)

    def hear(self, m: Any, sender: Member = B) -> None:
        if isinstance(m, Opened | Listed | Given | Unanswered):
            self.run(self.pulls.on_answer(self.now_ms, sender, m))
        else:
            super().hear(m, sender)

    def pull(self, source: Member) -> None:
        self.run(self.pulls.begin(self.now_ms, source, self.ended)[1])

    def ended(self, ended: Ended) -> list[Any]:
        self.ends.append(ended)
        return []


def cluster(*members: Member, record: Range = CALM) -> dict[Member, Puller]:
    return {member: Puller(member, Standing(member, record, record.floor_ms)) for member in members}


def settle(machines: Iterable[Puller], lost: float = 0.0, dice: random.Random | None = None) -> None:
    """Deliver messages and let the disks work until nothing is under way."""
    of = {machine.me: machine for machine in machines}
    busy = True
    while busy:
        busy = False
        for machine in of.values():
            machine.settle()
            sent, machine.sent = machine.sent, []
            for each in sent:
                busy = True
                if dice is not None and dice.random() < lost:
                    continue
                if isinstance(each.to, Member) and each.to in of:
                    of[each.to].hear(each.message, machine.me)


def text(key: bytes, ms: int, value: bytes = b"x") -> dict[Place, Row]:
    return {Place(Sort.STRING, key): StringCell(stamp(ms), False, 0, value)}


def many(numbers: Iterable[int], ms: int = 500) -> dict[Place, Row]:
    return {place: row for number in numbers for place, row in text(b"%05d" % number, ms).items()}


def put(machine: Puller, rows: dict[Place, Row]) -> None:
    machine.put(rows)
    machine.start()


def test_d74_a_member_pulls_rows_of_every_sort_onto_its_disk() -> None:
    machines = cluster(A, B)
    element: dict[Place, Row] = {Place(Sort.META, KEY): Meta(stamp(300), stamp(600)),
                                 Place(Sort.ELEMENT, KEY, b"e"): {ACTOR: live(1, stamp(600))},
                                 Place(Sort.ELEMENT, KEY, b"f"): {ACTOR: dead(2, stamp(600))}}
    put(machines[A], {**many(range(1_500)), **element})
    put(machines[B], many(range(1_000, 1_600)))
    settle(machines.values())
    machines[B].pull(A)
    settle(machines.values())

    assert [Ended(Outcome.COMPLETE)] == machines[B].ends and machines[B].pulls.idle
    assert {**many(range(1_600)), **element} == machines[B].rows()
    machines[A].pull(B)
    settle(machines.values())
    assert machines[A].unit.tree.tally(b"", END) == machines[B].unit.tree.tally(b"", END)


@pytest.mark.parametrize("seed", range(6))
def test_d74_a_pull_survives_lost_messages(seed: int) -> None:
    machines, dice = cluster(A, B), random.Random(seed)
    put(machines[A], many(range(1_200)))
    put(machines[B], many(range(600), 600))
    settle(machines.values())
    machines[B].pull(A)
    for _ in range(200):
        settle(machines.values(), 0.3, dice)
        machines[B].run(machines[B].pulls.resend(machines[B].now_ms))
    settle(machines.values())

    assert [Ended(Outcome.COMPLETE)] == machines[B].ends
    assert {**many(range(1_200)), **many(range(600), 600)} == machines[B].rows()


def test_d61_rows_that_come_under_another_record_are_not_stored() -> None:
    """The record changes between the answer of the source and the write."""
    machines = cluster(A, B)
    put(machines[A], many(range(3)))
    put(machines[B], {})
    settle(machines.values())
    machines[B].pull(A)
    while not any(isinstance(each.message, Given) for each in machines[A].sent):
        for machine, other in ((machines[B], machines[A]), (machines[A], machines[B])):
            machine.settle()
            if any(isinstance(each.message, Given) for each in machine.sent):
                break
            sent, machine.sent = machine.sent, []
            for each in sent:
                other.hear(each.message, machine.me)
    machines[B].hear(RingTold(INDEX, MOVING))
    settle(machines.values())
    assert [Outcome.INCOMPLETE] == [ended.outcome for ended in machines[B].ends]
    assert {} == machines[B].rows()


# --- copies -------------------------------------------------------------------------------------------------


def moved(*members: Member) -> dict[Member, Puller]:
    """The members of a move that has begun; the owners hold what a write quorum acknowledged."""
    machines = cluster(A, B, C)
    machines[D] = Puller(D, Standing(D, CALM))
    put(machines[A], {**many(range(5)), **text(b"ab", 600), **text(b"ac", 600)})
    put(machines[B], {**many(range(5)), **text(b"ab", 600), **text(b"bc", 600)})
    put(machines[C], {**many(range(5)), **text(b"ac", 600), **text(b"bc", 600)})
    put(machines[D], text(b"left over", 400))
    settle(machines.values())
    for member in members:
        machines[member].hear(RingTold(INDEX, MOVING))
    settle(machines.values())
    return machines


ALL = {**many(range(5)), **text(b"ab", 600), **text(b"ac", 600), **text(b"bc", 600)}


def go_on(machines: dict[Member, Puller], *members: Member) -> None:
    for _ in range(6):
        for member in members:
            machines[member].run(machines[member].unit.grow())
            machines[member].run(machines[member].copying.go_on(1_000))
            machines[member].run(machines[member].pulls.resend(1_000))
        settle(machines.values())


def test_d66_a_newcomer_holds_every_acknowledged_write_and_nothing_of_an_earlier_time() -> None:
    machines = moved(A, B, C, D)
    assert machines[D].copying.done is None and machines[D].unit.standing.copying
    go_on(machines, D)
    assert 8 == machines[D].copying.done and ALL == machines[D].rows()
    assert not machines[D].unit.durable.copying
    machines[D].hear(RingTold(INDEX, finished(MOVING)))
    machines[D].settle()
    assert ALL == machines[D].rows()


def test_d66_an_owner_that_stays_copies_from_one_more() -> None:
    machines = moved(A, B, C, D)
    go_on(machines, A, B)
    assert 8 == machines[A].copying.done == machines[B].copying.done
    assert set(machines[A].rows()) | {Place(Sort.STRING, b"bc")} == set(ALL)


def test_d66_an_owner_that_is_away_is_passed_over() -> None:
    machines = moved(B, C, D)
    machines.pop(A)
    go_on(machines, D)
    assert machines[D].copying.done is None, "it waits for the first one"
    machines[D].copying.give_up()
    go_on(machines, D)
    assert 8 == machines[D].copying.done and ALL == machines[D].rows()


def test_d66_a_copy_of_another_record_does_not_count() -> None:
    machines = moved(A, B, C, D)
    go_on(machines, D)
    machines[D].hear(RingTold(INDEX, MOVING._replace(version=10)))
    settle(machines.values())
    machines[D].run(machines[D].copying.go_on(1_000))
    assert machines[D].copying.done is None and {} == machines[D].rows()


def test_d66_an_exchange_that_began_under_another_record_does_not_count() -> None:
    machines = cluster(A, B, C, record=MOVING)
    machines[D] = Puller(D, Standing(D, CALM))
    settle(machines.values())
    newcomer = machines[D]
    newcomer.hear(RingTold(INDEX, MOVING))
    newcomer.settle()
    assert [] == newcomer.sent
    newcomer.run(newcomer.copying.go_on(1_000))
    assert [] == newcomer.sent, "its rows are not read yet"
    newcomer.run(newcomer.unit.grow())
    newcomer.settle()
    newcomer.run(newcomer.copying.go_on(1_000))
    [first] = newcomer.take(Open)
    newcomer.hear(RingTold(INDEX, MOVING._replace(version=10)))
    newcomer.settle()
    newcomer.run(newcomer.unit.grow())
    newcomer.settle()
    newcomer.run(newcomer.copying.go_on(1_000))
    [second] = newcomer.take(Open)
    machines[A].hear(first, D)
    machines[A].settle()
    [late] = machines[A].take(Opened)
    newcomer.hear(late, A)
    newcomer.hear(Opened(second.exchange, b"", END), B)
    newcomer.settle()
    assert [] == newcomer.sent, "an answer to the exchange before, and one of another member"
    newcomer.hear(Opened(second.exchange, b"", END), A)
    assert 1 == len(newcomer.take(Open)), "of the next owner"


def test_d66_an_owner_copies_nothing_while_no_move_is_open() -> None:
    machines = cluster(A, B)
    settle(machines.values())
    machines[A].run(machines[A].copying.go_on(1_000))
    assert machines[A].pulls.idle and machines[A].copying.done is None
