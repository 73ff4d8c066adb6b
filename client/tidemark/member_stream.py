"""MemberStream: the Deliver stream to one member of a shard, opened again and again for as long as it is wanted.

What is to be said waits in two places, a START and the newest WINDOW, so a member that does not listen holds nobody
up.
Stays out: what is said and what the answers mean (delivery).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio
from tidemark_core.delivery.messages import Start, Window
from tidemark_wire import channel as wire
from tidemark_wire.delivery import StartCall, encode_request
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tasks import cancelled

from .retrying import HOPELESS, Backoff
from .shard_stream import Call, Ending, ShardStream

if TYPE_CHECKING:
    from .delivery import ShardDelivery

BACKOFF_MAX_S = 30.0


class MemberStream(ShardStream):
    """The stream to one member.  `hopeless` says why trying again will not help."""

    nowhere = "the shard map does not say where it is"

    def __init__(self, delivery: ShardDelivery, node: str) -> None:
        super().__init__(delivery.channels, Backoff(BACKOFF_MAX_S))
        self.node = node
        self.hopeless = ""
        self._delivery = delivery
        self._start: StartCall | None = None
        self._window: Window | None = None
        self._known = self._look_up()
        self._closing = False
        self._task = asyncio.create_task(self.run(), name=f"tidemark-deliver-{delivery.shard}-{node}")
        self._task.add_done_callback(self._on_done)

    # --- what the delivery calls

    def tell(self, message: Start | Window) -> None:
        """Say it as soon as the stream takes it; the next stream does not say it."""
        if isinstance(message, Start):
            delivery = self._delivery
            group_id = delivery.routing.id_for(self.node, delivery.group_id)
            self._start = StartCall(delivery.group_name, delivery.shard, message, delivery.frame_bytes, group_id)
            self._window = None
        else:
            self._window = message
        self.send_soon()

    def healthy(self) -> None:
        """The node serves: the next trouble is a new one."""
        self.backoff.reset()
        self.hopeless = ""

    def on_map(self) -> None:
        """Try at once when the shard map has news of the node."""
        known = self._look_up()
        if known != self._known:
            self._known = known
            self.backoff.reset()
            self.try_at_once()

    async def close(self) -> None:
        self._closing = True
        await cancelled(self._task)

    # --- the stream

    def target(self) -> str:
        return self._known[0]

    def open(self, channel: grpc.aio.Channel) -> Call:
        self._start = self._window = None
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(wire.DELIVER)
        return method(metadata=wire.hello_metadata())

    def on_opened(self) -> None:
        self._delivery.on_connected(self.node)

    def next_request(self) -> bytes | None:
        message = self._start or self._window
        if message is None:
            return None
        if message is self._start:
            self._start = None
        else:
            self._window = None
        return encode_request(message)

    async def on_frame(self, frame: bytes) -> None:
        self._delivery.on_frame(self, frame)

    def on_ended(self, ending: Ending) -> float | None:
        if self._closing:
            return None
        pause_s = 0.0
        if ending.error is not None:
            hinted = refusal_from_rpc_error(ending.error)
            if hinted is not None:
                pause_s = max(0, hinted.refused.retry_after_ms) / 1000
            elif ending.error.code() in HOPELESS:
                self.hopeless = ending.why
        self._delivery.on_closed(self.node, ending.why)
        return pause_s

    # --- inside

    def _look_up(self) -> tuple[str, str, bool]:
        info = self._delivery.routing.node(self.node)
        return (info.address, info.incarnation, info.available) if info is not None else ("", "", False)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._delivery.fail(task.exception())
