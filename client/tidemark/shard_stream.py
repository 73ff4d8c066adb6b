"""ShardStream: a stream to the node that serves, opened again for as long as it is wanted.

Stays out: which node that is, what frames mean and when to give up; each subclass says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_wire.tasks import cancelled

from .retrying import Backoff
from .routing import Channels

log = logging.getLogger("tidemark.streams")

Sending: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
"""A call that frames are written to too."""

Call: TypeAlias = "grpc.aio.UnaryStreamCall[Any, bytes] | Sending"


class Ending(NamedTuple):
    """How one try ended: `error` is the status of a call that failed, `whole` says that the node closed the stream."""

    why: str
    error: grpc.aio.AioRpcError | None = None
    whole: bool = False


class ShardStream(ABC):
    """One stream, one call at a time.  The next try waits for the backoff, for the node's wish, or for news."""

    nowhere = "no node is known"  # why there is no call while `target` names no address

    def __init__(self, channels: Channels, backoff: Backoff) -> None:
        self.channels = channels
        self.backoff = backoff
        self.call: Call | None = None
        self._news = asyncio.Event()
        self._to_send = asyncio.Event()

    @abstractmethod
    def target(self) -> str:
        """Return the address to call now, "" while there is none."""

    @abstractmethod
    def open(self, channel: grpc.aio.Channel) -> Call:
        """Begin a call."""

    def on_opened(self) -> None:   # noqa: B027
        """Learn that the call has begun; an error raised here ends it."""

    def read(self, call: Call) -> Awaitable[Any]:
        """Return the next frame of a call, or EOF."""
        return call.read()

    @abstractmethod
    async def on_frame(self, frame: bytes) -> None:
        """Take a frame; the next one is read behind it.  Raises RemoteViolation when it is malformed."""

    @abstractmethod
    def on_ended(self, ending: Ending) -> float | None:
        """Return how many seconds to pause at least, None at the end; raises what no other try helps against."""

    def next_request(self) -> bytes | None:
        """Return the next frame to send on a bidi call, None while there is none; `send_soon` has it called."""
        return None

    def send_soon(self) -> None:
        self._to_send.set()

    def try_at_once(self) -> None:
        """Leave out the pause that is under way or comes next."""
        self._news.set()

    async def run(self) -> None:
        """Serve until `on_ended` says that this is the end, or raises."""
        while True:
            self._news.clear()
            address = self.target()
            pause_s = self.on_ended(await self._serve(address) if address else Ending(self.nowhere))
            if pause_s is None:
                return
            if not self._news.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(pause_s, self.backoff.next())):
                        await self._news.wait()

    async def _serve(self, address: str) -> Ending:
        call = self.call = self.open(self.channels.to(address))
        writer = None
        if isinstance(call, grpc.aio.StreamStreamCall):
            writer = asyncio.create_task(self._write(call), name=f"tidemark-stream-writer-{address}")
        try:
            self.on_opened()
            while (frame := await self.read(call)) is not grpc.aio.EOF:
                await self.on_frame(frame)
            return Ending("the node ended the stream", whole=True)
        except grpc.aio.AioRpcError as error:
            return Ending(f"{error.code().name} {error.details()}", error)
        except RemoteViolation as error:
            log.warning("%s sent a malformed frame: %s", address, error)
            return Ending(f"it sent a malformed frame: {error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the stream's
                raise
            return Ending("the stream was cancelled")
        finally:
            self.call = None
            call.cancel()
            await cancelled(writer)

    async def _write(self, call: Sending) -> None:
        try:
            while True:
                await self._to_send.wait()
                self._to_send.clear()
                while (frame := self.next_request()) is not None:
                    await call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            call.cancel()  # the read says why
