"""`tidemark backup` and `tidemark restore`: documents of a group to a folder and back.

Stays out: files, pins and comparisons; the client's backup package has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tidemark
import typer
from rich.progress import Progress, TaskID
from rich.text import Text
from tidemark.backup import Manifest
from tidemark.backup import restore as restore_backup
from tidemark.backup import take as take_backup
from tidemark.backup import verify as verify_backup
from tidemark.backup.folder import UNFINISHED
from tidemark.backup.manifest import hex_of

from . import target
from .options import DEFAULT_DIR, ClusterOption, DirOption, JsonOption, TimeoutOption
from .output import emit, note, progress

VERIFY = "verify"
_LEASE_DEFAULT_S = 1800.0

LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease", min=3, max=30 * 86_400, metavar="SECONDS",
        help="How long an interrupted backup can be continued: the cluster keeps old versions for as long."),
]


class _Bar:
    """A bar on stderr that shows how many documents of how many are done."""

    def __init__(self, shown: Progress, description: str) -> None:
        self._shown = shown
        self._description = description
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            self._task = self._shown.add_task(self._description, total=total)
        self._shown.update(self._task, completed=done, total=total)


def backup(
    what: Annotated[str, typer.Argument(metavar="GROUP|verify", help="Name of the group; or `verify`.")],
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="With verify: folder of the backup.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Folder to write to: a new or empty one.")] = None,
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="DIR", help="An earlier backup of GROUP: read what changed since from the "
                     "cluster and the rest from there."),
    ] = None,
    lease_s: LeaseOption = _LEASE_DEFAULT_S,
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of GROUP to a folder, at one state of each shard; or verify such a folder.

    `tidemark backup GROUP --to DIR` pins the group, writes Arrow files, compares their digests with the pin's, writes
    manifest.json last, and releases the pin.  The same command goes on with a backup that was interrupted.
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
    folder = to

    async def main() -> tidemark.backup.Backup:
        async with await target.connect(state, cluster) as client:
            await client.group(what)
            with progress() as shown:
                return await take_backup(
                    client, what, folder, since=since, lease_s=lease_s, timeout_s=timeout_s,
                    on_rows=_Bar(shown, f"backup of {what}"), on_note=note,
                )

    try:
        made = tidemark.run(main())
    except BaseException:
        if (folder / UNFINISHED).exists():
            note(f"the backup in {folder} is not finished: the same command goes on with it for {lease_s:g} s")
        raise
    document = {
        **_summary(made.directory, made.manifest), "keptFiles": made.kept_files, "fetched": made.fetched,
        "notes": list(made.notes),
    }
    emit(as_json, document, lambda: Text(
        f"{made.manifest.count:,} documents of {len(made.manifest.shards)} shards of {what} are in {made.directory} "
        f"({made.manifest.size:,} bytes)"))


def _verify(directory: Path, *, as_json: bool) -> None:
    with progress() as shown:
        manifest = verify_backup(directory, on_rows=_Bar(shown, "verify"))
    emit(as_json, _summary(directory, manifest), lambda: Text(
        f"{directory} is as it was written: {manifest.count:,} documents of {len(manifest.shards)} shards of "
        f"{manifest.group}, {manifest.created}"))


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup.")],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="Group to restore into; it must be empty.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted restore into this group.")] = False,
    timeout_s: TimeoutOption = 60.0,
    state: DirOption = DEFAULT_DIR,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty group of kind Documents, and compare the two key by key.

    The group may have any number of shards.  Apply it first; keep writers away until the command ends.
    """
    async def main() -> tidemark.backup.Restored:
        async with await target.connect(state, cluster) as client:
            await client.group(group)
            with progress() as shown:
                return await restore_backup(
                    client, directory, group, resume=resume, timeout_s=timeout_s, on_check=_Bar(shown, "verify"),
                    on_rows=_Bar(shown, f"restore into {group}"), on_compare=_Bar(shown, "compare"))

    done = tidemark.run(main())
    document = {
        "group": group, "from": str(directory), "documents": done.documents, "written": done.written,
        "expired": done.expired, "content": hex_of(done.content), "equal": True,
    }
    emit(as_json, document, lambda: Text(
        f"{done.documents:,} documents of {directory} are in {group}, equal key by key"
        + (f"; {done.expired:,} had expired" if done.expired else "")))


def _summary(directory: Path, manifest: Manifest) -> dict[str, Any]:
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
