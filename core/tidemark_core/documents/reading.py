"""Reading: documents as one consistent state of the rows shows them, now or at a pin (rules U71, U72).

Pure functions of a snapshot of the store.  Stays out: when a member may serve a read (`document_shard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..base.ids import ShardId
from .rows import DOCS, PINNED, Row, Rows, behind, decode_row, doc_key, load, pinned_key, pinned_of, prefix, superseded


class Document(NamedTuple):
    """A live document."""

    key: bytes
    seqno: int
    expires_at_ms: int   # by the log's clock; 0: never
    value: bytes


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
    stored = rows.get(DOCS, doc_key(shard, key))
    if stored is not None and (row := decode_row(stored)).seqno <= at:
        return _document(key, row)
    versions = rows.scan(PINNED, pinned_key(shard, key, 0), pinned_key(shard, key, at + 1))
    return next((_document(key, row) for row in _shown(versions, at)), None)


def scan_at(
    rows: Rows, shard: ShardId, name: str, at: int, first: bytes = b"", last: bytes | None = None
) -> Iterator[Document]:
    """Yield documents with keys in [first, last) as a pin shows them, in byte order; raises Behind or NotPinned.

    Pages of one scan may be read at any member, in snapshots taken at any time (U72).
    """
    check_pin(rows, shard, name, at)
    bounds = pinned_key(shard, first, 0), pinned_key(shard, last, 0) if last is not None else behind(shard)
    old = {
        pinned_of(key)[0]: row
        for key, value in rows.scan(PINNED, *bounds) if pinned_of(key)[1] <= at
        for row in _shown(((key, value),), at)
    }
    new = {
        key[len(prefix(shard)):]: row
        for key, stored in rows.scan(DOCS, doc_key(shard, first), _behind(shard, last))
        if (row := decode_row(stored)).seqno <= at
    }
    for key in sorted(old.keys() | new.keys()):
        document = _document(key, new[key] if key in new else old[key])
        if document is not None:
            yield document


def check_pin(rows: Rows, shard: ShardId, name: str, at: int) -> None:
    """Raise Behind when the pin's cut is not folded here, NotPinned when the name is not active with this cut (U72)."""
    summary = load(shard, rows)
    applied = summary.applied if summary is not None else -1
    if applied < at:
        raise Behind(applied)
    pin = summary.pins.get(name) if summary is not None else None
    if pin is None or pin.at != at:
        raise NotPinned(f"no pin {name!r} with the cut {at} is active")


def _shown(versions: Iterable[tuple[bytes, bytes]], at: int) -> Iterator[Row]:
    for _, value in versions:
        replaced_by, row = superseded(value)
        if at < replaced_by:
            yield row


def _document(key: bytes, row: Row) -> Document | None:
    return Document(key, row.seqno, row.ms, row.value) if row.live else None


def _behind(shard: ShardId, last: bytes | None) -> bytes:
    return doc_key(shard, last) if last is not None else behind(shard)
