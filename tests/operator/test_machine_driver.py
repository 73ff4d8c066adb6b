"""MachineDriver: effects run, outcomes fed back, timers, etcd away; the core is a script here."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from operator_views import member, record
from tidemark_core.base.effects import Received, Send, SetTimer, TimerFired
from tidemark_core.base.effects import Reply as ReplyEffect
from tidemark_core.base.ids import LOG_PLANE, Address, ShardId, of_shard
from tidemark_core.base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeUp,
    SaveMetadata,
)
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import (
    ChangeDone,
    ChangeProgress,
    StartTransfer,
)
from tidemark_operator.driver import MachineDriver, now_ms
from tidemark_operator.etcd import Conflict, Item, Saved, StoreUnavailable, Unknown
from tidemark_operator.metadata import Keys
from tidemark_operator.mirror import Versioned
from tidemark_operator.records import MACHINE_AREAS, RECORDS, RecordKind

from tests.waiting import until

SHARD = ShardId(1 << 32)
AT = of_shard(SHARD)
KEYS = Keys("/t")


class Script:
    """A core that answers events as told and remembers what it saw."""

    def __init__(self, answers: dict[type, Any] | None = None) -> None:
        self.units: dict[int, Any] = {SHARD: SimpleNamespace(record=None, revision=0)}
        self.seen: list[Any] = []
        self.times: list[int] = []
        self.answers = answers or {}

    def step(self, now: int, event: Any) -> list[Any]:
        self.seen.append(event)
        self.times.append(now)
        answer = self.answers.get(type(event), [])
        return answer(event) if callable(answer) else answer


class Store:
    """An etcd whose outcomes are given in advance."""

    def __init__(self, puts: list[Any] | None = None, gets: list[Any] | None = None) -> None:
        self.puts, self.gets = puts or [], gets or []
        self.calls: list[Any] = []

    async def put(self, key: str, value: bytes, *, expected: int) -> Any:
        self.calls.append((key, expected))
        return self.puts.pop(0)

    async def get(self, key: str) -> Any:
        self.calls.append(key)
        got = self.gets.pop(0)
        if isinstance(got, Exception):
            raise got
        return got


def make(script: Script, store: Store | None = None, sent: list[Any] | None = None) -> MachineDriver:
    sink = sent if sent is not None else []
    return MachineDriver(
        {LOG_PLANE: script}, store or Store(), KEYS, lambda *message: sink.append(message))  # type: ignore[arg-type]


@pytest.mark.parametrize(("outcome", "event"), [
    (Saved(7), MetadataSaved(AT, "", 7)),
    (Conflict(), MetadataUncertain(AT, "")),
    (Unknown("lost"), MetadataUncertain(AT, "")),
])
async def test_a_save_ends_as_saved_or_uncertain(outcome, event) -> None:
    script, store = Script({NodeUp: [SaveMetadata(AT, record("n1"), 3)]}), Store(puts=[outcome])
    driver = make(script, store)
    driver.node_up(member("n1"), "boot")
    await until(lambda: event in script.seen)
    assert store.calls == [(KEYS.shard(SHARD), 3)]
    await driver.close()


async def test_a_load_waits_for_etcd_and_then_tells(monkeypatch) -> None:
    monkeypatch.setattr("tidemark_operator.driver.LOAD_RETRY_S", 0.05)
    stored = record("n1", leader="n1")
    store = Store(gets=[StoreUnavailable("away"), StoreUnavailable("away"), Item(stored.encode(), 5)])
    script = Script({NodeUp: [LoadMetadata(AT), LoadMetadata(AT)]})
    driver = make(script, store)
    driver.node_up(member("n1"), "boot")
    await until(lambda: driver.waiting_for_store == 1)
    await until(lambda: MetadataLoaded(AT, stored, 5, fresh=True) in script.seen)
    assert driver.waiting_for_store == 0 and len(store.calls) == 3
    await driver.close()


async def test_c6_an_operators_core_hears_the_monotonic_clock(monkeypatch) -> None:
    """A person sets the wall clock an hour back."""
    script = Script()
    driver = make(script)
    driver.node_up(member("n1"), "boot")
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall - 3_600)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall - 3_600) * 1e9))
    before_ms = time.monotonic_ns() // 1_000_000

    driver.node_up(member("n2"), "boot")

    assert script.times == sorted(script.times)
    assert script.times[0] <= before_ms <= script.times[-1] <= time.monotonic_ns() // 1_000_000
    await driver.close()


async def test_timers_fire_in_order_and_the_last_setting_counts() -> None:
    def arm(_event: Any) -> list[Any]:
        now = now_ms()
        return [
            SetTimer(AT, "late", now + 60), SetTimer(AT, "early", now + 20),
            SetTimer(AT, "moved", now + 10), SetTimer(AT, "moved", now + 40),
            SetTimer(AT, "cancelled", now + 5), SetTimer(AT, "cancelled", None),
        ]

    script = Script({NodeUp: arm})
    driver = make(script)
    driver.node_up(member("n1"), "boot")
    await until(lambda: TimerFired(AT, "late") in script.seen)
    names = [event.name for event in script.seen if isinstance(event, TimerFired)]
    assert names == ["early", "moved", "late"]
    await driver.close()


async def test_a_change_is_answered_with_its_progress() -> None:
    done = ChangeDone(4, (member("n1"),), member("n1"))

    def start(event: StartTransfer) -> list[Any]:
        return [ChangeProgress(SHARD, event.request, "TRANSFER"), ReplyEffect(event.request, done)]

    driver = make(Script({StartTransfer: start}))
    news: list[ChangeProgress] = []
    answer = await driver.change(AT, lambda request: StartTransfer(SHARD, request, "n1"), news.append)
    assert answer == done and [item.stage for item in news] == ["TRANSFER"]
    missing = await driver.change(of_shard(ShardId(99)), lambda request: StartTransfer(ShardId(99), request, "n1"))
    assert isinstance(missing, Refused) and missing.reason is Reason.UNKNOWN_SHARD
    await driver.close()


async def test_waiting_changes_are_told_when_the_operator_stops() -> None:
    driver = make(Script())
    waiting = asyncio.ensure_future(driver.change(AT, lambda request: StartTransfer(SHARD, request, "n1")))
    await asyncio.sleep(0)
    await driver.close()
    answer = await waiting
    assert isinstance(answer, Refused) and answer.reason is Reason.SHUTTING_DOWN


async def test_events_of_effects_come_after_the_step_that_caused_them() -> None:
    sent: list[Any] = []
    script = Script()
    driver = make(script, sent=sent)

    def nested(_event: Any) -> list[Any]:
        return [Send(AT, member("n1"), "hello")]

    script.answers[NodeUp] = nested
    driver._send = lambda *message: (sent.append(message), driver.node_down("n1"))  # type: ignore[assignment]
    driver.node_up(member("n1"), "boot")
    assert [type(event).__name__ for event in script.seen][-2:] == ["NodeUp", "NodeDown"]
    assert sent == [(AT, member("n1"), "hello")]
    await driver.close()


async def test_an_unreadable_record_is_left_alone(caplog) -> None:
    script = Script({NodeUp: [LoadMetadata(AT)]})
    driver = make(script, Store(gets=[Item(b"{}", 4)]))
    driver.node_up(member("n1"), "boot")
    await until(lambda: "it is left as it is" in caplog.text)
    assert [type(event).__name__ for event in script.seen] == ["SetActive", "NodeUp"]
    await driver.close()


async def test_each_plane_has_its_machine_and_its_area_of_records(monkeypatch) -> None:
    """A second kind of record is a row and a machine: its saves, loads, timers and messages meet nothing of shards."""
    ring = Address(9, 1 << 32)
    monkeypatch.setitem(RECORDS, "rings", RecordKind(lambda data: data.decode(), plane=9, unit="range"))
    monkeypatch.setitem(MACHINE_AREAS, 9, "rings")
    sent: list[Any] = []
    stored = SimpleNamespace(writer="w", encode=lambda: b"ring")
    shards, rings = Script(), Script({NodeUp: [
        Send(ring, member("n1"), "hello"), SaveMetadata(ring, stored, 3), LoadMetadata(ring), SetTimer(ring, "t", 0)]})
    rings.units = {ring.id: SimpleNamespace(record=None, revision=0)}
    store = Store(puts=[Saved(4)], gets=[Item(b"ring", 4)])
    driver = MachineDriver(
        {LOG_PLANE: shards, 9: rings}, store, KEYS, lambda *message: sent.append(message))  # type: ignore[arg-type]
    driver.node_up(member("n1"), "boot")
    wanted = {
        MetadataSaved(ring, "w", 4), MetadataLoaded(ring, "ring", 4, fresh=True), TimerFired(ring, "t")}
    await until(lambda: wanted <= {event for event in rings.seen if not isinstance(event, Received)})
    assert sent == [(ring, member("n1"), "hello")]
    assert {call if isinstance(call, str) else call[0] for call in store.calls} == {f"/t/rings/{1 << 32:016x}"}
    driver.received(ring, member("n1"), "boot", "answer")
    driver.received(Address(7, 1), member("n1"), "boot", "of a plane that no machine has")
    driver.active = True
    driver.metadata_changed(ring, None)
    assert rings.seen[-2:] == [Received(ring, member("n1"), None, "answer", "boot"), MetadataLoaded(ring, None, 0)]
    assert [type(event).__name__ for event in shards.seen] == ["SetActive", "NodeUp"]
    await driver.close()


async def test_o3b_a_renewal_of_a_change_is_no_news_of_the_shard() -> None:
    """A map for every node follows from such news, and a running change is renewed every second."""
    first = record("n1", leader="n1")
    versions = [first, replace(first, writer="op#2"), replace(first, writer="op#3", epoch=first.epoch + 1)]
    script = Script()

    def adopt(event: MetadataLoaded) -> list[Any]:
        script.units[SHARD] = SimpleNamespace(record=event.record, revision=event.revision)
        return []

    script.answers[MetadataLoaded] = adopt
    driver = make(script)
    driver.active = True
    news: list[int] = []
    driver.on_record = lambda address, *_records: news.append(driver.revision(address))
    for revision, version in enumerate(versions, 1):
        driver.metadata_changed(AT, Versioned(version, revision))

    assert [1, 3] == news
    await driver.close()
