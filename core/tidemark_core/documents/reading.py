"""Reading: documents as one consistent state of the rows shows them, now or at a pin (rules U71, U72).

Pure functions of a snapshot of the store.  Stays out: when a member may serve a read (`document_shard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from typing import NamedTuple

from ..base.ids import ShardId
from .rows import (
    DOCS,
    PINNED,
    Pin,
    Row,
    Rows,
    behind,
    decode_row,
    doc_key,
    load,
    pinned_key,
    pinned_of,
    prefix,
    superseded,
)


class Document(NamedTuple):
    """A live document."""

    key: bytes
    seqno: int
    expires_at_ms: int   # by the log's clock; 0: never
    value: bytes


_new_document = tuple.__new__   # a scan makes very many; this way in half the time


class NotPinned(LookupError):
    """The pin ended, or its name is active with another cut: final (U72)."""


class Behind(LookupError):
    """This member has folded less than the reader asks for; another one may have more, and so may this one later."""

    def __init__(self, applied: int) -> None:
        super().__init__(f"documents are folded up to {applied}")
        self.applied = applied


def get(rows: Rows, shard: ShardId, key: bytes) -> Document | None:
    """Return the live document of a key."""
    stored = rows.get(DOCS, doc_key(shard, key))
    return _document(key, decode_row(stored)) if stored is not None else None


def scan(rows: Rows, shard: ShardId, first: bytes = b"", last: bytes | None = None) -> Iterator[Document]:
    """Yield the live documents with keys in [first, last), in byte order; None means the shard's end."""
    for key, stored in rows.scan(DOCS, doc_key(shard, first), _behind(shard, last)):
        document = _document(key[len(prefix(shard)):], decode_row(stored))
        if document is not None:
            yield document


def get_at(rows: Rows, shard: ShardId, name: str, at: int, key: bytes) -> Document | None:
    """Return the document of a key as the pin `name` with the cut `at` shows it; raises Behind or NotPinned."""
    check_pin(rows, shard, name, at)
    return pinned(rows, shard, at, key)


def pinned(rows: Rows, shard: ShardId, at: int, key: bytes) -> Document | None:
    """Return the document of a key at the cut of a pin that `check_pin` found in the same rows."""
    stored = rows.get(DOCS, doc_key(shard, key))
    if stored is not None and (row := decode_row(stored)).seqno <= at:
        return _document(key, row)
    versions = rows.scan(PINNED, pinned_key(shard, key, 0), pinned_key(shard, key, at + 1))
    return next((_document(key, row) for _, row in _superseded(versions, at)), None)


def scan_at(
    rows: Rows, shard: ShardId, name: str, at: int, first: bytes = b"", last: bytes | None = None
) -> Iterator[Document]:
    """Yield documents with keys in [first, last) as a pin shows them, in byte order; raises Behind or NotPinned.

    Pages of one scan may be read at any member, in snapshots taken at any time (U72).  Both families are read side by
    side, so a page takes the memory of its rows.
    """
    check_pin(rows, shard, name, at)
    bounds = pinned_key(shard, first, 0), pinned_key(shard, last, 0) if last is not None else behind(shard)
    old = _superseded(rows.scan(PINNED, *bounds), at)
    new = _newest(rows.scan(DOCS, doc_key(shard, first), _behind(shard, last)), at, len(prefix(shard)))
    first_old = next(old, None)     # as a rule there is none, and a merge would cost half of the scan
    both = new if first_old is None else merge(new, chain((first_old,), old), key=_key)
    before: bytes | None = None
    for key, row in both:           # of equal keys the row of `docs` comes first
        if key != before and (document := _document(key, row)) is not None:
            yield document
        before = key


def check_pin(rows: Rows, shard: ShardId, name: str, at: int) -> Pin:
    """Return the active pin `name`, whose cut is `at` (U72).

    Raises Behind when the cut is not folded here, NotPinned when the name is not active with this cut.
    """
    summary = load(shard, rows)
    applied = summary.applied if summary is not None else -1
    if applied < at:
        raise Behind(applied)
    pin = summary.pins.get(name) if summary is not None else None
    if pin is None or pin.at != at:
        raise NotPinned(f"no pin {name!r} with the cut {at} is active")
    return pin


def _newest(stored: Iterable[tuple[bytes, bytes]], at: int, prefix_bytes: int) -> Iterator[tuple[bytes, Row]]:
    """Yield key and row of what was newest in `docs` at the cut already, and still is."""
    for key, value in stored:
        if (row := decode_row(value)).seqno <= at:
            yield key[prefix_bytes:], row


def _superseded(versions: Iterable[tuple[bytes, bytes]], at: int) -> Iterator[tuple[bytes, Row]]:
    """Yield key and row of the versions in `pinned` that the cut shows, at most one of each key."""
    for row_key, value in versions:
        key, seqno = pinned_of(row_key)
        if seqno <= at:
            replaced_by, row = superseded(value)
            if at < replaced_by:
                yield key, row


def _key(found: tuple[bytes, Row]) -> bytes:
    return found[0]


def _document(key: bytes, row: Row) -> Document | None:
    return _new_document(Document, (key, row.seqno, row.ms, row.value)) if row.live else None


def _behind(shard: ShardId, last: bytes | None) -> bytes:
    return doc_key(shard, last) if last is not None else behind(shard)
