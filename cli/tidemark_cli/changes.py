"""`tidemark swap`, `expand`, `contract`, `transfer` and `recover-shard`: acts on members and leaders.

One shard is changed through the Admin service and followed to its end; a whole node is swapped, or relieved of
its leaderships, by a Reconfiguration that goes on even when this command is interrupted.
Stays out: deciding whether an act is allowed (operator).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import tidemark
import typer
import yaml
from rich.progress import Progress

from . import completing, target
from .admin import Admin
from .failures import CommandFailed
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, RateOption, ShardArgument
from .output import emit, note, progress, table
from .reconfigurations import Follower, moves, plan_hash, reconfiguration, stage, succeeded, throttled

STAGES = {
    "TRANSFER": "moving leadership", "PREPARE": "preparing", "SNAPSHOT": "copying the log", "COMMIT": "committing",
    "DONE": "done",
}

OPTION_OF_FIELD = {
    "nodeSwap.from": "--from", "nodeSwap.to.node": "--to", "leaderTransfer.from": "--from", "leaderTransfer.to": "--to",
}
"""Options by the field of the Reconfiguration that they become."""
HOLDS_A_COPY = "already holds a copy"
"""Of the refusal of a target of a swap."""

FromOption = Annotated[
    str, typer.Option("--from", metavar="NODE", autocompletion=completing.nodes, help="Node that leaves.")]
ToOption = Annotated[
    str,
    typer.Option("--to", metavar="NODE", autocompletion=completing.nodes, help="Node that joins or takes over."),
]
AbandonOption = Annotated[
    bool,
    typer.Option(
        "--abandon-copy", help="Let the member leave though it may hold the last copy of acknowledged records.",
    ),
]
GroupOptional = Annotated[str | None, typer.Argument(metavar="GROUP", help="Log group; leave away for a whole node.")]
ShardOptional = Annotated[int | None, typer.Argument(metavar="SHARD", min=0, help="Number of the shard.")]


# --- one shard


async def change_shard(service: Admin, bar: Progress, operation: str, group: str, shard: int, **nodes: Any) -> Any:
    """Run a change and show its progress; return its last word."""
    title = f"{operation.lower()} of {group}-{shard}"
    task = bar.add_task(title, total=None)
    last = None
    async for step in service.change(operation, group, shard, **nodes):
        last = step
        bar.update(
            task, description=f"{title}: {STAGES.get(step.stage, step.stage)}", total=step.total_bytes or None,
            completed=step.received_bytes,
        )
    if last is None or last.stage != "DONE":
        raise CommandFailed(
            f"the {title} was not followed to its end", "It may still be running: see `tidemark shards`.",
            reason="INTERRUPTED",
        )
    return last


def _one_shard(
    state: Any, cluster: str | None, as_json: bool, operation: str, group: str, shard: int, **nodes: Any
) -> None:
    async def main() -> Any:
        async with target.admin(state, cluster) as service:
            with progress(data=True) as bar:
                return await change_shard(service, bar, operation, group, shard, **nodes)

    done = tidemark.run(main())
    document = {
        "operation": operation, "group": group, "shard": shard, "epoch": done.epoch, "leader": done.leader or None,
        "ensemble": list(done.ensemble),
    }
    emit(as_json, document, lambda: table(
        ["GROUP", "#SHARD", "DONE", "#EPOCH", "LEADER", "ENSEMBLE"],
        [[group, shard, operation, done.epoch, done.leader, ", ".join(done.ensemble)]],
    ))


# --- a whole node


async def run_reconfiguration(service: Admin, bar: Progress, manifest: dict[str, Any]) -> dict[str, Any]:
    """Apply a Reconfiguration and follow it; return it finished, raising CommandFailed when it did not succeed."""
    name = manifest["metadata"]["name"]
    await service.apply(yaml.safe_dump(manifest, sort_keys=False))
    follower = Follower(bar, name)
    async for items in service.watch("Reconfiguration", name):
        for item in items:
            if follower.see(item):
                return succeeded(item, f"`tidemark get reconfiguration {name} --json` has the whole of it.")
            if stage(item) == "AwaitingApproval":
                raise CommandFailed(
                    f"{name} waits for approval of its plan {plan_hash(item)}",
                    "Approve it by setting spec.approvedPlan, or set approval: Automatic on the cluster.",
                )
    raise CommandFailed(f"{name} was not followed to its end", f"See `tidemark get reconfiguration {name}`.")


def _whole_node(
    state: Any, cluster: str | None, as_json: bool, kind: str, body: dict[str, Any], rate: str = "",
    *, abandon: bool = False,
) -> None:
    more = {
        **({"throttle": throttled(rate)} if rate else {}),
        **({"preconditions": {"lastCopy": "Abandoned"}} if abandon else {}),
    }

    async def main() -> dict[str, Any]:
        async with target.admin(state, cluster) as service:
            described = await service.describe()
            manifest = reconfiguration(described.cluster, kind, body, more=more)
            name = manifest["metadata"]["name"]
            try:
                with progress() as bar:
                    return await run_reconfiguration(service, bar, manifest)
            except CommandFailed as error:
                for field, option in OPTION_OF_FIELD.items():
                    error.message = error.message.replace(field, option)
                if HOLDS_A_COPY in error.message:
                    error.advice = (
                        f"Where both nodes hold a copy of one shard, `tidemark swap --from {body['from']} --spread` "
                        "moves the copies to any nodes that the placement allows.")
                raise
            except asyncio.CancelledError:
                note(f"{name} goes on by itself; follow it with `tidemark get reconfiguration {name}`")
                raise

    item = tidemark.run(main())
    completed, total = moves(item)
    document = {
        "reconfiguration": item["metadata"]["name"], "type": kind, **body, "moves": total, "completed": completed}
    emit(as_json, document, lambda: table(
        ["RECONFIGURATION", "TYPE", "#MOVES", "#COMPLETED"],
        [[document["reconfiguration"], kind, document["moves"], document["completed"]]],
    ))


# --- commands


def swap(
    from_node: FromOption,
    to_node: Annotated[
        str | None,
        typer.Option("--to", metavar="NODE", autocompletion=completing.nodes, help="Node that joins."),
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Of a whole node: any nodes that the placement allows take its copies.")
    ] = False,
    group: GroupOptional = None,
    shard: ShardOptional = None,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Where the leaving node leads, hand leadership over first.")
    ] = False,
    abandon: AbandonOption = False,
    rate: RateOption = "",
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a member by another node: of one shard, or of every shard of a node."""
    _both_or_none(group, shard)
    if (to_node is None) is not spread:
        raise typer.BadParameter("give one of --to and --spread", param_hint="--to")
    if group is not None and shard is not None:
        if spread:
            raise typer.BadParameter("goes with the swap of a whole node", param_hint="--spread")
        if rate:
            raise typer.BadParameter("goes with the swap of a whole node", param_hint="--rate")
        _one_shard(
            state, cluster, as_json, "SWAP", group, shard, from_node=from_node, to_node=to_node, transfer=transfer,
            abandon=abandon,
        )
    else:
        _whole_node(
            state, cluster, as_json, "NodeSwap",
            {"from": from_node, "to": {"spread": {}} if spread else {"node": to_node}, "removeSource": "Keep"}, rate,
            abandon=abandon,
        )


def expand(
    group: GroupArgument,
    shard: ShardArgument,
    to_node: ToOption,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a member to a shard."""
    _one_shard(state, cluster, as_json, "EXPAND", group, shard, to_node=to_node)


def contract(
    group: GroupArgument,
    shard: ShardArgument,
    from_node: FromOption,
    force: Annotated[bool, typer.Option("--force", help="Allow fewer than three copies.")] = False,
    abandon: AbandonOption = False,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a member from a shard."""
    _one_shard(
        state, cluster, as_json, "CONTRACT", group, shard, from_node=from_node, force=force, abandon=abandon)


def transfer(
    group: GroupOptional = None,
    shard: ShardOptional = None,
    to_node: Annotated[str | None, typer.Option("--to", metavar="NODE", help="Member that takes over.")] = None,
    from_node: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="Without GROUP: node to relieve of every leadership.")
    ] = None,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand leadership to another member: of one shard, or of every shard that a node leads."""
    _both_or_none(group, shard)
    if group is not None and shard is not None:
        if to_node is None:
            raise typer.BadParameter("name the member that takes over", param_hint="--to")
        _one_shard(state, cluster, as_json, "TRANSFER", group, shard, to_node=to_node)
        return
    if from_node is None and to_node is None:
        raise typer.BadParameter("name GROUP and SHARD, or the node to relieve", param_hint="--from")
    body = {key: value for key, value in (("from", from_node), ("to", to_node)) if value is not None}
    _whole_node(state, cluster, as_json, "LeaderTransfer", body)


def recover_shard(
    group: GroupArgument,
    shard: ShardArgument,
    from_node: Annotated[str, typer.Option("--from", metavar="NODE", help="Member whose copy becomes the log.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Recover from what is left though a majority of the disks is lost."),
    ] = False,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the copy of a member the shard's log, where its leader lacks acknowledged records (DataLossSuspected).

    The other members are filled again from it. Records that it does not hold are given up. A shard that lost a
    majority of its disks elects no leader: with --accept-loss the longest copy that is left goes on, without what
    only the lost disks held.
    """
    _one_shard(state, cluster, as_json, "RECOVER", group, shard, from_node=from_node, abandon=accept_loss)


def _both_or_none(group: str | None, shard: int | None) -> None:
    if group is not None and shard is None:
        raise typer.BadParameter("name the shard too, or neither GROUP nor SHARD", param_hint="SHARD")
