"""Appends that go on while something else happens, and the judgement that none of them failed.

Stays out: what happens meanwhile.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import tidemark
from tidemark_wire.tls import TlsSettings

APPEND_S = 60
KEYS = 16
PAUSE_S = 0.005
"""Enough appends to meet every restart, few enough to leave the machine to the pods."""


class Load:
    """`async with Load(addresses) as load`: appends until the end; then every one of them is read back, each once."""

    def __init__(
        self, addresses: list[str], group: str = "orders", *, tls: TlsSettings | None = None,
        reader: tidemark.Client | None = None,
    ) -> None:
        self._addresses, self._tls = addresses, tls
        self._group = group
        self._reader = reader  # who may read, where who appends may not
        self._over = asyncio.Event()
        self.appended = 0

    async def __aenter__(self) -> Self:
        self._client = await tidemark.connect(self._addresses, tls=self._tls, timeout_s=APPEND_S)
        self._appender = self._client.appender(self._group, timeout_s=APPEND_S)
        self._task = asyncio.create_task(self._append())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        try:
            await self._task  # raises what an append failed with
            await self._appender.close()
            if error is None:
                reader = self._reader or self._client
                values = sorted([int(record.value) async for record in reader.read(self._group)])
                assert values == list(range(self.appended)), "nothing is lost, nothing is there twice"
        finally:
            await self._client.close()

    async def more(self, count: int = 50) -> None:
        """Wait until so many more appends are confirmed."""
        wanted = self.appended + count
        async with asyncio.timeout(APPEND_S):
            while self.appended < wanted:
                assert not self._task.done(), self._task.exception()
                await asyncio.sleep(PAUSE_S)

    async def _append(self) -> None:
        while not self._over.is_set():
            await self._appender.append(b"%d" % self.appended, key=b"%d" % (self.appended % KEYS))
            self.appended += 1
            await asyncio.sleep(PAUSE_S)
