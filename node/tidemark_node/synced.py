"""Synced mark: how far the write-ahead log is durable, in a file beside it, so that a log without its end is seen.

RocksDB opens a log whose end is gone with what is left of it, and says nothing: to RocksDB it looks like writes that
never finished.  The mark is the sequence number of the last write that a sync covered (rule K14b).  A put costs one
write to the page cache, which outlives the process; the mark itself reaches the disk at most `FORCE_SECONDS` later
while the store is written.
Stays out: the log's other pieces, which RocksDB checks against its manifest (`database`); what follows from damage
(`store`).
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from google_crc32c import value as crc32c

from .store_errors import StoreDamaged

FILE = "SYNCED"
FORCE_SECONDS = 1.0

_MAGIC = b"tmsynced"
_FIELDS = struct.Struct(">8sQ")     # magic, sequence number
_CHECKSUM = struct.Struct(">I")


class SyncedMark:
    """The mark of an open store.

    Two threads that put at once may leave the lower number: the mark then says less than is durable, never more.
    """

    def __init__(self, path: Path, sequence: int, *, required: bool) -> None:
        """Check the mark of the database in directory `path`, whose last write has number `sequence`; make one if none.

        Raises StoreDamaged when the mark is ahead of the database, unreadable, or missing though `required`; OSError.
        """
        file = path / FILE
        marked = _marked(file)
        if marked is None and required:
            raise StoreDamaged(f"{file} is missing: how far the write-ahead log was synced is not known")
        if marked is not None and marked > sequence:
            raise StoreDamaged(
                f"{path}: write {marked} was synced, but the database ends at write {sequence}: "
                "the end of the write-ahead log is gone or damaged"
            )
        if marked is None:
            _create(file, sequence)
        self._sequence = sequence if marked is None else marked
        self._file = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        self._forced = time.monotonic()

    def put(self, sequence: int) -> None:
        """Note that every write up to `sequence` is durable.  Raises OSError."""
        if sequence <= self._sequence:
            return
        os.pwrite(self._file, _packed(sequence), 0)     # in place, within one sector: whole or not at all
        self._sequence = sequence
        now = time.monotonic()
        if now - self._forced >= FORCE_SECONDS:
            os.fdatasync(self._file)
            self._forced = now

    def close(self) -> None:
        """Bring the mark to the disk and close it.  Raises OSError."""
        try:
            os.fdatasync(self._file)
        finally:
            os.close(self._file)


def _packed(sequence: int) -> bytes:
    fields = _FIELDS.pack(_MAGIC, sequence)
    return fields + _CHECKSUM.pack(crc32c(fields))


def _marked(file: Path) -> int | None:
    try:
        stored = file.read_bytes()
    except FileNotFoundError:
        return None
    fields = stored[: _FIELDS.size]
    if stored[_FIELDS.size :] != _CHECKSUM.pack(crc32c(fields)) or not fields.startswith(_MAGIC):
        raise StoreDamaged(f"{file} cannot be read: how far the write-ahead log was synced is not known")
    return int(_FIELDS.unpack(fields)[1])


def _create(file: Path, sequence: int) -> None:
    """Make the file durable under its name before anything relies on it."""
    partial = file.with_name(f"{FILE}.partial")
    with partial.open("wb") as made:
        made.write(_packed(sequence))
        made.flush()
        os.fsync(made.fileno())
    partial.replace(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
