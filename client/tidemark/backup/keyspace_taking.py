"""Take a backup of a keyspace: the cells of each range as a read quorum holds them, into files (D82).

A run that ended early goes on behind the last complete file of each range.
Stays out: how pages are read (keyspace_cells), how files are written (files, folder).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path

from tidemark_core.optimistic.archive import Archived
from tidemark_wire.version import VERSION

from ..client import Client
from ..errors import InvalidArgument
from ..keyspace import Keyspace
from ..settings import at_least
from .cell_rows import CELL_ROWS
from .errors import FolderRefused
from .files import FileWriter
from .folder import Folder
from .in_thread import each, in_thread
from .manifest import FILE_BYTES_MAX, KEYSPACE, FileRecord, Manifest, ShardRecord, path_of
from .taking import FILE_BYTES, Backup
from .verifying import OnRows, good_files

RANGES_AT_ONCE = 4
SAVE_S = 1.0
"""So often a run notes which files are complete; a later one writes again those that were not noted."""


async def take_keyspace(
    client: Client, keyspace: str, directory: Path | str, *, file_bytes: int = FILE_BYTES, timeout_s: float = 60.0,
    on_ranges: OnRows | None = None, on_note: Callable[[str], None] | None = None,
) -> Backup:
    """Write the cells of a keyspace to a new folder: values, deletes, expiries, with their stamps.

    There is no cut: writes that end while this runs are in the backup or not, each row by itself.  Earlier writes are
    in it, where R and W of the keyspace meet.  When this ends early, another call with the same folder goes
    on.  `on_ranges` hears of ranges that are done; `file_bytes` and `timeout_s` are those of `take`.  Raises
    FolderRefused, BackupDamaged, UnknownKeyspace, GroupReplaced, NotEnoughOwners, Unavailable, OSError.
    """
    at_least("file_bytes", file_bytes, 1)
    if file_bytes > FILE_BYTES_MAX // 2:
        raise InvalidArgument("file_bytes", f"is {file_bytes}, the limit is {FILE_BYTES_MAX // 2}")
    folder = Folder(Path(directory))
    opened = client.keyspace(keyspace, timeout_s=timeout_s)
    shape = await opened.describe()
    spec = {"keyspaceId": shape.keyspace_id, "ranges": shape.ranges}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(keyspace, KEYSPACE, now, VERSION, spec, "")
    with folder.locked():
        return await _Run(opened, folder, manifest, file_bytes, on_ranges, on_note).run()


class _Run:
    """One run of a backup."""

    def __init__(
        self, keyspace: Keyspace, folder: Folder, manifest: Manifest, file_bytes: int, on_ranges: OnRows | None,
        on_note: Callable[[str], None] | None,
    ) -> None:
        self._keyspace = keyspace
        self._folder = folder
        self._manifest = manifest
        self._file_bytes = file_bytes
        self._on_ranges = on_ranges
        self._on_note = on_note
        self._notes: list[str] = []
        self._done = 0
        self._fetched = 0
        self._saving = asyncio.Lock()
        self._saved_s = 0.0

    async def run(self) -> Backup:
        kept = await self._begin()
        await each(range(len(self._manifest.shards)), self._copy, RANGES_AT_ONCE)
        self._folder.finish(self._manifest)
        return Backup(self._folder.root, self._manifest, kept, self._fetched, tuple(self._notes))

    async def _begin(self) -> int:
        """Decide what of an earlier run is kept; return how many files."""
        manifest = self._manifest
        before = self._folder.unfinished(KEYSPACE, manifest.group)
        if before is not None and before.spec != manifest.spec:
            raise FolderRefused(
                f"{self._folder.root} has an unfinished backup of a keyspace {manifest.group!r} that was deleted since",
                reason="OTHER_BACKUP", advice="Choose another folder.")
        found = {each.shard: each for each in before.shards} if before is not None else {}
        files = 0
        for index in range(manifest.spec["ranges"]):
            old = found.get(index, ShardRecord.of_range(index, [], 0))
            good = await in_thread(good_files, self._folder, CELL_ROWS, old) if old.files else []
            manifest.shards.append(ShardRecord.of_range(index, good, old.floor_ms))
            files += len(good)
        if before is not None:
            manifest.created = before.created
            dropped = sum(len(each.files) for each in before.shards) - files
            self._note(f"goes on with {files} files of an interrupted run" + (
                f"; {dropped} are damaged and written again" if dropped else ""))
        if not files:
            self._folder.clear()
        self._folder.save_unfinished(manifest)
        return files

    async def _copy(self, index: int) -> None:
        """Write the cells of a range behind those that are there."""
        files = self._manifest.shards[index].files
        first: bytes | None = files[-1].last_key + b"\0" if files else b""
        writer: FileWriter[Archived] | None = None
        try:
            while first is not None:
                page = await self._keyspace.cells(index, first, keyspace_id=self._manifest.spec["keyspaceId"])
                first = page.next
                self._note_floor(index, page.floor_ms)
                if page.cells:
                    self._fetched += len(page.cells)
                    if writer is None:
                        path = path_of(KEYSPACE, index, len(self._manifest.shards[index].files))
                        writer = FileWriter(self._folder, path, CELL_ROWS)
                    await in_thread(writer.write, list(page.cells))
                if writer is not None and (first is None or writer.size >= self._file_bytes):
                    await self._add(index, await in_thread(writer.finish))
                    writer = None
        finally:
            if writer is not None:
                writer.abort()
        self._done += 1
        if self._on_ranges is not None:
            self._on_ranges(self._done, len(self._manifest.shards))

    def _note_floor(self, index: int, floor_ms: int) -> None:
        part = self._manifest.shards[index]
        part.floor_ms = max(part.floor_ms, floor_ms)

    async def _add(self, index: int, file: FileRecord) -> None:
        """Note a file that is complete."""
        async with self._saving:    # a manifest that is being written does not change
            part = self._manifest.shards[index]
            self._manifest.shards[index] = ShardRecord.of_range(index, [*part.files, file], part.floor_ms)
            if (now_s := asyncio.get_running_loop().time()) >= self._saved_s + SAVE_S:
                self._saved_s = now_s
                await in_thread(self._folder.save_unfinished, self._manifest)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        if self._on_note is not None:
            self._on_note(text)
