"""Errors of backups and restores."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import TidemarkError

PROBLEMS_SHOWN = 3


class FolderRefused(TidemarkError):
    """The folder does not take this backup, or holds none; nothing changed.

    `reason` is BACKUP_EXISTS, BACKUP_BUSY, FOLDER_NOT_EMPTY, OTHER_BACKUP, NO_BACKUP or BACKUP_UNFINISHED.
    """

    reason = "FOLDER_REFUSED"


class BackupDamaged(TidemarkError):
    """Files of a backup are missing, changed or malformed.  `problems` names each of them."""

    reason = "BACKUP_DAMAGED"
    advice = "Use another backup; a restore refuses this one."

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - PROBLEMS_SHOWN
        shown = "; ".join(problems[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        super().__init__(shown)
        self.problems = tuple(problems)


class BackupVersion(TidemarkError):
    """The manifest has a version that this release does not read."""

    reason = "BACKUP_VERSION"
    advice = "Use the release that wrote the backup, or a newer one."


class BackupMismatch(TidemarkError):
    """The rows that were read differ in count or digest from the pin of their shard: the backup is not usable."""

    reason = "BACKUP_MISMATCH"
    advice = "Keep the folder, report it with `tidemark debug dump`, and begin a backup in another folder."

    def __init__(self, message: str, *, shard: int) -> None:
        super().__init__(message)
        self.shard = shard


class GroupNotEmpty(TidemarkError):
    """A restore takes an empty group; nothing was written.  `counts` has the live documents by shard."""

    reason = "GROUP_NOT_EMPTY"
    advice = "Restore into a new group; an interrupted restore goes on with `resume` (`--resume`)."

    def __init__(self, message: str, *, counts: dict[int, int]) -> None:
        super().__init__(message)
        self.counts = counts


class KeyspaceNotEmpty(TidemarkError):
    """A restore takes an empty keyspace; nothing was written.  `index` is a range with cells, deletes among them."""

    reason = "KEYSPACE_NOT_EMPTY"
    advice = (
        "Restore into a new keyspace. With `resume` (`--resume`) an interrupted restore goes on, and what is newer in "
        "the keyspace stays, deletes too."
    )

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message)
        self.index = index


class RestoreMismatch(TidemarkError):
    """The restored group differs from the backup.  `key` is the first key that does."""

    reason = "RESTORE_MISMATCH"
    advice = "Keep writers away from the group, and restore into a new one."

    def __init__(self, message: str, *, key: bytes) -> None:
        super().__init__(message)
        self.key = key
