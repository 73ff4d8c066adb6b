"""Tally: how many rows of a task one shard has, and a checksum of them that does not depend on how they were divided.

It travels as the note of each batch that is appended: the newest one says what an attempt before this one did (P15).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import extend

VERSION = 1
_NOTE = struct.Struct(">BqQ6I")     # version, batch, rows, checksums
_SUMS = struct.Struct(">6I")
_OFFSET = struct.Struct("<i").unpack_from

KEY_SIZES, KEYS, VALUE_SIZES, VALUES, TIMESTAMPS, HEADERS = range(6)


class UnreadableNote(ValueError):
    """The newest batch of a part was not written by this sink, or by a newer release of it."""


@dataclass(slots=True)
class Tally:
    """Rows and their checksums: CRC-32C of the bytes of each column, and of the sizes that divide them into rows."""

    rows: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * 6)

    def add(self, columns: pa.RecordBatch) -> None:
        """Count rows in, in their order."""
        self.rows += columns.num_rows
        for field_, column in zip(columns.schema, columns.columns, strict=True):
            match field_.name:
                case "key":
                    self._add_binary(KEY_SIZES, KEYS, column)
                case "value":
                    self._add_binary(VALUE_SIZES, VALUES, column)
                case "timestamp":
                    self._extend(TIMESTAMPS, pc.fill_null(column.view(pa.int64()), 0))
                case "headers":
                    self._add_headers(column)

    def _add_binary(self, sizes: int, contents: int, column: pa.Array) -> None:
        self._extend(sizes, pc.fill_null(pc.binary_length(column), -1))
        self.sums[contents] = extend(self.sums[contents], contents_of(column))

    def _add_headers(self, column: pa.Array) -> None:
        """Headers are few: their text is as good as their columns."""
        for each in column.to_pylist():
            self.sums[HEADERS] = extend(self.sums[HEADERS], repr(each).encode())

    def _extend(self, which: int, numbers: pa.Array) -> None:
        buffer, width = numbers.buffers()[1], numbers.type.bit_width // 8
        at = numbers.offset * width
        self.sums[which] = extend(self.sums[which], buffer.slice(at, len(numbers) * width).to_pybytes())

    @property
    def checksum(self) -> int:
        """One number for all checksums."""
        return int(extend(0, _SUMS.pack(*self.sums)))

    def note(self, batch: int) -> bytes:
        """Return what the newest batch of a shard says of itself."""
        return _NOTE.pack(VERSION, batch, self.rows, *self.sums)


@dataclass(frozen=True, slots=True)
class Noted:
    """The rows that an attempt before had appended to a shard, and their batch."""

    batch: int
    tally: Tally

    @classmethod
    def of(cls, note: bytes) -> Self:
        """Read a note.  Raises UnreadableNote."""
        try:
            version, batch, rows, *sums = _NOTE.unpack(note)
        except struct.error as error:
            raise UnreadableNote(f"the note of the newest batch has {len(note)} bytes, not {_NOTE.size}") from error
        if version != VERSION:
            raise UnreadableNote(f"the note of the newest batch has version {version}, this release knows {VERSION}")
        return cls(batch, Tally(rows, sums))


def contents_of(column: pa.Array) -> bytes:
    """Return the bytes of all elements of a binary column, one behind the other; nulls have none."""
    if column.null_count:
        column = pc.fill_null(column, b"")
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return b""
    [first], [end] = _OFFSET(offsets, 4 * column.offset), _OFFSET(offsets, 4 * (column.offset + len(column)))
    return bytes(data.slice(first, end - first))
