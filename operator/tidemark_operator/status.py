"""The status of objects, computed from records, nodes and groups whenever somebody asks.

Pure but for the memory of when a condition last changed (`ConditionMemory`).
Stays out: storing anything; the status of a Reconfiguration (`reconfiguration_run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import Phase, ShardRecord, Status

from .metadata import StoredObject
from .model import Group, Node, Shard, out_of_sync, zones_of
from .plan import distinct_domains
from .resources import API_VERSION
from .shardmap import hash_range

NAMES_SHOWN_MAX = 3

Condition = tuple[str, bool | None, str, str]
"""Type, status (None: Unknown), reason, message."""


class ConditionMemory:
    """Remembers since when each condition of each object has its status."""

    def __init__(self, now: Callable[[], str] | None = None) -> None:
        self._now = now or timestamp
        self._since: dict[tuple[str, str, str], tuple[str, str]] = {}

    def write(self, kind: str, name: str, generation: int, conditions: Iterable[Condition]) -> list[
            dict[str, Any]]:
        """Return conditions as objects; `lastTransitionTime` moves only when the status moves."""
        written = []
        for type_, value, reason, message in conditions:
            status = "Unknown" if value is None else str(value)
            known = self._since.get((kind, name, type_))
            if known is None or known[0] != status:
                known = self._since[kind, name, type_] = (status, self._now())
            written.append({
                "type": type_, "status": status, "reason": reason, "message": message,
                "observedGeneration": generation, "lastTransitionTime": known[1],
            })
        return written

    def forget(self, kind: str, name: str) -> None:
        for key in [key for key in self._since if key[:2] == (kind, name)]:
            del self._since[key]


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def some(names: Iterable[str]) -> str:
    """Name at most three examples and count the rest."""
    listed = list(names)
    rest = len(listed) - NAMES_SHOWN_MAX
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def with_status(stored: StoredObject, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole object as it is shown."""
    metadata = {
        **stored.manifest["metadata"],
        "uid": stored.uid, "generation": stored.generation, "creationTimestamp": stored.created,
    }
    return {**stored.manifest, "metadata": metadata, "status": dict(status)}


def electing(record: ShardRecord) -> bool:
    return record.status is Status.ELECTION


def leaderless(shard: Shard, record: ShardRecord, nodes: Mapping[str, Node]) -> bool:
    """Nobody serves it: no leader is recorded, or the recorded one is not up with that disk."""
    leader = nodes.get(record.leader.node) if record.leader else None
    return electing(record) or leader is None or not leader.up or leader.member != record.leader


def unconfirmed(shard: Shard, group: Group, nodes: Mapping[str, Node]) -> tuple[str, str] | None:
    """Return the reason why quorum appends to a shard are not confirmed, and who or what is missing; None: they are.

    This looks at who is up with the disk the record names; whether a log has caught up is for its leader to say.
    """
    behind = out_of_sync(shard, nodes)
    there = [nodes[name] for name in shard.ensemble if name not in behind]
    quorum, zones = group.quorum(len(shard.ensemble)), zones_of(there)
    if len(there) < quorum:
        return "NotEnoughMembers", f"{shard.name} needs {quorum} members, {len(there)} are there"
    if group.synchro_zones > max(1, len(zones)):  # one member is one zone, named or not
        return "NotEnoughZones", f"{shard.name} needs members in {group.synchro_zones} zones, they are in {len(zones)}"
    return None


# --- Shard --------------------------------------------------------------------------------------------------


def shard_object(
    shard: Shard, record: ShardRecord, revision: int, group: Group, nodes: Mapping[str, Node],
    memory: ConditionMemory, reconfiguration: str = "",
) -> dict[str, Any]:
    """Return the Shard object: a projection of its record."""
    behind = set(out_of_sync(shard, nodes))
    change = record.change
    members = []
    for member in record.ensemble:
        mark, role = "", "Follower"
        if change is not None and member == change.old:
            mark, role = "-", "Leaving"
        elif member == record.leader:
            mark, role = "*", "Leader"
        sync = "InSync" if member.node not in behind else "Unreachable"
        members.append((member.node + mark, role, sync, member))
    if change is not None and change.new is not None and change.new not in record.ensemble:
        members.append((change.new.node + "+", "Joining", "CatchingUp", change.new))
    without_leader = leaderless(shard, record, nodes)
    lacking = unconfirmed(shard, group, nodes)
    low, high = hash_range(shard.index, group.shards)
    state = {Status.STEADY: "Steady", Status.ELECTION: "Electing", Status.RECONFIGURATION: "Reconfiguring"}
    conditions: list[Condition] = [
        ("Available", not without_leader, "Electing" if without_leader else "LeaderElected", ""),
        ("FullyReplicated", not behind, "CopyUnreachable" if behind else "AllCopiesInSync", some(sorted(behind))),
        ("QuorumReachable", lacking is None, *(lacking or ("QuorumAvailable", ""))),
    ]
    status: dict[str, Any] = {
        "metadataRevision": revision,
        "state": state[record.status],
        "epoch": record.epoch,
        "electionID": record.election,
        "synchroQuorum": group.quorum(len(record.ensemble)),
        "leader": record.leader.node if record.leader else "",
        "ensemble": [
            {"node": member.node, "zone": nodes[member.node].zone if member.node in nodes else "",
             "role": role, "sync": sync}
            for _mark, role, sync, member in members
        ],
        "removedNodes": [member.node for member in record.removed],
        "inSync": f"{len(record.ensemble) - len(behind)}/{len(record.ensemble)}",
        "members": ",".join(mark for mark, _role, _sync, _member in members),
        "conditions": memory.write("Shard", shard.name, 0, conditions),
    }
    if change is not None:
        status["operation"] = {
            "reconfiguration": reconfiguration,
            "type": change.operation.title(),
            "phase": "Prepare" if change.phase is Phase.PREPARE else "Commit",
            "oldNode": change.old.node if change.old else "",
            "newNode": change.new.node if change.new else "",
            "epoch": record.epoch,
        }
    return {
        "apiVersion": API_VERSION,
        "kind": "Shard",
        "metadata": {
            "name": shard.name,
            "labels": {
                "tidemark.dev/cluster": group.cluster,
                "tidemark.dev/log-group": group.name,
                "tidemark.dev/shard-id": str(shard.index),
            },
        },
        "spec": {
            "clusterRef": {"name": group.cluster},
            "logGroupRef": {"name": group.name},
            "shardID": shard.index,
            "hashRange": {"min": low, "max": high},
        },
        "status": status,
    }


# --- LogGroup -----------------------------------------------------------------------------------------------


def group_status(
    group: Group, generation: int, shards: Mapping[ShardId, Shard], records: Mapping[ShardId, ShardRecord],
    nodes: Mapping[str, Node], revision: int, memory: ConditionMemory, trouble: tuple[str, str] | None,
) -> dict[str, Any]:
    """`trouble` is a reason and a message when the shards could not be created."""
    present = [shard for shard_id in group.shard_ids() if (shard := shards.get(shard_id)) is not None]
    without_leader = [shard for shard in present if leaderless(shard, records[shard.shard], nodes)]
    under = [shard for shard in present if out_of_sync(shard, nodes)]
    changing = [shard for shard in present if records[shard.shard].status is Status.RECONFIGURATION]
    lacking = [found for shard in present if (found := unconfirmed(shard, group, nodes)) is not None]
    factors = [len(shard.ensemble) for shard in present] or [0]
    online = len(present) - len(without_leader)
    complete = len(present) == group.shards
    zones = {node.zone for node in nodes.values() if node.zone}
    crowded = [
        shard for shard in present
        if group.spread_zones and zones and distinct_domains(shard.ensemble, nodes) < len(shard.ensemble)
    ]
    ready: Condition
    if trouble is not None:
        ready = ("Ready", False, "Stalled", trouble[1])
    elif not complete:
        ready = ("Ready", False, "CreatingShards", f"{len(present)} of {group.shards} shards exist.")
    elif without_leader:
        names = some(shard.name for shard in without_leader)
        ready = ("Ready", False, "ShardsNotOnline", f"{names} have no leader.")
    elif changing and set(factors) != {group.factor}:
        ready = ("Ready", False, "FactorChangeInProgress", f"{min(factors)} to {max(factors)} copies.")
    elif set(factors) != {group.factor}:
        ready = ("Ready", False, "FactorChangePending",
                 f"declared {group.factor}, in force {min(factors)} to {max(factors)}.")
    else:
        ready = ("Ready", True, "AllShardsOnline", f"{online} of {group.shards} shards are online.")
    copies = Counter(node for shard in present for node in shard.ensemble)
    leaders = Counter(shard.leader for shard in present if shard.leader)
    conditions: list[Condition] = [
        ready,
        ("Available", complete and not without_leader,
         "LeadersElected" if complete and not without_leader else "ShardsLeaderless",
         some(shard.name for shard in without_leader)),
        ("FullyReplicated", complete and not under,
         "AllCopiesInSync" if complete and not under else "CopiesMissing", some(shard.name for shard in under)),
        ("QuorumReachable", complete and not lacking,
         lacking[0][0] if lacking else "QuorumAvailable" if complete else "CreatingShards",
         some(message for _reason, message in lacking)),
        ("PlacementSatisfied", complete and not crowded,
         "DomainsDistinct" if complete and not crowded else
         trouble[0] if trouble else "NotEnoughDomains", some(shard.name for shard in crowded)),
        ("Reconciling", not ready[1], ready[2] if not ready[1] else "Reconciled", ""),
        ("Stalled", trouble is not None, trouble[0] if trouble else "Reconciled", trouble[1] if trouble else ""),
    ]
    return {
        "observedGeneration": generation,
        "groupID": group.group_id,
        "metadataRevision": revision,
        "shards": {
            "desired": group.shards,
            "online": online,
            "electing": sum(electing(records[shard.shard]) for shard in present),
            "leaderless": len(without_leader),
            "underReplicated": len(under),
            "reconfiguring": len(changing),
        },
        "onlineShards": f"{online}/{group.shards}",
        "quorum": f"{group.quorum(max(factors))}/{max(factors)}" if present else "",
        "factorInForce": {"min": min(factors), "max": max(factors)},
        "leadersByNode": [
            {"node": node, "leaders": leaders[node], "replicas": copies[node]} for node in sorted(copies)
        ],
        "conditions": memory.write("LogGroup", group.name, generation, conditions),
    }


# --- TidemarkCluster ----------------------------------------------------------------------------------------


def cluster_status(
    stored: StoredObject, shards: Mapping[ShardId, Shard], records: Mapping[ShardId, ShardRecord],
    nodes: Mapping[str, Node], memory: ConditionMemory, *, key_prefix: str, etcd_trouble: str,
    endpoints: int, active_reconfiguration: str, last_node_id: int, version: str, waiting: int,
) -> dict[str, Any]:
    """`etcd_trouble` is empty while etcd answers; `waiting` counts the shards whose elections wait for it."""
    desired = sum(pool["replicas"] for pool in stored.spec["nodePools"])
    copies = Counter(node for shard in shards.values() for node in shard.ensemble)
    leaders = Counter(shard.leader for shard in shards.values() if shard.leader)
    stale = {
        member.node for shard in shards.values() for member in shard.members
        if (node := nodes.get(member.node)) is not None and node.up and node.member != member
    }
    up = [node for node in nodes.values() if node.up]
    down = sorted(node.node for node in nodes.values() if not node.up)
    without_leader = [s for s in shards.values() if leaderless(s, records[s.shard], nodes)]
    under = [shard for shard in shards.values() if out_of_sync(shard, nodes)]
    missing = len(up) < desired or bool(down)
    ready: Condition = (
        ("Ready", False, "NodesNotReady", f"{len(up)} of {desired} nodes are ready: {some(down)} down."
         if down else f"{len(up)} of {desired} nodes are ready.")
        if missing else ("Ready", True, "Reconciled", f"{len(up)} of {desired} nodes are ready.")
    )
    available: Condition
    if not shards:
        available = ("Available", bool(up), "NothingHosted" if up else "NoNodes", "")
    elif without_leader:
        wait = f"; {waiting} elections wait for etcd" if waiting and etcd_trouble else ""
        names = some(shard.name for shard in without_leader)
        available = ("Available", False, "ShardsLeaderless", f"{names} have no leader{wait}.")
    else:
        available = ("Available", True, "QuorumsAvailable", "Every shard has a leader.")
    conditions: list[Condition] = [
        ready,
        available,
        ("FullyReplicated", not under,
         ("NodeReseeding" if stale else "CopiesMissing") if under else "AllCopiesInSync",
         some(shard.name for shard in under)),
        ("MetadataStoreReachable", not etcd_trouble,
         "ConnectionFailed" if etcd_trouble else "Connected",
         f"Elections and changes wait for etcd: {etcd_trouble}" if etcd_trouble else f"{endpoints} endpoints."),
        ("Reconciling", missing, ready[2] if missing else "Reconciled", ""),
        ("Stalled", False, "Progressing" if missing else "Reconciled", ""),
    ]
    unmet = _security_not_in_force(stored.spec)
    conditions.append((
        "CertificatesValid", not unmet, "IssuerNotReady" if unmet else "Disabled",
        f"Not in force in a local cluster, which is insecure: {', '.join(unmet)}." if unmet else ""))
    zones = sorted({node.zone for node in nodes.values() if node.zone})
    return {
        "observedGeneration": stored.generation,
        "clusterID": stored.uid,
        "keyPrefix": key_prefix,
        "version": version,
        "lastNodeID": last_node_id,
        "nodeSummary": {
            "desired": desired, "current": len(nodes), "ready": len(up), "updated": len(up),
            "draining": sum(node.draining for node in nodes.values()), "lost": 0,
        },
        "readyNodes": f"{len(up)}/{desired}",
        "nodes": [
            {
                "name": node.node,
                "nodeID": node_number(node.node),
                "pool": node.pool,
                "zone": node.zone,
                "location": node.location,
                "address": node.address,
                "incarnation": node.member.incarnation if node.member else "",
                "state": node_state(node, stale),
                "ready": node.up,
                "leaders": leaders[node.node],
                "replicas": copies[node.node],
                "message": node.reason,
            }
            for node in sorted(nodes.values(), key=lambda node: (node_number(node.node), node.node))
        ],
        "zones": [
            {"name": zone, "nodes": sum(node.zone == zone for node in nodes.values()),
             "ready": sum(node.zone == zone for node in up)}
            for zone in zones
        ],
        "activeReconfiguration": active_reconfiguration,
        "operatorVersion": version,
        "conditions": memory.write("TidemarkCluster", stored.name, stored.generation, conditions),
    }


def _security_not_in_force(spec: Mapping[str, Any]) -> list[str]:
    """Return what a manifest asks for that needs Kubernetes: certificates to issue, secrets to read."""
    mode = (spec.get("security") or {}).get("tls", {}).get("mode", "Disabled")
    asked = [f"security.tls.mode {mode}"] if mode != "Disabled" else []
    secrets = ("tlsSecretRef", "credentialsSecretRef")
    return asked + [f"metadataStore.etcd.{field}" for field in secrets if field in spec["metadataStore"]["etcd"]]


def node_state(node: Node, reseeding: Iterable[str]) -> str:
    if not node.up:
        return "Restarting" if node.member else "Joining"
    if node.node in set(reseeding):
        return "Reseeding"
    return "Draining" if node.draining else "Active"


def node_number(node: str) -> int:
    """Return the number at the end of a node's name, 0 when there is none."""
    tail = node.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0
