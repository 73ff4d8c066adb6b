"""The status of objects, computed from records, nodes and groups whenever somebody asks.

Pure but for the memory of when a condition last changed (`ConditionMemory`).
Stays out: storing anything; the status of a Reconfiguration (`reconfiguration_run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import Phase, ShardRecord, Status

from .condition_memory import Condition, ConditionMemory, some
from .metadata import NodeLife, StoredObject
from .model import CertificatesView, Group, Node, Shard, out_of_sync, wanted_copies, zones_of
from .placement import distinct_domains
from .resources import API_VERSION
from .resources.conditions import ConditionReason as R
from .resources.conditions import ConditionType as T
from .resources.kinds import does_not_serve
from .resources.labels import Label
from .resources.shard import ShardState
from .shardmap import hash_range

TIME = "%Y-%m-%dT%H:%M:%SZ"


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


def unconfirmed(shard: Shard, group: Group, nodes: Mapping[str, Node]) -> tuple[R, str] | None:
    """Return the reason why quorum appends to a shard are not confirmed, and who or what is missing; None: they are.

    This looks at who is up with the disk the record names; whether a log has caught up is for its leader to say.
    """
    behind = out_of_sync(shard, nodes)
    there = [nodes[name] for name in shard.ensemble if name not in behind]
    quorum, zones = group.quorum(len(shard.ensemble)), zones_of(there)
    if len(there) < quorum:
        return R.NOT_ENOUGH_MEMBERS, f"{shard.name} needs {quorum} members, {len(there)} are there"
    if group.synchro_zones > max(1, len(zones)):  # one member is one zone, named or not
        return R.NOT_ENOUGH_ZONES, (
            f"{shard.name} needs members in {group.synchro_zones} zones, they are in {len(zones)}")
    return None


def crowded(shard: Shard, group: Group, nodes: Mapping[str, Node]) -> bool:
    """Two copies share a zone, though there are zones and the group wants its copies spread over them."""
    return group.spread_zones and bool(zones_of(nodes.values())) and (
        distinct_domains(shard.ensemble, nodes) < len(shard.ensemble))


def shard_state(shard: Shard, record: ShardRecord, nodes: Mapping[str, Node]) -> ShardState:
    """Return what `status.state` of a Shard says."""
    if electing(record):
        return ShardState.ELECTING
    if leaderless(shard, record, nodes):
        return ShardState.LEADERLESS
    return ShardState.RECONFIGURING if record.status is Status.RECONFIGURATION else ShardState.ONLINE


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
    conditions: list[Condition] = [
        (T.AVAILABLE, not without_leader, R.ELECTING if without_leader else R.LEADER_ELECTED, ""),
        (T.FULLY_REPLICATED, not behind, R.COPY_UNREACHABLE if behind else R.ALL_COPIES_IN_SYNC, some(sorted(behind))),
        (T.QUORUM_REACHABLE, lacking is None, *(lacking or (R.QUORUM_AVAILABLE, ""))),
    ]
    status: dict[str, Any] = {
        "metadataRevision": revision,
        "state": shard_state(shard, record, nodes),
        "epoch": record.epoch,
        "electionID": record.election,
        "synchroQuorum": group.quorum(len(record.ensemble)),
        "payloadCopies": shard.payload_copies,
        "leader": record.leader.node if record.leader else "",
        "ensemble": [
            {"node": member.node, "zone": nodes[member.node].zone if member.node in nodes else "",
             "role": role, "sync": sync}
            for _mark, role, sync, member in members
        ],
        "removedNodes": [member.node for member in record.removed],
        "inSync": f"{len(record.ensemble) - len(behind)}/{len(record.ensemble)}",
        "members": ",".join(mark for mark, _role, _sync, _member in members),
        "conditions": memory.write("Shard", shard.name, None, conditions),
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
                Label.CLUSTER: group.cluster,
                Label.LOG_GROUP: group.name,
                Label.SHARD_ID: str(shard.index),
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
    nodes: Mapping[str, Node], revision: int, memory: ConditionMemory, trouble: tuple[R, str] | None,
    copies_trouble: Mapping[ShardId, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """`trouble` is a reason and a message when the shards could not be created.

    `copies_trouble` says of shards why they do not keep the declared payload copies yet.
    """
    present = [shard for shard_id in group.shard_ids() if (shard := shards.get(shard_id)) is not None]
    without_leader = [shard for shard in present if leaderless(shard, records[shard.shard], nodes)]
    under = [shard for shard in present if out_of_sync(shard, nodes)]
    changing = [shard for shard in present if records[shard.shard].status is Status.RECONFIGURATION]
    lacking = [found for shard in present if (found := unconfirmed(shard, group, nodes)) is not None]
    factors = [len(shard.ensemble) for shard in present] or [0]
    payloads = [shard.payload_copies for shard in present] or [0]
    uneven = [shard for shard in present if wanted_copies(shard, group) is not None]
    online = len(present) - len(without_leader)
    complete = len(present) == group.shards
    close = [shard for shard in present if crowded(shard, group, nodes)]
    placed: Condition = (
        (T.PLACEMENT_SATISFIED, False, *trouble) if trouble is not None
        else (T.PLACEMENT_SATISFIED, False, R.NOT_ENOUGH_DOMAINS,
              f"{some(shard.name for shard in close)}: two copies share a zone, of {len(zones_of(nodes.values()))}.")
        if close else (T.PLACEMENT_SATISFIED, complete, R.DOMAINS_DISTINCT if complete else R.CREATING_SHARDS, ""))
    wrong = trouble is not None and trouble[0] is R.POOL_NOT_FOUND
    ready: Condition
    if group.unserved:
        ready = (T.READY, False, R.NOT_SUPPORTED, does_not_serve(group.unserved))
    elif trouble is not None:
        ready = (T.READY, False, R.STALLED, trouble[1])
    elif not complete:
        ready = (T.READY, False, R.CREATING_SHARDS, f"{len(present)} of {group.shards} shards exist.")
    elif without_leader:
        names = some(shard.name for shard in without_leader)
        ready = (T.READY, False, R.SHARDS_NOT_ONLINE, f"{names} have no leader.")
    elif changing and set(factors) != {group.factor}:
        ready = (T.READY, False, R.FACTOR_CHANGE_IN_PROGRESS, f"{min(factors)} to {max(factors)} copies.")
    elif set(factors) != {group.factor}:
        ready = (T.READY, False, R.FACTOR_CHANGE_PENDING,
                 f"declared {group.factor}, in force {min(factors)} to {max(factors)}.")
    elif uneven:
        why = some(copies_trouble[shard.shard] for shard in uneven if shard.shard in copies_trouble)
        ready = (T.READY, False, R.PAYLOAD_COPIES_PENDING,
                 f"{len(uneven)} of {len(present)} shards do not keep {group.payload_copies or group.factor} "
                 f"payload copies yet{'; ' if why else '.'}{why}")
    else:
        ready = (T.READY, True, R.ALL_SHARDS_ONLINE, f"{online} of {group.shards} shards are online.")
    copies = Counter(node for shard in present for node in shard.ensemble)
    leaders = Counter(shard.leader for shard in present if shard.leader)
    conditions: list[Condition] = [
        ready,
        (T.AVAILABLE, complete and not without_leader,
         R.SHARDS_LEADERLESS if without_leader else R.LEADERS_ELECTED if complete else R.CREATING_SHARDS,
         some(shard.name for shard in without_leader)),
        (T.FULLY_REPLICATED, complete and not under,
         R.COPIES_MISSING if under else R.ALL_COPIES_IN_SYNC if complete else R.CREATING_SHARDS,
         some(shard.name for shard in under)),
        (T.QUORUM_REACHABLE, complete and not lacking,
         lacking[0][0] if lacking else R.QUORUM_AVAILABLE if complete else R.CREATING_SHARDS,
         some(message for _reason, message in lacking)),
        placed,
        (T.RECONCILING, not ready[1], ready[2] if not ready[1] else R.RECONCILED, ""),
        (T.STALLED, trouble is not None,
         R.INVALID_SPEC if wrong else trouble[0] if trouble else R.RECONCILED, trouble[1] if trouble else ""),
    ]
    if group.unserved:
        instead: list[Condition] = [
            (T.RECONCILING, False, R.NOT_SUPPORTED, ""), (T.STALLED, True, R.NOT_SUPPORTED, ready[3])]
        if not present:
            instead += [(T.AVAILABLE, False, R.NOT_SUPPORTED, "")]
            instead += [
                (type_, None, R.NOT_SUPPORTED, "")
                for type_ in (T.FULLY_REPLICATED, T.QUORUM_REACHABLE, T.PLACEMENT_SATISFIED)]
        by_type = {one[0]: one for one in instead}
        conditions = [by_type.get(one[0], one) for one in conditions]
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
        "payloadCopiesInForce": {"min": min(payloads), "max": max(payloads)},
        "leadersByNode": [
            {"node": node, "leaders": leaders[node], "replicas": copies[node]} for node in sorted(copies)
        ],
        "conditions": memory.write("LogGroup", group.name, generation, conditions),
    }


# --- TidemarkCluster ----------------------------------------------------------------------------------------


def cluster_status(
    stored: StoredObject, shards: Mapping[ShardId, Shard], records: Mapping[ShardId, ShardRecord],
    nodes: Mapping[str, Node], groups: Mapping[str, Group], memory: ConditionMemory, *, key_prefix: str,
    etcd_trouble: str, endpoints: int, active_reconfiguration: str, last_node_id: int, version: str, waiting: int,
    certificates: CertificatesView | None = None, unfinished: tuple[R, str] | None = None,
    behind: str = "",
) -> dict[str, Any]:
    """`etcd_trouble` is empty while etcd answers; `waiting` counts the shards whose elections wait for it.

    `unfinished` is what else of the spec is not in force yet, where all nodes are there.
    `behind` says how it was found that etcd is older than what nodes promised, empty: it is not.
    """
    desired = sum(pool["replicas"] for pool in stored.spec["nodePools"])
    copies = Counter(node for shard in shards.values() for node in shard.ensemble)
    leaders = Counter(shard.leader for shard in shards.values() if shard.leader)
    stale = {
        member.node for shard in shards.values() for member in shard.members
        if (node := nodes.get(member.node)) is not None and node.up and node.member != member
    }
    up = [node for node in nodes.values() if node.up]
    down = sorted(node.node for node in nodes.values() if not node.up and node.life is not NodeLife.REMOVED)
    without_leader = [s for s in shards.values() if leaderless(s, records[s.shard], nodes)]
    under = [shard for shard in shards.values() if out_of_sync(shard, nodes)]
    close = [shard for shard in shards.values() if crowded(shard, groups[shard.group], nodes)]
    missing = len(up) < desired or bool(down)
    spare = len(nodes) > desired
    other_version = stored.spec["version"] != version
    ready: Condition = (
        (T.READY, False, R.NODES_NOT_READY, f"{len(up)} of {desired} nodes are ready: {some(down)} down."
         if down else f"{len(up)} of {desired} nodes are ready.")
        if missing else (T.READY, False, *unfinished) if unfinished is not None
        else (T.READY, True, R.RECONCILED, f"{len(up)} of {desired} nodes are ready.")
    )
    if behind:
        ready = (T.READY, False, R.STALLED, behind)
    available: Condition
    if not shards:
        available = (T.AVAILABLE, bool(up), R.NOTHING_HOSTED if up else R.NO_NODES, "")
    elif without_leader:
        wait = f"; {waiting} elections wait for etcd" if waiting and etcd_trouble else ""
        names = some(shard.name for shard in without_leader)
        available = (T.AVAILABLE, False, R.SHARDS_LEADERLESS, f"{names} have no leader{wait}.")
    else:
        available = (T.AVAILABLE, True, R.QUORUMS_AVAILABLE, "Every shard has a leader.")
    conditions: list[Condition] = [
        ready,
        available,
        (T.FULLY_REPLICATED, not under,
         (R.NODE_RESEEDING if stale else R.COPIES_MISSING) if under else R.ALL_COPIES_IN_SYNC,
         some(shard.name for shard in under)),
        (T.METADATA_STORE_REACHABLE, False, R.METADATA_STALE, behind) if behind else
        (T.METADATA_STORE_REACHABLE, not etcd_trouble,
         R.CONNECTION_FAILED if etcd_trouble else R.CONNECTED,
         f"Elections and changes wait for etcd: {etcd_trouble}" if etcd_trouble else f"{endpoints} endpoints."),
        (T.RECONCILING, False, R.METADATA_STALE, "") if behind else
        (T.RECONCILING, not ready[1], ready[2] if not ready[1] else R.RECONCILED, ""),
        (T.STALLED, True, R.METADATA_STALE, behind) if behind else
        (T.STALLED, False, R.RECONCILED if ready[1] else R.PROGRESSING, ""),
        (T.PLACEMENT_SATISFIED, not close, R.NOT_ENOUGH_DOMAINS if close else R.DOMAINS_DISTINCT,
         some(shard.name for shard in close)),
        (T.SCALE_DOWN_BLOCKED, spare, R.NOT_SUPPORTED if spare else R.NOT_SCALING,
         f"{len(nodes)} nodes run, {desired} are asked for; this release removes none by itself." if spare else ""),
        (T.UPGRADE_BLOCKED, other_version, R.NOT_SUPPORTED if other_version else R.NOT_UPGRADING,
         f"The installed version is {version}, and a local cluster runs no other." if other_version else ""),
    ]
    conditions.append(_certificates_valid(stored.spec, certificates))
    zones = sorted({node.zone for node in nodes.values() if node.zone})
    ends = {} if certificates is None else {"certificates": {
        "caExpirationTime": f"{certificates.authority_expires:{TIME}}",
        "earliestExpirationTime": f"{certificates.earliest_expires:{TIME}}",
    }}
    return {
        **ends,
        "observedGeneration": stored.generation,
        "clusterID": stored.uid,
        "keyPrefix": key_prefix,
        "version": version,
        "lastNodeID": last_node_id,
        "nodeSummary": {
            "desired": desired, "current": len(nodes), "ready": len(up), "updated": len(up),
            "draining": sum(
                node.draining or node.yielding or node.life is NodeLife.LEAVES for node in nodes.values()), "lost": 0,
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
                "state": node_state(node, stale, copies[node.node]),
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


def _certificates_valid(spec: Mapping[str, Any], certificates: CertificatesView | None) -> Condition:
    """Say what is in force of the security that a manifest asks for."""
    unmet = _security_not_in_force(spec, certificates is not None)
    if unmet:
        what = "" if certificates is not None else ", which is insecure"
        message = f"Not in force in a local cluster{what}: {', '.join(unmet)}."
        return T.CERTIFICATES_VALID, False, R.NOT_SUPPORTED, message
    if certificates is None:
        return T.CERTIFICATES_VALID, True, R.DISABLED, ""
    reason = R(certificates.reason)
    return T.CERTIFICATES_VALID, reason is R.ISSUED, reason, certificates.trouble


def _security_not_in_force(spec: Mapping[str, Any], issued: bool) -> list[str]:
    """Return what a manifest asks for that needs Kubernetes: other issuers, secrets to read."""
    mode = (spec.get("security") or {}).get("tls", {}).get("mode", "Disabled")
    asked = [f"security.tls.mode {mode}"] if mode not in ("Disabled", *(["Managed"] if issued else [])) else []
    secrets = ("tlsSecretRef", "credentialsSecretRef")
    return asked + [f"metadataStore.etcd.{field}" for field in secrets if field in spec["metadataStore"]["etcd"]]


def node_state(node: Node, reseeding: Iterable[str], copies: int) -> str:
    if node.life is NodeLife.REMOVED:
        return "Removing"
    if not node.up:
        return "Restarting" if node.member else "Joining"
    if node.node in set(reseeding):
        return "Reseeding"
    if node.life is NodeLife.LEAVES:
        return "Draining" if copies else "Drained"
    return "Draining" if node.draining or node.yielding else "Active"


def node_number(node: str) -> int:
    """Return the number at the end of a node's name, 0 when there is none."""
    tail = node.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0
