"""MemberStream: the Deliver stream to one member of a shard, opened again and again for as long as it is wanted.

What is to be said waits in two places, a START and the newest WINDOW, so a member that does not listen holds nobody
up.
Stays out: what is said and what the answers mean (delivery).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import Reason
from tidemark_core.delivery.messages import Start, Window
from tidemark_wire import channel as wire
from tidemark_wire.delivery import StartCall, encode_request
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tasks import cancelled

if TYPE_CHECKING:
    from .delivery import ShardDelivery

BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 30.0
HOPELESS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED)


class MemberStream:
    """The stream to one member.  `hopeless` says why trying again will not help, `refused` is the last typed no."""

    def __init__(self, delivery: ShardDelivery, node: str) -> None:
        self.node = node
        self.hopeless = ""
        self.refused: Reason | None = None
        self._delivery = delivery
        self._call: grpc.aio.StreamStreamCall | None = None
        self._start: StartCall | None = None
        self._window: Window | None = None
        self._said = asyncio.Event()
        self._news = asyncio.Event()     # the shard map says something else of the node
        self._known = self._look_up()
        self._backoff_s = 0.0
        self._pause_s = 0.0              # the node asked for at least so long
        self._closing = False
        self._task = asyncio.create_task(self._run(), name=f"tidemark-deliver-{delivery.shard}-{node}")
        self._task.add_done_callback(self._on_done)

    # --- what the delivery calls

    def tell(self, message: Start | Window) -> None:
        """Say it as soon as the stream takes it; without a stream it is dropped."""
        if self._call is None:
            return
        if isinstance(message, Start):
            delivery = self._delivery
            self._start = StartCall(delivery.group_name, delivery.shard, message, delivery.frame_bytes)
            self._window = None
        else:
            self._window = message
        self._said.set()

    def healthy(self) -> None:
        """The node serves: the next trouble is a new one."""
        self._backoff_s = 0.0
        self.hopeless, self.refused = "", None

    def on_map(self) -> None:
        """Try at once when the shard map has news of the node."""
        known = self._look_up()
        if known != self._known:
            self._known = known
            self._backoff_s = 0.0
            self._news.set()

    async def close(self) -> None:
        self._closing = True
        await cancelled(self._task)

    # --- inside

    def _look_up(self) -> tuple[str, str, bool]:
        info = self._delivery.routing.node(self.node)
        return (info.address, info.incarnation, info.available) if info is not None else ("", "", False)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._delivery.fail(task.exception())

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._pause_s = 0.0
            address = self._known[0]
            why = await self._serve(address) if address else "the shard map does not say where it is"
            if self._closing:
                return
            self._delivery.on_closed(self.node, why)
            self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, self._backoff_s * 2))
            pause_s = max(self._pause_s, self._backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    async def _serve(self, address: str) -> str:
        """Talk until the stream ends; return why it did."""
        call = self._delivery.channels.to(address).stream_stream(wire.DELIVER)(metadata=wire.hello_metadata())
        self._call, self._start, self._window = call, None, None
        writer = asyncio.create_task(self._write(call), name=f"tidemark-deliver-writer-{self.node}")
        try:
            self._delivery.on_connected(self.node)
            while (frame := await call.read()) is not grpc.aio.EOF:
                self._delivery.on_frame(self, frame)
            return await self._status(call)
        except grpc.aio.AioRpcError as error:
            return self._on_error(error)
        except RemoteViolation as error:
            return f"it sent a malformed frame: {error}"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the stream's
                raise
            return "the stream was cancelled"
        finally:
            self._call = None
            call.cancel()
            await cancelled(writer)

    async def _status(self, call: grpc.aio.StreamStreamCall) -> str:
        code = await call.code()
        return "the node ended the stream" if code is grpc.StatusCode.OK else f"{code.name} {await call.details()}"

    def _on_error(self, error: grpc.aio.AioRpcError) -> str:
        hinted = refusal_from_rpc_error(error)
        if hinted is not None:
            self.refused = hinted.refused.reason
            self._pause_s = max(0, hinted.refused.retry_after_ms) / 1000
        elif error.code() in HOPELESS:
            self.hopeless = f"{error.code().name} {error.details()}"
        return f"{error.code().name} {error.details()}"

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            while True:
                await self._said.wait()
                self._said.clear()
                while (message := self._start or self._window) is not None:
                    if message is self._start:
                        self._start = None
                    else:
                        self._window = None
                    await call.write(encode_request(message))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            call.cancel()  # whoever reads reports why
