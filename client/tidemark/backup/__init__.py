"""Backups: the documents of a group or the cells of a keyspace in a folder of Arrow files, and one made from it.

    backup = await tidemark.backup.take(client, "settings", "/backups/monday")
    tidemark.backup.verify("/backups/monday")
    restored = await tidemark.backup.restore(client, "/backups/monday", "settings-2")

    await tidemark.backup.take_keyspace(client, "carts", "/backups/carts")
    await tidemark.backup.restore_keyspace(client, "/backups/carts", "carts-2")

The files and the manifest are described in docs/operations/backup.md.
"""

from .cell_rows import CELL_SCHEMA
from .document_rows import SCHEMA
from .errors import (
    BackupDamaged,
    BackupMismatch,
    BackupVersion,
    FolderRefused,
    GroupNotEmpty,
    KeyspaceNotEmpty,
    RestoreMismatch,
)
from .keyspace_restoring import RestoredKeyspace, restore_keyspace
from .keyspace_taking import take_keyspace
from .manifest import FileRecord, Manifest, ShardRecord
from .restoring import Restored, restore
from .taking import Backup, take
from .verifying import verify

__all__ = [
    "CELL_SCHEMA", "SCHEMA", "Backup", "BackupDamaged", "BackupMismatch", "BackupVersion", "FileRecord",
    "FolderRefused", "GroupNotEmpty", "KeyspaceNotEmpty", "Manifest", "RestoreMismatch", "Restored", "RestoredKeyspace",
    "ShardRecord", "restore", "restore_keyspace", "take", "take_keyspace", "verify",
]
