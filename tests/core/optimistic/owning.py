"""Members of one range for the tests of keyspaces: they store and answer by the rules of owners."""

from __future__ import annotations

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Element, Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.messages import Load, LoadAnswer, RingTold, Store, StoreAnswer
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun
from tidemark_core.optimistic.standing import Standing, adopted
from tidemark_core.optimistic.storing import on_load, on_store, with_retracted

A, B, C, D = (Member(name, f"{name}-disk") for name in "abcd")
KEY, INDEX, SKEW_MS = b"k", 3, 100
CALM = Range(7, Owners((A, B, C), Quorum(3, 2, 2)), floor_ms=10)
MOVING = begun(CALM, Owners((A, B, D), Quorum(3, 2, 2)))


class Owning:
    """A member of the range, with a clock that may be wrong."""

    def __init__(self, me: Member, record: Range = CALM, now_ms: int = 1_000) -> None:
        self.standing = Standing(me, record, promise_ms=record.floor_ms)
        self.rows: dict[Place, Row] = {}
        self.now_ms = now_ms

    @property
    def cell(self) -> StringCell | None:
        """The String at `KEY`."""
        row = self.rows.get(Place(Sort.STRING, KEY))
        assert row is None or isinstance(row, StringCell)
        return row

    @cell.setter
    def cell(self, cell: StringCell) -> None:
        self.rows[Place(Sort.STRING, KEY)] = cell

    def holds(self, element: bytes, row: Element, key: bytes = KEY) -> None:
        """Put an element where it was stored before."""
        self.rows[Place(Sort.ELEMENT, key, element)] = row
        self.rows.setdefault(Place(Sort.META, key), Meta(greatest=max(cell.stamp for cell in row.values())))

    def answer(self, m: Store | Load | RingTold) -> StoreAnswer | LoadAnswer | None:
        """Take a message; all that it writes is durable at once."""
        if isinstance(m, RingTold):
            self.standing = adopted(self.standing, m.record)
            return None
        if isinstance(m, Load):
            return self._load(m)
        answer, rows = on_store(self.standing, m, self.now_ms + SKEW_MS, self.rows)
        self.rows.update(rows)
        return answer

    def _load(self, m: Load) -> LoadAnswer:
        retracted = {place.key for place in self.rows if place.sort is Sort.RETRACTED}
        found = [(place, self.rows[place]) for place in with_retracted(m.places, retracted) if place in self.rows]
        if m.span is None:
            return on_load(self.standing, m, found)
        span = [(place, row) for place, row in sorted(self.rows.items(), key=lambda item: item[0])
                if m.span.first <= place < m.span.behind]
        page, rest = span[:m.span.rows_max], span[m.span.rows_max:]
        back = [(place, row) for place, row in self.rows.items() if place.sort is Sort.RETRACTED
                and m.span.first <= Place(Sort.STRING, place.key) < m.span.behind]
        return on_load(self.standing, m, [*back, *found, *page], rest[0][0] if rest else None)


def owners(*members: Member, record: Range = CALM) -> dict[Member, Owning]:
    """Return members that have a record."""
    return {member: Owning(member, record) for member in members}
