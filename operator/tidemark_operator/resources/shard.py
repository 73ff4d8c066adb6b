"""Shard: what the metadata store says of one shard of a log group, as an object to look at.

The operator writes it and nobody else does; a manifest that holds one is refused (`manifests`).
Stays out: computing the status (`status`), and everything that decides about a shard.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from .base import (
    AGE,
    API_VERSION,
    ATOMIC,
    SET,
    ApiModel,
    Column,
    Conditions,
    LongCount,
    Names,
    ObjectRef,
    Resource,
    Rule,
    Timestamp,
    Transition,
)
from .loggroup import FACTOR_MAX, SHARDS_MAX

MIRRORS = "a Shard mirrors the metadata store: change the LogGroup or create a Reconfiguration"
"""What whoever wants to write one is told."""

MEMBERS_MAX = 2 * FACTOR_MAX


class ShardState(StrEnum):
    ONLINE = "Online"
    ELECTING = "Electing"
    LEADERLESS = "Leaderless"
    RECONFIGURING = "Reconfiguring"
    DELETING = "Deleting"


class MemberRole(StrEnum):
    LEADER = "Leader"
    FOLLOWER = "Follower"
    JOINING = "Joining"
    LEAVING = "Leaving"
    OBSERVER = "Observer"


class MemberSync(StrEnum):
    IN_SYNC = "InSync"
    CATCHING_UP = "CatchingUp"
    UNREACHABLE = "Unreachable"
    DISK_LOST = "DiskLost"    # its node is up with another disk
    UNHEARD = "Unheard"
    UNKNOWN = "Unknown"


class ShardOperation(StrEnum):
    SWAP = "Swap"
    EXPAND = "Expand"
    CONTRACT = "Contract"
    COPIES = "Copies"  # of payloads; no member changes


class ShardPhase(StrEnum):
    PREPARE = "Prepare"
    COMMIT = "Commit"


NodeText = Annotated[str, StringConstraints(max_length=63)]
Hash = Annotated[int, Field(ge=0, le=2**32 - 1)]


class HashRange(ApiModel):
    """Hashes, both ends included."""

    min: Hash = Field(description="First hash.")
    max: Hash = Field(description="Last hash.")

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="min must not exceed max",
            holds=lambda self: self.min <= self.max,
            field="min",
        ),
    )


class ShardSpec(ApiModel):
    """Identity, written once by the operator."""

    cluster_ref: ObjectRef = Field(description="The TidemarkCluster that stores it.")
    log_group_ref: ObjectRef = Field(description="The LogGroup that it is a part of.")
    shard_id: Annotated[int, Field(ge=0, le=SHARDS_MAX - 1)] = Field(alias="shardID", description="Index in the group.")
    hash_range: HashRange | None = Field(default=None, description="Hashes of the keys that belong here.")

    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="self == oldSelf",
            message="a Shard is a projection of the metadata store: its spec is immutable",
            allows=lambda new, old: new == old,
        ),
    )


class MemberStatus(ApiModel):
    """One member."""

    node: NodeText = Field(description="Name of the node.")
    zone: NodeText | None = Field(default=None, description="Its failure domain.")
    role: MemberRole = Field(description="What it is to the shard.")
    sync: MemberSync | None = Field(default=None, description="Whether its copy is up to date.")


class OperationStatus(ApiModel):
    """A change of members."""

    reconfiguration: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Name of the Reconfiguration."
    )
    type: ShardOperation = Field(description="What changes.")
    phase: ShardPhase = Field(description="Prepare can be given up; Commit only goes forward.")
    old_node: NodeText | None = Field(default=None, description="Node that leaves.")
    new_node: NodeText | None = Field(default=None, description="Node that joins.")
    epoch: LongCount | None = Field(default=None, description="Epoch that the change belongs to.")


class ShardStatus(ApiModel):
    """What the metadata store says."""

    metadata_revision: LongCount | None = Field(
        default=None, description="etcd revision of the record that this status mirrors; it never goes back."
    )
    state: ShardState | None = Field(default=None, description="What the shard is at.")
    epoch: LongCount | None = Field(default=None, description="The reign of one leader; it never goes back.")
    election_id: LongCount | None = Field(
        default=None, alias="electionID", description="Tells one attempt to elect a leader from the next."
    )
    synchro_quorum: Annotated[int, Field(ge=1, le=FACTOR_MAX)] | None = Field(
        default=None, description="Members that confirm a record, for the ensemble in force."
    )
    payload_copies: Annotated[int, Field(ge=1, le=FACTOR_MAX)] | None = Field(
        default=None, description="Members that keep each payload, as in force."
    )
    leader: NodeText | None = Field(default=None, description="Node name, empty when there is none.")
    ensemble: Annotated[tuple[MemberStatus, ...], Field(max_length=MEMBERS_MAX), ATOMIC] | None = Field(
        default=None,
        description="The members, and the one that joins. A node with a new disk may stand here twice.",
    )
    removed_nodes: Annotated[tuple[NodeText, ...], Field(max_length=MEMBERS_MAX), *SET] | None = Field(
        default=None, description="Former members whose copies are not deleted yet."
    )
    in_sync: Annotated[str, StringConstraints(max_length=8)] | None = Field(
        default=None, description='"in sync/members".'
    )
    members: Annotated[str, StringConstraints(max_length=2048)] | None = Field(
        default=None, description="Members for kubectl get: * leads, + joins, - leaves."
    )
    operation: OperationStatus | None = Field(
        default=None, description="Change of members or of payload copies in progress, as the metadata store has it."
    )
    last_election_time: Timestamp | None = Field(default=None, description="When its leader was elected.")
    conditions: Conditions | None = None


class Shard(Resource):
    """One shard of a log group, as the metadata store has it. Written by the operator, read by people."""

    NAMES: ClassVar[Names] = Names(
        kind="Shard",
        short="tsh",
        columns=(
            Column("Group", ".spec.logGroupRef.name"),
            Column("ID", ".spec.shardID", type="integer"),
            Column("State", ".status.state"),
            Column("Leader", ".status.leader"),
            Column("Epoch", ".status.epoch", type="integer"),
            Column("InSync", ".status.inSync"),
            Column("Members", ".status.members"),
            Column("Revision", ".status.metadataRevision", type="integer", wide=True),
            AGE,
        ),
        selectable_fields=(
            ".spec.clusterRef.name", ".spec.logGroupRef.name", ".status.leader", ".status.state"),
    )

    api_version: Literal["tidemark.dev/v1alpha1"] = API_VERSION
    kind: Literal["Shard"] = "Shard"
    spec: ShardSpec
    status: ShardStatus | None = None
