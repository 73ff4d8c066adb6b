"""TidemarkCluster: the nodes, where they run, and how the operator treats them.

Stays out: log groups (loggroup) and acts on the cluster (reconfiguration).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from .base import (
    AGE,
    API_VERSION,
    ATOMIC,
    BY_NAME,
    SET,
    ApiModel,
    Column,
    ConfigValue,
    Names,
    ObjectRef,
    Resource,
    Rule,
    Transition,
    condition_column,
    immutable,
)
from .cluster_status import ClusterStatus
from .nodepool import NodePool
from .policies import (
    ClaimRetention,
    Disruption,
    FailureDetection,
    Logging,
    MaintenanceWindow,
    Monitoring,
    ReconfigurationPolicy,
    ScaleDown,
    Security,
    Service,
    Switch,
    Update,
)


class ImagePullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class AntiAffinity(StrEnum):
    REQUIRED = "Required"
    PREFERRED = "Preferred"


KeyPrefix = Annotated[str, StringConstraints(max_length=253, pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$")]
Endpoint = Annotated[str, StringConstraints(max_length=253, pattern=r"^https?://[^/\s]+:[0-9]+$")]


def _secure(endpoint: str) -> bool:
    return endpoint.startswith("https://")


class Etcd(ApiModel):
    """Where the metadata of the cluster lies."""

    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1, max_length=9), *SET] = Field(
        description="Client addresses. The local runtime starts an etcd of its own and does not use them."
    )
    key_prefix: KeyPrefix | None = Field(
        default=None, description="Defaults to /tidemark/<namespace>/<name>."
    )
    tls_secret_ref: ObjectRef | None = Field(
        default=None,
        description="Secret with ca.crt and, for mutual TLS, tls.crt and tls.key. It needs the label "
        "tidemark.dev/etcd-for with the name of the cluster."
    )
    credentials_secret_ref: ObjectRef | None = Field(
        default=None, description="Secret of type kubernetes.io/basic-auth, with the same label."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.endpoints.all(e, e.startsWith('https://')) || self.endpoints.all(e, e.startsWith('http://'))",
            message="all endpoints must use the same scheme",
            holds=lambda self: len({_secure(endpoint) for endpoint in self.endpoints}) == 1,
            field="endpoints",
        ),
        Rule(
            cel="!self.endpoints.exists(e, e.startsWith('https://')) || has(self.tlsSecretRef)",
            message="tlsSecretRef is required for https endpoints",
            holds=lambda self: not any(map(_secure, self.endpoints)) or self.tls_secret_ref is not None,
            field="tlsSecretRef",
        ),
        Rule(
            cel="!has(self.credentialsSecretRef) || has(self.tlsSecretRef)",
            message="etcd credentials are sent only over TLS: set tlsSecretRef",
            holds=lambda self: self.credentials_secret_ref is None or self.tls_secret_ref is not None,
            field="credentialsSecretRef",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (immutable("key_prefix", optional=True),)


class MetadataStore(ApiModel):
    """Where epochs, members and objects are kept."""

    etcd: Etcd


class FailureDomain(ApiModel):
    """What fails together, and what nodes must not share."""

    topology_key: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        default="topology.kubernetes.io/zone", description="Node label that names the failure domain."
    )
    node_anti_affinity: AntiAffinity = Field(
        default=AntiAffinity.REQUIRED,
        description="Whether two nodes of the cluster may share a Kubernetes node.",
    )

    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (immutable("topology_key"),)


class ClusterSpec(ApiModel):
    """What the cluster should be."""

    version: Annotated[
        str, StringConstraints(max_length=64, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$")
    ] = Field(description="Version of the node agent.")
    image: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None,
        description="Overrides the image that the operator derives from version. "
        "Without security.allowedImages of the chart it must be of the same repository."
    )
    image_pull_policy: ImagePullPolicy = Field(
        default=ImagePullPolicy.IF_NOT_PRESENT, description="When the image is pulled."
    )
    image_pull_secrets: Annotated[tuple[ObjectRef, ...], Field(max_length=8), ATOMIC] | None = Field(
        default=None, description="Secrets of the registry."
    )
    metadata_store: MetadataStore
    failure_domain: FailureDomain = FailureDomain()
    node_pools: Annotated[tuple[NodePool, ...], Field(min_length=1, max_length=16), *BY_NAME] = Field(
        description="Groups of like nodes."
    )
    config: dict[str, ConfigValue] | None = Field(
        default=None, max_length=128,
        description="Settings of all nodes: append-bytes-max, calls-max, disk-reserve-bytes, frame-bytes-max, "
        "reclaim-bytes, reclaim-seconds, repair-memory-bytes, streams-max, subscription-lease-seconds-max, "
        "subscription-names-max, watches-max.",
    )
    update: Update = Update()
    disruption: Disruption = Disruption()
    scale_down: ScaleDown = ScaleDown()
    reconfiguration: ReconfigurationPolicy = Field(
        default=ReconfigurationPolicy(),
        description="Policy for, and defaults of, the Reconfigurations of this cluster.",
    )
    failure_detection: FailureDetection = FailureDetection()
    security: Security = Security()
    persistent_volume_claim_retention_policy: ClaimRetention = ClaimRetention()
    deletion_protection: Switch = Field(
        default=Switch.ENABLED,
        description="Enabled: a ValidatingAdmissionPolicy of the chart denies DELETE; set Disabled before deleting.",
    )
    service: Service = Service()
    monitoring: Monitoring = Monitoring()
    logging: Logging = Logging()
    maintenance_windows: Annotated[tuple[MaintenanceWindow, ...], Field(max_length=16), *BY_NAME] | None = Field(
        default=None,
        description="When pods that an operator of another version made are made anew; without a window they stay. "
        "Changes of spec wait for none.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.nodePools.exists(p, p.replicas > 0)",
            message="at least one node pool must have replicas",
            holds=lambda self: any(pool.replicas > 0 for pool in self.node_pools),
            field="nodePools",
        ),
    )
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="oldSelf.nodePools.all(o, o.replicas == 0 || self.nodePools.exists(n, n.name == o.name))",
            message="a node pool must be scaled to 0 before it is removed",
            allows=lambda new, old: {pool.name for pool in old.node_pools if pool.replicas > 0}
            <= {pool.name for pool in new.node_pools},
            field="nodePools",
        ),
    )

    @property
    def replicas(self) -> int:
        """Nodes that the cluster should have, over all pools."""
        return sum(pool.replicas for pool in self.node_pools)


class TidemarkCluster(Resource):
    """A set of nodes that stores log groups."""

    NAMES: ClassVar[Names] = Names(
        kind="TidemarkCluster",
        short="tmc",
        columns=(
            condition_column("Ready", "Ready"),
            condition_column("Available", "Available"),
            Column("Nodes", ".status.readyNodes"),
            Column("Version", ".status.version"),
            Column("Reconfiguration", ".status.activeReconfiguration"),
            condition_column("Reason", "Ready", "reason", wide=True),
            Column("Target", ".spec.version", wide=True),
            AGE,
        ),
    )
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="size(self.metadata.name) <= 40 && !self.metadata.name.contains('.')",
            message="name must have at most 40 characters and no dot: "
            "node, service and secret names are derived from it",
            holds=lambda self: len(self.metadata.name) <= 40 and "." not in self.metadata.name,
            field="metadata.name",
        ),
    )

    api_version: Literal["tidemark.dev/v1alpha1"] = API_VERSION
    kind: Literal["TidemarkCluster"] = "TidemarkCluster"
    spec: ClusterSpec
    status: ClusterStatus | None = None

    @property
    def cluster(self) -> str:
        return self.name
