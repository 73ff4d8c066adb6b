"""The driver: promises ride on syncs, order is kept, and a disk that fails a write is like a crash."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from node_harness import GROUP, SHARD, Appender, OperatorHand, batch, push_map, read_all, shard_map
from prometheus_client import generate_latest
from store_writer import chain_of
from tidemark_core.base.effects import (
    Effect,
    Feed,
    LogRead,
    LogReadFailed,
    Persist,
    Put,
    PutEntry,
    ReadLog,
    ReadRows,
    Received,
    Released,
    Reply,
    Send,
    SetTimer,
    TimerFired,
    Trace,
)
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Address, Member, ShardId, of_shard
from tidemark_core.base.plane import NodeFacts
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NodeCore
from tidemark_core.optimistic.holding.layout import STRINGS
from tidemark_core.replication.messages import Appended
from tidemark_node import driver
from tidemark_node.clock import WallClock
from tidemark_node.disk import DiskGuard
from tidemark_node.driver import QUICK_SYNC_BYTES, Driver
from tidemark_node.main import Node
from tidemark_node.metrics import Metrics
from tidemark_node.settings import Settings
from tidemark_node.store import Store
from tidemark_node.store_errors import Faults, StoreDamaged, StoreFailed
from tidemark_wire import channel
from tidemark_wire.frames import AppendCall
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import until

S1 = ShardId(1)
AT = of_shard(S1)
ME = Member("a", "i")


@dataclass
class Do:
    """An event that tells the scripted core what to answer."""

    effects: list[Effect]
    shard: ShardId = S1


class ScriptedCore(NodeCore):
    """A core that does as it is told and remembers what it was fed."""

    boots = count()

    def __init__(self) -> None:
        super().__init__(NodeFacts(ME, f"boot {next(self.boots)}"))
        self.turns: list[list[Any]] = []
        self.times: list[int] = []

    def step(self, now_ms: int, events: list[Any]) -> list[Effect]:
        self.times.append(now_ms)
        self.turns.append(list(events))
        return [effect for event in events if isinstance(event, Do) for effect in event.effects]

    @property
    def seen(self) -> list[Any]:
        return [event for turn in self.turns for event in turn if not isinstance(event, Do)]


class Outbox:
    """Links and snapshots that only remember."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.flushed: list[Any] = []
        self.resets = self.reports = 0

    def send(self, unit: Address, to: Any, message: Any) -> None:
        self.sent.append(message)

    def flush(self) -> None:
        self.flushed, self.sent = self.flushed + self.sent, []

    def report(self) -> None:
        self.reports += 1

    def reset(self) -> None:
        self.resets += 1
        self.sent = []


class GatedStore(Store):
    """A store whose sync waits for a gate."""

    gate: threading.Event | None = None
    syncs = 0
    threads: ClassVar[list[str]] = []

    def sync(self) -> None:
        self.syncs += 1
        self.threads.append(threading.current_thread().name)
        if self.gate is not None:
            self.gate.wait()
        super().sync()


class Rig:
    """A driver with a scripted core on a real store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults = Faults()
        self.core = ScriptedCore()
        self.store = GatedStore(directory / "store", "a", self.faults)
        self.store.syncs = 0  # creating it synced
        self.out = Outbox()
        self.health: list[bool] = []
        self.driver = Driver(self.store, self.core, self._reopen, DiskGuard(directory, 1), Metrics())
        self.driver.links = self.driver.snapshots = self.out
        self.driver.on_health = self.health.append
        self.driver.start()

    def _reopen(self) -> tuple[Store, ScriptedCore]:
        self.core = ScriptedCore()
        self.store = GatedStore(self.directory / "store", "a", self.faults)
        return self.store, self.core


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    if GatedStore.gate is not None:
        GatedStore.gate.set()
    GatedStore.gate = None
    made.faults.write = made.faults.sync = None
    await until(lambda: not made.driver.reloading)
    await made.driver.stop()
    assert made.driver.failure.done() is False


def persist(number: int, *then: Effect) -> Persist:
    return Persist(AT, (PutEntry(chain_of(number + 1)[number]),), then)


async def test_what_rides_on_a_write_waits_for_its_sync(rig: Rig):
    GatedStore.gate = threading.Event()
    rig.driver.post(Do([persist(0, Send(AT, ME, "ack"), Feed("durable")), Send(AT, ME, "push")]))
    await until(lambda: rig.store.syncs == 1)
    assert ["push"] == rig.out.flushed
    GatedStore.gate.set()
    await until(lambda: rig.core.seen == ["durable"])
    assert ["push", "ack"] == rig.out.flushed


async def test_messages_of_a_turn_leave_before_the_next_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(rig.out, "flush", lambda: flushed.set_result(None) if rig.out.sent else None)

    async def leave() -> list[Any]:
        await flushed
        rig.out.sent.clear()
        return list(rig.core.seen)

    leaving = asyncio.ensure_future(leave())
    await asyncio.sleep(0)
    rig.driver.post(Do([Feed("next"), Send(AT, ME, "push")]))
    assert [] == await leaving
    await until(lambda: rig.core.seen == ["next"])


@pytest.mark.parametrize(
    ("seconds", "beside", "size", "here"),
    [
        (0.0001, (), 10, True),
        (0.01, (), 10, False),                             # a slow disk must not hold up the loop
        (0.0001, (Send(AT, ME, "push"),), 10, False),      # others wait for what this turn has to say
        (0.0001, (), QUICK_SYNC_BYTES + 1, False),
    ],
)
async def test_a_quick_disk_is_waited_for_when_nobody_else_waits(
    rig: Rig, seconds: float, beside: tuple[Effect, ...], size: int, here: bool
):
    rig.driver._sync_seconds = seconds
    GatedStore.threads.clear()
    entry = chain_of(1, payload_bytes=size)[0]
    rig.driver.post(Do([Persist(AT, (PutEntry(entry),), (Feed("durable"),)), *beside]))
    await until(lambda: rig.core.seen == ["durable"])
    assert [here] == [name == threading.current_thread().name for name in GatedStore.threads]


async def test_a_write_that_fails_on_a_quick_disk_is_like_a_crash_too(rig: Rig):
    rig.driver._sync_seconds = 0.0001
    rig.faults.sync = OSError(5, "Input/output error")
    rig.driver.post(Do([persist(0, Feed("durable"))]))
    await until(lambda: rig.health[:1] == [False])
    rig.faults.sync = None
    await until(lambda: rig.health == [False, True])
    assert [] == rig.core.seen


async def test_turns_go_on_during_a_sync_and_join_the_next_one(rig: Rig):
    GatedStore.gate = threading.Event()
    rig.driver.post(Do([persist(0, Feed(0))]))
    await until(lambda: rig.store.syncs == 1)
    for number in (1, 2, 3):
        rig.driver.post(Do([persist(number, Feed(number))]))
        await until(lambda: not rig.driver.depths["inbox_events"])
    assert rig.core.seen == [] and rig.store.syncs == 1
    GatedStore.gate.set()
    await until(lambda: len(rig.core.seen) == 4)
    assert [0, 1, 2, 3] == rig.core.seen
    assert 2 == rig.store.syncs


async def test_an_empty_persist_queues_behind_earlier_writes_and_needs_no_sync_alone(rig: Rig):
    rig.driver.post(Do([Persist(AT, (), (Feed("alone"),))]))
    await until(lambda: rig.core.seen == ["alone"])
    assert 0 == rig.store.syncs
    GatedStore.gate = threading.Event()
    rig.driver.post(Do([persist(0, Feed("first"))]))
    await until(lambda: rig.store.syncs == 1)
    rig.driver.post(Do([Persist(AT, (), (Feed("behind"),))]))
    await until(lambda: not rig.driver.depths["inbox_events"])
    assert ["alone"] == rig.core.seen
    GatedStore.gate.set()
    await until(lambda: rig.core.seen == ["alone", "first", "behind"])


async def test_reads_of_a_turn_see_its_writes_and_damage_is_told(rig: Rig):
    entries = chain_of(3)
    rig.driver.post(Do([
        ReadLog(S1, "tag", 0, 2, 1 << 20), Persist(AT, tuple(map(PutEntry, entries))),
        ReadLog(S1, "beyond", 7, 9, 1 << 20),
    ]))
    await until(lambda: len(rig.core.seen) == 2)
    assert LogRead(S1, "tag", tuple(entries)) in rig.core.seen
    assert LogReadFailed(S1, "beyond", 7) in rig.core.seen


async def test_reads_of_rows_of_a_turn_are_answered_each_with_its_own_values(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver, "READS_AT_ONCE", 3)
    monkeypatch.setattr(driver, "QUICK_READ_ROWS", 3)
    read, calls = rig.store.rows.many, list[int]()
    monkeypatch.setattr(rig.store.rows, "many", lambda keys: calls.append(len(keys)) or read(keys))
    keys = [(STRINGS, b"%d" % number) for number in range(4)]
    rig.driver.post(Do([
        ReadRows(AT, "two", (keys[1], keys[1])), ReadRows(AT, "none", ()), ReadRows(AT, "one", (keys[2],)),
        ReadRows(AT, "later", (keys[3],)), Persist(AT, tuple(Put(*key, b"v" + key[1]) for key in keys[1:])),
    ]))
    await until(lambda: len(rig.core.seen) == 4)
    assert {"two": (b"v1", b"v1"), "none": (), "one": (b"v2",), "later": (b"v3",)} == {
        event.tag: event.values for event in rig.core.seen}
    assert [1, 3] == sorted(calls), "one call for three reads, one for what is left"


class Reading:
    """Reads of rows of a store: each notes its thread and the messages that had left, and may take its time."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.seconds = 0.0      # that the next one takes
        self.here: list[bool] = []
        self.flushed: list[list[Any]] = []
        self.fails: list[Exception] = []
        self._now = 100.0
        self._many = rig.store.rows.many
        monkeypatch.setattr(rig.store.rows, "many", self.many)
        monkeypatch.setattr("time.perf_counter", lambda: self._now)

    def many(self, keys: Any) -> Any:
        self.here.append(threading.current_thread() is threading.main_thread())
        self.flushed.append(list(self.rig.out.flushed))
        self.pass_(self.seconds)
        self.seconds = 0.0
        if self.fails:
            raise self.fails.pop(0)
        return self._many(keys)

    def pass_(self, seconds: float) -> None:
        self._now += seconds

    async def ask(self, *rows: int, beside: tuple[Effect, ...] = ()) -> list[bool]:
        """Have a turn read, so many rows with each of its reads; return which of them the loop did."""
        seen, self.here = len(self.rig.core.seen), []
        reads = [ReadRows(AT, place, ((STRINGS, b"key"),) * count) for place, count in enumerate(rows)]
        self.rig.driver.post(Do([*reads, *beside]))
        await until(lambda: len(self.rig.core.seen) == seen + len(rows))
        assert list(range(len(rows))) == sorted(event.tag for event in self.rig.core.seen[seen:])
        return self.here


@pytest.fixture
def reading(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(rig, monkeypatch)


async def test_a_few_rows_of_a_quick_disk_are_read_on_the_loop_behind_the_messages_of_the_turn(reading: Reading):
    assert [True, True] == await reading.ask(1, driver.QUICK_READ_ROWS - 1, beside=(Send(AT, ME, "push"),))
    assert [["push"]] * 2 == reading.flushed
    assert [False] == await reading.ask(1, driver.QUICK_READ_ROWS), "many are one piece of work of a thread"


async def test_a_slow_read_sends_those_behind_it_to_threads_for_a_while(reading: Reading):
    reading.seconds = 2 * driver.QUICK_READ_SECONDS
    assert [True, False] == await reading.ask(1, 1, 1), "the last two are one piece of work of a thread"
    reading.pass_(0.9 * driver.SLOW_READ_REST * 2 * driver.QUICK_READ_SECONDS)
    assert [False] == await reading.ask(1)
    reading.pass_(0.2 * driver.SLOW_READ_REST * 2 * driver.QUICK_READ_SECONDS)
    assert [True] == await reading.ask(1)


async def test_behind_a_large_row_a_thread_goes_on(rig: Rig, reading: Reading):
    rig.driver.post(Do([Persist(AT, (Put(STRINGS, b"key", bytes(driver.QUICK_READ_BYTES + 1)),))]))
    assert [True, False] == await reading.ask(1, 1)
    assert [True] == await reading.ask(1), "it was not slow"


async def test_a_read_that_fails_on_the_loop_ends_like_one_of_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rig = Rig(tmp_path)
    reading = Reading(rig, monkeypatch)
    reading.fails = [StoreDamaged("of the loop"), StoreDamaged("of the thread")]
    rig.driver.post(Do([ReadRows(AT, "tag", ((STRINGS, b"key"),))]))
    with pytest.raises(StoreDamaged, match="of the thread"):
        await asyncio.wait_for(asyncio.shield(rig.driver.failure), 5)
    assert ([True, False], []) == (reading.here, rig.core.seen)
    await rig.driver.stop()


async def test_a_read_that_the_disk_fails_is_like_a_crash(rig: Rig, reading: Reading):
    reading.fails = [StoreFailed("of the loop", no_space=False), StoreFailed("of the thread", no_space=False)]
    rig.driver.post(Do([ReadRows(AT, "of the core before", ((STRINGS, b"key"),))]))
    await until(lambda: rig.health == [False, True])
    assert ([True, False], []) == (reading.here, rig.core.seen), "whoever waits for the read would wait for ever"
    rig.driver.post(Do([ReadRows(AT, "of the core behind", ((STRINGS, b"key"),))]))
    await until(lambda: [event.tag for event in rig.core.seen] == ["of the core behind"])


async def test_what_waits_for_the_loop_when_the_store_is_loaded_again_is_not_read(rig: Rig, reading: Reading):
    rig.driver._sync_seconds = 0.0001     # so that the turn itself meets the fault
    rig.faults.sync = OSError(5, "Input/output error")
    rig.driver.post(Do([ReadRows(AT, "of the core before", ((STRINGS, b"key"),)), persist(0, Feed("durable"))]))
    await until(lambda: rig.health[:1] == [False])
    rig.faults.sync = None
    await until(lambda: rig.health == [False, True])
    assert ([], []) == (reading.here, rig.core.seen)


async def test_timers_fire_are_replaced_and_cancelled(rig: Rig):
    now = rig.driver.now_ms()
    rig.driver.post(Do([
        SetTimer(AT, "late", now + 60), SetTimer(AT, "soon", now + 20), SetTimer(AT, "never", now + 10),
        SetTimer(AT, "never", None), SetTimer(AT, "moved", now + 5), SetTimer(AT, "moved", now + 40),
    ]))
    await until(lambda: len(rig.core.seen) == 3)
    assert ["soon", "moved", "late"] == [event.name for event in rig.core.seen]
    assert rig.driver.now_ms() >= now + 60
    assert {AT} == {event.address for event in rig.core.seen if isinstance(event, TimerFired)}


async def test_c1_the_core_follows_a_wall_clock_that_is_set(rig: Rig):
    """A node that boots eight days ahead and is put right a minute later knows the right time."""
    day_ms = 86_400_000
    clock = {"wall": 100 * day_ms, "monotonic": 5_000}
    rig.driver._clock = WallClock(lambda: clock["wall"] * 10**6, lambda: clock["monotonic"] * 10**6)

    async def turn() -> int:
        turns = len(rig.core.times)
        rig.driver.post(Do([]))
        await until(lambda: len(rig.core.times) > turns)
        return rig.core.times[-1]

    first = await turn()
    assert clock["wall"] == first
    clock["wall"] -= 8 * day_ms
    clock["monotonic"] += 60_000
    second = await turn()
    (stepped,) = rig.core.seen
    assert first < second and clock["wall"] == second - stepped.behind_ms, "no time falls, and the right one is known"
    clock["wall"] += 9 * day_ms
    assert clock["wall"] == await turn()
    assert 0 == rig.core.seen[-1].behind_ms


async def test_replies_run_once_and_released_wakes_readers(rig: Rig):
    answers: list[Any] = []
    waiting = asyncio.ensure_future(rig.driver.board.moved(S1, 60))
    await asyncio.sleep(0)
    rig.driver.ask(lambda number: Do([Reply(number, "yes"), Reply(number, "again"), Released(S1, 41)]), answers.append)
    async with asyncio.timeout(5):
        await waiting
    assert (["yes"], 41) == (answers, rig.driver.board.upto(S1))


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_failed_write_gives_up_what_was_in_flight_and_loads_again(rig: Rig, kind: str):
    rig.driver.post(Do([persist(0, Feed("kept"))]))
    await until(lambda: rig.core.seen == ["kept"])
    before, boot, answers = rig.core, rig.driver.boot, []
    full = OSError(errno.ENOSPC, "No space left on device")
    setattr(rig.faults, kind, full)

    def answered(value: Any) -> None:
        answers.append(value)
        rig.faults.write = full  # the store cannot be opened either, for a while

    rig.driver.ask(lambda number: Do([persist(1, Send(AT, ME, "ack"), Reply(number, "durable"))]), answered)
    await until(lambda: answers)
    assert isinstance(answers[0], Refused) and Reason.NOT_LEADER is answers[0].reason
    assert "the outcome is unknown, retry the same sequence" in answers[0].message
    assert rig.driver.reloading
    rig.driver.ask(lambda number: Do([]), answers.append)  # never reached the core, so its outcome is known
    assert (Reason.NOT_LEADER, False) == (answers[1].reason, "unknown" in answers[1].message)
    with pytest.raises(StoreFailed):
        await rig.driver.read(S1, 0, 0, 1)
    with pytest.raises(StoreFailed):
        await rig.driver.durable()
    rig.faults.write = rig.faults.sync = None
    await until(lambda: not rig.driver.reloading)
    assert rig.core is not before and boot != rig.driver.boot
    assert rig.out.resets == 2 and "ack" not in rig.out.flushed  # links and snapshots, once each
    assert rig.out.reports == 1, "O43: the core that was loaded hears which peers are there"
    assert [False, True] == rig.health
    found = await rig.driver.read(S1, 0, 0, 1 << 20)
    assert chain_of(1) == list(found.entries)
    rig.driver.post(Do([Persist(AT, (), (Feed("works"),))]))
    await until(lambda: rig.core.seen[-1:] == ["works"])


async def test_what_happens_often_is_counted_always_and_told_once_a_second(rig: Rig):
    """A majority that is away must not fill the log and push everything else out of the story."""
    traces = [Trace(of_shard(shard), "quorum_timeout", str(n)) for n in range(100) for shard in (S1, ShardId(2))]
    rig.driver.post(Do([*traces, Trace(AT, "rolled_back"), Trace(AT, "rolled_back")]))
    await until(lambda: len(rig.driver.story) >= 4)
    told = [(story["shard"], story["what"]) for story in rig.driver.story]
    assert [("0/1", "quorum_timeout"), ("0/2", "quorum_timeout"), *[("0/1", "rolled_back")] * 2] == told
    counted = generate_latest(rig.driver.metrics.registry).decode()
    assert 'tidemark_traces_total{what="quorum_timeout"} 200.0' in counted
    assert "tidemark_limbo_timeouts_total 200.0" in counted and "tidemark_limbo_rollbacks_total 2.0" in counted


async def test_messages_of_an_unknown_plane_are_counted_and_told_once(rig: Rig) -> None:
    """The peer chooses the unit: each one must not have a line, nor a place in memory."""
    core = NodeCore(NodeFacts(ME))
    effects = [core.step(0, [Received(Address(77, unit), ME, ME, "hello")])[0] for unit in range(300)]
    rig.driver.post(Do([*effects, Trace(AT, "rolled_back")]))
    await until(lambda: bool(rig.driver.story) and rig.driver.story[-1]["what"] == "rolled_back")
    assert ["violation", "rolled_back"] == [story["what"] for story in rig.driver.story]
    counted = generate_latest(rig.driver.metrics.registry).decode()
    assert 'tidemark_traces_total{what="violation"} 300.0' in counted


async def test_a_refused_truncation_below_commit_is_critical_and_told_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """It is evidence that acknowledged data is lost on the other members."""
    refused = Trace(AT, "truncate_below_commit_refused", "to 1:3, commit 6")

    def told() -> list[str]:
        return [record.levelname for record in caplog.records if record.message == refused.what]

    now_ms = rig.driver.now_ms()
    monkeypatch.setattr(rig.driver, "now_ms", lambda: now_ms)
    for passed_ms, times in ((0, 1), (59_999, 1), (1, 2)):
        now_ms += passed_ms
        rig.driver.post(Do([*[refused] * 300, Persist(AT, (), (Feed(passed_ms),))]))
        await until(lambda passed_ms=passed_ms: rig.core.seen[-1:] == [passed_ms])
        assert ["CRITICAL"] * times == told()
    counted = generate_latest(rig.driver.metrics.registry).decode()
    assert 'tidemark_traces_total{what="truncate_below_commit_refused"} 900.0' in counted


async def test_a_trace_of_a_plane_that_the_node_does_not_have_is_told_under_a_plain_name(rig: Rig):
    rig.driver.post(Do([Trace(Address(77, 5), "violation", "no such plane")]))
    await until(lambda: rig.driver.story)
    assert [("plane 77 unit 5", "violation")] == [(story["unit"], story["what"]) for story in rig.driver.story]
    assert not rig.driver.failure.done()


async def test_a_bug_stops_the_node_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rig = Rig(tmp_path)
    rig.driver.post(Do(["not an effect"]))
    with pytest.raises(TypeError, match="no such effect"):
        await rig.driver.failure
    assert "bug" in caplog.text
    await rig.driver.stop()


async def test_whoever_waits_is_told_when_a_bug_stops_the_node(tmp_path: Path):
    rig, answers = Rig(tmp_path), []
    GatedStore.gate = threading.Event()
    rig.driver.ask(lambda number: Do([persist(0)]), answers.append)
    riding = asyncio.ensure_future(rig.driver.durable())
    await until(lambda: rig.store.syncs == 1)
    waiting = asyncio.ensure_future(rig.driver.durable())
    rig.driver.post(Do(["not an effect"]))
    async with asyncio.timeout(5):
        for done in (riding, waiting):
            with pytest.raises(StoreFailed, match="the node stops"):
                await done
    GatedStore.gate.set()
    GatedStore.gate = None
    assert [Reason.SHUTTING_DOWN] == [refused.reason for refused in answers]
    rig.driver.ask(lambda number: Do([]), answers.append)
    assert Reason.SHUTTING_DOWN is answers[1].reason
    await rig.driver.stop()


async def test_a_disk_that_fails_the_last_sync_does_not_hold_the_stop_up(tmp_path: Path):
    rig = Rig(tmp_path)
    rig.driver.post(Do([persist(0)]))
    rig.faults.sync = OSError(errno.EIO, "Input/output error")
    async with asyncio.timeout(5):
        await rig.driver.stop()
    Store(tmp_path / "store", "a").close()  # its lock is free


# --- a whole node in this process, so that its disk can be broken -------------------------------------------------


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(Settings(node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20), faults=Faults())
    await made.start()
    yield made
    await made.stop()


async def lead(node: Node, operator: OperatorHand, epoch: int) -> None:
    await push_map(node.address, shard_map([(node.me, node.address)], "a", epoch))
    await operator.link("a", node.address)
    await operator.elect(epoch, node.me, (node.me,))


async def test_node_survives_a_disk_that_fails_and_keeps_what_it_acknowledged(node: Node, operator: OperatorHand):
    await lead(node, operator, 1)
    appender = Appender(node.address)
    assert isinstance(await appender.append(batch(0)), Appended)
    boot = await boot_of(node)
    node._faults.sync = OSError(errno.ENOSPC, "No space left on device")
    await appender.send(*(AppendCall(s, GROUP, 0, batch(s)) for s in (1, 2)))  # queued, none of them durable here
    for answer in await appender.answers(2):
        assert Reason.NOT_LEADER is answer.value.reason
        assert "outcome is unknown, retry the same sequence" in answer.value.message
    assert Reason.NOT_LEADER is (await appender.append(batch(1))).reason
    node._faults.sync = None
    await until(lambda: not node.driver.reloading)
    assert boot != await boot_of(node)  # so the operator fences this node anew
    await lead(node, operator, 2)
    for sequence in (1, 2):
        assert isinstance(await appender.append(batch(sequence)), Appended)
    entries = await read_all(node.address)
    assert [batch(s).payload for s in range(3)] == [e.payload for e in entries if e.kind is Kind.DATA]
    await appender.close()


async def boot_of(node: Node) -> str:
    async with channel.open_channel(node.address) as opened:
        return (await node_pb2_grpc.ControlStub(opened).Describe(node_pb2.DescribeRequest())).boot


async def test_full_disk_refuses_appends_serves_reads_and_recovers(
    node: Node, operator: OperatorHand, monkeypatch: pytest.MonkeyPatch
):
    await lead(node, operator, 1)
    appender = Appender(node.address)
    assert isinstance(await appender.append(batch(0)), Appended)
    monkeypatch.setattr(node.driver.guard, "free_bytes", lambda: 1000)
    node.driver._check_disk()
    refused = await appender.append(batch(1))
    assert (Reason.DISK_FULL, True) == (refused.reason, refused.retry_after_ms > 0)
    assert [batch(0).payload] == [e.payload for e in await read_all(node.address) if e.kind is Kind.DATA]
    monkeypatch.undo()
    node.driver._check_disk()
    assert isinstance(await appender.append(batch(1)), Appended)
    await appender.close()


async def test_damaged_entry_without_a_peer_is_refused_not_served(node: Node, operator: OperatorHand):
    await lead(node, operator, 1)
    appender = Appender(node.address)
    for sequence in range(3):
        await appender.append(batch(sequence))
    await appender.close()
    (entry,) = node.driver.store.read(SHARD, 2, 2, 1 << 20).entries
    node.driver.store.apply([Persist(of_shard(SHARD), (PutEntry(entry._replace(payload=b"damaged")),))])
    got: list[bytes] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        got += [e.payload for e in await read_all(node.address, first=2)]
    assert grpc.StatusCode.DATA_LOSS == caught.value.code()
    assert [] == got
