"""The disk's limit: what the writers write and sync, and that a disk that refuses is not taken for a slow one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import disk_limit

KIB = 1 << 10


def test_every_group_is_synced_and_written_again_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_limit, "MEMTABLE_BYTES", 128 * KIB)
    syncs: list[int] = []
    fdatasync = os.fdatasync

    def counted(file: int) -> None:
        syncs.append(file)
        fdatasync(file)

    monkeypatch.setattr(disk_limit.os, "fdatasync", counted)
    found = disk_limit.measure(tmp_path, 32 * KIB, seconds=1.5, replicas=3)

    tables = [path for path in tmp_path.rglob("*.table") if path.stat().st_size == 128 * KIB]
    assert found.syncs > 3
    assert len(syncs) >= found.syncs + len(tables) - 3, "each group, and each table that was not cut short"
    assert 3 < found.written_per_byte <= 6, "three logs, and tables of what left the memtables in time"
    assert found.group_kib == 32
    kept = {path.relative_to(tmp_path).parts[0] for path in tables}
    assert kept == {"replica-0", "replica-1", "replica-2"}, "the three write at once"


def test_the_rate_is_what_one_replica_synced(tmp_path: Path) -> None:
    began = time.perf_counter()
    found = disk_limit.measure(tmp_path, 64 * KIB, seconds=0.3, replicas=2)
    took = time.perf_counter() - began
    mb_of_one = found.syncs * 64 * KIB / 1e6 / 2
    assert mb_of_one / took <= found.mb_per_second <= mb_of_one / 0.3


def test_a_disk_that_refuses_fails_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(disk_limit.os, "fdatasync", refuse)
    with pytest.raises(OSError, match="no space"):
        disk_limit.measure(tmp_path, 64 * KIB, seconds=0.2)
