"""Synchronous face: the same client for programs without an event loop.

One background thread runs the loop (uvloop where there is one); every call here waits for its result.
Stays out: anything the asynchronous client does not do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import itertools
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tidemark_core.limbo.view import LimboView
from tidemark_core.replication.messages import Outcome
from tidemark_core.subscriptions.view import SubscriptionsView

from .appender import Appender
from .batch import Appended, Record
from .client import Client
from .client import connect as connect_async
from .explain import Explanation
from .gaps import Gap
from .loop import new_event_loop
from .pending import AppendedBatch
from .read_stats import ReadStats
from .reader import Reader, items_of

T = TypeVar("T")

_READ_AHEAD_BATCHES = 64


class _LoopThread:
    """A thread that runs one event loop until it is told to stop."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tidemark-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class SyncAppender:
    """`tidemark.Appender`, waiting."""

    def __init__(self, thread: _LoopThread, appender: Appender) -> None:
        self._thread = thread
        self._appender = appender

    def append(self, value: bytes, **options: Any) -> Appended:
        """Append one record and return where it lies."""
        return self._thread.wait(self._appender.append(value, **options))

    def append_later(self, value: bytes, **options: Any) -> concurrent.futures.Future[Appended]:
        """Append one record without waiting for the answer.  Waits in the loop for room in the buffer."""
        return asyncio.run_coroutine_threadsafe(self._appender.append(value, **options), self._thread.loop)

    def append_batch(self, records: Iterable[bytes | Record], **options: Any) -> AppendedBatch:
        """Append many records and return their places in the order given."""
        return self._thread.wait(self._appender.append_batch(list(records), **options))

    def flush(self) -> None:
        """Return when everything accepted so far is answered."""
        self._thread.wait(self._appender.flush())

    def close(self) -> None:
        self._thread.wait(self._appender.close())

    def __enter__(self) -> SyncAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncReader:
    """`tidemark.Reader` as an ordinary iterator of `Record`s, and of `Gap`s where they were asked for."""

    def __init__(self, thread: _LoopThread, reader: Reader) -> None:
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
    def stats(self) -> ReadStats:
        """What was received and delivered so far; `Reader.stats`."""
        return self._thread.wait(_call(lambda: self._reader.stats))

    @property
    def paused(self) -> frozenset[int]:
        return self._reader.paused

    def pause(self, *shards: int) -> None:
        """Hand nothing out of these shards, or of all, until `resume`; batches taken ahead are still yielded."""
        self._thread.wait(_call(self._reader.pause, *shards))

    def resume(self, *shards: int) -> None:
        """Go on with these shards, or with all."""
        self._thread.wait(_call(self._reader.resume, *shards))

    def batches(self) -> Iterator[Any]:
        """Yield whole `ReadBatch`es as they arrive, in order within each shard, and with `gaps` the `Gap`s."""
        try:
            for batch in self._taken():
                self._given[batch.shard] = batch.last + 1
                yield batch
                self._reader.mark(batch.shard, batch.last + 1)
        finally:
            self.close()

    def _taken(self) -> Iterator[Any]:
        while batches := self._thread.wait(self._reader.next_batches(_READ_AHEAD_BATCHES)):
            yield from batches

    def __iter__(self) -> Iterator[Any]:
        if self._reader.subscription is None:
            return itertools.chain.from_iterable(map(items_of, self.batches()))
        return self._records()

    def _records(self) -> Iterator[Any]:
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
        self._thread.wait(self._reader.close())


class SyncClient:
    """`tidemark.Client`, waiting.  Close it, or use it with `with`."""

    def __init__(self, thread: _LoopThread, client: Client) -> None:
        self._thread = thread
        self._client = client

    def appender(self, group: str, **options: Any) -> SyncAppender:
        """Return an appender; the options are those of `Client.appender`."""
        return SyncAppender(self._thread, self._thread.wait(_call(self._client.appender, group, **options)))

    def read(self, group: str, **options: Any) -> SyncReader:
        """Return a reader; the options are those of `Client.read`."""
        return SyncReader(self._thread, self._thread.wait(_call(self._client.read, group, **options)))

    def outcome(self, group: str, shard: int, producer: bytes, sequence: int, **options: Any) -> Outcome:
        """Return what became of a batch; the options are those of `Client.outcome`."""
        return self._thread.wait(self._client.outcome(group, shard, producer, sequence, **options))

    def limbo(self, group: str, shard: int, **options: Any) -> LimboView:
        """Return what is appended to a shard and not yet confirmed; the options are those of `Client.limbo`."""
        return self._thread.wait(self._client.limbo(group, shard, **options))

    def latest(self, group: str, shard: int, **options: Any) -> int:
        """Return the last offset that may be read now; the options are those of `Client.latest`."""
        return self._thread.wait(self._client.latest(group, shard, **options))

    def offset_at(self, group: str, shard: int, timestamp: datetime.datetime | int, **options: Any) -> int:
        """Return the first offset logged at a time or later; the options are those of `Client.offset_at`."""
        return self._thread.wait(self._client.offset_at(group, shard, timestamp, **options))

    def subscriptions(self, group: str, **options: Any) -> dict[int, SubscriptionsView]:
        """Return where named subscriptions stand; the options are those of `Client.subscriptions`."""
        return self._thread.wait(self._client.subscriptions(group, **options))

    def commit_position(self, group: str, shard: int, subscription: str, offset: int, **options: Any) -> int:
        """Commit where a subscription goes on; the options are those of `Client.commit_position`."""
        return self._thread.wait(self._client.commit_position(group, shard, subscription, offset, **options))

    def delete_subscription(self, group: str, subscription: str, **options: Any) -> list[int]:
        """Forget a subscription; the options are those of `Client.delete_subscription`."""
        return self._thread.wait(self._client.delete_subscription(group, subscription, **options))

    def explain_read(self, group: str, shard: int, **options: Any) -> Explanation:
        """Return who would send a reader what; the options are those of `Client.explain_read`."""
        return self._thread.wait(self._client.explain_read(group, shard, **options))

    def close(self) -> None:
        try:
            self._thread.wait(self._client.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


def connect(addresses: str | Sequence[str], **options: Any) -> SyncClient:
    """Return a client of the cluster; the options are those of `tidemark.connect`."""
    thread = _LoopThread()
    try:
        return SyncClient(thread, thread.wait(connect_async(addresses, **options)))
    except BaseException:
        thread.stop()
        raise
