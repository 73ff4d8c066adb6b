"""Replaying: which hints of a node are replayed next (D73).

Ranges take turns, and hints of one range go the oldest first.  A replay that failed puts its hint behind the others of
its range, and the range rests: its owners are away.
Stays out: the writes (`coordinating.writing`), the disk.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from ..cells import Place, Row
from ..coordinating.operations import Steps, WriteStep
from ..coordinating.writing import Done
from ..messages import RowsWrite


def replay(place: Place, row: Row) -> Steps[Done]:
    """Write the row of a hint as it is."""
    done: Done = yield WriteStep(lambda _: RowsWrite(((place, row),)), fixed=True)
    return done


class _Queue:
    """The hints of one range that wait."""

    __slots__ = ("numbers", "until_ms")

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.until_ms = 0       # the range rests until then


class Replays:
    """The hints that are not delivered, by range.  Numbers are those of `Hints`."""

    def __init__(self, replays_max: int, pause_ms: int) -> None:
        self._replays_max = replays_max
        self._pause_ms = pause_ms
        self._queues: dict[int, _Queue] = {}
        self._running: dict[int, None] = {}

    def waits(self, known: Container[int]) -> bool:
        """Say whether a hint waits of a range that is known."""
        return any(index in known for index in self._queues)

    def add(self, index: int, number: int) -> None:
        """Let a hint of a range wait for its replay."""
        self._queues.setdefault(index, _Queue()).numbers[number] = None

    def begin(self, now_ms: int, known: Container[int]) -> list[int]:
        """Return the hints that are replayed from now on: of ranges that are known and do not rest."""
        found: list[int] = []
        for index, queue in list(self._queues.items()):
            # a clock that was set back must not make a range rest for longer
            rests = 0 < queue.until_ms - now_ms <= self._pause_ms
            if rests or index not in known:
                continue
            begun = list(islice(queue.numbers, self._replays_max - len(self._running)))
            for number in begun:
                del queue.numbers[number]
            self._running.update(dict.fromkeys(begun))
            found += begun
            if begun:
                del self._queues[index]     # the other ranges come first now
            if begun and queue.numbers:
                self._queues[index] = queue
        return found

    def ended(self, number: int) -> None:
        """Take the end of a replay."""
        self._running.pop(number, None)

    def dropped(self, index: int, number: int) -> None:
        """Let a hint wait no more; a replay that is under way ends as it would."""
        queue = self._queues.get(index)
        if queue is not None:
            queue.numbers.pop(number, None)
            if not queue.numbers:
                del self._queues[index]

    def failed(self, now_ms: int, index: int, number: int) -> None:
        """Let the range of a hint rest whose replay failed; the hint comes behind the others."""
        self.add(index, number)
        self._queues[index].until_ms = now_ms + self._pause_ms
