"""Partial partitions (O43, O44): the operator reaches every node, and nodes do not reach each other.

Three are the cases of the Omni-Paxos paper.  Where a member reaches a majority, the shard takes writes again.
"""

from __future__ import annotations

import pytest
from scenario import Scenario
from tidemark_core.replication.messages import Unheard
from tidemark_core.replication.reach import WAIT_SILENCES_MAX
from tidemark_sim import liveness, partitions
from tidemark_sim.faults import both_ways

SILENCE_MS = 200
BOUND_MS = 10 * SILENCE_MS
FIVE = ["n1", "n2", "n3", "n4", "n5"]


def begin(nodes: int) -> Scenario:
    """Return a world in which n1 leads and everybody follows."""
    story = Scenario(nodes=nodes, replicas=nodes, silence_ms=SILENCE_MS)
    story.wait_led(1)
    appends(story, 1)
    story.wait_settled()
    story.run(2 * SILENCE_MS)
    return story


def appends(story: Scenario, *numbers: int, within_ms: int = BOUND_MS) -> None:
    """Offer a batch; it is acknowledged in time."""
    sequence = story.append(numbers[0])
    story.wait(lambda: story.acknowledged(sequence), f"batch {sequence} is acknowledged", within_ms)


@pytest.mark.parametrize("noticed", [True, False], ids=["links break", "links are silent"])
def test_o43_o44_a_leader_cut_off_from_its_followers_is_replaced(noticed: bool) -> None:
    story = begin(3)
    story.part(partitions.leader_cut_off(FIVE[:3], "n1").cut, noticed)
    sequence = story.append(1)

    story.wait(lambda: story.acknowledged(sequence), "the batch is acknowledged elsewhere", BOUND_MS)

    assert story.leader in ("n2", "n3")
    assert story.record.epoch == 2, "one election was enough"


def test_o44_quorum_loss_the_one_that_reaches_a_majority_leads() -> None:
    story = begin(5)
    story.part(partitions.quorum_loss(FIVE, "n1", "n4").cut)

    appends(story, 1)

    assert story.leader == "n4"


def test_o44_constrained_election_a_member_that_missed_entries_gets_them_first_and_leads() -> None:
    story = begin(5)
    partition = partitions.constrained(FIVE, "n1", "n4")
    story.part(partition.first)
    appends(story, 1)
    assert story.log(4) != story.log(2)
    story.part(partition.cut)

    appends(story, 1)

    assert story.leader == "n4"
    assert story.record.epoch == 3, "the second election is for the one that reaches a majority"


def test_o44_chained_a_leader_that_reaches_a_majority_is_left_alone() -> None:
    story = begin(3)
    story.part(partitions.chained(["n1", "n3", "n2"]).cut)

    for _ in range(20):
        appends(story, 1)
        story.run(SILENCE_MS)

    assert (story.leader, story.record.epoch) == ("n1", 1)


def test_o44_nobody_reaches_a_majority_and_nobody_is_elected_for_nothing() -> None:
    story = begin(3)
    everything = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
    story.part(everything)
    sequence = story.append(1)
    story.run(20 * SILENCE_MS)
    assert (story.leader, story.record.epoch) == ("n1", 1)

    story.join(everything)

    story.wait(lambda: story.acknowledged(sequence), "the batch is acknowledged")


def test_o44_elections_become_rare_where_they_do_not_help() -> None:
    """Links look whole and carry nothing: each election is for a member that reaches no majority either."""
    story = begin(3)
    story.part([("n1", "n2"), ("n1", "n3"), ("n2", "n3")], noticed=False)

    def elections(silences: int) -> int:
        before = story.record.epoch
        for _ in range(silences):
            story.append(int(story.leader[1:] or 1))
            story.run(SILENCE_MS)
        return story.record.epoch - before

    first, second = elections(30), elections(30)

    assert 1 <= second <= first <= 6


def test_o44_links_that_look_whole_count_as_lost_once_they_time_out() -> None:
    """Until then elections are for members that reach no other; the wait that they left behind is the longest."""
    story = begin(5)
    partition = partitions.constrained(FIVE, "n1", "n4")
    story.part(partition.first, noticed=False)
    appends(story, 1)
    story.part(partition.cut, noticed=False)
    sequence = story.append(1)
    story.run(20 * SILENCE_MS)

    story.world.links_timed_out(both_ways(partition.cut))

    patience_ms = (WAIT_SILENCES_MAX * SILENCE_MS) + BOUND_MS
    story.wait(lambda: story.acknowledged(sequence), "the batch is acknowledged", patience_ms)
    assert story.leader == "n4"


def test_o44_promises_nothing_where_the_operator_misses_who_reaches_a_majority() -> None:
    """n4 alone reaches a majority."""
    story = begin(5)
    cut = partitions.quorum_loss(FIVE, "n1", "n4").cut

    assert liveness.reaches_a_majority(story.world, story.shard, cut, "op1")
    assert not liveness.reaches_a_majority(story.world, story.shard, [*cut, ("op1", "n4")], "op1")


def test_o43_an_idle_leader_says_that_its_followers_are_gone() -> None:
    story = begin(3)
    story.part(partitions.leader_cut_off(FIVE[:3], "n1").cut)

    story.wait(lambda: story.leader in ("n2", "n3"), "another is elected though nothing waits", BOUND_MS)


def test_o45_the_operator_knows_which_member_the_leader_does_not_hear() -> None:
    story = begin(3)
    core = story.world.operators["op1"].core
    assert core is not None
    assert core.unheard(story.world.now_ms) == {}

    story.part([("n1", "n3")], noticed=False)
    appends(story, 1)

    story.wait(
        lambda: core.unheard(story.world.now_ms) == {story.shard: (story.member(3),)}, "n3 is not in sync", BOUND_MS)
    story.join([("n1", "n3")])
    story.wait(lambda: core.unheard(story.world.now_ms) == {}, "n3 is in sync again", BOUND_MS)


def test_o43_an_idle_shard_is_not_looked_at() -> None:
    story = begin(3)
    core = story.world.nodes["n1"].core
    assert core is not None
    looks: list[int] = []
    leader = core.log.shards[story.shard].leader
    assert leader is not None
    hearing = leader.hearing

    class Counting:
        def look(self, now_ms: int, silence_ms: int) -> tuple[Unheard | None, bool]:
            looks.append(now_ms)
            return hearing.look(now_ms, silence_ms)

    leader.hearing = Counting()  # type: ignore[assignment]
    story.run(10 * SILENCE_MS)
    assert not looks

    appends(story, 1)
    story.run(10 * SILENCE_MS)

    assert 1 <= len(looks) <= 3
