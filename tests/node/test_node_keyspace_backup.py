"""Backups of keyspaces on three real nodes: taken under load, restored into keyspaces with other ranges, compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import tidemark
from node_harness import VERSIONS, push_map, shard_map
from test_node_keyspaces import started
from tidemark import Keyspace, backup
from tidemark_core.optimistic.archive import archived
from tidemark_core.optimistic.cells import Place, Sort, StringCell
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.stamps import Stamp
from tidemark_node.main import Node
from tidemark_wire.rings import put_ring

pytestmark = pytest.mark.servers
RANGES = {"carts": 4, "copy": 8, "few": 1}


async def push(nodes: list[Node]) -> None:
    """Push a map in which all nodes own every range of every keyspace."""
    pushed = shard_map([(node.me, node.address) for node in nodes], "a", next(VERSIONS))
    own = Owners(tuple(node.me for node in nodes), Quorum(3, 2, 2))
    for number, (name, ranges) in enumerate(RANGES.items(), 3):
        put_ring(pushed.keyspaces.add(name=name, keyspace_id=number), [Range(pushed.version, own)] * ranges)
    for node in nodes:
        await push_map(node.address, pushed)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tidemark.Client]:
    async with AsyncExitStack() as stack:
        nodes = [await started(stack, tmp_path / "nodes", name) for name in "abc"]
        await push(nodes)
        yield await stack.enter_async_context(await tidemark.connect([node.address for node in nodes]))


async def shown(ks: Keyspace) -> dict[Any, Any]:
    """Return what a reader sees, but for the writes of the load."""
    strings = {key: value for key, value in await ks.scan().all() if not key.startswith(b"load")}
    return {
        **strings, "set": await ks.smembers(b"set").all(), "map": dict(await ks.hgetall(b"map").all()),
        "cleared": await ks.smembers(b"cleared").all(),
    }


async def fill(ks: Keyspace) -> None:
    await ks.set_many({b"key %d" % number: b"%d" % number for number in range(50)})
    await ks.set(b"brief", b"v", ttl_s=1_000)
    await ks.unset(b"key 7")
    for member in (b"red", b"green", b"blue", b""):
        await ks.sadd(b"set", member)
    await ks.srem(b"set", b"green")
    for field in (b"a", b"b"):
        await ks.hset(b"map", field, field * 3)
    await ks.sadd(b"cleared", b"old")
    await ks.clear(b"cleared")
    await ks.sadd(b"cleared", b"new")


async def empty(ks: Keyspace) -> None:
    await asyncio.gather(*(ks.unset(key) for key, _ in await ks.scan().all()))
    for key in (b"set", b"map", b"cleared"):
        await ks.clear(key)


async def test_d82_d83_a_backup_under_load_gives_back_all_that_was_acknowledged_before_it(
    client: tidemark.Client, tmp_path: Path
) -> None:
    carts, copy, few = (client.keyspace(name) for name in RANGES)
    await fill(carts)
    before, stop, written = await shown(carts), asyncio.Event(), []

    async def load() -> None:
        while not stop.is_set() and len(written) < 200:
            key = b"load %d" % len(written)
            await carts.set(key, key)
            written.append(key)

    writing = asyncio.create_task(load())
    while len(written) < 20:
        await asyncio.sleep(0)
    early = list(written)
    made = await backup.take_keyspace(client, "carts", tmp_path / "one", file_bytes=2_000)
    stop.set()
    await writing
    assert 4 == len(made.manifest.shards) and made.manifest.count >= 50 + len(early) and made.fetched
    assert len(written) > len(early), "writes went on meanwhile"
    await empty(carts)

    restored = await backup.restore_keyspace(client, tmp_path / "one", "copy")
    assert (made.manifest.count, {}) == (restored.cells, restored.refused)
    assert before == await shown(copy)
    assert set(early) <= {key for key, _ in await copy.scan().all()}
    assert {key: early_value.value for key, early_value in (await copy.get_many(early)).items()} == {
        key: key for key in early}
    await backup.restore_keyspace(client, tmp_path / "one", "few")
    again = await backup.restore_keyspace(client, tmp_path / "one", "few", resume=True)
    assert {} == again.refused
    for name, ranges in (("copy", 8), ("few", 1)):
        second = await backup.take_keyspace(client, name, tmp_path / name)
        assert (made.manifest.content, made.manifest.count, ranges) == (
            second.manifest.content, second.manifest.count, len(second.manifest.shards)), name

    with pytest.raises(backup.KeyspaceNotEmpty, match="keyspace 'carts' has values or deletes in range"):
        await backup.restore_keyspace(client, tmp_path / "one", "carts")
    late = await backup.restore_keyspace(client, tmp_path / "one", "carts", resume=True)
    assert {} == late.refused and [] == await carts.scan().all(), "deletes are newer"
    assert [] == await carts.smembers(b"set").all()
    await few.set(b"key 1", b"later")
    assert b"later" == (await few.get(b"key 1")).value, "writes go on behind the stamps of a backup"


async def test_d83_a_cell_from_the_future_is_refused_by_name_and_the_others_are_stored(
    client: tidemark.Client,
) -> None:
    ks = client.keyspace("copy")

    def at(ms: int) -> StringCell:
        return StringCell(Stamp(ms, 0, "n", b"12345678"), False, 0, b"v")

    cells = archived({Place(Sort.STRING, b"key %d" % n): at(1_000 + n if n else 1 << 61) for n in range(20)})
    refused = await ks.import_cells(cells)
    assert [tidemark.RefusedCell(b"key 0", None, "future")] == refused
    assert {b"key %d" % n: b"v" for n in range(1, 20)} == dict(await ks.scan().all())
