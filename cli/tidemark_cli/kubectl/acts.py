"""`swap-node`, `drain-node`, `expand`, `contract`, `rebalance` and `transfer-leader`: each one new Reconfiguration.

Stays out: whether an act is allowed (roles, the operator), following it (following).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ..failures import CommandFailed
from ..options import RateOption
from ..output import note, table, write
from ..reconfigurations import reconfiguration, status_of, throttled
from .drawing import shard_of
from .following import draw_outcome, follow, outcome
from .options import ClusterOption, Given
from .planning import move_rows, plan_of, unseen
from .server import Server, on
from .showing import ShardName
from .state import State, name_of, some

Object = dict[str, Any]

WaitOption = Annotated[bool, typer.Option("--wait", help="Follow it to its end. Ctrl-C leaves it running.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="With --wait: give up following; 0: never.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Ask whether it would be taken, show the moves, create nothing.")]
ApprovalOption = Annotated[
    bool, typer.Option("--require-approval", help="Stop behind the plan until somebody approves it.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with it, for example a ticket.")]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the Reconfiguration.")]
ConcurrentOption = Annotated[
    int, typer.Option("--max-concurrent", min=0, max=64, metavar="N", help="Shards at a time; 0: as the cluster says.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the LogGroup.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Only this LogGroup; may be repeated.")]
ShardsOption = Annotated[
    list[int] | None, typer.Option("--shard", min=0, metavar="ID", help="Only shards of this number: a canary.")]
NodesOption = Annotated[list[str] | None, typer.Option("--node", metavar="NODE", help="Prefer it; may be repeated.")]


class RemoveSource(StrEnum):
    """What becomes of the emptied node."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class How:
    """What every act takes."""

    dry_run: DryRunOption = False
    wait: WaitOption = False
    timeout_s: TimeoutOption = 0.0
    approval: ApprovalOption = False
    reason: ReasonOption = ""
    name: NameOption = ""

    def spec(self) -> dict[str, Any]:
        return {
            **({"approval": "Required"} if self.approval else {}), **({"reason": self.reason} if self.reason else {})}


@dataclass(frozen=True, slots=True)
class HowMany(How):
    """What acts of many moves take besides."""

    concurrent: ConcurrentOption = 0
    rate: RateOption = ""

    def spec(self) -> dict[str, Any]:
        throttle = throttled(self.rate, self.concurrent)
        return {**How.spec(self), **({"throttle": throttle} if throttle else {})}


async def act(
    server: Server, state: State, kind: str, body: Mapping[str, Any], how: How, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Create a Reconfiguration, and follow it where that is asked for; return what is shown of it."""
    manifest = reconfiguration(state.name, kind, body, name=how.name, more={**how.spec(), **(more or {})})
    if how.dry_run:
        taken = await server.create(manifest, dry_run=True)
        hidden = unseen(state)
        if hidden:
            note(f"without {some(hidden)}: its shards are not shown as objects")
        plan = plan_of(state, taken["spec"])
        return {"reconfiguration": name_of(taken), "dryRun": True, "hash": plan.hash,
                "moves": move_rows(state, plan)}
    item = await server.create(manifest)
    name = name_of(item)
    if how.wait:
        note(f"{name} is created")
        item = await follow(server, name, how.timeout_s or None)
    progress = status_of(item).get("progress") or {}
    return {**outcome(item), "bytesMoved": progress.get("bytesMoved", "0")}


def draw(document: dict[str, Any]) -> RenderableType:
    name = document["reconfiguration"]
    if document.get("dryRun"):
        head = Text(f"{len(document['moves'])} moves; nothing was created; plan {document['hash']}")
        rows = [[move["shard"], move["operation"], move["from"], move["to"]] for move in document["moves"]]
        return Group(head, table(["SHARD", "MOVE", "FROM", "TO"], rows)) if rows else head
    if document["stage"] != "Finished":
        return Text(f"{name} is created; follow it with: kubectl tidemark watch {name}")
    return draw_outcome(document, document["bytesMoved"])


def _run(
    given: Given, cluster: str, kind: str, body: Mapping[str, Any], how: How, *, nodes: list[str],
    groups: list[str] | None, shards: list[int] | None,
) -> None:
    scope = {**({"logGroups": groups} if groups else {}), **({"shardIDs": shards} if shards else {})}

    async def work(server: Server) -> dict[str, Any]:
        state = await server.state(cluster)
        for node in nodes:
            state.check_node(node)
        for group in groups or ():
            state.group(group)
        return await act(server, state, kind, body, how, {"scope": scope} if scope else None)

    document = on(given, work)
    write(given.form, document, lambda: draw(document))


# --- nodes --------------------------------------------------------------------------------------------------


def swap_node(
    given: Given, how: HowMany,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Node whose copies move.")],
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="This node takes its place.")] = "",
    provision: Annotated[
        str, typer.Option("--provision", metavar="POOL", help="A new node of this pool takes its place.")] = "",
    zone: Annotated[str, typer.Option("--zone", metavar="ZONE", help="With --provision. Default: that of FROM.")] = "",
    spread: Annotated[bool, typer.Option("--spread", help="Any nodes that the placement allows.")] = False,
    remove_source: Annotated[
        RemoveSource | None,
        typer.Option("--remove-source", help="What becomes of FROM. Default: delete with --provision, else keep."),
    ] = None,
    group: GroupsOption = None, shard: ShardsOption = None, cluster: ClusterOption = "",
) -> None:
    """Move every copy off a node: to one other, to a new one, or to whichever may have them."""
    if sum(map(bool, (to, provision, spread))) != 1:
        raise typer.BadParameter("give exactly one of --to, --provision and --spread", param_hint="--to")
    if zone and not provision:
        raise typer.BadParameter("goes with --provision", param_hint="--zone")
    target: dict[str, Any] = {"node": to} if to else {"spread": {}} if spread else {
        "provision": {"nodePool": provision, **({"zone": zone} if zone else {})}}
    removal = remove_source or (RemoveSource.DELETE if provision else RemoveSource.KEEP)
    body = {"from": source, "to": target, "removeSource": removal.value.title()}
    _run(given, cluster, "NodeSwap", body, how, nodes=[source, *([to] if to else [])], groups=group, shards=shard)


def drain_node(
    given: Given, how: HowMany, node: NodeArgument, group: GroupsOption = None, shard: ShardsOption = None,
    cluster: ClusterOption = "",
) -> None:
    """Empty a node on to whichever may have its copies, and keep it: for work on its machine."""
    body = {"from": node, "to": {"spread": {}}, "removeSource": "Keep"}
    _run(given, cluster, "NodeSwap", body, how, nodes=[node], groups=group, shards=shard)


# --- copies and leaders -------------------------------------------------------------------------------------


def _declared(
    given: Given, kind: str, group: str, nodes: list[str], how: How, more: Mapping[str, Any] | None = None,
) -> None:
    """Bring a log group one step to the factor that it declares."""
    async def work(server: Server) -> dict[str, Any]:
        state = await server.state_of_group(group)
        item = state.group(group)
        for node in nodes:
            state.check_node(node)
        factor = (item["spec"].get("replication") or {}).get("factor", 3)
        in_force = status_of(item).get("factorInForce") or {}
        there = {in_force.get("min", factor), in_force.get("max", factor)}
        step = factor - 1 if kind == "Expand" else factor + 1
        if there == {factor}:
            raise CommandFailed(
                f"every shard of {group} has the {factor} copies that it declares",
                "Change spec.replication.factor of the LogGroup first.", reason="FACTOR_MISMATCH")
        if not there <= {factor, step}:
            raise CommandFailed(
                f"{group} declares {factor} copies and has {min(there)} to {max(there)}: {kind} is a step of one",
                "See `kubectl tidemark shards`.", reason="FACTOR_MISMATCH")
        body = {"logGroup": group, "factor": factor, **({"nodes": nodes} if nodes else {})}
        if kind == "Contract":
            body.update(more or {})
        return await act(server, state, kind, body, how)

    document = on(given, work)
    write(given.form, document, lambda: draw(document))


def expand(given: Given, how: HowMany, group: GroupArgument, node: NodesOption = None) -> None:
    """Give each shard of a LogGroup the one copy more that it declares, under onFactorChange: Manual."""
    _declared(given, "Expand", group, node or [], how)


def contract(
    given: Given, how: HowMany, group: GroupArgument, node: NodesOption = None,
    below_three: Annotated[
        bool, typer.Option("--below-three", help="Allow fewer than three copies; takes the verb override.")] = False,
) -> None:
    """Take from each shard of a LogGroup the one copy that it declares no more, under onFactorChange: Manual."""
    _declared(given, "Contract", group, node or [], how, {"belowThree": "Allowed"} if below_three else None)


def rebalance(
    given: Given, how: HowMany,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Fill it; may be repeated. Default: all.")] = None,
    leaders_only: Annotated[bool, typer.Option("--leaders-only", help="Move leaderships, not copies.")] = False,
    max_move_percent: Annotated[
        int, typer.Option("--max-move-percent", min=1, max=100, help="Share of all copies that may move.")] = 100,
    group: GroupsOption = None, shard: ShardsOption = None, cluster: ClusterOption = "",
) -> None:
    """Even out copies, or leaderships, between nodes."""
    body = {**({"nodes": node} if node else {}), "leadersOnly": leaders_only, "maxMovePercent": max_move_percent}
    _run(given, cluster, "Rebalance", body, how, nodes=node or [], groups=group, shards=shard)


def transfer_leader(
    given: Given, how: How, shard: ShardName,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Member that takes over.")],
) -> None:
    """Hand the leadership of a shard to another of its members."""
    group, index = shard_of(shard)

    async def work(server: Server) -> dict[str, Any]:
        state = await server.state_of_group(group)
        state.check_node(node)
        if state.group(group)["spec"].get("shardProjection", "Full") == "Full":
            found = state.shard(group, index)
            held = [each["node"] for each in status_of(found).get("ensemble") or ()]
            if node not in held:
                raise CommandFailed(
                    f"{node} holds no copy of {group}/{index}", f"Its members are {some(held)}.",
                    reason="NOT_A_MEMBER")
        return await act(
            server, state, "LeaderTransfer", {"to": node}, how,
            {"scope": {"logGroups": [group], "shardIDs": [index]}})

    document = on(given, work)
    write(given.form, document, lambda: draw(document))
