"""Marks: how many writes are durable on a disk, and which disk is an older copy of itself (rule D52).

The store numbers its writes, so an older copy of a disk holds the same life and fewer of them.  Pure.
Stays out: reading marks from a disk and keeping them elsewhere (node and operator), what a life is (`ids`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from .ids import Member


class DiskMark(NamedTuple):
    """How many writes were durable in one life of a disk, which `incarnation` names; `writes` is 0 or more."""

    incarnation: str
    writes: int


def is_older(known: DiskMark | None, disk: DiskMark) -> bool:
    """Say whether a disk lacks writes that were durable on it; the mark of another life says nothing."""
    return known is not None and known.incarnation == disk.incarnation and disk.writes < known.writes


def kept(known: DiskMark | None, heard: DiskMark) -> DiskMark:
    """Return the mark to keep of a disk after it said one: the greater of the same life, else the one heard."""
    return known if known is not None and is_older(known, heard) else heard


class Copies(NamedTuple):
    """Members that hold copies of one thing; `needed` of them hold everything that was acknowledged.

    Where `at_rest` is false the members change, or one of them may hold the last copy: none of them is given up.
    """

    name: str
    members: tuple[Member, ...]
    needed: int
    at_rest: bool = True


def needs(member: Member, things: Iterable[Copies], current: Collection[Member]) -> str | None:
    """Return the name of the first thing that may lose its last copies with the disk of `member`, None for none.

    `current` are the members that are up on disks that are known to lack nothing.  `member` never counts as one.
    """
    for thing in things:
        if member in thing.members:
            left = sum(other in current for other in thing.members if other != member)
            if not thing.at_rest or left < max(thing.needed, 1):
                return thing.name
    return None
