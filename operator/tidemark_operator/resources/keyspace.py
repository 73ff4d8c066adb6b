"""Keyspace: a ring of token ranges whose values are read and written with quorums that a request may choose.

Stays out: the owners of the ranges (`rings`), and logs (`loggroup`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from .base import (
    AGE,
    API_VERSION,
    SET,
    ApiModel,
    Column,
    Conditions,
    Count,
    LongCount,
    Name,
    Names,
    ObjectRef,
    ObservedGeneration,
    Quantity,
    Resource,
    Rule,
    Timestamp,
    Transition,
    condition_column,
    immutable,
    quantity_bytes,
)
from .loggroup import FACTOR_MAX, Access, DeletionPolicy, Spread
from .policies import Switch

PARTITIONS_MAX = 4096
REPAIR_BYTES_MIN = 64 << 10
_POWERS_OF_TWO = [2**exponent for exponent in range(PARTITIONS_MAX.bit_length())]


class QuorumMode(StrEnum):
    STRICT = "Strict"
    SLOPPY = "Sloppy"


class Consistency(StrEnum):
    OVERLAPPING = "Overlapping"
    EVENTUAL = "Eventual"


class ClientOverrides(StrEnum):
    ALLOWED = "Allowed"
    DENIED = "Denied"


class ReadRepair(StrEnum):
    OFF = "Off"
    LOCAL = "Local"
    ASYNC = "Async"
    BLOCKING = "Blocking"


OwnerCount = Annotated[int, Field(ge=1, le=FACTOR_MAX)]
_STRICT = "self.readQuorum + self.writeQuorum > self.replicas && 2 * self.writeQuorum > self.replicas"


class KeyspaceReplication(ApiModel):
    """How many owners a value has, and how many answer."""

    replicas: OwnerCount = Field(default=3, description="N: owners of each partition.")
    read_quorum: OwnerCount = Field(
        default=2, description="R: owners that answer a read, where the request does not name its own."
    )
    write_quorum: OwnerCount = Field(
        default=2, description="W: owners that store a write, where the request does not name its own."
    )
    spread: Spread = Field(
        default=Spread.ZONE, description="Owners of a partition share no failure domain of this kind."
    )
    quorum_mode: QuorumMode = Field(
        default=QuorumMode.STRICT,
        description="Strict: only owners count. Sloppy: a healthy stand-in further along the ring may be counted for a "
        "write, with a hint for the owner.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.readQuorum <= self.replicas",
            message="readQuorum (R) must not exceed replicas (N)",
            holds=lambda self: self.read_quorum <= self.replicas,
            field="readQuorum",
        ),
        Rule(
            cel="self.writeQuorum <= self.replicas",
            message="writeQuorum (W) must not exceed replicas (N)",
            holds=lambda self: self.write_quorum <= self.replicas,
            field="writeQuorum",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="self.replicas - oldSelf.replicas <= 1 && oldSelf.replicas - self.replicas <= 1",
            message="replicas (N) can change by 1 at a time",
            allows=lambda new, old: abs(new.replicas - old.replicas) <= 1,
            field="replicas",
        ),
        Transition(
            cel=f"!({_STRICT.replace('self', 'oldSelf')}) || ({_STRICT})",
            message="quorums that meet must go on to meet: readQuorum + writeQuorum > replicas, and "
            "2 * writeQuorum > replicas; make another keyspace for smaller ones",
            allows=lambda new, old: new.strict or not old.strict,
            field="writeQuorum",
        ),
    )

    @property
    def strict(self) -> bool:
        """Whether every read meets every write before it, and every write every other one (D63)."""
        return self.read_quorum + self.write_quorum > self.replicas and 2 * self.write_quorum > self.replicas


class HintedHandoff(ApiModel):
    """What stand-ins keep for owners that are away."""

    mode: Switch = Field(default=Switch.ENABLED, description="Whether stand-ins keep writes for owners that are away.")
    window_seconds: Annotated[int, Field(ge=60, le=604_800)] = Field(
        default=10_800,
        description="A stand-in that could not deliver a write for so long keeps no more of that partition. One that "
        "is away for longer is not waited for when tombstones go.",
    )


class AntiEntropy(ApiModel):
    """Comparing owners in the background."""

    interval_seconds: Annotated[int, Field(ge=0, le=2_592_000)] = Field(
        default=86_400,
        description="Every range is compared over its owners so often, and whenever an owner is back; 0 never.",
    )
    bytes_per_second: Quantity = Field(
        default="32Mi",
        description="A node sends so many bytes a second of this keyspace for exchanges between owners, also those of "
        "a move, and for replays of hints, on average over some seconds. 0 is no limit.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="quantity(self.bytesPerSecond).compareTo(quantity('0')) == 0 || "
            "quantity(self.bytesPerSecond).compareTo(quantity('64Ki')) >= 0",
            message="bytesPerSecond must be 0, for no limit, or at least 64Ki: less would never repair what is written",
            holds=lambda self: quantity_bytes(self.bytes_per_second) == 0
            or quantity_bytes(self.bytes_per_second) >= REPAIR_BYTES_MIN,
            field="bytesPerSecond",
        ),
    )


class KeyspacePlacement(ApiModel):
    """Where owners may be."""

    node_pools: Annotated[tuple[Name, ...], Field(max_length=16), *SET] | None = Field(
        default=None, description="Pools that may own partitions. Unset: all."
    )


class KeyspaceSpec(ApiModel):
    """What the keyspace should be."""

    cluster_ref: ObjectRef = Field(description="The TidemarkCluster that stores the keyspace.")
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)] = Field(
        default=64, description="Token ranges of the ring; a power of two."
    )
    replication: KeyspaceReplication = KeyspaceReplication()
    consistency: Consistency = Field(
        default=Consistency.OVERLAPPING,
        description="Overlapping requires readQuorum + writeQuorum > replicas, 2 * writeQuorum > replicas and "
        "quorumMode Strict. Eventual: a read may miss an acknowledged write.",
    )
    client_overrides: ClientOverrides = Field(
        default=ClientOverrides.ALLOWED, description="Whether a request may name its own R and W."
    )
    read_repair: ReadRepair = Field(
        default=ReadRepair.ASYNC,
        description="What a read does when owners disagree. Off: nothing. Local: the node that answers repairs itself. "
        "Async: every owner that answered is repaired afterwards. Blocking: before the answer.",
    )
    hinted_handoff: HintedHandoff = HintedHandoff()
    anti_entropy: AntiEntropy = AntiEntropy()
    default_ttl_seconds: Annotated[int, Field(ge=0, le=3_153_600_000)] = Field(
        default=0, alias="defaultTTLSeconds", description="Values that name none live so long; 0 for ever."
    )
    tombstone_grace_seconds: Annotated[int, Field(ge=3600, le=31_536_000)] = Field(
        default=864_000,
        description="A deletion is remembered at least so long, then for up to a tenth longer, and for as long as an "
        "owner is away: condition GCBlocked.",
    )
    max_clock_skew_milliseconds: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=500,
        description="A write from a clock that is further ahead than this is refused. A node has one clock for all "
        "keyspaces, with a bound of 500: another value is stored and not in force.",
    )
    placement: KeyspacePlacement = KeyspacePlacement()
    access: Access | None = Field(
        default=None,
        description="Who may do what, by the name in the certificate. Unset: every client of the cluster may read and "
        "write. The admins of the cluster may do everything.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What happens to the data and its metadata when this object is deleted.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.consistency == 'Eventual' || "
            "self.replication.readQuorum + self.replication.writeQuorum > self.replication.replicas",
            message="consistency Overlapping needs readQuorum + writeQuorum > replicas; "
            "set consistency: Eventual to accept stale reads",
            holds=lambda self: self.consistency is Consistency.EVENTUAL
            or self.replication.read_quorum + self.replication.write_quorum > self.replication.replicas,
            field="consistency",
        ),
        Rule(
            cel="self.consistency == 'Eventual' || "
            "2 * self.replication.writeQuorum > self.replication.replicas",
            message="consistency Overlapping needs writeQuorum to be more than half of replicas; "
            "raise it, or set consistency: Eventual to accept that one of two acknowledged writes is lost",
            holds=lambda self: self.consistency is Consistency.EVENTUAL
            or 2 * self.replication.write_quorum > self.replication.replicas,
            field="replication.writeQuorum",
        ),
        Rule(
            cel="self.consistency == 'Eventual' || self.replication.quorumMode == 'Strict'",
            message="quorumMode Sloppy needs consistency: Eventual, for a read can miss a write that stand-ins keep",
            holds=lambda self: self.consistency is Consistency.EVENTUAL
            or self.replication.quorum_mode is QuorumMode.STRICT,
            field="replication.quorumMode",
        ),
        Rule(
            cel="self.replication.quorumMode == 'Strict' || self.hintedHandoff.mode == 'Enabled'",
            message="quorumMode Sloppy needs hintedHandoff.mode Enabled",
            holds=lambda self: self.replication.quorum_mode is QuorumMode.STRICT
            or self.hinted_handoff.mode is Switch.ENABLED,
            field="replication.quorumMode",
        ),
        Rule(
            cel=f"self.partitions in {_POWERS_OF_TWO}",
            message="partitions must be a power of two",
            holds=lambda self: self.partitions in _POWERS_OF_TWO,
            field="partitions",
        ),
        Rule(
            cel="self.hintedHandoff.mode == 'Disabled' || "
            "self.tombstoneGraceSeconds > self.hintedHandoff.windowSeconds",
            message="tombstoneGraceSeconds must exceed hintedHandoff.windowSeconds, "
            "or a late hint can bring deleted keys back",
            holds=lambda self: self.hinted_handoff.mode is Switch.DISABLED
            or self.tombstone_grace_seconds > self.hinted_handoff.window_seconds,
            field="tombstoneGraceSeconds",
        ),
        Rule(
            cel="self.antiEntropy.intervalSeconds == 0 || "
            "self.tombstoneGraceSeconds > self.antiEntropy.intervalSeconds",
            message="tombstoneGraceSeconds must exceed antiEntropy.intervalSeconds, or a deleted key can come back",
            holds=lambda self: self.anti_entropy.interval_seconds == 0
            or self.tombstone_grace_seconds > self.anti_entropy.interval_seconds,
            field="tombstoneGraceSeconds",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        immutable("cluster_ref"),
        immutable("partitions", hint="keys are hashed over the partitions"),
    )


class PartitionCounts(ApiModel):
    """Partitions by what they are at."""

    desired: Count = Field(default=0, description="Asked for.")
    quorum_available: Count = Field(default=0, description="With enough owners up for their quorums.")
    fully_replicated: Count = Field(default=0, description="With every owner up, and not moving.")
    moving: Count = Field(default=0, description="Moving to other owners.")


class KeyspaceStatus(ApiModel):
    """What the keyspace is."""

    observed_generation: ObservedGeneration | None = None
    keyspace_id: LongCount | None = Field(
        default=None, alias="keyspaceID", description="Number of the keyspace in the metadata store; never reused."
    )
    metadata_revision: LongCount | None = Field(
        default=None, description="etcd revision that this status was read at."
    )
    ring_version: LongCount | None = Field(default=None, description="Raised by every range that changes owners.")
    quorums: Annotated[str, StringConstraints(max_length=16)] | None = Field(
        default=None, description='"N/R/W": the smallest that a range has; the declared ones before ranges exist.'
    )
    partitions: PartitionCounts | None = None
    hints_pending: bool | None = Field(default=None, description="True while any node holds hints.")
    last_anti_entropy_time: Timestamp | None = Field(
        default=None, description="When the oldest partition was last compared."
    )
    conditions: Conditions | None = None


class Keyspace(Resource):
    """A table of values by key, replicated without leaders."""

    NAMES: ClassVar[Names] = Names(
        kind="Keyspace",
        short="tks",
        columns=(
            condition_column("Ready", "Ready"),
            Column("Cluster", ".spec.clusterRef.name"),
            Column("N/R/W", ".status.quorums"),
            Column("Consistency", ".spec.consistency"),
            Column("Partitions", ".spec.partitions", type="integer"),
            Column("Moving", ".status.partitions.moving", type="integer"),
            condition_column("Reason", "Ready", "reason", wide=True),
            AGE,
        ),
        selectable_fields=(".spec.clusterRef.name",),
    )
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="size(self.metadata.name) <= 50 && !self.metadata.name.contains('.')",
            message="name must have at most 50 characters and no dot: a Reconfiguration refers to it",
            holds=lambda self: len(self.metadata.name) <= 50 and "." not in self.metadata.name,
            field="metadata.name",
        ),
    )

    api_version: Literal["tidemark.dev/v1alpha1"] = API_VERSION
    kind: Literal["Keyspace"] = "Keyspace"
    spec: KeyspaceSpec
    status: KeyspaceStatus | None = None
