"""Archive: the cells of rows one by one, as a backup has them: their order, their bytes, their bounds (D82).

Stays out: reading them from owners and writing them back (`coordinating.archiving`), files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..base.errors import RemoteViolation
from .cells import (
    NEVER,
    ElementCell,
    Meta,
    Place,
    Retracted,
    Row,
    Sort,
    StringCell,
    decode_place,
    decode_row,
    encode_place,
    encode_row,
)
from .sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from .stamps import START_BYTES, ZERO, Stamp
from .writes import clear

BEGIN = Place(Sort.STRING, b"")
END = Place(Sort.ELEMENT, b"\xff" * (KEY_BYTES_MAX + 1))
"""In front of every row of a range, and behind."""
MARK_BYTES_MAX = 8 << 10
TIME_MS_MAX = (1 << 62) - 1
"""The latest time in a cell, which members can still send each other."""
_NUMBER_MAX = (1 << 63) - 1
_ACTOR_AT = 4                       # in the bytes of an element, behind the number of cells
_ACTOR_HEAD = START_BYTES + 1


class Archived(NamedTuple):
    """One cell: the bytes of its place, and those of a row with this cell alone."""

    place: bytes
    row: bytes

    @property
    def mark(self) -> bytes:
        """Where the cell lies: marks have the order of an archive, and no two of its cells have the same one."""
        if self.place[0] != Sort.ELEMENT:
            return self.place
        behind = _ACTOR_AT + _ACTOR_HEAD + self.row[_ACTOR_AT + START_BYTES]
        return _mark(self.place) + self.row[_ACTOR_AT:behind]

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.place) + len(self.row)


def mark_of(place: Place) -> bytes:
    """Return the mark that the cells of a place begin at."""
    return _mark(encode_place(place))


def place_of(mark: bytes) -> Place:
    """Return the place that a mark lies in; of no bytes it is the first one.  Raises RemoteViolation."""
    if not mark:
        return BEGIN
    if len(mark) > MARK_BYTES_MAX:
        raise RemoteViolation(f"a mark has {len(mark)} bytes, the limit is {MARK_BYTES_MAX}")
    if mark[0] == Sort.ELEMENT:
        end = mark.find(b"\0\0")
        if end < 0:
            raise RemoteViolation("the bytes of a mark name no row")
        mark = mark[:end].replace(b"\0\xff", b"\0")
    place = decode_place(mark)
    if len(place.key) > KEY_BYTES_MAX + 1 or len(place.element) > ELEMENT_BYTES_MAX + 1:
        raise RemoteViolation("a mark names a key or an element that is too long")
    if place.sort is Sort.RETRACTED:
        raise RemoteViolation("the bytes of a mark name no cell")
    return place


def archived(rows: Mapping[Place, Row]) -> list[Archived]:
    """Return the cells of rows in the order of their marks; a key without a clear has none of its own."""
    found = (Archived(encode_place(place), encode_row(cell)) for place, row in rows.items() for cell in _alone(row))
    return sorted(found, key=lambda cell: cell.mark)


def decoded(cell: Archived) -> tuple[Place, Row]:
    """Return the place and the row of a cell; raises RemoteViolation for what no archive has."""
    place = decode_place(cell.place)
    row = decode_row(place.sort, cell.row)
    if isinstance(row, Retracted):
        raise RemoteViolation("a cell says which stamps are taken back: no archive has these")
    if not 1 <= len(place.key) <= KEY_BYTES_MAX:
        raise RemoteViolation(f"a key has {len(place.key)} bytes, must have 1 to {KEY_BYTES_MAX}")
    if len(place.element) > ELEMENT_BYTES_MAX:
        raise RemoteViolation(f"an element has {len(place.element)} bytes, must have at most {ELEMENT_BYTES_MAX}")
    match row:
        case StringCell():
            _check(row)
        case Meta():
            _check_stamp(row.cleared)
            if row != clear(row.cleared):
                raise RemoteViolation("a clear has a stamp beside its own")
        case _:
            if len(row) != 1:
                raise RemoteViolation(f"a row has {len(row)} cells, must have one")
            for actor, each in row.items():
                _check_node(actor.node)
                if not 1 <= each.n <= _NUMBER_MAX:
                    raise RemoteViolation(f"a dot has the number {each.n}, must be 1 to {_NUMBER_MAX}")
                _check(each)
    if encode_place(place) != cell.place or encode_row(row) != cell.row:
        raise RemoteViolation("the bytes of a cell are not those that an archive has")
    return place, row


def key_of(cell: Archived) -> tuple[bytes, bytes | None]:
    """Return the key of a cell, and the element where it is of one."""
    place = decode_place(cell.place)
    return place.key, place.element if place.sort is Sort.ELEMENT else None


def within(cells: Iterable[Archived], bytes_max: int) -> Iterator[Archived]:
    """Yield the first cells, at least one, that have so many bytes together."""
    size = 0
    for cell in cells:
        size += cell.size
        if size > bytes_max and size != cell.size:
            return
        yield cell


def _alone(row: Row) -> Iterator[Row]:
    match row:
        case StringCell():
            yield row
        case Meta():
            if row.cleared != ZERO:
                yield clear(row.cleared)
        case Retracted():
            return      # the Strings of an archive have the stamps that stand in (D84)
        case _:
            for actor, cell in row.items():
                yield {actor: cell}


def _mark(place: bytes) -> bytes:
    return place.replace(b"\0", b"\0\xff") + b"\0\0" if place[0] == Sort.ELEMENT else place


def _check(cell: StringCell | ElementCell) -> None:
    _check_stamp(cell.stamp)
    if len(cell.value) > VALUE_BYTES_MAX:
        raise RemoteViolation(f"a value has {len(cell.value)} bytes, must have at most {VALUE_BYTES_MAX}")
    if not NEVER <= cell.expires_at_ms <= TIME_MS_MAX:
        raise RemoteViolation(f"an expiry is {cell.expires_at_ms}, must be {NEVER} to {TIME_MS_MAX}")
    if cell.dead and (cell.value or cell.expires_at_ms):
        raise RemoteViolation("a dead cell has a value or an expiry")


def _check_stamp(stamp: Stamp) -> None:
    _check_node(stamp.node)
    if not 1 <= stamp.ms <= TIME_MS_MAX:
        raise RemoteViolation(f"a stamp has the time {stamp.ms}, must be 1 to {TIME_MS_MAX}")


def _check_node(name: str) -> None:
    if not name:
        raise RemoteViolation("the name of a node is empty")
