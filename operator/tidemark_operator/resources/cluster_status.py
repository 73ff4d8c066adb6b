"""What is shown of a cluster.

Stays out: computing it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from .base import (
    BY_NAME,
    ApiModel,
    Conditions,
    ConfigValue,
    Count,
    LabelValue,
    LongCount,
    Name,
    ObservedGeneration,
    Timestamp,
    Zone,
)


class NodeState(StrEnum):
    PROVISIONING = "Provisioning"
    JOINING = "Joining"
    ACTIVE = "Active"
    RESTARTING = "Restarting"
    RESEEDING = "Reseeding"
    DRAINING = "Draining"
    DRAINED = "Drained"
    LOST = "Lost"
    REMOVING = "Removing"


class NodeSummary(ApiModel):
    """Nodes by what they are at."""

    desired: Count = Field(default=0, description="Asked for, over all pools.")
    current: Count = Field(default=0, description="Known to the operator.")
    ready: Count = Field(default=0, description="Up and linked to the operator.")
    updated: Count = Field(default=0, description="At targetRevision.")
    draining: Count = Field(default=0, description="About to be emptied.")
    lost: Count = Field(default=0, description="Gone for good.")


class NodeStatus(ApiModel):
    """One node."""

    name: Name = Field(description="Name of the node.")
    node_id: LongCount = Field(alias="nodeID", description="Never reused.")
    pool: LabelValue | None = Field(default=None, description="Its node pool.")
    zone: LabelValue | None = Field(default=None, description="Its failure domain.")
    location: ConfigValue | None = Field(default=None, description="As in region=eu,zone=a,rack=r1.")
    address: Annotated[str, StringConstraints(max_length=261)] | None = Field(
        default=None, description="Where the operator reaches the node, host:port."
    )
    incarnation: Annotated[str, StringConstraints(max_length=36)] | None = Field(
        default=None,
        description="Identity of the disk. A new value under an old name means that the data was lost: "
        "the node does not vote until it is seeded again.",
    )
    state: NodeState = Field(description="What it is at.")
    ready: bool | None = Field(default=None, description="Whether it is up and linked to the operator.")
    version: LabelValue | None = Field(default=None, description="Version that it runs.")
    revision: LabelValue | None = Field(default=None, description="Hash of the pod template that the node runs.")
    kubernetes_node: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Kubernetes node of its pod."
    )
    leaders: Count | None = Field(default=None, description="Shards that it leads.")
    replicas: Count | None = Field(default=None, description="Copies that it holds.")
    message: ConfigValue | None = Field(default=None, description="Why it is not ready.")


class ZoneStatus(ApiModel):
    """One failure domain."""

    name: Zone = Field(description="The zone.")
    nodes: Count = Field(default=0, description="Nodes in it.")
    ready: Count = Field(default=0, description="Those that are ready.")


class Endpoints(ApiModel):
    """Where the cluster answers."""

    client: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="For clients, host:port."
    )
    internal: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="For nodes: the domain that their names are in."
    )


class Certificates(ApiModel):
    """When the certificates end."""

    ca_expiration_time: Timestamp | None = Field(default=None, description="When the authority ends.")
    earliest_expiration_time: Timestamp | None = Field(
        default=None, description="When the first node certificate ends."
    )


class ClusterStatus(ApiModel):
    """What the cluster is."""

    observed_generation: ObservedGeneration | None = None
    cluster_id: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, alias="clusterID", description="Identity of the cluster in the metadata store."
    )
    key_prefix: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Where its metadata lies in etcd."
    )
    version: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Version that every node runs; the old one while an update is in progress."
    )
    target_revision: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Hash of the pod template that nodes should run."
    )
    last_node_id: LongCount | None = Field(
        default=None, alias="lastNodeID", description="High-water mark of allocated node IDs."
    )
    node_summary: NodeSummary | None = None
    ready_nodes: Annotated[str, StringConstraints(max_length=16)] | None = Field(
        default=None, description='"ready/desired", for kubectl get.'
    )
    nodes: Annotated[tuple[NodeStatus, ...], Field(max_length=512), *BY_NAME] | None = Field(
        default=None, description="Every node."
    )
    zones: Annotated[tuple[ZoneStatus, ...], Field(max_length=64), *BY_NAME] | None = Field(
        default=None, description="Every failure domain that has nodes."
    )
    endpoints: Endpoints | None = None
    certificates: Certificates | None = None
    active_reconfiguration: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="Name of the Reconfiguration that runs."
    )
    operator_version: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Version of the operator that wrote this."
    )
    conditions: Conditions | None = None
