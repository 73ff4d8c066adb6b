"""Tidemark/GetShardMap and WatchShardMap: the shard map for clients, serialised once for all of them.

A watch that is not read holds one map at most; the bytes of maps have a budget of their own.
Stays out: what the map says (`routing`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from tidemark_wire.v1 import common_pb2, node_pb2

from .access import Access
from .budgets import Budgets
from .methods import EVERY_KIND, Cost, Method, Shape
from .routing import Routing


class ShardMaps:
    """All callers who ask for the map."""

    def __init__(self, routing: Routing, access: Access, budgets: Budgets) -> None:
        self._routing = routing
        self._access = access
        self._budgets = budgets

    async def get(self, request: Any, context: Any) -> bytes:
        """Handler of one question for the map; the caller's own field stands behind those of all callers."""
        prefix = self._access.caller(context).producer_prefix
        return self._routing.map_bytes + common_pb2.ShardMap(producer_prefix=prefix).SerializeToString()

    async def watch(self, request: Any, context: Any) -> None:
        """Handler of one watch: sends each map that is newer than the one the client knows."""
        known, who = request.known_version, self._budgets.who(context)
        while True:
            await self._routing.newer(known)
            size = len(self._routing.map_bytes)
            grant = await self._budgets.maps.grant(who, size)
            try:
                known = self._routing.map.version   # a newer one may have come meanwhile
                await context.write(self._routing.map_bytes)
            finally:
                grant.release()

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.GetShardMap", Shape.UNARY, get, node_pb2.GetShardMapRequest, common_pb2.ShardMap,
            kinds=EVERY_KIND, checks_version=False,
        ),
        Method(
            "Tidemark.WatchShardMap", Shape.SERVER_STREAM, watch, node_pb2.GetShardMapRequest, common_pb2.ShardMap,
            kinds=EVERY_KIND, checks_version=False, cost=Cost.WATCH,
        ),
    )
