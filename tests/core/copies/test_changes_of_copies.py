"""More or fewer copies, contracts and expansions (K2, K13, K15, K19)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import (
    LogRead,
    Persist,
    PutEntry,
    Received,
    SetTimer,
    SnapshotChunk,
    SnapshotFailed,
)
from tidemark_core.base.ids import NOTHING, Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.coordinator import DEADLINE_TIMER
from tidemark_core.replication.ensembles import planned_change
from tidemark_core.replication.follower import PULL_TIMER
from tidemark_core.replication.messages import (
    Abort,
    Append,
    BecomeLeader,
    CommitPending,
    Committed,
    Drop,
    Fetch,
    Fetched,
    Fill,
    Filled,
    Operation,
    Rejected,
)
from tidemark_core.replication.records import ChangeDone, ShardRecord, StartChange, Status

from tests.core.copies.cluster import bare, fill, held, order_of, orders
from tests.core.support import AT, OPERATOR, SHARD, A, Author, B, C, Cluster, D, E, F, Node, append_of, fence

MakeCluster = Callable[..., Cluster]
QUICK = Limits(drop_ms=50, pull_retry_ms=100)
FIVE = (A, B, C, D, E)


def done(cluster: Cluster, request: int) -> Any:
    assert cluster.run_until(lambda: request in cluster.answers, 60_000), cluster.describe()
    cluster.run_for(2_000)
    return cluster.answers[request][0]


def dropped(cluster: Cluster, count: int = 4) -> None:
    """Entries in different orders, and everybody without what it need not keep."""
    size = len(cluster.record.ensemble)
    turns = [[(start + place) % size for place in range(size)] for start in range(size)]
    with orders(*turns):
        fill(cluster, count)
    cluster.run_for(2_000)


def holders(cluster: Cluster, sequence: int) -> list[str]:
    return [member.node for member in cluster.record.ensemble if sequence in held(cluster.nodes[member.node])]


# --- what is asked for ------------------------------------------------------------------------------------


def planned(operation: Operation, *, copies: int = 0, of: ShardRecord | None = None, **nodes: Any) -> Any:
    record = of or ShardRecord(1, 1, Status.STEADY, FIVE, A, copies=3)
    known: dict[str, Member | None] = {member.node: member for member in (*FIVE, F)}
    return planned_change(
        record, known, StartChange(SHARD, 1, operation, nodes.get("old"), nodes.get("new"), copies=copies)
    )


@pytest.mark.parametrize("copies", [1, 2, 6, -1])
def test_k2_fewer_copies_than_a_majority_or_more_than_members_are_refused(copies: int) -> None:
    refused = planned(Operation.COPIES, copies=copies)

    assert Reason.INVALID_SPEC is refused.reason
    assert f"payloadCopies is {copies}" in refused.message


def test_k2_as_many_copies_as_there_are_is_no_change() -> None:
    assert Reason.INVALID_SPEC is planned(Operation.COPIES, copies=3).reason


@pytest.mark.parametrize("copies", [0, 4, 5])
def test_k13_other_copies_are_planned_without_moving_a_member(copies: int) -> None:
    change = planned(Operation.COPIES, copies=copies)

    assert (None, None, copies) == (change.old, change.new, change.copies)


def test_k13_an_expansion_is_refused_unless_old_entries_have_copies_enough_for_the_larger_majority() -> None:
    refused = planned(Operation.EXPAND, new="f")

    assert Reason.BELOW_MINIMUM is refused.reason
    assert "raise payloadCopies to 4" in refused.message
    enough = ShardRecord(1, 1, Status.STEADY, FIVE, A, copies=4)
    for record in (enough, replace(enough, copies=0)):
        assert record.copies == planned(Operation.EXPAND, new="f", of=record).copies


# --- more and fewer ---------------------------------------------------------------------------------------


def test_k13_more_copies_are_in_force_only_when_everybody_has_filled_what_it_lacks(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)
    assert [3] * 5 == [len(holders(cluster, sequence)) for sequence in range(5)]

    answer = done(cluster, cluster.change(Operation.COPIES, copies=4))

    assert isinstance(answer, ChangeDone) and 4 == answer.copies == cluster.record.copies
    assert [4] * 5 == [len(holders(cluster, sequence)) for sequence in range(5)]
    assert [4] * 5 == [node.replica.state.copies for node in cluster.nodes.values()]
    assert cluster.sent(Fill) and cluster.sent(CommitPending)


def test_k13_back_to_all_copies(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)

    answer = done(cluster, cluster.change(Operation.COPIES, copies=0))

    assert isinstance(answer, ChangeDone) and 0 == answer.copies
    assert [[0, 1, 2, 3, 4]] * 5 == [held(node) for node in cluster.nodes.values()]
    assert [0] * 5 == [node.replica.state.copies for node in cluster.nodes.values()]
    assert not cluster.leader.leader.selective


def test_k13_fewer_copies_need_no_fill_and_are_dropped_once_the_change_is_stored(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", limits=QUICK)
    fill(cluster, 3)
    cluster.run_for(1_000)

    answer = done(cluster, cluster.change(Operation.COPIES, copies=3))
    fill(cluster, 1, first=3)
    cluster.run_for(2_000)

    assert isinstance(answer, ChangeDone)
    assert [] == cluster.sent(Fill)
    assert [3] * 4 == [len(holders(cluster, sequence)) for sequence in range(4)]


def test_k13_fewer_copies_are_dropped_on_an_idle_shard_too(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", limits=QUICK)
    fill(cluster, 2)
    done(cluster, cluster.change(Operation.COPIES, copies=3))
    cluster.run_for(2_000)

    assert [3] * 2 == [len(holders(cluster, sequence)) for sequence in range(2)]


def test_k13_a_dead_member_keeps_more_copies_from_being_in_force_and_they_are_given_up(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK, change_timeout_ms=3_000)
    dropped(cluster, 5)
    dead = next(node for node in cluster.nodes if node != cluster.leader.me.node)
    before = {name: held(node) for name, node in cluster.nodes.items()}
    cluster.crash(dead)
    answer = done(cluster, cluster.change(Operation.COPIES, copies=4))

    assert isinstance(answer, Refused) and Reason.ABORTED is answer.reason
    assert 3 == cluster.record.copies
    cluster.restart(dead)
    cluster.settle()
    cluster.run_for(5_000)
    after = {name: held(node) for name, node in cluster.nodes.items()}
    assert [3] * 5 == [len(holders(cluster, sequence)) for sequence in range(5)], (before, after)


def test_k13_a_leader_that_dies_while_it_waits_leaves_the_old_copies_in_force(make_cluster: MakeCluster) -> None:
    """Rule K19: whoever has the highest head leads, whatever it keeps."""
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)
    cluster.rule("drop", Filled)
    cluster.change(Operation.COPIES, copies=4)
    cluster.run_for(1_500)
    cluster.crash(cluster.leader.me.node)
    cluster.run_for(5_000)
    cluster.rules.clear()

    assert 3 == cluster.record.copies and Status.STEADY is cluster.record.status
    fill(cluster, 1, first=5)
    assert {3} == {node.replica.state.copies for node in cluster.nodes.values() if node.alive}


def test_k13_nothing_is_dropped_from_prepare_until_the_outcome_is_stored(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 2)
    cluster.rule("drop", Filled)
    cluster.change(Operation.COPIES, copies=4)
    cluster.run_for(600)
    epoch = cluster.leader.replica.state.epoch
    with orders((0, 1, 2, 3, 4)):
        fill(cluster, 2, first=2)
        cluster.run_for(1_000)

    assert not [drop for drop in cluster.sent(Drop) if drop.epoch == epoch]
    assert [5, 5] == [len(holders(cluster, sequence)) for sequence in (2, 3)]


def test_k13_nothing_is_dropped_either_while_the_leader_has_not_heard_that_the_outcome_is_stored(
    make_cluster: MakeCluster,
) -> None:
    """An election could still roll it back, to where those who dropped are designated."""
    cluster = make_cluster("abcde", limits=QUICK)
    fill(cluster, 2)
    rule = cluster.rule("drop", Abort)
    request = cluster.change(Operation.COPIES, copies=3)
    assert isinstance(done(cluster, request), ChangeDone)
    assert [5, 5] == [len(holders(cluster, sequence)) for sequence in range(2)]

    cluster.lift(rule)
    cluster.run_for(3_000)
    assert [3, 3] == [len(holders(cluster, sequence)) for sequence in range(2)]


def test_k13_a_member_that_lags_has_not_filled_what_it_does_not_hold_at_all(make_cluster: MakeCluster) -> None:
    """It lacks no payload of what it holds, and would have counted among those that keep the rest (copies seed 78)."""
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    fill(cluster, 2)
    slow = next(member for member in cluster.record.ensemble if member != cluster.leader.me)
    rule = cluster.rule("drop", Append, to=slow.node)
    fill(cluster, 3, first=2)
    cluster.change(Operation.COPIES, copies=4)
    cluster.run_for(1_500)

    leader = cluster.leader
    cluster.deliver(slow, SHARD, leader.me, Filled(cluster.record.epoch, leader.replica.log.head.offset))
    cluster.run_for(1_500)

    assert Status.RECONFIGURATION is cluster.record.status
    assert {3} == {node.replica.state.copies for node in cluster.nodes.values()}, "not in force anywhere"
    cluster.lift(rule)
    cluster.run_for(3_000)
    assert (4, Status.STEADY) == (cluster.record.copies, cluster.record.status)


def test_k13_there_is_time_as_long_as_payloads_are_being_filled(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)
    cluster.rule("drop", Filled)
    cluster.change(Operation.COPIES, copies=4)
    cluster.run_for(1_000)
    operator, leader = cluster.operator, cluster.leader.me
    epoch = cluster.record.epoch

    def pending(filled: int) -> list[Any]:
        return operator.step(Received(AT, leader, None, CommitPending(epoch, filled)))

    later = SetTimer(AT, DEADLINE_TIMER, cluster.now_ms + operator.shard.settings.change_timeout_ms)
    assert operator.shard.change is not None
    before = operator.shard.change.filled   # the leader fills too
    assert [later] == pending(before + 2)
    assert [] == pending(before + 2) + pending(before + 1)
    assert [later] == pending(before + 3)
    assert [] == operator.step(Received(AT, leader, None, CommitPending(epoch - 1, 9)))


# --- contracts --------------------------------------------------------------------------------------------


def test_k13_a_contract_gives_the_freed_slot_to_the_last_and_fills_who_becomes_designated(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)
    leaver = next(m.node for m in cluster.record.ensemble[1:] if m != cluster.record.leader)
    slot = [member.node for member in cluster.record.ensemble].index(leaver)

    answer = done(cluster, cluster.change(Operation.CONTRACT, leaver))

    assert isinstance(answer, ChangeDone)
    expected = ["a", "b", "c", "d", "e"][:4]
    expected[slot] = "e"
    assert expected == [member.node for member in cluster.record.ensemble]
    cluster.run_for(3_000)
    assert [3] * 5 == [len(holders(cluster, sequence)) for sequence in range(5)]


def test_k13_a_contract_waits_until_payloads_are_filled(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    dropped(cluster, 5)
    rule = cluster.rule("drop", Filled)
    leaver = next(m.node for m in cluster.record.ensemble[1:] if m != cluster.record.leader)
    request = cluster.change(Operation.CONTRACT, leaver)
    cluster.run_for(2_000)
    assert request not in cluster.answers and [] == cluster.sent(Committed)

    cluster.lift(rule)
    assert isinstance(done(cluster, request), ChangeDone)


def test_k13_a_contract_where_all_keep_everything_fills_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcd", limits=QUICK)
    fill(cluster, 2)
    leaver = next(m.node for m in cluster.record.ensemble if m != cluster.record.leader)
    assert isinstance(done(cluster, cluster.change(Operation.CONTRACT, leaver)), ChangeDone)

    assert [] == cluster.sent(Fill)


# --- one member that fills, by hand -----------------------------------------------------------------------


@pytest.fixture
def author() -> Author:
    """With three copies slot 0 keeps 2 alone; with four 1, 2 and 3."""
    author = Author(ensemble=FIVE)
    author.opening()
    for order in ((1, 2, 3, 0, 4), (0, 1, 2, 3, 4), (3, 4, 1, 0, 2), (1, 2, 3, 4, 0)):
        author.data(order=order_of(*order))
    return author


@pytest.fixture
def member(node: Node, author: Author) -> Node:
    """Node a in slot 0, without what it need not keep with three copies."""
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1, 4))
    node.receive(B, Drop(1, FIVE, 3, (4,) * 5, 4))
    node.complete()
    node.take_sent()
    assert [0, 2, 3] == bare(node)
    return node


def chunk(author: Author, *numbers: int) -> SnapshotChunk:
    return SnapshotChunk(SHARD, 1, tuple(author.entries[at] for at in numbers))


def test_k13_a_member_gets_what_it_will_keep_from_those_that_keep_it_now(member: Node, author: Author) -> None:
    asked = Fill(1, FIVE, 4, 4)
    member.receive(B, asked)
    assert [(B, 1, 1)] == [(pull.source, pull.first, pull.descriptor.head.offset) for pull in member.pulls]
    member.step(chunk(author, 1))
    assert [(D, 3, 3)] == [(p.source, p.first, p.descriptor.head.offset) for p in member.pulls[1:]]
    member.complete()
    assert [] == [filled for filled in member.take_sent(Filled) if filled.upto >= 3]
    effects = member.step(chunk(author, 3))
    puts = [w.entry.base for e in effects if isinstance(e, Persist) for w in e.writes if isinstance(w, PutEntry)]
    assert [3] == puts
    assert [] == member.take_sent(Filled), "not before it is durable"
    member.complete()

    assert [Filled(1, 4)] == member.take_sent(Filled)
    assert [3] == bare(member), "still not designated for the last"
    member.receive(B, asked)
    member.complete()
    assert [Filled(1, 4)] == member.take_sent(Filled), "asked again, answered again"


def test_k13_who_does_not_have_it_is_passed_and_all_are_asked_again_after_a_while(
    member: Node, author: Author
) -> None:
    member.receive(B, Fill(1, FIVE, 4, 4))
    failed = SnapshotFailed(SHARD, 1, "may not serve what follows")
    for _ in range(4):
        member.step(failed)
    assert [B, C, D, E] == [pull.source for pull in member.pulls]
    member.fire(PULL_TIMER)
    assert B == member.pulls[-1].source
    member.step(chunk(author, 1))
    assert 3 == member.pulls[-1].first


def test_k13_a_fill_of_another_epoch_means_nothing(member: Node) -> None:
    member.receive(B, Fill(2, FIVE, 4, 4))

    assert [] == member.pulls


def test_k13_a_member_that_lacks_nothing_says_so_at_once(member: Node) -> None:
    member.receive(B, Fill(1, FIVE, 3, 4))
    member.complete()

    assert [Filled(1, 4)] == member.take_sent(Filled)
    assert [] == member.pulls


def test_k13_what_is_not_whole_or_not_of_our_log_is_not_taken(member: Node, author: Author) -> None:
    member.receive(B, Fill(1, FIVE, 4, 4))
    effects = member.step(SnapshotChunk(SHARD, 1, (author.entries[1].bare(),)))

    assert ["violation"] == [effect.what for effect in effects]
    assert [0, 2, 3] == bare(member)


# --- who may lead -----------------------------------------------------------------------------------------


def inherited(node: Node, without: int) -> None:
    """The node is fenced with entries above its commit, one of them without payload."""
    author = Author(ensemble=(A, B, C))
    author.opening()
    for _ in range(3):
        author.data(order=order_of(1, 2, 0))
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1, 1))
    node.complete()
    for images in (node.written, node.durable):
        if without in images[SHARD].entries:
            images[SHARD].entries[without] = (images[SHARD].entries[without][0], b"")
    fence(node, 2)
    node.complete()
    node.take_sent()


@pytest.mark.parametrize("missing", [2, 3])
def test_k15_a_replica_that_misses_a_payload_above_commit_refuses_to_lead_and_is_never_truncated(
    node: Node, missing: int
) -> None:
    inherited(node, missing)
    node.receive(OPERATOR, BecomeLeader(2, 20, (A, B, C), ((B, NOTHING), (C, NOTHING)), 2))
    node.step(node.answer_read(node.reads.pop()))
    assert 2 == len(node.take_sent(Fetch)), "B and C may give it"
    node.receive(B, Fetched(missing, None))
    assert not node.take_sent(Rejected)
    node.receive(C, Fetched(missing, None))

    assert not node.leads
    [rejected] = node.take_sent(Rejected)
    assert (Reason.CORRUPT, "BecomeLeader", missing) == (
        rejected.refusal.reason, rejected.about, rejected.refusal.expected)
    assert f"the entry 1:{missing} is damaged above commit 1" in rejected.refusal.message
    assert 1 == node.traces["damage_reported"]
    assert 3 == node.replica.log.head.offset


def test_k15_a_replica_that_has_everything_leads_after_one_look(node: Node) -> None:
    inherited(node, -1)
    m = BecomeLeader(2, 20, (A, B, C), ((B, NOTHING), (C, NOTHING)), 2)
    node.receive(OPERATOR, m)
    node.receive(OPERATOR, m)
    assert not node.leads and 1 == len(node.reads)
    read = node.reads.pop()
    assert (2, 3) == (read.first, read.last)
    node.step(node.answer_read(read))
    assert node.leads


def test_k15_a_look_that_was_overtaken_by_a_fence_makes_nobody_lead(node: Node) -> None:
    inherited(node, -1)
    node.receive(OPERATOR, BecomeLeader(2, 20, (A, B, C), (), 2))
    fence(node, 3)
    answer = node.answer_read(node.reads.pop())
    assert isinstance(answer, LogRead)
    node.step(answer)

    assert not node.leads


def test_k19_the_highest_head_leads_though_it_keeps_the_least(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde", copies=3, limits=QUICK)
    leader = cluster.leader.me.node
    others = [name for name in "abcde" if name != leader]
    place = {name: "abcde".index(name) for name in "abcde"}
    last, *keepers = others
    with orders([place[name] for name in (leader, *keepers, last)]):
        fill(cluster, 3)
        cluster.run_for(2_000)
        assert [0, 1, 2] == bare(cluster.nodes[last])
    request = cluster.transfer(last)
    assert cluster.run_until(lambda: request in cluster.answers, 20_000)
    cluster.run_for(1_000)

    assert last == cluster.leader.me.node
    assert [0, 1, 2] == bare(cluster.leader)
