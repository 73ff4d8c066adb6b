"""Layout: in which family and under which key a row lies in the store.

A family has the rows of one sort for all ranges, each range in one piece and each key with its elements in one piece: a
String is one point read, an element two, and all elements of a key are one scan (D56, D58).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from ...base.effects import Delete, Put, PutMany, Write
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
    return key_at(unit, encode_place(place))


def key_at(unit: int, at: bytes) -> bytes:
    """Return the key of a row of the range `unit`, from the bytes of its place."""
    return _UNIT.pack(unit) + at


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


def writes_of(unit: int, rows: Iterable[tuple[Sort, bytes, bytes | None]]) -> Iterator[Write]:
    """Yield the writes that store rows, each its sort, the bytes of its place and its own; None: that remove one.

    Each row is there once, so their order has no meaning; rows of one family come together.
    """
    prefix = _UNIT.pack(unit)
    puts: dict[str, list[tuple[bytes, bytes]]] = {}
    for sort, at, encoded in rows:
        family = FAMILIES[sort]
        if encoded is None:
            yield Delete(family, prefix + at)
        else:
            puts.setdefault(family, []).append((prefix + at, encoded))
    for family, some in puts.items():
        yield Put(family, *some[0]) if len(some) == 1 else PutMany(family, tuple(some))
