"""Events of a change stream: rows, the snapshots that they belong to, and news of the stream.

Stays out: streams, positions (`changes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidemark_core.upr.messages import Op as ChangeOp
from tidemark_core.upr.messages import Row, Summary

if TYPE_CHECKING:
    import pyarrow as pa

# The constructor of a tuple, without a Python frame around it: changes come by the thousand.
_new = tuple.__new__


class Change(NamedTuple):
    """One version of one document.  `value` is empty where it was deleted, or left out by the projection.

    `op` is PUT, DELETE or EXPIRE; a scan shows an expired document as deleted.  Times are milliseconds since 1970 by
    the log's clock, 0: never, or not known.
    """

    shard: int
    seqno: int
    key: bytes
    op: ChangeOp
    value: bytes
    expires_at_ms: int = 0
    headers: bytes = b""
    logged_ms: int = 0
    before: bytes | None = None
    before_trimmed: bool = False

    @property
    def deleted(self) -> bool:
        return self.op is not ChangeOp.PUT


class ChangeBatch(NamedTuple):
    """Changes of the snapshot under way, in order of seqno; nothing of them may be shown before its end."""

    shard: int
    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Change]:   # type: ignore[override]
        shard = self.shard
        return (_new(Change, (shard, *row)) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The changes as Arrow columns: seqno, key, op, value, expires_at_ms."""
        return _record_batch(self.rows)


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """The changes above `start` up to `end` come; with `fresh` they replace everything that the view has (U58)."""

    shard: int
    start: int
    end: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """The snapshot is whole: apply what is staged and store the position `seqno`, in one transaction (U55).

    `summary` has the number of documents and the digest of the shard, where the stream shows all of it.
    """

    shard: int
    seqno: int
    fresh: bool
    summary: Summary | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """Nothing changed up to `seqno`."""

    shard: int
    seqno: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """Forget what is staged of this shard: the snapshot begins again, or another one does."""

    shard: int


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The view of this shard will be replaced, for deletes were purged behind it or its history is lost (U58)."""

    shard: int
    reason: str
    message: str


ChangeEvent: TypeAlias = Change | SnapshotBegin | SnapshotEnd | Advanced | Discarded | Rebuilding
BatchEvent: TypeAlias = ChangeBatch | SnapshotBegin | SnapshotEnd | Advanced | Discarded | Rebuilding


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot of one shard: applied together, its changes give the shard at `seqno`.

    With `fresh` they replace everything that the view has of the shard.  Iterating gives `Change`s.
    """

    shard: int
    start: int
    seqno: int
    fresh: bool
    rows: tuple[Row, ...]
    summary: Summary | None = None

    def __iter__(self) -> Iterator[Change]:
        shard = self.shard
        return (_new(Change, (shard, *row)) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def record_batch(self) -> pa.RecordBatch:
        """The changes as Arrow columns: seqno, key, op, value, expires_at_ms."""
        return _record_batch(self.rows)


@dataclass(frozen=True, slots=True)
class Vector:
    """Where a group of documents is confirmed at least, on every shard: `position` is that as a token for `from_`."""

    position: str
    seqnos: dict[int, int]


@dataclass(frozen=True, slots=True)
class BarrierResult:
    """How a barrier ended: complete when `not_covered` is empty.

    `position` is the barrier's vector as a token, over the shards whose target is known; `not_covered` says for each
    other shard why: NO_LEADER, LAGGING, MOVED or REBUILDING.
    """

    position: str
    not_covered: dict[int, str]

    @property
    def complete(self) -> bool:
        return not self.not_covered


def _record_batch(rows: tuple[Row, ...]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch(
        [
            pa.array([row.seqno for row in rows], pa.int64()),
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.op.name for row in rows], pa.string()),
            pa.array([row.value if row.op is ChangeOp.PUT else None for row in rows], pa.binary()),
            pa.array([row.expires_at_ms or None for row in rows], pa.int64()),
        ],
        names=["seqno", "key", "op", "value", "expires_at_ms"],
    )
