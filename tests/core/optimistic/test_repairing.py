"""Repair by itself: whose turn it is, owners that pull from each other, and since when a range waits for that."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import PeerDown, PeerUp, TimerFired
from tidemark_core.base.ids import Address, Member
from tidemark_core.optimistic.cells import Place, Row, decode_row
from tidemark_core.optimistic.coordinating.inspecting import Inspection
from tidemark_core.optimistic.coordinating.operations import set_, unset
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.exchanging import giving
from tidemark_core.optimistic.exchanging.messages import Given, Open
from tidemark_core.optimistic.hinting.hints import hint_of
from tidemark_core.optimistic.holding.layout import FAMILIES, place_of
from tidemark_core.optimistic.holding.mending import TRIES
from tidemark_core.optimistic.messages import Inspect, Inspected, Part
from tidemark_core.optimistic.plane import REPAIR, Assign, Cluster, KeyspaceLimits, Operate, Settle
from tidemark_core.optimistic.repairing import RETRY_MS, Rota
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.standing import Standing

from .owning import KEY, A, B, C, D
from .test_copying import many, text
from .test_holder import Holding, deliver, members
from .test_plane import UNIT, Node

NEW = Range(7, Owners((A, B, C), Quorum(3, 2, 2)))
EVERY_MS = 60_000


# --- turns --------------------------------------------------------------------------------------------------------


def test_ranges_take_turns_a_few_at_once_and_come_up_again() -> None:
    rota = Rota(lambda _: EVERY_MS, 2)
    for unit in (1, 2, 3, 1):
        rota.add(100, unit)
    assert [1, 2] == rota.begin(100) and [] == rota.begin(100) and 100 == rota.next_ms()
    rota.ended(150, 1, missed=False)
    assert [3] == rota.begin(150)
    for unit in (2, 3):
        rota.ended(200, unit, missed=False)
    assert 150 + EVERY_MS == rota.next_ms() and [] == rota.begin(200)
    assert [1] == rota.begin(150 + EVERY_MS)


def test_a_range_that_missed_an_owner_comes_up_earlier() -> None:
    for every_ms, again_ms in ((EVERY_MS, RETRY_MS), (1_000, 1_000)):
        rota = Rota(lambda _, every_ms=every_ms: every_ms, 1)
        rota.add(0, 1)
        rota.begin(0)
        rota.ended(10, 1, missed=True)
        assert 10 + again_ms == rota.next_ms()


def test_a_range_is_hastened_also_while_its_turn_lasts() -> None:
    rota = Rota(lambda _: EVERY_MS, 1)
    for unit in (1, 2):
        rota.add(0, unit)
    assert [1] == rota.begin(0)
    rota.hasten(5, [1, 9])
    rota.ended(10, 1, missed=False)
    assert [2] == rota.begin(10)
    rota.ended(11, 2, missed=False)
    assert [1] == rota.begin(11)
    rota.ended(12, 1, missed=False)
    rota.hasten(20, [2])
    assert [2] == rota.begin(20) and [] == rota.begin(20), "9 is not known"


def test_a_range_that_is_forgotten_and_a_rota_that_is_off_come_up_never() -> None:
    rota = Rota(lambda _: EVERY_MS, 1)
    rota.add(0, 1)
    rota.forget(1)
    rota.ended(0, 1, missed=False)
    off = Rota(lambda _: 0, 1)
    off.add(0, 1)
    assert rota.next_ms() is None and off.next_ms() is None


def test_another_interval_counts_at_once_where_it_is_shorter() -> None:
    every = {1: EVERY_MS, 2: EVERY_MS}
    rota = Rota(lambda unit: every[unit], 2)
    for unit in (1, 2):
        rota.add(0, unit)
    rota.begin(0)
    rota.ended(10, 1, missed=False)
    every[1] = 2 * EVERY_MS
    rota.changed(20, [1])
    assert 10 + EVERY_MS == rota.next_ms(), "the turn that it was promised"
    every[1] = 1_000
    rota.changed(20, [1])
    assert 1_020 == rota.next_ms()
    every.update({1: 0, 2: 0})
    rota.changed(30, [1, 2])
    rota.ended(40, 2, missed=True)
    rota.hasten(50, [1, 2])
    assert rota.next_ms() is None
    every[1] = 1_000
    rota.changed(60, [1])
    assert 60 == rota.next_ms(), "it begins"


def test_many_hastenings_take_no_memory() -> None:
    rota = Rota(lambda _: EVERY_MS, 1)
    rota.add(0, 1)
    for now_ms in range(1_000):
        rota.hasten(now_ms, [1])
    assert len(rota._heap) < 100


# --- nodes --------------------------------------------------------------------------------------------------------


class World:
    """Nodes with a clock; what is due happens, and messages arrive at those that are not away."""

    def __init__(
        self, *nodes: Member, record: Range = NEW, repair_memory_bytes: int = 64 << 20, **settings: int
    ) -> None:
        self.limits = KeyspaceLimits(
            repair_memory_bytes=repair_memory_bytes,
            settings=KeyspaceSettings(**{"repair_every_ms": EVERY_MS, **settings}))
        self.nodes = {member: Node(member, self.limits) for member in nodes or (A, B, C)}
        self.away: set[Member] = set()
        self.now_ms = 1_000
        self.opened: list[tuple[Member, Member]] = []     # exchanges: who began one with whom
        self.inspected = 0
        for node in self.nodes.values():
            node.step(Assign(UNIT, record))
            node.step(Cluster(tuple(self.nodes)))

    def __getitem__(self, member: Member) -> Node:
        return self.nodes[member]

    def run(self, for_ms: int) -> None:
        """Let time pass up to the tick of the latest time that is due."""
        end_ms = self.now_ms + for_ms
        self.deliver()
        while (due_ms := min((at for node in self.up() for at in _due(node).values()), default=end_ms)) < end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for node in self.up():
                node.now_ms = self.now_ms
                due = _due(node)
                ready = [name for name, at_ms in due.items() if at_ms <= self.now_ms]
                node.timers = [each for each in node.timers if each.name not in ready]
                for name in ready:
                    node.step(TimerFired(Address(7, 0), name))
            self.deliver()
        self.now_ms = end_ms
        for node in self.nodes.values():
            node.now_ms = end_ms

    def up(self) -> list[Node]:
        return [node for member, node in self.nodes.items() if member not in self.away]

    def deliver(self) -> None:
        while any([self._deliver(member) for member in self.nodes]):
            pass

    def _deliver(self, member: Member) -> bool:
        sent = self.nodes[member].take()
        for to, message in sent:
            self.inspected += isinstance(message, Inspect)
            if isinstance(message, Open) and message.parts[0].first == b"":
                self.opened.append((member, to))
            if {to, member} & self.away or to not in self.nodes:
                continue
            self.nodes[to].hear(member, message)
        return bool(sent)

    def leave(self, member: Member) -> None:
        self.away.add(member)
        for other in self.nodes:
            if other != member:
                self.nodes[other].step(PeerDown(member))

    def come_back(self, member: Member) -> None:
        self.away.remove(member)
        self.nodes[member].start()
        for other in self.nodes:
            if other != member:
                self.nodes[other].step(PeerUp(member))
                self.nodes[member].step(PeerUp(other))

    def operate(self, at: Member, steps: Any) -> None:
        self.nodes[at].step(Operate(UNIT, 1, 2_000, steps))
        self.deliver()

    def rows(self) -> list[dict[Place, Row]]:
        return [{place_of(key): decode_row(sort, value) for sort, family in FAMILIES.items()
                 for key, value in node.tables.get(family, {}).items()} for node in self.nodes.values()]

    def equal(self) -> bool:
        first, *others = self.rows()
        return all(first == each for each in others)


def _due(node: Node) -> dict[str, int]:
    return {each.name: each.at_ms for each in node.timers if each.at_ms is not None}


def test_d74_owners_that_missed_messages_become_equal_without_being_asked() -> None:
    """No link broke: only a turn of the rota finds what was lost."""
    world = World()
    world.run(1_000)
    world.away.add(C)
    world.operate(A, set_(KEY, b"x"))
    world.operate(B, unset(b"other"))
    world.away.remove(C)
    assert not world.equal()
    world.run(EVERY_MS // 2)
    assert not world.equal()
    world.run(EVERY_MS)
    assert world.equal() and 2 == len(world.rows()[2])
    assert all(node.plane.idle for node in world.nodes.values())


def test_d74_an_owner_that_is_back_gets_what_it_missed_at_once() -> None:
    world = World()
    world.run(1_000)
    world.leave(C)
    world.operate(A, set_(KEY, b"x"))
    world.run(3_000)
    world.come_back(C)
    world.run(500)
    assert world.equal() and 1 == len(world.rows()[2])


def test_d74_every_owner_pulls_from_every_other_one_and_rests() -> None:
    world = World()
    world.run(EVERY_MS - 1_000)
    pairs = {(one, other) for one in NEW.own.members for other in NEW.own.members if one != other}
    assert pairs == set(world.opened) and 6 == len(world.opened)
    for node in world.nodes.values():
        assert [REPAIR] == list(_due(node)), "a range at rest has one timer and no ticks"


def test_an_owner_that_is_away_costs_nothing_until_it_is_back() -> None:
    world = World()
    world.leave(C)
    world.run(1_000)
    world.opened.clear()
    world.run(EVERY_MS + RETRY_MS)
    assert not [pair for pair in world.opened if C in pair] and [pair for pair in world.opened if C not in pair]
    world.come_back(C)
    world.run(1_000)
    assert {(A, C), (B, C), (C, A), (C, B)} <= set(world.opened)


def test_an_owner_whose_address_comes_with_the_map_is_pulled_from_at_once() -> None:
    world = World()
    for node in world.nodes.values():
        node.step(Cluster((A, B)))
    world.leave(C)
    world.run(1_000)
    away_since_ms = world[A].plane.report(UNIT).blocks[0].since_ms
    world[A].step(Cluster((A, B, D)))
    assert away_since_ms == world[A].plane.report(UNIT).blocks[0].since_ms, "the news is of another one"
    world.opened.clear()
    world.away.clear()
    world[A].step(Cluster((A, B, C, D)))
    world.run(1_000)
    assert (A, C) in world.opened and not world[A].plane.report(UNIT).blocks


def test_an_owner_that_is_silent_is_given_up_and_the_others_are_pulled_from() -> None:
    world = World()
    world.away.add(B)       # its link stands
    world.run(2_000)
    assert (A, C) in world.opened and (C, A) in world.opened
    assert world[A].plane.report(UNIT).exchanged_ms is None and {C} == set(world[A].plane.report(UNIT).exchanged)


def test_with_repair_off_owners_pull_only_when_they_are_asked() -> None:
    world = World(repair_every_ms=0)
    world.run(10 * EVERY_MS)
    assert [] == world.opened and not any(map(_due, world.nodes.values()))


def test_d74_each_keyspace_has_its_interval_and_its_grace() -> None:
    world = World()
    world.run(1_000)
    world.opened.clear()
    other = (UNIT >> 32) + 1
    for node in world.nodes.values():
        node.step(Settle(other, KeyspaceSettings(repair_every_ms=1_000, grace_ms=1)))
    world.run(3_000)
    assert [] == world.opened and not world[A].plane.report(UNIT).late
    for node in world.nodes.values():
        node.step(Settle(UNIT >> 32, KeyspaceSettings(repair_every_ms=2_000, grace_ms=2_000)))
    assert world[A].plane.report(UNIT).late and 1 == world[A].plane.summary().late
    world.run(2_500)
    assert 6 == len(world.opened) and not world[A].plane.report(UNIT).late


def test_a_single_owner_and_a_node_without_a_copy_exchange_nothing() -> None:
    world = World(A, D, record=Range(1, Owners((A,), Quorum(1, 1, 1))))
    world.run(3 * EVERY_MS)
    assert [] == world.opened and world[A].plane.summary().oldest_ms is None
    assert {} == _due(world[D])


# --- what is known of it ------------------------------------------------------------------------------------------


def test_d74_the_last_complete_exchange_is_known_also_behind_a_restart() -> None:
    world = World()
    world.run(5_000)
    report = world[A].plane.report(UNIT)
    assert {B, C} == set(report.exchanged) and report.exchanged_ms == min(report.exchanged.values())
    assert 1_000 <= report.exchanged_ms < 2_000 and not report.late
    world.leave(A)
    world[A].start()
    assert report.exchanged_ms == world[A].plane.report(UNIT).exchanged_ms
    assert report.exchanged_ms == world[A].plane.status(UNIT)["exchanged_ms"]
    world[A].step(Assign(UNIT, NEW._replace(version=8)))
    world[A].start()
    assert report.exchanged_ms == world[A].plane.report(UNIT).exchanged_ms, "a newer record changes nothing of it"


def test_d74_with_one_owner_away_the_exchange_is_not_complete_and_then_late() -> None:
    world = World(grace_ms=4 * EVERY_MS)
    world.run(1_000)
    before_ms = world[A].plane.report(UNIT).exchanged_ms
    assert before_ms is not None
    world.leave(C)
    world.run(2 * EVERY_MS - 1_000)
    assert (before_ms, 0) == ((found := world[A].plane.summary()).oldest_ms, found.late)
    world.run(2 * EVERY_MS)
    report = world[A].plane.report(UNIT)
    assert report.late and before_ms == report.exchanged_ms and 1 == world[A].plane.summary().late
    assert before_ms < report.exchanged[B], "what it has of the other one is newer"
    assert [("it is away (D70)", C)] == [(block.what, block.member) for block in report.blocks]
    world.come_back(C)
    world.run(1_000)
    report = world[A].plane.report(UNIT)
    assert not report.late and not report.blocks


def test_a_range_that_is_compared_less_often_than_half_of_its_grace_is_not_late_between_two_turns() -> None:
    world = World(repair_every_ms=EVERY_MS, grace_ms=EVERY_MS + 1)
    world.run(1_000)
    world.leave(C)
    world.run(3 * EVERY_MS // 2 - 2_000)
    assert not world[A].plane.report(UNIT).late
    world.run(EVERY_MS)
    assert world[A].plane.report(UNIT).late


def test_a_range_that_never_had_an_exchange_is_late_too() -> None:
    world = World(repair_every_ms=1_000, grace_ms=2_000)
    world.leave(B)
    world.run(500)
    assert world[A].plane.report(UNIT).exchanged_ms is None and 1_000 == world[A].plane.summary().oldest_ms
    world.run(RETRY_MS + 1_000)
    assert world[A].plane.report(UNIT).late


def test_d66_an_owner_that_leaves_and_comes_back_has_no_exchange_of_its_earlier_time() -> None:
    world = World(A, B, C, D)
    world.run(1_000)
    without = finished(begun(NEW, Owners((A, B, D), Quorum(3, 2, 2))))
    for record in (without, back := begun(without, Owners((A, B, C), Quorum(3, 2, 2))), finished(back)):
        world[C].step(Assign(UNIT, record))
    assert world[C].plane.report(UNIT).exchanged_ms is None and {} == world[C].plane.report(UNIT).exchanged


def test_an_open_move_is_shown_as_what_blocks_the_floor() -> None:
    world = World()
    world.run(1_000)
    world[A].now_ms = 3_000
    world[A].step(Assign(UNIT, begun(NEW, Owners((A, B, D), Quorum(3, 2, 2)))))
    [block] = world[A].plane.report(UNIT).blocks
    assert ("a move is open (D68)", 3_000) == (block.what, block.since_ms)


# --- hints that were dropped --------------------------------------------------------------------------------------


def _drop(node: Node, now_ms: int) -> None:
    """Have a node lose a hint that was not counted."""
    hints, [(place, row)] = node.plane._keeper.hints, text(b"k", now_ms).items()
    number, _ = hints.take(hint_of(UNIT, place, row, obliged=False))
    hints.delivered(number)
    hints.dropped[UNIT] = now_ms


@pytest.mark.parametrize("holds", [True, False])
def test_d73_a_range_whose_hints_were_dropped_needs_repair_until_a_complete_exchange(holds: bool) -> None:
    world = World(A, B, C, D)
    world.run(1_000)
    marked = A if holds else D
    world.leave(C)
    _drop(world[marked], world.now_ms)
    world.run(2 * EVERY_MS)
    plane = world[marked].plane
    assert plane.report(UNIT).needs_repair and 1 == plane.summary().need_repair, "one owner is away"
    world.come_back(C)
    world.run(EVERY_MS + RETRY_MS)
    assert not plane.report(UNIT).needs_repair and 0 == plane.summary().need_repair
    asked = world.inspected
    world.run(2 * EVERY_MS)
    assert asked == world.inspected and holds is (asked == 0), "a node that is no owner asks, and then no more"


def test_d73_a_node_that_is_no_owner_waits_for_an_exchange_of_every_owner() -> None:
    world = World(A, B, C, D)
    plane = world[D].plane
    _drop(world[D], 5_000)
    for exchanged, needs in (((9_000, 9_000, 0), True), ((9_000, 9_000), True), ((9_000, 9_000, 5_400), True),
                             ((9_000, 9_000, 9_000), False)):
        answers = {member: Inspected(UNIT, 1, Part.OWNER, 7, 0, 0, ms, False)
                   for member, ms in zip((A, B, C), exchanged, strict=False)}
        plane._looked(9_000, UNIT, Inspection(Outcome.OK, NEW, answers, ()))
        assert needs is plane.report(UNIT).needs_repair, exchanged


def test_a_timer_that_fires_too_early_is_set_again() -> None:
    world = World()
    world.run(1_000)
    node = world[A]
    before = _due(node)
    node.timers.clear()
    node.step(TimerFired(Address(7, 0), REPAIR))
    assert before == _due(node) and REPAIR in before


# --- one range ----------------------------------------------------------------------------------------------------


def _turn(machines: dict[Member, Holding], member: Member) -> None:
    machine = machines[member]
    machine.run(machine.holder.mend(machine.now_ms, ()))


def test_d74_a_turn_at_a_low_rate_takes_longer_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "GIVEN_BYTES_MAX", 5_000)
    took_ms = []
    for rate in (0, 10_000):
        world = World(repair_bytes=rate)
        world.run(1_000)
        world.leave(C)
        for number in range(50):
            world.operate(A, set_(b"%d" % number, bytes(1_000)))
        world.come_back(C)
        began_ms = world.now_ms
        while not world.equal() and world.now_ms < began_ms + 60_000:
            world.run(50)
        assert world.equal() and 50 == len(world.rows()[0])
        took_ms.append(world.now_ms - began_ms)
    assert took_ms[0] < 1_000 and 2_000 < took_ms[1] < 10_000


def test_d74_a_turn_takes_what_every_other_owner_has() -> None:
    machines = members({A: text(b"a", 500), B: many(range(30)), C: text(b"c", 500)})
    _turn(machines, A)
    machines[A].now_ms = 2_000
    deliver(machines)
    assert 32 == len(machines[A].rows()) and machines[A].holder.idle and 30 == len(machines[B].rows())
    assert {B: 1_000, C: 2_000} == machines[A].holder.pulls.complete, "the time at which each began"
    assert ((B, 1_000), (C, 2_000)) == machines[A].unit.durable.exchanged and 1_000 == machines[A].holder.exchanged_ms


def test_d74_a_row_that_cannot_be_taken_is_reported_once_a_version() -> None:
    machines = members({A: {}, B: text(b"b", 5), C: text(b"c", 500)})
    for _ in range(3):
        _turn(machines, A)
        deliver(machines)
        machines[A].tick()
        deliver(machines)
    assert ["below_floor_mismatch"] == machines[A].traces and 1 == len(machines[A].rows())
    assert machines[A].holder.exchanged_ms is None
    assert [B] == [block.member for block in machines[A].holder.blocks()]


def test_a_source_under_a_newer_record_is_tried_again_under_it() -> None:
    machines = members({A: {}, B: text(b"b", 500), C: {}})
    newer = machines[B].unit.standing.record._replace(version=8)
    machines[B].run(machines[B].unit.adopt(newer))
    machines[C].run(machines[C].unit.adopt(newer))
    _turn(machines, A)
    for _ in range(TRIES):
        deliver(machines)
        machines[A].tick()
    deliver(machines)
    assert 8 == machines[A].unit.durable.record.version and 1 == len(machines[A].rows())
    assert machines[A].holder.idle and not machines[A].holder.mending.missed


def test_a_source_that_is_no_owner_ends_the_turn_after_a_few_tries() -> None:
    machines = members({A: {}, B: {}, C: text(b"c", 500)})
    machines[B].unit.standing = machines[B].unit.standing._replace(withdrawn=True)
    _turn(machines, A)
    for _ in range(TRIES + 1):
        deliver(machines)
        machines[A].tick()
    assert machines[A].holder.idle and machines[A].holder.mending.missed and 1 == len(machines[A].rows())


def test_a_turn_ends_where_the_member_is_no_owner_any_more() -> None:
    machines = members({A: {}, B: text(b"b", 500), C: {}})
    _turn(machines, A)
    record = machines[A].unit.standing.record
    machines[A].run(machines[A].unit.adopt(record._replace(version=8, own=Owners((B, C), Quorum(2, 1, 2)))))
    deliver(machines)
    machines[A].tick()
    deliver(machines)
    assert machines[A].holder.idle and not machines[A].rows() and () == Standing(A, NEW, withdrawn=True).others
    assert [] == machines[A].take(Given)
