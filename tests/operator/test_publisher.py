"""The map publisher: every node holds the newest map in the end, whenever it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

from tidemark_operator.publisher import MapPublisher
from tidemark_wire.v1 import common_pb2

from tests.waiting import until


class FakeLink:
    """A node that takes maps at once; `on_push` runs when one arrives."""

    def __init__(self, node: str = "n-1") -> None:
        self.node = node
        self.up = True
        self.description = SimpleNamespace(boot="b")
        self.held: list[int] = []
        self.on_push: Callable[[int], None] = lambda version: None

    async def push_map(self, shard_map: common_pb2.ShardMap) -> int:
        self.held.append(shard_map.version)
        self.on_push(len(self.held))
        return shard_map.version


def publisher_of(*links: FakeLink) -> MapPublisher:
    return MapPublisher(list(links), lambda version: common_pb2.ShardMap(version=version))  # type: ignore[arg-type]


async def settled(publisher: MapPublisher, link: FakeLink) -> None:
    await until(lambda: link.held and link.held[-1] == publisher.version)


async def test_change_in_the_moment_a_push_ends_is_pushed_too():
    link = FakeLink()
    publisher = publisher_of(link)
    loop = asyncio.get_running_loop()
    link.on_push = lambda count: loop.call_soon(publisher._rebuild) and None if count <= 20 else None
    publisher.begin(1)
    await settled(publisher, link)
    await until(lambda: len(link.held) >= 21)
    await settled(publisher, link)
    assert link.held == sorted(set(link.held))
    await publisher.close()


async def test_closing_in_the_middle_of_a_push_ends_it():
    link = FakeLink()
    publisher = publisher_of(link)
    never = asyncio.Event()

    async def hang(shard_map: common_pb2.ShardMap) -> int:
        await never.wait()
        return 0

    link.push_map = hang  # type: ignore[method-assign]
    publisher.begin(1)
    await until(lambda: publisher._pushes)
    await publisher.close()
    assert not publisher._pushes
