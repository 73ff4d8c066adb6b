"""Documents as the client gives and takes them: values without behaviour.

Stays out: how they are written and read (documents).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark_core.base.entry import Durability
from tidemark_core.upr.history import FailoverLog, Opening

if TYPE_CHECKING:
    from .errors import ConditionFailed

_SHOWN_BYTES = 60


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= _SHOWN_BYTES else f"{data[:_SHOWN_BYTES]!r}... ({len(data)} bytes)"


@dataclass(frozen=True, slots=True)
class Document:
    """A live document.  `seqno` names its version; it expires at `expires_at_ms` by the log's clock, 0: never.

    A scan of keys alone leaves `value` empty.
    """

    key: bytes
    value: bytes
    seqno: int
    shard: int
    expires_at_ms: int = 0

    @property
    def expires_at(self) -> datetime.datetime | None:
        """The time of expiry in UTC, None: never."""
        return datetime.datetime.fromtimestamp(self.expires_at_ms / 1000, datetime.UTC) if self.expires_at_ms else None

    def __repr__(self) -> str:
        expires = f", expires_at={self.expires_at}" if self.expires_at_ms else ""
        return f"Document({_shown(self.key)}, {_shown(self.value)}, seqno={self.seqno}, shard={self.shard}{expires})"


@dataclass(frozen=True, slots=True)
class Put:
    """A write of one document, for `batch` and `put_many`.

    `expected` None: whatever is there; 0: no live document; else the seqno of the live one.  `ttl_s` is in seconds.
    """

    key: bytes
    value: bytes
    expected: int | None = None
    ttl_s: float | datetime.timedelta | None = None

    def __repr__(self) -> str:
        return f"Put({_shown(self.key)}, {_shown(self.value)}, expected={self.expected}, ttl_s={self.ttl_s})"


@dataclass(frozen=True, slots=True)
class Delete:
    """A delete of one document, for `batch` and `put_many`; `expected` as in `Put`."""

    key: bytes
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A write that is confirmed and applied.  `replaced` is the seqno of the live document before it, 0: none.

    `producer` and `sequence` are those of the batch it was sent in, which is what `Client.outcome` asks by.
    """

    key: bytes
    shard: int
    seqno: int
    epoch: int
    replaced: int
    durability: Durability
    producer: bytes = b""
    sequence: int = -1

    @property
    def existed(self) -> bool:
        """Say whether a live document was there before."""
        return self.replaced > 0


@dataclass(frozen=True, slots=True)
class BulkWritten:
    """The result of `put_many`: writes applied and refused, and the newest seqno by shard.

    `refused` has the first of the refusals, `refused_count` says how many there were.
    """

    applied: int
    refused_count: int
    refused: tuple[ConditionFailed, ...]
    seqnos: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """A state of the documents of one shard: everything up to `seqno` is applied.

    With lineage and epoch it is a position from which changes go on; `count` and `digest` are those of the live
    documents, where the answer says them.
    """

    seqno: int
    epoch: int = -1
    lineage: bytes = b""
    count: int = -1
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class ActivePin:
    """A pin of one shard: its cut, the rest of its lease, and the bytes of old versions that it keeps.

    `owner` is `client/NAME` or `admin/NAME`, which alone renews it and with admins may end it.  It is empty for a pin
    without an owner, as without TLS, and `another` for a client that is neither the owner nor an admin.
    """

    name: str
    seqno: int
    expires_in_ms: int
    kept_bytes: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An epoch of a shard's history: `history` identifies it, `head` is the offset where it began."""

    epoch: int
    lineage: bytes
    history: bytes
    head: int


@dataclass(frozen=True, slots=True)
class ShardDocuments:
    """The documents of one shard as one member has applied them; the failover log has the newest epoch first."""

    shard: int
    applied: int
    epoch: int
    count: int
    digest: bytes
    purged: int
    tombstones: int
    pins: tuple[ActivePin, ...]
    failover_log: tuple[HistoryEntry, ...]

    @property
    def cut(self) -> Cut:
        """The state as a cut, from which changes go on; one of a shard without a failover log does not say where."""
        if not self.failover_log:
            return Cut(self.applied, count=self.count, digest=self.digest)
        known = FailoverLog(tuple(Opening(each.epoch, each.lineage, each.head) for each in self.failover_log))
        point = known.point(self.applied)
        return Cut(self.applied, point.epoch, point.lineage, self.count, self.digest)
