"""Clients and operators without manners: single frames on the node's own streams, to ask what no library would.

Stays out: retries, routing, everything that the real client does by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Durability, Kind
from tidemark_core.base.ids import Member, ShardId, of_shard
from tidemark_core.base.refusals import Refused
from tidemark_core.delivery.messages import NOT_HELD, Start, Started, Status, singly
from tidemark_core.delivery.order import Mode
from tidemark_core.replication.messages import Appended
from tidemark_wire import channel, frames
from tidemark_wire.delivery import StartCall, decode_answer, encode_request
from tidemark_wire.tls import Credentials

ANSWER_TIMEOUT_S = 15.0


def batch(sequence: int, payload: bytes = b"", producer: bytes = b"p" * 16) -> Batch:
    """Return a batch of one record whose payload is opaque."""
    payload = payload or f"raw {sequence}".encode()
    return Batch(producer, sequence, 1, 1, 2, crc32c(payload), payload, Durability.QUORUM)


class AppendStream:
    """One append stream to one node; answers in the order they come."""

    def __init__(
        self, address: str, group: str, shard: int = 0, *, credentials: Credentials | None = None,
        server_name: str = "",
    ) -> None:
        self._channel = channel.open_channel(address, credentials, server_name=server_name)
        self._call = self._channel.stream_stream(channel.APPEND)()
        self._group = group
        self._shard = shard
        self._answers: asyncio.Queue[frames.AppendAnswer | grpc.aio.AioRpcError] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())  # giving up a read would end the call

    async def _read(self) -> None:
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                for answer in frames.decode_answers(frame):
                    self._answers.put_nowait(answer)
        except grpc.aio.AioRpcError as error:
            self._answers.put_nowait(error)

    async def send(self, *batches: Batch, resume_after: int = -1) -> None:
        calls = [frames.AppendCall(one.sequence, self._group, self._shard, one, resume_after) for one in batches]
        await self._call.write(frames.encode_appends(calls))

    async def answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> frames.AppendAnswer:
        """Return the next answer; raises TimeoutError, and AioRpcError when the stream broke."""
        async with asyncio.timeout(timeout_s):
            answer = await self._answers.get()
        if isinstance(answer, grpc.aio.AioRpcError):
            raise answer
        return answer

    async def append(self, one: Batch, *, resume_after: int = -1) -> Appended | Refused:
        await self.send(one, resume_after=resume_after)
        answer = await self.answer()
        assert answer.request == one.sequence
        return answer.value

    async def close(self) -> None:
        self._reading.cancel()
        self._call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()


@asynccontextmanager
async def append_stream(address: str, group: str, shard: int = 0) -> AsyncIterator[AppendStream]:
    stream = AppendStream(address, group, shard)
    try:
        yield stream
    finally:
        await stream.close()


async def say(target: str, shard: ShardId, to: Member, message: Any, answer: type, **hello: str) -> Any:
    """Say one message on a link of one's own, as an operator or as a node, and return the answer of that class."""
    method = channel.CONTROL_LINK if "operator" in hello else channel.REPLICATION_LINK
    async with channel.open_channel(target) as opened:
        call = opened.stream_stream(method)(metadata=channel.hello_metadata(**hello))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await channel.answered_hello(call)
                await call.write(frames.encode_message(of_shard(shard), to, message))
                while (frame := await call.read()) is not grpc.aio.EOF:
                    for of, _, said in frames.decode_messages(frame):
                        if of.id == shard and isinstance(said, answer):
                            return said
        finally:
            call.cancel()
    raise AssertionError(f"{target} ended the link without a {answer.__name__}")


async def kept(address: str, group: str, shard: int, ensemble: Sequence[str], through: int) -> dict[int, bool]:
    """Ask one member for everything; return of each data entry up to `through` whether its payload is there."""
    start = Start(1, 0, through, Mode.ALL_SEND_ALL, (), tuple(ensemble), (), 1 << 40)
    found: dict[int, bool] = {}
    async with channel.open_channel(address) as opened, asyncio.timeout(ANSWER_TIMEOUT_S):
        call = opened.stream_stream(channel.DELIVER)()
        await call.write(encode_request(StartCall(group, shard, start)))
        covered = -1
        while covered < through:
            answer = decode_answer(await call.read())
            if isinstance(answer, Started):
                assert answer.status is Status.OK, answer
                continue
            covered = answer.through
            for item in singly(answer.items):
                if item.body is not None and (item.body is NOT_HELD or item.body[0].kind is Kind.DATA):
                    found[item.first] = item.body is not NOT_HELD
        call.cancel()
    return found
