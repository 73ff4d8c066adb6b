"""GroupKeeper: creates the shards of log groups that lack them.

A shard begins as a record in etcd, written only where there is none; the coordinators find it there.
Stays out: elections, later moves of copies.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable

from tidemark_core.base.ids import LINEAGE_BYTES, ShardId, ShardKind, index_of
from tidemark_core.replication.records import first_record

from .etcd import OPERATIONS_MAX, EtcdStore, Write
from .metadata import Keys, NodeLife
from .mirror import Mirror
from .model import Group
from .patience import Patience
from .placement import PlanRefusal, place_group
from .plan import World
from .resources.conditions import ConditionReason

log = logging.getLogger(__name__)

class GroupKeeper:
    """Call `look` when groups or nodes change, and again when it says so.  `trouble` says why a group has no shards."""

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, patience: Patience | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._patience = patience or Patience()
        self.trouble: dict[str, tuple[ConditionReason, str]] = {}
        self.on_created: Callable[[str, int], None] = lambda group, shards: None

    async def look(self, groups: Iterable[Group], world: World) -> float | None:
        """Create what is missing of the groups that this release serves.

        Returns after how many seconds time alone makes more of it due.  Raises StoreUnavailable.
        """
        load, waiting = world.replicas(), set[str]()
        cluster = self._mirror.cluster
        pools = {pool["name"] for pool in cluster.value.spec["nodePools"]} if cluster is not None else set()
        for group in groups:
            if group.unserved:
                self.trouble.pop(group.name, None)
                continue
            unknown = [pool for pool in group.pools if pool not in pools]
            if unknown:
                self.trouble[group.name] = (
                    ConditionReason.POOL_NOT_FOUND, f"spec.placement.nodePools: the cluster has no pool {unknown[0]!r}")
                continue
            missing = [shard for shard in group.shard_ids() if shard not in self._mirror.shards]
            if not missing:
                self.trouble.pop(group.name, None)
                continue
            placed = place_group(group, world.nodes.values(), load)
            if isinstance(placed, PlanRefusal):
                self.trouble[group.name] = (placed.reason, placed.message)
                continue
            self.trouble.pop(group.name, None)
            if (left_s := self._patience.left_s(group, world.nodes.values())) is not None:
                waiting.add(group.name)
                if left_s > 0:
                    continue
            if await self._create(group, missing, placed, world):
                waiting.discard(group.name)
                log.info("log group %s: %d shards created", group.name, len(missing))
                self.on_created(group.name, len(missing))
            load = world.replicas()
            for ensemble in placed:
                load.update(ensemble)
        return self._patience.keep(waiting)

    async def _create(
        self, group: Group, missing: list[ShardId], placed: list[tuple[str, ...]], world: World
    ) -> bool:
        """Write first records; False when another operator creates them too, or a node changed: the watch will show."""
        per_page = OPERATIONS_MAX // (1 + group.factor)
        for start in range(0, len(missing), per_page):
            page, nodes = [], set[str]()
            for shard in missing[start : start + per_page]:
                names = placed[index_of(shard)]
                members = tuple(member for name in names if (member := world.nodes[name].member) is not None)
                assert len(members) == len(names), "placement only takes nodes that were reached"
                record = first_record(members, group.copies(len(members)), *_history(group))
                page.append(Write(self._keys.shard(shard), record.encode(), 0))
                nodes.update(names)
            known = {name: node for name in nodes if (node := self._mirror.nodes.get(name)) is not None}
            if any(node.life is not NodeLife.STAYS for node in known.values()):
                return False
            # Whoever has a node leave changes its record: it must not be given a copy that is then lost with it.
            unchanged = {key: self._mirror.seen(key) for key in map(self._keys.node, known)}
            if not await self._mirror.replace(self._store, page, unchanged):
                return False
        return True


def _history(group: Group) -> tuple[bytes, ShardKind]:
    """Return the lineage and the kind of a new shard; a log has no lineage (U54)."""
    if group.kind != ShardKind.DOCUMENTS:
        return b"", ShardKind.LOG
    return secrets.token_bytes(LINEAGE_BYTES), ShardKind.DOCUMENTS
