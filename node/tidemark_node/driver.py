"""The driver: one loop that feeds events to the core and runs the effects it returns.

A turn drains the inbox, steps the core once, writes all persists of the turn in one go and hands messages to the
links.  One sync at a time runs in a thread; turns go on meanwhile and their writes join the next sync (group
commit).  What rides on a write runs only after its sync, in order.
When the disk fails a write, memory is ahead of the disk: everything in flight is given up and all shards are
loaded again from a reopened store, as after a crash.
Stays out: any judgement about epochs, offsets or quorums.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from tidemark_core.base.effects import (
    Changed,
    DiskSpace,
    Effect,
    Feed,
    LogRead,
    LogReadFailed,
    Persist,
    PullSnapshot,
    ReadLog,
    ReadRows,
    Released,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    Space,
    Trace,
)
from tidemark_core.base.ids import LOG_PLANE, Address, Peer, ShardId
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NodeCore

from .clock import WallClock
from .database import SCAN_BYTES
from .disk import DiskGuard
from .held_snapshot import HeldSnapshot
from .inbox import Barrier, Inbox
from .metrics import Metrics
from .released import ReleasedBoard
from .store import Slice, Store
from .store_errors import StoreDamaged, StoreFailed
from .timers import Timers

STORY_TRACES = 1000
OFTEN_MS = {
    "quorum_timeout": 1000, "payloads_dropped": 1000, "released_late": 1000, "payload_unavailable": 1000,
    "damaged_above_commit": 1000, "damage_reported": 1000,
    "truncate_below_commit_refused": 60_000, STRANGER_REFUSED: 10_000, "violation": 10_000,
}
"""Traces that come often: each is counted, and the log has one for a shard in so many milliseconds."""

LEVELS = {
    "truncate_below_commit_refused": logging.CRITICAL, "documents_diverged": logging.CRITICAL,
    "pin_over_bytes": logging.WARNING, STRANGER_REFUSED: logging.WARNING,
}
"""Evidence that acknowledged data is lost elsewhere is critical, and a warning that a node may be in strange hands."""

DISK_CHECK_SECONDS = 1.0
DISK_REPORT_CHECKS = 10
DISK_NEWS = {
    Space.FREE: "the disk has space again, writes resume",
    Space.FULL: "the disk is full, new appends are refused",
    Space.EXHAUSTED: "the disk is full, no entries are stored",
}
REOPEN_SECONDS = 0.5
READ_THREADS = 2
READS_AT_ONCE = 256      # reads of rows that a thread does in one piece
QUICK_READ_SECONDS = 0.0005    # a disk this fast is read on the loop, where a hand-over to a thread costs as much
QUICK_READ_ROWS = 8
QUICK_READ_BYTES = 64 << 10
SLOW_READ_REST = 100     # a slow read on the loop sends those behind it to threads for so many times its own time
DELIVERY_THREADS = 2
QUICK_SYNC_SECONDS = 0.0005    # a disk this fast is waited for where handing the wait to a thread costs as much
QUICK_SYNC_BYTES = 64 << 10

RELOADED = Refused(
    Reason.NOT_LEADER,
    "the disk failed and this node loads its shards again: the outcome is unknown, retry the same sequence",
)
RELOADING = Refused(Reason.NOT_LEADER, "this node loads its shards again after its disk failed a write; retry")
STOPPING = Refused(Reason.SHUTTING_DOWN, "the node stops", retry_after_ms=100)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LinksLike(Protocol):
    """What the driver needs of the links to peers and operators."""

    def send(self, unit: Address, to: Peer, message: Any) -> None: ...
    def flush(self) -> None: ...
    def report(self) -> None: ...
    def reset(self) -> None: ...


class SnapshotsLike(Protocol):
    """What the driver needs of the snapshot pulls."""

    def pull(self, effect: PullSnapshot) -> None: ...
    def reset(self) -> None: ...


Answered = tuple[LogRead | LogReadFailed | RowsRead | RowsScanned, int]
"""The event that answers a read, and its bytes."""


def _answer_of(effect: ReadLog | ScanRows, store: Store) -> list[Answered]:
    """Answer a read.  Runs in a reader thread; raises StoreDamaged for rows."""
    match effect:
        case ScanRows():
            rows = store.rows.scan(effect.family, effect.first, effect.behind, effect.rows_max, SCAN_BYTES)
            size = sum(len(key) + len(value) for key, value in rows)
            more = len(rows) == effect.rows_max or size >= SCAN_BYTES
            return [(RowsScanned(effect.address, effect.tag, tuple(rows), more), size)]
        case ReadLog():
            found = store.read(effect.shard, effect.first, effect.last, effect.bytes_max)
            if found.entries or found.damaged_at is None:
                size = sum(entry.size for entry in found.entries)
                return [(LogRead(effect.shard, effect.tag, found.entries), size)]
            return [(LogReadFailed(effect.shard, effect.tag, found.damaged_at), 0)]


def _rows_of(effects: list[ReadRows], store: Store) -> list[Answered]:
    """Answer the reads of rows of one turn with one call of RocksDB: a hand-over to a thread costs more than a row."""
    values = iter(store.rows.many([key for effect in effects for key in effect.keys]))
    answers: list[Answered] = []
    for effect in effects:
        own = tuple(islice(values, len(effect.keys)))
        size = sum(len(value) for value in own if value is not None)
        answers.append((RowsRead(effect.address, effect.tag, own), size))
    return answers


class Driver:
    """Runs one node's core.  Lives on one event loop; every method is called from it."""

    def __init__(
        self, store: Store, core: NodeCore, reopen: Callable[[], tuple[Store, NodeCore]], guard: DiskGuard,
        metrics: Metrics,
    ) -> None:
        self.store = store
        self.core = core
        self.metrics = metrics
        self.guard = guard
        self.links: LinksLike
        self.snapshots: SnapshotsLike
        self.on_health: Callable[[bool], None] = lambda serving: None
        self.on_space: Callable[[], None] = lambda: None   # the space of the disk changed, or some time has passed
        self.on_shards: Callable[[], None] = lambda: None  # all shards were loaded, or one more is held
        self.on_changed: Callable[[Changed], None] = lambda changed: None   # documents of a shard were folded further
        self.board = ReleasedBoard()
        self.story: deque[dict[str, Any]] = deque(maxlen=STORY_TRACES)
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reloading = False
        self.resigned = asyncio.Event()     # set whenever a leadership ended; whoever waits clears it
        self._reopen = reopen
        self._loop = asyncio.get_running_loop()
        self._clock = WallClock()
        self._inbox = Inbox()
        self._scheduled = False
        self._stopped = False
        self._told_ms: dict[tuple[Address, str], int] = {}  # of OFTEN_MS: when it was logged last
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._request_count = 0
        self._timers = Timers()
        self._timer_handle: asyncio.TimerHandle | None = None
        self._timer_at_ms: int | None = None
        self._disk_handle: asyncio.TimerHandle | None = None
        self._disk_checks = 0
        self._shards_held = 0
        self._generation = 0                # counts reloads; what began before one is ignored after it
        self._waiting: list[tuple[Effect, ...]] = []
        self._riding: list[tuple[Effect, ...]] = []     # on the sync that runs
        self._unsynced = False
        self._unsynced_bytes = 0
        self._syncing = False
        self._sync_seconds = math.inf       # moving average
        self._sent = False                  # this turn has messages for others
        self._reads_here: list[ReadRows] = []   # of this turn, for the loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = 0
        self._reads_here_at = 0.0           # when the loop may read again, by `time.perf_counter`
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._delivery_threads = ThreadPoolExecutor(DELIVERY_THREADS, thread_name_prefix="delivery")
        self._hold_thread = ThreadPoolExecutor(1, thread_name_prefix="hold")
        self._held: set[HeldSnapshot] = set()
        self._reclaim_thread = ThreadPoolExecutor(1, thread_name_prefix="reclaim")

    def start(self) -> None:
        """Begin to watch the disk; events may be posted from now on."""
        self._watch_disk()
        self._look_at_shards(loaded=True)

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds; it never falls while the process lives (C1)."""
        return self._clock.now_ms()

    # --- what others hand in --------------------------------------------------------------------------------

    def post(self, event: Any, size: int = 0) -> None:
        """Queue an event of `size` bytes for the next turn; whoever posts much awaits `room` first."""
        if self.reloading or self._stopped:
            return
        self._inbox.put(event, size)
        self._schedule()

    async def room(self) -> None:
        """Wait while the inbox is over its bound."""
        await self._inbox.room()

    def ask(self, event: Callable[[int], Any], answer: Callable[[Any], None], size: int = 0) -> None:
        """Post the request event made by `event(number)`; `answer` runs once with its reply."""
        if self.reloading or self._stopped:
            answer(STOPPING if self._stopped else RELOADING)
            return
        self._request_count += 1
        self._requests[self._request_count] = answer
        self.post(event(self._request_count), size)

    async def ask_and_wait(self, event: Callable[[int], Any]) -> Any:
        """Like `ask`, and return the reply."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self.ask(event, lambda value: None if done.done() else done.set_result(value))
        return await done

    async def durable(self) -> None:
        """Wait until everything posted so far has been stepped and synced.  Raises StoreFailed when it will not be."""
        if self.reloading or self._stopped:
            raise StoreFailed("the store is closed", no_space=False)
        done: asyncio.Future[None] = self._loop.create_future()
        self.post(Barrier(done))
        await done

    async def durable_writes(self) -> int:
        """Sync the store, written or not; return the number of its last durable write (D52).  Raises StoreFailed.

        Right after a start the file with the synced mark may lag behind what was durable before it.
        """
        generation = self._generation
        try:
            return await self._in_thread(self._sync_thread, Store.sync)
        except (StoreFailed, StoreDamaged) as error:
            if self.open and generation == self._generation:
                self._broken(error)
            raise StoreFailed(f"the disk failed a sync: {error}", no_space=False) from error

    def abandon_disk(self, reason: str) -> None:
        """Stop the node as where its store is damaged: the store is moved aside, and the disk begins a new life."""
        self._broken(StoreDamaged(reason))

    async def read(self, shard: ShardId, first: int, last: int, bytes_max: int) -> Slice:
        """Read whole entries in a thread.  Raises StoreFailed while the store is closed."""
        return await self._in_thread(self._read_threads, lambda store: store.read(shard, first, last, bytes_max))

    async def deliver(self, work: Callable[[Store], T]) -> T:
        """Run `work`, which only reads, in a thread of its own kind: readers in numbers must not hold up replication.

        Raises StoreFailed while the store is closed.
        """
        return await self._in_thread(self._delivery_threads, work)

    async def reclaim(self, work: Callable[[Store], T]) -> T:
        """Run `work`, which may keep the disk busy for seconds, in a thread of its own.  Raises StoreFailed."""
        return await self._in_thread(self._reclaim_thread, work)

    async def _in_thread(self, threads: ThreadPoolExecutor, work: Callable[[Store], T]) -> T:
        if not self.open:
            raise StoreFailed("the store is closed", no_space=False)
        self._reads += 1
        self._quiet.clear()
        done = threads.submit(work, self.store)
        # Whoever waits may be cancelled while the thread still reads, and the store must not be closed under it.
        done.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._read_ended))
        return await asyncio.wrap_future(done)

    @property
    def held_snapshots(self) -> int:
        """Return how many states of the store are held."""
        return len(self._held)

    @contextlib.asynccontextmanager
    async def hold(self, *families: str) -> AsyncIterator[HeldSnapshot]:
        """Hold one state of these families until the end of the block, to read it piece by piece.

        Rows that are overwritten meanwhile stay on the disk, so a holder ends in time.  Raises StoreFailed while the
        store is closed; a reload closes every held snapshot.
        """
        held = HeldSnapshot(self._in_thread, self._hold_thread)
        self._held.add(held)
        try:
            await held.open(families)
            yield held
        finally:
            self._held.discard(held)
            held.close_later()

    def _read_ended(self) -> None:
        self._reads -= 1
        if not self._reads:
            self._quiet.set()

    def trimmed(self) -> dict[ShardId, int]:
        """Return the offset below which entries of a shard were removed (`LogPlane.trimmed`)."""
        return self.core.log.trimmed()

    @property
    def boot(self) -> str:
        """Return the boot id of the core; every load of the shards has another one (O42)."""
        return self.core.boot

    @property
    def open(self) -> bool:
        """Whether the store can be read: no reload is under way and nothing was stopped."""
        return not self.reloading and not self._stopped

    @property
    def depths(self) -> dict[str, int]:
        """Return the length of every queue, for people."""
        return {
            "inbox_events": len(self._inbox), "inbox_bytes": self._inbox.bytes_held, "requests": len(self._requests),
            "timers": len(self._timers), "waiting_for_sync": len(self._waiting), "reads": self._reads,
        }

    # --- turns ----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run one turn; events that are posted in it wait until its messages are on their way."""
        if not self.reloading and not self._stopped and len(self._inbox):
            self._take_turn()
        self._scheduled = False
        if len(self._inbox):
            self._schedule()

    def _take_turn(self) -> None:
        began = time.perf_counter()
        events, barrier = self._inbox.take_turn()
        try:
            turns = self.metrics.turns
            turns.count += 1
            turns.waiting = len(self._inbox)
            turns.events += len(events)
            if barrier is not None:
                self._waiting.append((Feed(barrier),))  # nothing of it runs before `_finish`
            now_ms = self.now_ms()
            if (stepped := self._clock.take_step()) is not None:
                _log.warning("the clock of this machine was set", extra={"by_ms": stepped.by_ms})
                events = [stepped, *events]
            self._run(self.core.step(now_ms, events))
            self._finish()
            self._look_at_shards()
        except Exception as error:
            self._broken(error)
        self.metrics.turns.seconds += time.perf_counter() - began

    def _look_at_shards(self, *, loaded: bool = False) -> None:
        """Tell whoever wants to know that this core holds shards that it did not hold before; it drops none."""
        held = len(self.core.log.shards)
        if loaded or held != self._shards_held:
            self._shards_held = held
            self.on_shards()

    def _run(self, effects: list[Effect] | tuple[Effect, ...]) -> None:
        """Run effects in order; persists of one call are written together, reads see them."""
        persists: list[Persist] = []
        reads: list[ReadLog | ScanRows] = []
        rows: list[ReadRows] = []
        for effect in effects:
            match effect:
                case Persist():
                    persists.append(effect)
                case Send():
                    self._sent = True
                    self.links.send(effect.address, effect.to, effect.message)
                case Reply():
                    self._reply(effect)
                case Feed():
                    self._feed(effect.event)
                case Released():
                    self.board.released(effect.shard, effect.upto)
                case Changed():
                    self.on_changed(effect)
                case SetTimer():
                    self._timers.set(effect.address, effect.name, self._clock.timer_ms(effect.at_ms))
                case ReadRows():
                    rows.append(effect)
                case ReadLog() | ScanRows():
                    reads.append(effect)
                case Trace():
                    self.trace(effect)
                case PullSnapshot():
                    self.snapshots.pull(effect)
                case _:
                    raise TypeError(f"no such effect: {effect!r}")
        if persists:
            self._persist(persists)
        for read in reads:           # behind the writes of this turn
            self._serve_read(partial(_answer_of, read))
        if rows:
            self._read_rows(rows)

    def _persist(self, persists: list[Persist]) -> None:
        written = self.store.apply(persists)
        if written:
            self._unsynced = True
            self._unsynced_bytes += written
            self.metrics.written_bytes.inc(written)
            if self.guard.wrote(written):
                self._check_disk()
        self._waiting.extend(persist.then for persist in persists if persist.then)

    def _finish(self) -> None:
        """End a turn: start the next sync when none runs, let messages go, arm the next timer."""
        while self._waiting and not self._syncing:
            if self._unsynced:
                if not self._sync_is_quick():
                    self._start_sync()
                    break
                self._sync_here()
            # Nothing is on its way to the disk, so what waits rides on writes that are durable already.
            group, self._waiting = self._waiting, []
            for then in group:
                self._run(then)
        if self._unsynced and not self._syncing:
            self._start_sync()
        self.links.flush()
        self._sent = False
        if self._reads_here:    # after the messages: their receivers work meanwhile
            self._loop.call_soon(self._read_here, self._reads_here)
            self._reads_here = []
        self._arm_timer()

    def _reply(self, effect: Reply) -> None:
        answer = self._requests.pop(effect.request, None)
        if answer is not None:
            answer(effect.value)

    def _feed(self, event: Any) -> None:
        if type(event) is Barrier:
            event.resolve()
        else:
            self.post(event)

    def trace(self, effect: Trace) -> None:
        self.metrics.traces.labels(effect.what).inc()
        if effect.what in self.metrics.of_traces:
            self.metrics.of_traces[effect.what].inc()
        if (rest_ms := OFTEN_MS.get(effect.what)) is not None:
            now_ms, key = self.now_ms(), (effect.address, effect.what)
            if now_ms - self._told_ms.get(key, -rest_ms) < rest_ms:
                return  # counted, and it would only push out what else happened
            self._told_ms[key] = now_ms
        told = {**self.core.name_of(effect.address), "what": effect.what}
        self.story.append({"at_ms": self.now_ms(), **told, "detail": effect.detail})
        _log.log(LEVELS.get(effect.what, logging.INFO), effect.what, extra={**told, "detail": effect.detail})
        if effect.what == "resigned" and effect.address.plane == LOG_PLANE:
            self.resigned.set()
            self.board.wake(effect.address.shard)  # readers ask again whether this node may serve them

    # --- group commit ---------------------------------------------------------------------------------------

    def _sync_is_quick(self) -> bool:
        """Say whether waiting for the disk costs less than handing it over, while nobody else waits for this turn."""
        return (
            self._sync_seconds < QUICK_SYNC_SECONDS and self._unsynced_bytes <= QUICK_SYNC_BYTES
            and not self._sent and not len(self._inbox)
        )

    def _sync_here(self) -> None:
        began = time.perf_counter()
        self.store.sync()
        self._unsynced, self._unsynced_bytes = False, 0
        self._observe_sync(time.perf_counter() - began)

    def _observe_sync(self, seconds: float) -> None:
        self.metrics.syncs.inc()
        self.metrics.sync_seconds.observe(seconds)
        known = self._sync_seconds < math.inf
        self._sync_seconds = self._sync_seconds * 7 / 8 + seconds / 8 if known else seconds

    def _start_sync(self) -> None:
        self._riding, self._waiting = self._waiting, []
        self._syncing, self._unsynced, self._unsynced_bytes = True, False, 0
        generation, began = self._generation, time.perf_counter()
        done = self._loop.run_in_executor(self._sync_thread, self.store.sync)
        done.add_done_callback(lambda sync: self._synced(sync, generation, began))

    def _synced(self, sync: asyncio.Future[int], generation: int, began: float) -> None:
        error = sync.exception()
        if generation != self._generation or self._stopped:
            return
        self._syncing = False
        ended = time.perf_counter()
        self._observe_sync(ended - began)
        try:
            if error is not None:
                raise error
            group, self._riding = self._riding, []
            for then in group:
                self._run(then)
            self._finish()
        except Exception as failure:
            self._broken(failure)
        self.metrics.turns.seconds += time.perf_counter() - ended

    # --- reads and timers -----------------------------------------------------------------------------------

    def _read_rows(self, reads: list[ReadRows]) -> None:
        """Read a few rows on the loop while the disk is quick, behind the messages of this turn; else in threads."""
        few = sum(len(read.keys) for read in reads) <= QUICK_READ_ROWS
        if few and time.perf_counter() >= self._reads_here_at:
            self._reads_here += reads
        else:
            self._read_in_threads(reads)

    def _read_in_threads(self, reads: list[ReadRows]) -> None:
        for first in range(0, len(reads), READS_AT_ONCE):
            self._serve_read(partial(_rows_of, reads[first:first + READS_AT_ONCE]))

    def _read_here(self, reads: list[ReadRows]) -> None:
        """Read on the loop until a read is slow or large.  One that fails, a thread does again and tells."""
        if not self.open:
            return  # the core that asked is gone
        for place, read in enumerate(reads):
            began = time.perf_counter()
            try:
                [(event, size)] = _rows_of([read], self.store)
            except Exception:
                self._read_in_threads(reads[place:])
                return
            ended = time.perf_counter()
            self.post(event, size)
            if (slow := ended - began > QUICK_READ_SECONDS):
                self._reads_here_at = ended + SLOW_READ_REST * (ended - began)
            if (slow or size > QUICK_READ_BYTES) and place + 1 < len(reads):
                self._read_in_threads(reads[place + 1:])
                return

    def _serve_read(self, read: Callable[[Store], list[Answered]]) -> None:
        generation = self._generation

        async def serve() -> None:
            try:
                answers = await self._in_thread(self._read_threads, read)
            except StoreFailed as error:
                if generation == self._generation:     # else the store was loaded again; the core that asked is gone
                    self._broken(error)
                return
            if generation == self._generation:
                for event, size in answers:
                    self.post(event, size)

        self._guarded(serve())

    def _guarded(self, work: Any) -> None:
        """Run a coroutine in the background; an error in it is a bug and stops the node."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._guarded_ended)

    def _guarded_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken(task.exception())

    def _arm_timer(self) -> None:
        next_ms = self._timers.next_ms()
        if next_ms == self._timer_at_ms:
            return
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
        self._timer_at_ms = next_ms
        if next_ms is not None:
            delay_seconds = max(0, next_ms - self._clock.monotonic_ms()) / 1000
            self._timer_handle = self._loop.call_later(delay_seconds, self._fire_timers)

    def _fire_timers(self) -> None:
        self._timer_handle = self._timer_at_ms = None
        if not self.reloading and not self._stopped:
            self._timers.fire(self._clock.monotonic_ms(), self.post)
            self._arm_timer()

    # --- disk -----------------------------------------------------------------------------------------------

    def _watch_disk(self) -> None:
        if not self._stopped:
            self._check_disk()
            self._disk_checks += 1
            if self._disk_checks % DISK_REPORT_CHECKS == 0:
                self.on_space()   # an operator may have linked between two changes
            self._disk_handle = self._loop.call_later(DISK_CHECK_SECONDS, self._watch_disk)

    def _check_disk(self) -> None:
        space = self.guard.changed()
        self.metrics.disk_free_bytes.set(self.guard.free_bytes())
        self.metrics.disk_total_bytes.set(self.guard.total_bytes())
        if space is not None:
            self.metrics.disk_full.set(bool(space))
            _log.warning(DISK_NEWS[space], extra={
                "free_bytes": self.guard.free_bytes(), "reserve_bytes": self.guard.reserve_bytes})
            self.post(DiskSpace(space))
            self.on_space()

    def _broken(self, error: BaseException | None) -> None:
        if isinstance(error, StoreFailed):
            if not self.reloading and not self._stopped:
                self._begin_reload(error)
            return
        if isinstance(error, StoreDamaged):
            _log.critical("the store was found damaged while running", extra={"reason": str(error)})
        else:
            _log.critical("bug: the node stops", exc_info=error, extra={"story": list(self.story)[-50:]})
        self._stopped = True
        self._give_up(STOPPING, StoreFailed(f"the node stops: {error}", no_space=False))
        if not self.failure.done() and error is not None:
            self.failure.set_exception(error)

    def _give_up(self, refused: Refused, error: StoreFailed) -> None:
        """Nothing in flight will end well: answer every request, fail every barrier, wake every reader."""
        requests, self._requests = self._requests, {}
        for answer in requests.values():
            answer(refused)
        groups = self._riding + self._waiting
        self._riding, self._waiting, self._reads_here = [], [], []
        barriers = self._inbox.clear()
        barriers += [e.event for then in groups for e in then if isinstance(e, Feed) and type(e.event) is Barrier]
        for barrier in barriers:
            barrier.fail(error)
        self._timers.clear()
        self._arm_timer()
        self.board.wake_all()

    def _begin_reload(self, error: StoreFailed) -> None:
        _log.error("the disk failed; all shards are loaded again", extra={"reason": str(error)})
        self.metrics.store_reloads.inc()
        self.reloading = True
        self._generation += 1
        self.on_health(False)
        self._give_up(RELOADED, error)
        self.snapshots.reset()
        self.links.reset()
        self._guarded(self._reload())

    async def _reload(self) -> None:
        await self._close_store()
        while not self._stopped:
            try:
                self.store, self.core = self._reopen()
                break
            except StoreFailed as error:
                _log.error("the store cannot be opened yet", extra={"reason": str(error)})
                await asyncio.sleep(REOPEN_SECONDS)
        else:
            return
        self._unsynced = self._syncing = False
        self._unsynced_bytes = 0
        self.reloading = False
        self.links.report()
        self.guard.space = Space.FREE
        self._check_disk()
        self._look_at_shards(loaded=True)
        self.on_health(True)
        _log.warning("all shards are loaded again", extra={"boot": self.boot})

    async def _close_store(self) -> None:
        """Wait for every thread that uses the store, then close it."""
        await self._loop.run_in_executor(self._sync_thread, lambda: None)
        await self._quiet.wait()
        for held in list(self._held):
            held.close_later()
        await self._loop.run_in_executor(self._hold_thread, lambda: None)   # behind the last that closes
        self.store.close()

    async def stop(self) -> None:
        """Make what was applied durable, run nothing more, close the store."""
        with contextlib.suppress(StoreFailed):  # a failed disk or a bug: what was not durable is lost, as in a crash
            await self.durable()
        self._stopped = True
        if self._disk_handle is not None:
            self._disk_handle.cancel()
        self._give_up(STOPPING, StoreFailed("the node stops", no_space=False))
        await asyncio.gather(*self._tasks, return_exceptions=True)  # a reload under way closes the store itself
        if not self.reloading:
            await self._close_store()
        self._sync_thread.shutdown(wait=False)
        self._read_threads.shutdown(wait=False)
        self._delivery_threads.shutdown(wait=False)
        self._hold_thread.shutdown(wait=False)
        self._reclaim_thread.shutdown(wait=False)
