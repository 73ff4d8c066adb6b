"""FloorKeeper: rounds begin for floors that are due, few at once, and late floors say for whom they wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fake_node import FakeNode
from operator_views import keyspace, member, node, nodes, ring, to_come
from test_ring_keeper import CARTS
from test_service import CLUSTER, service, three
from tidemark_core.base.effects import Received
from tidemark_core.base.ids import KEYSPACE_PLANE, Address
from tidemark_core.base.metadata import MetadataLoaded, SetActive
from tidemark_core.optimistic.floors import HintsGone, Promised
from tidemark_core.optimistic.mover import Movers
from tidemark_core.optimistic.raising import FloorDue
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Range, begun, risen
from tidemark_core.optimistic.settings import WRITE_WINDOW_MS, KeyspaceSettings
from tidemark_operator.floors import LOOK_AGAIN_MS, ROUNDS_MAX, FloorKeeper, Late
from tidemark_operator.metadata import NodeLife
from tidemark_operator.model import Node
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_operator.service import OperatorService

from tests.waiting import until

__all__ = ["service", "three"]  # fixtures

GRACE_MS = 10_000_000
STEP_MS = GRACE_MS // 10
WINDOW_MS = 600_000
CREATED_MS = 1_000_000
DUE_MS = CREATED_MS + GRACE_MS + STEP_MS
"""The first floor is due."""
SETTINGS = KeyspaceSettings(hint_window_ms=WINDOW_MS, grace_ms=GRACE_MS)
CARTS_RING = keyspace(settings=SETTINGS, created_ms=CREATED_MS)
ALL = nodes(3)


class Room:
    """A keeper with a machine; `begun` are the rounds that it began since the last look, by the index of the range."""

    def __init__(self, *records: Range, partitions: int = 2) -> None:
        self.now, self.up_ms = DUE_MS, 5
        self.keyspace = replace(CARTS_RING, partitions=partitions)
        self.movers = Movers("op")
        self.movers.step(0, SetActive(True))
        self.records: dict[int, Range] = {}
        self.revision = 0
        for unit, record in zip(self.keyspace.units(), records or ring("n1 n2 n3", "n2 n3 n1"), strict=True):
            self.put(unit, record)
        self.fed: list[FloorDue] = []
        self.keeper = FloorKeeper(self.movers.rounds, self._feed, lambda: self.now, lambda: self.up_ms)

    def put(self, unit: int, record: Range) -> None:
        self.revision += 1
        self.records[unit] = record
        address = Address(KEYSPACE_PLANE, unit)
        self.movers.step(0, MetadataLoaded(address, RangeRecord(record, str(self.revision)), self.revision))

    def _feed(self, plane: int, event: Any) -> None:
        assert plane == KEYSPACE_PLANE
        self.fed.append(event)
        self.movers.step(self.up_ms, event)

    def look(self, known: Mapping[str, Node] = ALL, *, rests: bool = False) -> float | None:
        self.fed.clear()
        return self.keeper.look([self.keyspace], known, self.records, rests=rests)

    def pass_(self, ms: int) -> None:
        self.now += ms
        self.up_ms += ms

    @property
    def begun(self) -> list[int]:
        return [each.address.id & 0xFFFFFFFF for each in self.fed if each.floor_ms is not None]

    @property
    def late(self) -> Late:
        return self.keeper.late["carts"]


@pytest.fixture
def room() -> Room:
    return Room()


def test_d68_a_floor_follows_the_clock_at_the_distance_of_the_grace(room: Room) -> None:
    room.now -= 1
    assert room.look() == 0.001 and room.begun == [], "nothing is older than its keyspace"
    room.now += 1
    room.look()
    one, two = room.keyspace.units()
    asked = tuple(member(name) for name in ("n1", "n2", "n3"))
    assert room.fed == [
        FloorDue(Address(KEYSPACE_PLANE, unit), DUE_MS - GRACE_MS, asked) for unit in (one, two)]
    for unit in (one, two):
        room.put(unit, risen(room.records[unit], DUE_MS - GRACE_MS))
    room.pass_(STEP_MS - 1)
    room.look()
    assert room.begun == []
    room.pass_(1)
    room.look()
    assert room.begun == [0, 1]


def test_d68_a_floor_stays_a_write_window_behind_whatever_the_grace(room: Room) -> None:
    room.keyspace = replace(room.keyspace, settings=replace(SETTINGS, grace_ms=1))
    room.look()
    assert {each.floor_ms for each in room.fed} == {room.now - WRITE_WINDOW_MS}


@pytest.mark.parametrize(("ahead_ms", "behind_ms"), [
    ((None, None, None), 0), ((-9, -5, 0), 5), ((-9_000_000, 0, 3), 0), ((7, 7, 7), 0), ((-9, -5, None), 9)])
def test_d68_a_clock_of_the_operator_that_is_ahead_of_most_nodes_decides_no_floor(
    room: Room, ahead_ms: tuple[int | None, ...], behind_ms: int
) -> None:
    room.pass_(STEP_MS)
    known = {name: replace(one, clock_ahead_ms=None if each is None else room.now - room.up_ms + each)
             for (name, one), each in zip(ALL.items(), ahead_ms, strict=True)}
    room.look(known)
    assert {each.floor_ms for each in room.fed} == {room.now - behind_ms - GRACE_MS}


def test_few_rounds_are_open_at_once_and_ranges_take_turns() -> None:
    room = Room(*ring(*["n1 n2 n3"] * 16), partitions=16)
    assert room.look() == LOOK_AGAIN_MS / 1_000
    assert room.begun == list(range(ROUNDS_MAX)) and len(room.movers.rounds.open) == ROUNDS_MAX
    assert room.look() is None, "it was said already"
    assert room.begun == []
    room.pass_(1)
    for unit in (0, 1, 2):
        room._feed(KEYSPACE_PLANE, FloorDue(Address(KEYSPACE_PLANE, (7 << 32) | unit), None))
    room.look()
    assert room.begun == [8, 9, 10], "those that had their turn come again behind the others"


def test_a_cluster_that_rests_begins_no_round(room: Room) -> None:
    room.look(rests=True)
    assert room.fed == []
    room.look()
    assert room.begun == [0, 1]


def test_d70_no_round_begins_while_an_owner_is_away_and_an_open_one_is_given_up(room: Room) -> None:
    room.look({**ALL, "n3": node("n3", up=False)})
    assert room.fed == []
    room.look()
    assert room.begun == [0, 1]
    room.look({**ALL, "n3": replace(node("n3"), member=member("n3", "2"))})
    assert [each.floor_ms for each in room.fed] == [None, None], "another disk is no owner"
    assert room.movers.rounds.open == {}
    room.look()
    assert room.begun == [0, 1]


def test_d70_a_node_that_is_no_owner_is_left_out_once_it_was_away_for_longer_than_hints_are_kept(room: Room) -> None:
    known = {**ALL, "n4": node("n4", up=False)}
    room.look(known)
    room.pass_(WINDOW_MS - 1)
    room.look(known)
    assert room.fed == []
    room.pass_(1)
    room.look(known)
    assert room.begun == [0, 1] and all(member("n4") not in each.nodes for each in room.fed)
    room.look({**ALL, "n4": node("n4")})
    back = Room()
    back.look({**ALL, "n4": node("n4")})
    assert all(member("n4") in each.nodes for each in back.fed) and back.begun == [0, 1]


@pytest.mark.parametrize("other", [
    replace(node("n4", up=False), life=NodeLife.REMOVED), replace(node("n4", up=False), wire_version=1)])
def test_a_node_that_keeps_no_hints_is_not_waited_for(room: Room, other: Node) -> None:
    room.look({**ALL, "n4": other})
    assert room.begun == [0, 1] and all(len(each.nodes) == 3 for each in room.fed)


def test_a_node_that_is_to_come_is_waited_for(room: Room) -> None:
    room.look({**ALL, "n4": to_come("n4")})
    assert room.fed == []


def test_d68_a_range_that_moves_has_no_round(room: Room) -> None:
    one, _ = room.keyspace.units()
    room.put(one, begun(room.records[one], Owners((member("n1"), member("n2"), member("n4")), CARTS_RING.quorum)))
    room.look(nodes(4))
    assert room.begun == [1]


class Unread(dict[int, Range]):
    """Records that are not to be read."""

    def get(self, key: int, default: Any = None) -> Any:
        raise AssertionError("a keyspace without a floor that is due is looked through")


def test_a_keyspace_is_looked_through_when_a_floor_is_due_and_while_ranges_are_missing(room: Room) -> None:
    records, room.records = room.records, {}
    assert room.look() == LOOK_AGAIN_MS / 1_000 and room.begun == []
    room.records = records
    room.look()
    assert room.begun == [0, 1], "an older release stored the keyspace"
    for unit in room.keyspace.units():
        room.put(unit, risen(room.records[unit], room.now - GRACE_MS))
    room.look()
    records, room.records = room.records, Unread()
    room.pass_(STEP_MS - 1)
    room.look()
    assert room.begun == []
    room.records = records
    room.pass_(1)
    room.look()
    assert room.begun == [0, 1]


# --- late floors --------------------------------------------------------------------------------------------------


def test_a_floor_that_is_late_says_by_how_much_and_for_whom_it_waits(room: Room) -> None:
    room.look()
    assert room.keeper.late == {}
    room.pass_(STEP_MS - 1)
    room.look()
    assert room.keeper.late == {}, "its round may still be open"
    room.pass_(1)
    known = {**ALL, "n2": node("n2", up=False)}
    room.look(known)
    why = "owners are away (D70): n2"
    assert room.late == Late(2, STEP_MS, ConditionReason.NODES_AWAY, f"range 0: {why}")
    room.look({**ALL, "n4": node("n4", up=False)})
    assert room.late.why == "range 0: nodes are away that may keep hints (D70): n4"
    one, two = room.keyspace.units()
    room.put(one, risen(room.records[one], room.now - GRACE_MS))
    room.look(known)
    assert room.late == Late(1, STEP_MS, ConditionReason.NODES_AWAY, f"range 1: {why}")
    room.put(two, begun(room.records[two], Owners((member("n1"), member("n2"), member("n4")), CARTS_RING.quorum)))
    room.look(known)
    assert room.late == Late(1, STEP_MS, ConditionReason.RANGES_MOVING, "range 1: it moves (D68)")
    room.put(two, risen(ring("n1 n2 n3")[0], room.now - GRACE_MS)._replace(version=9))
    room.look(known)
    assert room.keeper.late == {}


def test_a_late_floor_says_what_its_round_waits_for(room: Room) -> None:
    room.pass_(STEP_MS)
    room.look(rests=True)
    assert (room.late.reason, room.late.why) == (ConditionReason.PROGRESSING, "range 0: its round comes")
    room.look()
    room.look()
    assert room.late.reason is ConditionReason.ROUND_UNANSWERED
    assert room.late.why == "range 0: hints are left (D69): n1, n2, n3"
    unit = room.keyspace.units()[0]
    number = room.movers.rounds.open[unit]._number

    def say(message: type[Any], *names: str) -> None:
        for name in names:
            at = Address(KEYSPACE_PLANE, unit)
            room.movers.step(0, Received(at, member(name), None, message(unit, number), "boot"))

    say(HintsGone, "n1", "n2", "n3")
    say(Promised, "n1", "n2")
    room.look()
    assert room.late.why == "range 0: promises are missing (D69): n3"
    room.look(rests=True)
    room._feed(KEYSPACE_PLANE, FloorDue(Address(KEYSPACE_PLANE, unit), None))
    room.look(rests=True)
    assert room.late.why == "range 0: promises are missing (D69): n3", "also once it was given up"


# --- put together -------------------------------------------------------------------------------------------------


async def test_d68_floors_of_a_keyspace_rise_and_the_map_has_them(
    service: OperatorService, three: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.objects.apply(CLUSTER + "---" + CARTS % (
        ", tombstoneGraceSeconds: 36000, antiEntropy: {intervalSeconds: 60}"))
    await until(lambda: len(service.ranges()) == 8)
    assert {record.floor_ms for record in service.ranges().values()} == {0}
    created_ms = service.keyspaces()["carts"].created_ms
    three[2].rounds = False
    monkeypatch.setattr(service.floors, "_wall", lambda: created_ms + 3 * 36_000_000)
    monkeypatch.setattr(service.floors, "_rests_ms", {})

    def blocked() -> dict[str, Any]:
        service.poke()
        (item,) = service.show("Keyspace", "carts") or ()
        return next((each for each in item["status"]["conditions"] if each["type"] == "GCBlocked"), {})

    await until(lambda: blocked().get("message") == (
        "Floors of 8 ranges are late, the last one by 19 h: range 0: hints are left (D69): n3."))
    assert blocked()["reason"] == "RoundUnanswered"
    three[2].rounds = True
    await until(lambda: {record.floor_ms for record in service.ranges().values()} == {created_ms + 2 * 36_000_000})
    await until(lambda: all(
        {each.floor_ms for each in one.newest_map.keyspaces[0].ranges} == {created_ms + 2 * 36_000_000}
        for one in three))
    await until(lambda: not blocked())
    assert {record.version for record in service.ranges().values()} == {1}
