"""Order: which slot of the ensemble sends an entry to a reader; the whole decision, as one pure function.

Every node must come to the same answer, so it is made from the entry's header and the reader's START alone: the
reading order, the ensemble the reader knows, its known_down and its location.
Stays out: what a node holds and how far it may send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

SLOTS_MAX = 16


class Mode(StrEnum):
    """How members share the sending."""

    SINGLE_COPY = "SINGLE_COPY"
    LOCAL = "LOCAL"                # single copy, by the nearest node (S32)
    ALL_SEND_ALL = "ALL_SEND_ALL"  # everybody sends everything it holds


class Block(NamedTuple):
    """A reading order, and the last offset up to which it is in force (K1).

    The order is that of the data entries there; control entries and holes go with the block that they lie in.
    """

    order: int
    last: int


@lru_cache(maxsize=4096)
def slots_of(order: int, size: int) -> tuple[int, ...]:
    """Return the slots of a reading order, left-most first, completed to all `size` slots of the ensemble in force.

    Slots that left the ensemble since are passed over; those that joined stand at the far right (K13), in order.
    """
    slots: list[int] = []
    for place in range(SLOTS_MAX):
        slot = order >> (4 * place) & 0xF
        if slot < size and slot not in slots:
            slots.append(slot)
    # The nibbles behind the last slot are 0 and name slot 0 again, so they add nothing once it is in.
    return (*slots, *(slot for slot in range(size) if slot not in slots))


def nearest_first(slots: Sequence[int], priorities: Sequence[int], copies: int = 0) -> tuple[int, ...]:
    """Return the slots by falling priority, each group in its old order (S34).

    Only the first `copies` of an order keep the payload (K2), 0: all.  They stay in front of the others, however near
    those are.
    """
    def by_priority(some: Sequence[int]) -> list[int]:
        return sorted(some, key=lambda slot: -priorities[slot])

    keepers = copies or len(slots)
    return (*by_priority(slots[:keepers]), *by_priority(slots[keepers:]))


def sender(slots: Sequence[int], known_down: Collection[int]) -> int | None:
    """Return the slot that sends: the first that is not known to be down (S2, S5, S36)."""
    return next((slot for slot in slots if slot not in known_down), None)


def ships(slots: Sequence[int], me: int, known_down: Collection[int]) -> bool:
    """Say whether slot `me` sends an entry with this order (S2-S7, S34-S36)."""
    for slot in slots:
        if slot == me:
            return True  # listed or not: a listed node sends what it would send unlisted (S6)
        if slot not in known_down:
            return False
    return False
