"""The node process: put the parts together, say when ready, stop gracefully.

`python -m tidemark_node --node ID --data DIR`.  Stays out: everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc.aio
import uvloop
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.ids import KEYSPACE_PLANE, Member
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import NodeFacts
from tidemark_core.limbo.view import LimboView
from tidemark_core.node import NodeCore
from tidemark_core.optimistic.inspection import Summary
from tidemark_core.optimistic.plane import KeyspaceLimits, KeyspacePlane
from tidemark_core.planes import PlaneTable, planes
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_wire import channel, descriptors
from tidemark_wire.codecs import Codecs
from tidemark_wire.convert import PLANE_CODECS, DiskReport, Draining
from tidemark_wire.tls import FileCredentials, InvalidTls, TlsSettings
from tidemark_wire.wire_version import VERSION_OF_PLANES

from .access import Access
from .appends import Appends
from .budgets import Budgets
from .changes import Changes
from .control import Control
from .debug import Debug
from .delivery import Deliveries
from .disk import DiskGuard
from .documents import DocumentCalls
from .driver import Driver
from .explain import Explain
from .families import FAMILIES, Family, shard_kinds
from .inventory import Inventory
from .keyspaces import KeyspaceCalls
from .logs import set_up
from .methods import Serving
from .metrics import Metrics, MetricsEndpoint
from .outcomes import Outcomes
from .peers import Links
from .reach import Reporter
from .reads import Reads
from .reclaim import Reclaimer
from .remembered import Remembered
from .rings import Rings
from .routing import Routing
from .rpc import Health, register
from .settings import METRICS_OFF, Settings, parse, split_address
from .shard_maps import ShardMaps
from .sinks import SinkCalls
from .snapshots import Snapshots, SnapshotServer
from .store import Store, StoredPlane, move_aside, open_store
from .store_errors import Faults, StoreDamaged, StoreFailed, StoreRefused
from .subscriptions import Subscriptions
from .synchro import Synchro

# Large frames come and go; without these glibc gives their pages back and faults them in again each time.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(64 << 20),
}
EXIT_BAD_START, EXIT_BROKEN = 2, 3
SERVER_GRACE_SECONDS = 1.0
LAST_WORDS_SECONDS = 2.0
SWITCH_SECONDS = 0.0005
"""So long a thread that reads for callers keeps the interpreter while the event loop wants it; Python's default is ten
times as long, and each turn of the loop would wait for each such thread (T12)."""


_log = logging.getLogger("tidemark_node")

PlanesOf = Callable[[Limits], PlaneTable]
"""Makes the table of planes for shards with these limits."""


def recover(
    directory: Path, node: str, limits: Limits, faults: Faults | None = None,
    families: Sequence[Family] = FAMILIES, planes_of: PlanesOf = planes,
) -> tuple[Store, NodeCore]:
    """Open the store and load every shard; a damaged store is moved aside and the disk begins a new life (K14).

    Raises StoreRefused when a newer release wrote a part of it, and what `open_store` raises; then nothing is changed.
    """
    table = planes_of(replace(limits, kinds=shard_kinds(families)))
    store = open_store(directory, node, faults, families)
    newer = ""
    try:
        return store, load(store, node, table)
    except FormatTooNew as error:
        newer = str(error)
        store.close()
    except (StoreDamaged, RemoteViolation) as damage:
        store.close()
        move_aside(directory, str(damage))
    except BaseException:
        store.close()   # else the next try finds the store in use
        raise
    if newer:   # behind the handler: frames of the error may hold families, and these the lock of the database
        raise StoreRefused(
            f"a newer release wrote a part of {store.path} that this release cannot read ({newer}): "
            "start the node with that release, or a newer one; nothing was changed"
        )
    store = open_store(directory, node, faults, families)
    return store, load(store, node, table)


def load(store: Store, node: str, table: PlaneTable) -> NodeCore:
    """Build the core from what is stored, under a boot id that no core had: an operator that sees it change fences us.

    Raises FormatTooNew when a newer release wrote a part of it, StoreDamaged or RemoteViolation when it is not whole.
    """
    core = NodeCore(NodeFacts(Member(node, store.incarnation), uuid.uuid4().hex), table)
    core.recover(partial(StoredPlane, store))
    store.remembered()  # a start reads it too, so its damage is found here
    return core


class Node:
    """One running node.  At start, when its own parts stand, `contributes` returns more parts that serve methods."""

    def __init__(
        self, settings: Settings, limits: Limits | None = None, faults: Faults | None = None,
        families: Sequence[Family] = FAMILIES, planes_of: PlanesOf | None = None,
        messages: Mapping[int, Codecs] = PLANE_CODECS,
        contributes: Callable[[Node], Iterable[Serving]] = lambda node: (),
    ) -> None:
        self.limits = limits or Limits()
        if planes_of is None:
            planes_of = partial(planes, keyspaces=KeyspaceLimits(repair_memory_bytes=settings.repair_memory_bytes))
        if missing := sorted(planes_of(self.limits).keys() - messages.keys()):
            raise ValueError(f"messages: plane {missing[0]} has no row; a plane that sends nothing has an empty one")
        self.settings = settings
        self._contributes = contributes
        self.tls = FileCredentials(TlsSettings.of_directory(settings.tls_dir)) if settings.tls_dir is not None else None
        self.metrics = Metrics()
        self.routing = Routing()
        self.health = Health()
        self.draining = asyncio.Event()
        self._faults = faults
        self._families = families
        self._planes_of = planes_of
        self._messages = messages
        store, core = recover(settings.data, settings.node, self.limits, faults, families, planes_of)
        self.me = core.me
        guard = DiskGuard(settings.data, settings.disk_reserve_bytes)
        self.driver = Driver(store, core, self._reopen, guard, self.metrics)
        self.driver.on_health = self._say_health
        self._health_tasks: set[asyncio.Task[None]] = set()
        self.descriptors = descriptors.raise_limit()
        self.connections_max = descriptors.connections_max(self.descriptors)
        self.server = grpc.aio.server(options=channel.server_options(self.connections_max))
        self.endpoint = MetricsEndpoint(self.metrics, lambda: self.health.serving)
        self.address = ""
        self.metrics_address = ""

    def _reopen(self) -> tuple[Store, NodeCore]:
        store, core = recover(
            self.settings.data, self.settings.node, self.limits, self._faults, self._families, self._planes_of)
        if core.me != self.me:
            store.close()
            raise StoreRefused("the disk began a new life while the process ran; start the process again")
        return store, core

    def _say_health(self, serving: bool) -> None:
        task = asyncio.get_running_loop().create_task(self.health.say(serving and not self.draining.is_set()))
        self._health_tasks.add(task)
        task.add_done_callback(self._health_tasks.discard)

    async def start(self) -> None:
        """Listen and serve."""
        settings = self.settings
        host, _ = split_address(settings.listen)
        port = channel.bind(self.server, settings.listen, self.tls)
        self.address = settings.advertise or f"{host}:{port}"
        if settings.metrics_listen != METRICS_OFF:
            self.metrics_address = await self.endpoint.start(*split_address(settings.metrics_listen))
        driver, routing, metrics = self.driver, self.routing, self.metrics
        self.links = Links(self.me, self.address, driver, routing, metrics, self.tls, self._messages)
        self.snapshots = Snapshots(driver, routing, metrics, self.me, self.address, self.tls)
        driver.links, driver.snapshots = self.links, self.snapshots
        self.reporter = Reporter(driver, self.links, routing)
        synchro = Synchro(driver, routing)
        self.rings = Rings(driver, routing)
        driver.on_shards = partial(_tell, synchro, self.rings)
        access = Access(settings.cluster, routing, metrics, tls=self.tls is not None)
        self.budgets = budgets = Budgets(settings, access)
        metrics.watch_budgets(budgets)
        self.deliveries = Deliveries(driver, routing, metrics, access, budgets)
        self.changes = Changes(driver, routing, metrics, access, budgets)
        driver.on_space = self._report_space
        self.reclaimer = Reclaimer(driver, metrics, settings.reclaim_seconds, settings.reclaim_bytes)
        self.remembered = Remembered(driver, driver.store.remembered())
        snapshot_server = SnapshotServer(driver, metrics, settings.snapshot_bytes_per_second, self.links.greet)
        control = Control(
            settings, self.address, self.metrics_address, driver, routing, synchro, self.rings, self.remembered,
            snapshot_server, self.draining, self.tls,
        )
        self.appends = Appends(driver, routing, metrics, self.limits.batch_bytes_max, access, budgets)
        self.subscriptions = Subscriptions(driver, routing, metrics, budgets, settings)
        register(self.server, access, budgets, self.health, (
            self.links, snapshot_server, control, Inventory(driver, routing, self.remembered),
            Debug(driver, self.links, routing, self.snapshots, self.deliveries, self.changes),
            ShardMaps(routing, access, budgets), self.appends, Reads(driver, routing, metrics, access, budgets),
            self.deliveries, self.changes, Outcomes(driver, routing, metrics, budgets), self.subscriptions,
            SinkCalls(driver, routing, budgets, settings), Explain(driver, routing), DocumentCalls(
                driver, routing, metrics, access, budgets, settings.subscription_lease_seconds_max * 1000),
            KeyspaceCalls(driver, self.rings, routing, metrics, access, budgets),
            *self._contributes(self),
        ))
        metrics.watch_shards(lambda: [driver.core.log.status(shard) for shard in driver.core.log.shards])
        metrics.watch_keyspaces(lambda: _keyspaces_summary(driver), driver.now_ms)
        metrics.watch_limbo(lambda: _limbo_views(driver))
        metrics.watch_subscriptions(lambda: _subscriptions_views(driver))
        metrics.watch_store(lambda: driver.store.sizes() if driver.open else {})
        driver.start()
        self.reclaimer.start()
        self.reporter.start()
        await self.server.start()
        await self.health.say(True)
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, self.describe())
        _log.info("node serves", extra=self.describe())

    def describe(self) -> dict[str, str | int]:
        """Return what whoever started the process wants to know."""
        return {
            "node": self.me.node, "incarnation": self.me.incarnation, "address": self.address,
            "metrics_address": self.metrics_address, "pid": os.getpid(),
            "descriptors": self.descriptors, "connections_max": self.connections_max,
        }

    def _report_space(self) -> None:
        guard = self.driver.guard
        self.links.tell_operators(DiskReport(guard.space, guard.free_bytes()), VERSION_OF_PLANES)

    async def drain(self) -> None:
        """Ask the operators to move leaderships away and wait until this node leads nothing, or time is up."""
        self.draining.set()
        await self.health.say(False)
        operators = self.links.tell_operators(Draining(True))
        leading = len(self.driver.core.log.leading())
        _log.info("draining", extra={"operators": operators, "leading": leading})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds if operators else 0):
                while self.driver.core.log.leading():
                    await self.driver.resigned.wait()
                    self.driver.resigned.clear()
        # The answer to the fence that ended our last leadership must still get out.
        with contextlib.suppress(TimeoutError, StoreFailed):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self.driver.durable()
                await self.links.sent()
        _log.info("drained", extra={"leading": len(self.driver.core.log.leading())})

    async def stop(self) -> None:
        """Stop serving, make durable what was applied, close."""
        self.draining.set()
        await self.health.say(False)
        self.driver.board.wake_all()
        self.deliveries.stop()
        await self.changes.stop()
        stopping = asyncio.ensure_future(self.server.stop(SERVER_GRACE_SECONDS))
        await self.reporter.stop()
        await self.links.close()
        self.snapshots.reset()
        await self.reclaimer.stop()
        await self.remembered.close()
        await self.driver.stop()
        await stopping
        await self.endpoint.stop()


def _tell(synchro: Synchro, rings: Rings) -> None:
    """Hand the core what the map says of shards and ranges."""
    synchro.tell()
    rings.tell()


def _keyspaces_summary(driver: Driver) -> Summary | None:
    plane = driver.core.planes.get(KEYSPACE_PLANE)
    return plane.summary() if isinstance(plane, KeyspacePlane) else None


def _limbo_views(driver: Driver) -> Iterator[LimboView]:
    for shard in driver.core.log.leading():
        view = driver.core.log.limbo(shard, driver.now_ms(), 0)
        if view is not None:
            yield view


def _subscriptions_views(driver: Driver) -> Iterator[SubscriptionsView]:
    for shard in driver.core.log.leading():
        view = driver.core.log.subscriptions(shard, driver.now_ms())
        if view is not None:
            yield view


def write_ready_file(path: Path, content: dict[str, str | int]) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content) + "\n")
    partial.replace(path)


async def run(settings: Settings) -> int:
    """Run a node until a signal or a failure; return the exit code."""
    gc.disable()    # nothing of what is loaded is garbage, and to look through it costs as much as to load it
    node = Node(settings)
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    await node.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()
    asked = asyncio.ensure_future(signals.get())
    await asyncio.wait((asked, node.driver.failure), return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        again = asyncio.ensure_future(signals.get())  # a second signal cuts the draining short
        draining = asyncio.ensure_future(node.drain())
        await asyncio.wait((again, draining, node.driver.failure), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        again.cancel()
    asked.cancel()
    await node.stop()
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    failure = node.driver.failure.exception() if node.driver.failure.done() else None
    failed = failure is not None
    if isinstance(failure, StoreDamaged) and (settings.data / "store").exists():
        move_aside(settings.data, str(failure))  # so that the next start begins a new life (K14)
    _log.info("node stopped", extra={"failed": failed})
    return EXIT_BROKEN if failed else 0


def main() -> int:
    """Entry point of `python -m tidemark_node`."""
    if sys.flags.optimize:
        print("tidemark_node: run without -O: its assertions guard the data", file=sys.stderr)
        return EXIT_BAD_START
    settings = parse()
    if not MALLOC.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, MALLOC | dict(os.environ))  # noqa: S606
    set_up(settings.node, settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return uvloop.run(run(settings))
    except (StoreRefused, StoreFailed) as error:
        _log.critical("the store cannot be opened", extra={"reason": str(error)})
        return EXIT_BAD_START
    except InvalidTls as error:
        _log.critical("TLS cannot be had, and there is no going without", extra={"reason": str(error)})
        return EXIT_BAD_START
    except (RuntimeError, OSError) as error:
        _log.critical("the node cannot start", extra={"reason": str(error), "listen": settings.listen})
        return EXIT_BAD_START
