"""RingKeeper: creates the ranges of keyspaces, and says which owners they should have.

A range begins as a record in etcd, written only where there is none and while its Keyspace is as it was seen.
Stays out: choosing owners (`ring_plan`), carrying a move out (core's `mover`), deleting (`keyspace_deletion`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidemark_core.base.ids import KEYSPACE_PLANE, Address
from tidemark_core.optimistic.mover import Wanted
from tidemark_core.optimistic.placing import placed
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Range

from .etcd import OPERATIONS_MAX, EtcdStore, Write
from .keyspaces import Keyspace, is_gone, keyspace_view, number_of
from .metadata import Keys, NodeLife, StoredObject
from .mirror import Mirror, Versioned
from .model import Node
from .objects import Objects
from .patience import Patience
from .resources.conditions import ConditionReason
from .ring_plan import plan_ring

log = logging.getLogger(__name__)

FIRST_VERSION = 1
RANGES_MAX = 65_536
"""In a cluster: the shard map, which every node is pushed whole, stays below a few MiB."""


class RingKeeper:
    """Call `look` when keyspaces, ranges or nodes change, and again when it says so.

    `trouble` says why a keyspace has no ranges.
    """

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, objects: Objects, feed: Callable[[int, Any], None],
        patience: Patience | None = None,
    ) -> None:
        """`feed` hands an event to the machine of a plane."""
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._objects = objects
        self._feed = feed
        self._patience = patience or Patience()
        self._at_rest: dict[str, Any] = {}    # by keyspace: what its plan was made from, where that came to nothing
        self.trouble: dict[str, tuple[ConditionReason, str]] = {}

    async def look(
        self, nodes: Mapping[str, Node], records: Mapping[int, Range], moves_max: int
    ) -> float | None:
        """Do the next step of every keyspace; at most `moves_max` ranges move at once.

        Returns after how many seconds time alone makes more of it due.  Raises StoreUnavailable.
        """
        waiting = set[str]()
        for name, item in list(self._mirror.keyspaces.items()):
            if item.value.deleting:
                continue
            if not item.value.number:
                await self._objects.number("Keyspace", name)
            else:
                await self._create(item, nodes, waiting)
        for known in (self.trouble, self._at_rest):
            for name in known.keys() - self._mirror.keyspaces.keys():
                del known[name]
        self._want(nodes, records, moves_max)
        return self._patience.keep(waiting)

    # --- creating -------------------------------------------------------------------------------------------

    async def _create(self, item: Versioned[StoredObject], nodes: Mapping[str, Node], waiting: set[str]) -> None:
        """Create the ranges that a keyspace lacks."""
        keyspace = keyspace_view(item.value)
        missing = [] if keyspace.detached else [
            index for index, unit in enumerate(keyspace.units()) if unit not in self._mirror.ranges]
        self.trouble.pop(keyspace.name, None)
        if not missing:
            return
        zones = keyspace.zones(nodes)
        if (wrong := self._wrong(keyspace, len(zones))) is not None:
            self.trouble[keyspace.name] = wrong
            return
        if (left_s := self._patience.left_s(keyspace, nodes.values())) is not None:
            waiting.add(keyspace.name)
            if left_s > 0:
                return
        # Of many ranges and nodes that is work for a second: the loop has probes to answer meanwhile.
        lists = await asyncio.to_thread(placed, keyspace.partitions, zones, keyspace.factor, keyspace.number)
        first = {index: Range(FIRST_VERSION, Owners(lists[index], keyspace.quorum)) for index in missing}
        if await self._write_first(item, keyspace, first):
            waiting.discard(keyspace.name)
            log.info("keyspace %s: %d ranges created", keyspace.name, len(missing))

    def _wrong(self, keyspace: Keyspace, eligible: int) -> tuple[ConditionReason, str] | None:
        """Say why the ranges of a keyspace cannot be created, None where they can."""
        cluster = self._mirror.cluster
        pools = {pool["name"] for pool in cluster.value.spec["nodePools"]} if cluster is not None else set()
        unknown = [pool for pool in keyspace.pools if pool not in pools]
        if unknown:
            return (
                ConditionReason.POOL_NOT_FOUND, f"spec.placement.nodePools: the cluster has no pool {unknown[0]!r}")
        if not keyspace.eventual and not keyspace.quorum.strict:
            return (    # an older release stored it
                ConditionReason.INVALID_SPEC,
                "spec.replication.writeQuorum: consistency Overlapping needs it to be more than half of replicas")
        others = sum(number_of(unit) != keyspace.number for unit in self._mirror.ranges)
        if others + keyspace.partitions > RANGES_MAX:
            return (
                ConditionReason.INVALID_SPEC,
                f"spec.partitions: other keyspaces have {others} ranges, and a cluster has at most {RANGES_MAX}: "
                "delete a keyspace or use fewer partitions")
        if eligible < keyspace.factor:
            return (
                ConditionReason.NOT_ENOUGH_NODES,
                f"replicas {keyspace.factor} needs as many nodes that are up, {eligible} are eligible"
                + (f" in pools {', '.join(keyspace.pools)}" if keyspace.pools else ""))
        return None

    async def _write_first(
        self, item: Versioned[StoredObject], keyspace: Keyspace, first: Mapping[int, Range]
    ) -> bool:
        """Write first records; False when another operator creates them too, or something changed meanwhile."""
        units, indexes = keyspace.units(), list(first)
        per_page = (OPERATIONS_MAX - 1) // (1 + keyspace.factor)
        for start in range(0, len(indexes), per_page):
            page = indexes[start : start + per_page]
            owners = {member.node for index in page for member in first[index].own.members}
            known = {name: node for name in owners if (node := self._mirror.nodes.get(name)) is not None}
            if any(node.life is not NodeLife.STAYS for node in known.values()):
                return False
            unchanged = {key: self._mirror.seen(key) for key in map(self._keys.node, known)}
            if not await self._mirror.replace(
                self._store,
                [Write(self._keys.range(units[index]), RangeRecord(first[index]).encode(), 0) for index in page],
                {**unchanged, self._keys.object("Keyspace", keyspace.name): item.revision},
            ):
                return False
        return True

    # --- moving ---------------------------------------------------------------------------------------------

    def _want(self, nodes: Mapping[str, Node], records: Mapping[int, Range], moves_max: int) -> None:
        """Say which owners ranges should have, of a few at a time, and which members are gone for good."""
        room = moves_max - sum(record.pending is not None for record in records.values())
        places = frozenset(
            (node.node, node.member, node.up, node.eligible, node.emptied, node.life, node.zone, node.pool,
             node.wire_version) for node in nodes.values())
        for name, item in self._mirror.keyspaces.items():
            if item.value.deleting or not item.value.number:
                continue
            keyspace = keyspace_view(item.value)
            units = keyspace.units()
            if any(unit not in records for unit in units):
                continue
            ranges = [records[unit] for unit in units]
            made_from = item.revision, sum(record.version for record in ranges), places
            rests = room <= 0 or self._at_rest.get(name) == made_from
            planned = {} if rests else plan_ring(keyspace, ranges, nodes, room)
            room -= len(planned)
            if not planned and not rests:
                self._at_rest[name] = made_from   # a plan is work: thousands of ranges times nodes
            wishes: dict[int, Owners | None] = {
                index: None for index, record in enumerate(ranges) if record.pending is not None}
            for index, owners in (wishes | planned).items():
                gone = frozenset(member for member in ranges[index].members if is_gone(member, nodes))
                self._feed(KEYSPACE_PLANE, Wanted(Address(KEYSPACE_PLANE, units[index]), owners, gone))
