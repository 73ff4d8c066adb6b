"""Plain views that the pure parts work on: groups, nodes, shards, cluster settings, read out of manifests.

Manifests are stored with their defaults filled in; defaults here only serve objects of an older build.
Stays out: validation of manifests (`resources`), etcd, everything that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from tidemark_core.base.effects import Space
from tidemark_core.base.formula import quorum_in_force
from tidemark_core.base.ids import Member, ShardId, group_of, index_of, shard_id
from tidemark_core.base.quorum import majority
from tidemark_core.replication.records import QUORUM_SILENCE_MS, ShardRecord
from tidemark_wire.identity import AccessLists
from tidemark_wire.wire_version import VERSION_OF_DOCUMENTS, WIRE_VERSION

from .certificates.rotation import Policy
from .detector import DetectorSettings
from .metadata import NodeLife, StoredObject
from .resources.base import quantity_bytes
from .resources.kinds import not_served

BATCH_BYTES_MAX = 8 << 20
"""The most a batch may have, whatever the group says; the core's own limit."""

QUARANTINE_S = 300
"""Default of `failureDetection.leaderQuarantineSeconds`."""

OPERATOR_NAME = "operator"
"""In an operator's certificate: which of them acts is told by the lease, not by certificates."""

BYTES_MAX = 2**63 - 1
"""More than any disk has; a quantity may be longer than a number on the wire."""


@dataclass(frozen=True, slots=True)
class Group:
    """A LogGroup as the planner and the shard map see it; 0 of zones and of retention is not asked.

    `payload_copies` 0 is every member, `leaders` 0 is all who keep a payload.
    """

    name: str
    group_id: int
    uid: str
    kind: str
    shards: int
    factor: int
    payload_copies: int
    sync_leaders: int
    leaders: int
    default_ack: str
    max_record_bytes: int
    synchro_quorum: int | str | None
    synchro_zones: int
    quorum_timeout_ms: int
    rollback: str
    retention_ms: int
    retention_bytes: int
    retention_bytes_hard: int
    spread_zones: bool
    pools: tuple[str, ...]
    cluster: str
    deletion_policy: str
    access: AccessLists | None = None
    tombstone_ms: int = 0
    pinned_bytes_max: int = 0
    detached: bool = False
    """Nobody claims it any more: it was deleted, and its data is kept."""
    unserved: str = ""
    """The part that this release does not serve, as in "log groups of kind Documents"; empty: it serves all."""

    @property
    def title(self) -> str:
        return f"log group {self.name}"

    @property
    def keys_required(self) -> bool:
        return self.kind == "Documents"

    @property
    def max_batch_bytes(self) -> int:
        return min(BATCH_BYTES_MAX, max(1 << 20, 2 * self.max_record_bytes))

    def quorum(self, members: int) -> int:
        """Return how many members of an ensemble of `members` must hold an entry before it is confirmed."""
        return quorum_in_force(self.synchro_quorum, members)

    def copies(self, members: int) -> int:
        """Return how many of `members` keep each payload, 0: all.

        While an ensemble is not of the declared size it is as near to the declared number as its size allows (K2).
        """
        copies = max(self.payload_copies, members // 2 + 1)
        return copies if self.payload_copies and copies < members else 0

    def shard_ids(self) -> list[ShardId]:
        return [shard_id(self.group_id, index) for index in range(self.shards)]

    def allows(self, node: Node) -> bool:
        """Say whether this group may live on the node: on its pool, and with the release that it runs."""
        return not self.why_not(node)

    def in_pools(self, node: Node) -> bool:
        """Say whether placement lets this group live on the node's pool."""
        return not self.pools or node.pool in self.pools

    def why_not(self, node: Node) -> str:
        """Say why this group may not live on the node; empty where it may."""
        if not self.in_pools(node):
            return f"placement of log group {self.name} does not allow pool {node.pool!r} of {node.node}"
        if self.kind == "Documents" and node.wire_version < VERSION_OF_DOCUMENTS:
            return f"log group {self.name} is of kind Documents, which the release of {node.node} does not know"
        return ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its record, its link and its probes describe it; `member` is None until it was up.

    It says itself that it is `draining`; the operator has it `yielding` its leaderships, before it is restarted.
    """

    node: str
    address: str = ""
    zone: str = ""
    location: str = ""
    pool: str = "default"
    member: Member | None = None
    up: bool = False
    draining: bool = False
    emptied: bool = False   # its copies are to be elsewhere before it is evicted; it is draining then too
    yielding: bool = False
    reason: str = ""
    of_other_cluster: bool = False   # `reason` names the cluster of the process that answers at its address
    life: NodeLife = NodeLife.STAYS
    clock_ahead_ms: int | None = None   # of one clock that is the same for all nodes; None: it did not say
    space: Space = Space.FREE
    free_bytes: int = 0
    wire_version: int = WIRE_VERSION    # the newest that it speaks, as far as it is known

    @property
    def eligible(self) -> bool:
        """May it be given new copies?"""
        return self.up and not self.draining and not self.space and self.life is NodeLife.STAYS

    @property
    def full_disk(self) -> str:
        """Say that the disk is full, empty while it is not."""
        return f"its disk is full: {self.free_bytes >> 20} MiB are free" if self.up and self.space else ""

    @property
    def may_lead(self) -> bool:
        """May it be given leaderships?  One that yields keeps its copies: it comes back soon, or may stay after all.

        One that leaves may, where nobody else can: its copies are good until they have moved.
        """
        return self.up and not self.draining and not self.yielding


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, its record and what it belongs to."""

    shard: ShardId
    group: str
    ensemble: tuple[str, ...]
    leader: str | None
    members: tuple[Member, ...] = ()
    copies: int = 0
    holdouts: tuple[str, ...] = ()   # nodes whose copies may be the last of acknowledged records (K14c)
    refill: int = 0                  # members that it had before it was recovered from one, 0: it has them (K14d)
    missing: frozenset[Member] = frozenset()   # of `members`: they hold no replica (N11)
    unheard: frozenset[str] = frozenset()   # nodes that its leader does not hear, as it says itself (O45)

    @property
    def payload_copies(self) -> int:
        """How many members keep each payload."""
        return self.copies or len(self.ensemble)

    @property
    def index(self) -> int:
        return index_of(self.shard)

    @property
    def name(self) -> str:
        return shard_name(self.group, self.index)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    name: str
    cluster_id: str
    detector: DetectorSettings
    quorum_silence_ms: int
    """How long a leader may hear no majority while another member reaches one (O44)."""
    max_concurrent_moves: int
    on_factor_change: str
    reconfiguration_approval: str
    balance_quarantine_s: float | None
    """For how long a node has been up before leaderships are balanced to it; None: they are not balanced."""
    pools: Mapping[str, Mapping[str, Any]]
    """The node pools as they are written, by name."""


@dataclass(frozen=True, slots=True)
class CertificatesView:
    """What is shown of certificates that this operator keeps; `trouble` is why it cannot, else empty."""

    authority_expires: datetime
    earliest_expires: datetime
    reason: str
    trouble: str = ""


def shard_name(group: str, index: int) -> str:
    return f"{group}-{index:04}"


def node_number(node: str) -> int:
    """Return the number at the end of a node's name, 0 when there is none."""
    tail = node.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0


def group_view(stored: StoredObject) -> Group:
    spec = stored.spec
    replication: Mapping[str, Any] = spec.get("replication") or {}
    placement: Mapping[str, Any] = spec.get("placement") or {}
    retention: Mapping[str, Any] = spec.get("retention") or {}
    documents: Mapping[str, Any] = spec.get("documents") or {}
    return Group(
        name=stored.name,
        group_id=stored.number,
        uid=stored.uid,
        kind=spec.get("kind", "Log"),
        shards=spec["shards"],
        factor=replication.get("factor", 3),
        payload_copies=replication.get("payloadCopies") or 0,
        sync_leaders=replication.get("syncLeaders", 1),
        leaders=replication.get("leaders") or 0,
        default_ack=replication.get("defaultAck", "Quorum"),
        max_record_bytes=spec.get("maxRecordBytes", 1 << 20),
        synchro_quorum=replication.get("synchroQuorum"),
        synchro_zones=replication.get("synchroZones", 0),
        quorum_timeout_ms=1_000 * replication.get("quorumTimeoutSeconds", 5),
        rollback=replication.get("rollback", "Definite"),
        retention_ms=1_000 * retention.get("seconds", 604_800),
        retention_bytes=min(quantity_bytes(retention.get("size") or "0"), BYTES_MAX),
        retention_bytes_hard=min(quantity_bytes(retention.get("maxSize") or "0"), BYTES_MAX),
        spread_zones=replication.get("spread", "Zone") == "Zone",
        pools=tuple(placement.get("nodePools") or ()),
        cluster=spec["clusterRef"]["name"],
        deletion_policy=spec.get("deletionPolicy", "Retain"),
        access=access_lists(spec.get("access")),
        tombstone_ms=1_000 * documents.get("tombstoneSeconds", 0),
        pinned_bytes_max=min(quantity_bytes(documents.get("maxPinnedBytes") or "0"), BYTES_MAX),
        detached=stored.detached,
        unserved=not_served("LogGroup", spec),
    )


def access_lists(lists: Mapping[str, Any] | None) -> AccessLists | None:
    """Return `spec.access` of an object, None where it has none."""
    if lists is None:
        return None
    return AccessLists.of(*(lists.get(role) or () for role in ("readers", "writers", "admins")))


def cluster_view(stored: StoredObject) -> ClusterSettings:
    reconfiguration: Mapping[str, Any] = stored.spec.get("reconfiguration") or {}
    detection: Mapping[str, Any] = stored.spec.get("failureDetection") or {}
    defaults = DetectorSettings()
    balances = reconfiguration.get("leaderBalance", "Automatic") == "Automatic"
    return ClusterSettings(
        name=stored.name,
        cluster_id=stored.uid,
        detector=DetectorSettings(
            probe_interval_ms=detection.get("probeIntervalMilliseconds", defaults.probe_interval_ms),
            probe_timeout_ms=detection.get("probeTimeoutMilliseconds", defaults.probe_timeout_ms),
            failure_threshold=detection.get("failureThreshold", defaults.failure_threshold),
        ),
        quorum_silence_ms=detection.get("quorumSilenceMilliseconds", QUORUM_SILENCE_MS),
        max_concurrent_moves=(reconfiguration.get("throttle") or {}).get("maxConcurrentMoves", 4),
        on_factor_change=reconfiguration.get("onFactorChange", "Automatic"),
        reconfiguration_approval=reconfiguration.get("approval", "Automatic"),
        balance_quarantine_s=float(detection.get("leaderQuarantineSeconds", QUARANTINE_S)) if balances else None,
        pools={pool["name"]: pool for pool in stored.spec["nodePools"]},
    )


def certificate_policy(spec: Mapping[str, Any]) -> Policy:
    """Return how long certificates last; whoever holds some reads them from where they are replaced."""
    tls: Mapping[str, Any] = (spec.get("security") or {}).get("tls") or {}
    defaults = Policy()
    return Policy(
        certificate=timedelta(days=tls.get("certificateDurationDays", defaults.certificate.days)),
        renew_before=timedelta(days=tls.get("renewBeforeDays", defaults.renew_before.days)),
        overlap=timedelta(0),
    )


def shard_views(
    groups: Iterable[Group], records: Mapping[ShardId, ShardRecord],
    missing: Callable[[ShardId], frozenset[Member]] = lambda shard: frozenset(),
    unheard: Mapping[ShardId, frozenset[str]] = MappingProxyType({}),
) -> dict[ShardId, Shard]:
    """Return the shards of `groups` that have a record.

    `missing` says which members hold no replica (N11), `unheard` which nodes a shard's leader does not hear (O45).
    """
    names = {group.group_id: group.name for group in groups}
    return {
        shard: Shard(
            shard=shard,
            group=names[group_of(shard)],
            ensemble=tuple(member.node for member in record.ensemble),
            leader=record.leader.node if record.leader else None,
            members=record.ensemble,
            copies=record.copies,
            holdouts=tuple(each.member.node for each in record.holdouts),
            refill=record.refill,
            missing=missing(shard),
            unheard=unheard.get(shard, frozenset()),
        )
        for shard, record in sorted(records.items())
        if group_of(shard) in names
    }


def zones_of(nodes: Iterable[Node]) -> set[str]:
    """Return the zones that nodes stand in; a node that names none stands in none."""
    return {node.zone for node in nodes if node.zone}


def lost_nodes(shard: Shard, nodes: Mapping[str, Node]) -> list[str]:
    """Return the nodes of the ensemble that are up with another disk than the record names: their copies are gone."""
    return [
        member.node for member in shard.members
        if (node := nodes.get(member.node)) is not None and node.up and node.member not in (None, member)
    ]


def lost_majority(shard: Shard, nodes: Mapping[str, Node]) -> bool:
    """Say whether so many disks are lost that those left can elect no leader (K14e)."""
    return shard.leader is None and len(shard.members) - len(lost_nodes(shard, nodes)) < majority(len(shard.members))


def out_of_sync(shard: Shard, nodes: Mapping[str, Node]) -> list[str]:
    """Return the nodes of the ensemble that do not acknowledge (N11, O45).

    They are down, came back with another disk, hold no replica, or are not heard by the leader.
    """
    return [
        member.node
        for member in shard.members
        if (node := nodes.get(member.node)) is None or not node.up or node.member != member
        or member in shard.missing or member.node in shard.unheard
    ]


def unheard_though_up(shard: Shard, nodes: Mapping[str, Node]) -> list[str]:
    """Return the nodes that the shard's leader does not hear, though they are up with the disk of the record (O45)."""
    return [
        member.node for member in shard.members
        if member.node in shard.unheard and (node := nodes.get(member.node)) is not None
        and node.up and node.member == member
    ]


def wanted_copies(shard: Shard, group: Group) -> int | None:
    """Return how many payload copies the shard should have and does not, 0 being all; None: it is as declared."""
    wanted = group.copies(len(shard.ensemble))
    return wanted if (wanted or len(shard.ensemble)) != shard.payload_copies else None
