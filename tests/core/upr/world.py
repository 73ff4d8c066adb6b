"""A small world of one shard: a list of confirmed entries, members that folded a prefix of it, and consumers.

Everything a stream meets happens here in any order: elections, lagging and restarted members, purges, restores from a
backup, connections that break, consumers that crash between two writes, feeds that overflow.  The truth is a replay of
the list.  Stays out: how entries are confirmed, tentative rows, barriers.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256

from tidemark_core.base.ids import shard_id
from tidemark_core.upr import consuming
from tidemark_core.upr.consuming import Apply, Consuming, Discard, Fail, Move, OnLost, Rebuild, Reopen, Stage, Where
from tidemark_core.upr.decision import Here, HistoryLost, Purged
from tidemark_core.upr.feed import Folded
from tidemark_core.upr.filters import ALL, Filter
from tidemark_core.upr.history import START, FailoverLog, Point
from tidemark_core.upr.messages import Marker, Message, Op, Row, Rows, Summary
from tidemark_core.upr.positions import History, Scope
from tidemark_core.upr.serving import Cut, Done, Limits, ReadEntries, ReadPage, Release, Say, Serving, TakeCut, Wait

SHARD = shard_id(1, 0)
SMALL = Limits(
    window_bytes=400, feed_bytes=600, page_bytes=120, message_bytes=150, live_bytes=400, advance_ms=100,
    advance_bytes=2_000, stall_ms=5_000,
)


@dataclass(frozen=True)
class LogEntry:
    """Offsets [base, last]: rows, an EPOCH_START, a PURGE up to `purge`, or nothing that shows."""

    base: int
    last: int
    rows: tuple[Row, ...] = ()
    opening: tuple[int, bytes] | None = None
    purge: int = -1


@dataclass
class State:
    """The shard behind one entry, by replay."""

    applied: int = -1
    purged: int = 0
    failover: FailoverLog = field(default_factory=FailoverLog)
    docs: dict[bytes, Row] = field(default_factory=dict)   # the newest row of each key, deletes included

    def behind(self, entry: LogEntry) -> State:
        docs, failover = dict(self.docs), self.failover
        if entry.opening is not None:
            failover = failover.opened(*entry.opening, self.applied)
        for row in entry.rows:
            docs[row.key] = row
        purged = max(self.purged, entry.purge)
        docs = {key: row for key, row in docs.items() if row.op is Op.PUT or row.seqno > purged}
        return State(entry.last, purged, failover, docs)

    def live(self, wanted: Filter = ALL) -> dict[bytes, tuple[int, bytes]]:
        return {row.key: (row.seqno, row.value) for row in wanted.passed(self.docs.values()) if row.op is Op.PUT}


class Shard:
    """The confirmed entries, and the state behind each."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.states: dict[int, State] = {-1: State()}
        self.lineage, self.epoch = b"\1" * 16, 0
        self.backups: list[int] = []
        self.elect()

    @property
    def end(self) -> int:
        return self.entries[-1].last if self.entries else -1

    def append(self, entry: LogEntry) -> None:
        self.states[entry.last] = self.states[self.end].behind(entry)
        self.entries.append(entry)

    def write(self, *changes: tuple[bytes, Op, bytes]) -> None:
        """One entry of several records; an op of None is a record that was refused and leaves a hole."""
        base = self.end + 1
        rows = tuple(
            Row(base + at, key, op, value) for at, (key, op, value) in enumerate(changes) if op is not None
        )
        self.append(LogEntry(base, base + len(changes) - 1, rows))

    def control(self, purge: int = -1) -> None:
        self.append(LogEntry(self.end + 1, self.end + 1, purge=purge))

    def elect(self) -> None:
        self.epoch += 1
        self.append(LogEntry(self.end + 1, self.end + 1, opening=(self.epoch, self.lineage)))

    def restore(self, kept: int, lineage: bytes, epoch: int) -> None:
        """Data and metadata are those of a backup: entries up to `kept`, and the epoch that was in force then."""
        self.entries = [entry for entry in self.entries if entry.last <= kept]
        self.states = {last: state for last, state in self.states.items() if last <= kept}
        self.lineage, self.epoch = lineage, epoch
        self.elect()

    def following(self, applied: int) -> LogEntry | None:
        return next((entry for entry in self.entries if entry.base == applied + 1), None)


def summary_of(state: State) -> Summary:
    live = state.live()
    return Summary(len(live), sha256(repr(sorted(live.items())).encode()).digest()[:16])


class Member:
    """One member: the state that it has folded, and the streams that it serves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = State()
        self.streams: list[Link] = []

    def fold(self) -> bool:
        """Fold the next entry; say whether there was one."""
        entry = self.world.shard.following(self.state.applied)
        if entry is None:
            return False
        self.state = self.world.shard.states[entry.last]
        point = self.state.failover.point(entry.last)
        for link in self.streams:
            link.server.folded(self.world.now_ms, Folded(point, entry.rows, 50, summary_of(self.state)))
        return True

    def restart(self, applied: int) -> None:
        """The process restarts, with what it has folded durably."""
        self.world.cut_links(self)
        self.state = self.world.shard.states[applied]


class Link:
    """One stream between a member and a consumer: two queues that keep order until they are cut."""

    def __init__(self, world: World, member: Member, consumer: Consumer, certain: bool) -> None:
        self.member, self.consumer = member, consumer
        asked = consumer.machine.ask()
        self.server = Serving(
            world.now_ms, asked, consumer.wanted, world.limits, skip_deletes=consumer.skip_deletes
        )
        self.certain = certain          # the leader, with a read index
        self.cutting = False
        self.snapshot: State | None = None
        self.down: deque[Message] = deque()
        self.up: deque[int] = deque()
        self.over = False
        self.speed = world.dice.choice((0.02, 0.2, 1, 1))
        self.world = world
        member.streams.append(self)

    def serve(self) -> bool:
        """Run one step of the server; say whether it did something."""
        world, state = self.world, self.member.state
        if self.cutting:
            self.cutting = False
            if self.snapshot is not None:
                state = self.snapshot   # taken when it was asked for; entries were folded since
            self.snapshot = state
            read_index = world.shard.end if self.certain else None
            first_kept = world.first_kept
            here = Here(state.applied, state.purged, state.failover, first_kept, read_index)
            self.server.took(world.now_ms, Cut(here, summary_of(state)))
            return True
        match self.server.step(world.now_ms):
            case TakeCut():
                self.cutting = True
                self.snapshot = state if world.dice.random() < 0.5 else None
            case ReadPage(after, upto, bytes_max):
                assert self.snapshot is not None
                rows = sorted(row for row in self.snapshot.docs.values() if after < row.seqno <= upto)
                page = rows[: max(1, bytes_max // 60)]
                self.server.scanned(page, page[-1].seqno if len(page) < len(rows) else upto)
            case ReadEntries(after, upto, _):
                entries = [entry for entry in world.shard.entries if after < entry.last <= upto]
                page_of = entries[:3]
                point = world.shard.states
                self.server.replayed(
                    [Folded(point[entry.last].failover.point(entry.last), entry.rows, 50) for entry in page_of],
                    page_of[-1].last if page_of else upto,
                )
            case Release():
                assert self.snapshot is not None, "a snapshot is freed once"
                self.snapshot = None
            case Say(message):
                self.down.append(message)
            case Wait():
                return False
            case Done():
                return False
        return True

    def deliver(self) -> bool:
        """Hand the consumer the next message; say whether there was one."""
        if not self.down:
            return False
        self.consumer.take(self.down.popleft())
        self.up.append(self.consumer.machine.received)
        return True

    def hear(self) -> bool:
        """Hand the server the next acknowledgement; say whether there was one."""
        if not self.up:
            return False
        self.server.acknowledged(self.world.now_ms, self.up.popleft())
        return True


class Consumer:
    """A consumer and its sink.  `view`, `position` and `tombs` survive a crash; the machine and the staging do not.

    `tears`: the sink has no transactions, and a crash may fall between two of its writes.
    """

    def __init__(
        self, world: World, scope: Scope, wanted: Filter, *, tears: bool = False, skip_deletes: bool = False,
        on_lost: OnLost = OnLost.REBUILD,
    ) -> None:
        self.world = world
        self.scope, self.wanted, self.tears, self.skip_deletes = scope, wanted, tears, skip_deletes
        self.on_lost = on_lost
        self.view: dict[bytes, tuple[int, bytes | None]] = {}
        self.position = START
        self.staging: list[Row] = []
        self.versions: list[Row] = []     # everything seen, for streams of all versions
        self.machine = self._machine()
        self.link: Link | None = None
        self.where = Where.ANY
        self.events: list[object] = []
        self.failed: Fail | None = None
        self.keys: set[bytes] = set()
        self.torn = False
        self.asleep = 0

    def _machine(self) -> Consuming:
        return Consuming(self.scope, SHARD, self.position, on_lost=self.on_lost)

    @property
    def documents(self) -> dict[bytes, tuple[int, bytes | None]]:
        return {key: found for key, found in self.view.items() if found[1] is not None}

    def crash(self) -> None:
        self.world.drop_link(self)
        self.machine, self.staging, self.where = self._machine(), [], Where.ANY

    def take(self, message: Message) -> None:
        if isinstance(message, Marker):
            self.keys = set()
        if isinstance(message, Rows) and self.scope.history is History.LATEST and self.machine.partial is not None:
            for row in message.rows:
                # A resumed snapshot may bring a key that the part before has brought too.
                resumed = any(row.key == staged.key for staged in self.staging) and row.key not in self.keys
                assert row.key not in self.keys or resumed, f"U59: {row.key!r} comes twice in one snapshot"
                self.keys.add(row.key)
        self.run(self.machine.on_message(message))

    def run(self, effects: list[consuming.Effect]) -> None:
        for effect in effects:
            match effect:
                case Stage(rows):
                    self.staging += rows
                case Discard():
                    self.staging = []
                case Apply():
                    whole = self.wanted.whole
                    found = effect.summary is not None or self.scope.history is History.ALL
                    assert found == whole or self.scope.history is History.ALL, "U59: a summary is of whole streams"
                    self.apply(effect)
                    if effect.summary is not None and not self.tears and self.scope.history is History.LATEST:
                        at = self.world.shard.states[effect.point.seqno]
                        assert effect.summary == summary_of(at), "U59: the summary is the shard's at the end"
                    if self.torn:
                        return
                case Move(point):
                    self.store(point)
                case Rebuild(refusal):
                    self.events.append(refusal)
                    self.world.check_rebuild(self, refusal)
                case Reopen(where, _):
                    self.where = where
                    self.world.drop_link(self)
                case Fail():
                    self.failed = effect
                    self.world.drop_link(self)

    def apply(self, effect: Apply) -> None:
        rows, self.staging = self.staging, []
        if self.world.position_first:
            self.position = effect.point
        self.versions += rows
        torn_at = self.world.dice.randrange(len(rows) + 3) if self.tears and self.world.tearing else len(rows) + 2
        if effect.fresh:
            self.position = START    # a crash from here on begins at the beginning
            self.view, self.versions = {}, rows[:]
        for at, row in enumerate(rows):
            if at == torn_at:
                break
            if row.key not in self.view or self.view[row.key][0] < row.seqno:
                self.view[row.key] = (row.seqno, row.value if row.op is Op.PUT else None)
        if torn_at <= len(rows):
            self.torn = True    # crash before the position is written
            return
        self.store(effect.point)

    def store(self, point: Point) -> None:
        self.position = point
        self.machine.stored(point)
        self.world.check(self)


class World:
    """One run of one seed."""

    def __init__(self, seed: int, *, members: int = 3, limits: Limits = SMALL) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 1_000
        self.limits = limits
        self.shard = Shard()
        self.first_kept = 0
        self.members = [Member(self) for _ in range(members)]
        self.consumers: list[Consumer] = []
        self.checks = 0
        self.restored = False
        self.tearing = True
        self.settle_steps = 3_000
        self.same_lineage = False
        self.position_first = False
        self.highest_epoch = 1
        self.purges = 0

    def consumer(self, wanted: Filter = ALL, history: History = History.LATEST, **options: bool | OnLost) -> Consumer:
        made = Consumer(self, Scope(1, wanted.digest, history), wanted, **options)   # type: ignore[arg-type]
        self.consumers.append(made)
        return made

    # --- what happens -------------------------------------------------------------------------------------

    def open(self, consumer: Consumer, member: Member, certain: bool = False) -> Link:
        assert consumer.link is None
        consumer.link = Link(self, member, consumer, certain)
        consumer.where = Where.ANY
        return consumer.link

    def drop_link(self, consumer: Consumer) -> None:
        link, consumer.link = consumer.link, None
        if link is not None:
            link.over = True
            link.member.streams.remove(link)

    def cut(self, consumer: Consumer) -> None:
        """The connection breaks; what is under way is lost."""
        self.drop_link(consumer)
        consumer.run(consumer.machine.disconnected())

    def cut_links(self, member: Member) -> None:
        for link in list(member.streams):
            self.cut(link.consumer)

    def restore(self, kept: int, lineage: bytes, epoch: int) -> None:
        """Every disk and the metadata are set back to a backup."""
        for member in self.members:
            self.cut_links(member)
        self.shard.restore(kept, lineage, epoch)
        self.highest_epoch = max(self.highest_epoch, self.shard.epoch)
        for member in self.members:
            member.state = self.shard.states[kept]
        self.restored = True

    # --- what must hold -----------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """At END and ADVANCED the consumer equals the shard at that seqno."""
        self.checks += 1
        seqno = consumer.position.seqno
        assert seqno in self.shard.states, f"U55: the position {seqno} is no cut"
        point = self.shard.states[seqno].failover.point(seqno)
        assert consumer.position == point, "U54: the position names its history"
        if consumer.scope.history is History.ALL:
            logged = [row for entry in self.shard.entries for row in entry.rows if entry.last <= seqno]
            assert consumer.versions == consumer.wanted.passed(logged), f"U64: at {seqno} versions are missing"
        elif consumer.tears:
            for row in consumer.wanted.passed(self.shard.states[seqno].docs.values()):
                known = consumer.view.get(row.key)
                newer = known[0] >= row.seqno if known is not None else row.op is not Op.PUT
                assert newer, f"U55: row {row.seqno} is missing at {seqno}"
        else:
            expected = self.shard.states[seqno].live(consumer.wanted)
            assert consumer.documents == expected, f"U59: at {seqno} the view is not the shard"

    def check_rebuild(self, consumer: Consumer, refusal: Purged | HistoryLost) -> None:
        """A consumer at committed level loses its place only where deletes or history are really gone."""
        if isinstance(refusal, Purged):
            purged = max((entry.purge for entry in self.shard.entries), default=-1)
            assert consumer.position.seqno < refusal.purged <= purged, "U57: nothing was purged behind the consumer"
        else:
            assert self.restored, "U57: no history was lost"

    # --- random runs --------------------------------------------------------------------------------------

    def random_write(self) -> None:
        changes = []
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            op = self.dice.choice((Op.PUT, Op.PUT, Op.PUT, Op.DELETE, None))
            value = b"v" * self.dice.randrange(30) if op is Op.PUT else b""
            changes.append((b"k%d" % self.dice.randrange(6), op, value))
        self.shard.write(*changes)

    def random_step(self, *, restores: bool) -> None:
        dice, shard = self.dice, self.shard
        roll = dice.random()
        member = dice.choice(self.members)
        consumer = dice.choice(self.consumers)
        link = consumer.link
        self.now_ms += dice.choice((0, 0, 1, 30))
        if roll < 0.07:
            self.random_write()
        elif roll < 0.08:
            shard.control()
        elif roll < 0.092:
            shard.elect()
            self.highest_epoch = max(self.highest_epoch, shard.epoch)
        elif roll < 0.10:
            cuts = [entry.last for entry in shard.entries if entry.last <= min(m.state.applied for m in self.members)]
            if cuts:
                self.purges += 1
                shard.control(purge=dice.choice(cuts[-6:]))
        elif roll < 0.105:
            cuts = [entry.last for entry in shard.entries if entry.last <= member.state.applied]
            if cuts:
                member.restart(dice.choice(cuts[-4:]))
        elif roll < 0.107 and restores:
            cuts = [entry.last for entry in shard.entries[-12:]]
            kept = dice.choice(cuts)
            if dice.random() < 0.5:     # metadata too: an epoch comes twice
                lineage = shard.lineage if self.same_lineage else dice.randbytes(16)
                self.restore(kept, lineage, shard.states[kept].failover.newest.epoch)
            else:                       # the disks alone, and no operator knows
                self.restore(kept, shard.lineage, self.highest_epoch)
            for _ in range(dice.randrange(8)):
                self.random_write()
            for each in self.members:
                while each.fold() and dice.random() < 0.8:
                    pass
        elif roll < 0.125 and link is not None:
            self.cut(consumer)
            consumer.asleep = dice.choice((0, 0, 10, 50))
        elif roll < 0.129:
            consumer.crash()
        elif roll < 0.22:
            for _ in range(dice.choice((1, 1, 2, 3))):
                member.fold()
        elif link is None and consumer.asleep:
            consumer.asleep -= 1
        elif link is None and not consumer.failed:
            certain = consumer.where is Where.LEADER
            if certain:     # the leader has folded what it confirmed
                while member.fold():
                    pass
            self.open(consumer, member, certain)
        elif link is not None:
            for _ in range(dice.choice((1, 2, 4, 8))):
                if not link.over and not consumer.torn and dice.random() < link.speed:
                    dice.choice((link.serve, link.serve, link.deliver, link.hear))()
        self.mend()

    def mend(self) -> None:
        """A sink that crashed between two writes begins again from what it stored."""
        for consumer in self.consumers:
            if consumer.torn:
                consumer.torn = False
                consumer.crash()

    def run(self, steps: int, *, restores: bool = False) -> None:
        for _ in range(steps):
            self.random_step(restores=restores)
        self.settle()

    def settle(self) -> None:
        """Faults stop: every consumer reaches the end, and each byte that was sent was acknowledged."""
        for member in self.members:
            while member.fold():
                pass
        self.tearing = False
        for consumer in self.consumers:
            self._settle(consumer)
            if consumer.failed is None:
                assert consumer.link is not None
                credit = consumer.link.server.credit
                assert credit.acked == credit.sent == consumer.machine.received, "U61: each byte is acknowledged once"
                assert consumer.position.seqno == self.shard.end, "U60: the consumer reaches the end"
                if consumer.scope.history is History.LATEST:
                    expected = self.shard.states[self.shard.end].live(consumer.wanted)
                    assert consumer.documents == expected, "U55: the view at the end is not the shard"

    def _settle(self, consumer: Consumer) -> None:
        for _ in range(self.settle_steps):
            if consumer.failed is not None:
                return
            link = consumer.link
            if link is None:
                link = self.open(consumer, self.members[0], certain=True)
            # All of them move: a list, not a generator that stops at the first.
            if not any([link.serve(), link.deliver(), link.hear()]):
                if consumer.position.seqno == self.shard.end and consumer.link is link and not link.down:
                    return
                self.now_ms += 50
            self.mend()
        raise AssertionError(
            f"U60: the consumer at {consumer.position.seqno} does not reach {self.shard.end}"
        )
