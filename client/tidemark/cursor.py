"""ShardCursor: the read of one shard, from its leader, across failovers.

After any break it goes on at the offset behind the last one delivered.  Control entries and what was rolled back
are passed over, on the node's word for each offset.
Stays out: merging shards and buffering (reader).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import grpc.aio
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import RETRIED, Reason
from tidemark_core.delivery.messages import GapKind
from tidemark_wire import channel as wire
from tidemark_wire.frames import ReadFrame, decode_read
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from .batch import ReadBatch
from .errors import Unavailable
from .gaps import Gap
from .read_stats import ReadStats
from .retrying import BACKOFF_MAX_S, SILENCE_S, Backoff, follow, jittered
from .shard_stream import Call, Ending, ShardStream

if TYPE_CHECKING:
    from .reader import Reader

EARLIEST = "earliest"
LATEST = "latest"
READ_RETRIED = RETRIED | {Reason.CORRUPT}

Start = int | str
End = int | str | None


class ShardCursor(ShardStream):
    """Where the read of one shard stands."""

    nowhere = "no leader is known"

    def __init__(self, reader: Reader, shard: int, start: Start, end: End) -> None:
        super().__init__(reader.channels, Backoff(first_s=0.0))
        self.shard = shard
        self.next = 0 if start == EARLIEST else int(start)  # offset wanted next
        self.end = None if end in (None, LATEST) else int(end)  # last offset wanted, inclusive
        self.tail = end is None
        self.released = -1  # newest bound heard of
        self.stats = ReadStats()
        self._from_earliest = start == EARLIEST
        self._reader = reader
        self._node = ""  # that is read from
        self._leader_epoch = -1
        self._progress_at = reader.loop.time()

    def start_at(self, offset: int) -> None:
        """Begin elsewhere; called before `run`."""
        self.next, self._from_earliest = offset, False

    def done(self) -> bool:
        return self.end is not None and self.next > self.end

    async def run(self) -> None:
        """Read until the end; raises what the user must know."""
        if not self.done():
            await super().run()

    def target(self) -> str:
        leader = self._reader.routing.leader(self._reader.group_name, self.shard)
        if leader is None:
            self._node = ""
            self._reader.routing.refresh_soon()
            return ""
        self.stats.failovers += 0 <= self._leader_epoch < leader.epoch
        self._leader_epoch, self._node = leader.epoch, leader.node or leader.address
        return leader.address

    def open(self, channel: grpc.aio.Channel) -> Call:
        reader = self._reader
        request = node_pb2.ReadRequest(
            group=reader.group_name, group_id=reader.group_id, shard=self.shard,
            until=-1 if self.end is None else self.end, tail=self.tail,
            bytes_max=reader.settings.frame_bytes, **{"from": self.next},
        )
        method: grpc.aio.UnaryStreamMultiCallable[node_pb2.ReadRequest, bytes] = channel.unary_stream(
            wire.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        return method(request, metadata=wire.hello_metadata())

    def on_ended(self, ending: Ending) -> float | None:
        if ending.whole and not self.tail:
            return None
        pause_s = 0.0
        if not self._node:
            pause_s = BACKOFF_MAX_S
        elif ending.error is not None:
            pause_s = self._learn(ending.error)
        if self.done():
            return None
        if not self.tail and self._is_overdue():
            raise Unavailable(
                f"shard {self.shard} of {self._reader.group_name!r} could not be read on from offset {self.next} "
                f"for {self._reader.settings.timeout_s:g} s ({ending.why})"
            )
        return jittered(pause_s)

    def read(self, call: Call) -> Awaitable[Any]:
        return call.read() if self.tail else self._read_watched(call)

    async def _read_watched(self, call: Call) -> Any:
        reading = asyncio.ensure_future(call.read())
        try:
            while not (await asyncio.wait({reading}, timeout=SILENCE_S))[0]:
                self._reader.routing.refresh_soon()
                if self._is_overdue():
                    raise Unavailable(
                        f"shard {self.shard} of {self._reader.group_name!r} sent nothing for "
                        f"{self._reader.settings.timeout_s:g} s, offset {self.next} is wanted"
                    )
            return reading.result()
        finally:
            reading.cancel()

    def _is_overdue(self) -> bool:
        return self._reader.loop.time() - self._progress_at > self._reader.settings.timeout_s

    async def on_frame(self, frame: bytes) -> None:
        self._progress_at = self._reader.loop.time()
        self.stats.received(self._node, len(frame))
        before = self.next
        await self._take(decode_read(frame))
        if self.next > before:
            self.backoff.reset()

    async def _take(self, frame: ReadFrame) -> None:
        self.released = max(self.released, frame.released)
        if self.end is None and not self.tail:
            self.end = max(frame.released, self.next - 1)  # what "latest" meant when the read began
        self._from_earliest = False
        last_wanted = frame.through if self.end is None else min(frame.through, self.end)
        holes = deque(frame.holes)
        for entry in frame.entries:
            while holes and holes[0][0] < entry.base:
                await self._pass_hole(*holes.popleft(), last_wanted)
            if entry.last < self.next or entry.base > last_wanted:
                self.stats.duplicates += entry.last < self.next
                continue
            self.stats.bytes_delivered += entry.size
            if entry.kind is not Kind.DATA:
                self._reader.epochs_begun += entry.kind is Kind.EPOCH_START
                self.next = entry.last + 1
                continue
            batch = ReadBatch(
                self.shard, entry, self.next, last_wanted, self._reader.settings.decoded_bytes_max)
            await self._reader.put(batch)
            self.next = batch.last + 1
        for hole in holes:
            await self._pass_hole(*hole, last_wanted)
        self.next = max(self.next, last_wanted + 1)

    async def _pass_hole(self, first: int, last: int, last_wanted: int) -> None:
        """Go on behind offsets that were rolled back, as far as they are wanted."""
        first, last = max(first, self.next), min(last, last_wanted)
        if first > last:
            return
        gap = self._reader.gap(GapKind.HOLE, self.shard, first, last)
        if gap is not None:
            await self._reader.put(gap)
        self.next = last + 1

    def _pass_trimmed(self, last: int) -> None:
        """Go on behind what retention removed."""
        last = last if self.end is None else min(last, self.end)
        gap = self._reader.gap(GapKind.TRIM, self.shard, self.next, last, silent=True)
        if gap is not None:
            self._reader.push(gap)
        self.next = last + 1

    def _learn(self, error: grpc.aio.AioRpcError) -> float:
        """Return the seconds that the node asks to wait; raises what no other try helps against."""
        hinted = refusal_from_rpc_error(error)
        if hinted is not None and hinted.refused.reason is Reason.TRIMMED and hinted.refused.expected > self.next and (
                self._from_earliest or self._reader.settings.gaps):
            self._pass_trimmed(hinted.refused.expected - 1)
            self.backoff.reset()
            return 0.0
        return follow(self._reader.routing, self._reader.group_name, self.shard, error, READ_RETRIED)

    def taken(self, item: ReadBatch | Gap) -> None:
        """The application has taken a batch or a gap; what is read ahead is bounded by the reader."""

    def on_map(self) -> None:
        """Leave a leader that was superseded; it may be paused and never say so."""
        if self.call is None:
            self.try_at_once()
            return
        leader = self._reader.routing.leader(self._reader.group_name, self.shard)
        if leader is not None and leader.epoch > self._leader_epoch:
            self.try_at_once()
            self.call.cancel()
