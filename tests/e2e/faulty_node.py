"""A node whose disk is as full as a file says: `faulty_node.py SPACE_FILE PYTHON -m tidemark_node ...`.

While the file exists it holds the bytes that are left; none left means that writes fail as on a full disk, before
the node had looked how much there is.  Stays out: everything a node does.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import tidemark_node.main
from tidemark_node.disk import DiskGuard
from tidemark_node.settings import Settings
from tidemark_node.store_errors import Faults

SPACE_FILE = Path(sys.argv[1])


def left_bytes() -> int | None:
    try:
        return int(SPACE_FILE.read_text())
    except FileNotFoundError:
        return None


class FullDisk(Faults):
    """Fails writes and syncs while nothing is left."""

    def check_write(self) -> None:
        if left_bytes() == 0:
            raise OSError(errno.ENOSPC, "No space left on device (injected)")

    check_sync = check_write


class FaultyGuard(DiskGuard):
    def free_bytes(self) -> int:
        return left_bytes() or super().free_bytes()


class FaultyNode(tidemark_node.main.Node):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, faults=FullDisk())


tidemark_node.main.DiskGuard = FaultyGuard
tidemark_node.main.Node = FaultyNode  # type: ignore[misc]
sys.argv = sys.argv[sys.argv.index("tidemark_node") :]
assert os.environ.get("MALLOC_TOP_PAD_"), "the node would execute itself anew, without the faults"
sys.exit(tidemark_node.main.main())
