"""Identities and positions, and their order.

A member is (node, incarnation): `node` is a node id that is never reused, `incarnation` names one life of
its disk.  A wiped disk is another member (rule K14).  Entry ids compare by epoch, then offset (rule O5).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

from xxhash import xxh3_64_intdigest

ShardId = NewType("ShardId", int)
"""A shard of a log group: `group_id << 32 | index`."""

LOG_PLANE = 0
"""The number of the plane whose units are shards.  Numbers of planes fit one byte and are never reused."""

KEYSPACE_PLANE = 1
"""The number of the plane whose units are ranges of keyspaces."""


class Address(NamedTuple):
    """One unit of one plane on a node: a shard of the log plane, a range of a keyspace.

    Effects and events carry it, so that shells run them without knowing what the unit is.
    """

    plane: int
    id: int

    @property
    def shard(self) -> ShardId:
        """The shard that an address of the log plane names."""
        return ShardId(self.id)


def of_shard(shard: ShardId) -> Address:
    """Return the address of a shard.  Build it once per replica, not once per effect."""
    return Address(LOG_PLANE, shard)


class ShardKind(StrEnum):
    """The promise of a shard beside its log; fixed when the shard is created."""

    LOG = "Log"
    DOCUMENTS = "Documents"   # the latest value by key, folded from the log (U46)


OperatorId = NewType("OperatorId", str)
"""One operator process; new on every start."""


class Member(NamedTuple):
    """One life of one node's disk: what an ensemble is made of."""

    node: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.node}/{self.incarnation[:8]}"


Peer = Member | OperatorId
"""Who may send to, or be sent to by, a node."""


class EntryId(NamedTuple):
    """Position of an entry: the epoch it was written in and the offset of its last record (rule A4)."""

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"


NOTHING = EntryId(0, -1)
"""The head of an empty log.  Epochs start at 1, offsets at 0."""


LINEAGE_BYTES = 16
"""A lineage names the history of a shard, together with an epoch; drawn at random (U54)."""

NO_LINEAGE = bytes(LINEAGE_BYTES)
"""The lineage of a position at the beginning, which belongs to no history yet; no shard has it."""


def wrong_lineage(lineage: bytes) -> str | None:
    """Return what is wrong with the lineage of a shard, or None (U54)."""
    if len(lineage) != LINEAGE_BYTES:
        return f"lineage has {len(lineage)} bytes, must have {LINEAGE_BYTES}"
    return "lineage has zero bytes alone" if lineage == NO_LINEAGE else None


def lineage_of(text: str) -> bytes:
    """Return the lineage that hexadecimal digits name, none for an empty text; raises ValueError when it is wrong."""
    lineage = bytes.fromhex(text)
    if lineage and (wrong := wrong_lineage(lineage)) is not None:
        raise ValueError(wrong)
    return lineage


def shard_id(group_id: int, index: int) -> ShardId:
    """Return the id of shard `index` of group `group_id`; both are unsigned 32-bit numbers."""
    if not (0 <= group_id < 1 << 32 and 0 <= index < 1 << 32):
        raise ValueError(f"group {group_id} and shard {index} must be unsigned 32-bit numbers")
    return ShardId(group_id << 32 | index)


def key_hash(key: bytes) -> int:
    """Return the unsigned 32-bit hash of a key; the shard whose range holds it has the key's records or document."""
    return xxh3_64_intdigest(key) >> 32


def group_of(shard: ShardId) -> int:
    """Return the group id inside a shard id."""
    return shard >> 32


def index_of(shard: ShardId) -> int:
    """Return the index of the shard within its group."""
    return shard & 0xFFFF_FFFF
