"""NodeStream: one connection to one node, with the change streams of the shards that are read there.

It ends with its call: each shard then chooses a member again.
Stays out: positions, which member (`changes`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_wire import channel as wire
from tidemark_wire.changes import CHANGES, Answer, Noop, decode_answers, encode_request

from .retrying import Backoff
from .routing import Channels
from .shard_stream import Call, Ending, ShardStream


class Owner(Protocol):
    """The consumer that a connection belongs to."""

    def on_answers(self, stream: NodeStream, answers: list[Answer]) -> None:
        """Take what came; raises RemoteViolation."""

    def acks(self, stream: NodeStream) -> list[bytes]:
        """Return the acknowledgements that are due."""

    def on_lost(self, stream: NodeStream, ending: Ending) -> None:
        """Learn that the connection is gone."""


class NodeStream(ShardStream):
    """One connection; `said` frames go out in order."""

    def __init__(self, owner: Owner, channels: Channels, node: str, address: str) -> None:
        super().__init__(channels, Backoff())
        self.node = node
        self._owner = owner
        self._address = address
        self._requests: deque[bytes] = deque()
        self.task: asyncio.Task[None] | None = None

    def start(self, on_done: Callable[[asyncio.Task[None]], None]) -> None:
        self.task = asyncio.create_task(self.run(), name=f"tidemark-changes-{self.node}")
        self.task.add_done_callback(on_done)

    def say(self, frame: bytes) -> None:
        self._requests.append(frame)
        self.send_soon()

    # --- the stream

    def target(self) -> str:
        return self._address

    def open(self, channel: grpc.aio.Channel) -> Call:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(CHANGES)
        self.send_soon()
        return method(metadata=wire.hello_metadata())

    def next_request(self) -> bytes | None:
        frames = [*self._requests, *self._owner.acks(self)]
        self._requests.clear()
        return b"".join(frames) or None

    async def on_frame(self, frame: bytes) -> None:
        answers = decode_answers(frame)
        if any(isinstance(answer, Noop) for answer in answers):
            self.say(encode_request(Noop()))
        self._owner.on_answers(self, answers)

    def on_ended(self, ending: Ending) -> float | None:
        self._owner.on_lost(self, ending)
        return None


__all__ = ["NodeStream", "Owner", "RemoteViolation"]
