"""Control/CheckDisk: a node says how many writes are durable, and gives up a disk that is proven to be older."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from node_harness import NodeProcess
from store_writer import chain_of
from tidemark_core.base.effects import Persist, PutEntry
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_node.main import EXIT_BROKEN, Node
from tidemark_node.settings import Settings
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import Faults, StoreDamaged
from tidemark_node.synced import FILE
from tidemark_wire import channel
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import PATIENCE_S, until

S1 = ShardId(1)
ENTRIES = chain_of(60)


async def check(address: str, incarnation: str, writes: int, *, give_up: bool = True) -> node_pb2.CheckDiskResponse:
    request = node_pb2.CheckDiskRequest(incarnation=incarnation, writes=writes, give_up=give_up)
    async with channel.open_channel(address) as opened:
        return await node_pb2_grpc.ControlStub(opened).CheckDisk(request, timeout=PATIENCE_S)


def write(store: Store, count: int, first: int = 0) -> None:
    for entry in ENTRIES[first:first + count]:
        store.apply([Persist(of_shard(S1), (PutEntry(entry),))])


class Running:
    def __init__(self, node: Node, faults: Faults) -> None:
        self.node, self.faults = node, faults

    async def check(self, incarnation: str | None, writes: int, *, give_up: bool = True) -> node_pb2.CheckDiskResponse:
        mine = self.node.me.incarnation
        return await check(self.node.address, mine if incarnation is None else incarnation, writes, give_up=give_up)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    faults = Faults()
    node = Node(Settings(node="a", data=tmp_path / "a", listen="127.0.0.1:0", metrics_listen="off"), faults=faults)
    await node.start()
    yield Running(node, faults)
    await node.stop()


async def test_d52_a_disk_is_given_up_only_for_a_greater_mark_of_its_own_life(running: Running) -> None:
    first = await running.check("", 0)
    assert (first.incarnation, first.given_up) == (running.node.me.incarnation, False)
    write(running.node.driver.store, 9)
    said = await running.check(None, first.writes)
    assert said.writes >= first.writes + 9 and not said.given_up, "nothing but this call had it synced"
    assert not (await running.check(None, said.writes)).given_up, "it holds just as many"
    assert not (await running.check("another-life", 1 << 60)).given_up
    assert not (await running.check(None, said.writes + 1, give_up=False)).given_up, "it was only asked"
    assert not running.node.driver.failure.done()
    last = await running.check(None, said.writes + 1)
    assert last.given_up and last.writes == said.writes
    with pytest.raises(StoreDamaged, match=f"ends at write {said.writes}"):
        await running.node.driver.failure


async def test_d52_a_disk_that_fails_a_sync_says_no_mark_and_is_not_given_up(running: Running) -> None:
    boot = running.node.driver.boot
    running.faults.sync = running.faults.write = OSError(errno.EIO, "broken")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await running.check(None, 1 << 60)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE and "retry" in (refused.value.details() or "")
    with pytest.raises(grpc.aio.AioRpcError):   # it loads its shards again
        await running.check(None, 1 << 60)
    running.faults.sync = running.faults.write = None
    await until(lambda: running.node.driver.open and running.node.driver.boot != boot)
    assert not (await running.check(None, 0)).given_up and not running.node.driver.failure.done()


@pytest.mark.servers
async def test_d52_a_node_that_gave_up_its_disk_comes_back_as_a_new_member(tmp_path: Path) -> None:
    node = NodeProcess("a", tmp_path)
    node.start()
    before = node.member
    said = await check(node.address, before.incarnation, 0)
    assert (await check(node.address, before.incarnation, said.writes + 1)).given_up
    assert node.process is not None and node.process.wait(PATIENCE_S) == EXIT_BROKEN
    assert (node.directory / "store.damaged-1").is_dir(), "its bytes are kept"
    store = open_store(node.directory, "a")
    assert store.incarnation != before.incarnation and store.shards() == []
    store.close()


def test_d52_the_mark_of_a_disk_never_falls_where_its_file_lost_the_newest(tmp_path: Path) -> None:
    """A power cut takes the newest number in the file SYNCED, and no write that was durable."""
    store = open_store(tmp_path, "a")
    write(store, 3)
    store.sync()
    old = (store.path / FILE).read_bytes()
    write(store, 30, first=3)
    said = store.sync()
    store.close()
    (store.path / FILE).write_bytes(old)
    again = open_store(tmp_path, "a")
    assert again.incarnation == store.incarnation and again.sync() >= said
    again.close()
