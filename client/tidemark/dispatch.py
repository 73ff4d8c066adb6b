"""Dispatcher: fills batches, decides when one leaves, and tells time.

A batch leaves at once when its lane is idle; behind unanswered batches it waits to be filled (`batch_records`,
`batch_bytes`) or for the linger.  While a lane has no slot its last batch goes on filling up to `BATCH_GROWTH`
times the size, so many small writers share few large batches.  Keyless records have a queue of their own, and
each of their batches goes to the next shard.
Stays out: the records' checks (checks), sequences and retries (lane).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark_core.base.entry import RECORDS_MAX, Durability

from .batch import Appended, RecordHeaders
from .checks import Checks
from .columns import Columns
from .errors import LocalAppendsLost, Unavailable
from .lane import Lane
from .pending import AppendedBatch, Pending
from .room import Room
from .settings import AppendSettings

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("tidemark.appender")

BATCH_GROWTH = 4
CHECK_EVERY_S = 0.1


class Dispatcher:
    """The lanes of an appender, the keyless queue, and the room they share."""

    def __init__(
        self,
        client: Client,
        group_name: str,
        settings: AppendSettings,
        on_loss: Callable[[LocalAppendsLost], None] | None,
    ) -> None:
        self.group_name = group_name
        self.settings = settings
        self.routing = client.routing
        self.links = client.links
        self.loop = asyncio.get_running_loop()
        self.group = client.routing.group(group_name)
        self.room = Room(settings.max_buffered_bytes, self.pump_all)
        self.lanes = {index: Lane(self, index) for index in self.group.shards}
        self.lost_local_records = 0
        self.quorum_timeouts = 0
        self.rolled_back_batches = 0
        self._on_loss = on_loss
        self._ring = deque(self.lanes.values())  # keyless batches go round
        self._keyless: deque[Pending] = deque()
        self._touched: set[Lane | None] = set()  # None stands for the keyless queue
        self._linger: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._set_limits()
        self._stop_listening = self.routing.listen(self._on_map)

    def _set_limits(self) -> None:
        self.checks = Checks(self.group, self.settings.max_buffered_bytes)
        self._grown_bytes = min(self.checks.payload_bytes_max, self.settings.batch_bytes * BATCH_GROWTH)
        self._grown_records = min(RECORDS_MAX, self.settings.batch_records * BATCH_GROWTH)

    def lane_of(self, key: bytes | None) -> Lane | None:
        """Return the lane of a key, None for the keyless queue."""
        return None if key is None else self.lanes[self.group.shard_of(key)]

    # --- filling batches

    def add(
        self,
        value: bytes,
        key: bytes | None,
        headers: RecordHeaders,
        timestamp_us: int | None,
        durability: Durability,
        size: int,
    ) -> asyncio.Future[Appended]:
        """Put one checked record into a batch and return the future of its place."""
        lane = None if key is None else self.lanes[self.group.shard_of(key)]
        pending = self._filling(lane, durability, size)
        future: asyncio.Future[Appended] = self.loop.create_future()
        pending.futures.append((len(pending.values), future))
        pending.add(value, key, time.time_ns() // 1000 if timestamp_us is None else timestamp_us, headers, size)
        self.room.take(size)
        self.touch(lane)
        if self._is_full(pending):
            self._pump_queue(lane)
        return future

    def add_run(
        self, lane: Lane | None, columns: Columns, start: int, durability: Durability, answer: AppendedBatch
    ) -> int:
        """Put checked records of one lane from `start` on into one batch, as many as fit; return where to go on."""
        settings = self.settings
        pending = self._filling(lane, durability, columns.bytes_of(start, start + 1))
        first = len(pending.values)
        end = min(
            len(columns),
            start + self._grown_records - first,
            columns.end_within(start, self._grown_bytes - pending.bytes),
            columns.end_within(start, self.room.free),
        )
        if not self._is_full(pending):  # else it waits for a slot, and grows
            end = min(
                end,
                start + settings.batch_records - first,
                columns.end_reaching(start, settings.batch_bytes - pending.bytes),  # the one that fills it is in it
            )
        end = max(end, start + 1)
        pending.add_columns(columns, start, end, time.time_ns() // 1000)
        pending.pieces.append((first, columns.positions[start:end], answer))
        self.room.take(columns.bytes_of(start, end))
        self.touch(lane)
        if self._is_full(pending):
            self._pump_queue(lane)
        return end

    def _filling(self, lane: Lane | None, durability: Durability, size: int) -> Pending:
        """Return the batch that takes the next record of a lane."""
        queue = self._keyless if lane is None else lane.queue
        if queue:
            pending = queue[-1]
            if (
                pending.durability is durability
                and pending.bytes + size <= self._grown_bytes
                and len(pending.values) < self._grown_records
            ):
                return pending
        pending = Pending(durability, self.loop.time(), self.settings.timeout_s)
        queue.append(pending)
        return pending

    def _is_full(self, pending: Pending) -> bool:
        return pending.bytes >= self.settings.batch_bytes or len(pending.values) >= self.settings.batch_records

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

    def pump_all(self) -> None:
        """Send whatever is due."""
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
        if idle or len(queue) > 1 or pending.hurried or self.room.wanted or self._is_full(pending):
            return True
        left_s = pending.opened_at + self.settings.linger_s - self.loop.time()
        if left_s <= 0:
            return True
        if self._linger is None:
            self._linger = self.loop.call_later(left_s, self._on_linger)
        return False

    def _on_linger(self) -> None:
        self._linger = None
        self.pump_all()

    # --- answers and time

    def release(self, size: int) -> None:
        """Give back the room of an answered batch."""
        self.room.give_back(size)

    def on_loss(self, error: LocalAppendsLost) -> None:
        """Report LOCAL appends that were acknowledged and did not survive (L21)."""
        self.lost_local_records += error.records
        log.warning("%s", error)
        if self._on_loss is not None:
            self._on_loss(error)

    def expire(self, pending: Pending, trouble: str) -> None:
        """Give up a batch that was never sent."""
        pending.fail(
            Unavailable(
                f"{len(pending)} records for {self.group_name!r} could not be sent within "
                f"{self.settings.timeout_s:g} s ({trouble or 'no shard took them'}); they were not appended"
            )
        )
        self.release(pending.bytes)

    def _check_time(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for lane in self.lanes.values():
            lane.check_time(now)
        trouble = next((lane.trouble for lane in self.lanes.values() if lane.trouble), "")
        while self._keyless and now >= self._keyless[0].deadline:
            self.expire(self._keyless.popleft(), trouble)
        if self.room.used:
            self._ticker = self.loop.call_later(CHECK_EVERY_S, self._check_time)

    def _on_map(self) -> None:
        group = self.routing.find(self.group_name)
        if group is not None and group is not self.group and group.shards == self.group.shards:
            self.group = group
            self._set_limits()
        for lane in self.lanes.values():
            lane.on_map()
        if self._keyless:
            self._pump_keyless()

    async def flush(self) -> None:
        """Send what is waiting without linger; return when everything accepted so far is answered."""
        waiting = [*self._keyless]
        for lane in self.lanes.values():
            waiting += lane.queue
            waiting += lane.unanswered()
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
        self.pump_all()
        await answered

    def stop(self, error: Exception) -> None:
        """Stop at once; everything without an answer gets `error`."""
        self._stop_listening()
        self.room.close(error)
        for handle in (self._linger, self._ticker):
            if handle is not None:
                handle.cancel()
        for lane in self.lanes.values():
            lane.stop(error)
        for pending in self._keyless:
            pending.fail(error)
        self._keyless.clear()
        self.release(self.room.used)
