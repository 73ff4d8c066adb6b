"""The alarms ring: each check passes on what is right and fails on one planted fault, naming its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.limbo.decisions import Decisions, Range
from tidemark_core.replication.checkpoint import Run
from tidemark_core.replication.invariants import (
    check_contiguous,
    check_decisions,
    check_leader,
    check_log,
    check_members,
    check_record,
    check_replica,
    check_same_log,
    check_subscriptions,
)
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.log import Log
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status
from tidemark_core.replication.replica import Role
from tidemark_core.subscriptions.fold import Position

from tests.core.support import A, Author, B, C, D, E, Node, batch, lead, serving

STEADY = ShardRecord(5, 50, Status.STEADY, (A, B, C), A)
SWAPPING = replace(STEADY, status=Status.RECONFIGURATION, change=Change(Operation.SWAP, Phase.PREPARE, C, D))


def sound_log() -> Log:
    author = Author(epoch=1)
    author.opening()
    author.data(3)
    author.opening(epoch=2)
    author.log.settle(3)
    return author.log


def fault(name: str, value: Any) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (fault("runs", [Run(1, 0, 2), Run(2, 4, 4)]), "L2"),
        (fault("runs", [Run(1, 0, 3), Run(2, 4, 3)]), "A4"),
        (fault("runs", [Run(2, 0, 3), Run(1, 4, 4)]), "O5"),
        (fault("runs", [Run(1, 0, 3)]), "A4"),
        (fault("runs", [Run(1, 0, 3), Run(3, 4, 4)]), "H1"),
        (fault("first", 5), "#281"),
    ],
)
def test_o5_a4_a_broken_log_is_noticed(plant: Callable[[Log], None], rule: str) -> None:
    log = sound_log()
    check_log(log)
    plant(log)

    with pytest.raises(AssertionError, match=rule):
        check_log(log)


def test_o26_a_commit_past_the_head_is_noticed(node: Node) -> None:
    lead(node)
    replica = node.replica
    check_replica(replica)
    replica.commit = 9

    with pytest.raises(AssertionError, match="A2"):
        check_replica(replica)
    replica.commit = 0


def test_a2_watermarks_out_of_order_are_noticed(node: Node) -> None:
    lead(node)
    replica = node.replica
    for watermark, wrong in (("commit", 9), ("confirmed", 9), ("released", 9), ("released", replica.log.first - 2)):
        check_replica(replica)
        right = getattr(replica, watermark)
        setattr(replica, watermark, wrong)

        with pytest.raises(AssertionError, match="A2"):
            check_replica(replica)
        setattr(replica, watermark, right)


def plant_role(leader: Leader) -> None:
    leader.replica.update(role=Role.FOLLOWER)


def plant_stranger(leader: Leader) -> None:
    leader.replica.update(ensemble=(B, C))


def plant_cursor_to_oneself(leader: Leader) -> None:
    leader.cursors[A] = leader.cursors[B]


def plant_match(leader: Leader) -> None:
    leader.cursors[B].match = 9
    leader.cursors[B].next = 10


def plant_next(leader: Leader) -> None:
    leader.cursors[B].next = -1


def plant_order(leader: Leader) -> None:
    leader.outcomes.limbo._queue.reverse()


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (plant_role, "O14"), (plant_stranger, "LegalLeaderAndEnsemble"), (plant_cursor_to_oneself, "ValidMessages"),
        (plant_match, "K4"), (plant_next, "O6"), (plant_order, "L17"),
    ],
)
def test_o6_k4_a_leader_in_an_impossible_state_is_noticed(plant: Callable[[Leader], None], rule: str) -> None:
    node = Node(A)
    leader = lead(node)
    node.append(1, batch(0))
    node.append(2, batch(1))
    assert 2 == len(leader.outcomes.limbo)
    check_leader(leader)
    plant(leader)

    with pytest.raises(AssertionError, match=rule):
        check_leader(leader)


def plant_bytes(leader: Leader) -> None:
    leader.outcomes.limbo.bytes += 1


def plant_confirmed(leader: Leader) -> None:
    next(iter(leader.outcomes.limbo)).last = 0


def plant_rollback_of_the_queue(leader: Leader) -> None:
    next(iter(leader.outcomes.limbo)).covered = Range(1, 3)


def plant_rollback_of_the_log(leader: Leader) -> None:
    leader.replica.log.decisions.ranges.append(Range(1, 3))


def plant_rollback_of_what_was_told(leader: Leader) -> None:
    for item in leader.outcomes.limbo:
        item.covered, item.told = Range(1, 3), True
    leader.replica.log.decisions.ranges.append(Range(1, 3))


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (plant_bytes, "bytes do not add up"), (plant_confirmed, "L3"), (plant_rollback_of_the_queue, "L8"),
        (plant_rollback_of_the_log, "L8"), (plant_rollback_of_what_was_told, "L15"),
    ],
)
def test_l3_l8_l15_a_limbo_in_an_impossible_state_is_noticed(plant: Callable[[Leader], None], rule: str) -> None:
    node = Node(A)
    leader = serving(node, quorum="N")
    node.append(1, batch(0))
    node.append(2, batch(1))
    check_leader(leader)
    plant(leader)

    with pytest.raises(AssertionError, match=rule):
        check_leader(leader)


@pytest.mark.parametrize(
    ("ranges", "confirmed", "rule"),
    [
        ([Range(1, 3), Range(3, 5)], 9, "L7"), ([Range(1, 3), Range(2, 5)], 9, "L7"), ([Range(3, 3)], 9, "L7"),
        ([Range(4, 6), Range(1, 3)], 9, "L7"), ([Range(1, 3)], 1, "L3"), ([Range(1, 3)], 2, "L3"),
    ],
)
def test_l3_l7_decisions_that_overlap_and_a_watermark_inside_one_are_noticed(
    ranges: list[Range], confirmed: int, rule: str
) -> None:
    decisions = Decisions()
    for sound in ([], [Range(1, 3), Range(4, 6)]):
        decisions.ranges = list(sound)
        for outside in (-1, 0, 3, 6, 9):
            check_decisions(decisions, outside)
    decisions.ranges = ranges

    with pytest.raises(AssertionError, match=rule):
        check_decisions(decisions, confirmed)


@pytest.mark.parametrize(
    ("confirmed", "head", "held", "rule"),
    [
        (2, 4, Position(1, 0, 1_000), "B2: position at 2"), (1, 3, Position(1, 0, 1_000), "B2: position at 4"),
        (1, 4, Position(2, 0, 1_000), "B2: one stands"), (1, 4, Position(1, 0, 0), "B1"),
    ],
)
def test_subscriptions_stand_on_what_is_confirmed(confirmed: int, head: int, held: Position, rule: str) -> None:
    """Rule B2: one is confirmed, another waits at 2 and again at 4."""
    author = Author()
    author.data(2)
    author.position("waits", 0)
    author.data()
    author.position("waits", 1)
    subscriptions = author.log.subscriptions
    subscriptions.held["one"] = Position(1, 0, 1_000)
    check_subscriptions(subscriptions, 1, 4)
    subscriptions.held["one"] = held

    with pytest.raises(AssertionError, match=rule):
        check_subscriptions(subscriptions, confirmed, head)


@pytest.mark.parametrize("record", [STEADY, SWAPPING, replace(STEADY, status=Status.ELECTION, leader=None)])
def test_a_sound_record_passes(record: ShardRecord) -> None:
    check_record(record)


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (replace(STEADY, ensemble=()), "K1"),
        (replace(STEADY, ensemble=(A, B, B)), "K1"),
        (replace(STEADY, ensemble=(A, B, Member("b", "b-disk2"))), "K14"),
        (replace(STEADY, leader=D), "LegalLeaderAndEnsemble"),
        (replace(STEADY, status=Status.ELECTION), "O7"),
        (replace(SWAPPING, change=Change(Operation.SWAP, Phase.PREPARE, A, D)), "O36"),
        (replace(SWAPPING, change=Change(Operation.SWAP, Phase.PREPARE, C, B)), "O31"),
        (replace(SWAPPING, status=Status.STEADY), "O27"),
        (replace(SWAPPING, status=Status.ELECTION, leader=None), "O20"),
        (replace(STEADY, removed=(B,)), "#880"),
    ],
)
def test_o27_o36_an_illegal_record_is_noticed(record: ShardRecord, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_record(record)


def test_logs_that_differ_below_commit_are_noticed_and_above_it_are_not() -> None:
    one = Author(epoch=1)
    one.opening()
    one.data(payload=b"same")
    other = one.fork(EntryId(1, 1), 1)
    one.data(payload=b"x")
    other.data(payload=b"y")
    check_same_log(one.entries, other.entries, upto=1)

    with pytest.raises(AssertionError, match="NoLogDivergence"):
        check_same_log(one.entries, other.entries, upto=2)


def test_l2_stored_entries_that_do_not_continue_each_other_are_noticed() -> None:
    author = Author()
    for _ in range(3):
        author.data()
    other = Author()
    other.data(payload=b"x")
    assert EntryId(1, 2) == check_contiguous(author.entries)
    assert check_contiguous([]) is None

    with pytest.raises(AssertionError, match="L2"):
        check_contiguous([author.entries[0], author.entries[2]])
    with pytest.raises(AssertionError, match="chained checksum"):
        check_contiguous([other.entries[0], author.entries[1]])


def test_k14_a_stranger_that_acts_for_a_shard_is_noticed() -> None:
    check_members(replace(SWAPPING, removed=(E,)), [A, B, C, D, E])

    with pytest.raises(AssertionError, match="K14"):
        check_members(STEADY, [A, Member("b", "b-disk2")])
