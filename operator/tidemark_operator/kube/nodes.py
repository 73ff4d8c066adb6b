"""Nodes of a cluster on Kubernetes: how many there are, who they are, where they answer.

A node's number comes from a counter in etcd and its record is written in the same transaction, so that two operators
never make one node each.  Where it answers is its pod's address, told at once and kept in etcd for other operators.
Stays out: pods (`podkeeper`), linking to nodes (`nodes`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark_core.delivery.location import Location

from ..etcd import Conflict, Saved, StoreUnavailable, Write
from ..metadata import NODE_IDS, NodeRecord
from ..service import OperatorService
from ..status import node_number
from .builders import NODE_PORT, NodeView, Object

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5


def missing_nodes(pools: Sequence[Mapping[str, Any]], records: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Return records, still without a name, of the nodes that pools lack; each zone of a pool gets as many.

    Nodes that stand somewhere stay there, and nodes beyond what is asked for stay too.
    """
    known = list(records)
    made = []
    for pool in pools:
        there = [record for record in known if record.pool == pool["name"]]
        zones = pool.get("zones") or [""]
        load = Counter(record.zone for record in there)
        for _ in range(pool["replicas"] - len(there)):
            zone = min(zones, key=lambda name: (load[name], zones.index(name)))
            load[zone] += 1
            made.append(NodeRecord("", "", zone, pool["name"], _location(pool, zone)))
    return made


def _location(pool: Mapping[str, Any], zone: str) -> str:
    beside = {scope: label for scope, label in (pool.get("location") or {}).items() if label}
    return str(Location(**{**beside, "zone": zone}))


async def make_missing(service: OperatorService, pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the records of nodes that pools lack and return their names.  Raises StoreUnavailable."""
    store, keys = service.store, service.keys
    for _attempt in range(ATTEMPTS_MAX):
        counter = await store.get(keys.counter(NODE_IDS))
        seen = await store.load(f"{keys.prefix}/nodes/")  # behind the counter: whoever adds nodes meanwhile raises it
        made = missing_nodes(pools, [NodeRecord.decode(item.value) for item in seen.items.values()])
        if not made:
            return []
        first = int(counter.value) if counter else 1
        named = [replace(record, node=f"{service.cluster}-{first + index}") for index, record in enumerate(made)]
        writes = [
            Write(keys.counter(NODE_IDS), str(first + len(named)).encode(), counter.revision if counter else 0),
            *(Write(keys.node(record.node), record.encode(), 0) for record in named),
        ]
        match await store.transact(writes):
            case Saved(revision):
                for write in writes:
                    service.mirror.learn(write.key, write.value, revision)
                return [record.node for record in named]
            case Conflict():
                continue
            case outcome:
                raise StoreUnavailable(outcome.message)
    raise StoreUnavailable("the counter of nodes is contended")


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
        if record is not None and address and record.address != address:
            found = replace(record, address=address)
            link = service.links.get(record.node)
            if link is None or link.record.address != address:
                log.info("%s is at %s", record.node, address)
                service.links.set_node(found)
            moved.append(found)
    return moved


async def save(service: OperatorService, records: Iterable[NodeRecord]) -> None:
    """Keep records in etcd, unless somebody else was faster.  Raises StoreUnavailable."""
    for record in records:
        key = service.keys.node(record.node)
        item = await service.store.get(key)
        if item is None or item.value == record.encode():
            continue
        match await service.store.put(key, record.encode(), expected=item.revision):
            case Saved(revision):
                service.mirror.learn(key, record.encode(), revision)
            case Conflict():
                continue
            case outcome:
                raise StoreUnavailable(outcome.message)


def node_views(service: OperatorService) -> list[NodeView]:
    """Return the nodes that should exist, by number."""
    seen = service.nodes()
    views = [
        NodeView(
            record.node, node_number(record.node), record.pool, record.zone, record.location,
            str(member.incarnation) if (node := seen.get(record.node)) and (member := node.member) else "")
        for record in service.mirror.nodes.values()
    ]
    return sorted(views, key=lambda view: view.number)
