"""A batch is appended once, whatever happens between the first try and the repeat (rules L18-L21)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import PeerUp
from tidemark_core.base.entry import Batch, Durability, Kind
from tidemark_core.base.limits import Limits
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Append, Appended, Operation
from tidemark_core.replication.producers import IDLE_MS_MAX

from .support import OTHER_PRODUCER, PRODUCER, A, Cluster, batch

MakeCluster = Callable[..., Cluster]


def place_of(answer: Appended) -> tuple[int, int, int]:
    return answer.epoch, answer.base, answer.count


def copies(cluster: Cluster, what: Batch) -> int:
    """Return how many times a batch is in the leader's log."""
    return sum(
        (entry.producer, entry.sequence) == (what.producer, what.sequence) for entry in cluster.leader.stored()
    )


def new_leader(cluster: Cluster) -> None:
    cluster.transfer(cluster.followers()[0].me.node)
    cluster.settle()


def leader_killed(cluster: Cluster) -> None:
    name = cluster.leader.me.node
    cluster.crash(name)
    cluster.run_for(300)
    cluster.restart(name)
    cluster.settle()


def all_restarted(cluster: Cluster) -> None:
    for name in "abc":
        cluster.crash(name)
    cluster.run_for(50)
    for name in "abc":
        cluster.restart(name)
    cluster.settle()


def trimmed_and_seeded(cluster: Cluster) -> None:
    """Trim, swap the last follower for d, let d lead: its table came with the snapshot's checkpoint."""
    cluster.leader.trim(cluster.request(), 1 << 40)
    cluster.change(Operation.SWAP, cluster.followers()[-1].me.node, "d")
    cluster.settle()
    cluster.transfer("d")
    cluster.settle()


def reconfigured(cluster: Cluster) -> None:
    cluster.change(Operation.EXPAND, None, "d")
    cluster.settle()


def checkpointed(cluster: Cluster) -> None:
    for sequence in range(10):
        cluster.appended(batch(sequence, producer=OTHER_PRODUCER))
    all_restarted(cluster)


EVENTS = [new_leader, leader_killed, all_restarted, trimmed_and_seeded, reconfigured, checkpointed]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_l19_l18_a_repeat_is_answered_with_its_place_and_not_appended_again_after(
    make_cluster: MakeCluster, event: Callable[[Cluster], None]
) -> None:
    cluster = make_cluster("abcd", ensemble="abc", limits=Limits(checkpoint_entries=4))
    batches = [batch(sequence, count=1500) for sequence in range(7)]
    places = [place_of(cluster.appended(what)) for what in batches]
    event(cluster)

    for what, place in list(zip(batches, places, strict=True))[2:]:
        assert place == place_of(cluster.appended(what))
    for what in batches[:2]:
        refused = cluster.answer(cluster.append(what))
        assert isinstance(refused, Refused)
        assert (Reason.SEQUENCE_TOO_OLD, 7) == (refused.reason, refused.expected)
    gap = cluster.answer(cluster.append(batch(8)))
    assert (Reason.SEQUENCE_GAP, 7) == (gap.reason, gap.expected)
    cluster.appended(batch(7))
    cluster.settle()
    assert 1 == copies(cluster, batch(7))


def test_l19_a_repeat_of_a_pending_batch_at_a_new_leader_waits_for_its_commit(cluster: Cluster) -> None:
    """The batch is on a and b when a dies; b leads and is asked again before its EPOCH_START is committed."""
    cut = cluster.rule("drop", Append, to="c")
    first = cluster.append(batch(0))
    cluster.run_for(2)
    cluster.crash("a")
    assert cluster.run_until(lambda: cluster.nodes["b"].leads and cluster.nodes["b"].leader.active)
    again = cluster.append(batch(0), to="b")
    assert cluster.answer(again) is None
    cluster.lift(cut)
    assert cluster.run_until(lambda: cluster.answer(again) is not None)

    assert cluster.answer(first) is None
    answer = cluster.answer(again)
    assert isinstance(answer, Appended) and 1 == answer.epoch
    cluster.restart("a")
    cluster.settle()
    assert 1 == copies(cluster, batch(0))


def test_l20_l18_after_truncation_the_same_sequence_is_appended_anew_and_once(cluster: Cluster) -> None:
    """The first try was cut away, so nothing remembers it: not found means try the same sequence again."""
    cluster.appended(batch(0))
    cut = cluster.isolate("a")
    first = cluster.append(batch(1))
    cluster.operator.step(NodeDown("a"))
    cluster.run_for(200)
    again = cluster.appended(batch(1))
    for rule in cut:
        cluster.lift(rule)
    cluster.operator.step(NodeUp(A, "a-boot1"))
    cluster.settle()
    refused = cluster.answer(first)
    assert isinstance(refused, Refused) and Reason.NOT_LEADER is refused.reason, "the outcome was not known there"
    cluster.transfer("a")
    cluster.settle()

    assert place_of(again) == place_of(cluster.appended(batch(1)))
    assert 1 == copies(cluster, batch(1))


def test_l20_a_try_whose_outcome_nobody_told_is_resolved_by_repeating_it(cluster: Cluster) -> None:
    """The leader dies right after the batch is committed and before it could say so."""
    cluster.append(batch(0))
    assert cluster.run_until(lambda: any(entry.kind is Kind.DATA for entry in cluster.log_of("b")))
    cluster.crash("a")
    cluster.run_for(300)
    answer = cluster.appended(batch(0))
    cluster.restart("a")
    cluster.settle()

    assert 1 == answer.epoch, "answered with the place of the first try"
    assert 1 == copies(cluster, batch(0))


def test_l19_a_repeat_with_another_count_is_refused_by_every_leader(cluster: Cluster) -> None:
    cluster.appended(batch(0, count=3))
    for _ in range(2):
        refused = cluster.answer(cluster.append(batch(0, count=4)))
        assert isinstance(refused, Refused) and Reason.INVALID_BATCH is refused.reason
        new_leader(cluster)
    assert (1, 1, 3) == place_of(cluster.appended(batch(0, count=3)))


def test_l18_a_producer_is_forgotten_after_seven_days_of_logged_time_by_everybody_alike(cluster: Cluster) -> None:
    cluster.appended(batch(0))
    cluster.settle()
    cluster.run_for(IDLE_MS_MAX + 1)
    assert (1, 1, 1) == place_of(cluster.appended(batch(0))), "a quiet log's time stands still"
    cluster.appended(batch(0, producer=OTHER_PRODUCER))
    for _ in range(2):
        gap = cluster.answer(cluster.append(batch(1)))
        assert (Reason.PRODUCER_UNKNOWN, 0) == (gap.reason, gap.expected)
        new_leader(cluster)
    all_restarted(cluster)
    gap = cluster.answer(cluster.append(batch(1)))
    assert (Reason.PRODUCER_UNKNOWN, 0) == (gap.reason, gap.expected)


def test_l14_l19_local_and_quorum_appends_of_one_shard_are_answered_in_log_order(cluster: Cluster) -> None:
    """LOCAL waits behind an older QUORUM batch, and a repeat of it waits no less."""
    cut = [cluster.rule("drop", Append)]
    quorum = cluster.append(batch(0))
    local = cluster.append(batch(0, producer=OTHER_PRODUCER, durability=Durability.LOCAL))
    again = cluster.append(batch(0, producer=OTHER_PRODUCER, durability=Durability.LOCAL))
    cluster.run_for(100)
    assert [None] * 3 == [cluster.answer(request) for request in (quorum, local, again)]
    cluster.lift(cut[0])
    cluster.settle()

    bases = [cluster.answer(request).base for request in (quorum, local, again)]
    assert [1, 2, 2] == bases
    order = [request for request in cluster.answers if request in (quorum, local, again)]
    assert [quorum, local, again] == order


events = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([PRODUCER, OTHER_PRODUCER])),
        st.tuples(st.just("again"), st.sampled_from([PRODUCER, OTHER_PRODUCER])),
        st.tuples(st.just("crash"), st.sampled_from("abc")),
        st.tuples(st.just("restart"), st.sampled_from("abc")),
        st.tuples(st.just("cut"), st.sampled_from("abc")),
        st.tuples(st.just("heal"), st.just("")),
        st.tuples(st.just("wait"), st.integers(1, 60)),
    ),
    max_size=40,
)


@given(events)
@settings(max_examples=60)
def test_l19_l21_no_story_appends_a_batch_twice_or_loses_an_acknowledged_one(
    story: list[tuple[str, bytes | str | int]]
) -> None:
    """A client that repeats until it is answered, and goes on with what a gap says is expected (L21)."""
    cluster = Cluster("abc", settings={"retry_ms": 50})
    cluster.start_operator()
    cluster.settle()
    next_sequence: Counter[bytes] = Counter()
    for what, how in story:
        match what, how:
            case ("append" | "again"), bytes(producer):
                if cluster.record.leader is None or not cluster.leader.alive:
                    continue
                sequence = next_sequence[producer]
                request = cluster.append(batch(sequence, producer=producer))
                answered = cluster.run_until(partial(cluster.answers.__contains__, request), 30)
                if answered and isinstance(cluster.answer(request), Appended) and what == "append":
                    next_sequence[producer] += 1
            case "crash", str(name):
                cluster.crash(name)
            case "restart", str(name):
                cluster.restart(name)
            case "cut", str(name):
                cluster.isolate(name)
                cluster._tell_operators(NodeDown(name))
            case "heal", _:
                heal(cluster)
            case "wait", int(duration):
                cluster.run_for(duration)
    heal(cluster)
    for name in "abc":
        if not cluster.nodes[name].alive:
            cluster.restart(name)
    cluster.run_for(500)
    cluster.settle()
    for producer in (PRODUCER, OTHER_PRODUCER):
        cluster.appended(batch(next_sequence[producer], producer=producer))
    cluster.settle()
    cluster.check()
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")


def heal(cluster: Cluster) -> None:
    """Every link is made anew, and the failure detector sees who is there."""
    cluster.rules.clear()
    for node in cluster.nodes.values():
        if node.alive:
            cluster._tell_peers(node, PeerUp(node.me))
            cluster._tell_operators(NodeUp(node.me, node.boot))
