"""`tidemark dev`: a whole cluster on this machine: etcd, an operator and nodes as processes of their own.

It listens on loopback only; without --tls it has no security.  Stays out: running processes (operator's local runtime),
certificates (certs).
"""

from __future__ import annotations

import shlex
from collections.abc import Coroutine
from typing import Annotated, Any

import tidemark
import typer
from tidemark_operator import local
from tidemark_wire.tls_names import ENVIRONMENT

from .certs import certs_app
from .failures import FAILED
from .options import DEFAULT_DIR, DirOption, JsonOption
from .output import emit, fail, note, stderr, table
from .views import DOCUMENTS_APART, read_manifests

dev_app = typer.Typer(no_args_is_help=True, help="Run a whole cluster on this machine, for development.")
dev_app.add_typer(certs_app, name="certs")

NamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Nodes such as dev-1, or `operator`, or `etcd`.")
]


def status_document(runtime: local.Runtime) -> dict[str, Any]:
    """Return the processes of a local cluster as plain data."""
    return {
        "cluster": runtime.cluster,
        "directory": str(runtime.directory),
        "etcd": runtime.etcd_origin,
        "admin": runtime.admin_address,
        "insecure": runtime.tls is None,
        "processes": [
            {
                "name": view.name, "role": view.role, "state": view.state, "pid": view.pid,
                "address": view.address, "log": view.log,
            }
            for view in runtime.status()
        ],
    }


def _show(runtime: local.Runtime, as_json: bool) -> None:
    document = status_document(runtime)
    emit(as_json, document, lambda: table(
        ["NAME", "ROLE", "STATE", "#PID", "ADDRESS", "LOG"],
        [[p["name"], p["role"], p["state"], p["pid"] or "", p["address"], p["log"]] for p in document["processes"]],
        title=f"cluster {document['cluster']}, {document['etcd']}; loopback only, "
              f"{'insecure' if document['insecure'] else 'mutual TLS'}",
    ))


@dev_app.command()
def up(
    files: Annotated[
        list[str] | None, typer.Option("-f", "--file", metavar="FILE", help="Manifests to apply; may be repeated.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, max=32, help="How many nodes; default 3.")] = None,
    zones: Annotated[
        list[str] | None, typer.Option("--zone", help="Zones, dealt to the nodes in turn; may be repeated.")
    ] = None,
    locations: Annotated[
        list[str] | None,
        typer.Option(
            "--location", metavar="SCOPE=LABEL,...",
            help="The same with more scopes than the zone, as in region=eu,zone=a,rack=r1; may be repeated.",
        ),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option("--tls/--no-tls", help="Mutual TLS with a CA of the cluster's own; a new cluster has none.",
                     show_default=False),
    ] = None,
    state: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster, or attach to the one in --dir and start what of it does not run; then return."""
    manifests = DOCUMENTS_APART.join(read_manifests(file) for file in files or [])
    places = _places(zones, locations)
    with stderr.status("starting") as spinner:
        runtime = tidemark.run(
            local.up(
                state, manifests, nodes=nodes, locations=places, tls=tls, progress=lambda line: spinner.update(line))
        )
    _show(runtime, as_json)


@dev_app.command()
def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the data too.")] = False,
    state: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Stop every process of the cluster; the data stays unless --wipe is given."""
    with stderr.status("stopping"):
        stopped = tidemark.run(local.down(state, wipe=wipe))
    document = {"stopped": stopped, "wiped": wipe}
    emit(as_json, document, lambda: f"stopped {', '.join(stopped) or 'nothing'}" + (", data deleted" if wipe else ""))


@dev_app.command()
def status(state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Show the processes of the cluster."""
    _show(tidemark.run(local.attach(state)), as_json)


@dev_app.command()
def env(state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Write the shell lines that make this cluster the one of every command and of `tidemark.connect()`.

    For example: eval "$(tidemark dev env)"
    """
    runtime = tidemark.run(local.attach(state))
    variables = {"TIDEMARK_DIR": str(runtime.directory), "TIDEMARK_NODES": ",".join(runtime.node_addresses().values())}
    if (tls := runtime.tls) is not None:
        files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
        variables |= {ENVIRONMENT[part]: str(path) for part, path in files.items()}
    emit(as_json, variables, lambda: "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in variables.items()))


@dev_app.command()
def kill(names: NamesArgument, state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Kill processes with SIGKILL."""
    _each(state, as_json, names, "killed", local.Runtime.kill)


@dev_app.command()
def pause(names: NamesArgument, state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Stop processes in their tracks (SIGSTOP); their connections stay open."""
    _each(state, as_json, names, "paused", local.Runtime.pause)


@dev_app.command()
def resume(names: NamesArgument, state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Let paused processes go on."""
    _each(state, as_json, names, "resumed", local.Runtime.resume)


@dev_app.command()
def start(names: NamesArgument, state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Start processes that do not run, with their old data."""
    _each(state, as_json, names, "started", local.Runtime.start)


@dev_app.command()
def stop(names: NamesArgument, state: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Stop processes gracefully; a node hands its leaderships over first."""
    _each(state, as_json, names, "stopped", local.Runtime.stop)


@dev_app.command("add-node")
def add_node(
    zone: Annotated[str, typer.Option("--zone", help="Zone of the new node.")] = "",
    location: Annotated[
        str, typer.Option("--location", metavar="SCOPE=LABEL,...", help="The same with more scopes than the zone.")
    ] = "",
    state: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Start one more node: a spare until something is moved to it."""

    (place,) = _places([zone] if zone else None, [location] if location else None) or ("",)

    async def main() -> str:
        return await (await local.attach(state)).add_node(place)

    name = tidemark.run(main())
    emit(as_json, {"added": name}, lambda: f"{name} started")


def _places(zones: list[str] | None, locations: list[str] | None) -> list[str]:
    """Return locations; a zone alone is one."""
    if zones and locations:
        raise typer.BadParameter("give either --zone or --location, which has the zone in it", param_hint="--location")
    return locations or [f"zone={zone}" for zone in zones or ()]


def _each(state: Any, as_json: bool, names: list[str], done: str, act: Any) -> None:
    finished: list[str] = []
    failed: list[tuple[str, local.LocalRuntimeError]] = []

    async def main() -> None:
        runtime = await local.attach(state)
        for name in dict.fromkeys(names):
            try:
                result = act(runtime, name)
                if isinstance(result, Coroutine):
                    await result
            except local.LocalRuntimeError as error:
                failed.append((name, error))
                continue
            finished.append(name)
            if not as_json:
                note(f"{name} {done}")

    tidemark.run(main())
    if as_json:
        failures = [{"name": name, "message": str(error), "advice": error.advice} for name, error in failed]
        emit(True, {done: finished, **({"failed": failures} if failures else {})}, str)
    for _, error in failed:
        fail(str(error), error.advice)
    if failed:
        raise typer.Exit(FAILED)
