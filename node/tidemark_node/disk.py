"""Disk space: says when a node must stop writing and when it may again, before the file system says it by failing.

Stays out: what a node does about it; that is the core's.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidemark_core.base.effects import Space

CHECK_BYTES = 16 << 20

REWRITE_BYTES = 256 << 20
"""Free bytes that a rewrite of tables may need: those of level 0, four of 64 MiB, are written once more."""

RESERVE_BYTES_MIN = REWRITE_BYTES * 3 // 2
"""The least reserve: its lower two thirds hold a rewrite."""


class DiskGuard:
    """Watermarks of free bytes: FULL below `reserve_bytes`, EXHAUSTED below two thirds of it (K20b).

    Each level ends a quarter above its watermark.  The upper third of the reserve takes what leaders have appended
    before they know.  The rest takes what RocksDB writes on its own: it rewrites tables before it removes the old ones.
    """

    def __init__(self, directory: Path, reserve_bytes: int) -> None:
        self.directory = directory
        self.reserve_bytes = reserve_bytes
        self.space = Space.FREE
        self._written_bytes = 0

    def free_bytes(self) -> int:
        """Return the bytes an ordinary user may still write."""
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        """Return the size of the file system."""
        status = os.statvfs(self.directory)
        return status.f_blocks * status.f_frsize

    @property
    def short(self) -> bool:
        """Say whether space is worth some work: less is free than twice the reserve, or than a quarter of the disk."""
        return self.free_bytes() < max(2 * self.reserve_bytes, self.total_bytes() // 4)

    def wrote(self, count: int) -> bool:
        """Count bytes written; say whether it is time to look at the disk again."""
        self._written_bytes += count
        return self._written_bytes >= min(CHECK_BYTES, max(self.reserve_bytes // 4, 1))

    def changed(self) -> Space | None:
        """Look at the disk; return the new level when it differs from the last one, else None."""
        self._written_bytes = 0
        free = self.free_bytes()
        space = Space.FREE
        for level, watermark in ((Space.FULL, self.reserve_bytes), (Space.EXHAUSTED, self.reserve_bytes * 2 // 3)):
            if free < (watermark + watermark // 4 if self.space >= level else watermark):
                space = level
        if space is self.space:
            return None
        self.space = space
        return space
