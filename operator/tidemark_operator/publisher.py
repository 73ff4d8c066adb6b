"""MapPublisher: hands the newest shard map to every node, at once on a change, never two pushes per node.

A version is `term << 32 | count`; the term is raised in etcd by each operator that becomes active, so a map
of a former operator is always older.  Changes that come while a push runs are carried by the next one.
Stays out: what the map says (`shardmap`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc.aio
from tidemark_wire.tasks import background, cancelled
from tidemark_wire.v1 import common_pb2

from .nodes import NodeLink, NodeLinks

log = logging.getLogger(__name__)

RETRY_S = 0.2


class MapPublisher:
    """Builds with `build(version)` and pushes through the links, while `term` is not 0."""

    def __init__(
        self, links: NodeLinks, build: Callable[[int], common_pb2.ShardMap],
        crowded_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`crowded_s` says how late the loop is for what others do in it: bursts are gathered for longer then."""
        self._crowded_s = crowded_s
        self._links = links
        self._build = build
        self._term = 0
        self._count = 0
        self._map: common_pb2.ShardMap | None = None
        self._dirty = False
        self._handle: asyncio.TimerHandle | None = None
        self._built_at = 0.0
        self._build_s = 0.0
        self._pushes: dict[str, asyncio.Task[None]] = {}
        self._held: dict[str, tuple[str, int]] = {}

    @property
    def version(self) -> int:
        return self._map.version if self._map is not None else 0

    def begin(self, term: int) -> None:
        """This operator is active under `term` from now on."""
        self._term, self._count = term, 0
        self.changed()

    def end(self) -> None:
        """Another operator may be active: say nothing more."""
        self._term = 0

    def changed(self) -> None:
        """Something in the map changed.  The first change goes out in this turn of the loop, a burst of them
        is gathered so that building maps takes at most a fifth of the time."""
        if self._dirty or self._term == 0:
            return
        self._dirty = True
        pause_s = max(0.0, self._built_at + 4 * max(self._build_s, self._crowded_s()) - time.monotonic())
        self._handle = asyncio.get_running_loop().call_later(pause_s, self._rebuild)

    def node_up(self, link: NodeLink) -> None:
        """A link was (re)made: whatever the node held may be gone."""
        self._held.pop(link.node, None)
        self._push(link)

    async def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        await cancelled(*self._pushes.values())

    def _rebuild(self) -> None:
        self._dirty = False
        if self._term == 0:
            return
        started = time.monotonic()
        self._count += 1
        self._map = self._build(self._term << 32 | self._count)
        self._built_at = time.monotonic()
        self._build_s = self._built_at - started
        for link in self._links:
            self._push(link)

    def _push(self, link: NodeLink) -> None:
        if self._map is not None and self._term and link.up and link.node not in self._pushes:
            task = background(self._keep_pushing(link), f"pushing maps to {link.node}")
            self._pushes[link.node] = task

    async def _keep_pushing(self, link: NodeLink) -> None:
        try:
            await self._push_newest(link)
        finally:
            # In this very step: a change that comes between "nothing is newer" and the end would be nobody's.
            del self._pushes[link.node]

    async def _push_newest(self, link: NodeLink) -> None:
        while self._term and link.up and self._map is not None:
            pushed, boot = self._map, link.description.boot if link.description else ""
            if self._held.get(link.node) == (boot, pushed.version):
                return
            try:
                held = await link.push_map(pushed)
            except (grpc.aio.AioRpcError, ConnectionError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                log.info("shard map not delivered to %s: %s", link.node, reason)
                await asyncio.sleep(RETRY_S)
                continue
            if held > pushed.version:
                log.warning("%s holds a newer map, %d, than ours, %d", link.node, held, pushed.version)
            self._held[link.node] = (boot, pushed.version)
