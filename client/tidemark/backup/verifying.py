"""Check a backup without a cluster: every file, every row, every digest.

Stays out: how a file is read (files).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .cell_rows import CELL_ROWS
from .document_rows import DOCUMENT_ROWS
from .errors import BackupDamaged
from .files import pages
from .folder import Folder
from .manifest import DOCUMENTS, KEYSPACE, FileRecord, Manifest, ShardRecord
from .rows import MODULUS, Rows

PROBLEMS_MAX = 100
T = TypeVar("T")

_KINDS: dict[str, Rows[Any]] = {DOCUMENTS: DOCUMENT_ROWS, KEYSPACE: CELL_ROWS}

OnRows = Callable[[int, int], None]
"""Hears of progress: rows done, rows in all."""

OnPage = Callable[[list[T]], None]
"""Sees the rows of a page, and may raise."""


def verify(directory: Path | str, *, on_rows: OnRows | None = None, on_page: OnPage[Any] | None = None) -> Manifest:
    """Return the manifest of a backup whose files are all there and as they were written.

    Raises FolderRefused, BackupVersion, BackupDamaged, whose `problems` names up to 100 of them, and what `on_page`
    raises.
    """
    folder = Folder(Path(directory))
    manifest = folder.manifest()
    problems: list[str] = []
    done = 0
    for shard in manifest.shards:
        problems += problems_of_shard(shard)
        for file, behind in zip(shard.files, [b"", *(each.last_key for each in shard.files)], strict=False):
            try:
                check_file(folder, _KINDS[manifest.kind], shard.shard, file, behind, on_page)
            except BackupDamaged as error:
                problems += error.problems
            done += file.rows
            if on_rows is not None:
                on_rows(done, manifest.count)
    if problems:
        raise BackupDamaged(problems[:PROBLEMS_MAX])
    return manifest


def good_files(folder: Folder, kind: Rows[T], shard: ShardRecord) -> list[FileRecord]:
    """Return the files of a shard or range in front of the first that is damaged."""
    good: list[FileRecord] = []
    for file in shard.files:
        try:
            check_file(folder, kind, shard.shard, file, good[-1].last_key if good else b"")
        except BackupDamaged:
            break
        good.append(file)
    return good


def check_file(
    folder: Folder, kind: Rows[T], shard: int, file: FileRecord, behind: bytes, on_page: OnPage[T] | None = None
) -> None:
    """Read a file to its end; raises BackupDamaged, also when it begins at or before the key `behind`."""
    first = True
    for page in pages(folder, kind, shard, file):
        if first and page and kind.key_of(page[0]) <= behind:
            raise BackupDamaged([f"{file.path} begins before the end of the file in front of it"])
        first = False
        if on_page is not None:
            on_page(page)


def problems_of_shard(shard: ShardRecord) -> list[str]:
    """Return how count and digest of the files differ from those of the pin."""
    problems = []
    if shard.rows != shard.count:
        problems.append(f"shard {shard.shard} has {shard.rows} documents in its files, its pin has {shard.count}")
    digest = sum(each.digest for each in shard.files) % MODULUS
    if digest != shard.digest:
        problems.append(f"shard {shard.shard} has files of another digest than its pin")
    return problems
