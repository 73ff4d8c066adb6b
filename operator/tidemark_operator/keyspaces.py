"""Plain views of keyspaces and of their ranges, for the pure parts: what a manifest asks for, which owners are there.

Stays out: creating and moving ranges (`rings`, `ring_plan`), validation of manifests (`resources`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.placing import Zones
from tidemark_core.optimistic.ring import Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_wire.identity import AccessLists
from tidemark_wire.rings import REPAIR_BYTES_MAX
from tidemark_wire.wire_version import VERSION_OF_PLANES

from .metadata import StoredObject
from .model import Node, access_lists
from .resources.base import quantity_bytes


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A Keyspace as planner and shard map see it.  Its ranges are the units `number << 32 | index`."""

    name: str
    number: int
    uid: str
    partitions: int
    quorum: Quorum
    spread_zones: bool
    pools: tuple[str, ...]
    read_repair: str
    sloppy: bool
    eventual: bool
    overrides_allowed: bool
    default_ttl_ms: int
    settings: KeyspaceSettings
    access: AccessLists | None
    detached: bool
    created_ms: int     # by the operator's clock: what it stores is no older, but for clocks that differ

    @property
    def title(self) -> str:
        return f"keyspace {self.name}"

    @property
    def factor(self) -> int:
        return self.quorum.n

    def units(self) -> list[int]:
        """Return the units that its ranges are, by index."""
        return [self.number << 32 | index for index in range(self.partitions)]

    def allows(self, node: Node) -> bool:
        """Say whether its ranges may live on a node: on its pool, and with the release that it runs."""
        return (not self.pools or node.pool in self.pools) and node.wire_version >= VERSION_OF_PLANES

    def zones(self, nodes: Mapping[str, Node]) -> dict[Member, str]:
        """Return the members that may be given ranges, with the zones over which owners are spread."""
        return {
            node.member: node.zone if self.spread_zones else ""
            for node in nodes.values() if node.member is not None and node.eligible and self.allows(node)}


def keyspace_view(stored: StoredObject) -> Keyspace:
    spec = stored.spec
    replication: Mapping[str, Any] = spec["replication"]
    return Keyspace(
        name=stored.name,
        number=stored.number,
        uid=stored.uid,
        partitions=spec["partitions"],
        quorum=Quorum(replication["replicas"], replication["readQuorum"], replication["writeQuorum"]),
        spread_zones=replication["spread"] == "Zone",
        pools=tuple((spec.get("placement") or {}).get("nodePools") or ()),
        read_repair=spec["readRepair"],
        sloppy=replication["quorumMode"] == "Sloppy",
        eventual=spec["consistency"] == "Eventual",
        overrides_allowed=spec["clientOverrides"] == "Allowed",
        default_ttl_ms=1_000 * spec["defaultTTLSeconds"],
        settings=_settings(spec),
        access=access_lists(spec.get("access")),
        detached=stored.detached,
        created_ms=round(1_000 * datetime.fromisoformat(stored.created).timestamp()),
    )


def _settings(spec: Mapping[str, Any]) -> KeyspaceSettings:
    hints: Mapping[str, Any] = spec["hintedHandoff"]
    return KeyspaceSettings(
        1_000 * hints["windowSeconds"] if hints["mode"] == "Enabled" else 0,
        1_000 * spec["antiEntropy"]["intervalSeconds"], 1_000 * spec["tombstoneGraceSeconds"],
        min(quantity_bytes(spec["antiEntropy"]["bytesPerSecond"]), REPAIR_BYTES_MAX))


def number_of(unit: int) -> int:
    """Return the number of the keyspace that a range belongs to."""
    return unit >> 32


def is_up(member: Member, nodes: Mapping[str, Node]) -> bool:
    """Say whether a node is up with the disk of this member."""
    node = nodes.get(member.node)
    return node is not None and node.up and node.member == member


def is_gone(member: Member, nodes: Mapping[str, Node]) -> bool:
    """Say whether the life of a member's disk is over for good: another disk took its place, or its node is no more."""
    node = nodes.get(member.node)
    return node is None or (node.up and node.member not in (None, member))


def is_served(record: Range, nodes: Mapping[str, Node]) -> bool:
    """Say whether enough owners are up for the quorums of a range, in both lists while it moves."""
    lists = [owners for owners in (record.own, record.pending) if owners is not None]
    return all(
        sum(is_up(member, nodes) for member in owners.members) >= max(owners.quorum.r, owners.quorum.w)
        for owners in lists)


def is_complete(record: Range, nodes: Mapping[str, Node]) -> bool:
    """Say whether a range does not move and every owner is up."""
    return record.pending is None and all(is_up(member, nodes) for member in record.own.members)


def is_crowded(record: Range, zones: Zones) -> bool:
    """Say whether two owners share a zone; a member without a zone is a zone of its own."""
    found = [zones.get(member) or f"\0{member.node}" for member in record.own.members]
    return len(set(found)) < len(found)


def in_force(ranges: Sequence[Range]) -> Quorum | None:
    """Return the smallest quorums that a range has, None where there is no range."""
    return min((record.own.quorum for record in ranges), default=None)
