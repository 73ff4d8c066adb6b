"""Producer rows: a log's producer table as its node stores it, one row for each producer beside the checkpoint (L25).

A checkpoint writes the rows that have changed since the one before it, in the same write: bytes and rows are of one
offset, and a checkpoint costs what was appended, not what is remembered.  Rows count where the checkpoint has no
section for the table.  One that came with a snapshot or from an older release has it; then rows are written in parts,
which count for nothing until a checkpoint without the section writes the last of them.
Stays out: which producers have changed (`producers`), when a checkpoint is due (`replica`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from ..base.effects import Delete, DeleteRange, Put, Write
from ..base.errors import RemoteViolation
from ..base.ids import ShardId
from .producers import Known, ProducerTable

PRODUCERS = "producers"
"""The column family: shard (8 bytes, unsigned, big-endian) and producer to `Known.encode`."""

_SHARD = struct.Struct(">Q")

Span = tuple[bytes, bytes]
"""Keys from the first to the one behind the last."""


def span_of(shard: ShardId) -> Span:
    """Return where the rows of a shard lie."""
    return _SHARD.pack(shard), _SHARD.pack(shard + 1)


class ProducerRows:
    """The rows of one replica.  `in_force`: its checkpoint leaves the table to them."""

    __slots__ = ("_begun", "_shard", "in_force")

    def __init__(self, shard: ShardId) -> None:
        self._shard = _SHARD.pack(shard)
        self.in_force = False
        self._begun = False     # rows of an earlier life are gone

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> ProducerTable:
        """Return the table of a checkpoint that leaves it to its rows.  Raises RemoteViolation on damaged rows."""
        try:
            table = ProducerTable.of((key[_SHARD.size:], Known.decode(value)[0]) for key, value in rows)
        except struct.error as error:
            raise RemoteViolation(f"a row of the producer table is cut short: {error}") from error
        self.in_force = self._begun = True
        return table

    def part(self, table: ProducerTable, most: int) -> list[Write]:
        """Return writes of at most `most` rows that changed, as of what is committed."""
        writes: list[Write] = [] if self._begun else [self.wipe()]
        self._begun = True
        return [*writes, *self._changed(table, most)]

    def rest(self, table: ProducerTable) -> list[Write]:
        """Return writes of all rows that changed; the same write puts a checkpoint without the table's section."""
        self.in_force = True
        return self.part(table, table.unsaved)

    def wipe(self) -> DeleteRange:
        """Return the write that removes every row of the shard."""
        return DeleteRange(PRODUCERS, *span_of(ShardId(_SHARD.unpack(self._shard)[0])))

    def _changed(self, table: ProducerTable, most: int) -> Iterator[Write]:
        for producer, known in table.save(most):
            key = self._shard + producer
            yield Delete(PRODUCERS, key) if known is None else Put(PRODUCERS, key, known.encode())
