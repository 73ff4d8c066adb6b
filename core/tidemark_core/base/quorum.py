"""Quorum arithmetic on counts and members."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .ids import Member


def majority(count: int) -> int:
    """Return the smallest number of `count` voters that any other such number must overlap."""
    return count // 2 + 1


def has_majority(voters: Collection[Member], answered: Iterable[Member]) -> bool:
    """Say whether `answered` holds a majority of `voters`; strangers do not count."""
    electorate = set(voters)
    return len(electorate.intersection(answered)) >= majority(len(electorate))


def quorum_offset(offsets: Iterable[int], quorum: int) -> int:
    """Return the highest offset that at least `quorum` of `offsets` reached, or -1 when too few are given."""
    ranked = sorted(offsets, reverse=True)
    return ranked[quorum - 1] if len(ranked) >= quorum else -1
