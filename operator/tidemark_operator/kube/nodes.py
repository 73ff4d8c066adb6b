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
from ..node_records import location_of
from ..service import OperatorService
from ..status import node_number
from .builders import NODE_PORT, NodeView, Object

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


def learn_addresses(service: OperatorService, pods: Iterable[Object]) -> list[NodeRecord]:
    """Link to nodes where their pods are; return the records that etcd does not have like this."""
    moved = []
    for pod in pods:
        record, address = service.mirror.nodes.get(pod["metadata"]["name"]), address_of(pod)
        if record is not None and record.life is not NodeLife.REMOVED and address and record.address != address:
            found = replace(record, address=address)
            link = service.links.get(record.node)
            if link is None or link.record.address != address:
                log.info("%s is at %s", record.node, address)
                service.links.set_node(found)
            moved.append(found)
    return moved


def node_views(service: OperatorService) -> list[NodeView]:
    """Return the nodes that have a record, by number."""
    seen = service.nodes()
    views = [
        NodeView(
            record.node, node_number(record.node), record.pool, record.zone, record.location,
            str(member.incarnation) if (node := seen.get(record.node)) and (member := node.member) else "",
            removed=record.life is NodeLife.REMOVED)
        for record in service.mirror.nodes.values()
    ]
    return sorted(views, key=lambda view: view.number)
