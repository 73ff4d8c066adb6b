"""MachineDriver: feeds the core's machines of the operator and runs their effects.

A machine has a plane, and a record in etcd for each unit of it.  Records go to etcd, many at once and bounded; messages
go to the nodes' links; timers lie in one heap; replies resolve futures.  While etcd is away, loads wait for it and
saves are reported uncertain, so that running units go on and decisions that need a write wait.
Stays out: every decision about a unit (the machines), what follows from one for the operator (`service`).
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
from tidemark_core.base.ids import Address, Member
from tidemark_core.base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    SaveMetadata,
    SetActive,
)
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import ChangeDone, ChangeProgress
from tidemark_wire.tasks import background, cancelled

from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable
from .metadata import Keys
from .metrics import STRANGERS_REFUSED
from .mirror import Versioned
from .records import MACHINE_AREAS, RECORDS, name_of, path_of

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
    "range_behind": logging.WARNING,          # the store was set back, or another operator is active
    STRANGER_REFUSED: logging.WARNING,        # T10c
}
"""Of traces that a person should see."""

STRANGER_LOG_MS = 10_000
"""The log has one refused stranger of a unit in so many milliseconds; the metric counts all."""

ProgressListener = Callable[[ChangeProgress], None]


class Unit(Protocol):
    """The part of a machine's unit that this driver reads; the record is None before the first load."""

    @property
    def record(self) -> Any: ...

    @property
    def revision(self) -> int: ...


class Machine(Protocol):
    """One plane's machine.  It ignores events at units that it does not know, but for `MetadataLoaded`."""

    @property
    def units(self) -> Mapping[Any, Unit]: ...

    def step(self, now_ms: int, event: Any) -> list[Any]: ...


class MachineDriver:
    """One driver for all units of a cluster; everything runs on the event loop's thread."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        store: EtcdStore,
        keys: Keys,
        send: Callable[[Address, Member, Any], None],
    ) -> None:
        """`machines` are by the numbers of their planes, which have an area of records each."""
        self._machines = machines
        self._store = store
        self._keys = keys
        self._send = send
        self._events: deque[tuple[int, Any]] = deque()
        self._stepping = False
        self._requests = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, ProgressListener] = {}
        self._timers = _Timers(self._fire)
        self._slots = asyncio.Semaphore(METADATA_REQUESTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: set[Address] = set()
        self._waiting: set[Address] = set()
        self.active = False
        self.traces: Counter[str] = Counter()
        self._strangers_ms: dict[Address, int] = {}   # when the log named one last
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_record: Callable[[Address, Any, Any], None] = lambda address, before, record: None
        self.on_trace: Callable[[Address, str, str], None] = lambda address, what, detail: None
        self._feed_all(SetActive(False))

    # --- looking in ---------------------------------------------------------------------------------------

    def record(self, address: Address) -> Any:
        """Return the newest known record of a unit, None where it is unknown or not loaded."""
        unit = self._unit(address)
        return unit.record if unit is not None else None

    def records(self, plane: int) -> dict[Any, Any]:
        """Return the newest known record of every unit of a plane, by its id."""
        units = self._machines[plane].units
        return {unit: known.record for unit, known in units.items() if known.record is not None}

    def revision(self, address: Address) -> int:
        return self._machines[address.plane].units[address.id].revision

    @property
    def waiting_for_store(self) -> int:
        """How many units found etcd silent and wait for it."""
        return len(self._waiting)

    def _unit(self, address: Address) -> Unit | None:
        machine = self._machines.get(address.plane)
        return machine.units.get(address.id) if machine is not None else None

    # --- requests of the operator -------------------------------------------------------------------------

    async def change(
        self, address: Address, make: Callable[[int], Any], progress: ProgressListener | None = None,
    ) -> ChangeDone | Refused:
        """Feed the request that `make` builds from a request number, and wait for its answer."""
        if self._unit(address) is None:
            return Refused(Reason.UNKNOWN_SHARD, f"{name_of(address)} is not in the metadata")
        request = next(self._requests)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[request] = future
        if progress is not None:
            self._listeners[request] = progress
        try:
            self.feed(address.plane, make(request))
            answer: ChangeDone | Refused = await future
            return answer
        finally:
            self._replies.pop(request, None)
            self._listeners.pop(request, None)

    # --- events -------------------------------------------------------------------------------------------

    def feed(self, plane: int, event: Any) -> None:
        """Hand one event to a machine and run what comes out; may be called from inside an effect."""
        self._events.append((plane, event))
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._step(*self._events.popleft())
        finally:
            self._stepping = False

    def received(self, address: Address, sender: Member, boot: str, message: Any) -> None:
        """A node's process answered; `boot` names the process (O42)."""
        if address.plane in self._machines:
            self.feed(address.plane, Received(address, sender, None, message, boot))

    def metadata_changed(self, address: Address, item: Versioned[Any] | None) -> None:
        """The watch saw a record; None: it was deleted."""
        if self.active:
            self._loaded(address, item.value if item else None, item.revision if item else 0)

    def node_up(self, member: Member, boot: str) -> None:
        self._feed_all(NodeUp(member, boot))

    def node_down(self, node: str) -> None:
        self._feed_all(NodeDown(node))

    def activate(self, records: Mapping[Address, Versioned[Any]]) -> None:
        """Begin to coordinate, from what is stored; the same path as after a restart."""
        self.active = True
        self._feed_all(SetActive(True))
        for address, item in records.items():
            self._loaded(address, item.value, item.revision)

    def deactivate(self) -> None:
        """Another operator is at work: forget everything; requests that wait here are answered as given up."""
        self.active = False
        self._feed_all(SetActive(False))
        for plane, machine in self._machines.items():
            for unit in list(machine.units):
                self._loaded(Address(plane, unit), None, 0)

    def _feed_all(self, event: Any) -> None:
        for plane in self._machines:
            self.feed(plane, event)

    def _loaded(self, address: Address, record: Any, revision: int, *, fresh: bool = False) -> None:
        self.feed(address.plane, MetadataLoaded(address, record, revision, fresh))

    def _step(self, plane: int, event: Any) -> None:
        address = _address_of(plane, event)
        before = self.record(address) if address is not None else None
        try:
            effects = self._machines[plane].step(now_ms(), event)
        except RemoteViolation as error:
            log.warning("message of %s dropped: %s", name_of(address or Address(plane, 0)), error)
            return
        for effect in effects:
            self._run(effect)
        if address is not None and _tells(before, record := self.record(address)):
            self.on_record(address, before, record)

    def _run(self, effect: Any) -> None:
        match effect:
            case Send(address, to, message):
                self._send(address, to, message)  # type: ignore[arg-type]  # machines write to members alone
            case SetTimer(address, name, at_ms):
                self._timers.set(address, name, at_ms)
            case SaveMetadata():
                self._spawn(self._save(effect))
            case LoadMetadata(address):
                if address not in self._loading:
                    self._loading.add(address)
                    self._spawn(self._load(address))
            case Reply(request, value):
                future = self._replies.get(request)
                if future is not None and not future.done():
                    future.set_result(value)
            case ChangeProgress():
                listener = self._listeners.get(effect.request)
                if listener is not None:
                    listener(effect)
            case Trace(address, what, detail):
                self.traces[what] += 1
                self.on_trace(address, what, detail)
                if what != STRANGER_REFUSED or not self._is_repeated(address):
                    log.log(LEVELS.get(what, logging.INFO), "%s: %s %s", name_of(address), what, detail)
            case _:
                raise AssertionError(f"an effect this driver does not know: {effect!r}")

    def _is_repeated(self, address: Address) -> bool:
        """Count a refused stranger; say whether the log had one of this unit a moment ago."""
        STRANGERS_REFUSED.inc()
        now = now_ms()
        if now - self._strangers_ms.get(address, -STRANGER_LOG_MS) < STRANGER_LOG_MS:
            return True
        self._strangers_ms[address] = now
        return False

    def _fire(self, address: Address, name: str) -> None:
        self.feed(address.plane, TimerFired(address, name))

    # --- etcd ---------------------------------------------------------------------------------------------

    async def _save(self, effect: SaveMetadata) -> None:
        address = effect.address
        async with self._slots:
            outcome = await self._store.put(
                self._keys.everything + path_of(address), effect.record.encode(), expected=effect.expected)
        if isinstance(outcome, Saved):
            self.feed(address.plane, MetadataSaved(address, effect.record.writer, outcome.revision))
        else:
            log.info("%s: metadata not saved: %s", name_of(address), outcome)
            if not isinstance(outcome, Conflict):
                await asyncio.sleep(SAVE_RETRY_S)  # an etcd that reads but cannot write must not be hammered
            self.feed(address.plane, MetadataUncertain(address, effect.record.writer))

    async def _load(self, address: Address) -> None:
        while True:
            try:
                async with self._slots:
                    item = await self._store.get(self._keys.everything + path_of(address))
                break
            except StoreUnavailable as error:
                log.warning("%s: decisions wait for etcd: %s", name_of(address), error)
                if address not in self._waiting:
                    self._waiting.add(address)
                    self.on_waiting()
                await asyncio.sleep(LOAD_RETRY_S)
        self._loading.discard(address)
        self._waiting.discard(address)
        if self._unit(address) is None:
            return  # stepped back, or the unit was deleted, while this read ran
        try:
            record = RECORDS[MACHINE_AREAS[address.plane]].decode(item.value) if item is not None else None
        except RemoteViolation as error:
            log.error("%s: %s; it is left as it is", name_of(address), error)
            return
        self._loaded(address, record, item.revision if item else 0, fresh=True)

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


def _address_of(plane: int, event: Any) -> Address | None:
    """Return the unit that an event is about: by its address, or as a request names a shard."""
    address: Address | None = getattr(event, "address", None)
    if address is not None:
        return address
    shard: int | None = getattr(event, "shard", None)
    return Address(plane, shard) if shard is not None else None


def _tells(before: Any, record: Any) -> bool:
    """Say whether a record differs in more than its writer; a renewal of a running change does not (O3b)."""
    if record is None or before is None or record is before:
        return record is not before
    return bool(replace(record, writer=before.writer) != before)


class _Timers:
    """Named timers in one heap behind one timer of the event loop."""

    def __init__(self, fire: Callable[[Address, str], None]) -> None:
        self._fire = fire
        self._due: dict[tuple[Address, str], int] = {}
        self._heap: list[tuple[int, Address, str]] = []
        self._handle: asyncio.TimerHandle | None = None

    def set(self, address: Address, name: str, at_ms: int | None) -> None:
        """Replace the timer of this name; None cancels it."""
        if at_ms is None:
            self._due.pop((address, name), None)
            return
        self._due[address, name] = at_ms
        heapq.heappush(self._heap, (at_ms, address, name))
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
            at_ms, address, name = heapq.heappop(self._heap)
            if self._due.get((address, name)) == at_ms:
                del self._due[address, name]
                self._fire(address, name)
        self._arm()


def now_ms() -> int:
    """Return the time that the core gets: milliseconds of a clock that never jumps (C6)."""
    return time.monotonic_ns() // 1_000_000
