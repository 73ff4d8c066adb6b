"""What the operator keeps in etcd: where each thing lies, how it is written, how ids are given out.

    <prefix>/cluster                   the TidemarkCluster as applied
    <prefix>/groups/<name>             a LogGroup as applied, with its group id
    <prefix>/keyspaces/<name>          a Keyspace as applied; `resources.kinds` lists the areas of objects
    <prefix>/reconfigurations/<name>   a Reconfiguration as applied, with its status
    <prefix>/shards/<shard id, hex>    `replication.records.ShardRecord`
    <prefix>/deletions/<shard id, hex> a shard that is being deleted, in place of its record (`data_deletion`)
    <prefix>/ranges/<number, index, hex> `optimistic.records.RangeRecord`
    <prefix>/nodes/<id>                where a node answers
    <prefix>/marks/<id>                how many writes were durable on the disk of a node (`disk_marks`)
    <prefix>/operator                  the active operator (hangs on a lease)
    <prefix>/disruption                the disruptive act that is under way (`disruption`)
    <prefix>/recovery                  records are being rebuilt: no operator acts (`recovery`)
    <prefix>/next-group-id, next-keyspace-id, next-node-id, next-reconfiguration, map-term
                                       counters, raised by compare-and-set

Ids are never given out twice.  Stays out: etcd itself (`etcd`), the table of areas (`records`), what the objects mean.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from tidemark_core.base.errors import RemoteViolation, unknown_record_format
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.marks import DiskMark

from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable, Unavailable, Unknown
from .resources.kinds import KINDS

FORMAT = 1

NODE_IDS, MAP_TERMS = "next-node-id", "map-term"
GROUP_IDS, KEYSPACE_IDS = KINDS["LogGroup"].counter, KINDS["Keyspace"].counter
RECONFIGURATIONS = KINDS["Reconfiguration"].counter
COUNTERS = frozenset({NODE_IDS, MAP_TERMS, *(row.counter for row in KINDS.values() if row.counter)})


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under one prefix."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise ValueError(f"key prefix {self.prefix!r} must begin with / and must not end with one")

    @property
    def everything(self) -> str:
        return f"{self.prefix}/"

    @property
    def operator(self) -> str:
        return f"{self.prefix}/operator"

    @property
    def disruption(self) -> str:
        return f"{self.prefix}/disruption"

    @property
    def recovery(self) -> str:
        return f"{self.prefix}/recovery"

    def shard(self, shard: ShardId) -> str:
        return f"{self.prefix}/shards/{shard:016x}"

    def tombstone(self, shard: ShardId) -> str:
        return f"{self.prefix}/deletions/{shard:016x}"

    def range(self, unit: int) -> str:
        return f"{self.prefix}/ranges/{unit:016x}"

    def object(self, kind: str, name: str) -> str:
        """Return the key of an object of one of the kinds that are stored."""
        row = KINDS[kind]
        return f"{self.prefix}/{row.area}" if row.single else f"{self.prefix}/{row.area}/{name}"

    def node(self, node: str) -> str:
        return f"{self.prefix}/nodes/{node}"

    def mark(self, node: str) -> str:
        return f"{self.prefix}/marks/{node}"

    def counter(self, name: str) -> str:
        return f"{self.prefix}/{name}"


# --- records ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A shard that is being deleted: an epoch above all that it had, and who may still hold a replica."""

    epoch: int
    election: int
    members: tuple[Member, ...]

    def encode(self) -> bytes:
        return dump_record({
            "epoch": self.epoch, "election": self.election, "members": [list(member) for member in self.members]})

    @classmethod
    def decode(cls, data: bytes) -> Tombstone:
        raw = parse_record(data, "tombstone")
        try:
            return cls(int(raw["epoch"]), int(raw["election"]), tuple(Member(*pair) for pair in raw["members"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteViolation(f"tombstone cannot be read: {error!r}") from error


class NodeLife(StrEnum):
    """Whether a node stays: one that leaves is given nothing new, one that is removed is about to be gone."""

    STAYS = ""
    LEAVES = "Leaves"
    REMOVED = "Removed"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Where a node answers and stands.  `pool` and `zone` decide placement, `location` who is near a reader.

    `made_for` is the uid of the Reconfiguration that asked for it, so that it is not made twice.
    """

    node: str
    address: str
    zone: str = ""
    pool: str = "default"
    location: str = ""
    life: NodeLife = NodeLife.STAYS
    made_for: str = ""

    def encode(self) -> bytes:
        return dump_record(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> NodeRecord:
        raw = parse_record(data, "node record")
        try:
            return cls(
                node=raw["node"], address=raw["address"], zone=raw["zone"], pool=raw["pool"],
                location=raw.get("location", ""), life=NodeLife(raw.get("life", "")),
                made_for=raw.get("made_for", ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteViolation(f"node record cannot be read: {error!r}") from error


def encode_mark(mark: DiskMark) -> bytes:
    """Encode the record of a disk's mark."""
    return dump_record(mark._asdict())


def decode_mark(data: bytes) -> DiskMark:
    """Decode the record of a disk's mark; raises RemoteViolation when it cannot be read."""
    raw = parse_record(data, "mark")
    match raw:
        case {"incarnation": str(incarnation), "writes": int(writes)} if incarnation and writes >= 0:
            return DiskMark(incarnation, writes)
    raise RemoteViolation(f"mark cannot be read: it needs an incarnation and a number of writes, not {raw!r}")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An applied manifest with what the operator adds to it.

    `number` is the id of a LogGroup or a Keyspace, and the creation order of a Reconfiguration.  A detached object
    was deleted under `deletionPolicy: Retain`: it is not shown, its records stay, and an object of the same kind,
    name and shape adopts them; one that is `deleting` as well goes with its data.  `status` is stored for
    Reconfigurations only; the status of everything else is computed from the truth when it is asked for.
    `kept` is an object that an API server has too: gone there, it is to go here; one that the operator itself
    made is not until it was shown there.
    """

    manifest: dict[str, Any]
    uid: str
    created: str
    generation: int = 1
    number: int = 0
    detached: bool = False
    deleting: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    kept: bool = False

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    def encode(self) -> bytes:
        return dump_record(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> StoredObject:
        raw = parse_record(data, "object")
        try:
            raw.pop("format")
            return cls(**raw)
        except (KeyError, TypeError) as error:
            raise RemoteViolation(f"object cannot be read: {error!r}") from error


def dump_record(raw: dict[str, Any]) -> bytes:
    """Encode a record, with the format that this build writes."""
    return json.dumps({"format": FORMAT, **raw}, separators=(",", ":"), sort_keys=True).encode()


def parse_record(data: bytes, what: str) -> dict[str, Any]:
    """Decode a record; raises FormatTooNew when a newer release wrote it, RemoteViolation when it cannot be read."""
    try:
        raw = json.loads(data)
        known = raw["format"] == FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteViolation(f"{what} cannot be read: {error!r}") from error
    if not known:
        raise unknown_record_format(what, raw["format"], FORMAT)
    return dict(raw)


# --- counters ---------------------------------------------------------------------------------------------


async def allocate(store: EtcdStore, keys: Keys, counter: str, count: int = 1) -> int:
    """Raise a counter by `count` and return the first number given out; numbers start at 1.

    A number whose allocation had an unknown outcome is skipped: ids are never given out twice.
    Raises StoreUnavailable.
    """
    key = keys.counter(counter)
    for _attempt in range(100):
        item = await store.get(key)
        first = int(item.value) if item else 1
        outcome = await store.put(key, str(first + count).encode(), expected=item.revision if item else 0)
        match outcome:
            case Saved():
                return first
            case Conflict() | Unknown():
                continue  # somebody, perhaps we ourselves, took it: take the next
            case Unavailable(message):
                raise StoreUnavailable(message)
    raise StoreUnavailable(f"counter {counter} is contended: 100 attempts lost their race")
