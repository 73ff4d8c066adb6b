"""Archiving: a page of the cells of a range for a backup, and the import of cells as they were (D82, D83).

Stays out: bytes and bounds of cells (`archive`), whether an owner stores one (`owner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..archive import END, Archived, archived, mark_of, place_of, within
from ..cells import Place, Row, Sort
from ..messages import Change, RowsWrite, Span
from ..stamps import Dot
from ..storing import with_related
from .operations import ReadStep, Steps, WriteStep
from .outcomes import Outcome
from .reading import Found, Repair
from .writing import Done


class CellsPage(NamedTuple):
    """Cells in their order, and the floor that they were read at.  The next page begins at the mark `behind`."""

    outcome: Outcome
    cells: tuple[Archived, ...] = ()
    behind: bytes | None = None
    floor_ms: int = 0


class Imported(NamedTuple):
    """The end of an import: OK where a write quorum has stored all cells but those that are `refused`, by place."""

    outcome: Outcome
    refused: tuple[tuple[int, Outcome], ...] = ()


def read_cells(first: bytes, rows_max: int, bytes_max: int) -> Steps[CellsPage]:
    """Read the cells of a range from a mark on, merged from a read quorum; it repairs nothing.

    A clear may be newer than the page that has its elements, so elements are read together with the rows of their keys.
    """
    start = place_of(first)
    while True:
        found: Found = yield ReadStep((), Span(start, END, rows_max), Repair.OFF, strict=True)
        # There may be more rows than each member was asked for.  Stamps that are taken back come with each page.
        places = sorted(place for place in found.rows if place.sort is not Sort.RETRACTED)
        rest = places[rows_max] if len(places) > rows_max else found.behind
        elements = [place for place in places[:rows_max] if place.sort is Sort.ELEMENT]
        rows = {place: found.rows[place] for place in places[:rows_max] if place.sort is not Sort.ELEMENT}
        if elements:
            with_clears: Found = yield ReadStep(with_related(elements), None, Repair.OFF, strict=True)
            if with_clears.outcome is Outcome.OK and with_clears.floor_ms != found.floor_ms:
                continue    # the floor has reached a clear meanwhile, which is shown no more
            rows |= {place: row for place, row in with_clears.rows.items() if place.sort is Sort.ELEMENT}
            found = found._replace(outcome=with_clears.outcome)
        if found.outcome is not Outcome.OK:
            return CellsPage(found.outcome)
        wanted = [cell for cell in archived(rows) if cell.mark >= first]
        page = tuple(within(wanted, bytes_max))
        if len(page) < len(wanted):
            behind: bytes | None = page[-1].mark + b"\0"
        else:
            behind = mark_of(rest) if rest is not None else None
        return CellsPage(Outcome.OK, page, behind, found.floor_ms)


def import_cells(cells: Sequence[tuple[Place, Row]]) -> Steps[Imported]:
    """Write cells with the stamps that they have; what is refused of them is found by halves."""
    refused: list[tuple[int, Outcome]] = []
    waiting = [(0, len(cells))]
    while waiting:
        begin, end = waiting.pop()
        done: Done = yield WriteStep(_rows(cells[begin:end]), fixed=True)
        if done.outcome is Outcome.OK:
            continue
        if done.outcome not in (Outcome.BELOW, Outcome.FUTURE):
            return Imported(done.outcome)
        if end - begin == 1:
            refused.append((begin, done.outcome))
        else:
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)]
    return Imported(Outcome.OK, tuple(refused))


def _rows(cells: Sequence[tuple[Place, Row]]) -> Callable[[Dot], Change]:
    return lambda _: RowsWrite(tuple(cells))
