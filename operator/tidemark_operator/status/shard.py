"""The status of a Shard: a projection of its record; and the facts of shards that groups and clusters show too.

Pure.  Stays out: storing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Diverged
from tidemark_core.replication.records import Phase, ShardRecord, Status

from ..condition_memory import Condition, some
from ..model import (
    Group,
    Node,
    Shard,
    lost_majority,
    lost_nodes,
    out_of_sync,
    unheard_though_up,
    zones_of,
)
from ..placement import distinct_domains
from ..resources import API_VERSION
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.labels import Label
from ..resources.shard import ShardState
from ..shardmap import hash_range


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """`revision` is that of the stored record, `reconfiguration` the name of the one that acts, if any."""

    shard: Shard
    record: ShardRecord
    revision: int
    group: Group
    nodes: Mapping[str, Node]
    reconfiguration: str = ""


def shard_object(facts: ShardFacts) -> dict[str, Any]:
    """Return the Shard object with its status."""
    shard, record, group, nodes = facts.shard, facts.record, facts.group, facts.nodes
    behind, unheard = set(out_of_sync(shard, nodes)), unheard_though_up(shard, nodes)
    lost = lost_nodes(shard, nodes)
    change = record.change
    members = []
    for member in record.ensemble:
        mark, role = "", "Follower"
        if change is not None and member == change.old:
            mark, role = "-", "Leaving"
        elif member == record.leader:
            mark, role = "*", "Leader"
        sync = (
            "Unheard" if member.node in unheard else "InSync" if member.node not in behind
            else "DiskLost" if member.node in lost else "Unreachable")
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
        "metadataRevision": facts.revision,
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
        "conditions": conditions,
    }
    if change is not None:
        status["operation"] = {
            "reconfiguration": facts.reconfiguration,
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


def electing(record: ShardRecord) -> bool:
    return record.status is Status.ELECTION


def leaderless(shard: Shard, record: ShardRecord, nodes: Mapping[str, Node]) -> bool:
    """No node serves it: no leader is recorded, or the recorded one is not up with that disk."""
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


def data_loss(
    shards: Iterable[Shard], records: Mapping[ShardId, ShardRecord], nodes: Mapping[str, Node]
) -> Condition | None:
    """Return the condition that says where acknowledged records may be lost; None where they are not.

    A member holds records that its leader lacks (K14c), or a majority of the disks of a shard is lost (K14e).
    """
    shards = list(shards)
    held = [
        f"{each.member.node} holds records of {shard.name} up to offset {each.commit} that its leader lacks"
        for shard in shards for each in records[shard.shard].holdouts]
    lost = [
        f"{shard.name} lost the disks of {some(gone)}; left: {some(sorted({*shard.ensemble} - {*gone})) or 'none'}"
        for shard in shards if lost_majority(shard, nodes) and (gone := lost_nodes(shard, nodes))]
    if not held and not lost:
        return None
    return T.DATA_LOSS_SUSPECTED, True, R.TRUNCATION_REFUSED if held else R.DISKS_LOST, f"{some([*held, *lost])}."


def diverged(shards: Iterable[Shard], found: Mapping[ShardId, Sequence[Diverged]]) -> str:
    """Say which members hold other documents than their leaders, empty when there is none (U73b)."""
    return some(
        f"the documents of {shard.name} on {each.member.node} differ from those of its leader {shard.leader} at "
        f"offset {each.at}"
        for shard in shards for each in found.get(shard.shard, ()))


def disconnected(shards: Iterable[Shard], cut: Iterable[tuple[str, str]]) -> str:
    """Say which nodes with copies of these shards do not hear each other, empty for none (O43).

    `cut` are pairs of nodes that are up: the first does not hear the second.
    """
    ensembles = [frozenset(shard.ensemble) for shard in shards] if cut else []
    return some(
        f"{one} gets no answer of {other}" for one, other in cut
        if any(one in ensemble and other in ensemble for ensemble in ensembles))


def refuses_for_space(shard: Shard, group: Group, nodes: Mapping[str, Node]) -> str:
    """Say which full disks make a shard refuse appends, empty when it takes them (K20)."""
    there = [node for name in shard.ensemble if (node := nodes.get(name)) is not None and node.up]
    full = [node.node for node in there if node.space]
    quorum = group.quorum(len(shard.ensemble))
    if shard.leader in full:
        return f"{shard.name} is led by {shard.leader}, whose disk is full"
    if full and len(there) - len(full) < quorum:
        return f"{shard.name} needs {quorum} members with space, and the disks of {some(full)} are full"
    return ""


def disk_full(shards: Iterable[Shard], groups: Mapping[str, Group], nodes: Mapping[str, Node]) -> Condition | None:
    """Return condition DiskFull of these shards and nodes, None while no disk is full."""
    full = sorted(node.node for node in nodes.values() if node.full_disk)
    if not full:
        return None
    refused = [why for shard in shards if (why := refuses_for_space(shard, groups[shard.group], nodes))]
    if refused:
        return T.DISK_FULL, True, R.APPENDS_REFUSED, f"{some(refused)}."
    return T.DISK_FULL, True, R.DISKS_FULL, f"The disks of {some(full)} are full; appends go on."


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
