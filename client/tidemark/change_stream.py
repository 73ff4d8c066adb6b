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
from tidemark_core.upr.silence import NOOP_MS, ConsumerSilence, Due
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

    def __init__(
        self, owner: Owner, channels: Channels, node: str, address: str, noop_ms: int = NOOP_MS
    ) -> None:
        super().__init__(channels, Backoff())
        self.node = node
        self._owner = owner
        self._address = address
        self._requests: deque[bytes] = deque()
        self._silence = ConsumerSilence(0, noop_ms)
        self._looking: asyncio.TimerHandle | None = None
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
        self._silence.heard(self._now_ms())
        self._look()
        return method(metadata=wire.hello_metadata())

    def _look(self) -> None:
        """Give up a node that hangs though its connection stays open (U61)."""
        if self._silence.due(self._now_ms()) is Due.DEAD:
            if self.call is not None:
                self.call.cancel()
            return
        pause_s = max(0, self._silence.next_ms - self._now_ms()) / 1000
        self._looking = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def next_request(self) -> bytes | None:
        frames = [*self._requests, *self._owner.acks(self)]
        self._requests.clear()
        return b"".join(frames) or None

    async def on_frame(self, frame: bytes) -> None:
        self._silence.heard(self._now_ms())
        answers = decode_answers(frame)
        if any(isinstance(answer, Noop) for answer in answers):
            self.say(encode_request(Noop()))
        self._owner.on_answers(self, answers)

    def on_ended(self, ending: Ending) -> float | None:
        self._owner.on_lost(self, ending)
        return None

    def end(self) -> None:
        """Leave the call."""
        if self._looking is not None:
            self._looking.cancel()
        if self.task is not None:
            self.task.cancel()
