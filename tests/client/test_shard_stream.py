"""ShardStream: tries, pauses, news and endings, seen by a user that the client does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from tidemark.retrying import BACKOFF_MAX_S, Backoff
from tidemark.routing import Channels
from tidemark.shard_stream import Ending, ShardStream
from tidemark_core.base.errors import RemoteViolation

HOUR_S = 3600.0


class Toy(ShardStream):
    """Sends numbers and keeps what comes; `pauses` says, for each ending, how long to pause at least."""

    nowhere = "the toy has no address"

    def __init__(self, channels: Channels, address: str, *pauses: float | None) -> None:
        super().__init__(channels, Backoff(first_s=0.0))
        self.address = address
        self.frames: list[bytes] = []
        self.endings: list[Ending] = []
        self.ended = asyncio.Event()
        self._pauses = [*pauses]
        self._unsent = [b"one", b"two"]

    def target(self) -> str:
        return self.address

    def open(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
        self._unsent = [b"one", b"two"]
        self.send_soon()
        return channel.stream_stream("/t/Echo")()

    def next_request(self) -> bytes | None:
        return self._unsent.pop(0) if self._unsent else None

    async def on_frame(self, frame: bytes) -> None:
        if frame == b"rubbish":
            raise RemoteViolation("this is no frame")
        self.frames.append(frame)

    def on_ended(self, ending: Ending) -> float | None:
        self.endings.append(ending)
        self.ended.set()
        return self._pauses.pop(0)


class Failing(Toy):
    """Fails as soon as its call has begun."""

    def open(self, channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall:
        self.opened = super().open(channel)
        return self.opened

    def on_opened(self) -> None:
        raise RuntimeError("the user of the stream failed")


class Node:
    """A node that echoes two frames and then ends as `plan` says, call by call."""

    def __init__(self) -> None:
        self.plan: list[str] = []
        self.calls = 0
        self.echoed = asyncio.Event()

    async def serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
        self.calls += 1
        what = self.plan.pop(0)
        for _ in range(2):
            await context.write(b"echo " + await context.read())
        self.echoed.set()
        if what == "rubbish":
            await context.write(b"rubbish")
        elif what == "abort":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it has enough")
        elif what == "hold":
            await asyncio.Event().wait()


@pytest.fixture
async def node() -> AsyncIterator[tuple[Node, str, Channels]]:
    node, server, channels = Node(), grpc.aio.server(), Channels()
    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(node.serve)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield node, f"127.0.0.1:{port}", channels
    await channels.close()
    await server.stop(None)


async def test_it_calls_again_until_the_end(node: tuple[Node, str, Channels]) -> None:
    echo, address, channels = node
    echo.plan = ["end", "abort", "rubbish", "end"]
    toy = Toy(channels, address, 0.0, 0.0, 0.0, None)
    async with asyncio.timeout(20):
        await toy.run()
    assert 4 == echo.calls
    assert [b"echo one", b"echo two"] * 4 == toy.frames
    assert [
        "the node ended the stream", "UNAVAILABLE it has enough", "it sent a malformed frame: this is no frame",
        "the node ended the stream",
    ] == [ending.why for ending in toy.endings]
    assert [True, False, False, True] == [ending.whole for ending in toy.endings]
    assert [None, grpc.StatusCode.UNAVAILABLE, None, None] == [
        ending.error and ending.error.code() for ending in toy.endings]


async def test_news_end_the_pause_that_is_under_way_or_comes_next(node: tuple[Node, str, Channels]) -> None:
    echo, address, channels = node
    echo.plan = ["end", "hold", "end"]
    toy = Toy(channels, "", HOUR_S, HOUR_S, HOUR_S, None)
    running = asyncio.create_task(toy.run())
    async with asyncio.timeout(20):
        await toy.ended.wait()
        assert ["the toy has no address"] == [ending.why for ending in toy.endings]
        toy.address = address
        toy.ended.clear()
        toy.try_at_once()            # the pause is under way
        await toy.ended.wait()
        echo.echoed.clear()
        toy.try_at_once()
        await echo.echoed.wait()
        toy.try_at_once()            # the pause comes next
        assert toy.call is not None
        toy.call.cancel()
        await running
    assert ["the node ended the stream", "the stream was cancelled", "the node ended the stream"] == [
        ending.why for ending in toy.endings[1:]]


async def test_a_user_that_fails_once_the_call_has_begun_leaves_no_call(node: tuple[Node, str, Channels]) -> None:
    echo, address, channels = node
    echo.plan = ["hold"]
    toy = Failing(channels, address)
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="the user of the stream failed"):
            await toy.run()
    assert toy.opened.cancelled() and toy.call is None


async def test_the_task_that_runs_it_can_be_cancelled(node: tuple[Node, str, Channels]) -> None:
    echo, address, channels = node
    echo.plan = ["hold"]
    toy = Toy(channels, address)
    running = asyncio.create_task(toy.run())
    async with asyncio.timeout(20):
        await echo.echoed.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [] == toy.endings
    assert toy.call is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tidemark-stream-writer")]


def test_pauses_double_up_to_the_most() -> None:
    backoff = Backoff(first_s=0.0)
    pauses = [backoff.next() for _ in range(10)]
    bounds = [0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5]
    assert bounds[-1] == BACKOFF_MAX_S
    for pause, bound in zip(pauses, bounds, strict=True):
        assert bound / 2 <= pause <= bound
    backoff.reset()
    assert 0.0 == backoff.next()
    assert 0.005 <= Backoff(30.0).next() <= 0.01
