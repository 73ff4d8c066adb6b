"""What must always hold, looking from outside: whole-state checks for the simulator and for tests.

Each function raises AssertionError naming the rule.  The cheap ones also run as asserts inside `step`.
Stays out: histories (what was acknowledged, what was read); those are the simulator's checkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ..base.entry import Entry
from ..base.ids import EntryId, Member
from ..limbo.decisions import Decisions
from ..subscriptions.fold import Subscriptions
from .coordinator import Coordinator
from .copies import refuse_copies
from .holding import lacks_rightly
from .leader import Leader
from .log import Log
from .records import Phase, ShardRecord, Status
from .replica import Replica, Role


def check_log(log: Log) -> None:
    """Runs are contiguous and rise in epoch; floor, head and trim point are in order; the tail ends at the head."""
    offset, epoch = -1, 0
    for run in log.runs:
        assert run.first == offset + 1, f"L2: run {run} does not continue offset {offset}"
        assert run.last >= run.first, f"A4: run {run} is empty"
        assert run.epoch > epoch, f"O5: epoch {run.epoch} behind epoch {epoch}"
        offset, epoch = run.last, run.epoch
    assert log.head.offset == offset, f"A4: head {log.head} but runs end at {offset}"
    assert log.contains(log.head), f"H1: head {log.head} is not in its own log"
    assert log.floor.id.offset <= log.head.offset, "O24: committed past the head"
    assert log.first <= log.floor.id.offset + 1, "#281: trimmed past commit"


def check_replica(replica: Replica) -> None:
    """Watermarks are in order: head >= commit >= confirmed >= released >= trim - 1 (A2)."""
    if replica.state.role in (Role.SEEDING, Role.DELETED):
        return
    check_log(replica.log)
    head, commit, confirmed = replica.log.head.offset, replica.commit, replica.confirmed
    assert head >= commit >= confirmed >= replica.released >= replica.log.first - 1, (
        f"A2: head {head}, commit {commit}, confirmed {confirmed}, released {replica.released}, "
        f"trim {replica.log.first}"
    )
    check_decisions(replica.log.decisions, confirmed)
    check_subscriptions(replica.log.subscriptions, confirmed, head)


def check_decisions(decisions: Decisions, confirmed: int) -> None:
    """Ranges are disjoint and in order, and `confirmed` is never inside one (L3, L7)."""
    end = -1
    for found in decisions.ranges:
        assert end < found.first < found.at, f"L7: {found} reaches back to {end}"
        assert not found.first <= confirmed < found.at, f"L3: confirmed {confirmed} lies inside {found}"
        end = found.at


def check_subscriptions(subscriptions: Subscriptions, confirmed: int, head: int) -> None:
    """What is confirmed is decided, what is not waits in log order, and nobody stands behind the log's end (B2)."""
    below = confirmed
    for each in subscriptions.undecided:
        assert below < each.at <= head, f"B2: position at {each.at}, confirmed is {confirmed}, head {head}"
        below = each.at
    for name, position in subscriptions.held.items():
        assert 0 <= position.offset <= confirmed, f"B2: {name} stands at {position}, confirmed is {confirmed}"
        assert position.lease_ms > 0, f"B1: {name} is deleted and held"


def check_leader(leader: Leader) -> None:
    """A leader leads its own ensemble, and no cursor claims more than the log holds."""
    replica = leader.replica
    assert replica.state.role is Role.LEADER, f"O14: leads while {replica.state.role}"
    assert replica.me in leader.ensemble, "LegalLeaderAndEnsemble: the leader is not in its ensemble"
    assert replica.me not in leader.cursors, "ValidMessages: a cursor to oneself"
    for member, cursor in leader.cursors.items():
        assert cursor.match <= leader.head, f"K4: {member} matched {cursor.match}, head is {leader.head}"
        assert cursor.match < cursor.next, f"O6: {member} matched {cursor.match}, next is {cursor.next}"
    limbo = leader.outcomes.limbo
    ordered = [item.last for item in limbo]
    assert ordered == sorted(ordered), "L17: waiting appends are out of log order"
    assert all(item.last > replica.confirmed for item in limbo), "L3: a confirmed entry is in limbo"
    assert limbo.bytes == sum(item.bytes for item in limbo), "limbo: bytes do not add up"
    for item in limbo:
        assert (item.covered is not None) == (replica.log.decisions.covering(item.base) is not None), (
            f"L8: queue and log disagree on the rollback of {item.base}"
        )
        assert item.covered is None or not item.told, f"L15: acknowledged LOCAL entry {item.base} is rolled back"


def check_record(record: ShardRecord) -> None:
    """LegalLeaderAndEnsemble on stored metadata."""
    assert len(set(record.ensemble)) == len(record.ensemble) > 0, "K1: a member holds two slots"
    assert len({member.node for member in record.ensemble}) == len(record.ensemble), "K14: a node holds two slots"
    assert refuse_copies(min(record.copies, len(record.ensemble)), len(record.ensemble)) is None, (
        f"K2: {record.copies} copies among {len(record.ensemble)} members"
    )
    if record.leader is not None:
        assert record.leader in record.ensemble, f"LegalLeaderAndEnsemble: leader {record.leader}"
    assert (record.status is Status.ELECTION) <= (record.leader is None), "O7: a leader during an election"
    if record.change is not None:
        assert record.change.old != record.leader or record.leader is None, "O36: the leader is being swapped out"
        assert record.change.new not in record.ensemble or record.change.new == record.change.old, (
            "O31: the new member is in the ensemble"
        )
        assert record.status is not Status.STEADY, "O27: steady with a change"
        if record.status is Status.ELECTION:
            assert record.change.phase is Phase.COMMIT, "O20: a PREPARE outlived its election"
    assert not set(record.removed) & set(record.ensemble), "#880: a removed member is in the ensemble"


def check_coordinator(coordinator: Coordinator) -> None:
    """What an operator drives agrees with the record it drives it from."""
    if coordinator.record is None:
        return
    check_record(coordinator.record)
    if coordinator.election is not None:
        assert coordinator.record.status is Status.ELECTION, "O7: an election without its record"


def check_payloads(replica: Replica, stored: Iterable[Entry]) -> None:
    """K9: a stored entry lacks its payload only at or below commit, and only where this member is not designated."""
    if replica.state.role in (Role.SEEDING, Role.DELETED):
        return
    assert replica.state.dropped <= replica.commit, f"K8: dropped {replica.state.dropped}, commit is {replica.commit}"
    for entry in stored:
        assert entry.held or lacks_rightly(replica, entry), f"K9: {replica.me} has no payload of {entry.id}"


def check_same_log(one: Iterable[Entry], other: Iterable[Entry], upto: int) -> None:
    """NoLogDivergence: entries at or below `upto` are identical, as far as both logs hold them."""
    theirs = {entry.base: entry for entry in other}
    for entry in one:
        if entry.last <= upto and entry.base in theirs:
            assert entry.header == theirs[entry.base].header, f"NoLogDivergence: entries at {entry.base} differ"
            if entry.held and theirs[entry.base].held:
                assert entry.payload == theirs[entry.base].payload, f"NoLogDivergence: payloads at {entry.base} differ"


def check_contiguous(entries: Sequence[Entry]) -> EntryId | None:
    """Stored entries continue each other, by id and by chained checksum; return the last id."""
    for before, entry in pairwise(entries):
        assert entry.prev == before.id, f"L2: entry {entry.id} behind {before.id} names {entry.prev}"
        assert entry.prev_chain == before.chain, f"entry {entry.id} breaks the chained checksum"
    return entries[-1].id if entries else None


def check_members(record: ShardRecord, answering: Iterable[Member]) -> None:
    """K14: whoever acts for the shard is one of the members the record names."""
    change = record.change
    allowed = {*record.ensemble, *record.removed, *((change.new,) if change and change.new else ())}
    for member in answering:
        assert member in allowed, f"K14: {member} acts for a shard it is no member of"
