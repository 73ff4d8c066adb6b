"""Commits of subscriptions at the leader (rules B6-B9), and what a pin keeps from trimming (B4, B10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark_core.base.effects import Space, Trace
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.confirmations import CONFIRMATION_TIMER, WAITERS_MAX
from tidemark_core.replication.messages import PositionCommitted, PrepareTransfer, SubscriptionDeleted
from tidemark_core.replication.retention import RETENTION_TIMER
from tidemark_core.subscriptions.fold import LEASE_MS_MAX, NAMES_MAX, Position
from tidemark_core.subscriptions.view import SubscriptionsView, SubscriptionView

from tests.core.support import (
    OPERATOR,
    SHARD,
    A,
    Author,
    B,
    C,
    Cluster,
    Node,
    ack,
    append_of,
    batch,
    everybody_acks,
    fence,
    lead,
    serving,
)

LEASE = 60_000
BEGAN = 1_000_000_000_000
MIB = 1 << 20

MakeNode = Callable[..., Node]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """`a` leads a, b, c; EPOCH_START and ten batches are confirmed, so the log ends at 10."""
    node = make_node()
    node.now_ms = BEGAN
    serving(node)
    for sequence in range(10):
        node.append(1000 + sequence, batch(sequence))
    node.complete()
    everybody_acks(node)
    return node


def positions(node: Node) -> list[tuple[int, int]]:
    """The POSITION records stored: where they lie, and what they say."""
    return [(entry.base, entry.sequence) for entry in node.stored() if entry.kind is Kind.POSITION]


def confirmed(node: Node, request: int, *args: Any, **options: Any) -> Any:
    """Commit, let everybody store it, and return the answer."""
    node.commit(request, *args, **options)
    node.complete()
    everybody_acks(node)
    return node.answer(request)


def held(node: Node) -> dict[str, int]:
    return {name: position.offset for name, position in node.replica.log.subscriptions.held.items()}


# --- committing -------------------------------------------------------------------------------------------


def test_b8_a_position_is_answered_once_it_is_confirmed(node: Node) -> None:
    assert node.commit(1, "one", 5, LEASE) is None
    node.complete()
    assert node.answer(1) is None, "one copy is not enough"
    assert {} == held(node)
    ack(node, B)

    assert PositionCommitted(1, 5) == node.answer(1)
    assert {"one": 5} == held(node)
    assert [(11, 5)] == positions(node)
    assert (SHARD, CONFIRMATION_TIMER) in node.timers


def test_b6_a_lower_position_changes_nothing_and_is_told_where_the_subscription_stands(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)

    assert PositionCommitted(1, 5) == node.commit(2, "one", 3, LEASE)
    assert PositionCommitted(1, 5) == node.commit(3, "one", 5, LEASE)
    assert [(11, 5)] == positions(node)


def test_b6_a_seek_moves_back(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)

    assert PositionCommitted(1, 3) == confirmed(node, 2, "one", 3, LEASE, seek=True)
    assert {"one": 3} == held(node)
    assert PositionCommitted(1, 3) == node.commit(3, "one", 3, LEASE, seek=True), "again: nothing to append"
    assert [(11, 5), (12, 3)] == positions(node)


def test_b7_a_reader_that_stands_still_renews_when_a_tenth_of_its_lease_is_over(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    node.now_ms += LEASE // 10 - 1
    assert PositionCommitted(1, 5) == node.commit(2, "one", 5, LEASE)
    node.now_ms += 1
    assert PositionCommitted(1, 5) == confirmed(node, 3, "one", 4, LEASE)

    assert [(11, 5), (12, 5)] == positions(node), "and the position it renews is the one in force"
    assert Position(5, BEGAN + LEASE // 10, LEASE) == node.replica.log.subscriptions.held["one"]


def test_b7_another_lease_is_taken_at_once(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    confirmed(node, 2, "one", 5, 2 * LEASE)

    assert Position(5, BEGAN, 2 * LEASE) == node.replica.log.subscriptions.held["one"]


def test_b8_a_repeat_waits_for_the_entry_that_is_there(node: Node) -> None:
    node.commit(1, "one", 5, LEASE)
    node.commit(2, "one", 5, LEASE)
    node.commit(3, "one", 4, LEASE)
    node.complete()
    everybody_acks(node)

    assert [PositionCommitted(1, 5)] * 3 == [node.answer(request) for request in (1, 2, 3)]
    assert [(11, 5)] == positions(node)


def test_b8_whoever_waits_too_long_is_told_to_ask_again_and_finds_its_entry(node: Node) -> None:
    node.commit(1, "one", 5, LEASE)
    node.complete()
    node.now_ms = node.timers[SHARD, CONFIRMATION_TIMER]
    node.fire(CONFIRMATION_TIMER)
    assert Reason.BEHIND is node.answer(1).reason
    node.commit(2, "one", 5, LEASE)
    everybody_acks(node)

    assert PositionCommitted(1, 5) == node.answer(2)
    assert [(11, 5)] == positions(node)


def test_b2_b8_a_position_that_a_rollback_takes_along_is_refused_and_may_be_committed_again(node: Node) -> None:
    node.append(1, batch(10))
    node.commit(2, "one", 5, LEASE)
    node.complete()
    node.time_out()
    assert Reason.QUORUM_TIMEOUT is node.answer(1).reason
    node.commit(3, "one", 5, LEASE)
    node.complete()
    everybody_acks(node)

    assert Reason.BEHIND is node.answer(2).reason
    assert PositionCommitted(1, 5) == node.answer(3)
    assert [(12, 5), (14, 5)] == positions(node), "13 is the rollback"
    assert {"one": 5} == held(node)


def test_a_leadership_that_ends_answers_everybody(node: Node) -> None:
    node.commit(1, "one", 5, LEASE)
    fence(node, 2)

    assert Reason.NOT_LEADER is node.answer(1).reason
    assert Reason.NOT_LEADER is node.commit(2, "one", 5, LEASE).reason
    assert Reason.NOT_LEADER is node.subscriptions(3).reason
    assert (SHARD, CONFIRMATION_TIMER) not in node.timers


@pytest.mark.parametrize(
    ("name", "offset", "lease_ms", "field"),
    [
        ("", 0, LEASE, "subscription"), ("a b", 0, LEASE, "subscription"), ("x" * 129, 0, LEASE, "subscription"),
        ("a", -1, LEASE, "offset"), ("a", 12, LEASE, "offset"), ("a", 0, 999, "lease_ms"), ("a", 0, 0, "lease_ms"),
        ("a", 0, LEASE_MS_MAX + 1, "lease_ms"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    node: Node, name: str, offset: int, lease_ms: int, field: str
) -> None:
    refused = node.commit(1, name, offset, lease_ms)

    assert Reason.INVALID_SPEC is refused.reason
    assert refused.message.startswith(field)
    assert 10 == node.leader.head


def test_b9_one_name_too_many_is_refused_and_others_go_on(node: Node) -> None:
    subscriptions = node.replica.log.subscriptions
    subscriptions.held = {f"n{each}": Position(0, BEGAN, LEASE) for each in range(NAMES_MAX)}

    assert Reason.TOO_MANY_SUBSCRIPTIONS is node.commit(1, "one-more", 5, LEASE).reason
    assert PositionCommitted(1, 5) == confirmed(node, 2, "n7", 5, LEASE)
    node.delete_subscription(3, "n8")
    node.complete()
    everybody_acks(node)
    assert PositionCommitted(1, 5) == confirmed(node, 4, "one-more", 5, LEASE)


def test_b9_waiters_are_bounded(node: Node) -> None:
    for request in range(WAITERS_MAX):
        node.leader.positions.on_request(BEGAN, commit := _commit(request))
    assert Reason.OVERLOADED is node.commit(9_999_999, "one", 5, LEASE).reason
    assert commit.name == "one"


def _commit(request: int) -> Any:
    from tidemark_core.replication.clients import CommitPosition

    return CommitPosition(SHARD, 10_000 + request, "one", 5, LEASE)


def test_nothing_is_appended_to_a_full_disk_or_while_leadership_moves(node: Node) -> None:
    node.replica.space = Space.EXHAUSTED
    assert Reason.DISK_FULL is node.commit(1, "one", 5, LEASE).reason
    node.replica.space = Space.FREE
    node.receive(OPERATOR, PrepareTransfer(1, 10, B))
    assert Reason.TRANSFERRING is node.commit(2, "one", 5, LEASE).reason
    assert Refused is type(node.answer(2))
    assert [] == positions(node)


def test_commits_beget_no_confirm_and_no_further_entries(node: Node) -> None:
    """A commit makes log: were it to make more of itself, a reader at the end would never come to rest."""
    node.fire("notice")
    node.complete()
    everybody_acks(node)
    head = node.leader.head
    confirmed(node, 1, "one", 5, LEASE)
    for _ in range(3):
        node.fire("notice")
        node.complete()
        everybody_acks(node)

    assert head + 1 == node.leader.head


# --- deleting and looking ---------------------------------------------------------------------------------


def test_a_deleted_subscription_is_gone_and_may_begin_anew(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    assert node.delete_subscription(2, "one") is None
    node.delete_subscription(3, "one")
    node.complete()
    everybody_acks(node)

    assert [SubscriptionDeleted(1, True)] * 2 == [node.answer(2), node.answer(3)]
    assert [(11, 5), (12, 5)] == positions(node)
    assert {} == held(node)
    assert SubscriptionDeleted(1, False) == node.delete_subscription(4, "one")
    assert Reason.INVALID_SPEC is node.delete_subscription(5, "a/b").reason
    assert PositionCommitted(1, 2) == confirmed(node, 6, "one", 2, LEASE), "it is another one now"


def test_a_position_committed_while_it_is_deleted_begins_anew(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    node.delete_subscription(2, "one")
    node.commit(3, "one", 2, LEASE)
    node.complete()
    everybody_acks(node)

    assert {"one": 2} == held(node)


def test_a_look_shows_where_each_stands(node: Node) -> None:
    confirmed(node, 1, "two", 9, LEASE)
    confirmed(node, 2, "one", 5, 2 * LEASE)
    node.now_ms += LEASE + 1
    size = node.replica.log.bytes_total

    assert SubscriptionsView(1, 0, 12, (
        SubscriptionView("one", 5, 2 * LEASE, BEGAN, LEASE - 1, 8, size),
        SubscriptionView("two", 9, LEASE, BEGAN, -1, 4, size),
    )) == node.subscriptions(3)
    assert node.core is not None
    assert node.subscriptions(4) == node.core.log.subscriptions(SHARD, node.now_ms)
    assert 2 == node.core.log.status(SHARD)["subscriptions"]


def test_b5_a_subscription_that_the_log_has_outlived_begins_anew(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    node.now_ms += LEASE + 1
    assert ["one"] == [each.name for each in node.subscriptions(2).subscriptions], "nothing was logged since"
    node.append(3, batch(10))
    node.complete()
    everybody_acks(node)

    assert () == node.subscriptions(4).subscriptions
    assert SubscriptionDeleted(1, True) == _deleted(node, 5), "what is left of it may still be removed"
    assert PositionCommitted(1, 1) == confirmed(node, 6, "one", 1, LEASE)


def _deleted(node: Node, request: int) -> Any:
    node.delete_subscription(request, "one")
    node.complete()
    everybody_acks(node)
    return node.answer(request)


def test_l12_a_new_leader_shows_no_positions_before_it_knows_what_is_confirmed(make_node: MakeNode) -> None:
    node = make_node()
    lead(node)
    assert Reason.BEHIND is node.subscriptions(1).reason
    everybody_acks(node)
    assert SubscriptionsView(1, 0, 0, ()) == node.subscriptions(2)


def test_a_restarted_replica_knows_what_it_knew(node: Node) -> None:
    confirmed(node, 1, "one", 5, LEASE)
    confirmed(node, 2, "two", 6, LEASE)
    node.commit(3, "one", 7, LEASE)
    node.complete()
    node.restart()

    assert {"one": 5, "two": 6} == held(node)
    assert [("one", 13)] == [(each.name, each.at) for each in node.replica.log.subscriptions.undecided]


def test_b3_positions_are_in_every_later_leader(cluster: Cluster) -> None:
    """Whatever leader comes, from whatever checkpoint."""
    leader = cluster.leader
    for sequence in range(3):
        cluster.appended(batch(sequence))
    request = cluster.request()
    leader.commit(request, "one", 2, LEASE)
    cluster.settle()
    assert PositionCommitted(1, 2) == cluster.answer(request)
    cluster.crash(leader.me.node)
    others = [each for each in cluster.nodes.values() if each is not leader]
    assert cluster.run_until(lambda: any(each.leads and held(each) == {"one": 2} for each in others))
    cluster.restart(leader.me.node)
    cluster.settle()
    assert {"one": 2} == held(leader)


# --- pins -------------------------------------------------------------------------------------------------


def add(node: Node, count: int) -> None:
    """Append batches that are a stretch each."""
    for _ in range(count):
        head = node.leader.head
        sequence = node.replica.log.producers.places(batch(0).producer)[-1].sequence + 1
        node.append(5000 + head, batch(sequence, payload=bytes(MIB)))
        node.complete()
        everybody_acks(node)


def look(node: Node, after_ms: int = 0) -> list[str]:
    """Let the next look at retention come, and return what it told."""
    node.now_ms = max(node.now_ms + after_ms, node.timers[SHARD, RETENTION_TIMER])
    effects = node.fire(RETENTION_TIMER)
    node.complete()
    everybody_acks(node)
    return [f"{effect.what}: {effect.detail}" for effect in effects if isinstance(effect, Trace)]


def first(node: Node) -> int:
    return node.replica.log.first


def test_b10_a_pin_holds_what_retention_would_remove_and_is_named(node: Node) -> None:
    add(node, 2)
    confirmed(node, 1, "slow", 12, LEASE)
    confirmed(node, 2, "slower", 3, LEASE)
    confirmed(node, 3, "slower", 5, LEASE)
    node.retain(bytes_max=2 * MIB)
    add(node, 6)

    assert 0 == first(node)
    told = "retention_blocked: offset 0 is kept, retention ends at 21: subscription 'slower' stands at 5"
    assert [told] == look(node)
    confirmed(node, 4, "slower", 14, LEASE)
    look(node)
    assert 12 == first(node), "now the other one holds it"
    confirmed(node, 5, "slow", 19, LEASE)
    look(node)
    assert 12 < first(node) <= 14
    assert node.stored()[0].base == first(node)


def test_b10_a_member_that_is_behind_is_told_beside_the_pin(node: Node) -> None:
    confirmed(node, 1, "slow", 10, LEASE)
    node.retain(bytes_max=MIB)
    for sequence in range(10, 14):
        node.append(sequence, batch(sequence, payload=bytes(MIB)))
        node.complete()
        ack(node, B)
    assert (0, 11) == (first(node), node.leader.cursors[C].match)
    told = look(node)

    assert ["retention_blocked: offset 0 is kept, retention ends at 15: subscription 'slow' stands at 10"] == told


def test_b4_an_expired_lease_lets_go_at_the_look_behind_the_next(node: Node) -> None:
    """A clock that jumps ahead for a moment must not cost anybody his place."""
    node.retain(bytes_max=2 * MIB)
    confirmed(node, 1, "gone", 3, LEASE)
    add(node, 5)
    look(node)
    node.now_ms += 10 * LEASE
    assert [] == [told for told in look(node) if "blocked" not in told]
    assert 0 == first(node)
    look(node)
    assert 0 < first(node)


def test_b4_only_what_is_confirmed_pins(node: Node) -> None:
    node.retain(bytes_max=2 * MIB)
    node.commit(1, "one", 3, LEASE)
    node.complete()
    assert node.leader.retention.pinned(node.now_ms) > node.leader.head
    everybody_acks(node)
    assert 3 == node.leader.retention.pinned(node.now_ms)


def test_b10_the_hard_bound_wins_over_pins_and_says_whom_it_overran(node: Node) -> None:
    node.retain(bytes_max=2 * MIB, bytes_hard=4 * MIB)
    confirmed(node, 1, "slow", 3, LEASE)
    traces = node.traces
    for _ in range(12):
        add(node, 1)
        assert node.replica.log.bytes_held <= 5 * MIB + 10_000
    assert first(node) > 3
    assert 1 == traces["pin_overrun"], "told once a minute"
    held_bytes = node.replica.log.bytes_held
    assert held_bytes > 2 * MIB, "up to the hard bound it is still kept"
    assert 3 == node.leader.retention.pinned(node.now_ms), "a pin stays until its reader moves on"


def test_b10_a_hard_bound_alone_bounds_what_nobody_pins(node: Node) -> None:
    node.retain(bytes_hard=4 * MIB)
    add(node, 8)

    assert node.replica.log.bytes_held <= 4 * MIB
    assert 0 == node.traces["pin_overrun"]


def test_b10_a_new_leader_removes_nothing_before_it_knows_who_pins(make_node: MakeNode) -> None:
    """What was confirmed under the leader before may be more than the new one was told."""
    author = Author()
    author.opening()
    for _ in range(4):
        author.data(payload=bytes(MIB))
    author.position("slow", 1, LEASE_MS_MAX)
    node = make_node()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1, commit=5, confirmed=4))
    node.complete()
    lead(node, 2)
    for follower in (B, C):
        ack(node, follower, 5)
    assert (4, 6) == (node.replica.confirmed, node.leader.head)
    assert 0 == node.trim(1, 4), "everybody has it, it is confirmed, and somebody may pin it"
    everybody_acks(node)
    assert 1 == node.leader.retention.pinned(node.now_ms)
    assert 0 == node.trim(2, 4)
    node.delete_subscription(3, "slow")
    node.complete()
    everybody_acks(node)
    assert 4 == node.trim(4, 4)


def test_b10_a_trim_by_request_stops_at_a_pin_too(node: Node) -> None:
    add(node, 3)
    confirmed(node, 1, "slow", 12, LEASE)

    assert 12 == node.trim(2, 14)
    assert A == node.me
