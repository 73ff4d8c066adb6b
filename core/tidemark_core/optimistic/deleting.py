"""Deleting: how a node forgets a keyspace that is deleted, by the operator's word alone (D81).

The number of the keyspace is written first, with the removal of all rows: from then on nothing of it is taken.
Stored records and hints go behind it, a page at a time; where a node is killed, the operator asks again.
Stays out: what the node has in memory (`plane`), hints (`hinting.keeping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.effects import DeleteRange, DropUnit, Effect, Feed, Persist, Put, Send, Write
from ..base.ids import Address, Peer
from .holding.layout import spans_of
from .ring import keyspace_of

DELETED = "ks_deleted"
"""The family of numbers of keyspaces that were deleted; a number is never given again."""

PAGE = 500
"""So many records and so many hints go with one write."""


@dataclass(frozen=True, slots=True)
class ForgetAsked:
    """Operator to node: a keyspace is deleted, and none of its records is left; answer once nothing of it is here."""

    keyspace: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Node to operator: the answer to `ForgetAsked`."""

    keyspace: int


class Erased(NamedTuple):
    """Event: the removal of a page of a keyspace, named by its first range, is durable."""

    unit: int


class Deletions:
    """The keyspaces that were deleted while this disk lived."""

    def __init__(self, plane: int) -> None:
        self._plane = plane
        self._deleted: dict[int, list[int]] = {}    # and the ranges of which a record is on the disk
        self._asked: dict[int, Peer] = {}           # the operator that waits

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do for an operator."""
        return not self._asked

    def recover(self, marks: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the family."""
        self._deleted = {int.from_bytes(key, "big"): [] for key, _ in marks}

    def stored(self, unit: int) -> None:
        """Note that the record of a range that is deleted is on the disk."""
        self._deleted[keyspace_of(unit)].append(unit)

    def covers(self, unit: int) -> bool:
        """Say whether a range is one of a keyspace that was deleted."""
        return keyspace_of(unit) in self._deleted

    def asked(self, operator: Peer, m: ForgetAsked) -> bool:
        """Note who waits for a keyspace; say whether its pages begin now, each with `page`."""
        begins = m.keyspace not in self._asked
        self._asked[m.keyspace] = operator
        return begins

    def begin(self, keyspace: int, units: Iterable[int], writes: Sequence[Write]) -> Persist:
        """Write that a keyspace is deleted, with what goes at once; records of `units` may be on the disk."""
        self._deleted[keyspace] = list(units)
        return Persist(self._at(keyspace), (
            Put(DELETED, keyspace.to_bytes(8, "big"), b""), *writes,
            *(DeleteRange(family, first, behind) for family, first, behind in spans_of(keyspace))))

    def page(self, keyspace: int, hints: tuple[Write, ...]) -> list[Effect]:
        """Remove the next records, and these hints; answer behind the last page."""
        left = self._deleted[keyspace]
        units, left[:] = left[:PAGE], left[PAGE:]
        more: list[Effect] = [Persist(Address(self._plane, unit), (DropUnit(),)) for unit in units]
        if units or hints:
            return [*more, Persist(self._at(keyspace), hints, (Feed(Erased(keyspace << 32)),))]
        operator = self._asked.pop(keyspace)
        return [Persist(self._at(keyspace), (), (Send(self._at(keyspace), operator, Forgotten(keyspace)),))]

    def _at(self, keyspace: int) -> Address:
        return Address(self._plane, keyspace << 32)
