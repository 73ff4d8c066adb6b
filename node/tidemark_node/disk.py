"""Disk space: says when a node must stop writing and when it may again, before the file system says it by failing.

Stays out: what a node does about it; that is the core's.
"""

from __future__ import annotations

import os
from pathlib import Path

CHECK_BYTES = 16 << 20


class DiskGuard:
    """Two watermarks of free bytes: full below `reserve_bytes`, usable again a quarter above it.

    The reserve keeps room for what RocksDB writes on its own (tables made of what is already logged), so that
    reads and repairs go on while appends are refused.
    """

    def __init__(self, directory: Path, reserve_bytes: int) -> None:
        self.directory = directory
        self.reserve_bytes = reserve_bytes
        self.full = False
        self._written_bytes = 0

    def free_bytes(self) -> int:
        """Return the bytes an ordinary user may still write."""
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        """Return the size of the file system."""
        status = os.statvfs(self.directory)
        return status.f_blocks * status.f_frsize

    def wrote(self, count: int) -> bool:
        """Count bytes written; say whether it is time to look at the disk again."""
        self._written_bytes += count
        return self._written_bytes >= min(CHECK_BYTES, max(self.reserve_bytes // 4, 1))

    def changed(self) -> bool | None:
        """Look at the disk; return the new verdict when it differs from the last one, else None."""
        self._written_bytes = 0
        free = self.free_bytes()
        threshold = self.reserve_bytes + self.reserve_bytes // 4 if self.full else self.reserve_bytes
        full = free < threshold
        if full == self.full:
            return None
        self.full = full
        return full
