"""Reports of silence (O43), and the elections that follow from them (O44)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import ClockStepped, PeerDown, PeerUp, Received
from tidemark_core.base.ids import NOTHING, EntryId, Member
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.quorum import has_majority
from tidemark_core.base.refusals import Reason
from tidemark_core.node import NODE
from tidemark_core.replication.ensembles import Ensembles
from tidemark_core.replication.messages import AppendRefused, BecomeLeader, Fenced, Reach, Unheard
from tidemark_core.replication.reach import (
    FRESH_SILENCES,
    STABLE_WAITS,
    WAIT_SILENCES_MAX,
    Patience,
    Reports,
    candidate,
    choose,
)
from tidemark_core.replication.records import ShardRecord, Status

from tests.core.replication.test_coordinator import STEADY, Desk
from tests.core.support import SHARD, A, B, C, D, E, Node, ack, batch, serving

SILENCE_MS = 3_000
FIVE = (A, B, C, D, E)
ALL = {member.node: member for member in FIVE}
Links = set[frozenset[Member]]


def linked(*pairs: tuple[Member, Member]) -> Links:
    return {frozenset(pair) for pair in pairs}


def reports(links: Links, members: tuple[Member, ...] = FIVE, now_ms: int = 0) -> Reports:
    """Return a table in which every member has reported."""
    table = Reports(SILENCE_MS)
    for one in members:
        others = [other for other in members if other != one]
        reached = tuple(other for other in others if frozenset((one, other)) in links)
        table.take(now_ms, one, Reach(reached, tuple(other for other in others if other not in reached)))
    return table


def at(offset: int, epoch: int = 3) -> EntryId:
    return EntryId(epoch, offset)


# --- whom a leader hears --------------------------------------------------------------------------------------


def look(node: Node) -> Reach:
    assert node.core is not None
    return node.core.log.reach(node.now_ms, SILENCE_MS)


def test_o43_a_leader_that_hears_everybody_says_nothing() -> None:
    node = Node(A)
    serving(node)

    assert look(node) == Reach((), ())


def test_o43_a_node_says_whom_it_has_links_with_and_whom_it_lost() -> None:
    node = Node(A)
    node.step(PeerUp(B), PeerUp(C), PeerDown(C))
    assert (look(node).reached, look(node).lost) == ((B,), (C,))

    node.step(PeerUp(C))
    assert (look(node).reached, look(node).lost) == ((B, C), ())


def test_o43_silence_counts_only_while_something_waits() -> None:
    node = Node(A)
    serving(node)
    node.now_ms += 10 * SILENCE_MS
    assert look(node).unheard == ()

    node.append(1, batch(0))
    assert look(node).unheard == ()
    node.now_ms += SILENCE_MS - 1
    assert look(node).unheard == ()
    node.now_ms += 1

    [found] = look(node).unheard
    assert (found.shard, found.epoch, found.members) == (SHARD, 1, (B, C))
    assert found.silent_ms == SILENCE_MS, "a link that stands was silent for all of that time"


@pytest.mark.parametrize("answer", ["ack", "refusal"])
def test_o43_any_answer_ends_the_silence_of_a_member(answer: str) -> None:
    node = Node(A)
    serving(node)
    node.append(1, batch(0))
    look(node)
    node.now_ms += SILENCE_MS - 1
    if answer == "ack":
        ack(node, B, node.leader.head - 1)
    else:
        node.receive(B, AppendRefused(1, 1, NOTHING, Reason.DISK_FULL))
    node.now_ms += 1

    [found] = look(node).unheard

    assert found.silent_ms == 0, "one of two followers makes a majority"
    assert C in found.members


def test_o43_a_broken_link_counts_at_once_and_time_runs_from_then() -> None:
    node = Node(A)
    serving(node)
    node.step(PeerDown(B))
    assert look(node).unheard == (Unheard(SHARD, 1, (B,)),)
    node.step(PeerDown(C))
    [found] = look(node).unheard
    assert (found.members, found.silent_ms) == ((B, C), 1)
    node.now_ms += 500
    assert look(node).unheard[0].silent_ms == 500

    node.step(PeerUp(B))
    node.now_ms += 500

    assert look(node).unheard == (Unheard(SHARD, 1, (C,)),)


def test_o43_a_clock_that_is_set_does_not_make_silence() -> None:
    node = Node(A)
    serving(node)
    node.append(1, batch(0))
    node.step(PeerDown(B))
    look(node)
    node.now_ms += 3_600_000
    node.step(ClockStepped(3_600_000))
    node.now_ms += 10

    [found] = look(node).unheard

    assert (found.members, found.silent_ms) == ((B,), 0)


def test_o43_a_clock_below_zero_counts_silence_as_any_other() -> None:
    """The time of a simulated machine begins at zero, and its clock may be behind (recovery seed 20034)."""
    node = Node(A)
    node.now_ms = -1_000_000_000
    serving(node)
    node.append(1, batch(0))
    ack(node, B, node.leader.head - 1)
    assert look(node).unheard == ()
    node.now_ms += SILENCE_MS

    [found] = look(node).unheard

    assert (found.members, found.silent_ms) == ((B, C), SILENCE_MS)


# --- reports ----------------------------------------------------------------------------------------------------


def test_o43_a_report_counts_while_it_is_fresh_and_for_one_life_of_a_disk() -> None:
    table = reports(linked((A, B)))
    fresh_ms = FRESH_SILENCES * SILENCE_MS
    assert table.reached(fresh_ms, A) == {A, B}
    assert table.reached(fresh_ms + 1, A) is None
    assert table.reached(0, Member(A.node, "another disk")) is None

    table.forget(A.node)

    assert table.reached(0, A) is None


def test_o45_the_version_changes_with_what_is_said_and_not_with_each_report() -> None:
    table = Reports(SILENCE_MS)
    table.take(0, A, Reach((B,), (C,), (Unheard(SHARD, 1, (C,), 100),)))
    version = table.version
    table.take(1_000, A, Reach((B,), (C,), (Unheard(SHARD, 1, (C,), 1_100),)))
    assert table.version == version
    assert [found.members for _, found in table.unheard(1_000)] == [(C,)]

    table.take(2_000, A, Reach((B, C), ()))

    assert table.version > version
    assert list(table.unheard(2_000)) == []


def test_o45_a_cut_names_the_pair_that_was_silent_for_long_though_both_report() -> None:
    table = reports(linked((A, C), (B, C)), (A, B, C))
    table.take(0, C, Reach((A, B), (), (Unheard(SHARD, 1, (B,)),)))
    assert table.cut(SILENCE_MS - 1) == []
    pairs = [(A.node, B.node), (B.node, A.node), (C.node, B.node)]
    assert table.cut(SILENCE_MS) == pairs

    table.take(SILENCE_MS, C, Reach((A, B), ()))
    assert table.cut(SILENCE_MS) == pairs[:2], "C hears B again"

    table.forget(B.node)
    table.take(SILENCE_MS, B, Reach((), (A,)))

    assert table.cut(SILENCE_MS) == [], "a process that has just begun"


# --- the choice -------------------------------------------------------------------------------------------------


def test_o44_the_highest_head_leads_where_nothing_is_known_against_it() -> None:
    ensembles = Ensembles((A, B, C), (A, B, C))
    heads = {A: at(9), B: at(5), C: at(5)}

    assert choose(ensembles, heads, A, Reports(SILENCE_MS), 0) == A
    assert choose(ensembles, heads, A, reports(linked((A, B))), 0) == A
    assert choose(ensembles, heads, A, reports(linked((B, C))), 0) == B


def test_o44_what_a_leader_did_not_hear_counts_against_its_links() -> None:
    ensembles = Ensembles((A, B, C), (A, B, C))
    heads = {A: at(9), B: at(5), C: at(6)}
    table = reports(linked((A, B), (A, C), (B, C)))

    assert choose(ensembles, heads, A, table, 0) == A
    assert choose(ensembles, heads, A, table, 0, {frozenset((A, B)), frozenset((A, C))}) == C


def test_o44_a_member_that_lacks_entries_of_every_majority_it_reaches_gets_them_first() -> None:
    ensembles = Ensembles(FIVE, FIVE)
    table = reports(linked((D, A), (D, B), (D, C), (D, E)))
    heads = {A: at(9), B: at(9), C: at(9), D: at(5), E: at(9)}

    assert choose(ensembles, heads, A, table, 0) == A, "the first of those that can give them"
    assert choose(ensembles, {**heads, B: at(4), C: at(4)}, A, table, 0) == D, "B, C and D are a majority"


member_heads = st.fixed_dictionaries({member: st.integers(0, 4).map(at) for member in FIVE})


@settings(deadline=None)
@given(
    st.sets(st.sampled_from([frozenset((a, b)) for a in FIVE for b in FIVE if a != b])), member_heads,
    st.sets(st.sampled_from(FIVE), min_size=3), st.booleans(),
)
def test_o44_whoever_is_chosen_has_the_highest_head_of_some_majority(
    links: Links, heads: dict[Member, EntryId], answered: set[Member], whole: bool
) -> None:
    heads = {member: head for member, head in heads.items() if member in answered}
    first = max(heads, key=heads.__getitem__)
    table = reports(links if whole else set(), FIVE if whole else (A, B))

    chosen = choose(Ensembles(FIVE, FIVE), heads, first, table, 0)

    assert has_majority(FIVE, [member for member, head in heads.items() if head <= heads[chosen]])


def test_o44_a_candidate_needs_members_that_the_operator_reaches() -> None:
    ensembles = Ensembles((A, B, C), (A, B, C))
    table = reports(linked((B, C)))
    up: dict[str, Member | None] = {A.node: A, B.node: B, C.node: C}

    assert candidate(ensembles, A, up, table, 0) == B
    assert candidate(ensembles, A, {**up, C.node: None}, table, 0) is None
    assert candidate(ensembles, A, up, Reports(SILENCE_MS), 0) is None, "nothing is known"
    assert candidate(ensembles, A, up, reports(set()), 0) is None


def test_o44_members_that_hang_make_no_majority_though_links_with_them_stand() -> None:
    links = linked((B, C), (B, D), (C, D), (A, B))
    table, ensembles = reports(links), Ensembles(FIVE, FIVE)
    now_ms = SILENCE_MS
    for one in (A, B):
        table.take(now_ms, one, Reach(tuple(other for other in FIVE if frozenset((one, other)) in links), ()))
    assert candidate(ensembles, A, ALL, table, now_ms - 1) in (B, C, D)

    assert candidate(ensembles, A, ALL, table, now_ms) is None, "C and D have said nothing for a silence"

    for one in (C, D):
        table.take(now_ms, one, Reach((B,), ()))
    assert candidate(ensembles, A, ALL, table, now_ms) == B


def test_o44_waits_double_until_a_leadership_was_stable() -> None:
    patience, now_ms, waits = Patience(), 0, []
    for _ in range(8):
        assert patience.has_ended(now_ms)
        patience.begin(now_ms, 100)
        began = now_ms
        while not patience.has_ended(now_ms):
            now_ms += 1
        waits.append(now_ms - began)

    assert waits == [100, 200, 400, 800, 1_600, 1_600, 1_600, 1_600]
    assert max(waits) == 100 * WAIT_SILENCES_MAX

    now_ms += STABLE_WAITS * 1_600
    patience.begin(now_ms, 100)

    assert patience.has_ended(now_ms + 100)


# --- the coordinator --------------------------------------------------------------------------------------------


class Told(Desk):
    """A steady shard of A, B and C, led by A, whose nodes have reported."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.load(STEADY)
        self.links = links
        for member in (B, C):
            self.tell(member)

    def tell(self, member: Member, *unheard: Unheard, boot: str = "boot") -> list[object]:
        others = [other for other in (A, B, C) if other != member]
        reached = tuple(other for other in others if frozenset((member, other)) in self.links)
        lost = tuple(other for other in others if other not in reached)
        return self.step(Received(NODE, member, None, Reach(reached, lost, unheard), boot))

    def silent(self, for_ms: int = SILENCE_MS, epoch: int = STEADY.epoch) -> list[ShardRecord]:
        self.tell(A, Unheard(SHARD, epoch, (B, C), for_ms))
        return self.saves()


def test_o44_a_leader_that_reaches_no_majority_is_replaced_by_one_that_does() -> None:
    desk = Told(linked((B, C)))
    assert desk.silent(SILENCE_MS - 1) == []

    [record] = desk.silent()
    assert (record.status, record.epoch) == (Status.ELECTION, STEADY.epoch + 1)
    desk.stored()
    for member, head in ((A, at(9)), (B, at(5)), (C, at(6))):
        desk.hear(member, Fenced(record.epoch, record.election, head))

    [(leader, message)] = desk.sent(BecomeLeader)
    assert leader == C
    assert dict(message.followers) == {A: at(9), B: at(5)}


@pytest.mark.parametrize("why", ["another epoch", "not the leader", "another boot", "nobody better", "a majority"])
def test_o44_nothing_is_elected_without_a_reason(why: str) -> None:
    desk = Told(set() if why == "nobody better" else linked((B, C)))
    found = Unheard(SHARD, STEADY.epoch - (why == "another epoch"), (B, C), 0 if why == "a majority" else SILENCE_MS)

    desk.tell(B if why == "not the leader" else A, found, boot="other" if why == "another boot" else "boot")

    assert desk.saves() == []


def test_o44_a_node_that_went_down_or_started_again_has_said_nothing() -> None:
    for event in (NodeDown(B.node), NodeUp(B, "another boot")):
        desk = Told(linked((B, C)))
        desk.step(event)
        desk.core.reports.forget(C.node)

        assert desk.silent() == []


def test_o44_one_election_in_a_wait() -> None:
    desk = Told(linked((B, C)))
    desk.silent()
    desk.stored()
    record = desk.record
    desk.load(ShardRecord(record.epoch, record.election, Status.STEADY, (A, B, C), A, writer="op/0#9"))
    assert desk.silent(epoch=record.epoch) == []

    desk.now_ms += SILENCE_MS
    for member in (B, C):
        desk.tell(member)

    assert len(desk.silent(epoch=record.epoch)) == 1


def test_o45_the_view_of_the_leader_of_the_record_counts() -> None:
    desk = Told(linked((B, C)))
    assert desk.core.unheard(desk.now_ms) == {}
    desk.tell(B, Unheard(SHARD, STEADY.epoch, (A,)))
    desk.tell(A, Unheard(SHARD, STEADY.epoch - 1, (B, C)))
    assert desk.core.unheard(desk.now_ms) == {}, "B does not lead, and A speaks of another leadership"

    desk.tell(A, Unheard(SHARD, STEADY.epoch, (C,)))

    assert desk.core.unheard(desk.now_ms) == {SHARD: (C,)}
    assert desk.core.unheard(desk.now_ms + FRESH_SILENCES * SILENCE_MS + 1) == {}


def test_o44_the_choice_waits_for_the_member_that_reaches_a_majority() -> None:
    desk = Told(linked((B, C)))
    [record] = desk.silent()
    desk.stored()
    desk.hear(A, Fenced(record.epoch, record.election, at(9)))
    desk.hear(B, Fenced(record.epoch, record.election, at(5)))

    assert desk.sent(BecomeLeader) == []
    assert desk.timers()["grace"] == desk.now_ms + desk.core.settings.retry_ms
