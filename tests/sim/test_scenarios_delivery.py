"""Readers by single copy delivery whose links are whole while a member says nothing (S14b)."""

from __future__ import annotations

from scenario import Scenario
from tidemark_core.delivery.messages import Reason
from tidemark_core.delivery.reader import ReaderSettings
from tidemark_sim.delivery import Client

SILENT_MS = ReaderSettings().silent_timeout_ms
BATCHES = 12
"""Each has a reading order of its own: some are the silent member's to send."""


def reading(story: Scenario) -> Client:
    """Return a reader with the settings of the product."""
    client = Client(story.world.readings, "r1", story.shard)
    story.world.readings.clients.append(client)
    client.begin(0, ReaderSettings())
    return client


def append(story: Scenario) -> None:
    sequences = [story.append(1) for _ in range(BATCHES)]
    story.wait(lambda: all(map(story.acknowledged, sequences)), "the batches are acknowledged")


def test_s14b_a_reader_asks_the_others_after_a_second_when_a_linked_follower_is_silent() -> None:
    """The leader's link to n2 is silent, and n2 hears of no record; the reader's link to n2 is whole."""
    story = Scenario(order_block_bytes=1)
    story.wait_led(1)
    append(story)
    client = reading(story)
    reader = client.reader
    story.wait(lambda: reader.next >= story.world.checkers.committed_last(story.shard), "the reader is at the end")
    story.part([("n1", "n2")], noticed=False)
    append(story)
    last = story.world.checkers.committed_last(story.shard)

    story.wait(lambda: reader.next > last, "all that is acknowledged is read", SILENT_MS + 100)

    assert reader.known_down == ("n2",)
    assert story.world.trace.counts[f"reader_known_down_{Reason.SILENT}"] == 1
    story.join([("n1", "n2")])
    story.wait_settled()
    append(story)
    story.wait(lambda: not reader.known_down, "n2 is taken back")
    story.finish()
