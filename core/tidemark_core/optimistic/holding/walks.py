"""Walks: the rows of a part of a range, read page by page over the families it lies in.

Stays out: rows that are on their way to the disk; a walk shows what is written, and may show them.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base.effects import Effect, RowsScanned, ScanRows
from ...base.ids import Address
from ..cells import Place, Row, Sort, decode_row, encode_place
from .layout import family_of, place_of, span_of

PAGE_ROWS = 1_000
WALK_BYTES = 4 << 20
"""A walk ends early behind so many bytes: its rows go into memory, and into one message."""

Rows = list[tuple[Place, Row]]
Then = Callable[[Rows, bytes | None], list[Effect]]
"""Takes the rows of a walk in order, and the bytes of the place that the rest begins at, None where there is none."""


class _Walk:
    __slots__ = ("behind", "bytes_left", "rows", "rows_max", "sorts", "then")

    def __init__(self, sorts: list[Sort], behind: bytes, rows_max: int, then: Then) -> None:
        self.sorts = sorts      # that are left, the present one first
        self.behind = behind
        self.rows_max = rows_max
        self.then = then
        self.bytes_left = WALK_BYTES
        self.rows: Rows = []


class Walks:
    """The walks of one range that are under way."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._walks: dict[int, _Walk] = {}
        self._number = 0
        self._scans = 0     # that the disk has not answered, also of walks that ended without a result

    @property
    def quiet(self) -> bool:
        """Whether the disk has answered everything."""
        return not self._scans

    def begin(self, first: bytes, behind: bytes, rows_max: int, then: Then) -> list[Effect]:
        """Read at most `rows_max` rows, at least one, with places in [first, behind), as bytes; give them to `then`.

        They are fewer where they are large.  `then` is not called before the disk has answered, so a job may begin a
        walk.
        """
        sorts = [sort for sort in Sort if first < bytes([sort + 1]) and bytes([sort]) < behind] or [Sort.STRING]
        number, self._number = self._number, self._number + 1
        self._walks[number] = _Walk(sorts, behind, max(rows_max, 1), then)
        return self._go_on(number, first)

    def on_scanned(self, m: RowsScanned) -> list[Effect]:
        """Go on behind a page, or end.  Raises RemoteViolation when a row is damaged."""
        self._scans -= 1
        walk = self._walks.get(m.tag)
        if walk is None:
            return []
        found = [(place_of(key), value) for key, value in m.rows]
        walk.bytes_left -= sum(len(key) + len(value) for key, value in m.rows)
        walk.rows += [(place, decode_row(place.sort, value)) for place, value in found]
        if m.more:
            first = encode_place(found[-1][0]) + b"\0"
        else:
            walk.sorts.pop(0)
            first = b""
        return self._go_on(m.tag, first)

    def forget(self) -> None:
        """End every walk without a result: the rows are gone."""
        self._walks.clear()

    def _go_on(self, number: int, first: bytes) -> list[Effect]:
        walk = self._walks[number]
        left = walk.rows_max - len(walk.rows)
        if not walk.sorts or not left or walk.bytes_left <= 0:
            del self._walks[number]
            rest = (first or bytes([walk.sorts[0]])) if walk.sorts else None
            return walk.then(walk.rows, rest)
        sort = walk.sorts[0]
        low, high = span_of(self._address.id, sort, first, walk.behind)
        self._scans += 1
        return [ScanRows(self._address, number, family_of(sort), low, max(low, high), min(left, PAGE_ROWS))]
