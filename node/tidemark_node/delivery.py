"""Tidemark/Deliver: what one member sends to readers who hear all members, so that each record comes from one (S).

A stream serves one reader of one shard; START names all that decides who sends, so members need not agree on
anything at run time.  Coverage tells what is not ours: as soon as a stretch of backlog was looked at, at the tail at
most every COVERAGE_SECONDS or with the next item.  A node that cannot go on says STARTED again, with the reason and in
the same generation, and so does one whose log begins later than it said; it is never silent.
Stays out: who sends (core's `delivery`), cutting the log into items (`stretch`), how far may be shown (core).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any

import grpc.aio
from tidemark_core.base.effects import LogReadFailed
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import NOT_HELD, Item, Shipment, Started, Status, Window
from tidemark_wire.delivery import StartCall, Stop, decode_request, encode_answer
from tidemark_wire.identity import Role
from tidemark_wire.tasks import cancelled

from .access import Access
from .driver import Driver
from .metrics import Metrics
from .routing import Routing
from .store_errors import StoreFailed
from .stretch import Asked, Rule, take

METHOD = "Tidemark.Deliver"
STREAMS_MAX = 4096
FRAME_BYTES_DEFAULT = 1 << 20
FRAME_BYTES_MIN = 16 << 10
FRAME_BYTES_MAX = 4 << 20
ENTRIES_MAX = 2048              # looked at in one go
COVERAGE_SECONDS = 0.05
LOOK_AGAIN_SECONDS = 1.0        # roles change without a word on the board
REPAIR_SECONDS = 2.0            # other members hold the entry: the reader had better ask them than wait longer
REPAIR_RETRY_SECONDS = 0.05

_log = logging.getLogger(__name__)


class Deliveries:
    """All delivery streams of the node."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics, access: Access) -> None:
        self.access = access
        self.driver = driver
        self.routing = routing
        self.metrics = metrics
        self.stopping = False
        self._streams: dict[_Stream, None] = {}
        metrics.delivery_streams.set_function(lambda: len(self._streams))

    async def serve(self, _: Any, context: Any) -> None:
        """Handler of one stream; ends when the reader has closed its side, or the node stops."""
        if len(self._streams) >= STREAMS_MAX:
            many = f"{len(self._streams)} readers are open on this node"
            await self.routing.refuse(context, Refused(Reason.OVERLOADED, many, retry_after_ms=1000), None)
        stream = _Stream(self, context)
        self._streams[stream] = None
        try:
            await stream.run()
        finally:
            del self._streams[stream]

    def stop(self) -> None:
        """Tell every reader that this node stops."""
        self.stopping = True
        for stream in self._streams:
            stream.wake()

    def describe(self, shard: ShardId | None) -> list[dict[str, Any]]:
        """Return who is sent what now, of one shard or of all, ready for JSON."""
        runs = (stream.run_now for stream in self._streams)
        return [run.describe() for run in runs if run is not None and shard in (None, run.shard)]


class _Run:
    """One generation of one reader: what was asked, and how far it went."""

    def __init__(self, call: StartCall, shard: ShardId, unknown: str, me: str, peer: str) -> None:
        self.call = call
        self.start = call.start
        self.shard = shard
        self.unknown = unknown                 # why nobody here knows the shard yet
        self.peer = peer
        self.rule = Rule(call.start, me)
        self.frame_bytes = min(max(call.frame_bytes or FRAME_BYTES_DEFAULT, FRAME_BYTES_MIN), FRAME_BYTES_MAX)
        self.position = call.start.first       # everything below was looked at
        self.told = call.start.first - 1       # everything up to here was told
        self.told_at = 0.0
        self.answered = False                  # STARTED was said
        self.granted_bytes = call.start.window_bytes
        self.sent_bytes = 0
        self.sent_items = 0
        self.skipped_bytes = 0
        self.skipped_entries = 0
        self.full = False                      # the item at `position` is ours, and waits for the window
        self.damaged: tuple[int, float] | None = None  # offset that cannot be read, and since when
        self.doing = "starting"

    @property
    def done(self) -> bool:
        return 0 <= self.start.until < self.position

    def describe(self) -> dict[str, Any]:
        start = self.start
        return {
            "group": self.call.group, "index": self.call.shard, "reader": self.peer, "generation": start.generation,
            "mode": start.mode, "known_down": list(start.known_down), "ensemble": list(start.ensemble),
            "priorities": list(start.priorities), "copies": start.copies, "from": start.first, "until": start.until,
            "doing": self.doing, "position": self.position, "granted_bytes": self.granted_bytes,
            "sent_bytes": self.sent_bytes, "sent_items": self.sent_items, "skipped_bytes": self.skipped_bytes,
            "skipped_entries": self.skipped_entries,
        }


class _Stream:
    """One reader's stream: a task that listens, and one that sends whatever the newest START asks for."""

    def __init__(self, deliveries: Deliveries, context: Any) -> None:
        self._all = deliveries
        self._driver = deliveries.driver
        self._routing = deliveries.routing
        self._metrics = deliveries.metrics
        self._context = context
        self._caller = deliveries.access.caller(context)
        self._news = asyncio.Event()
        self._ended = False                    # the reader closed its side
        self._wrong: Refused | None = None     # what it said cannot be acted upon
        self.run_now: _Run | None = None

    def wake(self) -> None:
        self._news.set()

    async def run(self) -> None:
        listener = asyncio.get_running_loop().create_task(self._listen())
        served: _Run | None = None
        try:
            while not self._ended and not self._all.stopping:
                if self._wrong is not None:
                    await self._routing.refuse(self._context, self._wrong, None)
                if self.run_now is None or self.run_now is served:
                    await self._wait(None)
                    continue
                served = self.run_now
                await self._serve(served)
        finally:
            self._ended = True
            for error in await cancelled(listener):
                if not self._context.cancelled():
                    _log.warning("a delivery stream cannot be heard", extra={"reason": repr(error)})

    # --- listening ----------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            while self._wrong is None and (frame := await self._context.read()) is not grpc.aio.EOF:
                self._on_frame(frame)
                self.wake()
        finally:
            self._ended = self._ended or self._wrong is None
            self.wake()

    def _on_frame(self, frame: bytes) -> None:
        try:
            message = decode_request(frame)
        except RemoteViolation as violation:
            self._wrong = Refused(Reason.INVALID_SPEC, str(violation))
            return
        run = self.run_now
        match message:
            case StartCall():
                self._on_start(message)
            case Window():
                if run is not None and message.generation == run.start.generation:
                    run.granted_bytes = max(run.granted_bytes, message.bytes_total)
            case Stop():
                if run is not None and message.generation == run.start.generation:
                    self.run_now = None

    def _on_start(self, call: StartCall) -> None:
        target = self._routing.find(call.group, call.shard)
        me, peer = self._driver.core.me.node, self._context.peer()
        if not isinstance(target, Refused):
            self.run_now = _Run(call, target.shard, "", me, peer)
        elif self._routing.map.version:
            self._wrong = target
        else:  # a map will come in a moment
            self.run_now = _Run(call, ShardId(0), target.message, me, peer)

    # --- sending ------------------------------------------------------------------------------------------------

    async def _serve(self, run: _Run) -> None:
        """Answer START and send until the generation is over: everything told, replaced, or this node cannot go on."""
        self._driver.board.watch(run.shard, self.wake)
        try:
            while self.run_now is run and not self._ended and self._wrong is None:
                cannot = self._cannot_serve(run)
                if cannot is not None:
                    await self._give_up(run, *cannot)
                    return
                await self._step(run)
                if run.done and run.told >= run.position - 1:
                    run.doing = "done"
                    return
        finally:
            self._driver.board.unwatch(run.shard, self.wake)

    def _cannot_serve(self, run: _Run) -> tuple[Status, str] | None:
        """Say why this node has nothing to send to that reader, None when it has."""
        driver, me = self._driver, self._driver.core.me.node
        if self._all.stopping:
            return Status.UNAVAILABLE, "the node stops"
        if not driver.open:
            return Status.UNAVAILABLE, "the node loads its shards again"
        if run.unknown:
            return Status.UNAVAILABLE, run.unknown
        refused = self._all.access.refusal(self._caller, METHOD, (Role.READER,), run.call.group)
        if refused is not None:
            return Status.ACCESS, refused.message
        if me not in run.start.ensemble:
            return Status.NOT_MEMBER, f"{me} is not in the ensemble that the reader knows"
        if driver.core.readable(run.shard) is None:
            return Status.NOT_MEMBER, f"{me} is no member of this shard"
        if run.damaged is not None and time.monotonic() - run.damaged[1] > REPAIR_SECONDS:
            return Status.UNAVAILABLE, f"offset {run.damaged[0]} is damaged here and no peer repaired it yet"
        return None

    async def _give_up(self, run: _Run, status: Status, why: str) -> None:
        first, released = self._driver.core.readable(run.shard) or (0, -1)
        await self._say(run, Started(run.start.generation, status, released, first, why))
        run.doing = f"{status}: {why}"

    async def _step(self, run: _Run) -> None:
        """Tell, look at or wait for the next thing."""
        core = self._driver.core
        readable = core.readable(run.shard)
        assert readable is not None, "asked in this loop turn"
        first, released = readable
        if run.position < first or not run.answered:        # also when retention has overtaken us
            run.answered = True
            run.position = max(run.position, first)
            run.told = max(run.told, first - 1)
            await self._say(run, Started(run.start.generation, Status.OK, released, first))
            return
        holes = core.holes(run.shard, run.position, released) or []
        last = released
        if holes and holes[-1][1] >= released:
            last = holes.pop()[0] - 1                       # it goes out whole, once its record is released too
        if run.position > last or run.done or (run.full and run.sent_bytes >= run.granted_bytes):
            await self._idle(run, released)
        else:
            await self._look(run, last, holes, released)

    async def _idle(self, run: _Run, released: int) -> None:
        """Nothing to send now: tell what was looked at when it is time, then wait."""
        untold = run.told < run.position - 1
        due = run.told_at + COVERAGE_SECONDS - time.monotonic()
        if untold and (due <= 0 or run.done or run.full):
            await self._ship(run, released, ())
        elif not run.done:
            run.doing = "waiting for the window" if run.full else "waiting for more"
            await self._wait(due if untold else LOOK_AGAIN_SECONDS)

    async def _look(self, run: _Run, last: int, holes: list[tuple[int, int]], released: int) -> None:
        """Look at the next stretch and send what is ours of it."""
        core, shard, position = self._driver.core, run.shard, run.position
        budget = min(run.frame_bytes, run.granted_bytes - run.sent_bytes)
        asked = Asked(position, last, run.start.until, holes, budget, ENTRIES_MAX)
        run.doing = "reading"
        try:
            found = await self._driver.deliver(partial(take, shard=shard, rule=run.rule, asked=asked))
        except StoreFailed:
            return                                          # whoever calls finds out what happened
        if self.run_now is not run:
            return                                          # nobody waits for it any more
        passed = [hole for hole in holes if hole[0] <= found.through]
        if self._driver.core is not core or core.holes(shard, position, found.through) != passed:
            return                                          # the log was given up while it was read
        run.full = found.more
        run.skipped_entries += found.skipped_entries
        run.skipped_bytes += found.skipped_bytes
        self._metrics.delivery_skipped_bytes.inc(found.skipped_bytes)
        self._metrics.delivery_not_held.inc(sum(item.body is NOT_HELD for item in found.items))
        run.position = max(position, found.through + 1)
        backlog = run.position <= last and not run.full
        if found.items or (backlog and run.position > position):
            await self._ship(run, released, found.items)
        if found.damaged_at is not None:
            await self._repair(run, found.damaged_at)
            return
        run.damaged = None
        if run.position == position and not run.full:
            await self._wait(COVERAGE_SECONDS)              # what is released is not there yet, or not any more

    async def _repair(self, run: _Run, offset: int) -> None:
        """Ask for a good copy of a damaged entry; coverage ends in front of it meanwhile."""
        readable = self._driver.core.readable(run.shard)
        if readable is None or offset < readable[0]:
            run.damaged = None                              # it was trimmed under us
            return
        if run.damaged is None or run.damaged[0] != offset:
            run.damaged = offset, time.monotonic()
        run.doing = f"waiting for a repair of offset {offset}"
        self._driver.post(LogReadFailed(run.shard, None, offset))
        await asyncio.sleep(REPAIR_RETRY_SECONDS)

    # --- the wire -----------------------------------------------------------------------------------------------

    async def _ship(self, run: _Run, released: int, items: tuple[Item, ...]) -> None:
        """Send what follows on what was told, up to the position."""
        shipment = Shipment(run.start.generation, run.told + 1, run.position - 1, released, items)
        run.told, run.told_at = run.position - 1, time.monotonic()
        size = sum(item.size for item in items)
        run.sent_bytes += size
        run.sent_items += len(items)
        if items:
            self._metrics.delivery_bytes.inc(size)
            self._metrics.delivery_items.labels(str(run.start.mode)).inc(len(items))
        await self._say(run, shipment)

    async def _say(self, run: _Run, message: Started | Shipment) -> None:
        """Write; only the sending task does, so nothing of an older generation follows STARTED of a newer one."""
        run.doing = "sending"
        await self._context.write(encode_answer(message))

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a word of the reader, of the board or of the node."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
