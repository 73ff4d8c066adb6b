"""RecordDispatcher: puts checked records of a log into batches.

Stays out: the checks (checks), when a batch leaves (batches).
"""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
from tidemark_core.base.entry import Durability

from ..batch import Appended, AppendedRange, RecordHeaders
from ..checks import Checks
from ..errors import InvalidArgument
from .batches import Dispatcher
from .columns import Columns
from .pending import AppendedBatch, PendingRecords
from .shell import Lane
from .whole import PendingWhole, sealed


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
        expect: int | None = None,
    ) -> asyncio.Future[Appended]:
        """Put one checked record into a batch, its own one with `expect`, and return the future of its place."""
        lane = None if key is None else self.lanes[self.group.shard_of(key)]
        if expect is None:
            pending = self.filling(lane, durability, size)
        else:
            lane, offset = lane or self._only_lane(), _offset(expect)
            pending = self.open(lane, durability)
            pending.whole, pending.expect = True, offset
        future: asyncio.Future[Appended] = self.loop.create_future()
        pending.futures.append((pending.count, future))
        pending.add(value, key, time.time_ns() // 1000 if timestamp_us is None else timestamp_us, headers, size)
        self.filled(lane, pending, size)
        return future

    def add_whole(
        self, lane: Lane, columns: pa.RecordBatch, note: bytes, durability: Durability, size: int
    ) -> asyncio.Future[AppendedRange]:
        """Put checked columns of one lane into a batch of their own, and return the future of its place.

        Raises UnknownGroup or GroupReplaced where the group of the lane is gone.
        """
        self.routing.check_life(self.group_name, lane.life)
        pending = PendingWhole(
            sealed(columns, note, self.settings.compression), size, durability, self.loop.time(),
            self.settings.timeout_s)
        lane.queue.append(pending)
        self.filled(lane, pending, size)
        return pending.future

    def _only_lane(self) -> Lane:
        """Return the lane of a record without a key that expects an offset, which is of one shard."""
        if len(self.lanes) != 1:
            text = f"needs a key: {self.group_name!r} has {len(self.lanes)} shards, each with offsets of its own"
            raise InvalidArgument("expect", text)
        return next(iter(self.lanes.values()))

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


def _offset(expect: int) -> int:
    if not isinstance(expect, int) or isinstance(expect, bool) or not 0 <= expect < 1 << 63:
        raise InvalidArgument("expect", f"is {expect!r}, must be an offset: 0 or more, below 2^63")
    return expect
