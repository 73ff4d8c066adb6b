"""Rollbacks and elections (rules L5, L6, L8, L12, L13): whatever a leader was about to decide, there is one outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import PeerUp
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.settings import Rollback
from tidemark_core.replication.messages import Append, AppendAck, BecomeLeader, Fate, Operation, Outcome

from tests.core.support import (
    OPERATOR,
    OTHER_PRODUCER,
    PRODUCER,
    A,
    B,
    C,
    Cluster,
    Node,
    Rule,
    ack,
    batch,
    fence,
    lead,
    serving,
    vetted,
    visible,
)

QUORUM, LOCAL, COMMIT = Durability.QUORUM, Durability.LOCAL, Durability.COMMIT
MakeCluster = Callable[..., Cluster]
TIMEOUT_MS = 100


@pytest.fixture
def asked_all(cluster: Cluster) -> Cluster:
    """Three members led by a; every member is the quorum, and 100 ms is all it gets."""
    assert "a" == cluster.leader.me.node
    cluster.configure(quorum="N", timeout_ms=TIMEOUT_MS)
    return cluster


def kinds(cluster: Cluster, name: str) -> list[Kind]:
    return [entry.kind for entry in cluster.log_of(name)]


def holds(cluster: Cluster, name: str, kind: Kind) -> bool:
    return kind in kinds(cluster, name)


def reason(answer: object) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


def whole_again(cluster: Cluster) -> None:
    """Every node lives, every link is made anew; a last append tells everybody what is confirmed."""
    for name, node in cluster.nodes.items():
        if not node.alive:
            cluster.restart(name)
    heal(cluster)
    cluster.run_for(500)
    cluster.settle()
    cluster.configure(quorum="", timeout_ms=5_000)
    cluster.appended(batch(0, producer=b"whole-%010d" % cluster.now_ms))
    cluster.settle()


def heal(cluster: Cluster) -> None:
    """Every link between those that live is made anew, and the failure detector sees them."""
    cluster.rules.clear()
    for node in cluster.nodes.values():
        if node.alive:
            cluster._tell_peers(node, PeerUp(node.me))
            cluster._tell_operators(NodeUp(node.me, node.boot))


def shown(cluster: Cluster) -> list[Entry]:
    """Return what readers see, the same wherever they look."""
    members = [member.node for member in cluster.record.ensemble]
    views = [visible(cluster.log_of(name), cluster.nodes[name].replica.confirmed) for name in members]
    assert all(view == views[0] for view in views), "members show different things"
    return [entry for entry in views[0] if not entry.producer.startswith(b"whole-")]


def fate_everywhere(cluster: Cluster, sequence: int = 0) -> Fate:
    """Return the fate of a batch of PRODUCER as every member tells it when it leads."""
    fates = []
    for member in cluster.record.ensemble:
        if member != cluster.record.leader:
            cluster.transfer(member.node)
            cluster.settle()
        answer = cluster.answer(cluster.outcome(sequence))
        assert isinstance(answer, Outcome)
        fates.append(answer.fate)
    assert 1 == len(set(fates)), fates
    seen = [entry for entry in shown(cluster) if (entry.producer, entry.sequence) == (PRODUCER, sequence)]
    assert (fates[0] is Fate.CONFIRMED) == bool(seen), "and what readers see says the same"
    return fates[0]


def on_a_and_b(cluster: Cluster) -> tuple[int, list[Rule]]:
    """Append one batch that c does not get: committed, not confirmed.  Return the request and the rules."""
    rules = [cluster.rule("drop", Append, to="c")]
    request = cluster.append(batch(0))
    assert cluster.run_until(lambda: cluster.nodes["a"].replica.commit == 1)
    cluster.run_for(5)
    assert 0 == cluster.nodes["a"].replica.confirmed
    return request, rules


def lost(cluster: Cluster, *names: str) -> None:
    """The power of nodes is cut; the others elect, with nothing in their way, before those come back."""
    for name in names or "a":
        cluster.crash(name)
    cluster.rules.clear()
    cluster.run_for(300)
    assert cluster.leader.me.node not in (names or "a")


def rollback_appended(cluster: Cluster) -> bool:
    return cluster.nodes["a"].traces["rollback_appended"] > 0


# --- the leader is lost around its ROLLBACK -----------------------------------------------------------------------


def test_l5_l8_lost_before_the_rollback_is_durable_the_entry_is_confirmed(asked_all: Cluster) -> None:
    """The record was written to nobody's disk: the next leader holds the entry, and its EPOCH_START confirms it."""
    cluster = asked_all
    request, _ = on_a_and_b(cluster)
    cluster.rule("drop", Append, to="b")
    assert cluster.run_until(lambda: rollback_appended(cluster))
    lost(cluster)
    assert Reason.QUORUM_TIMEOUT is reason(cluster.answer(request))
    assert not holds(cluster, "a", Kind.ROLLBACK)
    whole_again(cluster)

    assert Fate.CONFIRMED is fate_everywhere(cluster)


def test_l5_l8_lost_with_the_rollback_on_the_leader_s_disk_alone_the_entry_is_confirmed(asked_all: Cluster) -> None:
    """The old leader's record is cut away: its id is in no later log."""
    cluster = asked_all
    request, _ = on_a_and_b(cluster)
    cluster.rule("drop", Append, to="b")
    assert cluster.run_until(lambda: holds(cluster, "a", Kind.ROLLBACK))
    again = cluster.append(batch(0))
    cluster.run_for(TIMEOUT_MS)
    lost(cluster)
    assert [Reason.QUORUM_TIMEOUT] * 2 == [reason(cluster.answer(request)), reason(cluster.answer(again))]
    whole_again(cluster)

    assert Fate.CONFIRMED is fate_everywhere(cluster)
    assert not holds(cluster, "a", Kind.ROLLBACK)


@pytest.mark.parametrize("found", [True, False], ids=["its holder is heard", "its holder is not heard"])
def test_l5_l6_lost_with_the_rollback_on_a_minority_whoever_leads_next_decides(
    make_cluster: MakeCluster, found: bool
) -> None:
    """The entry is on four of five, the record on a and b.  With b it is inherited, without it it never was."""
    cluster = make_cluster("abcde")
    cluster.configure(quorum="N", timeout_ms=TIMEOUT_MS)
    cluster.rule("drop", Append, to="e")
    request = cluster.append(batch(0))
    cluster.run_for(10)
    for name in "cd":
        cluster.rule("drop", Append, to=name)
    assert cluster.run_until(lambda: holds(cluster, "b", Kind.ROLLBACK))
    lost(cluster, *("a" if found else "ab"))
    assert ("b" if found else "c") == cluster.leader.me.node
    whole_again(cluster)

    assert Reason.QUORUM_TIMEOUT is reason(cluster.answer(request))
    assert (Fate.ROLLED_BACK if found else Fate.CONFIRMED) is fate_everywhere(cluster)
    assert found == holds(cluster, "c", Kind.ROLLBACK)


def test_l6_l8_lost_with_the_rollback_committed_and_not_known_it_is_definite(asked_all: Cluster) -> None:
    cluster = asked_all
    request, _ = on_a_and_b(cluster)
    cluster.rule("drop", AppendAck, sender="b")
    assert cluster.run_until(lambda: holds(cluster, "a", Kind.ROLLBACK) and holds(cluster, "b", Kind.ROLLBACK))
    again = cluster.append(batch(0))
    lost(cluster)
    assert (Reason.QUORUM_TIMEOUT, None) == (reason(cluster.answer(request)), cluster.answer(again))
    whole_again(cluster)

    assert Fate.ROLLED_BACK is fate_everywhere(cluster)


def test_l8_lost_with_the_rollback_told_it_stays_told(asked_all: Cluster) -> None:
    """ROLLED_BACK was told: c, which holds the entry and not the record, cannot win without one who holds it."""
    cluster = asked_all
    cluster.rule("drop", AppendAck, sender="c")
    request = cluster.append(batch(0))
    cluster.run_for(50)
    cluster.rule("drop", Append, to="c")
    again = cluster.append(batch(0))
    assert cluster.run_until(lambda: cluster.answer(again) is not None)
    assert [Reason.QUORUM_TIMEOUT, Reason.ROLLED_BACK] == [
        reason(cluster.answer(request)), reason(cluster.answer(again))
    ]
    assert holds(cluster, "c", Kind.DATA) and not holds(cluster, "c", Kind.ROLLBACK)
    lost(cluster)
    assert "b" == cluster.leader.me.node
    whole_again(cluster)

    assert Fate.ROLLED_BACK is fate_everywhere(cluster)
    assert [] == shown(cluster)


def test_l20_lost_with_the_entry_on_its_disk_alone_the_sequence_is_free_again(asked_all: Cluster) -> None:
    """Neither entry nor record is in the next leader's log: not found, and the same sequence is appended anew."""
    cluster = asked_all
    cluster.rule("drop", Append, to="b")
    cluster.rule("drop", Append, to="c")
    request = cluster.append(batch(0))
    assert cluster.run_until(lambda: holds(cluster, "a", Kind.ROLLBACK))
    lost(cluster)
    assert Outcome(Fate.NOT_FOUND, 2, -1, 0) == cluster.answer(cluster.outcome(0))
    place = cluster.append(batch(0))
    cluster.configure(quorum="")
    assert cluster.run_until(lambda: cluster.answer(place) is not None)
    whole_again(cluster)

    assert Reason.QUORUM_TIMEOUT is reason(cluster.answer(request))
    assert Fate.CONFIRMED is fate_everywhere(cluster)
    assert 2 == cluster.answer(place).epoch


def test_l8_immediate_contradicts_itself_when_the_leader_is_lost_and_definite_does_not(
    make_cluster: MakeCluster
) -> None:
    """The documented price of `rollback: Immediate`: the caller was told ROLLED_BACK, the next leader confirms."""
    for rollback in (Rollback.DEFINITE, Rollback.IMMEDIATE):
        cluster = make_cluster()
        cluster.configure(quorum="N", timeout_ms=TIMEOUT_MS, rollback=rollback)
        on_a_and_b(cluster)
        cluster.run_for(50)
        again = cluster.append(batch(0))
        cluster.rule("drop", Append, to="b")
        assert cluster.run_until(lambda cluster=cluster: holds(cluster, "a", Kind.ROLLBACK))  # type: ignore[misc]
        told = cluster.answer(again)
        lost(cluster)
        whole_again(cluster)
        if rollback is Rollback.DEFINITE:
            assert told is None
            assert Fate.CONFIRMED is fate_everywhere(cluster)
        else:
            assert Reason.ROLLED_BACK is reason(told)
            with pytest.raises(AssertionError, match="L8: told CONFIRMED and ROLLED_BACK"):
                cluster.outcome(0)
            cluster.rolled_back.clear()


# --- old leaders --------------------------------------------------------------------------------------------------


def cut_off(cluster: Cluster) -> list[Rule]:
    """Cut the leader off while it believes that it leads, and let the others elect."""
    rules = cluster.isolate("a")
    cluster.operator.step(NodeDown("a"))
    assert cluster.run_until(lambda: cluster.record.leader not in (None, cluster.nodes["a"].me))
    return rules


def test_issue_5295_an_obsolete_leader_decides_nothing_next_to_a_new_one(asked_all: Cluster) -> None:
    """Tarantool #5295: an old owner finalised the queue in the presence of a new one."""
    cluster = asked_all
    request, _ = on_a_and_b(cluster)
    cut_off(cluster)
    again = cluster.append(batch(0), to="a")
    assert cluster.run_until(lambda: holds(cluster, "a", Kind.ROLLBACK))
    cluster.run_for(300)
    assert Reason.QUORUM_TIMEOUT is reason(cluster.answer(request)) is reason(cluster.answer(again))
    assert cluster.nodes["a"].leads and 0 == cluster.nodes["a"].replica.confirmed
    whole_again(cluster)

    assert Fate.CONFIRMED is fate_everywhere(cluster)
    assert not holds(cluster, "a", Kind.ROLLBACK)


def test_issue_5445_what_was_rolled_back_does_not_reappear_from_an_old_instance(asked_all: Cluster) -> None:
    """Tarantool #5445: a returning node brought rolled-back transactions back.

    c was away with the entry and without its rollback; a died, and returns with the entry on its disk too.
    """
    cluster = asked_all
    cluster.rule("drop", AppendAck, sender="c")
    cluster.append(batch(0))
    cluster.run_for(50)
    cluster.crash("c")
    again = cluster.append(batch(0))
    assert cluster.run_until(lambda: cluster.answer(again) is not None)
    assert Reason.ROLLED_BACK is reason(cluster.answer(again))
    cluster.crash("a")
    cluster.run_for(300)
    cluster.restart("c")
    cluster.run_for(300)
    whole_again(cluster)

    assert Fate.ROLLED_BACK is fate_everywhere(cluster)
    assert [] == shown(cluster)
    for name in "abc":
        assert [(1, 1)] == cluster.nodes[name].holes(0, 2)


def test_issue_7286_leadership_that_goes_and_comes_back_is_no_divergence(asked_all: Cluster) -> None:
    """Tarantool #7286: after DEMOTE a node saw a split brain in its own old records."""
    cluster = asked_all
    _, rules = on_a_and_b(cluster)
    assert cluster.run_until(lambda: cluster.nodes["a"].replica.confirmed == 2)
    cluster.lift(rules[0])
    for sequence, to in enumerate("bacab", 1):
        cluster.append(batch(sequence), resume_after=2)
        cluster.run_for(50)
        cluster.transfer(to)
        cluster.settle()
    whole_again(cluster)

    assert 0 == sum(node.traces["truncate_below_commit_refused"] for node in cluster.nodes.values())
    assert [1, 2, 3, 4, 5] == [entry.sequence for entry in shown(cluster)]
    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")


def test_issue_12272_an_election_waits_for_no_entry_that_was_never_written(asked_all: Cluster) -> None:
    """Tarantool #12272: PROMOTE waited for entries that their owner never wrote.

    The old leader's entry was on its way to its disk and to the others; whoever asks the next leader gets an answer.
    """
    cluster = asked_all
    held = cluster.rule("hold", Append, sender="a")
    request = cluster.append(batch(0))
    cluster.crash("a")
    assert cluster.run_until(lambda: cluster.record.leader not in (None, cluster.nodes["a"].me), 1_000)
    cluster.lift(held)
    cluster.run_for(50)

    assert cluster.answer(request) is None, "the connection broke with the node"
    assert Fate.NOT_FOUND is cluster.answer(cluster.outcome(0, wait=True)).fate
    whole_again(cluster)
    assert [] == shown(cluster)


def test_l6_issue_12272_who_waits_for_an_inherited_entry_is_told_at_the_latest_at_the_deadline(node: Node) -> None:
    """The EPOCH_START of the new leader never commits: UNKNOWN, and nobody hangs."""
    serving(node)
    node.append(1, batch(0))
    node.complete()
    node.restart()
    lead(node, 2)
    node.append(2, batch(0))
    node.outcome(3, 0, wait=True)
    node.time_out()

    assert Reason.QUORUM_TIMEOUT is reason(node.answer(2))
    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == node.answer(3)
    assert [] == node.leader.outcomes.limbo.everybody()


@pytest.mark.parametrize("covered", [False, True], ids=["pending", "rolled back"])
def test_issue_13066_acknowledgements_during_an_election_move_no_watermark_back(node: Node, covered: bool) -> None:
    """Tarantool #13066: an ack that arrived while PROMOTE was written moved the confirmed position backwards."""
    serving(node, quorum="N")
    for sequence in range(4):
        node.append(sequence, batch(sequence))
    node.complete()
    ack(node, B)
    ack(node, C, 2)
    assert (4, 2) == (node.replica.commit, node.replica.confirmed)
    if covered:
        node.time_out()
    head = node.replica.log.head
    fence(node, 2)
    node.complete()
    followers = ((B, EntryId(1, 4)), (C, EntryId(1, 2)))
    node.receive(OPERATOR, BecomeLeader(2, 20, (A, B, C), followers))
    vetted(node)
    for sender, upto in ((B, 4), (C, 2), (B, 0), (C, 4)):
        for epoch in (1, 2):
            node.receive(sender, AppendAck(epoch, upto, 0))
            assert (4, 2) == (node.replica.commit, node.replica.confirmed)
    assert (head.offset + 1, 2) == (node.leader.head, node.read_grant(9).released)
    node.complete()
    ack(node, B)

    assert head.offset + 1 == node.replica.confirmed
    assert ([(3, 4)] if covered else []) == node.holes()


# --- new leaders ---------------------------------------------------------------------------------------------------


def test_l12_a_new_leader_serves_what_it_knew_to_be_confirmed_until_its_epoch_start_commits(
    asked_all: Cluster
) -> None:
    cluster = asked_all
    first = cluster.append(batch(0))
    assert cluster.run_until(lambda: cluster.answer(first) is not None)
    cluster.run_for(50)
    known = cluster.nodes["b"].replica.confirmed
    assert known >= 1
    cluster.rule("drop", Append, to="c")
    cluster.append(batch(1))
    cluster.run_for(10)
    cluster.crash("a")
    assert cluster.run_until(lambda: cluster.nodes["b"].leads and cluster.nodes["b"].leader.active)
    cluster.run_for(20)
    latest = cluster.latest("b")
    assert (known, cluster.nodes["b"].leader.epoch_first) == (cluster.read_grant("b").released, latest.offset)
    assert latest.offset > known
    cluster.rules.clear()
    cluster.run_for(1_000)

    assert cluster.read_grant("b").released >= latest.offset
    whole_again(cluster)
    assert [0, 1] == [entry.sequence for entry in shown(cluster)]


def test_l6_a_new_leader_keeps_an_inherited_rollback_and_takes_up_no_rollback_of_the_rest(asked_all: Cluster) -> None:
    """[x] R [y]: R is definite with the EPOCH_START, y is confirmed by it, its quorum of the old epoch not asked."""
    cluster = asked_all
    on_a_and_b(cluster)
    cluster.rule("drop", AppendAck, sender="b")
    assert cluster.run_until(lambda: holds(cluster, "b", Kind.ROLLBACK))
    later = cluster.append(batch(0, producer=OTHER_PRODUCER))
    cluster.run_for(5)
    lost(cluster)
    cluster.run_for(1_000)

    log = cluster.log_of("b")
    assert [Kind.EPOCH_START, Kind.DATA, Kind.ROLLBACK, Kind.DATA, Kind.EPOCH_START] == [e.kind for e in log][:5]
    assert 4 <= cluster.nodes["b"].replica.confirmed
    assert cluster.answer(later) is None
    whole_again(cluster)
    assert [OTHER_PRODUCER] == [entry.producer for entry in shown(cluster)]
    assert Fate.ROLLED_BACK is fate_everywhere(cluster)


def test_l14_l15_an_acknowledged_local_append_may_vanish_by_failover_and_only_so(asked_all: Cluster) -> None:
    """L21: the client sees it as a gap, or as nothing remembered, and sends again."""
    cluster = asked_all
    cluster.rule("drop", Append, sender="a")
    request = cluster.append(batch(0, durability=LOCAL))
    cluster.run_for(10)
    assert LOCAL == cluster.answer(request).durability
    cluster.run_for(10 * TIMEOUT_MS)
    assert not rollback_appended(cluster)
    lost(cluster)
    gap = cluster.append(batch(1, durability=LOCAL))
    assert (Reason.PRODUCER_UNKNOWN, 0) == (reason(cluster.answer(gap)), cluster.answer(gap).expected)
    cluster.append(batch(0))
    whole_again(cluster)

    assert Fate.CONFIRMED is fate_everywhere(cluster)


# --- restarts, snapshots, trims ---------------------------------------------------------------------------------------


def rolled_back_and_on(cluster: Cluster, sequences: int = 3) -> None:
    """Sequence 0 is rolled back at 2; those after it are confirmed."""
    _, rules = on_a_and_b(cluster)
    assert cluster.run_until(lambda: cluster.nodes["a"].replica.confirmed == 2)
    cluster.lift(rules[0])
    cluster.configure(timeout_ms=5_000)
    for sequence in range(1, sequences + 1):
        request = cluster.append(batch(sequence, count=1500), resume_after=2)
        assert cluster.run_until(lambda request=request: cluster.answer(request) is not None)  # type: ignore[misc]
    cluster.run_for(100)


@pytest.mark.parametrize("together", [True, False], ids=["all at once", "one by one"])
def test_l13_after_restarts_what_was_rolled_back_stays_so(asked_all: Cluster, together: bool) -> None:
    cluster = asked_all
    rolled_back_and_on(cluster)
    before = {name: cluster.nodes[name].replica.confirmed for name in "abc"}
    for name in "abc":
        cluster.crash(name)
        if not together:
            cluster.restart(name)
            cluster.run_for(500)
    for name in "abc":
        if not cluster.nodes[name].alive:
            cluster.restart(name)
            assert 0 <= cluster.nodes[name].replica.confirmed <= before[name]
            assert [(1, 1)] == cluster.nodes[name].holes(0, 2)
    whole_again(cluster)

    assert [1, 2, 3] == [entry.sequence for entry in shown(cluster)]
    assert Fate.ROLLED_BACK is fate_everywhere(cluster)


@pytest.mark.parametrize("undecided", [False, True], ids=["committed", "uncommitted too"])
def test_issue_5167_l18_a_new_member_seeded_by_a_snapshot_shows_no_rolled_back_data_and_knows_its_fate(
    make_cluster: MakeCluster, undecided: bool
) -> None:
    cluster = make_cluster("abcd", ensemble="abc", limits=Limits(checkpoint_entries=4))
    cluster.configure(quorum="N", timeout_ms=TIMEOUT_MS)
    rolled_back_and_on(cluster)
    cluster.leader.trim(cluster.request(), 1 << 40)
    cluster.run_for(50)
    assert cluster.leader.replica.log.first > 2, "the rolled-back entry itself is gone"
    if undecided:
        cluster.configure(timeout_ms=TIMEOUT_MS)
        cluster.rule("drop", Append, to="b")
        cluster.rule("drop", Append, to="c")
        cluster.append(batch(4), resume_after=2)
        assert cluster.run_until(lambda: cluster.nodes["a"].traces["rollback_appended"] == 2)
    cluster.change(Operation.SWAP, "c", "d")
    cluster.run_for(500)
    cluster.rules.clear()
    whole_again(cluster)
    cluster.transfer("d")
    cluster.settle()

    assert "d" == cluster.leader.me.node
    answer = cluster.answer(cluster.outcome(0))
    assert (Fate.ROLLED_BACK, 2) == (answer.fate, answer.rolled_back_at)
    if undecided:
        fourth = cluster.answer(cluster.outcome(4))
        assert Fate.ROLLED_BACK is fourth.fate
        assert [(fourth.base, fourth.base)] == cluster.leader.holes(3)
        for name in "abd":
            assert [(fourth.base, fourth.base)] == cluster.nodes[name].holes(3)


def test_l4_l19_a_swap_while_an_append_waits_ends_the_wait_with_the_new_ensemble(make_cluster: MakeCluster) -> None:
    """c is dead, and every member is asked for: with d in its place the quorum is there before the deadline."""
    cluster = make_cluster("abcd", ensemble="abc")
    cluster.configure(quorum="N", timeout_ms=3_000)
    cluster.crash("c")
    request = cluster.append(batch(0))
    cluster.run_for(200)
    assert (1, 0) == (cluster.leader.replica.commit, cluster.leader.replica.confirmed)
    cluster.change(Operation.SWAP, "c", "d")
    assert cluster.run_until(lambda: cluster.answer(request) is not None, 2_500)

    assert cluster.answer(request).durability == QUORUM
    assert 0 == cluster.leader.traces["quorum_timeout"]
    cluster.restart("c")
    cluster.settle()
    cluster.run_for(50)   # the news of what is confirmed travels behind the decision
    assert [0] == [entry.sequence for entry in shown(cluster)]


# --- all together ---------------------------------------------------------------------------------------------------


class Writer:
    """An ordered producer as a client is: repeats what is unknown, goes on behind what it was told (L22)."""

    def __init__(self, cluster: Cluster, producer: bytes) -> None:
        self.cluster = cluster
        self.producer = producer
        self.sequence = 0
        self.resume_after = -1
        self.request: int | None = None
        self.order: list[int] = []   # where its confirmed batches lie

    def take_answer(self) -> None:
        answer = self.cluster.answer(self.request) if self.request is not None else None
        if answer is None:
            return
        self.request = None
        if not isinstance(answer, Refused):
            if answer.durability == QUORUM:
                self.order.append(answer.base)
            self.sequence += 1
            return
        match answer.reason:
            case Reason.ROLLED_BACK:
                self.resume_after = max(self.resume_after, answer.expected)
                self.sequence += 1
            case Reason.PRODUCER_ROLLED_BACK:
                self.resume_after = answer.expected
            case Reason.SEQUENCE_GAP | Reason.PRODUCER_UNKNOWN:
                self.sequence = answer.expected   # L21: a LOCAL acknowledgement was lost
            case _:
                pass

    def connection_lost(self) -> None:
        """Whatever was asked may never be answered: ask again, under the same sequence."""
        self.take_answer()
        self.request = None

    def go_on(self, level: Durability) -> None:
        """Send the batch that is next, or again."""
        self.take_answer()
        if self.request is not None:
            return
        self.request = self.cluster.append(
            batch(self.sequence, producer=self.producer, durability=level), resume_after=self.resume_after
        )


LEVELS = st.sampled_from([QUORUM, QUORUM, LOCAL, COMMIT])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), LEVELS, st.integers(0, 3)),
        st.tuples(st.just("append"), LEVELS, st.integers(0, 3)),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([1, 2, 5, 25, 70])),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([1, 2, 5, 25, 70])),
        st.tuples(st.just("deaf"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("heal"), st.none(), st.just(0)),
        st.tuples(st.just("lose the leader"), st.booleans(), st.sampled_from([0, 1, 2, 40])),
        st.tuples(st.just("restart"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("quorum"), st.sampled_from(["", "N"]), st.just(0)),
    ),
    min_size=12, max_size=50,
)


@given(EVENTS)
@settings(max_examples=150)
def test_l5_l8_l19_no_story_tells_two_outcomes_of_one_entry(
    story: list[tuple[str, str | bool | Durability | None, int]]
) -> None:
    """Four writers at all levels, deadlines shorter than elections; in the end every outcome is what readers see.

    `Cluster` compares all answers to one another, and what every node shows with rule L5, as they come.
    """
    cluster = Cluster("abc", settings={"retry_ms": 50})
    cluster.start_operator()
    cluster.settle()
    cluster.configure(quorum="N", timeout_ms=30)
    cluster.rule("drop", Append, to="c")
    writers = [Writer(cluster, b"writer-%09d" % number) for number in range(4)]
    for what, how, number in story:
        leader = cluster.leader.me.node if cluster.record.leader is not None else None
        match what, how:
            case "append", Durability():
                if leader is not None and cluster.leader.alive:
                    writers[number].go_on(how)
            case "wait", _:
                cluster.run_for(number)
            case "deaf", str(name):
                cluster.rule("drop", Append, to=name)
            case "heal", _:
                heal(cluster)
            case "lose the leader", bool(crashes):
                cluster.run_for(number)
                if leader is not None and crashes:
                    cluster.crash(leader)
                    for writer in writers:
                        writer.connection_lost()
                elif leader is not None:
                    cluster.isolate(leader)
                    cluster._tell_operators(NodeDown(leader))
            case "restart", str(name):
                cluster.restart(name)
                for writer in writers:
                    writer.connection_lost()
            case "quorum", str(formula):
                cluster.configure(quorum=formula)
        for writer in writers:
            writer.take_answer()
    whole_again(cluster)
    cluster.check()

    assert cluster.log_of("a") == cluster.log_of("b") == cluster.log_of("c")
    seen = {(entry.producer, entry.sequence) for entry in shown(cluster)}
    assert {key for key in cluster.acked if not key[0].startswith(b"whole-")} <= seen
    assert not seen & cluster.rolled_back.keys()
    for writer in writers:
        assert sorted(writer.order) == writer.order, "a writer's batches lie in the order it sent them"
        answers = [cluster.answer(cluster.outcome(s, producer=writer.producer)) for s in range(writer.sequence)]
        for sequence, answer in enumerate(answers):
            if isinstance(answer, Outcome) and answer.fate is not Fate.NOT_FOUND:
                assert (answer.fate is Fate.CONFIRMED) == ((writer.producer, sequence) in seen)
