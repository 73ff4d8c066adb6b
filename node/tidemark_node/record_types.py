"""Record types: refuse RocksDB's manifest and write-ahead logs with records of a type that this store never writes.

RocksDB's reader does not return from a record whose type says that the file was recycled, and one flipped bit makes
such a type.  So every header is read before RocksDB reads the file.
Stays out: checksums and contents, which RocksDB checks itself.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from .store_errors import StoreDamaged

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")     # checksum, length of the content, type
RECYCLED = frozenset((5, 6, 7, 8))  # of log files that are used again, which no option of this store asks for


def check_record_types(directory: Path) -> None:
    """Raise StoreDamaged, which names file and place, where a record of a database in `directory` has such a type."""
    for path in (*directory.glob("MANIFEST-*"), *directory.glob("*.log")):
        with path.open("rb") as file:
            size = path.stat().st_size
            if size:    # an empty file cannot be mapped
                with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                    _check(path, data, size)


def _check(path: Path, data: mmap.mmap, size: int) -> None:
    at = 0
    while at + _HEADER.size <= size:
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < _HEADER.size:
            at += left      # too short for a header: filled with zeros
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        if kind in RECYCLED:
            raise StoreDamaged(f"{path}: the record at {at} has the type {kind}, which this store does not write")
        # A length beyond the block is damage that RocksDB's reader passes over: it goes on with the next block.
        at += min(left, _HEADER.size + length) if kind else left
