"""All commands of `tidemark` put together.

Stays out: what the commands do; each has a room of its own.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from tidemark_wire.version import VERSION

from .forms import asked_for
from .identity import give_profile, give_tls
from .options import ProfileOption, TlsCaOption, TlsCertOption, TlsKeyOption, TlsServerNameOption
from .rooms import PLAIN, Room, lazy, stub
from .running import run_app

ROOMS = {
    "demo": Room("demo.command", "demo",
        "Lose a leader, swap a node, kill a sender and owners, pause a majority, lose nothing: in about a minute."),
    "dev": Room("dev", "dev_app", "Run a whole cluster on this machine, for development."),
    "append": Room("appends", "append", "Append the lines of FILE, one record each."),
    "read": Room("reads", "read", "Read the records of GROUP, each shard in its order."),
    "tail": Room(
        "tails", "tail", "Read the last records of each shard of GROUP, and with --follow what comes behind them."),
    "put": Room("document_puts", "put", "Put one document, or with --file one for each line."),
    "scan": Room("documents", "scan", "Write the documents of GROUP to stdout: key, a tab and value, one per line."),
    "changes": Room(
        "document_streams", "changes",
        "Show the changes of GROUP: first its documents as they are, and with --follow what comes later."),
    "barrier": Room(
        "document_streams", "barrier",
        "Say up to where GROUP is confirmed now, on every shard: a consumer that has this has everything."),
    "failover-log": Room(
        "document_streams", "failover_log",
        "Show which epoch wrote which seqnos of GROUP: the newest 25 elections of every shard."),
    "ks": Room("keyspaces", "ks_app", "Keyspaces: Strings, Sets and Maps by key, without a leader."),
    "pin": Room("documents", "pin_app", "Named states of documents, which every member keeps for a while."),
    "view": Room("view", "view_app", "A SQLite file that follows the documents of a group."),
    "sinks": Room("sinks", "sinks_app", "Jobs that write in batches: how far each has come."),
    "subscriptions": Room("subscriptions", "subscriptions_app", "Named readers: where they stand, what they keep."),
    "explain": Room("explain", "explain_app", "Say why things go as they go."),
    "outcome": Room("outcomes", "outcome", "Say what became of a batch: CONFIRMED, ROLLED_BACK, UNKNOWN or NOT_FOUND."),
    "limbo": Room("limbo", "limbo", "Show what is appended and not yet confirmed: who waits for whom."),
    "backup": Room(
        "backups", "backup",
        "Write the documents of GROUP, or a keyspace, to a folder; or verify such a folder."),
    "restore": Room(
        "backups", "restore",
        "Restore a backup into an empty group of kind Documents, and compare the two key by key; or into a keyspace."),
    "shards": Room(
        "views", "shards",
        "Show every shard: its leader (*), its members, those away in brackets, how many keep each payload."),
    "status": Room(
        "overviews", "status", "Show the cluster: its nodes, log groups, what is under way, and what blocks."),
    "nodes": Room(
        "overviews", "nodes", "Show the nodes: where they stand, whether they answer, what they hold and lead."),
    "describe": Room(
        "overviews", "describe_app", "Describe one group, node or Reconfiguration, and what holds it up."),
    "doctor": Room(
        "overviews", "doctor",
        "Check processes, etcd, operator, nodes, disks, clocks, certificates and versions, and say what to do."),
    "get": Room("documents", "get", "Show documents by key, or objects with their status."),
    "apply": Room("views", "apply", "Apply manifests, the same files that kubectl takes."),
    "delete": Room("documents", "delete", "Delete a document, or an object as its own policy says."),
    "swap": Room("changes", "swap", "Replace a member by another node: of one shard, or of every shard of a node."),
    "expand": Room("changes", "expand", "Add a member to a shard."),
    "contract": Room("changes", "contract", "Remove a member from a shard."),
    "transfer": Room(
        "changes", "transfer",
        "Hand leadership to another member: of one shard, or of every shard that a node leads."),
    "recover-shard": Room(
        "changes", "recover_shard",
        "Make the copy of a member the shard's log, where its leader lacks acknowledged records (DataLossSuspected)."),
    "profile": Room("profiles", "profile_app", "Named clusters: where they are, the certificate to use."),
    "debug": Room("debug", "debug_app", "Look inside a running cluster."),
    "recover-metadata": Room(
        "recovery", "recover_metadata",
        "Rebuild the metadata in etcd from what the nodes persisted, after etcd was lost or an old backup restored."),
}
"""Every command, in the order of the help, with the first line of its own help."""

app = typer.Typer(
    name="tidemark", cls=lazy(ROOMS), no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    rich_markup_mode=PLAIN,
    help="Tidemark: a replicated, sharded log. Start with `tidemark dev up`, or see it all with `tidemark demo`.",
)
for _name, _room in ROOMS.items():
    app.command(_name)(stub(_room))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidemark {VERSION}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    profile: ProfileOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_server_name: TlsServerNameOption = None,
) -> None:
    """Tidemark: a replicated, sharded log."""
    give_profile(profile)
    give_tls(tls_ca, tls_cert, tls_key, tls_server_name)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_app(app, "tidemark", given, form=asked_for(given))
