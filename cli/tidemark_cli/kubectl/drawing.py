"""Pictures and documents of a cluster and of a shard, from their objects: for `tidemark` and for the plugin of kubectl.

Pure.  Stays out: reading objects, judging them (explain).
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..failures import USAGE, CommandFailed
from ..output import table
from ..reconfigurations import condition_of, plan_hash, progress_text, stage, status_of, throttle_text
from .explain import Finding, explain_cluster, explain_reconfiguration, explain_shard
from .planning import find_plan, move_rows
from .pods import pod_text, restarts
from .state import State, members, name_of, shard_title

MOVES_SHOWN_MAX = 40


# --- findings -----------------------------------------------------------------------------------------------


def findings_document(findings: list[Finding]) -> list[dict[str, Any]]:
    return [
        {"blocks": each.blocks, "what": each.what, "shard": each.shard, "node": each.node, "todo": each.todo}
        for each in findings]


def draw_findings(findings: list[Finding]) -> RenderableType:
    parts: list[RenderableType] = []
    for each in findings:
        word = ("blocked", "bold red") if each.blocks else ("note", "dim")
        parts.append(Text.assemble(word, f"{' ' * (9 - len(word[0]))}{each.what}"))
        if each.todo:
            parts.append(Text(f"         -> {each.todo}", style="dim"))
    return Group(*parts)


def conditions_document(status: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {name: each.get(name, "") for name in ("type", "status", "reason", "message")}
        for each in status.get("conditions") or ()]


# --- status -------------------------------------------------------------------------------------------------


def status_document(state: State) -> dict[str, Any]:
    status = status_of(state.cluster)
    return {
        "cluster": state.name,
        "version": status.get("version", ""), "operatorVersion": status.get("operatorVersion", ""),
        "conditions": conditions_document(status),
        "zones": status.get("zones") or [],
        "nodes": node_rows(state),
        "logGroups": [
            {"name": name_of(group), "ready": condition_of(group, "Ready").get("status", ""),
             "reason": condition_of(group, "Ready").get("reason", ""),
             "shards": status_of(group).get("shards") or {}, "onlineShards": status_of(group).get("onlineShards", ""),
             "quorum": status_of(group).get("quorum", "")}
            for group in state.groups],
        "reconfigurations": [
            {"name": name_of(item), "type": item["spec"]["type"], "stage": stage(item),
             "progress": status_of(item).get("progress") or {}, "text": progress_text(item)}
            for item in state.unfinished()],
        "findings": findings_document(explain_cluster(state)),
    }


def node_rows(state: State) -> list[dict[str, Any]]:
    rows = []
    for name, node in state.nodes.items():
        pod = state.pods.get(name) if state.pods is not None else None
        rows.append({
            "name": name, "cluster": state.name, "pool": node.get("pool", ""), "zone": node.get("zone", ""),
            "state": node.get("state", ""), "ready": bool(node.get("ready")), "leaders": node.get("leaders", 0),
            "replicas": node.get("replicas", 0), "kubernetesNode": node.get("kubernetesNode", ""),
            "version": node.get("version", ""), "message": node.get("message", ""),
            "pod": "" if state.pods is None else pod_text(pod), "restarts": restarts(pod) if pod else 0,
        })
    return rows


def draw_nodes(rows: list[dict[str, Any]]) -> RenderableType:
    columns = ["NODE", "POOL", "ZONE", "STATE", "READY", "POD", "#RESTARTS", "#LEADERS", "#COPIES", "MACHINE"]
    return table(columns, [
        [row["name"], row["pool"], row["zone"], row["state"], _yes(row["ready"]), row["pod"] or "?", row["restarts"],
         row["leaders"], row["replicas"], row["kubernetesNode"]] for row in rows])


def draw_status(document: dict[str, Any]) -> RenderableType:
    said = {each["type"]: each for each in document["conditions"]}
    states = " · ".join(
        f"{kind} {said[kind]['status']}" + (f" ({said[kind]['reason']})" if said[kind]["status"] != "True" else "")
        for kind in ("Ready", "Available", "FullyReplicated", "MetadataStoreReachable") if kind in said)
    zones = ", ".join(f"{zone['name']} {zone['ready']}/{zone['nodes']}" for zone in document["zones"])
    parts: list[RenderableType] = [
        Text(f"{document['cluster']}  {document['version']}", style="bold"), Text(f"  {states or 'not looked at yet'}")]
    if zones:
        parts.append(Text(f"  zones: {zones}", style="dim"))
    groups = [
        [group["name"], group["ready"], group["onlineShards"], group["shards"].get("leaderless", 0),
         group["shards"].get("underReplicated", 0), group["quorum"], group["reason"]]
        for group in document["logGroups"]]
    acts = [[act["name"], act["type"], act["text"]] for act in document["reconfigurations"]]
    sections = [
        ("nodes", draw_nodes(document["nodes"]), document["nodes"]),
        ("log groups",
         table(["GROUP", "READY", "SHARDS", "#LEADERLESS", "#UNDER-REPLICATED", "QUORUM", "REASON"], groups), groups),
        ("reconfigurations", table(["NAME", "TYPE", "PROGRESS"], acts), acts)]
    for title, drawn, rows in sections:
        parts.append(Text(title, style="bold"))
        parts.append(indented(drawn if rows else Text("none", style="dim")))
    findings = [Finding(**each) for each in document["findings"]]
    parts.append(Text("what blocks", style="bold"))
    parts.append(indented(draw_findings(findings) if findings else Text("nothing", style="dim")))
    return Group(*parts)


# --- a shard --------


def explain_document(state: State, group: str, index: int) -> dict[str, Any]:
    shard = state.shard(group, index)
    found = status_of(shard)
    return {
        "shard": shard_title(shard), "state": found.get("state", ""), "epoch": found.get("epoch", 0),
        "leader": found.get("leader", ""), "inSync": found.get("inSync", ""),
        "metadataRevision": found.get("metadataRevision", 0), "operation": found.get("operation") or {},
        "members": [
            {"node": each["node"], "zone": each.get("zone", ""), "role": each.get("role", ""),
             "sync": each.get("sync", ""),
             "pod": "" if state.pods is None else pod_text(state.pods.get(each["node"])),
             "kubernetesNode": (state.nodes.get(each["node"]) or {}).get("kubernetesNode", "")}
            for each in members(shard)],
        "findings": findings_document(explain_shard(state, group, index)),
    }


def draw_explanation(document: dict[str, Any]) -> RenderableType:
    title = (f"{document['shard']}  {document['state'] or 'unknown'}  epoch {document['epoch']}  "
             f"leader {document['leader'] or '-'}  in sync {document['inSync'] or '-'}")
    rows = [
        [each["node"], each["zone"], each["role"], each["sync"], each["pod"] or "?", each["kubernetesNode"]]
        for each in document["members"]]
    findings = [Finding(**each) for each in document["findings"]]
    blocked = any(each.blocks for each in findings)
    return Group(
        Text(title, style="bold"),
        indented(table(["MEMBER", "ZONE", "ROLE", "SYNC", "POD", "MACHINE"], rows)),
        Text("why it is not moving" if blocked else "how it is", style="bold"),
        indented(draw_findings(findings)))


def shard_of(text: str) -> tuple[str, int]:
    """Return group and index of `orders/7` or `orders-0007`; raises CommandFailed."""
    group, found, index = text.rpartition("/") if "/" in text else text.rpartition("-")
    if not found or not group or not index.isdecimal():
        raise CommandFailed(f"{text!r} is not GROUP/ID", "For example orders/7.", code=USAGE, reason="USAGE")
    return group, int(index)


# --- a Reconfiguration ---


def plan_document(item: dict[str, Any], state: State) -> dict[str, Any]:
    status = status_of(item)
    plan, progress = status.get("plan") or {}, status.get("progress") or {}
    known = find_plan(state, item["spec"], plan_hash(item)) if plan else None
    return {
        "name": name_of(item), "type": item["spec"]["type"], "stage": stage(item),
        "reason": item["spec"].get("reason", ""), "approval": item["spec"].get("approval", "Automatic"),
        "approvedPlan": item["spec"].get("approvedPlan", ""), "hash": plan_hash(item),
        "throttle": item["spec"].get("throttle") or {},
        "moves": plan.get("moves", 0), "bytes": plan.get("bytes", ""), "warnings": plan.get("warnings") or [],
        "progress": progress, "text": progress_text(item),
        "planned": move_rows(state, known) if known is not None else None,
        "active": status.get("activeMoves") or [], "failed": status.get("failedMoves") or [],
        "conditions": conditions_document(status),
        "findings": findings_document(explain_reconfiguration(state, item)) if stage(item) != "Finished" else [],
    }


def draw_plan(document: dict[str, Any]) -> RenderableType:
    approved = f", approved {document['approvedPlan']}" if document["approvedPlan"] else ""
    parts: list[RenderableType] = [
        Text(f"{document['name']}  {document['type']}  {document['text']}", style="bold"),
        Text(f"  plan {document['hash'] or 'not made yet'}: {document['moves']} moves, approval "
             f"{document['approval']}{approved}")]
    if document["reason"]:
        parts.append(Text(f"  reason: {document['reason']}"))
    if document["throttle"]:
        parts.append(Text(f"  throttle: {throttle_text(document['throttle'])}"))
    parts += [Text(f"  warning: {text}", style="yellow") for text in document["warnings"]]
    over = next((each for each in document["conditions"] if each["type"] == "Succeeded"), None)
    if document["stage"] == "Finished" and over is not None:
        validated = next((each for each in document["conditions"] if each["type"] == "Validated"), over)
        message = over["message"] or validated["message"]
        parts.append(Text(f"  ended: {over['reason']}" + (f": {message}" if message else "")))
    for title, moves in (("running", document["active"]), ("given up", document["failed"])):
        if moves:
            parts.append(indented(table(["SHARD", title.upper(), "FROM", "TO", "STEP", "#ATTEMPT", "MESSAGE"], [
                [f"{move['name']}/{move['shard']}", move.get("operation", ""), move.get("from", ""),
                 move.get("to", ""), move["step"], move.get("attempt", 1), move.get("message", "")]
                for move in moves])))
    planned = document["planned"]
    if planned:
        shown = planned[:MOVES_SHOWN_MAX]
        parts.append(indented(table(["SHARD", "MOVE", "FROM", "TO"], [
            [move["shard"], move["operation"], move["from"], move["to"]] for move in shown])))
        if len(planned) > len(shown):
            parts.append(Text(f"  and {len(planned) - len(shown)} more; -o json has them all", style="dim"))
    elif planned is None and document["stage"] == "AwaitingApproval":
        parts.append(Text("  the single moves cannot be told from the objects that are shown", style="dim"))
    if document["findings"]:
        parts.append(indented(draw_findings([Finding(**each) for each in document["findings"]])))
    return Group(*parts)


def indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
