"""Reconfiguration: one act on the members or leaders of shards, with its plan, approval and progress.

Stays out: how a move runs (the coordinator) and whether its objects exist (the plan).
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
    Name,
    Names,
    ObjectRef,
    Quantity,
    Resource,
    Rule,
    Transition,
    Zone,
    condition_column,
    immutable,
)
from .loggroup import FACTOR_MAX, SHARDS_MAX
from .policies import Approval
from .reconfiguration_status import ReconfigurationStatus


class ReconfigurationType(StrEnum):
    NODE_SWAP = "NodeSwap"
    EXPAND = "Expand"
    CONTRACT = "Contract"
    LEADER_TRANSFER = "LeaderTransfer"
    REBALANCE = "Rebalance"
    RECOVER = "Recover"


class RemoveSource(StrEnum):
    DELETE = "Delete"
    KEEP = "Keep"


class BelowThree(StrEnum):
    DENIED = "Denied"
    ALLOWED = "Allowed"


class FullyReplicated(StrEnum):
    REQUIRED = "Required"
    IGNORED = "Ignored"


class FailureDomains(StrEnum):
    PRESERVE = "Preserve"
    IGNORE = "Ignore"


class LastCopy(StrEnum):
    PROTECTED = "Protected"
    ABANDONED = "Abandoned"


NodeNames = Annotated[tuple[Name, ...], Field(max_length=128), *SET]


class Provision(ApiModel):
    node_pool: Name | None = Field(default=None, description="Pool of the new node; unset: that of from.")
    zone: Zone | None = Field(default=None, description="Zone of the new node; unset: that of from.")


class SpreadTarget(ApiModel):
    """No field: any node will do."""


class SwapTarget(ApiModel):
    """What takes the place of the node."""

    node: Name | None = Field(default=None, description="An existing node takes its place.")
    provision: Provision | None = Field(
        default=None, description="A new node takes its place; defaults to the pool and the zone of from."
    )
    spread: SpreadTarget | None = Field(
        default=None, description="Any nodes that the placement rules allow: a drain."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.node), has(self.provision), has(self.spread)].filter(x, x).size() == 1",
            message="set exactly one of node, provision and spread",
            holds=lambda self: [self.node, self.provision, self.spread].count(None) == 2,
        ),
    )


class NodeSwap(ApiModel):
    from_: Name = Field(alias="from", description="Node whose copies move.")
    to: SwapTarget = Field(description="What takes its place.")
    remove_source: RemoveSource = Field(
        default=RemoveSource.DELETE,
        description="What happens to the emptied node. Keep leaves it in use; "
        "a later change of replicas removes empty nodes first.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.to.node) || self.to.node != self.from",
            message="from and to must differ",
            holds=lambda self: self.to.node != self.from_,
            field="to.node",
        ),
    )


def _one_target() -> Rule:
    return Rule(
        cel="has(self.logGroup) != has(self.keyspace)",
        message="set exactly one of logGroup and keyspace",
        holds=lambda self: (self.log_group is None) != (self.keyspace is None),
    )


class Expand(ApiModel):
    log_group: Name | None = Field(default=None, description="The LogGroup to expand.")
    keyspace: Name | None = Field(default=None, description="The Keyspace to expand.")
    factor: Annotated[int, Field(ge=2, le=FACTOR_MAX)] = Field(
        description="Factor to reach: the one that the LogGroup or the Keyspace declares."
    )
    nodes: NodeNames | None = Field(default=None, description="Nodes to prefer as new members.")

    RULES: ClassVar[tuple[Rule, ...]] = (_one_target(),)


class Contract(ApiModel):
    log_group: Name | None = Field(default=None, description="The LogGroup to contract.")
    keyspace: Name | None = Field(default=None, description="The Keyspace to contract.")
    factor: Annotated[int, Field(ge=1, le=FACTOR_MAX - 1)] = Field(
        description="Factor to reach: the one that the LogGroup or the Keyspace declares."
    )
    nodes: NodeNames | None = Field(default=None, description="Nodes to prefer as members to remove.")
    below_three: BelowThree = Field(
        default=BelowThree.DENIED, description="A factor below 3 does not survive the loss of a node."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        _one_target(),
        Rule(
            cel="self.factor >= 3 || self.belowThree == 'Allowed'",
            message="a factor below 3 needs belowThree: Allowed",
            holds=lambda self: self.factor >= 3 or self.below_three is BelowThree.ALLOWED,
            field="factor",
        ),
    )


class LeaderTransfer(ApiModel):
    from_: Name | None = Field(
        default=None, alias="from", description="Node whose leaderships move. Unset: those of every node."
    )
    to: Name | None = Field(
        default=None, description="Node that takes them, where it is a member. Unset: the least loaded members."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.from) || has(self.to)",
            message="set from, to, or both",
            holds=lambda self: self.from_ is not None or self.to is not None,
        ),
        Rule(
            cel="!has(self.from) || !has(self.to) || self.from != self.to",
            message="from and to must differ",
            holds=lambda self: self.from_ is None or self.from_ != self.to,
            field="to",
        ),
    )


class Rebalance(ApiModel):
    nodes: NodeNames | None = Field(default=None, description="Nodes to fill; unset: every node below the mean.")
    leaders_only: bool = Field(default=False, description="Move leaderships, not copies.")
    max_move_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        default=100, description="Share of all copies that may move."
    )


class Recover(ApiModel):
    from_: Name = Field(
        alias="from",
        description="Node whose copies become the logs of the shards in scope that the condition DataLossSuspected "
        "names with it. What their present leaders acknowledged meanwhile is given up.",
    )
    accept_loss: bool = Field(
        default=False,
        description="Recover also shards in scope that lost a majority of their disks: the node's copies become their "
        "logs, and acknowledged records that only the lost disks held are gone. Of the copies that are left the node's "
        "must be the longest.",
    )


class Scope(ApiModel):
    """What the act is limited to."""

    log_groups: Annotated[tuple[Name, ...], Field(max_length=64), *SET] | None = Field(
        default=None, description="Names of log groups."
    )
    keyspaces: Annotated[tuple[Name, ...], Field(max_length=64), *SET] | None = Field(
        default=None, description="Names of keyspaces."
    )
    shard_ids: (
        Annotated[tuple[Annotated[int, Field(ge=0, le=SHARDS_MAX - 1)], ...], Field(max_length=256), *SET] | None
    ) = Field(default=None, alias="shardIDs", description="Only these shards: a canary.")


class Throttle(ApiModel):
    """How fast copies move."""

    max_concurrent_moves: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Shards that change at the same time."
    )
    bytes_per_second_per_node: Quantity | None = Field(
        default=None, description="What a node sends of snapshots, whatever for, while this act is carried out."
    )


class Preconditions(ApiModel):
    """What must hold before a move starts."""

    fully_replicated: FullyReplicated = Field(
        default=FullyReplicated.REQUIRED,
        description="Required: start only when no affected shard is under-replicated, "
        "apart from copies on the nodes to empty.",
    )
    failure_domains: FailureDomains = Field(
        default=FailureDomains.PRESERVE,
        description="Preserve: no move puts two copies into one failure domain that are apart now.",
    )
    last_copy: LastCopy = Field(
        default=LastCopy.PROTECTED,
        description="Protected: no member leaves that may hold the last copy of acknowledged records, see the "
        "condition DataLossSuspected. Abandoned: it may leave, and those records are lost.",
    )


_BLOCK_OF_TYPE = {
    ReconfigurationType.NODE_SWAP: ("nodeSwap", "node_swap"),
    ReconfigurationType.EXPAND: ("expand", "expand"),
    ReconfigurationType.CONTRACT: ("contract", "contract"),
    ReconfigurationType.LEADER_TRANSFER: ("leaderTransfer", "leader_transfer"),
    ReconfigurationType.REBALANCE: ("rebalance", "rebalance"),
    ReconfigurationType.RECOVER: ("recover", "recover"),
}


def _block_matches_type(kind: ReconfigurationType) -> Rule:
    field, attribute = _BLOCK_OF_TYPE[kind]
    return Rule(
        cel=f"(self.type == '{kind}') == has(self.{field})",
        message=f"{field} is required when type is {kind}, and forbidden otherwise",
        holds=lambda self: (self.type is kind) == (getattr(self, attribute) is not None),
        field=field,
    )


class ReconfigurationSpec(ApiModel):
    """The act."""

    cluster_ref: ObjectRef = Field(description="The TidemarkCluster to reconfigure.")
    type: ReconfigurationType = Field(description="What to do; the block of that name says the rest.")
    node_swap: NodeSwap | None = Field(default=None, description="Same factor, other members.")
    expand: Expand | None = Field(default=None, description="One more member per shard.")
    contract: Contract | None = Field(default=None, description="One member less per shard.")
    leader_transfer: LeaderTransfer | None = Field(default=None, description="Same members, other leaders.")
    rebalance: Rebalance | None = Field(default=None, description="Even out copies and leaderships.")
    recover: Recover | None = Field(
        default=None, description="Take a member's copy for the log where the leader lacks acknowledged records."
    )
    scope: Scope | None = Field(
        default=None,
        description="Limits the act to some log groups (all but Expand and Contract), to some keyspaces "
        "(NodeSwap and Rebalance) and to some shards. Unset: everything.",
    )
    throttle: Throttle | None = Field(
        default=None, description="Overrides the throttle of the cluster; may be changed while running."
    )
    preconditions: Preconditions = Preconditions()
    approval: Approval = Field(
        default=Approval.AUTOMATIC,
        description="Required: stop after planning until approvedPlan names the plan.",
    )
    approved_plan: Annotated[str, StringConstraints(max_length=71, pattern=r"^sha256:[0-9a-f]{8,64}$")] | None = Field(
        default=None,
        description="Approves the plan with this hash, see status.plan.hash. Another plan needs another approval, "
        "unless it only lost moves since.",
    )
    suspend: bool = Field(
        default=False, description="True: finish the moves in progress and start no other."
    )
    cancel: bool = Field(
        default=False,
        description="True: abort the moves that are not committed, finish those that are, start no other. One way.",
    )
    active_deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = Field(
        default=86_400, description="After so long the act is cancelled."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] = Field(
        default=604_800, description="The object is deleted so long after it finished."
    )
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Free text, e.g. a ticket."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        *(_block_matches_type(kind) for kind in ReconfigurationType),
        Rule(
            cel="!has(self.scope) || !has(self.scope.logGroups) || !(self.type in ['Expand', 'Contract'])",
            message="scope.logGroups does not apply to Expand and Contract",
            holds=lambda self: self.scope is None
            or self.scope.log_groups is None
            or self.type not in (ReconfigurationType.EXPAND, ReconfigurationType.CONTRACT),
            field="scope.logGroups",
        ),
        Rule(
            cel="!has(self.scope) || !has(self.scope.keyspaces) || self.type in ['NodeSwap', 'Rebalance']",
            message="scope.keyspaces applies to NodeSwap and Rebalance only",
            holds=lambda self: self.scope is None
            or self.scope.keyspaces is None
            or self.type in (ReconfigurationType.NODE_SWAP, ReconfigurationType.REBALANCE),
            field="scope.keyspaces",
        ),
        Rule(
            cel="!has(self.approvedPlan) || self.approval == 'Required'",
            message="approvedPlan is meant for approval: Required",
            holds=lambda self: self.approved_plan is None or self.approval is Approval.REQUIRED,
            field="approvedPlan",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        immutable("cluster_ref"),
        immutable("type"),
        *(
            immutable(attribute, optional=True, hint="cancel this Reconfiguration and create another")
            for _, attribute in _BLOCK_OF_TYPE.values()
        ),
        immutable("scope", optional=True),
        immutable("preconditions"),
        immutable("approval"),
        Transition(
            cel="!oldSelf.cancel || self.cancel",
            message="cancel cannot be taken back",
            allows=lambda new, old: new.cancel or not old.cancel,
            field="cancel",
        ),
    )


class Reconfiguration(Resource):
    """An act on a cluster: swap a node, grow or shrink ensembles, move leaders."""

    NAMES: ClassVar[Names] = Names(
        kind="Reconfiguration",
        short="trc",
        columns=(
            Column("Cluster", ".spec.clusterRef.name"),
            Column("Type", ".spec.type"),
            Column("Stage", ".status.stage"),
            Column("Progress", ".status.progress.summary"),
            condition_column("Succeeded", "Succeeded"),
            condition_column("Reason", "Succeeded", "reason"),
            Column("ETA", ".status.progress.estimatedCompletionTime", wide=True),
            Column("Why", ".spec.reason", wide=True),
            AGE,
        ),
        selectable_fields=(".spec.clusterRef.name", ".spec.type", ".status.stage"),
    )

    api_version: Literal["tidemark.dev/v1alpha1"] = API_VERSION
    kind: Literal["Reconfiguration"] = "Reconfiguration"
    spec: ReconfigurationSpec
    status: ReconfigurationStatus | None = None
