"""Rules N1-N12: metadata rebuilt from what replicas persisted, and a store that was set back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from tidemark_core.base.ids import NOTHING, EntryId, Member, ShardId, ShardKind
from tidemark_core.base.quorum import has_majority, majority
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NodeCore
from tidemark_core.replication import floors, invariants, recovery
from tidemark_core.replication.floors import Floors, PromiseRequest
from tidemark_core.replication.messages import (
    EPOCH_JUMP_MAX,
    Append,
    BecomeLeader,
    DeleteShard,
    Fence,
    Operation,
    Rejected,
)
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status
from tidemark_core.replication.recovery import (
    EPOCH_GAP,
    NEAR_GAP,
    Doubt,
    Facts,
    ReplicaReport,
    find_record,
    is_behind,
    newest_facts,
    resolve,
)
from tidemark_core.replication.replica import Pending, ReplicaState, Role

from ..documents.desk import Desk
from ..support import OPERATOR, SHARD, A, Author, B, C, Cluster, D, E, Node, append_of, batch, fence, member

SWAP = Pending(Operation.SWAP, C, D, 0)
OLD, NEW = (A, B, C), (A, B, D)
FIRST, SECOND, NEWEST = b"1" * 16, b"2" * 16, b"3" * 16


def said(who: Member, told: int = 5, **changes: object) -> ReplicaReport:
    """Return what a follower says that was told A, B, C at an election of the epoch `told`."""
    report = ReplicaReport(SHARD, who, Role.FOLLOWER, told, told * 10, told, OLD, 0, told, None, EntryId(told, 7), 7)
    return replace(report, **changes)  # type: ignore[arg-type]


def prepared(who: Member, pending: Pending = SWAP, **changes: object) -> ReplicaReport:
    return said(who, 6, **{"pending": pending, **changes})


def found(
    *reports: ReplicaReport, silent: int = 0, accept: bool = False, stored: ShardRecord | None = None, floor: int = 0
) -> Any:
    here = {report.member for report in reports}
    return find_record(SHARD, reports, here, silent, stored=stored, accept=accept, floor=floor, lineage=NEWEST)


# --- N10 --------------------------------------------------------------------------------------------------


def promise(node: Node, floor: int, request: int = 1, shard: ShardId = SHARD) -> None:
    node.step(PromiseRequest(request, {shard: floor}))


def test_n10_a_late_deletion_of_the_former_operator_changes_nothing_after_the_promise() -> None:
    """The operator whose metadata was lost removed this member; the rebuilt record names it again."""
    node = Node(A)
    fence(node, 6)
    promise(node, 16)
    node.complete()
    [report] = node.answer(1)
    assert (6, 16, Role.FENCED) == (report.epoch, report.floor, report.role)
    node.take_sent()

    for late in (DeleteShard(7, 70), Fence(15, 150), BecomeLeader(6, 60, OLD, ())):
        node.receive(OPERATOR, late)
        [rejected] = node.take_sent(Rejected)
        assert (Reason.STALE_EPOCH, 6, 16) == (
            rejected.refusal.reason, rejected.refusal.epoch, rejected.refusal.expected)
    assert (6, Role.FENCED) == (node.replica.state.epoch, node.replica.state.role)
    fence(node, 16)
    assert 16 == node.replica.state.epoch


def test_n10_a_promise_holds_where_no_replica_is_and_after_a_restart() -> None:
    node = Node(A)
    promise(node, 16)
    node.complete()
    assert () == node.answer(1)
    node.restart()

    fence(node, 15)
    assert node.core is not None and not node.core.log.shards
    fence(node, 16)
    assert 16 == node.replica.state.epoch


def test_n10_the_report_leaves_when_the_promise_is_durable() -> None:
    node = Node(A)
    fence(node, 6)
    node.complete()
    promise(node, 16)
    assert node.answer(1) is None
    node.restart()
    fence(node, 15)
    assert (15, None) == (node.replica.state.epoch, node.answer(1)), "it promised nothing, and said nothing"


def test_n10_a_floor_is_never_lowered_and_binds_operators_only() -> None:
    node = Node(B)
    author = Author()
    fence(node, 1)
    promise(node, 16)
    promise(node, 11, request=2)
    node.complete()
    assert [16] == [report.floor for report in node.answer(2)]
    node.receive(A, append_of([author.opening()], 1))
    assert Role.FOLLOWER is node.replica.state.role, "the leader of the epoch goes on"


@pytest.mark.parametrize("floor", [0, 7 + EPOCH_JUMP_MAX, (1 << 63) + 1])
def test_n10_n12_a_floor_that_no_record_may_have_is_refused(floor: int) -> None:
    node = Node(A)
    fence(node, 6)
    promise(node, floor)
    node.complete()
    refused = node.answer(1)
    assert isinstance(refused, Refused) and "N12" in refused.message
    fence(node, 7)
    assert 7 == node.replica.state.epoch


def test_n10_floors_of_shards_that_are_not_here_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "FLOORS_MAX", 2)
    held, here = Floors(), {ShardId(1): 6}
    absent = [ShardId(number) for number in range(2, 6)]

    def refused(*shards: ShardId) -> Refused | None:
        return held.refusal({shard: 7 for shard in shards}, lambda shard: here.get(shard, 0))

    assert refused(*absent[:2]) is None and refused(*absent[:3]) is not None
    held.promise({shard: 7 for shard in absent[:2]})
    why = refused(absent[2])
    assert why is not None and Reason.WRONG_STATE is why.reason and "2 floors" in why.message
    assert refused(absent[0]) is None, "it has one"
    assert refused(ShardId(1)) is None, "its replica is here"


def test_n10_the_record_begins_at_the_floor_or_above() -> None:
    first = found(said(A), said(B), said(C)).record
    assert 5 + NEAR_GAP == first.epoch
    promised = [said(who, floor=first.epoch) for who in OLD]
    assert first == found(*promised, floor=first.epoch).record, "the second round finds what the first one found"
    assert 900 == found(said(A), said(B, floor=900), said(C), floor=15).record.epoch, "of a recovery that was given up"
    assert 5 + EPOCH_GAP == found(*promised[:2], silent=1, floor=first.epoch).record.epoch
    far = found(said(A), said(B, floor=6 + EPOCH_JUMP_MAX), said(C))
    assert Doubt.EPOCH_JUMP is far.doubt


# --- N12 --------------------------------------------------------------------------------------------------


def test_n12_no_record_is_written_that_the_other_replicas_would_refuse() -> None:
    far = 6 + EPOCH_JUMP_MAX
    assert found(said(A, far), said(B), said(C)).doubt is Doubt.EPOCH_JUMP
    assert found(said(A, far), said(B), said(C), accept=True).record is None, "no consent makes it good"
    assert found(said(A, 1 << 63), said(B, 1 << 63), said(C, 1 << 63)).record is not None
    for too_high in (said(A, (1 << 63) + 1), said(B, (1 << 63) + 1)), (said(A, (1 << 64) - 1), said(B, (1 << 64) - 1)):
        assert found(*too_high).doubt is Doubt.EPOCH_JUMP
    near = found(said(A, 5 + EPOCH_JUMP_MAX - EPOCH_GAP), said(B), said(C))
    assert near.doubt is None and near.record is not None


@pytest.mark.parametrize("message", [
    Fence(7 + EPOCH_JUMP_MAX, 1), DeleteShard(7 + EPOCH_JUMP_MAX, 1), BecomeLeader(7 + EPOCH_JUMP_MAX, 1, OLD, ())
])
def test_n12_a_replica_follows_no_epoch_that_is_far_above_its_own(message: Any) -> None:
    node = Node(A)
    fence(node, 6)
    node.complete()
    node.take_sent()
    node.receive(OPERATOR, message)

    [rejected] = node.take_sent(Rejected)
    assert Reason.WRONG_STATE is rejected.refusal.reason and "N12" in rejected.refusal.message
    assert (6, Role.FENCED) == (node.replica.state.epoch, node.replica.state.role)
    far = Append(7 + EPOCH_JUMP_MAX, NOTHING, (), -1, -1, -1, 0)
    assert ["violation"] == [effect.what for effect in node.receive(B, far)]
    assert 6 == node.replica.state.epoch
    fence(node, 6 + EPOCH_JUMP_MAX)
    assert 6 + EPOCH_JUMP_MAX == node.replica.state.epoch
    new = Node(B)
    fence(new, 7 + EPOCH_JUMP_MAX)
    assert 7 + EPOCH_JUMP_MAX == new.replica.state.epoch, "a replica that begins knows no epoch"


# --- N1, N2 -----------------------------------------------------------------------------------------------


def test_n1_the_newest_opening_names_the_ensemble() -> None:
    newer = said(A, 9, ensemble=NEW)
    assert newest_facts([said(B), newer, said(C)]) == Facts(9, NEW, 0)


def test_n1_in_one_epoch_what_is_in_force_comes_after_what_is_prepared() -> None:
    assert newest_facts([prepared(B), said(A, 6, ensemble=NEW)]) == Facts(6, NEW, 0)


def test_n1_a_record_that_was_set_back_is_a_witness_too() -> None:
    """Nodes were fenced above it and never told who belongs: it still knows."""
    record = ShardRecord(7, 70, Status.STEADY, NEW, A)
    fenced = [said(who, 5, epoch=8, election=80) for who in (A, B)]
    assert newest_facts(fenced, record) == Facts(7, NEW, 0)
    assert newest_facts([said(A, 9)], record) == Facts(9, OLD, 0)


def test_n2_the_record_is_above_every_epoch_and_far_above_where_somebody_is_silent() -> None:
    record = found(said(A), said(B, epoch=8), said(C)).record
    assert (record.epoch, record.status, record.election, record.ensemble) == (8 + NEAR_GAP, Status.ELECTION, 0, OLD)
    invariants.check_record(record)
    assert 8 + EPOCH_GAP == found(said(A), said(B, epoch=8), silent=1).record.epoch
    assert not is_behind(record, [said(A), said(B, epoch=8), said(C)]), "made twice it is made once"


def test_n2_a_record_that_knows_all_promises_stays_as_it_is() -> None:
    stored = ShardRecord(5, 50, Status.STEADY, OLD, A)
    assert found(said(A), said(B), said(C), stored=stored).record is None
    assert found(said(A), said(B), said(C), stored=replace(stored, election=49)).record is not None
    assert found(said(A), said(B, election=0), said(C), stored=stored).record is None, "adopted from the leader"


# --- N3, N4 -----------------------------------------------------------------------------------------------


def test_n3_a_leader_persists_what_it_is_about_to_change_and_so_does_whoever_follows() -> None:
    cluster = Cluster("abcd", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    cluster.appended(batch(0))
    cluster.change(Operation.SWAP, "c", "d")
    assert cluster.run_until(lambda: cluster.record.change is not None and cluster.record.change.phase is Phase.COMMIT)
    asked = Pending(Operation.SWAP, C, D, 0)
    assert asked == cluster.nodes["a"].replica.state.pending
    assert ReplicaState.decode(cluster.nodes["a"].replica.state.encode()).pending == asked
    cluster.settle()
    leader, follower = (cluster.nodes[name].core.log.report(SHARD) for name in "ab")
    assert (leader.ensemble, leader.pending, leader.opened) == (NEW, None, leader.epoch)
    assert (follower.ensemble, follower.pending, follower.opened) == (OLD, asked, leader.epoch)
    reports = [cluster.nodes[name].core.log.report(SHARD) for name in "abcd"]
    facts = newest_facts(reports)
    assert facts is not None and facts.ensemble == NEW


def test_n3_a_change_that_was_aborted_is_forgotten_by_the_leader_and_ends_with_the_next_election() -> None:
    cluster = Cluster("abcd", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    cluster.change(Operation.SWAP, "c", "d")
    assert cluster.run_until(lambda: bool(cluster.nodes["d"].pulls))
    cluster.cancel()
    cluster.settle()
    assert cluster.nodes["a"].replica.state.pending is None
    cluster.crash("a")
    steady(cluster, "abc")
    for name in "bc":
        state = cluster.nodes[name].replica.state
        assert (state.pending, state.opened, state.ensemble) == (None, state.epoch, OLD)


def test_n4_a_member_still_being_seeded_or_without_a_replica_was_never_in_force() -> None:
    for new in (said(D, 5, role=Role.SEEDING, epoch=6), said(D, 0, epoch=4)):
        reports = [prepared(A, role=Role.DEPOSED), prepared(B), said(C), new]
        assert resolve(newest_facts(reports), reports, {A, B, C, D}) == Facts(6, OLD, 0)
    reports = [prepared(A, role=Role.DEPOSED), prepared(B), said(C)]
    assert resolve(newest_facts(reports), reports, {A, B, C, D}) == Facts(6, OLD, 0)


def test_n4_whoever_was_deleted_tells_how_it_ended() -> None:
    gone = {"role": Role.DELETED, "ensemble": (), "opened": 0}
    reports = [prepared(B), said(C, 6, **gone), prepared(D)]
    assert resolve(newest_facts(reports), reports, {B, C, D}) == Facts(6, NEW, 0)
    reports = [prepared(B), said(C), said(D, 6, **gone)]
    assert resolve(newest_facts(reports), reports, {B, C, D}) == Facts(6, OLD, 0)
    reports = [prepared(B), said(C, 6, **gone, epoch=5), prepared(D)]
    assert resolve(newest_facts(reports), reports, {B, C, D}).ensemble == (A, B, C, D), "deleted before, says nothing"


def test_n4_a_leader_that_still_leads_may_have_a_commit_under_way_to_it() -> None:
    cluster = Cluster("abcd", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    cluster.change(Operation.SWAP, "c", "d")
    assert cluster.run_until(lambda: cluster.record.change is not None and cluster.record.change.phase is Phase.COMMIT)
    reports = [cluster.nodes[name].core.log.report(SHARD) for name in "abcd"]
    assert (reports[0].role, reports[0].pending) == (Role.LEADER, Pending(Operation.SWAP, C, D, 0))
    facts = newest_facts(reports)
    assert facts is not None
    assert recovery.resolve(facts, reports, {A, B, C, D}) == Facts(facts.epoch, (A, B, C, D), 0)
    cluster.settle()
    assert cluster.nodes["a"].leader.ensemble == NEW, "it obeyed, after it had spoken"


def test_n4_a_seeded_member_notes_its_slot_early_and_that_proves_nothing() -> None:
    reports = [prepared(B), said(C), prepared(D, ensemble=NEW)]
    assert newest_facts(reports) == Facts(6, OLD, 0, SWAP)
    assert newest_facts([*reports, prepared(E, ensemble=NEW)]) == Facts(6, NEW, 0), "another one was told"


# --- N5 ---------------------------------------------------------------------------------------------------


def test_n5_a_swap_in_doubt_leaves_its_old_and_its_new_member_in_the_record() -> None:
    assert (*OLD, D) == found(prepared(A), prepared(B), prepared(C), prepared(D, ensemble=NEW)).record.ensemble


def test_n5_a_swap_whose_new_member_is_silent_is_not_recovered() -> None:
    assert Doubt.CHANGE_IN_DOUBT is found(prepared(A), prepared(B), said(C), silent=1).doubt


def test_n5_a_silent_new_member_may_be_half_seeded_and_is_not_relied_upon() -> None:
    """Found by the simulator (recovery seeds 16, 51 and 499): a member that was still being seeded never voted."""
    others = {A, B, C}
    swap = [prepared(A), prepared(B), said(C)]
    assert resolve(Facts(6, OLD, 0, SWAP), swap, others) is Doubt.CHANGE_IN_DOUBT
    expand = Pending(Operation.EXPAND, None, D, 0)
    assert resolve(Facts(6, OLD, 0, expand), swap, others) == Facts(6, OLD, 0)
    some = replace(expand, copies=3)
    assert resolve(Facts(6, OLD, 3, some), swap, others) is Doubt.CHANGE_IN_DOUBT, "three of four, or all three?"
    fresh = Member("c", "c-disk2")
    again = Pending(Operation.SWAP, C, fresh, 0)
    assert resolve(Facts(6, OLD, 0, again), swap[:2], {A, B}) == Facts(6, OLD, 0)
    seeded = prepared(fresh, again)
    assert resolve(Facts(6, OLD, 0, again), [*swap[:2], seeded], {A, B, fresh}) == Facts(6, (A, B, fresh), 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("operation", [Operation.SWAP, Operation.EXPAND, Operation.CONTRACT])
@pytest.mark.parametrize("heard", [True, False])
def test_n5_every_majority_that_elects_meets_every_one_that_may_have_committed(
    operation: Operation, size: int, heard: bool
) -> None:
    members = tuple(member(name) for name in "abcdefg"[:size])
    new = None if operation is Operation.CONTRACT else member("x")
    old = None if operation is Operation.EXPAND else members[-1]
    if operation is Operation.CONTRACT and size == 1:
        return   # nobody contracts a single copy
    pending = Pending(operation, old, new, 0)
    facts = Facts(6, members, 0, pending)
    # Everybody holds a replica, and nobody knows how it ended; the new member may be silent.
    reports = [prepared(who, pending, ensemble=members) for who in (*members, *((new,) if new and heard else ()))]
    resolved = resolve(facts, reports, {report.member for report in reports})
    if operation is Operation.SWAP and not heard:
        assert resolved is Doubt.CHANGE_IN_DOUBT
        return
    assert isinstance(resolved, Facts)
    after = {
        Operation.SWAP: (*members[:-1], new), Operation.EXPAND: (*members, new), Operation.CONTRACT: members[:-1],
    }[operation]
    for electing in combinations(resolved.ensemble, majority(len(resolved.ensemble))):
        for possible in (members, after):
            for committing in combinations(possible, majority(len(possible))):
                assert set(electing) & set(committing), f"{electing} elects and misses {committing}"


def test_n5_a_node_swapped_into_its_own_slot_has_its_new_disk_alone() -> None:
    again = Member("c", "c-disk2")
    pending = Pending(Operation.SWAP, C, again, 0)
    reports = [prepared(B, pending), prepared(again, pending, ensemble=(A, B, again))]
    assert newest_facts(reports) == Facts(6, OLD, 0, pending)
    assert resolve(newest_facts(reports), reports, {B, again}) == Facts(6, (A, B, again), 0)


def test_n5_where_only_some_keep_payloads_a_swap_in_doubt_is_refused_and_fewer_copies_are_taken() -> None:
    swap = replace(SWAP, copies=2)
    reports = [prepared(B, swap, copies=2), said(C, copies=2), prepared(D, swap, copies=2)]
    assert resolve(newest_facts(reports), reports, {B, C, D}) is Doubt.CHANGE_IN_DOUBT
    assert found(*reports).doubt is Doubt.CHANGE_IN_DOUBT
    for before, after in ((0, 2), (2, 0), (3, 2)):
        copies = Pending(Operation.COPIES, None, None, after)
        reports = [prepared(who, copies, copies=before) for who in (B, C)]
        assert resolve(newest_facts(reports), reports, {B, C}).copies == 2


# --- N6, N7, N8 -------------------------------------------------------------------------------------------


def test_n6_a_majority_that_may_vote_must_have_answered() -> None:
    assert found(said(A), silent=2).doubt is Doubt.NO_MAJORITY
    assert found(said(A), said(B, role=Role.SEEDING), silent=1).doubt is Doubt.NO_MAJORITY
    assert found(said(A), said(B), silent=1).record is not None
    assert found().doubt is Doubt.NO_COPY


def test_n7_silent_disks_that_could_be_a_majority_of_a_newer_ensemble_leave_a_doubt() -> None:
    """A may have swapped C for somebody who is silent too, and have committed with that one alone."""
    assert found(said(B), said(C), silent=1).record is not None, "one disk commits nothing of three"
    assert found(said(B), said(C), silent=2).doubt is Doubt.NEWER_POSSIBLE
    assert found(said(A), said(B), said(C), silent=2).record is not None, "whoever could have begun it answered"
    four = (A, B, C, D)
    reports = [said(who, ensemble=four) for who in (A, B, C)]
    assert found(*reports, silent=2).doubt is Doubt.NEWER_POSSIBLE, "a swap and a contract: two of three"


def test_n8_a_loss_that_is_accepted_leaves_those_who_answered() -> None:
    refused = found(said(B), silent=2)
    assert (refused.record, refused.accepted) == (None, False)
    accepted = found(said(B), silent=2, accept=True)
    assert (accepted.record.ensemble, accepted.doubt, accepted.accepted) == ((B,), Doubt.NO_MAJORITY, True)
    assert accepted.record.epoch == 5 + EPOCH_GAP
    bare = found(said(B, copies=2), silent=2, accept=True)
    assert bare.record is None and "payloads" in bare.note


def test_n8_a_swap_in_doubt_where_some_keep_payloads_ends_with_the_old_ensemble_once_the_loss_is_accepted() -> None:
    reports = [prepared(A, role=Role.LEADER, copies=2), prepared(B, copies=2), said(C, copies=2), prepared(D, copies=2)]
    assert found(*reports).doubt is Doubt.CHANGE_IN_DOUBT
    record = found(*reports, accept=True).record
    assert (record.ensemble, record.copies, record.removed) == (OLD, 2, ())
    assert found(prepared(A, copies=2), prepared(B, copies=2), prepared(D, copies=2), accept=True).record is None


def test_an_older_build_did_not_note_changes_so_its_word_is_not_taken() -> None:
    before = [said(who, opened=0) for who in (A, B, C)]
    assert found(*before).doubt is Doubt.UNKNOWN_CHANGE
    assert found(*before[:2], said(C, 6)).record is not None, "an election under this build names everybody anew"


def test_a_state_of_the_format_before_is_read_and_says_that_it_does_not_know() -> None:
    state = ReplicaState(epoch=3, election=8, ensemble=OLD, told=3, opened=3, pending=SWAP)
    _, commit, confirmed, rest = json.loads(state.encode())
    for version, unknown, lost in ((3, 4, {"opened": 0, "pending": None}), (4, 2, {})):
        older = json.dumps([version, commit, confirmed, rest[:-unknown]]).encode()
        assert ReplicaState.decode(older) == replace(state, announced_in=3, **lost)
    assert ReplicaState.decode(state.encode()) == state


def test_members_that_left_and_still_hold_a_replica_are_deleted_later() -> None:
    reports = [said(A, 9, ensemble=NEW), said(B), said(C), said(D, 9, ensemble=NEW)]
    assert found(*reports).record.removed == (C,)


def test_a_change_of_a_stored_record_is_resolved_like_a_prepared_one() -> None:
    stored = ShardRecord(
        6, 60, Status.RECONFIGURATION, OLD, A, Change(Operation.SWAP, Phase.COMMIT, C, D, EntryId(6, 7)))
    reports = [prepared(B), said(C, epoch=7, election=70), prepared(D)]
    record = found(*reports, stored=stored, silent=1).record
    assert record.ensemble == (A, B, C, D) and record.change is None


# --- N9 ---------------------------------------------------------------------------------------------------


def steady(cluster: Cluster, members: str) -> None:
    """Wait until these are the members and one of them, that is up, leads."""
    assert cluster.run_until(
        lambda: cluster.record.status is Status.STEADY and {m.node for m in cluster.record.ensemble} == set(members)
        and cluster.record.leader is not None and cluster.nodes[cluster.record.leader.node].alive), cluster.describe()
    cluster.run_for(500)


def set_back_story() -> tuple[Cluster, ShardRecord]:
    """The store is taken back to before two swaps; the old members b and c were away meanwhile and know no better."""
    cluster = Cluster("abcde", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    cluster.appended(batch(0))
    backup = cluster.record
    cluster.settle()
    cluster.crash("c")
    cluster.change(Operation.SWAP, "c", "d")
    steady(cluster, "abd")
    cluster.crash("b")
    cluster.change(Operation.SWAP, "b", "e")
    steady(cluster, "ade")
    cluster.appended(batch(1))
    cluster.run_for(500)
    newest = cluster.record
    cluster.operator.alive = False
    cluster.operators.clear()
    for name in "bc":
        cluster.restart(name, tell=False)
    cluster.store(backup)
    return cluster, newest


def test_n9_no_leader_is_elected_from_a_store_that_was_set_back() -> None:
    """Rule N9: b and c are a majority of the old ensemble and have never seen batch 1; a knows a newer epoch."""
    cluster, newest = set_back_story()
    operator = cluster.start_operator("op/2")
    cluster.run_for(10_000)
    assert operator.shard.behind
    assert cluster.record.epoch < newest.epoch and cluster.record.leader == A, "nothing was begun from the old record"
    assert not any(cluster.nodes[name].leads for name in "bc")
    reports = [node.core.log.report(SHARD) for node in cluster.nodes.values() if SHARD in node.core.log.shards]
    assert is_behind(cluster.record, reports)
    fixed = find_record(SHARD, reports, {r.member for r in reports}, 0, stored=cluster.record).record
    assert fixed is not None and {m.node for m in fixed.ensemble} == set("ade") and fixed.epoch > newest.epoch
    cluster.store(fixed)
    operator.alive = False
    cluster.operators.clear()
    cluster.start_operator("op/3")
    steady(cluster, "ade")
    assert cluster.appended(batch(2)).base > 0
    cluster.check()


def test_n9_a_slow_watch_is_no_proof_that_the_store_was_set_back() -> None:
    """Another operator was faster: the store says so when it is asked, and nobody stands still."""
    cluster = Cluster("abc", ensemble="abc")
    first = cluster.start_operator("op/1")
    cluster.settle()
    second = cluster.start_operator("op/2")
    cluster.settle()
    cluster.crash("a")
    steady(cluster, "abc")
    assert not first.shard.behind and not second.shard.behind
    assert cluster.record.leader in (B, C)


# --- N13 --------------------------------------------------------------------------------------------------


def of_documents(who: Member, lineage: bytes = FIRST, **changes: object) -> ReplicaReport:
    return said(who, **{"kind": ShardKind.DOCUMENTS, "lineage": lineage, **changes})  # type: ignore[arg-type]


def test_n13_a_rebuilt_record_names_kind_and_lineage() -> None:
    def identity(*reports: ReplicaReport, stored: ShardRecord | None = None) -> tuple[ShardKind, str]:
        record = found(*reports, stored=stored).record
        return record.kind, record.lineage

    before = ShardRecord(
        4, 40, Status.STEADY, OLD, A, lineage=FIRST.hex(), kind=ShardKind.DOCUMENTS)
    ahead = of_documents(B, SECOND, told=9, epoch=9, election=90, opened=9)

    assert identity(*map(said, OLD)) == (ShardKind.LOG, "")
    assert identity(*map(of_documents, OLD)) == (ShardKind.DOCUMENTS, FIRST.hex())
    assert identity(of_documents(A), ahead, of_documents(C)) == (ShardKind.DOCUMENTS, SECOND.hex())
    assert identity(of_documents(A), ahead, of_documents(C), stored=before) == (ShardKind.DOCUMENTS, SECOND.hex())
    recovering = replace(before, epoch=6, lineage=SECOND.hex())
    assert identity(*(of_documents(who, epoch=7) for who in OLD), stored=recovering) == (
        ShardKind.DOCUMENTS, SECOND.hex())
    fenced = [of_documents(who, b"", told=0, opened=0, role=Role.FENCED) for who in OLD]
    assert identity(*fenced) == (ShardKind.DOCUMENTS, NEWEST.hex()), "never led: no history has a name yet"


def test_n13_an_accepted_loss_begins_another_lineage() -> None:
    assert found(of_documents(A), silent=2).doubt is Doubt.NO_MAJORITY
    lost = found(of_documents(A), silent=2, accept=True)
    log = found(said(A), silent=2, accept=True)

    assert (lost.accepted, lost.record.kind, lost.record.lineage) == (True, ShardKind.DOCUMENTS, NEWEST.hex())
    assert (log.record.kind, log.record.lineage) == (ShardKind.LOG, "")


def test_n13_a_replica_reports_the_lineage_of_its_last_opening() -> None:
    desk, author = Desk(), Author()
    desk.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    entries = [author.opening(lineage=FIRST), author.data(), author.opening(epoch=3, lineage=SECOND)]
    desk.receive(B, append_of(entries[:2], 1))
    first = desk.core.log.report(SHARD)
    desk.receive(OPERATOR, Fence(3, 30))
    desk.receive(B, append_of(entries[2:], 3))
    desk.crash()
    report = desk.core.log.report(SHARD)

    assert (first.kind, first.lineage) == (ShardKind.DOCUMENTS, FIRST)
    assert (report.kind, report.lineage) == (ShardKind.DOCUMENTS, SECOND)


# --- N14 --------------------------------------------------------------------------------------------------

FIVE = (A, B, C, D, E)
LED = ShardRecord(5, 50, Status.STEADY, FIVE, A)
B2, C2, D2 = (Member(each.node, "another-disk") for each in (B, C, D))


def of_five(who: Member, offset: int = 7, **changes: object) -> ReplicaReport:
    return said(who, ensemble=FIVE, head=EntryId(5, offset), **changes)


def survived(*reports: ReplicaReport, others: tuple[Member, ...] = (B2, C2, D2), stored: ShardRecord = LED) -> Any:
    here = {report.member for report in reports} | set(others)
    return find_record(SHARD, reports, here, 3, stored=stored, accept=True, lineage=NEWEST)


def test_n14_an_accepted_loss_makes_the_longest_log_that_is_left_the_source() -> None:
    deposed = of_five(A, role=Role.DEPOSED)
    finding = survived(deposed, of_five(E, 9))
    record = finding.record
    assert (record.status, record.leader, record.ensemble, record.source) == (Status.ELECTION, None, (E,), E)
    assert (record.removed, record.refill, record.epoch) == ((A,), 5, 5 + EPOCH_GAP)
    assert (finding.doubt, finding.accepted) == (Doubt.NO_MAJORITY, True) and "b, c, d are lost" in finding.note
    again = find_record(SHARD, [deposed, of_five(E, 9)], {A, E, B2, C2, D2}, 3, stored=record, accept=True)
    assert again.record is None and again.doubt is None, "the same plan, made again, writes nothing"
    of_docs = survived(deposed, of_five(E), stored=replace(LED, lineage=FIRST.hex(), kind=ShardKind.DOCUMENTS)).record
    assert (of_docs.source, of_docs.lineage, of_docs.kind) == (A, NEWEST.hex(), ShardKind.DOCUMENTS)


def test_n14_a_record_that_can_go_on_stays_though_its_loss_is_accepted() -> None:
    leads = survived(of_five(A, role=Role.LEADER), of_five(E))
    most = survived(*(of_five(who) for who in (A, D, E)), others=(B2, C2))
    silent = survived(of_five(A), others=(B2, C2))   # D and E may come back with their disks
    none_left = survived(others=(*(Member(each.node, "another-disk") for each in FIVE),))
    for finding in (leads, most, silent, none_left):
        assert (finding.record, finding.doubt, finding.note) == (None, None, "as stored")
    unasked = find_record(SHARD, [of_five(A)], {A, B2, C2, D2, E}, 3, stored=LED)
    assert (unasked.record, unasked.doubt) == (None, None)


def test_n14_a_survivor_that_is_silent_may_hold_more() -> None:
    finding = survived(of_five(A))
    assert (finding.record, finding.doubt) == (None, Doubt.NO_MAJORITY) and "e did not say yet" in finding.note
    finding = survived(of_five(A), of_five(E), stored=replace(LED, copies=3))
    assert finding.record is None and "keep each payload" in finding.note


def test_n14_the_survivor_leads_and_the_shard_is_filled_up_again() -> None:
    cluster = Cluster("abc", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    cluster.appended(batch(0))
    cluster.settle()
    for name in "abc":
        cluster.crash(name)
    cluster.operator.alive = False
    cluster.operators.clear()
    for name in "bc":
        cluster.nodes[name].wipe()
    for name in "abc":
        cluster.restart(name, tell=False)
    kept = cluster.log_of("a")
    reports = [node.core.log.report(SHARD) for node in cluster.nodes.values() if SHARD in node.core.log.shards]
    here = {node.me for node in cluster.nodes.values()}
    record = find_record(SHARD, reports, here, 2, stored=cluster.record, accept=True).record
    assert record is not None and not is_behind(record, reports)
    cluster.store(record)
    cluster.start_operator("op/2")
    steady(cluster, "a")
    for name, members in (("b", "ab"), ("c", "abc")):
        cluster.change(Operation.EXPAND, None, name)
        steady(cluster, members)
    cluster.appended(batch(1))
    cluster.settle()
    assert kept == cluster.log_of("b")[: len(kept)] and cluster.log_of("b") == cluster.log_of("c")


def test_a_node_reports_every_replica_it_holds() -> None:
    cluster = Cluster("abc", ensemble="abc")
    cluster.start_operator()
    cluster.settle()
    core: NodeCore = cluster.nodes["b"].core
    report = core.log.report(SHARD)
    assert (report.member, report.epoch, report.ensemble, report.role) == (B, 1, OLD, Role.FOLLOWER)
    assert has_majority(report.ensemble, OLD)
