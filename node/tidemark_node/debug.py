"""Debug dump: what this node knows and what waits in it, as JSON for people.

Stays out: payloads and anything secret.
"""

from __future__ import annotations

import json
from typing import Any

from tidemark_core.base.ids import ShardId

from .driver import Driver
from .peers import Links
from .routing import Routing
from .snapshots import Snapshots

SHARDS_MAX = 10_000


class Debug:
    """Collects the dump from the parts that hold the facts."""

    def __init__(self, driver: Driver, links: Links, routing: Routing, snapshots: Snapshots) -> None:
        self._driver = driver
        self._links = links
        self._routing = routing
        self._snapshots = snapshots

    def dump(self, shard: int, every_shard: bool) -> str:
        """Return the node's queues, links and story, and the status of one shard or of all."""
        driver = self._driver
        wanted = sorted(driver.core.shards)[:SHARDS_MAX] if every_shard else [ShardId(shard)]
        view: dict[str, Any] = {
            "member": list(driver.core.me),
            "boot": driver.boot,
            "reloading": driver.reloading,
            "disk_full": driver.guard.full,
            "disk_free_bytes": driver.guard.free_bytes(),
            "shard_map_version": self._routing.map.version,
            "queues": driver.depths,
            "peers": self._links.describe(),
            "pulling": self._snapshots.describe(),
            "shards": [driver.core.status(shard) for shard in wanted if shard in driver.core.shards],
            "story": [
                told for told in driver.story if every_shard or told["shard"] == f"{shard >> 32}/{shard & 0xFFFFFFFF}"
            ],
        }
        return json.dumps(view, default=str)
