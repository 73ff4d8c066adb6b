"""`tidemark append`: a file or standard input into a log group, one record per line.

Lines keep their order per key.
Stays out: reading lines (sources), the summary of every end (bulk), batching and retries (client).
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import Annotated

import tidemark
import typer

from . import target
from .bulk import Job, drive, finish, key_of
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, table
from .sources import Source


class Level(StrEnum):
    """Values of --durability."""

    QUORUM = "quorum"
    COMMIT = "commit"
    LOCAL = "local"


class OnQuorumTimeout(StrEnum):
    """Values of --on-quorum-timeout."""

    WAIT = "wait"
    RAISE = "raise"


class OnRollback(StrEnum):
    """Values of --on-rollback."""

    RETRY = "retry"
    RAISE = "raise"


class _Append(Job):
    """One run of the command."""

    def __init__(self, source: Source, key_field: str | None, skip: int) -> None:
        super().__init__(source, skip)
        self.key_field = key_field
        self.appender: tidemark.Appender | None = None

    async def write(self, line: bytes) -> asyncio.Future[tidemark.Appended]:
        assert self.appender is not None
        key = None if self.key_field is None else key_of(line, self.key_field)
        await self.appender.wait_for_room(len(line) + 1024)
        return self.appender.append_nowait(line, key=key)


def append(
    group: GroupArgument,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines to append, .gz or not; - is stdin.")] = "-",
    key_field: Annotated[
        str | None, typer.Option("--key-field", help="Take the key from this field of each line, which must be JSON.")
    ] = None,
    durability: Annotated[
        Level | None, typer.Option("--durability", help="What a line waits for. Default: the group's.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="The same as --durability local.")] = False,
    on_quorum_timeout: Annotated[
        OnQuorumTimeout,
        typer.Option("--on-quorum-timeout", help="When the quorum's time is over: wait for the fate, or stop."),
    ] = OnQuorumTimeout.WAIT,
    on_rollback: Annotated[
        OnRollback, typer.Option("--on-rollback", help="When lines are rolled back: append them anew, or stop.")
    ] = OnRollback.RETRY,
    skip: Annotated[int, typer.Option("--skip", min=0, metavar="LINES", help="Go on behind so many lines.")] = 0,
    timeout_s: TimeoutOption = 30.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the lines of FILE, one record each."""
    if local and durability not in (None, Level.LOCAL):
        raise typer.BadParameter(f"--local and --durability {durability} contradict each other", param_hint="--local")
    level = Level.LOCAL if local else durability
    source = Source(file)
    job = _Append(source, key_field, skip)

    async def main() -> None:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            appender = job.appender = client.appender(
                group, durability=level, timeout_s=timeout_s, on_quorum_timeout=on_quorum_timeout,
                on_rollback=on_rollback,
            )
            try:
                await drive(job, appender, f"append to {group}")
            finally:
                retried["quorum_timeouts"] = appender.quorum_timeouts
                retried["rolled_back_batches"] = appender.rolled_back_batches

    retried: dict[str, int] = {}
    started = time.monotonic()
    try:
        tidemark.run(main())
    finally:
        source.close()
    seconds = time.monotonic() - started
    document = {
        "group": group, "acked": job.acked, "bytes": job.bytes, "seconds": round(seconds, 3),
        "durability": "GROUP_DEFAULT" if level is None else level.name, "outcomes": job.tally.counts, **retried,
        **job.document(),
    }
    emit(as_json, document, lambda: table(
        ["group", "#records", "#MB", "#seconds", "#records/s", "outcomes"],
        [[group, job.acked, f"{job.bytes / 1e6:.1f}", f"{seconds:.1f}", f"{job.acked / seconds:,.0f}",
          job.tally.sentence()]],
    ))
    finish(job, group, "appended")
