"""Standing: a member's part in a range, and what a newer record makes of it.

Stays out: deleting the rows of a range that was left, copying one, making promises.
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.ids import Member
from .ring import Range


class Standing(NamedTuple):
    """A member's part in a range.  All of it is durable before the member acts on it."""

    me: Member
    record: Range
    promise_ms: int = 0      # it takes no external cell up to here
    copying: bool = False    # a pending owner that has not copied the range yet
    withdrawn: bool = False  # its disk is older than the floor
    exchanged: tuple[tuple[Member, int], ...] = ()   # when the last whole exchange with each other owner began (D74)

    @property
    def others(self) -> tuple[Member, ...]:
        """The owners that this one pulls from by itself; none where it is no owner, or an old disk (D74)."""
        members = self.record.own.members
        return tuple(each for each in members if each != self.me) if self.me in members and not self.withdrawn else ()


def adopted(before: Standing, record: Range) -> Standing:
    """Return the standing under a newer record; the same where the record is no newer (D65, D71).

    An owner that has not promised the floor was not asked in its round: its disk may hold what was collected.
    """
    known = before.record
    if (record.version, record.floor_ms) <= (known.version, known.floor_ms):
        return before
    if before.me not in record.own.members:
        return Standing(before.me, record, before.promise_ms, copying=record.holds(before.me))
    risen = record.floor_ms > known.floor_ms
    withdrawn = before.withdrawn or (risen and before.promise_ms < record.floor_ms)
    return Standing(before.me, record, before.promise_ms, withdrawn=withdrawn, exchanged=before.exchanged)
