"""`tidemark view`: a SQLite file that follows the documents of a group, and its comparison with the store.

Stays out: tables, transactions and streams (client).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
from tidemark import SqliteView, Verification
from tidemark.change_events import BatchEvent, Rebuilding
from tidemark.view_store import ShardState

from . import target
from .failures import FAILED
from .interrupts import until_interrupted
from .options import DEFAULT_DIR, ClusterOption, DirOption, GroupArgument, JsonOption, TimeoutOption
from .output import emit, note, progress, table
from .records import text_or_base64

view_app = typer.Typer(no_args_is_help=True, help="A SQLite file that follows the documents of a group.")
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The SQLite file; created where there is none.")]
SHOWN_S = 0.2


@view_app.callback()
def _views() -> None:
    """A SQLite file that follows the documents of a group."""


@view_app.command("follow")
def follow(
    group: GroupArgument,
    file: FileArgument,
    once: Annotated[bool, typer.Option("--once", help="End when everything written so far is applied.")] = False,
    fail: Annotated[
        bool, typer.Option("--no-rebuild", help="End with an error where the view would be replaced.")] = False,
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Apply the changes of GROUP to FILE, each exactly once, until Ctrl-C; go on where FILE stands."""
    found: dict[int, ShardState] = {}
    received = 0

    def heard(event: BatchEvent) -> None:
        if isinstance(event, Rebuilding):
            note(f"shard {event.shard}: {event.reason}, its part of the view is replaced: {event.message}")

    async def main() -> None:
        nonlocal received
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            view = client.view(group, file, on_lost="fail" if fail else "rebuild", on_event=heard)
            async with view:
                try:
                    with progress() as bar:
                        task = bar.add_task(f"changes of {group}", total=None)
                        await _until(view, once, timeout_s, lambda: bar.update(task, completed=view.received))
                finally:
                    found.update(await view.states())
                    received = view.received

    interrupted = tidemark.run(until_interrupted(main()))
    _tell(group, file, found, received, as_json)
    if interrupted and once:
        raise typer.Exit(interrupted)


async def _until(view: SqliteView, once: bool, timeout_s: float, look: Any) -> None:
    """Follow for ever, or until the view has caught up."""
    work = asyncio.create_task(view.catch_up(timeout_s) if once else view.wait_closed())
    try:
        while not work.done():
            await asyncio.wait((work,), timeout=SHOWN_S)
            look()
        work.result()
    finally:
        work.cancel()


def _tell(group: str, file: Path, found: dict[int, ShardState], received: int, as_json: bool) -> None:
    shards = [
        {"shard": shard, "seqno": state.seqno, "documents": state.documents, "digest": state.digest.hex()}
        for shard, state in found.items()
    ]
    emit(as_json, {"group": group, "file": str(file), "received": received, "shards": shards}, lambda: table(
        ["GROUP", "#SHARD", "#SEQNO", "#DOCUMENTS", "DIGEST"],
        [[group, each["shard"], each["seqno"], each["documents"], each["digest"]] for each in shards],
    ))


@view_app.command("verify")
def verify(
    group: GroupArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The SQLite file.", exists=True, dir_okay=False)],
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring FILE up to date, then compare it with GROUP document by document and by digest; 1 where they differ."""

    async def main() -> Verification:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            async with client.view(group, file, beside=True) as view:
                return await view.verify(timeout_s)

    result = tidemark.run(main())
    document = {
        "group": group, "file": str(file), "documents": result.documents, "mismatches": len(result.mismatches),
        "rotten": len(result.rotten), "digest": result.digest,
        "keys": [text_or_base64("key", key) for key in (*result.mismatches, *result.rotten)],
    }
    emit(as_json, document, lambda: table(
        ["GROUP", "#DOCUMENTS", "#MISMATCHES", "#ROTTEN", "DIGEST"],
        [[group, result.documents, len(result.mismatches), len(result.rotten), result.digest]],
    ))
    for key in result.mismatches:
        note(f"{key.decode(errors='backslashreplace')}: view and store differ")
    for key in result.rotten:
        note(f"{key.decode(errors='backslashreplace')}: changed in the file since it was applied")
    if not result.good:
        raise typer.Exit(FAILED)
