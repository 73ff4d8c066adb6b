"""Tidemark/Deliver: what one member sends to readers who hear all members, so that each record comes from one (S).

A stream serves one reader of one shard; START names all that decides who sends, so members need not agree on
anything at run time.
Stays out: what to send or say next (core's `delivery.sender`), reading the store (`stretch`), how far may be shown
(core).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any, ClassVar

import grpc.aio
from tidemark_core.base.effects import LogReadFailed
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery import sender
from tidemark_core.delivery.messages import NOT_HELD, Shipment, Started, Status, Window
from tidemark_core.delivery.sender import End, Look, Repair, Say, Sender, Step, Wait
from tidemark_core.delivery.stretch import Asked
from tidemark_wire.budgets import Grant
from tidemark_wire.delivery import StartCall, Stop, decode_request, encode_answer
from tidemark_wire.identity import Role
from tidemark_wire.tasks import cancelled

from .access import Access
from .budgets import Budgets, fitted, frame_bytes
from .driver import Driver
from .methods import PEOPLE, Method, Shape
from .metrics import Metrics
from .routing import Routing
from .store_errors import StoreFailed
from .stretch import take

METHOD = "Tidemark.Deliver"
FRAME_BYTES_DEFAULT = 1 << 20
FRAME_BYTES_MIN = 16 << 10
FRAME_BYTES_MAX = 4 << 20
ROOM_LOOK_SECONDS = 1.0
"""So often a stream that waits for room looks whether its reader still has access."""

_log = logging.getLogger(__name__)


class Deliveries:
    """All delivery streams of the node."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics, access: Access, budgets: Budgets) -> None:
        self.access = access
        self.budgets = budgets
        self.driver = driver
        self.routing = routing
        self.metrics = metrics
        self.stopping = False
        self._streams: dict[_Stream, None] = {}
        metrics.delivery_streams.set_function(lambda: len(self._streams))

    async def serve(self, _: Any, context: Any) -> None:
        """Handler of one stream; ends when the reader has closed its side, or the node stops."""
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

    # The groups are named in the frames: each START is judged there.
    METHODS: ClassVar[tuple[Method, ...]] = (Method(METHOD, Shape.BIDI, serve, kinds=PEOPLE),)


class _Run:
    """One generation of one reader."""

    def __init__(self, call: StartCall, shard: ShardId, unknown: str, me: str, peer: str) -> None:
        self.call = call
        self.start = call.start
        self.shard = shard
        self.unknown = unknown                 # why nobody here knows the shard yet
        self.peer = peer
        self.refused: Refused | None = None    # why its reader may not go on; the audit has it once
        bytes_max = min(max(call.frame_bytes or FRAME_BYTES_DEFAULT, FRAME_BYTES_MIN), FRAME_BYTES_MAX)
        self.sender = Sender(call.start, me, bytes_max)

    def describe(self) -> dict[str, Any]:
        start, sender = self.start, self.sender
        return {
            "group": self.call.group, "index": self.call.shard, "reader": self.peer, "generation": start.generation,
            "mode": start.mode, "known_down": list(start.known_down), "ensemble": list(start.ensemble),
            "priorities": list(start.priorities), "copies": start.copies, "from": start.first, "until": start.until,
            "doing": sender.doing, "position": sender.position, "granted_bytes": sender.granted_bytes,
            "sent_bytes": sender.sent_bytes, "sent_items": sender.sent_items, "left_out": sender.left_out,
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
        self._budgets = deliveries.budgets
        self._who = deliveries.budgets.who(context)
        self._grant: Grant | None = None       # for the frame that was read and is not written yet
        self._wants_room = False
        self._large: tuple[Asked, int] | None = None   # a look that found more than there was room for, and how much
        self._news = asyncio.Event()
        self._ended = False                    # the reader closed its side
        self._wrong: Refused | None = None     # what it said cannot be acted upon
        self.run_now: _Run | None = None

    def wake(self) -> None:
        self._news.set()

    def _on_board(self) -> None:
        """Wake for new records, unless the stream waits for room: hundreds may, and each append would wake them."""
        if not self._wants_room:
            self.wake()

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
            while self._wrong is None and (frame := await self._budgets.read(self._context)) is not grpc.aio.EOF:
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
                if run is not None:
                    run.sender.on_window(message)
            case Stop():
                if run is not None and message.generation == run.start.generation:
                    self.run_now = None

    def _on_start(self, call: StartCall) -> None:
        target = self._routing.find(call.group, call.shard, call.group_id)
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
        self._driver.board.watch(run.shard, self._on_board)
        try:
            while self.run_now is run and not self._ended and self._wrong is None:
                step = self._next(run)
                match step:
                    case Say():
                        await self._say(run, step.message)
                    case Look():
                        await self._look(run, step)
                    case Wait():
                        await self._wait(step.ms / 1000)
                    case Repair():
                        self._driver.post(LogReadFailed(run.shard, None, step.offset))
                        await asyncio.sleep(sender.REPAIR_RETRY_MS / 1000)
                    case End():
                        return
        finally:
            self._driver.board.unwatch(run.shard, self._on_board)
            self._release()

    def _next(self, run: _Run) -> Step:
        log = self._driver.core.log
        readable = log.readable(run.shard) if self._driver.open else None
        if not run.sender.ended and (unavailable := self._unavailable(run)):
            return run.sender.give_up(Status.UNAVAILABLE, unavailable, log.readable(run.shard))
        refused = self._refusal(run)
        if refused is not None and not run.sender.ended:
            return run.sender.give_up(Status.ACCESS, refused.message, readable)
        return run.sender.step(_now_ms(), readable, partial(log.holes, run.shard), partial(log.block_at, run.shard))

    def _may_go_on(self, run: _Run) -> bool:
        return not self._unavailable(run) and self._refusal(run) is None

    def _refusal(self, run: _Run) -> Refused | None:
        if run.refused is None:
            run.refused = self._all.access.refusal(self._caller, METHOD, (Role.READER,), run.call.group)
        return run.refused

    def _unavailable(self, run: _Run) -> str:
        """Say why this node has nothing to send to any reader of the shard; empty when it has."""
        if self._all.stopping:
            return "the node stops"
        return run.unknown if self._driver.open else "the node loads its shards again"

    async def _look(self, run: _Run, look: Look) -> None:
        """Read a stretch, once there is room for it."""
        asked = await self._make_room(run, look.asked)
        if asked is None:
            return
        log, shard = self._driver.core.log, run.shard
        try:
            found = await self._driver.deliver(partial(take, shard=shard, rule=run.sender.rule, asked=asked))
        except StoreFailed:
            return                                          # whoever calls finds out what happened
        if self.run_now is not run or self._driver.core.log is not log:
            return                                          # nobody waits for it any more, or the log is another
        size = sum(item.size for item in found.items)
        if self._grant is not None and not fitted(self._grant, size):
            self._large = asked, size
            return                                          # the same look comes again, once there is room
        lacking = [item for item in found.items if item.body is NOT_HELD]
        self._metrics.delivery_not_held.inc(len(lacking))
        for item in lacking:
            if not log.may_lack(shard, item.last):
                self._driver.post(LogReadFailed(shard, None, item.first))
        run.sender.looked(
            _now_ms(), look, found, log.readable(shard), partial(log.holes, shard), partial(log.block_at, shard)
        )

    async def _make_room(self, run: _Run, asked: Asked) -> Asked | None:
        """Wait for room for what a look may find; return it as there is room, None where it is not wanted any more."""
        self._release()
        if asked.budget_bytes <= 0:
            return asked                                    # only to look
        large, self._large = self._large, None
        if large is not None and large[0].first == asked.first:
            await self._wait_for_room(run, large[1], large[1])
            bytes_max = large[0].budget_bytes               # it finds the same again
        else:
            await self._wait_for_room(run, min(FRAME_BYTES_MIN, asked.budget_bytes), asked.budget_bytes)
            bytes_max = 0 if self._grant is None else min(asked.budget_bytes, frame_bytes(self._grant))
        return None if self._grant is None else asked._replace(budget_bytes=bytes_max)

    async def _wait_for_room(self, run: _Run, least: int, most: int) -> None:
        """Hold room for a frame as soon as there is some, unless the generation ends or may not go on before."""
        self._grant = self._budgets.frame_now(self._who, least, most)
        if self._grant is not None:
            return
        run.sender.doing = "waiting for room among the frames of this client"
        granting = asyncio.ensure_future(self._budgets.frame(self._who, least, most))
        granting.add_done_callback(lambda _: self.wake())
        self._wants_room = True
        try:
            while not granting.done() and self.run_now is run and not self._ended and self._may_go_on(run):
                await self._wait(ROOM_LOOK_SECONDS)   # a map with other access lists wakes no stream
        finally:
            self._wants_room = False
            if not granting.cancel():
                self._grant = granting.result()

    def _release(self) -> None:
        if self._grant is not None:
            self._grant.release()
            self._grant = None

    # --- the wire -----------------------------------------------------------------------------------------------

    async def _say(self, run: _Run, message: Started | Shipment) -> None:
        """Write; only the sending task does, so nothing of an older generation follows STARTED of a newer one."""
        if isinstance(message, Shipment):
            self._metrics.delivery_left_out.inc(message.left_out)
            if message.items:
                self._metrics.delivery_bytes.inc(sum(item.size for item in message.items))
                sent = sum(item.entry_count for item in message.items)
                self._metrics.delivery_items.labels(str(run.start.mode)).inc(sent)
        if isinstance(message, Shipment) and message.items:
            await self._budgets.send(self._who, self._context, partial(encode_answer, message), self._grant)
            self._release()
        else:
            await self._context.write(encode_answer(message))

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a word of the reader, of the board or of the node."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
