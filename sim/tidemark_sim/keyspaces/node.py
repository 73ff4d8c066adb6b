"""A node of the keyspace plane: the core, a disk that is slow, a clock that is off, and lives that end.

Stays out: what a message says; when a node dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.clock import ShellClock
from tidemark_core.base.effects import (
    Effect,
    Feed,
    Persist,
    ReadRows,
    Received,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    Trace,
)
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member, Peer
from tidemark_core.base.marks import DiskMark, is_older
from tidemark_core.base.plane import NodeFacts
from tidemark_core.node import NodeCore
from tidemark_core.optimistic.plane import KeyspacePlane
from tidemark_core.planes import planes

from ..disk import Disk, Queued, StoredPlane, Tables
from ..timers import Timers

if TYPE_CHECKING:
    from .world import RangeWorld


class Node:
    """One node through all its lives; `life` changes at every start and stop, so that old events change nothing."""

    def __init__(self, world: RangeWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnations = 1
        self.member = Member(name, f"{name}-disk1")
        self.disk = Disk()
        self.restored = False       # from an older copy of its disk, and not noticed so far
        self.mark = 0               # on the disk; the store has another copy
        self.core: NodeCore | None = None
        self.boots = 0
        self.life = 0
        self.skew_ms = 0            # how far the wall clock is ahead of the true time
        self.clock = ShellClock(0, 0)
        self._syncing = 0
        self._timers = Timers(world, lambda event: self.turn((event,)))
        self._requests: dict[int, Callable[[Any], None]] = {}

    @property
    def plane(self) -> KeyspacePlane:
        """The plane of a node that is up."""
        assert self.core is not None
        plane = self.core.planes[KEYSPACE_PLANE]
        assert isinstance(plane, KeyspacePlane)
        return plane

    @property
    def now_ms(self) -> int:
        """The time on the node's clock."""
        return self.clock.advance(self.world.now_ms + self.skew_ms, self.world.now_ms)

    @property
    def is_old(self) -> bool:
        """Whether the disk is older than its mark in the store."""
        return self.lacks_writes(self.mark)

    def lacks_writes(self, mark: int) -> bool:
        """Say whether a copy of the disk with this mark is older than the mark in the store (D52)."""
        return is_older(self.world.marks.get(self.name), DiskMark(self.member.incarnation, mark))

    def raise_mark(self) -> None:
        """Write the next mark on the disk, then to the store."""
        self.mark += 1
        self.world.marks[self.name] = DiskMark(self.member.incarnation, self.mark)

    # --- lives --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover what is durable and come up; a disk that is older than its mark is given up."""
        if self.core is not None:
            return
        world = self.world
        if self.is_old:
            world.trace.count("images_noticed")
            self.wipe()
        self.life += 1
        self.boots += 1
        self.clock = ShellClock(world.now_ms + self.skew_ms, world.now_ms)
        facts = NodeFacts(self.member, f"{self.name}-boot{self.boots}")
        forgets = int(self.name[1:]) % world.options.forgetful == 0
        limits = replace(world.limits, repair_memory_bytes=0) if forgets else world.limits
        self.core = NodeCore(facts, planes(keyspaces=limits))
        self.core.recover(partial(StoredPlane, self.disk))
        world.trace.note(self.name, "start", str(self.member))
        self.turn(())
        world.after(world.options.mark_ms, self._mark, self.life)

    def _mark(self, life: int) -> None:
        """Raise the mark, and go on doing so."""
        self.world.idle()
        if self.life == life:
            self.raise_mark()
            self.world.after(self.world.options.mark_ms, self._mark, life)

    def crash(self) -> None:
        """Lose everything but a prefix of the queued writes."""
        if self.core is None:
            return
        queued = len(self.disk.queue)
        for item in self.disk.take(self.world.dice.between(0, queued)):
            self.disk.settle(item)
        lost = self.disk.power_cut()
        self.world.trace.note(self.name, "crash", f"{lost} of {queued} queued writes lost")
        self.world.trace.count("crashes")
        self.life += 1
        self.core = None
        self._syncing = 0
        self._timers.clear()
        self._requests.clear()

    def wipe(self) -> None:
        """Be another member with an empty disk from the next start on."""
        self.crash()
        self.disk.wipe()
        self.incarnations += 1
        self.member = Member(self.name, f"{self.name}-disk{self.incarnations}")
        self.restored = False
        self.mark = 0
        self.world.trace.note(self.name, "wiped", str(self.member))
        self.world.trace.count("wiped_disks")

    def image(self) -> tuple[Tables, int]:
        """Return a copy of the disk, for `restore` later."""
        return self.disk.durable_tables.copy(), self.mark

    def withdraw(self, member: Member) -> None:
        """Give up a disk that turned out to be older than the floor: the operator swaps it out (D71)."""
        if self.member == member:
            self.wipe()
            self.world.faults.revive_later(self)

    def restore(self, image: tuple[Tables, int]) -> None:
        """Start from an older copy of the disk next time."""
        self.crash()
        tables, self.mark = image
        self.restored = True
        self.disk.durable_tables, self.disk.written_tables = tables.copy(), tables.copy()
        self.world.trace.note(self.name, "old image", str(self.mark))
        self.world.trace.count("old_images")

    # --- what comes in ------------------------------------------------------------------------------------

    def receive(self, address: Address, sender: Peer, to: Member, message: Any) -> None:
        if self.core is not None:
            self.world.trace.note(self.name, "receive", message)
            self.turn((Received(address, sender, to, message),))

    def request(self, event: Any, answer: Callable[[Any], None]) -> None:
        """A client asks; `answer` is called with what the core replies, unless the node dies before."""
        assert self.core is not None
        self.world.trace.note(self.name, "request", event)
        self._requests[event.request] = answer
        self.turn((event,))

    def feed(self, life: int, event: Any) -> None:
        """Feed an event of this life."""
        if self.life == life and self.core is not None:
            self.turn((event,))

    # --- a turn -------------------------------------------------------------------------------------------

    def turn(self, events: Iterable[Any]) -> None:
        """Step the core and run what it answers; feeds among the effects are fed in the next round."""
        events, life = tuple(events), self.life
        while self.core is not None and self.life == life:
            forgotten = self.plane.trees_forgotten
            effects = self.core.step(self.now_ms, events)
            self.world.trace.count("trees_forgotten", self.plane.trees_forgotten - forgotten)
            chance = self.world.options.crash_in_step
            stop_at = self.world.dice.between(0, len(effects)) if self.world.dice.chance(chance) else -1
            events = tuple(self.run(effects, stop_at))
            if stop_at >= 0:
                self.crash()
                self.world.faults.revive_later(self)
            if not events:
                return

    def run(self, effects: Iterable[Effect], stop_at: int = -1) -> list[Any]:
        """Run effects in order, only the first `stop_at` when that is not negative; return what to feed back."""
        world = self.world
        feeds: list[Any] = []
        for number, effect in enumerate(effects):
            if number == stop_at:
                break
            match effect:
                case Persist(address, writes, then):
                    self.disk.enqueue(Queued(address, writes, then), lambda *_: None)
                    if not self._syncing:
                        self._start_sync()
                case Send():
                    world.send_from_node(self, effect)
                case Feed(event):
                    if isinstance(event, Received):
                        world.note_retraction(event.message)
                    feeds.append(event)
                case SetTimer():
                    self._timers.set(effect, lambda at_ms: self.clock.at_monotonic(at_ms) - world.now_ms)
                case Reply(request, value):
                    answer = self._requests.pop(request, None)
                    if answer is not None:
                        answer(value)
                case Trace(_, what, detail):
                    world.trace.count(f"core_{what}")
                    world.trace.note(self.name, "trace", f"{what} {detail}")
                    if what == "range_withdrawn":
                        world.after(world.notice_ms, self.withdraw, self.member)
                case ReadRows() | ScanRows():
                    world.after(world.dice.between(0, world.options.read_ms), self._read, self.life, effect)
                case _:
                    raise TypeError(f"no keyspace asks for {effect!r}")
        return feeds

    def _start_sync(self) -> None:
        self._syncing = len(self.disk.queue)
        self.world.after(self.world.dice.between(1, self.world.options.sync_ms), self._synced, self.life)

    def _synced(self, life: int) -> None:
        if self.life != life:
            self.world.idle()
            return
        done, self._syncing = self.disk.take(self._syncing), 0
        feeds: list[Any] = []
        for item in done:
            self.disk.settle(item)
            feeds += self.run(item.then)
        if self.disk.queue and not self._syncing:
            self._start_sync()
        if feeds:
            self.turn(feeds)

    def _read(self, life: int, effect: ReadRows | ScanRows) -> None:
        if self.life != life:
            self.world.idle()
            return
        tables = self.disk.durable_tables
        if isinstance(effect, ReadRows):
            values = tuple(tables.get(family, key) for family, key in effect.keys)
            self.turn((RowsRead(effect.address, effect.tag, values),))
        else:
            rows = tables.scan(effect.family, effect.first, effect.behind)
            page = tuple(rows[: effect.rows_max])
            self.turn((RowsScanned(effect.address, effect.tag, page, len(rows) > len(page)),))
