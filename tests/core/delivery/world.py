"""A world around one reader: members with logs, links with delays, faults, an application; all on a virtual clock.

Members go by START and WINDOW alone, and decide with the functions that real members use.  Whatever the reader hands
out is compared at once with the log; nothing is random but what the seed says.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tidemark_core.delivery.messages import (
    DAMAGED,
    Deliver,
    DeliverGap,
    Finished,
    GapKind,
    Item,
    Note,
    ReaderEffect,
    Reason,
    Shipment,
    Start,
    Started,
    Status,
    Tell,
    WakeAt,
    Window,
    entries_item,
)
from tidemark_core.delivery.order import Mode, nearest_first, ships, slots_of
from tidemark_core.delivery.reader import Reader, ReaderSettings

HOLE_BYTES = 16


class Logged(NamedTuple):
    """One entry of the log, as all members know its header."""

    first: int
    last: int
    size: int
    order: int
    hidden: bool    # rolled back

    @property
    def base(self) -> int:
        return self.first


class Log:
    """What was committed, and who lacks which payload."""

    def __init__(self) -> None:
        self.entries: list[Logged] = []
        self.largest = 0
        self._firsts: list[int] = []
        self.lacking: dict[str, set[int]] = {}    # node: first offsets of entries whose payload it does not hold
        self.damaged: dict[str, set[int]] = {}    # node: those whose payload fails its checksum

    @property
    def head(self) -> int:
        return self.entries[-1].last if self.entries else -1

    def append(self, count: int, size: int, order: int, hidden: bool = False) -> Logged:
        entry = Logged(self.head + 1, self.head + count, size, order, hidden)
        self.entries.append(entry)
        self.largest = max(self.largest, size)
        self._firsts.append(entry.first)
        return entry

    def at(self, offset: int) -> int:
        """Return the index of the entry that holds the offset."""
        return bisect_right(self._firsts, offset) - 1

    def holds(self, node: str, entry: Logged) -> bool:
        return entry.first not in self.lacking.get(node, ()) and entry.first not in self.damaged.get(node, ())


class Member:
    """One node.  It handles what came in, in order, unless it hangs, and ships while its window allows."""

    def __init__(self, world: World, name: str, rate: int) -> None:
        self.world = world
        self.name = name
        self.rate = rate                      # bytes in a millisecond
        self.delay_ms = 0                     # of an answer to START, and of everything else at the tail
        self.released = -1
        self.first = 0
        self.hung = False
        self.slowed = 0                       # what its rate was before, 0: it is the usual one
        self.trouble_ms = -60_000             # when something last ceased to ail it
        self.stuck = False                    # it has lost count of its window; only START helps
        self.refuses = False
        self.member = True
        self.connected = False
        self.stream = 0                       # number of the connection; what an older one brings is lost
        self.inbox: deque[Start | Window] = deque()
        self.start: Start | None = None
        self.position = 0
        self.told = self.told_released = -1
        self.granted_bytes = 0
        self.sent_bytes = 0
        self.busy_until_ms = 0
        self._due: int | None = None

    def was_troubled(self, since_ms: int) -> bool:
        """Say whether something ailed it at some time since then."""
        return self.hung or self.stuck or self.delay_ms > 0 or self.slowed or self.trouble_ms >= since_ms

    def recover(self) -> None:
        """It hangs no longer, is as fast as it was, and answers in time."""
        self.trouble_ms = self.world.now
        self.hung, self.delay_ms = False, 0
        if self.slowed:
            self.rate, self.slowed = self.slowed, 0
        self.go_on()

    # --- connection -----------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        self.stream += 1
        self.inbox.clear()
        self.start = None
        if self.connected:
            self.connected = False
            self.world.run(self.world.reader.on_closed(self.world.now, self.name, why))

    def connect(self) -> None:
        if not self.connected and not self.world.unreachable(self):
            self.connected = True
            self.stream += 1
            self.world.run(self.world.reader.on_connected(self.world.now, self.name))

    def hear(self, message: Start | Window) -> None:
        stream = self.stream

        def arrive() -> None:
            if stream == self.stream:
                self.inbox.append(message)
                self.go_on()

        self.world.later(self.world.travel_ms(self.name, "to"), arrive)

    # --- work -----------------------------------------------------------------------------------------

    def go_on(self, after_ms: int = 0) -> None:
        """Work soon, unless that is planned."""
        at = max(self.world.now + after_ms, self.busy_until_ms)
        if self._due is None or at < self._due:
            self._due = at
            self.world.later(at - self.world.now, lambda: self._wake(at))

    def _wake(self, at: int) -> None:
        if self._due != at:
            return
        self._due = None
        if not self.hung:
            self._handle()
            self._ship()

    def _handle(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Window):
                if self.start is not None and message.generation == self.start.generation:
                    assert message.bytes_total > self.granted_bytes, "a window only grows"
                    self.granted_bytes = message.bytes_total
                continue
            generation = message.generation
            if not self.member or self.name not in message.ensemble:
                self.start = None
                self._say(Started(generation, Status.NOT_MEMBER, -1, 0))
            elif self.refuses:
                self.start = None
                self._say(Started(generation, Status.UNAVAILABLE, self.released, self.first, "not now"))
            else:
                self.start, self.position, self.told = message, message.first, message.first - 1
                self.granted_bytes, self.sent_bytes = message.window_bytes, 0
                if self.stuck:
                    self.stuck, self.trouble_ms = False, self.world.now
                self._say(Started(generation, Status.OK, self.released, self.first))

    def _ship(self) -> None:
        start, log = self.start, self.world.log
        if start is None:
            return
        if not self.member or self.refuses:
            status = Status.UNAVAILABLE if self.member else Status.NOT_MEMBER
            self.start = None
            self._say(Started(start.generation, status, self.released, self.first))
            return
        if self.position < self.first:
            self.position = self.first
            self._say(Started(start.generation, Status.OK, self.released, self.first))
        items: list[Item] = []
        run_max = self.world.dice.choice((1, 1, 3, 8))  # every node cuts its entries into items as it likes
        size = 0
        full = False
        last = self.released if start.until < 0 else min(self.released, start.until)
        while self.position <= last and len(items) < 8 and size < 50_000:
            entry = log.entries[log.at(self.position)]
            if self._ours(start, entry) and entry.first not in log.lacking.get(self.name, ()):
                if self.stuck or self.sent_bytes >= self.granted_bytes:
                    full = True
                    break
                item = self._item(entry)
                self.sent_bytes += item.size
                size += item.size
                self.position = item.last + 1
                before = items[-1] if items else None
                if (
                    before is not None and isinstance(before.body, tuple) and isinstance(item.body, tuple)
                    and before.last + 1 == item.first and before.entry_count < run_max
                ):
                    items[-1] = entries_item(before.body + item.body)
                else:
                    items.append(item)
            else:
                self.position = entry.last + 1
        if items or self.position - 1 > self.told or (self.stuck and self.released > self.told_released):
            shipment = Shipment(start.generation, self.told + 1, self.position - 1, self.released, tuple(items))
            self.told, self.told_released = self.position - 1, self.released
            self.busy_until_ms = self.world.now + size // self.rate
            self._say(shipment)
            if not full:
                self.go_on()

    def _ours(self, start: Start, entry: Logged) -> bool:
        if start.mode is Mode.ALL_SEND_ALL:
            return True
        slots = slots_of(entry.order, len(start.ensemble))
        if start.mode is Mode.LOCAL:
            slots = nearest_first(slots, start.priorities, start.copies)
        known_down = [start.ensemble.index(node) for node in start.known_down]
        return ships(slots, start.ensemble.index(self.name), known_down)

    def _item(self, entry: Logged) -> Item:
        if not entry.hidden:
            damaged = entry.first in self.world.log.damaged.get(self.name, ())
            return Item(entry.first, entry.last, entry.size, DAMAGED if damaged else (entry,))
        # A member may know that more is rolled back behind it, and say so at once.
        log, last = self.world.log, entry.last
        index = log.at(entry.first) + 1
        while index < len(log.entries) and log.entries[index].hidden and log.entries[index].last <= self.released:
            if self.world.dice.random() < 0.5:
                break
            last = log.entries[index].last
            index += 1
        return Item(entry.first, last, HOLE_BYTES, None)

    def _say(self, message: Started | Shipment) -> None:
        stream, world = self.stream, self.world
        spoil = isinstance(message, Shipment) and message.items and world.dice.random() < world.spoil_rate

        def arrive() -> None:
            if stream != self.stream:
                return
            if isinstance(message, Started):
                world.run(world.reader.on_started(world.now, self.name, message))
                return
            world.bytes_received += sum(item.size for item in message.items)
            if spoil:
                world.run(world.reader.on_corrupt(world.now, self.name, message.generation, "fails its checksum"))
            else:
                world.run(world.reader.on_shipment(world.now, self.name, message))

        late = self.delay_ms if isinstance(message, Started) or self.delay_ms < 2_000 else 0
        busy = max(0, self.busy_until_ms - world.now)
        world.later(late + busy + world.travel_ms(self.name, "from", late + busy), arrive)

    def release(self, offset: int) -> None:
        if offset > self.released:
            self.released = offset
            self.go_on()


class Application:
    """Takes what is delivered, in its own time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue: deque[int] = deque()
        self.untaken_bytes = 0
        self.item_ms = 0
        self.paused = False
        self._going = False

    def deliver(self, size: int) -> None:
        self.queue.append(size)
        self.untaken_bytes += size
        self.go_on()

    def go_on(self) -> None:
        if not self._going and self.queue and not self.paused:
            self._going = True
            self.world.later(self.item_ms, self._take)

    def _take(self) -> None:
        self._going = False
        if self.paused:
            return
        size = self.queue.popleft()
        if not self.item_ms:  # as fast as it comes
            size = self.untaken_bytes
            self.queue.clear()
        self.untaken_bytes -= size
        self.go_on()
        self.world.run(self.world.reader.on_consumed(self.world.now, size))


class World:
    """Everything around one reader."""

    def __init__(
        self, dice: Random, names: tuple[str, ...], settings: ReaderSettings, *, first: int = 0, until: int = -1,
        mode: Mode = Mode.SINGLE_COPY, priorities: tuple[int, ...] = (), rate: int = 10_000,
    ) -> None:
        self.dice = dice
        self.now = 0
        self.log = Log()
        self.reader = Reader(names, first, until, mode, settings, priorities)
        self.members = {name: Member(self, name, rate) for name in names}
        self.ensemble = names
        self.application = Application(self)
        self.cut_off: set[str] = set()
        self.spoil_rate = 0.0
        self.travel_max_ms = 5
        self.reconnect_ms = 200
        self.bytes_received = 0
        self.expected = first                 # next offset to be delivered
        self.until = until
        self.finished = False
        self.delivered: list[Deliver | DeliverGap] = []
        self.notes: list[tuple[int, Note]] = []
        self.tells = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._wake_ms: int | None = None
        self._arrivals: dict[tuple[str, str], int] = {}
        self._steps = 0

    # --- time -----------------------------------------------------------------------------------------

    def later(self, after_ms: int, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + after_ms, self._count, call))

    def travel_ms(self, name: str, way: str, after_ms: int = 0) -> int:
        """Return how long a message takes; messages of one stream do not overtake each other."""
        at = max(self.now + after_ms + self.dice.randint(0, self.travel_max_ms), self._arrivals.get((name, way), 0))
        self._arrivals[name, way] = at
        return at - self.now - after_ms

    def run_until(self, ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass up to `ms`, or until done; True if done."""
        while not done():
            wake = self._wake_ms
            at = min(self._queue[0][0] if self._queue else ms + 1, ms + 1 if wake is None else max(wake, self.now))
            if at > ms:
                self.now = max(self.now, ms)
                return done()
            self.now = at
            self._steps += 1
            assert self._steps < 300_000, "the world does not come to rest"
            if wake is not None and wake <= at:
                self._wake_ms = None
                self.run(self.reader.on_time(self.now))
            else:
                heapq.heappop(self._queue)[2]()
        return True

    # --- connections ----------------------------------------------------------------------------------

    def begin(self) -> None:
        self.run(self.reader.begin(self.now))
        for member in self.members.values():
            self._connect_later(member)

    def _connect_later(self, member: Member) -> None:
        """What a shell does: connect to every member of the reader's ensemble, again and again."""
        if member.connected or member.name not in self.reader.ensemble:
            return

        def attempt() -> None:
            if member.connected or member.name not in self.reader.ensemble:
                return
            if self.unreachable(member):
                self.run(self.reader.on_closed(self.now, member.name, "refused"))
                self._connect_later(member)
            else:
                member.connect()

        self.later(self.dice.randint(1, self.reconnect_ms), attempt)

    def unreachable(self, member: Member) -> bool:
        return member.name in self.cut_off

    def kill(self, name: str) -> None:
        self.cut_off.add(name)
        self.break_stream(name)

    def revive(self, name: str) -> None:
        self.cut_off.discard(name)

    def break_stream(self, name: str) -> None:
        self.members[name].close("closed")
        self._connect_later(self.members[name])

    def change(self, ensemble: tuple[str, ...], priorities: tuple[int, ...] = ()) -> None:
        """The reader hears of new members."""
        self.run(self.reader.on_ensemble(self.now, ensemble, priorities))
        for member in self.members.values():
            if member.name not in ensemble and member.connected:
                member.connected = False
                member.stream += 1
                member.start = None
                member.inbox.clear()
            self._connect_later(member)

    # --- effects --------------------------------------------------------------------------------------

    def run(self, effects: list[ReaderEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self.tells += 1
                    if self.members[effect.node].connected:
                        self.members[effect.node].hear(effect.message)
                case Deliver():
                    self._check_delivered(effect)
                    self.application.deliver(effect.item.size)
                case DeliverGap():
                    self._check_gap(effect)
                case WakeAt():
                    self._wake_ms = effect.at_ms
                case Note():
                    self._check_note(effect)
                    self.notes.append((self.now, effect))
                case Finished():
                    self.finished = True

        self._check_memory()

    def _check_note(self, note: Note) -> None:
        assert note.reason is not Reason.VIOLATION, f"honest {note.node} is accused: {note.detail}"
        if note.reason is Reason.SILENT:
            since_ms = self.now - self.reader.settings.scd_timeout_ms - 1_000
            member, trimmed = self.members[note.node], max(member.first for member in self.members.values())
            excused = member.told < trimmed  # it was still at what others had trimmed
            assert excused or member.was_troubled(since_ms), f"{note.node} is blamed for the silence of others"
        if note.reason is Reason.SILENT or "no progress" in note.detail:
            assert not self.application.queue, "blamed while the application is the slow one"
            assert max(member.released for member in self.members.values()) >= self.expected, "blamed at the tail"

    def _check_memory(self) -> None:
        window, over = self.reader.settings.window_bytes, len(self.members) * self.log.largest
        assert self.reader.buffered_bytes <= window + over, "more is buffered than the window and an item each"
        assert self.application.untaken_bytes <= 2 * window + over, "a slow application is drowned"

    def _check_delivered(self, effect: Deliver) -> None:
        at, expected = self.log.at(self.expected), effect.item.body
        wanted = tuple(self.log.entries[at : at + len(expected)])
        assert expected == wanted, f"offset {self.expected}: {wanted} was wanted, {effect.item} came"
        assert not any(entry.hidden for entry in wanted)
        last = wanted[-1].last if self.until < 0 else min(wanted[-1].last, self.until)
        assert (effect.first, effect.last) == (self.expected, last), "each offset once, in order"
        self._moved(effect, last)

    def _check_gap(self, effect: DeliverGap) -> None:
        assert effect.first == self.expected <= effect.last, "each offset once, in order"
        assert self.until < 0 or effect.last <= self.until
        match effect.kind:
            case GapKind.TRIM:
                assert effect.last < max(member.first for member in self.members.values()), "nobody trimmed that"
            case GapKind.HOLE:
                assert all(entry.hidden for entry in self._entries(effect)), "not rolled back"
            case GapKind.DATALOSS:
                for entry in self._entries(effect):
                    assert not entry.hidden, "a hole is known to everybody"
                    holders = [node for node in self.reader.ensemble if self.log.holds(node, entry)]
                    assert not holders, f"{holders} hold {entry}, which was called lost"
            case GapKind.ACCESS:
                raise AssertionError("nobody forbids anything here")
        self._moved(effect, effect.last)

    def _entries(self, gap: DeliverGap) -> list[Logged]:
        return self.log.entries[self.log.at(gap.first): self.log.at(gap.last) + 1]

    def _moved(self, effect: Deliver | DeliverGap, last: int) -> None:
        self.delivered.append(effect)
        self.expected = last + 1
        assert self.reader.next >= self.expected
