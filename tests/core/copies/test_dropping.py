"""What members drop, when, and what they never do without (K3-K9, K14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import DropPayloads, LogRead, LogReadFailed, Persist, PutEntry, PutState, Send, Trace
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Member
from tidemark_core.replication.copies import seat_of
from tidemark_core.replication.messages import Append, AppendAck, AppendRefused, Drop, Fetch, Fetched
from tidemark_core.replication.replica import ReplicaState

from tests.core.copies.cluster import bare, data, fill, held, order_of, orders, settled_bare
from tests.core.support import AT, SHARD, A, Author, B, C, Cluster, D, E, Node, answer_reads, append_of, fence

MakeNode = Callable[..., Node]
MakeCluster = Callable[..., Cluster]
FIVE = (A, B, C, D, E)


# --- one cluster, from the outside ------------------------------------------------------------------------


def test_k3_entries_go_whole_to_everybody_and_commit_before_anything_is_dropped(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abc", copies=2)
    with orders((0, 1, 2)):
        fill(cluster, 3)
        cluster.run_for(20)

    assert [[0, 1, 2]] * 3 == [held(node) for node in cluster.nodes.values()]
    assert all(entry.held for append in cluster.sent(Append) for entry in append.entries)


def test_k6_what_is_surplus_is_dropped_and_every_payload_stays_on_as_many_members_as_asked(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcde", copies=3)
    with orders((0, 1, 2, 3, 4), (3, 2, 1, 0, 4), (4, 3, 2, 1, 0)):
        fill(cluster, 6)
        settled_bare(cluster)

    assert {
        "a": [0], "b": [0, 1], "c": [0, 1, 2, 3, 4, 5], "d": [1, 2, 3, 4, 5], "e": [2, 3, 4, 5],
    } == {name: held(node) for name, node in cluster.nodes.items()}
    assert all(6 == len(data(node)) for node in cluster.nodes.values()), "headers stay everywhere"


def test_k6_nothing_is_told_or_dropped_where_all_keep_everything(make_cluster: MakeCluster) -> None:
    for copies in (0, 3):
        cluster = make_cluster("abc", copies=copies)
        fill(cluster, 3)
        settled_bare(cluster)

        assert [] == cluster.sent(Drop)
        assert [[0, 1, 2]] * 3 == [held(node) for node in cluster.nodes.values()]
        assert [-1] * 3 == [node.replica.state.dropped for node in cluster.nodes.values()]


def test_k6_a_dead_member_left_of_it_keeps_a_payload_from_being_surplus(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abc", copies=2)
    leader = cluster.leader.me.node
    dead, alive = sorted({"a", "b", "c"} - {leader})
    place = {name: "abc".index(name) for name in "abc"}
    cluster.crash(dead)
    with orders((place[dead], place[leader], place[alive])):
        fill(cluster, 2)
        settled_bare(cluster)
        assert [0, 1] == held(cluster.nodes[alive]), "only the leader is left of it"

        cluster.restart(dead)
        cluster.settle()
        settled_bare(cluster)

    assert [0, 1] == bare(cluster.nodes[alive])
    assert [0, 1] == held(cluster.nodes[dead]) == held(cluster.leader)


def test_k6_lost_news_is_told_again_and_a_repeat_is_harmless(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abc", copies=2)
    rule = cluster.rule("drop", Drop, left=2)
    with orders((0, 1, 2), (2, 0, 1)):
        fill(cluster, 3)
        settled_bare(cluster)

    assert 2 == len(rule.caught)
    assert 2 * 3 == sum(len(held(node)) for node in cluster.nodes.values())


def test_k6_an_idle_shard_is_told_twice_and_then_nothing(make_cluster: MakeCluster) -> None:
    """Acknowledgements of what is said here are no progress."""
    cluster = make_cluster("abc", copies=2)
    with orders((0, 1, 2), (2, 0, 1)):
        fill(cluster, 3)
        settled_bare(cluster)
    for _ in range(3):
        cluster.run_for(2 * cluster.leader.limits.drop_ms)
    said = len(cluster.sent(Drop)), len(cluster.sent(Append))

    for _ in range(10):
        cluster.run_for(2 * cluster.leader.limits.drop_ms)

    assert said[0] > 0 and said == (len(cluster.sent(Drop)), len(cluster.sent(Append)))


def test_k9_a_restart_remembers_what_may_be_missing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abc", copies=2)
    with orders((0, 1, 2)):
        fill(cluster, 3)
        settled_bare(cluster)
        before = cluster.nodes["c"].replica.state
        cluster.restart("c")
        cluster.settle()

    assert 3 <= before.dropped == cluster.nodes["c"].replica.state.dropped
    assert [0, 1, 2] == bare(cluster.nodes["c"])


def test_k7_a_follower_that_catches_up_is_sent_headers_alone_where_the_payload_is_surplus(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcde", copies=3)
    leader = cluster.leader.me.node
    at = "abcde".index(leader)
    *others, late = [slot for slot in range(5) if slot != at]
    late_name = "abcde"[late]
    cluster.crash(late_name)
    with orders((at, *others, late)):
        fill(cluster, 4)
        settled_bare(cluster)
        cluster.restart(late_name)
        cluster.settle()

    sent = [entry for append in cluster.sent(Append, late_name) for entry in append.entries if entry.kind is Kind.DATA]
    assert sent and not any(entry.held for entry in sent)
    assert [0, 1, 2, 3] == bare(cluster.nodes[late_name])
    assert 3 <= cluster.nodes[late_name].replica.state.dropped


def test_k14_a_wiped_member_counts_for_nothing_until_it_is_seeded_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abc", copies=2)
    leader = cluster.leader.me.node
    first, second = sorted({"a", "b", "c"} - {leader})
    place = {name: "abc".index(name) for name in "abc"}
    with orders((place[first], place[leader], place[second])):
        cluster.wipe(first)
        fill(cluster, 2)
        settled_bare(cluster)

    assert [0, 1] == held(cluster.nodes[second]), "the wiped one is left of it and has nothing"
    assert SHARD not in cluster.nodes[first].durable


# --- one member, by hand ----------------------------------------------------------------------------------


def follower(node: Node, author: Author, commit: int) -> None:
    """Make `node` follow B with all of the author's entries, committed so far."""
    fence(node, author.epoch)
    node.receive(B, append_of(author.entries, author.epoch, commit))
    node.complete()
    node.take_sent()


def told(node: Node, author: Author, *matches: int, copies: int = 2, commit: int = 1 << 40, epoch: int = 1) -> Any:
    ensemble = author.ensemble
    return node.receive(B, Drop(epoch, ensemble, copies, matches, commit))


@pytest.fixture
def author() -> Author:
    """Entries 1..4 in one order with A last, 5 with A first, 6 as before; 0 is the opening, 3 a CONFIRM."""
    author = Author(ensemble=(A, B, C))
    author.opening()
    away, here = order_of(1, 2, 0), order_of(0, 1, 2)
    author.data(2, order=away)   # 1..2
    author.confirm(2)            # 3
    author.data(order=away)      # 4
    author.data(order=here)      # 5
    author.data(order=away)      # 6
    return author


def drops(effects: list[Any]) -> list[tuple[int, int]]:
    return [
        (write.first, write.last)
        for effect in effects if isinstance(effect, Persist)
        for write in effect.writes if isinstance(write, DropPayloads)
    ]


def state_in(effects: list[Any]) -> ReplicaState:
    """Return the state that is written together with what is dropped."""
    writes = next(e.writes for e in effects if isinstance(e, Persist) and any(
        isinstance(write, DropPayloads) for write in e.writes
    ))
    return ReplicaState.decode(next(write.state for write in writes if isinstance(write, PutState)))


def test_k7_a_member_drops_as_a_prefix_what_the_facts_call_surplus_and_never_what_it_is_designated_for(
    node: Node, author: Author
) -> None:
    follower(node, author, commit=6)

    assert [(1, 4)] == drops(told(node, author, 6, 6, 4))
    assert [(6, 6)] == drops(told(node, author, 6, 6, 6))
    assert [] == drops(told(node, author, 6, 6, 6))
    node.complete()
    assert [2] == held(node)


def test_k8_nothing_above_the_members_own_commit_is_dropped_and_commit_is_in_the_same_write(
    node: Node, author: Author
) -> None:
    follower(node, author, commit=2)
    effects = told(node, author, 6, 6, 6)

    assert [(1, 2)] == drops(effects)
    assert (2, 2) == (state_in(effects).commit, state_in(effects).dropped)


def test_k8_nothing_above_the_commit_that_is_told_is_dropped(node: Node, author: Author) -> None:
    follower(node, author, commit=6)

    assert [(1, 2)] == drops(told(node, author, 6, 6, 6, commit=2))


@pytest.mark.parametrize("epoch", [0, 2])
def test_k8_facts_of_another_epoch_mean_nothing(node: Node, author: Author, epoch: int) -> None:
    follower(node, author, commit=6)

    assert [] == told(node, author, 6, 6, 6, epoch=epoch)


def test_k6_a_member_that_is_not_among_those_told_of_drops_nothing(node: Node, author: Author) -> None:
    follower(node, author, commit=6)

    assert [] == drops(node.receive(B, Drop(1, (B, C, D), 2, (6, 6, 6), 6)))


def test_k6_facts_that_do_not_fit_each_other_are_a_violation(node: Node, author: Author) -> None:
    follower(node, author, commit=6)

    assert [Trace(AT, "violation", "K6: 2 matches for 3 slots")] == told(node, author, 6, 6)


def test_k9_control_entries_keep_their_payload(make_node: MakeNode) -> None:
    node = make_node(A)
    author = Author(ensemble=(A, B, C))
    author.opening()
    author.data(order=order_of(1, 2, 0))
    author.opening(epoch=2)
    author.data(order=order_of(1, 2, 0))
    follower(node, author, commit=3)

    assert [(1, 1), (3, 3)] == drops(told(node, author, 3, 3, 3, epoch=2))
    node.complete()
    assert all(entry.held for entry in node.stored() if entry.kind is not Kind.DATA)


def test_k6_other_copies_make_a_member_look_again_at_what_it_kept(make_node: MakeNode) -> None:
    node = make_node(A)
    author = Author(ensemble=FIVE)
    author.opening()
    author.data(order=order_of(1, 2, 3, 0, 4))
    follower(node, author, commit=1)

    assert [] == drops(told(node, author, 1, 1, 1, 1, 1, copies=4))
    assert 1 == node.replica.state.swept
    assert [(1, 1)] == drops(told(node, author, 1, 1, 1, 1, 1, copies=3))


# --- entries without payload ------------------------------------------------------------------------------


def bare_append(author: Author, commit: int) -> Append:
    message = append_of([entry.bare() if entry.kind is Kind.DATA else entry for entry in author.entries], 1, commit)
    return replace(message, ensemble=author.ensemble, copies=2)


@pytest.fixture
def away() -> Author:
    """Entries that A need not keep."""
    author = Author(ensemble=(A, B, C))
    author.opening()
    author.data(2, order=order_of(1, 2, 0))
    author.data(order=order_of(2, 1, 0))
    return author


def test_k8_a_header_alone_is_taken_below_the_commit_that_comes_with_it_and_both_are_written_together(
    node: Node, away: Author
) -> None:
    fence(node, 1)
    effects = node.receive(B, bare_append(away, commit=3))

    persist = next(effect for effect in effects if isinstance(effect, Persist))
    state = ReplicaState.decode(next(write.state for write in persist.writes if isinstance(write, PutState)))
    assert 3 == len([write for write in persist.writes if isinstance(write, PutEntry)])
    assert (3, 3) == (state.commit, state.dropped)
    node.complete()
    assert [AppendAck(1, 3, 3)] == node.take_sent(AppendAck)
    assert [0, 1] == bare(node)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commit": 2, "confirmed": 2}, "K8: entry 1:3 comes without its payload, commit is 2"),
        ({"ensemble": (B, C, A)}, "K8: entry 1:2 comes without the payload that this member keeps"),
        ({"ensemble": (B, C, D)}, "K8: entry 1:2 comes without the payload that this member keeps"),
        ({"ensemble": ()}, "K8: entry 1:2 comes without its payload, and nobody is named"),
        ({"copies": 3}, "K8: entry 1:2 comes without the payload that this member keeps"),
        ({"copies": 0}, "K8: entry 1:2 comes without the payload that this member keeps"),
    ],
)
def test_k8_a_header_alone_is_refused_above_commit_and_where_its_member_is_designated(
    node: Node, away: Author, changes: dict[str, Any], why: str
) -> None:
    fence(node, 1)
    effects = node.receive(B, replace(bare_append(away, commit=3), **changes))

    assert [Trace(AT, "violation", why)] == effects
    assert -1 == node.replica.log.head.offset


def test_k8_a_control_entry_without_its_payload_is_refused(node: Node, away: Author) -> None:
    fence(node, 1)
    message = bare_append(away, commit=3)
    opening = message.entries[0].bare()

    effects = node.receive(B, replace(message, entries=(opening, *message.entries[1:])))
    assert [Trace(AT, "violation", f"K8: control entry {opening.id} comes without its payload")] == effects


def test_k8_a_header_alone_of_an_older_epoch_is_refused(node: Node, away: Author) -> None:
    fence(node, 1)
    node.receive(B, append_of(away.entries[:1], 1, 0))
    ahead = away.fork(away.entries[0].id, 2)
    ahead.opening(Kind.NOOP, epoch=2)
    node.receive(B, append_of(ahead.entries[1:], 2, 0))
    node.complete()
    node.take_sent()

    node.receive(B, bare_append(away, commit=3))
    node.complete()
    assert ["STALE_EPOCH"] == [message.reason for message in node.take_sent(AppendRefused)]


def test_k8_of_a_push_that_does_not_fit_nothing_is_kept_without_payload(node: Node, away: Author) -> None:
    fence(node, 1)
    other = away.fork(away.entries[-1].id, 1)
    other.data(order=order_of(1, 2, 0))
    last = other.data(order=order_of(1, 2, 0))
    message = bare_append(away, commit=3)

    node.receive(B, replace(message, entries=(*message.entries, last), through=last.last))
    node.complete()

    assert ["MISMATCH"] == [refused.reason for refused in node.take_sent(AppendRefused)]
    assert (-1, -1) == (node.replica.log.head.offset, node.replica.state.dropped)
    assert [] == node.stored()


# --- repair -----------------------------------------------------------------------------------------------


def test_k9_a_payload_that_is_missing_where_it_should_be_is_damage_and_is_fetched(node: Node, author: Author) -> None:
    follower(node, author, commit=6)
    told(node, author, 6, 6, 6)
    node.complete()
    for images in (node.written, node.durable):
        header, _ = images[SHARD].entries[5]
        images[SHARD].entries[5] = (header, b"")

    # The check after every step finds it first; here it is the core's turn.
    with pytest.raises(AssertionError, match="has no payload of 1:5"):
        node.check()
    node.check = lambda: None  # type: ignore[method-assign]
    effects = node.step(LogRead(SHARD, ("push", B, 1, 5), (author.entries[4].bare(),)))
    asked = [effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Fetch)]
    assert [B, C] == asked
    node.receive(B, Fetched(5, author.entries[4]))
    answer_reads(node)
    del node.check
    assert 2 in held(node)


def test_k9_what_is_rightly_missing_is_no_damage_and_its_answer_is_that_it_is_not_here(
    node: Node, author: Author
) -> None:
    follower(node, author, commit=6)
    told(node, author, 6, 6, 6)
    node.complete()
    node.receive(C, Fetch(4, 1))
    node.step(node.answer_read(node.reads.pop()))

    assert [Fetched(4, None)] == node.take_sent(Fetched)
    assert [] == node.take_sent(Fetch)


def test_k7_a_damaged_payload_that_is_not_surplus_yet_is_repaired_though_its_member_is_not_designated(
    node: Node, author: Author
) -> None:
    """Found by the simulator (copies seed 50024): a header alone behind it had raised `dropped` over it."""
    follower(node, author, commit=6)
    later = author.data(order=order_of(1, 2, 0))
    node.receive(B, replace(append_of([later.bare()], 1, 7), ensemble=(A, B, C), copies=2))
    node.complete()
    assert (7, -1) == (node.replica.state.dropped, node.replica.state.swept)
    node.damage(4)
    node.step(LogReadFailed(SHARD, None, 4))
    assert [Fetch(4, 1)] * 2 == node.take_sent(Fetch)
    node.receive(C, Fetched(4, author.entries[3]))
    answer_reads(node)

    assert [0, 1, 2, 3] == held(node)


def test_k16_an_answer_nobody_needs_brings_no_payload_back(node: Node, author: Author) -> None:
    follower(node, author, commit=6)
    told(node, author, 6, 6, 6)
    node.complete()
    node.receive(C, Fetched(4, author.entries[3]))
    node.complete()

    assert 1 in bare(node)


def test_k14_a_wiped_disk_has_no_seat() -> None:
    assert seat_of(Member("a", "a-disk2"), (A, B, C), 2) is None
