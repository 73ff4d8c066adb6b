"""Reading by single copy delivery: the core's reader on streams to members that run the core's sender on their disks.

Streams keep order and lose nothing while they live; they break, or hang half-open and then break or go on.  Members
pause, are slow, and send what was damaged on the way; applications take their time.  Faults of nodes, disks and
changes are those of the rest of the world.
Stays out: whether what was delivered is right (`checkers.delivered`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import LogReadFailed
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.delivery.messages import (
    DAMAGED,
    Deliver,
    DeliverGap,
    Finished,
    Item,
    Note,
    ReaderEffect,
    Shipment,
    Start,
    Started,
    Status,
    Tell,
    WakeAt,
    Window,
    singly,
    together,
)
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import Reader, ReaderSettings
from tidemark_core.delivery.sender import REPAIR_RETRY_MS, End, Look, Repair, Say, Sender, Wait
from tidemark_core.delivery.stretch import Asked, Rule, Stretch

if TYPE_CHECKING:
    from .node import Node
    from .world import World

RECONNECT_MS = 60
PAUSE_LOOK_MS = 20
HEADER_DAMAGE_EVERY = 4
"""Of the damaged entries one in so many has a damaged header: nobody can tell whose it is."""


@dataclass(slots=True)
class ReadingOptions:
    """Chances are per tick of the trouble that readers have, and per shipment; times are milliseconds."""

    readers: int = 0
    window_bytes: int = 4_000
    frame_bytes: int = 2_000
    local: float = 0.0              # chance that a reader reads from members nearby
    map_delay_ms: int = 50          # how late readers hear of other members, on average
    item_ms: int = 0                # how long the application takes for an item
    trouble_every_ms: int = 200
    breaks: float = 0.0
    hangs: float = 0.0
    pauses: float = 0.0
    slow: float = 0.0
    app_pauses: float = 0.0
    again: float = 0.0              # a reader begins anew, somewhere below
    spoilt: float = 0.0             # chance that a shipment is damaged on its way


class _HeaderDamaged(Exception):
    """A header that cannot be read."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


def stored(node: Node, shard: ShardId, first: int, last: int) -> Iterator[Entry]:
    """Yield headers from the one that holds `first`, as a store does; raises where one is damaged or missing."""
    image = node.disk.image(shard)
    at = image.position(first)
    if at and image.entries[at - 1].last >= first:
        at -= 1
    expected = first
    for entry in image.entries[at:]:
        if entry.base > expected:
            raise _HeaderDamaged(expected)
        if entry.last > last:
            return
        if (shard, entry.base) in node.disk.corrupt and entry.base % HEADER_DAMAGE_EVERY == 0:
            raise _HeaderDamaged(entry.base)
        expected = entry.last + 1
        yield entry
    if expected <= last:
        raise _HeaderDamaged(expected)


def joined(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return items of one entry each as they would come off the wire."""
    return tuple(together(one for item in items for one in (item.body if isinstance(item.body, tuple) else (item,))))


def take(node: Node, shard: ShardId, rule: Rule, asked: Asked) -> Stretch:
    """Look at a stretch of a node's disk, as the shell does."""
    found = Stretch(asked.first - 1)
    try:
        found.look(rule, asked, stored(node, shard, asked.first, asked.last))
    except _HeaderDamaged as damaged:
        found.damaged_at = damaged.offset
    wanted = found.wanted
    spoilt = next((entry.base for entry in wanted if (shard, entry.base) in node.disk.corrupt), None)
    found.bring((entry for entry in wanted if spoilt is None or entry.base < spoilt), spoilt)
    return found


class Stream:
    """One connection of one reader to one node, and what the node does on it."""

    def __init__(self, client: Client, node: Node) -> None:
        self.client = client
        self.world = client.world
        self.node = node
        self.life = node.life
        self.open = True
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None   # what a stream that hangs holds
        self._arrives = {"to": 0, "from": 0}
        self._inbox: deque[Start | Window] = deque()
        self._sender: Sender | None = None
        self._busy = False                     # something is under way that steps the sender when it ends
        self._timer = 0

    # --- the connection -----------------------------------------------------------------------------------

    def carry(self, way: str, action: Callable[..., None], *arguments: Any, delay_ms: int = 0) -> None:
        """Bring something to the other end, in order, unless the stream ends before."""
        world, options = self.world, self.world.options.network
        delay = delay_ms + world.dice.between(options.delay_ms_min, options.delay_ms_max)
        if world.dice.chance(options.loss):
            delay += world.dice.between(20, 200)   # sent again by the transport
        at = max(self._arrives[way], world.now_ms + delay)
        self._arrives[way] = at
        world.after(at - world.now_ms, self._arrive, action, arguments)

    def _arrive(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.open:
            self.world.idle()
        elif self.held is not None:
            self.held.append((action, arguments))
        else:
            action(*arguments)

    def hang(self, ms: int, breaks: bool) -> None:
        """Hold everything for a while, then bring it or break."""
        if self.open and self.held is None:
            self.held = []
            self.world.trace.note(self.node.name, "stream", "hangs")
            self.world.after(ms, self._hung_enough, breaks)

    def _hung_enough(self, breaks: bool) -> None:
        held, self.held = self.held or [], None
        if not self.open:
            self.world.idle()
        elif breaks or self.life != self.node.life:
            self.close("timed out")
        else:
            for action, arguments in held:
                self._arrive(action, arguments)

    def close(self, why: str) -> None:
        """The connection is gone; its reader notices after a while."""
        if self.open:
            self.open = False
            self.world.after(self.world.dice.between(1, 20), self.client.closed, self, why)

    # --- the node's side ----------------------------------------------------------------------------------

    def hear(self, message: Start | Window) -> None:
        self._inbox.append(message)
        self.wake()

    def wake(self) -> None:
        """Something may be new: look at it unless something is under way."""
        if self.open and not self._busy:
            self._busy = True
            self.world.after(0, self._run)

    def _run(self) -> None:
        """Run steps until there is something to wait for."""
        node = self.node
        if not self.open or node.core is None or node.life != self.life:
            self.world.idle()
            return
        paused_ms = self.client.readings.paused_ms(node)
        if paused_ms:
            self.world.after(paused_ms, self._run)
            return
        self._busy = False
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Window):
                if self._sender is not None:
                    self._sender.on_window(message)
            else:
                self._sender = Sender(message, node.name, self.world.options.reading.frame_bytes)
        sender, shard = self._sender, self.client.shard
        while sender is not None:
            step = sender.step(
                self.world.now_ms, node.core.log.readable(shard), partial(node.core.log.holes, shard),
                partial(node.core.log.block_at, shard),
            )
            match step:
                case Say():
                    self.say(step.message)
                case Look():
                    self._later(self.world.dice.between(0, self.world.options.disk.read_ms_max), self._look, step)
                    return
                case Repair():
                    self.world.trace.count("damage_met")
                    node.feed(self.life, LogReadFailed(shard, None, step.offset))
                    self._later(REPAIR_RETRY_MS, self._looked)
                    return
                case Wait():
                    self._timer += 1
                    self.world.after(step.ms, self._waited, self._timer)
                    return
                case End():
                    return

    def _later(self, ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self._busy = True
        slow = self.client.readings.slow_ms.get(self.node.name, 0)
        self.world.after(ms + slow + self.node.slow_disk_ms // 4, action, *arguments)

    def _look(self, look: Look) -> None:
        node, sender = self.node, self._sender
        if self.open and node.core is not None and node.life == self.life and sender is not None:
            shard = self.client.shard
            found = take(node, shard, sender.rule, look.asked)
            newest = self._inbox[-1] if self._inbox else None
            if not isinstance(newest, Start):
                sender.looked(
                    self.world.now_ms, look, found, node.core.log.readable(shard), partial(node.core.log.holes, shard),
                    partial(node.core.log.block_at, shard),
                )
        self._run()

    def _looked(self) -> None:
        self._run()

    def _waited(self, timer: int) -> None:
        if timer == self._timer and not self._busy:
            self._run()
        else:
            self.world.idle()

    def say(self, message: Started | Shipment) -> None:
        world, client = self.world, self.client
        delay_ms = client.readings.slow_ms.get(self.node.name, 0)
        if isinstance(message, Started):
            self.carry("from", client.started, self, message, delay_ms=delay_ms)
            return
        if message.items and world.dice.chance(world.options.reading.spoilt):
            world.trace.count("shipments_spoilt")
            if world.dice.chance(0.3):
                self.carry("from", client.spoilt, self, message.generation, delay_ms=delay_ms)
                return
            items = list(singly(message.items))    # one entry is spoilt, those around it are not
            at = world.dice.between(0, len(items) - 1)
            if items[at].body is not None:
                items[at] = items[at]._replace(body=DAMAGED)
            message = Shipment(message.generation, message.first, message.through, message.released, joined(items))
        self.carry("from", client.shipped, self, message, delay_ms=delay_ms)


class Client:
    """One reader, its streams and its application."""

    def __init__(self, readings: Readings, name: str, shard: ShardId) -> None:
        self.readings = readings
        self.world = readings.world
        self.name = name
        self.shard = shard
        self.zone = self.world.dice.pick(self.world.shard_map.zone_of)[1]
        self.local = self.world.dice.chance(self.world.options.reading.local)
        self.streams: dict[str, Stream] = {}
        self.queue: deque[int] = deque()       # sizes of what the application has not taken
        self.app_paused = False
        self.found_slow: set[str] = set()      # by the reader, since it began
        self.idle_ms = 0                       # in which the application had nothing to do, since it got anything
        self.heard_ms: dict[str, int] = {}     # when a node said something last in the reader's generation
        self.moved_ms = 0                      # when the reader delivered something last
        self.runs = 0
        self.reader: Reader
        self._idle_since: int | None = None
        self._wake_token = 0
        self._taking = False
        self.begin(0)

    # --- life ---------------------------------------------------------------------------------------------

    def begin(self, first: int, settings: ReaderSettings | None = None) -> None:
        """Read anew from `first`, on new streams."""
        for stream in self.streams.values():
            stream.open = False
        self.streams.clear()
        self.queue.clear()
        self.found_slow.clear()
        self.idle_ms, self._idle_since = 0, None
        self.runs += 1
        settings = settings or self._drawn_settings()
        self.heard_ms.clear()
        self.moved_ms = self.world.now_ms
        mode = Mode.LOCAL if self.local else Mode.SINGLE_COPY
        ensemble, priorities, copies = self._members()
        self.reader = Reader(ensemble, first, -1, mode, settings, priorities, copies)
        self.world.trace.count("readers_begun")
        self.world.checkers.reader_begins(self, first)
        self.run(self.reader.begin(self.world.now_ms))
        for node in ensemble:
            self._connect(node)

    def _drawn_settings(self) -> ReaderSettings:
        dice = self.world.dice
        scd_timeout_ms = dice.between(150, 500)
        return ReaderSettings(
            scd_timeout_ms=scd_timeout_ms, silent_timeout_ms=scd_timeout_ms // 3,
            all_send_all_timeout_ms=dice.between(500, 1_200), started_timeout_ms=dice.between(100, 400),
            rewind_pause_max_ms=dice.between(50, 500), window_bytes=self.world.options.reading.window_bytes,
        )

    def _members(self) -> tuple[tuple[str, ...], tuple[int, ...], int]:
        record = self.world.metadata.record(self.shard)
        ensemble = tuple(member.node for member in record.ensemble)
        zone_of = dict(self.world.shard_map.zone_of)
        near = tuple(int(zone_of[node] == self.zone) for node in ensemble) if self.local else ()
        return ensemble, near, min(record.copies, len(ensemble))

    def refresh(self) -> None:
        """Hear of the members in force, and connect to those that are new."""
        ensemble, priorities, copies = self._members()
        before = self.reader.ensemble
        if (ensemble, copies) == (before, self.reader.copies) or len(set(ensemble)) < len(ensemble):
            self.world.idle()
            return
        self.run(self.reader.on_ensemble(self.world.now_ms, ensemble, priorities, copies))
        for node in before:
            if node not in ensemble and (stream := self.streams.pop(node, None)) is not None:
                stream.open = False
        for node in ensemble:
            if node not in before:
                self._connect(node)

    def _connect(self, node: str) -> None:
        self.world.after(self.world.dice.between(1, RECONNECT_MS), self._try, node, self.runs)

    def _try(self, name: str, run: int) -> None:
        if run != self.runs or name in self.streams or name not in self.reader.ensemble:
            self.world.idle()
            return
        node = self.world.nodes[name]
        if node.core is None or self.readings.unreachable(self, node):
            self.run(self.reader.on_closed(self.world.now_ms, name, "cannot be reached"))
            self._connect(name)
            return
        self.streams[name] = Stream(self, node)
        self.run(self.reader.on_connected(self.world.now_ms, name))

    def closed(self, stream: Stream, why: str) -> None:
        name = stream.node.name
        if self.streams.get(name) is not stream:
            self.world.idle()
            return
        del self.streams[name]
        self.run(self.reader.on_closed(self.world.now_ms, name, why))
        self._connect(name)

    # --- what arrives -------------------------------------------------------------------------------------

    def started(self, stream: Stream, m: Started) -> None:
        self._note(stream, m)
        self.run(self.reader.on_started(self.world.now_ms, stream.node.name, m))

    def shipped(self, stream: Stream, m: Shipment) -> None:
        self._note(stream, m)
        self.run(self.reader.on_shipment(self.world.now_ms, stream.node.name, m))

    def spoilt(self, stream: Stream, generation: int) -> None:
        self.run(self.reader.on_corrupt(self.world.now_ms, stream.node.name, generation, "fails its checksum"))

    def _note(self, stream: Stream, m: Started | Shipment) -> None:
        if isinstance(m, Started) and m.status is not Status.OK:
            self.world.trace.count("streams_refused")
        elif m.generation == self.reader.generation:
            self.heard_ms[stream.node.name] = self.world.now_ms
        self.world.trace.note(self.name, f"<{stream.node.name}", m)

    # --- effects ------------------------------------------------------------------------------------------

    def run(self, effects: list[ReaderEffect]) -> None:
        world = self.world
        for effect in effects:
            match effect:
                case Tell():
                    stream = self.streams.get(effect.node)
                    if stream is not None and stream.open:
                        stream.carry("to", stream.hear, effect.message)
                case Deliver():
                    world.checkers.reader_delivers(self, effect)
                    self.moved_ms = world.now_ms
                    self._end_idling()
                    self.queue.append(effect.item.size)
                    self._take_later()
                case DeliverGap():
                    world.trace.note(self.name, "gap", effect)
                    world.trace.count(f"reader_gaps_{effect.kind.value.lower()}")
                    world.checkers.reader_passes(self, effect)
                case WakeAt():
                    self._wake_token += 1
                    if effect.at_ms is not None:
                        world.after(max(0, effect.at_ms - world.now_ms), self._wake, self._wake_token)
                case Note():
                    world.trace.note(self.name, effect.what, f"{effect.node} {effect.reason} {effect.detail}")
                    world.trace.count(f"reader_{effect.what}")
                    world.trace.count(f"reader_{effect.what}_{effect.reason}")
                    if effect.what == "slow":
                        self._end_idling()
                        self.found_slow.add(effect.node)
                    world.checkers.reader_notes(self, effect)
                case Finished():
                    raise AssertionError("S: a reader without an end ended")
        world.checkers.reader_stepped(self)

    def _wake(self, token: int) -> None:
        if token == self._wake_token:
            self.run(self.reader.on_time(self.world.now_ms))
        else:
            self.world.idle()

    # --- the application ----------------------------------------------------------------------------------

    def _end_idling(self) -> None:
        """Count the time that it idled, as far as it goes."""
        if self._idle_since is not None:
            self.idle_ms += self.world.now_ms - self._idle_since
            self._idle_since = None if self.queue else self.world.now_ms

    def pause_app(self, ms: int) -> None:
        self.app_paused = True
        self.world.after(ms, self._app_goes_on)

    def _app_goes_on(self) -> None:
        self.app_paused = False
        self._take_later()

    def _take_later(self) -> None:
        if self.queue and not self._taking and not self.app_paused:
            self._taking = True
            self.world.after(self.world.options.reading.item_ms, self._take, self.runs)

    def _take(self, run: int) -> None:
        self._taking = False
        if run == self.runs and self.queue and not self.app_paused:
            size = self.queue.popleft()
            if not self.world.options.reading.item_ms:
                size += sum(self.queue)
                self.queue.clear()
            if not self.queue:
                self._idle_since = self.world.now_ms
            self.run(self.reader.on_consumed(self.world.now_ms, size))
        else:
            self.world.idle()
        self._take_later()


class Readings:
    """All readers of a run, and their troubles."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients: list[Client] = []
        self.slow_ms: dict[str, int] = {}
        self.calm = False
        self._paused_until: dict[str, int] = {}
        self._unreachable: dict[tuple[str, str], int] = {}

    def begin(self) -> None:
        """Let the readers loose."""
        world, options = self.world, self.world.options.reading
        for number in range(options.readers):
            world.after(world.dice.between(0, 200), self._begin, f"r{number + 1}", world.dice.pick(world.shards))
        if options.readers:
            world.after(world.dice.around(options.trouble_every_ms), self._trouble)

    def _begin(self, name: str, shard: ShardId) -> None:
        client = Client(self, name, shard)
        self.clients.append(client)
        self._refresh(client)

    def _refresh(self, client: Client) -> None:
        client.refresh()
        self.world.after(self.world.dice.around(self.world.options.reading.map_delay_ms), self._refresh, client)

    def released(self, node: Node, shard: ShardId) -> None:
        """More may be shown on this node."""
        for client in self.clients:
            if client.shard == shard and (stream := client.streams.get(node.name)) is not None:
                stream.wake()

    def node_stopped(self, node: Node) -> None:
        """Its connections break; now and then nobody is told for a while."""
        for client in self.clients:
            stream = client.streams.get(node.name)
            if stream is not None and stream.open:
                if self.world.dice.chance(0.3) and not self.calm:
                    stream.hang(self.world.dice.around(400), breaks=True)
                else:
                    stream.close("connection reset")

    # --- troubles -----------------------------------------------------------------------------------------

    def paused_ms(self, node: Node) -> int:
        if node.held is not None:
            return PAUSE_LOOK_MS
        return max(0, self._paused_until.get(node.name, 0) - self.world.now_ms)

    def unreachable(self, client: Client, node: Node) -> bool:
        return self._unreachable.get((client.name, node.name), 0) > self.world.now_ms

    def behind(self) -> list[str]:
        """Say which readers have not taken everything that live members may show."""
        return list(filter(None, map(self.stands_behind, self.clients)))

    def stands_behind(self, client: Client) -> str:
        """Say where a reader stands that has not taken everything that live members may show; empty when it has."""
        shown = [node.core.log.readable(client.shard) for node in self.world.nodes.values() if node.core]
        released = max((upto for _, upto in filter(None, shown)), default=-1)
        if client.reader.next <= released or client.queue:
            return f"{client.name} stands at {client.reader.next} of {released}"
        return ""

    def failed_over(self) -> list[str]:
        """Say which readers still go around members."""
        return [
            f"{client.name} goes around {client.reader.down}{' and asks all' if client.reader.all_send_all else ''}"
            for client in self.clients if client.reader.down or client.reader.all_send_all
        ]

    def stop(self) -> None:
        """From now on streams work, members and applications go on."""
        self.calm = True
        self.slow_ms.clear()
        self._paused_until.clear()
        self._unreachable.clear()
        self.world.options.reading.spoilt = 0.0

    def _trouble(self) -> None:
        world, options = self.world, self.world.options.reading
        if self.calm:
            world.idle()
            return
        world.after(world.dice.around(options.trouble_every_ms), self._trouble)
        kind = world.dice.weighted(
            (
                ("break", options.breaks), ("hang", options.hangs), ("pause", options.pauses), ("slow", options.slow),
                ("app", options.app_pauses), ("again", options.again),
            )
        )
        if kind is None or not self.clients:
            return
        client = world.dice.pick(self.clients)
        node = world.nodes[world.dice.pick(client.reader.ensemble)]
        stream = client.streams.get(node.name)
        ms = world.dice.around(500)
        world.trace.count(f"reading_troubles_{kind}")
        world.trace.note(client.name, "trouble", f"{kind} {node.name} {ms} ms")
        if kind == "break" and stream is not None:
            if world.dice.chance(0.6):
                self._unreachable[client.name, node.name] = world.now_ms + ms
            stream.close("cut")
        elif kind == "hang" and stream is not None:
            stream.hang(ms, world.dice.chance(0.5))
        elif kind == "pause":
            self._paused_until[node.name] = world.now_ms + ms
        elif kind == "slow":
            self.slow_ms[node.name] = world.dice.between(10, 200)
            world.after(4 * ms, self._quicken, node.name)
        elif kind == "app":
            client.pause_app(ms)
        elif kind == "again":
            client.begin(world.dice.between(0, client.reader.next))

    def _quicken(self, node: str) -> None:
        self.world.idle()
        if not self.calm:
            self.slow_ms.pop(node, None)
