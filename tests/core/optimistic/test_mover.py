"""Movers: the operator's machine moves a range by compare-and-swap, asks until it is answered, and forgets safely."""

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
    NodeDown,
    NodeUp,
    SaveMetadata,
    SetActive,
)
from tidemark_core.optimistic.mover import ASK_MS, TIMER, Movers, Wanted
from tidemark_core.optimistic.moving import Announced, Copied, CopyAsked, Known
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Quorum, Range, aborted, begun, finished

UNIT = (7 << 32) + 1
AT = Address(KEYSPACE_PLANE, UNIT)
N1, N2, N3, N4 = (Member(f"n{number}", "life") for number in (1, 2, 3, 4))
OWN = Owners((N1, N2, N3), Quorum(3, 2, 2))
NEXT = Owners((N1, N2, N4), Quorum(3, 2, 2))
FIRST = Range(1, OWN)
MOVING = begun(FIRST, NEXT)


class Room:
    """A machine that knows one range."""

    def __init__(self, record: Range = FIRST) -> None:
        self.movers = Movers("op")
        self.do(SetActive(True))
        self.begun = self.do(MetadataLoaded(AT, RangeRecord(record), 5))

    def do(self, event: Any, now_ms: int = 0) -> list[Any]:
        """Return the effects of an event, without traces."""
        return [each for each in self.movers.step(now_ms, event) if not isinstance(each, Trace)]

    def say(self, sender: Member, message: Any) -> list[Any]:
        return self.do(Received(AT, sender, None, message, "boot"))

    @property
    def record(self) -> Range:
        found = self.movers.units[UNIT].record
        assert found is not None
        return found.range

    def copy(self, *members: Member) -> list[Any]:
        return [each for member in members for each in self.say(member, Copied(UNIT, self.record.version))]

    def know(self, *members: Member) -> list[Any]:
        return [each for member in members for each in self.say(member, Known(UNIT, self.record.version))]


def save(record: Range, write: int, expected: int) -> SaveMetadata:
    return SaveMetadata(AT, RangeRecord(record, f"op#{write}"), expected)


def asked(record: Range) -> list[Any]:
    """Return all that the members of a move are asked."""
    assert record.pending is not None
    return [
        *(Send(AT, each, Announced(UNIT, record)) for each in record.members),
        *(Send(AT, each, CopyAsked(UNIT, record.version)) for each in record.pending.members)]


def test_d63_d67_a_range_is_moved_to_the_owners_that_are_wanted() -> None:
    room = Room()
    assert room.begun == [SetTimer(AT, TIMER, None)]
    assert room.do(Wanted(AT, NEXT)) == [save(MOVING, 1, 5)]
    assert room.do(Wanted(AT, NEXT)) == [], "it is being written"
    assert room.do(MetadataSaved(AT, "op#1", 6), 100) == [*asked(MOVING), SetTimer(AT, TIMER, 100 + ASK_MS)]
    assert room.know(N1, N2, N4) + room.copy(N1, N2) == []
    assert room.copy(N4) == [save(finished(MOVING), 2, 6)]
    assert room.do(MetadataSaved(AT, "op#2", 7)) == [SetTimer(AT, TIMER, None)]
    assert room.record == Range(3, NEXT)
    assert room.do(Wanted(AT, NEXT)) == []


def test_d67_a_move_waits_for_every_copy_and_for_enough_owners_that_know_of_it() -> None:
    room = Room(MOVING)
    assert room.begun[:-1] == asked(MOVING), "a successor asks again"
    assert room.copy(N1, N2, N4) + room.know(N1, N4) == [], "one owner of two that are needed"
    assert room.say(N2, Known(UNIT, 1)) == [], "of the record before"
    assert room.know(N2) == [save(finished(MOVING), 1, 5)]


def test_d67_an_owner_that_is_gone_counts_as_one_that_knows() -> None:
    room = Room(MOVING)
    assert room.copy(N1, N2, N4) + room.know(N1) == []
    assert room.do(Wanted(AT, None, frozenset({N3}))) == [save(finished(MOVING), 1, 5)]


def test_d67_a_copy_of_another_version_counts_for_nothing() -> None:
    room = Room(MOVING)
    for version in (1, 3):
        assert [each for member in NEXT.members for each in room.say(member, Copied(UNIT, version))] == []
    assert room.know(*OWN.members) == []
    again = begun(aborted(MOVING), NEXT)
    room.copy(N1, N2)
    room.do(MetadataLoaded(AT, RangeRecord(again), 9))
    assert room.know(*OWN.members) + room.copy(N4) == [], "what N1 and N2 copied was of version 2"
    assert room.copy(N1, N2) == [save(finished(again), 1, 9)]


def test_d67_a_move_to_a_member_that_is_gone_is_aborted_and_another_one_begins() -> None:
    room = Room(MOVING)
    other = Member("n4", "another-life")
    assert room.do(Wanted(AT, None, frozenset({N4}))) == [save(aborted(MOVING), 1, 5)]
    assert room.do(MetadataSaved(AT, "op#1", 6)) == [SetTimer(AT, TIMER, None)]
    wanted = Owners((N1, N2, other), NEXT.quorum)
    assert room.do(Wanted(AT, wanted)) == [save(begun(aborted(MOVING), wanted), 2, 6)]


def test_d63_a_move_that_cannot_keep_the_promise_does_not_begin() -> None:
    room = Room()
    assert room.do(Wanted(AT, Owners((N1, N2, N4), Quorum(3, 1, 1)))) == []
    assert room.do(Wanted(AT, OWN)) == []
    assert room.do(Wanted(AT, None)) == []


def test_what_is_not_answered_is_asked_again_and_nothing_else() -> None:
    room = Room(MOVING)
    room.know(N1, N2, N4)
    room.copy(N1, N2)
    assert room.do(TimerFired(AT, TIMER), 50) == [
        Send(AT, N3, Announced(UNIT, MOVING)), Send(AT, N4, CopyAsked(UNIT, 2)), SetTimer(AT, TIMER, 50 + ASK_MS)]
    assert room.do(NodeUp(N4, "boot")) == [Send(AT, N4, CopyAsked(UNIT, 2))], "a node that comes is asked at once"
    assert room.do(NodeUp(Member("n9", "x"), "boot")) == room.do(NodeDown("n4")) == []


@pytest.mark.parametrize("stored", [MOVING, aborted(MOVING)])
def test_d63_a_write_that_lost_its_race_is_read_back_and_what_is_stored_counts(stored: Range) -> None:
    room = Room()
    room.do(Wanted(AT, NEXT))
    assert room.do(MetadataUncertain(AT, "op#9")) == [], "another write"
    assert room.do(MetadataUncertain(AT, "op#1")) == [LoadMetadata(AT)]
    effects = room.do(MetadataLoaded(AT, RangeRecord(stored, "other"), 8, fresh=True), 7)
    assert room.record == stored and effects[-1] == SetTimer(AT, TIMER, 7 + ASK_MS if stored.pending else None)
    assert not [each for each in effects if isinstance(each, SaveMetadata)], "the wish was for another record"


def test_d63_a_write_that_was_not_stored_is_made_again() -> None:
    room = Room()
    room.do(Wanted(AT, NEXT))
    room.do(MetadataUncertain(AT, "op#1"))
    assert room.do(MetadataLoaded(AT, RangeRecord(FIRST), 5, fresh=True)) == [save(MOVING, 2, 5)]


def test_an_older_record_that_comes_late_changes_nothing() -> None:
    room = Room(MOVING)
    assert room.do(MetadataLoaded(AT, RangeRecord(FIRST), 4)) == []
    assert room.record == MOVING


def test_d63_nothing_is_written_while_a_member_knows_a_newer_record() -> None:
    room = Room(MOVING)
    room.copy(N1, N2, N4)
    traces = room.movers.step(0, Received(AT, N1, None, Known(UNIT, 4), "boot"))
    assert traces == [Trace(AT, "range_behind", f"{N1} has version 4, the metadata store has 2")]
    assert room.say(N1, Known(UNIT, 4)) + room.know(N2, N3, N4) == []
    newest = Range(4, NEXT)
    assert room.do(MetadataLoaded(AT, RangeRecord(newest), 9)) == [SetTimer(AT, TIMER, None)]
    other = Owners((N1, N3, N4), OWN.quorum)
    assert room.do(Wanted(AT, other)) == [save(begun(newest, other), 1, 9)]


def test_an_operator_without_the_lease_does_nothing_and_goes_on_with_it() -> None:
    room = Room(MOVING)
    room.do(SetActive(False))
    assert room.do(TimerFired(AT, TIMER)) == [SetTimer(AT, TIMER, None)]
    assert room.copy(N1, N2, N4) + room.know(N1, N2) == []
    assert room.do(SetActive(True)) == [
        save(finished(MOVING), 1, 5), Send(AT, N3, Announced(UNIT, MOVING)), Send(AT, N4, Announced(UNIT, MOVING)),
        SetTimer(AT, TIMER, ASK_MS)]


def test_a_range_that_was_deleted_is_forgotten() -> None:
    room = Room(MOVING)
    assert room.do(MetadataLoaded(AT, None, 0)) == [SetTimer(AT, TIMER, None)]
    assert room.movers.units == {}
    assert room.do(Wanted(AT, NEXT)) == room.do(TimerFired(AT, TIMER)) == room.do(MetadataLoaded(AT, None, 0)) == []
