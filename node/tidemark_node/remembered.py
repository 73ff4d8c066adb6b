"""Remembered: what of the newest shard map outlives this process, for whoever rebuilds lost metadata from nodes.

Groups are kept for ever, for their ids may never be given out again; nodes and the term of the map are the newest.
It is written when it changes, which is when a group or a node comes, a node moves or an operator takes over.
Stays out: serving the map (`routing`); nothing here is acted upon.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from google.protobuf.message import DecodeError
from tidemark_wire.v1 import common_pb2, node_pb2

from .driver import Driver
from .store import Store
from .store_errors import StoreFailed

_log = logging.getLogger("tidemark_node")


class Remembered:
    """Made from what the store remembers; `tell` it of every map in force."""

    def __init__(self, driver: Driver, stored: bytes | None) -> None:
        self._driver = driver
        self._writing: asyncio.Task[None] | None = None
        self._unwritten = False
        self.cluster = _decode(stored)

    def tell(self, pushed: common_pb2.ShardMap) -> None:
        """Take in a map; what is new is written beside the loop."""
        newest = merged(self.cluster, pushed)
        if newest == self.cluster and not self._unwritten:
            return
        self.cluster = newest
        self._unwritten = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._unwritten:
            self._unwritten = False
            data = self.cluster.SerializeToString(deterministic=True)
            try:
                await self._driver.reclaim(partial(_remember, data))
            except StoreFailed as error:
                _log.warning("the shard map is not remembered: %s", error)
                self._unwritten = True
                return  # the next map tries again

    async def close(self) -> None:
        """Wait until what is known is written."""
        if self._writing is not None:
            await self._writing


def merged(before: node_pb2.RememberedCluster, pushed: common_pb2.ShardMap) -> node_pb2.RememberedCluster:
    """Return what is to be remembered after `pushed`; of its version only the operator's term counts."""
    newer = pushed.version >> 32 > before.map_version >> 32
    after = node_pb2.RememberedCluster(
        cluster=pushed.cluster or before.cluster, map_version=pushed.version if newer else before.map_version)
    groups = {
        group.group_id: node_pb2.RememberedGroup(
            group_id=group.group_id, name=group.name, shards=group.shards, kind=group.kind)
        for group in before.groups}
    groups.update(
        (group.group_id, node_pb2.RememberedGroup(
            group_id=group.group_id, name=group.name, shards=len(group.shards), kind=group.kind, current=True))
        for group in pushed.groups
    )
    after.groups.extend(groups[number] for number in sorted(groups))
    after.nodes.extend(
        common_pb2.NodeInfo(
            node=node.node, incarnation=node.incarnation, address=node.address, zone=node.zone, location=node.location)
        for node in sorted(pushed.nodes, key=lambda node: node.node)
    )
    return after


def _remember(cluster: bytes, store: Store) -> None:
    store.remember(cluster)


def _decode(stored: bytes | None) -> node_pb2.RememberedCluster:
    try:
        return node_pb2.RememberedCluster.FromString(stored or b"")
    except DecodeError:
        _log.error("what was remembered of the shard map cannot be read; the next map replaces it")
        return node_pb2.RememberedCluster()
