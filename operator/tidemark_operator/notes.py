"""What the answer to an apply says besides what was done: wishes that change nothing yet, and what to beware of.

Stays out: refusals, which the models and `objects` make, and what a condition shows from then on (`status`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidemark_core.optimistic.settings import SKEW_MS

from .resources import ClusterSpec, Keyspace, KeyspaceSpec, LogGroup, LogGroupSpec, Resource, TidemarkCluster
from .resources.base import ApiModel
from .resources.conditions import ConditionReason
from .resources.kinds import not_served_message
from .resources.labels import USER_ANNOTATIONS
from .resources.loggroup import LeaderPreference, Projection, Rollback
from .resources.policies import OnNodeJoin, TlsMode

_KUBERNETES_ONLY = (
    "image", "image_pull_policy", "image_pull_secrets", "failure_domain", "config", "update", "disruption",
    "scale_down", "persistent_volume_claim_retention_policy", "deletion_protection", "service", "monitoring",
    "logging", "maintenance_windows",
)
_KUBERNETES_ONLY_OF_POOLS = (
    "resources", "node_selector", "tolerations", "affinity", "priority_class_name", "pod_metadata", "config",
)


def notes(resource: Resource, zones: Collection[str], *, tls: bool = False) -> list[str]:
    """Return what to tell whoever applied `resource`; `zones` are those of the nodes that are up.

    Without `tls` nobody is asked for a certificate.
    """
    told = {
        "not in force in this release": "; ".join(asked_in_vain(resource)),
        "not in force in a local cluster": ", ".join(needs_kubernetes(resource)),
        "not in force without TLS": "" if tls else needs_tls(resource),
    }
    found = [f"{what}: {fields}" for what, fields in told.items() if fields]
    return found + [f"warning: {warning}" for warning in warnings(resource, zones)]


def unsupported(resource: Resource) -> list[str]:
    """Return what to tell of an object that this release does not serve."""
    message = not_served_message(resource.kind, resource.as_written()["spec"])
    return [f"{ConditionReason.NOT_SUPPORTED}: {message}"] if message else []


def asked_in_vain(resource: Resource) -> list[str]:
    """Return the fields a manifest sets that change nothing yet, each with what happens instead."""
    match resource:
        case LogGroup():
            return list(_group_in_vain(resource.spec))
        case Keyspace():
            return list(_keyspace_in_vain(resource.spec))
        case TidemarkCluster():
            return list(_cluster_in_vain(resource.spec))
    return []


def _group_in_vain(spec: LogGroupSpec) -> Iterator[str]:
    if "delivery" in spec.model_fields_set:
        yield "spec.delivery: each reader chooses how it is served"
    if "compression" in spec.model_fields_set:
        yield "spec.compression: each writer chooses its own"
    if spec.placement.leaders.preference is LeaderPreference.ZONES:
        yield "spec.placement.leaders: leaderships are spread over all zones"
    if spec.shard_projection is Projection.NONE:
        yield "spec.shardProjection: every shard is shown"


def _keyspace_in_vain(spec: KeyspaceSpec) -> Iterator[str]:
    if spec.max_clock_skew_milliseconds != SKEW_MS:
        yield (
            f"spec.maxClockSkewMilliseconds: one clock stamps the writes of all keyspaces of a node, {SKEW_MS} ms "
            "are its bound")


def _cluster_in_vain(spec: ClusterSpec) -> Iterator[str]:
    if spec.reconfiguration.on_node_join is not OnNodeJoin.NONE:
        yield "spec.reconfiguration.onNodeJoin: a node that joins stays empty until a Reconfiguration fills it"


def needs_kubernetes(resource: Resource) -> list[str]:
    """Return the fields a manifest sets that a local cluster has no use for."""
    found = [f"metadata.annotations[{name}]" for name in USER_ANNOTATIONS if name in resource.metadata.annotations]
    if isinstance(resource, TidemarkCluster):
        spec = resource.spec
        found += _written(spec, "spec", _KUBERNETES_ONLY)
        for index, pool in enumerate(spec.node_pools):
            found += _written(pool, f"spec.nodePools[{index}]", _KUBERNETES_ONLY_OF_POOLS)
        found += _written(spec.security, "spec.security", ["network_policy"])
        if spec.security.tls.mode is TlsMode.CERT_MANAGER:
            found.append("spec.security.tls.mode")
    return found


def needs_tls(resource: Resource) -> str:
    """Return the field that names clients by their certificates; empty when there is none."""
    named = isinstance(resource, LogGroup | Keyspace) and resource.spec.access is not None
    return "spec.access" if named else ""


def _written(model: ApiModel, path: str, attributes: Collection[str]) -> list[str]:
    """Return the paths of those attributes that the manifest itself names."""
    fields = type(model).model_fields
    return [f"{path}.{fields[name].alias}" for name in attributes if name in model.model_fields_set]


def warnings(resource: Resource, zones: Collection[str]) -> list[str]:
    """Return the fields that are in force and dangerous, or that the nodes there are now cannot satisfy."""
    if not isinstance(resource, LogGroup):
        return []
    replication = resource.spec.replication
    found = []
    if replication.rollback is Rollback.IMMEDIATE:
        found.append(
            "spec.replication.rollback: Immediate is unsafe under failover: a record told rolled back may be read "
            "later after all")
    if (replication.synchro_zones or 0) > max(1, len(zones)):  # one member is one zone, named or not
        found.append(
            f"spec.replication.synchroZones: asks for {replication.synchro_zones} zones, the nodes that are up stand "
            f"in {len(zones)}: quorum appends are not confirmed until there are more")
    return found
