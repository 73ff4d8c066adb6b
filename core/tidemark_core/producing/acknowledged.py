"""Acknowledged: batches that have left a producer, acknowledged ones and undecided ones given to callers.

A new leader may ask for a sequence behind which batches were answered already (L21).  This says whether it can be
sent again, was lost as LOCAL allows, or was promised.
Stays out: sending, and telling anybody.
"""

from __future__ import annotations

from collections import deque

from ..base.entry import Durability
from .flights import IN_FLIGHT_MAX, Flight

LOCAL_REMEMBERED_MAX = 4096


class Acknowledged:
    """Batches of one producer that are no longer in flight."""

    __slots__ = ("_local", "_undecided", "promised")

    def __init__(self) -> None:
        self.promised = -1  # newest sequence answered with more than LOCAL
        self._local: deque[tuple[int, int]] = deque(maxlen=LOCAL_REMEMBERED_MAX)  # sequence, records
        self._undecided: deque[Flight] = deque(maxlen=IN_FLIGHT_MAX)

    def note(self, sequence: int, count: int, durability: Durability) -> None:
        """A batch of so many records was answered."""
        if durability is Durability.LOCAL:
            self._local.append((sequence, count))
        else:
            self.promised = max(self.promised, sequence)
            self.decided(sequence)

    def decided(self, sequence: int) -> None:
        """The log holds this sequence for good, so it holds every earlier one and will ask for none of them."""
        while self._undecided and self._undecided[0].batch.sequence < sequence:
            self._undecided.popleft()

    def keep(self, flight: Flight) -> None:
        """Its callers went on without knowing its fate; it is kept, should the log turn out not to have it."""
        flight.out, flight.expired = None, True
        self._undecided.append(flight)

    def take_back(self, expected: int, oldest: int) -> list[Flight]:
        """Return the undecided batches that are the sequences [expected, oldest), none unless all are there."""
        back = [flight for flight in self._undecided if flight.batch.sequence >= expected]
        if [flight.batch.sequence for flight in back] != list(range(expected, oldest)):
            return []
        for flight in back:
            self._undecided.remove(flight)
        return back

    def local_lost(self, expected: int) -> int:
        """Return how many records acknowledged as LOCAL are gone when the log goes on at `expected`."""
        return sum(count for sequence, count in self._local if sequence >= expected)
