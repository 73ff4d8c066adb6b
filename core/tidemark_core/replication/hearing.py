"""Hearing: whose answers a leadership hears, and since when no majority's (rule O43).

A look costs nothing on the way of an append: it compares what cursors noted.  Stays out: reports, and what follows from
them (`reach`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.effects import Space
from ..base.quorum import majority
from .cursor import CursorStatus
from .messages import Unheard

if TYPE_CHECKING:
    from .leader import Leader


class Hearing:
    """The ears of one leadership.  All times are milliseconds."""

    __slots__ = ("_cut_ms", "_leader")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._cut_ms: int | None = None     # since when no majority is heard

    def look(self, now_ms: int, silence_ms: int) -> tuple[Unheard | None, bool]:
        """Return what is not heard, None for nothing, and whether another look is needed though nothing happens.

        A member that is down counts as unheard at once, one whose link stands after `silence_ms` without an answer.
        """
        leader = self._leader
        if not leader.active:
            return None, True
        me, head, cursors = leader.replica.me, leader.head, leader.cursors
        unheard, linked, heard, waits = [], 1, 1, False
        for member in leader.ensemble:
            if member == me:
                continue
            cursor = cursors.get(member)
            if cursor is None:
                unheard.append(member)
                continue
            if cursor.match >= head:
                cursor.waits_ms = None
            elif cursor.waits_ms is None:
                cursor.waits_ms = now_ms
            waits = waits or cursor.waits_ms is not None
            quiet = cursor.is_quiet(now_ms, silence_ms)
            linked += cursor.up
            heard += cursor.up and not quiet
            if cursor.status is CursorStatus.SILENCED:
                continue    # it leaves, so nothing waits for it
            if (
                quiet or not cursor.up or cursor.absent or cursor.status is not CursorStatus.ATTACHED
                or cursor.space is Space.EXHAUSTED
            ):
                unheard.append(member)
        silent_ms = self._silent_ms(now_ms, silence_ms, linked, heard)
        if not unheard and not silent_ms:
            return None, waits
        return Unheard(leader.replica.shard, leader.epoch, tuple(unheard), silent_ms), True

    def _silent_ms(self, now_ms: int, silence_ms: int, linked: int, heard: int) -> int:
        quorum = majority(len(self._leader.ensemble))
        if heard >= quorum:
            self._cut_ms = None
            return 0
        if self._cut_ms is None:
            # Members whose links stand were quiet for all of that time already.
            self._cut_ms = now_ms - (silence_ms if linked >= quorum else 0)
        return max(1, now_ms - self._cut_ms)

    def stepped(self, by_ms: int) -> None:
        """Our `now_ms` has moved by `by_ms` against the time that passed."""
        if self._cut_ms is not None:
            self._cut_ms += by_ms
        for cursor in self._leader.cursors.values():
            if cursor.heard_ms is not None:
                cursor.heard_ms += by_ms
            if cursor.waits_ms is not None:
                cursor.waits_ms += by_ms
