"""Elections told as stories: who was fenced, who was cut off, what may be lost and what never."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import NOTHING, EntryId, Member
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    AddFollower,
    Append,
    AppendAck,
    Appended,
    AppendRefused,
    BecameLeader,
    BecomeLeader,
    Fence,
    Fenced,
    Operation,
    ReadGrant,
    Rejected,
    Truncate,
    Truncated,
)
from tidemark_core.replication.records import Status
from tidemark_core.replication.replica import Role

from .support import OPERATOR, OTHER_PRODUCER, SHARD, A, B, C, Cluster, batch

MakeCluster = Callable[..., Cluster]


class Story:
    """A cluster without an operator: the test says who is fenced and who leads."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def elect(self, epoch: int, voters: Sequence[Member], ensemble: Sequence[Member] = (A, B, C)) -> Member:
        """Fence `voters` and let the highest head lead with the others as followers."""
        cluster = self.cluster
        for voter in voters:
            cluster.post(OPERATOR, SHARD, voter, Fence(epoch, epoch * 10))
        cluster.run_for(5)
        heads = {
            sender: message.head for sender, _, message in cluster.posted
            if isinstance(message, Fenced) and message.epoch == epoch
        }
        assert set(voters) == set(heads)
        leader = max(voters, key=lambda voter: (heads[voter], voter == voters[0]))
        followers = tuple((voter, heads[voter]) for voter in voters if voter != leader)
        message = BecomeLeader(epoch, epoch * 10, tuple(ensemble), followers)
        cluster.post(OPERATOR, SHARD, leader, message)
        cluster.run_for(5)
        return leader

    def log(self, name: str) -> list[EntryId]:
        return [entry.id for entry in self.cluster.log_of(name)]


@pytest.fixture
def story(make_cluster: MakeCluster) -> Story:
    return Story(make_cluster(settled=False))


def kinds(cluster: Cluster, name: str) -> list[Kind]:
    return [entry.kind for entry in cluster.log_of(name)]


# --- the holes of the protocol's model --------------------------------------------------------------------


def test_h1_entries_of_an_epoch_the_leader_never_saw_do_not_survive_in_front_of_its_own(story: Story) -> None:
    """F holds e1:{0,1} e3:{2}, L holds e2:{0}.  One truncation to (2,0) would leave e1's entries in F."""
    cluster = story.cluster
    appends = cluster.rule("drop", Append)
    story.elect(1, (A, B))
    cluster.append(batch(0), to="a")
    story.elect(2, (B, C))
    story.elect(3, (A, C))
    story.elect(4, (B, C))
    cluster.lift(appends)
    assert [EntryId(1, 0), EntryId(1, 1), EntryId(3, 2)] == story.log("a")
    assert [EntryId(2, 0), EntryId(4, 1)] == story.log("b")

    cluster.post(OPERATOR, SHARD, A, Fence(4, 40))
    cluster.run_for(5)
    cluster.post(OPERATOR, SHARD, B, AddFollower(4, 40, A, EntryId(3, 2)))
    cluster.run_for(1_000)

    assert [EntryId(2, 0), NOTHING] == [m.to for m in cluster.sent(Truncate)]
    assert story.log("b") == story.log("a") == story.log("c")


def test_o24_o25_what_an_older_epoch_put_on_a_majority_is_not_committed_until_the_new_epoch_is(story: Story) -> None:
    """Figure 8: X of epoch 1 reaches a majority in epoch 3, whose leader dies; epoch 2's log may still win."""
    cluster = story.cluster
    appends = cluster.rule("drop", Append)
    assert A == story.elect(1, (A, B))
    cluster.append(batch(0), to="a")
    assert B == story.elect(2, (B, C))
    cluster.lift(appends)
    starts = cluster.rule("hold", Append)
    assert A == story.elect(3, (A, C))
    cluster.run_for(500)
    for sender, shard, to, message in list(starts.caught):
        older = tuple(entry for entry in message.entries if entry.epoch < 3)
        if older and to == C:   # only what is inherited gets through, the EPOCH_START does not
            cut = Append(3, message.prev, older, older[-1].last, -1, -1, 0)
            cluster.deliver(sender, shard, to, cut)
    cluster.run_for(10)
    assert EntryId(1, 1) in story.log("c"), "X is on a majority: a and c"
    assert ReadGrant(0, -1, 3) == cluster.read_grant("a"), "and nobody may read it"
    cluster.lift(starts, deliver=False)
    cluster.crash("a")

    assert B == story.elect(4, (B, C))
    cluster.run_for(1_000)
    assert story.log("b") == story.log("c") == [EntryId(2, 0), EntryId(4, 1)]


def test_o22_a_late_head_above_the_leader_s_is_cut_back(story: Story) -> None:
    cluster = story.cluster
    story.elect(1, (A, B, C))
    cluster.run_for(20)
    appends = cluster.rule("drop", Append)
    cluster.append(batch(0), to="a")
    cluster.append(batch(1), to="a")
    cluster.run_for(5)
    cluster.lift(appends)
    assert B == story.elect(2, (B, C))
    cluster.run_for(20)
    cluster.post(OPERATOR, SHARD, A, Fence(2, 20))
    cluster.run_for(5)
    [head] = [m.head for sender, _, m in cluster.posted if isinstance(m, Fenced) and m.epoch == 2 and sender == A]
    assert EntryId(1, 2) == head
    cluster.post(OPERATOR, SHARD, B, AddFollower(2, 20, A, head))
    cluster.run_for(1_000)

    assert [EntryId(1, 0), EntryId(2, 1)] == story.log("a") == story.log("b")
    assert Role.FOLLOWER is cluster.nodes["a"].replica.state.role


# --- elections by an operator -----------------------------------------------------------------------------


def test_o7_o15_the_stored_record_says_election_before_anybody_is_fenced_and_steady_after(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()

    assert [Status.ELECTION, Status.ELECTION, Status.STEADY] == [record.status for record in cluster.history]
    assert [0, 1, 1] == [record.epoch for record in cluster.history]
    assert [Fence(1, 1, 1)] * 3 == cluster.sent(Fence)[:3]


def test_o9_o11_failover_keeps_every_acknowledged_batch_and_the_log_goes_on(cluster: Cluster) -> None:
    for sequence in range(5):
        cluster.appended(batch(sequence, count=3))
    old = cluster.leader.me.node
    cluster.crash(old)
    cluster.run_for(200)
    assert old != cluster.leader.me.node
    place = cluster.appended(batch(5, count=3))
    cluster.restart(old)
    cluster.settle()

    assert 2 == place.epoch
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")
    decided = [kind for kind in kinds(cluster, old) if kind is not Kind.CONFIRM]
    assert [Kind.EPOCH_START, *[Kind.DATA] * 5, Kind.EPOCH_START, Kind.DATA] == decided
    entries = cluster.log_of(old)
    confirms = [(entry.epoch, entry.sequence) for entry in entries if entry.kind is Kind.CONFIRM]
    ends = [(entry.epoch, entry.last) for entry in entries if entry.kind is Kind.DATA]
    assert set(confirms) <= set(ends) and ends[-1] in confirms, "each names the end of a batch it decided"


def test_o10_without_a_majority_there_is_no_leader(cluster: Cluster) -> None:
    cluster.crash("b")
    cluster.crash("a")
    cluster.run_for(5_000)
    assert (Status.ELECTION, None) == (cluster.record.status, cluster.record.leader)
    cluster.restart("b")
    cluster.run_for(1_000)

    assert Status.STEADY is cluster.record.status


def test_o12_o16_o17_a_late_responder_is_truncated_and_joins_while_the_shard_serves(cluster: Cluster) -> None:
    """The old leader, cut off with entries nobody else has, answers its fence after the election is over."""
    cut = cluster.isolate("a")
    lost = [cluster.append(batch(0)), cluster.append(batch(1))]
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    assert "a" != cluster.leader.me.node
    kept = cluster.appended(batch(0, producer=OTHER_PRODUCER))
    for rule in cut:
        cluster.lift(rule)
    cluster.operator.step(NodeUp(A, "a-boot1"))
    cluster.settle()

    assert [Reason.NOT_LEADER] * 2 == [cluster.answer(request).reason for request in lost]
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")
    assert [kept.base] == [entry.base for entry in cluster.log_of("a") if entry.kind is Kind.DATA]
    assert cluster.sent(Truncate, to="a") and cluster.sent(Truncated)
    assert cluster.sent(AddFollower)


def test_issue_579_a_longer_log_of_an_older_epoch_does_not_win(cluster: Cluster) -> None:
    """Oxia #579, #598, in a cluster: a holds (1,9), alone; the others go on in epoch 2 and are shorter."""
    cut = cluster.isolate("a")
    cluster.append_all(range(9))
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    cluster.appended(batch(0, producer=OTHER_PRODUCER))
    for rule in cut:
        cluster.lift(rule)
    cluster.restart("a")
    cluster.crash(cluster.leader.me.node)
    cluster.run_for(500)

    assert cluster.record.leader is not None and "a" != cluster.record.leader.node
    assert EntryId(1, 9) not in [entry.id for entry in cluster.leader.stored()]


def test_issue_513_an_unfenced_old_leader_cannot_demote_the_new_one(cluster: Cluster) -> None:
    """Oxia #513: the old leader's first message demoted the new leader, and nobody noticed."""
    held = cluster.rule("hold", Append, sender="a")
    cluster.append(batch(0))
    cut = [cluster.rule("drop", Fence, to="a")]
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    new = cluster.leader
    assert new.me != A and cluster.nodes["a"].leads
    cluster.lift(held)
    cluster.run_for(5)

    assert new.leads and new.leader.active
    assert {Reason.STALE_EPOCH} == {refusal.reason for refusal in cluster.sent(AppendRefused, to="a")}
    assert Role.DEPOSED is cluster.nodes["a"].replica.state.role
    assert isinstance(cluster.answer(1), Refused)
    for rule in cut:
        cluster.lift(rule)
    cluster.appended(batch(0))
    cluster.restart("a")
    cluster.settle()


def test_issue_87_a_fence_in_the_middle_of_streaming_stops_it(cluster: Cluster) -> None:
    """Oxia #87, #144, #172: the old stream went on after the fence; a restart forgot the fence."""
    requests = cluster.append_all(range(20))
    for member in (B, C):
        cluster.deliver(OPERATOR, SHARD, member, Fence(2, 20))
    heads = [cluster.nodes[name].replica.log.head for name in "bc"]
    for name in "bc":
        cluster.nodes[name].complete()
        cluster.restart(name, tell=False)
    cluster.run_for(5)

    assert heads == [cluster.nodes[name].replica.log.head for name in "bc"]
    assert [2, 2] == [cluster.nodes[name].replica.state.epoch for name in "bc"]
    assert not any(isinstance(cluster.answer(request), Appended) for request in requests)


@pytest.mark.parametrize("message", [Fence, Fenced, BecomeLeader, BecameLeader, Append, AppendAck])
@pytest.mark.parametrize("action", ["drop", "repeat"])
def test_o41_any_message_of_an_election_may_be_lost_or_repeated(
    make_cluster: MakeCluster, message: type, action: str
) -> None:
    cluster = make_cluster()
    cluster.appended(batch(0))
    cluster.rule(action, message, left=2)
    cluster.crash("a")
    cluster.run_for(3_000)
    cluster.restart("a")
    cluster.settle()

    cluster.appended(batch(1))
    assert 2 == len(cluster.acked)


def test_l4_an_epoch_begun_by_an_election_opens_with_epoch_start_and_one_begun_by_a_change_with_noop(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcd", ensemble="abc")
    cluster.change(Operation.EXPAND, None, "d")
    cluster.settle()
    cluster.transfer("d")
    cluster.settle()

    opening = {entry.epoch: entry.kind for entry in reversed(cluster.log_of("d"))}
    assert {1: Kind.EPOCH_START, 2: Kind.NOOP, 3: Kind.EPOCH_START} == opening


# --- LOCAL across failover --------------------------------------------------------------------------------


def test_l15_l21_a_lost_local_acknowledgement_was_seen_by_no_reader_and_shows_as_a_gap(cluster: Cluster) -> None:
    cluster.appended(batch(0))
    cluster.settle()
    cut = cluster.isolate("a")
    request = cluster.append(batch(1, durability=Durability.LOCAL))
    cluster.run_for(5)
    lost = cluster.answer(request)
    assert isinstance(lost, Appended) and Durability.LOCAL == lost.durability
    grant = cluster.read_grant("a")
    assert grant.released < lost.base, "L15: acknowledged, and visible to nobody"
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    for rule in cut:
        cluster.lift(rule)
    cluster.restart("a")
    cluster.settle()

    refused = cluster.answer(cluster.append(batch(2)))
    assert isinstance(refused, Refused)
    assert (Reason.SEQUENCE_GAP, 1) == (refused.reason, refused.expected)
    again = cluster.appended(batch(1))
    assert again.epoch > lost.epoch


def test_l15_a_local_entry_that_survives_the_failover_is_answered_with_its_first_place(cluster: Cluster) -> None:
    first = cluster.append(batch(0, durability=Durability.LOCAL))
    cluster.settle()
    cluster.transfer("b")
    cluster.settle()

    before = cluster.answer(first)
    after = cluster.appended(batch(0, durability=Durability.LOCAL))
    assert (before.epoch, before.base) == (after.epoch, after.base)


# --- power cuts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_ms", range(14))
def test_issue_1176_a_power_cut_of_everybody_at_any_moment_keeps_what_was_acknowledged(
    make_cluster: MakeCluster, cut_ms: int
) -> None:
    """Oxia #1176, #1177: acknowledged before the sync.  Writes not completed are lost on all nodes at once."""
    cluster = make_cluster()
    for sequence in range(6):
        cluster.append(batch(sequence, count=sequence + 1))
        cluster.append(batch(sequence, producer=OTHER_PRODUCER))
        cluster.run_for(1)
    cluster.run_for(cut_ms)
    for name in "abc":
        cluster.crash(name)
    acknowledged = len(cluster.acked)
    cluster.run_for(50)
    for name in "abc":
        cluster.restart(name)
    cluster.settle()

    cluster.check()
    assert acknowledged == len(cluster.acked)
    for producer in (batch(0).producer, OTHER_PRODUCER):
        for sequence in range(6):
            answer = cluster.answer(cluster.append(batch(
                sequence, producer=producer, count=sequence + 1 if producer != OTHER_PRODUCER else 1)))
            assert not isinstance(answer, Refused) or answer.reason is Reason.SEQUENCE_TOO_OLD
    cluster.settle()
    cluster.check()


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("completed", range(4))
def test_l1_a_node_that_loses_its_last_writes_promised_none_of_them(
    make_cluster: MakeCluster, name: str, completed: int
) -> None:
    """The node makes `completed` of its queued writes durable and dies; with the others it loses nothing promised."""
    cluster = make_cluster()
    cluster.append_all(range(4))
    node = cluster.nodes[name]
    for _ in range(3):
        cluster.run_for(1)
        cluster.append(batch(0, producer=bytes([cluster.now_ms % 256]) * 16))
    node.complete(completed)
    cluster.crash(name)
    cluster.run_for(300)
    cluster.restart(name)
    cluster.settle()

    cluster.check()
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")


# --- disks that are lost ----------------------------------------------------------------------------------


def test_issue_929_an_empty_disk_counts_toward_no_majority(cluster: Cluster) -> None:
    """Oxia #929: a wiped follower answered with an empty head; with one more node down, data was lost."""
    cluster.appended(batch(0))
    cluster.settle()
    cluster.crash("c")
    cluster.appended(batch(1))   # on a and b
    cluster.crash("a")
    cluster.wipe("b")
    cluster.restart("c")
    cluster.run_for(5_000)
    assert cluster.record.leader is None, "c alone, with b's empty disk, is no majority"
    cluster.restart("a")
    cluster.run_for(1_000)

    assert A == cluster.record.leader, "only a holds what was acknowledged"
    cluster.check()


def test_k14_a_wiped_node_returns_by_a_swap_into_its_own_slot(cluster: Cluster) -> None:
    cluster.append_all(range(3))
    cluster.settle()
    slots = cluster.record.ensemble
    cluster.crash("b")
    cluster.run_for(20)
    cluster.wipe("b")
    cluster.run_for(500)
    assert SHARD not in cluster.nodes["b"].durable, "nothing is re-seeded in place"
    request = cluster.change(Operation.SWAP, "b", "b")
    cluster.settle()

    done = cluster.answer(request)
    assert tuple(Member("b", "b-disk2") if m == B else m for m in slots) == done.ensemble
    assert cluster.log_of("a") == cluster.log_of("b")


def test_k14_an_acknowledgement_of_the_old_disk_is_not_counted(cluster: Cluster) -> None:
    acks = cluster.rule("hold", AppendAck)
    request = cluster.append(batch(0))
    cluster.run_for(5)
    cluster.rule("drop", object, sender="c")
    cluster.crash("b", tell=False)
    cluster.wipe("b")
    for sender, shard, to, message in acks.caught:
        if sender == B:
            cluster.deliver(Member("b", "b-disk2"), shard, to, message)

    assert [B, C] == sorted({sender for sender, _, _, _ in acks.caught})
    assert cluster.answer(request) is None
    cluster.rules.clear()


def test_o42_a_late_answer_of_a_leader_that_restarted_since_does_not_leave_the_shard_without_leader(
    cluster: Cluster
) -> None:
    """It said that it leads, restarted before that arrived, and the fence that asked it again was lost."""
    cluster.appended(batch(0))
    cluster.settle()
    held = cluster.rule("hold", Rejected, sender="a")
    cluster.operator.step(NodeUp(A, cluster.nodes["a"].boot))
    assert cluster.run_until(lambda: bool(held.caught)), "a says that it leads"
    lost = cluster.rule("drop", Fence, to="a", left=1)
    cluster.restart("a")
    assert cluster.run_until(lambda: bool(lost.caught)), "the fence of the new process is lost"
    cluster.lift(held)
    cluster.settle()

    assert cluster.leader.leads
    cluster.appended(batch(1))
