"""Backups of documents: a consistent state of a group in a folder of Arrow files, and a group made from it.

    backup = await tidemark.backup.take(client, "settings", "/backups/monday")
    tidemark.backup.verify("/backups/monday")
    restored = await tidemark.backup.restore(client, "/backups/monday", "settings-2")

The files and the manifest are described in docs/operations/backup.md.
"""

from .document_rows import SCHEMA
from .errors import (
    BackupDamaged,
    BackupMismatch,
    BackupVersion,
    FolderRefused,
    GroupNotEmpty,
    RestoreMismatch,
)
from .manifest import FileRecord, Manifest, ShardRecord
from .restoring import Restored, restore
from .taking import Backup, take
from .verifying import verify

__all__ = [
    "SCHEMA", "Backup", "BackupDamaged", "BackupMismatch", "BackupVersion", "FileRecord", "FolderRefused",
    "GroupNotEmpty", "Manifest", "RestoreMismatch", "Restored", "ShardRecord", "restore", "take", "verify",
]
