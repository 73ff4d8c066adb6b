"""Streams at tentative level: leaders that append, confirm, roll back and lose their office (U65-U67)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tidemark_core.base.errors import LocalMisuse, RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.upr.consuming import Apply, Consuming, Discard, Fail, Move, Reopen, Stage
from tidemark_core.upr.decision import Asked, Here
from tidemark_core.upr.feed import Folded
from tidemark_core.upr.history import START, FailoverLog, Point
from tidemark_core.upr.messages import Confirmed, Message, Op, RolledBack, Row, StreamEnd, Tentative
from tidemark_core.upr.overlay import Overlaying, Show, Withdraw
from tidemark_core.upr.positions import History, Position, Scope
from tidemark_core.upr.previewing import Appended, Previewing
from tidemark_core.upr.serving import Cut, Done, Limits, ReadPage, Release, Say, TakeCut, Wait

from tests.core.upr.world import SHARD, SMALL

LINEAGE = b"\1" * 16
SCOPE = Scope(1)
ROOMY = SMALL._replace(window_bytes=2_000, feed_bytes=1_500)


@dataclass
class Entry:
    """One offset of the leader's log: a row, an EPOCH_START, or a ROLLBACK of everything from `first` on."""

    epoch: int
    row: Row | None = None
    opening: bool = False
    first: int = -1


@dataclass
class Leader:
    """One leader at a time; its log, and how far it is confirmed."""

    log: list[Entry] = field(default_factory=list)
    confirmed: int = 0
    epoch: int = 1

    def __post_init__(self) -> None:
        self.log = [Entry(1, opening=True)]

    def covered(self, offset: int) -> bool:
        return any(entry.first <= offset < at for at, entry in enumerate(self.log) if entry.first >= 0)

    def documents(self, upto: int) -> dict[bytes, tuple[int, bytes]]:
        """Replay: what the shard shows when everything up to `upto` is confirmed."""
        docs: dict[bytes, tuple[int, bytes]] = {}
        for at, entry in enumerate(self.log[: upto + 1]):
            if entry.row is not None and not self.covered(at):
                docs.pop(entry.row.key, None)
                if entry.row.op is Op.PUT:
                    docs[entry.row.key] = (at, entry.row.value)
        return docs

    def failover(self, upto: int) -> FailoverLog:
        log = FailoverLog()
        for at, entry in enumerate(self.log[: upto + 1]):
            if entry.opening:
                log = log.opened(entry.epoch, LINEAGE, at - 1)
        return log

    def newest_rows(self, upto: int) -> list[Row]:
        rows = {
            entry.row.key: entry.row
            for at, entry in enumerate(self.log[: upto + 1]) if entry.row is not None and not self.covered(at)
        }
        return sorted(rows.values())


class Preview:
    """One consumer at tentative level and its stream; `base` and `position` survive a crash."""

    def __init__(self, leader: Leader, limits: Limits = ROOMY) -> None:
        self.leader, self.limits = leader, limits
        self.now_ms = 0
        self.base: dict[bytes, tuple[int, bytes]] = {}
        self.position = START
        self.staging: list[Row] = []
        self.shown: list[Row] = []
        self.machine = Overlaying(SCOPE, SHARD, START)
        self.server: Previewing | None = None
        self.down: deque[Message] = deque()
        self.cut: list[Row] = []
        self.cut_at = -1
        self.checks = self.withdrawn = 0

    # --- the stream -------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.server = Previewing(self.now_ms, self.machine.ask(), self.leader.epoch, limits=self.limits)
        self.down.clear()

    def serve(self) -> bool:
        leader, server = self.leader, self.server
        if server is None:
            return False
        match server.step(self.now_ms):
            case TakeCut():
                self.cut_at = leader.confirmed
                self.cut = leader.newest_rows(self.cut_at)
                here = Here(self.cut_at, 0, leader.failover(self.cut_at), read_index=leader.confirmed)
                undecided = [
                    Appended(EntryId(entry.epoch, at), (entry.row,)) for at, entry in enumerate(leader.log)
                    if at > self.cut_at and entry.row is not None and not leader.covered(at)
                ]
                server.took(self.now_ms, Cut(here), undecided)
            case ReadPage(after, upto, _):
                rows = [row for row in self.cut if after < row.seqno <= upto]
                server.scanned(rows[:2], upto if len(rows) <= 2 else rows[1].seqno)
            case Release():
                self.cut = []
            case Say(message):
                self.down.append(message)
            case Wait() | Done():
                return False
        return True

    def deliver(self) -> bool:
        if not self.down or self.server is None:
            return False
        self.run(self.machine.on_message(self.down.popleft()))
        if self.server is not None:
            self.server.acknowledged(self.now_ms, self.machine.received)
        return True

    def run(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Stage(rows):
                    self.staging += rows
                case Discard():
                    self.staging = []
                case Apply(_, point, fresh):
                    if fresh:
                        self.base = {}
                    for row in self.staging:
                        self.base.pop(row.key, None)
                        if row.op is Op.PUT:
                            self.base[row.key] = (row.seqno, row.value)
                    self.staging = []
                    self.shown = [row for row in self.shown if row.seqno > point.seqno]
                    self.store(point)
                case Move(point):
                    self.store(point)
                case Show(rows):
                    self.shown += rows
                case Withdraw(to):
                    self.withdrawn += 1
                    self.shown = [row for row in self.shown if row.seqno <= to]
                case Reopen():
                    self.server = None
                case Fail():
                    raise AssertionError(f"U65: {effect}")

    def store(self, point: Point) -> None:
        self.position = point
        self.machine.stored(point)
        self.checks += 1
        leader = self.leader
        assert point.seqno <= leader.confirmed, f"U67: {point.seqno} is stored, {leader.confirmed} is confirmed"
        assert not (leader.covered(point.seqno)), "U66: a position inside a rolled-back range"
        assert self.base == leader.documents(point.seqno), f"U67: the base at {point.seqno} is not the shard"

    def disconnect(self) -> None:
        self.server = None
        self.run(self.machine.disconnected())
        assert not self.machine.overlay and not self.shown, "U67: the overlay outlives its stream"

    def crash(self) -> None:
        self.server, self.staging, self.shown = None, [], []
        self.machine = Overlaying(SCOPE, SHARD, self.position)

    def seen(self) -> dict[bytes, tuple[int, bytes]]:
        """Return the view of the application: the base with the overlay above it."""
        docs = dict(self.base)
        for row in self.shown:
            docs.pop(row.key, None)
            if row.op is Op.PUT:
                docs[row.key] = (row.seqno, row.value)
        return docs

    def quiet(self) -> None:
        for _ in range(5_000):
            if self.server is None:
                self.open()
            if not any([self.serve(), self.deliver()]):
                return
        raise AssertionError("U65: the stream does not come to rest")

    def check_quiet(self) -> None:
        """At rest the consumer sees what the leader would have if everything were confirmed."""
        self.quiet()
        assert self.seen() == self.leader.documents(len(self.leader.log) - 1), "U66: base and overlay are not the log"
        assert [row.seqno for row in self.machine.overlay] == [row.seqno for row in self.shown]

    # --- what the leader does ---------------------------------------------------------------------------------

    def write(self, key: bytes, value: bytes = b"", op: Op = Op.PUT) -> int:
        at = len(self.leader.log)
        row = Row(at, key, op, value)
        self.leader.log.append(Entry(self.leader.epoch, row))
        if self.server is not None:
            self.server.appended(Appended(EntryId(self.leader.epoch, at), (row,)))
        return at

    def roll_back(self, first: int) -> None:
        self.leader.log.append(Entry(self.leader.epoch, first=first))
        if self.server is not None:
            self.server.rolled_back(first)

    def confirm(self, upto: int) -> None:
        leader = self.leader
        before, leader.confirmed = leader.confirmed, upto
        for at in range(before + 1, upto + 1):
            if not leader.covered(at) and self.server is not None:
                row = leader.log[at].row
                point = leader.failover(at).point(at)
                self.server.folded(self.now_ms, Folded(point, (row,) if row else (), 50))

    def elect(self, inherited: int) -> None:
        """Another member leads with the log up to `inherited`; its EPOCH_START confirms all of it."""
        leader = self.leader
        if self.server is not None:
            self.server.state_changed()
        leader.log = leader.log[: inherited + 1]
        leader.epoch += 1
        leader.log.append(Entry(leader.epoch, opening=True))
        leader.confirmed = len(leader.log) - 1


def cuts(leader: Leader) -> list[int]:
    """Values that `confirmed` may take: never inside a rolled-back range."""
    return [at for at in range(leader.confirmed + 1, len(leader.log)) if not leader.covered(at)]


def run(seed: int, steps: int = 600) -> Preview:
    dice = random.Random(seed)
    world = Preview(Leader())
    leader = world.leader
    for step in range(steps):
        roll = dice.random()
        world.now_ms += dice.choice((0, 10, 200))
        if roll < 0.15:
            op = dice.choice((Op.PUT, Op.PUT, Op.DELETE))
            world.write(b"k%d" % dice.randrange(5), b"v" * dice.randrange(40) if op is Op.PUT else b"", op)
        elif roll < 0.23 and cuts(leader):
            world.confirm(dice.choice(cuts(leader)[:4]))
        elif roll < 0.25:
            first = leader.confirmed + 1
            open_ = [at for at in range(first, len(leader.log)) if not leader.covered(at) and leader.log[at].first < 0]
            if open_ and not any(leader.log[at].first >= 0 for at in range(open_[0], len(leader.log))):
                world.roll_back(dice.choice(open_[:3]))
        elif roll < 0.26:
            kept = [at for at in cuts(leader) if leader.log[at].first < 0] or [leader.confirmed]
            world.elect(dice.choice([leader.confirmed, *kept]))
        elif roll < 0.275 and world.server is not None:
            world.disconnect()
        elif roll < 0.28:
            world.crash()
        elif world.server is None:
            world.open()
        else:
            dice.choice((world.serve, world.serve, world.deliver))()
        if step % 97 == 0 and dice.random() < 0.5:
            world.check_quiet()
    if cuts(leader):
        world.confirm(cuts(leader)[-1])
    world.now_ms += 5_000
    world.check_quiet()
    world.now_ms += 5_000
    world.check_quiet()
    assert world.position.seqno == leader.confirmed, "U66: everything confirmed is in the base"
    return world


def test_u66_base_and_overlay_are_what_the_leader_would_have() -> None:
    """Rules U65, U67 too: through rollbacks, elections, cuts, crashes and feeds that overflow."""
    worlds = [run(seed) for seed in range(150)]

    assert sum(world.checks for world in worlds) > 4_000
    assert sum(world.withdrawn for world in worlds) > 200


# --- the machines minus one rule --------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def overlay_outlives_its_stream(patch: Patch) -> None:
    patch.setattr(Overlaying, "_close", Consuming._close)


def overlay_is_stored(patch: Patch) -> None:
    """An undecided row moves the position."""
    def on_tentative(self: Overlaying, message: Tentative) -> list[object]:
        shown = tentative(self, message)
        self._storing = self.point._replace(seqno=message.entry.offset)
        return [*shown, Move(self._storing)]

    tentative = Overlaying._on_tentative
    patch.setattr(Overlaying, "_on_tentative", on_tentative)


def rollback_is_not_sent(patch: Patch) -> None:
    patch.setattr(Previewing, "rolled_back", lambda self, first: None)


def stream_outlives_its_epoch(patch: Patch) -> None:
    def appended(self: Previewing, entry: Appended) -> None:
        self.epoch = entry.entry.epoch
        appends(self, entry)

    appends = Previewing.appended
    patch.setattr(Previewing, "appended", appended)
    patch.setattr(Previewing, "state_changed", lambda self: None)


def confirmed_is_clamped_to_what_was_sent(patch: Patch) -> None:
    """The confirmation overtakes the queue, lowered to the last row that went out."""
    def folded(self: Previewing, now_ms: int, entry: Folded) -> None:
        if self.feed.open and self._shown >= 0:
            point = entry.point._replace(seqno=min(entry.point.seqno, self._shown))
            if point.seqno > self.position.seqno:
                self._out.append(Confirmed(point))
                self.position = point
        folds(self, now_ms, entry)

    def moved(self: Previewing, point: Point) -> None:
        self.position = max(self.position, point, key=lambda each: each.seqno)

    folds = Previewing.folded
    patch.setattr(Previewing, "folded", folded)
    patch.setattr(Previewing, "_moved", moved)


def overflow_takes_nothing_back(patch: Patch) -> None:
    def live(self: Previewing, now_ms: int) -> object:
        if self.feed.lost:
            self._clear()
            self._rescan()
            return None
        return lives(self, now_ms)

    lives = Previewing._live
    patch.setattr(Previewing, "_live", live)


@pytest.mark.parametrize("mutate", [
    overlay_outlives_its_stream, overlay_is_stored, rollback_is_not_sent, stream_outlives_its_epoch,
    confirmed_is_clamped_to_what_was_sent, overflow_takes_nothing_back,
], ids=lambda mutate: mutate.__name__)
def test_a_tentative_stream_without_one_rule_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Rules U65 to U67: each change takes one of them away."""
    mutate(monkeypatch)

    with pytest.raises((AssertionError, RemoteViolation), match=r"^U"):
        for seed in range(150):
            run(seed)


# --- traces that broke the sources ------------------------------------------------------------------------------


def test_w9_a_document_that_never_existed_does_not_stay() -> None:
    """Rule U67: two undecided writes are shown, and a member without both is elected."""
    world = Preview(Leader())
    world.quiet()
    world.write(b"a", b"1")
    world.write(b"b", b"2")
    world.check_quiet()
    assert set(world.seen()) == {b"a", b"b"} and world.base == {}
    world.elect(0)
    while world.server is not None:
        world.serve()
        world.deliver()

    assert world.seen() == {}, "taken back as soon as the stream ends"
    world.check_quiet()
    assert world.position.seqno == 1


def test_w10_a_rollback_inside_one_history_is_sent() -> None:
    """Rule U66: an undecided write times out at a leader that stays."""
    world = Preview(Leader())
    world.quiet()
    at = world.write(b"a", b"1")
    world.check_quiet()
    world.roll_back(at)
    world.check_quiet()
    assert world.seen() == {} and world.withdrawn == 1
    world.confirm(len(world.leader.log) - 1)
    world.now_ms += 5_000
    world.check_quiet()

    assert world.position.seqno == 2, "behind the rolled-back range, never inside it"


# --- message by message -----------------------------------------------------------------------------------------


def asked(history: History = History.LATEST) -> Asked:
    scope = Scope(1, history=history)
    return Asked(SHARD, scope, Position(scope, SHARD, START))


def test_u65_a_stream_ends_with_its_epoch() -> None:
    world = Preview(Leader())
    world.quiet()
    assert world.server is not None
    world.server.appended(Appended(EntryId(2, 1), (Row(1, b"a"),)))
    world.serve()

    assert isinstance(world.down[-1], StreamEnd) and world.down[-1].reason == "STATE_CHANGED"


def test_u65_all_versions_have_no_tentative_level() -> None:
    with pytest.raises(LocalMisuse, match="U65"):
        Previewing(0, asked(History.ALL), 1)


def test_u66_rows_of_a_rolled_back_range_that_were_not_sent_are_not_sent() -> None:
    world = Preview(Leader())
    world.quiet()
    world.roll_back(world.write(b"a", b"1"))
    world.quiet()

    assert world.shown == [] and world.withdrawn == 0


def test_u66_a_rollback_looks_at_each_entry_that_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that stay wait in front of those that go: a search for each one would compare them again and again."""
    world = Preview(Leader(), Limits())
    world.quiet()
    server = world.server
    assert server is not None
    compared = 0

    def counted(self: Tentative, other: object) -> bool:
        nonlocal compared
        compared += 1
        return self is other

    monkeypatch.setattr(Tentative, "__eq__", counted)
    for offset in range(100, 600):
        server.appended(Appended(EntryId(server.epoch, offset), (Row(offset, b"k"),)))

    server.rolled_back(350)

    assert [message for message, _ in server._queue][-1] == RolledBack(349)
    assert len(server._queue) == 251
    assert server._queue_bytes == sum(size for _, size in server._queue)
    assert compared == 0


def test_u67_an_overlay_that_grows_too_large_is_dropped_and_the_stream_opened_again() -> None:
    world = Preview(Leader(), Limits())
    world.machine = Overlaying(SCOPE, SHARD, START, bytes_max=300)
    world.quiet()
    for at in range(4):
        world.write(b"k%d" % at, b"x" * 50)
        while world.server is not None and any([world.serve(), world.deliver()]):
            pass

    assert world.server is None and world.machine.overlay == [] and world.shown == []
    world.confirm(4)
    world.check_quiet()
    assert len(world.base) == 4


@pytest.mark.parametrize("messages", [
    [Tentative(EntryId(1, 5), (Row(5, b"a"),))],
    [Tentative(EntryId(1, 6), (Row(7, b"a"),))],
    [Tentative(EntryId(1, 7), (Row(7, b"a"),)), Tentative(EntryId(1, 7), (Row(7, b"a"),))],
    [RolledBack(4)],
    [Confirmed(Point(LINEAGE, 1, 4))],
], ids=range(5))
def test_u66_a_leader_that_breaks_the_protocol_is_noticed(messages: list[Message]) -> None:
    machine = Overlaying(SCOPE, SHARD, Point(LINEAGE, 1, 5))
    machine.ask()
    for message in messages[:-1]:
        machine.on_message(message)

    with pytest.raises(RemoteViolation, match=r"U65|U66"):
        machine.on_message(messages[-1])
