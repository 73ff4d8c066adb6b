"""Seeding a member where the others need not keep every payload (K12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import (
    SnapshotChunk,
    SnapshotDescriptor,
    SnapshotFailed,
    Trace,
)
from tidemark_core.base.entry import Kind
from tidemark_core.base.limits import Limits
from tidemark_core.replication.follower import PULL_TIMER
from tidemark_core.replication.messages import InstallSnapshot, Operation, SnapshotInstalled
from tidemark_core.replication.records import ChangeDone

from tests.core.copies.cluster import bare, fill, held, order_of, orders
from tests.core.support import AT, OPERATOR, SHARD, A, Author, B, C, Cluster, D, Node

MakeCluster = Callable[..., Cluster]
QUICK = Limits(drop_ms=50, pull_retry_ms=100)


def places(cluster: Cluster, *first: str) -> list[int]:
    """Return an order: these nodes, then the others."""
    slots = {member.node: slot for slot, member in enumerate(cluster.record.ensemble)}
    return [*(slots[name] for name in first), *(slot for name, slot in slots.items() if name not in first)]


def done(cluster: Cluster, request: int) -> ChangeDone:
    assert cluster.run_until(lambda: request in cluster.answers, 60_000), cluster.describe()
    answer = cluster.answers[request][0]
    assert isinstance(answer, ChangeDone), answer
    cluster.run_for(1_000)
    return answer


def test_k12_a_new_member_gets_every_payload_that_is_not_surplus_in_its_slot_also_those_the_leader_dropped(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcdef", ensemble="abcde", copies=3, limits=QUICK)
    leader = cluster.leader.me.node
    leaver, one, two, three = [name for name in "abcde" if name != leader]
    with orders(
        places(cluster, one, two, three, leaver, leader), places(cluster, leaver, one, two, three, leader),
        places(cluster, leader, leaver, one, two, three), places(cluster, one, leaver, leader, two, three),
    ):
        fill(cluster, 4)
        cluster.run_for(2_000)
        assert [2, 3] == held(cluster.leader)
        assert [1, 2, 3] == held(cluster.nodes[leaver])

        done(cluster, cluster.change(Operation.SWAP, leaver, "f"))
        assert cluster.nodes["f"].replica.seat is not None
        cluster.run_for(2_000)

    assert [1, 2, 3] == held(cluster.nodes["f"])
    assert [0] == bare(cluster.nodes["f"])
    assert 3 * 4 == sum(len(held(cluster.nodes[member.node])) for member in cluster.record.ensemble)


def test_k12_what_too_few_left_of_the_slot_have_acknowledged_is_not_left_out(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcdef", ensemble="abcde", copies=3, limits=QUICK)
    leader = cluster.leader.me.node
    leaver, one, two, dead = [name for name in "abcde" if name != leader]
    cluster.crash(dead)
    with orders(places(cluster, one, two, dead, leaver, leader)):
        fill(cluster, 3)
        cluster.run_for(1_000)
        done(cluster, cluster.change(Operation.SWAP, leaver, "f"))

    assert [0, 1, 2] == held(cluster.nodes["f"])


def test_k12_payloads_come_from_the_others_when_the_leaver_is_gone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcdef", ensemble="abcde", copies=3, limits=QUICK)
    leader = cluster.leader.me.node
    leaver, one, two, three = [name for name in "abcde" if name != leader]
    with orders(places(cluster, leaver, one, two, three, leader)):
        fill(cluster, 6)
        cluster.run_for(2_000)
        cluster.crash(leaver)
        done(cluster, cluster.change(Operation.SWAP, leaver, "f"))

    assert [0, 1, 2, 3, 4, 5] == held(cluster.nodes["f"])
    assert [0, 1, 2, 3, 4, 5] == bare(cluster.leader)


def test_k12_a_payload_that_nobody_can_give_delays_the_change_and_is_never_skipped(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcdef", ensemble="abcde", copies=3, limits=QUICK, change_timeout_ms=3_000)
    leader = cluster.leader.me.node
    leaver, one, two, three = [name for name in "abcde" if name != leader]
    with orders(places(cluster, leaver, one, two, three, leader)):
        fill(cluster, 2)
        cluster.run_for(2_000)
        for name in (leaver, one, two):
            core = cluster.nodes[name].core
            core.log.snapshot_part = lambda shard, epoch, entries: ((), False)  # type: ignore[union-attr, method-assign]
        request = cluster.change(Operation.SWAP, leaver, "f")
        assert cluster.run_until(lambda: request in cluster.answers, 30_000)

    assert not isinstance(cluster.answers[request][0], ChangeDone)
    assert [member.node for member in cluster.record.ensemble] == list("abcde")
    assert [] == cluster.sent(SnapshotInstalled)


def test_k12_the_new_member_counts_only_from_commit_and_the_old_ones_acks_no_longer_from_prepare(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcd", ensemble="abc", copies=2, limits=QUICK)
    leader = cluster.leader.me.node
    leaver, one = [name for name in "abc" if name != leader]
    with orders(places(cluster, leaver, one, leader)):
        fill(cluster, 1)
        rule = cluster.rule("hold", SnapshotInstalled)
        request = cluster.change(Operation.SWAP, leaver, "d")
        assert cluster.run_until(lambda: bool(rule.caught), 10_000)
        fill(cluster, 1, first=1)
        cluster.run_for(1_000)
        facts = cluster.leader.leader.dropping.facts()
        assert -1 == facts.matches["abc".index(leaver)]
        assert [0, 1] == held(cluster.leader), "one is left of it, and one is not enough"

        cluster.lift(rule)
        done(cluster, request)
        cluster.run_for(1_000)

    assert [0, 1] == bare(cluster.leader)
    assert [0, 1] == held(cluster.nodes["d"]) == held(cluster.nodes[one])


def test_k13_an_added_member_stands_far_right_of_old_orders_and_is_seeded_with_headers(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcd", copies=3, ensemble="abc", limits=QUICK)
    with orders((0, 1, 2)):
        fill(cluster, 3)
        done(cluster, cluster.change(Operation.EXPAND, None, "d"))

    assert [[0, 1, 2]] * 3 == [held(cluster.nodes[name]) for name in "abc"]
    assert [0, 1, 2] == bare(cluster.nodes["d"])


def test_k13_where_all_keep_everything_an_added_member_is_seeded_with_everything(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("abcd", ensemble="abc", limits=QUICK)
    fill(cluster, 3)
    done(cluster, cluster.change(Operation.EXPAND, None, "d"))

    assert [0, 1, 2] == held(cluster.nodes["d"])


# --- the member that is seeded, by hand -------------------------------------------------------------------


@pytest.fixture
def author() -> Author:
    """Entries 1 and 3 that slot 2 need not keep, 2 and 4 that it keeps."""
    author = Author(ensemble=(A, B, C))
    author.opening()
    for order in (order_of(0, 1, 2), order_of(2, 1, 0)) * 2:
        author.data(order=order)
    author.opening(Kind.NOOP, epoch=2)
    return author


def descriptor(author: Author, commit: int = 4) -> SnapshotDescriptor:
    head = author.entries[-1].id
    return SnapshotDescriptor(2, head, 0, commit, 0, copies=2, slot=2, size=3, sources=(A, B, C))


def chunk(author: Author, *numbers: int, without: tuple[int, ...] = ()) -> SnapshotChunk:
    return SnapshotChunk(
        SHARD, 2, tuple(author.entries[at].bare() if at in without else author.entries[at] for at in numbers)
    )


@pytest.fixture
def seeded(make_node: Any, author: Author) -> Node:
    """Node d, to sit in slot 2 in place of c."""
    node: Node = make_node(D)
    node.receive(OPERATOR, InstallSnapshot(2, 20, A, descriptor(author)))
    return node


def test_k12_the_leader_may_leave_out_what_is_surplus_and_the_member_remembers_it(seeded: Node, author: Author) -> None:
    seeded.step(chunk(author, 0, 1, 2, 3, 4, 5, without=(1, 3)))
    seeded.complete()

    assert [0, 2] == bare(seeded)
    assert (3, 3) == (seeded.replica.state.dropped, seeded.replica.commit)
    assert (A, B, D) == seeded.replica.state.ensemble
    assert [SnapshotInstalled(2, author.entries[-1].id)] == seeded.take_sent(SnapshotInstalled)


@pytest.mark.parametrize(
    ("without", "commit", "why"),
    [
        ((2,), 4, "K8: entry 1:2 comes without the payload that this member keeps"),
        ((3,), 2, "K8: entry 1:3 comes without its payload, commit is 2"),
        ((0,), 4, "K8: control entry 1:0 comes without its payload"),
    ],
)
def test_k12_what_may_not_be_left_out_is_not_taken(
    make_node: Any, author: Author, without: tuple[int, ...], commit: int, why: str
) -> None:
    node: Node = make_node(D)
    node.receive(OPERATOR, InstallSnapshot(2, 20, A, descriptor(author, commit)))
    effects = node.step(chunk(author, 0, 1, 2, 3, 4, 5, without=without))

    assert Trace(AT, "violation", why) in effects
    assert without[0] - 1 == node.replica.log.head.offset


def test_k12_whoever_does_not_lead_leaves_nothing_out(seeded: Node, author: Author) -> None:
    seeded.step(SnapshotFailed(SHARD, 2, "A may not serve what follows"))
    effects = seeded.step(chunk(author, 0, 1, without=(1,)))

    why = f"K12: {B} does not lead and leaves out the payload of 1:1"
    assert Trace(AT, "violation", why) in effects


def test_k12_sources_are_asked_round_and_round_and_the_clock_only_after_a_round_for_nothing(
    seeded: Node, author: Author
) -> None:
    def asked() -> list[Any]:
        pulls = [(pull.source, pull.first) for pull in seeded.pulls]
        seeded.pulls.clear()
        return pulls

    failed = SnapshotFailed(SHARD, 2, "may not serve what follows")
    assert [(A, 0)] == asked()
    seeded.step(chunk(author, 0, 1))
    seeded.step(failed)
    assert [(B, 2)] == asked()
    seeded.step(failed)
    seeded.step(failed)
    assert [(C, 2), (A, 2)] == asked(), "the round had brought something"
    for _ in range(3):
        seeded.step(failed)
    assert [(B, 2), (C, 2)] == asked()
    assert (SHARD, PULL_TIMER) in seeded.timers
    seeded.fire(PULL_TIMER)
    assert [(A, 2)] == asked()


def test_k12_a_restart_in_the_middle_goes_on_with_what_it_has(seeded: Node, author: Author) -> None:
    seeded.step(chunk(author, 0, 1, 2, without=(1,)))
    seeded.complete()
    seeded.restart()
    assert 1 == seeded.replica.state.dropped
    seeded.receive(OPERATOR, InstallSnapshot(2, 20, A, descriptor(author)))
    assert 3 == seeded.pulls[-1].first
    seeded.step(chunk(author, 3, 4, 5, without=(3,)))
    seeded.complete()

    assert [0, 2] == bare(seeded)


# --- who serves ------------------------------------------------------------------------------------------


def test_k12_the_leader_omits_only_surplus_below_the_commit_it_described_and_others_serve_whole_entries(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster("abcd", ensemble="abc", copies=2, limits=replace(QUICK, drop_ms=60_000))
    leader = cluster.leader.me.node
    leaver, one = [name for name in "abc" if name != leader]
    with orders(places(cluster, one, leader, leaver)):
        fill(cluster, 2)
        cluster.rule("drop", InstallSnapshot)
        cluster.change(Operation.SWAP, leaver, "d")
        cluster.run_for(300)
        fill(cluster, 1, first=2)
        cluster.run_for(50)

    node = cluster.leader
    assert node.core is not None
    epoch = node.replica.state.epoch
    entries = node.stored()
    part, goes_on = node.core.log.snapshot_part(SHARD, epoch, entries)
    kept = [entry.sequence for entry in part if entry.held and entry.kind is Kind.DATA]
    assert goes_on and [2] == kept, "the third was committed later than described"
    assert ((), False) == node.core.log.snapshot_part(SHARD, epoch - 1, entries), "T10d"
    other = cluster.nodes[one].core
    assert other is not None
    mixed = [entry.bare() if entry.sequence == 1 and entry.kind is Kind.DATA else entry for entry in entries]
    assert ([0], False) == (
        [entry.sequence for entry in other.log.snapshot_part(SHARD, epoch, mixed)[0] if entry.kind is Kind.DATA],
        other.log.snapshot_part(SHARD, epoch, mixed)[1],
    )
    assert ((), False) == other.log.snapshot_part(SHARD + 1, epoch, mixed)  # type: ignore[arg-type]
