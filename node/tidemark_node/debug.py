"""Debug dump: what this node knows and what waits in it, as JSON for people.

Stays out: payloads and anything secret.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, ClassVar

from tidemark_core.base.entry import Durability
from tidemark_core.base.ids import LOG_PLANE, ShardId
from tidemark_wire.identity import Kind
from tidemark_wire.limbo import durability_text
from tidemark_wire.v1 import node_pb2

from .changes import Changes
from .delivery import Deliveries
from .driver import Driver
from .methods import Cost, Method, Shape
from .peers import Links
from .routing import Routing
from .snapshots import Snapshots

SHARDS_MAX = 10_000
LIMBO_ENTRIES_MAX = 100
LIMBO_ENTRIES_OF_MANY_MAX = 5


class Debug:
    """Collects the dump from the parts that hold the facts."""

    def __init__(
        self, driver: Driver, links: Links, routing: Routing, snapshots: Snapshots, deliveries: Deliveries,
        changes: Changes,
    ) -> None:
        self._driver = driver
        self._links = links
        self._routing = routing
        self._snapshots = snapshots
        self._deliveries = deliveries
        self._changes = changes

    async def serve(self, request: node_pb2.DebugDumpRequest, context: Any) -> node_pb2.DebugDumpResponse:
        """Handler of one dump."""
        return node_pb2.DebugDumpResponse(json=self.dump(request.shard, request.all))

    def dump(self, shard: int, every_shard: bool) -> str:
        """Return the node's queues, links and story, and the status of one shard or of all."""
        driver = self._driver
        wanted = sorted(driver.core.log.shards)[:SHARDS_MAX] if every_shard else [ShardId(shard)]
        view: dict[str, Any] = {
            "member": list(driver.core.me),
            "boot": driver.boot,
            "reloading": driver.reloading,
            "disk_full": bool(driver.guard.space),
            "disk_free_bytes": driver.guard.free_bytes(),
            "shard_map_version": self._routing.map.version,
            "queues": driver.depths,
            "peers": self._links.describe(),
            "pulling": self._snapshots.describe(),
            "shards": [driver.core.log.status(shard) for shard in wanted if shard in driver.core.log.shards],
            "planes": self._planes() if every_shard else {},
            "limbo": self._limbo(wanted, LIMBO_ENTRIES_OF_MANY_MAX if every_shard else LIMBO_ENTRIES_MAX),
            "deliveries": self._deliveries.describe(None if every_shard else ShardId(shard)),
            "changes": self._changes.describe(None if every_shard else ShardId(shard)),
            "story": [
                told for told in driver.story if every_shard or told.get("shard") == driver.core.log.name(shard)
            ],
        }
        return json.dumps(view, default=str)

    def _planes(self) -> dict[str, dict[str, Any]]:
        """Return the status of every unit of the planes beside the log, by the plane's word for one and its name."""
        planes = [plane for number, plane in self._driver.core.planes.items() if number != LOG_PLANE]
        return {
            plane.unit: {plane.name(unit): plane.status(unit) for unit in sorted(plane.units())[:SHARDS_MAX]}
            for plane in planes
        }

    def _limbo(self, shards: list[ShardId], entries_max: int) -> dict[str, Any]:
        """Return what is not confirmed yet on those shards that are led here."""
        driver = self._driver
        views = {shard: driver.core.log.limbo(shard, driver.now_ms(), entries_max) for shard in shards}
        return {
            f"{shard >> 32}/{shard & 0xFFFFFFFF}": asdict(view, dict_factory=_readable)
            for shard, view in views.items() if view is not None
        }

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Control.DebugDump", Shape.UNARY, serve, node_pb2.DebugDumpRequest, node_pb2.DebugDumpResponse,
            kinds=frozenset({Kind.OPERATOR, Kind.ADMIN}), checks_version=False, audited=True,
            cost=Cost.SEARCH,
        ),
    )


def _readable(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    def text(value: Any) -> Any:
        if isinstance(value, Durability):
            return durability_text(value)
        return value.hex() if isinstance(value, bytes) else value

    return {name: text(value) for name, value in fields}
