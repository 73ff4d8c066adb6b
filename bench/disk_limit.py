"""Disk limit: how fast this disk takes what nodes write, without nodes.

A node appends to RocksDB's log and syncs it after every group; it writes each full memtable to a table, which is synced
once, and removes the log of that table.  One writer for each replica does exactly this, on the file system that the
benchmark uses.  It has no network, no checksums and no index, so its rate is what the disk and the kernel allow.
Stays out: the nodes themselves (`append_throughput`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
MEMTABLE_BYTES = 64 << 20
MEMTABLES_MAX = 3
"""Memtables of one node, as its families set them: one is filled, the others wait for their table."""


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """Found by `measure`; MB is 10^6 bytes."""

    mb_per_second: float        # synced to the log of each replica, mean of all replicas
    written_per_byte: float     # bytes to logs and tables of all replicas, for each byte of that mean
    syncs: int
    group_kib: float


class _Replica:
    """One writer: a thread that appends and syncs, and a thread that writes tables."""

    def __init__(self, directory: Path, group: bytes, until: float) -> None:
        self._directory = directory
        self._group = group
        self._until = until
        self.synced_bytes = 0
        self.table_bytes = 0
        self.syncs = 0

    def run(self) -> None:
        """Write until the time is over."""
        room = threading.Semaphore(MEMTABLES_MAX)
        writing: list[Future[None]] = []
        with ThreadPoolExecutor(1) as tables:
            while self._in_time():
                room.acquire()
                log = self._directory / f"{len(writing)}.log"
                self._append(log)
                writing.append(tables.submit(self._table, log, log.with_suffix(".table")))
                writing[-1].add_done_callback(lambda _: room.release())
        for table in writing:
            table.result()

    def _in_time(self) -> bool:
        return time.perf_counter() < self._until

    def _append(self, path: Path) -> None:
        with _created(path) as log:
            size = 0
            while size < MEMTABLE_BYTES and self._in_time():
                _write(log, self._group)
                os.fdatasync(log)
                size += len(self._group)
                self.synced_bytes += len(self._group)
                self.syncs += 1

    def _table(self, log: Path, path: Path) -> None:
        size = log.stat().st_size
        block = self._group[:MIB]
        with _created(path) as table:
            for _ in range(0, size, len(block)):
                if not self._in_time():
                    return
                _write(table, block)
                self.table_bytes += len(block)
            os.fdatasync(table)
        log.unlink()


def measure(directory: Path, group_bytes: int, seconds: float, replicas: int = 3) -> DiskLimit:
    """Write below an empty `directory` as so many replicas do, all at once, in groups of `group_bytes`."""
    began = time.perf_counter()
    writers = []
    for number in range(replicas):
        own = directory / f"replica-{number}"
        own.mkdir()
        writers.append(_Replica(own, os.urandom(group_bytes), began + seconds))
    with ThreadPoolExecutor(replicas) as threads:
        for done in [threads.submit(writer.run) for writer in writers]:
            done.result()
    took = time.perf_counter() - began
    synced = sum(writer.synced_bytes for writer in writers)
    return DiskLimit(
        mb_per_second=synced / replicas / 1e6 / took,
        written_per_byte=(synced + sum(writer.table_bytes for writer in writers)) / (synced / replicas),
        syncs=sum(writer.syncs for writer in writers),
        group_kib=group_bytes / 1024,
    )


@contextmanager
def _created(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        yield file
    finally:
        os.close(file)


def _write(file: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(file, left):]
