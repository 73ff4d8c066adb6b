"""Silence: when a connection of streams is asked for a sign of life, and when it is given up.

An idle member sends NOOP, and the consumer answers it; neither counts in a stream's window.  Both sides notice a peer
that hangs though its connection stays open (rule U61).  Stays out: sending, closing.
"""

from __future__ import annotations

from enum import Enum

NOOP_MS = 20_000


class Due(Enum):
    """The action that silence asks for."""

    NOTHING = 0
    NOOP = 1     # send NOOP
    DEAD = 2     # close: the peer says nothing


class MemberSilence:
    """The member's side: NOOP after `noop_ms` without a message of its own, closed when as long no answer comes."""

    __slots__ = ("_asked_ms", "_noop_ms", "_sent_ms")

    def __init__(self, now_ms: int, noop_ms: int = NOOP_MS) -> None:
        self._noop_ms = noop_ms
        self._sent_ms = now_ms
        self._asked_ms: int | None = None   # when the NOOP that waits for its answer was sent

    def sent(self, now_ms: int) -> None:
        self._sent_ms = now_ms

    def heard(self) -> None:
        """The consumer sent anything: an acknowledgement answers as well as a NOOP."""
        self._asked_ms = None

    def due(self, now_ms: int) -> Due:
        """Return the action for now; a NOOP that this asks for counts as sent."""
        if self._asked_ms is not None:
            return Due.DEAD if now_ms >= self._asked_ms + self._noop_ms else Due.NOTHING
        if now_ms < self._sent_ms + self._noop_ms:
            return Due.NOTHING
        self._asked_ms = self._sent_ms = now_ms
        return Due.NOOP

    @property
    def next_ms(self) -> int:
        """Return when `due` may ask for something."""
        return (self._sent_ms if self._asked_ms is None else self._asked_ms) + self._noop_ms


class ConsumerSilence:
    """The consumer's side: closed when two intervals pass without any message."""

    __slots__ = ("_heard_ms", "_noop_ms")

    def __init__(self, now_ms: int, noop_ms: int = NOOP_MS) -> None:
        self._noop_ms = noop_ms
        self._heard_ms = now_ms

    def heard(self, now_ms: int) -> None:
        self._heard_ms = now_ms

    def due(self, now_ms: int) -> Due:
        return Due.DEAD if now_ms >= self.next_ms else Due.NOTHING

    @property
    def next_ms(self) -> int:
        return self._heard_ms + 2 * self._noop_ms
