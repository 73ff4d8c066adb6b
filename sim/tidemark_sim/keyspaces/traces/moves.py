"""Traces of ranges that move: an acknowledged write that a strict read misses when a rule of a move is left out.

The owners are n1, n2, n3 unless a trace says otherwise, n4 comes, n5 coordinates.
"""

from __future__ import annotations

from tidemark_core.optimistic.ring import Quorum

from ..story import STRING, Story
from .trace import Trace


def joint_write(story: Story) -> None:
    """A pending owner that has copied is not counted: a write that it misses is acknowledged (D64)."""
    story.move("n1", "n2", "n4")
    story.copies("n1", "n2", "n4")
    story.set("n5", "n1", "n3")
    story.finish(*story.world.nodes)
    story.get("n5", "n2", "n4")


def joint_read(story: Story) -> None:
    """Two members know that the move is over; a reader that does not asks the two others (D64)."""
    story.move("n1", "n2", "n4")
    story.copies("n1", "n2", "n4")
    story.finish("n1", "n4")
    story.know("n5")
    story.set("n5", "n1", "n4")
    story.get("n3", "n2")


def barrier(story: Story) -> None:
    """An owner that a read asks alone never heard of the move (D67)."""
    story.cut("op", "n3")
    story.move("n1", "n2", "n4", known=("n1", "n2", "n4", "n5"))
    story.copies("n1", "n2", "n4")
    story.finish("n1", "n2", "n4", "n5")
    story.set("n5", "n1", "n2", "n4")
    story.get("n3")


def fence_write(story: Story) -> None:
    """A write began before the move; one owner took it before, another one when the range was copied (D65)."""
    story.world.options.clients.timeout_ms = 6_000
    story.only("n5", "n3")
    change = story.world.clients.set(story.node("n5"), STRING)
    story.settle()
    story.cut("n3", "n4", "n1", "n2")
    story.move("n1", "n2", "n4", known=("n1", "n2", "n3", "n4"))
    story.copies("n1", "n2", "n4")
    story.only("n5", "n1", "n3")
    story.until(change)
    story.mend("n3")
    story.finish("n1", "n2", "n3", "n4")
    story.mend("n5")
    story.know("n5")
    story.get("n5", "n2", "n4")


def fence_read(story: Story) -> None:
    """A reader that never heard of the move asks a former owner (D65)."""
    story.move("n1", "n2", "n4", known=("n1", "n2", "n3", "n4"))
    story.copies("n1", "n2", "n4")
    story.finish("n1", "n2", "n3", "n4")
    story.set("n4", "n1")
    story.get("n5", "n2", "n3")


def copy_from_one(story: Story) -> None:
    """A newcomer copies from the one owner that misses the write (D66)."""
    story.set("n5", "n2", "n3")
    story.move("n1", "n2", "n4")
    story.copies("n1", "n2", "n4")
    story.finish(*story.world.nodes)
    story.get("n5", "n1", "n4")


def copy_of_newcomers_alone(story: Story) -> None:
    """A range shrinks: no one comes, and the owners that stay miss the write of one that leaves (D66)."""
    story.set("n6", "n1", "n2", "n5")
    story.move("n1", "n2", "n3", "n4", quorum=Quorum(4, 2, 3))
    story.finish(*story.world.nodes)
    story.get("n6", "n3", "n4")


def former_copy(story: Story) -> None:
    """An owner leaves with a value that is deleted while it is away, and comes back (D66)."""
    story.set("n5", "n1", "n2", "n3")
    story.move("n1", "n2", "n4")
    story.copies("n1", "n2", "n4")
    story.finish(*story.world.nodes)
    story.unset("n5", "n1", "n2", "n4")
    story.raise_floor()
    story.know(*story.world.nodes)
    story.move("n1", "n2", "n3")
    story.copies("n1", "n2", "n3")
    story.finish(*story.world.nodes)
    story.get("n5", "n1", "n3")


def mixed_acknowledgements(story: Story) -> None:
    """An owner takes a write, leaves, loses its rows and comes back, while the coordinator hears nothing (D60)."""
    story.world.options.clients.timeout_ms = 6_000
    story.only("n5", "n3")
    change = story.world.clients.set(story.node("n5"), STRING)
    story.settle()
    story.only("n5")
    story.cut("op", "n5")
    others = ("n1", "n2", "n3", "n4")
    story.cut("n3", *others)
    for owners in (("n1", "n2", "n4"), ("n1", "n2", "n3")):
        story.move(*owners, known=others)
        story.copies(*owners)
        story.finish(*others)
        story.mend("n3")
    story.mend("op")
    story.push("n5")
    story.only("n5", "n1")
    story.until(change)
    story.mend("n5")
    story.get("n5", "n2", "n3")


def import_below_the_floor(story: Story) -> None:
    """A value is older than the floor; every owner that comes must take it from one that has it (D62)."""
    story.set("n5", "n1", "n2", "n3")
    story.run(50)
    story.raise_floor()
    story.know(*story.world.nodes)
    for owners in (("n1", "n2", "n4"), ("n1", "n5", "n4"), ("n3", "n5", "n4")):
        story.move(*owners)
        story.copies(*owners)
        story.finish(*story.world.nodes)
    story.get("n2", "n3", "n5", "n4")


def record_of_a_former_owner(story: Story) -> None:
    """A former owner starts again and hears of the record of before; another one never heard of the move (D80)."""
    members = ("n1", "n3", "n4", "n5")
    for source in ("op", *members):
        story.cut(source, "n2")
    story.move("n1", "n4", "n5", known=members)
    story.run(1_000)    # newcomers wait for n2 first
    story.copies("n1", "n4", "n5")
    story.finish(*members)
    story.settle()
    story.node("n3").crash()
    story.node("n3").start()
    story.set("n6", "n2", "n3")
    story.get("n4", "n1", "n5")


TRACES = (
    Trace("joint write", joint_write),
    Trace("joint read", joint_read),
    Trace("barrier", barrier, quorum=Quorum(3, 1, 3)),
    Trace("fence of writes", fence_write),
    Trace("fence of reads", fence_read),
    Trace("copy from one", copy_from_one),
    Trace("copy of newcomers alone", copy_of_newcomers_alone, nodes=6, quorum=Quorum(5, 3, 3)),
    Trace("former copy", former_copy),
    Trace("mixed acknowledgements", mixed_acknowledgements),
    Trace("import below the floor", import_below_the_floor),
    Trace("record of a former owner", record_of_a_former_owner, nodes=6),
)
