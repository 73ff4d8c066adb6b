"""Copies: who keeps an entry's payload where fewer than all members do, and who need not; pure predicates.

An entry goes whole to every member and commits as any other (K3, K5).  Below commit the payload is surplus on members
that do not stand among the first `copies` of its reading order, as soon as enough of those left of them have it.
Stays out: when anything is dropped, sent or filled, and what is on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base.ids import Member
from ..base.quorum import majority, quorum_offset
from ..delivery.order import slots_of


class Seat(NamedTuple):
    """A member's slot among `size`, of which `copies` keep each payload (0: all)."""

    slot: int
    size: int
    copies: int

    @property
    def selective(self) -> bool:
        return selective(self.copies, self.size)

    def keeps(self, order: int) -> bool:
        """Say whether the member is designated for entries of this order: never without the payload (K2, K7)."""
        return not self.selective or self.slot in slots_of(order, self.size)[: self.copies]


def seat_of(member: Member, ensemble: Sequence[Member], copies: int) -> Seat | None:
    """Return the member's seat, None when it has no slot."""
    return Seat(ensemble.index(member), len(ensemble), copies) if member in ensemble else None


def selective(copies: int, size: int) -> bool:
    """Say whether some of `size` members need not keep every payload."""
    return 0 < copies < size


def copies_in_force(copies: int, size: int) -> int:
    """Return how many of `size` members keep each payload."""
    return copies if selective(copies, size) else size


def refuse_copies(copies: int, size: int) -> str | None:
    """Return what is wrong with `copies` for `size` members, naming the field, or None (K2).

    With fewer than a majority, the members that an election needs may be just those without a payload.
    """
    if copies == 0 or majority(size) <= copies <= size:
        return None
    return f"payloadCopies is {copies}, with {size} members it must be {majority(size)} to {size}, or 0 for all"


def surplus_upto(seat: Seat, order: int, matches: Sequence[int], commit: int) -> int:
    """Return up to which offset payloads of this order are surplus at `seat`, -1: nowhere (K6).

    `matches` are by slot, acknowledged to the leader in its epoch, its own durable copy included; -1 for a slot that is
    being removed or is not in force yet.  An entry at x is surplus exactly when x <= the offset returned: it is
    committed, and at least `copies` members strictly left of the seat have acknowledged it.
    """
    if not seat.selective:
        return -1
    slots = slots_of(order, seat.size)
    left = slots[: slots.index(seat.slot)]
    return min(commit, quorum_offset([matches[slot] for slot in left], seat.copies))
