"""All commands of `kubectl tidemark` put together.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 Ctrl-C.
Stays out: what the commands do; each has a room of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from ..forms import asked_for
from ..running import Commands, run_app
from . import acts, control, report, showing
from .options import on_server

PROGRAM = "kubectl tidemark"

app = typer.Typer(
    name=PROGRAM, cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Tidemark on Kubernetes: look at clusters, swap and drain nodes, follow what runs, see what blocks.",
)


def _add(panel: str, *commands: Callable[..., None], **named: Callable[..., None]) -> None:
    plain = {command.__name__.replace("_", "-"): command for command in commands}
    for name, command in (plain | named).items():
        app.command(name, rich_help_panel=panel)(on_server(command))


_add("Look", showing.status, showing.nodes, showing.shards, **{"explain-shard": showing.explain})
_add("Act", acts.swap_node, acts.drain_node, acts.expand, acts.contract, acts.rebalance, acts.transfer_leader)
_add("What runs", showing.plan, control.approve, control.watch, control.suspend, control.resume, control.throttle,
     control.cancel)
_add("Operate", control.restart, control.pause, control.unpause, report.report, showing.version)


@app.callback()
def _app() -> None:
    """Tidemark on Kubernetes: look at clusters, swap and drain nodes, follow what runs, see what blocks."""


ANYWHERE = ("--kubeconfig", "--context", "--namespace", "-n")
"""Options that kubectl takes in front of a command too."""


def command_first(arguments: list[str]) -> list[str]:
    """Return a command line with the options in front of the command behind it."""
    front = 0
    while front < len(arguments) and arguments[front].partition("=")[0] in ANYWHERE:
        front += 1 if "=" in arguments[front] else 2
    return [*arguments[front : front + 1], *arguments[:front], *arguments[front + 1 :]]


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    given = command_first(sys.argv[1:] if arguments is None else arguments)
    return run_app(app, PROGRAM, given, form=asked_for(given))
