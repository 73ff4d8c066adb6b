"""The client's keyspaces on three real nodes: every call, a scan through a move, and owners that stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
import tidemark
from node_harness import VERSIONS, push_map, shard_map
from test_node_keyspaces import started
from tidemark import Keyspace, errors
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun
from tidemark_core.optimistic.sizes import VALUE_BYTES_MAX
from tidemark_node.main import Node
from tidemark_wire.rings import put_ring

from tests.waiting import until

pytestmark = pytest.mark.servers
NAME, RANGES, ALL = "carts", 4, Quorum(3, 2, 2)


async def push(nodes: list[Node], *records: Range) -> int:
    """Push a map in which all nodes own every range, or as the records say; return its version."""
    pushed = shard_map([(node.me, node.address) for node in nodes], "a", next(VERSIONS))
    own = Owners(tuple(node.me for node in nodes), ALL)
    put_ring(
        pushed.keyspaces.add(name=NAME, keyspace_id=3, overrides_allowed=True),
        records or [Range(pushed.version, own)] * RANGES)
    for node in nodes:
        await push_map(node.address, pushed)
    return pushed.version


@pytest.fixture
async def lives() -> AsyncIterator[list[AsyncExitStack]]:
    """One for each node: closing it stops the node."""
    lives = [AsyncExitStack() for _ in range(3)]
    yield lives
    for life in lives:
        await life.aclose()


@pytest.fixture
async def nodes(lives: list[AsyncExitStack], tmp_path: Path) -> list[Node]:
    nodes = [await started(life, tmp_path, name) for life, name in zip(lives, "abc", strict=True)]
    await push(nodes)
    return nodes


@pytest.fixture
async def client(nodes: list[Node]) -> AsyncIterator[tidemark.Client]:
    async with await tidemark.connect([node.address for node in nodes]) as client:
        yield client


@pytest.fixture
async def ks(client: tidemark.Client) -> Keyspace:
    return client.keyspace(NAME)


async def test_every_call_once(ks: Keyspace) -> None:
    first, second = await ks.set(b"k", b"v"), await ks.set(b"k", b"w")
    assert first.stamp is not None and second.stamp is not None and first.stamp < second.stamp
    assert "ok" == second.outcome and second.stored >= 2
    assert (b"w", "ok") == ((found := await ks.get(b"k")).value, found.outcome)
    assert "weak" == (await ks.get(b"k", r=1)).outcome
    assert b"w" == (await ks.getdel(b"k")).value and None is (await ks.getdel(b"k")).value
    many = {b"key %d" % number: b"%d" % number for number in range(300)}
    assert {"ok"} == {each.outcome for each in (await ks.set_many(many)).values()}
    assert many == {key: each.value for key, each in (await ks.get_many(many)).items()}
    assert many == dict(await ks.scan(page_rows=50).all())
    await ks.unset(b"key 0")
    assert None is (await ks.get(b"key 0")).value
    for member in (b"red", b"green", b"blue"):
        await ks.sadd(b"s", member)
    await ks.srem(b"s", b"green")
    assert [b"blue", b"red"] == await ks.smembers(b"s", page_rows=1).all()
    assert await ks.sismember(b"s", b"red") and not await ks.sismember(b"s", b"green")
    await ks.hset(b"m", b"size", b"9")
    await ks.hset(b"m", b"size", b"10", ttl_s=3600)
    assert b"10" == (await ks.hget(b"m", b"size")).value
    assert [(b"size", b"10")] == await ks.hgetall(b"m").all()
    await ks.hdel(b"m", b"size")
    await ks.clear(b"s")
    assert [] == await ks.hgetall(b"m").all() == await ks.smembers(b"s").all()
    large = {b"large %d" % number: bytes([number]) * (VALUE_BYTES_MAX - 1) for number in range(5)}
    await ks.set_many(large)
    assert large == {key: each.value for key, each in (await ks.get_many(large)).items()}


async def test_a_scan_goes_on_through_a_move(ks: Keyspace, client: tidemark.Client, nodes: list[Node]) -> None:
    many = {b"%03d" % number: b"v" for number in range(60)}
    await ks.set_many(many)
    seen: dict[bytes, bytes] = {}
    entries = ks.scan(page_rows=5)
    async for key, value in entries:
        seen[key] = value
        if len(seen) == 13:
            break
    ring = client.routing.keyspace(NAME)
    members = tuple(node.me for node in reversed(nodes))
    version = await push(nodes, *(begun(each, Owners(members, ALL)) for each in ring.ranges))
    await until(lambda: client.shard_map.version == version)
    seen |= dict(await ks.scan(token=entries.token, page_rows=5).all())
    assert many == seen


async def test_owners_that_stop_are_routed_around(
    ks: Keyspace, client: tidemark.Client, nodes: list[Node], lives: list[AsyncExitStack]
) -> None:
    async def stop(number: int) -> None:
        channel = client.channels.to(nodes[number].address)
        await lives[number].aclose()
        await until(lambda: channel.get_state() is not grpc.ChannelConnectivity.READY, "the connection is gone")

    keys = [b"%d" % number for number in range(8)]
    await ks.set_many({key: b"v" for key in keys})
    await stop(0)
    for key in keys:
        assert b"v" == (await ks.get(key)).value
        assert "ok" == (await ks.set(key, b"w")).outcome
    await stop(1)
    unknown, short = await asyncio.gather(
        ks.set(b"0", b"x", timeout_s=1.2), ks.get(b"1", timeout_s=1.2), return_exceptions=True)
    assert isinstance(unknown, errors.WriteUnknown) and isinstance(short, errors.NotEnoughOwners), (unknown, short)
    assert "key b'0' of keyspace 'carts'" in unknown.message and 1 == unknown.stored and unknown.stamp is not None
    assert "key b'1' of keyspace 'carts' within 1.2 s" in short.message
    weak = await ks.get(b"1", r=1)
    assert (b"w", "weak") == (weak.value, weak.outcome)
