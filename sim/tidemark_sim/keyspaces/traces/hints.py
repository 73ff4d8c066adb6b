"""Traces of hints: a sloppy write that was acknowledged is lost when a rule of hints is left out (D69, D73).

The owners are n1, n2, n3, and n4 and n5 keep hints.
"""

from __future__ import annotations

from ..story import Story
from .trace import Trace


def one_owner_for_two_hints(story: Story) -> None:
    """Two nodes deliver their hints to the same one owner, whose disk is lost then (D73)."""
    story.only("n4", "n5")
    story.set("n5", "n4")
    story.only("n5", "n4", "n1")
    story.only("n4", "n5", "n1")
    story.run(1_500)
    story.lose("n1")
    story.mend()


def floor_over_hints(story: Story) -> None:
    """The floor of a range rises while nodes hold hints that the owners would refuse then (D69)."""
    story.only("n4", "n5")
    story.set("n5", "n4")
    story.only("n5", "n4")
    story.raise_floor(tries=10)
    story.mend()


def hint_of_an_owner(story: Story) -> None:
    """A node keeps a hint, becomes an owner, and the floor rises before it replays it (D69)."""
    story.only("n4", "n3")
    story.set("n3", "n4")
    story.run(1_100)
    story.lose("n3")
    story.mend()
    story.push("n3")
    story.move("n1", "n3", "n4")
    story.copies("n1", "n3", "n4")
    story.finish(*story.world.nodes)
    story.raise_floor(tries=3)


TRACES = (
    Trace("one owner for two hints", one_owner_for_two_hints, sloppy=True),
    Trace("floor over hints", floor_over_hints, sloppy=True),
    Trace("hint of an owner", hint_of_an_owner, sloppy=True, replay_pause_ms=1_000),
)
