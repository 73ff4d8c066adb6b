"""Removing: takes from the disk what floors collect and clears make void, a page at a time (D58, D59, D71).

The scans of the tree find what a floor collects.  A clear has the elements of its key walked: once when it is stored,
or found after a restart, and once below the floor; behind that walk the clear itself goes.  A page is removed by one
job, which decides from the newest rows.  Stays out: what is void (`storing.kept`), when pages are scanned (`unit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from ...base.effects import Effect, Feed
from ...base.ids import Address
from ..cells import Meta, Place, Row, Sort, encode_place
from ..stamps import ZERO
from ..storing import BARE, kept, with_related
from .hands import Decided, Hands
from .walks import Rows, Walks

PAGE_ROWS = 500
"""Messages that come meanwhile wait for the removal of so many rows at most."""


class Removed(NamedTuple):
    """Event: the removal of a page is durable."""

    unit: int
    page: int


class _Sweep(NamedTuple):
    """The walk over the elements of a key that was cleared, and where it goes on."""

    key: bytes
    first: bytes


class Removing:
    """The removal of rows of one range.  One page is under way at a time."""

    def __init__(self, address: Address, hands: Hands, walks: Walks) -> None:
        self._address = address
        self._hands = hands
        self._walks = walks
        self._found: list[Place] = []              # a floor collects something there
        self._cleared: dict[bytes, None] = {}      # keys with elements to walk
        self._sweep: _Sweep | None = None
        self._page = 0
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether nothing is left to remove."""
        return not (self._busy or self._found or self._cleared or self._sweep)

    @property
    def full(self) -> bool:
        """Whether rows of a scan wait: another scan must wait for them."""
        return bool(self._found)

    def cleared(self, key: bytes) -> None:
        """Walk the elements of a key: a clear is being stored."""
        self._cleared[key] = None

    def found(self, rows: Rows, *, known: bool) -> None:
        """Remove what is void in a page of a scan; `known`: an earlier one has shown its clears."""
        void = _void(dict(rows), self._hands.floor_ms)
        for place, row in rows:
            if isinstance(row, Meta) and row.cleared != ZERO and (place in void or not known):
                self._cleared[place.key] = None
        self._found += void

    def go_on(self) -> list[Effect]:
        """Begin the next page, where none is under way."""
        if self._busy:
            return []
        if self._found:
            places, self._found = self._found[:PAGE_ROWS], self._found[PAGE_ROWS:]
            return self._remove(places)
        if self._sweep is None:
            if not self._cleared:
                return []
            key = next(iter(self._cleared))
            del self._cleared[key]
            self._sweep = _Sweep(key, encode_place(Place(Sort.ELEMENT, key)))
        page, (key, first), meta = self._next_page(), self._sweep, Place(Sort.META, self._sweep.key)
        return self._hands.submit((meta,), lambda held: self._walk(
            page, key, first, cast("Meta", held.get(meta, BARE))))

    def on_removed(self, m: Removed) -> None:
        """Take note that a page is done."""
        if m.page == self._page:
            self._busy = False

    def forget(self) -> None:
        """All rows of the range are gone."""
        self._found, self._cleared, self._sweep, self._busy = [], {}, None, False
        self._page += 1

    def _next_page(self) -> int:
        self._busy = True
        self._page += 1
        return self._page

    def _walk(self, page: int, key: bytes, first: bytes, meta: Meta) -> Decided:
        """Read once the clear is durable: every row that it makes void was written before it."""
        if page != self._page:
            return Decided({})
        behind = encode_place(Place(Sort.ELEMENT, key + b"\0"))
        return Decided({}, tuple(self._walks.begin(first, behind, PAGE_ROWS, lambda rows, rest: self._walked(
            key, meta, rows, rest))))

    def _walked(self, key: bytes, meta: Meta, rows: Rows, rest: bytes | None) -> list[Effect]:
        """Remove a page of elements; behind the last one the clear may go, if no other one came."""
        of_key = Place(Sort.META, key)
        void = [place for place in _void({of_key: meta, **dict(rows)}, self._hands.floor_ms) if place != of_key]
        self._sweep = _Sweep(key, rest) if rest is not None else None
        return self._remove(void if rest is not None else [*void, of_key], None if rest is not None else key)

    def _remove(self, places: list[Place], swept: bytes | None = None) -> list[Effect]:
        page = self._next_page()
        return self._hands.submit(with_related(places), lambda held: self._decide(page, held, swept))

    def _decide(self, page: int, held: Mapping[Place, Row], swept: bytes | None) -> Decided:
        """Write what is left of rows.  The clear of a key stays until a walk over all its elements has ended."""
        rows = {place: row for place, row in _void(held, self._hands.floor_ms).items() if not (
            place.sort is Sort.META and cast("Meta", held[place]).cleared != ZERO
            and (place.key != swept or place.key in self._cleared))}
        return Decided(rows, (Feed(Removed(self._address.id, page)),))


def _void(rows: Mapping[Place, Row], floor_ms: int) -> dict[Place, Row | None]:
    """Return what is to be left of the rows that hold something void or collectable, None for nothing."""
    left = kept(rows, floor_ms)
    return {place: left.get(place) for place, row in rows.items() if left.get(place) != row}
