"""Rings: the ranges and settings of a keyspace in the shard map, from the operator's and back to those of core.

A map names each member of a keyspace once, and ranges name members by index: a ring of 4,096 ranges stays small.
Stays out: which keyspaces a map has, and pushing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings

from .v1 import common_pb2

PARTITIONS_MAX = 4096
OWNERS_MAX = 16
"""More owners of a range than any keyspace has."""


DAY_MS = 86_400_000
HINT_WINDOW_MAX_MS, REPAIR_EVERY_MAX_MS, GRACE_MAX_MS = 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS
REPAIR_BYTES_MAX = (1 << 63) - 1


class InvalidRing(ValueError):
    """A ring that no node can act under; the message names the keyspace, the range and the field."""


def put_ring(info: common_pb2.KeyspaceInfo, ranges: Iterable[Range]) -> None:
    """Write the ranges of a keyspace, in the order of their indexes, into its entry of a map."""
    indexes: dict[Member, int] = {}

    def owner_list(owners: Owners) -> common_pb2.OwnerList:
        members = [indexes.setdefault(member, len(indexes)) for member in owners.members]
        n, r, w = owners.quorum
        return common_pb2.OwnerList(members=members, n=n, r=r, w=w)

    for record in ranges:
        pending = owner_list(record.pending) if record.pending is not None else None
        info.ranges.add(version=record.version, own=owner_list(record.own), pending=pending, floor_ms=record.floor_ms)
    info.members.extend(common_pb2.Member(node=member.node, incarnation=member.incarnation) for member in indexes)


def ring_of(info: common_pb2.KeyspaceInfo) -> tuple[Range, ...]:
    """Return the ranges of a keyspace by their indexes.  Raises InvalidRing."""
    name, count = f"keyspaces[{info.name}]", len(info.ranges)
    if not 0 < count <= PARTITIONS_MAX or count & (count - 1):
        raise InvalidRing(f"{name}.ranges: {count} ranges, must be a power of two up to {PARTITIONS_MAX}")
    members = [Member(each.node, each.incarnation) for each in info.members]
    for number, member in enumerate(members):
        if not member.node or not member.incarnation:
            raise InvalidRing(f"{name}.members[{number}]: node and incarnation must be given")
    if len(set(members)) != len(members):
        raise InvalidRing(f"{name}.members: a member is named twice")
    return tuple(
        _range_of(f"{name}.ranges[{index}]", each, members) for index, each in enumerate(info.ranges))


def put_settings(info: common_pb2.KeyspaceInfo, settings: KeyspaceSettings) -> None:
    """Write the settings of a keyspace into its entry of a map."""
    info.settings.hint_window_ms = settings.hint_window_ms
    info.settings.repair_every_ms = settings.repair_every_ms
    info.settings.grace_ms = settings.grace_ms
    info.settings.repair_bytes = settings.repair_bytes


def settings_of(info: common_pb2.KeyspaceInfo) -> KeyspaceSettings | None:
    """Return the settings of a keyspace, None where the operator's release knows none.  Raises InvalidRing."""
    if not info.HasField("settings"):
        return None
    given = info.settings
    for field, value, low, high in (
        ("hint_window_ms", given.hint_window_ms, 0, HINT_WINDOW_MAX_MS),
        ("repair_every_ms", given.repair_every_ms, 0, REPAIR_EVERY_MAX_MS),
        ("grace_ms", given.grace_ms, 1, GRACE_MAX_MS),
        ("repair_bytes", given.repair_bytes, 0, REPAIR_BYTES_MAX),
    ):
        if not low <= value <= high:
            raise InvalidRing(f"keyspaces[{info.name}].settings.{field}: {value} is not in {low} to {high}")
    return KeyspaceSettings(
        given.hint_window_ms, given.repair_every_ms, given.grace_ms, given.repair_bytes)


def _range_of(name: str, info: common_pb2.RangeInfo, members: Sequence[Member]) -> Range:
    if info.floor_ms < 0:
        raise InvalidRing(f"{name}.floor_ms: {info.floor_ms} is below 0")
    pending = _owners_of(f"{name}.pending", info.pending, members) if info.HasField("pending") else None
    return Range(info.version, _owners_of(f"{name}.own", info.own, members), pending, info.floor_ms)


def _owners_of(name: str, info: common_pb2.OwnerList, members: Sequence[Member]) -> Owners:
    wrong = next((index for index in info.members if index >= len(members)), None)
    if wrong is not None:
        raise InvalidRing(f"{name}.members: {wrong} is no index into {len(members)} members")
    if not 0 < info.n <= OWNERS_MAX or len(info.members) != info.n or len(set(info.members)) != info.n:
        raise InvalidRing(
            f"{name}: {len(info.members)} members for n = {info.n}, must be as many and distinct, 1 to {OWNERS_MAX}")
    for field, quorum in (("r", info.r), ("w", info.w)):
        if not 0 < quorum <= info.n:
            raise InvalidRing(f"{name}.{field}: {quorum} is not in 1 to {info.n}")
    return Owners(tuple(members[index] for index in info.members), Quorum(info.n, info.r, info.w))
