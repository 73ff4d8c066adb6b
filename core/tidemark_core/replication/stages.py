"""Stages: when readers are given a confirmed entry where fewer than all members keep payloads, and when it is complete.

Rules K10, K11.  Readers ask the first slot of an entry's order for it, so that slot should have it first; but nobody
waits for the dead, nor for long.  In memory only: a promise to nobody.
Stays out: commit and confirmed, which do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..base.effects import Effect, SetTimer
from ..base.ids import Member
from ..delivery.order import slots_of
from .copies import copies_in_force

if TYPE_CHECKING:
    from .leader import Leader

RELEASE_TIMER = "release"


class Stages:
    """How far the entries of one leadership are through."""

    __slots__ = ("_waits_to", "leader")

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._waits_to: int | None = None   # the timer releases up to here, whoever lacks it (S30)

    def advance(self, now_ms: int, matches: Mapping[Member, int]) -> list[Effect]:
        """Release what the left-most have; the rest once it has waited."""
        replica = self.leader.replica
        effects: list[Effect] = []
        if replica.released < replica.confirmed:
            settings = replica.copy_settings
            reached = self._reached(replica.released + 1, settings.sync_leaders, matches, pass_dead=True)
            effects += replica.advance_confirmed(replica.confirmed, reached)
        if replica.released < replica.confirmed and self._waits_to is None:
            self._waits_to = replica.confirmed
            effects.append(SetTimer(replica.address, RELEASE_TIMER, now_ms + replica.copy_settings.release_ms))
        return effects

    def on_timer(self, now_ms: int) -> list[Effect]:
        waited, self._waits_to = self._waits_to, None
        if waited is None:
            return []
        replica = self.leader.replica
        released = replica.advance_confirmed(replica.confirmed, waited)
        if released:
            released.append(replica.trace("released_late", f"up to {waited}"))
        return released + self.advance(now_ms, self.leader.matches())

    def complete(self) -> int:
        """Return up to where the first `leaders` of the order have everything, a prefix; never beyond confirmed."""
        replica = self.leader.replica
        if not self.leader.selective:
            return replica.confirmed   # the stages are one (S29)
        count = replica.copy_settings.leaders or copies_in_force(replica.state.copies, len(self.leader.ensemble))
        return self._reached(replica.log.first, count, self.leader.matches(), pass_dead=False)

    def _reached(self, first: int, count: int, matches: Mapping[Member, int], *, pass_dead: bool) -> int:
        leader, replica = self.leader, self.leader.replica
        ensemble = leader.ensemble
        for begin, last, order in replica.log.order_spans(first, replica.confirmed):
            members = [ensemble[slot] for slot in slots_of(order, len(ensemble))[:count]]
            reached = min((matches.get(m, -1) for m in members if not (pass_dead and leader.is_dead(m))), default=last)
            if reached < last:
                return max(begin - 1, reached)
        return replica.confirmed
