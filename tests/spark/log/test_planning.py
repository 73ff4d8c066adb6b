"""Ranges, tasks and limits of a batch, as pure functions."""

from __future__ import annotations

import random

import pytest
from pyspark_tidemark.log.offsets import EARLIEST, LATEST, Given, Position
from pyspark_tidemark.log.planning import (
    Extent,
    OffsetsLost,
    Range,
    ShardsDiffer,
    batch_ranges,
    divided,
    limited,
    ranges_between,
)

from tests.seeds import every_seed


def at(**shards: int) -> Position:
    return Position("orders", {int(shard[1:]): offset for shard, offset in shards.items()})


def test_ranges_lie_between_two_positions_in_the_order_of_shards() -> None:
    assert ranges_between(at(s2=5, s0=3, s1=7), at(s1=7, s2=9, s0=4, s10=2)) == [Range(0, 3, 4), Range(2, 5, 9)]
    assert ranges_between(at(s0=3), at(s0=3)) == []


def test_a_shard_that_is_gone_or_ends_below_its_start_is_an_error_that_names_both_offsets() -> None:
    with pytest.raises(ShardsDiffer, match="Shard 1 of group 'orders' is gone: the query stands at offset 7"):
        ranges_between(at(s0=3, s1=7), at(s0=4))
    with pytest.raises(ShardsDiffer, match="Shard 1 of group 'orders' ends at offset 5, below 7"):
        ranges_between(at(s0=3, s1=7), at(s0=4, s1=5))


@pytest.mark.parametrize(("partitions_min", "tasks"), [
    (0, [Range(0, 0, 90), Range(1, 5, 15)]),
    (2, [Range(0, 0, 45), Range(0, 45, 90), Range(1, 5, 15)]),
    (5, [Range(0, 0, 18), Range(0, 18, 36), Range(0, 36, 54), Range(0, 54, 72), Range(0, 72, 90), Range(1, 5, 15)]),
])
def test_large_ranges_become_several_tasks(partitions_min: int, tasks: list[Range]) -> None:
    assert divided([Range(0, 0, 90), Range(1, 5, 15)], partitions_min) == tasks


@every_seed(300)
def test_p6_tasks_cover_what_lies_between_two_positions_once(seed: int) -> None:
    dice = random.Random(seed)
    start = {shard: dice.randrange(100) for shard in range(dice.randint(1, 6))}
    end = {shard: offset + dice.choice([0, 1, dice.randrange(500)]) for shard, offset in start.items()}
    partitions_min = dice.choice([0, 1, 7, 40])
    ranges = ranges_between(Position("orders", start), Position("orders", end))
    tasks = divided(ranges, partitions_min)
    covered = [(task.shard, offset) for task in tasks for offset in range(task.first, task.until)]
    assert covered == [(shard, offset) for shard in end for offset in range(start[shard], end[shard])]
    assert all(task.size > 0 for task in tasks)
    assert min(partitions_min, len(covered)) <= len(tasks) <= partitions_min + len(ranges)
    for each in ranges:
        sizes = {task.size for task in tasks if task.shard == each.shard}
        assert max(sizes) - min(sizes) <= 1


def pending_of(seed: int) -> tuple[dict[int, int], dict[int, int], int]:
    dice = random.Random(seed)
    start = {shard: dice.randrange(50) for shard in range(dice.randint(1, 9))}
    sizes = [0, 1, 2, dice.randrange(1000), dice.randrange(10**18)]
    latest = {shard: offset + dice.choice(sizes) for shard, offset in start.items()}
    return start, latest, dice.choice([1, 2, dice.randint(1, 2000), 2**63 - 1])


@every_seed(500)
def test_p8_a_limit_is_met_exactly_and_every_pending_shard_moves(seed: int) -> None:
    start, latest, offsets_max = pending_of(seed)
    until = limited(start, latest, offsets_max)
    pending = {shard: latest[shard] - start[shard] for shard in latest}
    taken = {shard: until[shard] - start[shard] for shard in latest}
    assert all(0 <= taken[shard] <= pending[shard] for shard in latest)
    assert all((taken[shard] > 0) == (pending[shard] > 0) for shard in latest)
    moving = sum(size > 0 for size in pending.values())
    assert sum(taken.values()) == min(sum(pending.values()), max(offsets_max, moving))


@every_seed(300)
def test_p8_parts_are_proportional(seed: int) -> None:
    """A part differs from its exact share by one for the guaranteed offset of each shard and one for rounding."""
    start, latest, offsets_max = pending_of(seed)
    until = limited(start, latest, offsets_max)
    total = sum(latest[shard] - start[shard] for shard in latest)
    moving = sum(latest[shard] > start[shard] for shard in latest)
    if moving < offsets_max < total:
        for shard in latest:
            share = (latest[shard] - start[shard]) * offsets_max / total
            assert abs(until[shard] - start[shard] - share) <= moving + 1


def test_p8_a_shard_that_fell_back_stays() -> None:
    assert limited({0: 10, 1: 50, 2: 0}, {0: 20, 1: 40, 2: 8}, 9) == {0: 15, 1: 50, 2: 4}


EXTENTS = {0: Extent(10, 50, 30), 1: Extent(0, 0, 0), 12: Extent(7, 7, 7), 2: Extent(0, 5, 5)}
ALL, END = Given(EARLIEST, {}), Given(LATEST, {})


def test_a_batch_reads_what_is_there_in_the_order_of_shards() -> None:
    assert batch_ranges("orders", ALL, END, EXTENTS, fail=True) == ([Range(0, 10, 50), Range(2, 0, 5)], [])
    assert batch_ranges("orders", None, END, EXTENTS, fail=True) == ([Range(0, 30, 50)], [])
    starts = Given(None, {0: 12, 1: EARLIEST, 2: 5, 12: 7})
    ends = Given(None, {0: 13, 1: LATEST, 2: 5, 12: 7})
    assert batch_ranges("orders", starts, ends, EXTENTS, fail=True) == ([Range(0, 12, 13)], [])


@pytest.mark.parametrize(("first", "until", "left", "said"), [
    (3, 20, [Range(0, 10, 20)], "shard 0 of group 'orders' begins at offset 10: offsets 3 to 9 are gone"),
    (20, 60, [Range(0, 20, 50)], "shard 0 of group 'orders' ends at offset 50, below 60"),
    (60, LATEST, [], "shard 0 of group 'orders' ends at offset 50, below 60"),
    (30, 20, [], "shard 0 of group 'orders' has nothing from offset 30 on and below 20"),
    (EARLIEST, 8, [], "shard 0 of group 'orders' has nothing from offset 10 on and below 8"),
])
def test_p10_a_range_is_never_more_than_was_planned_and_is_there(
    first: int, until: int, left: list[Range], said: str
) -> None:
    starting, ending, extents = Given(None, {0: first}), Given(None, {0: until}), {0: Extent(10, 50)}
    with pytest.raises(OffsetsLost) as lost:
        batch_ranges("orders", starting, ending, extents, fail=True)
    assert str(lost.value) == f"{said}. With failOnDataLoss=false the query reads what is left."
    assert batch_ranges("orders", starting, ending, extents, fail=False) == (left, [said])
