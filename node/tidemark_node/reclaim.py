"""Reclaim: gives the space of dropped payloads back to the disk, a piece at a time and never most of the time.

The database drops what a range delete covers only when it rewrites a table, which it does while it is written to; a
shard that went quiet would keep its surplus payloads for good.
Stays out: what was dropped (`dropped`), how tables are rewritten (`store`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from tidemark_core.base.ids import ShardId
from tidemark_wire.tasks import background, cancelled

from .driver import Driver
from .metrics import Metrics
from .store import Store
from .store_errors import StoreFailed

PAUSES = 3
"""Pauses are so many times as long as the work in front of them: the disk has others to serve."""

SECONDS_MIN = 0.1

_log = logging.getLogger(__name__)


class Reclaimer:
    """Looks every `seconds` for what was dropped since."""

    def __init__(self, driver: Driver, metrics: Metrics, seconds: float) -> None:
        self._driver = driver
        self._metrics = metrics
        self._seconds = max(seconds, SECONDS_MIN)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = background(self._run(), "giving space back")

    async def stop(self) -> None:
        await cancelled(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            for shard in self._driver.store.dropped.shards() if self._driver.open else []:
                try:
                    await self._reclaim(shard)
                except StoreFailed as failure:
                    _log.warning("space is not given back now", extra={"reason": str(failure)})
                    break

    async def _reclaim(self, shard: ShardId) -> None:
        store = self._driver.store
        taken = store.dropped.take(shard)
        if taken is None:
            return
        first, last = taken
        try:
            while first <= last:
                began = time.monotonic()
                compact = partial(Store.compact, shard=shard, first=first, last=last)
                first = 1 + await self._driver.reclaim(compact)
                seconds = time.monotonic() - began
                self._metrics.store_reclaims.inc()
                self._metrics.store_reclaim_seconds.inc(seconds)
                await asyncio.sleep(PAUSES * seconds)
        finally:
            store.dropped.put_back(shard, first)
        if self._driver.store is store and self._driver.open:
            store.compacted(shard)
