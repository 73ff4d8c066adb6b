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


def test_k4_what_a_deposed_leader_counts_is_there_up_to_its_commit() -> None:
    """n5 alone follows n1, which tells it what is surplus when n5's log was cut back under another leader."""
    story = Scenario(nodes=5, replicas=5, copies=3, drop_ms=1_000)
    story.wait_led(1)
    first = story.append(1)
    story.wait(lambda: story.acknowledged(first), "the first batch is acknowledged")
    story.run(3_000)
    n5 = story.member(5)
    story.part([("n1", "n2"), ("n1", "n3"), ("n1", "n4")], noticed=False)
    length = len(story.log(5))
    story.append(1)
    story.wait(lambda: len(story.log(5)) > length, "n5 has the second")
    story.run(20)
    core = story.world.nodes["n1"].core
    assert core is not None
    deposed = core.log.shards[story.shard].leader
    assert deposed is not None
    counted = deposed.cursors[n5].match
    gone = [("n1", "op1"), ("n5", "op1"), ("n1", "n5")]
    story.part(gone, noticed=False)
    story.wait(lambda: story.record.epoch == 2 and story.leader, "another is elected")
    story.join([("n5", "op1")])
    disk = story.world.nodes["n5"].disk
    story.wait(lambda: disk.image(story.shard).last < counted, "n5 is cut back")
    others = [("n5", "n2"), ("n5", "n3"), ("n5", "n4")]
    story.part(others)

    story.wait(lambda: story.world.trace.counts.get("matches_outlived"), "n1 counts what n5 does not have any more")

    assert deposed.active and deposed.cursors[n5].match == counted
    story.join([*gone, *others, ("n1", "n2"), ("n1", "n3"), ("n1", "n4")])
    story.finish()
