"""Cells: the smallest parts that owners merge, the rows that hold them, and their bytes.

    row       of                          holds
    String    a key                       one cell
    Element   a key and an element        one cell for each actor that wrote the element
    Meta      a key with elements         the stamp of the last clear, and the greatest stamp of any element
    Retracted a key                       stamps of its String that others stand in for

An element is a member of a Set or a field of a Map.  The bytes of a row depend on what it holds alone, so that owners
with equal rows have equal bytes.  Stays out: which of two cells wins (`merge`), where a row lies in the store.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from ..base.errors import RemoteViolation
from .stamps import ZERO, Actor, Stamp

NEVER = 0
"""The expiry of a value that stays."""

STAMPS_KNOWN = 64
"""Stamps whose bytes are at hand."""

_STAMP = struct.Struct(">qI8sB")      # ms, logical, start, bytes of the node's name
_NAME_BYTES_AT = _STAMP.size - 1
_ACTOR = struct.Struct(">8sB")        # start, bytes of the node's name
_STRING = struct.Struct(">Bq")        # deleted, expiry
_CELL = struct.Struct(">QBqI")        # n, dead, expiry, bytes of the value
_COUNT = struct.Struct(">I")


class StringCell(NamedTuple):
    """The value of a String, or its deletion.  The order of the fields is the order of cells (D55)."""

    stamp: Stamp
    deleted: bool
    expires_at_ms: int
    value: bytes

    @property
    def dead(self) -> bool:
        """Whether the cell is a tombstone."""
        return self.deleted


class ElementCell(NamedTuple):
    """The newest write of an element by one actor.  The order of the fields is the order of cells (D56)."""

    n: int         # of the dot; the actor is the key in the row
    dead: bool     # removed: a tombstone, which has no value
    stamp: Stamp
    expires_at_ms: int
    value: bytes   # empty in a Set


Element = Mapping[Actor, ElementCell]
"""The row of an element."""


class Meta(NamedTuple):
    """The row of a key with elements; both stamps only rise (D58)."""

    cleared: Stamp = ZERO      # an element with a stamp up to here is removed
    greatest: Stamp = ZERO


class Retraction(NamedTuple):
    """A stamp from the future, and the one that stands in for it; ZERO: no member may replace it yet (D84).

    It stands in for itself where its time came first.
    """

    was: Stamp
    became: Stamp = ZERO


class Retracted(NamedTuple):
    """The stamps of a String that are taken back, each once and in their order (D84)."""

    stamps: tuple[Retraction, ...] = ()


Row = StringCell | Element | Meta | Retracted


class Sort(IntEnum):
    """The sort of a row.  Rows of one sort lie together; an exchange takes retractions before Strings (D84)."""

    RETRACTED = 0
    STRING = 1
    META = 2
    ELEMENT = 3


_SORTS = {int(sort): sort for sort in Sort}
_MARKS = {sort: bytes([sort]) for sort in Sort}


class Place(NamedTuple):
    """Where a row lies in its range.  The order of places is the order of a scan."""

    sort: Sort
    key: bytes
    element: bytes = b""    # of a row of an element


# --- bytes ------------------------------------------------------------------------------------------------


def encode_place(place: Place) -> bytes:
    """Return bytes whose order is that of places."""
    sort, key, element = place
    if sort is not Sort.ELEMENT:
        return _MARKS[sort] + key
    return _MARKS[sort] + key.replace(b"\0", b"\0\xff") + b"\0\0" + element


def decode_place(data: bytes) -> Place:
    """Read `encode_place`; raises RemoteViolation when it is none."""
    try:
        sort = _SORTS[data[0]]
        if sort is not Sort.ELEMENT:
            return Place(sort, data[1:])
        end = data.index(b"\0\0", 1)
    except (LookupError, ValueError) as error:
        raise RemoteViolation("the bytes of a place name no row") from error
    return Place(sort, data[1:end].replace(b"\0\xff", b"\0"), data[end + 2:])


def encode_row(row: Row) -> bytes:
    """Return the bytes of a row of any sort."""
    match row:
        case StringCell():
            return encode_string(row)
        case Meta():
            return encode_meta(row)
        case Retracted():
            return encode_retracted(row)
        case _:
            return encode_element(row)


def decode_row(sort: Sort, data: bytes) -> Row:
    """Read `encode_row`; raises RemoteViolation when the bytes are no row of this sort."""
    match sort:
        case Sort.STRING:
            return decode_string(data)
        case Sort.META:
            return decode_meta(data)
        case Sort.ELEMENT:
            return decode_element(data)
        case Sort.RETRACTED:
            return decode_retracted(data)


def encode_string(cell: StringCell) -> bytes:
    return _stamp(cell.stamp) + _STRING.pack(cell.deleted, cell.expires_at_ms) + cell.value


def decode_string(data: bytes) -> StringCell:
    """Read `encode_string`; raises RemoteViolation when it is cut short."""
    try:
        behind = _STAMP.size + data[_NAME_BYTES_AT]
        deleted, expires_at_ms = _STRING.unpack_from(data, behind)
        stamp = _stamp_of(data[:behind])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RemoteViolation("the bytes of a String are cut short, or its node's name is no UTF-8") from error
    return StringCell(stamp, bool(deleted), expires_at_ms, data[behind + _STRING.size:])


def encode_element(row: Element) -> bytes:
    parts = [_COUNT.pack(len(row))]
    for actor, (n, dead, stamp, expires_at_ms, value) in sorted(row.items()):
        node = actor.node.encode()
        parts += _ACTOR.pack(actor.start, len(node)), node, _stamp(stamp)
        parts += _CELL.pack(n, dead, expires_at_ms, len(value)), value
    return b"".join(parts)


def decode_element(data: bytes) -> Element:
    """Read `encode_element`; raises RemoteViolation when it is cut short or too long, or names an actor twice."""
    reader = _Reader(data, "element")
    row: dict[Actor, ElementCell] = {}
    (count,) = reader.take(_COUNT)
    for _ in range(count):
        start, size = reader.take(_ACTOR)
        actor = Actor(reader.text(size), start)
        stamp = reader.stamp()
        n, dead, expires_at_ms, size = reader.take(_CELL)
        if actor in row:
            raise RemoteViolation(f"an element has two cells of the actor {actor.node!r}")
        row[actor] = ElementCell(n, bool(dead), stamp, expires_at_ms, reader.bytes(size))
    reader.end()
    return row


def encode_meta(meta: Meta) -> bytes:
    return _stamp(meta.cleared) + _stamp(meta.greatest)


def decode_meta(data: bytes) -> Meta:
    """Read `encode_meta`; raises RemoteViolation when it is cut short or too long."""
    reader = _Reader(data, "meta row")
    meta = Meta(reader.stamp(), reader.stamp())
    reader.end()
    return meta


def encode_retracted(row: Retracted) -> bytes:
    return _COUNT.pack(len(row.stamps)) + b"".join(_stamp(was) + _stamp(became) for was, became in row.stamps)


def decode_retracted(data: bytes) -> Retracted:
    """Read `encode_retracted`; raises RemoteViolation when it is cut short or too long, or has stamps out of order."""
    reader = _Reader(data, "row of retractions")
    (count,) = reader.take(_COUNT)
    stamps: list[Retraction] = []
    for _ in range(count):
        stamps.append(Retraction(reader.stamp(), reader.stamp()))
        if len(stamps) > 1 and stamps[-2].was >= stamps[-1].was:
            raise RemoteViolation("the stamps of a row of retractions are out of order")
        if stamps[-1].became > stamps[-1].was:
            raise RemoteViolation("a stamp stands in for one that is below it")
    reader.end()
    return Retracted(tuple(stamps))


# Strings that are written together have one stamp, and each owner reads and writes all of them.
@lru_cache(STAMPS_KNOWN)
def _stamp_of(data: bytes) -> Stamp:
    """Read `_stamp`; raises UnicodeDecodeError."""
    ms, logical, start, _ = _STAMP.unpack_from(data)
    return Stamp(ms, logical, data[_STAMP.size:].decode(), start)


@lru_cache(STAMPS_KNOWN)
def _stamp(stamp: Stamp) -> bytes:
    node = stamp.node.encode()
    return _STAMP.pack(stamp.ms, stamp.logical, stamp.start, len(node)) + node


class _Reader:
    """Reads the bytes of one row from front to end."""

    __slots__ = ("_data", "_what", "at")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self.at = 0

    def take(self, fields: struct.Struct) -> tuple[Any, ...]:
        begin, self.at = self.at, self.at + fields.size
        if self.at > len(self._data):
            raise RemoteViolation(f"the bytes of a {self._what} are cut short")
        return fields.unpack_from(self._data, begin)

    def bytes(self, size: int) -> bytes:
        begin, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise RemoteViolation(f"the bytes of a {self._what} are cut short")
        return self._data[begin:self.at]

    def text(self, size: int) -> str:
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError as error:
            raise RemoteViolation(f"a node's name in a {self._what} is no UTF-8") from error

    def stamp(self) -> Stamp:
        ms, logical, start, size = self.take(_STAMP)
        return Stamp(ms, logical, self.text(size), start)

    def end(self) -> None:
        if self.at != len(self._data):
            raise RemoteViolation(f"{len(self._data) - self.at} bytes follow a {self._what}")
