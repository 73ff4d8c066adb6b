"""Families: one row for each column family of the store, with its tuning.

A new family is one row: the store creates it in a new database and in one that exists already.
Stays out: keys and values (`base.layout` for the log, each plane for its own), the database (`database`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark_core.base.ids import ShardKind
from tidemark_core.base.layout import HEADERS, LOG, RESERVED, SYSTEM
from tidemark_core.documents.rows import BYSEQ, DOCS, EFFECTS, EXPIRY, PINNED, PINS, SUMMARY
from tidemark_core.documents.rows import FAMILIES as DOCUMENTS
from tidemark_core.optimistic.deleting import DELETED
from tidemark_core.optimistic.hinting.keeping import HINTS, PROMISES
from tidemark_core.optimistic.holding.layout import ELEMENTS, METAS, RETRACTED, STRINGS
from tidemark_core.replication.floors import FLOORS
from tidemark_core.replication.producer_rows import PRODUCERS

WRITE_BUFFER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Family:
    """A column family.  `metric` is its value of the label `what` of `tidemark_store_bytes`."""

    name: str
    metric: str
    write_buffer_bytes: int = 4 << 20
    table_bytes: int = 64 << 20
    block_bytes: int = 16 << 10
    bloom_bits: int = 0         # bits per key of a Bloom filter, for point reads of keys that may be missing; 0: none
    compressed: bool = False    # LZ4; producers compress the payloads of a log themselves


FAMILIES: tuple[Family, ...] = (
    Family(LOG, "payloads", write_buffer_bytes=WRITE_BUFFER_BYTES),
    Family(HEADERS, "headers", write_buffer_bytes=WRITE_BUFFER_BYTES // 4),
    Family(SYSTEM, "system"),
    Family(FLOORS, "floors", write_buffer_bytes=64 << 10),
    Family(PRODUCERS, "producers", table_bytes=16 << 20),
    # The fold reads the old row of each key that it writes, and most keys of a load are new.
    Family(DOCS, "documents", write_buffer_bytes=WRITE_BUFFER_BYTES // 4, bloom_bits=10, compressed=True),
    Family(BYSEQ, "documents_by_seqno", write_buffer_bytes=WRITE_BUFFER_BYTES // 8, compressed=True),
    Family(EXPIRY, "documents_expiry", compressed=True),
    Family(EFFECTS, "documents_outcomes", compressed=True),
    Family(PINS, "pins", write_buffer_bytes=64 << 10, table_bytes=16 << 20),
    Family(PINNED, "pinned_versions", compressed=True),
    Family(SUMMARY, "documents_summary", write_buffer_bytes=1 << 20, table_bytes=16 << 20),
    # An owner reads the row of each place that it writes, and the row of the key for each element.
    Family(STRINGS, "keyspace_strings", write_buffer_bytes=WRITE_BUFFER_BYTES // 4, bloom_bits=10, compressed=True),
    Family(METAS, "keyspace_keys", bloom_bits=10),
    Family(ELEMENTS, "keyspace_elements", write_buffer_bytes=WRITE_BUFFER_BYTES // 4, bloom_bits=10, compressed=True),
    Family(RETRACTED, "keyspace_retracted", write_buffer_bytes=64 << 10, table_bytes=16 << 20),
    Family(HINTS, "keyspace_hints", compressed=True),
    Family(PROMISES, "keyspace_promises", write_buffer_bytes=64 << 10, table_bytes=16 << 20),
    Family(DELETED, "keyspaces_deleted", write_buffer_bytes=64 << 10, table_bytes=16 << 20),
)


def shard_kinds(families: Sequence[Family]) -> tuple[ShardKind, ...]:
    """Return the kinds of shard that a store with these families can hold."""
    documents = {family.name for family in families}.issuperset(DOCUMENTS)
    return tuple(kind for kind in ShardKind if kind is not ShardKind.DOCUMENTS or documents)


def checked(families: Sequence[Family]) -> tuple[Family, ...]:
    """Return the table; raises ValueError when a name or a metric occurs twice or a family of the log is missing."""
    names = [family.name for family in families]
    for what, values in (("name", names), ("metric", [family.metric for family in families])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"families: {what} {twice[0]!r} occurs twice")
    missing = sorted(RESERVED.difference(names))
    if missing:
        raise ValueError(f"families: {missing[0]!r} is missing; extend FAMILIES, do not replace it")
    if "default" in names:
        raise ValueError("families: 'default' belongs to RocksDB")
    return tuple(families)
