"""The manifests of a local cluster: what is given, and the TidemarkCluster that is made where none is.

Stays out: applying them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tidemark_core.delivery.location import InvalidLocation, Location, parse_location
from tidemark_wire.version import VERSION

from .local_state import LocalRuntimeError, State
from .resources import (
    API_VERSION,
    InvalidManifest,
    Resource,
    TidemarkCluster,
    load_manifests,
    quantity_bytes,
)

DEV_DETECTION = {
    "probeIntervalMilliseconds": 100, "probeTimeoutMilliseconds": 200, "failureThreshold": 2,
}
"""What `up` without a cluster manifest uses: a paused process is down after about 750 ms, a dead one at once."""


def read_manifests(text: str) -> list[Resource]:
    if not text.strip():
        return []
    try:
        return load_manifests(text, "manifest")
    except InvalidManifest as error:
        raise LocalRuntimeError(str(error), "Fix the field named above.") from error


def cluster_manifest(
    resources: list[Resource], nodes: int | None, state: State | None, cluster: str, *, tls: bool = False
) -> dict[str, Any]:
    """Return the TidemarkCluster of the manifests, or the default one."""
    clusters = [resource for resource in resources if isinstance(resource, TidemarkCluster)]
    if len(clusters) > 1:
        raise LocalRuntimeError(
            "the manifests name two TidemarkClusters", "A local directory holds one cluster; use two.")
    name = clusters[0].name if clusters else state.cluster if state else _referenced(resources) or cluster
    for resource in resources:
        if resource.cluster != name:
            raise LocalRuntimeError(
                f"{resource.kind} {resource.name}: spec.clusterRef.name is "
                f"{resource.cluster!r}, the cluster is {name!r}", "Make the two names the same.")
    if clusters:
        manifest = clusters[0].as_written()
        if nodes is not None and sum(pool["replicas"] for pool in manifest["spec"]["nodePools"]) != nodes:
            raise LocalRuntimeError(
                f"--nodes {nodes} and the nodePools of TidemarkCluster {name} disagree", "Give one of the two.")
        return manifest
    return {
        "apiVersion": API_VERSION,
        "kind": "TidemarkCluster",
        "metadata": {"name": name},
        "spec": {
            "version": VERSION,
            "metadataStore": {"etcd": {"endpoints": ["http://127.0.0.1:2379"]}},
            "nodePools": [{
                "name": "default", "replicas": nodes or (len(state.nodes) if state else 0) or 3,
                "storage": {"data": {"size": "10Gi"}},
            }],
            "failureDetection": DEV_DETECTION,
            "security": (
                {"tls": {"mode": "Managed"}, "clientAuth": "MutualTLS"} if tls
                else {"tls": {"mode": "Disabled"}, "clientAuth": "None"}),
        },
    }


def check_unchanged(directory: Path, state: State, nodes: int | None, locations: Sequence[str]) -> None:
    """Raise LocalRuntimeError where a cluster that has its nodes is to have other ones: `up` attaches to those."""
    if not state.nodes:
        return
    here = f"{directory} holds the cluster {state.cluster!r}"
    if nodes is not None and nodes != len(state.nodes):
        raise LocalRuntimeError(
            f"{here} with {len(state.nodes)} nodes, not {nodes}",
            "Leave --nodes away; `tidemark dev add-node` adds one, `tidemark dev down --wipe` ends the cluster.")
    stand = [node.location for node in state.nodes.values()]
    if locations and sorted(_parsed(_in_turn(locations, len(stand)))) != sorted(stand):
        raise LocalRuntimeError(
            f"{here}, whose nodes stand in {' '.join(sorted(set(stand)))}".rstrip() + ", and no node moves",
            "Leave --zone and --location away; `tidemark dev add-node --zone` adds a node elsewhere.")


def _referenced(resources: list[Resource]) -> str:
    """Return the cluster that the manifests speak of without bringing it along."""
    names = {resource.cluster for resource in resources if not isinstance(resource, TidemarkCluster)}
    return names.pop() if len(names) == 1 else ""


def places(pools: list[dict[str, Any]], given: Sequence[str]) -> list[str]:
    """Return where each node of the pools is to stand: at the given locations in turn, else as its pool says.

    Raises LocalRuntimeError where a text is no location.
    """
    if given:
        found = _in_turn(given, sum(pool["replicas"] for pool in pools))
    else:
        found = [place for pool in pools for place in _in_turn(_stands_of(pool), pool["replicas"])]
    return _parsed(found)


def _parsed(texts: Iterable[str]) -> list[str]:
    try:
        return [str(parse_location(text)) for text in texts]
    except InvalidLocation as error:
        raise LocalRuntimeError(str(error), "Write it as in region=eu,zone=a,rack=r1.") from error


def _in_turn(stands: Sequence[str], count: int) -> list[str]:
    return [stands[index % len(stands)] for index in range(count)]


def _stands_of(pool: dict[str, Any]) -> list[str]:
    beside = {scope: label for scope, label in (pool.get("location") or {}).items() if label}
    return [str(Location(**{**beside, "zone": zone})) for zone in pool.get("zones") or ("",)]


def deal(names: Sequence[str], wanted: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """Return where each new node stands: at what is wanted and no node has taken yet."""
    left = list(wanted)
    for place in taken:
        if place in left:
            left.remove(place)
    return dict(zip(names, left, strict=False))


def snapshot_rate(cluster: dict[str, Any]) -> int:
    """Return how many bytes of snapshots a second each node may send, as the cluster's throttle says."""
    throttle = (cluster["spec"].get("reconfiguration") or {}).get("throttle") or {}
    return max(1, quantity_bytes(throttle.get("bytesPerSecondPerNode") or "100Mi"))
