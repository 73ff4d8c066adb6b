"""`status`, `nodes`, `shards`, `explain-shard`, `plan` and `version`: looking, and nothing else.

Stays out: judging (explain), acting (acts, control).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from tidemark_wire.version import VERSION

from ..failures import USAGE, CommandFailed
from ..output import table, write
from ..reconfigurations import condition_of, plan_hash, progress_text, stage, status_of, throttle_text
from .explain import Finding, explain_cluster, explain_reconfiguration, explain_shard
from .options import ClusterOption, Given
from .planning import find_plan, move_rows
from .pods import pod_text, restarts
from .server import Server, on
from .state import State, holds, members, name_of, shard_title

MOVES_SHOWN_MAX = 40

ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="Default: the only one of the namespace.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the Reconfiguration.")]
ShardName = Annotated[str, typer.Argument(metavar="GROUP/ID", help="As in orders/7; orders-0007 will do too.")]


def shard_of(text: str) -> tuple[str, int]:
    """Return group and index of `orders/7` or `orders-0007`; raises CommandFailed."""
    group, found, index = text.rpartition("/") if "/" in text else text.rpartition("-")
    if not found or not group or not index.isdecimal():
        raise CommandFailed(f"{text!r} is not GROUP/ID", "For example orders/7.", code=USAGE, reason="USAGE")
    return group, int(index)


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
        parts.append(_indented(drawn if rows else Text("none", style="dim")))
    findings = [Finding(**each) for each in document["findings"]]
    parts.append(Text("what blocks", style="bold"))
    parts.append(_indented(draw_findings(findings) if findings else Text("nothing", style="dim")))
    return Group(*parts)


def status(given: Given, cluster: ClusterArgument = "") -> None:
    """Show a cluster: its nodes, log groups, what runs, and what blocks."""
    document = status_document(on(given, lambda server: server.state(cluster)))
    write(given.form, document, lambda: draw_status(document))


def nodes(given: Given, cluster: ClusterOption = "") -> None:
    """Show the nodes with what they hold and how their pods are."""
    rows = node_rows(on(given, lambda server: server.state(cluster)))
    write(given.form, rows, lambda: draw_nodes(rows))


# --- shards -------------------------------------------------------------------------------------------------


def shards(
    given: Given,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Only this LogGroup.")] = "",
    leaderless: Annotated[bool, typer.Option("--leaderless", help="Only those that nobody leads.")] = False,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Only those with a copy there.")] = "",
    cluster: ClusterOption = "",
) -> None:
    """Show shards: leader (*), members that join (+) and leave (-), and whether all copies are in sync."""
    state = on(given, lambda server: server.state(cluster))
    if group:
        state.group(group)
    if node:
        state.check_node(node)
    rows = [
        {"shard": shard_title(shard), "state": status_of(shard).get("state", ""),
         "epoch": status_of(shard).get("epoch", 0), "leader": status_of(shard).get("leader", ""),
         "members": status_of(shard).get("members", ""), "inSync": status_of(shard).get("inSync", ""),
         "operation": status_of(shard).get("operation") or {}}
        for shard in sorted(state.shards, key=name_of)
        if (not group or shard["spec"]["logGroupRef"]["name"] == group)
        and (not leaderless or status_of(shard).get("state") in ("Leaderless", "Electing"))
        and (not node or node in [each["node"] for each in members(shard)])]
    columns = ["SHARD", "STATE", "#EPOCH", "LEADER", "MEMBERS", "IN SYNC", "UNDER WAY"]
    write(given.form, rows, lambda: table(columns, [
        [row["shard"], row["state"], row["epoch"], row["leader"], row["members"], row["inSync"],
         " ".join(str(row["operation"].get(part, "")) for part in ("type", "phase")).strip()] for row in rows]))


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
        _indented(table(["MEMBER", "ZONE", "ROLE", "SYNC", "POD", "MACHINE"], rows)),
        Text("why it is not moving" if blocked else "how it is", style="bold"),
        _indented(draw_findings(findings)))


def explain(given: Given, shard: ShardName, cluster: ClusterOption = "") -> None:
    """Say why a shard is not moving: which shard and node block it, and what to do."""
    group, index = shard_of(shard)

    async def look(server: Server) -> State:
        return await (server.state(cluster) if cluster else server.state_of_group(group))

    state = on(given, look)
    document = explain_document(state, group, index)
    write(given.form, document, lambda: draw_explanation(document))


# --- plan ---------------------------------------------------------------------------------------------------


async def reconfiguration_and_state(server: Server, name: str) -> tuple[dict[str, Any], State]:
    item = await server.get("Reconfiguration", name)
    cluster = item["spec"]["clusterRef"]["name"]
    if await server.find("TidemarkCluster", cluster) is None:
        return item, State({"kind": "TidemarkCluster", "metadata": {"name": cluster}}, reconfigurations=[item])
    return item, await server.state(cluster)


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
            parts.append(_indented(table(["SHARD", title.upper(), "FROM", "TO", "STEP", "#ATTEMPT", "MESSAGE"], [
                [f"{move['name']}/{move['shard']}", move.get("operation", ""), move.get("from", ""),
                 move.get("to", ""), move["step"], move.get("attempt", 1), move.get("message", "")]
                for move in moves])))
    planned = document["planned"]
    if planned:
        shown = planned[:MOVES_SHOWN_MAX]
        parts.append(_indented(table(["SHARD", "MOVE", "FROM", "TO"], [
            [move["shard"], move["operation"], move["from"], move["to"]] for move in shown])))
        if len(planned) > len(shown):
            parts.append(Text(f"  and {len(planned) - len(shown)} more; -o json has them all", style="dim"))
    elif planned is None and document["stage"] == "AwaitingApproval":
        parts.append(Text("  the single moves cannot be told from the objects that are shown", style="dim"))
    if document["findings"]:
        parts.append(_indented(draw_findings([Finding(**each) for each in document["findings"]])))
    return Group(*parts)


def plan(given: Given, name: NameArgument) -> None:
    """Show what a Reconfiguration comes to: its plan, its moves, how far it is."""
    item, state = on(given, lambda server: reconfiguration_and_state(server, name))
    document = plan_document(item, state)
    write(given.form, document, lambda: draw_plan(document))


# --- version ------------------------------------------------------------------------------------------------


def version(given: Given) -> None:
    """Show the versions of this program, of the API server, and of the clusters of the namespace."""
    async def ask(server: Server) -> dict[str, Any]:
        clusters = await server.list("TidemarkCluster")
        return {
            "client": VERSION, "kubernetes": await server.version(),
            "clusters": [
                {"name": name_of(item), "version": status_of(item).get("version", ""),
                 "operatorVersion": status_of(item).get("operatorVersion", ""), "ready": holds(item, "Ready")}
                for item in clusters]}

    document = on(given, ask)
    rows = [["this program", document["client"]], ["Kubernetes", document["kubernetes"]]]
    for item in document["clusters"]:
        rows.append([f"cluster {item['name']}", item["version"] or "?"])
        rows.append([f"operator of {item['name']}", item["operatorVersion"] or "?"])
    write(given.form, document, lambda: table(["WHAT", "VERSION"], rows))


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
