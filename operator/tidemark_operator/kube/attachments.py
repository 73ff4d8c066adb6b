"""What stands around the nodes of a cluster where it is wanted: a NetworkPolicy, a PodMonitor.

Pure, like `builders`.  Stays out: when they are made and taken away (`podkeeper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .api import MONITORS, NETWORK_POLICIES
from .builders import HTTP_PORT, NODE_PORT, Cluster, Object, metadata_of, nodes_name, selector

ANY_POD: Object = {"namespaceSelector": {}}
OPERATORS: Object = {**ANY_POD, "podSelector": {"matchLabels": {
    "app.kubernetes.io/name": "tidemark", "app.kubernetes.io/component": "operator"}}}
"""The pods of the chart's Deployment, in whichever namespace."""


def network_policy(cluster: Cluster) -> Object | None:
    """Return the policy that says who reaches a node; None where that is left to others.

    Nodes, clients and the operator come by one port.  Where they show certificates, pods of every namespace reach it;
    without certificates, those of the cluster's namespace and the operator.  `clientNetworks` reach it too.
    """
    security = cluster.spec.get("security") or {}
    if not _managed(security.get("networkPolicy", "Managed")):
        return None
    known = security.get("clientAuth", "MutualTLS") == "MutualTLS"
    pods: list[Object] = [ANY_POD] if known else [{"podSelector": {}}, OPERATORS]
    networks = [{"ipBlock": {"cidr": network}} for network in security.get("clientNetworks") or ()]
    return {
        "apiVersion": NETWORK_POLICIES.api_version, "kind": NETWORK_POLICIES.kind,
        "metadata": metadata_of(cluster, nodes_name(cluster.name)),
        "spec": {
            "podSelector": {"matchLabels": selector(cluster)}, "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [_port(NODE_PORT)], "from": [*pods, *networks]},
                {"ports": [_port(HTTP_PORT)], "from": [ANY_POD]}]},
    }


def pod_monitor(cluster: Cluster) -> Object | None:
    """How a Prometheus operator finds the nodes; None where nobody asked for it."""
    wanted: Mapping[str, Any] = cluster.spec.get("monitoring") or {}
    if not _managed(wanted.get("podMonitor", "None")):
        return None
    metadata = metadata_of(cluster, nodes_name(cluster.name))
    metadata["labels"] = {**(wanted.get("labels") or {}), **metadata["labels"]}
    name_of_cluster = {"action": "replace", "targetLabel": "cluster", "replacement": cluster.name}
    return {
        "apiVersion": MONITORS.api_version, "kind": MONITORS.kind, "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": selector(cluster)},
            "podMetricsEndpoints": [{
                "port": "http", "path": "/metrics", "interval": f"{wanted.get('scrapeIntervalSeconds', 30)}s",
                "relabelings": [name_of_cluster]}]},
    }


def _managed(value: str) -> bool:
    return value == "Managed"


def _port(number: int) -> Object:
    return {"port": number, "protocol": "TCP"}
