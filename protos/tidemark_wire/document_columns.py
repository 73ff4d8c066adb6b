"""Documents of a page as columns: numbers and bytes end to end, so that no document is a message of its own.

Numbers are little-endian, as Arrow wants them.  Stays out: reading the columns (the client's `document_scans`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

from .v1 import documents_pb2

OFFSET, NUMBER = "i", "q"
"""Typecodes of `array`: 4 and 8 bytes."""


def pack(
    keys: Sequence[bytes], values: Sequence[bytes], seqnos: Sequence[int], expires_at_ms: Sequence[int]
) -> documents_pb2.DocumentColumns:
    """Return the columns of documents; `expires_at_ms` is 0 for one that never expires."""
    return documents_pb2.DocumentColumns(
        count=len(keys), keys=b"".join(keys), key_offsets=_offsets(keys), values=b"".join(values),
        value_offsets=_offsets(values), seqnos=_little(NUMBER, seqnos),
        expires_at_ms=_little(NUMBER, expires_at_ms) if any(expires_at_ms) else b"")


def _offsets(parts: Sequence[bytes]) -> bytes:
    """Return where each part begins, and where the last one ends."""
    return _little(OFFSET, accumulate(map(len, parts), initial=0))


def _little(typecode: str, numbers: Iterable[int]) -> bytes:
    packed = array(typecode, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
