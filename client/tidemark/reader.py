"""Reader: records of a group's shards, each shard in offset order, from its leader and up to `released`.

One task per shard reads ahead into a shared buffer bounded by bytes; after a failover it goes on at the offset
behind the last one delivered.  Control entries are passed over in silence.
Stays out: decoding of records (batch), who leads (routing).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import Reason
from tidemark_wire import channel as wire
from tidemark_wire.frames import ReadFrame, decode_read
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from .batch import ReadBatch, Record
from .errors import Closed, InvalidArgument, Unavailable, error_of
from .lane import RETRIED

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("tidemark.reader")

EARLIEST = "earliest"
LATEST = "latest"
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 0.5
SILENCE_S = 2.0  # a bounded read that hears nothing for so long looks for a newer leader
READ_RETRIED = RETRIED | {Reason.CORRUPT, Reason.OVERLOADED}

Start = int | str
End = int | str | None


class ShardCursor:
    """Where the read of one shard stands."""

    def __init__(self, reader: Reader, shard: int, start: Start, end: End) -> None:
        self.shard = shard
        self.next = 0 if start == EARLIEST else int(start)  # offset wanted next
        self.end = None if end in (None, LATEST) else int(end)  # last offset wanted, inclusive
        self.tail = end is None
        self.released = -1  # newest bound heard of
        self._from_earliest = start == EARLIEST
        self._reader = reader
        self._call: grpc.aio.UnaryStreamCall | None = None
        self._leader_epoch = -1
        self._moved = False
        self._progress_at = reader.loop.time()
        self._trouble = ""

    def done(self) -> bool:
        return self.end is not None and self.next > self.end

    async def run(self) -> None:
        """Read until the end; raises what the user must know."""
        backoff_s = 0.0
        while not self.done():
            before = self.next
            pause_s = await self._attempt()
            if pause_s is None:
                return
            if self.next > before:
                backoff_s = 0.0
            if not self.tail and self._reader.loop.time() - self._progress_at > self._reader.timeout_s:
                raise Unavailable(
                    f"shard {self.shard} of {self._reader.group_name!r} could not be read on from offset {self.next} "
                    f"for {self._reader.timeout_s:g} s ({self._trouble or 'no leader'})"
                )
            if not self._moved:
                await self._reader.routing.wait_changed(max(pause_s, backoff_s) * random.uniform(0.5, 1.0))  # noqa: S311
                backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, backoff_s * 2))
            self._moved = False

    async def _attempt(self) -> float | None:
        """Read from the leader until it ends; return None at the end, else how long to pause at least."""
        reader = self._reader
        leader = reader.routing.leader(reader.group_name, self.shard)
        if leader is None:
            self._trouble = "no leader is known"
            reader.routing.refresh_soon()
            return BACKOFF_MAX_S
        self._leader_epoch = leader.epoch
        request = node_pb2.ReadRequest(
            group=reader.group_name, shard=self.shard, until=-1 if self.end is None else self.end, tail=self.tail,
            bytes_max=reader.frame_bytes, **{"from": self.next},
        )
        method = reader.channels.to(leader.address).unary_stream(
            wire.READ, request_serializer=node_pb2.ReadRequest.SerializeToString
        )
        call = self._call = method(request, metadata=wire.hello_metadata())
        try:
            while (data := await self._next_frame(call)) is not grpc.aio.EOF:
                self._progress_at = reader.loop.time()
                await self._take(decode_read(data))
            if not self.tail:
                return None
            self._trouble = "the node ended the stream"
        except grpc.aio.AioRpcError as error:
            return self._on_error(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the stream's
                raise
            self._trouble = "the stream was cancelled"
        except RemoteViolation as error:
            self._trouble = f"{leader.address} sent a malformed frame: {error}"
            log.warning("shard %d: %s", self.shard, self._trouble)
        finally:
            self._call = None
            call.cancel()
        return 0.0

    async def _next_frame(self, call: grpc.aio.UnaryStreamCall):  # type: ignore[no-untyped-def]
        if self.tail:
            return await call.read()
        while True:
            reading = asyncio.ensure_future(call.read())
            try:
                done, _ = await asyncio.wait({reading}, timeout=SILENCE_S)
                while not done:
                    self._reader.routing.refresh_soon()
                    if self._reader.loop.time() - self._progress_at > self._reader.timeout_s:
                        raise Unavailable(
                            f"shard {self.shard} of {self._reader.group_name!r} sent nothing for "
                            f"{self._reader.timeout_s:g} s, offset {self.next} is wanted"
                        )
                    done, _ = await asyncio.wait({reading}, timeout=SILENCE_S)
                return reading.result()
            finally:
                if not reading.done():
                    reading.cancel()

    async def _take(self, frame: ReadFrame) -> None:
        self.released = max(self.released, frame.released)
        if self.end is None and not self.tail:
            self.end = max(frame.released, self.next - 1)  # what "latest" meant when the read began
        self._from_earliest = False
        last_wanted = frame.through if self.end is None else min(frame.through, self.end)
        for entry in frame.entries:
            if entry.last < self.next or entry.base > last_wanted:
                continue
            if entry.kind is not Kind.DATA:
                self._reader.epochs_begun += entry.kind is Kind.EPOCH_START
                self.next = entry.last + 1
                continue
            batch = ReadBatch(self.shard, entry, self.next, last_wanted)
            await self._reader.put(batch)
            self.next = batch.last + 1
        self.next = max(self.next, last_wanted + 1)

    def _on_error(self, error: grpc.aio.AioRpcError) -> float | None:
        reader = self._reader
        self._trouble = f"{error.code().name} {error.details()}"
        reader.routing.refresh_soon()
        hinted = refusal_from_rpc_error(error)
        if hinted is None:
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED):
                raise Unavailable(self._trouble) from error
            return 0.0
        refused = hinted.refused
        if refused.reason is Reason.TRIMMED and self._from_earliest and refused.expected > self.next:
            self.next = refused.expected
            return 0.0
        if refused.reason not in READ_RETRIED:
            raise error_of(refused) from error
        reader.routing.hint(
            reader.group_name, self.shard, hinted.leader_node, hinted.leader_address, refused.epoch
        )
        return max(0, refused.retry_after_ms) / 1000

    def on_map(self) -> None:
        """Leave a leader that was superseded; it may be paused and never say so."""
        leader = self._reader.routing.leader(self._reader.group_name, self.shard)
        if leader is not None and leader.epoch > self._leader_epoch and self._call is not None:
            self._moved = True
            self._call.cancel()


class Reader:
    """Made by `Client.read`.  Iterate over it for records, or over `batches()` for whole batches.

    `positions` says, per shard, the offset that would be delivered next: pass it as `from_` to go on later.
    `epochs_begun` counts the elections whose mark in the log was passed over.
    """

    def __init__(
        self,
        client: Client,
        group_name: str,
        *,
        shards: Sequence[int] | None = None,
        from_: Start | Mapping[int, Start] = EARLIEST,
        until: End | Mapping[int, End] = LATEST,
        buffer_bytes: int = 16 << 20,
        frame_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
    ) -> None:
        self.group_name = group_name
        self.routing = client.routing
        self.channels = client.channels
        self.loop = asyncio.get_running_loop()
        self.timeout_s = timeout_s
        self.frame_bytes = frame_bytes
        self.buffer_bytes = buffer_bytes
        group = client.routing.group(group_name)
        wanted = sorted(group.shards) if shards is None else list(dict.fromkeys(shards))
        for shard in wanted:
            client.routing.check_shard(group, shard)
        self.cursors = {
            shard: ShardCursor(
                self, shard, _start(_of(from_, shard, EARLIEST)), _end(_of(until, shard, LATEST))
            )
            for shard in wanted
        }
        self.epochs_begun = 0
        self.positions = {shard: cursor.next for shard, cursor in self.cursors.items()}
        self._ready: deque[ReadBatch] = deque()
        self.buffered_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._started = self._closed = False
        self._on_close = client.forget
        self._stop_listening = self.routing.listen(self._on_map)

    # --- what users call

    async def batches(self) -> AsyncIterator[ReadBatch]:
        """Yield whole batches as they arrive, in order within each shard."""
        if self._closed:
            raise Closed("the reader is closed")
        try:
            while batches := await self.next_batches(1):
                yield batches[0]
        finally:
            await self.close()

    async def next_batches(self, count_max: int) -> list[ReadBatch]:
        """Return the batches that are there, at least one, at most `count_max`; an empty list is the end."""
        if not self._started:
            self._start()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._closed:
                return []
            if not self._tasks:  # the cursors ran to their ends, over control entries too
                for shard, cursor in self.cursors.items():
                    self.positions[shard] = cursor.next
                return []
            self._wake.clear()
            await self._wake.wait()
        batches = []
        while self._ready and len(batches) < count_max:
            batch = self._ready.popleft()
            self.buffered_bytes -= batch.entry.size
            self.positions[batch.shard] = batch.last + 1
            batches.append(batch)
        self._room.set()
        return batches

    async def records(self) -> AsyncIterator[Record]:
        """Yield records as they arrive, in order within each shard."""
        async for batch in self.batches():
            self.positions[batch.shard] = batch.first
            for record in batch.records():
                self.positions[batch.shard] = record.offset + 1
                yield record

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.records()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading.  Batches not yet handed out are dropped; `positions` does not count them."""
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._on_close(self)
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ready.clear()
        self._wake.set()

    # --- what cursors call

    async def put(self, batch: ReadBatch) -> None:
        """Hand a batch over, waiting while the buffer is full."""
        while self._ready and self.buffered_bytes + batch.entry.size > self.buffer_bytes:
            self._room.clear()
            await self._room.wait()
        self._ready.append(batch)
        self.buffered_bytes += batch.entry.size
        self._wake.set()

    # --- inside

    def _start(self) -> None:
        if self._closed:
            raise Closed("the reader is closed")
        self._started = True
        for shard, cursor in self.cursors.items():
            task = asyncio.create_task(cursor.run(), name=f"tidemark-read-{self.group_name}-{shard}")
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._error is None:
            self._error = task.exception()
        self._wake.set()

    def _on_map(self) -> None:
        for cursor in self.cursors.values():
            cursor.on_map()


def _of(given, shard: int, default):  # type: ignore[no-untyped-def]
    return given.get(shard, default) if isinstance(given, Mapping) else given


def _start(start: Start) -> Start:
    if start == EARLIEST or (type(start) is int and start >= 0):
        return start
    raise InvalidArgument("from_", f"{start!r} is neither 'earliest' nor an offset of 0 or more")


def _end(end: End) -> End:
    if end is None or end == LATEST or (type(end) is int and end >= 0):
        return end
    raise InvalidArgument("until", f"{end!r} is neither None (tail), 'latest' nor an offset of 0 or more")
