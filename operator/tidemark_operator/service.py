"""OperatorService: puts the operator together and keeps it looking.

Everything that happens (a record, an object, a node) pokes one loop, which lets the keepers look at the
world as it is now; nothing is polled per shard.  Only the active operator acts; the others watch.
Stays out: flags and signals (`main`), what each keeper decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc.aio
from tidemark_core.base.effects import Space
from tidemark_core.base.ids import KEYSPACE_PLANE, LOG_PLANE, Address, Member, OperatorId, ShardId, group_of, index_of
from tidemark_core.optimistic.deleting import Forgotten
from tidemark_core.optimistic.mover import Movers
from tidemark_core.optimistic.ring import Range
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.records import CoordinatorSettings, ShardRecord
from tidemark_wire.identity import AccessLists
from tidemark_wire.tasks import background, cancelled
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2
from tidemark_wire.version import VERSION
from tidemark_wire.wire_version import WIRE_VERSION

from .certificate_tending import Archive, CertificateTender
from .certificates.keeper import now_utc
from .certificates.rotation import Policy
from .condition_memory import ConditionMemory, timestamp
from .data_deletion import DataDeletion
from .detector import LoopLateness
from .disk_marks import DiskMarks, copies_of
from .disruption import Disruption
from .driver import MachineDriver
from .etcd import EtcdStore, StoreUnavailable
from .etcd_access import Login, TlsFiles
from .floors import FloorKeeper
from .groups import GroupKeeper
from .keyspace_deletion import KeyspaceDeletion
from .keyspaces import Keyspace, keyspace_view
from .lease import ActivityLease
from .log_sizes import log_bytes
from .metadata import MAP_TERMS, NODE_IDS, Keys, NodeLife, NodeRecord, StoredObject, allocate
from .metrics import FLOOR_ROUNDS
from .mirror import Mirror, Versioned
from .model import (
    OPERATOR_NAME,
    CertificatesView,
    ClusterSettings,
    Group,
    Node,
    certificate_policy,
    cluster_view,
    group_view,
    shard_views,
    zones_of,
)
from .node_records import NodeRecords
from .nodes import NodeLink, NodeLinks
from .nodes_directory import NodesDirectory
from .objects import Objects
from .plan import World
from .publisher import MapPublisher
from .reconfigure import Reconfigurer
from .records import MACHINE_AREAS, OBJECT_AREAS, RECORDS, Area
from .resources.conditions import ConditionReason
from .resources.kinds import KINDS, Deletion
from .rings import RingKeeper
from .shardmap import build_shard_map
from .shards import ShardMachine
from .status.cluster import ClusterFacts, cluster_status
from .status.group import GroupFacts, group_status
from .status.keyspace import KeyspaceFacts, keyspace_status
from .status.kubernetes import KubernetesFacts
from .status.reconfiguration import with_refusal
from .status.shard import ShardFacts, shard_object
from .status.standing import AS_WRITTEN, Standing, Standstill
from .tending import Tender
from .turns import snapshot_rate
from .witness import Witness

log = logging.getLogger(__name__)

RETRY_S = 0.5
HEAR_S = 5.0


def with_status(stored: StoredObject, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole object as it is shown."""
    metadata = {
        **stored.manifest["metadata"],
        "uid": stored.uid, "generation": stored.generation, "creationTimestamp": stored.created,
    }
    return {**stored.manifest, "metadata": metadata, "status": dict(status)}


class OperatorService:
    """One operator process of one cluster."""

    def __init__(
        self, etcd: Sequence[str], key_prefix: str, cluster: str, *, etcd_tls: TlsFiles | None = None,
        etcd_login: Login | None = None,
        nodes_directory: Path | None = None, lease_ttl_s: int = 3, tls: Credentials | None = None,
        certificates: Archive | None = None, lateness: LoopLateness | None = None, makes_nodes: bool = False,
    ) -> None:
        """`lateness` is one that somebody else runs, where several share a loop: all go slower while that is late.

        With `makes_nodes` somebody turns node records into nodes, and ends those of removed ones.
        """
        self.operator = OperatorId(f"{cluster}-operator-{uuid.uuid4().hex[:12]}")
        self.cluster = cluster
        self.keys = Keys(key_prefix)
        self.store = EtcdStore(etcd, tls=etcd_tls, login=etcd_login)
        self.mirror = Mirror(self.keys)
        self.memory = ConditionMemory()
        self._shares_loop = lateness is not None
        self._lateness = lateness or LoopLateness()
        self.tls = tls
        self.behind = ""   # how it was found that etcd is older than what nodes promised; nothing is done then
        self.witness = Witness(self.store, self.keys, self.records, self._on_behind)
        self.links = NodeLinks(self.operator, self, self._lateness, tls=tls, vet=self._vet, cluster=cluster)
        self.shards = ShardMachine(Coordinators(CoordinatorSettings(self.operator)))
        movers = Movers(self.operator)
        self.driver = MachineDriver(
            {LOG_PLANE: self.shards, KEYSPACE_PLANE: movers}, self.store, self.keys, self.links.send)
        self.objects = Objects(self.store, self.keys, self.mirror, cluster, self.zones, tls=tls is not None)
        self.publisher = MapPublisher(self.links, self._build_map, self._crowded_s)
        self.keeper = GroupKeeper(self.store, self.keys, self.mirror)
        self.rings = RingKeeper(self.store, self.keys, self.mirror, self.objects, self.driver.feed)
        self.floors = FloorKeeper(movers.rounds, self.driver.feed)
        self.on_balanced: Callable[[str], None] = lambda note: None   # a leadership moved to make them even
        self.tender = Tender(self.driver, self.poke_later, self.lagging, lambda note: self.on_balanced(note))
        self.data_deletion = DataDeletion(self.store, self.keys, self.mirror, self.links.send, self.poke_later)
        self.keyspace_deletion = KeyspaceDeletion(self.store, self.keys, self.mirror, self.links.send)
        self.disk_marks = DiskMarks(
            self.store, self.keys, self.mirror, self.links, lambda: self.active,
            lambda: copies_of(self.records(), self.ranges()), self.wake_watchers)
        self.disruption = Disruption(
            self.store, self.keys.disruption, self.operator, lambda: self.mirror.disruption, self.mirror.learn)
        self.node_records = NodeRecords(self.store, self.keys, self.mirror, cluster)
        self.makes_nodes = makes_nodes
        self.kubernetes: KubernetesFacts | None = None
        """Facts of the cluster that only Kubernetes has, None elsewhere and before the first look."""
        self.standing: dict[tuple[str, str], Standing] = {}
        """Objects, by kind and name, whose newest spec is paused or refused on Kubernetes."""
        self.reconfigurer = Reconfigurer(
            self.driver, self.objects, self.mirror, self.whole_world, self.settings, self.memory, self.disruption,
            self.node_records if makes_nodes else None, self.poke_later, partial(log_bytes, self.links))
        self.lease = ActivityLease(
            self.store, self.keys.operator, self.operator, self._on_active, ttl_s=lease_ttl_s)
        self._directory = (
            NodesDirectory(nodes_directory, self.store, self.keys, self._set_node)
            if nodes_directory else None)
        self.certificates = (
            CertificateTender(
                certificates, self.certificate_policy, self.links, tls, OPERATOR_NAME, lambda: self.active,
                self.wake_watchers)
            if certificates is not None and tls is not None else None)
        self._yielding: frozenset[str] = frozenset()
        self._emptied: frozenset[str] = frozenset()
        self._snapshot_rate = 0   # as the newest map has it
        self._loaded = asyncio.Event()
        self._poked = asyncio.Event()
        self._watchers: set[asyncio.Event] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._beginning: asyncio.Task[None] | None = None
        self._settings_seen: ClusterSettings | None = None
        self._judged = False
        self._stays_out = False   # the key prefix is another cluster's
        self._owner_changed = asyncio.Event()
        self._changes: dict[Area, Callable[[str], None]] = {
            **{area: partial(self._on_unit, plane, area) for plane, area in MACHINE_AREAS.items()},
            "nodes": self._on_node, "cluster": self._on_cluster, "operator": self._on_operator,
            "groups": lambda name: self.publisher.changed(), "keyspaces": lambda name: self.publisher.changed(),
            "reconfigurations": self._on_reconfiguration,
        }
        """The reaction to a change of a record, beside a look at the world; the argument is the name of the record."""
        self.mirror.on_change = self._on_change
        self.driver.on_record = self._on_record
        self.driver.on_trace = self._on_trace
        self.driver.on_waiting = self.poke
        self.shards.on_reach = self._on_reach
        self.store.on_set_back = self._on_set_back
        self.store.on_reachable = self._on_reachable

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not self._shares_loop:
            self._lateness.start()
        self._tasks.append(background(self._follow(), "following etcd"))
        self._tasks.append(background(self._keep_looking(), "looking"))
        self._tasks.append(background(self._follow_owner(), "the owner of the key prefix"))
        self._tasks.append(background(self.disk_marks.run(), "the marks of disks"))
        if self.certificates is not None:
            self._tasks.append(background(self.certificates.run(), "the certificates"))

    async def stop(self) -> None:
        await cancelled(*self._tasks)
        await self.lease.stop()
        await cancelled(self._beginning)
        await self.reconfigurer.stop()
        await self.tender.close()
        await self.driver.close()
        await self.publisher.close()
        await self.links.close()
        if not self._shares_loop:
            await self._lateness.stop()
        await self.store.close()

    async def _follow(self) -> None:
        async for news in self.store.follow(self.keys.everything):
            first = not self.mirror.loaded
            self.mirror.apply(news)
            if first:
                log.info(
                    "metadata loaded: %d shards of %d groups, %d ranges of %d keyspaces", len(self.mirror.shards),
                    len(self.mirror.groups), len(self.mirror.ranges), len(self.mirror.keyspaces))
                self._loaded.set()
                self._owner_changed.set()
            self.wake_watchers()

    async def _follow_owner(self) -> None:
        """Hold the lease and store the nodes of this machine for as long as the key prefix is this cluster's."""
        storing: asyncio.Task[None] | None = None
        takes_part = False
        try:
            while True:
                await self._owner_changed.wait()
                self._owner_changed.clear()
                if takes_part:
                    await cancelled(storing)
                    await self.lease.stop()
                    self._on_active(False)   # the lease may have come while it was given up
                takes_part = not self._stays_out
                if takes_part:
                    self.lease.start()
                    if self._directory is not None:
                        storing = background(self._directory.run(), "the nodes directory")
        finally:
            await cancelled(storing)

    # --- the world ------------------------------------------------------------------------------------------

    @property
    def foreign(self) -> str:
        """Say which other cluster's metadata the key prefix holds, empty: none's."""
        held = self.mirror.cluster
        if held is None or held.value.name == self.cluster:
            return ""
        return (
            f"{self.keys.prefix} in etcd holds the metadata of the cluster {held.value.name!r}, this operator runs "
            f"{self.cluster!r}")

    @property
    def standstill(self) -> Standstill | None:
        """Why nothing that etcd holds may be acted on, None where it may."""
        if self.foreign:
            return Standstill(ConditionReason.CLUSTER_ID_MISMATCH, self.foreign)
        return Standstill(ConditionReason.METADATA_STALE, self.behind) if self.behind else None

    @property
    def active(self) -> bool:
        return self.driver.active

    def settings(self) -> ClusterSettings:
        assert self.mirror.cluster is not None, "nothing runs before the cluster's manifest is applied"
        return cluster_view(self.mirror.cluster.value)

    def certificate_policy(self) -> Policy:
        """Return how long certificates last, as the cluster's manifest says."""
        stored = self.mirror.cluster
        return certificate_policy(stored.value.spec if stored is not None else {})

    def access_lists(self, group: str) -> AccessLists | None:
        """Return who may do what with a group, None where nothing is said."""
        known = self.groups().get(group)
        return known.access if known is not None else None

    def groups(self, *, detached: bool = False) -> dict[str, Group]:
        """Return the log groups; with `detached`, those too that are gone but for their data."""
        return {
            name: group_view(item.value) for name, item in self.mirror.groups.items()
            if not item.value.detached or (detached and not item.value.deleting)
        }

    def hosted_groups(self) -> list[Group]:
        """Return the log groups that this release serves, or whose shards an older release created."""
        return [
            group for group in self.groups().values()
            if not group.unserved or any(shard in self.mirror.shards for shard in group.shard_ids())]

    def keyspaces(self) -> dict[str, Keyspace]:
        """Return the keyspaces, without those that are gone but for their data."""
        return {name: keyspace_view(item.value) for name, item in self.mirror.keyspaces.items()
                if not item.value.detached}

    def nodes(self) -> dict[str, Node]:
        found = {
            name: Node(
                name, zone=record.zone, location=record.location, pool=record.pool, life=record.life,
                reason="it is removed" if record.life is NodeLife.REMOVED else "it has no address yet")
            for name, record in self.mirror.nodes.items() if not record.address or record.life is NodeLife.REMOVED
        }
        for link in self.links:
            seen = link.description
            record = self.mirror.nodes.get(link.node, link.record)
            found[link.node] = Node(
                node=link.node,
                address=link.record.address,
                zone=record.zone or (seen.zone if seen is not None else ""),
                location=record.location or (seen.location if seen is not None else ""),
                pool=record.pool,
                member=link.member,   # who is described and not vetted yet has not joined
                up=link.up,
                draining=link.draining or link.node in self._emptied,
                emptied=link.node in self._emptied,
                yielding=link.node in self._yielding,
                reason="" if link.up else link.reason,
                of_other_cluster=link.of_other_cluster,
                space=link.space,
                free_bytes=link.free_bytes,
                life=record.life,
                clock_ahead_ms=link.clock_ahead_ms if link.up else None,
                wire_version=WIRE_VERSION if seen is None else seen.wire_version_newest or seen.wire_version,
            )
        return found

    def knows_its_nodes(self) -> bool:
        """Say whether every node was judged once; until then those that were not yet reached pass for down."""
        self._judged = self._judged or all(link.up or link.told_down for link in self.links)
        return self._judged

    def zones(self) -> set[str]:
        """Return the zones in which a node is up."""
        return zones_of(node for node in self.nodes().values() if node.up)

    def records(self) -> dict[ShardId, ShardRecord]:
        """Return the newest known records: the coordinators' where they run, else what is stored."""
        records = {shard: item.value for shard, item in self.mirror.shards.items()}
        if self.active:
            records.update(self.driver.records(LOG_PLANE))
        return records

    def ranges(self) -> dict[int, Range]:
        """Return the newest known record of every range, by its unit."""
        found = {unit: item.value.range for unit, item in self.mirror.ranges.items()}
        if self.active:
            found.update((unit, record.range) for unit, record in self.driver.records(KEYSPACE_PLANE).items())
        return found

    def world(self, *, detached: bool = False) -> World:
        groups = self.groups(detached=detached)
        zones = {name: pool.get("zones") or () for name, pool in self.settings().pools.items()} if (
            self.makes_nodes and self.mirror.cluster is not None) else None
        views = shard_views(groups.values(), self.records(), self.shards.missing, self.shards.unheard())
        return World(groups, views, self.nodes(), zones, tuple(self.keyspaces().values()), self.ranges())

    def whole_world(self) -> World:
        """Return the world with kept data that no group claims: it takes room, and is not to be lost with a node."""
        return self.world(detached=True)

    def _build_map(self, version: int) -> common_pb2.ShardMap:
        self._snapshot_rate = self._wanted_snapshot_rate()
        return build_shard_map(
            version, self.cluster, self.groups().values(), self.records(), self.nodes().values(), self._snapshot_rate,
            self._settings_seen.quorum_silence_ms if self._settings_seen is not None else 0,
            self.keyspaces().values(), self.ranges())

    def _wanted_snapshot_rate(self) -> int:
        return snapshot_rate(item.value for item in self.mirror.reconfigurations.values())

    # --- what is shown --------------------------------------------------------------------------------------

    def show(self, kind: str, name: str) -> list[dict[str, Any]] | None:
        """Return the objects of a kind (one, or all for an empty name); None for an unknown kind."""
        show = {
            "TidemarkCluster": self._show_clusters, "LogGroup": self._show_groups, "Keyspace": self._show_keyspaces,
            "Shard": self._show_shards, "Reconfiguration": self._show_reconfigurations,
        }.get(kind)
        return show(name) if show is not None else None

    def _show(self, stored: StoredObject, kind: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole object as it is shown, with a computed status."""
        return with_status(stored, self.memory.stamp(kind, stored.name, stored.generation, status))

    def _standing(self, kind: str, name: str) -> Standing:
        return self.standing.get((kind, name), AS_WRITTEN)

    def _show_keyspaces(self, name: str) -> list[dict[str, Any]]:
        nodes, ranges = self.nodes(), self.ranges()
        return [
            self._show(item.value, "Keyspace", keyspace_status(KeyspaceFacts(
                item.value, {
                    index: ranges[unit] for index, unit in enumerate(keyspace_view(item.value).units())
                    if unit in ranges},
                nodes, self._revision_of_ring(item), self.rings.trouble.get(key), self._standing("Keyspace", key),
                self.floors.late.get(key))))
            for key, item in sorted(self.mirror.keyspaces.items()) if name in ("", key) and not item.value.detached
        ]

    def _revision_of_ring(self, item: Versioned[StoredObject]) -> int:
        """Return the revision of the newest thing that is stored of a keyspace."""
        ranges = (self.mirror.ranges.get(unit) for unit in keyspace_view(item.value).units())
        return max([item.revision, *(each.revision for each in ranges if each)])

    def _show_reconfigurations(self, name: str) -> list[dict[str, Any]]:
        found = sorted((item.value for item in self.mirror.reconfigurations.values()), key=lambda one: one.number)
        return [
            with_status(stored, with_refusal(
                self.reconfigurer.status_of(stored), self._standing("Reconfiguration", stored.name), timestamp()))
            for stored in found if name in ("", stored.name)
        ]

    def _show_clusters(self, name: str) -> list[dict[str, Any]]:
        item = self.mirror.cluster
        if item is None or name not in ("", item.value.name):
            return []
        stored = item.value
        return [self._show(stored, "TidemarkCluster", cluster_status(ClusterFacts(
            stored=stored,
            world=self.world(),
            records=self.records(),
            key_prefix=self.keys.prefix,
            etcd_trouble="" if self.store.reachable else self.store.last_error,
            endpoints=len(self.store.endpoints),
            active_reconfiguration=self.reconfigurer.active,
            last_node_id=self.mirror.counters.get(NODE_IDS, 1) - 1,
            version=VERSION,
            waiting=self.driver.waiting_for_store,
            certificates=self._certificates(),
            standstill=self.standstill,
            standing=self._standing("TidemarkCluster", stored.name),
            kubernetes=self.kubernetes,
            cut=self.shards.cut(),
            older_disks=self.disk_marks.held,
        )))]

    def _certificates(self) -> CertificatesView | None:
        if self.certificates is None or self.certificates.validity is None:
            return None
        seen = self.certificates.validity
        return CertificatesView(
            seen.authority_expires, seen.earliest_expires, seen.reason(now_utc(), self.certificate_policy()),
            self.certificates.trouble)

    def _show_groups(self, name: str) -> list[dict[str, Any]]:
        world, records, cut, diverged = self.world(), self.records(), self.shards.cut(), self.shards.diverged()
        return [
            self._show(self.mirror.groups[group.name].value, "LogGroup", group_status(GroupFacts(
                group, self.mirror.groups[group.name].value.generation, world.shards, records, world.nodes,
                self._revision_of(group), self.keeper.trouble.get(group.name), self.tender.copies_trouble,
                self._standing("LogGroup", group.name), self._damage(group), cut, diverged,
            )))
            for group in sorted(world.groups.values(), key=lambda group: group.name)
            if name in ("", group.name)
        ]

    def _damage(self, group: Group) -> dict[ShardId, str]:
        """Return which shards of a group wait for members without damage, and why (K15c)."""
        return {shard: found for shard in group.shard_ids() if (found := self.shards.damage(shard))}

    def _revision_of(self, group: Group) -> int:
        """Return the revision of the newest thing that is stored of a group; what else is written is no news of it."""
        shards = (self.mirror.shards.get(shard) for shard in group.shard_ids())
        return max([self.mirror.groups[group.name].revision, *(each.revision for each in shards if each)])

    def _show_shards(self, name: str) -> list[dict[str, Any]]:
        world, records = self.world(), self.records()
        made = [
            shard_object(ShardFacts(
                shard, records[shard.shard], self.mirror.shards[shard.shard].revision,
                world.groups[shard.group], world.nodes, self.reconfigurer.active))
            for shard in world.shards.values()
            if name in ("", shard.name) and shard.shard in self.mirror.shards
        ]
        return [
            {**item, "status": self.memory.stamp("Shard", item["metadata"]["name"], None, item["status"])}
            for item in made
        ]

    # --- what happens ---------------------------------------------------------------------------------------

    def _on_change(self, area: Area, name: str) -> None:
        kind = OBJECT_AREAS.get(area, "")
        if kind and name not in self.mirror.objects[kind] and KINDS[kind].deletion is not Deletion.DETACH:
            self.standing.pop((kind, name), None)
            self.memory.forget(kind, name)  # a group whose data was deleted is shown until its last copy is gone
        if area == "marks":
            return   # nothing that a look decides
        if (follow := self._changes.get(area)) is not None:
            follow(name)
        self.poke()

    def _on_unit(self, plane: int, area: Area, name: str) -> None:
        unit = RECORDS[area].key(name)
        self.driver.metadata_changed(Address(plane, unit), self.mirror.records[area].get(unit))

    def _on_node(self, name: str) -> None:
        record = self.mirror.nodes.get(name)
        if record is None or record.life is NodeLife.REMOVED:
            self.links.remove_node(name)
        elif record.address:
            self._set_node(record)
        self.publisher.changed()

    def _on_cluster(self, name: str) -> None:
        self._heed_owner()
        settings = self.settings() if self.mirror.cluster is not None and not self._stays_out else None
        if settings is not None and settings.cluster_id and settings != self._settings_seen:
            self._settings_seen = settings
            self.links.set_settings(settings.detector)
            self.shards.set_quorum_silence(settings.quorum_silence_ms)
            self.publisher.changed()

    def _on_reconfiguration(self, name: str) -> None:
        if self._wanted_snapshot_rate() != self._snapshot_rate:
            self.publisher.changed()

    def _on_operator(self, name: str) -> None:
        if not self.mirror.active_operator:
            self.lease.look_now()

    def _set_node(self, record: NodeRecord) -> None:
        if not self._stays_out:
            self.links.set_node(record)

    def _heed_owner(self) -> None:
        """Take part while the key prefix is this cluster's; leave another cluster's operator and nodes alone."""
        if bool(self.foreign) is self._stays_out:
            return
        self._stays_out = bool(self.foreign)
        if not self._stays_out:
            for name in list(self.mirror.nodes):
                self._on_node(name)
            if self._loaded.is_set():
                self._owner_changed.set()
            return
        log.error("%s", self.foreign)
        for link in self.links:
            self.links.remove_node(link.node)
        self._owner_changed.set()
        self._on_active(False)

    def _on_record(self, address: Address, before: Any, record: Any) -> None:
        if address.plane == LOG_PLANE:
            self.shards.elections.see(address.shard, before, record)
        self.publisher.changed()
        self.poke()

    def _on_trace(self, address: Address, what: str, detail: str) -> None:
        match what:
            case "floor_raised":
                FLOOR_ROUNDS.labels("Raised").inc()
            case "round_given_up":
                FLOOR_ROUNDS.labels("GivenUp").inc()
            case "metadata_behind":
                self._on_behind(f"shard {group_of(address.shard)}/{index_of(address.shard)}: {detail}")
            case "replica_missing":   # the member is shown as missing, and seeded again (N11)
                self.publisher.changed()
                self.poke()

    def _on_reach(self) -> None:
        self.poke()
        self.poke_later(self.shards.quorum_silence_ms / 1000 + 0.1)   # silence tells on nodes only when it lasts

    def _on_reachable(self, reachable: bool) -> None:
        if reachable:
            log.info("etcd answers")
        else:
            log.warning(
                "etcd does not answer (%s): running shards go on, elections and changes wait",
                self.store.last_error)
        self.poke()

    def on_up(self, link: NodeLink, member: Member, boot: str) -> None:
        log.info("%s is up at %s", member, link.record.address)
        if self._directory is not None and link.description is not None:
            self._directory.learn_place(link.node, link.description.zone, link.description.location)
        self.driver.node_up(member, boot)
        self.publisher.changed()
        self.publisher.node_up(link)
        self.disk_marks.wake(link.node)
        self.poke()

    def on_down(self, node: str, reason: str) -> None:
        self.driver.node_down(node)
        self.publisher.changed()
        self.poke()

    def on_message(self, address: Address, sender: Member, boot: str, message: Any) -> None:
        if isinstance(message, Forgotten):
            self.keyspace_deletion.received(sender, message)
            self.poke()
        elif address.plane != LOG_PLANE or not self.data_deletion.received(address.shard, sender, message):
            self.driver.received(address, sender, boot, message)

    def on_draining(self, node: str, draining: bool) -> None:
        log.info("%s %s", node, "is draining" if draining else "drains no more")
        self.poke()

    def on_clock(self, node: str) -> None:
        """The clock of a node was set, or a node of which nothing was known said its clock (C5)."""
        self.poke()

    def on_space(self, node: str, space: Space) -> None:
        log.log(logging.WARNING if space else logging.INFO, "the disk of %s is %s", node, space.name)
        self.poke()

    def _on_active(self, active: bool) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
        if active:
            self._beginning = background(self._begin(), "activation")
            return
        self.driver.deactivate()
        self.publisher.end()
        self.reconfigurer.let_go()

    async def _vet(self, member: Member, channel: grpc.aio.Channel) -> None:
        await self._loaded.wait()
        if not self.behind:
            await self.witness.vet(member, channel)

    def _on_behind(self, message: str) -> None:
        """Nothing that is stored can be trusted: stand still until a person has rebuilt it and starts us anew."""
        if self.behind:
            return
        self.behind = message
        log.error("%s", message)
        asyncio.get_running_loop().call_soon(self._on_active, False)

    def _on_set_back(self, before: int, now: int) -> None:
        asyncio.get_running_loop().call_exception_handler({
            "message": f"etcd went from revision {before} back to {now}: it was lost or restored; starting afresh",
            "task": None})

    async def _begin(self) -> None:
        """Coordinate from what is stored; maps of this operator are newer than any before."""
        await self._hear_everybody()
        while True:
            try:
                if await self.store.get(self.keys.recovery) is not None:
                    log.warning("activation waits: metadata is being rebuilt by `tidemark recover-metadata`")
                    await asyncio.sleep(RETRY_S)
                    continue
                term = await allocate(self.store, self.keys, MAP_TERMS)
                areas = (*MACHINE_AREAS.values(), "marks")
                stored = [await self.store.load(f"{self.keys.everything}{area}/") for area in areas]
                break
            except StoreUnavailable as error:
                log.warning("activation waits for etcd: %s", error)
                await asyncio.sleep(RETRY_S)
        for key, item in chain.from_iterable(snapshot.items.items() for snapshot in stored):
            self.mirror.learn(key, item.value, item.revision)
        if self.behind:
            return
        self.driver.activate(self.mirror.units())
        self.publisher.begin(term)
        for link in self.links:
            self.disk_marks.wake(link.node)
        self.poke()

    def have_yield(self, nodes: frozenset[str], emptied: frozenset[str] = frozenset()) -> None:
        """Have these nodes, and no others, hand their leaderships over and be given none; those emptied no copies."""
        if (nodes, emptied) != (self._yielding, self._emptied):
            self._yielding, self._emptied = nodes, emptied
            self.poke()

    async def lagging(self) -> set[str]:
        """Return the nodes whose copies still catch up, as those who lead say, and those who do not say."""
        links = [link for link in self.links if link.up]
        answers = await asyncio.gather(*(link.lagging() for link in links), return_exceptions=True)
        found: set[str] = set()
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, BaseException):
                log.info("%s does not say who lags: %s", link.node, answer)
            found |= {link.node} if isinstance(answer, BaseException) else answer
        return found

    async def _hear_everybody(self) -> None:
        """Give every node one chance to say what it promised before the first election is held."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_S):
                for link in self.links:
                    await link.tried.wait()

    # --- looking --------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Something happened: look, in a moment, once for all that happens until then."""
        self._poked.set()
        self.wake_watchers()

    def poke_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.poke)

    async def _keep_looking(self) -> None:
        pause_s = 0.0
        while True:
            await self._poked.wait()
            await asyncio.sleep(pause_s)  # a burst is looked at once; looking takes at most a fifth of the time
            self._poked.clear()
            if not self.active or self.mirror.cluster is None:
                continue
            started = time.monotonic()
            try:
                await self._look()
            except StoreUnavailable as error:
                log.warning("groups and reconfigurations wait for etcd: %s", error)
                self.poke_later(RETRY_S)
            pause_s = max(0.005, 4 * (time.monotonic() - started), 4 * self._crowded_s())

    def _crowded_s(self) -> float:
        """Return how late a loop that others share was lately; a fifth of the time for each of them is too much."""
        return self._lateness.worst_ms_since(time.monotonic() - 1) / 1000 if self._shares_loop else 0.0

    async def _look(self) -> None:
        world = self.world()
        calm = self.mirror.disruption is None and not self.reconfigurer.active
        settings = self.settings()
        rests = self._standing("TidemarkCluster", settings.name).paused
        self.tender.look(
            world, settings.max_concurrent_moves, calm=calm,
            balance_quarantine_s=None if rests or not self.knows_its_nodes() else settings.balance_quarantine_s)
        if not self.knows_its_nodes():
            return  # plans are made for the nodes there are
        self.reconfigurer.look()
        known = dict(self.keeper.trouble), dict(self.rings.trouble), self.floors.late
        again_s = await self.keeper.look(world.groups.values(), world)
        rings_s = await self.rings.look(world.nodes, self.ranges(), 0 if rests else settings.max_concurrent_moves)
        floors_s = self.floors.look(self.keyspaces().values(), world.nodes, self.ranges(), rests=rests)
        forgotten_s = await self.keyspace_deletion.look(world.nodes)
        for seconds in (again_s, rings_s, floors_s, forgotten_s):
            if seconds is not None:
                self.poke_later(seconds)
        if (self.keeper.trouble, self.rings.trouble, self.floors.late) != known:
            self.wake_watchers()  # the status tells of it, and nothing else that happens does
        await self.data_deletion.look(world.nodes)
        await self.reconfigurer.end_stale_turn()
        await self.reconfigurer.remove_old()

    # --- watchers -------------------------------------------------------------------------------------------

    def add_watcher(self) -> asyncio.Event:
        event = asyncio.Event()
        self._watchers.add(event)
        return event

    def remove_watcher(self, event: asyncio.Event) -> None:
        self._watchers.discard(event)

    def wake_watchers(self) -> None:
        for event in self._watchers:
            event.set()
