"""The shell of one simulated node: it drives a `NodeCore`, its disk, its timers and its snapshot pulls.

Like the real shell it turns what happens into events, runs the effects in order, and decides nothing.  One turn
is one `step`; group commit makes all writes queued before a sync durable together.  The wall clock may be wrong for a
whole life and may jump; timers were converted to waiting times when they were set.
Stays out: what the events mean; when things break (`faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.clock import ShellClock
from tidemark_core.base.effects import (
    Changed,
    DiskSpace,
    DropAfter,
    Effect,
    Feed,
    LogRead,
    LogReadFailed,
    PeerDown,
    PeerUp,
    Persist,
    PullSnapshot,
    PutEntry,
    ReadLog,
    ReadRows,
    Received,
    Released,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    Space,
    TimerFired,
    Trace,
    Write,
)
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import LOG_PLANE, Address, Member, Peer, ShardId
from tidemark_core.base.plane import NodeFacts
from tidemark_core.documents.payload import Op, Verdict, decode
from tidemark_core.documents.requests import DOCUMENT_REQUESTS, Written
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.node import NodeCore
from tidemark_core.replication.clients import CLIENT_EVENTS, AppendRequest, CommitPosition
from tidemark_core.replication.messages import AppendAck, Appended, BecomeLeader, PositionCommitted
from tidemark_core.replication.replica import ReplicaState, Role
from tidemark_core.replication.settings import Configure

from .disk import Disk, Image, Queued, StoredPlane
from .pull import Pull
from .timers import Timers
from .trace import Violation

if TYPE_CHECKING:
    from .world import World


def _holds_rollback(item: Queued) -> bool:
    return any(write.__class__ is PutEntry and write.entry.kind is Kind.ROLLBACK for write in item.writes)


def votes(image: Image) -> bool:
    """Say whether a replica votes, or may begin to: it was neither deleted nor half seeded (N11)."""
    return image.state is None or ReplicaState.decode(image.state).role not in (Role.DELETED, Role.SEEDING)


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
        self.skew_ms = 0                    # how far the wall clock is ahead of the true time
        self.clock = ShellClock(0, 0)
        self.syncing = 0
        self.sync_error = False
        self.slow_disk_ms = 0
        self.space = Space.FREE
        self.stays_down = False
        self.asked: dict[tuple[ShardId, int], int] = {}   # when it was first asked to lead an epoch
        self.doomed = False                 # dies before it runs another effect
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None   # what a paused process has to do
        self.told: dict[ShardId, SynchroSettings] = {}
        self._heard: dict[ShardId, tuple[int, SynchroSettings]] = {}
        self._rollbacks: dict[ShardId, list[Entry]] = {}   # records written in this life, not confirmed here
        self._timers = Timers(world, self._on_timer, self._holds)
        self._pulls: dict[ShardId, Pull] = {}
        self._requests: dict[int, tuple[Any, Callable[[Any], None]]] = {}

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def boot(self) -> str:
        return f"{self.name}-boot{self.boots}"

    def lost(self, member: Member, shard: ShardId) -> bool:
        """Say whether the copy of this member is gone: its disk was wiped, or its replica deleted (K14, N11)."""
        # A deletion that is not durable yet is no less under way.
        images = (self.disk.image(shard), self.disk.written.get(shard, Image()))
        return self.member != member or not all(map(votes, images))

    # --- lives --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover what is durable and come up."""
        if self.core is not None or self.stays_down:
            return
        self.life += 1
        self.boots += 1
        self.skew_ms = self.world.faults.skew_of_life(self)
        self.clock = ShellClock(self.world.now_ms + self.skew_ms, self.world.now_ms)
        options = self.world.options
        self.core = core = NodeCore(NodeFacts(self.member, self.boot), options.planes(options.limits))
        core.recover(partial(StoredPlane, self.disk))
        self.world.trace.note(self.name, "start", self.boot)
        self.world.checkers.node_started(self)
        self.world.shard_map.node_started(self)
        self.turn(())
        if self.space and self.core is not None:
            self.turn((DiskSpace(self.space),))
        self.world.links_changed(self.name)
        if self.world.options.cluster.reports:
            self._report(self.life)

    def _report(self, life: int) -> None:
        """Say to operators whom this node reaches, again and again (O43)."""
        if self.life != life or self.core is None:
            self.world.idle()
            return
        silence_ms = self.world.options.coordinator.quorum_silence_ms
        if self.held is None:
            self.world.report(self, self.core.log.reach(self.clock.advance(
                self.world.now_ms + self.skew_ms, self.world.now_ms), silence_ms))
        self.world.after(silence_ms // 3, self._report, life)

    def crash(self) -> None:
        """Lose everything but a prefix of the queued writes."""
        if self.core is None:
            return
        world = self.world
        in_flight = len(self.disk.queue)
        for item in self.disk.take(world.dice.between(0, in_flight)):
            self.disk.settle(item)
            if item.address.plane == LOG_PLANE:
                world.checkers.node_synced(self, item)
        lost = self.disk.power_cut()
        world.trace.note(self.name, "crash", f"{lost} of {in_flight} queued writes lost")
        world.trace.count("crashes")
        if in_flight:
            world.trace.count("torn_tails")
        self._stop()
        world.checkers.node_crashed(self)
        world.links_changed(self.name)

    def pause(self) -> None:
        """Stop doing anything, with everything open: whatever comes is kept for later."""
        if self.core is not None and self.held is None:
            self.held = []
            self.world.trace.note(self.name, "paused")

    def resume(self) -> None:
        """Go on, with all that came meanwhile at once."""
        held, self.held = self.held, None
        if held is not None:
            self.world.trace.note(self.name, "goes on", f"{len(held)} things wait")
        for action, arguments in held or ():
            action(*arguments)

    def _holds(self, action: Callable[..., None], *arguments: Any) -> bool:
        if self.held is not None:
            self.held.append((action, arguments))
        return self.held is not None

    def _stop(self) -> None:
        self.life += 1
        self.held = None
        self.core = None
        self.syncing = 0
        self.sync_error = self.doomed = False
        self.told.clear()
        self._heard.clear()
        self._rollbacks.clear()
        self._timers.clear()
        self._pulls.clear()
        self._requests.clear()
        self.world.readings.node_stopped(self)

    def wipe(self) -> None:
        """Come back one day with an empty disk: another member (K14)."""
        if self.core is not None:
            self.crash()
        self.disk.wipe()
        self.space = Space.FREE
        self.incarnations += 1
        self.member = Member(self.name, f"{self.name}-disk{self.incarnations}")
        self.world.trace.note(self.name, "wiped", str(self.member))
        self.world.trace.count("wiped_disks")
        self.world.checkers.node_wiped(self)

    # --- what comes in ------------------------------------------------------------------------------------

    def receive(self, address: Address, sender: Peer, to: Member, message: Any) -> None:
        if self.core is not None and not self._holds(self.receive, address, sender, to, message):
            self.world.trace.note(self.name, "receive", message)
            shard = address.shard
            if message.__class__ is AppendAck and self._rollbacks.get(shard):
                self._meets_ack(shard, message)
            elif message.__class__ is BecomeLeader:
                self.asked.setdefault((shard, message.epoch), self.world.now_ms)
                self.world.successors.chosen(self, shard, message)
            self.turn((Received(address, sender, to, message),))
            if message.__class__ is AppendAck:
                self.world.successors.acked(self, shard)

    def request(self, event: Any, answer: Callable[[Any], None]) -> None:
        """A client's request; `answer` is called with what the core replies, unless the node dies before."""
        if self.core is not None and not self._holds(self.request, event, answer):
            self.world.trace.note(self.name, "request", event)
            self._requests[event.request] = (event, answer)
            if isinstance(event, CLIENT_EVENTS):
                self.world.checkers.node_asked(self, event)
            if event.__class__ is CommitPosition and event.seek:
                self.world.successors.goes_back(self, event.shard)
            self.turn((event,))

    def learn(self, life: int, shard: ShardId, version: int, settings: SynchroSettings) -> None:
        """The shard map says what is asked of a shard; an older version changes nothing."""
        if self.life != life or self.core is None or version <= self._heard.get(shard, (0, None))[0]:
            self.world.idle()
            return
        self._heard[shard] = (version, settings)
        events = self._untold()
        if events:
            self.world.trace.note(self.name, "settings", events[0])
            self.turn(events)
        else:
            self.world.idle()

    def _untold(self) -> list[Configure]:
        """Return what shards held here were not told yet: they may be older or younger than the map."""
        assert self.core is not None
        events: list[Configure] = []
        for shard, (_, settings) in self._heard.items():
            held = self.core.log.shards.get(shard)
            before = self.told.get(shard)
            if held is None or before == settings:
                continue
            self.told[shard] = settings
            events.append(Configure(shard, settings, self.world.options.retention, self.world.options.copies))
            if held.leader is not None and before is not None:
                self.world.trace.count("quorum_changes")
                if self._rollbacks.get(shard):
                    self.world.trace.count("quorum_changes_during_rollback")
        return events

    def hint(self, event: PeerUp | PeerDown, life: int) -> None:
        if self.life == life and self.core is not None and not self._holds(self.hint, event, life):
            self.world.trace.note(self.name, "hint", event)
            self.turn((event,))

    def set_space(self, space: Space) -> None:
        self.space = space
        if self.core is not None:
            self.world.trace.note(self.name, "disk", space.name)
            self.turn((DiskSpace(space),))

    def feed(self, life: int, event: Any) -> None:
        """Feed an event of this life."""
        if self.life == life and self.core is not None and not self._holds(self.feed, life, event):
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
            now_ms = self.clock.advance(world.now_ms + self.skew_ms, world.now_ms)
            stepped = self.clock.take_step()
            effects = self.core.step(now_ms, events if stepped is None else (stepped, *events))
            crash_at = -1
            if world.options.disk.crash_in_step and world.dice.chance(world.options.disk.crash_in_step):
                crash_at = world.dice.between(0, len(effects))
            feeds = self.run(effects, crash_at)
            if crash_at >= 0 or self.doomed:
                self.crash()
                world.faults.revive_later(self)
            if self.life != life:
                return
            world.checkers.node_stepped(self, events)
            feeds += self._untold()
            if not feeds:
                return
            events = tuple(feeds)

    def run(self, effects: Iterable[Effect], stop_at: int = -1) -> list[Any]:
        """Run effects in order, only the first `stop_at` when that is not negative; return what to feed back."""
        world = self.world
        checkers = world.checkers
        feeds: list[Any] = []
        effect: Any  # its class says which one it is
        for number, effect in enumerate(effects):
            if number == stop_at or self.doomed:
                break
            kind = effect.__class__
            if kind is Persist:
                self._persist(effect)
            elif kind is Send:
                if effect.address.plane == LOG_PLANE:
                    checkers.node_sends(self, effect)
                world.send_from_node(self, effect)
            elif kind is Feed:
                feeds.append(effect.event)
            elif kind is SetTimer:
                self._timers.set(effect, lambda at_ms: self.clock.at_monotonic(at_ms) - world.now_ms)
            elif kind is Released:
                checkers.node_released(self, effect)
                world.readings.released(self, effect.shard)
                if self._rollbacks.get(effect.shard):
                    self._confirms(effect)
            elif kind is Reply:
                self._reply(effect)
            elif kind is Trace:
                world.trace.count(f"core_{effect.what}")
                world.trace.note(self.name, "trace", f"{effect.what} {effect.detail}")
                if effect.what == "violation" and (world.impostor is None or world.impostor.lied_to is not self):
                    # No member lies: one that is refused as a liar, or refuses, is broken.
                    raise Violation("violation", f"{self.name} refuses what it was sent: {effect.detail}")
            elif kind is ReadLog:
                delay = world.dice.between(0, world.options.disk.read_ms_max)
                world.after(delay, self._read, self.life, effect)
            elif kind is PullSnapshot:
                self._pull(effect)
            elif kind is Changed:
                pass    # no change streams here
            elif kind is ReadRows or kind is ScanRows:
                delay = world.dice.between(0, world.options.disk.read_ms_max)
                world.after(delay, self._read_rows, self.life, effect)
            else:
                raise TypeError(f"a node cannot run {effect!r}")
        return feeds

    def _reply(self, effect: Reply) -> None:
        """Replies run at most once: a request answered, or asked in an earlier life, is nobody's any more."""
        event, answer = self._requests.pop(effect.request, (None, None))
        if event is not None and answer is not None:
            if isinstance(effect.value, Written):
                effect = self._written(event, effect)
            elif isinstance(event, DOCUMENT_REQUESTS):
                self.world.checkers.node_replied(self, event, effect.value)
            if isinstance(event, CLIENT_EVENTS):
                self.world.checkers.node_replies(self, event.shard, effect)
                self.world.checkers.node_answers(self, event, effect.value)
            answer(effect.value)
            if event.__class__ is CommitPosition and event.seek and isinstance(effect.value, PositionCommitted):
                self.world.successors.went_back(self, event.shard)

    def _written(self, event: AppendRequest, effect: Reply) -> Reply:
        """Judge the outcomes of a write; all else about its answer is that of an append."""
        written = effect.value
        self.world.checkers.node_wrote(self, event.shard, written)
        for number, (write, outcome) in enumerate(
            zip(decode(event.batch.payload, event.batch.count).records, written.outcomes, strict=True)
        ):
            applied = outcome.verdict is Verdict.APPLIED
            seqno = (written.base + number if write.op is Op.PUT else 0) if applied else outcome.seqno
            self.world.documents.learn(event.shard, write.key, seqno)
            self.world.trace.count(f"records_{outcome.verdict.name.lower()}")
        appended = Appended(written.epoch, written.base, written.count, written.durability)
        return Reply(effect.request, appended)

    # --- disk ---------------------------------------------------------------------------------------------

    def _persist(self, effect: Persist) -> None:
        self.disk.enqueue(Queued(effect.address, effect.writes, effect.then), self._watch_write)
        if not self.syncing:
            self._start_sync()

    def _watch_write(self, shard: ShardId, image: Image, write: Write) -> None:
        self.world.checkers.node_writes(self, shard, image, write)
        if write.__class__ is PutEntry and write.entry.kind is Kind.ROLLBACK:
            self._rollbacks.setdefault(shard, []).append(write.entry)
            self.world.faults.saw_rollback(self, shard, "written")
        elif write.__class__ is DropAfter and shard in self._rollbacks:
            keep = write.offset
            self._rollbacks[shard] = [record for record in self._rollbacks[shard] if record.base <= keep]

    def _meets_ack(self, shard: ShardId, ack: AppendAck) -> None:
        """An acknowledgement arrives while a rollback is not confirmed here."""
        assert self.core is not None
        if self.core.log.shards[shard].leader is None:
            return
        oldest = self._rollbacks[shard][0]
        if ack.upto >= oldest.base:
            self.world.faults.saw_rollback(self, shard, "acked")
        elif ack.upto >= oldest.sequence:
            self.world.trace.count("late_acks_during_rollback")

    def _confirms(self, released: Released) -> None:
        waiting = self._rollbacks[released.shard]
        left = [record for record in waiting if record.base > released.upto]
        if len(left) < len(waiting):
            self._rollbacks[released.shard] = left
            self.world.faults.saw_rollback(self, released.shard, "confirmed")

    def _start_sync(self) -> None:
        self.syncing = len(self.disk.queue)
        options = self.world.options.disk
        delay = self.world.dice.between(options.sync_ms_min, options.sync_ms_max) + self.slow_disk_ms
        self.world.after(delay, self._synced, self.life)

    def _synced(self, life: int) -> None:
        if self.life != life or self._holds(self._synced, life):
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
        for number, item in enumerate(done):
            # One by one, so that a checker sees the disk exactly as the effects of each write may promise it.
            self.disk.settle(item)
            if item.address.plane == LOG_PLANE:
                world.checkers.node_synced(self, item)
            if _holds_rollback(item) and self._rollbacks.get(item.shard):
                world.faults.saw_rollback(self, item.shard, "durable")
            if item.then:
                feeds += self.run(item.then)
            if self.doomed:
                self.disk.queue[:0] = done[number + 1:]
                self.crash()
                world.faults.revive_later(self)
                return
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

    def _read_rows(self, life: int, effect: ReadRows | ScanRows) -> None:
        if self.life != life:
            return
        tables = self.disk.durable_tables
        if isinstance(effect, ReadRows):
            values = tuple(tables.get(family, key) for family, key in effect.keys)
            self.feed(life, RowsRead(effect.address, effect.tag, values))
        else:
            rows = tables.scan(effect.family, effect.first, effect.behind)
            page = tuple(rows[: effect.rows_max])
            self.feed(life, RowsScanned(effect.address, effect.tag, page, len(rows) > len(page)))

    # --- timers -------------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerFired) -> None:
        self.world.trace.note(self.name, "timer", event.name)
        self.turn((event,))

    # --- snapshots ----------------------------------------------------------------------------------------

    def _pull(self, effect: PullSnapshot) -> None:
        running = self._pulls.pop(effect.shard, None)
        if running is not None:
            running.stop()
        if effect.source is not None and effect.descriptor is not None:
            self._pulls[effect.shard] = Pull(
                self, effect.shard, effect.source, effect.descriptor, effect.first, effect.rows
            )
