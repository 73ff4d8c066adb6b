"""ActivityLease: which of several operators does the work.  It saves work; etcd's transactions give safety.

The holder's key hangs on an etcd lease.  While etcd is silent the holder goes on (nobody else could become
active, and whatever it writes is conditioned anyway); once etcd answers and says that the lease is gone, it
takes a new one or, where another operator was faster, steps back.
Stays out: what being active means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemark_wire.tasks import background, cancelled

from .etcd import EtcdStore, Saved, StoreUnavailable, revoke_quietly

log = logging.getLogger(__name__)


class ActivityLease:
    """Calls `on_change(active)` when this operator becomes active or steps back."""

    def __init__(
        self, store: EtcdStore, key: str, holder: str, on_change: Callable[[bool], None], ttl_s: int = 3
    ) -> None:
        self._store = store
        self._key = key
        self._holder = holder
        self._on_change = on_change
        self._ttl_s = ttl_s
        self._lease = 0
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.active = False

    def start(self) -> None:
        self._task = background(self._run(), "the activity lease")

    def look_now(self) -> None:
        """The key changed: somebody came or went."""
        self._look.set()

    async def stop(self) -> None:
        """Give the lease back, so that another operator need not wait for its end; `start` may follow."""
        task, self._task = self._task, None
        await cancelled(task)
        lease, self._lease, self.active = self._lease, 0, False
        if lease:
            await revoke_quietly(self._store, lease)

    async def _run(self) -> None:
        while True:
            try:
                await self._hold_or_take()
            except StoreUnavailable as error:
                log.warning("the operator's lease waits for etcd: %s", error)
            self._look.clear()
            try:
                await asyncio.wait_for(self._look.wait(), self._ttl_s / 3)
            except TimeoutError:
                continue

    async def _hold_or_take(self) -> None:
        if self._lease and await self._store.refresh_lease(self._lease) > 0:
            if self.active:
                return
        else:
            self._lease = await self._store.grant_lease(self._ttl_s)
        item = await self._store.get(self._key)
        held = item is not None and item.value == self._holder.encode()
        if item is None or held:
            # Written again even where it is ours: the key may still hang on a lease that is about to end.
            outcome = await self._store.put(
                self._key, self._holder.encode(), expected=item.revision if item else 0, lease=self._lease)
            held = isinstance(outcome, Saved)
        if held != self.active:
            self.active = held
            log.info("this operator is %s", "active" if held else "standing by")
            self._on_change(held)
