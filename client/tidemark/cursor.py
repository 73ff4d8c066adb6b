"""ShardCursor: the read of one shard, from its leader, across failovers.

After any break it goes on at the offset behind the last one delivered.  Control entries and what was rolled back
are passed over, on the node's word for each offset.
Stays out: merging shards and buffering (reader).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import Reason
from tidemark_core.delivery.messages import GapKind
from tidemark_wire import channel as wire
from tidemark_wire.frames import ReadFrame, decode_read
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from .batch import ReadBatch
from .errors import Unavailable, error_of
from .gaps import Gap
from .lane import RETRIED
from .read_stats import ReadStats

if TYPE_CHECKING:
    from .reader import Reader

log = logging.getLogger("tidemark.reader")

EARLIEST = "earliest"
LATEST = "latest"
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 0.5
SILENCE_S = 2.0  # a bounded read that hears nothing for so long looks for a newer leader
READ_RETRIED = RETRIED | {Reason.CORRUPT}

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
        self.stats = ReadStats()
        self._from_earliest = start == EARLIEST
        self._reader = reader
        self._call: grpc.aio.UnaryStreamCall | None = None
        self._leader_epoch = -1
        self._moved = False
        self._progress_at = reader.loop.time()
        self._trouble = ""

    def start_at(self, offset: int) -> None:
        """Begin elsewhere; called before `run`."""
        self.next, self._from_earliest = offset, False

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
            if not self.tail and self._reader.loop.time() - self._progress_at > self._reader.settings.timeout_s:
                raise Unavailable(
                    f"shard {self.shard} of {self._reader.group_name!r} could not be read on from offset {self.next} "
                    f"for {self._reader.settings.timeout_s:g} s ({self._trouble or 'no leader'})"
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
        self.stats.failovers += 0 <= self._leader_epoch < leader.epoch
        self._leader_epoch = leader.epoch
        request = node_pb2.ReadRequest(
            group=reader.group_name, shard=self.shard, until=-1 if self.end is None else self.end, tail=self.tail,
            bytes_max=reader.settings.frame_bytes, **{"from": self.next},
        )
        method = reader.channels.to(leader.address).unary_stream(
            wire.READ, request_serializer=node_pb2.ReadRequest.SerializeToString
        )
        call = self._call = method(request, metadata=wire.hello_metadata())
        try:
            while (data := await self._next_frame(call)) is not grpc.aio.EOF:
                self._progress_at = reader.loop.time()
                self.stats.received(leader.node or leader.address, len(data))
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
                    if self._reader.loop.time() - self._progress_at > self._reader.settings.timeout_s:
                        raise Unavailable(
                            f"shard {self.shard} of {self._reader.group_name!r} sent nothing for "
                            f"{self._reader.settings.timeout_s:g} s, offset {self.next} is wanted"
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
            batch = ReadBatch(self.shard, entry, self.next, last_wanted)
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
        passable = self._from_earliest or reader.settings.gaps
        if refused.reason is Reason.TRIMMED and passable and refused.expected > self.next:
            self._pass_trimmed(refused.expected - 1)
            return 0.0
        if refused.reason not in READ_RETRIED:
            raise error_of(refused) from error
        reader.routing.hint(
            reader.group_name, self.shard, hinted.leader_node, hinted.leader_address, refused.epoch
        )
        return max(0, refused.retry_after_ms) / 1000

    def taken(self, item: ReadBatch | Gap) -> None:
        """The application has taken a batch or a gap; what is read ahead is bounded by the reader."""

    def on_map(self) -> None:
        """Leave a leader that was superseded; it may be paused and never say so."""
        leader = self._reader.routing.leader(self._reader.group_name, self.shard)
        if leader is not None and leader.epoch > self._leader_epoch and self._call is not None:
            self._moved = True
            self._call.cancel()
