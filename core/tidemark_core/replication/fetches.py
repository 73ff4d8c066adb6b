"""Fetches: which questions for a copy of an entry are open, so that an answer counts only to a question (T10).

Stays out: why an entry is wanted, and what becomes of the answer.
"""

from __future__ import annotations

from collections import OrderedDict

from ..base.effects import Send
from ..base.ids import Address, Member
from .messages import Fetch

OPEN_MAX = 4096
"""More open questions than this drop the oldest: an answer that was lost leaves its question open."""


class Fetches:
    """The open questions of one replica, by member and base offset, with how often each was asked."""

    __slots__ = ("_address", "_open")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._open: OrderedDict[tuple[Member, int], int] = OrderedDict()

    def ask(self, member: Member, base: int, epoch: int) -> Send:
        """Return the question to `member` for the entry of this base offset and epoch, and note that it is open."""
        key = (member, base)
        self._open[key] = self._open.pop(key, 0) + 1
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        return Send(self._address, member, Fetch(base, epoch))

    @property
    def open(self) -> list[tuple[Member, int]]:
        """Return the open questions, the oldest first."""
        return list(self._open)

    def answered(self, member: Member, base: int) -> bool:
        """Close one question; False when none to this member for this offset is open."""
        times = self._open.pop((member, base), 0)
        if times > 1:
            self._open[member, base] = times - 1
        return times > 0
