"""Appends whose writers are told at once when time is over, and what each of them was told.

Every writer has few appends under way: the cluster remembers the last five batches of each.
Stays out: faults, and what is right; the demo's judge (tidemark_cli.demo.outcomes) compares with what is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle

from tidemark import LOCAL, Appended, Client, Durability, Gap, Record
from tidemark.errors import OutcomeUnknown, RolledBack
from tidemark_cli.demo.outcomes import Findings, Kind, Told, judge

PATIENCE_S = 40.0


class Attempts:
    """Appends to one group from a number of writers in turn; leaving the block closes them for good."""

    def __init__(self, client: Client, group: str, *, writers: int = 12) -> None:
        self.client = client
        self.group = group
        self.told: list[Told] = []
        self.took_s: dict[bytes, float] = {}
        self._count = writers
        self._stack = AsyncExitStack()
        self._futures: dict[bytes, asyncio.Future[Appended]] = {}

    async def __aenter__(self) -> Attempts:
        await self.client.group(self.group)
        self._writers = cycle([
            await self._stack.enter_async_context(
                self.client.appender(self.group, on_quorum_timeout="raise", on_rollback="raise", timeout_s=PATIENCE_S)
            )
            for _ in range(self._count)
        ])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every writer: what was not answered is not sent again."""
        await self._stack.aclose()

    def append(self, count: int, durability: Durability) -> list[Told]:
        """Append `count` records of different values."""
        return [self._append(durability) for _ in range(count)]

    def _append(self, durability: Durability) -> Told:
        told = Told(b"attempt %d, %s" % (len(self.told), durability.name.encode()))
        self.told.append(told)
        began = time.monotonic()
        future = next(self._writers).append_nowait(told.value, durability=durability)

        def answered(done: asyncio.Future[Appended]) -> None:
            if not done.cancelled():
                self.took_s[told.value] = time.monotonic() - began
                told.error = done.exception()
                told.answer = None if told.error else done.result()

        future.add_done_callback(answered)
        self._futures[told.value] = future
        return told

    async def answered(self, told: Sequence[Told]) -> set[Kind]:
        """Wait until these writers were told something, and return what."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(self._futures[one.value] for one in told), return_exceptions=True)
        return {one.kind for one in told}

    async def ask(self) -> None:
        """Ask what became of everything that was not confirmed."""
        await asyncio.gather(*(self._ask(told) for told in self.told))

    async def _ask(self, told: Told) -> None:
        named = told.error if isinstance(told.error, OutcomeUnknown | RolledBack) else told.answer
        if named is None or (told.answer is not None and told.answer.durability is not LOCAL):
            return
        told.outcome = await self.client.outcome(
            self.group, named.shard, named.producer, named.sequence, wait=True, timeout_s=PATIENCE_S
        )

    async def read_back(self) -> Findings:
        """Read the whole log and compare; an AssertionError lists what contradicts."""
        return compare(self.told, [item async for item in self.client.read(self.group, gaps=True)])


def compare(told: Sequence[Told], seen: Sequence[Record | Gap]) -> Findings:
    found = judge(told, seen)
    assert not found.contradictions, "\n".join(found.contradictions)
    return found
