from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import (
    DiskSpace,
    Feed,
    LocalDurable,
    LocalStep,
    LogRead,
    PeerDown,
    PeerUp,
    Persist,
    PutEntry,
    ReadLog,
    Received,
    Released,
    Reply,
    Send,
    SetTimer,
    Space,
    Trace,
)
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import NOTHING, EntryId, Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.order import slots_of
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.confirmations import CONFIRMATION_TIMER
from tidemark_core.replication.cursor import CursorStatus
from tidemark_core.replication.leader import LEADING, NOTICE_TIMER, RESEND_TIMER, TRANSFER_TIMER
from tidemark_core.replication.messages import (
    Abort,
    Aborted,
    AddFollower,
    Append,
    AppendAck,
    Appended,
    AppendRefused,
    BecameLeader,
    BecomeLeader,
    Commit,
    CommitPending,
    Committed,
    Fence,
    FollowerAdded,
    Operation,
    Prepare,
    Prepared,
    PrepareTransfer,
    ReadGrant,
    Rejected,
    TransferReady,
    Truncate,
    Truncated,
)
from tidemark_core.replication.outcomes import QUORUM_TIMER, WAITERS_MAX
from tidemark_core.replication.read_index import READ_INDEX_TIMER
from tidemark_core.replication.replica import Role
from tidemark_core.replication.retention import RETENTION_TIMER
from tidemark_core.replication.settings import Configure

from tests.core.support import (
    AT,
    OPERATOR,
    OTHER_PRODUCER,
    SHARD,
    A,
    Author,
    B,
    C,
    D,
    Node,
    ack,
    append_of,
    batch,
    fence,
    lead,
    vetted,
)

LOCAL = Durability.LOCAL
QUORUM = Durability.QUORUM


def reply(message: Any) -> Send:
    return Send(AT, OPERATOR, message)


def rejected(epoch: int, about: str, reason: Reason, message: str = "", own: int | None = None) -> Send:
    return reply(Rejected(epoch, about, Refused(reason, message, epoch=epoch if own is None else own)))


@pytest.fixture
def leader(node: Node) -> Node:
    """`a` leads epoch 1 of a, b, c; nobody has acknowledged anything."""
    lead(node)
    node.take_sent()
    return node


@pytest.fixture
def led(leader: Node) -> Node:
    """As `leader`, with the EPOCH_START committed everywhere."""
    ack(leader, B)
    ack(leader, C)
    leader.fire(NOTICE_TIMER)
    ack(leader, B, commit=0)
    ack(leader, C, commit=0)
    leader.take_sent()
    return leader


def inherited(node: Node, *, acknowledged: bool = True) -> Author:
    """Give a node a log of epoch 1, as a follower of B: offsets 0 to 3."""
    author = Author(epoch=1)
    author.opening()
    author.data(2)
    author.data()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1))
    if acknowledged:
        node.complete()
    node.take_sent()
    return author


def pushes(node: Node, to: Member | None = None) -> list[Append]:
    """Take the appends sent, those to one member if asked, once the reads they wait for are answered."""
    while node.reads:
        node.step(node.answer_read(node.reads.pop(0)))
    taken = [send for send in node.sent if isinstance(send.message, Append) and to in (None, send.to)]
    node.sent = [send for send in node.sent if send not in taken]
    return [send.message for send in taken]


# --- becoming leader --------------------------------------------------------------------------------------


def test_o14_a_leader_answers_when_its_leadership_is_durable(node: Node) -> None:
    fence(node, 1)
    node.complete()
    node.take_sent()
    effects = node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING))))

    start = node.leader.replica.log
    entry = Author(epoch=1).opening()
    assert [
        Trace(AT, "became_leader", "epoch 1, head 1:0"),
        Persist(
            AT, (PutEntry(entry), node.state_write()),
            (
                Feed(LocalDurable(SHARD, 1, 0)),
                Feed(LocalStep(SHARD, 1, LEADING, (((B, NOTHING), (C, NOTHING)),))),
                reply(BecameLeader(1, 10)),
            ),
        ),
    ] == effects
    assert (EntryId(1, 0), Role.LEADER) == (start.head, node.replica.state.role)
    assert [] == node.sent


def test_l4_an_elected_leader_opens_its_epoch_with_an_epoch_start(node: Node) -> None:
    author = inherited(node)
    lead(node, epoch=2)

    opening = node.stored()[-1]
    assert (Kind.EPOCH_START, 2, author.log.head) == (opening.kind, opening.epoch, opening.prev)


def test_o13_o14_each_follower_of_the_map_is_attached_or_truncated(node: Node) -> None:
    inherited(node)
    lead(node, epoch=4, followers=[(B, EntryId(1, 2)), (C, EntryId(3, 9))])

    assert [
        (B, CursorStatus.ATTACHED, 3), (C, CursorStatus.TRUNCATING, 0)
    ] == [(cursor.follower, cursor.status, cursor.next) for cursor in node.leader.cursors.values()]
    assert [Truncate(4, EntryId(1, 3))] == node.take_sent(Truncate)
    assert [ReadLog(SHARD, ("push", B, 4, 3), 3, 4, node.limits.push_bytes_max)] == node.reads
    assert [(EntryId(1, 2), 4)] == [(push.prev, push.through) for push in pushes(node, B)]


def test_h4_the_ensemble_of_become_leader_is_the_one_that_counts(node: Node) -> None:
    """The factor is the length of the final ensemble, whatever the node believed before."""
    lead(node, ensemble=(A, B, C, D))
    node.append(1, batch(0))
    node.complete()
    ack(node, B)
    assert -1 == node.replica.commit
    ack(node, C)

    assert 1 == node.replica.commit


def test_o13_a_member_outside_the_map_gets_no_cursor(node: Node) -> None:
    lead(node, followers=[(B, NOTHING), (D, NOTHING)])

    assert [B] == list(node.leader.cursors)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (BecomeLeader(2, 20, (A, B, C), ()), Refused(Reason.STALE_EPOCH, epoch=3)),
        (BecomeLeader(4, 40, (A, B, C), ()), Refused(Reason.WRONG_STATE, "fence first", epoch=3)),
        (BecomeLeader(3, 31, (A, B, C), ()), Refused(Reason.STALE_ELECTION, epoch=3)),
        (BecomeLeader(3, 30, (B, C), ()), Refused(Reason.NOT_MEMBER, f"{A} is not in the ensemble", epoch=3)),
    ],
)
def test_o9_only_the_election_that_fenced_a_node_can_make_it_leader(
    node: Node, message: BecomeLeader, refusal: Refused
) -> None:
    fence(node, 3)

    assert [reply(Rejected(message.epoch, "BecomeLeader", refusal))] == node.receive(OPERATOR, message)
    assert not node.leads


def test_o14_a_repeat_of_become_leader_is_answered_again(leader: Node) -> None:
    effects = leader.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ()))

    assert [Persist(AT, (), (reply(BecameLeader(1, 10)),))] == effects
    assert 1 == len(leader.stored())


def test_a_follower_of_an_epoch_cannot_be_made_its_leader(node: Node) -> None:
    inherited(node)

    effects = node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ()))

    assert [rejected(1, "BecomeLeader", Reason.WRONG_STATE, "replica is FOLLOWER in epoch 1")] == effects


@pytest.mark.parametrize("completed", [0, 1], ids=["leadership lost with the power", "leadership durable"])
def test_issue_621_a_leader_serves_nothing_before_its_leadership_is_durable(node: Node, completed: int) -> None:
    """Oxia #621: LEADER was set before the followers were attached; a later step failed; acknowledged data was lost.

    At every step of becoming leader: nothing is accepted before the step that makes it safe, and a crash there
    leaves a node that never leads this epoch (again).
    """
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING))))

    assert Refused(Reason.NOT_LEADER, "leadership is being established", 1) == node.append(1, batch(0))
    assert ReadGrant(0, -1, 1) == node.read_grant(2)
    assert [] == pushes(node)
    assert [] == [m for m in node.take_sent() if isinstance(m, BecameLeader)]

    node.complete(completed)
    if completed:
        assert node.append(3, batch(0)) is None, "accepted, and answered by nobody before its quorum"
        assert ReadGrant(0, -1, 1) == node.read_grant(4)
    node.restart()
    assert Refused(Reason.NOT_LEADER, "", 1) == node.append(5, batch(0))
    node.take_sent()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING))))
    node.complete()
    if completed:
        role = "replica is DEPOSED in epoch 1"
        assert [Rejected(1, "BecomeLeader", Refused(Reason.WRONG_STATE, role, epoch=1))] == node.take_sent()
    else:
        # Nothing of the first attempt ever left the node, so it may begin anew.
        assert BecameLeader(1, 10) in node.take_sent()


def test_a_leader_that_restarts_never_leads_its_epoch_again_but_may_be_elected_anew(leader: Node) -> None:
    leader.restart()
    assert Role.DEPOSED is leader.replica.state.role

    lead(leader, epoch=2)

    assert leader.leader.active


def test_steps_of_an_older_leadership_do_not_open_a_newer_one(node: Node) -> None:
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, EntryId(1, 5)),)))
    fence(node, 2)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(2, 20, (A, B, C), ((B, NOTHING),)))
    vetted(node)

    node.step(LocalStep(SHARD, 1, LEADING, (((B, EntryId(1, 5)),),)), LocalDurable(SHARD, 1, 99))

    assert (False, -1) == (node.leader.active, node.leader.durable)


# --- late followers ---------------------------------------------------------------------------------------


def test_o16_a_late_follower_is_attached_at_its_head(node: Node) -> None:
    lead(node, followers=[(B, NOTHING)])
    node.take_sent()
    effects = node.receive(OPERATOR, AddFollower(1, 10, C, NOTHING))

    assert reply(FollowerAdded(1, C)) == effects[0]
    assert [NOTHING] == [push.prev for push in pushes(node, C)]


def test_o17_a_late_follower_is_truncated_while_the_shard_serves(node: Node) -> None:
    inherited(node)
    lead(node, epoch=3, followers=[(B, EntryId(1, 3))])
    ack(node, B)
    node.take_sent()
    node.receive(OPERATOR, AddFollower(3, 30, C, EntryId(2, 7)))
    assert [Truncate(3, EntryId(1, 3))] == node.take_sent(Truncate)

    node.append(1, batch(2))
    node.complete()
    ack(node, B)
    assert isinstance(node.answer(1), Appended)
    node.take_sent()

    node.receive(C, Truncated(3, EntryId(1, 3)))
    assert [EntryId(1, 3)] == [push.prev for push in pushes(node, C)]


def test_o16_a_follower_that_has_a_cursor_keeps_it(led: Node) -> None:
    effects = led.receive(OPERATOR, AddFollower(1, 10, B, NOTHING))

    assert [reply(FollowerAdded(1, B))] == effects
    assert 0 == led.leader.cursors[B].match


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [
        (AddFollower(2, 20, B, NOTHING), Reason.STALE_EPOCH, ""),
        (AddFollower(1, 10, D, NOTHING), Reason.NOT_MEMBER, f"{D} is not in the ensemble (#880)"),
        (AddFollower(1, 10, A, NOTHING), Reason.NOT_MEMBER, f"{A} is not in the ensemble (#880)"),
    ],
)
def test_issue_880_only_members_are_added_and_never_the_leader_itself(
    led: Node, message: AddFollower, reason: Reason, why: str
) -> None:
    """Oxia #880, #495: a removed node was counted as follower; more cursors than members."""
    assert [rejected(message.epoch, "AddFollower", reason, why, own=1)] == led.receive(OPERATOR, message)
    assert [B, C] == list(led.leader.cursors)


# --- truncating followers ---------------------------------------------------------------------------------


def test_o21_a_follower_of_an_older_epoch_is_cut_to_the_leader_s_highest_entry_of_its_epoch(node: Node) -> None:
    author = inherited(node)
    author.opening(epoch=2)
    node.receive(B, append_of(author.entries[-1:], 2))
    lead(node, epoch=3, followers=[(B, EntryId(1, 9))])

    assert [Truncate(3, EntryId(1, 3))] == node.take_sent(Truncate)


def test_o22_a_follower_with_a_higher_head_is_cut_to_the_leader_s_head(node: Node) -> None:
    inherited(node)
    lead(node, epoch=3, followers=[(B, EntryId(2, 8))])

    assert [Truncate(3, EntryId(1, 3))] == node.take_sent(Truncate)


def test_h1_truncation_is_repeated_until_the_head_is_an_entry_of_the_leader(node: Node) -> None:
    """Follower e1:{0,1} e3:{2}; leader e2:{0}: one shot leaves e1's entries in front of the leader's."""
    author = Author(epoch=2)
    author.opening()
    fence(node, 2)
    node.receive(B, append_of(author.entries, 2))
    lead(node, epoch=4, followers=[(B, EntryId(3, 2))])

    assert [Truncate(4, EntryId(2, 0))] == node.take_sent(Truncate)
    node.receive(B, Truncated(4, EntryId(1, 1)))
    assert [Truncate(4, NOTHING)] == node.take_sent(Truncate)
    assert [] == pushes(node)
    node.receive(B, Truncated(4, NOTHING))
    assert CursorStatus.ATTACHED is node.leader.cursors[B].status
    assert [NOTHING] == [push.prev for push in pushes(node, B)]


def test_o23_nothing_is_pushed_before_the_truncation_is_answered(node: Node) -> None:
    inherited(node)
    lead(node, epoch=3, followers=[(B, EntryId(2, 8))])
    node.append(1, batch(2))
    node.complete()
    assert [] == pushes(node, B)

    node.receive(B, Truncated(3, EntryId(1, 3)))
    assert [EntryId(1, 3)] == [push.prev for push in pushes(node, B)]


def test_o23_a_lost_truncation_is_sent_again(node: Node) -> None:
    inherited(node)
    lead(node, epoch=3, followers=[(B, EntryId(2, 8))])
    node.take_sent()
    node.fire(RESEND_TIMER)   # looks
    node.fire(RESEND_TIMER)   # no progress since

    assert [Truncate(3, EntryId(1, 3))] == node.take_sent(Truncate)


def test_l2_a_late_follower_is_truncated_against_the_leader_s_current_log(led: Node) -> None:
    led.append(1, batch(0, count=3))
    led.complete()
    ack(led, B)
    del led.leader.cursors[C]
    led.take_sent()
    led.receive(OPERATOR, AddFollower(1, 10, C, EntryId(1, 3)))

    assert CursorStatus.ATTACHED is led.leader.cursors[C].status
    assert [] == led.take_sent(Truncate)


def test_acknowledgements_and_truncations_of_an_older_epoch_are_ignored(node: Node) -> None:
    inherited(node)
    lead(node, epoch=3, followers=[(B, EntryId(2, 8)), (C, EntryId(1, 3))])

    assert [] == node.receive(B, Truncated(2, EntryId(1, 3)))
    assert [] == node.receive(C, AppendAck(1, 3, -1))
    assert -1 == node.leader.cursors[C].match


# --- appends ----------------------------------------------------------------------------------------------


def test_an_append_is_written_and_pushed_at_the_end_of_its_turn_and_answered_by_nobody_yet(led: Node) -> None:
    what = batch(0, count=3)
    effects = led.step(AppendRequest(SHARD, 1, what))

    entry = led.written[SHARD].all()[-1]
    assert (1, 1, 3, what.payload) == (entry.epoch, entry.base, entry.count, entry.payload)
    push = Append(1, EntryId(1, 0), (entry,), 3, 0, 0, 0)
    assert [
        SetTimer(AT, QUORUM_TIMER, SynchroSettings().timeout_ms),
        Persist(AT, (PutEntry(entry), led.state_write()), (Feed(LocalDurable(SHARD, 1, 3)),)),
        Send(AT, B, push),
        Send(AT, C, push),
    ] == effects
    assert {RESEND_TIMER, QUORUM_TIMER} == {name for _, name in led.timers}
    assert led.timers[SHARD, QUORUM_TIMER] == SynchroSettings().timeout_ms


def test_appends_of_one_turn_share_one_write_and_one_message(led: Node) -> None:
    led.step(*(AppendRequest(SHARD, n, batch(n)) for n in range(3)))

    assert [3] == [len(push.entries) for push in pushes(led, B)]
    assert 1 == len(led.queue)


def test_o24_an_append_is_answered_when_a_majority_holds_it_durably(led: Node) -> None:
    led.append(1, batch(0))
    ack(led, B)
    assert led.answer(1) is None, "the leader's own copy is not durable"
    led.complete()

    assert Appended(1, 1, 1, QUORUM) == led.answer(1)


def test_l1_the_leader_s_own_copy_counts_only_once_it_is_durable(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(1))
    ack(led, B)
    led.complete(1)
    assert (1, Appended(1, 1, 1, QUORUM), None) == (led.replica.commit, led.answer(1), led.answer(2))
    led.complete(1)

    assert Appended(1, 2, 1, QUORUM) == led.answer(2)


def test_l2_commit_is_that_of_a_majority_s_prefix_and_never_falls(led: Node) -> None:
    for sequence in range(4):
        led.append(sequence, batch(sequence))
    led.complete()
    ack(led, B, 3)
    assert 3 == led.replica.commit
    ack(led, C, 2)
    ack(led, B, 1)
    assert 3 == led.replica.commit
    ack(led, C, 4)
    assert 4 == led.replica.commit


def test_o25_inherited_entries_commit_only_below_an_entry_of_the_current_epoch(node: Node) -> None:
    inherited(node)
    lead(node, epoch=2, followers=[(B, EntryId(1, 3)), (C, EntryId(1, 3))])
    node.append(1, batch(2))

    ack(node, B, 3)   # everything inherited is on a majority now
    assert -1 == node.replica.commit
    effects = ack(node, C, 4)
    assert 4 == node.replica.commit
    assert Released(SHARD, 4) in effects


def test_l12_a_new_leader_serves_up_to_the_commit_it_knew_until_its_epoch_start_commits(node: Node) -> None:
    author = inherited(node)
    node.receive(B, append_of([], 1, commit=2, prev=author.log.head))
    lead(node, epoch=2, followers=[(B, EntryId(1, 3)), (C, EntryId(1, 3))])

    assert ReadGrant(0, 2, 2) == node.read_grant(1)
    ack(node, B, 3)
    assert ReadGrant(0, 2, 2) == node.read_grant(2)
    ack(node, B, 4)
    assert ReadGrant(0, 4, 2) == node.read_grant(3)


def test_l9_watermarks_travel_lowered_to_what_the_message_vouches_for(led: Node) -> None:
    led.receive(C, AppendRefused(1, 1, NOTHING, Reason.GAP))
    for sequence in range(3):
        led.append(sequence, batch(sequence))
    led.complete()
    ack(led, B)
    led.take_sent()
    cursor = led.leader.cursors[C]
    cursor.match = cursor.next = 0
    cursor.floor = 0
    led.step(PeerUp(C))

    for push in pushes(led, C):
        assert push.commit <= push.through
        assert push.commit == push.confirmed


def test_k1_entries_carry_orders_that_are_spread_block_by_block_with_dead_members_right_most(
    make_node: Callable[..., Node],
) -> None:
    node = make_node(limits=Limits(order_block_bytes=1))
    lead(node)

    def slots(sequence: int) -> tuple[int, ...]:
        node.append(sequence, batch(sequence))
        return slots_of(node.written[SHARD].all()[-1].order, 3)

    before = [slots(sequence) for sequence in range(3)]
    assert {0, 1, 2} == {first for first, *_ in before}
    node.step(PeerDown(B))
    assert {1} == {slots(sequence)[-1] for sequence in range(3, 6)}
    node.step(Configure(SHARD, SynchroSettings(zone_of=(("a", "east"), ("b", "east"), ("c", "west")))))
    node.step(PeerUp(B))
    assert all(2 in slots(sequence)[:2] for sequence in range(6, 12))


def test_k1_an_order_holds_for_a_block_and_shards_and_epochs_do_not_all_begin_with_one_slot(
    make_node: Callable[..., Node],
) -> None:
    firsts = []
    for epoch in range(1, 4):
        node = make_node()
        lead(node, epoch)
        for sequence in range(3):
            node.append(sequence, batch(sequence))
        orders = {entry.order for entry in node.written[SHARD].all() if entry.kind is Kind.DATA}
        assert 1 == len(orders)
        firsts.append(orders.pop() & 15)
    assert {0, 1, 2} == set(firsts)


# --- LOCAL ------------------------------------------------------------------------------------------------


def test_l14_a_local_append_is_answered_when_the_leader_holds_it_durably(led: Node) -> None:
    led.append(1, batch(0, durability=LOCAL))
    assert led.answer(1) is None
    led.complete()

    assert Appended(1, 1, 1, LOCAL) == led.answer(1)
    assert 0 == led.replica.commit


def test_l14_a_local_append_is_visible_only_once_it_is_committed(led: Node) -> None:
    led.append(1, batch(0, durability=LOCAL))
    led.complete()
    assert ReadGrant(0, 0, 1) == led.read_grant(2)
    ack(led, B)

    assert ReadGrant(0, 1, 1) == led.read_grant(3)


def test_l14_a_local_append_waits_behind_an_older_quorum_append(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(0, producer=OTHER_PRODUCER, durability=LOCAL))
    led.complete()
    assert (None, None) == (led.answer(1), led.answer(2))
    effects = ack(led, B, 1)

    assert [Reply(1, Appended(1, 1, 1, QUORUM)), Reply(2, Appended(1, 2, 1, LOCAL))] == [
        effect for effect in effects if isinstance(effect, Reply)
    ]


def test_l14_nothing_is_answered_local_before_the_epoch_start_is_committed(leader: Node) -> None:
    leader.append(1, batch(0, durability=LOCAL))
    leader.complete()
    assert leader.answer(1) is None
    ack(leader, B, 0)

    assert Appended(1, 1, 1, LOCAL) == leader.answer(1)


def test_l13_a_local_append_found_committed_says_so(led: Node) -> None:
    led.append(1, batch(0, durability=LOCAL))
    ack(led, B)
    ack(led, C)

    assert Appended(1, 1, 1, QUORUM) == led.answer(1)
    assert 1 == led.replica.commit


def test_l4_a_reconfiguration_does_not_close_local_appends(led: Node) -> None:
    """A NOOP is not an EPOCH_START: what was open stays open across it."""
    led.receive(OPERATOR, Prepare(2, 20, Operation.EXPAND, None, D))
    led.append(1, batch(0, durability=LOCAL))
    led.complete()

    assert Appended(2, 2, 1, LOCAL) == led.answer(1)


# --- idempotence ------------------------------------------------------------------------------------------


def test_l19_a_repeat_of_a_pending_append_waits_with_it_and_is_not_appended_again(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(0))
    led.complete()
    assert (2, None, None) == (len(led.stored()), led.answer(1), led.answer(2))
    ack(led, B)

    assert Appended(1, 1, 1, QUORUM) == led.answer(1) == led.answer(2)


def test_l19_a_repeat_of_a_committed_append_is_answered_at_once_with_its_place(led: Node) -> None:
    led.append(1, batch(0, count=4))
    led.complete()
    ack(led, B)

    assert Appended(1, 1, 4, QUORUM) == led.append(2, batch(0, count=4))
    assert 2 == len(led.stored())


def test_l19_a_repeat_of_an_answered_local_append_is_answered_again(led: Node) -> None:
    led.append(1, batch(0, durability=LOCAL))
    led.complete()

    assert Appended(1, 1, 1, LOCAL) == led.append(2, batch(0, durability=LOCAL))


def test_l19_repeats_of_inherited_batches_wait_for_the_commit_in_log_order(node: Node) -> None:
    inherited(node)
    lead(node, epoch=2, followers=[(B, EntryId(1, 3)), (C, EntryId(1, 3))])
    node.append(1, batch(1))
    node.append(2, batch(0, count=2))
    assert (None, None) == (node.answer(1), node.answer(2))
    effects = ack(node, B)

    assert [Reply(2, Appended(1, 1, 2, QUORUM)), Reply(1, Appended(1, 3, 1, QUORUM))] == [
        effect for effect in effects if isinstance(effect, Reply)
    ]


def test_l19_a_higher_sequence_is_told_the_expected_one(led: Node) -> None:
    led.append(1, batch(0))

    assert Refused(Reason.SEQUENCE_GAP, "sequence is 3, expected 1", 1, 1) == led.append(2, batch(3))


def test_l21_a_leader_names_no_gap_before_its_epoch_start_is_committed(leader: Node) -> None:
    """Another log may yet win, in which the missing batch is."""
    early = leader.append(1, batch(1))
    assert isinstance(early, Refused) and early.reason is Reason.BEHIND
    leader.complete()
    ack(leader, B)
    late = leader.append(2, batch(1))
    assert isinstance(late, Refused) and late.reason is Reason.PRODUCER_UNKNOWN


def test_l25_l19_an_unknown_producer_must_start_at_0(led: Node) -> None:
    assert Refused(Reason.PRODUCER_UNKNOWN, "sequence is 1, expected 0", 1, 0) == led.append(1, batch(1))


def test_l19_the_sixth_last_batch_is_too_old(led: Node) -> None:
    for sequence in range(6):
        led.append(sequence, batch(sequence))
    led.complete()
    ack(led, B)

    assert Refused(
        Reason.SEQUENCE_TOO_OLD, "sequence 0 was used and its place is no longer remembered", 1, 6
    ) == led.append(10, batch(0))
    assert Appended(1, 2, 1, QUORUM) == led.append(11, batch(1))


def test_l19_a_repeat_with_another_count_is_refused(led: Node) -> None:
    led.append(1, batch(0, count=2))
    led.complete()
    ack(led, B)

    assert Refused(Reason.INVALID_BATCH, "sequence 0 holds 2 records, this retry has 3", 1) == led.append(
        2, batch(0, count=3)
    )


def test_l20_a_refused_append_leaves_no_trace_and_may_be_tried_again(led: Node) -> None:
    led.step(DiskSpace(Space.FULL))
    assert Refused(Reason.DISK_FULL, "the leader's disk is full", 1, -1, 1000) == led.append(1, batch(0))
    led.step(DiskSpace(Space.FREE))

    assert led.append(2, batch(0)) is None
    assert EntryId(1, 1) == led.replica.log.head


# --- bounds -----------------------------------------------------------------------------------------------


def test_a_batch_over_the_limit_is_refused(make_node: Callable[..., Node]) -> None:
    node = make_node(limits=Limits(batch_bytes_max=10))
    lead(node)

    assert Refused(
        Reason.BATCH_TOO_LARGE, "payload has 11 bytes, the limit is 10"
    ) == node.append(1, batch(0, payload=bytes(11)))
    assert node.append(2, batch(0, payload=bytes(10))) is None


def test_batches_that_wait_for_their_quorum_are_bounded_in_number(make_node: Callable[..., Node]) -> None:
    node = make_node(limits=Limits(pending_entries_max=3))
    lead(node)
    for sequence in range(2):
        node.append(sequence, batch(sequence))

    refusal = Refused(Reason.OVERLOADED, "3 batches wait for their quorum", 1, -1, 50)
    assert refusal == node.append(5, batch(2))
    assert 2 == len(node.leader.outcomes.limbo)
    node.complete()
    ack(node, B)
    assert node.append(6, batch(2)) is None


def test_batches_that_wait_for_their_quorum_are_bounded_in_bytes(make_node: Callable[..., Node]) -> None:
    node = make_node(limits=Limits(pending_bytes_max=1_000))
    lead(node)
    node.append(1, batch(0, payload=bytes(500)))

    refusal = node.append(2, batch(1, payload=bytes(500)))
    assert isinstance(refusal, Refused) and refusal.reason is Reason.OVERLOADED


def test_what_is_in_flight_to_a_follower_is_bounded(make_node: Callable[..., Node]) -> None:
    node = make_node(limits=Limits(push_bytes_max=1_000, inflight_bytes_max=3_000))
    lead(node)
    ack(node, B)
    ack(node, C)
    node.take_sent()
    node.step(*(AppendRequest(SHARD, n, batch(n, payload=bytes(850))) for n in range(10)))
    sent = pushes(node, B)
    in_flight = sum(entry.size for push in sent for entry in push.entries)

    assert 3_000 <= in_flight < 4_000, "full, by one message at most"
    assert all(sum(entry.size for entry in push.entries) < 2_000 for push in sent)
    node.complete()
    assert [] == pushes(node, B)
    ack(node, B, sent[0].through)
    assert 1 == len(pushes(node, B))


def test_k4_a_follower_outside_the_window_catches_up_by_reads(make_node: Callable[..., Node]) -> None:
    node = make_node(limits=Limits(tail_bytes_max=600, push_bytes_max=1_000))
    lead(node)
    node.step(PeerDown(C))
    for sequence in range(8):
        node.append(sequence, batch(sequence))
        node.complete()
        ack(node, B)
    node.take_sent()
    node.step(PeerUp(C))
    [read] = node.reads
    node.reads.clear()
    assert (0, 8) == (read.first, read.last)

    node.step(node.answer_read(read))
    ack(node, C, node.leader.cursors[C].next - 1)
    while node.reads:
        node.step(node.answer_read(node.reads.pop(0)))
        ack(node, C, node.leader.cursors[C].next - 1)
    assert 8 == node.leader.cursors[C].match


# --- losses -----------------------------------------------------------------------------------------------


def test_a_lost_push_is_repeated_from_the_last_acknowledgement(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    ack(led, B, 1)
    led.take_sent()
    led.fire(RESEND_TIMER)   # b made progress since it was attached, so it is only slow
    led.take_sent()
    led.fire(RESEND_TIMER)

    assert [EntryId(1, 1)] == [push.prev for push in pushes(led, B)]
    assert [EntryId(1, 0)] == [push.prev for push in pushes(led, C)]


def test_an_idle_shard_has_no_timer(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    ack(led, C)
    led.fire(NOTICE_TIMER)   # leaves a CONFIRM record, which is replicated like any entry
    led.complete()
    ack(led, B)
    ack(led, C)
    led.fire(NOTICE_TIMER)   # nothing was decided since: only the watermark is told
    assert Kind.CONFIRM is led.stored()[-1].kind and 3 == len(led.stored())
    ack(led, B, commit=2)
    ack(led, C, commit=2)
    led.fire(QUORUM_TIMER)

    assert [] == led.fire(RESEND_TIMER)
    assert {} == led.timers


def test_a_commit_is_announced_soon_without_waiting_for_the_next_append(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    ack(led, C)
    led.take_sent()
    effects = led.fire(NOTICE_TIMER)

    record = led.written[SHARD].all()[-1]
    assert (Kind.CONFIRM, 1) == (record.kind, record.sequence)
    notice = Append(1, EntryId(1, 1), (record,), 2, 1, 1, 0)
    assert [
        Persist(AT, (PutEntry(record), led.state_write()), (Feed(LocalDurable(SHARD, 1, 2)),)),
        Send(AT, B, notice), Send(AT, C, notice),
    ] == effects


def test_a_commit_without_a_decision_is_announced_by_a_heartbeat(led: Node) -> None:
    """Only what was decided since the last CONFIRM is worth a record: the commit of a CONFIRM itself is not."""
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.fire(NOTICE_TIMER)
    led.complete()
    ack(led, B)
    ack(led, C)
    led.take_sent()
    effects = led.fire(NOTICE_TIMER)

    notice = Append(1, EntryId(1, 2), (), 2, 2, 2, 0)
    assert [Send(AT, B, notice), Send(AT, C, notice)] == effects


def test_a_refused_gap_rewinds_to_the_follower_s_head_once(led: Node) -> None:
    for sequence in range(3):
        led.append(sequence, batch(sequence))
    led.complete()
    led.take_sent()
    led.receive(C, AppendRefused(1, 1, EntryId(1, 1), Reason.GAP))
    assert [EntryId(1, 1)] == [push.prev for push in pushes(led, C)]
    led.receive(C, AppendRefused(1, 1, EntryId(1, 1), Reason.GAP))

    assert [] == pushes(led, C)


def test_a_follower_whose_link_is_down_is_not_pushed_to_until_it_is_back(led: Node) -> None:
    led.step(PeerDown(C))
    led.append(1, batch(0))
    assert [] == pushes(led, C)
    assert 1 == len(pushes(led, B))
    led.step(PeerUp(C))

    assert [EntryId(1, 0)] == [push.prev for push in pushes(led, C)]


def test_a_follower_with_a_full_disk_is_tried_again_by_the_timer_only(led: Node) -> None:
    led.append(1, batch(0))
    led.receive(C, AppendRefused(1, 1, EntryId(1, 0), Reason.DISK_FULL))
    led.take_sent()
    led.append(2, batch(1))
    assert [] == pushes(led, C)
    led.fire(RESEND_TIMER)
    assert [(EntryId(1, 0), ())] == [(push.prev, push.entries) for push in pushes(led, C)], "a heartbeat asks"
    ack(led, C, 0)

    assert [EntryId(1, 0)] == [push.prev for push in pushes(led, C)]
    assert led.leader.cursors[C].next == 3


@pytest.mark.parametrize("reason", [Reason.NOT_MEMBER, Reason.UNKNOWN_SHARD])
def test_k14_a_follower_whose_replica_is_gone_costs_a_heartbeat_and_no_window_of_entries(
    led: Node, reason: Reason
) -> None:
    led.append(1, batch(0))
    led.complete()
    led.receive(C, AppendRefused(1, -1, EntryId(1, 0), reason))
    led.take_sent()
    led.append(2, batch(1))
    led.fire(RESEND_TIMER)
    led.fire(RESEND_TIMER)
    assert [()] == [push.entries for push in pushes(led, C)]
    led.receive(C, AppendAck(1, 0, 0))    # it is back: a repair of its shell, say

    assert [2] == [len(push.entries) for push in pushes(led, C)]


def test_issue_1158_a_stalled_follower_does_not_delay_the_others(led: Node) -> None:
    """Oxia #1158, #1159: one slow stream held the tracker's lock and the whole shard stalled."""
    for sequence in range(20):
        led.append(sequence, batch(sequence))
        led.complete()
        ack(led, B)

    assert 20 == led.replica.commit
    assert all(isinstance(led.answer(sequence), Appended) for sequence in range(20))
    assert 0 == led.leader.cursors[C].match


def test_a_read_that_brings_other_entries_than_asked_is_not_pushed(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    led.replica.log.forget_tail()
    led.receive(C, AppendRefused(1, 1, EntryId(1, 0), Reason.GAP))
    [read] = led.reads
    led.reads.clear()
    entries = tuple(entry for entry in led.stored() if entry.base == 2)
    led.take_sent()

    led.step(LogRead(SHARD, read.tag, entries))

    assert [] == pushes(led, C)


def test_a_leader_told_of_a_newer_epoch_deposes_itself(led: Node) -> None:
    led.append(1, batch(0))
    led.receive(B, AppendRefused(1, 5, EntryId(1, 0), Reason.STALE_EPOCH))

    assert not led.leads
    assert Role.DEPOSED is led.replica.state.role
    refusal = led.answer(1)
    assert isinstance(refusal, Refused) and refusal.reason is Reason.NOT_LEADER


def test_a_refusal_of_an_older_epoch_does_not_depose(node: Node) -> None:
    lead(node, epoch=3)
    node.receive(B, AppendRefused(2, 3, NOTHING, Reason.STALE_EPOCH))

    assert node.leads


def test_o9_a_fence_ends_the_leadership_and_names_all_that_was_appended(led: Node) -> None:
    led.append(1, batch(0))
    effects = fence(led, 2)

    refusal = Refused(Reason.NOT_LEADER, "leadership ended before the outcome was known; retry the same sequence")
    assert [
        Reply(1, refusal),
        SetTimer(AT, RESEND_TIMER, None), SetTimer(AT, NOTICE_TIMER, None), SetTimer(AT, TRANSFER_TIMER, None),
        SetTimer(AT, QUORUM_TIMER, None), SetTimer(AT, RETENTION_TIMER, None),
        SetTimer(AT, CONFIRMATION_TIMER, None), SetTimer(AT, READ_INDEX_TIMER, None), Trace(AT, "resigned", "epoch 1"),
    ] == effects[:-1]
    led.complete()
    assert EntryId(1, 1) == led.take_sent()[-1].head
    assert 2 == len(led.stored())


def test_l1_appends_of_the_turn_in_which_a_fence_arrives_are_written_in_front_of_its_answer(led: Node) -> None:
    led.step(AppendRequest(SHARD, 1, batch(0)), Received(AT, OPERATOR, A, Fence(2, 20)))
    led.complete(1)
    assert 2 == len(led.stored())
    assert [] == [m for m in led.sent if type(m.message).__name__ == "Fenced"]
    led.complete(1)

    assert EntryId(1, 1) == led.take_sent()[-1].head


def test_o9_a_fence_of_the_epoch_it_leads_is_refused(led: Node) -> None:
    assert [rejected(1, "Fence", Reason.ALREADY_LEADER)] == fence(led, 1)
    assert led.leads


# --- changes of the ensemble ------------------------------------------------------------------------------

SWAP = Prepare(2, 20, Operation.SWAP, C, D)
AFTER_SWAP = Commit(2, 20, Operation.SWAP, (A, B, D), C, D, EntryId(2, 1))


def prepared(led: Node, message: Prepare) -> Node:
    led.receive(OPERATOR, message)
    led.complete()
    led.take_sent()
    return led


def test_o31_prepare_adopts_the_epoch_silences_the_leaver_and_describes_a_snapshot(led: Node) -> None:
    effects = led.receive(OPERATOR, SWAP)

    assert (2, 20) == (led.replica.state.epoch, led.replica.state.election)
    assert CursorStatus.SILENCED is led.leader.cursors[C].status
    assert [] == led.take_sent(Prepared)
    led.complete()
    [answer] = led.take_sent(Prepared)
    assert (2, EntryId(2, 1), 0, 0) == (
        answer.epoch, answer.snapshot.head, answer.snapshot.first, answer.snapshot.commit
    )
    assert Trace(AT, "prepared", "SWAP epoch 2") == effects[0]


def test_h3b_prepare_opens_the_epoch_with_a_noop(led: Node) -> None:
    prepared(led, SWAP)

    noop = led.stored()[-1]
    assert (Kind.NOOP, EntryId(2, 1), EntryId(1, 0)) == (noop.kind, noop.id, noop.prev)


def test_k5_after_prepare_nothing_acknowledged_before_counts(led: Node) -> None:
    led.append(1, batch(0))
    prepared(led, SWAP)
    assert {A: 2, B: -1} == led.leader.matches()

    led.receive(B, AppendAck(1, 1, 0))   # an answer of the old epoch, on its way when PREPARE came
    assert led.answer(1) is None
    ack(led, B)
    assert Appended(1, 1, 1, QUORUM) == led.answer(1)


def test_o31_the_leaver_is_neither_pushed_to_nor_counted(led: Node) -> None:
    prepared(led, SWAP)
    led.append(1, batch(0))
    led.complete()
    assert [] == pushes(led, C)
    led.receive(C, AppendAck(2, 2, 0))

    assert (0, None) == (led.replica.commit, led.answer(1))


def test_h3_commit_does_not_fall_when_the_epoch_changes(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    assert 1 == led.replica.commit
    prepared(led, SWAP)
    assert 1 == led.replica.commit
    led.receive(OPERATOR, Commit(2, 20, Operation.SWAP, (A, B, D), C, D, EntryId(2, 2)))

    assert 1 == led.replica.commit
    ack(led, B)
    assert 2 == led.replica.commit


def test_a3_a_repeated_prepare_may_describe_more_but_never_less(led: Node) -> None:
    led.receive(OPERATOR, SWAP)
    led.complete()
    [first] = led.take_sent(Prepared)
    led.append(1, batch(0))
    led.receive(OPERATOR, SWAP)
    led.complete()
    [second] = led.take_sent(Prepared)

    assert (EntryId(2, 1), EntryId(2, 2)) == (first.snapshot.head, second.snapshot.head)


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [
        (Prepare(1, 10, Operation.SWAP, C, D), Reason.STALE_EPOCH, ""),
        (Prepare(2, 20, Operation.SWAP, A, D), Reason.LEADER_CANNOT_LEAVE, "transfer leadership first"),
        (Prepare(2, 20, Operation.CONTRACT, A, None), Reason.LEADER_CANNOT_LEAVE, "transfer leadership first"),
        (Prepare(2, 20, Operation.SWAP, D, D), Reason.NOT_MEMBER, f"{D} is not in the ensemble"),
        (Prepare(2, 20, Operation.EXPAND, None, B), Reason.ALREADY_MEMBER, f"{B} is in the ensemble"),
    ],
)
def test_o36_o27_a_change_that_cannot_be_is_refused_and_changes_nothing(
    led: Node, message: Prepare, reason: Reason, why: str
) -> None:
    effects = led.receive(OPERATOR, message)

    assert [rejected(message.epoch, "Prepare", reason, why, own=1)] == effects
    assert (1, None, 0) == (led.replica.state.epoch, led.leader.change, led.leader.head)


def test_o34_commit_drops_the_old_cursor_and_starts_the_new_one(led: Node) -> None:
    prepared(led, SWAP)
    led.receive(OPERATOR, AFTER_SWAP)

    assert (A, B, D) == led.leader.ensemble
    assert [B, D] == list(led.leader.cursors)
    assert (-1, 2) == (led.leader.cursors[D].match, led.leader.cursors[D].next)
    led.complete()
    assert [Committed(2)] == led.take_sent(Committed)


def test_o34_a_repeated_commit_is_answered_again(led: Node) -> None:
    prepared(led, SWAP)
    led.receive(OPERATOR, AFTER_SWAP)
    led.complete()
    led.take_sent()

    assert [Persist(AT, (), (reply(Committed(2)),))] == led.receive(OPERATOR, AFTER_SWAP)


def test_issue_880_an_answer_of_the_old_node_after_commit_is_not_counted(led: Node) -> None:
    """Oxia #880, #495: a late response of the removed node made it a follower again."""
    prepared(led, SWAP)
    led.receive(OPERATOR, AFTER_SWAP)
    led.complete()
    led.take_sent()

    assert [STRANGER_REFUSED] == [each.what for each in led.receive(C, AppendAck(2, 1, 0))]
    assert [rejected(2, "AddFollower", Reason.NOT_MEMBER, f"{C} is not in the ensemble (#880)")] == led.receive(
        OPERATOR, AddFollower(2, 20, C, EntryId(1, 0))
    )
    assert 0 == led.replica.commit
    assert [B, D] == list(led.leader.cursors)


def test_o31_the_leaver_cannot_be_added_back_while_it_leaves(led: Node) -> None:
    prepared(led, SWAP)

    assert [rejected(2, "AddFollower", Reason.RECONFIGURING, f"{C} is leaving")] == led.receive(
        OPERATOR, AddFollower(2, 20, C, EntryId(1, 0))
    )


def test_h4_the_commit_of_an_expand_raises_the_quorum(led: Node) -> None:
    prepared(led, Prepare(2, 20, Operation.EXPAND, None, D))
    led.receive(OPERATOR, Commit(2, 20, Operation.EXPAND, (A, B, C, D), None, D, EntryId(2, 1)))
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    assert led.answer(1) is None
    ack(led, D)

    assert Appended(2, 2, 1, QUORUM) == led.answer(1)


def test_o37_until_the_commit_of_an_expand_the_new_member_does_not_count(led: Node) -> None:
    prepared(led, Prepare(2, 20, Operation.EXPAND, None, D))
    led.append(1, batch(0))
    led.complete()
    led.receive(D, AppendAck(2, 2, 0))
    assert led.answer(1) is None
    ack(led, C)

    assert Appended(2, 2, 1, QUORUM) == led.answer(1)


CONTRACT = Prepare(2, 20, Operation.CONTRACT, C, None)
AFTER_CONTRACT = Commit(2, 20, Operation.CONTRACT, (A, B), C, None, NOTHING)


def test_o38_o39_a_contract_commits_once_commit_does_not_depend_on_the_leaver(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, C)
    assert 1 == led.replica.commit, "committed by a and c"
    led.receive(OPERATOR, CONTRACT)
    led.complete()
    assert [Prepared(2, None)] == led.take_sent(Prepared)
    assert CursorStatus.SILENCED is led.leader.cursors[C].status

    assert [reply(CommitPending(2))] == led.receive(OPERATOR, AFTER_CONTRACT)
    assert (A, B, C) == led.leader.ensemble
    ack(led, B)
    led.receive(OPERATOR, AFTER_CONTRACT)   # O40: asked again until it succeeds
    led.complete()

    assert [Committed(2)] == led.take_sent(Committed)
    assert 2 == led.replica.commit
    assert {A, B} == set(led.leader.ensemble)


@pytest.mark.parametrize("why", ["no cursor", "no link", "disk full", "no replica", "being truncated"])
def test_o27b_a_leader_refuses_a_contract_when_the_remaining_majority_does_not_follow(led: Node, why: str) -> None:
    cursor = led.leader.cursors[B]
    match why:
        case "no cursor":
            del led.leader.cursors[B]
        case "no link":
            led.step(PeerDown(B))
        case "disk full":
            cursor.space = Space.EXHAUSTED
        case "no replica":
            cursor.absent = True
        case "being truncated":
            cursor.status = CursorStatus.TRUNCATING
    effects = led.receive(OPERATOR, CONTRACT)

    lacking = "a contract to 2 members needs 2 that follow; missing: b"
    assert [rejected(2, "Prepare", Reason.NODE_UNAVAILABLE, lacking, own=1)] == effects
    assert (1, None, 0) == (led.replica.state.epoch, led.leader.change, led.leader.head)


def test_h3b_an_idle_shard_can_contract(led: Node) -> None:
    """Without an entry of the new epoch the recomputed commit never reaches the old one."""
    prepared(led, CONTRACT)
    ack(led, B)
    led.receive(OPERATOR, AFTER_CONTRACT)
    led.complete()

    assert [Committed(2)] == led.take_sent(Committed)


def test_a_commit_that_was_not_prepared_here_is_refused(led: Node) -> None:
    assert [
        rejected(1, "Commit", Reason.WRONG_STATE, "the change is not prepared here")
    ] == led.receive(OPERATOR, Commit(1, 10, Operation.SWAP, (A, B, D), C, D, EntryId(1, 0)))
    assert [rejected(2, "Commit", Reason.STALE_EPOCH, own=1)] == led.receive(OPERATOR, AFTER_SWAP)


def test_o41_abort_gives_the_leaver_back_its_place(led: Node) -> None:
    prepared(led, SWAP)
    led.append(1, batch(0))
    led.complete()
    led.take_sent()
    effects = led.receive(OPERATOR, Abort(2, 20))

    assert [Trace(AT, "change_aborted", "epoch 2"), reply(Aborted(2))] == effects[:2]
    assert [EntryId(1, 0)] == [push.prev for push in pushes(led, C)]
    ack(led, C)
    assert Appended(2, 2, 1, QUORUM) == led.answer(1)


def test_o41_a_repeated_abort_is_answered_and_one_of_an_older_epoch_refused(led: Node) -> None:
    assert [reply(Aborted(1))] == led.receive(OPERATOR, Abort(1, 10))
    prepared(led, SWAP)

    assert [rejected(1, "Abort", Reason.STALE_EPOCH, own=2)] == led.receive(OPERATOR, Abort(1, 10))
    assert CursorStatus.SILENCED is led.leader.cursors[C].status


def test_a_change_whose_abort_was_lost_is_dropped_by_the_next_prepare(led: Node) -> None:
    prepared(led, SWAP)
    led.receive(OPERATOR, Prepare(3, 30, Operation.SWAP, B, D))

    assert CursorStatus.ATTACHED is led.leader.cursors[C].status
    assert CursorStatus.SILENCED is led.leader.cursors[B].status


@pytest.mark.parametrize(
    "message",
    [
        AddFollower(1, 10, B, NOTHING), Prepare(2, 20, Operation.SWAP, C, D), AFTER_SWAP, Abort(1, 10),
        PrepareTransfer(1, 10, B),
    ],
    ids=lambda message: type(message).__name__,
)
def test_o27_requests_of_a_leader_are_refused_by_who_does_not_lead(node: Node, message: Any) -> None:
    fence(node, 1)

    about = type(message).__name__
    assert [rejected(message.epoch, about, Reason.NOT_LEADER, "replica is FENCED", own=1)] == node.receive(
        OPERATOR, message
    )


def test_o14_nothing_is_asked_of_a_leader_that_is_not_durable_yet(node: Node) -> None:
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ()))

    assert [rejected(2, "Prepare", Reason.RECONFIGURING, own=1)] == node.receive(OPERATOR, SWAP)
    assert [rejected(1, "AddFollower", Reason.WRONG_STATE, "leadership is not durable yet")] == node.receive(
        OPERATOR, AddFollower(1, 10, B, NOTHING)
    )
    assert [rejected(1, "PrepareTransfer", Reason.RECONFIGURING)] == node.receive(OPERATOR, PrepareTransfer(1, 10, B))


# --- handing leadership over ------------------------------------------------------------------------------


def test_a_transfer_is_ready_when_the_new_leader_holds_everything(led: Node) -> None:
    led.append(1, batch(0))
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    assert [] == led.take_sent(TransferReady)
    led.complete()
    ack(led, B)

    assert [TransferReady(1, B)] == led.take_sent(TransferReady)


def test_during_a_transfer_appends_are_refused_with_a_hint_and_repeats_are_answered(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))

    assert Refused(Reason.TRANSFERRING, "leadership moves to b", 1, -1, 50) == led.append(2, batch(1))
    assert Appended(1, 1, 1, QUORUM) == led.append(3, batch(0))


@pytest.mark.parametrize(
    ("answers", "why"),
    [((), "b did not catch up in time"), ((B,), "no election came in time")],
    ids=["the target is behind", "the target is ready"],
)
def test_a_transfer_that_takes_too_long_is_given_up_and_whoever_asked_is_told(
    led: Node, answers: tuple[Member, ...], why: str
) -> None:
    led.append(1, batch(0))
    led.complete()
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    for member in answers:
        ack(led, member)
    assert [
        Trace(AT, "transfer_expired", "to b"), rejected(1, "PrepareTransfer", Reason.ABORTED, why),
    ] == led.fire(TRANSFER_TIMER)

    assert led.append(2, batch(1)) is None


def test_o47_the_hold_begins_again_when_the_target_holds_everything(led: Node) -> None:
    """The operator stores the election before it fences: an append in between would make another log the longest."""
    led.append(1, batch(0))
    led.complete()
    begun = SetTimer(AT, TRANSFER_TIMER, led.now_ms + led.limits.transfer_ms)
    assert [begun] == led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    led.now_ms += led.limits.transfer_ms - 1
    effects = ack(led, B)

    assert SetTimer(AT, TRANSFER_TIMER, led.now_ms + led.limits.transfer_ms) in effects
    assert reply(TransferReady(1, B)) in effects


def test_o47_no_repeat_makes_writers_wait_longer(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    assert [] == led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    ack(led, B)

    assert [reply(TransferReady(1, B))] == led.receive(OPERATOR, PrepareTransfer(1, 10, B)), "and no new timer"
    assert [] == [effect for effect in ack(led, B) if isinstance(effect, SetTimer)]


def test_o47_a_change_of_members_ends_a_transfer(led: Node) -> None:
    """Its asker knows an epoch that is over, and a later one would find a hold that has nearly run out."""
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    effects = led.receive(OPERATOR, SWAP)

    assert SetTimer(AT, TRANSFER_TIMER, None) in effects
    assert rejected(1, "PrepareTransfer", Reason.ABORTED, "the ensemble is changing") in effects
    assert led.leader is not None and led.leader.transfer is None
    assert led.append(1, batch(0)) is None, "appends go on"


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [
        (PrepareTransfer(2, 20, B), Reason.STALE_EPOCH, ""),
        (PrepareTransfer(1, 10, D), Reason.NODE_UNAVAILABLE, f"{D} does not follow"),
    ],
)
def test_a_transfer_to_who_does_not_follow_is_refused(
    led: Node, message: PrepareTransfer, reason: Reason, why: str
) -> None:
    assert [rejected(message.epoch, "PrepareTransfer", reason, why, own=1)] == led.receive(OPERATOR, message)
    assert led.append(1, batch(0)) is None


def test_o27_no_transfer_while_the_ensemble_changes(led: Node) -> None:
    prepared(led, SWAP)

    assert [rejected(2, "PrepareTransfer", Reason.RECONFIGURING)] == led.receive(OPERATOR, PrepareTransfer(2, 20, B))


# --- readers and retention --------------------------------------------------------------------------------


def trimmable(make_node: Callable[..., Node]) -> Node:
    """A leader of twelve batches of a mark's bytes, all committed; b has everything, c nothing in this epoch."""
    node = make_node()
    lead(node)
    for sequence in range(12):
        node.append(100 + sequence, batch(sequence, payload=bytes(1 << 20)))
        node.complete()
        ack(node, B)
    assert 12 == node.replica.commit
    return node


def test_issue_281_a_follower_that_never_answered_blocks_the_trim(make_node: Callable[..., Node]) -> None:
    """Oxia #281: the bound of a trim is min(commit, every member's match)."""
    node = trimmable(make_node)

    assert 0 == node.trim(1, 99)
    ack(node, C, 7)
    assert 8 == node.trim(2, 99)
    node.complete()
    assert [8, 9, 10, 11, 12] == [entry.base for entry in node.stored()]
    assert 8 == node.trim(3, 4), "the trim point never goes back"


def test_l25_a_leader_goes_on_with_a_trim_when_a_part_of_the_producers_is_durable(
    make_node: Callable[..., Node],
) -> None:
    node = trimmable(make_node)
    for number in range(9):
        node.append(200 + number, batch(0, producer=bytes((number + 1,)) * 16))
    node.complete()
    ack(node, B)
    ack(node, C)
    node.replica.limits = replace(node.replica.limits, checkpoint_rows=2)

    assert 0 == node.trim(1, 12), "the first part of the producers is on its way"
    node.complete()

    assert 12 == node.replica.log.first
    assert 0 == node.replica.log.producers.unsaved


def test_a_read_below_the_trim_point_is_refused_with_the_first_offset_kept(make_node: Callable[..., Node]) -> None:
    node = trimmable(make_node)
    ack(node, C, 7)
    assert 8 == node.trim(1, 99)

    refused = node.read_grant(2, position=7)
    assert (Reason.TRIMMED, 8) == (refused.reason, refused.expected)
    assert 8 == node.read_grant(3, position=8).first
    assert 8 == node.read_grant(4).first


def test_issue_281_commit_bounds_the_trim(make_node: Callable[..., Node]) -> None:
    """Oxia #281."""
    node = trimmable(make_node)
    ack(node, C, 12)
    node.append(50, batch(12, payload=bytes(1 << 20)))
    node.complete()

    assert 13 == node.trim(1, 99)
    assert 12 == node.replica.commit


def test_issue_281_no_trim_while_a_change_copies_the_log(led: Node) -> None:
    """Oxia #281."""
    prepared(led, SWAP)

    assert Refused(Reason.RECONFIGURING, "the ensemble is changing", 2) == led.trim(1, 1)


def test_issue_281_h6_no_trim_while_a_contract_may_still_be_rolled_back(led: Node) -> None:
    """Oxia #281: an election would give the member that left its place back, and it still needs the log."""
    prepared(led, CONTRACT)
    ack(led, B)
    led.receive(OPERATOR, AFTER_CONTRACT)
    assert Refused(Reason.RECONFIGURING, "the ensemble is changing", 2) == led.trim(1, 1)
    led.receive(OPERATOR, Abort(2, 20))   # the record is steady: the contract is final

    assert 0 == led.trim(2, 1)


def test_issue_281_followers_learn_the_trim_point(make_node: Callable[..., Node]) -> None:
    """Oxia #281."""
    node = trimmable(make_node)
    ack(node, C, 12)
    node.trim(1, 5)
    node.take_sent()
    node.append(60, batch(12))

    assert [5] == [push.trim for push in pushes(node, B)]


def test_l18_the_producer_table_survives_trim_and_restart(make_node: Callable[..., Node]) -> None:
    node = trimmable(make_node)
    ack(node, C, 12)
    node.trim(1, 99)
    node.complete()
    assert [12] == [entry.base for entry in node.stored()]
    node.restart()
    lead(node, epoch=2, followers=[(B, EntryId(1, 12)), (C, EntryId(1, 12))])
    ack(node, B)

    assert Appended(1, 12, 1, QUORUM) == node.append(2, batch(11, payload=bytes(1 << 20)))
    assert 12 == node.append(3, batch(99)).expected


@pytest.mark.parametrize("request_of", ["append", "read", "trim"])
def test_requests_of_clients_are_refused_by_who_does_not_lead(node: Node, request_of: str) -> None:
    fence(node, 1)
    answer = {
        "append": lambda: node.append(1, batch(0)), "read": lambda: node.read_grant(1), "trim": lambda: node.trim(1, 5),
    }[request_of]()

    assert Refused(Reason.NOT_LEADER, "", 1) == answer


def test_those_who_wait_for_one_batch_are_bounded(led: Node) -> None:
    """While there is no quorum, a client that repeats for hours must not make the leader grow."""
    led.append(0, batch(0))
    answers = [led.append(request, batch(0)) for request in range(1, 200)]
    refused = [answer for answer in answers if answer is not None]

    assert WAITERS_MAX == len(next(iter(led.leader.outcomes.limbo)).waiters)
    assert 200 - WAITERS_MAX == len(refused)
    assert Refused(Reason.OVERLOADED, "64 callers wait for sequence 0 already", 1, -1, 50) == refused[0]
    led.complete()
    ack(led, B)
    assert Appended(1, 1, 1, QUORUM) == led.answer(0) == led.answer(WAITERS_MAX - 1)


def test_a_local_append_is_written_here_first_and_pushed_once_it_is_durable(led: Node) -> None:
    """Its writer waits for our disk alone, so the followers' disks do not come first."""
    led.complete()
    led.take_sent()
    led.append(1, batch(0, durability=Durability.LOCAL))
    assert [] == led.take_sent(Append)

    led.complete()

    assert [[0]] == [[entry.sequence for entry in push.entries] for push in led.take_sent(Append)[:1]]


def test_a_local_append_is_pushed_at_once_with_a_quorum_append_behind_it(led: Node) -> None:
    led.complete()
    led.take_sent()
    led.step(
        AppendRequest(SHARD, 1, batch(0, durability=Durability.LOCAL)), AppendRequest(SHARD, 2, batch(1)),
    )

    assert [0, 1] == [entry.sequence for entry in led.take_sent(Append)[0].entries]


def test_who_lags_is_who_is_down_or_has_entries_before_it_that_are_not_on_their_way(
    make_node: Callable[..., Node]
) -> None:
    node = make_node(limits=Limits(push_bytes_max=1_000, inflight_bytes_max=3_000))
    lead(node)
    assert node.core.log.lagging() == set(), "what is on its way will be there in a moment"
    node.step(PeerDown(B))
    assert node.core.log.lagging() == {"b"}
    node.step(PeerUp(B))
    assert node.core.log.lagging() == set()
    node.step(*(AppendRequest(SHARD, n, batch(n, payload=bytes(850))) for n in range(10)))
    node.complete()
    while node.leader.cursors[C].match < node.leader.head:
        ack(node, C, node.leader.cursors[C].next - 1)
    assert node.core.log.lagging() == {"b"}, "no more fits on its way"
    while node.leader.cursors[B].match < node.leader.head:
        ack(node, B, node.leader.cursors[B].next - 1)
    assert node.core.log.lagging() == set()
    node.leader.cursors[C].space = Space.FULL
    assert node.core.log.lagging() == {"c"}
