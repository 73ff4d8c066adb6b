"""The demo's load: every change appended in order, never stopping, slow enough that each fault meets it.

The stream runs at a steady pace up to a mark; at a mark it goes on at a trickle until the scenario moves the mark.
Stays out: faults, and judging the outcome (ledger).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidemark import Appended, Appender

from .ledger import Ledger
from .packages import Change

TICK_S = 0.01


class Writer:
    """Appends changes and enters every acknowledgement in the ledger."""

    def __init__(
        self,
        appender: Appender,
        changes: Sequence[Change],
        ledger: Ledger,
        *,
        per_second: float,
        trickle_per_second: float,
        on_ack: Callable[[Appended], None],
    ) -> None:
        self.sent = 0
        self.mark = 0  # up to here at the steady pace
        self._appender = appender
        self._changes = changes
        self._ledger = ledger
        self._per_second = per_second
        self._trickle_per_second = trickle_per_second
        self._on_ack = on_ack
        self._failed: BaseException | None = None

    @property
    def total(self) -> int:
        return len(self._changes)

    async def run(self) -> None:
        """Append everything and wait for every answer; raises the first failure."""
        allowance = 0.0
        loop = asyncio.get_running_loop()
        before = loop.time()
        while self.sent < self.total:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            pace = self._per_second if self.sent < self.mark else self._trickle_per_second
            allowance = min(allowance + pace * (now - before), pace)
            before = now
            while allowance >= 1 and self.sent < self.total:
                allowance -= 1
                await self._append_next()
        await self._appender.flush()
        self._check()

    async def reached(self, share: float) -> None:
        """Wait until this share of the changes has been sent."""
        while self.sent < share * self.total:
            self._check()
            await asyncio.sleep(TICK_S)

    async def _append_next(self) -> None:
        self._check()
        number, change = self.sent, self._changes[self.sent]
        await self._appender.wait_for_room(len(change.value) + len(change.key) + 64)
        future = self._appender.append_nowait(change.value, key=change.key)
        future.add_done_callback(lambda done: self._answered(number, change, done))
        self.sent += 1

    def _answered(self, number: int, change: Change, done: asyncio.Future[Appended]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failed = self._failed or error
            return
        self._ledger.note(number, change, done.result())
        self._on_ack(done.result())

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
