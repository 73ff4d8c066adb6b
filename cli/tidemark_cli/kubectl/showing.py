"""`status`, `nodes`, `shards`, `explain-shard`, `plan` and `version`: looking, and nothing else.

Stays out: judging (explain), acting (acts, control).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from tidemark_wire.version import VERSION

from ..output import table, write
from ..reconfigurations import status_of
from .drawing import (
    draw_explanation,
    draw_nodes,
    draw_plan,
    draw_status,
    explain_document,
    node_rows,
    plan_document,
    shard_of,
    status_document,
)
from .options import ClusterOption, Given
from .server import Server, on
from .state import State, holds, members, name_of, shard_title

ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="Default: the only one of the namespace.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the Reconfiguration.")]
ShardName = Annotated[str, typer.Argument(metavar="GROUP/ID", help="As in orders/7; orders-0007 will do too.")]


# --- status -------------------------------------------------------------------------------------------------


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
