"""`tidemark backup` and `tidemark restore`: documents of a group, or cells of a keyspace, to a folder and back.

Stays out: files, pins and comparisons; the client's backup package has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
from rich.progress import Progress, TaskID
from rich.text import Text
from tidemark.backup import Backup, Manifest, RestoredKeyspace, restore_keyspace, take_keyspace
from tidemark.backup import restore as restore_backup
from tidemark.backup import take as take_backup
from tidemark.backup import verify as verify_backup
from tidemark.backup.folder import UNFINISHED
from tidemark.backup.manifest import KEYSPACE, hex_of
from tidemark.keyspace_results import named

from . import target
from .keyspace_times import shown as shown_key
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, note, progress

VERIFY = "verify"
_LEASE_DEFAULT_S = 1800.0
_WHY_REFUSED = {"below": "at or below the floor", "future": "from the future"}

LeaseOption = Annotated[
    float | None,
    typer.Option(
        "--lease", min=3, max=30 * 86_400, metavar="SECONDS", show_default=f"{_LEASE_DEFAULT_S:g}",
        help="How long an interrupted backup of GROUP can be continued: the cluster keeps old versions for as long."),
]


class _Bar:
    """A bar on stderr that shows how many documents of how many are done."""

    def __init__(self, shown: Progress, description: str) -> None:
        self._shown = shown
        self._description = description
        self._task: TaskID | None = None

    @property
    def begun(self) -> bool:
        """Whether any progress came."""
        return self._task is not None

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            self._task = self._shown.add_task(self._description, total=total)
        self._shown.update(self._task, completed=done, total=total)


def backup(
    what: Annotated[
        str | None, typer.Argument(metavar="[GROUP|verify]", help="Name of the group; or `verify`.")] = None,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="With verify: folder of the backup.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Folder to write to: a new or empty one.")] = None,
    keyspace: Annotated[
        str | None, typer.Option("--keyspace", metavar="NAME", help="A keyspace, in place of GROUP.")] = None,
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="DIR", help="An earlier backup of GROUP: read what changed since from the "
                     "cluster and the rest from there."),
    ] = None,
    lease_s: LeaseOption = None,
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of GROUP, or a keyspace, to a folder; or verify such a folder.

    `tidemark backup GROUP --to DIR` pins the group, writes Arrow files, compares their digests with the pin's, writes
    manifest.json last, and releases the pin.  The same command goes on with a backup that was interrupted.
    `tidemark backup --keyspace NAME --to DIR` writes every cell with its stamp, range by range, without one state.
    `tidemark backup verify DIR` checks every file and row of a backup, without a cluster.
    """
    if to is None and what == VERIFY and directory is not None:
        _verify(directory, as_json=as_json)
        return
    if to is None:
        raise typer.BadParameter(
            "names no folder for the backup" if what != VERIFY else "names no folder to verify",
            param_hint="--to" if what != VERIFY else "DIR")
    if directory is not None:
        raise typer.BadParameter("goes with `tidemark backup verify DIR`", param_hint="DIR")
    if (what is None) == (keyspace is None):
        raise typer.BadParameter("name a GROUP or a --keyspace, one of them", param_hint="GROUP")
    for option, given in (("--since", since), ("--lease", lease_s)):
        if keyspace is not None and given is not None:
            raise typer.BadParameter("goes with a GROUP", param_hint=option)
    group, folder = what or "", to

    async def work(client: tidemark.Client, bar: _Bar) -> Backup:
        if keyspace is not None:
            return await take_keyspace(client, keyspace, folder, timeout_s=timeout_s, on_ranges=bar, on_note=note)
        await client.group(group)
        return await take_backup(
            client, group, folder, since=since, lease_s=lease_s or _LEASE_DEFAULT_S, timeout_s=timeout_s, on_rows=bar,
            on_note=note)

    async def main() -> Backup:
        async with await target.connect(state, cluster) as client:
            with progress() as shown:
                return await work(client, _Bar(shown, f"backup of {keyspace or group}"))

    try:
        made = tidemark.run(main())
    except BaseException:
        if (folder / UNFINISHED).exists():
            how_long = "" if keyspace is not None else f" for {lease_s or _LEASE_DEFAULT_S:g} s"
            note(f"the backup in {folder} is not finished: the same command goes on with it{how_long}")
        raise
    document = {
        **_summary(made.directory, made.manifest), "keptFiles": made.kept_files, "fetched": made.fetched,
        "notes": list(made.notes),
    }
    emit(as_json, document, lambda: Text(
        f"{_content_of(made.manifest)} are in {made.directory} ({made.manifest.size:,} bytes)"))


def _verify(directory: Path, *, as_json: bool) -> None:
    with progress() as shown:
        manifest = verify_backup(directory, on_rows=_Bar(shown, "verify"))
    emit(as_json, _summary(directory, manifest), lambda: Text(
        f"{directory} is as it was written: {_content_of(manifest)}, {manifest.created}"))


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup.")],
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Group to restore into; it must be empty.")] = None,
    keyspace: Annotated[
        str | None,
        typer.Option("--keyspace", metavar="NAME", help="Keyspace to restore into; without --resume it must be empty."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted restore into this group or keyspace.")] = False,
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty group of kind Documents, and compare the two key by key; or into a keyspace.

    The group may have any number of shards.  Apply it first; keep writers away until the command ends.
    A keyspace may have any number of ranges.  Cells keep their stamps: newer ones stay, and what is at or below a floor
    of the keyspace is refused, counted and named; the exit code is 1 then.
    """
    if (group is None) == (keyspace is None):
        raise typer.BadParameter("name a group or a keyspace, one of them", param_hint="--group, --keyspace")
    if keyspace is not None:
        _restore_keyspace(directory, keyspace, resume, timeout_s, state, cluster, as_json=as_json)
        return
    into = group or ""

    async def main() -> tidemark.backup.Restored:
        async with await target.connect(state, cluster) as client:
            await client.group(into)
            with progress() as shown:
                return await restore_backup(
                    client, directory, into, resume=resume, timeout_s=timeout_s, on_check=_Bar(shown, "verify"),
                    on_rows=_Bar(shown, f"restore into {into}"), on_compare=_Bar(shown, "compare"))

    done = tidemark.run(main())
    document = {
        "group": group, "from": str(directory), "documents": done.documents, "written": done.written,
        "expired": done.expired, "content": hex_of(done.content), "equal": True,
    }
    emit(as_json, document, lambda: Text(
        f"{done.documents:,} documents of {directory} are in {group}, equal key by key"
        + (f"; {done.expired:,} had expired" if done.expired else "")))


def _restore_keyspace(
    directory: Path, keyspace: str, resume: bool, timeout_s: float, state: Path, cluster: str | None, *, as_json: bool
) -> None:
    writing: _Bar | None = None

    async def main() -> RestoredKeyspace:
        nonlocal writing
        async with await target.connect(state, cluster) as client:
            with progress() as shown:
                writing = _Bar(shown, f"restore into {keyspace}")
                return await restore_keyspace(
                    client, directory, keyspace, resume=resume, timeout_s=timeout_s, on_check=_Bar(shown, "verify"),
                    on_rows=writing)

    try:
        done = tidemark.run(main())
    except BaseException:
        if writing is not None and writing.begun:
            note(f"the restore into {keyspace} is not finished: the same command with --resume goes on with it")
        raise
    refused = sum(done.refused.values())
    document = {
        "keyspace": keyspace, "from": str(directory), "cells": done.cells, "refused": refused,
        "refusedBy": done.refused, "refusedCells": [
            {"key": shown_key(each.key), "element": None if each.element is None else shown_key(each.element),
             "outcome": each.outcome} for each in done.shown],
    }
    emit(as_json, document, lambda: Text(
        f"{done.cells - refused:,} cells of {directory} are in {keyspace}, or something newer is"))
    if not refused:
        return
    for each in done.shown:
        note(f"refused, {_WHY_REFUSED.get(each.outcome, each.outcome)}: {named(keyspace, each.key, each.element)}")
    note(f"{refused:,} cells are refused. A new keyspace has no floor yet: restore into one")
    raise typer.Exit(1)


def _content_of(manifest: Manifest) -> str:
    if manifest.kind == KEYSPACE:
        return f"{manifest.count:,} cells of {len(manifest.shards)} ranges of keyspace {manifest.group}"
    return f"{manifest.count:,} documents of {len(manifest.shards)} shards of {manifest.group}"


def _summary(directory: Path, manifest: Manifest) -> dict[str, Any]:
    if manifest.kind == KEYSPACE:
        return {
            "directory": str(directory), "keyspace": manifest.group, "created": manifest.created,
            "count": manifest.count, "bytes": manifest.size, "content": hex_of(manifest.content),
            "ranges": [
                {
                    "range": each.shard, "floorMilliseconds": each.floor_ms, "count": each.count,
                    "digest": hex_of(each.digest), "files": len(each.files),
                }
                for each in manifest.shards
            ],
        }
    return {
        "directory": str(directory), "group": manifest.group, "created": manifest.created, "count": manifest.count,
        "bytes": manifest.size, "content": hex_of(manifest.content),
        "shards": [
            {
                "shard": each.shard, "seqno": each.seqno, "epoch": each.epoch, "lineage": each.lineage.hex(),
                "count": each.count, "digest": hex_of(each.digest), "files": len(each.files),
            }
            for each in manifest.shards
        ],
    }
