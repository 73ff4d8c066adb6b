"""The folder of a backup: files appear under their names complete and durable, one process at a time writes.

No path leaves the folder: names come from the manifest's checked form, and symbolic links below it are refused.
Stays out: what the files hold (files, manifest).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BackupDamaged, FolderRefused
from .manifest import MANIFEST_BYTES_MAX, PARTS, Manifest

MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
LOCK = ".lock"
PART = ".part"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Folder:
    """A folder that holds one backup, or takes one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep other writers out of it; raises FolderRefused (BACKUP_BUSY)."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
        try:
            try:
                import fcntl  # Windows has none
            except ImportError:
                pass
            else:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise FolderRefused(
                        f"another backup writes to {self.root}", reason="BACKUP_BUSY",
                        advice="Wait for it, or choose another folder.",
                    ) from None
            yield
        finally:
            os.close(descriptor)

    def manifest(self, kind: str = "") -> Manifest:
        """Return the manifest, of one kind where it is given; raises FolderRefused, BackupDamaged, BackupVersion."""
        data = self._read(MANIFEST)
        if data is not None:
            found = Manifest.decode(data)
            if kind not in ("", found.kind):
                raise FolderRefused(
                    f"{self.root} is a backup of kind {found.kind}, not {kind}", reason="OTHER_BACKUP",
                    advice="Documents go to a log group (`--group`), keyspaces to a keyspace (`--keyspace`).")
            return found
        if (self.root / UNFINISHED).exists():
            raise FolderRefused(
                f"the backup in {self.root} is not finished", reason="BACKUP_UNFINISHED",
                advice="Run the same `tidemark backup` again: it goes on.",
            )
        raise FolderRefused(
            f"{self.root} has no {MANIFEST}", reason="NO_BACKUP", advice="Name the folder that `--to` named.")

    def unfinished(self, kind: str, name: str) -> Manifest | None:
        """Return what an interrupted run left of a group or keyspace, None when the folder is empty.

        Raises FolderRefused, BackupDamaged.
        """
        if (self.root / MANIFEST).exists():
            raise FolderRefused(
                f"{self.root} holds a backup already", reason="BACKUP_EXISTS", advice="Choose another folder.")
        data = self._read(UNFINISHED)
        if data is not None:
            found = Manifest.decode(data)
            if (found.kind, found.group) != (kind, name):
                raise FolderRefused(
                    f"{self.root} has an unfinished backup of {found.group!r}, of kind {found.kind}",
                    reason="OTHER_BACKUP", advice="Choose another folder.")
            return found
        others = sorted(each.name for each in self.root.iterdir() if each.name not in (LOCK, UNFINISHED + PART))
        if others:
            raise FolderRefused(
                f"{self.root} holds other files: {others[0]}", reason="FOLDER_NOT_EMPTY",
                advice="Choose a new or empty folder.",
            )
        return None

    def save_unfinished(self, manifest: Manifest) -> None:
        """Say durably what is there so far."""
        self._replace(UNFINISHED, manifest.encode())

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, last of all: from now on this is a backup."""
        self._replace(MANIFEST, manifest.encode())
        (self.root / UNFINISHED).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the files of shards and ranges."""
        for shard in (each for part in PARTS.values() for each in self.root.glob(f"{part}-[0-9]*")):
            if shard.is_symlink() or not shard.is_dir():
                raise BackupDamaged([f"{shard.name} is no folder"])
            for file in shard.iterdir():
                file.unlink()
            shard.rmdir()

    def path(self, name: str) -> Path:
        """Return the path of a listed file; raises BackupDamaged when it leads out of the folder."""
        found = self.root / name
        inside = found.parent != self.root   # the folder itself may be a link: the caller named it
        if (inside and found.parent.is_symlink()) or found.is_symlink():
            raise BackupDamaged([f"{name} is a symbolic link"])
        return found

    def create(self, name: str) -> int:
        """Return a descriptor of the new file that `publish` will name so."""
        path = self.path(name)
        path.parent.mkdir(exist_ok=True)
        return os.open(str(path) + PART, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK, 0o600)

    def publish(self, name: str) -> None:
        """Give a file that is written and synced its name, durably."""
        path = self.path(name)
        os.replace(str(path) + PART, path)
        _sync_folder(path.parent)
        if path.parent != self.root:
            _sync_folder(self.root)

    def _replace(self, name: str, data: bytes) -> None:
        descriptor = self.create(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        self.publish(name)

    def _read(self, name: str) -> bytes | None:
        try:
            with self.path(name).open("rb") as file:
                data = file.read(MANIFEST_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        if len(data) > MANIFEST_BYTES_MAX:
            raise BackupDamaged([f"{name} has more than {MANIFEST_BYTES_MAX} bytes"])
        return data


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
