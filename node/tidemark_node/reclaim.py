"""Reclaim: gives the space of what was removed back to the disk, a piece at a time and never most of the time.

The database drops what a range delete covers only when it rewrites a table, which it does while it is written to; a
shard that went quiet would keep its surplus payloads for good.  Rewriting costs more than a few payloads are worth, so
a shard's turn comes when what was dropped is some megabytes; less is left to the database.  Trimmed entries are
left to the database too, until the disk is short of space: then tables are rewritten without them, on a full disk at
once (K21).
Stays out: what was dropped (`dropped`), how tables are rewritten (`store`), how much space there is (`disk`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from tidemark_core.base.ids import ShardId
from tidemark_core.base.layout import Span
from tidemark_wire.tasks import background, cancelled

from .driver import Driver
from .metrics import Metrics
from .store import Store
from .store_errors import StoreFailed

PAUSES = 3
"""Pauses are so many times as long as the work in front of them: the disk has others to serve."""

SECONDS_MIN = 0.1
URGENT_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Reclaimer:
    """Looks every `seconds` for shards where payloads of `bytes_min` were dropped, kept ones in between counted."""

    def __init__(self, driver: Driver, metrics: Metrics, seconds: float, bytes_min: int) -> None:
        self._driver = driver
        self._metrics = metrics
        self._seconds = max(seconds, SECONDS_MIN)
        self._bytes_min = bytes_min
        self._counted: dict[ShardId, tuple[Span, int]] = {}    # how many bytes were found in which range
        self._trimmed: dict[ShardId, int] = {}      # up to where tables were rewritten without trimmed entries
        self._trimmed_of: Store | None = None       # of this store
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = background(self._run(), "giving space back")

    async def stop(self) -> None:
        await cancelled(self._task)

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                for shard in self._driver.store.dropped.shards() if self._driver.open else []:
                    if await self._much(shard):
                        await self._reclaim(shard)
                if self._driver.open and self._driver.guard.short:
                    await self._reclaim_trimmed()
            except StoreFailed as failure:
                _log.warning("space is not given back now", extra={"reason": str(failure)})

    async def _wait(self) -> None:
        """Wait for the next look; on a full disk it is soon."""
        waited = 0.0
        while waited < (min(self._seconds, URGENT_SECONDS) if self._driver.guard.space else self._seconds):
            pause = min(self._seconds - waited, URGENT_SECONDS)
            await asyncio.sleep(pause)
            waited += pause

    async def _reclaim_trimmed(self) -> None:
        """Rewrite tables without what was trimmed since the last time; write-ahead logs go with it."""
        driver = self._driver
        if driver.store is not self._trimmed_of:
            self._trimmed_of, self._trimmed = driver.store, {}
        todo = {shard: end for shard, end in driver.trimmed().items() if end > self._trimmed.get(shard, 0)}
        if not todo:
            return
        began, free = time.monotonic(), driver.guard.free_bytes()
        for shard, end in todo.items():
            at = 0
            while at < end:
                at = 1 + await driver.reclaim(partial(Store.compact, shard=shard, first=at, last=end - 1))
                self._metrics.store_reclaims.inc()
            self._trimmed[shard] = end
        await driver.reclaim(partial(Store.flush, headers_of=todo))
        seconds = time.monotonic() - began
        self._metrics.store_reclaim_seconds.inc(seconds)
        freed = driver.guard.free_bytes() - free
        _log.info("the space of trimmed entries was given back", extra={"shards": len(todo), "freed_bytes": freed})
        await asyncio.sleep(0 if driver.guard.space else PAUSES * seconds)

    async def _much(self, shard: ShardId) -> bool:
        """Count what came since the last look; headers say how large payloads were."""
        waiting = self._driver.store.dropped.waiting(shard)
        if waiting is None:
            return False
        first, last = waiting
        counted, size = self._counted.get(shard, ((first, first - 1), 0))
        if first < counted[0]:
            counted, size = (first, first - 1), 0
        if last > counted[1] and size < self._bytes_min:
            enough = self._bytes_min - size
            size += await self._driver.reclaim(
                partial(Store.payload_bytes, shard=shard, first=counted[1] + 1, last=last, enough=enough))
        self._counted[shard] = (first, last), size
        return size >= self._bytes_min

    async def _reclaim(self, shard: ShardId) -> None:
        store = self._driver.store
        taken = store.dropped.take(shard)
        if taken is None:
            return
        first, last = taken
        self._counted.pop(shard, None)
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
