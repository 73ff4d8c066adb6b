"""Fetching: a leader gets from other members what a follower needs and it does not keep itself (K16).

What comes is compared with our own header and passed on; nothing is stored or counted.  A follower whose payload nobody
can give waits, the others go on; the resend timer begins anew.  Who was asked and said nothing until then is asked last
from then on, until it says something: a link may be dead long before anybody notices.
Stays out: repair of damaged copies, which is every member's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.effects import Effect
from ..base.entry import Entry
from ..base.ids import Member
from ..delivery.order import slots_of
from .cursor import Cursor
from .messages import Fetched

if TYPE_CHECKING:
    from .leader import Leader


@dataclass(slots=True)
class Batch:
    """What is to be pushed to one follower, in order, and which of it is asked for."""

    entries: tuple[Entry, ...]
    missing: set[int]
    moved: bool = True    # something came since the resend timer looked


@dataclass(slots=True)
class Wanted:
    """One payload on its way: whom it was asked from, and who is left to ask."""

    entry: Entry
    asked: Member
    left: list[Member] = field(default_factory=list)


class Fetching:
    """Payloads that followers of one leadership wait for."""

    __slots__ = ("_batches", "_mute", "_wanted", "leader")

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._batches: dict[Member, Batch] = {}
        self._wanted: dict[int, Wanted] = {}
        self._mute: set[Member] = set()   # asked in vain, and not heard of since

    def begin(self, cursor: Cursor, entries: tuple[Entry, ...], missing: list[Entry]) -> list[Effect]:
        """Ask for what is missing of a batch; until it is complete its cursor reads nothing else."""
        cursor.reading = True
        self._batches[cursor.follower] = Batch(entries, {entry.base for entry in missing})
        effects: list[Effect] = []
        for entry in missing:
            if entry.base in self._wanted:
                continue
            candidates = self._candidates(entry, cursor.follower)
            if not candidates:
                return effects + self._give_up(entry)
            self._wanted[entry.base] = Wanted(entry, candidates[0], candidates[1:])
            effects.append(self._ask(entry, candidates[0]))
        return effects

    def _candidates(self, entry: Entry, follower: Member) -> list[Member]:
        """Members with a link: whoever acknowledged it first, in its order, and those that do not answer last."""
        leader = self.leader
        ensemble = leader.ensemble
        ranked = [ensemble[slot] for slot in slots_of(entry.order, len(ensemble))]
        ranked += [member for member in leader.cursors if member not in ranked]
        here = [
            member for member in ranked
            if member not in (leader.replica.me, follower) and not leader.is_dead(member)
        ]
        matches = leader.matches()
        return sorted(here, key=lambda member: (member in self._mute, matches.get(member, -1) < entry.last))

    def _ask(self, entry: Entry, member: Member) -> Effect:
        return self.leader.replica.fetches.ask(member, entry.base, entry.epoch)

    def _give_up(self, entry: Entry) -> list[Effect]:
        """Nobody has it now: whoever waits for it begins anew with the resend timer."""
        self._wanted.pop(entry.base, None)
        for follower, batch in list(self._batches.items()):
            if entry.base in batch.missing:
                del self._batches[follower]
                if (cursor := self.leader.cursors.get(follower)) is not None:
                    cursor.reading = False
        self._prune()
        return [self.leader.replica.trace("payload_unavailable", f"{entry.id}")]

    def on_fetched(self, sender: Member, m: Fetched) -> tuple[Effect, ...] | None:
        """Take an answer to one of our questions; None when it is not one."""
        self._mute.discard(sender)
        wanted = self._wanted.get(m.base)
        if wanted is None:
            return None
        entry = m.entry
        if entry is None or entry.header != wanted.entry.header or not entry.held:
            if sender != wanted.asked:
                return ()
            if not wanted.left:
                return tuple(self._give_up(wanted.entry))
            wanted.asked = wanted.left.pop(0)
            return (self._ask(wanted.entry, wanted.asked),)
        del self._wanted[m.base]
        effects: list[Effect] = []
        for follower, batch in list(self._batches.items()):
            if m.base not in batch.missing:
                continue
            batch.missing.discard(m.base)
            batch.moved = True
            batch.entries = tuple(entry if each.base == m.base else each for each in batch.entries)
            if not batch.missing:
                del self._batches[follower]
                effects += self._push(follower, batch.entries)
        return tuple(effects)

    def _push(self, follower: Member, entries: tuple[Entry, ...]) -> list[Effect]:
        cursor = self.leader.cursors.get(follower)
        if cursor is None or not cursor.reading or cursor.next != entries[0].base:
            return []
        cursor.reading = False
        return self.leader.push_read(cursor, entries)

    def moved(self, cursor: Cursor) -> bool:
        """Say whether something came for this cursor since the last look."""
        batch = self._batches.get(cursor.follower)
        if batch is None or not batch.moved:
            return False
        batch.moved = False
        return True

    def forget(self, follower: Member) -> None:
        """The cursor was rewound, or is gone: what it waited for is read again when it is wanted again."""
        if (batch := self._batches.pop(follower, None)) is not None:
            self._mute |= {self._wanted[base].asked for base in batch.missing if base in self._wanted}
            self._prune()

    def _prune(self) -> None:
        needed = {base for batch in self._batches.values() for base in batch.missing}
        self._wanted = {base: wanted for base, wanted in self._wanted.items() if base in needed}
