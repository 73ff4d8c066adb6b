"""Views for the pure parts: groups, nodes, shards and worlds in one line each."""

from __future__ import annotations

from dataclasses import replace

from tidemark_core.base.ids import Member, shard_id
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import DEFAULTS
from tidemark_core.replication.records import ShardRecord, Status
from tidemark_operator.keyspaces import Keyspace
from tidemark_operator.model import Group, Node, Shard
from tidemark_operator.plan import World


def group(name: str = "orders", *, group_id: int = 1, shards: int = 4, factor: int = 3, **more) -> Group:
    values = {
        "uid": f"uid-{name}", "kind": "Log", "default_ack": "Quorum", "max_record_bytes": 1 << 20,
        "payload_copies": 0, "sync_leaders": 1, "leaders": 0,
        "synchro_quorum": None, "synchro_zones": 0, "quorum_timeout_ms": 5_000, "rollback": "Definite",
        "retention_ms": 0, "retention_bytes": 0, "retention_bytes_hard": 0,
        "spread_zones": True, "pools": (), "cluster": "dev", "deletion_policy": "Retain",
    }
    return Group(name=name, group_id=group_id, shards=shards, factor=factor, **{**values, **more})


THREE = Quorum(3, 2, 2)


def keyspace(name: str = "carts", *, partitions: int = 2, quorum: Quorum = THREE, **more) -> Keyspace:
    values = {
        "number": 7, "uid": f"uid-{name}", "spread_zones": True, "pools": (), "read_repair": "Async", "sloppy": False,
        "eventual": False, "overrides_allowed": True, "default_ttl_ms": 0, "access": None, "detached": False,
        "settings": DEFAULTS, "created_ms": 0,
    }
    return Keyspace(name=name, partitions=partitions, quorum=quorum, **{**values, **more})


def ring(*owners: str, quorum: Quorum = THREE) -> list[Range]:
    """Return ranges with owners such as "n1 n2 n3"."""
    return [Range(1, Owners(tuple(map(member, each.split())), quorum)) for each in owners]


def member(node: str, life: str = "1") -> Member:
    return Member(node, f"{node}-life-{life}")


def node(name: str, zone: str = "", *, up: bool = True, **more) -> Node:
    return Node(name, f"127.0.0.1:{7000 + int(name[1:])}", zone, member=member(name), up=up, **more)


def to_come(name: str, zone: str = "") -> Node:
    """A node that has a record and never answered."""
    return replace(node(name, zone, up=False), member=None)


def nodes(count: int, zones: str = "") -> dict[str, Node]:
    return {
        f"n{i}": node(f"n{i}", zones[(i - 1) % len(zones)] if zones else "") for i in range(1, count + 1)
    }


def shard(index: int, *names: str, leader: str | None = None, of: Group | None = None) -> Shard:
    owner = of or group()
    return Shard(
        shard_id(owner.group_id, index), owner.name, names, names[0] if leader is None else leader or None,
        tuple(member(name) for name in names),
    )


def record(*names: str, leader: str | None = None, epoch: int = 1, status: Status = Status.STEADY) -> ShardRecord:
    return ShardRecord(
        epoch, 10, status, tuple(member(name) for name in names), member(leader) if leader else None)


def world(*shards: Shard, nodes: dict[str, Node], groups: list[Group] | None = None) -> World:
    return World(
        {g.name: g for g in groups or [group()]}, {one.shard: one for one in shards}, nodes)


async def nothing_lags() -> set[str]:
    """The answer of nodes whose copies hold everything."""
    return set()
