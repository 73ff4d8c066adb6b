"""Documents as Arrow rows, and the two digests of them.

The digest is that of the shard (U73): it has the seqno and the exact time of expiry in it, and holds for one group.
The content digest has key, value, and whether the document expires: equal documents of two groups have the same one.
Stays out: files (files).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from tidemark_core.documents.rows import hash_of
from xxhash import xxh3_128_intdigest

from ..document import Document

MODULUS = 1 << 128
_HASHED = struct.Struct(">I?")

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("seqno", pa.int64(), nullable=False),
        pa.field("expires_at", pa.timestamp("ms", tz="UTC"), nullable=True),
    ]
)


class Tally(NamedTuple):
    """Rows, and what they add to the digests of their shard."""

    rows: int = 0
    digest: int = 0
    content: int = 0

    def and_(self, documents: Iterable[Document]) -> Tally:
        """Return the tally with more documents in it."""
        rows, digest, content = self
        for each in documents:
            rows += 1
            digest += int.from_bytes(hash_of(each.key, each.seqno, each.expires_at_ms, each.value), "big")
            content += content_of(each)
        return Tally(rows, digest % MODULUS, content % MODULUS)


def content_of(document: Document) -> int:
    """Return what a document adds to the content digest."""
    head = _HASHED.pack(len(document.key), document.expires_at_ms > 0)
    return xxh3_128_intdigest(head + document.key + document.value)


def batch_of(documents: list[Document]) -> pa.RecordBatch:
    """Return documents as rows."""
    expiries = pa.array([each.expires_at_ms or None for each in documents], pa.int64())
    columns = [
        pa.array([each.key for each in documents], pa.binary()),
        pa.array([each.value for each in documents], pa.binary()),
        pa.array([each.seqno for each in documents], pa.int64()),
        expiries.cast(SCHEMA.field("expires_at").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def documents_of(shard: int, batch: pa.RecordBatch) -> Iterator[Document]:
    """Return the documents of rows that are checked."""
    keys, values, seqnos, expiries = batch.columns
    columns = zip(
        keys.to_pylist(), values.to_pylist(), seqnos.to_pylist(), expiries.cast(pa.int64()).to_pylist(), strict=True)
    return (Document(key, value, seqno, shard, expiry or 0) for key, value, seqno, expiry in columns)
