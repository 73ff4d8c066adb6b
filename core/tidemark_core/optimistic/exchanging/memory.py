"""Memory: how many bytes the digests of all ranges of a node take, and which of them go when they are too many (D85).

The digests of a range count once its unit says how large they are.  Over the bound the range that was not compared for
the longest time goes first.  While nothing more can go, ranges build their digests one behind the other.
Stays out: the digests themselves (`tree`), whether a range is being compared (`holding`).
"""

from __future__ import annotations


class Memory:
    """The memory of the trees of one node.  `bytes_max` is the bound."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.forgotten = 0                      # trees, since the start of the node
        self._sizes: dict[int, int] = {}        # of the trees that are not away
        self._used_ms: dict[int, int] = {}      # when a tree was last compared
        self._queue: dict[int, None] = {}       # ranges that build while there is no room, the next one first

    @property
    def full(self) -> bool:
        """Whether the trees take more than the bound."""
        return self.bytes > self.bytes_max

    def sized(self, unit: int, size: int) -> None:
        """Take the size of a tree in bytes; 0: it is away."""
        self.bytes += size - self._sizes.pop(unit, 0)
        if size:
            self._sizes[unit] = size

    def used(self, unit: int, now_ms: int) -> None:
        """Note that a tree is compared now."""
        self._used_ms[unit] = now_ms

    def gone(self, unit: int) -> None:
        """Take note that a range is held here no more."""
        self.sized(unit, 0)
        self._used_ms.pop(unit, None)
        self.passes(unit)

    def oldest(self, upto_ms: int) -> list[int]:
        """Return the ranges with a tree that was not compared since a time, the least recently compared one first."""
        at_ms = {unit: self._used_ms.get(unit, -1) for unit in self._sizes}
        return sorted((unit for unit in at_ms if at_ms[unit] < upto_ms), key=lambda unit: (at_ms[unit], unit))

    def may_grow(self, unit: int) -> bool:
        """Say whether a range may read more of its tree; over the bound one does, until it `passes`."""
        if not self.full:
            self.passes(unit)
            return True
        self._queue.setdefault(unit)
        return next(iter(self._queue)) == unit

    def passes(self, unit: int) -> None:
        """Let the next range build: this one is done, or waits for its disk."""
        self._queue.pop(unit, None)
