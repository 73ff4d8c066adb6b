"""Options that many commands share, in one place so that they read alike everywhere."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from tidemark_wire.profile_file import GROUP_VARIABLE, PROFILE_VARIABLE
from tidemark_wire.tls_names import ENVIRONMENT, SERVER_NAME_VARIABLE

from . import completing, identity

TIMEOUT_MAX_S = 1e9
"""About thirty years: what gRPC and an event loop take."""


def _directory(context: typer.Context, parameter: typer.CallbackParam, directory: Path) -> Path:
    source = context.get_parameter_source(parameter.name or "")
    identity.give_directory(source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"))
    return directory


DirOption = Annotated[
    Path,
    typer.Option(
        "--dir", help="State folder of the local cluster.", envvar="TIDEMARK_DIR", show_default=True,
        callback=_directory),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="HOST:PORT", envvar="TIDEMARK_CLUSTER",
        help="The operator's Admin service, or for append, read, tail, put, scan, pin, subscriptions, "
             "explain, outcome, limbo, shards, view, ks and documents any node. Default: the local cluster.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout and nothing else.")]
GroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP", envvar=GROUP_VARIABLE, autocompletion=completing.groups, help="Name of the log group."),
]
ShardArgument = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard, from 0.")]


def finite(seconds: float) -> float:
    """Return a span as it is; raises BadParameter for one without an end."""
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is no number of seconds")
    return seconds


TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.1, max=TIMEOUT_MAX_S, metavar="SECONDS", callback=finite, help="How long to try."),
]


class ReadMode(StrEnum):
    """Who sends: the client's modes that a person chooses from; with a location `scd` reads from what is near it."""

    SCD = "scd"
    ALL = "all"
    LEADER = "leader"


ModeOption = Annotated[
    ReadMode | None,
    typer.Option("--mode", help="Who sends: all members together, each record once; each everything; the leader."),
]
LocationOption = Annotated[
    str | None,
    typer.Option("--location", metavar="SCOPE=LABEL,...", help="Read from members near it, as in region=eu,zone=a."),
]
StatsOption = Annotated[
    bool, typer.Option("--stats", help="At the end, say on stderr what crossed the network, from whom.")
]
GapsOption = Annotated[bool, typer.Option("--gaps", help="Tell of offsets without a record, and read on behind them.")]
SkipUndecodableOption = Annotated[
    bool,
    typer.Option("--skip-undecodable", help="Pass over batches that no appender wrote, and count them on stderr."),
]
KeysOption = Annotated[bool, typer.Option("--keys", help="Write the key and a tab in front of each value.")]
ShardsOption = Annotated[list[int] | None, typer.Option("--shard", min=0, help="Only this shard; repeatable.")]


def _rate(text: str) -> str:
    if not text:
        return text
    from tidemark_operator.resources.base import QUANTITY, QUANTITY_MAX, quantity_bytes  # slow to load, rarely needed

    if (len(text) > QUANTITY_MAX or not re.fullmatch(QUANTITY, text) or quantity_bytes(text) < 1):
        raise typer.BadParameter(f"{text!r} is not a number of bytes a second, at least one, as in 50Mi")
    return text


RateOption = Annotated[
    str,
    typer.Option(
        "--rate", metavar="BYTES", callback=_rate, help="Bytes of snapshots a second that a node sends, as in 50Mi."),
]

TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", metavar="FILE", envvar=ENVIRONMENT["ca"],
        help="PEM of the CAs to trust, with --tls-cert and --tls-key. A local cluster with TLS needs none of them.",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", envvar=ENVIRONMENT["cert"], help="PEM of the certificate to show."),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", envvar=ENVIRONMENT["key"], help="PEM of its key."),
]
TlsServerNameOption = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name", metavar="NAME", envvar=SERVER_NAME_VARIABLE,
        help="What the nodes' certificates must name instead of their addresses.",
    ),
]

DEFAULT_DIR = Path(".tidemark")

ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", envvar=PROFILE_VARIABLE, help="Cluster of `tidemark profile`."),
]
