"""All commands put together, and every failure turned into a line and an exit code.

Stays out: what the commands do; each has a room of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import appends, changes, debug, dev, explain, limbo, outcomes, reads, subscriptions, tails, target, views
from .demo import command as demo
from .failures import INTERRUPTED, OK, describe
from .options import TlsCaOption, TlsCertOption, TlsKeyOption, TlsServerNameOption
from .output import fail


class Interrupted(Exception):
    """Ctrl-C, in a form that typer leaves to us."""


class Commands(TyperGroup):
    """The commands, with Ctrl-C handed to `run`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


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
app.add_typer(debug.debug_app, name="debug")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tidemark {version('tidemark')}")
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
    try:
        app(arguments, prog_name="tidemark")
    except SystemExit as ended:  # help, wrong usage, or a command's own exit code
        return ended.code if isinstance(ended.code, int) else OK
    except Interrupted:
        fail("interrupted")
        return INTERRUPTED
    except Exception as error:
        failure = describe(error)
        if failure is None:
            raise  # a bug: its traceback is what we want to see
        if _wants_json(arguments):
            print(json.dumps({"error": failure.reason, "message": failure.message, "advice": failure.advice}))
        fail(failure.message, failure.advice)
        return failure.code
    return OK


def _wants_json(arguments: list[str] | None) -> bool:
    return "--json" in (sys.argv[1:] if arguments is None else arguments)
