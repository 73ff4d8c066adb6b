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
    AnnotationValue,
    ApiModel,
    Column,
    Conditions,
    ConfigValue,
    Count,
    LabelValue,
    LocationLabel,
    LongCount,
    Name,
    Names,
    ObjectRef,
    ObservedGeneration,
    OpenObject,
    Quantity,
    Resource,
    Rule,
    Timestamp,
    Transition,
    Zone,
    condition_column,
    immutable,
    quantity_bytes,
)


class ImagePullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class AntiAffinity(StrEnum):
    REQUIRED = "Required"
    PREFERRED = "Preferred"


class UpdateStrategy(StrEnum):
    ROLLING_UPDATE = "RollingUpdate"
    ON_DELETE = "OnDelete"


class Management(StrEnum):
    """Who looks after an object: the operator, or nobody."""

    MANAGED = "Managed"
    NONE = "None"


class OnNodeDrain(StrEnum):
    HAND_OVER = "HandOver"
    RELOCATE = "Relocate"
    IGNORE = "Ignore"


class OnNodeLost(StrEnum):
    WAIT = "Wait"
    REPLACE = "Replace"


class ScaleDownPolicy(StrEnum):
    DRAIN_THEN_DELETE = "DrainThenDelete"
    DELETE_DRAINED_ONLY = "DeleteDrainedOnly"


class ScaleDownVictims(StrEnum):
    FEWEST_REPLICAS = "FewestReplicas"
    NEWEST = "Newest"


class OnFactorChange(StrEnum):
    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class OnNodeJoin(StrEnum):
    REBALANCE = "Rebalance"
    NONE = "None"


class Approval(StrEnum):
    AUTOMATIC = "Automatic"
    REQUIRED = "Required"


class TlsMode(StrEnum):
    MANAGED = "Managed"
    CERT_MANAGER = "CertManager"
    DISABLED = "Disabled"


class ClientAuth(StrEnum):
    MUTUAL_TLS = "MutualTLS"
    NONE = "None"


class RetentionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class Switch(StrEnum):
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    JSON = "JSON"
    TEXT = "Text"


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


KeyPrefix = Annotated[str, StringConstraints(max_length=253, pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]$")]
Endpoint = Annotated[str, StringConstraints(max_length=253, pattern=r"^https?://[^/\s]+:[0-9]+$")]


def _secure(endpoint: str) -> bool:
    return endpoint.startswith("https://")


class Etcd(ApiModel):
    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1, max_length=9), *SET] = Field(
        description="Client addresses. The local runtime starts an etcd of its own and does not use them."
    )
    key_prefix: KeyPrefix | None = Field(
        default=None, description="Defaults to /tidemark/<namespace>/<name>."
    )
    tls_secret_ref: ObjectRef | None = Field(
        default=None, description="Secret with ca.crt and, for mutual TLS, tls.crt and tls.key."
    )
    credentials_secret_ref: ObjectRef | None = Field(
        default=None, description="Secret of type kubernetes.io/basic-auth."
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
    etcd: Etcd


class FailureDomain(ApiModel):
    topology_key: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        default="topology.kubernetes.io/zone", description="Node label that names the failure domain."
    )
    node_anti_affinity: AntiAffinity = Field(
        default=AntiAffinity.REQUIRED,
        description="Whether two nodes of the cluster may share a Kubernetes node.",
    )

    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (immutable("topology_key"),)


class Volume(ApiModel):
    size: Quantity = Field(description="Requested size. Can only grow.")
    storage_class_name: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None,
        description="Storage class; empty string means static provisioning, unset means the cluster default.",
    )

    TRANSITIONS: ClassVar[tuple[Transition, ...]] = (
        Transition(
            cel="quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            message="a volume can be expanded, never shrunk: add a node pool and swap the nodes instead",
            allows=lambda new, old: quantity_bytes(new.size) >= quantity_bytes(old.size),
            field="size",
        ),
        immutable("storage_class_name", optional=True, hint="add a node pool and swap the nodes instead"),
    )


class Storage(ApiModel):
    data: Volume = Field(description="Volume of the log and its metadata.")


class PodMetadata(ApiModel):
    labels: dict[str, LabelValue] | None = Field(default=None, max_length=32)
    annotations: dict[str, AnnotationValue] | None = Field(default=None, max_length=64)


class PoolLocation(ApiModel):
    region: LocationLabel | None = Field(default=None, description="The widest scope; the zone lies inside it.")
    cluster: LocationLabel | None = Field(default=None, description="A part of the zone.")
    row: LocationLabel | None = Field(default=None, description="A part of the cluster.")
    rack: LocationLabel | None = Field(default=None, description="A part of the row: the narrowest scope.")


class NodePool(ApiModel):
    name: Name = Field(description="Pool name; part of labels, not of node names.")
    replicas: Annotated[int, Field(ge=0, le=128)] = Field(description="Desired number of nodes.")
    zones: Annotated[tuple[Zone, ...], Field(max_length=16), *SET] | None = Field(
        default=None,
        description="Failure domains that the nodes of this pool are dealt to, evenly. "
        "Unset: chosen by the scheduler; in the local runtime every node is a domain of its own.",
    )
    location: PoolLocation | None = Field(
        default=None,
        description="Where all nodes of this pool stand beside their zone; reading near a location goes by it.",
    )
    storage: Storage
    resources: OpenObject | None = Field(
        default=None, description="corev1.ResourceRequirements of the node container."
    )
    node_selector: dict[str, LabelValue] | None = Field(default=None, max_length=32)
    tolerations: Annotated[tuple[OpenObject, ...], Field(max_length=32), ATOMIC] | None = None
    affinity: OpenObject | None = Field(
        default=None, description="corev1.Affinity, merged under the zone affinity of the operator."
    )
    priority_class_name: Annotated[str, StringConstraints(max_length=253)] | None = None
    pod_metadata: PodMetadata | None = Field(default=None, description="Extra pod labels and annotations.")
    config: dict[str, ConfigValue] | None = Field(
        default=None, max_length=128, description="Node configuration that overrides spec.config."
    )


class Update(ApiModel):
    strategy: UpdateStrategy = UpdateStrategy.ROLLING_UPDATE
    max_unavailable: Annotated[int, Field(ge=1, le=16)] = Field(
        default=1, description="Nodes that the operator itself may take down at once."
    )
    min_ready_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    leader_handover_timeout_seconds: Annotated[int, Field(ge=0, le=600)] = 30
    node_ready_timeout_seconds: Annotated[int, Field(ge=30, le=86400)] = 900


class Disruption(ApiModel):
    pod_disruption_budget: Management = Management.MANAGED
    on_node_drain: OnNodeDrain = Field(
        default=OnNodeDrain.HAND_OVER,
        description="HandOver: move leaderships off and let the eviction proceed, the volume stays. "
        "Relocate: swap the node first (local volumes). Ignore: plain budget.",
    )
    on_node_lost: OnNodeLost = Field(
        default=OnNodeLost.WAIT, description="Replace: swap a node whose Kubernetes Node object is gone."
    )
    node_lost_after_seconds: Annotated[int, Field(ge=60, le=86400)] = 900


class ScaleDown(ApiModel):
    policy: ScaleDownPolicy = ScaleDownPolicy.DRAIN_THEN_DELETE
    victims: ScaleDownVictims = ScaleDownVictims.FEWEST_REPLICAS


class DefaultThrottle(ApiModel):
    max_concurrent_moves: Annotated[int, Field(ge=1, le=64)] = 4
    bytes_per_second_per_node: Quantity = "100Mi"


class ReconfigurationPolicy(ApiModel):
    on_factor_change: OnFactorChange = Field(
        default=OnFactorChange.AUTOMATIC,
        description="Automatic: a change of a replication factor makes the operator create the Expand or Contract. "
        "Manual: an SRE creates it.",
    )
    on_node_join: OnNodeJoin = Field(
        default=OnNodeJoin.NONE,
        description="Rebalance: create a Reconfiguration of type Rebalance when nodes join.",
    )
    approval: Approval = Field(
        default=Approval.AUTOMATIC,
        description="Approval of the Reconfigurations that the operator creates itself.",
    )
    throttle: DefaultThrottle = DefaultThrottle()


class FailureDetection(ApiModel):
    probe_interval_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = 2000
    probe_timeout_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = 5000
    failure_threshold: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="Probes in a row that must fail before a node counts as down."
    )
    leader_quarantine_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=300, description="How long a node that came back is not given leaderships by balancing."
    )


class IssuerRef(ApiModel):
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    kind: Annotated[str, StringConstraints(max_length=63)] = "Issuer"
    group: Annotated[str, StringConstraints(max_length=253)] = "cert-manager.io"


class Tls(ApiModel):
    mode: TlsMode = Field(default=TlsMode.MANAGED, description="Who issues the node certificates.")
    issuer_ref: IssuerRef | None = None
    certificate_duration_days: Annotated[int, Field(ge=1, le=3650)] = 90
    renew_before_days: Annotated[int, Field(ge=1, le=365)] = 30

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.mode == 'CertManager' ? has(self.issuerRef) : !has(self.issuerRef)",
            message="issuerRef is required when mode is CertManager, and forbidden otherwise",
            holds=lambda self: (self.mode is TlsMode.CERT_MANAGER) == (self.issuer_ref is not None),
            field="issuerRef",
        ),
        Rule(
            cel="self.renewBeforeDays < self.certificateDurationDays",
            message="renewBeforeDays must be less than certificateDurationDays",
            holds=lambda self: self.renew_before_days < self.certificate_duration_days,
            field="renewBeforeDays",
        ),
    )


class Security(ApiModel):
    tls: Tls = Tls()
    client_auth: ClientAuth = ClientAuth.MUTUAL_TLS
    network_policy: Management = Management.MANAGED

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.clientAuth != 'MutualTLS' || self.tls.mode != 'Disabled'",
            message="clientAuth MutualTLS needs tls.mode other than Disabled",
            holds=lambda self: self.client_auth is not ClientAuth.MUTUAL_TLS or self.tls.mode is not TlsMode.DISABLED,
            field="clientAuth",
        ),
    )


class ClaimRetention(ApiModel):
    when_deleted: RetentionPolicy = RetentionPolicy.RETAIN
    when_scaled: RetentionPolicy = RetentionPolicy.DELETE


class Service(ApiModel):
    type: ServiceType = ServiceType.CLUSTER_IP
    annotations: dict[str, ConfigValue] | None = Field(default=None, max_length=64)


class Monitoring(ApiModel):
    pod_monitor: Management = Management.NONE
    labels: dict[str, LabelValue] | None = Field(default=None, max_length=16)
    scrape_interval_seconds: Annotated[int, Field(ge=5, le=600)] = 30


class Logging(ApiModel):
    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.JSON


def _cron_pattern() -> str:
    """Return the pattern of five fields, each a list of numbers, ranges and steps within the field's bounds."""
    minute, hour, day, month = "[0-5]?[0-9]", "([01]?[0-9]|2[0-3])", "(0?[1-9]|[12][0-9]|3[01])", "(0?[1-9]|1[0-2])"
    fields = []
    for number in (minute, hour, day, month, "[0-7]"):
        part = rf"(\*|{number}(-{number})?)(/[1-9][0-9]?)?"
        fields.append(f"{part}(,{part})*")
    return "^" + " ".join(fields) + "$"


TimeZone = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$")]


class MaintenanceWindow(ApiModel):
    name: Name
    schedule: Annotated[str, StringConstraints(max_length=64, pattern=_cron_pattern())] = Field(
        description="Five-field cron: minute, hour, day of the month, month, day of the week, in numbers."
    )
    time_zone: TimeZone = Field(default="Etc/UTC", description="Name of a time zone.")
    duration_seconds: Annotated[int, Field(ge=900, le=86400)]


class ClusterSpec(ApiModel):
    version: Annotated[
        str, StringConstraints(max_length=64, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$")
    ] = Field(description="Version of the node agent.")
    image: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Overrides the image that the operator derives from version."
    )
    image_pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secrets: Annotated[tuple[ObjectRef, ...], Field(max_length=8), ATOMIC] | None = None
    metadata_store: MetadataStore
    failure_domain: FailureDomain = FailureDomain()
    node_pools: Annotated[tuple[NodePool, ...], Field(min_length=1, max_length=16), *BY_NAME]
    config: dict[str, ConfigValue] | None = Field(
        default=None, max_length=128, description="Node configuration shared by all pools."
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
        default=Switch.DISABLED, description="Enabled: a ValidatingAdmissionPolicy denies DELETE."
    )
    service: Service = Service()
    monitoring: Monitoring = Monitoring()
    logging: Logging = Logging()
    maintenance_windows: Annotated[tuple[MaintenanceWindow, ...], Field(max_length=16), *BY_NAME] | None = Field(
        default=None,
        description="Operator-initiated restarts (certificate renewal, operator upgrade) wait for a window; "
        "changes of spec do not.",
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


class NodeSummary(ApiModel):
    desired: Count = 0
    current: Count = 0
    ready: Count = 0
    updated: Count = 0
    draining: Count = 0
    lost: Count = 0


class NodeStatus(ApiModel):
    name: Name
    node_id: LongCount = Field(alias="nodeID", description="Never reused.")
    pool: LabelValue | None = None
    zone: LabelValue | None = None
    location: ConfigValue | None = Field(default=None, description="As in region=eu,zone=a,rack=r1.")
    address: Annotated[str, StringConstraints(max_length=261)] | None = Field(
        default=None, description="Where the operator reaches the node, host:port."
    )
    incarnation: Annotated[str, StringConstraints(max_length=36)] | None = Field(
        default=None,
        description="Identity of the disk. A new value under an old name means that the data was lost: "
        "the node does not vote until it is seeded again.",
    )
    state: NodeState
    ready: bool | None = None
    version: LabelValue | None = None
    revision: LabelValue | None = Field(default=None, description="Hash of the pod template that the node runs.")
    kubernetes_node: Annotated[str, StringConstraints(max_length=253)] | None = None
    leaders: Count | None = None
    replicas: Count | None = None
    message: ConfigValue | None = None


class ZoneStatus(ApiModel):
    name: Zone
    nodes: Count = 0
    ready: Count = 0


class Endpoints(ApiModel):
    client: Annotated[str, StringConstraints(max_length=253)] | None = None
    internal: Annotated[str, StringConstraints(max_length=253)] | None = None


class Certificates(ApiModel):
    ca_expiration_time: Timestamp | None = None
    earliest_expiration_time: Timestamp | None = None


class ClusterStatus(ApiModel):
    observed_generation: ObservedGeneration | None = None
    cluster_id: Annotated[str, StringConstraints(max_length=64)] | None = Field(default=None, alias="clusterID")
    key_prefix: Annotated[str, StringConstraints(max_length=253)] | None = None
    version: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Version that every node runs; the old one while an update is in progress."
    )
    target_revision: Annotated[str, StringConstraints(max_length=64)] | None = None
    last_node_id: LongCount | None = Field(
        default=None, alias="lastNodeID", description="High-water mark of allocated node IDs."
    )
    node_summary: NodeSummary | None = None
    ready_nodes: Annotated[str, StringConstraints(max_length=16)] | None = Field(
        default=None, description='"ready/desired", for kubectl get.'
    )
    nodes: Annotated[tuple[NodeStatus, ...], Field(max_length=512), *BY_NAME] | None = None
    zones: Annotated[tuple[ZoneStatus, ...], Field(max_length=64), *BY_NAME] | None = None
    endpoints: Endpoints | None = None
    certificates: Certificates | None = None
    active_reconfiguration: Annotated[str, StringConstraints(max_length=253)] | None = None
    operator_version: Annotated[str, StringConstraints(max_length=64)] | None = None
    conditions: Conditions | None = None


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
