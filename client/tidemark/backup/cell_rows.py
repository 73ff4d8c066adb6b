"""Cells of a keyspace as Arrow rows: the bytes of the place, and those of the cell as nodes have it.

Stays out: files (files).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.archive import Archived, decoded
from xxhash import xxh3_128_intdigest

from ..payload import UndecodablePayload
from .rows import Rows

CELL_SCHEMA = pa.schema([
    pa.field("place", pa.binary(), nullable=False),
    pa.field("cell", pa.binary(), nullable=False),
])
_LENGTH = struct.Struct(">I")


def _batch_of(cells: list[Archived]) -> pa.RecordBatch:
    columns = [pa.array(column, pa.binary()) for column in zip(*cells, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=CELL_SCHEMA)


def _cells_of(index: int, batch: pa.RecordBatch) -> Iterator[Archived]:
    places, rows = batch.columns
    for cell in map(Archived, places.to_pylist(), rows.to_pylist()):
        try:
            decoded(cell)
        except RemoteViolation as error:
            raise UndecodablePayload(f"a cell of range {index} is none: {error}") from None
        yield cell


def _digests_of(cell: Archived) -> tuple[int, int]:
    digest = xxh3_128_intdigest(_LENGTH.pack(len(cell.place)) + cell.place + cell.row)
    return digest, digest


CELL_ROWS: Rows[Archived] = Rows(CELL_SCHEMA, _batch_of, _cells_of, lambda cell: cell.mark, _digests_of)
