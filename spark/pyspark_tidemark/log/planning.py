"""Planning: the ranges of offsets that a batch reads, their division into tasks, and limits of a batch.

Pure functions: what they return follows from their arguments alone, never from the state of a cluster (P6).
Stays out: where a log begins and ends, and reading (the readers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..filters import Interval
from .offsets import EARLIEST, LATEST, Given, Position


class Range(NamedTuple):
    """Offsets of a shard from `first` on and below `until`."""

    shard: int
    first: int
    until: int

    @property
    def size(self) -> int:
        return self.until - self.first


class Extent(NamedTuple):
    """Where a shard stood when a batch was planned."""

    first: int                  # offset that retention has left
    end: int                    # offset behind the last one that may be read
    at_timestamp: int = -1      # first offset of the time that the query begins at


class OffsetsLost(RuntimeError):
    """Offsets of a query are not in the log, or no longer."""


LOSS_ADVICE = "With failOnDataLoss=false the query reads what is left."


def batch_ranges(
    group: str, starting: Given | None, ending: Given, extents: Mapping[int, Extent], *, fail: bool
) -> tuple[list[Range], list[str]]:
    """Return the ranges of a batch query, in the order of shards, and a warning for each part that is not there (P10).

    `starting` is None where the query begins at a time.  Raises InvalidOption for other shards than there are (P11),
    OffsetsLost with `fail` where a part is not there.
    """
    firsts = _firsts(starting, extents)
    untils = ending.of("endingOffsets", sorted(extents))
    ranges, lost = [], []
    for shard, extent in sorted(extents.items()):
        first = firsts[shard]
        until = extent.end if untils[shard] == LATEST else untils[shard]
        where = f"shard {shard} of group {group!r}"
        lost += _lost_start(where, first, extent)
        if until > extent.end >= first:
            lost.append(f"{where} ends at offset {extent.end}, below {until}")
        elif until < first <= extent.end:
            lost.append(f"{where} has nothing from offset {first} on and below {until}")
        first, until = max(first, extent.first), min(until, extent.end)
        if first < until:
            ranges.append(Range(shard, first, until))
    if lost and fail:
        raise OffsetsLost(f"{'; '.join(lost)}. {LOSS_ADVICE}")
    return ranges, lost


def stream_starts(
    group: str, starting: Given | None, extents: Mapping[int, Extent], *, fail: bool
) -> tuple[dict[int, int], list[str]]:
    """Return where a new streaming query begins, and a warning for each shard that does not have that offset.

    Arguments and errors are those of `batch_ranges`.
    """
    firsts = _firsts(starting, extents)
    lost = [
        text for shard, extent in sorted(extents.items())
        for text in _lost_start(f"shard {shard} of group {group!r}", firsts[shard], extent)]
    if lost and fail:
        raise OffsetsLost(f"{'; '.join(lost)}. {LOSS_ADVICE}")
    return {shard: min(max(firsts[shard], extent.first), extent.end) for shard, extent in extents.items()}, lost


def _firsts(starting: Given | None, extents: Mapping[int, Extent]) -> dict[int, int]:
    """Return the offsets that a query names, by number."""
    if starting is None:
        return {shard: extent.at_timestamp for shard, extent in extents.items()}
    given = starting.of("startingOffsets", sorted(extents))
    return {
        shard: extent.first if given[shard] == EARLIEST else extent.end if given[shard] == LATEST else given[shard]
        for shard, extent in extents.items()}


def _lost_start(where: str, first: int, extent: Extent) -> list[str]:
    if first < extent.first:
        return [f"{where} begins at offset {extent.first}: offsets {first} to {extent.first - 1} are gone"]
    return [f"{where} ends at offset {extent.end}, below {first}"] if first > extent.end else []


def check_group(group: str, stood: int, now: int) -> None:
    """Raise OffsetsLost where offsets are of an earlier group of the name; 0 is an id that is not known (P25)."""
    if stood and now and stood != now:
        raise OffsetsLost(
            f"Group {group!r} was deleted and made again: the query stands in the group with the id {stood}, and now "
            f"it is {now}. Give the query a new checkpoint.")


class ShardsDiffer(ValueError):
    """A shard of the start is gone at the end of a batch, or ends below its start; the batch reads nothing."""


def ranges_between(start: Position, end: Position) -> list[Range]:
    """Return what lies between two positions, in the order of shards; a shard that is new at the end begins there.

    Raises ShardsDiffer naming the shard and both offsets, OffsetsLost where the positions are of two groups.
    """
    check_group(start.group, start.group_id, end.group_id)
    if gone := sorted(set(start.shards) - set(end.shards)):
        raise ShardsDiffer(
            f"Shard {gone[0]} of group {start.group!r} is gone: the query stands at offset {start.shards[gone[0]]}.")
    ranges = [Range(shard, start.shards.get(shard, until), until) for shard, until in sorted(end.shards.items())]
    for each in ranges:
        if each.size < 0:
            raise ShardsDiffer(
                f"Shard {each.shard} of group {start.group!r} ends at offset {each.until}, below {each.first}, "
                "where the query stands: the log was rolled back or created again.")
    return [each for each in ranges if each.size]


def within(ranges: Sequence[Range], shards: Interval, offsets: Interval) -> list[Range]:
    """Return the parts of ranges that the filters of a query leave."""
    found = []
    for each in ranges:
        if each.shard in shards:
            first = each.first if offsets.first is None else max(each.first, offsets.first)
            until = each.until if offsets.until is None else min(each.until, offsets.until)
            if first < until:
                found.append(Range(each.shard, first, until))
    return found


def divided(ranges: Sequence[Range], partitions_min: int) -> list[Range]:
    """Divide large ranges so that there are at least `partitions_min` tasks, where there are so many offsets.

    A range gets tasks in proportion to its size, rounded up, so there are fewer than `partitions_min` and one more for
    each range together.  The tasks of a range differ by one offset at most.
    """
    total = sum(each.size for each in ranges)
    tasks: list[Range] = []
    for each in ranges:
        count = min(max(1, -(-each.size * partitions_min // total)), each.size) if each.size else 0
        cuts = [each.first + each.size * cut // count for cut in range(count + 1)] if count else []
        tasks += [Range(each.shard, first, until) for first, until in pairwise(cuts)]
    return tasks


def limited(start: Mapping[int, int], latest: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """Return where a batch of `offsets_max` offsets ends; both mappings have the same shards (P8).

    Each shard with pending offsets gets one, and a part of the rest in proportion to what it has pending.  The parts
    add up to the limit; a limit below the number of such shards still takes one offset of each.
    """
    pending = {shard: max(0, latest[shard] - start[shard]) for shard in sorted(latest)}
    total = sum(pending.values())
    parts = pending
    if total > offsets_max:
        parts = {shard: min(1, size) for shard, size in pending.items()}
        begun = sum(parts.values())
        rest, among = max(0, offsets_max - begun), total - begun
        shares = {shard: divmod((pending[shard] - part) * rest, max(1, among)) for shard, part in parts.items()}
        left = rest - sum(whole for whole, _ in shares.values())
        rounded_up = set(sorted(shares, key=lambda shard: (-shares[shard][1], shard))[:left])
        parts = {shard: part + shares[shard][0] + (shard in rounded_up) for shard, part in parts.items()}
    return {shard: start[shard] + part for shard, part in parts.items()}
