"""Single copy delivery: each record from one member; members that die, hang, lie or leave cost nothing but time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster
from tidemark import errors
from tidemark.near import location_of
from tidemark.running_clock import RunningClock
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.location import Location
from tidemark_core.delivery.messages import Status
from tidemark_core.delivery.order import Mode
from tidemark_wire.v1 import common_pb2

from tests.waiting import PATIENCE_S, remains, until

FAST = {"mode": "scd", "scd_timeout_s": 0.3, "all_send_all_timeout_s": 0.9, "started_timeout_s": 0.3}
RECORDS = 300


@pytest.fixture
async def cluster(connect_to: Callable[..., Awaitable[tuple[FakeCluster, tidemark.Client]]]) -> FakeCluster:
    """Three members of one shard, which holds 30 batches of 10 numbers."""
    cluster, client = await connect_to(nodes=3, shards=1)
    cluster.client = client  # type: ignore[attr-defined]
    await append(client, range(RECORDS))
    return cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> tidemark.Client:
    return cluster.client  # type: ignore[attr-defined]


async def append(client: tidemark.Client, numbers: range, **options: object) -> None:
    async with client.appender("orders", batch_records=10) as appender:
        for start in range(numbers.start, numbers.stop, 10):
            await appender.append_batch([b"%d" % number for number in range(start, start + 10)], **options)


class Tail:
    """A reader whose records are collected beside the test."""

    def __init__(self, client: tidemark.Client, pause_at: int = 0, **options: object) -> None:
        self._pause_at = pause_at   # pause behind so many records, before one more can be read
        self.reader = client.read("orders", **{**FAST, "until": None, **options})
        self.values: list[int] = []
        self.offsets: list[int] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for record in self.reader:
            self.values.append(int(record.value))
            self.offsets.append(record.offset)
            if len(self.values) == self._pause_at:
                self.reader.pause()

    async def reach(self, count: int) -> None:
        await until(lambda: len(self.values) >= count or self._task.done(), f"the reader has {count} records")
        if len(self.values) < count:
            self._task.result()
            raise AssertionError(f"the reader ended after {len(self.values)} of {count} records")

    async def close(self) -> None:
        await self.reader.close()
        await self._task
        assert self.values == list(range(len(self.values))), "each once and in order"
        assert self.offsets == sorted(set(self.offsets))


@pytest.fixture
async def tail(client: tidemark.Client) -> AsyncIterator[Callable[..., Tail]]:
    """Start tails that end with the test, every record read once and in order."""
    started: list[Tail] = []

    def start(pause_at: int = 0, **options: object) -> Tail:
        started.append(Tail(client, pause_at, **options))
        return started[-1]

    yield start
    for one in started:
        await one.close()


def slow_down(cluster: FakeCluster, seconds: float = 0.004) -> None:
    """Let a read take long enough for something to happen in it."""
    for node in cluster.nodes.values():
        node.delivery.item_delay_s = seconds


# --- who sends


async def test_each_record_comes_from_one_member_and_each_member_sends_its_part(cluster, client):
    reader = client.read("orders", **FAST)
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    sent = {name: [first for _, first in node.delivery.sent] for name, node in cluster.nodes.items()}
    assert sorted(first for firsts in sent.values() for first in firsts) == [0, *range(1, RECORDS, 10)]
    assert all(10 <= len(firsts) <= 11 for firsts in sent.values())
    for node in cluster.nodes.values():
        (start,) = node.delivery.starts
        assert (start.ensemble, start.mode, start.known_down) == (("n0", "n1", "n2"), Mode.SINGLE_COPY, ())
        assert (start.first, start.until) == (0, RECORDS)
        await until(lambda node=node: node.delivery.streams == 0)
    stats = reader.stats
    assert stats.duplicates == 0
    assert stats.bytes_delivered == sum(entry.size for entry in cluster.groups["orders"][0].entries)
    assert all(0.25 < share < 0.42 for share in stats.shares.values())


async def test_all_send_all_drops_what_came_before(cluster, client):
    reader = client.read("orders", **{**FAST, "mode": "all"})
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    assert {start.mode for node in cluster.nodes.values() for start in node.delivery.starts} == {Mode.ALL_SEND_ALL}
    assert reader.stats.duplicates > 0


@pytest.mark.parametrize("mode", ["scd", "all"])
async def test_members_that_put_entries_together_differently_give_each_record_once(cluster, client, mode):
    for node, together in zip(cluster.nodes.values(), (2, 3, 7), strict=True):
        node.delivery.together = together
    for first, last in ((0, RECORDS), (14, RECORDS), (0, 77), (36, 77), (44, 46)):
        reader = client.read("orders", **{**FAST, "mode": mode}, from_=first, until=last)
        offsets = [record.offset async for record in reader]
        assert offsets == list(range(max(1, first), last + 1)), "offset 0 is the mark of an election"
        touched = [e for e in cluster.groups["orders"][0].entries if e.last >= first and e.base <= last]
        assert reader.stats.bytes_delivered == sum(entry.size for entry in touched)
        assert reader.epochs_begun == (first == 0)


async def test_a_paused_shard_keeps_what_arrives_as_one(cluster, client):
    for node in cluster.nodes.values():
        node.delivery.together = 7
    reader = client.read("orders", **{**FAST, "mode": "all"})
    offsets: list[int] = []
    async for batch in reader.batches():
        offsets += range(batch.first, batch.last + 1)
        reader.pause()
        asyncio.get_running_loop().call_soon(reader.resume)
    assert offsets == list(range(1, RECORDS + 1))


async def test_local_reading_asks_who_keeps_the_payload_before_who_is_near(cluster, client, tail):
    cluster.nodes["n0"].zone = "a"
    cluster.payload_copies = 2
    cluster.push()
    await until(lambda: client.shard_map.version == cluster.version)
    near, anywhere = tail(location="zone=a"), tail()
    await near.reach(RECORDS)
    await anywhere.reach(RECORDS)
    starts = [start for node in cluster.nodes.values() for start in node.delivery.starts]
    assert {(start.mode, start.copies) for start in starts} == {(Mode.LOCAL, 2), (Mode.SINGLE_COPY, 0)}
    cluster.payload_copies = 0
    cluster.push()
    await until(lambda: near.reader.stats.rewinds["ENSEMBLE"])
    assert not anywhere.reader.stats.rewinds


async def test_local_reading_asks_who_is_near_and_goes_on_with_the_rest(cluster, client, tail):
    for name, location in (("n0", ""), ("n1", "zone=a,rack=r1"), ("n2", "")):
        cluster.nodes[name].zone, cluster.nodes[name].location = "b", location
    cluster.push()
    await until(lambda: client.shard_map.version == cluster.version)
    slow_down(cluster)
    near = tail(location="zone=a")
    await near.reach(100)
    assert cluster.nodes["n1"].delivery.sent
    assert not cluster.nodes["n0"].delivery.sent
    (start,) = cluster.nodes["n2"].delivery.starts
    assert (start.mode, start.priorities) == (Mode.LOCAL, (0, 1, 0))
    await cluster.nodes["n1"].kill()
    await near.reach(RECORDS)
    cluster.nodes["n2"].location = "zone=a"
    cluster.push()
    await until(lambda: cluster.nodes["n2"].delivery.starts[-1].priorities == (0, 1, 1))
    assert "ENSEMBLE" in near.reader.stats.rewinds


def test_a_node_without_a_location_stands_in_its_zone():
    assert location_of(common_pb2.NodeInfo(zone="a")) == Location(zone="a")
    assert location_of(common_pb2.NodeInfo(zone="a", location="region=eu,zone=b")) == Location("eu", "b")
    assert location_of(common_pb2.NodeInfo(location="nowhere")) == Location()
    assert location_of(None) == Location()


# --- members that fail


async def test_a_killed_member_is_passed_over_and_taken_back(cluster, client, tail):
    slow_down(cluster)
    reading = tail()
    await reading.reach(50)
    port = int(cluster.nodes["n1"].address.rpartition(":")[2])
    await cluster.nodes["n1"].kill()
    await reading.reach(RECORDS)
    stats = reading.reader.stats
    assert stats.known_down[0].keys() == {"n1"}
    assert stats.rewinds == {"CLOSED": 1}
    assert stats.failovers == 1
    assert cluster.nodes["n0"].delivery.starts[-1].known_down == ("n1",)
    positions = dict(reading.reader.positions)
    await cluster.nodes["n1"].start(port)
    cluster.push()  # the map says that it is back: it is tried at once
    await until(lambda: cluster.nodes["n1"].delivery.streams)
    await append(client, range(RECORDS, RECORDS + 100))
    await reading.reach(RECORDS + 100)
    assert reading.reader.positions[0] > positions[0]
    await until(lambda: not reading.reader.stats.known_down and reading.reader.stats.rewinds["BACK"])


async def test_a_reader_ends_though_a_member_is_dead(cluster, client):
    """gRPC loses a cancel that comes while the opening of a stream fails: about one reader in ten went on for ever."""
    await cluster.nodes["n1"].kill()
    for number in range(100):
        async with asyncio.timeout(PATIENCE_S):
            reader = client.read("orders", **FAST, until=None)
            iteration = asyncio.ensure_future(anext(aiter(reader)))
            await asyncio.sleep(number % 20 / 1000)
            await reader.close()
            await asyncio.gather(iteration, return_exceptions=True)
            assert iteration.done() and not reader.stats.received_from.get("n1"), "a dead member sends nothing"


async def test_positions_taken_after_a_failover_go_on_behind_the_last_record(cluster, client, tail):
    slow_down(cluster)
    first = tail()
    await first.reach(50)
    await cluster.nodes["n2"].kill()
    await first.reach(200)
    await first.reader.close()
    seen = len(first.values)
    rest = [int(record.value) async for record in client.read("orders", from_=first.reader.positions, **FAST)]
    assert rest == list(range(seen, RECORDS))


async def test_a_hanging_member_is_passed_over_after_a_while_and_comes_back(cluster, client, tail):
    slow_down(cluster)
    reading = tail()
    await reading.reach(50)
    cluster.nodes["n2"].paused.clear()
    began = time.monotonic()
    await reading.reach(RECORDS)
    assert 0.2 < time.monotonic() - began
    assert reading.reader.stats.rewinds["SILENT"] == 1
    assert list(reading.reader.stats.known_down[0]) == ["n2"]
    cluster.nodes["n2"].paused.set()
    await append(client, range(RECORDS, RECORDS + 100))
    await reading.reach(RECORDS + 100)
    await until(lambda: not reading.reader.stats.known_down)


async def test_a_member_that_never_answers_start_is_passed_over(cluster, client):
    cluster.nodes["n0"].delivery.deaf = True
    reader = client.read("orders", **FAST)
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    assert reader.stats.rewinds["NO_ANSWER"] == 1


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.NOT_MEMBER])
async def test_a_refused_start_is_asked_again_later(cluster, client, tail, status):
    faults = cluster.nodes["n1"].delivery
    faults.status, faults.message = status, "not now"
    reading = tail()
    await reading.reach(RECORDS)
    stats = reading.reader.stats
    assert stats.rewinds["REFUSED"] == 1
    assert stats.known_down == {0: {"n1": f"{status}: not now"}}
    faults.status = Status.OK
    await until(lambda: faults.starts[-1].first > RECORDS)
    await append(client, range(RECORDS, RECORDS + 100))
    await reading.reach(RECORDS + 100)
    await until(lambda: not reading.reader.stats.known_down)


async def test_a_refused_stream_is_opened_again(cluster, client, tail):
    faults = cluster.nodes["n1"].delivery
    faults.refusal = Refused(Reason.OVERLOADED, "4096 readers are open", retry_after_ms=200)
    reading = tail()
    await reading.reach(RECORDS)
    assert "4096 readers" in reading.reader.stats.known_down[0]["n1"]
    faults.refusal = None
    await until(lambda: faults.streams)


async def test_a_damaged_payload_comes_from_another_member(cluster, client):
    cluster.nodes["n1"].delivery.damaged = {11, 41, 101}  # n1 is the first to send 1, 31, ...
    cluster.nodes["n2"].delivery.damaged = {11, 101}
    reader = client.read("orders", **FAST)
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    assert reader.stats.rewinds["CORRUPT"] >= 1


async def test_a_garbled_frame_comes_from_another_member(cluster, client):
    cluster.nodes["n0"].delivery.garbled = {21, 111}
    reader = client.read("orders", **FAST)
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    assert reader.stats.rewinds["CORRUPT"] >= 1


async def test_a_member_that_is_far_slower_is_gone_around(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    await append(client, range(3000))
    slow_down(cluster, 0.001)
    cluster.nodes["n1"].delivery.item_delay_s = 0.3
    window_bytes = 24 * cluster.groups["orders"][0].entries[1].size
    reader = client.read("orders", mode="scd", window_bytes=window_bytes)
    assert [int(record.value) async for record in reader] == list(range(3000))
    assert len(cluster.nodes["n1"].delivery.sent) < 50, "alone, it sends a hundred batches in 30 s"
    assert reader.stats.slow == 1
    assert reader.stats.rewinds["SLOW"] == 1


# --- records that members do not hold


async def test_what_one_member_lacks_another_one_sends(cluster, client):
    cluster.nodes["n1"].delivery.lacks = {1, 31, 61}
    reader = client.read("orders", **FAST)
    assert [int(record.value) async for record in reader] == list(range(RECORDS))
    assert reader.stats.all_send_all >= 1


async def test_what_no_member_holds_is_told_and_never_passed_over_unseen(cluster, client):
    for node in cluster.nodes.values():
        node.delivery.lacks = {101, 111}
    seen = []
    with pytest.raises(errors.DataLoss) as caught:
        async for record in client.read("orders", **FAST):
            seen.append(int(record.value))
    assert seen == list(range(100))
    assert (caught.value.shard, caught.value.first) == (0, 101)
    items = [item async for item in client.read("orders", gaps=True, **FAST)]
    gaps = [item for item in items if isinstance(item, tidemark.Gap)]
    assert {gap.kind for gap in gaps} == {tidemark.GapKind.DATALOSS}
    assert [offset for gap in gaps for offset in range(gap.first, gap.last + 1)] == list(range(101, 121))
    assert len(items) == RECORDS - 20 + len(gaps)


async def test_who_may_not_read_is_told(cluster, client):
    for node in cluster.nodes.values():
        node.delivery.status = Status.ACCESS
    with pytest.raises(errors.AccessDenied):
        _ = [record async for record in client.read("orders", **FAST)]
    (gap,) = [item async for item in client.read("orders", gaps=True, until=RECORDS, **FAST)]
    assert gap == tidemark.Gap(tidemark.GapKind.ACCESS, 0, 0, RECORDS)


async def test_members_that_trimmed_differently_are_no_reason_to_fail_a_read_from_the_earliest(cluster, client):
    cluster.nodes["n0"].delivery.first = 51
    cluster.nodes["n1"].delivery.first = 101
    for _ in range(5):
        values = [int(record.value) async for record in client.read("orders", **FAST)]
        assert values == sorted(set(values))
        assert values[-200:] == list(range(100, RECORDS))


# --- members that change


async def test_a_member_that_is_swapped_out_is_left_and_the_new_one_joins(connect_to):
    cluster, client = await connect_to(nodes=4, shards=1)
    cluster.ensemble = ["n0", "n1", "n2"]
    cluster.groups["orders"][0].members = 3
    cluster.push()
    await append(client, range(RECORDS))
    slow_down(cluster)
    reading = Tail(client)
    await reading.reach(50)
    assert cluster.nodes["n3"].delivery.opened == 0
    cluster.ensemble = ["n0", "n1", "n3"]
    cluster.push()
    await reading.reach(RECORDS)
    assert reading.reader.stats.rewinds == {"ENSEMBLE": 1}
    assert cluster.nodes["n3"].delivery.starts[-1].ensemble == ("n0", "n1", "n3")
    await until(lambda: cluster.nodes["n2"].delivery.streams == 0)
    assert set(reading.reader.stats.received_from) == {"n0", "n1", "n2", "n3"}
    await reading.close()


async def test_a_new_address_is_tried_at_once(cluster, client, tail):
    reading = tail()
    await reading.reach(RECORDS)
    node = cluster.nodes["n0"]
    stream = reading.reader.cursors[0]._streams["n0"]
    stream.backoff._next_s = 600.0  # as after a long time
    await node.kill()
    await until(lambda: stream.call is None)
    await node.start()
    cluster.push()
    await until(lambda: node.delivery.streams, "the new address ends the pause, which takes five minutes at least")
    assert stream.call is not None, "the same stream is open again"


async def test_a_group_that_is_gone_ends_the_read(cluster, client):
    reading = Tail(client)
    await reading.reach(RECORDS)
    cluster.delete("orders")
    with pytest.raises(errors.UnknownGroup):
        await asyncio.wait_for(reading._task, PATIENCE_S)


# --- nobody there


async def test_a_bounded_read_that_nobody_serves_is_unavailable(cluster, client):
    for node in cluster.nodes.values():
        node.delivery.status, node.delivery.message = Status.UNAVAILABLE, "it loads"
    with pytest.raises(errors.Unavailable, match="shard 0 of 'orders' could not be read on from offset 0"):
        _ = [record async for record in client.read("orders", timeout_s=0.5, **FAST)]


async def test_the_end_that_no_leader_tells_is_unavailable(cluster, client):
    cluster.groups["orders"][0].leader = ""
    cluster.push()
    await until(lambda: client.routing.leader("orders", 0) is None)
    with pytest.raises(errors.Unavailable, match="shard 0 of 'orders'"):
        _ = [record async for record in client.read("orders", timeout_s=0.3, **FAST)]
    assert len([record async for record in client.read("orders", until=20, **FAST)]) == 20, "needs no leader"


async def test_a_cluster_without_the_service_says_so(cluster, client):
    for node in cluster.nodes.values():
        node.delivery.unimplemented = True
    async with asyncio.timeout(15):  # at once, not when its time is over
        with pytest.raises(errors.Unavailable, match="UNIMPLEMENTED"):
            _ = [record async for record in client.read("orders", until=20, **FAST)]


async def test_a_tail_outlives_the_loss_of_every_member(cluster, client, tail):
    reading = tail()
    await reading.reach(RECORDS)
    ports = {name: int(node.address.rpartition(":")[2]) for name, node in cluster.nodes.items()}
    for node in cluster.nodes.values():
        await node.kill()
    await until(lambda: len(reading.reader.stats.known_down.get(0, ())) == 3)
    for name, node in cluster.nodes.items():
        await node.start(ports[name])
    cluster.push()
    await append(client, range(RECORDS, RECORDS + 50))
    await reading.reach(RECORDS + 50)
    assert reading.values == list(range(RECORDS + 50)), "each once and in order, over the loss of all"


# --- the application is the slow one


async def test_windows_bound_what_members_send_ahead(cluster, client):
    entry = cluster.groups["orders"][0].entries[1].size
    reader = client.read("orders", window_bytes=9 * entry, timeout_s=1.5, **FAST)
    batches = reader.batches()
    first = await anext(batches)
    await remains(lambda: reader.buffered_bytes <= 2 * 9 * entry + 3 * entry, for_s=2.4)  # far beyond every timeout
    assert all(node.delivery.over_window <= entry for node in cluster.nodes.values())
    assert sum(len(node.delivery.sent) for node in cluster.nodes.values()) < 25
    stats = reader.stats
    assert (stats.failovers, stats.rewinds) == (0, {}), "a slow application is nobody's fault"
    rest = [batch async for batch in batches]
    assert [batch.first for batch in (first, *rest)] == list(range(1, RECORDS, 10))


async def test_gaps_that_nobody_takes_are_bounded_too(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    for number in range(100):
        await append(client, range(10))
        shard.begin_rollback(1 + 11 * number)
        shard.finish_rollback()
    mark = shard.entries[-1].size
    reader = client.read("orders", gaps=True, window_bytes=9 * mark, **FAST)
    reader.pause()
    taking = asyncio.ensure_future(reader.next_batches(1))
    await until(lambda: reader._held[0], "gaps have come")
    await remains(lambda: len(reader._held[0]) <= 2 * 9 + 3 and not taking.done(), for_s=0.4)
    taking.cancel()
    reader.resume()
    items = []
    while more := await reader.next_batches(100):
        items += more
    assert [(item.first, item.last) for item in items] == [(first, first + 9) for first in range(1, 1101, 11)]
    assert reader.holes == 1000


async def test_a_blocked_loop_is_nobodys_fault(cluster, client, tail):
    slow_down(cluster)
    reading = tail(scd_timeout_s=3.0)
    await reading.reach(50)
    time.sleep(4.0)  # the application computes; frames wait in their sockets
    await reading.reach(RECORDS)
    assert (reading.reader.stats.failovers, reading.reader.stats.rewinds) == (0, {})


class FakeLoop:
    """A loop whose time the test sets, and whose timers it runs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], object]) -> FakeLoop:
        self.timers.append((self.now + seconds, callback))
        return self

    def cancel(self) -> None:
        self.timers.pop()

    def run(self, until: float) -> None:
        """Let time pass and every timer run when it is due."""
        while self.timers and min(self.timers)[0] <= until:
            due, callback = self.timers.pop(self.timers.index(min(self.timers)))
            self.now = max(self.now, due)
            callback()
        self.now = until


def test_the_clock_stands_still_while_the_loop_is_blocked():
    loop = FakeLoop()
    clock = RunningClock(loop)  # type: ignore[arg-type]
    clock.start()
    began = clock.ms()
    loop.run(102.1)
    assert clock.ms() - began == 2_100, "an idle loop is no blocked one"
    loop.now = 110.0  # no timer ran
    blocked = clock.ms() - began
    assert 2_500 <= blocked <= 2_600
    loop.now = 111.0
    assert clock.ms() - began == blocked
    loop.run(111.0)
    assert clock.ms() - began == blocked
    loop.run(112.0)
    assert clock.ms() - began == blocked + 1_000
    clock.stop()
    assert not loop.timers


async def test_a_paused_shard_is_nobodys_fault(cluster, client, tail):
    reading = tail(pause_at=20, buffer_bytes=4_000)
    await reading.reach(20)
    await remains(lambda: reading.reader.stats.rewinds == {}, for_s=1.2)
    seen = len(reading.values)
    reading.reader.resume()
    await reading.reach(RECORDS)
    assert seen < RECORDS


# --- many readers, and without a loop


async def test_readers_of_many_shards_and_members(connect_to):
    cluster, client = await connect_to(nodes=5, shards=4)
    async with client.appender("orders", batch_records=10) as appender:
        for start in range(0, 800, 10):
            await appender.append_batch([b"%d" % number for number in range(start, start + 10)])
    slow_down(cluster, 0.002)
    readers = [client.read("orders", until=200, **FAST) for _ in range(4)]

    async def read(reader: tidemark.Reader) -> list[tidemark.Record]:
        return [record async for record in reader]

    reading = asyncio.gather(*map(read, readers))
    await until(lambda: all(reader.stats.bytes_delivered for reader in readers))
    await cluster.nodes["n3"].kill()
    cluster.nodes["n4"].paused.clear()
    for records in await asyncio.wait_for(reading, PATIENCE_S):
        assert Counter(int(record.value) for record in records) == Counter(range(800))
        for shard in range(4):
            offsets = [record.offset for record in records if record.shard == shard]
            assert offsets == list(range(1, 201))
    cluster.nodes["n4"].paused.set()


async def test_the_synchronous_reader_has_it_too(cluster):
    def read() -> tuple[list[int], tidemark.ReadStats, dict[int, int]]:
        with tidemark.sync.connect(cluster.addresses()) as client:
            reader = client.read("orders", **FAST)
            assert reader.paused == frozenset()
            reader.pause(0)
            assert reader.paused == {0}
            reader.resume()
            values = [int(record.value) for record in reader]
            return values, reader.stats, reader.positions

    values, stats, positions = await asyncio.to_thread(read)
    assert values == list(range(RECORDS))
    assert len(stats.received_from) == 3
    assert positions == {0: RECORDS + 1}
