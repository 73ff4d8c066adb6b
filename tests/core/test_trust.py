"""Rule T10: what a node with a valid certificate may say about a shard that it is no member of: nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import Effect, LogReadFailed, Received, Send, SnapshotChunk, SnapshotDescriptor, Trace
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import LOG_PLANE, NOTHING, Address, EntryId, Member
from tidemark_core.base.metadata import NodeDown
from tidemark_core.base.plane import STRANGER_REFUSED, NodeFacts
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NodeCore
from tidemark_core.replication.coordinator import RunningChange
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    AppendRefused,
    Commit,
    DeleteShard,
    Fence,
    Fetch,
    Fetched,
    InstallSnapshot,
    Operation,
    Prepare,
    ReadRound,
    Rejected,
    Truncate,
)
from tidemark_core.replication.records import Change, Phase, first_record
from tidemark_core.replication.replica import Role
from tidemark_core.replication.trust import FROM_LEADERS, STANDINGS, Standing
from tidemark_sim.dice import Dice
from tidemark_sim.forging import Known, forged, rewritten
from tidemark_wire.convert import PLANE_CODECS

from tests.core.replication.test_coordinator import Desk
from tests.core.support import (
    OPERATOR,
    SHARD,
    A,
    Author,
    B,
    C,
    Cluster,
    D,
    E,
    Node,
    answer_reads,
    append_of,
    batch,
    fence,
    lead,
)

STRANGER = Member("x", "x-disk1")
FORGERIES = 40


def fence_naming(node: Node, epoch: int, members: tuple[Member, ...]) -> None:
    node.receive(OPERATOR, Fence(epoch, epoch * 10, 0, members))
    node.complete()


def a_log(node: Node) -> Author:
    """Let b push a log of epoch 1 to the node, confirmed."""
    author = Author()
    author.opening()
    for _ in range(4):
        author.data(2)
    fence_naming(node, 1, (A, B, C))
    node.receive(B, append_of(author.entries, 1, 8))
    node.complete()
    return author


def follows(node: Node) -> Author:
    return a_log(node)


def is_fenced(node: Node) -> Author:
    author = a_log(node)
    fence_naming(node, 2, (A, B, C))
    return author


def leads(node: Node) -> Author:
    author = a_log(node)
    fence_naming(node, 2, (A, B, C))
    lead(node, 2, followers=[(B, author.log.head), (C, EntryId(1, 2))])
    node.append(1, batch(99))
    node.complete()
    return author


def prepares(node: Node) -> Author:
    author = leads(node)
    node.receive(OPERATOR, Prepare(3, 30, Operation.SWAP, C, D))
    node.complete()
    return author


def is_seeding(node: Node) -> Author:
    author = Author()
    author.opening()
    descriptor = SnapshotDescriptor(2, EntryId(1, 9), 0, -1, 0)
    node.receive(OPERATOR, InstallSnapshot(2, 20, B, descriptor))
    node.complete()
    return author


def asks(node: Node) -> Author:
    author = a_log(node)
    node.step(LogReadFailed(SHARD, None, 1))
    return author


SITUATIONS = (follows, is_fenced, leads, prepares, is_seeding, asks)


def facts(node: Node) -> tuple[Any, ...]:
    replica, leader = node.replica, node.shard.leader
    cursors = {} if leader is None else {
        member: (cursor.match, cursor.next, cursor.status, cursor.absent) for member, cursor in leader.cursors.items()}
    return (
        replica.state, replica.log.head, replica.log.first, replica.commit, replica.confirmed, leader, cursors,
        replica.fetches.open, len(node.queue), len(node.reads), len(node.pulls), list(node.sent),
    )


def is_refused(effects: list[Effect]) -> bool:
    return [(Trace, STRANGER_REFUSED)] == [(type(each), getattr(each, "what", "")) for each in effects]


# --- every kind of message ------------------------------------------------------------------------------------


def test_t10_every_kind_of_message_has_a_standing_or_is_for_operators_alone() -> None:
    """A kind without a row in the tables is taken from no sender."""
    for number, plane in NodeCore(NodeFacts(A)).planes.items():
        assert plane.voices, f"plane {number} names who may speak"
    kinds = {Append, AppendAck, *PLANE_CODECS[LOG_PLANE].by_message}
    unnamed = {kind for kind in kinds if kind not in STANDINGS}

    assert set(STANDINGS) <= kinds
    assert {
        "Fenced", "BecameLeader", "FollowerAdded", "Prepared", "SnapshotProgress", "SnapshotInstalled", "Committed",
        "CommitPending", "Aborted", "TransferReady", "ShardDeleted", "Rejected", "Reach", "DiskReport", "Draining",
    } == {kind.__name__ for kind in unnamed}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("kind", STANDINGS, ids=lambda kind: kind.__name__)
def test_t10_nothing_that_a_stranger_says_has_an_effect(
    node: Node, kind: type, situation: Callable[[Node], Author]
) -> None:
    author = situation(node)
    replica, dice = node.replica, Dice(7)
    numbers = (replica.state.epoch, replica.state.epoch + 1, replica.log.head.offset, replica.commit)
    known = Known(numbers, (A, B, C, STRANGER), [*author.entries, *map(rewritten, author.entries)])
    node.take_sent()
    before = facts(node)
    for _ in range(FORGERIES):
        message = forged(kind, dice, known)
        effects = node.receive(STRANGER, message)
        if kind in FROM_LEADERS and message.epoch < replica.state.epoch:
            stale = AppendRefused(message.epoch, replica.state.epoch, NOTHING, Reason.STALE_EPOCH)
            assert [(STRANGER, stale)] == [(each.to, each.message) for each in effects], f"{message}"
            node.take_sent()
        else:
            assert is_refused(effects), f"{message}: {effects}"
        assert before == facts(node), f"{message}"


@pytest.mark.parametrize("kind", STANDINGS, ids=lambda kind: kind.__name__)
def test_t10_operators_and_nodes_do_not_speak_for_each_other(node: Node, kind: type) -> None:
    a_log(node)
    message = forged(kind, Dice(3), Known((1, 2), (A, B, C), []))
    sender = B if STANDINGS[kind] is Standing.OPERATOR else OPERATOR

    assert is_refused(node.receive(sender, message))


def test_t10_a_message_that_no_plane_names_is_refused(node: Node) -> None:
    a_log(node)
    for sender in (B, OPERATOR):
        assert is_refused(node.receive(sender, object()))
    assert [] == [
        each for each in node.step(Received(Address(9, 1), STRANGER, A, Fetch(0, 1))) if not isinstance(each, Trace)]


# --- the attacks ----------------------------------------------------------------------------------------------


def test_t10_an_append_of_a_stranger_uses_up_no_epoch_and_writes_no_entry(node: Node) -> None:
    author = follows(node)
    more = author.data()
    for epoch in (1, 2, (1 << 32) - 1, (1 << 64) - 1):
        assert is_refused(node.receive(STRANGER, append_of([more], epoch)))
        assert is_refused(node.receive(STRANGER, Truncate(epoch, NOTHING)))
    assert (1, 8) == (node.replica.state.epoch, node.replica.log.head.offset)


def test_t10_n12_an_entry_of_a_later_epoch_than_its_message_is_refused(node: Node) -> None:
    author = follows(node)
    later = author.fork(author.log.head, (1 << 64) - 1).data()
    effects = node.receive(B, append_of([later], 1))

    assert ["violation"] == [each.what for each in effects if isinstance(each, Trace)]
    assert 8 == node.replica.log.head.offset


def test_t10b_an_answer_that_was_not_asked_for_trims_and_rewrites_nothing(node: Node) -> None:
    author = follows(node)
    for sender in (B, STRANGER):
        for entry in author.entries:
            node.receive(sender, Fetched(entry.base, rewritten(entry)))
        node.receive(sender, Fetched(0, None, 1 << 60))
    node.complete()

    assert author.entries == node.stored()
    assert 0 == node.replica.log.first


def test_t10b_an_answer_counts_once_for_its_offset_and_its_member(node: Node) -> None:
    author = asks(node)
    assert [(B, 1), (C, 1)] == node.replica.fetches.open
    node.receive(B, Fetched(3, None, 1 << 60))
    assert 0 == node.replica.log.first, "another offset"
    node.receive(C, Fetched(1, None))
    node.receive(C, Fetched(1, None, 3))
    assert 0 == node.replica.log.first, "its question is answered"
    node.receive(B, Fetched(1, author.entries[1]))
    answer_reads(node)
    assert 1 == node.traces["entry_repaired"]
    assert [] == node.replica.fetches.open


def test_t10b_a_copy_is_compared_with_the_headers_around_it(node: Node) -> None:
    """A member that was asked answers with another entry of that place, whose checksums are right."""
    author = asks(node)
    for entry in (author.entries[1], author.entries[-1]):
        node.step(LogReadFailed(SHARD, None, entry.base))
        node.receive(B, Fetched(entry.base, rewritten(entry)))
        answer_reads(node)
        longer = _longer(entry)
        node.step(LogReadFailed(SHARD, None, entry.base))
        node.receive(C, Fetched(entry.base, longer))
        answer_reads(node)

    assert author.entries == node.stored()
    assert 0 == node.traces["entry_repaired"]
    assert node.traces["violation"] >= 3


def test_t10b_a_copy_of_what_was_trimmed_meanwhile_is_left_alone(node: Node) -> None:
    """The header behind it, which would judge it, went with the trim."""
    author = asks(node)
    node.receive(B, Fetched(1, author.entries[1]))
    node.receive(B, append_of([], 1, 8, trim=5, prev=author.log.head))
    node.complete()
    assert 5 == node.replica.log.first

    answer_reads(node)

    assert 0 == node.traces["violation"] == node.traces["entry_repaired"]
    assert author.entries[3:] == node.stored()


def _longer(entry: Entry) -> Entry:
    """Return an entry in the same place that takes the first offset of the next one too."""
    return rewritten(entry._replace(count=entry.count + 1))


def test_t10b_next_to_another_damaged_entry_the_member_that_was_asked_is_believed(node: Node) -> None:
    author = asks(node)
    node.damage(1)
    node.damage(3)
    node.receive(B, Fetched(1, author.entries[1]))
    answer_reads(node)
    node.step(LogReadFailed(SHARD, None, 3))
    node.receive(C, Fetched(3, author.entries[2]))
    answer_reads(node)

    assert author.entries == node.stored()


@pytest.mark.parametrize("own_epoch", [3, 1 << 33, 1 << 63, (1 << 64) - 1])
def test_t10c_no_refusal_of_a_stranger_deposes_a_leader(node: Node, own_epoch: int) -> None:
    leads(node)
    assert is_refused(node.receive(STRANGER, AppendRefused(2, own_epoch, NOTHING, Reason.STALE_EPOCH)))
    assert node.leads


def test_t10c_n12_a_follower_deposes_its_leader_only_by_an_epoch_that_can_be(node: Node) -> None:
    leads(node)
    node.receive(B, AppendRefused(2, 1 << 63, NOTHING, Reason.STALE_EPOCH))
    assert node.leads
    node.receive(B, AppendRefused(2, 3, NOTHING, Reason.STALE_EPOCH))
    assert Role.DEPOSED is node.replica.state.role


def test_t10c_an_operator_heeds_no_stranger() -> None:
    desk = Desk()
    desk.steady()
    refusal = Refused(Reason.STALE_EPOCH, "", 1 << 40, desk.record.epoch + 1)
    for epoch in (desk.record.epoch, 1):
        for message in (Rejected(epoch, "Fence", refusal), Rejected(epoch, "Fence", replace(refusal, expected=-1))):
            assert is_refused(desk.hear(STRANGER, message))
    assert desk.shard.settled


@pytest.mark.parametrize("situation", SITUATIONS)
def test_t10d_a_stranger_pulls_nothing(node: Node, situation: Callable[[Node], Author]) -> None:
    situation(node)
    assert node.core is not None
    refused = node.core.log.pull_refused(SHARD, STRANGER)

    assert refused is not None
    assert STRANGER_REFUSED == refused.what
    assert node.core.log.pull_refused(SHARD, B) is None


def test_t10d_a_pull_of_an_earlier_epoch_gets_nothing(node: Node) -> None:
    """A later leader may have replaced what the pull asks for; the member that pulls hears of that epoch first."""
    follows(node)
    assert node.core is not None
    entries, epoch = node.stored(), node.replica.state.epoch
    assert entries and (tuple(entries), True) == node.core.log.snapshot_part(SHARD, epoch, entries)
    assert ((), False) == node.core.log.snapshot_part(SHARD, epoch - 1, entries)
    fence_naming(node, epoch + 1, (A, B, C))
    assert ((), False) == node.core.log.snapshot_part(SHARD, epoch, entries)
    assert (tuple(entries), True) == node.core.log.snapshot_part(SHARD, epoch + 1, entries)


@pytest.mark.parametrize("epoch", range(4))
@pytest.mark.parametrize("base", [0, 3, 99])
def test_t10d_a_tombstone_answers_a_fetch_at_once_and_reads_nothing(node: Node, base: int, epoch: int) -> None:
    """A read that it begins would be answered by the replica that it is then: it may be seeded again meanwhile."""
    follows(node)
    node.receive(OPERATOR, DeleteShard(2, 20))
    effects = node.receive(STRANGER, Fetch(base, epoch))
    assert [Send(node.replica.address, STRANGER, Fetched(base, None))] == effects


# --- whom a replica knows of ------------------------------------------------------------------------------------


def test_t10_a_leader_that_an_operator_announced_is_heard_before_the_log_names_it(node: Node) -> None:
    """A member that missed two changes of the ensemble is fenced, and follows a leader that it never heard of."""
    author = follows(node)
    fence_naming(node, 4, (A, D, E))
    node.restart()
    assert is_refused(node.receive(B, append_of([], 4, prev=author.log.head))), "it left"
    later = author.fork(author.log.head, 4)
    later.ensemble = (A, D, E)
    node.receive(D, append_of([later.opening()], 4))
    node.complete()

    assert (4, 9) == (node.replica.state.epoch, node.replica.log.head.offset)
    assert (A, D, E) == node.replica.state.ensemble
    assert not is_refused(node.receive(E, Fetch(0, 1)))
    assert is_refused(node.receive(C, Fetch(0, 1)))


def test_t10_a_fence_of_wire_version_4_names_no_member_so_each_is_heard_until_the_log_does(node: Node) -> None:
    author = follows(node)
    fence(node, 4)
    node.complete()
    later = author.fork(author.log.head, 4)
    later.ensemble = (A, D, E)
    opening = later.opening()
    assert not is_refused(node.receive(D, append_of([], 4, prev=author.log.head)))
    node.receive(D, append_of([opening], 4))

    assert is_refused(node.receive(B, Fetch(0, 1)))
    assert not is_refused(node.receive(E, Fetch(0, 1)))


def test_t10_a_late_fence_of_wire_version_4_takes_no_knowledge_away(node: Node) -> None:
    follows(node)
    fence(node, 1)

    assert is_refused(node.receive(STRANGER, Fetch(0, 1)))


def test_t10_a_newcomer_is_heard_from_the_opening_of_its_change_on(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("abcd", ensemble="abc")
    cluster.change(Operation.SWAP, "c", "d")
    cluster.settle()
    known = {
        name: {member.node for member in cluster.nodes[name].shard.trust.members()} for name in "abd"
    }

    assert {"a", "b", "d"} <= known["a"] & known["b"] & known["d"]


def test_t10_a_leader_that_left_while_it_was_cut_off_hears_that_its_epoch_is_over(
    make_cluster: Callable[..., Cluster],
) -> None:
    """No operator reaches it; its clients would wait for a majority that it never has."""
    cluster = make_cluster("abcd", ensemble="abc")
    old = cluster.nodes["a"]
    cluster.appended(batch(0))
    cut = cluster.isolate("a")
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    cluster.change(Operation.SWAP, "a", "d")
    assert cluster.run_until(lambda: cluster.record.ensemble == (D, B, C) and cluster.leader.leader.active)
    cluster.run_for(500)
    assert old.leads and A not in cluster.nodes["b"].shard.trust.members()
    operators = [
        cluster.rule("drop", object, sender=one, to=other) for one, other in (("op/1", "a"), ("a", "op/1"))]
    for rule in cut:
        cluster.lift(rule)
    asked = cluster.append(batch(1), "a")
    states = {name: cluster.nodes[name].replica.state for name in "bcd"}

    assert cluster.run_until(lambda: not old.leads, 2_000)
    assert Role.DEPOSED is old.replica.state.role
    assert Reason.NOT_LEADER is cluster.answer(asked).reason
    assert states == {name: cluster.nodes[name].replica.state for name in "bcd"}
    assert not any(cluster.nodes[name].traces[STRANGER_REFUSED] for name in "bcd")
    for rule in operators:
        cluster.lift(rule)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_t10_a_stale_epoch_is_told_and_nothing_of_the_log(node: Node, situation: Callable[[Node], Author]) -> None:
    situation(node)
    node.take_sent()
    before, own = facts(node), node.replica.state.epoch
    for message in (append_of([], own - 1), Truncate(own - 1, NOTHING), ReadRound(own - 1, 1)):
        node.receive(STRANGER, message)
        stale = AppendRefused(own - 1, own, NOTHING, Reason.STALE_EPOCH)
        assert [stale] == node.take_sent()
        assert is_refused(node.receive(STRANGER, replace(message, epoch=own)))
        assert is_refused(node.receive(STRANGER, replace(message, epoch=own + 1)))
    for message in (Fetch(0, own - 1), Fetched(0, None, 9), AppendRefused(own - 1, own + 1, NOTHING, "STALE_EPOCH")):
        assert is_refused(node.receive(STRANGER, message))

    assert before == facts(node)


def test_t10_a_replica_that_is_seeded_hears_its_sources_and_then_its_ensemble(node: Node) -> None:
    author = Author(ensemble=(B, C, A))
    author.opening()
    head = author.data().id
    node.receive(OPERATOR, InstallSnapshot(1, 10, B, SnapshotDescriptor(1, head, 0, -1, 0, sources=(B, E))))
    node.complete()
    assert [True, True, False] == [member in node.shard.trust.members() for member in (B, E, C)]
    node.step(SnapshotChunk(SHARD, 1, tuple(author.entries)))
    node.complete()

    assert [True, False, True] == [member in node.shard.trust.members() for member in (B, E, C)]


def test_t10_a_deleted_replica_says_so_to_each_member_that_asks(node: Node) -> None:
    """It holds nothing to protect, and a leader has to learn that it is gone (N11)."""
    follows(node)
    node.receive(OPERATOR, DeleteShard(2, 20))
    node.complete()
    node.take_sent()
    node.receive(D, append_of([], 3))
    node.complete()

    assert [Reason.NOT_MEMBER] == [refused.reason for refused in node.take_sent(AppendRefused)]


@pytest.mark.parametrize("kind", [kind for kind, standing in STANDINGS.items() if standing is not Standing.OPERATOR],
                         ids=lambda kind: kind.__name__)
def test_t10_nothing_that_a_node_says_changes_a_tombstone(node: Node, kind: type) -> None:
    author, dice = follows(node), Dice(7)
    node.receive(OPERATOR, DeleteShard(2, 20))
    node.complete()
    known = Known((0, 1, 2, 3), (A, B, C, STRANGER), author.entries)
    before = node.replica.state, node.replica.log.head
    for _ in range(FORGERIES):
        node.receive(STRANGER, forged(kind, dice, known))
        assert not any(persist.writes for persist in node.queue)
        node.complete()
        assert all(answer == Fetched(answer.base, None, 0) for answer in node.take_sent(Fetched))
        assert before == (node.replica.state, node.replica.log.head)


def test_t10_a_leader_knows_who_joined_and_who_left(node: Node) -> None:
    prepares(node)
    assert [True, True] == [member in node.shard.trust.members() for member in (C, D)]
    node.receive(OPERATOR, Commit(3, 30, Operation.SWAP, (A, B, D), C, D, node.replica.log.head))
    node.complete()

    assert [False, True] == [member in node.shard.trust.members() for member in (C, D)]
    assert is_refused(node.receive(C, AppendAck(3, 9, 8)))


def test_t10_an_operator_announces_the_ensemble_and_the_newcomer() -> None:
    desk = Desk()
    desk.steady()
    record = desk.record
    desk.shard.record = replace(record, change=Change(Operation.SWAP, Phase.PREPARE, B, D))
    fence_of = desk.shard._fence(B)

    assert (A, B, C, D) == fence_of.message.members
    assert first_record((A, B, C)).ensemble == (A, B, C)


def test_t10_k12_the_leaver_hears_of_the_newcomer_that_pulls_from_it() -> None:
    """It hears nothing of its leader since PREPARE, and may hold the last copy of a payload."""
    desk = Desk()
    desk.steady()
    record = desk.record
    desk.shard.record = replace(record, change=Change(Operation.SWAP, Phase.PREPARE, B, D))
    head = EntryId(record.epoch, 3)
    for sources, told in (((), []), ((A, C, B), [B])):
        described = SnapshotDescriptor(record.epoch, head, 0, -1, 0, sources=sources)
        desk.shard.change = RunningChange(None, described, prepared=True)
        effects = desk.shard._resend_change()
        assert told == [each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Fence)]
