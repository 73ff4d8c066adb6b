"""Requests of clients to the documents of one shard, and what answers them; each is answered by one Reply.

Writes come as `AppendRequest`, like those to a log; `Written` answers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..base.entry import Durability
from ..base.ids import ShardId
from .payload import Outcome


class Level(IntEnum):
    """The promise of a read (U53)."""

    LINEARIZABLE = 0   # it shows everything that was answered before the read came
    LEADER = 1         # a prefix, as the leader has it; stale for a moment where the leader was replaced
    FOLLOWER = 2       # a prefix, as any member has it


@dataclass(frozen=True, slots=True)
class ReadDocuments:
    """Ask to read the rows of a shard here; answered `ReadGranted` or `Refused`.

    `min_seqno` is the least cut that the read has to show, -1: any (U53).
    """

    shard: ShardId
    request: int
    level: Level = Level.LINEARIZABLE
    min_seqno: int = -1


@dataclass(frozen=True, slots=True)
class PinDocuments:
    """Pin the documents as they are once this is folded, or renew the lease of a pin (U70).

    `owner` is the client or admin that asks, empty without TLS (U70b).  Answered `Pinned` or `Refused`.
    """

    shard: ShardId
    request: int
    name: str
    ttl_ms: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class UnpinDocuments:
    """End a pin; answered `Unpinned` or `Refused`.  A pin that does not exist is no error.

    `owner` is the one whose pin alone may end; it is empty where any pin may (U70b).
    """

    shard: ShardId
    request: int
    name: str
    owner: str = ""


DocumentRequest = ReadDocuments | PinDocuments | UnpinDocuments
DOCUMENT_REQUESTS = (ReadDocuments, PinDocuments, UnpinDocuments)


@dataclass(frozen=True, slots=True)
class Written:
    """A write is confirmed and folded; `outcomes` has the verdict of each record (U50)."""

    epoch: int
    base: int
    count: int
    durability: Durability
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class ReadGranted:
    """The store of this member shows at least the cut `applied`; the reader takes its snapshot from now on."""

    epoch: int
    applied: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """The pin is active on every member that has folded `at`; `epoch` is that of the entry there."""

    name: str
    at: int
    epoch: int
    count: int
    digest: int


@dataclass(frozen=True, slots=True)
class Unpinned:
    """The pin is over."""

    name: str
