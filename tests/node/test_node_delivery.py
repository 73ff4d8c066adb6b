"""Delivery by real nodes over real stores: each record from one of them, windows, generations, and what goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from delivery_harness import (
    LogMaker,
    Stream,
    begin_with,
    kinds,
    offsets,
    order_of,
    rotating_log,
    serve,
    shipped,
)
from node_harness import (
    AT,
    GROUP,
    SHARD,
    Appender,
    NodeProcess,
    OperatorHand,
    batch,
    push_map,
    shard_map,
)
from prometheus_client import generate_latest
from tidemark_core.base.effects import Persist, PutEntry, Received
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import EntryId, Member, OperatorId, ShardId
from tidemark_core.base.refusals import Reason
from tidemark_core.delivery import sender
from tidemark_core.delivery.messages import Shipment, Started, Status
from tidemark_core.delivery.order import Mode
from tidemark_core.replication.messages import Append, Appended, DeleteShard
from tidemark_node import delivery
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_node.store import Store
from tidemark_wire import channel, status
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import PATIENCE_S, remains, until

ABC = ("a", "b", "c")


@pytest.fixture
async def begun(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start nodes, one per name, that hold this log; all of them members unless said.

    Each knows lives "x" of the other members: a test speaks to it as their leader (T10).
    """
    nodes: list[Node] = []

    async def begin(
        entries: list[Entry], names: tuple[str, ...] = ABC, confirmed: int | None = None
    ) -> list[Node]:
        made = [
            begin_with(tmp_path, name, entries, confirmed, [Member(other, "x") for other in ABC if other != name])
            for name in names
        ]
        nodes.extend(made)
        await serve(made)
        return made

    yield begin
    for node in nodes:
        if not node.draining.is_set():
            await node.stop()


@pytest.fixture
async def open_stream() -> AsyncIterator[Callable[..., Stream]]:
    streams: list[Stream] = []

    def make(node: Node | NodeProcess, ensemble: tuple[str, ...] = ABC) -> Stream:
        streams.append(Stream(node.address, ensemble))
        return streams[-1]

    yield make
    for stream in streams:
        await stream.close()


# --- who sends ----------------------------------------------------------------------------------------------------


async def test_each_offset_from_exactly_one_of_three_nodes(begun: Callable[..., Any]):
    nodes = await begun(rotating_log(30))

    async def sent_by(*which: Node, **how: Any) -> list[list[tuple[int, int]]]:
        return [await shipped(node.address, ABC, 30, **how) for node in which]

    everything = [(offset, offset) for offset in range(31)]
    single = await sent_by(*nodes)
    assert everything == sorted(itertools.chain(*single))
    assert [(0, 0), *((offset, offset) for offset in range(1, 31, 3))] == single[0]     # the opening: slot order
    assert [10, 10] == [len(sent) for sent in single[1:]]

    without_b = await sent_by(nodes[0], nodes[2], down=["b"])                           # S5
    assert everything == sorted(itertools.chain(*without_b))
    assert len(without_b[1]) == 20 and set(single[2]) < set(without_b[1])               # c stands right of b
    assert single[1] == (await sent_by(nodes[1], down=["b"]))[0]                        # S6
    assert everything == (await sent_by(nodes[2], down=["a", "b"]))[0]

    local = await sent_by(*nodes, mode=Mode.LOCAL, near=(0, 5, 0))                      # S34
    assert [[], everything, []] == local
    local = await sent_by(nodes[0], nodes[2], mode=Mode.LOCAL, near=(0, 5, 0), down=["b"])  # S36
    assert everything == sorted(itertools.chain(*local)) and all(local)
    assert [everything] * 3 == await sent_by(*nodes, mode=Mode.ALL_SEND_ALL, down=["a"])


async def test_payload_and_header_arrive_as_stored(begun: Callable[..., Any], open_stream: Callable[..., Stream]):
    entries = rotating_log(9)
    nodes = await begun(entries)
    got: list[Entry] = []
    for node in nodes:
        stream = open_stream(node)
        await stream.start(until=9)
        assert Started(1, Status.OK, 9, 0) == await stream.ok()
        got += [entry for shipment in await stream.through(9) for item in shipment.items for entry in item.body]
    assert entries == sorted(got, key=lambda entry: entry.base)


# --- windows ------------------------------------------------------------------------------------------------------


async def test_window_bounds_what_is_sent_and_coverage_ends_in_front_of_the_next(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "COVERAGE_MS", 60_000)     # at once, not when it is time
    (node, *_) = await begun(rotating_log(30, payload=bytes(1000)))
    size = rotating_log(1, payload=bytes(1000))[1].size
    control = rotating_log(0)[0].size
    stream = open_stream(node)
    await stream.start(window=control + 2 * size, frame_bytes=16 << 10)
    await stream.ok()
    got = await stream.through(6)
    assert [(0, 0), (1, 1), (4, 4)] == offsets(got) and 6 == got[-1].through   # 7 is ours and must wait
    await stream.window(control + 2 * size + 1)     # a byte more: one item may begin
    got = await stream.through(9)
    assert [(7, 7)] == offsets(got) and 9 == got[-1].through
    await stream.window(control + 5 * size)
    assert [(10, 10), (13, 13)] == offsets(await stream.through(15))
    await stream.nothing()


async def test_grant_is_not_taken_back_and_coverage_goes_on_without_one(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "COVERAGE_MS", 60_000)
    entries = rotating_log(30)
    (_, node, _) = await begun(entries, confirmed=1)
    size = entries[1].size
    stream = open_stream(node)
    await stream.start(window=2 * size)
    await stream.ok()
    assert [] == offsets(await stream.through(1))
    await stream.window(5)
    await stream.nothing()                          # it has come
    for confirmed, expected, through in ((5, [(2, 2), (5, 5)], 5), (8, [], 7)):
        node.driver.post(Received(AT, Member("a", "x"), None, followed(entries, confirmed, commit=30)))
        got = await stream.through(through)         # the last one is ours, and there is no grant for it
        assert expected == offsets(got) and through == got[-1].through


async def test_grant_of_another_generation_is_none_of_this_one(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    (node, *_) = await begun(rotating_log(30, payload=bytes(1000)))
    stream = open_stream(node)
    await stream.start(window=1)
    await stream.ok()
    assert [(0, 0)] == offsets(await stream.through(0))
    await stream.start(window=1)
    stream.generation = 1
    await stream.window(1 << 30)
    stream.generation = 2
    await stream.ok()
    assert [(0, 0)] == offsets(await stream.through(0))
    await stream.nothing()


async def test_stalled_reader_holds_one_slice_and_holds_nobody_up(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    """A reader that does not read: what was granted waits in the log, not in memory, and others are served."""
    entries = rotating_log(200, members=1, payload=bytes(256 << 10))
    (node, *_) = await begun(entries, names=("a",))
    stalled = open_stream(node, ("a",))
    await stalled.start(window=1 << 40)
    await until(lambda: ["sending"] == [run["doing"] for run in node.deliveries.describe(None)])
    await until(lambda: _stands_still(node), "the stream sends no more")
    (shown,) = node.deliveries.describe(SHARD)
    assert shown["doing"] == "sending"
    assert shown["sent_bytes"] < sum(entry.size for entry in entries) // 2, "the transport holds little"
    assert 201 == len(await shipped(node.address, ("a",), 200))


async def _stands_still(node: Node, for_s: float = 0.3) -> bool:
    """Say whether no stream gets on for a while."""
    before = node.deliveries.describe(None)
    try:
        await remains(lambda: before == node.deliveries.describe(None), for_s=for_s)
    except AssertionError:
        return False
    return True


# --- generations --------------------------------------------------------------------------------------------------


async def test_start_replaces_what_is_under_way(begun: Callable[..., Any], open_stream: Callable[..., Stream]):
    """Nothing of the old generation comes behind STARTED of the new one, wherever the old one was cut."""
    (node, *_) = await begun(rotating_log(300, members=1, payload=bytes(10_000)), names=("a",))
    stream = open_stream(node, ("a",))
    await stream.start(frame_bytes=16 << 10)
    await stream.ok()
    await stream.through(20)
    for first in (5, 100, 0, 250):
        await stream.start(first=first, frame_bytes=16 << 10)
    final = stream.generation
    seen: list[int] = []
    while True:
        answer = await stream.next()
        assert answer is not None
        seen.append(answer.generation)
        if answer.generation == final:
            assert isinstance(answer, Started)
            break
    assert sorted(seen) == seen                     # never back to an older one
    got = await stream.through(300)
    assert 250 == got[0].first and [(o, o) for o in range(250, 301)] == offsets(got)
    with pytest.raises(TimeoutError):
        await stream.next(0.2)


async def test_slice_that_was_read_for_an_older_generation_is_dropped(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    (node,) = await begun(rotating_log(30, members=1), names=("a",))
    entered, leave = threading.Event(), threading.Event()
    take = delivery.take

    def slow(*arguments: Any, **more: Any) -> Any:
        entered.set()
        assert leave.wait(10)
        return take(*arguments, **more)

    monkeypatch.setattr(delivery, "take", slow)
    stream = open_stream(node, ("a",))
    await stream.start()
    await stream.ok()
    await asyncio.to_thread(entered.wait, 10)
    await stream.start(first=20)
    await until(lambda: [2] == [run["generation"] for run in node.deliveries.describe(None)])
    leave.set()
    await stream.ok()
    assert [(o, o) for o in range(20, 31)] == offsets(await stream.through(30))


async def test_stop_ends_a_generation_and_not_the_stream(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    (node, *_) = await begun(rotating_log(30, members=1), names=("a",))
    stream = open_stream(node, ("a",))
    await stream.start(window=1)
    await stream.ok()
    await stream.through(0)
    stream.generation = 7
    await stream.stop()                             # of another generation
    stream.generation = 1
    size = rotating_log(1)[1].size
    await stream.window(2 * size)
    assert [(1, 1), (2, 2)] == offsets(await stream.through(2))[:2]
    await stream.stop()
    await stream.window(1 << 30)                    # too late
    await stream.nothing()
    await stream.start(first=29)
    await stream.ok()
    assert [(29, 29), (30, 30)] == offsets(await stream.through(30))
    assert grpc.StatusCode.OK is await stream.end()


async def test_reader_that_has_everything_asked_for_hears_no_more(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "COVERAGE_MS", 60_000)
    entries = rotating_log(30)
    (node, *_) = await begun(entries, confirmed=8)
    stream = open_stream(node)
    await stream.start(until=9)
    await stream.ok()
    assert [(0, 0), (1, 1), (4, 4), (7, 7)] == offsets(await stream.through(8))
    node.driver.post(Received(AT, Member("b", "x"), None, followed(entries, confirmed=9, commit=30)))
    assert [] == offsets(await stream.through(9))   # the last of it at once
    node.driver.post(Received(AT, Member("b", "x"), None, followed(entries, confirmed=30, commit=30)))
    await stream.nothing()
    await stream.start(first=20, until=10)          # nothing was asked for, and START is answered all the same
    await stream.ok()
    await stream.nothing()


# --- the tail -----------------------------------------------------------------------------------------------------


def followed(entries: list[Entry], confirmed: int, commit: int) -> Append:
    """What a leader sends a follower that holds everything already."""
    last = entries[-1]
    return Append(1, EntryId(last.epoch, last.last), (), last.last, commit, confirmed, -1)


async def test_follower_shows_what_it_knows_to_be_confirmed_and_no_more(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    entries = rotating_log(30)
    (_, node, _) = await begun(entries, confirmed=9)
    stream = open_stream(node)
    await stream.start()
    assert Started(1, Status.OK, 9, 0) == await stream.ok()
    got = await stream.through(9)
    assert [(2, 2), (5, 5), (8, 8)] == offsets(got) and 9 == got[-1].through == got[-1].released
    leader = Member("a", "x")
    node.driver.post(Received(AT, leader, None, followed(entries, confirmed=12, commit=20)))
    got = await stream.through(12)
    assert [(11, 11)] == offsets(got) and 12 == got[-1].through == got[-1].released
    await stream.nothing()


async def test_tail_is_sent_at_once_and_coverage_of_others_now_and_then(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    entries = rotating_log(1000, members=2)
    (node, _) = await begun(entries, names=("a", "b"), confirmed=0)
    mine, others = open_stream(node, ("a", "b")), open_stream(node, ("a", "b"))
    await mine.start(mode=Mode.ALL_SEND_ALL)
    await others.start(mode=Mode.LOCAL, near=(0, 1), first=1)
    await mine.ok()
    await others.ok()
    await mine.through(0)
    leader, began = Member("b", "x"), time.monotonic()
    for confirmed in range(1, 1001):
        node.driver.post(Received(AT, leader, None, followed(entries, confirmed, commit=1000)))
        if confirmed % 20 == 0:
            await asyncio.sleep(0.01)
    slowest = time.monotonic() - began
    assert 1000 == len(offsets(await mine.through(1000)))
    coverage = await others.through(1000)
    assert [] == offsets(coverage)
    assert 2 <= len(coverage) <= 3 + slowest / (sender.COVERAGE_MS / 1000)


async def test_a_block_of_others_is_covered_without_a_look(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    nodes = await begun(rotating_log(6_000, per_order=3_000))
    read: list[tuple[int, int]] = []
    walk = Store.walk

    def walked(self: Store, shard: ShardId, first: int, last: int) -> Iterator[Entry]:
        for header in walk(self, shard, first, last):
            read.append((header.base, header.last))
            yield header

    monkeypatch.setattr(Store, "walk", walked)
    for node, first, last in ((nodes[2], 1, 0), (nodes[1], 3_001, 6_000), (nodes[0], 0, 3_000)):
        read.clear()
        stream = open_stream(node)
        await stream.start(until=6_000)
        await stream.ok()
        got = await stream.through(6_000)
        assert [(offset, offset) for offset in range(first, last + 1)] == offsets(got)
        assert all(first <= base for base, _ in read) and len(read) <= 2 * len(offsets(got))


# --- what was rolled back, what was trimmed -----------------------------------------------------------------------

SECRET = b"rolled back, for nobody's eyes"


def log_with_a_rollback() -> list[Entry]:
    made = LogMaker()
    made.control(Kind.EPOCH_START)              # 0
    made.data(order_of(1, 2, 0))                # 1
    made.data(order_of(1, 2, 0), 3, SECRET)     # 2..4
    made.control(Kind.CONFIRM, 1)               # 5
    made.data(order_of(2, 1, 0), 2, SECRET)     # 6..7
    made.control(Kind.ROLLBACK, 2)              # 8
    made.data(order_of(1, 2, 0))                # 9
    return made.entries


@pytest.mark.parametrize("mode", [Mode.SINGLE_COPY, Mode.ALL_SEND_ALL])
async def test_rolled_back_never_leaves(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], mode: Mode
):
    nodes = await begun(log_with_a_rollback())
    per_node: list[list[tuple[int, str]]] = []
    for node in nodes:
        stream = open_stream(node)
        await stream.start(mode=mode, until=9)
        await stream.ok()
        got = await stream.through(9)
        assert not any(SECRET in entry.payload for s in got for item in s.items for entry in item.body or ())
        assert all((2, 7) == (i.first, i.last) for s in got for i in s.items if i.body is None)
        per_node.append(kinds(got))
    everything = [(0, "EPOCH_START"), (1, "DATA"), (2, "HOLE"), (8, "ROLLBACK"), (9, "DATA")]
    if mode is Mode.ALL_SEND_ALL:
        assert [everything] * 3 == per_node
    else:
        assert [[everything[0]], [everything[1], everything[4]], [everything[2], everything[3]]] == per_node


async def test_undecided_rollback_is_not_shown_either_way(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    """The record is in the log and not confirmed: what it would roll back is neither sent nor called a hole."""
    entries = log_with_a_rollback()
    (node, *_) = await begun(entries, confirmed=1)
    stream = open_stream(node)
    await stream.start(mode=Mode.ALL_SEND_ALL)
    await stream.ok()
    assert [(0, "EPOCH_START"), (1, "DATA")] == kinds(await stream.through(1))
    node.driver.post(Received(AT, Member("b", "x"), None, followed(entries, confirmed=9, commit=9)))
    assert [(2, "HOLE"), (8, "ROLLBACK"), (9, "DATA")] == kinds(await stream.through(9))


async def test_hole_is_cut_where_the_reader_begins(begun: Callable[..., Any], open_stream: Callable[..., Stream]):
    (*_, node) = await begun(log_with_a_rollback())
    stream = open_stream(node)
    await stream.start(first=4, until=9)
    await stream.ok()
    assert [(4, 7), (8, 8)] == offsets(await stream.through(9))


async def test_reader_below_the_log_is_told_where_it_begins(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    entries = rotating_log(3000, members=1)
    (node, *_) = await begun(entries, names=("a",))
    trim(node, entries, 1500)
    (first, released) = node.driver.core.log.readable(SHARD)
    assert 0 < first <= 1500 and released == 3000
    stream = open_stream(node, ("a",))
    await stream.start(first=7)
    assert first == (await stream.ok()).first
    assert [(o, o) for o in range(first, 3001)] == offsets(await stream.through(3000))


async def test_reader_that_retention_overtakes_is_told_in_mid_stream(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    entries = rotating_log(3000, members=1)
    (node, *_) = await begun(entries, names=("a",))
    stream = open_stream(node, ("a",))
    await stream.start(window=1)
    assert 0 == (await stream.ok()).first
    assert [(0, 0)] == offsets(await stream.through(0))
    trim(node, entries, 1500)
    await stream.window(1 << 30)
    again = await stream.ok()
    first, _ = node.driver.core.log.readable(SHARD)
    assert again.first == first > 1
    got = await stream.through(3000)
    assert first == got[0].first and [(o, o) for o in range(first, 3001)] == offsets(got)


def trim(node: Node, entries: list[Entry], before: int) -> None:
    """Trim as a leader of whom this node is a follower would have it."""
    last = entries[-1]
    message = Append(1, last.id, (), last.last, last.last, last.last, before)
    node.driver.post(Received(AT, Member("b", "x"), None, message))
    node.driver._turn()


# --- what goes wrong ----------------------------------------------------------------------------------------------


async def test_who_is_no_member_says_so(begun: Callable[..., Any], open_stream: Callable[..., Stream], tmp_path: Path):
    (node,) = await begun(rotating_log(3), names=("a",))
    stream = open_stream(node, ("b", "c"))
    await stream.start()
    answer = await stream.started()
    assert Status.NOT_MEMBER is answer.status and "not in the ensemble" in answer.message
    empty = Node(Settings(node="b", data=tmp_path / "b", metrics_listen="off", disk_reserve_bytes=1 << 20))
    await empty.start()
    stream = open_stream(empty)
    await stream.start()
    answer = await stream.started()                 # no map yet: nobody can say whether the group exists
    assert Status.UNAVAILABLE is answer.status and "shard map" in answer.message
    await push_map(empty.address, shard_map([(empty.me, empty.address)], "", 1))
    await stream.start()
    answer = await stream.started()
    assert Status.NOT_MEMBER is answer.status and "no member of this shard" in answer.message
    await empty.stop()


async def test_member_that_leaves_in_mid_stream_says_so(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "LOOK_AGAIN_MS", 50)
    (node,) = await begun(rotating_log(3), names=("a",))
    stream = open_stream(node)
    await stream.start()
    await stream.ok()
    await stream.through(3)
    node.driver.post(Received(AT, OperatorId("o"), None, DeleteShard(2, 2)))
    assert Status.NOT_MEMBER is (await stream.started()).status
    assert node.driver.core.log.readable(SHARD) is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"group": "other"}, Reason.UNKNOWN_GROUP), ({"shard": 7}, Reason.UNKNOWN_SHARD)],
)
async def test_what_nobody_knows_is_refused_as_reads_are(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], how: dict, reason: Reason
):
    (node,) = await begun(rotating_log(3), names=("a",))
    stream = open_stream(node)
    await stream.start(**how)
    refusal = status.refusal_from_rpc_error(await stream.failure())
    assert refusal is not None and reason is refusal.refused.reason


async def test_malformed_frame_ends_the_stream_and_nothing_else(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    (node,) = await begun(rotating_log(3), names=("a",))
    stream, other = open_stream(node, ("a",)), open_stream(node, ("a",))
    await other.start()
    await other.ok()
    for after_start in (False, True):
        stream = open_stream(node, ("a",))
        if after_start:
            await stream.start()
            await stream.ok()
        await stream.send_bytes(b"\x07")
        error = await stream.failure()
        assert grpc.StatusCode.INVALID_ARGUMENT is error.code() and "kind 7" in error.details()
    assert 4 == len(offsets(await other.through(3)))


async def test_streams_are_bounded(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    (node,) = await begun(rotating_log(3), names=("a",))
    node.budgets.streams.total = 4      # of which one caller gets half
    held = [open_stream(node, ("a",)) for _ in range(2)]
    for stream in held:
        await stream.start()
        await stream.ok()
    assert "tidemark_delivery_streams 2.0" in generate_latest(node.metrics.registry).decode()
    error = await open_stream(node).failure()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()
    assert grpc.StatusCode.OK is await held[0].end()
    assert 4 == len(await shipped(node.address, ("a",), 3))     # there is room again
    await held[1].close()
    await until(lambda: "tidemark_delivery_streams 0.0" in generate_latest(node.metrics.registry).decode())


def damage(node: Node, entry: Entry) -> None:
    node.driver.store.apply([Persist(AT, (PutEntry(entry._replace(payload=b"not what was written")),))])


async def test_damaged_entry_is_waited_for_and_coverage_ends_in_front_of_it(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "REPAIR_MS", 1_000)
    monkeypatch.setattr(sender, "LOOK_AGAIN_MS", 100)
    entries = rotating_log(30)
    (node, *_) = await begun(entries)
    damage(node, entries[7])                        # ours
    damage(node, entries[8])                        # another node's: nobody looks
    stream = open_stream(node)
    await stream.start()
    await stream.ok()
    got = await stream.through(6)
    assert [(0, 0), (1, 1), (4, 4)] == offsets(got) and 6 == got[-1].through
    await until(lambda: "corrupt_entry" in {told["what"] for told in node.driver.story})
    node.driver.store.apply([Persist(AT, (PutEntry(entries[7]),))])
    got = await stream.through(30)
    assert (7, 7) == offsets(got)[0] and 8 == len(offsets(got))
    await stream.nothing(1.2)                       # nobody is blamed for what was repaired


async def test_damage_that_nobody_repairs_ends_the_generation(
    begun: Callable[..., Any], open_stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
):
    """The reader then turns to others; an older damage that was repaired is forgotten."""
    monkeypatch.setattr(sender, "REPAIR_MS", 300)
    entries = rotating_log(30)
    (node, *_) = await begun(entries)
    damage(node, entries[4])
    damage(node, entries[10])
    stream = open_stream(node)
    await stream.start()
    await stream.ok()
    await stream.through(3)
    node.driver.store.apply([Persist(AT, (PutEntry(entries[4]),))])
    await stream.through(9)
    answer = await stream.started()
    assert Status.UNAVAILABLE is answer.status and "offset 10 is damaged" in answer.message
    await stream.start(first=11, down=["a"], until=30)
    await stream.ok()
    assert [(o, o) for o in range(13, 31, 3)] == offsets(await stream.through(30))


async def test_reload_and_stop_are_told(begun: Callable[..., Any], open_stream: Callable[..., Stream]):
    (node,) = await begun(rotating_log(3), names=("a",))
    stream = open_stream(node, ("a",))
    await stream.start()
    await stream.ok()
    await stream.through(3)
    node.driver._begin_reload(OSError("disk"))
    answer = await stream.started()
    assert Status.UNAVAILABLE is answer.status and "loads its shards" in answer.message
    await until(lambda: not node.driver.reloading)
    await stream.start()
    await stream.ok()
    assert 4 == len(offsets(await stream.through(3)))
    stopping = asyncio.ensure_future(node.stop())
    answer = await stream.started()
    assert Status.UNAVAILABLE is answer.status and "stops" in answer.message
    assert await stream.next() is None
    await asyncio.wait_for(stopping, PATIENCE_S)


async def test_reader_that_goes_away_while_its_slice_is_read_leaves_the_store_alone(
    begun: Callable[..., Any], open_stream: Callable[..., Stream]
):
    """The thread still reads when its handler is gone; the store is closed after it, not under it."""
    (node,) = await begun(rotating_log(3), names=("a",))
    entered, leave = asyncio.Event(), asyncio.Event()
    loop, ended = asyncio.get_running_loop(), []

    def slow(store: Any) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(10)
        ended.append(list(store.walk(SHARD, 0, 3)))

    asked = asyncio.ensure_future(node.driver.deliver(slow))
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    stopping = asyncio.ensure_future(node.stop())
    await remains(lambda: not stopping.done(), for_s=0.1)
    leave.set()
    await asyncio.wait_for(stopping, PATIENCE_S)
    assert [4] == [len(found) for found in ended]


# --- what people see ----------------------------------------------------------------------------------------------


async def explain(address: str, **fields: Any) -> node_pb2.ExplainReadResponse:
    request = node_pb2.ExplainReadRequest(**{"group": GROUP, "shard": 0, "from": fields.pop("first", 0), **fields})
    async with channel.open_channel(address) as opened:
        return await node_pb2_grpc.TidemarkStub(opened).ExplainRead(request, timeout=10)


async def test_explained_by_any_member_alike(begun: Callable[..., Any]):
    nodes = await begun(log_with_a_rollback())
    answers = [await explain(node.address, known_down=["b"]) for node in nodes]
    assert answers[0] == answers[1] == answers[2]
    (answer, *_) = answers
    assert (["a", "b", "c"], 0, 9, 9) == ([*answer.ensemble], answer.first, answer.released, answer.through)
    assert [
        (0, 0, "EPOCH_START", "abc", "a", "a"), (1, 1, "DATA", "bca", "c", "bc"), (2, 7, "HOLE", "cba", "c", "c"),
        (8, 8, "ROLLBACK", "cba", "c", "c"), (9, 9, "DATA", "bca", "c", "bc"),
    ] == [
        (i.first, i.last, i.kind, "".join(i.order), i.sender, "".join(i.senders)) for i in answer.items
    ]
    near = await explain(nodes[2].address, mode="LOCAL", priorities=[1, 0, 0], first=4, count=2)
    assert [(4, 7, "a"), (8, 8, "a")] == [(i.first, i.last, i.sender) for i in near.items] and 8 == near.through
    everybody = await explain(nodes[0].address, mode="ALL_SEND_ALL", first=9)
    assert [("", ["b", "c", "a"])] == [(i.sender, [*i.senders]) for i in everybody.items]
    assert 10 == (await explain(nodes[0].address, first=11)).through == 10


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"group": "other"}, Reason.UNKNOWN_GROUP, "'other'"),
        ({"first": -1}, Reason.INVALID_SPEC, "first is -1"),
        ({"count": 10_001}, Reason.INVALID_SPEC, "count is 10001"),
        ({"mode": "scd"}, Reason.INVALID_SPEC, "mode 'scd'"),
        ({"mode": "LOCAL"}, Reason.INVALID_SPEC, "priorities has 0 numbers for 3"),
        ({"known_down": ["x"]}, Reason.INVALID_SPEC, "known_down names a node outside"),
    ],
)
async def test_question_that_cannot_be_explained_names_the_field(
    begun: Callable[..., Any], fields: dict, reason: Reason, text: str
):
    (node, *_) = await begun(rotating_log(3))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await explain(node.address, **fields)
    refusal = status.refusal_from_rpc_error(caught.value)
    assert refusal is not None and (reason, True) == (refusal.refused.reason, text in refusal.refused.message)


async def test_explanation_ends_in_front_of_a_damaged_header(begun: Callable[..., Any]):
    entries = rotating_log(10)
    (node, *_) = await begun(entries)
    node.driver.store.apply([Persist(AT, (PutEntry(entries[5]._replace(header=bytes(100))),))])
    answer = await explain(node.address)
    assert ([0, 1, 2, 3, 4], 4) == ([item.first for item in answer.items], answer.through)


async def test_who_ships_what_is_shown_live(begun: Callable[..., Any], open_stream: Callable[..., Stream]):
    (node, *_) = await begun(rotating_log(30, payload=bytes(1000)))
    size = rotating_log(1, payload=bytes(1000))[1].size
    stream = open_stream(node)
    await stream.start(window=2 * size, down=["b"])
    await stream.ok()
    await stream.through(2)
    await until(lambda: ["waiting for the window"] == [run["doing"] for run in node.deliveries.describe(SHARD)])
    async with channel.open_channel(node.address) as opened:
        stub = node_pb2_grpc.ControlStub(opened)
        dumped = json.loads((await stub.DebugDump(node_pb2.DebugDumpRequest(shard=SHARD))).json)["deliveries"]
        assert [] == json.loads((await stub.DebugDump(node_pb2.DebugDumpRequest(shard=SHARD + 1))).json)["deliveries"]
        assert dumped == json.loads((await stub.DebugDump(node_pb2.DebugDumpRequest(all=True))).json)["deliveries"]
    (shown,) = dumped
    assert shown.pop("reader").startswith("ipv4:127.0.0.1:")
    control = rotating_log(0)[0].size
    assert {
        "group": GROUP, "index": 0, "generation": 1, "mode": "SINGLE_COPY", "known_down": ["b"],
        "ensemble": ["a", "b", "c"], "priorities": [], "copies": 0, "from": 0, "until": -1,
        "doing": "waiting for the window", "position": 7, "granted_bytes": 2 * size,
        "sent_bytes": control + 2 * size, "sent_items": 3, "left_out": 4,
    } == shown
    counted = generate_latest(node.metrics.registry).decode()
    assert f"tidemark_delivery_bytes_total {float(control + 2 * size)}" in counted
    assert "tidemark_delivery_left_out_total 4.0" in counted
    assert 'tidemark_delivery_items_total{mode="SINGLE_COPY"} 3.0' in counted


# --- three processes ----------------------------------------------------------------------------------------------


async def test_paused_leader_stalls_no_follower(start_node: Callable[..., NodeProcess], operator: OperatorHand):
    """What is confirmed is served by the others while the leader holds its sockets open and says nothing."""
    nodes = [start_node(name) for name in "abc"]
    pushed = shard_map([(n.member, n.address) for n in nodes], "a", 1)
    for node in nodes:
        await push_map(node.address, pushed)
        await operator.link(node.name, node.address)
    await operator.elect(1, nodes[0].member, tuple(node.member for node in nodes))
    appender = Appender(nodes[0].address)
    streams = [Stream(node.address) for node in nodes]
    for stream in streams:
        await stream.start()
        await stream.ok()
    last = -1
    for sequence in range(20):
        answer = await appender.append(batch(sequence, durability=Durability.QUORUM))
        assert isinstance(answer, Appended)
        last = answer.base
    got = [await stream.through(last) for stream in streams]     # all of them hear how far it is confirmed
    upto = [item for item in sorted(itertools.chain(*map(offsets, got))) if item[1] <= last]   # a CONFIRM may follow
    assert [(o, o) for o in range(last + 1)] == upto
    nodes[0].signal(signal.SIGSTOP)
    try:
        again: list[Shipment] = []
        for stream in streams[1:]:
            await stream.start(down=["a"], until=last)
            await stream.restarted()
            again += await stream.through(last)
        assert [(o, o) for o in range(last + 1)] == sorted(offsets(again))
    finally:
        nodes[0].signal(signal.SIGCONT)
    await appender.close()
    for stream in streams:
        await stream.close()
