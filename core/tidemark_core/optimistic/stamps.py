"""Stamps: hybrid logical times that order all writes of a keyspace, and dots that number the writes of one process.

Stays out: refusing stamps from the future (`owner`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from xxhash import xxh3_64_digest

START_BYTES = 8
LOGICAL_MAX = (1 << 32) - 1
BEYOND_MS = 60_000
"""Dots of so long a time to come have one actor."""


class Actor(NamedTuple):
    """One run of one node's process: whose dots are counted together (D53)."""

    node: str
    start: bytes   # 8 bytes


class Stamp(NamedTuple):
    """The time of a write.  The order of the fields is the order of stamps (D54)."""

    ms: int        # since the epoch, by the highest clock that the writer knew of
    logical: int   # orders the stamps of one millisecond
    node: str
    start: bytes


ZERO = Stamp(0, 0, "", bytes(START_BYTES))
"""Below every stamp of a write."""


class Dot(NamedTuple):
    """A number that no other write of the actor has, and the stamp that was drawn with it."""

    n: int
    stamp: Stamp

    @property
    def actor(self) -> Actor:
        """The actor whose number this is."""
        return Actor(self.stamp.node, self.stamp.start)


def actor_of(node: str, boot: str) -> Actor:
    """Return the actor of a run; `boot` is the random id of the run (`NodeFacts.boot`)."""
    return Actor(node, xxh3_64_digest(boot.encode()))


def numbers_of(actor: Actor) -> Iterator[int]:
    """Yield numbers of 63 bits for what a run asks of others: answers to another run of its node count for nothing."""
    return count(int.from_bytes(actor.start) >> 2)


class Clock:
    """Draws the dots of one actor; each stamp is above all that the clock drew, and saw within its bound.

    Above a stamp from the future it draws for other actors, one for each `BEYOND_MS` of the time to come.
    """

    __slots__ = ("_beyond", "_logical", "_ms", "_n", "_skew_ms", "actor")

    def __init__(self, actor: Actor, skew_ms: int) -> None:
        self.actor = actor
        self._skew_ms = skew_ms
        self._ms = self._logical = self._n = 0
        self._beyond: dict[int, Dot] = {}       # the last dot, by its time

    def draw(self, now_ms: int, above: Stamp = ZERO) -> Dot:
        """Return the next dot, with a stamp above `above`.

        One call takes both numbers, so dots of one actor have the order of their stamps.
        """
        if above.ms > self.latest_ms(now_ms):
            return self._draw_beyond(*_next(above.ms, above.logical))
        self.saw(above, now_ms)
        if now_ms > self._ms:
            self._ms, self._logical = now_ms, 0
        else:
            self._ms, self._logical = _next(self._ms, self._logical)
        self._n += 1
        return Dot(self._n, Stamp(self._ms, self._logical, *self.actor))

    def _draw_beyond(self, ms: int, logical: int) -> Dot:
        """Return a dot from the future, of an actor of its own: later dots of this clock are lower.

        An actor for each dot would fill an element with removed cells while this clock is behind those of owners.
        """
        part, n = ms // BEYOND_MS, 1
        last = self._beyond.get(part)
        if last is not None:
            n = last.n + 1
            if last.stamp[:2] >= (ms, logical):
                ms, logical = _next(last.stamp.ms, last.stamp.logical)
                if ms // BEYOND_MS != part:
                    return self._draw_beyond(ms, logical)
        start = xxh3_64_digest(self.actor.start + part.to_bytes(8, "big"))
        dot = self._beyond[part] = Dot(n, Stamp(ms, logical, self.actor.node, start))
        return dot

    def saw(self, stamp: Stamp, now_ms: int) -> None:
        """Learn of a stamp that was stored here or reported by another owner; one from the future changes nothing."""
        if stamp.ms <= self.latest_ms(now_ms) and stamp[:2] > (self._ms, self._logical):
            self._ms, self._logical = stamp.ms, stamp.logical

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time that a stamp may have; one beyond is from the future."""
        return now_ms + self._skew_ms


def _next(ms: int, logical: int) -> tuple[int, int]:
    return (ms, logical + 1) if logical < LOGICAL_MAX else (ms + 1, 0)
