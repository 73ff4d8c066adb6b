"""Nodes of this process with one keyspace, stopped and started as a local cluster kills and starts its processes.

Stays out: what is written, and moves of ranges; an operator on real processes makes those.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tidemark_core.optimistic.plane import KeyspaceLimits
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.planes import planes
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire.channel import open_channel
from tidemark_wire.rings import put_ring
from tidemark_wire.v1 import common_pb2, node_pb2_grpc


class KeyspaceNodes:
    """Nodes by name; each range has three of them, and a repair runs when an owner is back."""

    def __init__(self, directory: Path) -> None:
        self.nodes: dict[str, Node] = {}
        self.addresses: dict[str, str] = {}
        self._directory = directory
        self._map = common_pb2.ShardMap()
        self._loop = asyncio.get_running_loop()

    async def up(self, names: str, keyspace: str, ranges: int = 4, *, sloppy: bool = False) -> None:
        """Start nodes and give them a ring."""
        for name in names:
            await self.start(name)
        nodes = list(self.nodes.values())
        self._map = common_pb2.ShardMap(version=1, nodes=[
            common_pb2.NodeInfo(
                node=node.me.node, incarnation=node.me.incarnation, address=node.address, available=True)
            for node in nodes])
        info = self._map.keyspaces.add(
            name=keyspace, keyspace_id=1, overrides_allowed=True, sloppy=sloppy, eventual=sloppy)
        put_ring(info, [
            Range(1, Owners(tuple(nodes[(index + place) % len(nodes)].me for place in range(3)), Quorum(3, 2, 2)))
            for index in range(ranges)])
        for node in nodes:
            await self._push(node)

    async def start(self, name: str) -> None:
        """Start a node on its old disk, at its old address."""
        limits = KeyspaceLimits(tick_ms=20, replay_pause_ms=100)
        node = Node(
            Settings(
                node=name, data=self._directory / name, listen=self.addresses.get(name, "127.0.0.1:0"),
                metrics_listen="off", disk_reserve_bytes=1 << 20),
            planes_of=partial(planes, keyspaces=limits))
        await node.start()
        self.nodes[name], self.addresses[name] = node, node.address
        if self._map.version:
            await self._push(node)

    async def stop(self, name: str) -> None:
        """Stop a node."""
        await self.nodes.pop(name).stop()

    def kill(self, name: str) -> None:
        """Stop a node, from another thread."""
        asyncio.run_coroutine_threadsafe(self.stop(name), self._loop).result(20)

    async def down(self) -> None:
        """Stop all nodes."""
        for name in list(self.nodes):
            await self.stop(name)

    async def _push(self, node: Node) -> None:
        async with open_channel(node.address) as opened:
            await node_pb2_grpc.ControlStub(opened).PushShardMap(self._map, timeout=20)
