"""Real nodes repair keyspaces by themselves, and show it: owners that come back, hints, read repair."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from node_harness import VERSIONS, NodeProcess, push_map
from prometheus_client import generate_latest
from test_node_keyspace_calls import NAME, NUMBER, Client
from tidemark_core.base.ids import Member
from tidemark_core.base.limits import Limits
from tidemark_core.optimistic.plane import KeyspaceLimits
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.planes import PlaneTable, planes
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire.channel import open_channel
from tidemark_wire.rings import put_ring
from tidemark_wire.v1 import common_pb2
from tidemark_wire.v1 import keyspaces_pb2 as wire

from tests.waiting import until

pytestmark = pytest.mark.servers

N3 = Quorum(3, 2, 2)
KEY, OTHER = b"key", b"other"
Addressed = tuple[Member, str]


def _planes(limits: Limits, repair_every_ms: int) -> PlaneTable:
    return planes(limits, KeyspaceLimits(
        tick_ms=10, replay_pause_ms=100, settings=KeyspaceSettings(repair_every_ms=repair_every_ms)))


async def started(
    stack: AsyncExitStack, directory: Path, name: str, repair_every_ms: int = 600_000, listen: str = "127.0.0.1:0",
) -> Node:
    """Return a running node.  Owners compare so seldom that only the return of one makes them do it in a test."""
    settings = Settings(
        node=name, data=directory / name, listen=listen, metrics_listen="off", disk_reserve_bytes=1 << 20)
    node = Node(settings, planes_of=partial(_planes, repair_every_ms=repair_every_ms))
    await node.start()
    stack.push_async_callback(node.stop)
    return node


def at(node: Node) -> Addressed:
    return node.me, node.address


def a_map(record: Range, nodes: Sequence[Addressed], **fields: Any) -> common_pb2.ShardMap:
    """Build a map with one keyspace of one range."""
    found = common_pb2.ShardMap(version=next(VERSIONS), nodes=[
        common_pb2.NodeInfo(node=member.node, incarnation=member.incarnation, address=address, available=True)
        for member, address in nodes])
    put_ring(found.keyspaces.add(**{
        "name": NAME, "keyspace_id": NUMBER, "overrides_allowed": True, **fields}), [record])
    return found


async def push(record: Range, *nodes: Addressed, to: Sequence[Addressed] | None = None, **fields: Any) -> None:
    pushed = a_map(record, nodes, **fields)
    for _, address in nodes if to is None else to:
        await push_map(address, pushed)


async def client_of(stack: AsyncExitStack, node: Node) -> Client:
    return Client(await stack.enter_async_context(open_channel(node.address)))


def record_of(*members: Member, quorum: Quorum = N3) -> Range:
    return Range(1, Owners(members, quorum))


async def all_hold(client: Client, key: bytes = KEY, element: bytes | None = None) -> wire.KeyExplained:
    """Wait until every owner holds what decides, and no node keeps a hint."""
    fields = {} if element is None else {"element": element}
    found = wire.KeyExplained()

    async def equal() -> bool:
        found.CopyFrom(await client.call("Explain", key=key, **fields))
        return found.outcome == "ok" and not any(
            node.lacks or node.hints or not node.answered for node in found.nodes)

    await until(equal, "all owners hold it")
    return found


def linked(node: Node, name: str) -> bool:
    return any(peer["links"] for peer in node.links.describe() if peer["peer"].startswith(f"{name}/"))


async def missed(by: str, *nodes: Node) -> None:
    """Wait until these nodes have dropped what they had for one that is away: it would get that when it is back."""
    await until(lambda: not any(
        peer["queued_bytes"] for node in nodes for peer in node.links.describe() if peer["peer"].startswith(f"{by}/")
    ), f"{by} misses what was sent to it")


async def the_range(client: Client) -> wire.RangeShown:
    [shown] = (await client.call("Ranges")).ranges
    assert isinstance(shown, wire.RangeShown)
    return shown


# --- owners that come back ----------------------------------------------------------------------------------------


async def test_d74_an_owner_that_was_killed_gets_what_it_missed_and_nothing_deleted_comes_back(
    tmp_path: Path, start_node: Callable[..., NodeProcess]
) -> None:
    """Each key is read with all owners: what one of them lacks, a read quorum might hide."""
    async with AsyncExitStack() as stack:
        a, b = [await started(stack, tmp_path, name) for name in "ab"]
        c = start_node("c")
        nodes = [at(a), at(b), (c.member, c.address)]
        await push(record_of(*(member for member, _ in nodes)), *nodes, read_repair="Off")
        client = await client_of(stack, a)
        await client.set((KEY, b"before"), (OTHER, b"before"), w=3)
        await client.call("Put", key=KEY, element=b"one", w=3)

        c.kill()
        assert ["ok"] == await client.set((KEY, b"while it is away"))
        assert "ok" == (await client.call("Unset", key=OTHER)).outcome
        assert "ok" == (await client.call("Remove", key=KEY, element=b"one")).outcome

        await missed("c", a, b)
        await started(stack, tmp_path, "c", listen=c.address)
        assert (await all_hold(client)).shown
        for key, element in ((OTHER, None), (KEY, b"one")):
            found = await all_hold(client, key, element)
            assert not found.shown and found.winner.dead and 3 == sum(bool(node.cells) for node in found.nodes)
        assert [("ok", b"while it is away"), ("ok", None)] == await client.get(KEY, OTHER, r=3)
        assert "one" not in str(await client.elements(KEY, r=3))

        async def exchanged() -> bool:
            shown = await the_range(client)
            return shown.HasField("exchanged_ms") and not shown.blocks

        await until(exchanged, "the exchanges are known")


async def test_d66_d74_a_wiped_owner_is_another_member_and_gets_everything(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a, b = [await started(stack, tmp_path, name) for name in "ab"]
        async with AsyncExitStack() as one_life:
            c = await started(one_life, tmp_path, "c")
            before = record_of(a.me, b.me, c.me)
            await push(before, at(a), at(b), at(c))
            client = await client_of(stack, a)
            await client.set((KEY, b"v"), (OTHER, b"v"), w=3)
        await client.call("Unset", key=OTHER)
        shutil.rmtree(tmp_path / "c")
        new = await started(stack, tmp_path, "c")
        assert new.me.node == "c" and new.me != c.me

        moving = begun(before, Owners((a.me, b.me, new.me), N3))
        await push(moving, at(a), at(b), at(new))
        at_new = await client_of(stack, new)

        async def copied() -> bool:
            return (await the_range(at_new)).part == "pending"

        await until(copied, "it has copied the range")
        blocks = (await the_range(client)).blocks
        assert "a move is open (D68)" in [each.what for each in blocks]
        await push(finished(moving), at(a), at(b), at(new))
        assert (await all_hold(at_new)).shown and not (await all_hold(at_new, OTHER)).shown
        assert ("owner", []) == ((found := await the_range(at_new)).part, list(found.pending))


async def test_d73_d74_hints_are_delivered_to_owners_that_come_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a, d = [await started(stack, tmp_path, name) for name in "ad"]
        async with AsyncExitStack() as one_life:
            b, c = [await started(one_life, tmp_path, name) for name in "bc"]
            record = record_of(a.me, b.me, c.me)
            await push(record, at(a), at(b), at(c), at(d), sloppy=True)
            client = await client_of(stack, d)
            await client.set((KEY, b"before"), w=3)
        assert ["sloppy"] == await client.set((KEY, b"kept"))
        kept = await the_range(client)
        assert ("none", 1) == (kept.part, kept.hints) and kept.hint_bytes and kept.oldest_hint_ms
        told = generate_latest(d.metrics.registry).decode()
        assert "tidemark_keyspace_hints 1.0" in told
        [holder] = [node for node in (await client.call("Explain", key=KEY)).nodes if node.hints]
        assert "d" == holder.member.node and "none" == holder.part and 4 == holder.hints[0].value_bytes
        assert ["sloppy"] * 2 == await client.set((OTHER, b"one"), (OTHER + b"z", b"two")), "a hint holds one row"

        for each in (b, c):
            await started(stack, tmp_path, each.me.node, listen=each.address)
        found = await all_hold(client)
        assert found.shown and 4 == found.winner.value_bytes
        assert 0 == (await the_range(client)).hints


@pytest.mark.parametrize(("mode", "near", "far"), [
    ("Off", False, False), ("Local", True, False), ("Async", True, True), ("Blocking", True, True)])
async def test_d75_a_read_repairs_as_the_map_says(tmp_path: Path, mode: str, near: bool, far: bool) -> None:
    """An owner that lacks a row coordinates a read, and then a node that owns none asks it; owners do not compare."""
    async with AsyncExitStack() as stack:
        a, c, d = [await started(stack, tmp_path, name, 0) for name in "acd"]
        async with AsyncExitStack() as one_life:
            b = await started(one_life, tmp_path, "b", 0)
            record = record_of(b.me, a.me, c.me)
            await push(record, at(a), at(b), at(c), at(d), read_repair=mode)
            client = await client_of(stack, d)
            await client.set((KEY, b"before"), (OTHER, b"before"), w=3)
        assert ["ok", "ok"] == await client.set((KEY, b"later"), (OTHER, b"later"))
        await missed("b", a, c, d)
        b = await started(stack, tmp_path, "b", 0, b.address)
        await push(record, at(a), at(b), at(c), at(d), read_repair=mode)
        await until(lambda: linked(d, "b"), "the read asks it, and no other owner in its place")
        assert [("ok", b"later")] == await (await client_of(stack, b)).get(KEY)
        assert [("ok", b"later")] == await client.get(OTHER)

        async def has(key: bytes) -> bool:
            found = await client.call("Explain", key=key)
            return not next(node.lacks for node in found.nodes if node.member.node == "b")

        for key, repaired in ((KEY, near), (OTHER, far)):
            if repaired:
                await until(partial(has, key), f"{key!r} is repaired")
            else:
                assert not await has(key)
