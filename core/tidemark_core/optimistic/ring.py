"""Ring: who owns a token range, who is about to, and which answers are enough for a write or a read.

A key's hash names its range; the ranges of a keyspace are equally long.  The metadata store holds one record a range,
and each change of it is one compare-and-swap.  Stays out: choosing owners (`placing`), and when a move may be finished.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..base.ids import Member, key_hash


def range_of(key: bytes, partitions: int) -> int:
    """Return the range of a key: the first bits of its hash.  `partitions` is a power of two."""
    return key_hash(key) * partitions >> 32


def keyspace_of(unit: int) -> int:
    """Return the number of the keyspace that a range belongs to; a unit is that number and the range's index."""
    return unit >> 32


class Quorum(NamedTuple):
    """How many owners a range has, and how many of them a read and a write need."""

    n: int
    r: int
    w: int

    @property
    def strict(self) -> bool:
        """Whether every read meets every write before it, and every write every other one (D63)."""
        return self.r + self.w > self.n and 2 * self.w > self.n


class Owners(NamedTuple):
    """A list of owners with its quorums."""

    members: tuple[Member, ...]
    quorum: Quorum

    def missing(self, stored: Collection[Member], w: int = 0) -> int:
        """Return how many more members must store a write; none where it is 0 or less.

        `w` stands in for the W of the list, as far as there are members (D77); 0: it does not.
        """
        return (min(w, len(self.members)) or self.quorum.w) - sum(member in stored for member in self.members)

    def read(self, answered: Collection[Member], r: int = 0) -> bool:
        """Say whether the members that answered a read are enough; `r` stands in for the R of the list."""
        return len(answered) >= (wanted := min(r, len(self.members)) or self.quorum.r) and (
            sum([member in answered for member in self.members]) >= wanted)


class Range(NamedTuple):
    """The record of a range (D63).  `pending` is the whole next list of owners while a move is open."""

    version: int
    own: Owners
    pending: Owners | None = None
    floor_ms: int = 0

    def holds(self, member: Member) -> bool:
        """Say whether a member is an owner or a pending one."""
        return member in self.own.members or (self.pending is not None and member in self.pending.members)

    @property
    def members(self) -> tuple[Member, ...]:
        """All owners and pending ones, each once: a write goes to all of them."""
        more = self.pending.members if self.pending is not None else ()
        return tuple(dict.fromkeys((*self.own.members, *more)))

    def missing(self, stored: Collection[Member], w: int = 0) -> int:
        """Return how many more members of a list must store a write: of the list that lacks the most (D64).

        A request may name a `w`, or an `r`, that stands in for those of both lists (D77); 0: it names none.
        """
        own = self.own.missing(stored, w)
        return own if self.pending is None else max(own, self.pending.missing(stored, w))

    def write(self, stored: Collection[Member], w: int = 0) -> bool:
        """Say whether a write is acknowledged: by a write quorum of both lists while a move is open (D64)."""
        return self.missing(stored, w) <= 0

    def read(self, answered: Collection[Member], r: int = 0) -> bool:
        """Say whether a read is answered: by a read quorum of both lists while a move is open (D64)."""
        return self.own.read(answered, r) and (self.pending is None or self.pending.read(answered, r))

    def weak(self, r: int = 0, w: int = 0) -> bool:
        """Say whether a request names fewer members than a list asks for: it has no promise then (D77)."""
        lists = (self.own,) if self.pending is None else (self.own, self.pending)
        return any(0 < r < owners.quorum.r or 0 < w < owners.quorum.w for owners in lists)


# --- changes: each is one compare-and-swap of the record ----------------------------------------------------


def wrong_move(before: Range, pending: Owners) -> str | None:
    """Say why a move to these owners cannot begin, None where it can (D63)."""
    members, quorum = pending
    if before.pending is not None:
        return "a move of the range is open"
    if len(set(members)) != len(members) or len(members) != quorum.n:
        return f"{quorum.n} owners are wanted, {len(set(members))} are named"
    if not (0 < quorum.r <= quorum.n and 0 < quorum.w <= quorum.n):
        return f"R {quorum.r} and W {quorum.w} must be at least 1 and at most N, which is {quorum.n}"
    if abs(quorum.n - before.own.quorum.n) > 1:
        return f"N can change by 1 at a time, not from {before.own.quorum.n} to {quorum.n}"
    if before.own.quorum.strict and not quorum.strict:
        return "the range is strict: R + W must be more than N, and 2 W too"
    return None


def begun(before: Range, pending: Owners) -> Range:
    """Return the record with a move open; raises ValueError where `wrong_move` says why."""
    if (wrong := wrong_move(before, pending)) is not None:
        raise ValueError(wrong)
    return before._replace(version=before.version + 1, pending=pending)


def finished(before: Range) -> Range:
    """Return the record with the pending owners as owners; raises ValueError where no move is open."""
    if before.pending is None:
        raise ValueError("no move of the range is open")
    return before._replace(version=before.version + 1, own=before.pending, pending=None)


def aborted(before: Range) -> Range:
    """Return the record with the owners as they were; raises ValueError where no move is open."""
    if before.pending is None:
        raise ValueError("no move of the range is open")
    return before._replace(version=before.version + 1, pending=None)


def risen(before: Range, floor_ms: int) -> Range:
    """Return the record with a higher floor; raises ValueError while a move is open, or where it would fall."""
    if before.pending is not None:
        raise ValueError("a floor does not rise while a move is open")
    if floor_ms < before.floor_ms:
        raise ValueError(f"the floor is {before.floor_ms}, it cannot fall to {floor_ms}")
    return before._replace(floor_ms=floor_ms)
