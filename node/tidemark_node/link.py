"""One live stream to a peer or an operator: a bounded queue out, decoded messages in.

Stays out: which link is used for whom (`peers`), and what messages mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from tidemark_core.base.effects import Received
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Peer
from tidemark_wire.codecs import Codecs
from tidemark_wire.frames import SLICE_WORK, decode_messages, work_of
from tidemark_wire.tasks import cancelled

from .metrics import Metrics

FRAME_BYTES_TARGET = 1 << 20

_log = logging.getLogger(__name__)

Parts = tuple[list[bytes], int]
"""One encoded message as parts, and its size."""


class OutQueue:
    """Messages on their way out, encoded in one wire version and bounded in bytes.

    Past the bound messages are dropped, which the protocol tolerates.
    """

    __slots__ = ("_items", "bytes_max", "dropped", "queued_bytes", "ready", "version")

    def __init__(self, bytes_max: int, version: int) -> None:
        self.version = version
        self._items: deque[Parts] = deque()
        self.bytes_max = bytes_max
        self.queued_bytes = 0
        self.dropped = 0
        self.ready = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, parts: list[bytes]) -> bool:
        """Queue one message; False when the queue is full and it was dropped."""
        size = sum(map(len, parts))
        if self.queued_bytes + size > self.bytes_max and self._items:
            self.dropped += 1
            return False
        self._items.append((parts, size))
        self.queued_bytes += size
        self.ready.set()
        return True

    async def frame(self) -> bytes:
        """Wait for messages and return about a MiB of them as one frame."""
        await self.ready.wait()
        items, parts, size = self._items, [], 0
        while items and (not size or size + items[0][1] <= FRAME_BYTES_TARGET):
            message, message_size = items.popleft()
            parts += message
            size += message_size
        self.queued_bytes -= size
        if not items:
            self.ready.clear()
        return b"".join(parts)

    def take_over(self, other: OutQueue) -> int:
        """Move what waits in `other` here; drop what another wire version encoded, and return how much that was."""
        dropped = 0
        if other.version != self.version:
            dropped = len(other)
            self.dropped += dropped
            other.clear()
            other.version = self.version
        while other._items:
            parts, size = other._items.popleft()
            other.queued_bytes -= size
            dropped += not self.put(parts)
        other.ready.clear()
        return dropped

    def clear(self) -> None:
        self._items.clear()
        self.queued_bytes = 0
        self.ready.clear()


class Link:
    """A bidirectional stream, from whichever side it was opened."""

    def __init__(
        self, peer: Peer, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]],
        queue: OutQueue, metrics: Metrics, planes: Mapping[int, Codecs],
    ) -> None:
        self.peer = peer
        self.queue = queue
        self._planes = planes
        self._read = read
        self._write = write
        self._metrics = metrics
        self._closed = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def version(self) -> int:
        """The wire version of the stream."""
        return self.queue.version

    async def sent(self) -> None:
        """Wait until everything queued was handed to the transport, or the link ended."""
        while len(self.queue) and not self._closed.is_set():
            self._idle.clear()
            await self._idle.wait()
        await self._idle.wait()

    def close(self) -> None:
        """End `run`."""
        self._closed.set()

    async def run(self, post: Callable[[Received, int], None], room: Callable[[], Awaitable[None]]) -> None:
        """Move messages both ways until either side ends the stream."""
        tasks = [
            asyncio.ensure_future(work) for work in (self._receive(post, room), self._send(), self._closed.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed.set()
            self._idle.set()
            for error in await cancelled(*tasks):
                if not isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
                    _log.warning("link ended", extra={"peer": str(self.peer), "reason": repr(error)})

    async def _receive(self, post: Callable[[Received, int], None], room: Callable[[], Awaitable[None]]) -> None:
        while (frame := await self._read()) is not grpc.aio.EOF:
            await room()
            size, work = len(frame), 0
            try:
                for address, to, message in decode_messages(frame, self.version, self._planes, self._skipped):
                    post(Received(address, self.peer, to, message), size)
                    size = 0
                    if (work := work + work_of(address.plane, message, self._planes)) >= SLICE_WORK:
                        work = 0
                        await asyncio.sleep(0)   # the frame of a hostile peer must not silence the loop
                        await room()
            except RemoteViolation as violation:
                self._metrics.link_violations.inc()
                _log.warning("malformed frame dropped", extra={"peer": str(self.peer), "reason": str(violation)})

    def _skipped(self, why: str) -> None:
        self._metrics.link_violations.inc()
        _log.warning("message of a newer release dropped", extra={"peer": str(self.peer), "reason": why})

    async def _send(self) -> None:
        while True:
            if not len(self.queue):
                self._idle.set()
            frame = await self.queue.frame()
            self._idle.clear()
            await self._write(frame)
