"""Dropping: when a leader tells which payloads are surplus, and which it sends without.

Facts are told, not ranges: matches by slot, commit, who sits where.  They are told when much has become committed, a
while after the last progress, and once more; nobody answers, and a loss costs only space.
Stays out: what follows from the facts (`holding`, `copies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.effects import Effect, SetTimer
from ..base.entry import Entry, Kind
from ..base.ids import Member
from .copies import Seat, surplus_upto
from .cursor import Cursor, CursorStatus
from .holding import sweep
from .messages import Drop, Operation

if TYPE_CHECKING:
    from .leader import Leader

DROP_TIMER = "drop"


class Dropping:
    """What one leadership told of surplus payloads."""

    __slots__ = ("_armed", "_repeated", "_told", "_told_bytes", "leader")

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._armed = False
        self._told: Drop | None = None
        self._repeated = False      # the last facts went out twice
        self._told_bytes = 0

    @property
    def paused(self) -> bool:
        """From PREPARE of a contract or of other copies until its outcome is stored nothing is surplus (K13)."""
        leader = self.leader
        change = leader.change
        return leader.contracted or (
            change is not None and change.operation in (Operation.CONTRACT, Operation.COPIES)
        )

    def facts(self) -> Drop:
        """Return what decides now; a slot that is leaving, or whose member never answered, counts as having nothing."""
        leader, replica = self.leader, self.leader.replica
        matches = leader.matches()
        ensemble = leader.ensemble
        return Drop(
            leader.epoch, ensemble, replica.state.copies, tuple(matches.get(member, -1) for member in ensemble),
            replica.commit,
        )

    def on_progress(self, now_ms: int) -> list[Effect]:
        """Something was acknowledged."""
        replica = self.leader.replica
        if self.paused:
            return []
        if replica.log.floor.bytes_total - self._told_bytes >= replica.limits.drop_bytes:
            return self._tell(self.facts())
        if self._armed or (self._repeated and self.facts() == self._told):
            return []   # acknowledgements of what we say here are no progress: an idle shard costs nothing
        return self._arm(now_ms)

    def _arm(self, now_ms: int) -> list[Effect]:
        if self._armed:
            return []
        self._armed = True
        replica = self.leader.replica
        return [SetTimer(replica.address, DROP_TIMER, now_ms + replica.limits.drop_ms)]

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Tell, and go on until nothing is new: the last facts are told twice, for the first may be lost."""
        self._armed = False
        if not self.leader.selective or self.paused:
            return []
        effects = [*self._tell(self.facts()), *self.leader.say_watermarks()]
        return effects if self._repeated else [*effects, *self._arm(now_ms)]

    def on_attached(self, cursor: Cursor) -> list[Effect]:
        """A link is there (again): what was told meanwhile is lost."""
        if not self.leader.selective or self.paused or cursor.status is not CursorStatus.ATTACHED:
            return []
        return [self.leader.replica.send(cursor.follower, self.facts())]

    def _tell(self, facts: Drop) -> list[Effect]:
        leader, replica = self.leader, self.leader.replica
        self._repeated = facts == self._told
        self._told, self._told_bytes = facts, replica.log.floor.bytes_total
        effects: list[Effect] = [
            replica.send(cursor.follower, facts)
            for cursor in leader.cursors.values()
            if cursor.status is CursorStatus.ATTACHED and cursor.up
        ]
        writes = sweep(replica, facts)
        if writes:
            effects += [replica.persist(writes), replica.trace("payloads_dropped", f"up to {replica.state.dropped}")]
        return effects

    # --- sending without ----------------------------------------------------------------------------------

    def part_for(
        self, follower: Member, entries: tuple[Entry, ...], commit: int
    ) -> tuple[tuple[Entry, ...], list[Entry]]:
        """Return `entries` as a member may get them, headers alone where the payload is surplus there (K7).

        And those that it has to get whole and that we do not keep ourselves.
        """
        leader = self.leader
        if self.paused or entries[0].last > commit or follower not in leader.ensemble:
            return entries, [entry for entry in entries if not entry.held]
        seat = Seat(leader.ensemble.index(follower), len(leader.ensemble), leader.replica.state.copies)
        return strip(seat, self.facts().matches, entries, commit)


def strip(
    seat: Seat, matches: Sequence[int], entries: Iterable[Entry], commit: int
) -> tuple[tuple[Entry, ...], list[Entry]]:
    """Return `entries` without what is surplus at `seat`, and those that are not and are not held."""
    bounds: dict[int, int] = {}
    part: list[Entry] = []
    missing: list[Entry] = []
    for entry in entries:
        if entry.kind is Kind.DATA:
            if entry.order not in bounds:
                bounds[entry.order] = surplus_upto(seat, entry.order, matches, commit)
            if entry.last <= bounds[entry.order]:
                part.append(entry.bare())
                continue
        part.append(entry)
        if not entry.held:
            missing.append(entry)
    return tuple(part), missing
