"""Nodes of a cluster on Kubernetes: how many there are, who they are, where they answer.

Where a node answers is its pod's address, told at once and kept in etcd for other operators.
Stays out: pods (`podkeeper`), which nodes go (`lives`), linking to nodes (`nodes`), writing records (`node_records`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..metadata import NodeLife, NodeRecord
from ..model import node_number
from ..node_records import location_of
from ..service import OperatorService
from .builders import NODE_PORT, Cluster, NodeView, Object

log = logging.getLogger(__name__)


def missing_nodes(pools: Sequence[Mapping[str, Any]], records: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Return records, still without a name, of the nodes that pools lack; each zone of a pool gets as many.

    Nodes that stand somewhere stay there, and nodes beyond what is asked for stay too.  One that leaves counts until it
    is removed: whatever takes its place is empty, and there is time for that.
    """
    known = list(records)
    made = []
    for pool in pools:
        there = [
            record for record in known if record.pool == pool["name"] and record.life is not NodeLife.REMOVED]
        zones = pool.get("zones") or [""]
        load = Counter(record.zone for record in there)
        for _ in range(pool["replicas"] - len(there)):
            zone = min(zones, key=lambda name: (load[name], zones.index(name)))
            load[zone] += 1
            made.append(NodeRecord("", "", zone, pool["name"], location_of(pool, zone)))
    return made


def address_of(pod: Object) -> str:
    """Return where the node in a pod answers, empty while that is not known or the pod is about to go."""
    address = pod.get("status", {}).get("podIP", "")
    if not address or "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") != "Running":
        return ""
    return f"[{address}]:{NODE_PORT}" if ":" in address else f"{address}:{NODE_PORT}"


def learn_places(
    service: OperatorService, cluster: Cluster, pods: Iterable[Object], machines: Mapping[str, Object],
) -> list[NodeRecord]:
    """Link to nodes where their pods are; return the records that etcd does not have like this."""
    moved = []
    for pod in pods:
        record, address = service.mirror.nodes.get(pod["metadata"]["name"]), address_of(pod)
        if record is None or record.life is NodeLife.REMOVED or not address:
            continue
        found = replace(placed(record, cluster, machines.get(pod["spec"].get("nodeName", ""))), address=address)
        if found != record:
            link = service.links.get(record.node)
            if link is None or link.record.address != address:
                log.info("%s is at %s", record.node, address)
                service.links.set_node(found)
            moved.append(found)
    return moved


def placed(record: NodeRecord, cluster: Cluster, machine: Object | None) -> NodeRecord:
    """Return a node as it stands on a machine, where its pool names no zones and the machine says its own."""
    pool = cluster.pool(record.pool)
    if machine is None or pool is None or not _anywhere(record, pool):
        return record
    labels = machine["metadata"].get("labels") or {}
    domain = cluster.spec.get("failureDomain") or {}
    zone = labels.get(domain.get("topologyKey", "topology.kubernetes.io/zone"), "")
    if not zone:
        return record
    region = {"region": labels["topology.kubernetes.io/region"]} if "topology.kubernetes.io/region" in labels else {}
    location = location_of({"location": {**region, **(pool.get("location") or {})}}, zone)
    return replace(record, zone=zone, location=location)


def _anywhere(record: NodeRecord, pool: Mapping[str, Any]) -> bool:
    """Say whether nobody said where a node is to be: neither its pool nor the Reconfiguration it was made for."""
    return not pool.get("zones") and not (record.made_for and record.zone)


def node_views(service: OperatorService) -> list[NodeView]:
    """Return the nodes that have a record, by number; of those that may be anywhere it is not said where they are."""
    seen, stored, views = service.nodes(), service.mirror.cluster, []
    pools = {pool["name"]: pool for pool in stored.value.spec["nodePools"]} if stored is not None else {}
    for record in service.mirror.nodes.values():
        zone, location, pool = record.zone, record.location, pools.get(record.pool)
        if pool is not None and _anywhere(record, pool):
            zone, location = "", location_of(pool, "")
        node = seen.get(record.node)
        incarnation = str(node.member.incarnation) if node is not None and node.member is not None else ""
        views.append(NodeView(
            record.node, node_number(record.node), record.pool, zone, location, incarnation,
            removed=record.life is NodeLife.REMOVED))
    return sorted(views, key=lambda view: view.number)
