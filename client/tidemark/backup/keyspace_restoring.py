"""Restore a backup into a keyspace: each cell with its stamp, as an import from outside (D83).

Ranges of the keyspace may be more or fewer than those of the backup: each cell goes to the range of its key.
Stays out: reading files (files, verifying), requests (keyspace_cells).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..client import Client
from ..keyspace import Keyspace
from ..keyspace_cells import RefusedCell
from .cell_rows import CELL_ROWS
from .errors import KeyspaceNotEmpty
from .files import pages
from .folder import Folder
from .in_thread import each, in_thread
from .manifest import KEYSPACE, Manifest, ShardRecord
from .verifying import OnRows, verify

RANGES_AT_ONCE, CHECKS_AT_ONCE = 4, 16
REFUSED_SHOWN = 100
"""So many refused cells are in the result; `on_refused` hears of all."""


@dataclass(slots=True)
class RestoredKeyspace:
    """A restore that is complete: a write quorum has all `cells` of the backup but those that were refused.

    `refused` counts these by their outcome, 'below' or 'future', and `shown` has the first of them.
    """

    keyspace: str
    manifest: Manifest
    cells: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    shown: list[RefusedCell] = field(default_factory=list)


async def restore_keyspace(
    client: Client, directory: Path | str, keyspace: str, *, resume: bool = False, timeout_s: float = 60.0,
    on_check: OnRows | None = None, on_rows: OnRows | None = None,
    on_refused: Callable[[RefusedCell], None] | None = None,
) -> RestoredKeyspace:
    """Write a backup into an empty keyspace, each cell with the stamp that it has.

    The backup is verified first.  With `resume` the keyspace may hold cells: those of an interrupted restore, which
    change nothing, and newer ones, which stay.  A cell at or below a floor of the keyspace is refused; a new keyspace
    has none.  `timeout_s` is how long the cluster may be away.  Raises FolderRefused, BackupDamaged, BackupVersion and
    KeyspaceNotEmpty (nothing was written), UnknownKeyspace, GroupReplaced, WriteUnknown, Unavailable.
    """
    folder = Folder(Path(directory))
    folder.manifest(KEYSPACE)
    manifest = await in_thread(verify, directory, on_rows=on_check)
    opened = client.keyspace(keyspace, timeout_s=timeout_s)
    shape = await opened.describe()
    run = _Run(opened, shape.keyspace_id, folder, manifest, on_rows, on_refused)
    if not resume:
        await run.check_empty(shape.ranges)
    return await run.write()


class _Run:
    """One run of a restore."""

    def __init__(
        self, keyspace: Keyspace, keyspace_id: int, folder: Folder, manifest: Manifest, on_rows: OnRows | None,
        on_refused: Callable[[RefusedCell], None] | None,
    ) -> None:
        self._keyspace = keyspace
        self._keyspace_id = keyspace_id
        self._folder = folder
        self._on_rows = on_rows
        self._on_refused = on_refused
        self._restored = RestoredKeyspace(keyspace.name, manifest)

    async def check_empty(self, ranges: int) -> None:
        """Raise KeyspaceNotEmpty where some range has a cell."""
        await each(range(ranges), self._check_empty, CHECKS_AT_ONCE)

    async def _check_empty(self, index: int) -> None:
        first: bytes | None = b""
        while first is not None:
            page = await self._keyspace.cells(index, first, keyspace_id=self._keyspace_id)
            if page.cells:
                raise KeyspaceNotEmpty(
                    f"keyspace {self._keyspace.name!r} has values or deletes in range {index}", index=index)
            first = page.next

    async def write(self) -> RestoredKeyspace:
        """Import all files."""
        if self._on_rows is not None:
            self._on_rows(0, self._restored.manifest.count)
        await each(self._restored.manifest.shards, self._write, RANGES_AT_ONCE)
        return self._restored

    async def _write(self, part: ShardRecord) -> None:
        done = self._restored
        for file in part.files:
            found = pages(self._folder, CELL_ROWS, part.shard, file)
            while (page := await in_thread(next, found, None)) is not None:
                for refused in await self._keyspace.import_cells(page, keyspace_id=self._keyspace_id):
                    self._note(refused)
                done.cells += len(page)
                if self._on_rows is not None:
                    self._on_rows(done.cells, done.manifest.count)

    def _note(self, refused: RefusedCell) -> None:
        done = self._restored
        done.refused[refused.outcome] = done.refused.get(refused.outcome, 0) + 1
        if len(done.shown) < REFUSED_SHOWN:
            done.shown.append(refused)
        if self._on_refused is not None:
            self._on_refused(refused)
