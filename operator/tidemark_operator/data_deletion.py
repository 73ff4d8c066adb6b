"""DataDeletion: deletes the replicas of log groups whose data is to go, then what etcd knows of them.

In one transaction a shard's record goes and a tombstone takes its place, with an epoch above all that the shard had and
with whoever may hold a replica: from then on nobody can elect, change or place it.  Each member is told to delete until
it says that it did.  A member that came back with another disk and one whose node was removed have
nothing left; one that is down is waited for.  The group's key goes last: whoever comes after goes on from etcd alone.
Stays out: who may ask for it (`objects`), what a node does to delete a replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidemark_core.base.ids import Address, Member, ShardId, group_of, of_shard
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import DeleteShard, Rejected, ShardDeleted
from tidemark_core.replication.records import ShardRecord

from .condition_memory import some
from .etcd import EtcdStore, Write
from .metadata import Keys, StoredObject, Tombstone
from .mirror import Mirror, Value, Versioned
from .model import Node

log = logging.getLogger(__name__)

SAY_AGAIN_S = 1.0
AT_ONCE = 64


class DataDeletion:
    """Call `look` when anything changes, while this operator is active."""

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, send: Callable[[Address, Member, Any], None],
        poke_later: Callable[[float], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._send = send
        self._poke_later = poke_later
        self._deleted: set[tuple[ShardId, Member]] = set()
        self._above: dict[ShardId, int] = {}

    async def look(self, nodes: Mapping[str, Node]) -> None:
        """Do the next step of every group that is to go.  Raises StoreUnavailable."""
        for name, item in list(self._mirror.groups.items()):
            if not item.value.deleting:
                continue
            records = _of(item.value, self._mirror.shards)
            for shard, record in records[:AT_ONCE]:
                await self._bury(shard, record)
            buried = _of(item.value, self._mirror.tombstones)
            for shard, tombstone in buried[:AT_ONCE]:
                await self._tend(shard, tombstone, nodes)
            if records or buried:
                self._poke_later(SAY_AGAIN_S)
            elif await self._mirror.replace(
                    self._store, [Write(self._keys.object("LogGroup", name), None, item.revision)]):
                log.info("log group %s: its data is deleted", name)

    def received(self, shard: ShardId, sender: Member, message: Any) -> bool:
        """Take in an answer; say whether it was about a shard that is being deleted."""
        if shard not in self._mirror.tombstones:
            return False
        unknown = isinstance(message, Rejected) and message.about == "DeleteShard" and (
            message.refusal.reason is Reason.UNKNOWN_SHARD)
        if isinstance(message, ShardDeleted) or unknown:
            self._deleted.add((shard, sender))
            self._poke_later(0)
        elif isinstance(message, Rejected) and message.refusal.reason is Reason.STALE_EPOCH:
            self._above[shard] = max(self._above.get(shard, 0), message.refusal.epoch)
            self._poke_later(0)
        return True

    def left(self, group: StoredObject) -> str:
        """Return what is still to be deleted of a group, and which nodes are waited for."""
        shards, buried = len(_of(group, self._mirror.shards)), _of(group, self._mirror.tombstones)
        nodes = sorted({member.node for _shard, tombstone in buried for member in tombstone.value.members})
        return f"{shards + len(buried)} shards are left, on {some(nodes)}." if nodes else f"{shards} shards are left."

    async def _bury(self, shard: ShardId, item: Versioned[ShardRecord]) -> None:
        await self._mirror.replace(self._store, [
            Write(self._keys.shard(shard), None, item.revision),
            Write(self._keys.tombstone(shard), tombstone_of(item.value, item.revision).encode(), 0)])

    async def _tend(self, shard: ShardId, item: Versioned[Tombstone], nodes: Mapping[str, Node]) -> None:
        tombstone, key = item.value, self._keys.tombstone(shard)
        wanted = replace(
            tombstone, epoch=max(tombstone.epoch, self._above.get(shard, 0) + 1),
            members=tuple(member for member in tombstone.members if self._holds(shard, member, nodes)))
        if not wanted.members:
            await self._mirror.replace(self._store, [Write(key, None, item.revision)])
            self._deleted = {each for each in self._deleted if each[0] != shard}
            self._above.pop(shard, None)
            return
        if wanted != tombstone and not await self._mirror.replace(
                self._store, [Write(key, wanted.encode(), item.revision)]):
            return
        for member in wanted.members:
            self._send(of_shard(shard), member, DeleteShard(wanted.epoch, wanted.election))

    def _holds(self, shard: ShardId, member: Member, nodes: Mapping[str, Node]) -> bool:
        node = nodes.get(member.node)
        replaced = node is not None and node.up and node.member is not None and node.member != member
        return (shard, member) not in self._deleted and not replaced and (
            member.node in self._mirror.nodes or node is not None)


def _of(group: StoredObject, stored: Mapping[ShardId, Versioned[Value]]) -> list[tuple[ShardId, Versioned[Value]]]:
    return [(shard, item) for shard, item in stored.items() if group_of(shard) == group.number]


def tombstone_of(record: ShardRecord, revision: int) -> Tombstone:
    """Return what takes the place of a record that is stored at `revision`."""
    change = record.change
    involved = (*record.ensemble, *record.removed, *((change.new,) if change is not None and change.new else ()))
    return Tombstone(record.epoch + 1, revision, tuple(dict.fromkeys(involved)))
