"""The status of a TidemarkCluster, from records, nodes, groups and, there, Kubernetes.

Pure.  Stays out: storing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord

from ..clock_skew import clock_skews, skew_text
from ..condition_memory import TIME, Condition, some
from ..keyspaces import is_complete, is_served
from ..metadata import NodeLife, StoredObject
from ..model import CertificatesView, Node, node_number, out_of_sync
from ..plan import World
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from .kubernetes import KubernetesFacts, kubernetes_conditions, unfinished, with_pods
from .shard import crowded, data_loss, disconnected, disk_full, leaderless
from .standing import AS_WRITTEN, Standing, Standstill, overlay, standing_conditions, standstill_conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """`etcd_trouble` is empty while etcd answers; `waiting` counts the shards whose elections wait for it.

    `standstill` says why the operator acts on nothing, None: it acts.  `kubernetes` is None in a local cluster.
    """

    stored: StoredObject
    world: World
    records: Mapping[ShardId, ShardRecord]
    key_prefix: str
    endpoints: int
    last_node_id: int
    version: str
    etcd_trouble: str = ""
    active_reconfiguration: str = ""
    waiting: int = 0
    certificates: CertificatesView | None = None
    standstill: Standstill | None = None
    standing: Standing = AS_WRITTEN
    kubernetes: KubernetesFacts | None = None
    cut: Sequence[tuple[str, str]] = ()
    """Pairs of nodes that are up: the first does not hear the second."""
    older_disks: Mapping[str, str] = field(default_factory=dict)
    """Nodes on older copies of their disks, and why these are not given up."""


def cluster_status(facts: ClusterFacts) -> dict[str, Any]:
    """Return the status of a cluster."""
    stored, nodes, shards, version = facts.stored, facts.world.nodes, facts.world.shards, facts.version
    kubernetes = facts.kubernetes
    desired = sum(pool["replicas"] for pool in stored.spec["nodePools"])
    copies = Counter(node for shard in shards.values() for node in shard.ensemble)
    held = facts.world.holdings()
    leaders = Counter(shard.leader for shard in shards.values() if shard.leader)
    stale = {
        member.node for shard in shards.values() for member in shard.members
        if (node := nodes.get(member.node)) is not None and node.up and node.member != member
    }
    up = [node for node in nodes.values() if node.up]
    down = sorted(node.node for node in nodes.values() if not node.up and node.life is not NodeLife.REMOVED)
    without_leader = [s for s in shards.values() if leaderless(s, facts.records[s.shard], nodes)]
    under = [shard for shard in shards.values() if out_of_sync(shard, nodes)]
    close = [shard for shard in shards.values() if crowded(shard, facts.world.groups[shard.group], nodes)]
    missing = len(up) < desired or bool(down)
    spare = len(nodes) > desired
    other_version = stored.spec["version"] != version
    open_change = unfinished(kubernetes) if kubernetes is not None else None
    ready: Condition = (
        (T.READY, False, R.NODES_NOT_READY, f"{len(up)} of {desired} nodes are ready: {some(down)} down."
         if down else f"{len(up)} of {desired} nodes are ready.")
        if missing else (T.READY, False, *open_change) if open_change is not None
        else (T.READY, True, R.RECONCILED, f"{len(up)} of {desired} nodes are ready.")
    )
    apart = disconnected(shards.values(), facts.cut)
    if apart and ready[1]:
        ready = (T.READY, False, R.NODES_DISCONNECTED, f"{apart}.")
    full = disk_full(shards.values(), facts.world.groups, nodes)
    if full is not None and full[2] is R.APPENDS_REFUSED and ready[1]:
        ready = (T.READY, False, R.DISK_FULL, full[3])
    others = [node for node in nodes.values() if node.of_other_cluster]
    if others:
        ready = (T.READY, False, R.CLUSTER_ID_MISMATCH, some(f"{node.node}: {node.reason}" for node in others) + ".")
    loss = data_loss(shards.values(), facts.records, nodes)
    if loss is None and facts.older_disks:
        loss = T.DATA_LOSS_SUSPECTED, True, R.DISKS_OLDER, some(
            f"the disk of {node} is an older copy of itself, and {why}"
            for node, why in sorted(facts.older_disks.items())) + "."
    if loss is not None:    # nothing else masks it
        ready = (T.READY, False, R.DATA_LOSS_SUSPECTED, loss[3])
    available: Condition
    below = sum(not is_served(record, nodes) for record in facts.world.ranges.values())
    lacking = sum(not is_complete(record, nodes) for record in facts.world.ranges.values())
    if not shards and not facts.world.ranges:
        available = (T.AVAILABLE, bool(up), R.NOTHING_HOSTED if up else R.NO_NODES, "")
    elif without_leader:
        wait = f"; {facts.waiting} elections wait for etcd" if facts.waiting and facts.etcd_trouble else ""
        names = some(shard.name for shard in without_leader)
        available = (T.AVAILABLE, False, R.SHARDS_LEADERLESS, f"{names} have no leader{wait}.")
    elif below:
        available = (
            T.AVAILABLE, False, R.PARTITIONS_BELOW_QUORUM,
            f"{below} ranges of keyspaces have fewer owners up than their quorums need.")
    else:
        available = (T.AVAILABLE, True, R.QUORUMS_AVAILABLE, "Every shard has a leader.")
    conditions: list[Condition] = [
        ready,
        available,
        (T.FULLY_REPLICATED, not under and not lacking,
         (R.NODE_RESEEDING if stale else R.COPIES_MISSING) if under or lacking else R.ALL_COPIES_IN_SYNC,
         "; ".join([*([some(shard.name for shard in under)] if under else []),
                    *([f"{lacking} ranges of keyspaces move or lack owners"] if lacking else [])])),
        (T.METADATA_STORE_REACHABLE, not facts.etcd_trouble,
         R.CONNECTION_FAILED if facts.etcd_trouble else R.CONNECTED,
         f"Elections and changes wait for etcd: {facts.etcd_trouble}" if facts.etcd_trouble
         else f"{facts.endpoints} endpoints."),
        (T.RECONCILING, not ready[1], ready[2] if not ready[1] else R.RECONCILED, ""),
        (T.STALLED, False, R.RECONCILED if ready[1] else R.PROGRESSING, ""),
        (T.PLACEMENT_SATISFIED, not close, R.NOT_ENOUGH_DOMAINS if close else R.DOMAINS_DISTINCT,
         some(shard.name for shard in close)),
        (T.SCALE_DOWN_BLOCKED, spare, R.NOT_SUPPORTED if spare else R.NOT_SCALING,
         f"{len(nodes)} nodes run, {desired} are asked for; this release removes none by itself." if spare else ""),
        (T.UPGRADE_BLOCKED, other_version, R.NOT_SUPPORTED if other_version else R.NOT_UPGRADING,
         f"The installed version is {version}, and a local cluster runs no other." if other_version else ""),
    ]
    conditions.append(_certificates_valid(stored.spec, facts.certificates))
    if apart:
        conditions.append((T.NODES_DISCONNECTED, True, R.LINK_SILENT, f"{apart}."))
    if loss is not None:
        conditions.append(loss)
    skews = clock_skews({node.node: node.clock_ahead_ms for node in up if node.clock_ahead_ms is not None})
    if skews:
        off = some(f"{name} is {skew_text(skew_ms)}" for name, skew_ms in skews.items())
        conditions.append((T.CLOCK_SKEW, True, R.CLOCKS_DISAGREE, f"Against the median of the nodes' clocks {off}."))
    if full is not None:
        conditions.append(full)
    instead = standstill_conditions(facts.standstill) if facts.standstill is not None else []
    instead += standing_conditions(facts.standing)
    if kubernetes is not None:
        instead += kubernetes_conditions(kubernetes, copies)
    zones = sorted({node.zone for node in nodes.values() if node.zone})
    ends = {} if facts.certificates is None else {"certificates": {
        "caExpirationTime": f"{facts.certificates.authority_expires:{TIME}}",
        "earliestExpirationTime": f"{facts.certificates.earliest_expires:{TIME}}",
    }}
    status = {
        **ends,
        "observedGeneration": stored.generation,
        "clusterID": stored.uid,
        "keyPrefix": facts.key_prefix,
        "version": version,
        "lastNodeID": facts.last_node_id,
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
                "state": node_state(node, stale, held[node.node]),
                "ready": node.up,
                "leaders": leaders[node.node],
                "replicas": copies[node.node],
                "message": node.reason or node.full_disk,
            }
            for node in sorted(nodes.values(), key=lambda node: (node_number(node.node), node.node))
        ],
        "zones": [
            {"name": zone, "nodes": sum(node.zone == zone for node in nodes.values()),
             "ready": sum(node.zone == zone for node in up)}
            for zone in zones
        ],
        "activeReconfiguration": facts.active_reconfiguration,
        "operatorVersion": version,
        "conditions": overlay(conditions, instead),
    }
    return with_pods(status, kubernetes, stored.spec["version"]) if kubernetes is not None else status


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
