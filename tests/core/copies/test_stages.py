"""When readers are given an entry, and when it is complete (K10, K11, S22-S30)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tidemark_core.base.effects import PeerDown, PeerUp, Released, SetTimer
from tidemark_core.base.ids import NOTHING, Member
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.copies import Seat, surplus_upto
from tidemark_core.replication.dropping import DROP_TIMER
from tidemark_core.replication.leader import NOTICE_TIMER, Leader
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    Appended,
    BecomeLeader,
    Drop,
    Latest,
    ReadGrant,
    ReadRoundAck,
)
from tidemark_core.replication.settings import Configure, CopySettings
from tidemark_core.replication.stages import RELEASE_TIMER

from tests.core.copies.cluster import order_of, orders
from tests.core.support import (
    OPERATOR,
    SHARD,
    A,
    Author,
    B,
    C,
    D,
    E,
    Node,
    ack,
    append_of,
    batch,
    everybody_acks,
    fence,
)

MakeNode = Callable[..., Node]
FIVE = (A, B, C, D, E)
GOLDEN = (3, 2, 1, 0, 4)


def lead(node: Node, copies: int = 3, ensemble: tuple[Member, ...] = FIVE, **settings: int) -> Leader:
    """Make the node lead, with its opening confirmed by everybody and released."""
    fence(node, 1)
    node.complete()
    followers = tuple((member, NOTHING) for member in ensemble if member != node.me)
    node.receive(OPERATOR, BecomeLeader(1, 10, ensemble, followers, copies))
    node.complete()
    assert node.settings is not None
    node.step(Configure(SHARD, node.settings, node.retention, CopySettings(**settings)))
    everybody_acks(node)
    node.complete()
    node.take_sent()
    return node.leader


def dropped_by(leader: Leader, x: int) -> set[int]:
    """Return the slots that would drop the entry at x by the facts the leader tells now."""
    facts = leader.dropping.facts()
    size = len(facts.ensemble)
    return {
        slot for slot in range(size)
        if surplus_upto(Seat(slot, size, facts.copies), order_of(*GOLDEN), facts.matches, facts.commit) >= x
    }


def test_k10_the_golden_example(make_node: MakeNode) -> None:
    """Rules S22, S23, S24, S25, S26, S27, S28: order 3,2,1,0,4 and R = 3.

    Acks of 2, 0 and 4: appended; of 3: 4 drops it, readers may have it; of 1: 0 drops it, it is complete.
    """
    node = make_node(C)   # slot 2 leads
    leader = lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()                                   # slot 2
        assert node.answer(1) is None
        ack(node, A)                                      # slot 0
        assert node.answer(1) is None
        ack(node, E)                                      # slot 4
        assert isinstance(node.answer(1), Appended)
        assert (1, 0, set()) == (node.replica.confirmed, node.replica.released, dropped_by(leader, 1))

        effects = ack(node, D)                            # slot 3
        assert Released(SHARD, 1) in effects
        assert (1, {4}) == (node.replica.released, dropped_by(leader, 1))
        assert 1 > leader.stages.complete()

        ack(node, B)                                      # slot 1
        assert {4, 0} == dropped_by(leader, 1)
        assert 1 == leader.stages.complete()


def test_k10_s24_writers_never_wait_for_a_stage(make_node: MakeNode) -> None:
    """Rules S24 and S30: any majority answers the writer; the left-most may be dead."""
    node = make_node(C)
    lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)

    assert isinstance(node.answer(1), Appended)
    assert 0 == node.replica.released


def test_k10_a_read_of_all_that_is_acknowledged_ends_behind_what_waits_for_its_release(make_node: MakeNode) -> None:
    """Or a writer would not read what it was answered for a moment ago."""
    node = make_node(C)
    lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)

    assert node.latest(2) is None
    for member in (A, B):
        node.receive(member, ReadRoundAck(1, 1))
    assert (0, Latest(1, 1)) == (node.read_grant(3).released, node.answer(2))


def test_k10_what_waited_long_enough_is_released_and_the_newer_waits_its_own_time(make_node: MakeNode) -> None:
    """Rule S30."""
    node = make_node(C)
    lead(node, release_ms=70)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)
        assert 70 == node.timers[SHARD, RELEASE_TIMER] - node.now_ms
        node.append(2, batch(1))
        node.complete()
        for member in (A, B):
            ack(node, member)
        node.now_ms += 70
        node.fire(RELEASE_TIMER)
        assert (1, 2) == (node.replica.released, node.replica.confirmed)
        assert 70 == node.timers[SHARD, RELEASE_TIMER] - node.now_ms
        node.now_ms += 70
        node.fire(RELEASE_TIMER)

    assert 2 == node.replica.released
    assert (SHARD, RELEASE_TIMER) not in node.timers


def test_k10_sync_leaders_may_be_more_than_one(make_node: MakeNode) -> None:
    """Rule S25."""
    node = make_node(C)
    lead(node, sync_leaders=3)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, D):
            ack(node, member)
        assert 0 == node.replica.released
        ack(node, B)

    assert 1 == node.replica.released


def test_k10_leaders_say_when_an_entry_is_complete(make_node: MakeNode) -> None:
    """Rule S26: the default is all who keep it."""
    node = make_node(C)
    leader = lead(node, leaders=1)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, D):
            ack(node, member)

    assert 1 == leader.stages.complete()
    assert node.core is not None and 1 == node.core.log.status(SHARD)["leader"]["complete"]


def test_k10_released_is_a_prefix(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    with orders(GOLDEN, (2, 3, 1, 0, 4)):
        node.append(1, batch(0))
        node.append(2, batch(1))
        node.complete()
        for member in (A, B):
            ack(node, member)
        assert 0 == node.replica.released, "the second has its left-most, the first has not"
        ack(node, D)

    assert 2 == node.replica.released


def test_k11_nobody_waits_for_a_left_most_that_is_known_to_be_dead(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)
        assert 0 == node.replica.released
        effects = node.step(PeerDown(D))

    assert Released(SHARD, 1) in effects


def test_s29_where_all_keep_everything_the_stages_are_one(make_node: MakeNode) -> None:
    """Rules S29 and K10."""
    for copies in (0, 5):
        node = make_node(C)
        leader = lead(node, copies)
        with orders(GOLDEN):
            node.append(1, batch(0))
            node.complete()
            for member in (A, B):
                ack(node, member)

        assert 1 == node.replica.confirmed == node.replica.released == leader.stages.complete()
        assert not {(SHARD, RELEASE_TIMER), (SHARD, DROP_TIMER)} & set(node.timers)


def test_k10_followers_hear_how_far_readers_may_go(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)
        node.take_sent()
        node.fire(NOTICE_TIMER)
        assert {0} == {message.released for message in node.take_sent(Append)}
        ack(node, D)
        assert (SHARD, NOTICE_TIMER) in node.timers
        node.fire(NOTICE_TIMER)

    told = [message for message in node.take_sent(Append) if message.confirmed == 1]
    assert told and {None} == {message.released for message in told}


def test_k10_a_follower_releases_what_it_is_told_and_never_less_than_before(node: Node) -> None:
    author = Author()
    author.opening()
    author.data(3)
    fence(node, 1)
    message = append_of(author.entries, 1, 3)
    node.receive(B, replace(message, released=0))
    assert (3, 0) == (node.replica.confirmed, node.replica.released)
    node.receive(B, replace(append_of((), 1, 3, prev=author.entries[-1].id), released=2))
    node.receive(B, replace(append_of((), 1, 3, prev=author.entries[-1].id), released=1))
    assert 2 == node.replica.released
    assert node.core is not None and (0, 2) == node.core.log.readable(SHARD)
    node.receive(B, append_of((), 1, 3, prev=author.entries[-1].id))
    assert 3 == node.replica.released


def test_k10_a_reader_learns_that_more_is_acknowledged_than_it_may_have_yet(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        for member in (A, B):
            ack(node, member)

    assert node.latest(2) is None
    for member in (A, B):
        node.receive(member, ReadRoundAck(1, 1))
    assert (0, Latest(1, 1)) == (node.read_grant(3).released, node.answer(2))


# --- when surplus is told of ------------------------------------------------------------------------------


def test_k7_facts_are_told_a_while_after_the_last_progress_and_once_more(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    node.fire(DROP_TIMER)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
        everybody_acks(node)
    node.take_sent()

    node.fire(DROP_TIMER)
    told = node.take_sent(Drop)
    assert [Drop(1, FIVE, 3, (1, 1, 1, 1, 1), 1)] * 4 == told
    node.fire(DROP_TIMER)
    assert told == node.take_sent(Drop)
    assert (SHARD, DROP_TIMER) not in node.timers, "an idle shard costs nothing"


def test_k7_a_member_that_is_linked_again_is_told_at_once(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    node.step(PeerDown(A))
    node.take_sent()
    effects = node.step(PeerUp(A))

    assert 1 == len(node.take_sent(Drop))
    assert not any(isinstance(effect, SetTimer) and effect.name == DROP_TIMER for effect in effects)


def test_k4_only_acks_of_this_epoch_and_of_members_that_follow_are_among_the_facts(make_node: MakeNode) -> None:
    """Rules K4-K6: an ack of another epoch, or of a disk that is gone, makes nothing surplus."""
    node = make_node(C)
    leader = lead(node)
    with orders(GOLDEN):
        node.append(1, batch(0))
        node.complete()
    node.receive(D, AppendAck(0, 1, 1))
    node.receive(Member("d", "d-disk0"), AppendAck(1, 1, 1))

    assert (0, 0, 1, 0, 0) == leader.dropping.facts().matches


# --- a plain read of the leader ---------------------------------------------------------------------------


def test_k17_a_leader_that_lacks_what_is_read_says_so_instead_of_skipping_it(make_node: MakeNode) -> None:
    node = make_node(C)
    lead(node)
    with orders((0, 1, 3, 2, 4), GOLDEN):
        node.append(1, batch(0))
        node.append(2, batch(1))
        node.complete()
        everybody_acks(node)
    node.fire(DROP_TIMER)
    node.complete()

    assert isinstance(node.read_grant(3, 0), ReadGrant)
    refused = node.read_grant(4, 1)
    assert Reason.NOT_HELD is refused.reason
    assert "single copy" in refused.message
    assert isinstance(node.read_grant(5, 2), ReadGrant), "this one it keeps"
    assert isinstance(node.read_grant(6), ReadGrant)


@pytest.mark.parametrize("copies", [0, 5])
def test_k17_a_leader_that_keeps_everything_serves_everything(make_node: MakeNode, copies: int) -> None:
    node = make_node(C)
    lead(node, copies)
    node.append(1, batch(0))
    node.complete()
    everybody_acks(node)

    assert isinstance(node.read_grant(2, 1), ReadGrant)
