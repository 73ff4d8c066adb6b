"""What the next leader does not know yet, and what its disk no longer has.  All checkers watch."""

from __future__ import annotations

from scenario import Scenario


def test_k15_who_lost_a_payload_is_passed_over_for_one_whose_log_is_as_long() -> None:
    """n2 and n3 hold the same, n2 comes first and cannot hear n3; it refuses, and would for ever."""
    story = Scenario(copies=2)
    story.wait_led(1)
    first = story.append(1)
    story.wait(lambda: story.acknowledged(first), "the first batch is acknowledged")
    story.run(100)
    length = len(story.log(2))
    story.append(1)
    story.wait(lambda: len(story.log(2)) == len(story.log(3)) == length + 1, "n2 and n3 have the second")
    story.crash(1)
    disk = story.world.nodes["n2"].disk
    lost = disk.image(story.shard).entries[-1]
    assert lost.payload and story.log(2) == story.log(3)
    story.cut(2, 3)
    disk.lose_payload((story.shard, lost.base), story.world.now_ms)

    story.wait_led(3)

    assert story.world.trace.counts["core_damage_reported"] == 1, "asked once, not again and again"
    assert lost.id in [entry.id for entry in disk.image(story.shard).entries]
    story.mend(2, 3)
    story.start(1)
    story.finish()
