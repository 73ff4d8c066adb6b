"""Appender: records in, answers out; batches by bytes, records and linger, one lane per shard.

A batch leaves at once when its lane is idle; behind unanswered batches it waits to be filled (`batch_records`,
`batch_bytes`) or for `linger_ms`.  While a lane has no slot its last batch goes on filling up to
`BATCH_GROWTH` times the size, so many small writers share few large batches.  Memory is bounded by
`max_buffered_bytes`, counted from append to answer.
Stays out: sequences and retries (lane), streams (links).
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tidemark_core.base.entry import RECORDS_MAX, Durability

from .batch import COMPRESSIONS, Appended, Headers, Record, headers_of, timestamp_us_of
from .columns import Columns
from .errors import BufferFull, Closed, InvalidArgument, KeyRequired, LocalAppendsLost, RecordTooLarge, Unavailable
from .lane import Lane
from .pending import (
    BATCH_OVERHEAD_BYTES,
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AppendedBatch,
    Pending,
    RecordHeaders,
)

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("tidemark.appender")

BATCH_GROWTH = 4
CHECK_EVERY_S = 0.1


class Appender:
    """Appends to one log group.  Made by `Client.appender`; close it, or use it with `async with`."""

    def __init__(
        self,
        client: Client,
        group_name: str,
        *,
        durability: Durability | None = None,
        batch_records: int = 1000,
        batch_bytes: int = 128 << 10,
        linger_ms: float = 5.0,
        timeout_s: float = 30.0,
        max_buffered_bytes: int = 32 << 20,
        compression: str | None = None,
        on_loss: Callable[[LocalAppendsLost], None] | None = None,
    ) -> None:
        self.group_name = group_name
        self.routing = client.routing
        self.links = client.links
        self.group = client.routing.group(group_name)
        self.loop = asyncio.get_running_loop()
        self.durability = self.group.default_durability if durability is None else _durability(durability)
        self.batch_records = _at_least("batch_records", batch_records, 1)
        self.batch_bytes = _at_least("batch_bytes", batch_bytes, 1)
        self.linger_s = _at_least("linger_ms", linger_ms, 0) / 1000
        self.timeout_s = _at_least("timeout_s", timeout_s, 0.001)
        self.max_buffered_bytes = _at_least("max_buffered_bytes", max_buffered_bytes, 1)
        if compression not in COMPRESSIONS:
            raise InvalidArgument("compression", f"{compression!r} is not one of None, 'lz4', 'zstd'")
        self.compression = compression
        self.buffered_bytes = 0
        self.lost_local_records = 0
        self.lanes = {index: Lane(self, index) for index in self.group.shards}
        self._user_on_loss = on_loss
        self._ring = deque(self.lanes.values())  # keyless batches go round
        self._keyless: deque[Pending] = deque()
        self._room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._touched: set[Lane | None] = set()  # None stands for the keyless queue
        self._linger: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False
        self._on_close = client.forget
        self._set_limits()
        self._stop_listening = self.routing.listen(self._on_map)

    def _set_limits(self) -> None:
        payload_bytes_max = max(1, self.group.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        self._grown_bytes = min(payload_bytes_max, self.batch_bytes * BATCH_GROWTH)
        self._grown_records = min(RECORDS_MAX, self.batch_records * BATCH_GROWTH)
        self._record_bytes_max = min(
            self.group.record_bytes_max, payload_bytes_max - RECORD_OVERHEAD_BYTES, self.max_buffered_bytes
        )

    # --- what users call

    async def append(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime.datetime | int | None = None,
        durability: Durability | None = None,
    ) -> Appended:
        """Append one record and return where it lies; waits for room when the buffer is full.

        Raises InvalidArgument (nothing was sent), RequestRefused, Unavailable (never sent), OutcomeUnknown.
        """
        pairs = headers_of(headers)
        size = self._check(value, key, pairs)
        if self._room or self.buffered_bytes + size > self.max_buffered_bytes:
            await self._wait_for_room(size)
        return await self._accept(value, key, pairs, timestamp_us_of(timestamp), durability, size)

    def append_nowait(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime.datetime | int | None = None,
        durability: Durability | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one record and return a future of its place; raises BufferFull instead of waiting."""
        pairs = headers_of(headers) if headers else None
        size = self._check(value, key, pairs)
        if self._room or self.buffered_bytes + size > self.max_buffered_bytes:
            raise BufferFull(f"{self.buffered_bytes} bytes wait for answers, the limit is {self.max_buffered_bytes}")
        return self._accept(value, key, pairs, timestamp_us_of(timestamp), durability, size)

    async def append_batch(
        self, records: Iterable[bytes | Record], *, durability: Durability | None = None
    ) -> AppendedBatch:
        """Append many records, plain values or `Record`s, and return their places in the order given.

        Records of one shard keep their order.  Checked as a whole first: a bad record means that none is sent.
        """
        items = list(records)
        done: asyncio.Future[AppendedBatch] = self.loop.create_future()
        answer = AppendedBatch(len(items), done)
        if not items:
            return answer
        split = self._split(items)
        durability = self.durability if durability is None else _durability(durability)
        try:
            for lane, columns in split.items():
                start = 0
                while start < len(columns):
                    start = await self._accept_run(lane, columns, start, durability, answer)
        except BaseException:
            done.cancel()  # nobody is left to hear of the part that was sent
            raise
        return await done

    async def wait_for_room(self, size: int = 1) -> None:
        """Wait until `size` more bytes fit into the buffer."""
        self._check_open()
        if self._room or self.buffered_bytes + size > self.max_buffered_bytes:
            await self._wait_for_room(size)

    async def flush(self) -> None:
        """Send what is waiting without linger, and return when everything accepted so far is answered.

        Failures are reported to those who appended, not here.
        """
        waiting = [*self._keyless]
        for lane in self.lanes.values():
            waiting += lane.queue
            waiting += (flight.pending for flight in lane.flights if not flight.expired and flight.error is None)
        if not waiting:
            return
        left, answered = len(waiting), self.loop.create_future()

        def one_answered() -> None:
            nonlocal left
            left -= 1
            if not left and not answered.done():
                answered.set_result(None)

        for pending in waiting:
            pending.hurried = True
            pending.watchers.append(one_answered)
        self._pump_all()
        await answered

    async def close(self) -> None:
        """Flush, then close.  Ends at the latest when the last append's time is over."""
        if self._closed:
            return
        self._closed = True
        for _, waiter in self._room:
            if not waiter.done():
                waiter.set_exception(Closed("the appender is closed"))
        self._room.clear()
        try:
            await self.flush()
        finally:
            self.abort(Closed("the appender was closed before this append was answered"))

    def abort(self, error: Exception) -> None:
        """Stop at once; appends without an answer get `error`."""
        self._closed = True
        self._stop_listening()
        self._on_close(self)
        for handle in (self._linger, self._ticker):
            if handle is not None:
                handle.cancel()
        for lane in self.lanes.values():
            lane.close()
            for pending in [*(flight.pending for flight in lane.flights), *lane.queue]:
                pending.fail(error)
            lane.flights.clear()
            lane.queue.clear()
        for pending in self._keyless:
            pending.fail(error)
        self._keyless.clear()
        self.release(self.buffered_bytes)

    async def __aenter__(self) -> Appender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self.abort(Closed("the appender was left by a cancelled task before this append was answered"))
        else:
            await self.close()

    # --- checks

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the appender is closed")

    def _check(self, value: bytes, key: bytes | None, headers: RecordHeaders) -> int:
        """Return the bytes a record takes in the buffer; raises InvalidArgument naming the field."""
        if self._closed:
            raise Closed("the appender is closed")
        if type(value) is not bytes:
            raise InvalidArgument("value", f"must be bytes, not {type(value).__name__}")
        size = len(value)
        if key is not None:
            if type(key) is not bytes:
                raise InvalidArgument("key", f"must be bytes or None, not {type(key).__name__}")
            size += len(key)
        if not key and self.group.keys_required:
            what = "is missing" if key is None else "is empty"
            raise KeyRequired("key", f"{what}; group {self.group_name!r} requires a key in every record")
        if headers is not None:
            size += sum(len(name) + len(content) + HEADER_OVERHEAD_BYTES for name, content in headers)
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                "value",
                f"the record has {size} bytes, the limit of group {self.group_name!r} is {self._record_bytes_max}",
                advice="Split the record, store it elsewhere and append a reference, or raise the group's limit.",
            )
        return size + RECORD_OVERHEAD_BYTES

    def _check_many(self, items: list[Record]) -> list[tuple[int, RecordHeaders, int | None]]:
        """Return size, headers and timestamp of each record; raises InvalidArgument naming record and field."""
        checked = []
        for position, record in enumerate(items):
            try:
                pairs = headers_of(record.headers) if record.headers else None
                timestamp_us = timestamp_us_of(record.timestamp_us)
                checked.append((self._check(record.value, record.key, pairs), pairs, timestamp_us))
            except InvalidArgument as error:
                raise type(error)(
                    f"records[{position}].{error.field}", error.message.partition(": ")[2], advice=error.advice
                ) from None
        return checked

    def _are_plain(self, items: Sequence[bytes | Record]) -> bool:
        """Say whether all are values without a key, and none is wrong."""
        return (
            set(map(type, items)) == {bytes}
            and not self.group.keys_required
            and max(map(len, items)) <= self._record_bytes_max
            and not self._closed
        )

    def _split(self, items: list[bytes | Record]) -> dict[Lane | None, Columns]:
        """Check records and return them by lane, None being the keyless ones."""
        if self._are_plain(items):
            return {None: Columns.of_values(items)}  # type: ignore[arg-type]
        records = [item if type(item) is Record else Record(item) for item in items]  # type: ignore[arg-type]
        checked = self._check_many(records)
        positions: dict[Lane | None, list[int]] = {}
        lanes, shard_of = self.lanes, self.group.shard_of
        for position, record in enumerate(records):
            lane = None if record.key is None else lanes[shard_of(record.key)]
            positions.setdefault(lane, []).append(position)
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

    # --- filling batches

    def _accept(
        self,
        value: bytes,
        key: bytes | None,
        headers: RecordHeaders,
        timestamp_us: int | None,
        durability: Durability | None,
        size: int,
    ) -> asyncio.Future[Appended]:
        durability = self.durability if durability is None else _durability(durability)
        lane = None if key is None else self.lanes[self.group.shard_of(key)]
        pending = self._filling(lane, durability, size)
        future: asyncio.Future[Appended] = self.loop.create_future()
        pending.futures.append((len(pending.values), future))
        self._fill(pending, value, key, headers, timestamp_us, size)
        self.touch(lane)
        if pending.bytes >= self.batch_bytes or len(pending.values) >= self.batch_records:
            self._pump_queue(lane)
        return future

    def _filling(self, lane: Lane | None, durability: Durability, size: int) -> Pending:
        """Return the batch that takes the next record of a lane, None being the keyless queue."""
        queue = self._keyless if lane is None else lane.queue
        if queue:
            pending = queue[-1]
            if (
                pending.durability is durability
                and pending.bytes + size <= self._grown_bytes
                and len(pending.values) < self._grown_records
            ):
                return pending
        pending = Pending(durability, self.loop.time(), self.timeout_s)
        queue.append(pending)
        return pending

    def _fill(
        self,
        pending: Pending,
        value: bytes,
        key: bytes | None,
        headers: RecordHeaders,
        timestamp_us: int | None,
        size: int,
    ) -> None:
        pending.values.append(value)
        pending.keys.append(key)
        pending.timestamps_us.append(time.time_ns() // 1000 if timestamp_us is None else timestamp_us)
        pending.headers.append(headers)
        if key is not None:
            pending.any_keys = True
        if headers is not None:
            pending.any_headers = True
        pending.bytes += size
        self.buffered_bytes += size

    def _fill_many(self, pending: Pending, columns: Columns, start: int, end: int) -> None:
        """Put the records [start, end) of a call into a batch."""
        count, now_us = end - start, time.time_ns() // 1000
        pending.values += columns.values[start:end]
        if columns.keys is None:
            pending.keys += [None] * count
        else:
            pending.keys += columns.keys[start:end]
            pending.any_keys = True
        if columns.timestamps_us is None:
            pending.timestamps_us += [now_us] * count
        else:
            pending.timestamps_us += [now_us if t is None else t for t in columns.timestamps_us[start:end]]
        if columns.headers is None:
            pending.headers += [None] * count
        else:
            pending.headers += columns.headers[start:end]
            pending.any_headers = True
        size = columns.bytes_of(start, end)
        pending.bytes += size
        self.buffered_bytes += size

    async def _accept_run(
        self, lane: Lane | None, columns: Columns, start: int, durability: Durability, answer: AppendedBatch
    ) -> int:
        """Put records of one lane from `start` on into one batch, as many as fit; return where to go on."""
        size = columns.bytes_of(start, start + 1)
        if self._room or self.buffered_bytes + size > self.max_buffered_bytes:
            await self._wait_for_room(size)
        pending = self._filling(lane, durability, size)
        first = len(pending.values)
        end = min(
            len(columns),
            start + self._grown_records - first,
            columns.end_within(start, self._grown_bytes - pending.bytes),
            columns.end_within(start, self.max_buffered_bytes - self.buffered_bytes),
        )
        if pending.bytes < self.batch_bytes and first < self.batch_records:  # else it waits for a slot, and grows
            end = min(
                end,
                start + self.batch_records - first,
                columns.end_reaching(start, self.batch_bytes - pending.bytes),  # the record that fills it is in it
            )
        end = max(end, start + 1)
        self._fill_many(pending, columns, start, end)
        pending.pieces.append((first, columns.positions[start:end], answer))
        self.touch(lane)
        if pending.bytes >= self.batch_bytes or len(pending.values) >= self.batch_records:
            self._pump_queue(lane)
        return end

    # --- room

    async def _wait_for_room(self, size: int) -> None:
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._room.append((size, waiter))
        self._pump_all()
        await waiter
        self._check_open()

    def release(self, size: int) -> None:
        """Give back the room of an answered batch."""
        self.buffered_bytes -= size
        free = self.max_buffered_bytes - self.buffered_bytes
        while self._room and (self._room[0][1].done() or self._room[0][0] <= free):
            wanted, waiter = self._room.popleft()
            if not waiter.done():
                free -= wanted
                waiter.set_result(None)

    def expire(self, pending: Pending, trouble: str) -> None:
        """Give up a batch that was never sent."""
        pending.fail(
            Unavailable(
                f"{len(pending)} records for {self.group_name!r} could not be sent within {self.timeout_s:g} s "
                f"({trouble or 'no shard took them'}); they were not appended"
            )
        )
        self.release(pending.bytes)

    def on_loss(self, error: LocalAppendsLost) -> None:
        """Report LOCAL appends that were acknowledged and did not survive (L21)."""
        self.lost_local_records += error.records
        log.warning("%s", error)
        if self._user_on_loss is not None:
            self._user_on_loss(error)

    # --- sending

    def touch(self, lane: Lane | None) -> None:
        """Look at this queue at the end of the loop's turn, when everyone who is awake has appended."""
        if not self._touched:
            self.loop.call_soon(self._pump_touched)
        self._touched.add(lane)
        if self._ticker is None:
            self._ticker = self.loop.call_later(CHECK_EVERY_S, self._check_time)

    def _pump_touched(self) -> None:
        touched, self._touched = self._touched, set()
        for lane in touched:
            self._pump_queue(lane)

    def _pump_queue(self, lane: Lane | None) -> None:
        """Send what is due of one queue.  Full batches come here at once: a caller may never yield."""
        if lane is None:
            self._pump_keyless()
        else:
            self.pump(lane)

    def _pump_all(self) -> None:
        for lane in self.lanes.values():
            self.pump(lane)

    def pump(self, lane: Lane) -> None:
        """Send what is due on one lane, then keyless batches."""
        while lane.queue and lane.has_slot() and self._due(lane.queue, idle=not lane.flights):
            lane.submit(lane.queue.popleft())
        if self._keyless:
            self._pump_keyless()

    def _pump_keyless(self) -> None:
        while self._keyless:
            idle = not any(lane.flights for lane in self.lanes.values())
            if not self._due(self._keyless, idle=idle):
                return
            lane = self._next_in_ring()
            if lane is None:
                return
            lane.submit(self._keyless.popleft())

    def _next_in_ring(self) -> Lane | None:
        """Return the next shard with a slot and a leader; the ring turns batch by batch."""
        for _ in range(len(self._ring)):
            lane = self._ring[0]
            self._ring.rotate(-1)
            if lane.has_slot() and self.routing.leader(self.group_name, lane.index) is not None:
                return lane
        return None

    def _due(self, queue: deque[Pending], *, idle: bool) -> bool:
        pending = queue[0]
        if (
            idle
            or len(queue) > 1
            or pending.hurried
            or self._room
            or pending.bytes >= self.batch_bytes
            or len(pending.values) >= self.batch_records
        ):
            return True
        left_s = pending.opened_at + self.linger_s - self.loop.time()
        if left_s <= 0:
            return True
        if self._linger is None:
            self._linger = self.loop.call_later(left_s, self._on_linger)
        return False

    def _on_linger(self) -> None:
        self._linger = None
        self._pump_all()

    def _on_map(self) -> None:
        group = self.routing.find(self.group_name)
        if group is not None and group is not self.group and group.shards == self.group.shards:
            self.group = group
            self._set_limits()
        for lane in self.lanes.values():
            lane.on_map()
        if self._keyless:
            self._pump_keyless()

    def _check_time(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for lane in self.lanes.values():
            lane.check_time(now)
        while self._keyless and now >= self._keyless[0].deadline:
            self.expire(self._keyless.popleft(), "")
        if self.buffered_bytes:
            self._ticker = self.loop.call_later(CHECK_EVERY_S, self._check_time)


def _durability(durability: Durability | str) -> Durability:
    if type(durability) is Durability:
        return durability
    try:
        return Durability[durability.upper()]  # type: ignore[union-attr]
    except (KeyError, AttributeError):
        raise InvalidArgument("durability", f"{durability!r} is neither QUORUM nor LOCAL") from None


def _at_least(field: str, value: float, minimum: float):  # type: ignore[no-untyped-def]
    if not isinstance(value, int | float) or isinstance(value, bool) or value < minimum:
        raise InvalidArgument(field, f"is {value!r}, must be a number of at least {minimum}")
    return value
