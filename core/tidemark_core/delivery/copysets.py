"""Copysets: in which order the slots of the ensemble stand behind an entry; its leader chooses it at append (K1).

The order says two things for ever: who sends the entry (the first slot that lives), and who keeps its payload when
fewer than all do (the first R).  So the first places are spread evenly over the bytes of the log, for reading; of
every prefix the places are, for storage; who is second behind whom is, so that the load of a dead slot is taken over
by all others; and the first R slots span as many zones as there are.  Slots believed dead stand right-most.

An order holds for a block of the log: readers get long runs from one member, and a log remembers few of them.  A block
also ends when the ensemble, the zones or the slots believed dead change.  Blocks of the full length would leave a short
log to one member, so they begin small and grow with what was placed: the share of a slot is off by a tenth at most.
No dice: a leader that begins anew, and another shard, begin with another slot by their seed.
Stays out: who is believed dead; how many copies there are, for every prefix is spread alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..base.ids import Member
from ..base.limits import BLOCK_BYTES, BLOCK_MS
from .order import SLOTS_MAX

BLOCK_BYTES_MIN = 1 << 20
UNEVEN = 10
"""One part in so many of its share a slot may be off, for a block that is not at its end."""

Zones = Sequence[tuple[str, str]]
"""Pairs of node and zone; a node that is not named has none that is known."""


class Copysets:
    """The orders one leadership gives to one shard's entries."""

    __slots__ = (
        "_began_ms", "_block_bytes", "_block_ms", "_block_used", "_dead", "_ensemble", "_order", "_placed", "_prefix",
        "_seed", "_slots", "_stood_in", "_zones",
    )

    def __init__(self, seed: int, block_bytes: int = BLOCK_BYTES, block_ms: int = BLOCK_MS) -> None:
        self._seed = seed
        self._block_bytes = block_bytes
        self._block_ms = block_ms
        self._ensemble: tuple[Member, ...] = ()
        self._dead: tuple[int, ...] = ()
        self._zones: Zones = ()
        self._slots: list[int] = []              # order of the block under way
        self._order = 0                          # the same, packed
        self._began_ms = 0
        self._block_used = 0                     # bytes in the block under way
        self._placed = 0                         # bytes in all blocks before
        self._prefix: list[list[int]] = []       # [place][slot]: bytes for which the slot stands there or further left
        self._stood_in: list[list[int]] = []     # [first][other]: bytes for which the other is second behind the first

    def order(
        self, now_ms: int, size_bytes: int, ensemble: tuple[Member, ...], down: Collection[Member], zones: Zones = ()
    ) -> int:
        """Return the order of the next entry, of `size_bytes`: one nibble a place, the left-most slot lowest."""
        dead = tuple(slot for slot, member in enumerate(ensemble) if member in down) if down else ()
        if (
            self._block_used >= self._limit or not 0 <= now_ms - self._began_ms < self._block_ms
            or dead != self._dead or ensemble != self._ensemble or (zones is not self._zones and zones != self._zones)
        ):
            self._end_block()
            self._turn_to(ensemble, dead, zones)
            self._choose()
            self._began_ms = now_ms
        self._block_used += size_bytes
        return self._order

    @property
    def _limit(self) -> int:
        """Return how long a block may be."""
        share = self._placed // (UNEVEN * max(1, len(self._ensemble)))
        return min(self._block_bytes, max(BLOCK_BYTES_MIN, share))

    def _end_block(self) -> None:
        used, slots = self._block_used, self._slots
        for place, counted in enumerate(self._prefix):
            for slot in slots[: place + 1]:
                counted[slot] += used
        if len(slots) > 1:
            self._stood_in[slots[0]][slots[1]] += used
        self._placed += used
        self._block_used = 0

    def _turn_to(self, ensemble: tuple[Member, ...], dead: tuple[int, ...], zones: Zones) -> None:
        """Whoever comes back counts like the least of those who stayed: it is not owed what it missed."""
        size = len(ensemble)
        if size != len(self._ensemble):
            self._prefix = [[0] * size for _ in range(size)]
            self._stood_in = [[0] * size for _ in range(size)]
        elif back := [slot for slot in self._dead if slot not in dead]:
            stayed = [slot for slot in range(size) if slot not in self._dead and slot not in dead]
            for counted in (*self._prefix, *self._stood_in):
                least = min((counted[slot] for slot in stayed), default=0)
                for slot in back:
                    counted[slot] = max(counted[slot], least)
        self._ensemble, self._dead, self._zones = ensemble, dead, zones

    def _choose(self) -> None:
        """Fill the places from the left, each with the slot that stood there, or further left, for the least bytes."""
        size = min(len(self._ensemble), SLOTS_MAX)
        zone_of = dict(self._zones)
        zones = [zone_of.get(member.node, "") for member in self._ensemble]
        slots: list[int] = []
        while len(slots) < size:
            left = [slot for slot in range(size) if slot not in slots]
            slots.append(min(left, key=lambda slot: self._rank(slot, slots, zones)))
        self._slots = slots
        self._order = sum(slot << 4 * place for place, slot in enumerate(slots))

    def _rank(self, slot: int, slots: Sequence[int], zones: Sequence[str]) -> tuple[bool, int, int, int]:
        """Return by what the slots for the place behind `slots` are compared; the lowest gets it."""
        place, size = len(slots), len(zones)
        zone, bytes_before = zones[slot], self._prefix[place][slot]
        # A zone that is not known is never taken for another one; nor does the first place care for zones.
        times = sum(zones[other] == zone for other in slots) + (not zone) if slots else 0
        if place == 1:
            bytes_before += size * self._stood_in[slots[0]][slot]
        return slot in self._dead, times, bytes_before, (slot - self._seed) % size
