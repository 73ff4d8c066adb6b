"""RecordDispatcher: puts checked records of a log into batches.

Stays out: the checks (checks), when a batch leaves (batches).
"""

from __future__ import annotations

import asyncio
import time

from tidemark_core.base.entry import Durability

from ..batch import Appended, RecordHeaders
from ..checks import Checks
from .batches import Dispatcher
from .columns import Columns
from .pending import AppendedBatch, PendingRecords
from .shell import Lane


class RecordDispatcher(Dispatcher[PendingRecords]):
    """The dispatcher of an appender."""

    batch_type = PendingRecords

    def _set_limits(self) -> None:
        super()._set_limits()
        self.checks = Checks(self.group, self.settings.max_buffered_bytes)

    def lane_of(self, key: bytes | None) -> Lane | None:
        """Return the lane of a key, None for the keyless queue."""
        return None if key is None else self.lanes[self.group.shard_of(key)]

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
        pending = self.filling(lane, durability, size)
        future: asyncio.Future[Appended] = self.loop.create_future()
        pending.futures.append((pending.count, future))
        pending.add(value, key, time.time_ns() // 1000 if timestamp_us is None else timestamp_us, headers, size)
        self.filled(lane, pending, size)
        return future

    def add_run(
        self, lane: Lane | None, columns: Columns, start: int, durability: Durability, answer: AppendedBatch
    ) -> int:
        """Put checked records of one lane from `start` on into one batch, as many as fit; return where to go on.

        Raises UnknownGroup or GroupReplaced where the group of the lane is gone.
        """
        settings = self.settings
        if lane is not None:
            self.routing.check_life(self.group_name, lane.life)
        pending = self.filling(lane, durability, columns.bytes_of(start, start + 1))
        first = pending.count
        end = min(
            len(columns),
            start + self._grown_records - first,
            columns.end_within(start, self._grown_bytes - pending.bytes),
            columns.end_within(start, self.room.free),
        )
        if not self.is_full(pending):  # else it waits for a slot, and grows
            end = min(
                end,
                start + settings.batch_records - first,
                columns.end_reaching(start, settings.batch_bytes - pending.bytes),  # the one that fills it is in it
            )
        end = max(end, start + 1)
        pending.add_columns(columns, start, end, time.time_ns() // 1000)
        pending.pieces.append((first, columns.positions[start:end], answer))
        self.filled(lane, pending, columns.bytes_of(start, end))
        return end
