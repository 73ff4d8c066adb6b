"""Synchronous face: the same client for programs without an event loop.

One background thread runs the loop (uvloop where there is one); every call here waits for its result.
Stays out: anything the asynchronous client does not do.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import datetime
import itertools
import os
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Generic, Literal, Never, ParamSpec, TypeVar, Unpack, overload

import pyarrow as pa
from tidemark_core.base.entry import Durability
from tidemark_core.delivery.location import Location
from tidemark_core.limbo.view import LimboView
from tidemark_core.optimistic.archive import Archived
from tidemark_core.replication.messages import Outcome
from tidemark_core.sinks.fold import SinkEnd
from tidemark_core.sinks.view import SinkView
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_wire.tls import TlsSettings

from . import arrow
from .appending.appender import Appender
from .appending.pending import AppendedBatch
from .batch import Appended, AppendedRange, ReadBatch, Record
from .change_events import BarrierResult, BatchEvent, ChangeBatch, ChangeEvent, Snapshot, Vector
from .change_settings import BARRIER_S
from .changes import Changes
from .client import Client
from .client import connect as connect_async
from .document import BulkWritten, Cut, Delete, Document, Put, ShardDocuments, Written
from .document_scans import Scan
from .documents import Documents, Seqnos
from .errors import Closed, Unavailable, WrongLoop
from .explain import Explanation
from .gaps import Gap, GapT
from .iterating import Iteration
from .keyspace import TIMEOUT_S, TTL, Keyspace
from .keyspace_cells import CellsPage, RefusedCell
from .keyspace_futures import FutureKey, ReplacedStamp
from .keyspace_pages import PAGE_ROWS_MAX, KeyspacePages
from .keyspace_results import KeyMember, KeyspaceShape, KeyspaceStats, KeyValue, KeyWritten
from .keyspace_views import KeyExplanation, KeyspaceRanges
from .loop import new_event_loop
from .options import (
    AppenderOptions,
    ChangeOptions,
    DocumentsOptions,
    RangeOptions,
    ReadOptions,
    RecordOptions,
    ScanOptions,
    WriteOptions,
)
from .pins import Pin
from .producer import Resumed
from .read_settings import SCD
from .read_stats import ReadStats
from .reader import Reader, items_of
from .routing import Group
from .sinks import LEASE_S, Sinks
from .subscription import DEFAULT_LEASE_S

__all__ = [
    "SyncAppender", "SyncChanges", "SyncClient", "SyncDocuments", "SyncKeyspace", "SyncPages", "SyncPin", "SyncReader",
    "SyncScan", "connect",
]

T = TypeVar("T")
P = ParamSpec("P")

_READ_AHEAD_BATCHES = 64
_AT_EXIT_S = 1.0
_CLOSED = "the client is closed"


class _LoopThread:
    """A thread that runs one event loop until it is told to stop."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._process = os.getpid()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tidemark-sync", daemon=True)
        self._thread.start()
        # Behind this Python lets the thread run no more, and an iterator that a variable holds would wait for it.
        atexit.register(self.stop, _AT_EXIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()  # another thread may wait for it
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result; an interrupt cancels it.  Raises Closed, WrongLoop."""
        future = self.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise Closed(_CLOSED) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop and return its future; raises Closed, WrongLoop."""
        try:
            self._check()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed a moment ago
            work.close()
            raise Closed(_CLOSED) from None
        except BaseException:
            work.close()
            raise

    def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close a part of the client; where the client is closed, the part is too."""
        if not self._stopped:
            self.wait(close())

    def _check(self) -> None:
        if self._process != os.getpid():
            raise WrongLoop("called in a forked child: the thread that serves this client is in its parent")
        if threading.current_thread() is self._thread:
            raise WrongLoop("called in the thread that serves this client: the call would wait for itself")
        if self._stopped:
            raise Closed(_CLOSED)

    def stop(self, within_s: float | None = None) -> None:
        """End the thread, and wait for it at most `within_s`; calls that wait in other threads get Closed."""
        if not self._stopped and self._process == os.getpid():
            self._stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(within_s)
        atexit.unregister(self.stop)

    @property
    def stopped(self) -> bool:
        return self._stopped


class SyncAppender:
    """`tidemark.Appender`, waiting."""

    def __init__(self, thread: _LoopThread, appender: Appender) -> None:
        self._thread = thread
        self._appender = appender

    def append(self, value: bytes, **options: Unpack[RecordOptions]) -> Appended:
        """Append one record and return where it lies."""
        return self._thread.wait(self._appender.append(value, **options))

    def append_later(
        self, value: bytes, **options: Unpack[RecordOptions]
    ) -> concurrent.futures.Future[Appended]:
        """Append one record without waiting for the answer.  Waits in the loop for room in the buffer."""
        return self._thread.begin(self._appender.append(value, **options))

    def append_batch(
        self, records: Iterable[bytes | Record], *, durability: Durability | str | None = None
    ) -> AppendedBatch:
        """Append many records and return their places in the order given."""
        return self._thread.wait(self._appender.append_batch(list(records), durability=durability))

    def append_arrow(
        self, columns: pa.RecordBatch, *, shard: int, note: bytes = b"", durability: Durability | str | None = None
    ) -> AppendedRange:
        """Append columns as one batch of a shard and return where it lies; see `Appender.append_arrow`."""
        return self._thread.wait(self._appender.append_arrow(columns, shard=shard, note=note, durability=durability))

    def append_arrow_later(
        self, columns: pa.RecordBatch, *, shard: int, note: bytes = b"", durability: Durability | str | None = None
    ) -> concurrent.futures.Future[AppendedRange]:
        """Append columns without waiting for the answer.  Waits in the loop for room in the buffer."""
        return self._thread.begin(self._appender.append_arrow(columns, shard=shard, note=note, durability=durability))

    def claimed(self, timeout_s: float | None = None) -> dict[int, Resumed]:
        """Return by shard where the named producer goes on."""
        return self._thread.wait(self._appender.claimed(timeout_s))

    def flush(self) -> None:
        """Return when everything accepted so far is answered."""
        self._thread.wait(self._appender.flush())

    def close(self) -> None:
        self._thread.end(self._appender.close)

    def __enter__(self) -> SyncAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncReader(Generic[GapT]):
    """`tidemark.Reader` as an ordinary iterator of `Record`s, and of `Gap`s where they were asked for."""

    def __init__(self, thread: _LoopThread, reader: Reader[GapT]) -> None:
        self._thread = thread
        self._reader = reader
        self._given: dict[int, int] = {}   # yielded up to here; the reader is ahead of it

    @property
    def positions(self) -> dict[int, int]:
        return self._reader.positions

    @property
    def holes(self) -> int:
        return self._reader.holes

    @property
    def undecodable(self) -> int:
        return self._reader.undecodable

    @property
    def stats(self) -> ReadStats:
        """What was received and delivered so far; `Reader.stats`."""
        return self._thread.wait(_call(self._stats))

    def _stats(self) -> ReadStats:
        return self._reader.stats

    @property
    def paused(self) -> frozenset[int]:
        return self._reader.paused

    def pause(self, *shards: int) -> None:
        """Hand nothing out of these shards, or of all, until `resume`; batches taken ahead are still yielded."""
        self._thread.wait(_call(self._reader.pause, *shards))

    def resume(self, *shards: int) -> None:
        """Go on with these shards, or with all."""
        self._thread.wait(_call(self._reader.resume, *shards))

    def batches(self) -> Iterator[ReadBatch | GapT]:
        """Yield whole `ReadBatch`es as they arrive, in order within each shard, and with `gaps` the `Gap`s."""
        try:
            for batch in self._taken():
                self._given[batch.shard] = batch.last + 1
                yield batch
                self._reader.mark(batch.shard, batch.last + 1)
        finally:
            self.close()

    def _taken(self) -> Iterator[ReadBatch | GapT]:
        if self._reader.closed:
            raise Closed("the reader is closed")
        while batches := self._thread.wait(self._reader.next_batches(_READ_AHEAD_BATCHES)):
            yield from batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the columns `tidemark.arrow.RECORDS`, for programs that take record batches as they come.

        It reads ahead no more than the read's buffer.  Raises InvalidArgument as `Reader.to_arrow`.
        """
        self._reader.check_columns()

        def batches() -> Iterator[pa.RecordBatch]:
            while some := self._thread.wait(self._reader.next_batches(_READ_AHEAD_BATCHES)):
                yield from arrow.by_shard(some)

        return arrow.reader_of(arrow.RECORDS, batches(), self.close)

    def to_arrow(self) -> pa.Table:
        """Read up to the end into one table; `Reader.to_arrow`."""
        return self.to_reader().read_all()

    def __iter__(self) -> Iterator[Record | GapT]:
        if self._reader.subscription is None:
            return itertools.chain.from_iterable(map(items_of, self.batches()))
        return self._records()

    def _records(self) -> Iterator[Record | GapT]:
        """Yield records, each done with when the next one is asked for."""
        try:
            for batch in self._taken():
                for item in items_of(batch):
                    self._given[batch.shard] = behind = (item.last if isinstance(item, Gap) else item.offset) + 1
                    yield item
                    self._reader.mark(batch.shard, behind)
        finally:
            self.close()

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Commit everything yielded so far, or these offsets by shard; `Reader.commit`."""
        self._thread.wait(self._reader.commit(dict(self._given) if positions is None else positions))

    def close(self) -> None:
        self._thread.end(self._reader.close)


class SyncScan:
    """`tidemark.Scan` as an ordinary iterator of `Document`s."""

    def __init__(self, thread: _LoopThread, scan: Scan) -> None:
        self._thread = thread
        self._scan = scan

    @property
    def cuts(self) -> dict[int, Cut]:
        """The state shown of each shard; `Scan.cuts`."""
        return dict(self._scan.cuts)

    @property
    def position(self) -> str | None:
        """The position from which changes go on, once the scan is at its end; `Scan.position`."""
        return self._scan.position

    def pages(self) -> Iterator[list[Document]]:
        """Yield documents page by page; `Scan.pages`."""
        return self._each(self._scan.pages())

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield documents page by page as Arrow columns; `Scan.record_batches`."""
        return self._each(self._scan.record_batches())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the columns `tidemark.arrow.DOCUMENTS`, for programs that take them as they come."""
        return arrow.reader_of(arrow.DOCUMENTS, self.record_batches(), self.close)

    def to_arrow(self) -> pa.Table:
        """Return all documents as one table; `Scan.to_arrow`."""
        return self.to_reader().read_all()

    def _each(self, pages: Iteration[T]) -> Iterator[T]:
        return _waiting(self._thread, pages)

    def __iter__(self) -> Iterator[Document]:
        for page in self.pages():
            yield from page

    def close(self) -> None:
        self._thread.end(self._scan.close)


def _waiting(thread: _LoopThread, items: Iteration[T]) -> Iterator[T]:
    """Yield the items of an iteration, and end it."""
    try:
        while (item := thread.wait(_next(items))) is not None:
            yield item
    finally:
        thread.end(items.aclose)


async def _next(pages: AsyncIterator[T]) -> T | None:
    return await anext(pages, None)


class SyncPin:
    """`tidemark.Pin`, waiting.  With `with` it is released at the end."""

    def __init__(self, thread: _LoopThread, pin: Pin) -> None:
        self._thread = thread
        self._pin = pin

    @property
    def name(self) -> str:
        return self._pin.name

    @property
    def cuts(self) -> Mapping[int, Cut]:
        """The states by shard."""
        return self._pin.cuts

    @property
    def position(self) -> str | None:
        """The position from which changes go on behind the pin; `Pin.position`."""
        return self._pin.position

    def get(self, key: bytes) -> Document | None:
        """Return a document as the pin shows it; see `Pin.get`."""
        return self._thread.wait(self._pin.get(key))

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Document]:
        """Return the documents that the pin shows by key."""
        return self._thread.wait(self._pin.get_many(list(keys)))

    def scan(self, **options: Unpack[RangeOptions]) -> SyncScan:
        """Return the documents that the pin shows; see `Pin.scan`."""
        return SyncScan(self._thread, self._thread.wait(_call(lambda: self._pin.scan(**options))))

    def renew(self, ttl_s: float) -> None:
        """Let the pin last `ttl_s` seconds from now on; see `Pin.renew`."""
        self._thread.wait(self._pin.renew(ttl_s))

    def release(self) -> None:
        """End the pin on every shard."""
        self._thread.wait(self._pin.release())

    def __enter__(self) -> SyncPin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SyncDocuments:
    """`tidemark.Documents`, waiting."""

    def __init__(self, thread: _LoopThread, documents: Documents) -> None:
        self._thread = thread
        self._documents = documents

    @property
    def written(self) -> dict[int, int]:
        """The newest seqno answered to writes of this object, by shard; for `min_seqno`."""
        return dict(self._documents.written)

    def put(self, key: bytes, value: bytes, **options: Unpack[WriteOptions]) -> Written:
        """Put one document; see `Documents.put`."""
        return self._thread.wait(self._documents.put(key, value, **options))

    def delete(
        self, key: bytes, *, expected: int | None = None, durability: Durability | str | None = None
    ) -> Written:
        """Delete one document; see `Documents.delete`."""
        return self._thread.wait(self._documents.delete(key, expected=expected, durability=durability))

    def batch(
        self, writes: Iterable[Put | Delete], *, durability: Durability | str | None = None
    ) -> list[Written]:
        """Write documents of one shard, all or none; see `Documents.batch`."""
        return self._thread.wait(self._documents.batch(list(writes), durability=durability))

    def put_many(
        self, writes: Iterable[Put | Delete | tuple[bytes, bytes]], *, durability: Durability | str | None = None
    ) -> BulkWritten:
        """Write any number of documents; see `Documents.put_many`.  The loop's thread takes them from `writes`."""
        return self._thread.wait(self._documents.put_many(writes, durability=durability))

    def get(self, key: bytes, *, level: str | None = None, min_seqno: Seqnos = 0) -> Document | None:
        """Return a document, None when it does not exist; see `Documents.get`."""
        return self._thread.wait(self._documents.get(key, level=level, min_seqno=min_seqno))

    def get_many(
        self, keys: Iterable[bytes], *, level: str | None = None, min_seqno: Seqnos = 0
    ) -> dict[bytes, Document]:
        """Return the documents that exist by key; see `Documents.get_many`."""
        return self._thread.wait(self._documents.get_many(list(keys), level=level, min_seqno=min_seqno))

    def scan(self, **options: Unpack[ScanOptions]) -> SyncScan:
        """Return documents by key; see `Documents.scan`."""
        return SyncScan(self._thread, self._thread.wait(_call(lambda: self._documents.scan(**options))))

    def pin(self, name: str, ttl_s: float, *, shards: Sequence[int] | None = None) -> SyncPin:
        """Keep the documents as they are now; see `Documents.pin`."""
        return SyncPin(self._thread, self._thread.wait(self._documents.pin(name, ttl_s, shards=shards)))

    def pinned(self, name: str) -> SyncPin:
        """Return the active pin of a name; see `Documents.pinned`."""
        return SyncPin(self._thread, self._thread.wait(self._documents.pinned(name)))

    def position(self, cuts: Mapping[int, Cut]) -> str:
        """Return the position behind these cuts; see `Documents.position`."""
        return self._thread.wait(_call(lambda: self._documents.position(cuts)))

    def pin_at(self, name: str, seqnos: Mapping[int, int]) -> SyncPin:
        """Return a pin whose cuts are known by shard; see `Documents.pin_at`."""
        return SyncPin(self._thread, self._thread.wait(_call(lambda: self._documents.pin_at(name, seqnos))))

    def unpin(self, name: str, *, shards: Sequence[int] | None = None) -> list[int]:
        """End the pin of a name; see `Documents.unpin`."""
        return self._thread.wait(self._documents.unpin(name, shards=shards))

    def describe(self, *, shards: Sequence[int] | None = None) -> dict[int, ShardDocuments]:
        """Return by shard what the leader holds; see `Documents.describe`."""
        return self._thread.wait(self._documents.describe(shards=shards))

    def shard_of(self, key: bytes) -> int:
        """Return the shard of a key."""
        return self._thread.wait(_call(lambda: self._documents.shard_of(key)))

    def flush(self) -> None:
        """Return when every write accepted so far is answered."""
        self._thread.wait(self._documents.flush())

    def close(self) -> None:
        self._thread.end(self._documents.close)

    def __enter__(self) -> SyncDocuments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncPages(Generic[T]):
    """`tidemark.KeyspacePages` as an ordinary iterator of entries."""

    def __init__(self, thread: _LoopThread, pages: KeyspacePages[T]) -> None:
        self._thread = thread
        self._pages = pages

    @property
    def token(self) -> str | None:
        """The place behind what was handed out; `KeyspacePages.token`."""
        return self._pages.token

    @property
    def outcome(self) -> str:
        """'weak' once a page asked fewer owners than the keyspace asks for."""
        return self._pages.outcome

    def pages(self) -> Iterator[list[T]]:
        """Yield entries page by page; `KeyspacePages.pages`."""
        return _waiting(self._thread, self._pages.pages())

    def all(self) -> list[T]:
        """Return all entries; they must fit into memory."""
        return list(self)

    def __iter__(self) -> Iterator[T]:
        self._pages.rewind()
        while (entries := self._thread.wait(self._pages.next_entries())) is not None:
            yield from entries


class SyncSinks:
    """`tidemark.Sinks`, waiting."""

    def __init__(self, thread: _LoopThread, sinks: Sinks) -> None:
        self._thread = thread
        self._sinks = sinks

    def join(self, sink: str, batch: int, part: int, *, lease_s: float = LEASE_S, timeout_s: float = 30.0) -> bool:
        """Let a part join a batch; see `Sinks.join`."""
        return self._thread.wait(self._sinks.join(sink, batch, part, lease_s=lease_s, timeout_s=timeout_s))

    def mark(
        self, sink: str, batch: int, parts: int, ends: Iterable[SinkEnd], *, lease_s: float = LEASE_S,
        timeout_s: float = 30.0,
    ) -> None:
        """Mark a batch as complete; see `Sinks.mark`."""
        self._thread.wait(self._sinks.mark(sink, batch, parts, ends, lease_s=lease_s, timeout_s=timeout_s))

    def list(self, *, timeout_s: float = 30.0) -> tuple[SinkView, ...]:
        """Return how far all sinks have come; see `Sinks.list`."""
        return self._thread.wait(self._sinks.list(timeout_s=timeout_s))

    def get(self, sink: str, *, timeout_s: float = 30.0) -> SinkView | None:
        """Return how far a sink has come; see `Sinks.get`."""
        return self._thread.wait(self._sinks.get(sink, timeout_s=timeout_s))

    def delete(self, sink: str, *, timeout_s: float = 30.0) -> bool:
        """Forget a sink; see `Sinks.delete`."""
        return self._thread.wait(self._sinks.delete(sink, timeout_s=timeout_s))


class SyncKeyspace:
    """`tidemark.Keyspace`, waiting."""

    def __init__(self, thread: _LoopThread, keyspace: Keyspace) -> None:
        self._thread = thread
        self._keyspace = keyspace

    def get(self, key: bytes, *, r: int | None = None, timeout_s: float | None = None) -> KeyValue:
        """Read a String; see `Keyspace.get`."""
        return self._thread.wait(self._keyspace.get(key, r=r, timeout_s=timeout_s))

    def get_many(
        self, keys: Iterable[bytes], *, r: int | None = None, timeout_s: float | None = None
    ) -> dict[bytes, KeyValue]:
        """Read Strings; see `Keyspace.get_many`."""
        return self._thread.wait(self._keyspace.get_many(list(keys), r=r, timeout_s=timeout_s))

    def set(
        self, key: bytes, value: bytes, *, ttl_s: TTL = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Write a String; see `Keyspace.set`."""
        return self._thread.wait(self._keyspace.set(key, value, ttl_s=ttl_s, w=w, timeout_s=timeout_s))

    def set_many(
        self, items: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]], *, ttl_s: TTL = None,
        w: int | None = None, timeout_s: float | None = None,
    ) -> dict[bytes, KeyWritten]:
        """Write Strings; see `Keyspace.set_many`."""
        given = items if isinstance(items, Mapping) else list(items)
        return self._thread.wait(self._keyspace.set_many(given, ttl_s=ttl_s, w=w, timeout_s=timeout_s))

    def unset(self, key: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Delete a String; see `Keyspace.unset`."""
        return self._thread.wait(self._keyspace.unset(key, w=w, timeout_s=timeout_s))

    def getdel(
        self, key: bytes, *, r: int | None = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyValue:
        """Read a String and delete it; see `Keyspace.getdel`."""
        return self._thread.wait(self._keyspace.getdel(key, r=r, w=w, timeout_s=timeout_s))

    def describe(self) -> KeyspaceShape:
        """Return the id and the number of ranges; see `Keyspace.describe`."""
        return self._thread.wait(self._keyspace.describe())

    def scan(
        self, *, ranges: Iterable[int] | None = None, keyspace_id: int | None = None, token: str | None = None,
        page_rows: int = PAGE_ROWS_MAX, r: int | None = None, timeout_s: float | None = None,
    ) -> SyncPages[tuple[bytes, bytes]]:
        """Return Strings; see `Keyspace.scan`."""
        return SyncPages(self._thread, self._thread.wait(_call(lambda: self._keyspace.scan(
            ranges=ranges, keyspace_id=keyspace_id, token=token, page_rows=page_rows, r=r, timeout_s=timeout_s))))

    def sadd(
        self, key: bytes, member: bytes, *, ttl_s: TTL = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Add a member to a Set; see `Keyspace.sadd`."""
        return self._thread.wait(self._keyspace.sadd(key, member, ttl_s=ttl_s, w=w, timeout_s=timeout_s))

    def srem(self, key: bytes, member: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Remove a member of a Set; see `Keyspace.srem`."""
        return self._thread.wait(self._keyspace.srem(key, member, w=w, timeout_s=timeout_s))

    def sismember(
        self, key: bytes, member: bytes, *, r: int | None = None, timeout_s: float | None = None
    ) -> KeyMember:
        """Say whether a Set has a member; see `Keyspace.sismember`."""
        return self._thread.wait(self._keyspace.sismember(key, member, r=r, timeout_s=timeout_s))

    def smembers(
        self, key: bytes, *, token: str | None = None, page_rows: int = PAGE_ROWS_MAX, r: int | None = None,
        timeout_s: float | None = None,
    ) -> SyncPages[bytes]:
        """Return the members of a Set; see `Keyspace.smembers`."""
        return SyncPages(self._thread, self._thread.wait(_call(
            lambda: self._keyspace.smembers(key, token=token, page_rows=page_rows, r=r, timeout_s=timeout_s))))

    def hset(
        self, key: bytes, field: bytes, value: bytes, *, ttl_s: TTL = None, w: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyWritten:
        """Set a field of a Map; see `Keyspace.hset`."""
        return self._thread.wait(self._keyspace.hset(key, field, value, ttl_s=ttl_s, w=w, timeout_s=timeout_s))

    def hget(self, key: bytes, field: bytes, *, r: int | None = None, timeout_s: float | None = None) -> KeyValue:
        """Read a field of a Map; see `Keyspace.hget`."""
        return self._thread.wait(self._keyspace.hget(key, field, r=r, timeout_s=timeout_s))

    def hgetall(
        self, key: bytes, *, token: str | None = None, page_rows: int = PAGE_ROWS_MAX, r: int | None = None,
        timeout_s: float | None = None,
    ) -> SyncPages[tuple[bytes, bytes]]:
        """Return the fields of a Map; see `Keyspace.hgetall`."""
        return SyncPages(self._thread, self._thread.wait(_call(
            lambda: self._keyspace.hgetall(key, token=token, page_rows=page_rows, r=r, timeout_s=timeout_s))))

    def hdel(self, key: bytes, field: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Remove a field of a Map; see `Keyspace.hdel`."""
        return self._thread.wait(self._keyspace.hdel(key, field, w=w, timeout_s=timeout_s))

    def clear(self, key: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Remove all elements of a key; see `Keyspace.clear`."""
        return self._thread.wait(self._keyspace.clear(key, w=w, timeout_s=timeout_s))

    def cells(
        self, index: int, first: bytes = b"", *, keyspace_id: int | None = None, page_rows: int = PAGE_ROWS_MAX,
        timeout_s: float | None = None,
    ) -> CellsPage:
        """Return a page of the cells of a range; see `Keyspace.cells`."""
        return self._thread.wait(self._keyspace.cells(
            index, first, keyspace_id=keyspace_id, page_rows=page_rows, timeout_s=timeout_s))

    def import_cells(
        self, cells: Iterable[Archived], *, keyspace_id: int | None = None, timeout_s: float | None = None
    ) -> list[RefusedCell]:
        """Write cells of a backup as they were; see `Keyspace.import_cells`."""
        return self._thread.wait(self._keyspace.import_cells(
            list(cells), keyspace_id=keyspace_id, timeout_s=timeout_s))

    def explain(self, key: bytes, element: bytes | None = None, *, timeout_s: float | None = None) -> KeyExplanation:
        """Ask every node what it has of a key; see `Keyspace.explain`."""
        return self._thread.wait(self._keyspace.explain(key, element, timeout_s=timeout_s))

    def futures(
        self, *, key: bytes | None = None, range: int | None = None, timeout_s: float | None = None
    ) -> list[FutureKey]:
        """Return keys with stamps from the future; see `Keyspace.futures`."""
        return self._thread.wait(self._keyspace.futures(key=key, range=range, timeout_s=timeout_s))

    def repair_future(self, key: bytes, *, timeout_s: float | None = None) -> tuple[ReplacedStamp, ...]:
        """Replace stamps from the future; see `Keyspace.repair_future`."""
        return self._thread.wait(self._keyspace.repair_future(key, timeout_s=timeout_s))

    def ranges(self, *, timeout_s: float | None = None) -> KeyspaceRanges:
        """Ask every node what it knows of ranges; see `Keyspace.ranges`."""
        return self._thread.wait(self._keyspace.ranges(timeout_s=timeout_s))


class SyncChanges:
    """`tidemark.Changes` as ordinary iterators.  An event counts as applied when the next one is asked for."""

    def __init__(self, thread: _LoopThread, changes: Changes) -> None:
        self._thread = thread
        self._changes = changes

    def open(self) -> None:
        """Find the shards and begin; iterating does this too (`Changes.open`)."""
        self._thread.wait(self._changes.open())

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield whole snapshots; `Changes.snapshots`."""
        return self._each(self._changes.snapshots())

    def batches(self, *, timeout_s: float | None = None) -> Iterator[BatchEvent]:
        """Yield the events of the streams with changes in batches; `Changes.batches`.

        Raises Unavailable where nothing comes for `timeout_s` seconds: there is none, or no member serves it.
        """
        return self._each(self._changes.batches(), timeout_s)

    def __iter__(self) -> Iterator[ChangeEvent]:
        changes, events = self._changes, self.batches()
        while True:
            for change in changes.undelivered:  # noqa: UP028 - `yield from` closes what the next iteration needs
                yield change
            event = next(events)
            if isinstance(event, ChangeBatch):
                changes.undelivered = iter(event)
            else:
                yield event

    def _each(self, events: AsyncIterator[T], timeout_s: float | None = None) -> Iterator[T]:
        async def following() -> T:
            try:
                async with asyncio.timeout(timeout_s):
                    return await anext(events)
            except TimeoutError:
                raise Unavailable(f"no change of {self._changes.group_name!r} came for {timeout_s:g} s") from None

        while True:
            yield self._thread.wait(following())

    @property
    def position(self) -> str:
        """The position behind what was applied, as one token; `Changes.position`."""
        return self._thread.wait(_call(lambda: self._changes.position))

    @property
    def positions(self) -> dict[int, int]:
        return self._thread.wait(_call(lambda: self._changes.positions))

    @property
    def cuts(self) -> dict[int, Cut]:
        """`positions` with the history of each; `Changes.cuts`."""
        return self._thread.wait(_call(lambda: self._changes.cuts))

    def ack(self, *, timeout_s: float | None = None) -> None:
        """Count what was yielded as applied now; `Changes.ack`."""
        self._thread.wait(self._changes.ack(timeout_s=timeout_s))

    def nack(self, delay_s: float = 1.0) -> None:
        """Have the last snapshot yielded again; `Changes.nack`."""
        self._thread.wait(_call(self._changes.nack, delay_s))

    def barrier(self, timeout_s: float = BARRIER_S) -> BarrierResult:
        """Wait until everything confirmed before is applied; another thread goes on to iterate (`Changes.barrier`)."""
        return self._thread.wait(self._changes.barrier(timeout_s))

    def close(self) -> None:
        self._thread.end(self._changes.close)

    def __enter__(self) -> SyncChanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncClient:
    """`tidemark.Client`, waiting.  Close it, or use it with `with`."""

    def __init__(self, thread: _LoopThread, client: Client) -> None:
        self._thread = thread
        self._client = client

    def group(self, name: str) -> Group:
        """Return what the newest shard map that the client knows says of a group; see `Client.group`."""
        return self._thread.wait(self._client.group(name))

    def appender(self, group: str, **options: Unpack[AppenderOptions]) -> SyncAppender:
        """Return an appender; the options are those of `Client.appender`."""
        return SyncAppender(self._thread, self._thread.wait(_call(self._client.appender, group, **options)))

    @overload
    def read(
        self, group: str, *, gaps: Literal[False] = False, **options: Unpack[ReadOptions]
    ) -> SyncReader[Never]: ...

    @overload
    def read(self, group: str, *, gaps: bool, **options: Unpack[ReadOptions]) -> SyncReader[Gap]: ...

    def read(self, group: str, *, gaps: bool = False, **options: Unpack[ReadOptions]) -> SyncReader[Gap]:
        """Return a reader; the options are those of `Client.read`."""
        reader = self._thread.wait(_call(lambda: self._client.read(group, gaps=gaps, **options)))
        return SyncReader(self._thread, reader)

    def documents(self, group: str, **options: Unpack[DocumentsOptions]) -> SyncDocuments:
        """Return the documents of a group; the options are those of `Client.documents`."""
        return SyncDocuments(self._thread, self._thread.wait(_call(self._client.documents, group, **options)))

    def keyspace(self, name: str, *, timeout_s: float = TIMEOUT_S) -> SyncKeyspace:
        """Return a keyspace; see `Client.keyspace`."""
        return SyncKeyspace(
            self._thread, self._thread.wait(_call(lambda: self._client.keyspace(name, timeout_s=timeout_s))))

    def sinks(self, group: str) -> SyncSinks:
        """Return the sinks of a log group; see `Client.sinks`."""
        return SyncSinks(self._thread, self._thread.wait(_call(self._client.sinks, group)))

    @property
    def keyspace_stats(self) -> KeyspaceStats:
        """Counts of calls to keyspaces; see `Client.keyspace_stats`."""
        return self._thread.wait(_call(lambda: self._client.keyspace_stats))

    def changes(self, group: str, **options: Unpack[ChangeOptions]) -> SyncChanges:
        """Return the changes of a group of documents; the options are those of `Client.changes`."""
        return SyncChanges(self._thread, self._thread.wait(_call(lambda: self._client.changes(group, **options))))

    def barrier(self, group: str, *, timeout_s: float = 30.0) -> Vector:
        """Return where a group of documents is confirmed at least; see `Client.barrier`."""
        return self._thread.wait(self._client.barrier(group, timeout_s=timeout_s))

    def outcome(
        self, group: str, shard: int, producer: bytes, sequence: int, *, wait: bool = True, timeout_s: float = 30.0
    ) -> Outcome:
        """Return what became of a batch; see `Client.outcome`."""
        return self._thread.wait(
            self._client.outcome(group, shard, producer, sequence, wait=wait, timeout_s=timeout_s))

    def limbo(self, group: str, shard: int, *, entries_max: int = 100, timeout_s: float = 10.0) -> LimboView:
        """Return what is appended to a shard and not yet confirmed; see `Client.limbo`."""
        return self._thread.wait(self._client.limbo(group, shard, entries_max=entries_max, timeout_s=timeout_s))

    def latest(self, group: str, shard: int, *, timeout_s: float = 30.0) -> int:
        """Return the last offset that may be read now; see `Client.latest`."""
        return self._thread.wait(self._client.latest(group, shard, timeout_s=timeout_s))

    def earliest(self, group: str, shard: int, *, timeout_s: float = 30.0) -> int:
        """Return the first offset that retention has left; see `Client.earliest`."""
        return self._thread.wait(self._client.earliest(group, shard, timeout_s=timeout_s))

    def offset_at(
        self, group: str, shard: int, timestamp: datetime.datetime | int, *, timeout_s: float = 30.0
    ) -> int:
        """Return the first offset logged at a time or later; see `Client.offset_at`."""
        return self._thread.wait(self._client.offset_at(group, shard, timestamp, timeout_s=timeout_s))

    def subscriptions(
        self, group: str, *, shards: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> dict[int, SubscriptionsView]:
        """Return where named subscriptions stand; see `Client.subscriptions`."""
        return self._thread.wait(self._client.subscriptions(group, shards=shards, timeout_s=timeout_s))

    def commit_position(
        self, group: str, shard: int, subscription: str, offset: int, *, lease_s: float = DEFAULT_LEASE_S,
        seek: bool = False, timeout_s: float = 30.0,
    ) -> int:
        """Commit where a subscription goes on; see `Client.commit_position`."""
        return self._thread.wait(self._client.commit_position(
            group, shard, subscription, offset, lease_s=lease_s, seek=seek, timeout_s=timeout_s))

    def delete_subscription(
        self, group: str, subscription: str, *, shards: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> list[int]:
        """Forget a subscription; see `Client.delete_subscription`."""
        return self._thread.wait(
            self._client.delete_subscription(group, subscription, shards=shards, timeout_s=timeout_s))

    def explain_read(
        self, group: str, shard: int, *, first: int = 0, count: int = 100, mode: str = SCD,
        location: str | Location | None = None, down: Sequence[str] = (), timeout_s: float = 10.0,
    ) -> Explanation:
        """Return who would send a reader what; see `Client.explain_read`."""
        return self._thread.wait(self._client.explain_read(
            group, shard, first=first, count=count, mode=mode, location=location, down=down, timeout_s=timeout_s))

    def close(self) -> None:
        """Close every appender and reader and the client; once more does nothing."""
        if self._thread.stopped:
            return
        try:
            self._thread.wait(self._client.close())
        except WrongLoop:
            raise
        except BaseException:
            self._thread.stop()
            raise
        self._thread.stop()

    def __repr__(self) -> str:
        return f"<tidemark.sync of {self._client!r}>"

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _call(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    return function(*arguments, **options)


def connect(
    addresses: str | Sequence[str] | None = None, *, profile: str | None = None, timeout_s: float = 10.0,
    tls: TlsSettings | None = None,
) -> SyncClient:
    """Return a client of the cluster; see `tidemark.connect`."""
    thread = _LoopThread()
    try:
        return SyncClient(thread, thread.wait(connect_async(addresses, profile=profile, timeout_s=timeout_s, tls=tls)))
    except BaseException:
        thread.stop()
        raise
