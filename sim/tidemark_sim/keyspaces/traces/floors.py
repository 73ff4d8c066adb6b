"""Traces of tombstones that go: what was deleted becomes visible again when a rule of floors is left out.

The owners are n1, n2, n3, and n4 and n5 coordinate.
"""

from __future__ import annotations

from tidemark_core.optimistic.coordinating.reading import Repair

from ...trace import Violation
from ..story import Story
from .trace import Trace


def round_without_exchange(story: Story) -> None:
    """An owner misses a delete; the others collect the tombstone (D69)."""
    story.set("n5", "n1", "n2", "n3")
    story.unset("n5", "n1", "n2")
    story.raise_floor()
    story.know(*story.world.nodes)
    story.get("n5", "n1", "n3")


def late_write_behind_an_exchange(story: Story) -> None:
    """An owner that others have pulled from takes a late write below the floor (D69)."""
    story.late("n5", "n2", 3_000)
    story.set("n5", "n2")
    story.in_time()
    story.run(500)
    story.raise_floor(tries=20)
    story.run(3_000)
    story.know(*story.world.nodes)
    story.get("n4", "n2", "n3")
    story.get("n4", "n1", "n3")


def exchange_before_all_have_promised(story: Story) -> None:
    """Two owners pull from the third one, then it takes a late write, and promises (D69)."""
    story.late("n5", "n2", 2_500)
    story.set("n5", "n2")
    story.in_time()
    story.begin_round()
    story.cut("op", "n2")
    story.rounds(20)
    story.run(3_000)
    story.mend("op")
    story.rounds(20)
    story.give_up()
    story.know(*story.world.nodes)
    story.get("n4", "n2", "n3")
    story.get("n4", "n1", "n3")


def disk_older_than_the_floor(story: Story) -> None:
    """A disk from before a delete is started after its tombstone is collected, and is given the floor (D71)."""
    story.set("n5", "n1", "n2", "n3")
    image = story.node("n3").image()
    story.unset("n5", "n1", "n2", "n3")
    story.raise_floor()
    story.know("n1", "n2", "n3", "n4", "n5")
    story.old_disk("n3", image)
    story.push("n3")
    story.settle()
    story.get("n5", "n1", "n3")


def answer_below_the_floor(story: Story) -> None:
    """A disk from before a delete is read before it is given the floor (D72)."""
    story.set("n5", "n1", "n2", "n3")
    image = story.node("n3").image()
    story.unset("n5", "n1", "n2", "n3")
    story.raise_floor()
    story.know("n1", "n2", "n3", "n4", "n5")
    story.old_disk("n3", image)
    story.get("n5", "n1", "n3")


def floor_between_a_remove_and_what_it_removes(story: Story) -> None:
    """A clock that is slow removes what one that is fast has added; a late copy of the add comes at last (D57)."""
    bound = story.world.options.skew_ms // 2
    story.node("n5").skew_ms, story.node("n4").skew_ms = bound, -bound
    story.late("n5", "n3", 4_000)
    story.add("n5", "n1", "n2", "n3")
    story.in_time()
    removal = story.remove("n4", "n1", "n2", "n3")
    story.run(500)
    story.raise_floor(removal.stamps[-1].ms, tries=20)
    story.know(*story.world.nodes)
    story.run(4_000)
    story.look("n4", "n1", "n3")


def floors_first(story: Story) -> None:
    """An owner that has not heard of the floor still holds a tombstone that the others have collected (D74)."""
    story.set("n5", "n1", "n2", "n3")
    story.unset("n5", "n1", "n2", "n3")
    story.raise_floor()
    story.know("n2", "n3", "n4", "n5")
    story.run(50)
    if not story.raise_floor():
        raise Violation("story", "a second floor does not rise")


TRACES = (
    Trace("round without exchange", round_without_exchange),
    Trace("late write behind an exchange", late_write_behind_an_exchange),
    Trace("exchange before all have promised", exchange_before_all_have_promised),
    Trace("disk older than the floor", disk_older_than_the_floor, repair=Repair.OFF),
    Trace("answer below the floor", answer_below_the_floor, repair=Repair.OFF),
    Trace("floors first", floors_first),
    Trace("floor between a remove and what it removes", floor_between_a_remove_and_what_it_removes),
)
