"""The board on which readers see how far they may read, and by which they are woken.

Stays out: who may read; a reader that is woken without news asks the core again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from tidemark_core.base.ids import ShardId

WAKES_PER_TURN = 2
"""Each of hundreds of readers costs the loop about what one append does, so appends come in between."""


class ReleasedBoard:
    """Per shard: the newest released offset, and who waits for it to move."""

    def __init__(self) -> None:
        self._upto: dict[ShardId, int] = {}
        self._waiters: dict[ShardId, list[asyncio.Future[None]]] = {}
        self._watchers: dict[ShardId, dict[Callable[[], None], None]] = {}
        # Woken and not yet run, each once however fast appends come: no longer than there are readers.
        self._due: OrderedDict[asyncio.Future[None] | Callable[[], None], None] = OrderedDict()
        self._waking = False

    def upto(self, shard: ShardId) -> int:
        """Return the newest released offset told by the core, -1 when it told none."""
        return self._upto.get(shard, -1)

    def released(self, shard: ShardId, upto: int) -> None:
        """Note a new released offset and wake whoever waits for it."""
        self._upto[shard] = upto
        if shard in self._waiters or shard in self._watchers:
            self.wake(shard)

    def wake(self, shard: ShardId) -> None:
        """Wake the readers of a shard, with or without news."""
        self._due.update(dict.fromkeys(self._waiters.pop(shard, ())))
        self._due.update(dict.fromkeys(self._watchers.get(shard, ())))
        if not self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """Wake a few readers in this turn of the loop and go on in the next: hundreds at once would keep it busy."""
        for _ in range(min(WAKES_PER_TURN, len(self._due))):
            reader, _ = self._due.popitem(last=False)
            if not isinstance(reader, asyncio.Future):
                reader()
            elif not reader.done():
                reader.set_result(None)
        self._waking = bool(self._due)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def watch(self, shard: ShardId, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever readers of the shard are woken, until `unwatch`; it must not change who watches."""
        self._watchers.setdefault(shard, {})[watcher] = None

    def unwatch(self, shard: ShardId, watcher: Callable[[], None]) -> None:
        watchers = self._watchers.get(shard, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(shard, None)

    def wake_all(self) -> None:
        """Wake every reader: the shards were unloaded, or the node stops."""
        self._upto.clear()
        for shard in [*self._waiters, *self._watchers]:
            self.wake(shard)

    async def moved(self, shard: ShardId, timeout_seconds: float) -> None:
        """Wait until woken, at most `timeout_seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(shard, []).append(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_seconds)
        except TimeoutError:
            pass  # nothing moved; the caller looks for itself
        finally:
            waiters = self._waiters.get(shard, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[shard]
