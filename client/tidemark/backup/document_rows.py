"""Documents as Arrow rows, and the two digests of them.

The digest is that of the shard (U73): it has the seqno and the exact time of expiry in it, and holds for one group.
The content digest has key, value, and whether the document expires: equal documents of two groups have the same one.
Stays out: files (files).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
from tidemark_core.documents.rows import hash_of
from xxhash import xxh3_128_intdigest

from ..document import Document
from .rows import Rows

_HASHED = struct.Struct(">I?")

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("seqno", pa.int64(), nullable=False),
        pa.field("expires_at", pa.timestamp("ms", tz="UTC"), nullable=True),
    ]
)


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


def _digests_of(document: Document) -> tuple[int, int]:
    digest = hash_of(document.key, document.seqno, document.expires_at_ms, document.value)
    return int.from_bytes(digest, "big"), content_of(document)


DOCUMENT_ROWS: Rows[Document] = Rows(SCHEMA, batch_of, documents_of, lambda document: document.key, _digests_of)
