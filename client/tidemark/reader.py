"""Reader: records of a group's shards, each shard in offset order and up to what is released.

One cursor per shard reads ahead into a queue that all share: from all members of its shard (delivery), or from its
leader (cursor).  What was rolled back is passed over and counted, or yielded as gaps between the records.
Stays out: members, leaders and failovers; decoding of records (batch).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import GapKind
from tidemark_wire.tasks import cancelled

from . import arrow
from .batch import ReadBatch, Record
from .cursor import EARLIEST, LATEST, End, ShardCursor, Start
from .delivery import ShardDelivery
from .errors import AccessDenied, Closed, DataLoss, InvalidArgument, TidemarkError, Trimmed, UndecodableBatch
from .gaps import Gap, GapT
from .iterating import Iteration
from .read_settings import LEADER, RAISE, ReadSettings
from .read_stats import ReadStats, together
from .routing import LOG
from .running_clock import RunningClock
from .subscription import Subscription, SubscriptionSettings

if TYPE_CHECKING:
    from .client import Client

ARROW_BATCHES = 64
"""Batches that are made columns together, where so many are there."""

GAP_BYTES = 256  # what a gap takes in the buffer

Item = ReadBatch | Gap


class Reader(Generic[GapT]):
    """Made by `Client.read`.  Iterate over it for records, or over `batches()` for whole batches.

    `positions` says, per shard, the offset that would be delivered next: pass it as `from_` to go on later.
    `epochs_begun` counts the elections whose mark in the log was passed over, `holes` the offsets that were rolled
    back, `undecodable` those of batches passed over unread, `stats` what crossed the network.  With `gaps` every
    iteration has `Gap`s among what it yields.

    With a subscription it begins where that stands.  What was yielded counts as done when the next one is asked for;
    what is done is committed every few seconds and by `close`, what was handed out by `commit` too.
    """

    def __init__(
        self,
        client: Client,
        group_name: str,
        settings: ReadSettings,
        *,
        shards: Sequence[int] | None = None,
        from_: Start | Mapping[int, Start] = EARLIEST,
        until: End | Mapping[int, End] = LATEST,
        subscription: SubscriptionSettings | None = None,
    ) -> None:
        self.settings = settings
        self.group_name = group_name
        self.routing = client.routing
        self.channels = client.channels
        self.questions = client.questions
        self.loop = asyncio.get_running_loop()
        self.clock = RunningClock(self.loop)
        group = client.routing.group_of_kind(group_name, LOG)
        self.group_id = group.group_id
        wanted = sorted(group.shards) if shards is None else list(dict.fromkeys(shards))
        for shard in wanted:
            client.routing.check_shard(group, shard)
        starts = {shard: _start(from_, shard) for shard in wanted}
        kind = ShardCursor if settings.mode == LEADER else ShardDelivery
        self.cursors: dict[int, ShardCursor | ShardDelivery] = {
            shard: kind(self, shard, EARLIEST if start == LATEST else start, _end(until, shard))
            for shard, start in starts.items()
        }
        self._endless = any(_end(until, shard) is None for shard in wanted)
        self._from_latest = {shard for shard, start in starts.items() if start == LATEST}
        self.epochs_begun = 0
        self.holes = 0
        self.undecodable = 0
        self.positions = {shard: cursor.next for shard, cursor in self.cursors.items()}
        self._ready: deque[Item] = deque()
        self._held: dict[int, deque[Item]] = {}  # of paused shards
        self.buffered_bytes = 0
        self._lazy = settings.undecodable == RAISE and not settings.gaps   # batches are checked when they are decoded
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._started = self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._on_close = client.forget
        self._home = client.home
        self.subscription = None if subscription is None else Subscription(self, subscription)
        self._stop_listening = self.routing.listen(self._on_map)

    # --- what users call

    def batches(self) -> Iteration[ReadBatch | GapT]:
        """Iterate over whole `ReadBatch`es as they arrive, in order within each shard, and with `gaps` the `Gap`s.

        A timeout of `anext` ends no iteration of a reader: the next item comes with the next call.
        """
        return Iteration(self._next_item, begin=self._check_open, close=self.close)

    async def _check_open(self) -> None:
        if self._closed:
            raise Closed("the reader is closed")
        self._home.check()

    async def _next_item(self) -> tuple[ReadBatch | GapT] | None:
        # What is there needs no wait; only a subscription must hear that the one before is done.
        while (self._ready and self.subscription is None) or await self._filled():
            item = self._take()
            if item is not None:
                return (item,)
        return None

    async def next_batches(self, count_max: int) -> list[ReadBatch | GapT]:
        """Return the batches (and gaps) that are there, at least one, at most `count_max`; none is the end."""
        batches: list[ReadBatch | GapT] = []
        self._home.check()
        while not batches and await self._filled():
            while self._ready and len(batches) < count_max:
                item = self._take()
                if item is not None:
                    batches.append(item)
        return batches

    async def to_arrow(self) -> pa.Table:
        """Read up to the end into one table of the columns `tidemark.arrow.RECORDS`; each shard's are in offset order.

        Raises InvalidArgument for a read without an end, and for one with gaps.
        """
        self.check_columns()
        found: list[pa.RecordBatch] = []
        try:
            while batches := await self.next_batches(ARROW_BATCHES):
                found += arrow.by_shard(batches)
        finally:
            await self.close()
        return pa.Table.from_batches(found, schema=arrow.RECORDS)

    def check_columns(self) -> None:
        """Raise InvalidArgument where what is read cannot become a table."""
        if self._endless:
            raise InvalidArgument("until", "is None, and a table has an end: give 'latest' or an offset")
        if self.settings.gaps:
            raise InvalidArgument("gaps", "is True, and a gap has no columns: iterate over batches()")

    async def _filled(self) -> bool:
        """Wait until something is there to be handed out; False at the end."""
        if not self._started:
            self._start()
        subscription = self.subscription
        if subscription is not None:
            subscription.settle()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._closed:
                return False
            if not self._tasks and not any(self._held.values()):
                # The cursors ran to their ends, over control entries too.
                for shard, cursor in self.cursors.items():
                    self.positions[shard] = cursor.next
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    def _take(self) -> Any:
        """Hand out the next batch, or the next gap where gaps were asked for; None for a batch that is passed over."""
        item = self._ready.popleft()
        self.buffered_bytes -= _size(item)
        self.positions[item.shard] = item.last + 1
        self.cursors[item.shard].taken(item)
        if self.subscription is not None:
            self.subscription.given[item.shard] = item.last + 1
        self._room.set()
        return item if self._lazy or isinstance(item, Gap) else self._decodable(item)

    def _decodable(self, batch: ReadBatch) -> ReadBatch | Gap | None:
        """Return a batch whose records can be had, the gap in its place, or None where it is passed over (T11)."""
        try:
            batch.check()
        except UndecodableBatch as error:
            self.undecodable += len(batch)
            return Gap(GapKind.UNDECODABLE, error.shard, error.first, error.last) if self.settings.gaps else None
        return batch

    def records(self) -> Iteration[Record | GapT]:
        """Iterate over `Record`s as they arrive, in order within each shard, and with `gaps` over the `Gap`s."""
        return Iteration(self._next_records, begin=self._check_open, close=self.close)

    async def _next_records(self) -> Iterable[Record | GapT] | None:
        found = await self._next_item()
        if found is None:
            return None
        (item,) = found
        return self._records_of(item) if isinstance(item, ReadBatch) else (item,)

    def _records_of(self, batch: ReadBatch) -> Iterator[Record]:
        self.positions[batch.shard] = batch.first
        subscription = self.subscription
        for record in batch.records():
            self.positions[batch.shard] = record.offset + 1
            if subscription is None:
                yield record
                continue
            subscription.given[batch.shard] = record.offset + 1
            yield record
            subscription.mark(batch.shard, record.offset + 1)

    def __aiter__(self) -> Iteration[Record | GapT]:
        return self.records()

    async def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Commit everything handed out so far, or these offsets by shard: where the subscription goes on.

        Returns once a majority has it; raises Unavailable, RequestRefused.  A position never moves back.
        """
        self._home.check()
        subscription = self.subscription
        if subscription is None:
            raise InvalidArgument("subscription", "is missing: this reader has no name to commit under")
        if positions is None:
            subscription.settle()
            positions = subscription.done
        for shard, offset in positions.items():
            self._mine((shard,))
            if type(offset) is not int or offset < 0:
                raise InvalidArgument("positions", f"{offset!r} of shard {shard} is not an offset")
        await subscription.commit(positions, timeout_s=self.settings.timeout_s)

    def mark(self, shard: int, offset: int) -> None:
        """The application is done with what lies below `offset` of a shard: the next commit says so."""
        if self.subscription is not None:
            self.subscription.mark(shard, offset)

    @property
    def stats(self) -> ReadStats:
        """Return what was received and delivered so far, from whom, and what was done about trouble."""
        return together(cursor.stats for cursor in self.cursors.values())

    @property
    def paused(self) -> frozenset[int]:
        """The shards of which nothing is handed out."""
        return frozenset(self._held)

    def pause(self, *shards: int) -> None:
        """Hand nothing out of these shards, or of all, until `resume`; what is read ahead stays bounded."""
        for shard in self._mine(shards):
            if shard not in self._held:
                self._held[shard] = deque(item for item in self._ready if item.shard == shard)
        self._ready = deque(item for item in self._ready if item.shard not in self._held)
        self.buffered_bytes = sum(map(_size, self._ready))

    def resume(self, *shards: int) -> None:
        """Go on with these shards, or with all."""
        for shard in self._mine(shards):
            held = self._held.pop(shard, deque())
            self._ready.extend(held)
            self.buffered_bytes += sum(map(_size, held))
        self._wake.set()
        self._room.set()

    def _mine(self, shards: Sequence[int]) -> Sequence[int]:
        for shard in shards:
            if shard not in self.cursors:
                raise InvalidArgument("shards", f"shard {shard!r} is not among those read, {sorted(self.cursors)}")
        return shards or list(self.cursors)

    @property
    def closed(self) -> bool:
        """Say whether the reader was closed, by `close` or by the end of an iteration."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "reading" if self._started else "not begun"
        return f"<tidemark.Reader of {self.group_name!r}, {self.settings.mode}, at {self.positions}, {state}>"

    async def __aenter__(self) -> Reader[GapT]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading.  Batches not yet handed out are dropped; `positions` does not count them.

        Whoever calls it returns when all is done: an iteration that was left closes the reader behind the scenes.
        """
        if self._closing is None:
            self._home.check()
            self._closed = True
            self._closing = asyncio.create_task(self._close(), name=f"tidemark-close-{self.group_name}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._stop_listening()
        tasks, self._tasks = self._tasks, set()
        await cancelled(*tasks)
        self.clock.stop()
        self._ready.clear()
        self._held.clear()
        self._wake.set()
        if self.subscription is not None and self._started:
            await self.subscription.close()
        self._on_close(self)

    # --- what cursors call

    def fail(self, error: BaseException) -> None:
        """End with an error, once what is ready has been handed out."""
        if self._error is None:
            self._error = error
        self._wake.set()

    async def put(self, item: Item) -> None:
        """Hand a batch or a gap over, waiting while the queue is full or the shard is paused."""
        while item.shard in self._held or (
            self._ready and self.buffered_bytes + _size(item) > self.settings.buffer_bytes
        ):
            self._room.clear()
            await self._room.wait()
        self.push(item)

    def push(self, *items: Item) -> None:
        """Hand batches and gaps of one shard over, at least one; the cursor itself bounds how many."""
        if items[0].shard in self._held:
            self._held[items[0].shard] += items
            return
        self._ready += items
        self.buffered_bytes += sum(map(_size, items))
        self._wake.set()

    def gap(self, kind: GapKind, shard: int, first: int, last: int, *, silent: bool = False) -> Gap | None:
        """Return the gap to hand over, None when nobody wants to see it; raises what must not be passed over unseen."""
        if kind is GapKind.HOLE:
            self.holes += last - first + 1
        if self.settings.gaps:
            return Gap(kind, shard, first, last)
        where = f"{first} to {last} of shard {shard} of {self.group_name!r}"
        match kind:
            case GapKind.TRIM if not silent:
                raise Trimmed(
                    Refused(Reason.TRIMMED, f"offsets {where} were removed by retention", expected=last + 1)
                )
            case GapKind.DATALOSS:
                raise DataLoss(f"no member holds offsets {where}", shard=shard, first=first, last=last)
            case GapKind.ACCESS:
                raise AccessDenied(
                    f"reading shard {shard} of {self.group_name!r} from offset {first} on is not allowed",
                    shard=shard, first=first, last=last,
                )
        return None

    # --- inside

    def _start(self) -> None:
        if self._closed:
            raise Closed("the reader is closed")
        self._started = True
        self.clock.start()
        if self.subscription is not None:
            self.subscription.start()
        for shard, cursor in self.cursors.items():
            task = asyncio.create_task(self._run(shard, cursor), name=f"tidemark-read-{self.group_name}-{shard}")
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    async def _run(self, shard: int, cursor: ShardCursor | ShardDelivery) -> None:
        offset = None if self.subscription is None else await self.subscription.start_of(shard)
        if offset is None and shard in self._from_latest:
            offset = 1 + await self.questions.latest(
                self.group_name, shard, timeout_s=self.settings.timeout_s, group_id=self.group_id)
        if offset is not None:
            cursor.start_at(offset)
            self.positions[shard] = offset
        await cursor.run()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self._wake.set()

    def _on_map(self) -> None:
        try:
            self.routing.check_life(self.group_name, self.group_id)
        except TidemarkError as gone:
            self.fail(gone)
            return
        for cursor in self.cursors.values():
            cursor.on_map()


def items_of(item: ReadBatch | GapT) -> Iterable[Record | GapT]:
    """Return what an iteration over records yields for a batch or a gap."""
    return (item,) if isinstance(item, Gap) else item.records()


def _size(item: Item) -> int:
    return GAP_BYTES if isinstance(item, Gap) else item.size


def _start(given: Start | Mapping[int, Start], shard: int) -> Start:
    start = given.get(shard, EARLIEST) if isinstance(given, Mapping) else given
    if start in (EARLIEST, LATEST) or (type(start) is int and 0 <= start < 1 << 62):
        return start
    raise InvalidArgument("from_", f"{start!r} is neither 'earliest' nor 'latest' nor an offset of 0 or more")


def _end(given: End | Mapping[int, End], shard: int) -> End:
    end = given.get(shard, LATEST) if isinstance(given, Mapping) else given
    if end is None or end == LATEST or (type(end) is int and end >= 0):
        return end
    raise InvalidArgument("until", f"{end!r} is neither None (tail), 'latest' nor an offset of 0 or more")
