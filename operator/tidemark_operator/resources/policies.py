"""How a cluster is treated: updates, disruptions, moves, failures, security, volumes, and what surrounds it.

Stays out: the nodes themselves (`nodepool`) and what was found (`cluster_status`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from .base import (
    SET,
    ApiModel,
    ConfigValue,
    LabelValue,
    Name,
    Network,
    Quantity,
    Rule,
)


class Switch(StrEnum):
    ENABLED = "Enabled"
    DISABLED = "Disabled"


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


class LeaderBalance(StrEnum):
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


class Update(ApiModel):
    """How nodes are restarted for another version, configuration or certificate."""

    strategy: UpdateStrategy = Field(
        default=UpdateStrategy.ROLLING_UPDATE,
        description="RollingUpdate: the operator restarts nodes. OnDelete: a pod comes back new once it was deleted.",
    )
    max_unavailable: Annotated[int, Field(ge=1, le=16)] = Field(
        default=1, description="Nodes that the operator itself may take down at once."
    )
    min_ready_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=10, description="A restarted node is ready so long before the next one goes."
    )
    leader_handover_timeout_seconds: Annotated[int, Field(ge=0, le=600)] = Field(
        default=30, description="A node that stops has so long to hand its leaderships over."
    )
    node_ready_timeout_seconds: Annotated[int, Field(ge=30, le=86400)] = Field(
        default=900, description="A restarted node that is not ready after so long stops the rollout."
    )


class Disruption(ApiModel):
    """What happens when Kubernetes takes a machine away."""

    pod_disruption_budget: Management = Field(
        default=Management.MANAGED, description="Managed: at most one node may be evicted at a time."
    )
    on_node_drain: OnNodeDrain = Field(
        default=OnNodeDrain.HAND_OVER,
        description="HandOver: move leaderships off and let the eviction proceed, the volume stays. "
        "Relocate: swap the node first (local volumes). Ignore: plain budget.",
    )
    on_node_lost: OnNodeLost = Field(
        default=OnNodeLost.WAIT, description="Replace: swap a node whose Kubernetes Node object is gone."
    )
    node_lost_after_seconds: Annotated[int, Field(ge=10, le=86400)] = Field(
        default=900, description="The Kubernetes Node object is gone for so long before onNodeLost acts."
    )


class ScaleDown(ApiModel):
    """Which nodes go when replicas shrink, and how."""

    policy: ScaleDownPolicy = Field(
        default=ScaleDownPolicy.DRAIN_THEN_DELETE,
        description="DrainThenDelete: the operator empties a node and deletes it. DeleteDrainedOnly: it waits until "
        "somebody emptied one.",
    )
    victims: ScaleDownVictims = Field(
        default=ScaleDownVictims.FEWEST_REPLICAS, description="Which nodes go first, after those that are Drained."
    )


class DefaultThrottle(ApiModel):
    """How fast copies move, unless a Reconfiguration says otherwise."""

    max_concurrent_moves: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4, description="Shards that change at the same time."
    )
    bytes_per_second_per_node: Quantity = Field(default="100Mi", description="Snapshots that a node sends.")


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
    leader_balance: LeaderBalance = Field(
        default=LeaderBalance.AUTOMATIC,
        description="Automatic: where some nodes lead more shards than others, as after a fault, the operator hands "
        "leaderships over, one at a time, while nothing disruptive is under way. Manual: leaderships stay where they "
        "are until people or faults move them.",
    )
    approval: Approval = Field(
        default=Approval.AUTOMATIC,
        description="Approval of the Reconfigurations that the operator creates itself.",
    )
    throttle: DefaultThrottle = DefaultThrottle()


class FailureDetection(ApiModel):
    """When a silent node counts as down."""

    probe_interval_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = Field(
        default=500, description="The operator probes a node so often, whether or not it answered before."
    )
    probe_timeout_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = Field(
        default=1000,
        description="A probe without an answer for so long has failed; three times as long, and up to nine times where "
        "answers were slow lately, while the node's machine accepts connections.",
    )
    failure_threshold: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="Probes in a row that must fail before a node counts as down."
    )
    quorum_silence_milliseconds: Annotated[int, Field(ge=500, le=600_000)] = Field(
        default=3000,
        description="A leader that has heard no majority of its shard's members for so long is replaced when another "
        "member reaches one. A member that has answered nothing for so long, while something waits for it, is not in "
        "sync.",
    )
    leader_quarantine_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=300,
        description="How long a node that came back is not given leaderships by balancing, and how long a shard keeps "
        "its leader before balancing moves it.",
    )


class IssuerRef(ApiModel):
    """The cert-manager issuer of the node certificates."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="Name of the issuer.")
    kind: Annotated[str, StringConstraints(max_length=63)] = Field(
        default="Issuer", description="Issuer, ClusterIssuer, or a kind of another group."
    )
    group: Annotated[str, StringConstraints(max_length=253)] = Field(
        default="cert-manager.io", description="API group of the issuer."
    )


class Tls(ApiModel):
    """Certificates of the nodes."""

    mode: TlsMode = Field(
        default=TlsMode.MANAGED,
        description="Who issues the node certificates; Managed and CertManager may take turns, Disabled is for good.",
    )
    issuer_ref: IssuerRef | None = None
    certificate_duration_days: Annotated[int, Field(ge=1, le=3650)] = Field(
        default=90, description="How long a certificate is valid."
    )
    renew_before_days: Annotated[int, Field(ge=1, le=365)] = Field(
        default=30, description="A certificate is replaced so long before it ends."
    )

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
    """Who may connect, and how they prove who they are."""

    tls: Tls = Tls()
    client_auth: ClientAuth = Field(
        default=ClientAuth.MUTUAL_TLS, description="MutualTLS: whoever connects shows a certificate."
    )
    network_policy: Management = Field(
        default=Management.MANAGED,
        description="Managed: pods and clientNetworks alone reach a node; without certificates, pods of the namespace.",
    )
    client_networks: Annotated[tuple[Network, ...], Field(max_length=64), *SET] | None = Field(
        default=None,
        description="Networks outside of the pods whose clients may reach nodes; in CIDR notation.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.clientAuth != 'MutualTLS' || self.tls.mode != 'Disabled'",
            message="clientAuth MutualTLS needs tls.mode other than Disabled",
            holds=lambda self: self.client_auth is not ClientAuth.MUTUAL_TLS or self.tls.mode is not TlsMode.DISABLED,
            field="clientAuth",
        ),
    )


class ClaimRetention(ApiModel):
    """What happens to the volumes of nodes that go."""

    when_deleted: RetentionPolicy = Field(
        default=RetentionPolicy.RETAIN, description="When this object is deleted."
    )
    when_scaled: RetentionPolicy = Field(
        default=RetentionPolicy.DELETE, description="When replicas shrink and the node is Drained."
    )


class Service(ApiModel):
    """The Service that clients connect to."""

    type: ServiceType = Field(default=ServiceType.CLUSTER_IP, description="Type of the Service.")
    annotations: dict[str, ConfigValue] | None = Field(
        default=None, max_length=64, description="Added to those of the operator."
    )


class Monitoring(ApiModel):
    """Objects for a Prometheus operator."""

    pod_monitor: Management = Field(
        default=Management.NONE, description="Managed: a PodMonitor exists for the nodes."
    )
    labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=16, description="Labels of the PodMonitor, by which Prometheus finds it."
    )
    scrape_interval_seconds: Annotated[int, Field(ge=5, le=600)] = Field(
        default=30, description="How often metrics are read."
    )


class Logging(ApiModel):
    """What nodes write to their logs."""

    level: LogLevel = Field(default=LogLevel.INFO, description="The least that is written.")
    format: LogFormat = Field(default=LogFormat.JSON, description="JSON: one object per line.")


def _cron_pattern() -> str:
    """Return the pattern of five fields, each a list of numbers, ranges and steps within the field's bounds."""
    minute, hour, day, month = "[0-5]?[0-9]", "([01]?[0-9]|2[0-3])", "(0?[1-9]|[12][0-9]|3[01])", "(0?[1-9]|1[0-2])"
    fields = []
    for number in (minute, hour, day, month, "[0-7]"):
        part = rf"(\*|{number}(-{number})?)(/[1-9][0-9]?)?"
        fields.append(f"{part}(,{part})*")
    return "^" + " ".join(fields) + "$"


def _ranges_go_up(schedule: str) -> str:
    for part in re.split("[ ,]", schedule):
        first, _, last = part.partition("/")[0].partition("-")
        if last and int(first) > int(last):
            raise PydanticCustomError("cron", "the range {range} goes backwards", {"range": f"{first}-{last}"})
    return schedule


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PydanticCustomError("time_zone", "is not the name of a time zone") from None
    return name


# What a pattern cannot say the API server lets in; the operator reports it on the object.
Schedule = Annotated[
    str, StringConstraints(max_length=64, pattern=_cron_pattern()), AfterValidator(_ranges_go_up)]
TimeZone = Annotated[
    str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$"),
    AfterValidator(_known_zone)]


class MaintenanceWindow(ApiModel):
    name: Name = Field(description="Name of the window.")
    schedule: Schedule = Field(
        description="Five-field cron: minute, hour, day of the month, month, day of the week, in numbers."
    )
    time_zone: TimeZone = Field(default="Etc/UTC", description="Name of a time zone.")
    duration_seconds: Annotated[int, Field(ge=900, le=86400)] = Field(
        description="How long it is open after each time of the schedule."
    )
