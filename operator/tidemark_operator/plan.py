"""Planning: which moves a Reconfiguration comes to.

Everything is computed from plain views, deterministically: the same views and the same seed give the same
plan.  A plan that cannot be made is a PlanRefusal with one of the reasons of the API.
Pure.  Stays out: new groups (`placement`), running moves (`moves`), every rule about epochs and quorums
(the core checks again).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tidemark_core.base.ids import ShardId
from tidemark_core.optimistic.ring import Range

from .condition_memory import some
from .keyspaces import Keyspace
from .metadata import NodeLife
from .model import Group, Node, Shard, lost_majority, lost_nodes, out_of_sync
from .placement import PlanRefusal, best_node, distinct_domains
from .resources.conditions import ConditionReason as R
from .resources.kinds import KINDS

_KEYSPACES = {KINDS["Keyspace"].names.singular, KINDS["Keyspace"].names.plural}
NEW_NODE = "a new node"
"""In moves to a node that is still to be made: its number is known, and taken, when the plan is carried out."""


class MoveKind(StrEnum):
    SWAP = "Swap"
    EXPAND = "Expand"
    CONTRACT = "Contract"
    TRANSFER = "LeaderTransfer"
    RECOVER = "Recover"


@dataclass(frozen=True, slots=True)
class Move:
    """One protocol operation on one shard.

    `abandon` gives up acknowledged records: a last copy that it may destroy (K14c), those of lost disks (K14e).
    """

    shard: ShardId
    kind: MoveKind
    from_node: str | None = None
    to_node: str | None = None
    force: bool = False
    abandon: bool = False

    @property
    def key(self) -> str:
        """What approval covers of it."""
        return f"{self.shard:x} {self.kind} {self.from_node} {self.to_node}" + (" abandons" if self.abandon else "")

    def done(self, shard: Shard | None) -> bool:
        """Say whether the shard already is as this move wants it."""
        if shard is None:
            return True  # the group was deleted meanwhile
        match self.kind:
            case MoveKind.SWAP:
                return self.to_node in shard.ensemble and self.from_node not in shard.ensemble
            case MoveKind.EXPAND:
                return self.to_node in shard.ensemble
            case MoveKind.CONTRACT:
                return self.from_node not in shard.ensemble
            case MoveKind.TRANSFER:
                return shard.leader == self.to_node
            case MoveKind.RECOVER:
                return shard.leader == self.to_node and self.to_node not in shard.holdouts


@dataclass(frozen=True, slots=True)
class Plan:
    moves: tuple[Move, ...]
    warnings: tuple[str, ...] = ()
    provision: tuple[str, str] | None = None
    """Pool and zone of the node to be made first."""

    @property
    def hash(self) -> str:
        """Names the set of moves; approval quotes it."""
        text = "\n".join(move.key for move in sorted(self.moves, key=repr))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:26]


@dataclass(frozen=True, slots=True)
class World:
    """What a plan is made from."""

    groups: Mapping[str, Group]
    shards: Mapping[ShardId, Shard]
    nodes: Mapping[str, Node]
    pools: Mapping[str, Sequence[str]] | None = None
    """Zones of the pools in which nodes can be made; None: nobody here makes any."""
    keyspaces: Sequence[Keyspace] = ()
    ranges: Mapping[int, Range] = dataclasses.field(default_factory=dict)
    """The records of all ranges of keyspaces, by unit; also of keyspaces that are gone but for their data."""

    def replicas(self) -> Counter[str]:
        """Return how many copies each node holds."""
        return Counter(node for shard in self.shards.values() for node in shard.ensemble)

    def holdings(self) -> Counter[str]:
        """Return how many copies of shards and ranges of keyspaces each node holds."""
        return self.replicas() + self.owned()

    def owned(self) -> Counter[str]:
        """Return how many ranges of keyspaces each node owns, or is about to."""
        return Counter(member.node for record in self.ranges.values() for member in record.members)

    def leaders(self) -> Counter[str]:
        return Counter(shard.leader for shard in self.shards.values() if shard.leader)


# --- reconfigurations ---------------------------------------------------------------------------------------


def plan_reconfiguration(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    """Return the moves that `spec` (a Reconfiguration's) comes to in `world`."""
    refused = _not_served(spec, world)
    if refused is not None:
        return refused
    plan = _plan_type(spec, world)
    stuck = [] if isinstance(plan, PlanRefusal) else [
        shard.name for move in plan.moves
        if move.kind is not MoveKind.RECOVER and _leaderless_for_good(shard := world.shards[move.shard], world)]
    if stuck:
        return PlanRefusal(
            R.SHARDS_LEADERLESS, f"{some(stuck)}: no leader, and too few members are up to elect one")
    if not isinstance(plan, PlanRefusal) and (spec.get("preconditions") or {}).get("lastCopy") == "Abandoned":
        return replace(plan, moves=tuple(
            replace(move, abandon=move.abandon or move.kind in (MoveKind.SWAP, MoveKind.CONTRACT))
            for move in plan.moves))
    return plan


def _not_served(spec: Mapping[str, Any], world: World) -> PlanRefusal | None:
    """Refuse an act on keyspaces, and on what this release does not serve.

    Shards that an older release created may move.
    """
    hosted = {shard.group for shard in world.shards.values()}
    for field in ("expand", "contract", "scope"):
        part = spec.get(field) or {}
        for name in _KEYSPACES & part.keys():
            return PlanRefusal(
                R.NOT_SUPPORTED, f"{field}.{name}: ranges of keyspaces move by themselves, as spec.replication of the "
                "Keyspace says and as nodes come and leave")
        for name in (part.get("logGroup"), *(part.get("logGroups") or ())):
            group = world.groups.get(name)
            if group is not None and group.unserved and name not in hosted:
                return PlanRefusal(
                    R.NOT_SUPPORTED, f"{field}: {name}: this release does not serve {group.unserved}")
    return None


def _leaderless_for_good(shard: Shard, world: World) -> bool:
    """A shard whose leader just went has another in a moment; one without a majority has none until members return."""
    away = out_of_sync(shard, world.nodes)
    return (shard.leader is None or shard.leader in away) and 2 * len(away) >= len(shard.ensemble)


def _plan_type(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    match spec["type"]:
        case "NodeSwap":
            return _plan_swap(spec, world)
        case "Expand":
            return _plan_expand(spec, world)
        case "Contract":
            return _plan_contract(spec, world)
        case "LeaderTransfer":
            return _plan_transfer(spec, world)
        case "Rebalance":
            return _plan_rebalance(spec, world)
        case "Recover":
            return _plan_recover(spec, world)
    return PlanRefusal(R.TARGETS_NOTHING, f"spec.type {spec['type']!r} is not known to this build")


def _scope(spec: Mapping[str, Any], world: World, group: str | None = None) -> list[Shard] | PlanRefusal:
    """Return the shards a spec is about; a name in it that matches nothing is refused."""
    scope: Mapping[str, Any] = spec.get("scope") or {}
    names = [group] if group else list(scope.get("logGroups") or world.groups)
    for name in names:
        if name not in world.groups:
            return PlanRefusal(R.TARGETS_NOTHING, f"log group {name!r} does not exist")
    indexes = scope.get("shardIDs")
    chosen = [
        shard for shard in world.shards.values()
        if shard.group in names and (not indexes or shard.index in indexes)
    ]
    if indexes and not chosen:
        return PlanRefusal(R.TARGETS_NOTHING, f"no shard has an id of scope.shardIDs {list(indexes)}")
    return chosen


def _plan_swap(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    source, target = spec["nodeSwap"]["from"], spec["nodeSwap"]["to"]
    scope = _scope(spec, world)
    if isinstance(scope, PlanRefusal):
        return scope
    if source not in world.nodes and all(source not in shard.ensemble for shard in world.shards.values()):
        return PlanRefusal(R.NODE_NOT_FOUND, f"nodeSwap.from: there is no node {source!r}")
    held = [shard for shard in scope if source in shard.ensemble]
    shards = [shard for shard in held if not world.groups[shard.group].detached]
    kept = [shard for shard in held if world.groups[shard.group].detached]
    provision, named = None, target.get("node")
    if target.get("provision") is not None:
        made = _new_node(world.nodes.get(source), target["provision"], world)
        if isinstance(made, PlanRefusal):
            return made
        world = replace(world, nodes={**world.nodes, NEW_NODE: made})
        provision, named = (made.pool, made.zone), NEW_NODE
    if named:
        field = "nodeSwap.to.provision" if provision else "nodeSwap.to.node"
        refusal = _check_target(field, named, shards, world)
        if refusal is not None:
            return refusal
    candidates = [named] if named else sorted(set(world.nodes) - {source})
    load = world.replicas()
    plan = _with_new_members(spec, world, shards, MoveKind.SWAP, candidates, source, load=load)
    if isinstance(plan, PlanRefusal):
        return plan
    aside = _with_kept_data_elsewhere(spec, world, kept, source, named or "", load)
    if isinstance(aside, PlanRefusal):
        return aside
    return Plan(plan.moves + aside.moves, aside.warnings, provision)


def _with_kept_data_elsewhere(
    spec: Mapping[str, Any], world: World, shards: Sequence[Shard], source: str, preferred: str, load: Counter[str]
) -> Plan | PlanRefusal:
    """Save the data of deleted log groups from a node that goes; where nobody can have it, only its removal is refused.

    `to` speaks of what people asked for: what nobody claims goes there if it may, else anywhere.
    """
    moves: list[Move] = []
    left: list[str] = []
    for shard in shards:
        found = _with_new_members(
            spec, world, [shard], MoveKind.SWAP, sorted(set(world.nodes) - {source}), source, preferred={preferred},
            load=load)
        if not isinstance(found, PlanRefusal):
            moves += found.moves
        elif spec["nodeSwap"].get("removeSource") == "Delete":
            return found
        else:
            left.append(shard.name)
    warnings = (f"kept data of deleted log groups stays on {source}: {some(left)}",) if left else ()
    return Plan(tuple(moves), warnings)


def _new_node(source: Node | None, wanted: Mapping[str, Any], world: World) -> Node | PlanRefusal:
    """Return the node that `to.provision` asks for, as it will be; what it does not say is as with the source."""
    if world.pools is None:
        return PlanRefusal(
            R.TARGET_NOT_ELIGIBLE, "nodeSwap.to.provision needs a cluster on Kubernetes; name a node")
    pool = wanted.get("nodePool") or (source.pool if source is not None else "")
    if pool not in world.pools:
        return PlanRefusal(
            R.TARGET_NOT_ELIGIBLE, f"nodeSwap.to.provision.nodePool: the cluster has no node pool {pool!r}")
    zones, zone = list(world.pools[pool]), wanted.get("zone")
    if zone and zones and zone not in zones:
        return PlanRefusal(
            R.TARGET_NOT_ELIGIBLE, f"nodeSwap.to.provision.zone: node pool {pool} has no zone {zone!r}")
    if not zone:
        load = Counter(node.zone for node in world.nodes.values() if node.pool == pool)
        here = source.zone if source is not None else ""
        zone = here if here in zones or not zones else min(zones, key=lambda name: (load[name], zones.index(name)))
    return Node(NEW_NODE, zone=zone, pool=pool, up=True)


def _plan_expand(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    wanted = spec["expand"]
    checked = _scope_of_factor("expand", wanted, spec, world, step=1)
    if isinstance(checked, PlanRefusal):
        return checked
    for name in wanted.get("nodes") or ():
        refusal = _check_target("expand.nodes", name, (), world)
        if refusal is not None:
            return refusal
    preferred = set(wanted.get("nodes") or ())
    return _with_new_members(
        spec, world, checked, MoveKind.EXPAND, sorted(world.nodes), None, preferred=preferred)


def _plan_contract(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    wanted = spec["contract"]
    checked = _scope_of_factor("contract", wanted, spec, world, step=-1)
    if isinstance(checked, PlanRefusal):
        return checked
    named = set(wanted.get("nodes") or ())
    for name in sorted(named):
        if name not in world.nodes and all(name not in shard.ensemble for shard in checked):
            return PlanRefusal(R.NODE_NOT_FOUND, f"contract.nodes: there is no node {name!r}")
    load = world.replicas()
    moves = []
    for shard in checked:
        victim = choose_victim(shard, named, world, load)
        load[victim] -= 1
        force = wanted.get("belowThree") == "Allowed"
        moves.append(Move(shard.shard, MoveKind.CONTRACT, from_node=victim, force=force))
    return Plan(tuple(moves))


def choose_victim(
    shard: Shard, named: Collection[str], world: World, load: Mapping[str, int] | None = None
) -> str:
    """Return the member to remove: named ones first, then the down, not the leader, the crowded, the full."""
    copies = world.replicas() if load is None else load
    zones = Counter(_zone(world, name) for name in shard.ensemble)

    def cost(name: str) -> tuple[bool, bool, bool, int, int, str]:
        node = world.nodes.get(name)
        up = node is not None and node.up
        return (name not in named, up, shard.leader == name, -zones[_zone(world, name)], -copies[name], name)

    return min(shard.ensemble, key=cost)


def choose_member(shard: Shard, source: str | None, world: World) -> str | PlanRefusal:
    """Return the node for a new copy of one shard, in place of `source` if there is one."""
    kind = MoveKind.SWAP if source else MoveKind.EXPAND
    plan = _with_new_members({}, world, [shard], kind, sorted(set(world.nodes) - {source}), source)
    if isinstance(plan, PlanRefusal):
        return plan
    chosen = plan.moves[0].to_node
    assert chosen is not None
    return chosen


def _plan_transfer(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    wanted = spec["leaderTransfer"]
    target, source = wanted.get("to"), wanted.get("from")
    scope = _scope(spec, world, wanted.get("logGroup"))
    if isinstance(scope, PlanRefusal):
        return scope
    for field, name in (("from", source), ("to", target)):
        if name and name not in world.nodes:
            return PlanRefusal(R.NODE_NOT_FOUND, f"leaderTransfer.{field}: there is no node {name!r}")
    shards = [shard for shard in scope if source is None or shard.leader == source]
    if target is not None:
        refusal = _check_target("leaderTransfer.to", target, (), world)
        if refusal is not None:
            return refusal
        shards = [shard for shard in shards if target in shard.ensemble]
        if not shards:
            return PlanRefusal(
                R.TARGETS_NOTHING, f"leaderTransfer.to: {target} holds no copy of the shards in scope")
    leaders = world.leaders()
    moves = []
    for shard in shards:
        to = target or next_leader(shard, world, leaders)
        if to is not None and to != shard.leader:
            leaders[to] += 1
            moves.append(Move(shard.shard, MoveKind.TRANSFER, from_node=shard.leader, to_node=to))
    return Plan(tuple(moves))


def _plan_recover(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    """Make the node's copy the log of every shard in scope where it holds more than the leader (K14d).

    Where a loss is accepted, also of those that lost a majority of their disks and not the node's (K14e).
    """
    source, accepts = spec["recover"]["from"], bool(spec["recover"].get("acceptLoss"))
    scope = _scope(spec, world)
    if isinstance(scope, PlanRefusal):
        return scope
    refusal = _check_target("recover.from", source, (), world)
    if refusal is not None and refusal.reason is R.NODE_NOT_FOUND:
        return refusal
    holding = [shard for shard in scope if source in shard.holdouts]
    left = [
        shard for shard in scope
        if lost_majority(shard, world.nodes) and source in {*shard.ensemble} - {*lost_nodes(shard, world.nodes)}]
    if not holding and not (left and accepts):
        why = f"{source} holds nothing that the leader of a shard in scope lacks"
        if left:
            why = (
                f"{some(shard.name for shard in left)} lost a majority of the disks, and with them maybe acknowledged "
                "records: recover.acceptLoss: true goes on without them")
        return PlanRefusal(R.TARGETS_NOTHING, f"recover.from: {why}")
    moves = [Move(shard.shard, MoveKind.RECOVER, to_node=source) for shard in holding]
    if accepts:
        moves += [Move(shard.shard, MoveKind.RECOVER, to_node=source, abandon=True) for shard in left]
    named = some(shard.name for shard in (*holding, *(left if accepts else ())))
    return Plan(tuple(moves), (f"{named}: records that {source} does not hold are given up",))


def _plan_rebalance(spec: Mapping[str, Any], world: World) -> Plan | PlanRefusal:
    """Fill `rebalance.nodes` (default: every node) from the fullest nodes, one copy at a time."""
    wanted: Mapping[str, Any] = spec.get("rebalance") or {}
    scope = _scope(spec, world)
    if isinstance(scope, PlanRefusal):
        return scope
    targets = list(wanted.get("nodes") or sorted(name for name, node in world.nodes.items() if node.eligible))
    for name in targets:
        refusal = _check_target("rebalance.nodes", name, (), world)
        if refusal is not None:
            return refusal
    if not targets or not scope:
        return Plan(())
    if wanted.get("leadersOnly"):
        return Plan(tuple(_spread_leaders(scope, set(targets), world)))
    load = world.replicas()
    copies = sum(len(shard.ensemble) for shard in scope)
    budget = copies * wanted.get("maxMovePercent", 100) // 100
    moves: list[Move] = []
    for shard in sorted(scope, key=lambda shard: shard.shard):
        if len(moves) >= budget:
            break
        sources = sorted(shard.ensemble, key=lambda name: (-load[name], name == shard.leader, name))
        swap = next(
            (
                (source, target)
                for source in sources
                for target in sorted(targets, key=lambda name: (load[name], name))
                if load[source] - load[target] >= 2 and _fits(shard, source, target, spec, world)
            ),
            None,
        )
        if swap is not None:
            load[swap[0]] -= 1
            load[swap[1]] += 1
            moves.append(Move(shard.shard, MoveKind.SWAP, *swap))
    return Plan(tuple(moves))


def _spread_leaders(scope: Sequence[Shard], targets: set[str], world: World) -> list[Move]:
    leaders, moves = world.leaders(), []
    for shard in scope:
        if shard.leader is None:
            continue
        options = [name for name in shard.ensemble if name in targets and world.nodes[name].may_lead]
        best = min(options, key=lambda name: (leaders[name], name), default=None)
        if best is not None and leaders[shard.leader] - leaders[best] >= 2:
            leaders[shard.leader] -= 1
            leaders[best] += 1
            moves.append(Move(shard.shard, MoveKind.TRANSFER, from_node=shard.leader, to_node=best))
    return moves


def next_leader(
    shard: Shard, world: World, leaders: Mapping[str, int], avoid: Collection[str] = ()
) -> str | None:
    """Return the member to hand leadership to: up, on the disk the ensemble names, one that stays, leading least."""
    options = [
        member.node for member in shard.members
        if member.node != shard.leader and member.node not in avoid
        and (node := world.nodes.get(member.node)) is not None and node.may_lead and node.member == member
    ]
    return min(
        options, key=lambda name: (not world.nodes[name].eligible, leaders.get(name, 0), name), default=None)


def _scope_of_factor(
    field: str, wanted: Mapping[str, Any], spec: Mapping[str, Any], world: World, *, step: int
) -> list[Shard] | PlanRefusal:
    """Return the shards one step away from the wanted factor; shards that have it already are done."""
    scope = _scope(spec, world, wanted["logGroup"])
    if isinstance(scope, PlanRefusal):
        return scope
    declared, factor = world.groups[wanted["logGroup"]].factor, wanted["factor"]
    if factor != declared:
        return PlanRefusal(
            R.FACTOR_MISMATCH,
            f"{field}.factor is {factor}, but log group {wanted['logGroup']} declares {declared}: "
            "change spec.replication.factor of the group first",
        )
    for shard in scope:
        if len(shard.ensemble) not in (factor, factor - step):
            return PlanRefusal(
                R.FACTOR_MISMATCH,
                f"shard {shard.name} has {len(shard.ensemble)} copies; {field} to {factor} is a step of one",
            )
    return [shard for shard in scope if len(shard.ensemble) != factor]


def _check_target(field: str, name: str, shards: Iterable[Shard], world: World) -> PlanRefusal | None:
    node = world.nodes.get(name)
    if node is None:
        return PlanRefusal(R.NODE_NOT_FOUND, f"{field}: there is no node {name!r}")
    if not node.up:
        return PlanRefusal(R.TARGET_NOT_ELIGIBLE, f"{field}: {name} is down ({node.reason})")
    if node.draining:
        return PlanRefusal(R.TARGET_NOT_ELIGIBLE, f"{field}: {name} is draining")
    if node.full_disk:
        return PlanRefusal(R.TARGET_NOT_ELIGIBLE, f"{field}: {name}: {node.full_disk}")
    if node.life is not NodeLife.STAYS:
        return PlanRefusal(R.TARGET_NOT_ELIGIBLE, f"{field}: {name} is about to leave")
    for shard in shards:
        if name in shard.ensemble:
            return PlanRefusal(
                R.TARGET_NOT_ELIGIBLE, f"{field}: {name} already holds a copy of {shard.name}")
        if (why := world.groups[shard.group].why_not(node)):
            return PlanRefusal(R.TARGET_NOT_ELIGIBLE, f"{field}: {why}")
    return None


def _with_new_members(
    spec: Mapping[str, Any],
    world: World,
    shards: Sequence[Shard],
    kind: MoveKind,
    candidates: Sequence[str],
    source: str | None,
    *,
    preferred: Collection[str] = (),
    load: Counter[str] | None = None,
) -> Plan | PlanRefusal:
    """Give every shard one new member out of `candidates`, in place of `source` if there is one.

    `load` counts the copies of each node, and those that are given here; None: it is as the world says.
    """
    load = world.replicas() if load is None else load
    moves = []
    for shard in shards:
        group = world.groups[shard.group]
        others = [world.nodes.get(name, Node(name)) for name in shard.ensemble if name != source]
        options = [
            node for name in candidates
            if (node := world.nodes[name]).eligible and group.allows(node) and name not in shard.ensemble
        ]
        if not options:
            return PlanRefusal(
                R.INSUFFICIENT_CAPACITY, f"no eligible node is left for a copy of {shard.name}")
        fitting = [node for node in options if _fits(shard, source, node.node, spec, world)]
        if not fitting:
            return PlanRefusal(
                R.NOT_ENOUGH_DOMAINS,
                f"every choice for {shard.name} puts two copies into one zone; "
                "set preconditions.failureDomains: Ignore to accept that",
            )
        wanted = [node for node in fitting if node.node in preferred] or fitting
        best = best_node(wanted, others, load, group.spread_zones, shard.name)
        load[best.node] += 1
        moves.append(Move(shard.shard, kind, from_node=source, to_node=best.node))
    return Plan(tuple(moves))


def _fits(shard: Shard, source: str | None, target: str, spec: Mapping[str, Any], world: World) -> bool:
    """Say whether the change keeps failure domains: it may not lower the number of zones spanned."""
    node = world.nodes[target]
    if target in shard.ensemble or not node.eligible or not world.groups[shard.group].allows(node):
        return False
    preconditions: Mapping[str, Any] = spec.get("preconditions") or {}
    if preconditions.get("failureDomains") == "Ignore" or not world.groups[shard.group].spread_zones:
        return True
    after = [*(name for name in shard.ensemble if name != source), target]
    zones = len({node.zone for node in world.nodes.values() if node.zone}) or len(after)
    before_domains = distinct_domains(shard.ensemble, world.nodes)
    after_domains = distinct_domains(after, world.nodes)
    wanted = before_domains if source else min(before_domains + 1, max(zones, before_domains))
    return after_domains >= wanted


def _zone(world: World, name: str) -> str:
    node = world.nodes.get(name)
    return (node.zone if node else "") or f"\0{name}"

