"""ShardDelivery: the read of one shard from all of its members, each record from one of them, across failovers.

The shell around core's `delivery.reader`: a stream to each member, frames and time in, records and gaps out.  What the
application has not taken yet is not consumed, and the members' windows count it.
Stays out: who sends what, whom to pass over and when to begin again (core); merging shards (reader).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tidemark_core.base.entry import Kind
from tidemark_core.delivery.messages import (
    Deliver,
    DeliverGap,
    Finished,
    GapKind,
    Note,
    ReaderEffect,
    Started,
    Status,
    Tell,
    WakeAt,
)
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import Reader as CoreReader
from tidemark_wire.delivery import CorruptShipment, decode_answer

from .batch import ReadBatch
from .cursor import EARLIEST, LATEST, End, Start
from .errors import Unavailable
from .gaps import Gap
from .member_stream import MemberStream
from .near import shared_scopes
from .read_stats import ReadStats
from .running_clock import Alarm

if TYPE_CHECKING:
    from .reader import Reader
    from .routing import Channels

log = logging.getLogger("tidemark.delivery")

TOLD_PARTS = 32  # of a window: what the application takes is told in such parts, and when it has taken everything


class ShardDelivery:
    """Where the read of one shard stands."""

    def __init__(self, reader: Reader, shard: int, start: Start, end: End) -> None:
        self.shard = shard
        self.group_name = reader.group_name
        self.group_id = reader.group_id
        self.routing = reader.routing
        self.channels: Channels = reader.channels
        self.frame_bytes = reader.settings.frame_bytes
        self._reader = reader
        self._settings = reader.settings
        self._clock = reader.clock
        self._from_earliest = start == EARLIEST
        self._heard: set[str] = set()
        self._removed_before = 0     # by what members said at first: no news to a read from the earliest record
        self._first = 0 if start == EARLIEST else int(start)
        self._end = end
        self._core: CoreReader | None = None
        self._streams: dict[str, MemberStream] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[None] = reader.loop.create_future()
        self._stats = ReadStats()
        self._trouble = ""
        self._untaken = 0            # batches and gaps that the application has not taken
        self._consumed_bytes = 0     # what it took, and control entries; the core has not heard of it
        self._tell_bytes = 0         # so much of it is worth telling while there is more to take
        self._progress_ms = 0
        self._alarm = Alarm(reader.loop, reader.clock, self._on_alarm)

    def _on_alarm(self) -> None:
        if self._core is not None:
            self._feed(self._core.on_time)

    def start_at(self, offset: int) -> None:
        """Begin elsewhere; called before `run`."""
        self._first, self._from_earliest = offset, False

    @property
    def next(self) -> int:
        """Offset behind everything delivered."""
        return self._core.next if self._core is not None else self._first

    @property
    def stats(self) -> ReadStats:
        """Return what was counted so far."""
        core = self._core
        if core is not None:
            self._stats.duplicates, self._stats.bytes_delivered = core.duplicates, core.delivered_bytes
            down = {node: core.down.get(node, "slow") for node in core.known_down}
            self._stats.known_down = {self.shard: down} if down else {}
        return self._stats

    # --- life

    async def run(self) -> None:
        """Read until the end; raises what the user must know."""
        if self._end == LATEST:
            self._end = await self._reader.questions.latest(
                self.group_name, self.shard, timeout_s=self._settings.timeout_s, group_id=self.group_id
            )
        if self._end is not None and int(self._end) < self._first:
            return
        try:
            await self._begin()
            await self._finished()
        finally:
            await self._stop()

    async def _begin(self) -> None:
        deadline = self._reader.loop.time() + self._settings.timeout_s
        while not (ensemble := self._ensemble()):
            if self._reader.loop.time() > deadline:
                raise self._unavailable("the shard map names no member")
            self.routing.refresh_soon()
            await self.routing.wait_changed(0.1)
        mode, until = self._settings.core_mode, -1 if self._end is None else int(self._end)
        settings = self._settings.of_shard(len(self._reader.cursors))
        self._tell_bytes = settings.window_bytes // TOLD_PARTS
        near, copies = self._priorities(ensemble), self._copies(ensemble)
        self._core = CoreReader(ensemble, self._first, until, mode, settings, near, copies)
        self._progress_ms = self._clock.ms()
        self._feed(self._core.begin)
        self._meet(ensemble)

    async def _finished(self) -> None:
        """Wait for the end; one that is known must come nearer."""
        patience_ms = int(self._settings.timeout_s * 1000)
        while not self._done.done():
            now_ms = self._clock.ms()
            if self._untaken:
                self._progress_ms = now_ms
            left_ms = self._progress_ms + patience_ms - now_ms
            if self._end is not None and left_ms <= 0:
                raise self._unavailable(self._trouble or "silence")
            await asyncio.wait({self._done}, timeout=None if self._end is None else (left_ms + 1) / 1000)
        self._done.result()

    async def _stop(self) -> None:
        if not self._done.cancel() and not self._done.cancelled():
            self._done.exception()  # whoever closes the reader does not want to hear of it
        self._alarm.set(None)
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close() for stream in streams), *self._leaving)

    def fail(self, error: BaseException | None) -> None:
        """End with an error."""
        if error is not None and not self._done.done():
            self._done.set_exception(error)

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(
            f"shard {self.shard} of {self.group_name!r} could not be read on from offset {self.next} "
            f"for {self._settings.timeout_s:g} s ({why})"
        )

    # --- members

    def _ensemble(self) -> tuple[str, ...]:
        return self.routing.ensemble(self.group_name, self.shard)

    def _priorities(self, ensemble: Iterable[str]) -> tuple[int, ...]:
        if self._settings.core_mode is not Mode.LOCAL:
            return ()
        return shared_scopes(self.routing, self._settings.location, ensemble)

    def _copies(self, ensemble: Sequence[str]) -> int:
        """Return how many members keep each payload; 0, all, where it does not matter."""
        if self._settings.core_mode is not Mode.LOCAL:
            return 0
        return min(self.routing.payload_copies(self.group_name, self.shard), len(ensemble))

    def on_map(self) -> None:
        """Hear of other members, and of other places of members."""
        if self._core is None or self._done.done():
            return
        ensemble = self._ensemble()
        if not ensemble:
            return
        self._feed(self._core.on_ensemble, ensemble, self._priorities(ensemble), self._copies(ensemble))
        self._meet(ensemble)
        for stream in self._streams.values():
            stream.on_map()

    def _meet(self, ensemble: tuple[str, ...]) -> None:
        """Have a stream to each member, and to nobody else."""
        for node in [node for node in self._streams if node not in ensemble]:
            leaving = asyncio.create_task(self._streams.pop(node).close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        for node in ensemble:
            if node not in self._streams and not self._done.done():
                self._streams[node] = MemberStream(self, node)

    # --- what streams say

    def on_connected(self, node: str) -> None:
        if self._core is not None:
            self._feed(self._core.on_connected, node)

    def on_closed(self, node: str, why: str) -> None:
        if self._core is None:
            return
        self._trouble = f"{node}: {why}"
        self._feed(self._core.on_closed, node, why)
        hopeless = [stream.hopeless for stream in self._streams.values()]
        if hopeless and all(hopeless):
            self.fail(Unavailable(hopeless[0]))

    def on_frame(self, stream: MemberStream, frame: bytes) -> None:
        """Take one frame; raises RemoteViolation when it is not even a shipment."""
        core, node = self._core, stream.node
        if core is None:
            return
        self._stats.received(node, len(frame))
        try:
            message = decode_answer(frame)
        except CorruptShipment as error:
            log.warning("shard %d of %s: %s sent a damaged frame: %s", self.shard, self.group_name, node, error)
            self._feed(core.on_corrupt, node, error.generation, str(error))
            return
        if isinstance(message, Started):
            if message.status is Status.OK:
                stream.healthy()
                self._hear(node, message.first)
            self._feed(core.on_started, node, message)
        else:
            self._feed(core.on_shipment, node, message)

    def _hear(self, node: str, first: int) -> None:
        if self._from_earliest and node not in self._heard:
            self._heard.add(node)
            self._removed_before = max(self._removed_before, first)

    # --- what the reader says

    def taken(self, item: ReadBatch | Gap) -> None:
        """The application has taken a batch or a gap."""
        self._untaken -= 1
        if not isinstance(item, Gap):
            self._consumed_bytes += item.size
        if self._untaken and self._consumed_bytes < self._tell_bytes:
            return
        self._progress_ms = self._clock.ms()
        if self._core is not None and not self._done.done():
            consumed, self._consumed_bytes = self._consumed_bytes, 0
            self._feed(self._core.on_consumed, consumed)

    # --- effects

    def _feed(self, event: Callable[..., list[ReaderEffect]], *facts: object) -> None:
        """Tell the core what happened and run what follows from it; any error ends the read."""
        core = self._core
        assert core is not None
        try:
            now_ms, before = self._clock.ms(), core.next
            effects = event(now_ms, *facts)
            if core.next > before:
                self._progress_ms = now_ms
            while not self._done.done():
                for effect in effects:
                    self._run_effect(effect)
                consumed = self._consumed_bytes
                if self._untaken or not consumed:
                    return
                self._consumed_bytes = 0
                effects = core.on_consumed(self._clock.ms(), consumed)
        except Exception as error:
            self.fail(error)

    def _run_effect(self, effect: ReaderEffect) -> None:
        match effect:
            case Deliver():
                self._deliver(effect)
            case Tell():
                stream = self._streams.get(effect.node)
                if stream is not None:
                    stream.tell(effect.message)
            case WakeAt():
                self._alarm.set(effect.at_ms)
            case DeliverGap():
                self._deliver_gap(effect)
            case Note():
                self._note(effect)
            case Finished():
                if not self._done.done():
                    self._done.set_result(None)

    def _deliver(self, effect: Deliver) -> None:
        batches: list[ReadBatch] = []
        decoded_bytes_max = self._settings.decoded_bytes_max
        assert isinstance(effect.item.body, tuple), "what is delivered has been checked"
        for entry in effect.item.body:
            if entry.kind is Kind.DATA:
                batches.append(ReadBatch(self.shard, entry, effect.first, effect.last, decoded_bytes_max))
            else:
                self._reader.epochs_begun += entry.kind is Kind.EPOCH_START
                self._consumed_bytes += entry.size
        if batches:
            self._untaken += len(batches)
            self._reader.push(*batches)

    def _deliver_gap(self, effect: DeliverGap) -> None:
        silent = effect.kind is GapKind.TRIM and effect.last < self._removed_before
        gap = self._reader.gap(effect.kind, self.shard, effect.first, effect.last, silent=silent)
        if gap is not None:
            self._untaken += 1
            self._reader.push(gap)

    def _note(self, note: Note) -> None:
        stats = self._stats
        match note.what:
            case "rewind":
                stats.rewinds[str(note.reason)] += 1
            case "known_down":
                stats.failovers += 1
                self.routing.refresh_soon()
            case "slow":
                stats.slow += 1
            case "all_send_all":
                stats.all_send_all += 1
        log.log(
            logging.DEBUG if note.what == "rewind" else logging.INFO, "shard %d of %s: %s %s (%s) %s",
            self.shard, self.group_name, note.what, note.node, note.reason, note.detail,
        )
