"""Backups on real node processes: taken while puts go on and leaders are killed, restored into another cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidemark
from tidemark import Documents, Put, backup
from tidemark_operator import local

from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.servers
KEYS = 20_000
WRITERS = 4
BATCH = 100


@asynccontextmanager
async def cluster(directory: Path, name: str, shards: int) -> AsyncIterator[tuple[local.Runtime, tidemark.Client]]:
    """Run three nodes with the documents `settings`."""
    started = await local.up(directory, nodes=3, cluster=name)
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": "settings"},
        "spec": {
            "clusterRef": {"name": name}, "kind": "Documents", "shards": shards,
            "replication": {"factor": 3, "spread": "Node"},
        },
    }
    try:
        await started.apply(json.dumps(manifest))
        async with await tidemark.connect(started.bootstrap()) as client:
            await client.group("settings")
            yield started, client
    finally:
        await local.down(directory, wipe=True)


class Load:
    """Writers that overwrite and delete keys without a pause, each batch after the one before."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.stop = asyncio.Event()
        self.done = 0

    async def run(self) -> None:
        await asyncio.gather(*map(self._write, range(WRITERS)))

    async def _write(self, writer: int) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            keys = [b"key-%05d" % ((number * 7919 + writer * 101 + n * 13) % KEYS) for n in range(BATCH)]
            ended = await self._documents.put_many([
                *(Put(key, b"%d:%d" % (writer, number)) for key in keys[1:]), tidemark.Delete(keys[0])])
            self.done += ended.applied


async def test_u70_a_backup_under_puts_and_a_killed_leader_is_restored_into_another_cluster(tmp_path: Path):
    folder = tmp_path / "backup"
    async with cluster(tmp_path / "one", "one", 3) as (runtime, client), client.documents("settings", timeout_s=60) as (
            documents):
        await documents.put_many(Put(b"key-%05d" % n, b"first" * 40) for n in range(KEYS))
        load = Load(documents)
        writing = asyncio.create_task(load.run())
        await until(lambda: load.done > 500, "puts are answered")
        killed: list[str] = []
        killing: list[asyncio.Task[None]] = []
        at_pin: list[int] = []

        def on_rows(done: int, total: int) -> None:
            if not killed:
                leader = client.routing.leader("settings", 1)
                assert leader is not None
                killed.append(leader.node)
                at_pin.append(load.done)
                killing.append(asyncio.create_task(asyncio.to_thread(runtime.kill, leader.node)))

        made = await backup.take(client, "settings", folder, file_bytes=200_000, on_rows=on_rows)
        await killing[0]
        await until(lambda: load.done > at_pin[0] + 500, "puts go on behind the pin", PATIENCE_S)
        load.stop.set()
        await asyncio.wait_for(writing, PATIENCE_S)
        assert len(list(folder.rglob("*.arrow"))) > 3
        now = sum([backup.document_rows.content_of(each) async for each in documents.scan()]) % (1 << 128)
        assert now != made.manifest.content, "puts behind the pin are not in the backup"
        assert all(not each.pins for each in (await documents.describe()).values())

        later = await backup.take(client, "settings", tmp_path / "later", since=folder)
        assert later.manifest.content == now and not later.notes
        assert 0 < later.fetched <= later.manifest.count
        await documents.put_many([Put(b"key-00001", b"last"), tidemark.Delete(b"key-00002"), Put(b"new", b"last")])
        third = await backup.take(client, "settings", tmp_path / "third", since=tmp_path / "later")
        assert third.fetched == 2, "two documents that exist changed"
        now = sum([backup.document_rows.content_of(each) async for each in documents.scan()]) % (1 << 128)
        assert backup.verify(tmp_path / "third").content == third.manifest.content == now
    assert backup.verify(folder).content == made.manifest.content
    async with cluster(tmp_path / "two", "two", 2) as (_, client), client.documents("settings") as documents:
        restored = await backup.restore(client, folder, "settings")
        assert restored.documents == made.manifest.count > KEYS // 2
        found = sum([backup.document_rows.content_of(each) async for each in documents.scan()]) % (1 << 128)
        assert found == made.manifest.content == restored.content
        with pytest.raises(backup.GroupNotEmpty):
            await backup.restore(client, folder, "settings")
