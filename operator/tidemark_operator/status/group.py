"""The status of a LogGroup, from its shards, their records and the nodes.

Pure.  Stays out: storing anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Diverged
from tidemark_core.replication.records import ShardRecord, Status

from ..condition_memory import Condition, some
from ..model import Group, Node, Shard, out_of_sync, wanted_copies, zones_of
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.kinds import does_not_serve
from .shard import crowded, data_loss, disconnected, disk_full, diverged, electing, leaderless, unconfirmed
from .standing import AS_WRITTEN, Standing, overlay, standing_conditions


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """`shards` and `records` are those of the cluster; `revision` is of the newest thing that is stored of the group.

    `trouble` is a reason and a message when the shards could not be created; `copies_trouble` says of shards why they
    do not keep the declared payload copies yet, `damage` of shards which damaged entry keeps them without a leader.
    """

    group: Group
    generation: int
    shards: Mapping[ShardId, Shard]
    records: Mapping[ShardId, ShardRecord]
    nodes: Mapping[str, Node]
    revision: int
    trouble: tuple[R, str] | None = None
    copies_trouble: Mapping[ShardId, str] = field(default_factory=dict)
    standing: Standing = AS_WRITTEN
    damage: Mapping[ShardId, str] = field(default_factory=dict)
    cut: Sequence[tuple[str, str]] = ()
    """Pairs of nodes that are up: the first does not hear the second."""
    diverged: Mapping[ShardId, Sequence[Diverged]] = field(default_factory=dict)
    """Members of shards whose documents their leaders find to differ."""


def group_status(facts: GroupFacts) -> dict[str, Any]:
    """Return the status of a log group."""
    group, records, nodes, trouble = facts.group, facts.records, facts.nodes, facts.trouble
    present = [shard for shard_id in group.shard_ids() if (shard := facts.shards.get(shard_id)) is not None]
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
        damage = "; ".join(
            f"{shard.name} is {facts.damage[shard.shard]}" for shard in without_leader if shard.shard in facts.damage)
        ready = (T.READY, False, R.SHARDS_NOT_ONLINE, f"{names} have no leader{f'; {damage}' if damage else ''}.")
    elif changing and set(factors) != {group.factor}:
        ready = (T.READY, False, R.FACTOR_CHANGE_IN_PROGRESS, f"{min(factors)} to {max(factors)} copies.")
    elif set(factors) != {group.factor}:
        ready = (T.READY, False, R.FACTOR_CHANGE_PENDING,
                 f"declared {group.factor}, in force {min(factors)} to {max(factors)}.")
    elif uneven:
        why = some(
            facts.copies_trouble[shard.shard] for shard in uneven if shard.shard in facts.copies_trouble)
        ready = (T.READY, False, R.PAYLOAD_COPIES_PENDING,
                 f"{len(uneven)} of {len(present)} shards do not keep {group.payload_copies or group.factor} "
                 f"payload copies yet{'; ' if why else '.'}{why}")
    else:
        ready = (T.READY, True, R.ALL_SHARDS_ONLINE, f"{online} of {group.shards} shards are online.")
    apart = disconnected(present, facts.cut)
    if apart and ready[1]:
        ready = (T.READY, False, R.NODES_DISCONNECTED, f"{apart}.")
    members = {name: nodes[name] for shard in present for name in shard.ensemble if name in nodes}
    full = disk_full(present, {group.name: group}, members)
    if full is not None and full[2] is R.APPENDS_REFUSED and ready[1]:
        ready = (T.READY, False, R.DISK_FULL, full[3])
    loss = data_loss(present, records, nodes)
    if loss is not None and trouble is None and not group.unserved:
        ready = (T.READY, False, R.DATA_LOSS_SUSPECTED, loss[3])
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
    if apart:
        conditions.append((T.NODES_DISCONNECTED, True, R.LINK_SILENT, f"{apart}."))
    if loss is not None:
        conditions.append(loss)
    if differing := diverged(present, facts.diverged):
        conditions.append((T.DOCUMENTS_DIVERGED, True, R.DIGESTS_DIFFER, f"{differing}."))
    if full is not None:
        conditions.append(full)
    if group.unserved:
        conditions = overlay(conditions, _not_supported(ready[3], hosted=bool(present)))
    return {
        "observedGeneration": facts.generation,
        "groupID": group.group_id,
        "metadataRevision": facts.revision,
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
        "conditions": overlay(conditions, standing_conditions(facts.standing)),
    }


def _not_supported(message: str, *, hosted: bool) -> list[Condition]:
    """Return the conditions of a group that this release does not serve; an older one may have created its shards."""
    told: list[Condition] = [
        (T.RECONCILING, False, R.NOT_SUPPORTED, ""), (T.STALLED, True, R.NOT_SUPPORTED, message)]
    if not hosted:
        told.append((T.AVAILABLE, False, R.NOT_SUPPORTED, ""))
        told += [
            (type_, None, R.NOT_SUPPORTED, "")
            for type_ in (T.FULLY_REPLICATED, T.QUORUM_REACHABLE, T.PLACEMENT_SATISFIED)]
    return told
