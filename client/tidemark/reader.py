"""Reader: records of a group's shards, each shard in offset order and up to what is released.

One cursor per shard reads ahead into a buffer that all share and that is bounded by bytes.  What was rolled back is
passed over and counted, or yielded as gaps between the records.
Stays out: leaders and failovers (cursor), decoding of records (batch).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .batch import ReadBatch, Record
from .cursor import EARLIEST, LATEST, End, ShardCursor, Start
from .errors import Closed, InvalidArgument
from .gaps import Gap

if TYPE_CHECKING:
    from .client import Client

GAP_BYTES = 256  # what a gap takes in the buffer

Item = ReadBatch | Gap


class Reader:
    """Made by `Client.read`.  Iterate over it for records, or over `batches()` for whole batches.

    `positions` says, per shard, the offset that would be delivered next: pass it as `from_` to go on later.
    `epochs_begun` counts the elections whose mark in the log was passed over, `holes` the offsets that were rolled
    back.  With `gaps` every iteration has `Gap`s among what it yields.
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
        gaps: bool = False,
    ) -> None:
        if not isinstance(gaps, bool):
            raise InvalidArgument("gaps", f"is {gaps!r}, must be True or False")
        self.gaps = gaps
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
        self.holes = 0
        self.positions = {shard: cursor.next for shard, cursor in self.cursors.items()}
        self._ready: deque[Item] = deque()
        self.buffered_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._started = self._closed = False
        self._on_close = client.forget
        self._stop_listening = self.routing.listen(self._on_map)

    # --- what users call

    async def batches(self) -> AsyncIterator[Any]:
        """Yield whole `ReadBatch`es as they arrive, in order within each shard, and with `gaps` the `Gap`s."""
        if self._closed:
            raise Closed("the reader is closed")
        try:
            while batches := await self.next_batches(1):
                yield batches[0]
        finally:
            await self.close()

    async def next_batches(self, count_max: int) -> list[Any]:
        """Return the batches (and gaps) that are there, at least one, at most `count_max`; none is the end."""
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
            self.buffered_bytes -= _size(batch)
            self.positions[batch.shard] = batch.last + 1
            batches.append(batch)
        self._room.set()
        return batches

    async def records(self) -> AsyncIterator[Any]:
        """Yield `Record`s as they arrive, in order within each shard, and with `gaps` the `Gap`s."""
        async for batch in self.batches():
            if isinstance(batch, Gap):
                yield batch
                continue
            self.positions[batch.shard] = batch.first
            for record in batch.records():
                self.positions[batch.shard] = record.offset + 1
                yield record

    def __aiter__(self) -> AsyncIterator[Any]:
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

    async def put(self, item: Item) -> None:
        """Hand a batch or a gap over, waiting while the buffer is full."""
        while self._ready and self.buffered_bytes + _size(item) > self.buffer_bytes:
            self._room.clear()
            await self._room.wait()
        self._ready.append(item)
        self.buffered_bytes += _size(item)
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


def items_of(item: Item) -> Iterable[Record | Gap]:
    """Return what an iteration over records yields for a batch or a gap."""
    return (item,) if isinstance(item, Gap) else item.records()


def _size(item: Item) -> int:
    return GAP_BYTES if isinstance(item, Gap) else item.entry.size


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
