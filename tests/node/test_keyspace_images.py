"""Nodes that come back with an older copy of their disk: one is repaired, and one from before a floor is refused."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from node_harness import OperatorHand
from test_node_keyspace_calls import NUMBER, Client
from test_node_keyspace_repair import KEY, OTHER, all_hold, at, client_of, push, record_of, started, the_range
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, ShardId
from tidemark_core.optimistic.floors import PromiseAsked, Promised
from tidemark_core.optimistic.moving import Announced
from tidemark_core.optimistic.ring import risen
from tidemark_node.main import Node

from tests.waiting import until

pytestmark = pytest.mark.servers

UNIT = NUMBER << 32
AT = Address(KEYSPACE_PLANE, UNIT)


class Story:
    """Three owners of one range, of which C is stopped, copied, started again and given the copy later."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self._stack = stack
        self._life = AsyncExitStack()       # of C
        self._directory = directory
        self.nodes: dict[str, Node] = {}

    async def begin(self) -> None:
        """Write two Strings to all owners, copy the disk of C, and delete one and change the other."""
        for name in "ab":
            self.nodes[name] = await started(self._stack, self._directory, name)
        self._stack.push_async_callback(self.stop)
        await self.start("127.0.0.1:0")
        client = await self.client("a")
        await client.set((KEY, b"deleted later"), (OTHER, b"old"), w=3)
        await self.stop()
        shutil.copytree(self._directory / "c", self._directory / "copy")
        await self.start(self.nodes["c"].address)
        self.deleted = await client.call("Unset", key=KEY, w=3)
        assert ["ok"] == await client.set((OTHER, b"new"), w=3)

    async def stop(self) -> None:
        await self._life.aclose()

    async def start(self, listen: str) -> None:
        self._life = AsyncExitStack()
        self.nodes["c"] = await started(self._life, self._directory, "c", listen=listen)
        record = record_of(*(node.me for node in self.nodes.values()))
        await push(record, *map(at, self.nodes.values()))

    async def restore(self) -> None:
        """Give C the copy of its disk."""
        before = self.nodes["c"]
        await self.stop()
        shutil.rmtree(self._directory / "c")
        shutil.copytree(self._directory / "copy", self._directory / "c")
        await self.start(before.address)
        assert before.me == self.nodes["c"].me, "it believes to be the same member"

    async def client(self, name: str) -> Client:
        return await client_of(self._stack, self.nodes[name])


async def test_d74_an_owner_with_an_older_copy_of_its_disk_gets_what_that_lacks(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        story = Story(stack, tmp_path)
        await story.begin()
        await story.restore()
        client = await story.client("c")
        assert [("ok", None), ("ok", b"new")] == await client.get(KEY, OTHER)
        deleted = await all_hold(client, KEY)
        assert not deleted.shown and deleted.winner.dead
        assert [("ok", None), ("ok", b"new")] == await client.get(KEY, OTHER, r=3)


async def test_d71_d72_an_owner_with_a_disk_from_before_the_floor_is_refused(tmp_path: Path) -> None:
    """The other owners hold no tombstone any more, and the copy has a live value of the same key."""
    operator = OperatorHand()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(operator.close)
        story = Story(stack, tmp_path)
        await story.begin()
        floor_ms, record = story.deleted.stamp.ms, record_of(*(node.me for node in story.nodes.values()))
        for name, node in story.nodes.items():
            await operator.link(name, node.address)
            await operator.send_at(AT, node.me, PromiseAsked(UNIT, 1, record.version, floor_ms))
            assert Promised(UNIT, 1) == await operator.wait_for(name, Promised, ShardId(UNIT))
        for node in story.nodes.values():
            await operator.send_at(AT, node.me, Announced(UNIT, risen(record, floor_ms)))
        for name in story.nodes:
            shown = await story.client(name)
            await until(lambda shown=shown: collected(shown), f"{name} holds no tombstone")

        await story.restore()
        client = await story.client("c")
        assert [("ok", None), ("ok", b"new")] == await client.get(KEY, OTHER)
        assert "withdrawn" == (await the_range(client)).part
        assert ["ok", "ok"] == await client.set((OTHER, b"newer"), (b"third", b"3"))
        for name in "abc":
            assert [("ok", None), ("ok", b"newer"), ("ok", b"3")] == await (await story.client(name)).get(
                KEY, OTHER, b"third")
        found = await client.call("Explain", key=KEY)
        assert "ok" == found.outcome and not found.shown


async def collected(client: Client) -> bool:
    """Say whether no owner holds a cell of the deleted String."""
    return not any(node.cells for node in (await client.call("Explain", key=KEY)).nodes)
