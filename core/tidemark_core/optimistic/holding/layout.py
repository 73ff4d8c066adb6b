"""Layout: in which family and under which key a row lies in the store.

A family has the rows of one sort for all ranges, each range in one piece and each key with its elements in one piece: a
String is one point read, an element two, and all elements of a key are one scan (D56, D58).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ...base.effects import Delete, Put
from ..cells import Place, Sort, decode_place, encode_place

STRINGS, METAS, ELEMENTS, RETRACTED = "ks_strings", "ks_keys", "ks_elements", "ks_retracted"
FAMILIES = {Sort.RETRACTED: RETRACTED, Sort.STRING: STRINGS, Sort.META: METAS, Sort.ELEMENT: ELEMENTS}

INDEX_MAX = (1 << 32) - 1
"""No range of a keyspace has this index."""

_UNIT = struct.Struct(">Q")


def family_of(sort: Sort) -> str:
    """Return the family of rows of a sort."""
    return FAMILIES[sort]


def key_of(unit: int, place: Place) -> bytes:
    """Return the key of a row of the range `unit`."""
    return _UNIT.pack(unit) + encode_place(place)


def unit_of(key: bytes) -> int:
    """Return the range that a row lies in, from its key."""
    return int(_UNIT.unpack_from(key)[0])


def place_of(key: bytes) -> Place:
    """Read `key_of`; raises RemoteViolation when it names no place."""
    return decode_place(key[_UNIT.size:])


def span_of(unit: int, sort: Sort, first: bytes = b"", behind: bytes | None = None) -> tuple[bytes, bytes]:
    """Return the bounds of keys for places in [first, behind), as bytes; None: all rows of the sort in the range."""
    low, high = bytes([sort]), bytes([sort + 1])
    end = high if behind is None else min(max(behind, low), high)
    return _UNIT.pack(unit) + min(max(first, low), high), _UNIT.pack(unit) + end


def spans_of(keyspace: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the families of rows, each with the bounds of the keys of a whole keyspace."""
    for family in FAMILIES.values():
        yield family, _UNIT.pack(keyspace << 32), _UNIT.pack(keyspace << 32 | INDEX_MAX)


def write_at(unit: int, sort: Sort, at: bytes, encoded: bytes | None) -> Put | Delete:
    """Return the write that stores a row, or removes it, from the bytes of its place and of the row itself."""
    family, key = FAMILIES[sort], _UNIT.pack(unit) + at
    return Delete(family, key) if encoded is None else Put(family, key, encoded)
