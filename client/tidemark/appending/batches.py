"""Dispatcher: fills batches, decides when one leaves, and tells time.

A batch leaves at once when its lane is idle; behind unanswered batches it waits to be filled (`batch_records`,
`batch_bytes`) or for the linger.  While a lane has no slot its last batch goes on filling up to `BATCH_GROWTH`
times the size, so many small writers share few large batches.  Keyless records have a queue of their own, and
each of their batches goes to the next shard.
Stays out: the writes and their checks (records, document_writes), sequences and retries (core's `producing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from tidemark_core.base.entry import RECORDS_MAX, Durability
from tidemark_core.producing.messages import Noted, Settings
from tidemark_wire.tasks import cancelled

from ..batch import BATCH_OVERHEAD_BYTES
from ..errors import GroupReplaced, LocalAppendsLost, TidemarkError, Unavailable
from ..producer import Resumed
from ..routing import LOG
from ..settings import AppendSettings
from .pending import Pending
from .room import Room
from .shell import Lane

if TYPE_CHECKING:
    from ..client import Client

log = logging.getLogger("tidemark.appender")

BATCH_GROWTH = 4
CHECK_EVERY_S = 0.1

P = TypeVar("P", bound=Pending)


class Dispatcher(Generic[P]):
    """The lanes of a writer, the keyless queue, and the room they share.

    A subclass names the kind of group and of batch, and how many writes one batch may hold.
    """

    batch_type: type[P]
    kind = LOG
    records_max = RECORDS_MAX

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
        self.group = client.routing.group_of_kind(group_name, self.kind)
        self.room = Room(settings.max_buffered_bytes, self.pump_all)
        self._gone: TidemarkError | None = None     # the group is not there any more
        self.lost_local_records = 0
        self.noted: Counter[Noted] = Counter()
        self._on_loss = on_loss
        self._keyless: deque[P] = deque()
        self._touched: set[Lane | None] = set()  # None stands for the keyless queue
        self._linger: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._set_limits()
        self._set_lanes()
        self._stop_listening = self.routing.listen(self._on_map)

    def _set_lanes(self) -> None:
        self.lanes = {index: Lane(self, index) for index in self.group.shards}
        self._ring = deque(self.lanes.values())  # keyless batches go round

    def _set_limits(self) -> None:
        """Take over the limits of the group, which may change."""
        self.payload_bytes_max = max(1, self.group.batch_bytes_max - BATCH_OVERHEAD_BYTES)
        self.producing = Settings(
            self.settings.on_quorum_timeout == "wait", self.settings.on_rollback == "retry",
            int(self.group.quorum_timeout_s * 1000))
        self._grown_bytes = min(self.payload_bytes_max, self.settings.batch_bytes * BATCH_GROWTH)
        self._grown_records = min(self.records_max, self.settings.batch_records * BATCH_GROWTH)

    def check_there(self) -> None:
        """Raise UnknownGroup or WrongKind where the group is not there any more."""
        if self._gone is not None:
            raise self._gone

    async def claimed(self, timeout_s: float) -> dict[int, Resumed]:
        """Return by shard where a named producer goes on; raises Unavailable, and what a claim ended with."""
        claims = [asyncio.ensure_future(lane.claimed()) for lane in self.lanes.values()]
        try:
            async with asyncio.timeout(timeout_s):
                return {resumed.shard: resumed for resumed in await asyncio.gather(*claims)}
        except TimeoutError:
            late = [lane for lane in self.lanes.values() if lane.resumed is None]
            trouble = next((lane.trouble for lane in late if lane.trouble), "silence")
            shards = ", ".join(str(lane.index) for lane in late)
            raise Unavailable(
                f"the producer could not be claimed on shard {shards} of {self.group_name!r} within {timeout_s:g} s "
                f"({trouble})") from None
        finally:
            await cancelled(*claims)

    # --- filling batches

    def filling(self, lane: Lane | None, durability: Durability, size: int) -> P:
        """Return the batch that takes the next write of a lane."""
        queue: deque[P] = self._keyless if lane is None else lane.queue
        if queue:
            pending = queue[-1]
            if (
                pending.durability is durability
                and not pending.whole
                and pending.bytes + size <= self._grown_bytes
                and pending.count < self._grown_records
            ):
                return pending
        return self.open(lane, durability)

    def open(self, lane: Lane | None, durability: Durability) -> P:
        """Return a batch behind all others of a lane."""
        pending = self.batch_type(durability, self.loop.time(), self.settings.timeout_s)
        (self._keyless if lane is None else lane.queue).append(pending)
        return pending

    def filled(self, lane: Lane | None, pending: Pending, size: int) -> None:
        """Learn that writes of so many bytes joined a batch, and send it when it is full."""
        self.room.take(size)
        self.touch(lane)
        if self.is_full(pending):
            self._pump_queue(lane)

    def is_full(self, pending: Pending) -> bool:
        """Say whether a batch need not wait to be filled."""
        settings = self.settings
        return pending.whole or pending.bytes >= settings.batch_bytes or pending.count >= settings.batch_records

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
        while lane.queue and lane.has_room() and self._due(lane.queue, idle=lane.idle):
            lane.submit(lane.queue.popleft())
        if self._keyless:
            self._pump_keyless()

    def _pump_keyless(self) -> None:
        while self._keyless:
            idle = all(lane.idle for lane in self.lanes.values())
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
            if lane.has_room() and self.routing.leader(self.group_name, lane.index) is not None:
                return lane
        return None

    def _due(self, queue: deque[P], *, idle: bool) -> bool:
        pending = queue[0]
        if idle or len(queue) > 1 or pending.hurried or self.room.wanted or self.is_full(pending):
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
                f"{pending.count} records for {self.group_name!r} could not be sent within "
                f"{self.settings.timeout_s:g} s ({trouble or 'no shard took them'}); they were not appended"
            )
        )
        self.release(pending.bytes)

    def _check_time(self) -> None:
        self._ticker = None
        now = self.loop.time()
        for lane in self.lanes.values():
            lane.expire_queue(now)
        trouble = next((lane.trouble for lane in self.lanes.values() if lane.trouble), "")
        while self._keyless and now >= self._keyless[0].deadline:
            self.expire(self._keyless.popleft(), trouble)
            for lane in self.lanes.values():   # any of them might have had it
                lane.end(f"an earlier batch could not be sent in time ({trouble or 'no room'})")
            self._pump_keyless()
        if self.room.used:
            self._ticker = self.loop.call_later(CHECK_EVERY_S, self._check_time)

    def _on_map(self) -> None:
        """Take over the group as the map has it; writes that wait for another one of its name end here.

        A named producer ends with its group: what it goes on behind is in no other one.
        """
        if self._gone is not None and self.settings.producer is not None:
            return
        try:
            group = self.routing.group_of_kind(self.group_name, self.kind)
            self.routing.check_life(self.group_name, self.group.group_id)
        except GroupReplaced as replaced:
            self._leave(replaced)
            if self.settings.producer is not None:
                self._gone = replaced
                return
            self.group, self._gone = group, None
            self._set_limits()
            self._set_lanes()
            return
        except TidemarkError as gone:
            self._leave(gone)
            self._gone = gone
            if self.settings.producer is not None:
                return
            self._set_lanes()   # should the group come back with its data, they begin as new producers
            return
        self._gone = None
        if group is not self.group:
            self.group = group
            self._set_limits()
        for lane in self.lanes.values():
            lane.on_map()
        self.pump_all()

    def _leave(self, gone: TidemarkError) -> None:
        """End every write that waits: its group is gone."""
        for lane in self.lanes.values():
            lane.leave(gone)
        for pending in self._keyless:
            pending.fail(gone)
        self._keyless.clear()
        self.release(self.room.used)

    async def flush(self) -> None:
        """Send what is waiting without linger; return when everything accepted so far is answered."""
        waiting: list[Pending] = [*self._keyless]
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
