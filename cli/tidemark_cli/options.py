"""Options that many commands share, in one place so that they read alike everywhere."""

from __future__ import annotations

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
        help="The operator's Admin service, or for append, read, outcome, limbo and shards any node. "
             "Default: the local cluster.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout and nothing else.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the log group.")]
ShardArgument = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard, from 0.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to try.")]

DEFAULT_DIR = Path(".tidemark")
