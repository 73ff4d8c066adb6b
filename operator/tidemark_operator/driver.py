"""CoordinatorDriver: feeds the core's coordinators and runs their effects.

Metadata goes to etcd, many shards at once and bounded; messages go to the nodes' links; timers lie in one
heap; replies resolve futures.  While etcd is away, loads wait for it and saves are reported uncertain, so
that running shards go on and elections wait.
Stays out: every decision about epochs, elections and ensembles (`replication.coordinator`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tidemark_core.base.effects import Received, Reply, Send, SetTimer, TimerFired, Trace
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Member, ShardId, of_shard
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NODE
from tidemark_core.replication.messages import Diverged, Reach
from tidemark_core.replication.reach import Reports
from tidemark_core.replication.records import (
    CancelChange,
    ChangeDone,
    ChangeProgress,
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    RecoverShard,
    SaveMetadata,
    SetActive,
    ShardRecord,
    StartChange,
    StartTransfer,
)
from tidemark_wire.tasks import background, cancelled

from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable
from .metadata import Keys
from .metrics import STRANGERS_REFUSED, ElectionWatch

log = logging.getLogger(__name__)

METADATA_REQUESTS_MAX = 64
"""Requests to etcd in flight at once; more wait in line."""

LOAD_RETRY_S = 0.2
SAVE_RETRY_S = 0.1

LEVELS = {
    "damage_waits": logging.WARNING,          # only members that come back, or a person, end this wait (K15c)
    "data_loss_suspected": logging.CRITICAL,  # K14c
    "recovery_started": logging.WARNING,      # K14d
    "replica_missing": logging.WARNING,       # N11
    STRANGER_REFUSED: logging.WARNING,        # T10c
}
"""Of traces that a person should see."""

STRANGER_LOG_MS = 10_000
"""The log has one refused stranger of a shard in so many milliseconds; the metric counts all."""

ProgressListener = Callable[[ChangeProgress], None]


class CoordinatorMachine(Protocol):
    """What this driver needs of `replication.coordinator.Coordinators`."""

    @property
    def shards(self) -> Mapping[ShardId, Any]: ...

    @property
    def reports(self) -> Reports: ...

    def unheard(self, now_ms: int) -> Mapping[ShardId, tuple[Member, ...]]: ...

    def diverged(self, now_ms: int) -> Mapping[ShardId, tuple[Diverged, ...]]: ...

    def step(self, now_ms: int, event: Any) -> list[Any]: ...


class CoordinatorDriver:
    """One driver for all shards of a cluster; everything runs on the event loop's thread."""

    def __init__(
        self,
        machine: CoordinatorMachine,
        store: EtcdStore,
        keys: Keys,
        send: Callable[[ShardId, Member, Any], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._keys = keys
        self._send = send
        self._events: deque[Any] = deque()
        self._stepping = False
        self._requests = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, ProgressListener] = {}
        self._timers = _Timers(self._fire)
        self._slots = asyncio.Semaphore(METADATA_REQUESTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: set[ShardId] = set()
        self._waiting: set[ShardId] = set()
        self._elections = ElectionWatch()
        self.active = False
        self.traces: Counter[str] = Counter()
        self._strangers_ms: dict[ShardId, int] = {}   # when the log named one last
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_reach: Callable[[], None] = lambda: None     # what nodes say of whom they reach has changed
        self.on_record: Callable[[ShardId], None] = lambda shard: None
        self.on_behind: Callable[[ShardId, str], None] = lambda shard, detail: None
        self.feed(SetActive(False))

    # --- looking in ---------------------------------------------------------------------------------------

    def record(self, shard: ShardId) -> ShardRecord | None:
        coordinator = self._machine.shards.get(shard)
        return coordinator.record if coordinator is not None else None

    def records(self) -> dict[ShardId, ShardRecord]:
        """Return the newest known record of every shard."""
        return {
            shard: coordinator.record
            for shard, coordinator in self._machine.shards.items()
            if coordinator.record is not None
        }

    def revision(self, shard: ShardId) -> int:
        return int(self._machine.shards[shard].revision)

    @property
    def waiting_for_store(self) -> int:
        """How many shards found etcd silent and wait for it."""
        return len(self._waiting)

    def damage(self, shard: ShardId) -> str:
        """Say which damaged entries the election of a shard waits for, empty when it waits for none (K15c)."""
        coordinator = self._machine.shards.get(shard)
        return coordinator.damage if coordinator is not None else ""

    def missing(self, shard: ShardId) -> frozenset[Member]:
        """Return the members of a shard's ensemble that hold no replica (N11)."""
        coordinator = self._machine.shards.get(shard)
        return frozenset(coordinator.missing) if coordinator is not None else frozenset()

    def unheard(self) -> dict[ShardId, frozenset[str]]:
        """Return the nodes of each shard that its leader does not hear, as leaders say; only shards with some (O45)."""
        found = self._machine.unheard(now_ms())
        return {shard: frozenset(member.node for member in members) for shard, members in found.items()}

    def diverged(self) -> Mapping[ShardId, tuple[Diverged, ...]]:
        """Return the members of each shard whose documents its leader finds to differ; only shards with some (U73b)."""
        return self._machine.diverged(now_ms())

    def cut(self) -> list[tuple[str, str]]:
        """Return the pairs of nodes of which one lost the other, though both report (O43)."""
        return self._machine.reports.cut(now_ms())

    @property
    def quorum_silence_ms(self) -> int:
        return self._machine.reports.silence_ms

    def set_quorum_silence(self, silence_ms: int) -> None:
        """Hold elections after another time without a majority (O44), in milliseconds."""
        self._machine.reports.silence_ms = silence_ms

    # --- requests of the operator -------------------------------------------------------------------------

    async def change(
        self, shard: ShardId, make: Callable[[int], StartChange | StartTransfer | RecoverShard | CancelChange],
        progress: ProgressListener | None = None,
    ) -> ChangeDone | Refused:
        """Feed the request that `make` builds from a request number, and wait for its answer."""
        if shard not in self._machine.shards:
            return Refused(Reason.UNKNOWN_SHARD, f"shard {shard:#x} is not in the metadata")
        request = next(self._requests)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[request] = future
        if progress is not None:
            self._listeners[request] = progress
        try:
            self.feed(make(request))
            answer: ChangeDone | Refused = await future
            return answer
        finally:
            self._replies.pop(request, None)
            self._listeners.pop(request, None)

    # --- events -------------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        """Hand one event to the core and run what comes out; may be called from inside an effect."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._stepping = False

    def received(self, shard: ShardId, sender: Member, boot: str, message: Any) -> None:
        """A node's process answered; `boot` names the process (O42)."""
        if isinstance(message, Reach):
            before = self._machine.reports.version
            self.feed(Received(NODE, sender, None, message, boot))
            if self._machine.reports.version != before:
                self.on_reach()
        elif shard in self._machine.shards:
            self.feed(Received(of_shard(shard), sender, None, message, boot))

    def metadata_changed(self, shard: ShardId, record: ShardRecord | None, revision: int) -> None:
        """The watch saw a record."""
        if self.active:
            self.feed(MetadataLoaded(shard, record, revision))

    def metadata_seen(self, shard: ShardId, data: bytes | None, revision: int) -> None:
        """A record was read on request; one that cannot be read is left alone, loudly."""
        try:
            record = ShardRecord.decode(data) if data is not None else None
        except RemoteViolation as error:
            log.error("shard %x: %s; it is left as it is", shard, error)
            return
        self.feed(MetadataLoaded(shard, record, revision, fresh=True))

    def node_up(self, member: Member, boot: str) -> None:
        self.feed(NodeUp(member, boot))

    def node_down(self, node: str) -> None:
        self.feed(NodeDown(node))

    def activate(self, records: Mapping[ShardId, tuple[ShardRecord, int]]) -> None:
        """Begin to coordinate, from what is stored; the same path as after a restart."""
        self.active = True
        self.feed(SetActive(True))
        for shard, (record, revision) in records.items():
            self.feed(MetadataLoaded(shard, record, revision))

    def deactivate(self) -> None:
        """Another operator is at work: forget everything; whoever waits here learns that it was given up."""
        self.active = False
        self.feed(SetActive(False))
        for shard in list(self._machine.shards):
            self.feed(MetadataLoaded(shard, None, 0))

    def _step(self, event: Any) -> None:
        shard = getattr(event, "shard", None)
        before = self.record(shard) if shard is not None else None
        try:
            effects = self._machine.step(now_ms(), event)
        except RemoteViolation as error:
            log.warning("message of shard %x dropped: %s", shard or 0, error)
            return
        for effect in effects:
            self._run(effect)
        if shard is not None and _tells(before, record := self.record(shard)):
            self._elections.see(shard, before, record)
            self.on_record(shard)

    def _run(self, effect: Any) -> None:
        match effect:
            case Send(address, to, message):
                self._send(address.shard, to, message)  # type: ignore[arg-type]
            case SetTimer(address, name, at_ms):
                self._timers.set(address.shard, name, at_ms)
            case SaveMetadata():
                self._spawn(self._save(effect))
            case LoadMetadata(shard):
                if shard not in self._loading:
                    self._loading.add(shard)
                    self._spawn(self._load(shard))
            case Reply(request, value):
                future = self._replies.get(request)
                if future is not None and not future.done():
                    future.set_result(value)
            case ChangeProgress():
                listener = self._listeners.get(effect.request)
                if listener is not None:
                    listener(effect)
            case Trace(address, what, detail):
                shard = address.shard
                self.traces[what] += 1
                if what == "metadata_behind":
                    self.on_behind(shard, detail)
                elif what == "replica_missing":
                    self.on_record(shard)   # the member is shown as missing, and seeded again (N11)
                elif what == STRANGER_REFUSED and self._is_repeated(shard):
                    return
                log.log(LEVELS.get(what, logging.INFO), "shard %x: %s %s", shard, what, detail)
            case _:
                raise AssertionError(f"an effect this driver does not know: {effect!r}")

    def _is_repeated(self, shard: ShardId) -> bool:
        """Count a refused stranger; say whether the log had one of this shard a moment ago."""
        STRANGERS_REFUSED.inc()
        now = now_ms()
        if now - self._strangers_ms.get(shard, -STRANGER_LOG_MS) < STRANGER_LOG_MS:
            return True
        self._strangers_ms[shard] = now
        return False

    def _fire(self, shard: ShardId, name: str) -> None:
        self.feed(TimerFired(of_shard(shard), name))

    # --- etcd ---------------------------------------------------------------------------------------------

    async def _save(self, effect: SaveMetadata) -> None:
        async with self._slots:
            outcome = await self._store.put(
                self._keys.shard(effect.shard), effect.record.encode(), expected=effect.expected)
        if isinstance(outcome, Saved):
            self.feed(MetadataSaved(effect.shard, effect.record.writer, outcome.revision))
        else:
            log.info("shard %x: metadata not saved: %s", effect.shard, outcome)
            if not isinstance(outcome, Conflict):
                await asyncio.sleep(SAVE_RETRY_S)  # an etcd that reads but cannot write must not be hammered
            self.feed(MetadataUncertain(effect.shard, effect.record.writer))

    async def _load(self, shard: ShardId) -> None:
        while True:
            try:
                async with self._slots:
                    item = await self._store.get(self._keys.shard(shard))
                break
            except StoreUnavailable as error:
                log.warning("shard %x: elections and changes wait for etcd: %s", shard, error)
                if shard not in self._waiting:
                    self._waiting.add(shard)
                    self.on_waiting()
                await asyncio.sleep(LOAD_RETRY_S)
        self._loading.discard(shard)
        self._waiting.discard(shard)
        if shard not in self._machine.shards:
            return  # stepped back, or the shard was deleted, while this read ran
        self.metadata_seen(shard, item.value if item else None, item.revision if item else 0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = background(work, "a request to etcd")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._timers.close()
        await cancelled(*self._tasks)
        for future in self._replies.values():
            if not future.done():
                future.set_result(Refused(Reason.SHUTTING_DOWN, "the operator is stopping"))


def _tells(before: ShardRecord | None, record: ShardRecord | None) -> bool:
    """Say whether a record differs in more than its writer; a renewal of a running change does not (O3b)."""
    if record is None or before is None or record is before:
        return record is not before
    return replace(record, writer=before.writer) != before


class _Timers:
    """Named timers in one heap behind one timer of the event loop."""

    def __init__(self, fire: Callable[[ShardId, str], None]) -> None:
        self._fire = fire
        self._due: dict[tuple[ShardId, str], int] = {}
        self._heap: list[tuple[int, ShardId, str]] = []
        self._handle: asyncio.TimerHandle | None = None

    def set(self, shard: ShardId, name: str, at_ms: int | None) -> None:
        """Replace the timer of this name; None cancels it."""
        if at_ms is None:
            self._due.pop((shard, name), None)
            return
        self._due[shard, name] = at_ms
        heapq.heappush(self._heap, (at_ms, shard, name))
        if len(self._heap) > 64 + 4 * len(self._due):  # replaced timers leave their old places behind
            self._heap = [(at, *key) for key, at in self._due.items()]
            heapq.heapify(self._heap)
        if self._heap[0][0] == at_ms:
            self._arm()

    def close(self) -> None:
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            delay_s = max(0, self._heap[0][0] - now_ms()) / 1000
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._handle = None
        now = now_ms()
        while self._heap and self._heap[0][0] <= now:
            at_ms, shard, name = heapq.heappop(self._heap)
            if self._due.get((shard, name)) == at_ms:
                del self._due[shard, name]
                self._fire(shard, name)
        self._arm()


def now_ms() -> int:
    """Return the time that the core gets: milliseconds of a clock that never jumps (C6)."""
    return time.monotonic_ns() // 1_000_000
