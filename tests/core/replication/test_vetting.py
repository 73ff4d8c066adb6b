"""A chosen replica looks at what it holds above commit, repairs it from peers, and reports what stays damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tidemark_core.base.effects import Effect, Persist, ReadLog, Send
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import NOTHING, OperatorId, Peer
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.leader import LOOKS_MAX, RESEND_TIMER
from tidemark_core.replication.messages import Append, BecomeLeader, Fence, Fetch, Fetched, Rejected
from tidemark_core.replication.replica import OPERATORS_MAX, Role
from tidemark_core.replication.vetting import VET_TIMER

from tests.core.support import OPERATOR, SHARD, A, Author, B, C, Node, ack, append_of, batch, fence, serving

M = BecomeLeader(2, 20, (A, B, C), ((B, NOTHING), (C, NOTHING)))


@pytest.fixture
def node() -> Node:
    return Node(A)


def inherited(node: Node, damaged: int) -> list[Entry]:
    """The node is fenced in epoch 2 with entries 0-3, commit is 1; the entry at `damaged` fails its checksum."""
    author = Author(ensemble=(A, B, C))
    author.opening()
    for _ in range(3):
        author.data()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1, 1))
    node.complete()
    if damaged >= 0:
        node.damage(damaged)
    fence(node, 2)
    node.complete()
    node.take_sent()
    return author.entries


def look(node: Node) -> None:
    """The reads that are under way are answered."""
    while node.reads:
        node.step(node.answer_read(node.reads.pop(0)))


def test_k15b_a_replica_whose_log_is_committed_leads_without_a_look(node: Node) -> None:
    author = Author(ensemble=(A, B, C))
    author.opening()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 0, 0))
    fence(node, 2)
    node.complete()
    node.receive(OPERATOR, M)

    assert node.leads and not node.reads


def test_k15b_what_lies_above_commit_is_read_before_leading_where_all_keep_everything(node: Node) -> None:
    inherited(node, -1)
    node.receive(OPERATOR, M)
    assert not node.leads
    [read] = node.reads
    assert (2, 3) == (read.first, read.last)
    look(node)

    assert node.leads


def test_k15b_damage_at_or_below_commit_is_no_matter_of_the_election(node: Node) -> None:
    inherited(node, 1)
    node.receive(OPERATOR, M)
    look(node)

    assert node.leads


def test_k15b_a_copy_of_a_peer_repairs_the_entry_and_the_look_goes_on_once_it_is_durable(node: Node) -> None:
    entries = inherited(node, 2)
    node.receive(OPERATOR, M)
    look(node)
    assert [Fetch(2, 1), Fetch(2, 1)] == node.take_sent(Fetch)
    [repair] = [e for e in node.receive(C, Fetched(2, entries[2])) if isinstance(e, Persist)]
    assert [2] == [effect.first for effect in repair.then if isinstance(effect, ReadLog)]
    assert not node.reads, "not before it is durable"
    node.complete()
    look(node)

    assert node.leads and not node.take_sent(Rejected)
    assert (SHARD, VET_TIMER) not in node.timers


def test_k15b_a_peer_that_says_nothing_is_waited_for_no_longer_than_a_push(node: Node) -> None:
    inherited(node, 3)
    node.receive(OPERATOR, M)
    look(node)
    node.receive(B, Fetched(3, None))
    assert not node.take_sent(Rejected)
    assert node.now_ms + Limits().resend_ms == node.timers[SHARD, VET_TIMER]
    node.fire(VET_TIMER)

    [rejected] = node.take_sent(Rejected)
    assert (Reason.CORRUPT, 3) == (rejected.refusal.reason, rejected.refusal.expected)
    assert node.replica.state.role is Role.FENCED and 3 == node.replica.log.head.offset


def test_k15b_a_fence_ends_the_look_and_late_answers_report_nothing(node: Node) -> None:
    entries = inherited(node, 2)
    node.receive(OPERATOR, M)
    look(node)
    fence(node, 3)
    node.complete()
    node.take_sent()
    node.receive(B, Fetched(2, None))
    node.receive(C, Fetched(2, entries[2]))
    node.complete()
    node.fire(VET_TIMER)
    look(node)

    assert not node.leads and not node.take_sent(Rejected)
    node.receive(OPERATOR, BecomeLeader(3, 30, (A, B, C), ()))
    look(node)
    assert node.leads, "the late copy was stored"


def test_k15b_a_request_that_comes_again_begins_no_second_look(node: Node) -> None:
    inherited(node, -1)
    node.receive(OPERATOR, M)
    node.receive(OPERATOR, M)

    assert 1 == len(node.reads)


def test_k15b_a_follower_asks_its_leader_once_for_what_it_could_not_repair(node: Node) -> None:
    entries = inherited(node, 2)
    node.receive(OPERATOR, M)
    look(node)
    node.fire(VET_TIMER)
    fence(node, 3)
    node.complete()
    node.take_sent()
    for _ in range(2):
        node.receive(C, Append(3, entries[3].id, (), 3, 1, 1, 0))

    assert [Fetch(2, 1)] == node.take_sent(Fetch)


# --- a running leader -------------------------------------------------------------------------------------


def stuck() -> Node:
    """A leader whose followers need entry 1, which is damaged and not in memory."""
    node = Node(A, Limits(tail_bytes_max=1))
    serving(node)
    for number in range(3):
        node.append(number, batch(number))
        node.complete()
    node.damage(1)
    node.fire(RESEND_TIMER)
    node.fire(RESEND_TIMER)   # what was pushed from memory was not acknowledged, so it is read and pushed again
    assert {1} == {read.first for read in node.reads}
    node.take_sent()
    return node


def looks(node: Node, count: int) -> None:
    for _ in range(count):
        look(node)
        node.fire(RESEND_TIMER)


def test_k15d_a_leader_resigns_when_no_member_gave_what_a_follower_needs_at_three_looks() -> None:
    node = stuck()
    looks(node, LOOKS_MAX - 1)
    assert node.leads
    looks(node, 1)
    node.complete()

    assert not node.leads and node.replica.state.role is Role.DEPOSED
    [rejected] = node.take_sent(Rejected)
    assert (1, "BecomeLeader", Reason.CORRUPT, 1) == (
        rejected.epoch, rejected.about, rejected.refusal.reason, rejected.refusal.expected)


def test_k15d_ticks_without_a_failed_read_are_no_looks() -> None:
    """The follower's disk is full or it truncates: nothing is read for it, and the copy may be whole by now."""
    node = stuck()
    looks(node, LOOKS_MAX - 1)
    for _ in range(3 * LOOKS_MAX):
        node.fire(RESEND_TIMER)

    assert node.leads


def test_k15d_the_report_is_repeated_until_a_newer_epoch_fences() -> None:
    node = stuck()
    looks(node, LOOKS_MAX)
    node.complete()
    node.take_sent()
    node.fire(VET_TIMER)
    assert 1 == len(node.take_sent(Rejected))
    fence(node, 2)
    node.complete()
    node.take_sent()
    node.fire(VET_TIMER)

    assert not node.take_sent(Rejected)


def test_k15d_every_operator_that_spoke_hears_the_report() -> None:
    """The active one need not be the one that spoke last."""
    node = stuck()
    others = [OperatorId(f"op/{number}") for number in range(2, OPERATORS_MAX + 2)]
    for operator in others[:3]:
        node.receive(operator, Fence(1, 10))
    assert {OPERATOR, *others[:3]} == given_up(node)


def test_k15d_a_replica_reports_to_the_operators_that_spoke_last() -> None:
    node = stuck()
    others = [OperatorId(f"op/{number}") for number in range(2, OPERATORS_MAX + 2)]
    for operator in (*others[:-1], OPERATOR, others[-1]):
        node.receive(operator, Fence(1, 10))
    assert {OPERATOR, *others[1:]} == given_up(node)


def given_up(node: Node) -> set[Peer]:
    """Return who hears the report of a leader that resigns, the same each time."""
    node.sent.clear()
    looks(node, LOOKS_MAX)
    node.complete()
    heard = reported(node.sent)
    assert heard == reported(node.fire(VET_TIMER))
    return set(heard)


def reported(effects: Sequence[Effect]) -> list[Peer]:
    return [each.to for each in effects if isinstance(each, Send) and isinstance(each.message, Rejected)]


def test_k15d_a_copy_that_some_member_gave_lets_the_leader_go_on() -> None:
    node = stuck()
    looks(node, LOOKS_MAX - 1)
    node.damage(1)   # the same bit flips back
    looks(node, LOOKS_MAX)

    assert node.leads


def test_k15d_damage_at_or_below_commit_ends_no_leadership() -> None:
    """Another leader could do no better, and a majority goes on."""
    node = stuck()
    ack(node, B)
    node.complete()
    assert node.replica.commit >= 1
    looks(node, 3 * LOOKS_MAX)

    assert node.leads

