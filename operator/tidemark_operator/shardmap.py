"""The shard map: what clients and nodes need to find every shard and range, from records, manifests and nodes.

Keys map to shards by `xxh3_64(key) >> 32` over contiguous, inclusive, unsigned 32-bit ranges.
Pure.  Stays out: pushing it (`publisher`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidemark_core.base.ids import ShardId, shard_id
from tidemark_core.optimistic.ring import Range
from tidemark_core.replication.records import ShardRecord, Status
from tidemark_wire.identity import AccessLists
from tidemark_wire.rings import put_ring, put_settings
from tidemark_wire.v1 import common_pb2

from .keyspaces import Keyspace
from .model import Group, Node

HASH_SPACE = 1 << 32


def hash_range(index: int, shards: int) -> tuple[int, int]:
    """Return the hashes of shard `index` of `shards`, both ends inclusive; ranges differ by at most one."""
    return index * HASH_SPACE // shards, (index + 1) * HASH_SPACE // shards - 1


def build_shard_map(
    version: int,
    cluster: str,
    groups: Iterable[Group],
    records: Mapping[ShardId, ShardRecord],
    nodes: Iterable[Node],
    snapshot_bytes_per_second: int = 0,
    quorum_silence_ms: int = 0,
    keyspaces: Iterable[Keyspace] = (),
    ranges: Mapping[int, Range] = MappingProxyType({}),
) -> common_pb2.ShardMap:
    """Build the map.  A group appears once every one of its shards has a record, a keyspace once every range has."""
    shard_map = common_pb2.ShardMap(
        version=version, cluster=cluster, snapshot_bytes_per_second=snapshot_bytes_per_second,
        quorum_silence_ms=quorum_silence_ms)
    for node in sorted(nodes, key=lambda node: node.node):
        shard_map.nodes.add(
            node=node.node,
            incarnation=node.member.incarnation if node.member else "",
            address=node.address,
            zone=node.zone,
            location=node.location,
            available=node.up,
            wire_version=node.wire_version if node.up else 0,   # who is down may come back as an older release
        )
    for group in sorted(groups, key=lambda group: group.name):
        found = [records.get(shard_id(group.group_id, index)) for index in range(group.shards)]
        if None in found:
            continue
        entry = shard_map.groups.add(
            name=group.name,
            group_id=group.group_id,
            kind=group.kind,
            max_batch_bytes=group.max_batch_bytes,
            max_record_bytes=group.max_record_bytes,
            keys_required=group.keys_required,
            default_ack=group.default_ack,
            synchro_quorum="" if group.synchro_quorum is None else str(group.synchro_quorum),
            synchro_zones=group.synchro_zones,
            quorum_timeout_ms=group.quorum_timeout_ms,
            rollback=group.rollback,
            retention_ms=group.retention_ms,
            retention_bytes=group.retention_bytes,
            retention_bytes_hard=group.retention_bytes_hard,
            tombstone_ms=group.tombstone_ms,
            pinned_bytes_max=group.pinned_bytes_max,
            sync_leaders=group.sync_leaders,
            leaders=group.leaders,
        )
        if group.access is not None:
            entry.access.CopyFrom(_access(group.access))
        for index, record in enumerate(found):
            assert record is not None
            low, high = hash_range(index, group.shards)
            entry.shards.add(
                index=index,
                epoch=record.epoch,
                leader=record.leader.node if record.leader and record.status is not Status.ELECTION else "",
                ensemble=[member.node for member in record.ensemble],
                hash_min=low,
                hash_max=high,
                status=record.status,
                payload_copies=record.copies,
            )
    for keyspace in sorted(keyspaces, key=lambda keyspace: keyspace.name):
        ring = [ranges[unit] for unit in keyspace.units() if unit in ranges]
        if len(ring) == keyspace.partitions:
            _put_keyspace(shard_map.keyspaces.add(), keyspace, ring)
    return shard_map


def _put_keyspace(entry: common_pb2.KeyspaceInfo, keyspace: Keyspace, ring: Iterable[Range]) -> None:
    entry.name = keyspace.name
    entry.keyspace_id = keyspace.number
    entry.read_repair = keyspace.read_repair
    entry.sloppy = keyspace.sloppy
    entry.eventual = keyspace.eventual
    entry.overrides_allowed = keyspace.overrides_allowed
    entry.default_ttl_ms = keyspace.default_ttl_ms
    put_settings(entry, keyspace.settings)
    put_ring(entry, ring)
    if keyspace.access is not None:
        entry.access.CopyFrom(_access(keyspace.access))


def _access(lists: AccessLists) -> common_pb2.GroupAccess:
    return common_pb2.GroupAccess(
        readers=sorted(lists.readers), writers=sorted(lists.writers), admins=sorted(lists.admins))
