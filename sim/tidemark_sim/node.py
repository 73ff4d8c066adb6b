"""The shell of one simulated node: it drives a `NodeCore`, its disk, its timers and its snapshot pulls.

Like the real shell it turns what happens into events, runs the effects in order, and decides nothing.  One turn
is one `step`; group commit makes all writes queued before a sync durable together.  The clock handed to the core
may jump; timers were converted to waiting times when they were set.
Stays out: what the events mean; when things break (`faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import (
    DiskSpace,
    Effect,
    Feed,
    LogRead,
    LogReadFailed,
    PeerDown,
    PeerUp,
    Persist,
    PullSnapshot,
    ReadLog,
    Received,
    Released,
    Reply,
    Send,
    SetTimer,
    TimerFired,
    Trace,
    Write,
)
from tidemark_core.base.entry import decode_header
from tidemark_core.base.ids import Member, Peer, ShardId
from tidemark_core.node import NodeCore, recovery_start

from .disk import Disk, Image, Queued
from .pull import Pull

if TYPE_CHECKING:
    from .world import World


@dataclass(slots=True)
class DiskOptions:
    """How long a sync takes, and the chance that a node dies in the middle of running effects."""

    sync_ms_min: int = 1
    sync_ms_max: int = 4
    read_ms_max: int = 3
    crash_in_step: float = 0.0


class Node:
    """One node through all its lives; `life` changes at every start and stop, so that old events find nobody."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnations = 1
        self.member = Member(name, f"{name}-disk1")
        self.disk = Disk()
        self.core: NodeCore | None = None
        self.boots = 0
        self.life = 0
        self.skew_ms = 0
        self.syncing = 0
        self.sync_error = False
        self.slow_disk_ms = 0
        self.disk_full = False
        self.stays_down = False
        self._timers: dict[tuple[ShardId, str], int] = {}
        self._timer_token = 0
        self._pulls: dict[ShardId, Pull] = {}
        self._requests: dict[int, tuple[ShardId, Callable[[Any], None]]] = {}

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def boot(self) -> str:
        return f"{self.name}-boot{self.boots}"

    # --- lives --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover what is durable and come up."""
        if self.core is not None or self.stays_down:
            return
        self.life += 1
        self.boots += 1
        self.core = core = NodeCore(self.member, self.world.options.limits)
        for shard, image in self.disk.durable.items():
            assert image.state is not None, "a stored shard has a state"
            at = image.position(recovery_start(image.checkpoint))
            core.load(shard, image.state, image.checkpoint, [decode_header(e.header) for e in image.entries[at:]])
        self.world.trace.note(self.name, "start", self.boot)
        self.world.checkers.node_started(self)
        self.turn(())
        if self.disk_full and self.core is not None:
            self.turn((DiskSpace(True),))
        self.world.links_changed(self.name)

    def crash(self) -> None:
        """Lose everything but a prefix of the queued writes."""
        if self.core is None:
            return
        world = self.world
        in_flight = len(self.disk.queue)
        for item in self.disk.take(world.dice.between(0, in_flight)):
            self.disk.settle(item)
            world.checkers.node_synced(self, item)
        lost = self.disk.power_cut()
        world.trace.note(self.name, "crash", f"{lost} of {in_flight} queued writes lost")
        world.trace.count("crashes")
        if in_flight:
            world.trace.count("torn_tails")
        self._stop()
        world.checkers.node_crashed(self)
        world.links_changed(self.name)

    def _stop(self) -> None:
        self.life += 1
        self.core = None
        self.syncing = 0
        self.sync_error = False
        self._timers.clear()
        self._pulls.clear()
        self._requests.clear()

    def wipe(self) -> None:
        """Come back one day with an empty disk: another member (K14)."""
        if self.core is not None:
            self.crash()
        self.disk.wipe()
        self.disk_full = False
        self.incarnations += 1
        self.member = Member(self.name, f"{self.name}-disk{self.incarnations}")
        self.world.trace.note(self.name, "wiped", str(self.member))
        self.world.trace.count("wiped_disks")
        self.world.checkers.node_wiped(self)

    # --- what comes in ------------------------------------------------------------------------------------

    def receive(self, shard: ShardId, sender: Peer, to: Member, message: Any) -> None:
        if self.core is not None:
            self.world.trace.note(self.name, "receive", message)
            self.turn((Received(shard, sender, to, message),))

    def request(self, event: Any, answer: Callable[[Any], None]) -> None:
        """A client's request; `answer` is called with what the core replies, unless the node dies before."""
        if self.core is not None:
            self.world.trace.note(self.name, "request", event)
            self._requests[event.request] = (event.shard, answer)
            self.turn((event,))

    def hint(self, event: PeerUp | PeerDown, life: int) -> None:
        if self.life == life and self.core is not None:
            self.world.trace.note(self.name, "hint", event)
            self.turn((event,))

    def set_disk_full(self, full: bool) -> None:
        self.disk_full = full
        if self.core is not None:
            self.world.trace.note(self.name, "disk", "full" if full else "has space")
            self.turn((DiskSpace(full),))

    def feed(self, life: int, event: Any) -> None:
        """Feed an event of this life."""
        if self.life == life and self.core is not None:
            self.world.trace.note(self.name, "feed", event)
            self.turn((event,))

    # --- a turn -------------------------------------------------------------------------------------------

    def turn(self, events: Iterable[Any]) -> None:
        """Step the core and run what it answers; feeds among the effects are fed in the next round."""
        world = self.world
        events = tuple(events)
        life = self.life
        while True:
            assert self.core is not None
            effects = self.core.step(world.now_ms + self.skew_ms, events)
            crash_at = -1
            if world.options.disk.crash_in_step and world.dice.chance(world.options.disk.crash_in_step):
                crash_at = world.dice.between(0, len(effects))
            feeds = self.run(effects, crash_at)
            if crash_at >= 0:
                self.crash()
                world.faults.revive_later(self)
            if self.life != life:
                return
            world.checkers.node_stepped(self, events)
            if not feeds:
                return
            events = tuple(feeds)

    def run(self, effects: Iterable[Effect], stop_at: int = -1) -> list[Any]:
        """Run effects in order, only the first `stop_at` when that is not negative; return what to feed back."""
        world = self.world
        checkers = world.checkers
        feeds: list[Any] = []
        for number, effect in enumerate(effects):
            if number == stop_at:
                break
            kind = effect.__class__
            if kind is Persist:
                self._persist(effect)
            elif kind is Send:
                checkers.node_sends(self, effect)
                world.send_from_node(self, effect)
            elif kind is Feed:
                feeds.append(effect.event)
            elif kind is SetTimer:
                self._set_timer(effect)
            elif kind is Released:
                checkers.node_released(self, effect)
            elif kind is Reply:
                self._reply(effect)
            elif kind is Trace:
                world.trace.count(f"core_{effect.what}")
                world.trace.note(self.name, "trace", f"{effect.what} {effect.detail}")
            elif kind is ReadLog:
                delay = world.dice.between(0, world.options.disk.read_ms_max)
                world.after(delay, self._read, self.life, effect)
            elif kind is PullSnapshot:
                self._pull(effect)
            else:
                raise TypeError(f"a node cannot run {effect!r}")
        return feeds

    def _reply(self, effect: Reply) -> None:
        """Replies run at most once: a request answered, or asked in an earlier life, is nobody's any more."""
        shard, answer = self._requests.pop(effect.request, (None, None))
        if shard is not None and answer is not None:
            self.world.checkers.node_replies(self, shard, effect)
            answer(effect.value)

    # --- disk ---------------------------------------------------------------------------------------------

    def _persist(self, effect: Persist) -> None:
        self.disk.enqueue(Queued(effect.shard, effect.writes, effect.then), self._watch_write)
        if not self.syncing:
            self._start_sync()

    def _watch_write(self, shard: ShardId, image: Image, write: Write) -> None:
        self.world.checkers.node_writes(self, shard, image, write)

    def _start_sync(self) -> None:
        self.syncing = len(self.disk.queue)
        options = self.world.options.disk
        delay = self.world.dice.between(options.sync_ms_min, options.sync_ms_max) + self.slow_disk_ms
        self.world.after(delay, self._synced, self.life)

    def _synced(self, life: int) -> None:
        if self.life != life:
            return
        world = self.world
        if self.sync_error:
            # After a failed fsync nobody knows what is on the platter: the process must die.
            world.trace.note(self.name, "fsync", "error")
            world.trace.count("fsync_errors")
            self.crash()
            world.faults.revive_later(self)
            return
        done = self.disk.take(self.syncing)
        self.syncing = 0
        world.trace.note(self.name, "synced", str(len(done)))
        feeds: list[Any] = []
        for item in done:
            # One by one, so that a checker sees the disk exactly as the effects of each write may promise it.
            self.disk.settle(item)
            world.checkers.node_synced(self, item)
            if item.then:
                feeds += self.run(item.then)
        if self.disk.queue and not self.syncing:
            self._start_sync()
        if feeds and self.life == life:
            self.turn(feeds)

    def _read(self, life: int, effect: ReadLog) -> None:
        if self.life != life:
            return
        entries, damaged = self.disk.read(effect.shard, effect.first, effect.last, effect.bytes_max)
        if damaged is not None and not entries:
            self.world.trace.count("damage_met")
            self.feed(life, LogReadFailed(effect.shard, effect.tag, damaged))
        else:
            self.feed(life, LogRead(effect.shard, effect.tag, entries))

    # --- timers -------------------------------------------------------------------------------------------

    def _set_timer(self, effect: SetTimer) -> None:
        key = (effect.shard, effect.name)
        if effect.at_ms is None:
            self._timers.pop(key, None)
            return
        self._timer_token += 1
        self._timers[key] = self._timer_token
        delay = max(0, effect.at_ms - (self.world.now_ms + self.skew_ms))
        self.world.after(delay, self._fire, key, self._timer_token, self.life)

    def _fire(self, key: tuple[ShardId, str], token: int, life: int) -> None:
        if self.life != life or self._timers.get(key) != token:
            self.world.idle()
            return
        del self._timers[key]
        self.world.trace.note(self.name, "timer", key[1])
        self.turn((TimerFired(*key),))

    # --- snapshots ----------------------------------------------------------------------------------------

    def _pull(self, effect: PullSnapshot) -> None:
        running = self._pulls.pop(effect.shard, None)
        if running is not None:
            running.stop()
        if effect.source is not None and effect.descriptor is not None:
            self._pulls[effect.shard] = Pull(self, effect.shard, effect.source, effect.descriptor, effect.first)
