"""EtcdChannels: one channel to each endpoint of etcd, opened when it is first asked for.

A channel belongs to the credentials it was opened with.  When others are to be used, calls that run end on the channel
they began on, and it is closed once none of them uses it.
Stays out: credentials (`etcd_access`), requests, and which endpoint is asked (`etcd`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio

from .etcd_access import EtcdAccess

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # despite its name, the time one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(slots=True, eq=False)
class Line:
    """A channel, the credentials it was opened with, and how many calls use it."""

    access: EtcdAccess
    channel: grpc.aio.Channel
    calls: int = 0


class EtcdChannels:
    """Channels to `endpoints`, each a target and whether it wants TLS."""

    def __init__(self, endpoints: Sequence[tuple[str, bool]], access: EtcdAccess) -> None:
        self._endpoints = endpoints
        self.access = access   # of the next calls
        self._lines: list[Line | None] = [None] * len(endpoints)
        self._retired: list[Line] = []

    def use(self, access: EtcdAccess) -> None:
        """Have the next calls on channels of these credentials."""
        self.access = access
        self._retired += [line for line in self._lines if line is not None]
        self._lines = [None] * len(self._lines)

    @asynccontextmanager
    async def line(self, endpoint: int) -> AsyncIterator[Line]:
        """Yield what a call to this endpoint uses; what no call uses any more is closed behind it."""
        line = self._lines[endpoint]
        if line is None:
            target, secure = self._endpoints[endpoint]
            line = self._lines[endpoint] = Line(self.access, self.access.open(target, secure, _OPTIONS))
        line.calls += 1
        try:
            yield line
        finally:
            line.calls -= 1
            await self._close_unused()

    async def _close_unused(self) -> None:
        unused = [line for line in self._retired if not line.calls]
        self._retired = [line for line in self._retired if line.calls]
        for line in unused:
            await line.channel.close()

    async def close(self) -> None:
        """Close all of them, whatever uses them; who asks again has new ones."""
        lines = [*self._retired, *(line for line in self._lines if line is not None)]
        self._retired, self._lines = [], [None] * len(self._lines)
        for line in lines:
            await line.channel.close()
