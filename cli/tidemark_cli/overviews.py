"""`tidemark status`, `nodes`, `explain shard`, `describe` and `doctor`: how a cluster is, and why it does not go on.

The objects that the operator shows, judged and drawn as the plugin of kubectl does it.
Stays out: judging (kubectl.explain), pictures (kubectl.drawing).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any

import grpc
import tidemark
import typer
from rich.console import Group, RenderableType
from rich.text import Text
from tidemark_operator import local
from tidemark_wire.version import VERSION

from . import target
from .admin import Admin
from .failures import FAILED, CommandFailed
from .kubectl import drawing
from .kubectl.explain import Finding, explain_cluster
from .kubectl.pods import node_trouble
from .kubectl.state import State, members, name_of, said, shard_title
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption
from .output import emit, table
from .reconfigurations import condition_of, progress_text, status_of

Object = dict[str, Any]

_TODO = (
    (re.compile(r"kubectl tidemark (?:watch|plan) (\S+)"), r"tidemark describe reconfiguration \1"),
    (re.compile(r"kubectl tidemark shards --leaderless"), "tidemark shards"),
    (re.compile(r"kubectl tidemark status"), "tidemark status"),
    (re.compile(r"See `kubectl logs (\S+)` and `kubectl describe pod \1`\."),
     r"See `tidemark dev status` and the log of \1; on Kubernetes, its pod."),
    (re.compile(r"kubectl tidemark approve (\S+)"),
     r"Set spec.approvedPlan of \1 with `tidemark apply`; on Kubernetes: kubectl tidemark approve \1"),
)


# --- reading


async def state_of(service: Admin) -> State:
    """Return the operator's cluster with all that belongs to it, without pods, which it does not show."""
    clusters, groups, shards, acts = await asyncio.gather(
        *(service.get(kind) for kind in ("TidemarkCluster", "LogGroup", "Shard", "Reconfiguration")))
    if not clusters:
        raise CommandFailed(
            f"the operator at {service.address} has no cluster yet", "Apply a TidemarkCluster first.",
            reason="NOT_FOUND")
    return State(clusters[0], groups, shards, acts, None)


def _look(directory: Any, cluster: str | None) -> State:
    async def main() -> State:
        async with target.admin(directory, cluster) as service:
            return await state_of(service)

    return tidemark.run(main())


def local_advice(document: Any) -> Any:
    """Return findings with advice that fits this program: what the plugin advises needs Kubernetes."""
    for each in document:
        for pattern, put in _TODO:
            each["todo"] = pattern.sub(put, each["todo"])
    return document


# --- status and nodes


def status(state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Show the cluster: its nodes, log groups, what is under way, and what blocks."""
    document = drawing.status_document(_look(state, cluster))
    local_advice(document["findings"])
    emit(as_json, document, lambda: drawing.draw_status(document))


def nodes(state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Show the nodes: where they stand, whether they answer, what they hold and lead."""
    rows = drawing.node_rows(_look(state, cluster))
    columns = ["NODE", "ZONE", "STATE", "READY", "#LEADERS", "#COPIES", "VERSION", "MESSAGE"]
    emit(as_json, {"nodes": rows}, lambda: table(columns, [
        [row["name"], row["zone"], row["state"], "yes" if row["ready"] else "no", row["leaders"], row["replicas"],
         row["version"], row["message"]] for row in rows]))


# --- explain shard


def shard(
    name: Annotated[str, typer.Argument(metavar="GROUP/ID", help="As in orders/7; orders-0007 will do too.")],
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a shard is not moving: which shard and node block it, and what to do."""
    group, index = drawing.shard_of(name)
    document = drawing.explain_document(_look(state, cluster), group, index)
    local_advice(document["findings"])
    emit(as_json, document, lambda: drawing.draw_explanation(document))


# --- describe


describe_app = typer.Typer(
    no_args_is_help=True, help="Describe one group, node or Reconfiguration, and what holds it up.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


def _conditions(document: Object) -> RenderableType:
    return drawing.indented(table(["CONDITION", "STATUS", "REASON", "MESSAGE"], [
        [each["type"], each["status"], each["reason"], each["message"]] for each in document["conditions"]]))


def _findings(document: Object) -> list[RenderableType]:
    found = [Finding(**each) for each in document["findings"]]
    drawn = drawing.draw_findings(found) if found else Text("nothing", style="dim")
    return [Text("what blocks", style="bold"), drawing.indented(drawn)]


def _shard_rows(shards: list[Object]) -> list[Object]:
    return [
        {"shard": shard_title(each), "state": status_of(each).get("state", ""),
         "epoch": status_of(each).get("epoch", 0), "leader": status_of(each).get("leader", ""),
         "members": [member["node"] for member in members(each)], "inSync": status_of(each).get("inSync", "")}
        for each in sorted(shards, key=name_of)]


def _draw_shards(rows: list[Object]) -> RenderableType:
    return drawing.indented(table(["SHARD", "STATE", "#EPOCH", "LEADER", "MEMBERS", "IN SYNC"], [
        [row["shard"], row["state"], row["epoch"], row["leader"], ", ".join(row["members"]), row["inSync"]]
        for row in rows]))


def _concerning(found: list[Finding], test: Callable[[Finding], bool]) -> list[Object]:
    return list(local_advice(drawing.findings_document([each for each in found if test(each)])))


@describe_app.command()
def group(
    name: NameArgument, state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False,
) -> None:
    """Describe a log group: its spec, its conditions, its shards, and what blocks it."""
    seen = _look(state, cluster)
    item = seen.group(name)
    rows = _shard_rows([each for each in seen.shards if each["spec"]["logGroupRef"]["name"] == name])
    titles = {row["shard"] for row in rows}
    document = {
        "name": name, "spec": item["spec"], "conditions": drawing.conditions_document(status_of(item)), "shards": rows,
        "findings": _concerning(
            explain_cluster(seen), lambda each: each.shard in titles or f"LogGroup {name}" in each.what),
    }
    replication = item["spec"].get("replication") or {}
    emit(as_json, document, lambda: Group(
        Text(f"{name}  {item['spec'].get('shards', 1)} shards, {replication.get('factor', '?')} copies", style="bold"),
        _conditions(document), Text("shards", style="bold"), _draw_shards(rows), *_findings(document)))


@describe_app.command()
def node(
    name: NameArgument, state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False,
) -> None:
    """Describe a node: its state, the shards that it holds and leads, and what is wrong with it."""
    seen = _look(state, cluster)
    seen.check_node(name)
    held = [each for each in seen.shards if name in [member["node"] for member in members(each)]]
    rows, trouble = _shard_rows(held), node_trouble(seen, name)
    found = [Finding(trouble.what, trouble.todo, node=name)] if trouble is not None else []
    found += [each for each in explain_cluster(seen) if each.node == name and each.what != (trouble and trouble.what)]
    document = {**seen.nodes[name], "shards": rows, "findings": _concerning(found, lambda each: True)}
    told = seen.nodes[name]
    emit(as_json, document, lambda: Group(
        Text(f"{name}  {told.get('state', '')}  zone {told.get('zone') or '-'}  {told.get('address', '')}",
             style="bold"),
        Text(f"  version {told.get('version') or '?'}, leads {told.get('leaders', 0)}, "
             f"holds {told.get('replicas', 0)} copies"),
        Text("shards", style="bold"), _draw_shards(rows) if rows else Text("  none", style="dim"),
        *_findings(document)))


@describe_app.command()
def reconfiguration(
    name: NameArgument, state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False,
) -> None:
    """Describe a Reconfiguration: its plan, its moves, how far it is, and what holds it up."""
    seen = _look(state, cluster)
    item = next((each for each in seen.reconfigurations if name_of(each) == name), None)
    if item is None:
        raise CommandFailed(
            f"there is no Reconfiguration {name!r}", "`tidemark get reconfiguration` lists them.", reason="NOT_FOUND")
    document = drawing.plan_document(item, seen)
    local_advice(document["findings"])
    emit(as_json, document, lambda: drawing.draw_plan(document))


# --- doctor


def check(name: str, bad: str = "", todo: str = "", good: str = "") -> Object:
    """Return one line of a diagnosis: `bad` is what is wrong, empty where nothing is."""
    return {"check": name, "ok": not bad, "what": bad or good, "todo": todo if bad else ""}


def _by_condition(cluster: Object, name: str, kind: str, todo: str, *, good: str, abnormal: bool = False) -> Object:
    found = condition_of(cluster, kind)
    wrong = found.get("status") == ("True" if abnormal else "False")
    return check(name, said(found) or f"{kind} is {found.get('status')}" if wrong else "", todo, good)


def diagnosis(seen: State, version: str) -> list[Object]:
    """Return the checks of a cluster that its operator shows."""
    cluster, local_nodes = seen.cluster, seen.nodes
    wrong = [trouble for name in local_nodes if (trouble := node_trouble(seen, name)) is not None]
    old = sorted(
        f"{name} {told['version']}" for name, told in local_nodes.items()
        if told.get("version") and told["version"] != version)
    checks = [
        _by_condition(cluster, "etcd", "MetadataStoreReachable", "Put etcd right: spec.metadataStore says where it is.",
                      good="answers the operator"),
        check("nodes", "; ".join(each.what for each in wrong), wrong[0].todo if wrong else "",
              f"{len(local_nodes)} of {len(local_nodes)} are ready"),
        _by_condition(cluster, "links", "NodesDisconnected", "Look for what lies between the two machines.",
                      good="the nodes hear each other", abnormal=True),
        _by_condition(cluster, "disks", "DiskFull", "Shorten retention, let volumes grow, or move copies away.",
                      good="none is full", abnormal=True),
        _by_condition(cluster, "clocks", "ClockSkew", "Let all machines take their time from one source (NTP).",
                      good="agree within a minute", abnormal=True),
        _by_condition(cluster, "certificates", "CertificatesValid", "See docs/security.md.",
                      good="valid, or not asked for"),
        check("versions", f"the operator runs {version}, and " + ", ".join(old) if old else "",
              "Roll the nodes on to the operator's version.", f"all run {version}"),
        _by_condition(cluster, "leaders", "Available", "`tidemark explain shard GROUP/ID` says why.",
                      good="every shard has one"),
        _by_condition(cluster, "copies", "FullyReplicated", "`tidemark explain shard GROUP/ID` says why.",
                      good="all are up and in sync"),
    ]
    if version != VERSION:
        checks.append(check("this program", f"is {VERSION}, the operator is {version}", "Install the same release."))
    acts = seen.unfinished()
    stalled = [name_of(each) for each in acts if condition_of(each, "Stalled").get("status") == "True"]
    checks.append(check(
        "reconfigurations", "; ".join(f"{name_of(each)}: {progress_text(each)}" for each in acts) if stalled else "",
        f"tidemark describe reconfiguration {stalled[0]}" if stalled else "", f"{len(acts)} under way, none stalled"))
    groups = [
        f"{name_of(each)}: {said(condition_of(each, 'Ready'))}" for each in seen.groups
        if condition_of(each, "Ready").get("status") == "False"]
    checks.append(check(
        "log groups", "; ".join(groups), "tidemark describe group NAME", f"{len(seen.groups)} are ready"))
    local_advice(checks)
    return checks


def doctor(state: DirOption = DEFAULT_DIR, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Check processes, etcd, operator, nodes, disks, clocks, certificates and versions, and say what to do.

    The exit code is 1 when a check fails.
    """
    checks: list[Object] = []

    async def main() -> None:
        if target.place_of(state, cluster)[0] is None:   # the local cluster, whose processes are of this machine
            stopped = [each for each in (await local.attach(state)).status() if each.state != "Running"]
            checks.append(check(
                "processes", ", ".join(f"{each.name} is {each.state.lower()}" for each in stopped),
                "; ".join(f"tidemark dev {'resume' if each.state == 'Paused' else 'start'} {each.name}"
                          for each in stopped), "all run"))
        try:
            async with target.admin(state, cluster) as service:
                described = await service.describe()
                checks.append(check("operator", good=f"{described.operator or 'operator'} {described.version} answers"))
                checks.extend(diagnosis(await state_of(service), described.version))
        except grpc.aio.AioRpcError as error:
            checks.append(check(
                "operator", f"does not answer: {error.code().name} {error.details()}",
                "Start it, or look at its log; what nodes serve goes on without it."))

    tidemark.run(main())
    good = all(each["ok"] for each in checks)
    emit(as_json, {"ok": good, "checks": checks}, lambda: Group(*(_drawn(each) for each in checks)))
    if not good:
        raise typer.Exit(FAILED)


def _drawn(each: Object) -> RenderableType:
    word = ("ok  ", "green") if each["ok"] else ("FAIL", "bold red")
    line = Text.assemble(word, f"  {each['check']}: {each['what']}")
    return line if each["ok"] or not each["todo"] else Group(line, Text(f"      -> {each['todo']}", style="dim"))
