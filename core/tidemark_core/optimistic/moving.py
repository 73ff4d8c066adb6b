"""Moving: what a pending owner must have copied, and when a move may be finished (D66, D67).

Stays out: the exchanges themselves (`exchanging`), who plans a move, asking members.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..base.ids import Member
from .ring import Range


@dataclass(frozen=True, slots=True)
class Announced:
    """Operator to member: the record of a range; the answer is `Known`."""

    range: int
    record: Range


@dataclass(frozen=True, slots=True)
class Known:
    """Member to operator: a record of this version, or a newer one, is on disk here."""

    range: int
    version: int


@dataclass(frozen=True, slots=True)
class CopyAsked:
    """Operator to pending owner: answer with `Copied` once the range is copied under this version (D66)."""

    range: int
    version: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Pending owner to operator: the range is copied under this version, and durable."""

    range: int
    version: int


def sources_needed(record: Range) -> int:
    """Return from how many owners a pending owner copies: so many that one of them has each acknowledged write."""
    n, _, w = record.own.quorum
    return n - w + 1


class Copy:
    """The copy of a range by one pending owner, under one record.  Its own rows count where it is an owner."""

    def __init__(self, me: Member, record: Range) -> None:
        if record.pending is None or me not in record.pending.members:
            raise ValueError(f"{me} is no pending owner")
        self.record = record
        self._done: dict[Member, None] = {me: None} if me in record.own.members else {}
        self._failed: dict[Member, None] = {}
        self._mismatched: dict[Member, None] = {}

    @property
    def done(self) -> bool:
        """Whether the member may report that it has copied the range."""
        return len(self._done) >= sources_needed(self.record)

    def sources(self) -> list[Member]:
        """Return the owners to copy from that are left, those that failed last."""
        if self.done:
            return []
        left = [each for each in self.record.own.members if each not in self._done and each not in self._mismatched]
        return [*(each for each in left if each not in self._failed), *(each for each in self._failed if each in left)]

    def failed(self, source: Member) -> None:
        """Ask an owner behind all others."""
        self._failed.pop(source, None)
        self._failed[source] = None

    def mismatched(self, source: Member) -> None:
        """Ask an owner no more: it holds a row that cannot be taken, now or later (D74)."""
        self._mismatched[source] = None

    def copied(self, source: Member, version: int) -> None:
        """Take a complete exchange, which the source began under this version."""
        if version == self.record.version and source in self.record.own.members:
            self._done[source] = None


def unfinished(
    record: Range, copied: Collection[Member], durable: Collection[Member], gone: Collection[Member]
) -> str | None:
    """Say why a move cannot be finished, None where it can.

    `copied` are the members that reported the copy of this version, `durable` those that have its record on disk,
    `gone` those whose life of the disk is over for good.  The owners that know the move are so many that no read and no
    write of the version before finds enough of the others.
    """
    if record.pending is None:
        return "no move of the range is open"
    waits = [member for member in record.pending.members if member not in copied]
    if waits:
        return f"{', '.join(map(str, waits))} copies the range"
    n, r, w = record.own.quorum
    needed = n - min(r, w) + 1
    knows = sum(member in durable or member in gone for member in record.own.members)
    if knows < needed:
        return f"{knows} of {needed} owners know of the move"
    return None
