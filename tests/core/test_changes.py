"""Changes of the ensemble told as stories: swap, expand, contract, abort, transfer; stalled, raced and resumed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import EntryId, Member, OperatorId
from tidemark_core.base.limits import Limits
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    Abort,
    Aborted,
    Append,
    AppendAck,
    Appended,
    Commit,
    CommitPending,
    Committed,
    DeleteShard,
    Fence,
    InstallSnapshot,
    Operation,
    Prepare,
    Prepared,
    ShardDeleted,
    SnapshotInstalled,
)
from tidemark_core.replication.records import ChangeDone, Phase, Status
from tidemark_core.replication.replica import Role

from .support import OTHER_PRODUCER, SHARD, A, B, C, Cluster, D, batch

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def spare(make_cluster: MakeCluster) -> Cluster:
    """a, b, c hold the shard, a leads it; d and e are spare."""
    cluster = make_cluster("abcde", ensemble="abc")
    for sequence in range(6):
        cluster.appended(batch(sequence, count=sequence + 1))
    cluster.settle()
    return cluster


def nodes_of(cluster: Cluster) -> str:
    return "".join(member.node for member in cluster.record.ensemble)


# --- a member without a replica ---------------------------------------------------------------------------


def test_n11_a_member_whose_replica_was_deleted_is_seeded_again_in_its_own_slot(spare: Cluster) -> None:
    spare.deliver(OperatorId("former"), SHARD, C, DeleteShard(1, spare.record.election))
    spare.run_for(100)
    assert Role.DELETED is spare.nodes["c"].replica.state.role
    spare.crash("c")
    spare.restart("c")
    assert spare.run_until(lambda: spare.operator.shard.missing == {C})
    spare.appended(batch(6))

    change = spare.change(Operation.SWAP, "c", "c")
    spare.settle()
    assert ChangeDone(2, (A, B, C), A) == spare.answer(change)
    assert spare.log_of("a") == spare.log_of("c") and Role.FOLLOWER is spare.nodes["c"].replica.state.role
    assert not spare.operator.shard.missing and not spare.record.removed
    spare.crash("b")
    spare.appended(batch(7))   # c counts


@pytest.mark.parametrize("stalled", [Prepare, InstallSnapshot, Commit])
def test_n11_an_election_under_such_a_swap_keeps_every_acknowledged_batch(spare: Cluster, stalled: type) -> None:
    spare.deliver(OperatorId("former"), SHARD, C, DeleteShard(1, spare.record.election))
    spare.run_for(100)
    spare.crash("c")
    spare.restart("c")
    assert spare.run_until(lambda: spare.operator.shard.missing == {C})
    rule = spare.rule("drop", stalled)
    spare.change(Operation.SWAP, "c", "c")
    assert spare.run_until(lambda: bool(rule.caught))
    spare.appended(batch(6))
    spare.crash("a")
    spare.lift(rule, deliver=False)
    if stalled is Commit:
        assert spare.run_until(lambda: spare.record.status is Status.STEADY and spare.record.leader != A)
        spare.appended(batch(7))   # b and c elect: c holds everything from before PREPARE
        assert Status.STEADY is spare.record.status
    else:
        spare.run_for(2_000)
        assert Status.ELECTION is spare.record.status, "b alone must not decide"
    spare.restart("a")
    assert spare.run_until(lambda: spare.record.status is Status.STEADY)
    if stalled is not Commit:
        assert spare.run_until(lambda: spare.operator.shard.missing == {C})
        spare.change(Operation.SWAP, "c", "c")
    spare.settle()
    assert spare.log_of("a") == spare.log_of("b") == spare.log_of("c")


# --- swap, expand, contract -------------------------------------------------------------------------------


def test_o30_o35_a_swap_under_load_moves_everything_and_deletes_the_old_replica(spare: Cluster) -> None:
    requests = spare.append_all(range(6, 12))
    change = spare.change(Operation.SWAP, "c", "d")
    for sequence in range(12, 30):
        requests.append(spare.append(batch(sequence)))
        spare.run_for(1)
    spare.settle()

    assert ChangeDone(2, (A, B, D), A) == spare.answer(change)
    assert all(isinstance(spare.answer(request), Appended) for request in requests)
    assert spare.log_of("a") == spare.log_of("b") == spare.log_of("d")
    assert (Role.DELETED, []) == (spare.nodes["c"].replica.state.role, spare.log_of("c"))
    assert [Status.RECONFIGURATION, Status.RECONFIGURATION, Status.STEADY, Status.STEADY] == [
        record.status for record in spare.history[-4:]
    ]
    assert [Phase.PREPARE, Phase.COMMIT] == [record.change.phase for record in spare.history[-4:-2] if record.change]


def test_a3_commit_is_never_stored_before_the_new_member_holds_the_leader_s_log_at_prepare(spare: Cluster) -> None:
    spare.append_all(range(6, 9))
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(spare.sent(Prepared)))
    at_prepare = spare.nodes["a"].replica.log.head
    assert spare.run_until(lambda: any(r.change is not None and r.change.phase is Phase.COMMIT for r in spare.history))
    [committed] = [r for r in spare.history if r.change is not None and r.change.phase is Phase.COMMIT]

    assert committed.change is not None and committed.change.new_head >= at_prepare
    assert spare.log_of("d")[-1].id >= at_prepare
    spare.settle()


def test_o37_h4_after_an_expand_the_quorum_is_that_of_the_larger_ensemble(spare: Cluster) -> None:
    spare.change(Operation.EXPAND, None, "d")
    spare.settle()
    assert "abcd" == nodes_of(spare)
    spare.crash("c")
    spare.appended(batch(6))
    spare.crash("d")
    request = spare.append(batch(7))
    spare.run_for(1_000)
    assert spare.answer(request) is None, "2 of 4"
    spare.restart("c")
    assert spare.run_until(lambda: spare.answer(request) is not None)
    spare.restart("d")
    spare.settle()


def test_o38_o39_o40_a_contract_waits_until_commit_does_not_depend_on_the_leaver(spare: Cluster) -> None:
    slow = spare.rule("drop", Append, to="b")
    spare.appended(batch(6))   # committed by a and c
    change = spare.change(Operation.CONTRACT, "c", None, force=True)
    spare.run_for(3_000)
    assert len(spare.sent(CommitPending)) > 2
    assert (Phase.COMMIT, "abc") == (spare.record.change.phase, nodes_of(spare))  # type: ignore[union-attr]
    spare.lift(slow)
    spare.settle()

    assert ChangeDone(2, (A, B), A) == spare.answer(change)


def test_h3b_an_idle_shard_contracts(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcd")
    change = cluster.change(Operation.CONTRACT, "d", None)
    cluster.settle()

    assert ChangeDone(2, (A, B, C), A) == cluster.answer(change)
    assert Kind.NOOP is cluster.log_of("a")[-1].kind


def test_o36_the_leader_leaves_only_after_its_leadership_was_transferred(spare: Cluster) -> None:
    refused = spare.answer(spare.change(Operation.SWAP, "a", "d"))
    assert isinstance(refused, Refused) and Reason.LEADER_CANNOT_LEAVE is refused.reason
    transfer = spare.transfer("b")
    spare.settle()
    assert B == spare.answer(transfer).leader
    spare.change(Operation.SWAP, "a", "d")
    spare.settle()

    assert "dbc" == nodes_of(spare)


@pytest.mark.parametrize("message", [
    Prepare, Prepared, InstallSnapshot, SnapshotInstalled, Commit, Committed, DeleteShard, ShardDeleted, Abort, Aborted,
])
@pytest.mark.parametrize("action", ["drop", "repeat"])
@pytest.mark.parametrize("operation", ["swap", "expand", "contract"])
def test_o41_any_message_of_a_change_may_be_lost_or_repeated(
    spare: Cluster, message: type, action: str, operation: str
) -> None:
    spare.rule(action, message, left=2)
    request = {
        "swap": lambda: spare.change(Operation.SWAP, "c", "d"),
        "expand": lambda: spare.change(Operation.EXPAND, None, "d"),
        "contract": lambda: spare.change(Operation.CONTRACT, "c", None, force=True),
    }[operation]()
    spare.append_all(range(6, 10))
    spare.settle()

    assert isinstance(spare.answer(request), ChangeDone)
    assert {"swap": "abd", "expand": "abcd", "contract": "ab"}[operation] == nodes_of(spare)


@pytest.mark.parametrize("message", [Prepare, Prepared, InstallSnapshot, SnapshotInstalled, Commit, Committed])
def test_a_step_that_arrives_long_after_its_change_is_over_changes_nothing(spare: Cluster, message: type) -> None:
    """Each message of a swap is delivered once more after the next change."""
    repeats = spare.rule("repeat", message)
    spare.change(Operation.SWAP, "c", "d")
    spare.settle()
    spare.rules.clear()
    again = list(repeats.caught)
    assert again
    spare.change(Operation.EXPAND, None, "c")
    spare.settle()
    before = (spare.record, [spare.log_of(name) for name in "abcd"])
    for caught in again:
        spare.deliver(*caught)
    spare.run_for(1_000)

    assert before == (spare.record, [spare.log_of(name) for name in "abcd"])
    spare.settle()


# --- stalled changes --------------------------------------------------------------------------------------


def test_h2_an_operator_that_completes_a_change_after_a_rival_s_election_changes_nothing(spare: Cluster) -> None:
    held = spare.rule("hold", Committed)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(held.caught))
    deaf = spare.operators["op/1"]
    deaf.alive = False
    spare.start_operator("op/2")
    spare.crash("a")
    spare.run_for(300)
    epoch = spare.record.epoch
    assert epoch > 2
    deaf.alive = True    # it has seen nothing of this, and hears the leader's answer only now
    for _, shard, _, message in held.caught:
        spare.deliver(A, shard, deaf.name, message)
    spare.run_for(5)
    deaf.alive = False
    spare.lift(held, deliver=False)
    spare.restart("a")
    spare.settle()

    epochs = [record.epoch for record in spare.history]
    assert sorted(epochs) == epochs
    assert "abd" == nodes_of(spare)


def test_h3_commit_does_not_fall_through_prepare_and_commit(spare: Cluster) -> None:
    """Checked after every event: `released` of a node never falls (the harness asserts it), nor does commit."""
    seen = []
    watched = spare.nodes["a"]
    spare.change(Operation.SWAP, "c", "d")
    while not (spare.settled and spare.record.epoch == 2):
        spare.run_for(1)
        seen.append(watched.replica.commit)

    assert seen == sorted(seen)
    assert 21 <= seen[0]


def test_h4_after_an_election_resolved_a_stalled_expand_every_quorum_is_of_four(spare: Cluster) -> None:
    """With the old factor a later write would be confirmed by 2 of 4 and lost by the election of the other two."""
    stalled = spare.rule("drop", Commit)
    spare.change(Operation.EXPAND, None, "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.crash("a")
    spare.run_for(300)
    spare.lift(stalled)
    spare.restart("a")
    spare.settle()
    assert "abcd" == nodes_of(spare)
    others = [node.me.node for node in spare.followers()]
    for name in others[:2]:
        spare.isolate(name)
    request = spare.append(batch(6))
    spare.run_for(2_000)

    assert spare.answer(request) is None, "on 2 of 4"
    spare.rules.clear()
    spare.settle()


def test_h5_a_swap_of_a_dead_node_stalled_in_commit_is_completed_with_the_new_one(spare: Cluster) -> None:
    """The new member must be asked too: the old leader and the old member are both gone."""
    spare.crash("c")
    stalled = spare.rule("drop", Commit)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.crash("a")
    spare.run_for(1_000)

    assert (Status.STEADY, "abd") == (spare.record.status, nodes_of(spare))
    assert spare.sent(Fence, to="d")
    spare.lift(stalled)
    spare.appended(batch(6))
    spare.restart("a")
    spare.restart("c")
    spare.settle()


@pytest.mark.parametrize("told", [True, False], ids=["the operator knows", "only the leader knows"])
def test_o27b_a_forced_contract_that_cannot_commit_is_refused_and_writes_go_on(spare: Cluster, told: bool) -> None:
    """Contracted to a and b, the shard would need b, which is dead: writes would stop until the deadline."""
    spare.crash("b", tell=told)
    if told:
        assert spare.run_until(lambda: spare.operator.core.nodes["b"] is None)
    change = spare.change(Operation.CONTRACT, "c", None, force=True)
    assert spare.run_until(lambda: spare.answer(change) is not None, limit_ms=1_000)
    refused = spare.answer(change)
    assert isinstance(refused, Refused)
    assert (Reason.NODE_UNAVAILABLE if told else Reason.ABORTED) is refused.reason
    assert "b" in refused.message
    request = spare.append(batch(6))
    assert spare.run_until(lambda: spare.answer(request) is not None, limit_ms=1_000), "writes go on without b"

    assert ("abc", None) == (nodes_of(spare), spare.record.change)
    spare.restart("b")
    spare.settle()


def test_o27b_a_dead_member_leaves_by_force(spare: Cluster) -> None:
    spare.crash("c")
    change = spare.change(Operation.CONTRACT, "c", None, force=True)
    assert spare.run_until(lambda: spare.answer(change) is not None)

    assert isinstance(spare.answer(change), ChangeDone)
    assert "ab" == nodes_of(spare)


def test_h6_o29_a_stalled_contract_is_rolled_back_and_can_be_done_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcde")
    cluster.append_all(range(3))
    cluster.settle()
    lost = cluster.rule("drop", Committed)
    cluster.change(Operation.CONTRACT, "e", None)
    assert cluster.run_until(lambda: bool(lost.caught))
    cluster.isolate("c")
    cluster.isolate("d")
    request = cluster.append(batch(3))
    cluster.run_for(500)
    assert cluster.answer(request) is None, "the leader contracted to a, b, c, d: 3 of 4 are needed"
    cluster.rules.clear()
    assert cluster.run_until(lambda: cluster.answer(request) is not None)
    cluster.rule("drop", Committed)
    cluster.crash("a")
    cluster.run_for(300)
    assert ("abcde", None) == (nodes_of(cluster), cluster.record.change)
    cluster.rules.clear()
    cluster.restart("a")
    cluster.settle()
    leaver = cluster.followers()[-1].me.node
    cluster.change(Operation.CONTRACT, leaver, None)
    cluster.settle()

    assert 4 == len(cluster.record.ensemble)


def test_o20_a_swap_whose_leader_dies_in_prepare_is_dropped_and_its_seed_deleted(spare: Cluster) -> None:
    pulls = spare.rule("drop", SnapshotInstalled)
    change = spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(pulls.caught))
    spare.crash("a")
    spare.run_for(300)
    spare.lift(pulls)
    spare.restart("a")
    spare.settle()

    refused = spare.answer(change)
    assert isinstance(refused, Refused) and Reason.ABORTED is refused.reason
    assert "abc" == nodes_of(spare)
    assert (Role.DELETED, []) == (spare.nodes["d"].replica.state.role, spare.log_of("d"))


@pytest.mark.parametrize("dead", [set(pair) for count in (0, 1) for pair in combinations("abcd", count)], ids=str)
@pytest.mark.parametrize("delivered", [False, True], ids=["leader has not heard", "leader committed"])
def test_a3_o18_o19_an_election_under_a_stalled_swap_keeps_every_acknowledged_batch(
    spare: Cluster, dead: set[str], delivered: bool
) -> None:
    """Whoever else is dead beside the old leader, as long as a majority of the union or of the final is left."""
    rule = spare.rule("drop", Committed if delivered else Commit)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(rule.caught))
    request = spare.append(batch(6))
    assert spare.run_until(lambda: spare.answer(request) is not None)
    for name in dead | {"a"}:
        spare.crash(name)
    spare.run_for(2_000)
    alive = {"a", "b", "c", "d"} - dead - {"a"}
    if len(alive) >= 3 or len(alive & {"a", "b", "d"}) >= 2:
        assert (Status.STEADY, "abd") == (spare.record.status, nodes_of(spare))
    else:
        assert Status.ELECTION is spare.record.status
    spare.rules.clear()
    for name in sorted(dead | {"a"}):
        spare.restart(name)
    spare.settle()

    assert "abd" == nodes_of(spare)
    assert isinstance(spare.answer(spare.append(batch(6))), Appended)


def test_issue_880_the_old_node_s_late_answers_are_not_counted(spare: Cluster) -> None:
    """Oxia #880, #495: in the grace window the removed node was counted, and cursors outnumbered the members."""
    late = spare.rule("hold", AppendAck, sender="c")
    request = spare.append(batch(6))
    spare.run_for(3)
    spare.change(Operation.SWAP, "c", "d")
    spare.settle()
    assert isinstance(spare.answer(request), Appended)
    cut = [*spare.isolate("b"), *spare.isolate("d")]
    alone = spare.append(batch(7))
    spare.lift(late)
    for epoch in (1, 2):
        spare.deliver(C, SHARD, A, AppendAck(epoch, 99, 99))
    spare.run_for(100)

    assert spare.answer(alone) is None
    assert {B, D} == set(spare.nodes["a"].leader.cursors)
    for rule in cut:
        spare.lift(rule)
    spare.settle()


def test_issue_798_a_change_never_starts_from_a_state_half_moved(spare: Cluster) -> None:
    """Oxia #798, #781, #788: the next change is refused until the one before is stored as done or dropped."""
    stalled = spare.rule("drop", Committed)
    spare.change(Operation.SWAP, "c", "d")
    spare.run_for(500)
    refused = spare.answer(spare.change(Operation.EXPAND, None, "e"))
    assert isinstance(refused, Refused) and Reason.RECONFIGURING is refused.reason
    assert "abc" == nodes_of(spare)
    spare.lift(stalled)
    spare.settle()
    spare.change(Operation.EXPAND, None, "e")
    spare.settle()

    assert "abde" == nodes_of(spare)


def test_issue_559_a_deletion_that_arrives_after_the_node_was_taken_back_is_refused(spare: Cluster) -> None:
    """Oxia #559: allowed with a higher epoch, refused with a lower one."""
    deletions = spare.rule("hold", DeleteShard)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(deletions.caught))
    spare.change(Operation.EXPAND, None, "c")
    spare.run_for(1_000)
    assert "abdc" == nodes_of(spare)
    spare.lift(deletions)
    spare.settle()

    assert spare.log_of("a") == spare.log_of("c")


# --- snapshots --------------------------------------------------------------------------------------------


def test_issue_1163_a_node_seeded_in_a_quiet_cluster_can_be_elected(spare: Cluster) -> None:
    """Oxia #1163, #415: a snapshot left no head, so the seeded node could never lead while nothing was written."""
    spare.change(Operation.SWAP, "c", "d")
    spare.settle()
    spare.transfer("d")
    spare.settle()

    assert D == spare.record.leader
    assert [6] == [spare.appended(batch(5, count=6)).count]


def test_issue_281_a_lagging_follower_is_still_served_after_a_trim(make_cluster: MakeCluster) -> None:
    """Oxia #281: trimmed past a follower's position, the leader sent snapshots and tails in turns for ever."""
    cluster = make_cluster("abcd", ensemble="abc")
    for sequence in range(4):
        cluster.appended(batch(sequence, payload=bytes(1 << 20)))
    cluster.settle()
    cluster.crash("c")
    for sequence in range(4, 8):
        cluster.appended(batch(sequence, payload=bytes(1 << 20)))
    leader = cluster.leader
    leader.trim(cluster.request(), 99)
    assert leader.replica.log.first <= 5, "c needs the log from offset 5 on"
    cluster.appended(batch(8))
    cluster.restart("c")
    cluster.settle()
    assert [entry.id for entry in cluster.log_of("a")] == [
        entry.id for entry in cluster.log_of("c") if entry.base >= leader.replica.log.first
    ]
    leader.trim(cluster.request(), 99)
    cluster.change(Operation.EXPAND, None, "d")
    cluster.settle()

    assert cluster.log_of("a") == cluster.log_of("d")


def test_issue_1133_a_shard_of_control_entries_only_survives_trim_and_restart(make_cluster: MakeCluster) -> None:
    """Oxia #1133: control entries did not advance the stored commit; after a trim an entry was not found."""
    cluster = make_cluster()
    for to in ("b", "c", "a", "b"):
        cluster.transfer(to)
        cluster.settle()
    cluster.leader.trim(cluster.request(), 99)
    cluster.appended(batch(0))
    cluster.settle()
    for name in "abc":
        cluster.restart(name)
    cluster.settle()

    assert 5 < cluster.leader.replica.commit
    assert isinstance(cluster.answer(cluster.append(batch(0))), Appended)


def test_l18_a_swap_behind_a_trim_brings_the_fold_of_what_was_trimmed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcd", ensemble="abc", limits=Limits(checkpoint_entries=3))
    for sequence in range(6):
        cluster.appended(batch(sequence, count=700))
    cluster.appended(batch(0, producer=OTHER_PRODUCER, count=5_000))
    cluster.append(batch(6, count=700))   # an uncommitted entry opens the newest mark
    first = cluster.leader.trim(cluster.request(), 1 << 30)
    assert first > 2_000
    cluster.change(Operation.SWAP, "c", "d")
    cluster.settle()
    cluster.transfer("d")
    cluster.settle()

    leader = cluster.leader
    assert D == leader.me
    assert first == leader.replica.log.first
    for sequence in (4, 5, 6):
        assert 700 == cluster.appended(batch(sequence, count=700)).count
    assert 5_000 == cluster.appended(batch(0, producer=OTHER_PRODUCER, count=5_000)).count
    assert [leader.replica.log.runs] * 2 == [cluster.nodes[name].replica.log.runs for name in "ab"]


def test_o32_a_snapshot_whose_pull_breaks_off_is_resumed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcd", ensemble="abc", change_timeout_ms=20_000)
    for sequence in range(40):
        cluster.append(batch(sequence))
    cluster.settle()
    cluster.change(Operation.SWAP, "c", "d")
    assert cluster.run_until(lambda: SHARD in cluster.nodes["d"].durable and len(cluster.log_of("d")) > 10)
    held = len(cluster.log_of("d"))
    cluster.crash("d", tell=False)
    cluster.restart("d")
    cluster.settle()

    assert held == cluster.nodes["d"].pulls[-1].first > 0, "not from the beginning"
    assert "abd" == nodes_of(cluster)


# --- abort ------------------------------------------------------------------------------------------------


def test_o41_a_cancelled_swap_leaves_everything_as_it_was(spare: Cluster) -> None:
    stalled = spare.rule("drop", SnapshotInstalled)
    change = spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.append_all(range(6, 9))
    cancel = spare.cancel()
    spare.lift(stalled)
    spare.settle()

    assert [Reason.ABORTED, ChangeDone] == [spare.answer(change).reason, type(spare.answer(cancel))]
    assert ("abc", 2) == (nodes_of(spare), spare.record.epoch)
    assert spare.log_of("a") == spare.log_of("b") == spare.log_of("c")
    assert Role.DELETED is spare.nodes["d"].replica.state.role


def test_o41_a_lost_abort_does_not_leave_the_old_member_silenced(spare: Cluster) -> None:
    stalled = spare.rule("drop", SnapshotInstalled)
    lost = spare.rule("drop", Abort)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.cancel()
    assert spare.run_until(lambda: bool(lost.caught))
    spare.operators["op/1"].alive = False
    spare.rules.clear()
    spare.start_operator("op/2")
    spare.settle()
    spare.crash("b")

    spare.appended(batch(6))    # a and c are a majority again
    spare.restart("b")
    spare.settle()


def test_k14_a_snapshot_for_another_life_of_the_disk_is_refused_and_the_swap_aborted(spare: Cluster) -> None:
    held = spare.rule("hold", InstallSnapshot)
    change = spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(held.caught))
    spare.nodes["d"].wipe()
    spare.lift(held)
    spare._tell_operators(NodeDown("d"))
    spare.run_for(1_000)
    refused = spare.answer(change)

    assert isinstance(refused, Refused) and Reason.ABORTED is refused.reason
    assert SHARD not in spare.nodes["d"].durable
    spare.wipe("d")
    spare.settle()


def test_a_swap_into_a_node_that_held_the_shard_before_starts_from_nothing(spare: Cluster) -> None:
    spare.change(Operation.SWAP, "c", "d")
    spare.settle()
    spare.append_all(range(6, 9))
    spare.change(Operation.SWAP, "d", "c")
    spare.settle()

    assert "abc" == nodes_of(spare)
    assert EntryId(3, spare.nodes["c"].replica.log.head.offset) == spare.nodes["c"].replica.log.head
    assert spare.log_of("a") == spare.log_of("c")


def test_k14_a_disk_wiped_after_it_was_seeded_and_before_commit_does_not_count(spare: Cluster) -> None:
    stalled = spare.rule("drop", Commit)
    spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.crash("d")
    spare.wipe("d")
    spare.crash("a")
    spare.run_for(2_000)
    fenced = [message for sender, _, message in spare.posted if sender == Member("d", "d-disk2")]

    assert not any(type(message).__name__ == "Fenced" for message in fenced)
    spare.rules.clear()
    spare.restart("a")
    spare.run_for(2_000)
    assert (Status.STEADY, "abd") == (spare.record.status, nodes_of(spare))
    spare.change(Operation.SWAP, "d", "d")
    spare.settle()
    assert Member("d", "d-disk2") in spare.record.ensemble


@pytest.mark.parametrize("name", ["a", "b"])
def test_o31_a_node_that_reconnects_before_the_leader_adopted_the_epoch_of_prepare_ends_no_leadership(
    spare: Cluster, name: str
) -> None:
    """Fenced with the new epoch, the leader would resign, and a follower would refuse the leader it has."""
    lost = spare.rule("drop", Prepare, left=1)
    request = spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(lost.caught))
    spare.operator.step(NodeUp(spare.nodes[name].me, spare.nodes[name].boot))
    spare.append_all(range(6, 9))
    spare.settle()

    assert ChangeDone(2, (A, B, D), A) == spare.answer(request)


def test_k14_a_new_member_that_comes_back_with_another_disk_in_prepare_ends_the_change_at_once(spare: Cluster) -> None:
    stalled = spare.rule("drop", SnapshotInstalled)
    change = spare.change(Operation.SWAP, "c", "d")
    assert spare.run_until(lambda: bool(stalled.caught))
    spare.wipe("d")
    spare.run_for(20)

    refused = spare.answer(change)
    assert isinstance(refused, Refused) and Reason.ABORTED is refused.reason
    spare.settle()
