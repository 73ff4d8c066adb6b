"""The manifests of a local cluster: what is given, and the TidemarkCluster that is made where none is.

Stays out: applying them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from .local_state import LocalRuntimeError, State
from .resources import (
    API_VERSION,
    InvalidManifest,
    LogGroup,
    Reconfiguration,
    Resource,
    TidemarkCluster,
    load_manifests,
    quantity_bytes,
)

DEV_DETECTION = {
    "probeIntervalMilliseconds": 100, "probeTimeoutMilliseconds": 200, "failureThreshold": 2,
}
"""What `up` without a cluster manifest uses: a silent node is down after about 200 ms, a dead one at once."""


def read_manifests(text: str) -> list[Resource]:
    if not text.strip():
        return []
    try:
        return load_manifests(text, "manifest")
    except InvalidManifest as error:
        raise LocalRuntimeError(str(error), "Fix the field named above.") from error


def cluster_manifest(
    resources: list[Resource], nodes: int | None, state: State | None, cluster: str
) -> dict[str, Any]:
    """Return the TidemarkCluster of the manifests, or the default one."""
    clusters = [resource for resource in resources if isinstance(resource, TidemarkCluster)]
    if len(clusters) > 1:
        raise LocalRuntimeError(
            "the manifests name two TidemarkClusters", "A local directory holds one cluster; use two.")
    name = clusters[0].name if clusters else state.cluster if state else _referenced(resources) or cluster
    for resource in resources:
        if isinstance(resource, LogGroup | Reconfiguration) and resource.spec.cluster_ref.name != name:
            raise LocalRuntimeError(
                f"{resource.kind} {resource.name}: spec.clusterRef.name is "
                f"{resource.spec.cluster_ref.name!r}, the cluster is {name!r}", "Make the two names the same.")
    if clusters:
        manifest = clusters[0].manifest()
        if nodes is not None and sum(pool["replicas"] for pool in manifest["spec"]["nodePools"]) != nodes:
            raise LocalRuntimeError(
                f"--nodes {nodes} and the nodePools of TidemarkCluster {name} disagree", "Give one of the two.")
        return manifest
    return {
        "apiVersion": API_VERSION,
        "kind": "TidemarkCluster",
        "metadata": {"name": name},
        "spec": {
            "version": version("tidemark"),
            "metadataStore": {"etcd": {"endpoints": ["http://127.0.0.1:2379"]}},
            "nodePools": [{
                "name": "default", "replicas": nodes or (len(state.nodes) if state else 0) or 3,
                "storage": {"data": {"size": "10Gi"}},
            }],
            "failureDetection": DEV_DETECTION,
            "security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"},
        },
    }


def _referenced(resources: list[Resource]) -> str:
    """Return the cluster that the manifests speak of without bringing it along."""
    names = {
        resource.spec.cluster_ref.name for resource in resources
        if isinstance(resource, LogGroup | Reconfiguration)
    }
    return names.pop() if len(names) == 1 else ""


def zones_of(pools: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(zone for pool in pools for zone in pool.get("zones") or ()))


def deal_zones(names: list[str], zones: Sequence[str], already: int) -> dict[str, str]:
    return {
        name: zones[(already + index) % len(zones)] if zones else "" for index, name in enumerate(names)
    }


def snapshot_rate(cluster: dict[str, Any]) -> int:
    """Return how many bytes of snapshots a second each node may send, as the cluster's throttle says."""
    throttle = (cluster["spec"].get("reconfiguration") or {}).get("throttle") or {}
    return max(1, quantity_bytes(throttle.get("bytesPerSecondPerNode") or "100Mi"))
