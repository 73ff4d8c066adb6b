"""NodeExchange: the nodes that one NodeSwap makes and takes away; each step may be asked for again at any time.

While copies move, their source Leaves: nothing new is placed on it.  In the end it is Removed if that was asked for and
it holds nothing, else it stays.
Stays out: moves, stages and turns (`reconfiguration_run`), what runs a node (whoever looks at its record).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord

from .condition_memory import some
from .metadata import NodeLife
from .mirror import Mirror
from .model import ClusterSettings, shard_views
from .node_records import NodeRecords
from .plan import World


class NodeExchange:
    """Of one Reconfiguration; of one that is no NodeSwap, or where nobody makes nodes, nothing ever happens."""

    def __init__(self, uid: str, spec: Mapping[str, Any], records: NodeRecords | None, mirror: Mirror) -> None:
        self._uid = uid
        self._records = records
        self._mirror = mirror
        swap: Mapping[str, Any] = spec.get("nodeSwap") or {}
        whole = bool(swap) and records is not None and not spec.get("scope")
        self.source: str | None = swap["from"] if whole else None
        """The node to be emptied; None where some of its copies are not asked to move."""
        self._asked = bool(swap) and swap.get("removeSource", "Delete") == "Delete"
        self.removes: str | None = self.source if self._asked else None
        self._to = swap.get("to") or {}

    def warnings(self, settings: ClusterSettings) -> list[str]:
        """Return what to know of the source's end before approving."""
        if not self._asked:
            return []
        if self._records is None:
            return ["the emptied node keeps running: a local cluster does not remove nodes"]
        if self.removes is None:
            return ["the source stays: scope leaves copies on it"]
        record = self._mirror.nodes.get(self.removes)
        if record is None or self._to.get("provision") is not None:
            return []
        pool = settings.pools.get(record.pool) or {"replicas": 0}
        staying = [
            other for other in self._mirror.nodes.values()
            if other.pool == record.pool and other.life is NodeLife.STAYS and other.node != record.node]
        if len(staying) >= pool["replicas"]:
            return []
        return [
            f"a new, empty node takes the place of {record.node}; to shrink, lower replicas of node pool {record.pool}"]

    async def make(self, pool: Mapping[str, Any], zone: str) -> str:
        """Have the new node, and return its name.  Raises StoreUnavailable."""
        assert self._records is not None, "a plan makes nodes only where somebody can"
        return await self._records.make_for(self._uid, pool, zone)

    async def set_source(self, life: NodeLife) -> None:
        """Raises StoreUnavailable."""
        if self.source is not None and self._records is not None:
            await self._records.set_life(self.source, life)

    def is_removed(self) -> bool | None:
        """Say whether the source's record says so; None: there is no record any more."""
        record = self._mirror.nodes.get(self.removes or "")
        return record.life is NodeLife.REMOVED if record is not None else None

    def holds(self, world: World, records: Mapping[ShardId, ShardRecord]) -> str:
        """Return which copies the source is still a member for, empty for none."""
        source = self.removes
        views = shard_views(world.groups.values(), records)
        return some(
            views[shard].name if shard in views else f"{shard:x}" for shard, record in records.items()
            if any(member.node == source for member in (*record.ensemble, *_changing(record))))

    def cleans(self, world: World, records: Mapping[ShardId, ShardRecord]) -> bool:
        """Say whether the source still deletes what it held, or owns ranges of keyspaces, which leave by themselves.

        One that is down never deletes, and need not.
        """
        if world.owned()[self.removes or ""]:
            return True
        node = world.nodes.get(self.removes or "")
        return node is not None and node.up and any(
            member == node.member for record in records.values() for member in record.removed)


def _changing(record: ShardRecord) -> tuple[Any, ...]:
    change = record.change
    return tuple(member for member in (change.old, change.new) if member is not None) if change is not None else ()
