"""Appender: what users call to append to a log group.

Stays out: filling batches (records) and sending them (batches), sequences and retries (core's `producing`).
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from tidemark_core.base.entry import Durability
from tidemark_core.producing.messages import Noted

from ..batch import Appended, AppendedRange, Headers, Record, headers_of, timestamp_us_of
from ..errors import BufferFull, Closed, InvalidArgument, LocalAppendsLost
from ..producer import Resumed
from ..settings import AppendSettings, at_least, durability_of
from .columns import Columns
from .pending import AppendedBatch
from .records import RecordDispatcher
from .shell import Lane
from .whole import checked_columns, checked_note

if TYPE_CHECKING:
    from ..client import Client


class Appender:
    """Appends to one log group.  Made by `Client.appender`; close it, or use it with `async with`."""

    def __init__(
        self,
        client: Client,
        group_name: str,
        settings: AppendSettings,
        on_loss: Callable[[LocalAppendsLost], None] | None = None,
    ) -> None:
        self._dispatcher = RecordDispatcher(client, group_name, settings, on_loss)
        self._room = self._dispatcher.room
        self._closed = False
        self._on_close = client.forget
        self._home = client.home
        group = self._dispatcher.group
        self.group_name = group_name
        self.timeout_s = settings.timeout_s
        self.producer = settings.producer
        self.durability = group.default_durability if settings.durability is None else settings.durability

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet answered."""
        return self._room.used

    @property
    def lost_local_records(self) -> int:
        """Acknowledged LOCAL records known to be lost in failovers."""
        return self._dispatcher.lost_local_records

    @property
    def quorum_timeouts(self) -> int:
        """How often a leader said that the wait for the synchro quorum is over and the outcome unknown."""
        return self._dispatcher.noted[Noted.QUORUM_TIMEOUT]

    @property
    def rolled_back_batches(self) -> int:
        """Batches that were rolled back, those that were then appended anew included."""
        return self._dispatcher.noted[Noted.ROLLED_BACK]

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime.datetime | int | None = None,
        durability: Durability | str | None = None,
        expect: int | None = None,
    ) -> Appended:
        """Append one record and return where it lies; waits for room when the buffer is full.

        With `expect` it is appended only where no other record lies at that offset of its shard or behind it; else it
        raises RecordCameFirst, and nothing was appended.  A record without a key needs a group of one shard then.
        Raises InvalidArgument (nothing was sent), RequestRefused, Unavailable and RolledBack (it is not in the log),
        OutcomeUnknown and its kind QuorumTimeout (it may be); of a named producer ProducerFenced and ProducerEnded (it
        is not in the log).
        """
        self._check_open()
        pairs = headers_of(headers) if headers else None
        size = self._dispatcher.checks.record(value, key, pairs)
        timestamp_us = timestamp_us_of(timestamp)
        durability = self.durability if durability is None else durability_of(durability)
        if not self._room.fits(size):
            await self._wait(size)
        return await self._dispatcher.add(value, key, pairs, timestamp_us, durability, size, expect)

    def append_nowait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime.datetime | int | None = None,
        durability: Durability | str | None = None,
        expect: int | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one record and return a future of its place; raises BufferFull instead of waiting."""
        self._check_open()
        pairs = headers_of(headers) if headers else None
        size = self._dispatcher.checks.record(value, key, pairs)
        timestamp_us = timestamp_us_of(timestamp)
        durability = self.durability if durability is None else durability_of(durability)
        if not self._room.fits(size):
            raise BufferFull(f"{self._room.used} bytes wait for answers, the limit is {self._room.limit}")
        return self._dispatcher.add(value, key, pairs, timestamp_us, durability, size, expect)

    async def append_batch(
        self, records: Iterable[bytes | Record], *, durability: Durability | str | None = None
    ) -> AppendedBatch:
        """Append many records, plain values or `Record`s, and return their places in the order given.

        Records of one shard keep their order.  Checked as a whole first: a bad record means that none is sent.
        When parts of it end differently, the first failure is raised; the other parts are appended all the same.
        """
        self._check_open()
        items = list(records)
        done: asyncio.Future[AppendedBatch] = asyncio.get_running_loop().create_future()
        answer = AppendedBatch(len(items), done)
        if not items:
            return answer
        split = self._split(items)
        durability = self.durability if durability is None else durability_of(durability)
        try:
            for lane, columns in split.items():
                start = 0
                while start < len(columns):
                    size = columns.bytes_of(start, start + 1)
                    if not self._room.fits(size):
                        await self._wait(size)
                    start = self._dispatcher.add_run(lane, columns, start, durability, answer)
        except BaseException:
            done.cancel()  # nobody is left to hear of the part that was sent
            raise
        return await done

    async def append_arrow(
        self, columns: pa.RecordBatch, *, shard: int, note: bytes = b"", durability: Durability | str | None = None
    ) -> AppendedRange:
        """Append columns of `tidemark.SCHEMA` as one batch of a shard, whole or not at all; return where it lies.

        `key`, `timestamp` and `headers` may be missing: no record has one then, and all are of now.  `note`, opaque and
        at most 1024 bytes, comes back as `ReadBatch.note`.  The caller answers for the shard: neither client nor node
        compares it with the keys, and records of one key have one order only where all go to the same shard.
        Raises InvalidArgument (it names the column; nothing was sent), UnknownShard, and what `append` raises.
        """
        self._check_open()
        dispatcher = self._dispatcher
        lane = dispatcher.lanes[dispatcher.routing.check_shard(dispatcher.group, shard)]
        note = checked_note(note)
        stored = checked_columns(columns, dispatcher.checks, time.time_ns() // 1000)
        durability = self.durability if durability is None else durability_of(durability)
        size = stored.nbytes + len(note)
        dispatcher.checks.batch(size)
        if not self._room.fits(size):
            await self._wait(size)
        return await dispatcher.add_whole(lane, stored, note, durability, size)

    async def wait_for_room(self, size: int = 1) -> None:
        """Wait until `size` more bytes fit into the buffer."""
        self._check_open()
        if not self._room.fits(size):
            await self._wait(min(size, self._room.limit))

    async def claimed(self, timeout_s: float | None = None) -> dict[int, Resumed]:
        """Claim every shard for the named producer, and return by shard where it goes on.

        Appends need not wait for it.  `timeout_s` None is the appender's.  Raises ProducerFenced where another process
        has a newer fence, Unavailable where a shard did not answer in time, InvalidArgument without a producer, and
        what the cluster refused a claim with.
        """
        self._check_open()
        if self.producer is None:
            raise InvalidArgument("producer", "is not given; an appender that names none claims none")
        timeout_s = self.timeout_s if timeout_s is None else at_least("timeout_s", timeout_s, 0.001)
        return await self._dispatcher.claimed(timeout_s)

    async def flush(self) -> None:
        """Send what is waiting without linger, and return when everything accepted so far is answered.

        Failures are reported to those who appended, not here.
        """
        self._home.check()
        await self._dispatcher.flush()

    async def close(self) -> None:
        """Flush, then close.  Ends at the latest when the last append's time is over."""
        if self._closed:
            return
        self._home.check()
        self._closed = True
        self._room.close(Closed("the appender is closed"))
        try:
            await self._dispatcher.flush()
        finally:
            self.abort(Closed("the appender was closed before this append was answered"))

    def abort(self, error: Exception) -> None:
        """Close at once; appends without an answer get `error`."""
        self._closed = True
        self._dispatcher.stop(error)
        self._on_close(self)

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self.abort(Closed("the appender was left by a cancelled task before this append was answered"))
        else:
            await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the appender is closed")
        self._home.check()
        self._dispatcher.check_there()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.buffered_bytes} bytes without an answer"
        named = "" if self.producer is None else f" as {self.producer.name!r}"
        return f"<tidemark.Appender to {self.group_name!r}{named}, {self.durability.name}, {state}>"

    async def _wait(self, size: int) -> None:
        await self._room.wait(size)
        self._check_open()

    def _split(self, items: list[bytes | Record]) -> dict[Lane | None, Columns]:
        """Check records and return them by lane, None being the keyless ones."""
        dispatcher = self._dispatcher
        if dispatcher.checks.are_plain(items):
            return {None: Columns.of_values(items)}  # type: ignore[arg-type]
        records = [item if type(item) is Record else Record(item) for item in items]  # type: ignore[arg-type]
        checked = dispatcher.checks.many(records)
        positions: dict[Lane | None, list[int]] = {}
        for position, record in enumerate(records):
            positions.setdefault(dispatcher.lane_of(record.key), []).append(position)
        return {
            lane: Columns(
                [records[at].value for at in chosen],
                [checked[at][0] for at in chosen],
                chosen,
                None if lane is None else [records[at].key for at in chosen],
                [checked[at][2] for at in chosen],
                [checked[at][1] for at in chosen] if any(checked[at][1] for at in chosen) else None,
            )
            for lane, chosen in positions.items()
        }
