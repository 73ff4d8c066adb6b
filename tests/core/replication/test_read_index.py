"""Where the log ends for a caller who asks now: one round of the current epoch to a majority (rule O46)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark_core.base.effects import DiskSpace, PeerDown, PeerUp, Space
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import NOTHING, Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.metadata import NodeDown
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication import read_index
from tidemark_core.replication.messages import (
    Append,
    Appended,
    AppendRefused,
    BecomeLeader,
    Commit,
    Latest,
    Operation,
    Prepare,
    ReadRound,
    ReadRoundAck,
)
from tidemark_core.replication.read_index import READ_INDEX_TIMER
from tidemark_core.replication.replica import Role

from tests.core.support import (
    AT,
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
    ack,
    append_of,
    batch,
    everybody_acks,
    fence,
    lead,
    serving,
)

MakeCluster = Callable[..., Cluster]
READ_INDEX_MS = Limits().read_index_ms
RESEND_MS = Limits().resend_ms


def rounds(node: Node) -> list[tuple[Member, int]]:
    """Return and forget the rounds sent: to which member, and the round's number."""
    sent = [(send.to, send.message.number) for send in node.sent if isinstance(send.message, ReadRound)]
    node.sent.clear()
    return sent  # type: ignore[return-value]


def agree(node: Node, sender: Member, number: int) -> None:
    node.receive(sender, ReadRoundAck(node.leader.epoch, number))


@pytest.fixture
def settled(node: Node) -> Node:
    """Return a leader of A, B and C whose log holds its opening and one batch, all of it confirmed."""
    serving(node)
    node.append(100, batch(0))
    node.complete()
    everybody_acks(node)
    node.sent.clear()
    return node


# --- the defect -------------------------------------------------------------------------------------------


def test_o46_a_deposed_leader_that_its_clients_reach_never_names_an_old_end(make_cluster: MakeCluster) -> None:
    """The successor has confirmed more: the deposed leader refuses once it has waited long enough for a majority."""
    cluster = make_cluster()
    cluster.appended(batch(0))
    old = cluster.nodes["a"]
    cluster.isolate("a")
    cluster.operator.step(NodeDown("a"))
    assert cluster.run_until(lambda: cluster.record.leader not in (None, old.me))
    for sequence in range(1, 4):
        cluster.appended(batch(sequence))
    assert old.leads and cluster.record.leader is not None

    newest = cluster.latest(cluster.record.leader.node)
    assert isinstance(newest, Latest)
    assert newest.offset >= cluster.nodes[cluster.record.leader.node].replica.confirmed > old.replica.confirmed
    refused = cluster.latest("a", READ_INDEX_MS + 2 * RESEND_MS)
    assert Reason.NO_LEADER is refused.reason
    assert refused.retry_after_ms > 0
    assert "no majority" in refused.message


def test_o46_an_idle_leader_answers_after_one_round_and_then_falls_silent(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    appended = cluster.appended(batch(0))
    cluster.run_for(5_000)
    head = cluster.nodes["a"].replica.log.head.offset
    before = len(cluster.sent(ReadRound))

    assert Latest(appended.epoch, head) == cluster.latest("a")
    assert 2 == len(cluster.sent(ReadRound)) - before
    appends = len(cluster.sent(Append))
    cluster.run_for(5_000)
    assert (2, appends) == (len(cluster.sent(ReadRound)) - before, len(cluster.sent(Append))), "no heartbeats at rest"
    assert head == cluster.nodes["a"].replica.log.head.offset, "and nothing was written for it"


# --- rounds -----------------------------------------------------------------------------------------------


def test_o46_the_answer_waits_for_a_majority_with_the_leader_in_it(settled: Node) -> None:
    assert settled.latest(1) is None
    assert [(B, 1), (C, 1)] == rounds(settled)
    agree(settled, C, 1)

    assert Latest(1, 1) == settled.answer(1)


def test_o46_two_of_four_are_no_majority(node: Node) -> None:
    serving(node, (A, B, C, D))
    node.latest(1)
    agree(node, B, 1)
    assert node.answer(1) is None
    agree(node, D, 1)

    assert Latest(1, 0) == node.answer(1)


def test_o46_a_leader_alone_is_a_majority(node: Node) -> None:
    serving(node, (A,))

    assert Latest(1, 0) == node.latest(1)


def test_o46_callers_that_ask_during_a_round_share_the_next_one(settled: Node) -> None:
    """A round that began before the question proves nothing about it."""
    settled.latest(1)
    for request in (2, 3):
        settled.latest(request)
    assert [(B, 1), (C, 1)] == rounds(settled)
    agree(settled, B, 1)
    assert (Latest(1, 1), None, None) == tuple(settled.answer(request) for request in (1, 2, 3))
    assert [(B, 2), (C, 2)] == rounds(settled)
    agree(settled, C, 1)
    assert settled.answer(2) is None, "this answers the round before"
    agree(settled, C, 2)

    assert Latest(1, 1) == settled.answer(2) == settled.answer(3)


def test_o46_callers_of_one_turn_share_a_round(settled: Node) -> None:
    settled.step(*(read_index.LatestRequest(SHARD, request) for request in range(1, 6)))
    assert [(B, 1), (C, 1)] == rounds(settled)
    agree(settled, B, 1)

    assert [Latest(1, 1)] * 5 == [settled.answer(request) for request in range(1, 6)]


def test_o46_a_batch_confirmed_before_the_question_is_below_the_answer(settled: Node) -> None:
    settled.latest(1)
    settled.append(2, batch(1))
    settled.complete()
    settled.latest(3)
    ack(settled, B)
    assert Appended(1, 2, 1, Durability.QUORUM) == settled.answer(2)
    assert Latest(1, 1) == settled.answer(1), "B's acknowledgement of a younger entry answers the round"
    agree(settled, B, 2)

    assert Latest(1, 2) == settled.answer(3)


def test_o46_a_new_leader_names_the_first_entry_of_its_epoch(node: Node) -> None:
    """All that its predecessors confirmed lies below (L12)."""
    author = Author(1, (B, A, C))
    author.opening()
    author.data()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1))
    node.complete()
    lead(node, 2, followers=[(B, author.log.head), (C, author.log.head)])
    node.latest(1)
    agree(node, B, 1)

    assert (-1, Latest(2, 2)) == (node.replica.confirmed, node.answer(1))


def test_o46_no_round_begins_before_the_leadership_is_durable(node: Node) -> None:
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING))))
    assert node.latest(1) is None
    assert [] == rounds(node)
    node.complete()
    assert [(B, 1), (C, 1)] == rounds(node)
    agree(node, B, 1)

    assert Latest(1, 0) == node.answer(1)


def test_o46_a_leader_that_resigns_refuses_its_callers(settled: Node) -> None:
    settled.latest(1)
    settled.latest(2)
    fence(settled, 2)

    assert {Reason.NOT_LEADER} == {settled.answer(request).reason for request in (1, 2)}
    assert (SHARD, READ_INDEX_TIMER) not in settled.timers


def test_o46_a_member_of_a_newer_epoch_ends_the_leadership_that_asks(settled: Node) -> None:
    settled.latest(1)
    settled.receive(B, AppendRefused(1, 2, NOTHING, Reason.STALE_EPOCH))

    assert Reason.NOT_LEADER is settled.answer(1).reason
    assert Role.DEPOSED is settled.replica.state.role


def test_o46_only_attached_members_of_the_ensemble_count(settled: Node) -> None:
    """A member that leaves is silenced at PREPARE, one that comes counts from COMMIT on (K12, O33)."""
    settled.receive(OPERATOR, Prepare(2, 20, Operation.SWAP, C, D))
    settled.complete()
    settled.latest(1)
    assert [(B, 1)] == rounds(settled)
    agree(settled, C, 1)
    assert settled.answer(1) is None
    settled.receive(OPERATOR, Commit(2, 20, Operation.SWAP, (A, B, D), C, D, settled.replica.log.head))
    settled.complete()
    agree(settled, C, 1)
    assert settled.answer(1) is None
    agree(settled, D, 1)

    assert Latest(2, 1) == settled.answer(1)


def test_o46_a_round_of_an_older_epoch_is_asked_again(settled: Node) -> None:
    settled.latest(1)
    settled.receive(OPERATOR, Prepare(2, 20, Operation.EXPAND, None, D))
    settled.complete()
    settled.receive(B, ReadRoundAck(1, 1))
    assert settled.answer(1) is None
    rounds(settled)
    settled.fire(READ_INDEX_TIMER)
    assert [(B, 1), (C, 1)] == rounds(settled)
    agree(settled, B, 1)

    assert Latest(2, 1) == settled.answer(1)


# --- time -------------------------------------------------------------------------------------------------


def test_o46_a_lost_round_is_sent_again_and_no_timer_stays(settled: Node) -> None:
    settled.latest(1)
    rounds(settled)
    settled.fire(READ_INDEX_TIMER)
    assert [(B, 1), (C, 1)] == rounds(settled)
    agree(settled, C, 1)
    assert Latest(1, 1) == settled.answer(1)
    settled.fire(READ_INDEX_TIMER)

    assert ([], False) == (rounds(settled), (SHARD, READ_INDEX_TIMER) in settled.timers)


def test_o46_a_caller_is_refused_when_its_time_is_over_and_the_next_round_begins(settled: Node) -> None:
    settled.latest(1)
    settled.now_ms += READ_INDEX_MS // 2
    settled.latest(2)
    settled.now_ms += READ_INDEX_MS // 2
    rounds(settled)
    settled.fire(READ_INDEX_TIMER)
    refused = settled.answer(1)
    assert Refused(Reason.NO_LEADER, refused.message, 1, -1, refused.retry_after_ms) == refused
    assert f"{READ_INDEX_MS} ms" in refused.message
    assert [(B, 2), (C, 2)] == rounds(settled)
    agree(settled, B, 1)
    assert settled.answer(2) is None
    agree(settled, B, 2)

    assert Latest(1, 1) == settled.answer(2)


def test_o46_members_without_a_link_are_asked_when_it_is_back(settled: Node) -> None:
    settled.step(PeerDown(B), PeerDown(C))
    settled.latest(1)
    assert [] == rounds(settled)
    settled.step(PeerUp(C))
    settled.sent.clear()
    settled.fire(READ_INDEX_TIMER)

    assert [(C, 1)] == rounds(settled)


def test_o46_more_callers_than_a_leader_holds_are_refused(settled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_index, "WAITERS_MAX", 3)
    assert [None, None, None] == [settled.latest(request) for request in (1, 2, 3)]
    refused = settled.latest(4)

    assert Reason.OVERLOADED is refused.reason
    assert refused.retry_after_ms > 0


# --- members that know no rounds --------------------------------------------------------------------------


def marks(node: Node) -> list[int]:
    """Return the offsets of the CONFIRM records written."""
    return [entry.base for entry in node.written[SHARD].all() if entry.kind is Kind.CONFIRM]


def test_o46_the_acknowledgement_of_a_younger_entry_stands_in_for_a_member_that_knows_no_rounds(settled: Node) -> None:
    """Links of wire version 4 carry no rounds: what their members acknowledge is younger than the question."""
    noted = marks(settled)
    settled.latest(1)
    ack(settled, B, 1)
    assert settled.answer(1) is None, "it may have been sent before the question"
    settled.fire(READ_INDEX_TIMER)
    settled.complete()
    (mark,) = set(marks(settled)) - set(noted)
    ack(settled, B, mark)

    assert Latest(1, 1) == settled.answer(1)


def test_o46_a_leader_without_a_majority_appends_one_mark_only(settled: Node) -> None:
    noted = len(marks(settled))
    for request in range(1, 6):
        settled.latest(request)
        settled.now_ms += READ_INDEX_MS
        settled.fire(READ_INDEX_TIMER)
        settled.latest(request + 10)
        settled.fire(READ_INDEX_TIMER)
        settled.complete()

    assert 1 == len(marks(settled)) - noted


@pytest.mark.parametrize("what", ["answered before", "disk full", "not confirmed"])
def test_o46_no_mark_is_appended_where_it_may_not_or_does_not_help(node: Node, what: str) -> None:
    serving(node) if what != "not confirmed" else lead(node)
    if what == "answered before":
        node.latest(9)
        agree(node, B, 1)
        agree(node, C, 1)
    if what == "disk full":
        node.step(DiskSpace(Space.EXHAUSTED))
    head = node.leader.head
    node.latest(1)
    node.fire(READ_INDEX_TIMER)
    node.complete()

    assert head == node.leader.head


# --- members ----------------------------------------------------------------------------------------------


def test_o46_a_member_answers_unless_a_newer_epoch_has_fenced_it(node: Node) -> None:
    fence(node, 3)
    node.complete()
    node.sent.clear()
    for epoch in (3, 4):
        node.receive(B, ReadRound(epoch, 7))
    assert [ReadRoundAck(3, 7), ReadRoundAck(4, 7)] == node.take_sent()
    assert 3 == node.replica.state.epoch
    node.receive(B, ReadRound(2, 7))
    node.complete()

    (refused,) = node.take_sent()
    assert (2, 3, Reason.STALE_EPOCH) == (refused.epoch, refused.own_epoch, refused.reason)


def test_o46_a_member_that_was_fenced_in_this_turn_answers_the_older_epoch_no_more(node: Node) -> None:
    """The fence is not durable yet, and its answer may leave before the next round arrives."""
    fence(node, 3)
    node.complete()
    node.sent.clear()
    fence(node, 4)
    node.receive(B, ReadRound(3, 7))

    assert [] == [send for send in node.sent if isinstance(send.message, ReadRoundAck)]


@pytest.mark.parametrize("role", [Role.LEADER, Role.DEPOSED])
def test_o46_a_member_that_leads_or_led_answers_no_round(node: Node, role: Role) -> None:
    serving(node, (A, B, C, D, E))
    if role is Role.DEPOSED:
        node.complete()
        node.restart()
    assert role is node.replica.state.role
    node.sent.clear()
    node.receive(B, ReadRound(1, 7))

    assert [] == node.sent
    assert AT == node.replica.address
