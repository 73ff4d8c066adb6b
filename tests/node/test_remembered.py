"""What of the shard map outlives a node: groups for ever, nodes and the term of the operator as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemark_node.remembered import Remembered, merged
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import StoreFailed
from tidemark_wire.v1 import common_pb2, node_pb2


def pushed(term: int, groups: dict[int, str], *nodes: str, version: int = 1) -> common_pb2.ShardMap:
    return common_pb2.ShardMap(
        version=(term << 32) + version, cluster="dev",
        groups=[
            common_pb2.GroupInfo(group_id=number, name=name, kind="Log", shards=[common_pb2.ShardInfo()] * 2)
            for number, name in groups.items()
        ],
        nodes=[common_pb2.NodeInfo(node=node, address=f"{node}:1", location="zone=a") for node in nodes],
    )


def told(seen: node_pb2.RememberedCluster) -> tuple[Any, ...]:
    return (
        seen.map_version >> 32, {(group.group_id, group.name, group.shards, group.current) for group in seen.groups},
        [(node.node, node.address) for node in seen.nodes],
    )


class FakeDriver:
    """Runs the work in a thread, as the driver does, or fails."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writes = 0
        self.fails = False

    async def reclaim(self, work: Callable[[Store], None]) -> None:
        self.writes += 1
        if self.fails:
            raise StoreFailed("no space", no_space=True)
        await asyncio.to_thread(work, self.store)


def test_groups_are_kept_for_ever_and_nodes_and_terms_are_the_newest():
    first = merged(node_pb2.RememberedCluster(), pushed(3, {1: "orders", 2: "bills"}, "b", "a"))
    assert (3, {(1, "orders", 2, True), (2, "bills", 2, True)}, [("a", "a:1"), ("b", "b:1")]) == told(first)
    second = merged(first, pushed(4, {2: "bills", 5: "new"}, "c"))
    assert (4, {(1, "orders", 2, False), (2, "bills", 2, True), (5, "new", 2, True)}, [("c", "c:1")]) == told(second)
    assert second == merged(second, pushed(4, {2: "bills", 5: "new"}, "c", version=9)), "each map of a term is one"


async def test_it_is_read_again_and_written_when_it_changes(tmp_path: Path):
    store = open_store(tmp_path, "a")
    driver: Any = FakeDriver(store)
    remembered = Remembered(driver, store.remembered())
    for version in range(3):
        remembered.tell(pushed(3, {1: "orders"}, "a", version=version))
        await remembered.close()
    assert 1 == driver.writes
    store.close()
    store = open_store(tmp_path, "a")
    again = Remembered(driver, store.remembered())
    assert again.cluster == remembered.cluster and told(again.cluster)[0] == 3
    store.close()
    assert node_pb2.RememberedCluster() == Remembered(driver, b"\xff").cluster


async def test_what_could_not_be_written_is_written_with_the_next_map_though_that_is_the_same(tmp_path: Path):
    store = open_store(tmp_path, "a")
    driver: Any = FakeDriver(store)
    remembered = Remembered(driver, None)
    driver.fails = True
    remembered.tell(pushed(3, {1: "orders"}, "a"))
    await remembered.close()
    driver.fails = False
    remembered.tell(pushed(3, {1: "orders"}, "a"))
    await remembered.close()
    assert remembered.cluster == Remembered(driver, store.remembered()).cluster
    store.close()
