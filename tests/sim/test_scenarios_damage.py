"""Damage above commit: the shard takes writes again without an entry that no whole copy is left of."""

from __future__ import annotations

import pytest
from scenario import Scenario
from tidemark_core.base.entry import Kind
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone

COPIES = pytest.mark.parametrize("copies", [0, 2])
PAYLOAD = pytest.mark.parametrize("payload", [False, True], ids=["header", "payload"])


def singly_held(copies: int, count: int = 1, **limits: int) -> tuple[Scenario, list[int]]:
    """Return a world where n1 leads and alone holds its last `count` batches."""
    story = Scenario(copies=copies, **limits)
    story.wait_led(1)
    first = story.append(1)
    story.wait(lambda: story.acknowledged(first), "the first batch is acknowledged")
    story.run(100)
    length = len(story.log(1))
    story.cut(1, 2)
    story.cut(1, 3)
    sequences = []
    for number in range(1, count + 1):
        sequences.append(story.append(1))
        story.wait(lambda number=number: len(story.log(1)) >= length + number, "n1 holds it alone")
    return story, sequences


def damage(story: Scenario, number: int, nth_last_batch: int, payload: bool) -> str:
    """Damage the header of a batch, or lose its payload; return the entry's id."""
    disk = story.world.nodes[f"n{number}"].disk
    batches = [entry for entry in disk.image(story.shard).entries if entry.kind is Kind.DATA]
    entry = batches[-nth_last_batch]
    place = (story.shard, entry.base)
    if payload:
        disk.lose_payload(place, story.world.now_ms)
    else:
        disk.corrupt[place] = story.world.now_ms
    return str(entry.id)


def power_cut(story: Scenario) -> None:
    """All nodes die at once, and come back with the network whole; n1 is first."""
    story.crash(1, 2, 3)
    story.mend(1, 2)
    story.mend(1, 3)


@COPIES
@PAYLOAD
def test_k15c_an_entry_that_one_damaged_disk_held_is_given_up(copies: int, payload: bool) -> None:
    story, [lost] = singly_held(copies)
    entry = damage(story, 1, 1, payload)
    power_cut(story)
    story.start(1, 2, 3)

    story.wait(lambda: story.leads(2), "n2 leads without the damaged entry")
    story.wait(lambda: entry not in story.log(1), "n1 is truncated")
    assert story.world.trace.counts["core_damage_reported"] >= 1
    story.wait(lambda: story.acknowledged(lost), "the batch is offered again and acknowledged")
    story.finish()


@COPIES
@PAYLOAD
def test_k12_a_leader_that_lost_an_entry_mends_it_before_it_seeds_a_member(copies: int, payload: bool) -> None:
    """Without a report of the damage the new member asks for that entry for ever."""
    story = Scenario(nodes=4, copies=copies)
    story.wait_led(1)
    for _ in range(3):
        sequence = story.append(1)
        story.wait(lambda sequence=sequence: story.acknowledged(sequence), "the batch is acknowledged")
    story.run(100)
    damage(story, 1, 2, payload)

    outcome = story.change(Operation.SWAP, 3, 4)
    story.wait(lambda: outcome, "the change is over")
    assert isinstance(outcome[0], ChangeDone)
    assert not story.world.nodes["n1"].disk.corrupt
    story.finish()


@COPIES
@PAYLOAD
def test_k15b_damage_is_repaired_from_a_peer_before_the_replica_leads(copies: int, payload: bool) -> None:
    story, [kept] = singly_held(copies)
    story.mend(1, 2)
    story.wait(lambda: story.log(1) == story.log(2), "n2 holds it, too")
    entry = damage(story, 1, 1, payload)
    story.crash(1, 2, 3)
    story.mend(1, 3)
    commit = story.world.checkers.committed_last(story.shard)
    story.start(1, 2, 3)

    story.wait_led(1)
    assert entry in story.log(1) and entry in story.log(2)
    assert int(entry.split(":")[1]) > commit or not story.world.nodes["n1"].disk.corrupt
    assert "core_damage_reported" not in story.world.trace.counts
    story.wait(lambda: story.acknowledged(kept), "the batch is acknowledged")
    story.finish()


@COPIES
@PAYLOAD
def test_k15c_without_a_majority_of_whole_members_the_election_waits_and_says_so(copies: int, payload: bool) -> None:
    """n3 might hold the entry, or another one in its place: until it answers n1 is asked again and again."""
    story, [lost] = singly_held(copies)
    entry = damage(story, 1, 1, payload)
    power_cut(story)
    story.start(1, 2)

    story.wait(lambda: story.world.trace.counts.get("core_damage_waits", 0) >= 2, "the operator says that it waits")
    assert not any(story.leads(number) for number in (1, 2))
    assert entry in story.log(1)
    story.start(3)
    story.wait(lambda: story.leads(2) or story.leads(3), "a whole member leads")
    story.wait(lambda: story.acknowledged(lost), "the batch is acknowledged")
    story.finish()


@COPIES
@PAYLOAD
def test_k15d_a_leader_that_cannot_read_what_its_followers_need_resigns(copies: int, payload: bool) -> None:
    story, sequences = singly_held(copies, 2, tail_bytes_max=1)
    entry = damage(story, 1, 2, payload)
    epoch = story.record.epoch
    story.mend(1, 2)
    story.mend(1, 3)

    story.wait(lambda: story.record.epoch > epoch and (story.leads(2) or story.leads(3)), "another one leads")
    story.wait(lambda: entry not in story.log(1), "n1 is truncated")
    story.wait(lambda: all(map(story.acknowledged, sequences)), "the batches are acknowledged")
    assert story.world.trace.counts["core_damage_reported"] >= 1
    story.finish()
