"""`approve`, `suspend`, `resume`, `throttle`, `cancel`, `watch`, `restart`, `pause`, `unpause`: acts on what is there.

Reconfigurations are told by fields of their spec, restarts and pauses by the annotations of the API.
Stays out: what follows from it (operator).
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from tidemark_operator.resources.labels import Annotation

from ..failures import CommandFailed
from ..options import RateOption
from ..output import stderr, write
from ..reconfigurations import stage, status_of, throttle_text, throttled
from .drawing import draw_plan, plan_document
from .following import draw_outcome, follow, outcome
from .options import ClusterOption, Given
from .server import Server, on
from .showing import NameArgument, reconfiguration_and_state
from .state import missing, name_of

Object = dict[str, Any]

TargetArgument = Annotated[str, typer.Argument(metavar="NODE|CLUSTER", help="One node, or every node of a cluster.")]


# --- approval -----------------------------------------------------------------------------------------------


def approve(
    given: Given, name: NameArgument,
    plan: Annotated[
        str, typer.Option("--plan", metavar="HASH", help="Approve this plan and no other, without a question.")] = "",
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Approve what is shown without a question.")] = False,
) -> None:
    """Show the plan of a Reconfiguration and approve it; one with other moves than these needs another approval."""
    async def work(server: Server) -> dict[str, Any]:
        item, state = await reconfiguration_and_state(server, name)
        document = plan_document(item, state)
        shown = document["hash"]
        if document["stage"] == "Finished":
            raise CommandFailed(f"{name} is over", f"kubectl tidemark plan {name}", reason="FINISHED")
        if document["approval"] != "Required":
            raise CommandFailed(f"{name} asks for no approval: its approval is {document['approval']}", "",
                                reason="NO_APPROVAL")
        if not shown:
            raise CommandFailed(f"{name} has no plan yet", "Try again in a moment.", reason="NO_PLAN")
        if plan and plan != shown:
            raise CommandFailed(f"the plan of {name} is {shown}, not {plan}", f"kubectl tidemark plan {name}",
                                reason="PLAN_CHANGED")
        if document["approvedPlan"] == shown:
            return {**document, "done": "was approved already"}
        stderr.print(draw_plan({**document, "findings": []}))  # that it waits for this is no news
        if not (plan or yes):
            _ask(name, shown)
        await server.change("Reconfiguration", name, {"spec": {"approvedPlan": shown}})
        return {**document, "approvedPlan": shown, "done": "approved"}

    document = on(given, work)
    write(given.form, document, lambda: f"Reconfiguration/{name} {document['done']}: {document['approvedPlan']}")


def _ask(name: str, shown: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(
            "nobody is there to ask", f"kubectl tidemark approve {name} --plan {shown}", code=2, reason="USAGE")
    if not typer.confirm(f"Approve {shown}?", err=True):
        raise CommandFailed("not approved", "", reason="NOT_APPROVED")


# --- suspend, resume, throttle, cancel ----------------------------------------------------------------------


def _set(given: Given, name: str, done: str, **fields: Any) -> None:
    async def work(server: Server) -> None:
        item = await server.get("Reconfiguration", name)
        if stage(item) == "Finished":
            raise CommandFailed(f"{name} is over", f"kubectl tidemark plan {name}", reason="FINISHED")
        await server.change("Reconfiguration", name, {"spec": fields})

    on(given, work)
    document = {"kind": "Reconfiguration", "name": name, "done": done}
    write(given.form, document, lambda: f"Reconfiguration/{name} {done}")


def suspend(given: Given, name: NameArgument) -> None:
    """Let the moves that run end, and start no other."""
    _set(given, name, "suspended: moves that run end, no other starts", suspend=True)


def resume(given: Given, name: NameArgument) -> None:
    """Go on with a suspended Reconfiguration."""
    _set(given, name, "resumed", suspend=False)


def throttle(
    given: Given, name: NameArgument, rate: RateOption = "",
    concurrent: Annotated[
        int | None, typer.Option("--max-concurrent", min=1, max=64, metavar="N", help="Shards at a time.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Both as the cluster says again.")] = False,
) -> None:
    """Change how fast a Reconfiguration moves copies, also while it runs; what is not named stays as it is."""
    wanted = throttled(rate, concurrent or 0)
    if bool(wanted) == default:
        raise typer.BadParameter("give --rate, --max-concurrent, or both; or --default alone", param_hint="--rate")
    _set(given, name, f"throttled: {throttle_text(wanted)}", throttle=wanted or None)


def cancel(given: Given, name: NameArgument) -> None:
    """Give up what is not committed yet. What was moved stays moved, and this cannot be taken back."""
    _set(given, name, "canceled: what is committed is brought to its end", cancel=True)


def watch(
    given: Given, name: NameArgument,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="Give up following; 0: never.")] = 0.0,
) -> None:
    """Follow a Reconfiguration to its end: stage, moves, bytes, percent. Ctrl-C leaves it running."""
    async def work(server: Server) -> Object:
        await server.get("Reconfiguration", name)
        return await follow(server, name, timeout_s or None)

    item = on(given, work)
    progress = status_of(item).get("progress") or {}
    document = {**outcome(item), "progress": progress}
    write(given.form, document, lambda: draw_outcome(document, progress.get("bytesMoved", "0")))


# --- restarts and pauses ------------------------------------------------------------------------------------


def restart(given: Given, target: TargetArgument) -> None:
    """Have nodes restarted as in a rollout: one at a time, leaderships handed over first."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    changes = {"metadata": {"annotations": {Annotation.RESTARTED_AT.value: at}}}

    async def work(server: Server) -> dict[str, Any]:
        clusters = await server.list("TidemarkCluster")
        names = [name_of(item) for item in clusters]
        if target in names:
            await server.change("TidemarkCluster", target, changes)
            return {"kind": "TidemarkCluster", "name": target, "restartedAt": at}
        nodes = [node["name"] for item in clusters for node in status_of(item).get("nodes") or ()]
        if target not in nodes:
            raise missing("node or cluster", target, f"namespace {server.namespace}", [*names, *nodes])
        await server.change("Pod", target, changes)
        return {"kind": "Pod", "name": target, "restartedAt": at}

    document = on(given, work)
    write(given.form, document, lambda: f"{document['kind']}/{target} is to be restarted: the operator does it")


def _annotate(given: Given, cluster: str, value: str | None, done: str) -> None:
    async def work(server: Server) -> str:
        name = name_of(await server.cluster(cluster))
        await server.change("TidemarkCluster", name, {"metadata": {"annotations": {Annotation.PAUSE.value: value}}})
        return name

    name = on(given, work)
    write(given.form, {"kind": "TidemarkCluster", "name": name, "done": done}, lambda: f"TidemarkCluster/{name} {done}")


def pause(given: Given, cluster: ClusterOption = "") -> None:
    """Let the spec of a cluster and its pods rest. Elections, fencing and statuses go on."""
    _annotate(given, cluster, "true", "paused: changed specs wait, elections go on")


def unpause(given: Given, cluster: ClusterOption = "") -> None:
    """Take a pause back; what waited is caught up with."""
    _annotate(given, cluster, None, "goes on")
