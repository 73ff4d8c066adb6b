"""Disks under test: a small one that can be filled, and damage done to the store of a stopped node.

A small disk is a tmpfs in a user namespace of the node's own; where the system forbids that, errors are injected
into the node's store instead (`faulty_node`).
Stays out: what a node makes of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark_core.base.effects import Persist, PutEntry
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_node.store import Store, open_store

from tests.waiting import PATIENCE_S

from .cluster import Cluster

BALLAST_PIECE = b"\0" * (256 << 10)
EVERYTHING = 1 << 40


def namespaces_permitted() -> bool:
    """Say whether this user may mount a tmpfs in a namespace of its own."""
    script = "mount -t tmpfs -o size=1m tmpfs /tmp"
    tried = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, timeout=PATIENCE_S)
    return tried.returncode == 0


def put_back(cluster: Cluster, node: str, copy: Path) -> None:
    """Replace the data of a stopped node by a copy."""
    shutil.rmtree(cluster.node(node).data)
    shutil.copytree(copy, cluster.node(node).data)


class SmallDisk:
    """The disk of one node, with few bytes."""

    medium: str
    flags: Sequence[str] = ()

    def fill(self, leave_bytes: int) -> None:
        """Take space away until at most `leave_bytes` are left."""
        raise NotImplementedError

    def free(self) -> None:
        """Give the space back."""
        raise NotImplementedError


class TmpfsDisk(SmallDisk):
    medium = "tmpfs"

    def __init__(self, cluster: Cluster, node: str, size_bytes: int) -> None:
        self._cluster = cluster
        self._node = node
        data = cluster.node(node).data
        mount = f'mount -t tmpfs -o size={size_bytes} tmpfs "{data}" && exec "$0" "$@"'
        self.prefix = ("unshare", "-Urm", "sh", "-c", mount)

    @property
    def _ballast(self) -> Path:
        """The node's own view of its data directory; from outside the mount is not seen."""
        return Path(f"/proc/{self._cluster.pid(self._node)}/root{self._cluster.node(self._node).data}/ballast")

    def fill(self, leave_bytes: int) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            status = os.fstatvfs(ballast.fileno())
            missing = status.f_bavail * status.f_frsize - leave_bytes
            while missing > 0:
                try:
                    missing -= ballast.write(BALLAST_PIECE[:missing])
                except OSError:  # full to the last byte, the node being faster
                    return

    def free(self) -> None:
        self._ballast.unlink()


class InjectedDisk(SmallDisk):
    medium = "injected"

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._left = cluster.directory / f"{node}.space"
        self.prefix = (sys.executable, str(Path(__file__).with_name("faulty_node.py")), str(self._left))

    def fill(self, leave_bytes: int) -> None:
        partial = self._left.with_suffix(".partial")
        partial.write_text(str(leave_bytes))
        partial.replace(self._left)

    def free(self) -> None:
        self._left.unlink()


async def small_disk(cluster: Cluster, node: str, size_bytes: int, *flags: str) -> SmallDisk:
    """Give a node a small disk; what it held is gone."""
    if not namespaces_permitted():
        return await failing_disk(cluster, node, *flags)
    disk = TmpfsDisk(cluster, node, size_bytes)
    await cluster.restart_with(*flags, nodes=[node], prefix=disk.prefix)
    return disk


async def failing_disk(cluster: Cluster, node: str, *flags: str) -> SmallDisk:
    """Give a node a store whose writes fail when it is filled to the last byte."""
    disk = InjectedDisk(cluster, node)
    await cluster.restart_with(*flags, nodes=[node], prefix=disk.prefix)
    return disk


# --- damage ---------------------------------------------------------------------------------------------------


def _store(cluster: Cluster, node: str) -> Store:
    state = cluster.node(node)
    assert not state.running, "a store is damaged while nobody has it open"
    return open_store(Path(state.data), node)


def stored_payloads(cluster: Cluster, node: str, shard: ShardId) -> dict[int, bytes]:
    """Return the payloads of a stopped node by base offset; asserts that all are intact."""
    store = _store(cluster, node)
    try:
        found = store.read(shard, 0, EVERYTHING, EVERYTHING)
        last = found.entries[-1].last if found.entries else -1
        assert found.damaged_at in (None, last + 1), f"{node} holds a damaged entry at offset {found.damaged_at}"
        return {entry.base: entry.payload for entry in found.entries}
    finally:
        store.close()


def flip_payloads(cluster: Cluster, node: str, shard: ShardId, every: int, first: int = 0) -> list[int]:
    """Flip a bit in each `every`th batch on the disk of a stopped node; return their last offsets."""
    store = _store(cluster, node)
    try:
        entries = [entry for entry in store.read(shard, 0, EVERYTHING, EVERYTHING).entries if entry.kind is Kind.DATA]
        damaged = entries[first::every]
        assert damaged, "there is nothing to damage"
        for entry in damaged:
            payload = bytearray(entry.payload)
            payload[len(payload) // 2] ^= 0x10
            store.apply([Persist(of_shard(shard), (PutEntry(entry._replace(payload=bytes(payload))),))])
        store.sync()
        return [entry.last for entry in damaged]
    finally:
        store.close()


def damage_log(cluster: Cluster, node: str) -> None:
    """Flip bytes in the middle of the newest write-ahead log of a killed node."""
    logs = sorted((Path(cluster.node(node).data) / "store").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(logs[-1].read_bytes())
    assert len(data) > 10_000, f"{logs[-1]} is too short to have a middle"
    for place in range(len(data) // 2, len(data) // 2 + 64):
        data[place] ^= 0xFF
    logs[-1].write_bytes(data)
