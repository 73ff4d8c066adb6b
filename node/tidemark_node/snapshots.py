"""Snapshots: serving one in chunks at a bounded rate, and pulling one from its source.

The rows of documents come first, all from one state of the source's store, with those of the summary last.
A pull begins where the core says (so it resumes), checks each chunk's checksum and each entry's, and waits until a
chunk is durable before it goes much further.
Stays out: what belongs into a snapshot and when it is whole; the core knows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import grpc
import grpc.aio
from google_crc32c import extend
from tidemark_core.base.effects import (
    LogReadFailed,
    PullSnapshot,
    SnapshotChunk,
    SnapshotDescriptor,
    SnapshotFailed,
    SnapshotRows,
)
from tidemark_core.base.entry import Entry, decode_header, with_payload
from tidemark_core.base.errors import CorruptEntry
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.rows import FAMILIES, behind, prefix
from tidemark_wire import channel
from tidemark_wire.frames import ENTRIES_MAX
from tidemark_wire.identity import Kind
from tidemark_wire.status import to_rpc_error
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WireVersionMismatch

from .database import Row, Snapshot
from .driver import Driver
from .methods import Method, Shape
from .metrics import Metrics
from .routing import Routing
from .store_errors import StoreFailed

CHUNK_BYTES = 1 << 20
CHUNK_SECONDS = 2
"""At a low rate chunks are so much shorter, or whoever pulls would take the wait for the next one for silence."""
CHUNKS_UNDURABLE_MAX = 4
CHUNK_TIMEOUT_SECONDS = 30.0
ROWS_MAX = 16_384
"""Rows of one chunk: rows of some families have a few bytes each."""

_log = logging.getLogger(__name__)


class PullFailed(Exception):
    """Why a pull ended early."""


_EXPECTED = (PullFailed, grpc.RpcError, WireVersionMismatch, OSError, TimeoutError, StoreFailed)


class TokenBucket:
    """At most `rate` bytes a second over time, with bursts of a quarter of a second.

    Whoever comes first goes first.  A changed rate is in force at once, also for those who wait.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._tokens = self._rate / 4
        self._earned = 0.0   # tokens ever earned; what one waits for does not grow by what others take behind it
        self._filled_at = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def rate(self) -> int:
        return self._rate

    @rate.setter
    def rate(self, bytes_per_second: int) -> None:
        self._fill()
        self._rate = bytes_per_second
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may go; a chunk beyond the burst goes into debt that the next ones pay."""
        self._fill()
        self._tokens -= count
        due = self._earned - self._tokens
        while self._earned < due:
            with suppress(TimeoutError):
                async with asyncio.timeout((due - self._earned) / self._rate):
                    await self._changed.wait()
            self._fill()

    def _fill(self) -> None:
        now = time.monotonic()
        earned = (now - self._filled_at) * self._rate
        self._filled_at = now
        self._earned += earned
        self._tokens = min(self._rate / 4, self._tokens + earned)


def checksum(headers: list[bytes], payloads: list[bytes]) -> int:
    """crc32c over all headers and payloads in order."""
    crc = 0
    for part in (*headers, *payloads):
        crc = extend(crc, part)
    return crc


class SnapshotServer:
    """Handler of Replication/PullSnapshot; all pulls of the node share one rate: its own, or the one it was told."""

    def __init__(
        self, driver: Driver, metrics: Metrics, bytes_per_second: int, greet: Callable[[Any], Awaitable[channel.Hello]]
    ) -> None:
        self._driver = driver
        self._greet = greet
        self._metrics = metrics
        self._own_rate = bytes_per_second
        self._bucket = TokenBucket(bytes_per_second)
        metrics.snapshot_bytes_per_second.set(bytes_per_second)

    def throttle(self, bytes_per_second: int) -> None:
        """Send at most so much from now on; 0: as the node was started with."""
        wanted = bytes_per_second or self._own_rate
        if wanted != self._bucket.rate:
            _log.info("snapshots are sent at another rate", extra={"bytes_per_second": wanted})
            self._bucket.rate = wanted
            self._metrics.snapshot_bytes_per_second.set(wanted)

    async def serve(self, request: Any, context: Any) -> None:
        """Stream rows if they are asked for, then the entries."""
        puller = await self._greet(context)
        shard, position = ShardId(request.shard), request.first
        if position < 0 or (request.last < position and not request.rows):   # the rows alone may be missing
            wrong = Refused(Reason.INVALID_SPEC, f"first is {position} and last is {request.last}")
            await context.abort(*to_rpc_error(wrong))
        member = Member(puller.node, puller.incarnation)
        try:
            if request.rows:
                await self._serve_rows(shard, member, context)
            await self._serve_entries(shard, member, request, context)
        except StoreFailed as failure:
            await context.abort(*to_rpc_error(Refused(Reason.SHUTTING_DOWN, str(failure))))

    async def _may_pull(self, shard: ShardId, puller: Member, context: Any) -> None:
        stranger = self._driver.core.log.pull_refused(shard, puller)
        if stranger is not None:
            self._driver.trace(stranger)
            await context.abort(*to_rpc_error(Refused(Reason.PERMISSION_DENIED, stranger.detail)))

    @property
    def _chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, CHUNK_SECONDS * self._bucket.rate)

    async def _serve_rows(self, shard: ShardId, puller: Member, context: Any) -> None:
        """Stream all rows of the documents from one state of the store (U47).  Raises StoreFailed."""
        async with self._driver.hold(*FAMILIES) as held:
            for family in FAMILIES:
                first, end = prefix(shard), behind(shard)
                while True:
                    await self._may_pull(shard, puller, context)
                    page = partial(_page, family, first, end, self._chunk_bytes)
                    rows: list[Row] = await held.read(page)
                    if not rows:
                        break
                    first = rows[-1][0] + b"\0"
                    keys, values = [key for key, _ in rows], [value for _, value in rows]
                    await self._write(context, node_pb2.SnapshotChunk(
                        family=family, keys=keys, values=values, crc32c=checksum(keys, values)))
        await self._write(context, node_pb2.SnapshotChunk(rows_end=True))

    async def _write(self, context: Any, chunk: node_pb2.SnapshotChunk) -> None:
        size = sum(sum(map(len, parts)) for parts in (chunk.headers, chunk.payloads, chunk.keys, chunk.values))
        await self._bucket.take(size)
        await context.write(chunk)
        self._metrics.snapshot_sent_bytes.inc(size)

    async def _serve_entries(self, shard: ShardId, puller: Member, request: Any, context: Any) -> None:
        """Stream entries [first, last] as they are stored, up to the first that the core refuses to everyone.

        Raises StoreFailed.
        """
        position = request.first
        while position <= request.last:
            await self._may_pull(shard, puller, context)
            found = await self._driver.read(shard, position, request.last, self._chunk_bytes)
            if not found.entries:
                await self._give_up(context, shard, found.damaged_at, position)
            part, _ = self._driver.core.log.snapshot_part(shard, request.epoch, found.entries)
            if not part:
                if (lost_at := self._driver.core.log.lost_at(shard, found.entries[:1])) is not None:
                    await self._give_up(context, shard, lost_at, position)
                lacking = f"the entry at offset {position} is not to be had from {self._driver.core.me.node}"
                await context.abort(*to_rpc_error(Refused(Reason.NOT_HELD, lacking, expected=position)))
            headers = [entry.header for entry in part]
            payloads = [entry.payload for entry in part]
            await self._write(context, node_pb2.SnapshotChunk(
                headers=headers, payloads=payloads, crc32c=checksum(headers, payloads)))
            position = part[-1].last + 1

    async def _give_up(self, context: Any, shard: ShardId, damaged_at: int | None, position: int) -> None:
        if damaged_at is not None:
            self._driver.post(LogReadFailed(shard, None, damaged_at))
        missing = Refused(Reason.CORRUPT, f"no intact entry at offset {position}", expected=position)
        await context.abort(*to_rpc_error(missing))

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Replication.PullSnapshot", Shape.SERVER_STREAM, serve, node_pb2.PullSnapshotRequest,
            node_pb2.SnapshotChunk, kinds=frozenset({Kind.NODE}), checks_version=False,
        ),
    )


class Snapshots:
    """Pulls of this node, at most one per shard."""

    def __init__(
        self, driver: Driver, routing: Routing, metrics: Metrics, me: Member, address: str,
        tls: Credentials | None = None,
    ) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._tls = tls
        self._hello = channel.hello_metadata(node=me.node, incarnation=me.incarnation, address=address)
        self._pulls: dict[ShardId, asyncio.Task[None]] = {}

    def pull(self, effect: PullSnapshot) -> None:
        """Start, replace or stop the pull of a shard."""
        running = self._pulls.pop(effect.shard, None)
        if running is not None:
            running.cancel()
        if effect.source is None or effect.descriptor is None:
            return
        task = asyncio.get_running_loop().create_task(self._run(effect))
        self._pulls[effect.shard] = task
        task.add_done_callback(lambda done: self._ended(effect, done))

    def reset(self) -> None:
        """Stop every pull."""
        for task in self._pulls.values():
            task.cancel()
        self._pulls.clear()

    def describe(self) -> list[str]:
        """Return the shards being pulled, for people."""
        return [f"{shard >> 32}/{shard & 0xFFFFFFFF}" for shard in self._pulls]

    def _ended(self, effect: PullSnapshot, task: asyncio.Task[None]) -> None:
        if self._pulls.get(effect.shard) is task:
            del self._pulls[effect.shard]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if not isinstance(error, _EXPECTED):
            _log.error("snapshot pull failed in an unforeseen way", exc_info=error)
        text = (error.details() or str(error.code())) if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if effect.descriptor is not None:
            self._driver.post(SnapshotFailed(effect.shard, effect.descriptor.epoch, text or type(error).__name__))

    async def _run(self, effect: PullSnapshot) -> None:
        source, descriptor = effect.source, effect.descriptor
        assert source is not None and descriptor is not None
        address = self._routing.address(source.node)
        if address is None:
            raise PullFailed(f"the address of {source} is not known yet")
        request = node_pb2.PullSnapshotRequest(
            shard=effect.shard, epoch=descriptor.epoch, first=effect.first, last=descriptor.head.offset,
            rows=effect.rows,
        )
        async with channel.open_channel(address, self._tls, server_name=source.node) as opened:
            call = node_pb2_grpc.ReplicationStub(opened).PullSnapshot(request, metadata=self._hello)
            try:
                async with asyncio.timeout(CHUNK_TIMEOUT_SECONDS):
                    there = await channel.answered_hello(call)
                if Member(there.node, there.incarnation) != source:
                    raise PullFailed(f"{address} answers as {there.node}, not as {source}")
                await self._receive(call, effect, descriptor)
            finally:
                call.cancel()

    async def _receive(self, call: Any, effect: PullSnapshot, descriptor: SnapshotDescriptor) -> None:
        shard, epoch, last = effect.shard, descriptor.epoch, descriptor.head.offset
        undurable: deque[asyncio.Task[None]] = deque()
        try:
            first, rows_end = True, not effect.rows
            while not rows_end:
                chunk = await self._chunk(call, "within the rows")
                rows, rows_end = rows_of(chunk), chunk.rows_end
                await self._take(SnapshotRows(shard, epoch, rows, first, rows_end), _size_of_rows(rows), undurable)
                first = False
            position = effect.first
            while position <= last:
                entries = entries_of(await self._chunk(call, f"in front of offset {position}"))
                size = sum(len(entry.header) + len(entry.payload) for entry in entries)
                await self._take(SnapshotChunk(shard, epoch, entries), size, undurable)
                position = entries[-1].last + 1
        finally:
            for waiting in undurable:
                waiting.cancel()

    async def _chunk(self, call: Any, where: str) -> Any:
        async with asyncio.timeout(CHUNK_TIMEOUT_SECONDS):
            chunk = await call.read()
        if chunk is grpc.aio.EOF:
            raise PullFailed(f"the source ended the snapshot {where}")
        return chunk

    async def _take(self, event: Any, size: int, undurable: deque[asyncio.Task[None]]) -> None:
        """Hand a part to the core, and wait until the parts some way in front of it are durable."""
        self._metrics.snapshot_received_bytes.inc(size)
        self._driver.post(event, size)
        undurable.append(asyncio.ensure_future(self._driver.durable()))
        while len(undurable) > CHUNKS_UNDURABLE_MAX:
            await undurable.popleft()


def rows_of(chunk: Any) -> tuple[tuple[str, bytes, bytes], ...]:
    """Verify a chunk of rows; raises PullFailed.  The core judges each row."""
    family, keys, values = chunk.family, list(chunk.keys), list(chunk.values)
    if len(keys) > ROWS_MAX:
        raise PullFailed(f"a chunk holds {len(keys)} rows, the limit is {ROWS_MAX}")
    if chunk.headers or len(keys) != len(values) or bool(keys) is chunk.rows_end:
        raise PullFailed("a chunk of rows holds something else")
    if checksum(keys, values) != chunk.crc32c:
        raise PullFailed("a chunk fails its checksum")
    return tuple((family, key, value) for key, value in zip(keys, values, strict=True))


def _size_of_rows(rows: tuple[tuple[str, bytes, bytes], ...]) -> int:
    return sum(len(key) + len(value) for _, key, value in rows)


def _page(family: str, first: bytes, end: bytes, bytes_max: int, state: Snapshot) -> list[Row]:
    return state.scan(family, first, end, ROWS_MAX, bytes_max)


def entries_of(chunk: Any) -> tuple[Entry, ...]:
    """Verify a chunk and its entries; raises PullFailed."""
    headers, payloads = list(chunk.headers), list(chunk.payloads)
    if len(headers) > ENTRIES_MAX:
        raise PullFailed(f"a chunk holds {len(headers)} entries, the limit is {ENTRIES_MAX}")
    if not headers or len(headers) != len(payloads) or checksum(headers, payloads) != chunk.crc32c:
        raise PullFailed("a chunk fails its checksum")
    try:
        return tuple(_entry_of(header, payload) for header, payload in zip(headers, payloads, strict=True))
    except (CorruptEntry, ValueError) as error:
        raise PullFailed(f"a chunk holds a damaged entry: {error}") from error


def _entry_of(header: bytes, payload: bytes) -> Entry:
    """Verify an entry; without any payload it is its header alone, and the core judges whether it may be."""
    entry = decode_header(header)
    return with_payload(entry, payload) if payload else entry
