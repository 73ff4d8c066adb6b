"""All commands of `tidemark` put together.

Stays out: what the commands do; each has a room of its own.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from tidemark_wire.version import VERSION

from . import (
    appends,
    changes,
    debug,
    dev,
    explain,
    limbo,
    outcomes,
    reads,
    recovery,
    subscriptions,
    tails,
    target,
    views,
)
from .demo import command as demo
from .options import TlsCaOption, TlsCertOption, TlsKeyOption, TlsServerNameOption
from .running import Commands, run_app

app = typer.Typer(
    name="tidemark", cls=Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    help="Tidemark: a replicated, sharded log. Start with `tidemark dev up`, or see it all with `tidemark demo`.",
)
app.command()(demo.demo)
app.add_typer(dev.dev_app, name="dev")
app.command()(appends.append)
app.command()(reads.read)
app.command()(tails.tail)
app.add_typer(subscriptions.subscriptions_app, name="subscriptions")
app.add_typer(explain.explain_app, name="explain")
app.command()(outcomes.outcome)
app.command()(limbo.limbo)
app.command()(views.shards)
app.command()(views.get)
app.command()(views.apply)
app.command()(views.delete)
app.command()(changes.swap)
app.command()(changes.expand)
app.command()(changes.contract)
app.command()(changes.transfer)
app.command()(changes.recover_shard)
app.add_typer(debug.debug_app, name="debug")
app.command()(recovery.recover_metadata)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidemark {VERSION}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_server_name: TlsServerNameOption = None,
) -> None:
    """Tidemark: a replicated, sharded log."""
    target.give_tls(tls_ca, tls_cert, tls_key, tls_server_name)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run_app(app, "tidemark", arguments, as_json="--json" in (sys.argv[1:] if arguments is None else arguments))
