from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import (
    DiskSpace,
    DropAfter,
    Persist,
    PullSnapshot,
    PutEntry,
    Released,
    Send,
    SetTimer,
    SnapshotChunk,
    SnapshotDescriptor,
    SnapshotFailed,
    Space,
    Trace,
    Wipe,
)
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import NOTHING, EntryId, Member, OperatorId
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.follower import PULL_TIMER
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    AppendRefused,
    BecomeLeader,
    DeleteShard,
    Fence,
    Fenced,
    InstallSnapshot,
    Rejected,
    ShardDeleted,
    SnapshotInstalled,
    SnapshotProgress,
    Truncate,
    Truncated,
)
from tidemark_core.replication.producer_rows import ProducerRows
from tidemark_core.replication.replica import Role

from tests.core.support import AT, OPERATOR, SHARD, A, Author, B, C, Node, append_of, fence, lead

LEADER = B


def send(message: Any, to: Member = LEADER) -> Send:
    return Send(AT, to, message)


def reply(message: Any) -> Send:
    return Send(AT, OPERATOR, message)


@pytest.fixture
def author() -> Author:
    """Epoch 1: an EPOCH_START and three batches, offsets 0 to 6."""
    author = Author(epoch=1)
    author.opening()
    author.data(2)
    author.data(1)
    author.data(3)
    return author


@pytest.fixture
def follower(node: Node) -> Node:
    """A node fenced for epoch 1, durable and silent so far."""
    fence(node, 1)
    node.complete()
    node.take_sent()
    return node


def fed(follower: Node, author: Author, commit: int = -1) -> Node:
    """Give a follower all of an author's entries, durably."""
    epoch = author.epoch
    held = follower.replica.log.head.offset
    follower.receive(LEADER, append_of([e for e in author.entries if e.base > held], epoch, commit))
    follower.complete()
    follower.take_sent()
    return follower


# --- fencing ----------------------------------------------------------------------------------------------


def test_o9_a_fenced_node_names_its_head_once_the_fence_is_durable(node: Node) -> None:
    effects = fence(node, 3)

    assert [Persist(AT, (node.state_write(),), (reply(Fenced(3, 30, NOTHING)),))] == effects
    assert [] == node.sent
    node.complete()
    assert [Fenced(3, 30, NOTHING)] == node.take_sent()


def test_l1_the_answer_to_a_fence_is_behind_all_earlier_writes(follower: Node, author: Author) -> None:
    follower.receive(LEADER, append_of(author.entries, 1))
    fence(follower, 2)

    assert [] == follower.sent
    follower.complete(1)
    assert [AppendAck(1, 6, -1)] == follower.take_sent()
    follower.complete(1)
    assert [Fenced(2, 20, EntryId(1, 6))] == follower.take_sent()
    assert author.entries == follower.stored()


def test_l1_no_acknowledgement_of_an_older_epoch_leaves_after_the_fence(follower: Node, author: Author) -> None:
    fence(follower, 2)
    follower.receive(LEADER, append_of(author.entries, 1))
    follower.complete()

    assert [Fenced(2, 20, NOTHING), AppendRefused(1, 2, NOTHING, Reason.STALE_EPOCH)] == follower.take_sent()
    assert [] == follower.stored()


def test_o8_a_repeated_fence_is_answered_again_with_the_present_head(follower: Node, author: Author) -> None:
    fed(follower, author)
    effects = fence(follower, 1)

    assert [Persist(AT, (), (reply(Fenced(1, 10, EntryId(1, 6))),))] == effects
    assert Role.FOLLOWER is follower.replica.state.role


def test_o9_a_fence_of_an_older_epoch_is_refused(node: Node) -> None:
    fence(node, 3)

    assert [reply(Rejected(2, "Fence", Refused(Reason.STALE_EPOCH, epoch=3)))] == fence(node, 2)


def test_h2_a_fence_of_the_same_epoch_from_another_election_is_refused(node: Node) -> None:
    fence(node, 3, election=30)

    assert [reply(Rejected(3, "Fence", Refused(Reason.STALE_ELECTION, epoch=3)))] == fence(node, 3, election=31)


def test_o31_an_epoch_taken_from_the_leader_learns_its_election_from_the_fence(
    follower: Node, author: Author
) -> None:
    author.opening(Kind.NOOP, epoch=2)
    fed(follower, author)
    assert (2, 0) == (follower.replica.state.epoch, follower.replica.state.election)

    fence(follower, 2, election=77)
    assert 77 == follower.replica.state.election
    assert [reply(Rejected(2, "Fence", Refused(Reason.STALE_ELECTION, epoch=2)))] == fence(follower, 2, election=78)


def test_issue_87_the_epoch_of_a_fence_survives_a_restart(follower: Node, author: Author) -> None:
    """The fenced epoch is durable before the answer leaves (Oxia #87)."""
    fence(follower, 5)
    follower.complete()
    follower.restart()

    assert (5, 50, Role.FENCED) == (
        follower.replica.state.epoch, follower.replica.state.election, follower.replica.state.role
    )
    follower.receive(LEADER, append_of(author.entries, 1))
    follower.complete()
    assert AppendRefused(1, 5, NOTHING, Reason.STALE_EPOCH) == follower.take_sent()[-1]


def test_a_fence_lost_with_the_power_was_never_answered(follower: Node) -> None:
    fence(follower, 5)
    follower.restart()

    assert [] == follower.sent
    assert 1 == follower.replica.state.epoch


# --- truncation -------------------------------------------------------------------------------------------


def test_o21_truncation_is_durable_before_the_answer(follower: Node, author: Author) -> None:
    fed(follower, author)
    fence(follower, 2)
    follower.complete()
    follower.take_sent()

    effects = follower.receive(LEADER, Truncate(2, EntryId(1, 3)))

    assert [
        Trace(AT, "truncated", "to 1:3"),
        Persist(AT, (DropAfter(3),), (send(Truncated(2, EntryId(1, 3))),)),
    ] == effects
    follower.complete()
    assert author.entries[:3] == follower.stored()


def test_o22_a_head_above_the_leader_is_cut_to_the_highest_entry_at_or_below(follower: Node, author: Author) -> None:
    fed(follower, author)
    fence(follower, 2)
    follower.complete()
    follower.take_sent()

    follower.receive(LEADER, Truncate(2, EntryId(1, 5)))   # 5 lies inside the entry [4, 6]
    follower.complete()

    assert [Truncated(2, EntryId(1, 3))] == follower.take_sent()


def test_h1_only_a_fenced_replica_truncates(follower: Node, author: Author) -> None:
    """A late repeat of Truncate must not cut entries that were acknowledged since."""
    fed(follower, author)

    follower.receive(LEADER, Truncate(1, EntryId(1, 0)))
    follower.complete()

    assert [AppendRefused(1, 1, EntryId(1, 6), Reason.WRONG_STATE)] == follower.take_sent()
    assert author.entries == follower.stored()


def test_k14c_truncation_below_commit_is_refused_and_reported_to_the_operator(follower: Node, author: Author) -> None:
    fed(follower, author, commit=6)
    fence(follower, 2)
    follower.complete()
    follower.take_sent()

    effects = follower.receive(LEADER, Truncate(2, EntryId(1, 3)))
    follower.complete()

    assert Trace(AT, "truncate_below_commit_refused", "to 1:3, commit 6") == effects[0]
    why = "K14c: asked to cut to 1:3, acknowledged records are held up to 6"
    report = Rejected(2, "Truncate", Refused(Reason.BELOW_COMMIT, why, 2, 6))
    sent = follower.take_sent()
    assert AppendRefused(2, 2, EntryId(1, 6), Reason.BELOW_COMMIT) in sent
    assert report in sent and 2 == len(sent)
    assert author.entries == follower.stored()


def test_k14c_every_operator_that_spoke_hears_of_the_loss(follower: Node, author: Author) -> None:
    """The active one need not be the one that spoke last."""
    fed(follower, author, commit=6)
    fence(follower, 2)
    other = OperatorId("op/2")
    follower.receive(other, Fence(2, 20))
    follower.complete()
    follower.sent.clear()
    follower.receive(LEADER, Truncate(2, EntryId(1, 3)))
    follower.complete()

    assert [OPERATOR, other] == [each.to for each in follower.sent if isinstance(each.message, Rejected)]


def test_o9_a_truncation_of_an_older_epoch_is_refused(follower: Node) -> None:
    fence(follower, 2)
    follower.receive(LEADER, Truncate(1, NOTHING))
    follower.complete()

    assert AppendRefused(1, 2, NOTHING, Reason.STALE_EPOCH) == follower.take_sent()[-1]


# --- appends ----------------------------------------------------------------------------------------------


def test_k4_an_append_is_acknowledged_by_the_write_that_makes_it_durable(follower: Node, author: Author) -> None:
    effects = follower.receive(LEADER, append_of(author.entries[:2], 1))

    puts = tuple(PutEntry(entry) for entry in author.entries[:2])
    assert [Persist(AT, (*puts, follower.state_write()), (send(AppendAck(1, 2, -1)),))] == effects
    assert [] == follower.sent


def test_k4_acknowledgements_are_cumulative_and_in_order(follower: Node, author: Author) -> None:
    for entry in author.entries:
        follower.receive(LEADER, append_of([entry], 1))
    follower.complete()

    assert [AppendAck(1, upto, -1) for upto in (0, 2, 3, 6)] == follower.take_sent()


def test_o26_a_follower_commits_what_the_leader_says_up_to_what_was_vouched_for(
    follower: Node, author: Author
) -> None:
    effects = follower.receive(LEADER, append_of(author.entries, 1, commit=3))

    assert Released(SHARD, 3) == effects[0]
    assert 3 == follower.replica.commit
    follower.complete()
    assert [AppendAck(1, 6, 3)] == follower.take_sent()


def test_l9_a_watermark_beyond_what_the_message_vouches_for_is_not_applied(follower: Node, author: Author) -> None:
    """A lagging follower must not take its own head for verified (rule L9): `commit` ends at `through`."""
    fed(follower, author)
    fence(follower, 2)
    follower.complete()
    heartbeat = Append(2, EntryId(1, 2), (), 2, 6, 2, 0)

    follower.receive(LEADER, heartbeat)

    assert (2, 2) == (follower.replica.commit, follower.replica.confirmed)
    follower.complete()
    assert AppendAck(2, 2, 2) == follower.take_sent()[-1]


@pytest.mark.parametrize(
    ("commit", "confirmed"), [(6, 6), (6, 3), (1, 2)], ids=["its own head", "behind through", "behind commit"]
)
def test_l9_confirmed_is_lowered_by_the_leader_and_a_message_that_did_not_is_refused_whole(
    follower: Node, author: Author, commit: int, confirmed: int
) -> None:
    """Were it lowered here, to our own head, a lagging follower would show what was rolled back."""
    fed(follower, author)
    fence(follower, 2)
    follower.complete()
    follower.take_sent()
    before = follower.replica.state

    effects = follower.receive(LEADER, Append(2, EntryId(1, 2), (), 2, commit, confirmed, 0))

    ends = f"L9: append vouches through 2 and confirms {confirmed}, its entries end at 2"
    assert [Trace(AT, "violation", ends)] == effects
    assert (-1, -1, before) == (follower.replica.commit, follower.replica.confirmed, follower.replica.state)


def test_h3_commit_never_falls(follower: Node, author: Author) -> None:
    fed(follower, author, commit=6)
    follower.receive(LEADER, append_of([], 1, commit=2, prev=EntryId(1, 2)))

    assert 6 == follower.replica.commit


def test_l2_an_append_that_leaves_a_gap_is_refused(follower: Node, author: Author) -> None:
    follower.receive(LEADER, append_of(author.entries[:1], 1))
    effects = follower.receive(LEADER, append_of(author.entries[2:], 1))

    assert [Persist(AT, (), (send(AppendRefused(1, 1, EntryId(1, 0), Reason.GAP)),))] == effects


def test_l2_an_append_behind_another_entry_is_refused(follower: Node, author: Author) -> None:
    fed(follower, author)
    fence(follower, 3)
    other = author.fork(EntryId(1, 2), 2)
    other.opening()
    other.opening(epoch=3)

    effects = follower.receive(LEADER, append_of(other.entries[-1:], 3))

    assert [Persist(AT, (), (send(AppendRefused(3, 3, EntryId(1, 6), Reason.MISMATCH)),))] == effects


def test_issue_144_a_repeated_append_is_acknowledged_and_not_written_again(follower: Node, author: Author) -> None:
    """Oxia #144, #172: duplicates must be acknowledged, or the leader waits for ever."""
    fed(follower, author)
    effects = follower.receive(LEADER, append_of(author.entries[1:3], 1))

    assert [Persist(AT, (), (send(AppendAck(1, 6, -1)),))] == effects
    follower.complete()
    assert author.entries == follower.stored()


def test_an_append_that_overlaps_writes_only_what_is_new(follower: Node, author: Author) -> None:
    follower.receive(LEADER, append_of(author.entries[:2], 1))
    effects = follower.receive(LEADER, append_of(author.entries, 1))

    assert [
        Persist(AT, tuple(PutEntry(entry) for entry in author.entries[2:]), (send(AppendAck(1, 6, -1)),))
    ] == effects


def test_issue_1177_a_duplicate_of_an_unsynced_entry_is_acknowledged_only_behind_its_sync(
    follower: Node, author: Author
) -> None:
    """Oxia #1177: a duplicate must not be acknowledged as durable while the first copy is not."""
    follower.receive(LEADER, append_of(author.entries, 1))
    follower.receive(LEADER, append_of(author.entries, 1))

    assert [] == follower.sent
    follower.complete(1)
    assert [AppendAck(1, 6, -1)] == follower.take_sent()


def test_issue_1176_a_power_cut_loses_only_what_was_not_acknowledged(follower: Node, author: Author) -> None:
    """Oxia #1176: every write acknowledged before the power cut is there after it, and nothing in between is gone."""
    for entry in author.entries:
        follower.receive(LEADER, append_of([entry], 1))
    follower.complete(2)
    acknowledged = max(message.upto for message in follower.take_sent(AppendAck))
    follower.restart()

    assert acknowledged == follower.replica.log.head.offset == 2
    assert author.entries[:2] == follower.stored()


def test_issue_1239_an_empty_log_accepts_nothing_but_its_first_entry(follower: Node, author: Author) -> None:
    """Oxia #1239: a follower with an empty log that accepted offset 8 made the leader commit 0 to 8."""
    follower.receive(LEADER, append_of(author.entries[3:], 1))
    follower.complete()

    assert [AppendRefused(1, 1, NOTHING, Reason.GAP)] == follower.take_sent()
    assert (NOTHING, []) == (follower.replica.log.head, follower.stored())


def test_a_heartbeat_vouches_for_the_entry_it_names(follower: Node, author: Author) -> None:
    fed(follower, author)
    effects = follower.receive(LEADER, append_of([], 1, commit=6, prev=EntryId(1, 6)))

    assert [Released(SHARD, 6), Persist(AT, (), (send(AppendAck(1, 6, 6)),))] == effects


def test_commit_is_stored_with_the_next_write(follower: Node, author: Author) -> None:
    fed(follower, author)
    follower.receive(LEADER, append_of([], 1, commit=6, prev=EntryId(1, 6)))
    author.data()
    follower.receive(LEADER, append_of(author.entries[-1:], 1, commit=6))
    follower.complete()
    follower.restart()

    assert 6 == follower.replica.commit


def test_o31_a_follower_takes_a_newer_epoch_from_a_leader_it_matches(follower: Node, author: Author) -> None:
    fed(follower, author)
    author.opening(Kind.NOOP, epoch=2)
    follower.receive(LEADER, append_of(author.entries[-1:], 2))
    follower.complete()

    assert (2, Role.FOLLOWER) == (follower.replica.state.epoch, follower.replica.state.role)
    assert [AppendAck(2, 7, -1)] == follower.take_sent()


def test_k5_what_was_verified_in_an_older_epoch_is_not_acknowledged_in_a_newer_one(
    follower: Node, author: Author
) -> None:
    fed(follower, author)
    fence(follower, 2)
    follower.receive(LEADER, append_of([], 2, prev=EntryId(1, 2)))
    follower.complete()

    assert AppendAck(2, 2, -1) == follower.take_sent()[-1]


def test_k5_an_epoch_taken_from_the_leader_starts_with_nothing_verified(follower: Node, author: Author) -> None:
    fed(follower, author)
    follower.receive(LEADER, append_of([], 2, prev=EntryId(1, 2)))
    follower.complete()

    assert [AppendAck(2, 2, -1)] == follower.take_sent()


def test_the_ensemble_of_a_control_entry_is_remembered(follower: Node, author: Author) -> None:
    fed(follower, author)

    assert (A, B, C) == follower.replica.state.ensemble


@pytest.mark.parametrize("role", ["leader", "deposed"])
def test_issue_513_an_append_never_ends_a_leadership(make_node: Callable[..., Node], author: Author, role: str) -> None:
    """Oxia #513: the first message of a leader, old or new, demoted another leader before it was judged."""
    node = make_node()
    lead(node, epoch=1)
    if role == "deposed":
        node.restart()
    before = node.replica.state
    node.take_sent()

    for epoch, reason in ((0, Reason.STALE_EPOCH), (1, Reason.WRONG_STATE), (2, Reason.WRONG_STATE)):
        node.receive(B, Append(epoch, NOTHING, (), -1, -1, -1, 0))
        node.complete()
        assert [AppendRefused(epoch, 1, EntryId(1, 0), reason)] == node.take_sent(AppendRefused)
    assert before == node.replica.state
    assert (role == "leader") == node.leads


# --- a peer that breaks the protocol ----------------------------------------------------------------------


def broken_chain(author: Author) -> Entry:
    """Return the entry that follows the author's log by id, but continues another log."""
    other = author.fork(author.entries[0].id, 1)
    for entry in author.entries[1:]:
        other.data(entry.count, payload=b"something else")
    return other.data()


def test_a_violation_in_the_middle_of_an_append_never_leaves_the_disk_behind_the_memory(
    follower: Node, author: Author
) -> None:
    """Entries in front of the bad one are kept whole: in memory and on disk, or in neither."""
    bad = broken_chain(author)
    follower.receive(LEADER, Append(1, NOTHING, (*author.entries, bad), bad.last, -1, -1, 0))
    follower.complete()

    assert 1 == follower.traces["violation"]
    stored = follower.stored()
    assert (stored[-1].id if stored else NOTHING) == follower.replica.log.head
    fed(follower, author)
    assert author.entries == follower.stored()


def test_l9_an_append_that_vouches_for_other_than_its_entries_changes_nothing(
    follower: Node, author: Author
) -> None:
    effects = follower.receive(LEADER, Append(1, NOTHING, tuple(author.entries), 9, -1, -1, 0))
    follower.complete()

    assert [
        Trace(AT, "violation", "L9: append vouches through 9 and confirms -1, its entries end at 6")
    ] == effects
    assert (NOTHING, []) == (follower.replica.log.head, follower.stored())


def test_entries_of_one_message_that_do_not_touch_are_refused(follower: Node, author: Author) -> None:
    gap = (author.entries[0], author.entries[2])
    follower.receive(LEADER, Append(1, NOTHING, gap, 3, -1, -1, 0))
    follower.complete()

    assert [AppendRefused(1, 1, EntryId(1, 0), Reason.MISMATCH)] == follower.take_sent()
    assert author.entries[:1] == follower.stored()


# --- a full disk ------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_new_entries_and_still_takes_heartbeats(follower: Node, author: Author) -> None:
    fed(follower, author)
    follower.step(DiskSpace(Space.EXHAUSTED))
    author.data()

    follower.receive(LEADER, append_of(author.entries[-1:], 1))
    follower.receive(LEADER, append_of([], 1, commit=6, prev=EntryId(1, 6)))
    follower.complete()

    assert [AppendRefused(1, 1, EntryId(1, 6), Reason.DISK_FULL),
            AppendAck(1, 6, 6, space=Space.EXHAUSTED)] == follower.take_sent()
    follower.step(DiskSpace(Space.FREE))
    follower.receive(LEADER, append_of(author.entries[-1:], 1))
    follower.complete()
    assert [AppendAck(1, 7, 6)] == follower.take_sent()


# --- trim -------------------------------------------------------------------------------------------------


def test_issue_281_a_follower_never_trims_past_its_own_commit(follower: Node, author: Author) -> None:
    """Oxia #281: a log trimmed past commit can neither be followed nor recovered."""
    follower.receive(LEADER, append_of(author.entries, 1, commit=3, trim=7))
    follower.complete()

    assert 4 == follower.replica.log.first
    assert author.entries[3:] == follower.stored()
    follower.restart()
    assert (4, 3, EntryId(1, 6)) == (follower.replica.log.first, follower.replica.commit, follower.replica.log.head)


def test_issue_1133_a_log_of_control_entries_only_is_trimmed_and_restarted(follower: Node) -> None:
    """Oxia #1133: control entries did not advance the stored commit; after a trim the log could not be opened."""
    author = Author(epoch=1)
    author.opening()
    for epoch in range(2, 6):
        author.opening(Kind.NOOP, epoch=epoch)
    follower.receive(LEADER, append_of(author.entries, 5, commit=4, trim=4))
    follower.complete()
    follower.restart()

    assert (4, 4, EntryId(5, 4)) == (follower.replica.log.first, follower.replica.commit, follower.replica.log.head)
    author.data()
    fence(follower, 6)
    follower.receive(LEADER, append_of(author.entries[-1:], 6, commit=5))
    follower.complete()
    assert AppendAck(6, 5, 5) == follower.take_sent()[-1]


# --- being seeded -----------------------------------------------------------------------------------------


def descriptor(author: Author, epoch: int, commit: int = -1) -> SnapshotDescriptor:
    return SnapshotDescriptor(epoch, author.log.head, 0, commit, author.log.bytes_held)


def test_o32_a_seeded_node_answers_when_all_of_the_snapshot_is_durable(node: Node, author: Author) -> None:
    author.opening(Kind.NOOP, epoch=2)
    snapshot = descriptor(author, 2, commit=6)
    effects = node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))

    wiped = Persist(AT, (Wipe(), ProducerRows(SHARD).wipe(), node.state_write()))
    assert [wiped, PullSnapshot(SHARD, LEADER, snapshot, 0)] == effects
    assert Role.SEEDING is node.replica.state.role

    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[2:])))
    assert [] == node.sent
    node.complete(2)
    assert [SnapshotProgress(2, author.log.bytes_held * 3 // 8, author.log.bytes_held)] == node.take_sent()
    node.complete(1)
    assert [] == node.take_sent(SnapshotInstalled)
    node.complete(1)

    assert [SnapshotInstalled(2, EntryId(2, 7))] == node.take_sent(SnapshotInstalled)
    assert (Role.FENCED, author.entries) == (node.replica.state.role, node.stored())


@pytest.mark.parametrize("restarted", [False, True])
def test_o32b_a_seeded_replica_lets_itself_be_cut_above_what_its_entries_vouch_for(
    node: Node, author: Author, restarted: bool
) -> None:
    """Its descriptor claims the whole log; the next leader's log goes on behind the last CONFIRM."""
    decided, note = author.log.head, author.confirm(author.log.head.offset)
    tail = author.data()
    author.opening(Kind.NOOP, epoch=2)
    snapshot = replace(descriptor(author, 2, commit=author.log.head.offset), confirmed=author.log.head.offset)
    install = InstallSnapshot(2, 20, LEADER, snapshot)
    node.receive(OPERATOR, install)
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:-2])))
    node.complete()
    if restarted:
        node.restart()
        node.receive(OPERATOR, install)
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[-2:])))
    node.complete()
    assert node.take_sent(SnapshotInstalled)
    assert (decided.offset, decided.offset) == (node.replica.commit, node.replica.confirmed)

    fence(node, 3)
    node.receive(B, Truncate(3, note.id))
    node.complete()
    assert [Truncated(3, note.id)] == node.take_sent(Truncated) and tail not in node.stored()
    node.receive(B, Truncate(3, EntryId(1, decided.offset - 1)))
    assert node.replica.log.head == note.id, "what is confirmed stays"


def test_o32b_a_replica_whose_log_has_no_confirm_keeps_everything_up_to_its_last_election(node: Node) -> None:
    author = Author()
    author.opening()
    author.data()
    elected = author.opening(epoch=2)
    author.data()
    author.opening(Kind.NOOP, epoch=3)
    node.receive(OPERATOR, InstallSnapshot(3, 30, LEADER, descriptor(author, 3, commit=author.log.head.offset)))
    node.step(SnapshotChunk(SHARD, 3, tuple(author.entries)))
    node.complete()
    assert elected.last == node.replica.commit
    fence(node, 4)
    node.receive(B, Truncate(4, EntryId(1, 0)))
    node.complete()
    assert not node.take_sent(Truncated)


def test_k14_a_node_being_seeded_neither_votes_nor_follows(node: Node, author: Author) -> None:
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))
    node.complete()
    node.take_sent()

    effects = fence(node, 3)
    node.receive(LEADER, append_of(author.entries[2:], 2))
    node.receive(OPERATOR, BecomeLeader(2, 20, (A, B, C), ()))
    node.complete()

    assert [reply(Rejected(3, "Fence", Refused(Reason.NO_REPLICA, "replica is SEEDING", epoch=2)))] == effects
    assert [
        Rejected(2, "BecomeLeader", Refused(Reason.WRONG_STATE, "replica is SEEDING in epoch 2", epoch=2)),
        AppendRefused(2, 2, EntryId(1, 2), Reason.NOT_MEMBER),
    ] == [message for message in node.take_sent() if message != effects[0].message]  # type: ignore[union-attr]


def test_k14_a_seeding_cut_short_by_a_restart_goes_on_where_it_was(node: Node, author: Author) -> None:
    snapshot = descriptor(author, 2)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))
    node.complete()
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[2:3])))
    node.restart()
    assert Role.SEEDING is node.replica.state.role
    node.pulls.clear()

    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))

    assert [PullSnapshot(SHARD, LEADER, snapshot, 3)] == node.pulls
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[2:])))
    node.complete()
    assert author.entries == node.stored()
    assert [SnapshotInstalled(2, EntryId(1, 6))] == node.take_sent(SnapshotInstalled)


def test_o32_a_repeated_snapshot_request_is_answered_again_and_pulls_nothing(node: Node, author: Author) -> None:
    snapshot = descriptor(author, 2)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    assert [] == node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    node.complete()
    node.take_sent()

    effects = node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))

    assert [Persist(AT, (), (reply(SnapshotInstalled(2, EntryId(1, 6))),))] == effects


def test_chunks_that_repeat_or_belong_to_another_epoch_change_nothing(node: Node, author: Author) -> None:
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))
    assert [] == node.step(SnapshotChunk(SHARD, 1, tuple(author.entries[2:])))
    node.complete()

    assert author.entries[:2] == node.stored()


def test_o32_a_snapshot_that_ends_early_is_pulled_again_from_where_it_stopped(node: Node, author: Author) -> None:
    snapshot = descriptor(author, 2)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries[:2])))

    effects = node.step(SnapshotFailed(SHARD, 2, "connection lost"))
    assert [
        Trace(AT, "snapshot_pull_failed", "connection lost"),
        SetTimer(AT, PULL_TIMER, node.limits.pull_retry_ms),
    ] == effects
    assert [PullSnapshot(SHARD, LEADER, snapshot, 3)] == node.fire(PULL_TIMER)


def test_a_violation_in_the_middle_of_a_chunk_never_leaves_the_disk_behind_the_memory(
    node: Node, author: Author
) -> None:
    """A3 counts on it: an installed snapshot with a hole on disk would be a vote without the data."""
    bad = broken_chain(author)
    whole = list(author.entries)
    author.data()
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))

    node.step(SnapshotChunk(SHARD, 2, (*whole, bad)))
    node.complete()

    assert 1 == node.traces["violation"]
    stored = node.stored()
    assert (stored[-1].id if stored else NOTHING) == node.replica.log.head
    assert [] == node.take_sent(SnapshotInstalled)


def test_a_source_that_was_truncated_meanwhile_ends_the_pull_and_no_entry_of_another_log_is_taken(
    node: Node, author: Author
) -> None:
    """An election overtook the change: the source follows a newer leader now (limbo seed 3030674)."""
    author.opening(Kind.NOOP, epoch=2)
    snapshot = descriptor(author, 2)
    elsewhere = author.fork(author.entries[-2].id, epoch=3)
    elsewhere.opening()
    elsewhere.data(count=3)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))

    effects = node.step(SnapshotChunk(SHARD, 2, tuple(elsewhere.entries)))
    node.complete()

    assert Trace(AT, "snapshot_superseded", f"by {elsewhere.entries[-2].id}") in effects
    assert author.entries[:-1] == node.stored()
    assert author.entries[-2].id == node.replica.log.head
    assert [] == node.take_sent(SnapshotInstalled)


@pytest.mark.parametrize(
    ("commit", "said"), [(2, "snapshot_superseded"), (7, "violation")], ids=["head not committed", "head committed"]
)
def test_o32_a_later_leaders_entries_of_an_older_epoch_end_the_pull_unless_the_descriptors_head_was_committed(
    node: Node, author: Author, commit: int, said: str
) -> None:
    """An election dropped the change and chose a member with a longer log, of an older epoch (recovery seed 161448)."""
    elsewhere = author.fork(author.entries[-1].id, epoch=1)
    author.opening(Kind.NOOP, epoch=2)
    elsewhere.data(payload=b"something else")
    snapshot = descriptor(author, 2, commit)
    assert elsewhere.log.head.offset == snapshot.head.offset
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    end = Trace(AT, said, f"snapshot ends at {elsewhere.log.head}, its descriptor says {snapshot.head}")

    assert end in node.step(SnapshotChunk(SHARD, 2, tuple(elsewhere.entries)))
    node.complete()

    assert Role.SEEDING is node.replica.state.role
    assert elsewhere.entries == node.stored(), "memory and disk hold the same"
    assert elsewhere.log.head == node.replica.log.head
    assert end in node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot)), "a repeat pulls nothing"
    assert [] == node.take_sent(SnapshotInstalled)


def trimmed_snapshot(author: Author, commit: int, first: int) -> tuple[SnapshotDescriptor, list[Entry]]:
    """Describe the author's log as a leader would that has trimmed below `first`."""
    log = author.log
    log.settle(commit)
    log.first = first
    entries = [entry for entry in author.entries if entry.base >= first]
    checkpoint = log.checkpoint().encode()
    return SnapshotDescriptor(2, log.head, first, commit, log.bytes_held, checkpoint, confirmed=commit), entries


@pytest.mark.parametrize("first", [1, 3, 4], ids=["two committed left", "one committed left", "all committed trimmed"])
@pytest.mark.parametrize("chunk", [1, 9], ids=["one by one", "at once"])
def test_l18_a_snapshot_of_a_trimmed_log_brings_the_fold_of_what_was_trimmed(
    node: Node, author: Author, first: int, chunk: int
) -> None:
    snapshot, entries = trimmed_snapshot(author, commit=3, first=first)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    for at in range(0, len(entries), chunk):
        node.step(SnapshotChunk(SHARD, 2, tuple(entries[at:at + chunk])))
    node.complete()

    assert [SnapshotInstalled(2, EntryId(1, 6))] == node.take_sent(SnapshotInstalled)
    for _ in range(2):
        assert entries == node.stored()
        assert (first, EntryId(1, 6)) == (node.replica.log.first, node.replica.log.head)
        assert author.log.producers.snapshot() == node.replica.log.producers.snapshot()
        assert author.log.runs == node.replica.log.runs
        node.restart()


def test_l18_a_seeding_cut_short_in_front_of_its_checkpoint_starts_over(node: Node, author: Author) -> None:
    snapshot, entries = trimmed_snapshot(author, commit=3, first=1)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    node.step(SnapshotChunk(SHARD, 2, tuple(entries[:1])))
    node.complete()
    node.restart()
    node.pulls.clear()
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))

    assert [PullSnapshot(SHARD, LEADER, snapshot, 1)] == node.pulls
    node.step(SnapshotChunk(SHARD, 2, tuple(entries)))
    node.complete()
    assert [SnapshotInstalled(2, EntryId(1, 6))] == node.take_sent(SnapshotInstalled)
    assert entries == node.stored()


def test_issue_1163_the_head_after_a_snapshot_is_its_last_entry_with_its_epoch(node: Node, author: Author) -> None:
    """Oxia #1163, #415: a snapshot that left no head made the node unelectable in a quiet cluster."""
    author.opening(Kind.NOOP, epoch=2)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    node.complete()
    node.restart()
    node.take_sent()
    fence(node, 3)
    node.complete()

    assert [Fenced(3, 30, EntryId(2, 7))] == node.take_sent()


def test_o32_a_member_of_the_epoch_is_not_seeded_again(follower: Node, author: Author) -> None:
    fed(follower, author)
    missing = SnapshotDescriptor(1, EntryId(1, 99), 0, -1, 0)

    effects = follower.receive(OPERATOR, InstallSnapshot(1, 10, LEADER, missing))

    refusal = Refused(Reason.WRONG_STATE, "a member of this epoch is not seeded again", epoch=1)
    assert [reply(Rejected(1, "InstallSnapshot", refusal))] == effects
    assert author.entries == follower.stored()


def test_o32_a_snapshot_of_an_older_epoch_is_refused(follower: Node, author: Author) -> None:
    fence(follower, 3)

    effects = follower.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))

    assert [reply(Rejected(2, "InstallSnapshot", Refused(Reason.STALE_EPOCH, epoch=3)))] == effects


# --- being deleted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 2], ids=["same epoch", "higher epoch"])
def test_issue_559_a_replica_is_deleted_at_its_own_epoch_or_above(follower: Node, author: Author, epoch: int) -> None:
    """Oxia #559: the deletion of a swapped-out shard was refused because the terms differed."""
    fed(follower, author)
    effects = follower.receive(OPERATOR, DeleteShard(epoch, epoch * 10))

    wiped = (Wipe(), ProducerRows(SHARD).wipe(), follower.state_write())
    assert [Persist(AT, wiped, (reply(ShardDeleted(epoch)),)), Trace(AT, "deleted")] == effects
    follower.complete()
    assert [] == follower.stored()
    follower.restart()
    assert (Role.DELETED, epoch) == (follower.replica.state.role, follower.replica.state.epoch)


def test_issue_559_a_deletion_below_the_replica_s_epoch_is_refused(follower: Node, author: Author) -> None:
    """A delayed deletion must not hit a replica that was taken back since."""
    fed(follower, author)
    fence(follower, 3)
    effects = follower.receive(OPERATOR, DeleteShard(2, 20))

    assert [reply(Rejected(2, "DeleteShard", Refused(Reason.STALE_EPOCH, epoch=3)))] == effects
    follower.complete()
    assert author.entries == follower.stored()


def test_k14_a_deleted_replica_neither_votes_nor_follows_but_may_be_seeded_anew(
    follower: Node, author: Author
) -> None:
    follower.receive(OPERATOR, DeleteShard(1, 10))
    follower.complete()
    follower.take_sent()

    fence(follower, 2)
    follower.receive(LEADER, append_of(author.entries, 2))
    follower.complete()
    assert [
        Rejected(2, "Fence", Refused(Reason.NO_REPLICA, "replica is DELETED", epoch=1)),
        AppendRefused(2, 1, NOTHING, Reason.NOT_MEMBER),
    ] == follower.take_sent()

    follower.receive(OPERATOR, InstallSnapshot(1, 10, LEADER, descriptor(author, 1)))
    assert [Rejected(1, "InstallSnapshot", Refused(Reason.STALE_EPOCH, epoch=1))] == follower.take_sent()
    follower.receive(OPERATOR, InstallSnapshot(3, 30, LEADER, descriptor(author, 3)))
    follower.step(SnapshotChunk(SHARD, 3, tuple(author.entries)))
    follower.complete()
    assert [SnapshotInstalled(3, EntryId(1, 6))] == follower.take_sent(SnapshotInstalled)


def test_a_deletion_stops_the_pull(node: Node, author: Author) -> None:
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))
    effects = node.receive(OPERATOR, DeleteShard(2, 20))

    assert PullSnapshot(SHARD, None, None, 0) == effects[0]


def test_a_message_for_somebody_else_s_role_is_a_violation(follower: Node) -> None:
    effects = follower.receive(OPERATOR, Append(1, NOTHING, (), -1, -1, -1, 0))

    assert [STRANGER_REFUSED] == [each.what for each in effects]
    assert [STRANGER_REFUSED] == [each.what for each in follower.receive(LEADER, Fenced(1, 10, NOTHING))]


def test_o4_a_node_is_fenced_by_operators_and_never_by_a_peer(follower: Node) -> None:
    """A node knows no membership: only what an operator tells it in an epoch counts."""
    effects = follower.receive(LEADER, Fence(9, 90))

    assert [STRANGER_REFUSED] == [each.what for each in effects]
    assert 1 == follower.replica.state.epoch


def test_a_seeded_node_knows_from_its_snapshot_whom_to_ask_for_a_repair(node: Node, author: Author) -> None:
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, descriptor(author, 2)))
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))

    assert (A, B, C) == node.replica.state.ensemble
