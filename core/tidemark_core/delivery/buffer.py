"""Buffer: what has arrived ahead of the next offset, in offset order.

Stays out: who sent it and why, beyond the bytes each node has lying here.
"""

from __future__ import annotations

from heapq import heappop, heappush

from .messages import Item


class Buffer:
    """Items by first offset; of two that begin alike the longer wins.

    Nodes that send the same put different numbers of entries into an item, and may cut a rolled-back range differently.
    Where their items overlap otherwise, both lie here until the offsets are taken.
    """

    __slots__ = ("_end", "_heap", "_items", "bytes", "bytes_of", "duplicates")

    def __init__(self) -> None:
        self._items: dict[int, tuple[Item, str]] = {}
        self._heap: list[int] = []
        self.bytes = 0
        self.bytes_of: dict[str, int] = {}   # by the node that sent them
        self.duplicates = 0                  # entries found to have come before
        self._end = -1                       # behind what was taken last

    def put(self, item: Item, node: str) -> None:
        """Keep an item, unless one that begins alike and is as long lies here already."""
        held = self._items.get(item.first)
        if held is None:
            heappush(self._heap, item.first)
        elif held[0].last >= item.last:
            self.duplicates += item.entry_count
            return
        else:
            self.duplicates += held[0].entry_count
            self._forget(*held)
        self._items[item.first] = (item, node)
        self.bytes += item.size
        self.bytes_of[node] = self.bytes_of.get(node, 0) + item.size

    def take(self, offset: int) -> tuple[Item, str] | None:
        """Remove and return what holds `offset`; whatever ends before it is dropped."""
        while self._heap and self._heap[0] <= offset:
            item, node = self._items.pop(heappop(self._heap))
            self._forget(item, node)
            found = item.part(offset, item.last) if item.last >= offset else None
            if offset == self._end:          # else a gap was passed, and what it held was never taken
                self.duplicates += item.entry_count - (found.entry_count if found is not None else 0)
            if found is not None:
                self._end = found.last + 1
                return found, node
        return None

    def first(self) -> int | None:
        """Return the lowest offset an item begins at."""
        return self._heap[0] if self._heap else None

    def clear(self) -> None:
        self._items.clear()
        self._heap.clear()
        self.bytes_of.clear()
        self.bytes = 0

    def _forget(self, item: Item, node: str) -> None:
        self.bytes -= item.size
        self.bytes_of[node] -= item.size
