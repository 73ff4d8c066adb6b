"""LogGroup: N shards of one log, how often each record is kept, and when it counts as safe.

Stays out: where the nodes come from (cluster) and acts on the members of a shard (reconfiguration).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError
from tidemark_core.base.formula import (
    FORMULA_LENGTH_MAX,
    FORMULA_PATTERN,
    InvalidFormula,
    evaluate,
    quorum_asked,
)

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
    Principal,
    Quantity,
    Resource,
    Rule,
    Transition,
    Zone,
    condition_column,
    immutable,
    quantity_bytes,
)

FACTOR_MAX = 9
ZONES_MAX = 7
SHARDS_MAX = 4096
PROJECTED_SHARDS_MAX = 1024


class GroupKind(StrEnum):
    LOG = "Log"
    DOCUMENTS = "Documents"


class Ack(StrEnum):
    QUORUM = "Quorum"
    LOCAL = "Local"


class Rollback(StrEnum):
    DEFINITE = "Definite"
    IMMEDIATE = "Immediate"


class Spread(StrEnum):
    ZONE = "Zone"
    NODE = "Node"


class LeaderPreference(StrEnum):
    SPREAD = "Spread"
    ZONES = "Zones"


class DeliveryMode(StrEnum):
    SINGLE_COPY = "SingleCopy"
    ALL_SEND_ALL = "AllSendAll"


class Locality(StrEnum):
    NONE = "None"
    ZONE = "Zone"
    ALL = "All"


class Compression(StrEnum):
    NONE = "None"
    LZ4 = "LZ4"
    ZSTD = "Zstd"


class Projection(StrEnum):
    FULL = "Full"
    NONE = "None"


class DeletionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


def _check_quorum(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PydanticCustomError("quorum", "must be a whole number or a formula over N")
    if isinstance(value, int):
        if not 1 <= value <= FACTOR_MAX:
            raise PydanticCustomError("quorum", "must be between 1 and {most}", {"most": FACTOR_MAX})
        return value
    try:
        # Every size an ensemble can take must give a number: Expand and Contract evaluate the formula again.
        for members in range(1, FACTOR_MAX + 1):
            evaluate(value, members)
    except InvalidFormula as error:
        raise PydanticCustomError("quorum", "{message}", {"message": str(error)}) from error
    return value


SynchroQuorum = Annotated[
    int | str,
    PlainValidator(_check_quorum),
    PlainSerializer(lambda value: value),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": FACTOR_MAX,
            "pattern": FORMULA_PATTERN,
            "maxLength": FORMULA_LENGTH_MAX,
        }
    ),
]

Principals = Annotated[tuple[Principal, ...], Field(max_length=256), *SET]
"""Names of clients."""

CopyCount = Annotated[int, Field(ge=1, le=FACTOR_MAX)]

_COPIES = "(has(self.payloadCopies) ? self.payloadCopies : self.factor)"
_LEADERS = f"(has(self.leaders) ? self.leaders : {_COPIES})"


class Replication(ApiModel):
    """How often each record is kept, and when it counts as safe."""

    factor: CopyCount = Field(default=3, description="n: members of the ensemble of each shard.")
    payload_copies: CopyCount | None = Field(
        default=None,
        description="R: members that keep the payload of a record; the others keep its header only, once enough "
        "members have it. Unset: all. Where it is below factor, records are read from all members together, not from "
        "the leader alone. It may change at any time; shards follow one by one.",
    )
    sync_leaders: CopyCount = Field(
        default=1,
        description="Left-most members of a copyset that must hold a record before it is released to readers, for a "
        "tenth of a second at most; only where payloadCopies is below factor.",
    )
    leaders: CopyCount | None = Field(
        default=None,
        description="Left-most members of a copyset that must hold a record before it is complete, which nobody waits "
        "for: metrics tell how many records are. Unset: payloadCopies.",
    )
    synchro_quorum: SynchroQuorum | None = Field(
        default=None,
        description="Members that must hold a record durably before it is confirmed: a number, or a formula over N, "
        "the size of the ensemble in force, of + - * /, parentheses, min(a, b) and max(a, b), such as N/2+1 or "
        "max(N-1, 3); division rounds down. Never less than a majority nor more than factor; an ensemble that is "
        "still smaller than the quorum confirms with all of its members. Unset: a majority. A new leader confirms "
        "what it inherited by a majority. It may change at any time and decides what is not yet confirmed.",
    )
    synchro_zones: Annotated[int, Field(ge=1, le=ZONES_MAX)] | None = Field(
        default=None,
        description="Zones that must hold a record durably before it is confirmed, on top of synchroQuorum. While a "
        "shard has members in fewer zones its quorum appends are not confirmed. Unset: zones do not count.",
    )
    quorum_timeout_seconds: Annotated[int, Field(ge=1, le=300)] = Field(
        default=5,
        description="How long a record waits for synchroQuorum. Then its writer is told that the outcome is unknown, "
        "and the leader takes the record back together with all that wait behind it.",
    )
    rollback: Rollback = Field(
        default=Rollback.DEFINITE,
        description="When a writer is told that its record was rolled back. Definite: when no later leader can bring "
        "it back. Immediate: once its leader wrote so, which is unsafe under failover, because a record told rolled "
        "back may be read later after all; it is there for tests and for comparison.",
    )
    default_ack: Ack = Field(
        default=Ack.QUORUM, description="Acknowledgement of the appends that do not name one."
    )
    spread: Spread = Field(
        default=Spread.ZONE, description="Copies of a shard share no failure domain of this kind."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.payloadCopies) || "
            "(self.payloadCopies <= self.factor && self.payloadCopies * 2 > self.factor)",
            message="payloadCopies must be a majority of factor and must not exceed it",
            holds=lambda self: self.payload_copies is None
            or (self.payload_copies <= self.factor and self.payload_copies * 2 > self.factor),
            field="payloadCopies",
        ),
        Rule(
            cel=f"!has(self.leaders) || self.leaders <= {_COPIES}",
            message="leaders must not exceed payloadCopies",
            holds=lambda self: self.leader_copies <= self.copies,
            field="leaders",
        ),
        Rule(
            cel=f"self.syncLeaders <= {_LEADERS}",
            message="syncLeaders must not exceed leaders",
            holds=lambda self: self.sync_leaders <= self.leader_copies,
            field="syncLeaders",
        ),
        Rule(
            cel="has(self.synchroQuorum) && type(self.synchroQuorum) == int "
            "? self.synchroQuorum <= self.factor && self.synchroQuorum * 2 > self.factor : true",
            message="synchroQuorum must be a majority of factor and must not exceed it: "
            "two leaders could otherwise both confirm",
            holds=lambda self: not isinstance(self.synchro_quorum, int)
            or (self.synchro_quorum <= self.factor and self.synchro_quorum * 2 > self.factor),
            field="synchroQuorum",
        ),
        Rule(
            # The API server cannot evaluate a formula; there the operator reports it on the object.
            cel="",
            message="synchroQuorum must not exceed factor",
            holds=lambda self: quorum_asked(self.synchro_quorum, self.factor) <= self.factor,
            field="synchroQuorum",
        ),
        Rule(
            cel="!has(self.synchroZones) || self.synchroZones <= self.factor",
            message="synchroZones must not exceed factor: one member stands in one zone",
            holds=lambda self: self.synchro_zones is None or self.synchro_zones <= self.factor,
            field="synchroZones",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="self.factor - oldSelf.factor <= 1 && oldSelf.factor - self.factor <= 1",
            message="factor can change by 1 at a time",
            allows=lambda new, old: abs(new.factor - old.factor) <= 1,
            field="factor",
        ),
    )

    @property
    def copies(self) -> int:
        """R, the payload copies."""
        return self.factor if self.payload_copies is None else self.payload_copies

    @property
    def leader_copies(self) -> int:
        """Copies that make an append complete."""
        return self.copies if self.leaders is None else self.leaders


class LeaderPlacement(ApiModel):
    """Where leaders should be."""

    preference: LeaderPreference = Field(
        default=LeaderPreference.SPREAD,
        description="Spread: evenly over all members. Zones: in the zones named, where there are members.",
    )
    zones: Annotated[tuple[Zone, ...], Field(max_length=16), *SET] | None = Field(
        default=None, description="Zones to prefer."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.preference == 'Zones' ? has(self.zones) && size(self.zones) > 0 : !has(self.zones)",
            message="zones is required when preference is Zones, and forbidden otherwise",
            holds=lambda self: bool(self.zones)
            if self.preference is LeaderPreference.ZONES
            else self.zones is None,
            field="zones",
        ),
    )


class Placement(ApiModel):
    """Where copies may be."""

    node_pools: Annotated[tuple[Name, ...], Field(max_length=16), *SET] | None = Field(
        default=None, description="Pools that may host the copies. Unset: all."
    )
    leaders: LeaderPlacement = LeaderPlacement()


class Delivery(ApiModel):
    mode: DeliveryMode = Field(
        default=DeliveryMode.SINGLE_COPY, description="SingleCopy: one member ships each record to a reader."
    )
    locality: Locality = Field(
        default=Locality.ZONE,
        description="Zone: members in the zone of the reader ship first. All: nearest first over all domains.",
    )
    stall_timeout_seconds: Annotated[int, Field(ge=1, le=600)] = Field(
        default=10, description="A member without progress for so long is treated as down by the reader."
    )
    all_send_all_timeout_seconds: Annotated[int, Field(ge=1, le=1200)] = Field(
        default=30, description="A reader without progress for so long is sent everything by every member."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.stallTimeoutSeconds <= self.allSendAllTimeoutSeconds",
            message="stallTimeoutSeconds must not exceed allSendAllTimeoutSeconds",
            holds=lambda self: self.stall_timeout_seconds <= self.all_send_all_timeout_seconds,
            field="stallTimeoutSeconds",
        ),
    )


class Access(ApiModel):
    readers: Principals = Field(default=(), description="Clients that may read.")
    writers: Principals = Field(default=(), description="Clients that may write, and ask what became of an append.")
    admins: Principals = Field(
        default=(), description="Clients that may read, write and move the shards."
    )


class Retention(ApiModel):
    """What is removed, and when."""

    seconds: Annotated[int, Field(ge=0, le=3_153_600_000)] = Field(
        default=604_800, description="Records live at least so long; 0 keeps them for ever."
    )
    size: Quantity | None = Field(
        default=None,
        description="Bytes of one copy of a shard; 0 is no limit. Whichever limit is reached first removes records.",
    )
    max_size: Quantity | None = Field(
        default=None,
        description="Bytes of one copy of a shard, whatever subscriptions pin: age and size remove nothing that one of "
        "them has still to read, this does, and tells it so. Unset: they pin until their lease is over.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.size) || !has(self.maxSize) || quantity(self.maxSize).compareTo(quantity(self.size)) >= 0",
            message="maxSize must not be below size: it bounds what subscriptions keep beyond it",
            holds=lambda self: self.size is None or self.max_size is None
            or quantity_bytes(self.max_size) >= quantity_bytes(self.size),
            field="maxSize",
        ),
    )


class Documents(ApiModel):
    """Bounds of a log group of kind Documents."""

    tombstone_seconds: Annotated[int, Field(ge=60, le=3_153_600_000)] = Field(
        default=604_800,
        description="A delete is remembered at least so long, for consumers of changes without a name. One that was "
        "away for longer starts from the beginning. Named positions and pins keep deletes for longer.",
    )
    max_pinned_bytes: Quantity = Field(
        default="10Gi",
        description="Superseded versions that one pin may keep in each shard. A pin that keeps more is ended.",
    )


class LogGroupSpec(ApiModel):
    """What the log group should be."""

    cluster_ref: ObjectRef = Field(description="The TidemarkCluster that stores the group.")
    kind: GroupKind = Field(
        default=GroupKind.LOG,
        description="Log: append and tail. Documents: the latest value by key, on full replicas only.",
    )
    shards: Annotated[int, Field(ge=1, le=SHARDS_MAX)] = Field(description="Number of shards.")
    replication: Replication = Replication()
    placement: Placement = Placement()
    delivery: Delivery = Field(default=Delivery(), description="How records reach readers.")
    retention: Retention = Retention()
    documents: Documents | None = Field(default=None, description="Bounds of kind Documents. Unset: the defaults.")
    access: Access | None = Field(
        default=None,
        description="Who may do what, by the name in the certificate. Unset: every client of the cluster may read and "
        "append. The admins of the cluster may do everything.",
    )
    max_record_bytes: Annotated[int, Field(ge=1024, le=4_194_304)] = Field(
        default=1_048_576,
        description="Largest record: key, value and headers. It must fit in a batch together with its framing.",
    )
    compression: Compression = Field(default=Compression.ZSTD, description="Compression of batches.")
    shard_projection: Projection = Field(
        default=Projection.FULL, description="Whether a Shard object exists for every shard."
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What happens to the data and its metadata when this object is deleted.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.shardProjection == 'None' || self.shards <= {PROJECTED_SHARDS_MAX}",
            message=f"more than {PROJECTED_SHARDS_MAX} shards need shardProjection: None",
            holds=lambda self: self.shard_projection is Projection.NONE or self.shards <= PROJECTED_SHARDS_MAX,
            field="shards",
        ),
        Rule(
            cel="self.kind != 'Documents' || !has(self.replication.payloadCopies) || "
            "self.replication.payloadCopies == self.replication.factor",
            message="kind Documents needs payloadCopies to equal factor: every member holds the documents",
            holds=lambda self: self.kind is not GroupKind.DOCUMENTS
            or self.replication.copies == self.replication.factor,
            field="replication.payloadCopies",
        ),
        Rule(
            cel="!has(self.documents) || self.kind == 'Documents'",
            message="documents needs kind Documents",
            holds=lambda self: self.documents is None or self.kind is GroupKind.DOCUMENTS,
            field="documents",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        immutable("cluster_ref"),
        immutable("kind"),
        immutable("shards", hint="keys are hashed over the shards"),
    )


class ShardCounts(ApiModel):
    """Shards by what they are at."""

    desired: Count = Field(default=0, description="Asked for.")
    online: Count = Field(default=0, description="With a leader that is up.")
    electing: Count = Field(default=0, description="Whose leader is being elected.")
    leaderless: Count = Field(default=0, description="Without a leader that is up.")
    under_replicated: Count = Field(default=0, description="With a copy that is down or on another disk.")
    reconfiguring: Count = Field(default=0, description="Whose members change.")


class FactorRange(ApiModel):
    min: Count = Field(description="Of the smallest shard.")
    max: Count = Field(description="Of the largest shard.")


class NodeLoad(ApiModel):
    """What one node has of the group."""

    node: Name = Field(description="Name of the node.")
    leaders: Count = Field(default=0, description="Shards that it leads.")
    replicas: Count = Field(default=0, description="Copies that it holds.")


class LogGroupStatus(ApiModel):
    """What the log group is."""

    observed_generation: ObservedGeneration | None = None
    group_id: LongCount | None = Field(
        default=None, alias="groupID", description="Number of the group in the metadata store; never reused."
    )
    metadata_revision: LongCount | None = Field(
        default=None, description="etcd revision that this status was read at."
    )
    shards: ShardCounts | None = None
    online_shards: Annotated[str, StringConstraints(max_length=16)] | None = Field(
        default=None, description='"online/desired".'
    )
    quorum: Annotated[str, StringConstraints(max_length=8)] | None = Field(
        default=None, description='"synchroQuorum/factor" in force, e.g. 2/3.'
    )
    factor_in_force: FactorRange | None = Field(
        default=None,
        description="Smallest and largest ensemble; they differ while an Expand or a Contract runs.",
    )
    payload_copies_in_force: FactorRange | None = Field(
        default=None,
        description="Smallest and largest number of members of a shard that keep its payloads; they differ from "
        "payloadCopies while a change of it is carried out shard by shard.",
    )
    leaders_by_node: (
        Annotated[
            tuple[NodeLoad, ...],
            Field(
                max_length=512,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["node"]},
            ),
        ]
        | None
    ) = Field(default=None, description="Who has what of the group.")
    conditions: Conditions | None = None


class LogGroup(Resource):
    """A group of shards: each is one epoch-ordered log, led by one node per epoch."""

    NAMES: ClassVar[Names] = Names(
        kind="LogGroup",
        short="tlg",
        columns=(
            condition_column("Ready", "Ready"),
            Column("Cluster", ".spec.clusterRef.name"),
            Column("Shards", ".status.onlineShards"),
            Column("Quorum", ".status.quorum"),
            Column("Leaderless", ".status.shards.leaderless", type="integer"),
            Column("UnderRepl", ".status.shards.underReplicated", type="integer"),
            condition_column("Reason", "Ready", "reason", wide=True),
            AGE,
        ),
        selectable_fields=(".spec.clusterRef.name",),
    )
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="size(self.metadata.name) <= 50 && !self.metadata.name.contains('.')",
            message="name must have at most 50 characters and no dot: shard names are derived from it",
            holds=lambda self: len(self.metadata.name) <= 50 and "." not in self.metadata.name,
            field="metadata.name",
        ),
    )

    api_version: Literal["tidemark.dev/v1alpha1"] = API_VERSION
    kind: Literal["LogGroup"] = "LogGroup"
    spec: LogGroupSpec
    status: LogGroupStatus | None = None
