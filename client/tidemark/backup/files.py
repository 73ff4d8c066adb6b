"""Arrow files of a backup: written page by page, read back with every byte taken for hostile.

A file is an Arrow IPC file of one kind of rows, without compression, ascending by key.
Stays out: names and durability (folder), which files there are (manifest), columns and digests (rows).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import pyarrow as pa
from xxhash import xxh3_128

from ..payload import UndecodablePayload, plain_batches
from .errors import BackupDamaged
from .folder import Folder
from .manifest import FileRecord, hex_of
from .rows import Rows, Tally

MAGIC = b"ARROW1\0\0"
_CHUNK_BYTES = 1 << 20
T = TypeVar("T")


class _Hashing:
    """A file that is written from front to end, and the hash of its bytes."""

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 18)
        self.size = 0
        self.hash = xxh3_128()

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.hash.update(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        self.closed = True
        self._file.close()


class FileWriter(Generic[T]):
    """Writes the rows of one file."""

    def __init__(self, folder: Folder, path: str, kind: Rows[T]) -> None:
        self._folder = folder
        self._kind = kind
        self.path = path
        self._file = _Hashing(folder.create(path))
        self._writer = pa.RecordBatchFileWriter(pa.PythonFile(self._file, mode="w"), kind.schema)
        self._tally = Tally()
        self._last_key = b""

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, rows: list[T]) -> None:
        """Add a page of rows, at least one."""
        self._writer.write_batch(self._kind.batch_of(rows))
        self._tally = self._kind.tally(self._tally, rows)
        self._last_key = self._kind.key_of(rows[-1])

    def finish(self) -> FileRecord:
        """Make the file durable under its name, and return its record."""
        self._writer.close()
        self._file.sync()
        self._folder.publish(self.path)
        rows, digest, content = self._tally
        return FileRecord(
            self.path, self._file.size, rows, hex_of(self._file.hash.intdigest()), digest, content, self._last_key)

    def abort(self) -> None:
        """Leave the file as it is, without its name."""
        self._file.close()


def pages(folder: Folder, kind: Rows[T], shard: int, record: FileRecord) -> Iterator[list[T]]:
    """Yield the rows of a file; raises BackupDamaged, before the first one when the checksum differs."""
    path = folder.path(record.path)
    try:
        with pa.memory_map(str(path)) as source:
            if source.size() != record.size:
                raise BackupDamaged([f"{record.path} has {source.size()} bytes, the manifest says {record.size}"])
            hashed = xxh3_128()
            while data := source.read_buffer(_CHUNK_BYTES):
                hashed.update(data)
            if hex_of(hashed.intdigest()) != record.checksum:
                raise BackupDamaged([f"{record.path} is damaged: its checksum is not that of the manifest"])
            source.seek(0)
            if source.read(len(MAGIC)) != MAGIC:
                raise BackupDamaged([f"{record.path} is no Arrow file"])
            yield from _checked(kind, shard, record, source)
    except FileNotFoundError:
        raise BackupDamaged([f"{record.path} is missing"]) from None
    except (pa.ArrowException, UndecodablePayload, EOFError, OSError) as error:
        raise BackupDamaged([f"{record.path} cannot be read: {error}"]) from None


def _checked(kind: Rows[T], shard: int, record: FileRecord, source: pa.NativeFile) -> Iterator[list[T]]:
    tally, last = Tally(), b""
    for batch in plain_batches(source, kind.schema):
        rows = list(kind.rows_of(shard, batch))
        for each in rows:
            if (key := kind.key_of(each)) <= last:
                raise BackupDamaged([f"{record.path} has keys out of order"])
            last = key
        tally = kind.tally(tally, rows)
        yield rows
    if tally != (record.rows, record.digest, record.content) or last != record.last_key:
        raise BackupDamaged([f"{record.path} has other rows than the manifest says"])
