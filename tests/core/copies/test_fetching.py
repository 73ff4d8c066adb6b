"""Payloads that a member needs and its leader does not keep: who is asked, and what is made of the answer (K16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidemark_core.base.limits import Limits
from tidemark_core.replication.messages import Fetch, Fetched

from tests.core.copies.cluster import bare, data, fill, held, orders, settled_bare
from tests.core.support import A, Author, B, C, Cluster, D, E, Node

MakeCluster = Callable[..., Cluster]
FIVE = (A, B, C, D, E)


class Late(NamedTuple):
    """Five members, of which a leader has dropped the payloads, and one that was away needs them."""

    cluster: Cluster
    leader: str
    name: str
    others: list[str]

    @property
    def node(self) -> Node:
        return self.cluster.nodes[self.name]


@contextmanager
def one_late(make_cluster: MakeCluster, entries: int) -> Iterator[Late]:
    """Have a member crashed, so many entries appended, and dropped where they are surplus."""
    cluster = make_cluster("abcde", copies=3, limits=Limits(tail_bytes_max=0, drop_ms=50))
    leader = cluster.leader.me.node
    name, *others = (each for each in "abcde" if each != leader)
    cluster.crash(name)
    with orders(tuple("abcde".index(each) for each in (name, *others, leader))):
        fill(cluster, entries)
        settled_bare(cluster)
        yield Late(cluster, leader, name, others)


def test_k16_a_leader_fetches_what_a_follower_needs_and_stores_nothing_of_it(make_cluster: MakeCluster) -> None:
    with one_late(make_cluster, 4) as late:
        cluster = late.cluster
        assert [0, 1, 2, 3] == bare(cluster.leader), "three left of it have them"

        cluster.restart(late.name)
        cluster.settle()

    assert late.leader == cluster.leader.me.node
    assert [0, 1, 2, 3] == held(late.node)
    assert [0, 1, 2, 3] == bare(cluster.leader)
    assert cluster.sent(Fetch)


def test_k16_who_cannot_be_given_a_payload_waits_and_the_others_go_on(make_cluster: MakeCluster) -> None:
    with one_late(make_cluster, 2) as late:
        cluster = late.cluster
        rule = cluster.rule("drop", Fetched)
        cluster.restart(late.name)
        cluster.run_for(3_000)
        fill(cluster, 2, first=2)
        cluster.run_for(100)
        assert [] == held(late.node)
        assert all(cluster.nodes[name].replica.commit == cluster.leader.replica.commit for name in late.others)

        cluster.lift(rule)
        cluster.settle()

    assert [0, 1, 2, 3] == held(late.node)


def test_k16_what_is_fetched_is_compared_with_our_own_header(make_cluster: MakeCluster) -> None:
    with one_late(make_cluster, 1) as late:
        cluster = late.cluster
        rule = cluster.rule("hold", Fetched)
        cluster.restart(late.name)
        assert cluster.run_until(lambda: bool(rule.caught), 10_000)
        sender, shard, to, message = rule.caught[0]
        forged = Author(ensemble=FIVE)
        forged.opening()
        other = forged.data(payload=b"something else", order=message.entry.order)
        assert other.id == message.entry.id
        cluster.deliver(sender, shard, to, Fetched(message.base, other))
        cluster.run_for(100)
        assert [] == data(late.node)

        cluster.lift(rule)
        cluster.settle()

    assert [b"payload-0"] == [entry.payload for entry in data(late.node)]


def test_k16_a_member_that_never_answers_is_not_asked_for_ever(make_cluster: MakeCluster) -> None:
    """Found by the simulator (recovery seed 135): two silent members, whom nobody had noticed, were asked again and
    again, and the third that had the payload was not."""
    cluster = make_cluster("abcde", copies=3)
    leader = cluster.leader.me.node
    late, *others = sorted(set("abcde") - {leader})
    place = {name: "abcde".index(name) for name in "abcde"}
    cluster.crash(late)
    with orders(tuple(place[name] for name in (late, *others, leader))):
        fill(cluster, 2)
        settled_bare(cluster)
        assert [0, 1] == bare(cluster.leader)
        for silent in others[:2]:
            cluster.isolate(silent)
        cluster.restart(late)
        cluster.run_for(10_000)

    assert cluster.leader.me.node == leader
    assert [0, 1] == held(cluster.nodes[late])
