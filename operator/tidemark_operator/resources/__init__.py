"""The custom resources as typed models: the one source of the CRDs, of the API reference and of what is accepted.

Rooms: `base` (strict models, rules over several fields, scalars), `cluster`, `loggroup`, `keyspace`, `shard`,
`reconfiguration` (one kind each) and their parts `nodepool`, `policies`, `cluster_status`, `reconfiguration_status`,
`kinds` (the table of the kinds), `conditions`, `events`, `labels` (closed lists), `manifests` (text to resources,
updates that are allowed), `openapi` (resources to CRDs).
Stays out: what to do about a resource, and every API of Kubernetes.
"""

from .base import API_VERSION, ConditionStatus, ObjectMeta, ObjectRef, Resource, quantity_bytes
from .cluster import ClusterSpec, TidemarkCluster
from .cluster_status import ClusterStatus
from .keyspace import Keyspace, KeyspaceSpec, KeyspaceStatus
from .kinds import KINDS
from .loggroup import LogGroup, LogGroupSpec, LogGroupStatus
from .manifests import InvalidManifest, Problem, check_update, load_manifests, load_resource
from .reconfiguration import Reconfiguration, ReconfigurationSpec, ReconfigurationType
from .reconfiguration_status import ReconfigurationStatus
from .shard import Shard, ShardSpec, ShardStatus

__all__ = [
    "API_VERSION",
    "KINDS",
    "ClusterSpec",
    "ClusterStatus",
    "ConditionStatus",
    "InvalidManifest",
    "Keyspace",
    "KeyspaceSpec",
    "KeyspaceStatus",
    "LogGroup",
    "LogGroupSpec",
    "LogGroupStatus",
    "ObjectMeta",
    "ObjectRef",
    "Problem",
    "Reconfiguration",
    "ReconfigurationSpec",
    "ReconfigurationStatus",
    "ReconfigurationType",
    "Resource",
    "Shard",
    "ShardSpec",
    "ShardStatus",
    "TidemarkCluster",
    "check_update",
    "load_manifests",
    "load_resource",
    "quantity_bytes",
]
