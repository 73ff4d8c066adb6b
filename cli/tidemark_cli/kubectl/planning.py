"""The moves that a Reconfiguration comes to, by the operator's own planner from what objects show.

The same views give the same plan, so the operator's hash says whether these are the moves that it will run.
Pure.  Stays out: the planner (operator), and running anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark_core.base.ids import Member, group_of, index_of, shard_id
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import Group, Node, Shard, group_view
from tidemark_operator.placement import PlanRefusal
from tidemark_operator.plan import Plan, World, plan_reconfiguration

from ..failures import CommandFailed
from ..reconfigurations import status_of
from .state import State, members, name_of

Object = dict[str, Any]


def plan_of(state: State, spec: Mapping[str, Any]) -> Plan:
    """Return the plan; raises CommandFailed when the planner refuses."""
    plan = plan_reconfiguration(spec, world_of(state))
    if isinstance(plan, PlanRefusal):
        raise CommandFailed(plan.message, "Nothing was created.", reason=str(plan.reason))
    return plan


def find_plan(state: State, spec: Mapping[str, Any], wanted: str) -> Plan | None:
    """Return the plan of that hash, None when the objects do not come to it (any more)."""
    plan = plan_reconfiguration(spec, world_of(state))
    return plan if isinstance(plan, Plan) and plan.hash == wanted else None


def unseen(state: State) -> list[str]:
    """Return the log groups whose shards are not shown as objects, so that a plan made here is without them."""
    return [name_of(group) for group in state.groups if group["spec"].get("shardProjection", "Full") != "Full"]


def move_rows(state: State, plan: Plan) -> list[dict[str, Any]]:
    """Return the moves as people read them."""
    names = {number: name for name, group in _groups(state).items() if (number := group.group_id)}
    return [
        {"shard": f"{names.get(group_of(move.shard), '?')}/{index_of(move.shard)}", "operation": str(move.kind),
         "from": move.from_node or "", "to": move.to_node or ""}
        for move in plan.moves]


def world_of(state: State) -> World:
    """Return what the planner sees of a cluster."""
    groups = _groups(state)
    incarnations = {name: str(node.get("incarnation") or "") for name, node in state.nodes.items()}
    nodes = {
        name: Node(
            name, zone=node.get("zone") or "", pool=node.get("pool") or "default",
            member=Member(name, incarnations[name]) if incarnations[name] else None,
            up=bool(node.get("ready")), draining=node.get("state") in ("Draining", "Drained", "Removing"),
            reason=node.get("message") or "")
        for name, node in state.nodes.items()}
    shards = {}
    for item in state.shards:
        group = groups.get(item["spec"]["logGroupRef"]["name"])
        if group is None or not status_of(item):
            continue
        number = shard_id(group.group_id, item["spec"]["shardID"])
        there = [each for each in members(item) if each.get("role") != "Joining"]
        shards[number] = Shard(
            number, group.name, tuple(each["node"] for each in there), status_of(item).get("leader") or None,
            tuple(Member(each["node"], incarnations.get(each["node"], "") if each.get("sync") == "InSync" else "")
                  for each in there))
    pools = {pool["name"]: tuple(pool.get("zones") or ()) for pool in state.cluster["spec"].get("nodePools") or ()}
    return World(groups, dict(sorted(shards.items())), nodes, pools)


def _groups(state: State) -> dict[str, Group]:
    views = [
        group_view(StoredObject(
            item, item["metadata"].get("uid", ""), item["metadata"].get("creationTimestamp", ""),
            item["metadata"].get("generation", 1), status_of(item)["groupID"]))
        for item in state.groups if status_of(item).get("groupID")]
    return {view.name: view for view in views}
