"""The shard map this node was pushed, and what is looked up in it: groups, leader hints, addresses.

Nodes never read etcd; the operator pushes, clients fetch and watch.  Addresses are also learnt from peers that
introduce themselves.

The rule, with reason and tests in `docs/protocols/trust.md`:

T13  A request is for one group, not for a name

Stays out: who leads or belongs to what; the map is only repeated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NoReturn

from tidemark_core.base.ids import Member, ShardId, shard_id
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.identity import AccessLists
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import common_pb2

from .methods import KEYSPACE, LOG_GROUP


@dataclass(frozen=True, slots=True)
class Target:
    """A shard as a client names it, found in the map."""

    shard: ShardId
    group: common_pb2.GroupInfo
    info: common_pb2.ShardInfo

    @property
    def has_documents(self) -> bool:
        """Say whether it is a shard of documents."""
        return self.group.kind == "Documents"


@dataclass(frozen=True, slots=True)
class Hint:
    """Where the leader is as far as this node was told; empty when it was not."""

    node: str = ""
    address: str = ""
    map_version: int = 0


class Routing:
    """The newest map, indexed."""

    def __init__(self) -> None:
        self.map = common_pb2.ShardMap()
        self.map_bytes = b""                # the same, serialised once for all who watch
        self._targets: dict[tuple[str, int], Target] = {}
        self._groups: dict[str, common_pb2.GroupInfo] = {}
        self._access: dict[tuple[str, str], AccessLists] = {}    # by kind and name
        self.snapshot_bytes_per_second = 0   # 0: nothing is said
        self.quorum_silence_ms = 0           # 0: nothing is said
        self._addresses: dict[str, str] = {}
        self._changed = asyncio.Event()

    def push(self, pushed: common_pb2.ShardMap) -> int:
        """Take a newer map, ignore an older one; return the version in force."""
        if pushed.version <= self.map.version:
            return self.map.version
        self._access = {
            (kind, each.name): AccessLists.of(each.access.readers, each.access.writers, each.access.admins)
            for kind, things in ((LOG_GROUP, pushed.groups), (KEYSPACE, pushed.keyspaces))
            for each in things if each.HasField("access")
        }
        self.snapshot_bytes_per_second = pushed.snapshot_bytes_per_second
        self.quorum_silence_ms = pushed.quorum_silence_ms
        pushed = _public(pushed)
        self.map = pushed
        self.map_bytes = pushed.SerializeToString()
        self._groups = {group.name: group for group in pushed.groups}
        self._targets = {
            (group.name, info.index): Target(shard_id(group.group_id, info.index), group, info)
            for group in pushed.groups
            for info in group.shards
        }
        self._addresses.update((node.node, node.address) for node in pushed.nodes if node.address)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return pushed.version

    async def newer(self, known_version: int) -> int:
        """Return the version of the map once it is above `known_version`."""
        while self.map.version <= known_version:
            await self._changed.wait()
        return self.map.version

    def find(self, group: str, index: int, group_id: int = 0) -> Target | Refused:
        """Look up what a client named; a `group_id` must be that of the group, 0 is any."""
        known = self._groups.get(group)
        if known is not None and group_id not in (0, known.group_id):
            # Either map may be the newer one: a client compares with its own, and looks again.
            return Refused(
                Reason.GROUP_REPLACED, f"log group {group!r} has the id {known.group_id} in shard map "
                f"{self.map.version}, not {group_id}: it was deleted and made again", retry_after_ms=100)
        target = self._targets.get((group, index))
        if target is not None:
            return target
        if not self.map.version:
            return Refused(Reason.NO_LEADER, "this node has no shard map yet", retry_after_ms=100)
        if known is None:
            return Refused(Reason.UNKNOWN_GROUP, f"log group {group!r} is not in shard map {self.map.version}")
        shards = len(known.shards)
        return Refused(Reason.UNKNOWN_SHARD, f"shard {index} of {group!r}: the group has shards 0 to {shards - 1}")

    def access(self, name: str, kind: str = LOG_GROUP) -> AccessLists | None:
        """Return who may do what with a group or a keyspace, None where nothing is said."""
        return self._access.get((kind, name))

    def hint(self, target: Target | None) -> Hint:
        """Return where to go instead."""
        leader = target.info.leader if target is not None else ""
        return Hint(leader, self._addresses.get(leader, ""), self.map.version)

    async def refuse(self, context: Any, refused: Refused, target: Target | None) -> NoReturn:
        """End a call with a refusal that says where to go instead."""
        hint = self.hint(target)
        await context.abort(*to_rpc_error(refused, hint.node, hint.address, hint.map_version))
        raise AssertionError("abort raises")

    def learn(self, node: str, address: str) -> None:
        """Note the address a peer gave for itself."""
        if node and address:
            self._addresses[node] = address

    def address(self, node: str) -> str | None:
        """Return where to dial a node."""
        return self._addresses.get(node)

    def older(self, target: Target, version: int) -> list[str]:
        """Return the members of a shard that run a build below a wire version, as far as the map says."""
        versions = {each.node: each.wire_version for each in self.map.nodes}
        return [name for name in target.info.ensemble if 0 < versions.get(name, 0) < version]

    def neighbours(self, node: str) -> set[Member]:
        """Return the members that share a shard with a node, as the map names them."""
        shards = (info for group in self.map.groups for info in group.shards)
        names = {name for info in shards if node in info.ensemble for name in info.ensemble}
        return {
            Member(each.node, each.incarnation) for each in self.map.nodes
            if each.node in names and each.node != node and each.incarnation
        }


def _public(pushed: common_pb2.ShardMap) -> common_pb2.ShardMap:
    """Return the map as clients get it: who else may do what, and how nodes are throttled, is nothing to them."""
    public = common_pb2.ShardMap()
    public.CopyFrom(pushed)
    public.ClearField("snapshot_bytes_per_second")
    public.ClearField("quorum_silence_ms")
    for each in (*public.groups, *public.keyspaces):
        each.ClearField("access")
    return public
