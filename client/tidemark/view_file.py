"""The SQLite file of a view beside other programs: one process feeds it, and SQLite's errors say which file and why.

Stays out: tables and transactions (view_store).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ViewFailed, ViewLocked, ViewRefused

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Feeder:
    """The right to feed a view, for one process at a time: a lock on a file beside the view's, which ends with it."""

    def __init__(self, path: Path) -> None:
        """Take the right; raises ViewRefused where another process has it, or the file cannot be made."""
        self._path = path.with_name(f"{path.name}-feeder")
        try:
            while True:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_its_path():
                    return
                os.close(self._file)    # who had the right removed this file a moment ago
        except BlockingIOError:
            os.close(self._file)
            raise BeingFed(f"{path}: another process feeds this view; stop one of them") from None
        except OSError as error:
            raise ViewRefused(f"{path}: {error.strerror}: {self._path}") from error

    def _is_at_its_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Give the right back."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


class BeingFed(ViewRefused):
    """Another process feeds the view."""


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ViewLocked and ViewFailed, with the file and the cause."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF in _LOCKED:
            raise ViewLocked(f"{path}: another program holds a transaction that writes") from error
        raise ViewFailed(f"{path}: {error} ({error.sqlite_errorname})") from error
