"""Dropped: where payloads were dropped and may still take space, one range of offsets per shard.

A range holds everything dropped in its shard since the last time it was taken, and what lies in between.
Stays out: storing it (`store`), giving the space back (`reclaim`).
"""

from __future__ import annotations

from tidemark_core.base.ids import ShardId
from tidemark_core.base.layout import Span, hull


class Dropped:
    """Inclusive ranges, those that wait and those that somebody works on."""

    __slots__ = ("_taken", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[ShardId, Span] = {}
        self._taken: dict[ShardId, Span] = {}

    def add(self, shard: ShardId, first: int, last: int) -> None:
        """Payloads of [first, last] were dropped, or were not reached by whoever took the range."""
        self._waiting[shard] = hull(self._waiting.get(shard), (first, last))

    def shards(self) -> list[ShardId]:
        """Return the shards with something to take."""
        return list(self._waiting)

    def waiting(self, shard: ShardId) -> Span | None:
        """Return what could be taken of a shard."""
        return self._waiting.get(shard)

    def take(self, shard: ShardId) -> Span | None:
        """Take the range of a shard to work on; what is dropped from now on makes another one."""
        taken = self._waiting.pop(shard, None)
        if taken is not None:
            self._taken[shard] = taken
        return taken

    def put_back(self, shard: ShardId, first: int) -> None:
        """The range taken is done with up to `first`; the rest of it waits again."""
        last = self._taken.pop(shard)[1]
        if first <= last:
            self.add(shard, first, last)

    def known(self, shard: ShardId) -> Span | None:
        """Return what a shard has in all, None when nothing: what a restart must not forget."""
        waiting, taken = self._waiting.get(shard), self._taken.get(shard)
        return hull(taken, waiting) if waiting is not None else taken
