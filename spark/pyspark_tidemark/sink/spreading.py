"""Spreading: the shard of each row, which follows from the row and its number in the task alone.

Rows with a key go to the shard of their key.  Rows without go round the shards in blocks, so that a retry puts each
where the attempt before had put it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from tidemark.routing import Group

BLOCK_ROWS = 1 << 13
"""Rows without a key that go to one shard before the next one has its turn."""


class Spreading:
    """Divides the rows of one task, in their order."""

    def __init__(self, group: Group, part: int) -> None:
        self._group = group
        self._part = part       # tasks begin at different shards
        self.rows = 0           # that have been divided

    def of(self, columns: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (shard, its rows in order) of the next rows; each shard once."""
        first, self.rows = self.rows, self.rows + columns.num_rows
        if len(self._group.shards) == 1:
            yield self._group.shards[0], columns
            return
        found: dict[int, list[int]] = {}
        for row, shard in enumerate(self._shards(columns, first)):
            found.setdefault(shard, []).append(row)
        yield from self._taken(columns, found)

    def _taken(self, columns: pa.RecordBatch, found: Mapping[int, list[int]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for shard, rows in found.items():
            if rows[-1] - rows[0] == len(rows) - 1:
                yield shard, columns.slice(rows[0], len(rows))    # no copy
            else:
                yield shard, columns.take(pa.array(rows, pa.int32()))

    def _shards(self, columns: pa.RecordBatch, first: int) -> Iterator[int]:
        group, shards = self._group, self._group.shards
        keys = columns.column("key").to_pylist() if "key" in columns.schema.names else [None] * columns.num_rows
        for number, key in enumerate(keys, first):
            yield shards[(self._part + number // BLOCK_ROWS) % len(shards)] if key is None else group.shard_of(key)
