"""Floors: the round by which the floor of a range rises, so that tombstones may go (D68-D70).

One object is one round of the operator: first every node says that it holds no hint up to the floor, then every owner
promises to take nothing more up to it, then every owner pulls from every other one, then the record is written.  A
round that is given up leaves promises standing; they do no harm.
Stays out: sending, the disks of members, when a round begins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..base.ids import Member
from .ring import Range, risen


@dataclass(frozen=True, slots=True)
class HintsAsked:
    """Operator to node: answer once no hint of the range up to this time is left to deliver (D69)."""

    range: int
    round: int
    floor_ms: int


@dataclass(frozen=True, slots=True)
class PromiseAsked:
    """Operator to owner: take no external cell up to this time from now on, and answer once that is durable (D69)."""

    range: int
    round: int
    version: int
    floor_ms: int


@dataclass(frozen=True, slots=True)
class SyncAsked:
    """Operator to owner: pull the whole range from these members, and answer once all of it is durable (D69)."""

    range: int
    round: int
    version: int
    sources: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class HintsGone:
    """Node to operator: the answer to `HintsAsked`."""

    range: int
    round: int


@dataclass(frozen=True, slots=True)
class Promised:
    """Owner to operator: the answer to `PromiseAsked`."""

    range: int
    round: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Owner to operator: the answer to `SyncAsked`."""

    range: int
    round: int


class Phase(Enum):
    """The answers that a round waits for."""

    HINTS = "hints"
    PROMISES = "promises"
    SYNC = "sync"
    COMMIT = "commit"


class To(NamedTuple):
    """A message and the member that gets it."""

    member: Member
    message: HintsAsked | PromiseAsked | SyncAsked


class Commit(NamedTuple):
    """Write this record where the one that the round began with still stands."""

    record: Range


Effect = To | Commit


def highest(now_ms: int, write_window_ms: int) -> int:
    """Return the highest floor that may be asked for now: no write below it is under way any more (D68)."""
    return max(0, now_ms - write_window_ms)


class Round:
    """One round for one range.  `nodes` are all members of the cluster that may hold a hint, owners too (D69, D70)."""

    def __init__(self, index: int, number: int, record: Range, nodes: Collection[Member], floor_ms: int) -> None:
        if floor_ms <= record.floor_ms:
            raise ValueError(f"the floor is {record.floor_ms}, {floor_ms} is no higher")
        self.record = record
        self.next = risen(record, floor_ms)     # refuses while a move is open (D68)
        self.phase = Phase.HINTS
        self._index = index
        self._number = number
        self._floor_ms = floor_ms
        self._waits = dict.fromkeys((*nodes, *record.own.members))

    @property
    def waits(self) -> tuple[Member, ...]:
        """The members that the round waits for: each blocks it while it is away (D70)."""
        return tuple(self._waits)

    def begin(self) -> list[Effect]:
        """Ask every node for its hints."""
        return self.resend()

    def resend(self) -> list[Effect]:
        """Ask again those that have not answered."""
        if self.phase is Phase.COMMIT:
            return [Commit(self.next)]
        return [To(member, self._message(member)) for member in self._waits]

    def left_out(self, member: Member) -> list[Effect]:
        """Go on without a node that is no owner: its hints up to the floor will be refused (D70)."""
        if self.phase is not Phase.HINTS or self.record.holds(member):
            return []
        return self._heard(member)

    def on_answer(self, member: Member, m: HintsGone | Promised | Synced) -> list[Effect]:
        """Take a member's answer; one to another round or phase counts for nothing."""
        return self._heard(member) if (_ANSWERS[type(m)], m.round) == (self.phase, self._number) else []

    def on_record(self, record: Range) -> bool:
        """Say whether the round goes on: another record ends it."""
        return record == self.record

    def _heard(self, member: Member) -> list[Effect]:
        if member not in self._waits:
            return []
        del self._waits[member]
        if self._waits:
            return []
        self.phase = _NEXT[self.phase]
        self._waits = {} if self.phase is Phase.COMMIT else dict.fromkeys(self.record.own.members)
        return self.resend()

    def _message(self, member: Member) -> HintsAsked | PromiseAsked | SyncAsked:
        index, number, version = self._index, self._number, self.record.version
        match self.phase:
            case Phase.HINTS:
                return HintsAsked(index, number, self._floor_ms)
            case Phase.PROMISES:
                return PromiseAsked(index, number, version, self._floor_ms)
            case _:
                sources = tuple(each for each in self.record.own.members if each != member)
                return SyncAsked(index, number, version, sources)


_NEXT = {Phase.HINTS: Phase.PROMISES, Phase.PROMISES: Phase.SYNC, Phase.SYNC: Phase.COMMIT}
_ANSWERS = {HintsGone: Phase.HINTS, Promised: Phase.PROMISES, Synced: Phase.SYNC}
