"""Messages of one stream of one shard, and how many bytes of the window each takes (rules U59, U60).

A snapshot is MARKER, rows and END.  Rows ascend by seqno and lie above the marker's start, not above its end.  Between
snapshots ADVANCED moves the position.  Every message of the server counts once; both sides count by `size_of`.
Stays out: encodings, the connection that carries the streams of several shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from ..base.ids import EntryId
from .decision import Refusal
from .history import Point

MESSAGE_BYTES = 64
ROW_BYTES = 48
"""Bytes that each message and each row takes beside keys, values and headers."""


class Op(IntEnum):
    """How a document changed."""

    PUT = 0
    DELETE = 1
    EXPIRE = 2   # deleted by its time to live


class Row(NamedTuple):
    """One version of one document.  `value` and `headers` are empty where the stream leaves them out.

    `before` is the version that this one replaced, where the stream asks for it and the log still has it;
    `before_trimmed` says that there was one and the log has it no more.  Times are milliseconds (UTC), 0: never.
    """

    seqno: int
    key: bytes
    op: Op = Op.PUT
    value: bytes = b""
    expires_at_ms: int = 0
    headers: bytes = b""
    logged_ms: int = 0
    before: bytes | None = None
    before_trimmed: bool = False


class Summary(NamedTuple):
    """Number of live documents of the shard, and their digest (16 bytes), at one seqno."""

    documents: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Marker:
    """A snapshot of the changes above `start` up to `end` begins; applied whole, they give the shard at `end`.

    `disk`: it was scanned, and `purged` is the purge seqno of the scan, None for a live one.  `first_end` is the end of
    the first scan from the beginning that this one belongs to.  `count` documents are in the shard, -1: not counted.
    `may_duplicate`: a key may come more than once.
    """

    start: int
    end: Point
    disk: bool
    purged: int | None = None
    first_end: int | None = None
    count: int = -1
    may_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the snapshot under way, in order."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The snapshot is complete.  `summary` is there where the stream shows whole documents under all keys."""

    seqno: int
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """Up to `point` there is nothing more for this stream; said between snapshots only (U60)."""

    point: Point


@dataclass(frozen=True, slots=True)
class Tentative:
    """Rows of an entry that is not decided (U65)."""

    entry: EntryId
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """No tentative row above `to` will be confirmed (U66)."""

    to: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Everything up to `point` is confirmed and went out on this stream (U66)."""

    point: Point


class EndReason(StrEnum):
    """Why a stream ended."""

    CLOSED = "CLOSED"                        # the consumer asked for it
    REFUSED = "REFUSED"                      # the position cannot be served here, see the refusal
    STATE_CHANGED = "STATE_CHANGED"          # the member no longer leads this epoch (tentative level)
    TOO_SLOW = "TOO_SLOW"                    # no acknowledgement while a scan held a snapshot
    READ_FAILED = "READ_FAILED"              # the member cannot read its store
    CANNOT_SEND = "CANNOT_SEND"              # a document is larger than a message may be
    PROTOCOL_ERROR = "PROTOCOL_ERROR"        # the consumer broke the protocol
    LOST_PRIVILEGES = "LOST_PRIVILEGES"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    OVERLOADED = "OVERLOADED"                # the member has no room for one more stream of this caller (T12)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The last message of a stream; `refusal` says more where `reason` is REFUSED, `message` names key or fact."""

    reason: EndReason
    refusal: Refusal | None = None
    message: str = ""


Message = Marker | Rows | End | Advanced | Tentative | RolledBack | Confirmed | StreamEnd


def size_of_row(row: Row) -> int:
    """Return the bytes that a row takes."""
    size = ROW_BYTES + len(row.key) + len(row.value) + len(row.headers)
    return size if row.before is None else size + len(row.before)


def size_of(message: Message) -> int:
    """Return the bytes that a message takes of the stream's window; both sides compute the same."""
    if isinstance(message, Rows | Tentative):
        return MESSAGE_BYTES + sum(map(size_of_row, message.rows))
    return MESSAGE_BYTES
