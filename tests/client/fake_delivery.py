"""Tidemark/Deliver on a fake node: each entry is sent by the core's rule, from the one log that all fake nodes share.

Faults are scripted by the test, per node: refusals, silence, slowness, damage, entries it does not hold.
Stays out: the log itself (fake_cluster).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Refused
from tidemark_core.delivery.messages import Item, Shipment, Start, Started, Status, Window, entries_item, hole_item
from tidemark_core.delivery.order import Mode, nearest_first, ships, slots_of
from tidemark_wire.delivery import StartCall, decode_request, encode_answer
from tidemark_wire.status import to_rpc_error

LOOK_S = 0.005


@dataclass
class Faults:
    """What is wrong with a node's deliveries, and what it was asked and sent."""

    refusal: Refused | None = None           # of whole streams
    unimplemented: bool = False
    status: Status = Status.OK               # how START is answered
    message: str = ""
    deaf: bool = False                       # START is heard and never answered
    item_delay_s: float = 0.0
    together: int = 1                        # puts so many entries into an item
    damaged: set[int] = field(default_factory=set)       # base offsets whose payload is damaged on the way
    garbled: set[int] = field(default_factory=set)       # base offsets whose header is
    lacks: set[int] = field(default_factory=set)         # base offsets that it does not hold
    first: int = 0                           # first offset it holds
    streams: int = 0                         # open now
    opened: int = 0
    starts: list[Start] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)  # generation, first offset of every item
    over_window: int = 0                     # bytes sent and not yet granted, at most


class FakeStream:
    """One reader's stream."""

    def __init__(self, node: Any, context: Any) -> None:
        self.node = node
        self.faults: Faults = node.delivery
        self.context = context
        self.call: StartCall | None = None
        self.granted = self.sent = self.position = 0
        self.told = False
        self.ended = False

    async def run(self) -> None:
        faults = self.faults
        if faults.refusal is not None:
            error = to_rpc_error(faults.refusal)
            await self.context.abort(error.code, error.details, error.trailing_metadata)
        if faults.unimplemented:
            await self.context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        faults.streams += 1
        faults.opened += 1
        listener = asyncio.create_task(self._listen())
        try:
            while not self.ended:
                await self.node.paused.wait()
                if self.call is None or not await self._step(self.call):
                    await asyncio.sleep(LOOK_S)
        finally:
            faults.streams -= 1
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            while (frame := await self.context.read()) is not grpc.aio.EOF:
                await self.node.paused.wait()
                message = decode_request(frame)
                if isinstance(message, StartCall):
                    self.faults.starts.append(message.start)
                    self.call, self.told = message, False
                    self.granted, self.sent, self.position = message.start.window_bytes, 0, message.start.first
                elif isinstance(message, Window):
                    self.faults.windows.append(message)
                    if self.call is not None and message.generation == self.call.start.generation:
                        self.granted = message.bytes_total
        self.ended = True

    async def _step(self, call: StartCall) -> bool:
        """Send the next thing; False when there is none."""
        faults, start = self.faults, call.start
        shard = self.node.cluster.groups[call.group][call.shard]
        if faults.deaf:
            return False
        released = shard.readable
        if not self.told:
            self.told = True
            first = max(faults.first, shard.trimmed_to)
            await self._say(Started(start.generation, faults.status, released, first, faults.message))
            if faults.status is not Status.OK:
                self.call = None
            if self.position < first:
                await self._say(Shipment(start.generation, self.position, first - 1, released, ()))
                self.position = first
            return True
        if self.position > released or 0 <= start.until < self.position:
            return False
        item, order = self._at(shard, self.position)
        last = item.last
        slots = slots_of(order, len(start.ensemble))
        if start.mode is Mode.LOCAL:
            slots = nearest_first(slots, start.priorities, start.copies)
        down = {start.ensemble.index(node) for node in start.known_down}
        ours = start.mode is Mode.ALL_SEND_ALL or ships(slots, start.ensemble.index(self.node.name), down)
        items = (item,) if ours and item.first not in faults.lacks else ()
        if items and isinstance(item.body, tuple):
            item = self._with_next(shard, start, item, order, released)
            items, last = (item,), item.last
        if items and self.sent >= self.granted:
            return False
        if items and faults.item_delay_s:
            await asyncio.sleep(faults.item_delay_s)
        await self.node.paused.wait()
        if self.call is not call:
            return True
        shipment = Shipment(start.generation, self.position, last, released, items)
        self.position = last + 1
        if items:
            self.sent += item.size
            faults.over_window = max(faults.over_window, self.sent - self.granted)
            faults.sent.append((start.generation, item.first))
        await self._say(shipment)
        return True

    def _with_next(self, shard: Any, start: Start, item: Item, order: int, released: int) -> Item:
        """Return the item with as many entries behind it as this node puts together and may send."""
        last = released if start.until < 0 else min(released, start.until)
        while item.entry_count < self.faults.together and item.last < last:
            found, found_order = self._at(shard, item.last + 1)
            same = found_order == order or start.mode is Mode.ALL_SEND_ALL
            if not isinstance(found.body, tuple) or not same or self.sent + item.size >= self.granted:
                break
            item = entries_item(item.body + found.body)
        return item

    def _at(self, shard: Any, offset: int) -> tuple[Item, int]:
        """Return the item that covers an offset, and its reading order."""
        entry = next(entry for entry in shard.entries if entry.last >= offset)
        covered = shard.covering(offset)
        if covered is not None and entry.kind is Kind.DATA:
            return hole_item(max(covered[0], offset), covered[1] - 1), 0
        return entries_item((entry,)), entry.order

    async def _say(self, message: Started | Shipment) -> None:
        frame = bytearray(encode_answer(message))
        if isinstance(message, Shipment) and message.items and message.items[0].body is not None:
            base, size = message.items[0].first, message.items[0].size
            if base in self.faults.damaged:
                frame[-1] ^= 0xFF
            if base in self.faults.garbled:
                frame[len(frame) - size + 10] ^= 0xFF
        await self.context.write(bytes(frame))
