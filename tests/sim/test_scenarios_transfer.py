"""Transfers of leadership while appends go on (O12, O47): each ends at its target, at the first attempt."""

from __future__ import annotations

from scenario import Scenario
from tidemark_core.base.refusals import Refused
from tidemark_core.replication.records import ChangeDone

STORE_MS = 150
LINK_MS = 120
"""A push takes so long to the target; with one write of the store that is longer than `transfer_ms`."""

ANSWER_MS = 20
"""The target answers its fence so late: behind `grace_ms`, and in front of `retry_ms`."""


def under_appends() -> Scenario:
    """Return a world in which n1 leads and one producer appends all the time."""
    story = Scenario()
    story.wait_led(1)
    story.world.options.clients.think_ms = 2
    story.producer.stopped = False
    story.producer.turn_to("n1")
    story.producer.tick()
    story.wait(lambda: story.producer.answered, "a batch is acknowledged")
    return story


def test_o47_a_transfer_ends_at_its_target_where_the_store_is_slow() -> None:
    story = under_appends()
    world = story.world
    world.network.slow["n1", "n2"] = LINK_MS
    world.metadata._delay = lambda: STORE_MS
    story.wait_settled()

    outcome = story.transfer(2)
    story.wait(lambda: outcome, "the transfer ends")

    assert isinstance(outcome[0], ChangeDone), outcome
    assert story.leader == "n2"
    story.finish()


def test_o47_appends_go_on_at_the_leader_where_no_election_comes() -> None:
    story = under_appends()
    story.wait_settled()
    story.transfer(2)
    story.wait(lambda: story.world.nodes["n1"].core.log.shards[story.shard].leader.transfer, "n1 holds appends")
    story.world.operators["op1"].crash()
    held = set(story.producer.answered)

    story.wait(lambda: len(set(story.producer.answered) - held) > 10, "batches are acknowledged again")

    assert story.leads(1)
    story.finish()


def test_o12_transfers_one_right_behind_the_other_end_at_their_targets() -> None:
    """The grace for one target runs for longer than the election, and says nothing of the next target."""
    story = under_appends()
    for turn in range(12):
        to = (2, 3, 1)[turn % 3]
        for node in (1, 2, 3):
            story.world.network.slow[f"n{node}", "op1"] = ANSWER_MS if node == to else 0
        story.wait_settled()
        outcome = story.transfer(to)
        story.wait(lambda outcome=outcome: outcome, "the transfer ends")

        assert not isinstance(outcome[0], Refused), (turn, outcome)
    story.finish()
