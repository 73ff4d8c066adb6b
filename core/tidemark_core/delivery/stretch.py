"""A stretch of stored log as one member sends it: headers first, payloads only of what is its to send.

An entry is never cut, and a rolled-back range is one item with all that lies in it, cut only where the reader began, or
a reader would meet one offset in two halves.  Entries of ours that lie one right behind the other go as one item, as
many as one look finds.  Control entries have no reading order of their own: they go with the block around them, and a
range with the block in which it ends.  What is ours to send and not held here is said, never passed over (K17).
Stays out: reading the store, how far may be read, windows over time, the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.entry import Entry, Kind
from .messages import HOLE_BYTES, Item, Start, hole_item, not_held_item, together
from .order import Block, Mode, nearest_first, sender, ships, slots_of

DECISIONS_MAX = 4096


class Rule:
    """Who sends what, from a reader's START alone; decided once per reading order."""

    def __init__(self, start: Start, me: str) -> None:
        self._start = start
        self._me = start.ensemble.index(me) if me in start.ensemble else -1
        self._known_down = frozenset(start.ensemble.index(node) for node in start.known_down)
        self._decided: dict[int, bool] = {}

    def ours(self, order: int) -> bool:
        """Say whether this node sends what has this reading order."""
        decided = self._decided.get(order)
        if decided is None:
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            everything = self._start.mode is Mode.ALL_SEND_ALL
            decided = self._decided[order] = everything or ships(self._slots(order), self._me, self._known_down)
        return decided

    def explain(self, order: int) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        """Return the reading order as node names, who sends, and all who send counting those who are listed (S6)."""
        nodes, slots = self._start.ensemble, self._slots(order)
        names = tuple(nodes[slot] for slot in slots)
        if self._start.mode is Mode.ALL_SEND_ALL:
            return names, "", names
        first = sender(slots, self._known_down)
        return (
            names, "" if first is None else nodes[first],
            tuple(nodes[slot] for slot in slots if ships(slots, slot, self._known_down)),
        )

    def first(self, order: int, count: int) -> tuple[str, ...]:
        """Return the first `count` of a reading order as node names, wherever the reader stands; 0: all."""
        nodes = self._start.ensemble
        return tuple(nodes[slot] for slot in slots_of(order, len(nodes))[: count or None])

    def _slots(self, order: int) -> tuple[int, ...]:
        slots, start = slots_of(order, len(self._start.ensemble)), self._start
        return nearest_first(slots, start.priorities, start.copies) if start.mode is Mode.LOCAL else slots


class Hole(NamedTuple):
    """A rolled-back range, and in which reading order it is sent."""

    first: int
    last: int
    order: int


def holes_of(ranges: Iterable[tuple[int, int]], block_at: Callable[[int], Block]) -> list[Hole]:
    """Return rolled-back ranges with their orders; the ends of ranges are the same wherever a reader began."""
    return [Hole(first, last, block_at(last).order) for first, last in ranges]


class Asked(NamedTuple):
    """What of the log to look at, and how much to bring."""

    first: int
    last: int                               # may be shown up to here
    until: int                              # last offset wanted, -1: for ever
    order: int                              # of the block around `first`
    holes: Sequence[Hole]                   # rolled back of [first, last], whole ranges in order
    budget_bytes: int                       # what is brought may begin as long as there is less; 0: only look
    entries_max: int                        # look at so many


class Piece(NamedTuple):
    """One thing in the log, before it is known whose it is: an entry, or a hole (no header)."""

    first: int
    last: int
    order: int
    header: Entry | None

    @property
    def size(self) -> int:
        """Bytes that count against the window when it is sent."""
        return HOLE_BYTES if self.header is None else self.header.size


def pieces(headers: Iterable[Entry], first: int, order: int, holes: Iterable[Hole]) -> Iterator[Piece]:
    """Yield what lies from `first` on in order; `headers` are those from the entry that holds it on.

    `order` is that of the block around `first`.
    """
    position, rest = first, iter(holes)
    hole = next(rest, None)
    for header in headers:
        while hole is not None and hole.first <= max(header.base, position):
            yield Piece(*hole, None)
            position = hole.last + 1
            hole = next(rest, None)
        if header.kind is Kind.DATA:
            order = header.order
        end = header.last
        if end >= position:  # not inside the hole just passed
            yield Piece(header.base, end, order, header)
            position = end + 1


@dataclass(slots=True)
class Stretch:
    """What was found.  `items` are ours to send; offsets up to `through` that are in none of them are not.

    Whoever reads the store calls `look` with the headers, then `bring` with the payloads of `wanted`; damage that
    it meets ends the stretch in front of it.
    """

    through: int
    items: tuple[Item, ...] = ()
    more: bool = False                      # the next thing is ours, and over the budget
    damaged_at: int | None = None
    ours: tuple[Piece, ...] = ()

    def look(self, rule: Rule, asked: Asked, headers: Iterable[Entry]) -> None:
        """Pass over the headers from the entry that holds `asked.first` on, and note what is ours."""
        ours: list[Piece] = []
        budget, looked = asked.budget_bytes, 0
        try:
            for piece in pieces(headers, asked.first, asked.order, asked.holes):
                if looked == asked.entries_max or 0 <= asked.until < piece.first:
                    break
                looked += 1
                if rule.ours(piece.order):
                    if budget <= 0:
                        self.more = True
                        break
                    ours.append(piece)
                    budget -= piece.size
                self.through = piece.last
        finally:
            self.ours = tuple(ours)         # also when the headers end in damage

    @property
    def wanted(self) -> list[Entry]:
        """Headers of what is ours."""
        return [piece.header for piece in self.ours if piece.header is not None]

    def bring(self, entries: Iterable[Entry], damaged_at: int | None) -> None:
        """Take the wanted entries as they are stored, up to the first that is damaged."""
        ours: Iterable[Piece] = self.ours
        if damaged_at is not None:
            self.damaged_at, self.through, self.more = damaged_at, damaged_at - 1, False
            ours = [piece for piece in ours if piece.first < damaged_at]
        whole = iter(entries)
        self.items = tuple(together(
            hole_item(piece.first, piece.last) if piece.header is None else _sent(next(whole)) for piece in ours
        ))


def _sent(entry: Entry) -> Entry | Item:
    return entry if entry.held else not_held_item(entry.base, entry.last)
