"""Append streams: one bidirectional stream per node, shared by every appender of a client.

A link sends the calls handed to it in that order, many to a frame, and gives each answer to the lane that
asked.  When the stream breaks, every lane with unanswered calls on it is told, and the link is gone.
Stays out: retries, sequences, choosing the node.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Protocol

import grpc
import grpc.aio
from tidemark_core.base.entry import Batch
from tidemark_core.base.errors import RemoteViolation
from tidemark_wire import channel as wire
from tidemark_wire.frames import AppendAnswer, AppendCall, append_parts, decode_answers
from tidemark_wire.tasks import cancelled

from .routing import Channels

log = logging.getLogger("tidemark.links")

FRAME_BYTES = 1 << 20


class Flight(Protocol):
    """What a link needs to know of a batch under way."""

    batch: Batch


class Lane(Protocol):
    """Who is told about answers and broken links."""

    group_name: str
    index: int

    def on_answer(self, flight: Flight, batch: Batch, answer: AppendAnswer, link: AppendLink) -> None: ...

    def on_link_lost(self, link: AppendLink) -> None: ...


class AppendLink:
    """One Append stream to one node."""

    def __init__(self, address: str, channel: grpc.aio.Channel, on_closed: Callable[[AppendLink], None]) -> None:
        self.address = address
        self.broken = False
        self.error = ""
        self._on_closed = on_closed
        self.answered_at = asyncio.get_running_loop().time()
        self._waiting: dict[int, tuple[Lane, Flight, Batch]] = {}
        self._requests = itertools.count(1)
        self._outbox: list[AppendCall] = []
        self._wake = asyncio.Event()
        self._call = channel.stream_stream(wire.APPEND)(metadata=wire.hello_metadata())
        self._task = asyncio.create_task(self._run(), name=f"tidemark-append-{address}")

    def send(self, lane: Lane, flight: Flight, resume_after: int) -> None:
        """Send a batch behind everything sent before; its lane hears of the answer, or of the link's end."""
        request = next(self._requests)
        self._waiting[request] = (lane, flight, flight.batch)
        self._outbox.append(AppendCall(request, lane.group_name, lane.index, flight.batch, resume_after))
        self._wake.set()

    def forget(self, flight: Flight) -> None:
        """Nobody waits for this batch's answer any more."""
        for request in [request for request, asked in self._waiting.items() if asked[1] is flight]:
            del self._waiting[request]

    def abort(self, error: str) -> None:
        """Give the stream up; lanes are told as if it had broken."""
        self.error = self.error or error
        self._call.cancel()

    async def close(self) -> None:
        self._waiting.clear()
        await cancelled(self._task)

    async def _run(self) -> None:
        writer = asyncio.create_task(self._write(), name=f"tidemark-append-writer-{self.address}")
        try:
            await self._read()
        except grpc.aio.AioRpcError as error:
            self.error = self.error or f"{error.code().name} {error.details()}"
        except RemoteViolation as error:
            self.error = f"the node sent a malformed answer: {error}"
            log.warning("%s: %s", self.address, self.error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the stream's
                raise
            self.error = self.error or "the stream was cancelled"
        finally:
            self.broken = True
            self._call.cancel()
            self._on_closed(self)
            lanes = {id(lane): lane for lane, _, _ in self._waiting.values()}
            self._waiting.clear()
            self._outbox.clear()
            for lane in lanes.values():
                lane.on_link_lost(self)
            await cancelled(writer)

    async def _read(self) -> None:
        waiting, now = self._waiting, asyncio.get_running_loop().time
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            self.answered_at = now()
            for answer in decode_answers(frame):
                asked = waiting.pop(answer.request, None)
                if asked is not None:
                    lane, flight, batch = asked
                    lane.on_answer(flight, batch, answer, self)
        self.error = self.error or "the node ended the stream"

    async def _write(self) -> None:
        try:
            while True:
                if not self._outbox:
                    self._wake.clear()
                    await self._wake.wait()
                await self._call.write(self._next_frame())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._call.cancel()  # the reader reports why

    def _next_frame(self) -> bytes:
        size, taken, parts = 0, 0, []
        for call in self._outbox:
            if taken and size + len(call.batch.payload) > FRAME_BYTES:
                break
            parts += append_parts(call)
            size += len(call.batch.payload)
            taken += 1
        del self._outbox[:taken]
        return b"".join(parts)


class Links:
    """The links of a client, by address."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._links: dict[str, AppendLink] = {}

    def to(self, address: str) -> AppendLink:
        """Return the open link to `address`, opening one when there is none."""
        link = self._links.get(address)
        if link is None or link.broken:
            link = self._links[address] = AppendLink(address, self._channels.to(address), self._forget)
        return link

    def _forget(self, link: AppendLink) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
