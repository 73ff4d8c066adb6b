"""Small parts of the node: out queues, inbox, timers, token bucket, routing, settings."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from node_harness import shard_map
from tidemark_core.base.effects import TimerFired
from tidemark_core.base.entry import HEADER_BYTES, Durability
from tidemark_core.base.ids import Member, ShardId, of_shard
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.payload import RECORDS_MAX, Outcome, Verdict
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import Appended
from tidemark_node import inbox, snapshots
from tidemark_node.access import Caller
from tidemark_node.appends import ANSWER_FRAME_BYTES, _Stream
from tidemark_node.inbox import Barrier, Inbox
from tidemark_node.link import OutQueue
from tidemark_node.routing import Hint, Routing
from tidemark_node.settings import FRAME_BYTES_MAX_MIN, FRAME_COPIES, REPAIR_MEMORY_BYTES_MIN, parse
from tidemark_node.snapshots import PullFailed, TokenBucket, entries_of
from tidemark_node.timers import Timers
from tidemark_wire.budgets import Line
from tidemark_wire.frames import ENTRIES_MAX, AppendAnswer, decode_answers, encode_answers
from tidemark_wire.v1 import node_pb2
from tidemark_wire.wire_version import WIRE_VERSION

from tests.waiting import PATIENCE_S


async def test_out_queue_is_bounded_and_coalesces():
    queue = OutQueue(10, 5)
    assert queue.put([b"12", b"34"]) and queue.put([b"5678"])
    assert not queue.put([b"too much"])
    assert (1, 8) == (queue.dropped, queue.queued_bytes)
    assert b"12345678" == await queue.frame()
    assert queue.put([b"a message larger than the bound goes alone"])
    assert not queue.ready.is_set() or len(queue)


async def test_frames_stay_near_their_target():
    queue = OutQueue(1 << 30, 5)
    for _ in range(5):
        queue.put([bytes(600_000)])
    assert 600_000 == len(await queue.frame())
    other = OutQueue(1 << 30, 5)
    other.take_over(queue)
    assert (4, 0) == (len(other), len(queue)) and not queue.ready.is_set()


async def test_a_queue_drops_and_counts_what_another_wire_version_encoded():
    queue, other = OutQueue(1 << 30, 4), OutQueue(1 << 30, 5)
    assert queue.put([b"one"]) and queue.put([b"two"])
    assert 2 == other.take_over(queue)
    assert (0, 0, 2) == (len(other), len(queue), other.dropped)


async def test_t12_answers_with_outcomes_are_bounded_by_their_bytes():
    """A client that writes and reads no answers waits long before its answers are as many as their bound."""
    stream = _Stream(Caller(None, "peer"), "a client", WIRE_VERSION)
    outcomes = (Outcome(Verdict.APPLIED),) * RECORDS_MAX
    sent = [
        AppendAnswer(number, Written(1, number, RECORDS_MAX, Durability.QUORUM, outcomes)) for number in range(100)]
    for answer in sent:
        stream.put(answer)
    assert not stream.room.is_set()
    frames = []
    while stream.answers:
        assert not stream.room.is_set()
        frames.append(encode_answers(stream.take()))
    assert stream.room.is_set() and not stream.ready.is_set()
    assert max(map(len, frames)) <= ANSWER_FRAME_BYTES and len(frames) < 12
    assert sent == [answer for frame in frames for answer in decode_answers(frame)]

    for _ in range(100):
        stream.put(AppendAnswer(1, Appended(1, 0, 1, Durability.QUORUM)))
    assert stream.room.is_set() and 100 == len(list(stream.take()))


async def test_inbox_makes_posters_wait_and_ends_a_turn_at_a_barrier():
    box = Inbox()
    done = asyncio.get_running_loop().create_future()
    for event in ("a", "b", Barrier(done), "c"):
        box.put(event, inbox.BYTES_MAX // 3)
    waiting = asyncio.ensure_future(box.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    events, barrier = box.take_turn()
    assert ["a", "b"] == events
    barrier.resolve()
    assert (["c"], None) == box.take_turn()
    await waiting
    await done


def test_timers_replace_cancel_and_stay_small():
    timers, fired = Timers(), []
    one, two = of_shard(ShardId(1)), of_shard(ShardId(2))
    for at_ms in range(1000, 3000):
        timers.set(one, "x", at_ms)
    timers.set(two, "y", 1500)
    timers.set(two, "z", 1)
    timers.set(two, "z", None)
    assert len(timers._heap) < 100
    assert 1500 == timers.next_ms()
    timers.fire(2000, fired.append)
    assert [TimerFired(two, "y")] == fired
    timers.fire(2999, fired.append)
    assert [TimerFired(two, "y"), TimerFired(one, "x")] == fired
    assert timers.next_ms() is None


async def test_token_bucket_holds_its_rate(monkeypatch: pytest.MonkeyPatch):
    bucket, began = TokenBucket(1_000_000), time.monotonic()
    for _ in range(10):
        await bucket.take(50_000)  # half a MB, a quarter of which is burst
    assert 0.2 < time.monotonic() - began
    stands_at = time.monotonic() + 2.0   # two seconds go by, and no more: a burst is saved, and is there at once
    monkeypatch.setattr(snapshots, "time", SimpleNamespace(monotonic=lambda: stands_at))
    for _ in range(5):
        taking = asyncio.ensure_future(bucket.take(50_000))
        await asyncio.sleep(0)
        assert taking.done()
    taking = asyncio.ensure_future(bucket.take(50_000))
    await asyncio.sleep(0)
    assert not taking.done()
    taking.cancel()


async def test_token_bucket_takes_another_rate_in_the_middle_of_a_wait():
    bucket, began = TokenBucket(1), time.monotonic()
    bucket_order: list[str] = []

    async def take(name: str, count: int) -> None:
        await bucket.take(count)
        bucket_order.append(name)

    first = asyncio.ensure_future(take("first", 100_000))  # a day at this rate
    second = asyncio.ensure_future(take("second", 100_000))
    await asyncio.sleep(0)
    bucket.rate = 1_000_000
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(first, second)
    assert ["first", "second"] == bucket_order
    assert time.monotonic() - began > 0.15, "what was asked for is paid at the new rate"
    bucket.rate = 1
    slow = asyncio.ensure_future(bucket.take(1_000))
    done, _ = await asyncio.wait([slow], timeout=0.1)
    assert not done
    slow.cancel()


def test_how_nodes_are_throttled_is_nothing_to_clients():
    routing = Routing()
    pushed = shard_map([], "", 5)
    pushed.snapshot_bytes_per_second = 7
    routing.push(pushed)
    assert (7, 0) == (routing.snapshot_bytes_per_second, routing.map.snapshot_bytes_per_second)
    pushed.version, pushed.snapshot_bytes_per_second = 4, 9
    routing.push(pushed)
    assert 7 == routing.snapshot_bytes_per_second, "of an older map nothing is taken"


async def test_routing_finds_names_what_is_missing_and_hints():
    routing = Routing()
    assert Reason.NO_LEADER is routing.find("orders", 0).reason
    member = Member("a", "i")
    assert 5 == routing.push(shard_map([(member, "h:1")], "a", 5))
    target = routing.find("orders", 0)
    assert not isinstance(target, Refused)
    assert Hint("a", "h:1", 5) == routing.hint(target)
    assert Reason.UNKNOWN_GROUP is routing.find("other", 0).reason
    assert "0 to 0" in routing.find("orders", 1).message


def test_t13_a_request_for_another_group_of_the_name_is_refused():
    routing = Routing()
    pushed = shard_map([], "", 5)
    pushed.groups[0].group_id = 7
    routing.push(pushed)
    assert not isinstance(routing.find("orders", 0), Refused)
    assert routing.find("orders", 0, 7) == routing.find("orders", 0)
    for group_id, shard in ((6, 0), (8, 0), (6, 1)):
        refused = routing.find("orders", shard, group_id)
        assert refused.reason is Reason.GROUP_REPLACED
        assert f"has the id 7 in shard map 5, not {group_id}" in refused.message


def test_settings_have_sane_defaults_and_checks(capsys: pytest.CaptureFixture[str]):
    settings = parse(["--node", "a", "--data", "/d"])
    assert ("127.0.0.1:0", 10.0) == (settings.listen, settings.drain_seconds)
    wrong_ones = (
        ["--node", "a b"], ["--listen", "x"], ["--disk-reserve-bytes", "-1"], ["--metrics-listen", "y"],
        ["--drain-seconds", "nan"], ["--drain-seconds", "soon"], ["--location", "planet=earth"],
        ["--location", "zone=a", "--zone", "b"], ["--frame-bytes-max", str(FRAME_BYTES_MAX_MIN - 1)],
        ["--repair-memory-bytes", str(REPAIR_MEMORY_BYTES_MIN - 1)],
    )
    for wrong in wrong_ones:
        with pytest.raises(SystemExit):
            parse(["--node", "a", "--data", "/d", *wrong])
        assert wrong[0] in capsys.readouterr().err


def test_half_of_the_frames_holds_the_largest_batch():
    settings = parse(["--node", "a", "--data", "/d", "--frame-bytes-max", str(FRAME_BYTES_MAX_MIN)])
    assert settings.frame_bytes_max == FRAME_BYTES_MAX_MIN
    room = Line("bytes of frames", settings.frame_bytes_max)
    assert room.take("greedy", settings.frame_bytes_max // 2)
    assert room.take("other", FRAME_COPIES * (Limits().batch_bytes_max + HEADER_BYTES))


@pytest.mark.parametrize(
    ("arguments", "zone", "location"),
    [
        ((), "", ""),
        (("--zone", "a b"), "a b", ""),
        (("--location", "rack=r1,zone=a"), "a", "zone=a,rack=r1"),
        (("--location", "region=eu", "--zone", "a"), "a", "region=eu,zone=a"),
        (("--location", "region=eu"), "", "region=eu"),
    ],
)
def test_a_zone_is_a_part_of_the_location(arguments: tuple[str, ...], zone: str, location: str):
    settings = parse(["--node", "a", "--data", "/d", *arguments])
    assert (zone, location) == (settings.zone, settings.location)


@pytest.mark.servers
def test_node_refuses_to_run_without_assertions():
    command = [sys.executable, "-O", "-m", "tidemark_node", "--node", "a", "--data", "/nowhere"]
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=PATIENCE_S)
    assert (2, True) == (result.returncode, "without -O" in result.stderr)


def test_a_chunk_of_more_entries_than_a_source_sends_is_refused_before_one_is_read():
    many = [b"no header"] * (ENTRIES_MAX + 1)
    with pytest.raises(PullFailed, match=f"a chunk holds {ENTRIES_MAX + 1} entries, the limit is {ENTRIES_MAX}"):
        entries_of(node_pb2.SnapshotChunk(headers=many, payloads=many))
