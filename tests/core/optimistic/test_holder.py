"""A member's part of a range: rounds of the floor at its disk, and sources that give nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark_core.base.ids import Member, OperatorId
from tidemark_core.optimistic.cells import Place, Row
from tidemark_core.optimistic.exchanging.messages import Open
from tidemark_core.optimistic.floors import SyncAsked, Synced
from tidemark_core.optimistic.holding.holder import SILENT_TICKS, Holder
from tidemark_core.optimistic.holding.unit import Unit
from tidemark_core.optimistic.messages import RingTold
from tidemark_core.optimistic.moving import Copied, CopyAsked
from tidemark_core.optimistic.ring import Range, aborted
from tidemark_core.optimistic.stamps import numbers_of
from tidemark_core.optimistic.standing import Standing

from .machine import AT, Machine
from .owning import CALM, INDEX, MOVING, A, B, C, D
from .test_copying import many, text

OPERATOR = OperatorId("op/1")
ASKED = SyncAsked(INDEX, 4, 7, (C, B))


class Holding(Machine):
    """A member with everything that it does for the range."""

    def make(self, standing: Standing, clock: Any) -> Unit:
        self.holder = Holder(AT, standing, clock, numbers_of(clock.actor))
        return self.holder.unit

    def on_event(self, event: Any) -> list[Any]:
        return self.holder.on_event(self.now_ms, event)

    def hear(self, m: Any, sender: Any = B) -> None:
        self.run(self.holder.on_message(self.now_ms, sender, m))

    def tick(self) -> None:
        self.run(self.holder.on_tick(self.now_ms))

    def answers(self) -> list[Any]:
        return [each.message for each in self.sent if each.to == OPERATOR]


def members(rows: Mapping[Member, dict[Place, Row]]) -> dict[Member, Holding]:
    machines = {}
    for member, held in rows.items():
        machine = machines[member] = Holding(member, Standing(member, CALM, CALM.floor_ms))
        machine.put(held)
        machine.start()
        machine.settle()
    return machines


OWNERS: dict[Member, dict[Place, Row]] = {A: text(b"a", 500), B: text(b"b", 500), C: text(b"c", 500)}
ALL = {**OWNERS[A], **OWNERS[B], **OWNERS[C]}


def deliver(machines: dict[Member, Holding]) -> int:
    """Deliver what was sent between the members, and let the disks work until nothing is under way; count messages."""
    count, busy = 0, True
    while busy:
        busy = False
        for machine in machines.values():
            machine.settle()
            sent = [each for each in machine.sent if each.to != OPERATOR]
            machine.sent = [each for each in machine.sent if each.to == OPERATOR]
            for each in sent:
                if each.to in machines:
                    busy, count = True, count + 1
                    assert count < 200, "the members go on without end"
                    machines[each.to].hear(each.message, machine.me)
    return count


def test_d69_an_owner_pulls_from_every_other_one_and_says_so_when_all_of_it_is_durable() -> None:
    machines = members(OWNERS)
    machines[A].hear(ASKED, OPERATOR)
    deliver(machines)
    assert [Synced(INDEX, 4)] == machines[A].answers() and ALL == machines[A].rows()
    assert machines[A].holder.idle


def test_d69_no_owner_says_so_while_its_disk_has_not_written_what_it_took() -> None:
    machines = members({A: {}, B: OWNERS[B]})
    machines[A].hear(SyncAsked(INDEX, 4, 7, (B,)), OPERATOR)
    while not machines[A].queue:
        while machines[A].reads:
            machines[A].read()
        for each in machines[A].take(object):
            machines[B].hear(each, A)
        machines[B].settle()
        for each in machines[B].take(object):
            machines[A].hear(each, B)
    assert [] == machines[A].answers() and not machines[A].holder.idle
    deliver(machines)
    assert [Synced(INDEX, 4)] == machines[A].answers()


def test_d69_a_round_that_is_asked_again_is_answered_again_and_a_new_one_pulls_again() -> None:
    machines = members(OWNERS)
    machines[A].hear(ASKED, OPERATOR)
    deliver(machines)
    machines[B].put(text(b"later", 600))
    machines[B].start()
    machines[B].settle()
    machines[A].hear(ASKED, OPERATOR)
    assert 0 == deliver(machines)
    assert [Synced(INDEX, 4)] * 2 == machines[A].answers()
    machines[A].hear(SyncAsked(INDEX, 5, 7, (C, B)), OPERATOR)
    deliver(machines)
    assert Synced(INDEX, 5) == machines[A].answers()[-1] and {**ALL, **text(b"later", 600)} == machines[A].rows()


def test_d69_a_round_of_another_version_is_not_answered() -> None:
    machines = members(OWNERS)
    machines[A].hear(SyncAsked(INDEX, 4, 6, (B, C)), OPERATOR)
    machines[A].hear(SyncAsked(INDEX, 4, 8, (B, C)), OPERATOR)
    assert 0 == deliver(machines)
    machines[A].hear(ASKED, OPERATOR)
    machines[A].hear(SyncAsked(INDEX, 3, 6, (B, C)), OPERATOR)
    deliver(machines)
    assert [Synced(INDEX, 4)] == machines[A].answers(), "the other one is late, and changes nothing"


def test_d69_a_round_ends_with_the_record_that_it_began_under() -> None:
    machines = members(OWNERS)
    machines[A].hear(ASKED, OPERATOR)
    machines[A].hear(RingTold(INDEX, MOVING))
    for _ in range(3):
        deliver(machines)
        machines[A].tick()
    assert [] == machines[A].answers() and machines[A].holder.syncing.idle


def test_d69_a_silent_source_is_passed_over_and_pulled_from_when_it_is_back() -> None:
    machines = members(OWNERS)
    away = machines.pop(C)
    machines[A].hear(ASKED, OPERATOR)
    deliver(machines)
    assert OWNERS[A] == machines[A].rows(), "it waits for the first source"
    for _ in range(SILENT_TICKS + 1):
        machines[A].tick()
        deliver(machines)
    assert {**OWNERS[A], **OWNERS[B]} == machines[A].rows() and [] == machines[A].answers()
    assert not machines[A].holder.idle
    machines[C] = away
    machines[A].tick()
    deliver(machines)
    assert ALL == machines[A].rows() and [Synced(INDEX, 4)] == machines[A].answers()


def test_d66_a_silent_owner_is_passed_over_by_a_newcomer() -> None:
    machines = members({A: {}, **{member: {**many(range(3)), **OWNERS[member]} for member in (B, C)}})
    del machines[A]
    machines[D] = Holding(D, Standing(D, CALM))
    for machine in machines.values():
        machine.hear(RingTold(INDEX, MOVING))
    machines[D].hear(CopyAsked(INDEX, 8), OPERATOR)
    for _ in range(SILENT_TICKS + 3):
        machines[D].tick()
        deliver(machines)
    assert [Copied(INDEX, 8)] == machines[D].answers()


def test_d74_an_owner_with_a_row_that_cannot_be_taken_is_reported_once() -> None:
    """B alone holds a live row below the floor: no exchange brings it over, and a repeat does not help."""
    machines = members({**OWNERS, B: text(b"old", 5)})
    machines[A].hear(ASKED, OPERATOR)
    for _ in range(2 * SILENT_TICKS):
        assert deliver(machines) < 20
        machines[A].tick()
    assert ["below_floor_mismatch"] == machines[A].traces and [] == machines[A].answers()
    assert machines[A].holder.idle


def test_d66_an_owner_that_stays_does_not_copy_a_row_that_it_cannot_take() -> None:
    machines = members({**OWNERS, B: text(b"old", 5)})
    away = machines.pop(C)
    for machine in machines.values():
        machine.hear(RingTold(INDEX, MOVING))
    for _ in range(2 * SILENT_TICKS):
        assert deliver(machines) < 40
        for machine in machines.values():
            machine.tick()
    assert ["below_floor_mismatch"] == machines[A].traces and machines[A].holder.copying.done is None
    machines[C] = away
    for _ in range(SILENT_TICKS):
        machines[A].tick()
        deliver(machines)
    assert MOVING.version == machines[A].holder.copying.done, "the other one is enough"


def withdrawn(*away: Member, record: Range = CALM) -> dict[Member, Holding]:
    """Members of whom some answer that they are no owners."""
    machines = members(OWNERS)
    for member in away:
        unit = machines[member].unit
        unit.standing = unit.standing._replace(withdrawn=True, record=record)
    return machines


def test_d74_an_exchange_of_a_move_ends_with_the_move() -> None:
    """The source of the exchange is gone for good, and the move is given up."""
    machines = members(OWNERS)
    machines[D] = Holding(D, Standing(D, CALM))
    del machines[A]
    machines[D].hear(RingTold(INDEX, MOVING))
    machines[D].settle()
    machines[D].tick()
    machines[D].settle()
    assert [A] == [each.to for each in machines[D].sent] and not machines[D].holder.idle
    machines[D].hear(RingTold(INDEX, aborted(MOVING)))
    machines[D].settle()
    machines[D].tick()
    machines[D].settle()
    assert machines[D].holder.idle


def test_d74_an_exchange_of_a_round_ends_with_the_record() -> None:
    machines = members({A: OWNERS[A]})
    machines[A].hear(ASKED, OPERATOR)
    assert not machines[A].holder.idle
    machines[A].hear(RingTold(INDEX, aborted(MOVING)))
    machines[A].settle()
    machines[A].tick()
    assert machines[A].holder.idle


def test_d74_a_source_that_gives_nothing_is_asked_once_a_tick_behind_the_others() -> None:
    machines = withdrawn(B)
    machines[A].hear(SyncAsked(INDEX, 4, 7, (B, C)), OPERATOR)
    assert deliver(machines) <= 2 and not machines[A].holder.idle
    machines[A].tick()
    deliver(machines)
    assert {**OWNERS[A], **OWNERS[C]} == machines[A].rows() and [] == machines[A].answers()
    machines[A].tick()
    assert 1 == len(machines[A].take(Open))


def test_d66_an_owner_that_gives_nothing_is_asked_once_a_tick() -> None:
    machines = withdrawn(B, C, record=MOVING)
    machines[A].hear(RingTold(INDEX, MOVING))
    machines[A].settle()
    assert [B] == [each.to for each in machines[A].sent]
    deliver(machines)
    machines[A].tick()
    assert [C] == [each.to for each in machines[A].sent]
