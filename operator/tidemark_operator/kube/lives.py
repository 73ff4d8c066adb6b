"""Lives: which nodes of a cluster go, are replaced or are filled, and the Reconfigurations that the operator asks for.

A node that is too many, was lost, or is to go because its pod says so is emptied by a NodeSwap that also removes it;
one scale down at a time.  Each request has a name that follows from its cause, so that one which was made is not made
again: who deletes a Reconfiguration that failed has it tried once more.
Pure.  Stays out: making the Reconfigurations, marking and removing nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..condition_memory import some
from ..metadata import NodeLife, NodeRecord, StoredObject
from ..model import node_number, out_of_sync
from ..placement import PlanRefusal
from ..plan import World, plan_reconfiguration
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from .builders import Cluster

Object = Mapping[str, Any]
Problem = tuple[R, str]

SCALE_DOWN = "scale-down"


@dataclass(frozen=True, slots=True)
class Request:
    """A Reconfiguration that is to be."""

    name: str
    spec: Object


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision is made from; `lost` has the machines of lost nodes, `marked` the nodes whose pod asks to go."""

    cluster: Cluster
    generation: int
    records: Sequence[NodeRecord]
    world: World
    reconfigurations: Sequence[StoredObject]
    lost: Mapping[str, str]
    marked: Sequence[str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows: Reconfigurations to ask for and to cancel, nodes that stay after all, what is said of scaling."""

    requests: tuple[Request, ...]
    cancel: tuple[str, ...]
    stay: tuple[str, ...]
    scale_down: tuple[bool, R, str]
    """Status, reason and message of condition ScaleDownBlocked."""
    unfinished: Problem | None


def decide(facts: Facts) -> Wanted:
    """Return what is to be done now."""
    leaving = {swap.spec["nodeSwap"]["from"] for swap in _swaps(facts) if _removes(swap)}
    known = {each.name for each in facts.reconfigurations}
    requests = [one for one in (*_lost(facts), *_joined(facts)) if one.name not in known]
    asked = {request.spec["nodeSwap"]["from"] for request in requests if "nodeSwap" in request.spec}
    marked = [one for one in _marked(facts, asked) if one.name not in known]
    requests += marked
    asked |= {request.spec["nodeSwap"]["from"] for request in marked}
    leaving |= asked
    surplus = _surplus(facts, leaving)
    scale_down = (False, R.NOT_SCALING, "")
    running = [swap for swap in _swaps(facts) if f"-{SCALE_DOWN}-" in swap.name]
    going = [record.node for record in facts.records if record.life is not NodeLife.STAYS]
    unfinished: Problem | None = (R.SCALING_IN_PROGRESS, f"To go: {some(going)}.") if going else None
    if running:
        scale_down = False, R.PROGRESSING, f"{running[0].name} runs or waits for its turn."
        unfinished = unfinished or (R.SCALING_IN_PROGRESS, f"{running[0].name} waits for its turn.")
    elif surplus:
        found = [_scale_down(facts, pool, nodes, leaving) for pool, nodes in surplus.items()]
        made = next((one for one in found if isinstance(one, Request)), None)
        if made is not None:
            requests.append(made)
            scale_down = False, R.PROGRESSING, f"{made.name} is asked for."
            unfinished = R.SCALING_IN_PROGRESS, f"To go: {made.spec['nodeSwap']['from']}."
        else:
            problem = next(one for one in found if not isinstance(one, Request))
            scale_down = True, *problem
            unfinished = R.SCALING_IN_PROGRESS, f"It is blocked: {problem[1]}"
    sources = {swap.spec["nodeSwap"]["from"] for swap in _swaps(facts)} | asked
    stay = [
        record.node for record in facts.records if record.life is NodeLife.LEAVES and record.node not in sources]
    cancel = [swap.name for swap in running if not swap.spec.get("cancel") and _is_wanted_again(facts, swap, leaving)]
    return Wanted(tuple(requests), tuple(cancel), tuple(stay), scale_down, unfinished)


# --- scaling down -------------------------------------------------------------------------------------------


def _surplus(facts: Facts, leaving: Iterable[str], staying: str = "") -> dict[str, list[NodeRecord]]:
    """Return the pools that have more nodes than they are to have, with the nodes that may go; `staying` is one."""
    gone = set(leaving)
    pools: dict[str, list[NodeRecord]] = {}
    for record in facts.records:
        if record.node == staying or (record.life is NodeLife.STAYS and record.node not in gone):
            pools.setdefault(record.pool, []).append(record)
    return {
        name: records for name, records in pools.items()
        if len(records) > ((facts.cluster.pool(name) or {}).get("replicas", 0))}


def _scale_down(facts: Facts, pool: str, nodes: Sequence[NodeRecord], leaving: Iterable[str]) -> Request | Problem:
    """Return the request that removes one node of a pool, or why none can go."""
    policy = facts.cluster.spec.get("scaleDown") or {}
    copies = facts.world.holdings()
    ordered = victims(nodes, copies, policy.get("victims", "FewestReplicas"))
    for record in ordered:
        if (failed := _failed(facts, _scale_down_name(facts, record.node))) is not None:
            return failed
    if policy.get("policy", "DrainThenDelete") == "DeleteDrainedOnly":
        ordered = [record for record in ordered if not copies[record.node]]
        if not ordered:
            return R.NOT_DRAINED, (
                f"node pool {pool} has {len(nodes)} nodes, and none of them is empty; "
                "a NodeSwap to spread with removeSource Keep empties one")
    first: Problem | None = None
    for record in ordered:
        problem = _why_not(facts, record.node, leaving)
        if problem is None:
            replicas = (facts.cluster.pool(pool) or {}).get("replicas", 0)
            return Request(_scale_down_name(facts, record.node), _swap(
                record.node, {"spread": {}}, f"replicas of node pool {pool} is {replicas}"))
        first = first or problem
    assert first is not None, "a pool with too many nodes has one"
    return first


def _is_wanted_again(facts: Facts, swap: StoredObject, leaving: Iterable[str]) -> bool:
    """Say whether replicas were raised again before the node of a scale down was removed."""
    node = swap.spec["nodeSwap"]["from"]
    record = next((record for record in facts.records if record.node == node), None)
    if record is None or record.life is NodeLife.REMOVED:
        return False
    with_it = _surplus(facts, set(leaving) - {node}, staying=node)
    return record.pool not in with_it


def victims(nodes: Iterable[NodeRecord], copies: Mapping[str, int], policy: str) -> list[NodeRecord]:
    """Return nodes in the order in which they go: empty ones first, then as the policy says, of full zones first."""
    known = list(nodes)
    zones = Counter(record.zone for record in known)

    def key(record: NodeRecord) -> tuple[bool, int, int, int]:
        number = node_number(record.node)
        held = copies.get(record.node, 0)
        return held > 0, held if policy == "FewestReplicas" else -number, -zones[record.zone], -number

    return sorted(known, key=key)


def _why_not(facts: Facts, node: str, leaving: Iterable[str]) -> Problem | None:
    """Return why a node cannot go now."""
    world, gone = facts.world, {*leaving, node}
    for group in world.groups.values():
        in_force = [len(shard.ensemble) for shard in world.shards.values() if shard.group == group.name]
        most = max([group.factor, *in_force])
        left = sum(
            group.allows(other) and other.node not in gone and other.life is not NodeLife.REMOVED
            for other in world.nodes.values())
        if left < most:
            return R.FACTOR_EXCEEDS_NODES, (
                f"log group {group.name} has {most} copies of each shard; without {node} it has {left} nodes for them")
    for keyspace in world.keyspaces:
        left = sum(
            keyspace.allows(other) and other.node not in gone and other.life is not NodeLife.REMOVED
            for other in world.nodes.values())
        if left < keyspace.factor:
            return R.FACTOR_EXCEEDS_NODES, (
                f"keyspace {keyspace.name} has {keyspace.factor} owners of each range; without {node} it has {left} "
                "nodes for them")
    plan = plan_reconfiguration(_swap(node, {"spread": {}}, ""), world)
    if isinstance(plan, PlanRefusal):
        return R.NO_TARGET_FOR_COPIES, f"{node}: {plan.message}"
    behind = [
        shard.name for move in plan.moves
        if (shard := world.shards[move.shard]) and set(out_of_sync(shard, world.nodes)) - {node}]
    return (R.UNDER_REPLICATED, f"{some(behind)} lack copies elsewhere than on {node}") if behind else None


def _scale_down_name(facts: Facts, node: str) -> str:
    return f"{node}-{SCALE_DOWN}-{facts.generation}"


def _failed(facts: Facts, name: str) -> Problem | None:
    """Return how an earlier request of that name ended, if it did and the node is still there."""
    for each in facts.reconfigurations:
        if each.name == name and _finished(each):
            ended = next((one for one in each.status.get("conditions", ()) if one["type"] == T.SUCCEEDED.value), None)
            reason = R(ended["reason"]) if ended is not None else R.CANCELED
            if reason not in (R.COMPLETED, R.NOTHING_TO_DO):
                what = f" ({ended['message']})" if ended is not None and ended["message"] else ""
                return reason, f"{name} ended as {reason}{what}; delete it, or change the pool, to have it tried again"
    return None


# --- what else makes a node go, or come ---------------------------------------------------------------------


def _lost(facts: Facts) -> list[Request]:
    if (facts.cluster.spec.get("disruption") or {}).get("onNodeLost", "Wait") != "Replace":
        return []
    there = {record.node for record in facts.records if record.life is NodeLife.STAYS} - _sources(facts)
    return [
        Request(f"{node}-lost", _swap(node, {"provision": {}}, f"its volume was on {machine}, which is gone"))
        for node, machine in sorted(facts.lost.items()) if node in there]


def _marked(facts: Facts, asked: Iterable[str]) -> list[Request]:
    """People asked on the pod itself; somebody who may approve must agree."""
    there = {record.node for record in facts.records if record.life is NodeLife.STAYS} - _sources(facts) - set(asked)
    return [
        Request(f"{node}-delete-node", {
            **_swap(node, {"spread": {}}, "the pod carries tidemark.dev/delete-node"), "approval": "Required"})
        for node in facts.marked if node in there]


def _joined(facts: Facts) -> list[Request]:
    """Fill nodes that came and hold nothing, once all that are to come are there."""
    if (facts.cluster.spec.get("reconfiguration") or {}).get("onNodeJoin", "None") != "Rebalance":
        return []
    nodes, copies = facts.world.nodes, facts.world.replicas()
    staying = [record for record in facts.records if record.life is NodeLife.STAYS]
    if not staying or _swaps(facts) or not all(
            record.node in nodes and nodes[record.node].eligible for record in staying):
        return []
    empty = sorted((record.node for record in staying if not copies[record.node]), key=node_number)
    if not empty:
        return []
    spec = {"type": "Rebalance", "rebalance": {"nodes": empty}, "reason": f"{some(empty)} joined"}
    plan = plan_reconfiguration(spec, facts.world)
    if isinstance(plan, PlanRefusal) or not plan.moves:
        return []
    return [Request(f"{facts.cluster.name}-rebalance-{node_number(empty[-1])}", spec)]


# --- parts --------------------------------------------------------------------------------------------------


def _swap(node: str, to: Object, reason: str) -> Object:
    return {
        "type": "NodeSwap", "nodeSwap": {"from": node, "to": to, "removeSource": "Delete"}, "reason": reason}


def _finished(stored: StoredObject) -> bool:
    return stored.status.get("stage") == "Finished"


def _swaps(facts: Facts) -> list[StoredObject]:
    """Return the NodeSwaps that have not ended."""
    return [each for each in facts.reconfigurations if each.spec["type"] == "NodeSwap" and not _finished(each)]


def _removes(swap: StoredObject) -> bool:
    return not swap.spec.get("scope") and swap.spec["nodeSwap"].get("removeSource", "Delete") == "Delete"


def _sources(facts: Facts) -> set[str]:
    return {swap.spec["nodeSwap"]["from"] for swap in _swaps(facts)}
