"""Options that many commands share, in one place so that they read alike everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DirOption = Annotated[
    Path, typer.Option("--dir", help="State folder of the local cluster.", envvar="TIDEMARK_DIR", show_default=True)
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="HOST:PORT", envvar="TIDEMARK_CLUSTER",
        help="The operator's Admin service, or for append, read, tail, subscriptions, explain, outcome, limbo and "
             "shards any node. Default: the local cluster.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout and nothing else.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the log group.")]
ShardArgument = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard, from 0.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to try.")]


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
KeysOption = Annotated[bool, typer.Option("--keys", help="Write the key and a tab in front of each value.")]
ShardsOption = Annotated[list[int] | None, typer.Option("--shard", min=0, help="Only this shard; repeatable.")]

DEFAULT_DIR = Path(".tidemark")
