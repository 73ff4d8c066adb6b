"""Raising: the operator raises the floor of a range by rounds, gives them up, and a successor begins again."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import Received, Send, SetTimer, TimerFired, Trace
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member
from tidemark_core.base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeUp,
    SaveMetadata,
    SetActive,
)
from tidemark_core.optimistic.floors import HintsAsked, HintsGone, Phase, PromiseAsked, Promised, SyncAsked, Synced
from tidemark_core.optimistic.mover import ASK_MS, TIMER, Movers, Wanted
from tidemark_core.optimistic.moving import Announced, CopyAsked, Known
from tidemark_core.optimistic.raising import ROUND_MS, FloorDue
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished, risen

UNIT = (7 << 32) + 1
AT = Address(KEYSPACE_PLANE, UNIT)
N1, N2, N3, N4 = NODES = tuple(Member(f"n{number}", "life") for number in (1, 2, 3, 4))
OWNERS = (N1, N2, N3)
FIRST = Range(3, Owners(OWNERS, Quorum(3, 2, 2)), None, 100)
NEXT = Owners((N1, N2, N4), Quorum(3, 2, 2))
FLOOR_MS = 5_000
DUE = FloorDue(AT, FLOOR_MS, NODES)
RISEN = risen(FIRST, FLOOR_MS)
STOPPED = SetTimer(AT, TIMER, None)


class Room:
    """A machine that knows one range; `asked` are messages by the member that gets them, of the last event."""

    def __init__(self, record: Range = FIRST, operator: str = "op") -> None:
        self.operator = operator
        self.movers = Movers(operator)
        self.do(SetActive(True))
        self.begun = self.do(MetadataLoaded(AT, RangeRecord(record), 5))

    def do(self, event: Any, now_ms: int = 0) -> list[Any]:
        """Return the effects of an event, without traces."""
        return [each for each in self.movers.step(now_ms, event) if not isinstance(each, Trace)]

    def say(self, message: type[Any], *members: Member) -> list[Any]:
        """Let members answer the round that is open."""
        return [effect for member in members
                for effect in self.do(Received(AT, member, None, message(UNIT, self.number), "boot"))]

    @property
    def number(self) -> int:
        """The number of the round that was begun last."""
        return self._round._number

    @property
    def _round(self) -> Any:
        return self.movers.rounds.open[UNIT]

    def save(self, record: Range, write: int, expected: int = 5) -> SaveMetadata:
        return SaveMetadata(AT, RangeRecord(record, f"{self.operator}#{write}"), expected)

    def to_commit(self) -> list[Any]:
        """Run a round that has begun to its end."""
        self.say(HintsGone, *NODES)
        self.say(Promised, *OWNERS)
        return self.say(Synced, *OWNERS)

    def hints(self, *members: Member) -> list[Any]:
        return [Send(AT, member, HintsAsked(UNIT, self.number, FLOOR_MS)) for member in members]


@pytest.fixture
def room() -> Room:
    return Room()


def test_d68_d69_a_floor_rises_behind_hints_promises_and_exchanges(room: Room) -> None:
    begin = room.do(DUE, 7)
    assert begin == [*room.hints(*NODES), SetTimer(AT, TIMER, 7 + ASK_MS)]
    assert room.say(HintsGone, N1, N2, N3) == [], "N4 may hold a hint"
    assert room.say(HintsGone, N4) == [
        Send(AT, each, PromiseAsked(UNIT, room.number, 3, FLOOR_MS)) for each in OWNERS]
    assert room.say(Promised, N1, N2) == []
    assert room.say(Promised, N3) == [
        Send(AT, each, SyncAsked(UNIT, room.number, 3, tuple(other for other in OWNERS if other != each)))
        for each in OWNERS]
    assert room.say(Synced, N3, N2) == []
    assert room.say(Synced, N1) == [room.save(RISEN, 1)]
    assert room.do(MetadataSaved(AT, "op#1", 6)) == [STOPPED]
    assert room.movers.rounds.open == {}
    assert room.do(DUE) == [STOPPED], "it is there"
    assert room.do(FloorDue(AT, FLOOR_MS - 1, NODES)) == [STOPPED]
    assert room.do(FloorDue(AT, FLOOR_MS + 1, NODES))[:-1] != []


def test_d68_no_round_begins_while_a_move_is_open_and_a_move_ends_one(room: Room) -> None:
    moving = Room(begun(FIRST, NEXT))
    assert [each for each in moving.do(DUE) if isinstance(each, Send)] == [] and not moving.movers.rounds.open
    room.do(DUE)
    room.say(HintsGone, *NODES)
    number = room.number
    assert room.do(Wanted(AT, NEXT)) == [room.save(begun(FIRST, NEXT), 1)]
    asked = room.do(MetadataSaved(AT, "op#1", 6))
    assert room.movers.rounds.open == {}
    assert {type(each.message) for each in asked if isinstance(each, Send)} == {Announced, CopyAsked}
    assert room.do(Received(AT, N1, None, Promised(UNIT, number), "boot")) == []


def test_d68_a_record_of_another_operator_ends_the_round_and_its_write_fails(room: Room) -> None:
    room.do(DUE)
    assert room.to_commit() == [room.save(RISEN, 1)]
    assert room.do(MetadataUncertain(AT, "op#1")) == [LoadMetadata(AT)]
    other = finished(begun(FIRST, NEXT))
    effects = room.do(MetadataLoaded(AT, RangeRecord(other, "other#1"), 9, fresh=True))
    assert effects == [STOPPED] and room.movers.rounds.open == {}


def test_a_write_that_was_not_stored_is_made_again(room: Room) -> None:
    room.do(DUE)
    room.to_commit()
    room.do(MetadataUncertain(AT, "op#1"))
    assert room.do(MetadataLoaded(AT, RangeRecord(FIRST), 5, fresh=True)) == [room.save(RISEN, 2)]


def test_one_round_of_a_range_is_open_at_a_time_and_what_is_not_answered_is_asked_again(room: Room) -> None:
    room.do(DUE)
    number = room.number
    room.say(HintsGone, N1)
    room.do(FloorDue(AT, FLOOR_MS + 9, NODES))
    assert room.number == number
    again = room.do(TimerFired(AT, TIMER), 50)
    assert again == [*room.hints(N2, N3, N4), SetTimer(AT, TIMER, 50 + ASK_MS)]
    assert room.do(NodeUp(N3, "boot")) == room.hints(N3), "a node that comes is asked at once"
    assert room.do(NodeUp(N1, "boot")) == []


@pytest.mark.parametrize("late", [True, False])
def test_d70_a_round_that_lasts_too_long_is_given_up_and_says_for_whom_it_waited(room: Room, late: bool) -> None:
    room.do(DUE, 40)
    room.say(HintsGone, N1, N2, N3)
    if late:
        assert len(room.do(TimerFired(AT, TIMER), 39 + ROUND_MS)) == 2
        assert room.do(TimerFired(AT, TIMER), 40 + ROUND_MS) == [STOPPED]
    else:
        assert room.do(FloorDue(AT, None)) == [STOPPED]
    assert room.movers.rounds.open == {}
    ended = room.movers.rounds.given_up[UNIT]
    assert (ended.phase, ended.waits) == (Phase.HINTS, (N4,))
    room.do(DUE)
    assert room.number != ended._number
    room.to_commit()
    room.do(MetadataSaved(AT, "op#1", 6))
    assert room.movers.rounds.given_up == {}, "the floor is there"


def test_d69_d70_a_successor_begins_again_and_its_rounds_have_other_numbers(room: Room) -> None:
    """An owner that has ended an exchange for one round answers that round again at once."""
    room.do(DUE)
    room.say(HintsGone, *NODES)
    successor = Room(operator="other")
    assert successor.begun == [STOPPED]
    assert successor.do(DUE)[:-1] == successor.hints(*NODES)
    assert successor.number != room.number
    assert successor.do(Received(AT, N1, None, HintsGone(UNIT, room.number), "boot")) == []
    assert successor.to_commit() == [successor.save(RISEN, 1)]
    numbers = {next(Movers(f"op-{name}").rounds.numbers) for name in range(100)}
    assert len(numbers) == 100 and max(numbers) < 1 << 63, "a message carries 64 bits"


def test_an_operator_without_the_lease_begins_nothing_and_goes_on_with_it(room: Room) -> None:
    room.do(DUE)
    room.do(SetActive(False))
    assert room.say(HintsGone, N1) == [] and room.do(TimerFired(AT, TIMER)) == [STOPPED]
    assert room.do(SetActive(True)) == [*room.hints(*NODES), SetTimer(AT, TIMER, ASK_MS)]
    idle = Room()
    idle.do(SetActive(False))
    assert idle.do(DUE) == [] and idle.movers.rounds.open == {}


def test_nothing_is_raised_while_a_member_knows_a_newer_record(room: Room) -> None:
    room.do(Received(AT, N1, None, Known(UNIT, 4), "boot"))
    assert room.do(DUE) == [] and room.movers.rounds.open == {}
    with_round = Room()
    with_round.do(DUE)
    with_round.do(Received(AT, N1, None, Known(UNIT, 4), "boot"))
    assert with_round.to_commit() == []


def test_a_range_that_was_deleted_is_forgotten(room: Room) -> None:
    room.do(DUE)
    room.do(FloorDue(AT, None))
    room.do(DUE)
    assert room.do(MetadataLoaded(AT, None, 0)) == [STOPPED]
    assert room.movers.rounds.open == room.movers.rounds.given_up == {}
    assert room.do(DUE) == []
