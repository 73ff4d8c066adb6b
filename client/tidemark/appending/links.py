"""Append streams: one bidirectional stream per node, shared by every appender of a client.

A link sends the calls handed to it in that order, many to a frame, and gives each answer to the lane that
asked.  When the stream breaks, every lane with unanswered calls on it is told, and the link is gone.
Stays out: retries, sequences, choosing the node.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

import grpc.aio
from tidemark_core.producing.messages import Send
from tidemark_wire import channel as wire
from tidemark_wire.frames import AppendAnswer, AppendCall, append_parts, decode_answers
from tidemark_wire.tasks import cancelled

from ..retrying import Backoff
from ..routing import Channels
from ..shard_stream import Call, Ending, ShardStream

FRAME_BYTES = 1 << 20


class Lane(Protocol):
    """Who is told about answers and broken links."""

    group_name: str
    group_id: int
    index: int

    def on_answer(self, send: Send, answer: AppendAnswer) -> None: ...

    def on_link_lost(self, link: AppendLink) -> None: ...


class AppendLink(ShardStream):
    """One Append stream to one node; it has one call, for producers decide what is sent again."""

    def __init__(self, address: str, channels: Channels, on_closed: Callable[[AppendLink], None]) -> None:
        super().__init__(channels, Backoff())
        self.address = address
        self.broken = False
        self.error = ""
        self._on_closed = on_closed
        self.answered_at = asyncio.get_running_loop().time()
        self._waiting: dict[int, tuple[Lane, Send]] = {}
        self._requests = itertools.count(1)
        self._outbox: list[AppendCall] = []
        self._task = asyncio.create_task(self._run(), name=f"tidemark-append-{address}")

    def send(self, lane: Lane, send: Send) -> None:
        """Send a batch behind everything sent before; its lane hears of the answer, or of the link's end."""
        request = next(self._requests)
        self._waiting[request] = (lane, send)
        self._outbox.append(AppendCall(
            request, lane.group_name, lane.index, send.batch, send.resume_after, lane.group_id, send.expect))
        self.send_soon()

    def abort(self, error: str) -> None:
        """Give the stream up; lanes are told as if it had broken."""
        self.error = self.error or error
        if self.call is not None:
            self.call.cancel()

    async def close(self) -> None:
        self._waiting.clear()
        await cancelled(self._task)

    async def _run(self) -> None:
        try:
            await self.run()
        finally:
            self.broken = True
            self._on_closed(self)
            lanes = {id(lane): lane for lane, _ in self._waiting.values()}
            self._waiting.clear()
            self._outbox.clear()
            for lane in lanes.values():
                lane.on_link_lost(self)

    def target(self) -> str:
        return self.address

    def open(self, channel: grpc.aio.Channel) -> Call:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(wire.APPEND)
        return method(metadata=wire.hello_metadata())

    async def on_frame(self, frame: bytes) -> None:
        self.answered_at = asyncio.get_running_loop().time()
        for answer in decode_answers(frame):
            asked = self._waiting.pop(answer.request, None)
            if asked is not None:
                lane, send = asked
                lane.on_answer(send, answer)

    def on_ended(self, ending: Ending) -> None:
        self.error = self.error or ending.why

    def next_request(self) -> bytes | None:
        if not self._outbox:
            return None
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
            link = self._links[address] = AppendLink(address, self._channels, self._forget)
        return link

    def _forget(self, link: AppendLink) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]

    async def close(self) -> None:
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
