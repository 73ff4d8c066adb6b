"""Traces of acknowledgements and removals.  The owners are n1, n2, n3, and n4 and n5 coordinate."""

from __future__ import annotations

from ..story import Story
from .trace import Trace


def dominated_write(story: Story) -> None:
    """A clock that is slow, within the bound, writes after a delete that was acknowledged (D60)."""
    bound = story.world.options.skew_ms // 2
    story.node("n5").skew_ms, story.node("n4").skew_ms = bound, -bound
    story.unset("n5", "n1", "n2", "n3")
    story.set("n4", "n1", "n2", "n3")
    story.get("n5", "n1", "n2")


def remove_that_finds_it_dead(story: Story) -> None:
    """The first remove reached one owner; the second one finds the element dead there (D57)."""
    story.add("n5", "n1", "n2", "n3")
    story.world.options.clients.timeout_ms = 400
    story.reach_later("n5", ("n1", "n2"), ("n1",))
    story.remove("n4", "n1", "n2")
    story.look("n5", "n2", "n3")


def two_removals(story: Story) -> None:
    """Two coordinators remove one dot at a time, and each reaches other owners (D56)."""
    story.world.options.clients.timeout_ms = 400
    story.add("n5", "n1", "n2", "n3")
    story.reach_later("n5", ("n1", "n2"), ("n1",))
    story.only("n1")
    story.remove("n4", "n2", "n3")
    story.mend()


def dot_of_an_old_life(story: Story) -> None:
    """A node starts again and adds what it has added and removed before (D53)."""
    for _ in range(3):
        story.add("n1", "n2", "n3")
        story.remove("n1", "n2", "n3")
    story.restart("n1")
    story.add("n1", "n2", "n3")
    story.look("n5", "n2", "n3")


def forgotten_acknowledgement(story: Story) -> None:
    """A disk from before an acknowledged write is started."""
    image = story.node("n3").image()
    story.set("n5", "n1", "n3")
    story.age("n3")
    story.old_disk("n3", image)
    story.get("n5", "n2", "n3")


TRACES = (
    Trace("dominated write", dominated_write),
    Trace("remove that finds it dead", remove_that_finds_it_dead),
    Trace("two removals", two_removals),
    Trace("dot of an old life", dot_of_an_old_life),
    Trace("forgotten acknowledgement", forgotten_acknowledgement),
)
