"""Budgets on a node: one caller that takes all it can get leaves the node's memory bounded and others their share.

The callers of these tests name themselves in metadata, for without TLS all of one machine count as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from half_sender import HalfSender
from node_harness import GROUP, SHARD, Appender, OperatorHand, batch, push_map, shard_map
from prometheus_client import generate_latest
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import Shipment, Start, Started, Status
from tidemark_core.delivery.order import Mode
from tidemark_core.replication.messages import Appended
from tidemark_node import arrivals, delivery
from tidemark_node import budgets as budgets_module
from tidemark_node.budgets import Budgets
from tidemark_node.main import Node
from tidemark_node.methods import REQUEST_BYTES_MAX
from tidemark_node.released import WAKES_PER_TURN, ReleasedBoard
from tidemark_node.settings import FRAME_COPIES, Settings
from tidemark_node.subscription_names import SubscriptionNames
from tidemark_wire import channel
from tidemark_wire.delivery import StartCall, decode_answer, encode_request
from tidemark_wire.frames import decode_read
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2

from tests.waiting import remains, until

KIB = 1 << 10
RECORDS, RECORD_BYTES = 24, 200 * KIB
FRAMES_MAX = 12_000 * KIB
GREEDY, OTHER = "greedy", "other"
HEALTH = "/grpc.health.v1.Health/Check"
CHANGES = "/tidemark.v1.Documents/Changes"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    def who(self: Budgets, context: Any) -> str:
        return dict(context.invocation_metadata()).get("caller", "the harness")

    monkeypatch.setattr(Budgets, "who", who)


@pytest.fixture
async def node(tmp_path: Path, operator: OperatorHand, named: None) -> AsyncIterator[Node]:
    """A node that leads its one shard, with some MiB of records."""
    settings = Settings(
        node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20, frame_bytes_max=FRAMES_MAX,
        streams_max=256, subscription_names_max=3, subscription_lease_seconds_max=60,
    )
    node = Node(settings)
    await node.start()
    await push_map(node.address, shard_map([(node.me, node.address)], "a", 1))
    await operator.link("a", node.address)
    await operator.elect(1, node.me, (node.me,))
    appender = Appender(node.address)
    for sequence in range(RECORDS):
        assert isinstance(await appender.append(batch(sequence, bytes([sequence]) * RECORD_BYTES)), Appended)
    await appender.close()
    yield node
    await node.stop()


class Calls:
    """Calls of named callers over a connection each."""

    def __init__(self, node: Node, stack: AsyncExitStack) -> None:
        self._node = node
        self._stack = stack

    async def opened(self) -> grpc.aio.Channel:
        return await self._stack.enter_async_context(channel.open_channel(self._node.address))

    async def read(self, who: str, until: int = -1, tail: bool = True) -> Any:
        """Open a read that nothing is read from."""
        method = (await self.opened()).unary_stream(
            channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        call = method(node_pb2.ReadRequest(group=GROUP, shard=0, until=until, tail=tail), metadata=of(who))
        self._stack.callback(call.cancel)
        return call

    async def deliver(self, who: str) -> Any:
        """Open a delivery stream with a large window that nothing is read from."""
        call = (await self.opened()).stream_stream(channel.DELIVER)(metadata=of(who))
        start = Start(1, 0, -1, Mode.SINGLE_COPY, (), ("a",), (), 1 << 30)
        await call.write(encode_request(StartCall(GROUP, 0, start)))
        self._stack.callback(call.cancel)
        return call

    async def unary(self, who: str, name: str, request: bytes = b"", timeout: float = 20) -> bytes:
        method = (await self.opened()).unary_unary(f"/tidemark.v1.Tidemark/{name}")
        return await method(request, metadata=of(who), timeout=timeout)


@pytest.fixture
async def calls(node: Node) -> AsyncIterator[Calls]:
    async with AsyncExitStack() as stack:
        yield Calls(node, stack)


def of(who: str) -> tuple[tuple[str, str], ...]:
    return ("caller", who), *channel.hello_metadata()


async def refused(work: Any) -> Refused:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    hinted = refusal_from_rpc_error(caught.value)
    assert hinted is not None, caught.value
    return hinted.refused


async def read_all(call: Any) -> int:
    """Read up to the last record; return how many bytes of payload came."""
    size, through = 0, -1
    while through < RECORDS:
        frame = decode_read(await call.read())
        size, through = size + sum(len(e.payload) for e in frame.entries if e.kind is Kind.DATA), frame.through
    return size


async def test_t12_streams_that_are_not_read_hold_a_share_and_others_go_on(node: Node, calls: Calls) -> None:
    frames = node.budgets.frames
    for _ in range(20):
        await calls.read(GREEDY)
        await calls.deliver(GREEDY)
    await until(lambda: frames.waiting > 10, "most streams wait for room")
    assert frames.held(GREEDY) <= FRAMES_MAX // 2
    async with asyncio.timeout(20):
        assert RECORDS * RECORD_BYTES == await read_all(await calls.read(OTHER, until=RECORDS, tail=False))
    await until(lambda: not frames.held(OTHER), "its last frame is given back")
    assert frames.held(GREEDY) <= FRAMES_MAX // 2
    shown = generate_latest(node.metrics.registry).decode()
    assert f'tidemark_budget_waiting{{budget="frame_bytes"}} {float(frames.waiting)}' in shown
    assert any(run["doing"].startswith("waiting for room") for run in node.deliveries.describe(None))


async def test_t12_a_stream_that_waits_for_room_goes_on_when_another_is_read(node: Node, calls: Calls) -> None:
    frames = node.budgets.frames
    streams = [await calls.read(GREEDY, until=RECORDS, tail=False) for _ in range(12)]
    await until(lambda: frames.waiting > 0, "some streams wait for room")
    async with asyncio.timeout(30):
        assert [RECORDS * RECORD_BYTES] * 12 == await asyncio.gather(*map(read_all, streams))
    await until(lambda: not frames.used and not frames.waiting, "all is given back")


@pytest.mark.parametrize("why", [Status.ACCESS, Status.UNAVAILABLE])
async def test_t12_a_stream_that_waits_for_room_still_hears_that_it_may_not_go_on(
    node: Node, calls: Calls, monkeypatch: pytest.MonkeyPatch, why: Status
) -> None:
    monkeypatch.setattr(delivery, "ROOM_LOOK_SECONDS", 0.05)
    frames, deliveries, judged = node.budgets.frames, node.deliveries, list[Refused]()
    assert frames.take(OTHER, frames.total)
    call = await calls.deliver(GREEDY)
    assert isinstance(started := decode_answer(await call.read()), Started) and Status.OK is started.status
    await until(lambda: frames.waiting == 1, "it waits for room")
    if why is Status.ACCESS:
        def gone(*_: Any) -> Refused:
            judged.append(Refused(Reason.PERMISSION_DENIED, "not any more"))
            return judged[-1]

        monkeypatch.setattr(deliveries.access, "refusal", gone)
    else:
        monkeypatch.setattr(node.driver, "reloading", True)
    async with asyncio.timeout(10):
        answer = decode_answer(await call.read())
    monkeypatch.undo()
    assert isinstance(answer, Started) and why is answer.status
    assert len(judged) == (why is Status.ACCESS), "each refusal is a line of the audit"
    assert not frames.waiting
    frames.give_back(OTHER, frames.total)


@pytest.mark.parametrize("method", [channel.APPEND, channel.DELIVER, CHANGES, HEALTH])
async def test_t12b_a_caller_with_too_much_half_sent_loses_streams_and_others_go_on(node: Node, method: str) -> None:
    """Also where its streams come from several connections; the metric counts them."""
    budget = node.budgets.half_sent.budget
    budget.total = 2 << 20
    other = Appender(node.address)    # the harness
    senders = [await HalfSender.to(node.address) for _ in range(2)]
    try:
        streams = [(sender, sender.open(method, ("caller", GREEDY))) for sender in senders for _ in range(2)]
        sending = [asyncio.ensure_future(sender.send(number, 8 << 20, 7 << 20)) for sender, number in streams]
        await until(lambda: all(number in sender.ended for sender, number in streams), "the caller hears of it")
        assert budget.refused == len(streams)
        assert isinstance(await other.append(batch(RECORDS, b"x")), Appended)
        refused = 'tidemark_budget_refused_total{budget="half_sent_bytes"}'
        assert f"{refused} {budget.refused}.0" in generate_latest(node.metrics.registry).decode()
        for sender in senders:
            await sender.close()
        await asyncio.gather(*sending)
        await until(lambda: not budget.held(GREEDY), "nothing is left")
    finally:
        await other.close()


async def test_t12b_a_compressed_message_is_refused(node: Node, calls: Calls) -> None:
    """A few KiB that came would give a handler MiB, and hide as many from the count."""
    call = (await calls.opened()).stream_stream(channel.APPEND)(
        metadata=of(GREEDY), compression=grpc.Compression.Gzip)
    with suppress(grpc.aio.AioRpcError):
        await call.write(bytes(KIB))
    assert await call.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL), "as gRPC's two ends race"


async def test_t12_appends_do_not_wake_streams_that_wait_for_room(
    node: Node, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of streams may wait, and each append would cost the loop a look of each."""
    monkeypatch.setattr(delivery, "ROOM_LOOK_SECONDS", 600)
    frames, looks = node.budgets.frames, 0
    refusal = node.deliveries.access.refusal

    def count(*judged: Any) -> Refused | None:
        nonlocal looks
        looks += judged[1] == delivery.METHOD
        return refusal(*judged)

    assert frames.take(OTHER, frames.total)
    streams = [await calls.deliver(GREEDY) for _ in range(8)]
    await until(lambda: frames.waiting == len(streams), "all wait for room")
    monkeypatch.setattr(node.deliveries.access, "refusal", count)
    appender = Appender(node.address)
    for sequence in range(RECORDS, RECORDS + 20):
        assert isinstance(await appender.append(batch(sequence)), Appended)
    await appender.close()
    assert frames.waiting == len(streams) and not looks
    frames.give_back(OTHER, frames.total)
    through = -1
    async with asyncio.timeout(20):
        while through < RECORDS + 20:    # offset 0 is the opening of the epoch
            answer = decode_answer(await streams[0].read())
            through = answer.through if isinstance(answer, Shipment) else through


async def test_t12_an_entry_larger_than_a_share_goes_out_when_nothing_else_is_held(node: Node, calls: Calls) -> None:
    node.budgets.frames.total = RECORD_BYTES * FRAME_COPIES // 2
    async with asyncio.timeout(20):
        assert RECORDS * RECORD_BYTES == await read_all(await calls.read(OTHER, until=RECORDS, tail=False))
    await until(lambda: not node.budgets.frames.used and not node.budgets.frames.beside, "all is given back")


async def test_t12_streams_and_watches_and_calls_are_bounded_for_one_caller(node: Node, calls: Calls) -> None:
    node.budgets.streams.total = node.budgets.watches.total = 8
    for _ in range(4):
        assert await (await calls.read(GREEDY)).read()
    why = await refused((await calls.read(GREEDY)).read())
    assert Reason.OVERLOADED is why.reason and "of this server's 8 streams" in why.message
    assert "--streams-max" in why.message
    assert await (await calls.read(OTHER)).read()

    watch = (await calls.opened()).unary_stream("/tidemark.v1.Tidemark/WatchShardMap")
    watching = [watch(b"", metadata=of(GREEDY)) for _ in range(4)]
    for one in watching:
        assert await one.read()
    assert "watches" in (await refused(watch(b"", metadata=of(GREEDY)).read())).message
    assert await watch(b"", metadata=of(OTHER)).read()

    node.budgets.calls.total = 2
    assert node.budgets.calls.take(GREEDY)
    assert "--calls-max" in (await refused(calls.unary(GREEDY, "GetShardMap"))).message
    assert await calls.unary(OTHER, "GetShardMap")
    shown = generate_latest(node.metrics.registry).decode()
    assert 'tidemark_budget_refused_total{budget="calls"} 1.0' in shown


async def test_t12_a_watch_of_the_shard_map_does_not_wait_for_readers_of_its_caller(node: Node, calls: Calls) -> None:
    frames = node.budgets.frames
    assert frames.take(GREEDY, FRAMES_MAX // 2)
    reader = asyncio.ensure_future(frames.grant(GREEDY, FRAMES_MAX // 32))
    await until(lambda: frames.waiting == 1, "a reader waits for room")
    watch = (await calls.opened()).unary_stream("/tidemark.v1.Tidemark/WatchShardMap")
    async with asyncio.timeout(10):
        assert await watch(b"", metadata=of(GREEDY)).read()
    assert not reader.done()
    await until(lambda: not node.budgets.maps.used, "the map's bytes are given back")
    reader.cancel()
    frames.give_back(GREEDY, FRAMES_MAX // 2)


async def test_t12_without_tls_what_only_an_operator_or_an_admin_calls_takes_nothing_of_clients(
    node: Node, calls: Calls
) -> None:
    node.budgets.calls.total = 2
    assert node.budgets.calls.take(GREEDY)
    describe = (await calls.opened()).unary_unary("/tidemark.v1.Control/Describe")
    assert b"" != await describe(b"", metadata=of(GREEDY), timeout=20)
    assert Reason.OVERLOADED is (await refused(calls.unary(GREEDY, "GetShardMap"))).reason


async def test_t12_a_request_above_the_bound_is_refused(node: Node, calls: Calls) -> None:
    large = b"\xfa\x01" + b"\x80\x80\x40" + bytes(1 << 20)      # an unknown field of a MiB
    why = await refused(calls.unary(GREEDY, "Subscriptions", large))
    assert Reason.INVALID_SPEC is why.reason and f"takes at most {REQUEST_BYTES_MAX}" in why.message
    async with grpc.aio.insecure_channel(node.address, options=[("grpc.max_send_message_length", -1)]) as unbounded:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unbounded.unary_unary("/tidemark.v1.Tidemark/Subscriptions")(bytes(65 << 20), metadata=of(GREEDY))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is caught.value.code(), "the server's own bound"
    assert Reason.INVALID_SPEC is (await refused(calls.unary(GREEDY, "Subscriptions", b"\xff"))).reason


async def test_t12_a_request_that_does_not_come_is_not_waited_for(
    node: Node, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "SECONDS", 0.3)
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.1)
    silent = (await calls.opened()).stream_unary("/tidemark.v1.Tidemark/GetShardMap")
    waiting = [silent(metadata=of(GREEDY)) for _ in range(6)]
    for one in waiting:
        assert "did not arrive" in (await refused(one)).message
    assert await calls.unary(GREEDY, "GetShardMap")
    await until(lambda: not node.budgets.calls.used, "all is given back")


async def test_t12_requests_that_do_not_come_make_room_for_those_who_wait(
    node: Node, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CROWDED_SECONDS", 0.2)
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.1)
    requests = next(budget for name, budget in node.budgets if name == "requests")
    silent = (await calls.opened()).stream_unary("/tidemark.v1.Tidemark/GetShardMap")
    holding = []
    for who in (GREEDY, GREEDY, "second", "third"):
        holding.append(asyncio.ensure_future(refused(silent(metadata=of(who)))))
        await until(lambda: requests.used == len(holding), "it holds a place")
    assert await calls.unary(OTHER, "GetShardMap", timeout=10)
    done, others = await asyncio.wait(holding, timeout=0, return_when=asyncio.ALL_COMPLETED)
    assert len(done) <= 1 and len(others) >= 3, "alone, a slow request has its time"
    assert requests.used == 3
    why = await asyncio.wait_for(next(asyncio.as_completed(holding)), 10)
    assert Reason.OVERLOADED is why.reason and "did not arrive" in why.message and why.retry_after_ms
    for one in others:
        one.cancel()


async def test_t12_searches_of_one_caller_take_turns(
    node: Node, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, gate = 0, 0, asyncio.Event()
    deliver = node.driver.deliver

    async def slow(work: Callable[[Any], Any]) -> Any:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        try:
            await gate.wait()
            return await deliver(work)
        finally:
            running -= 1

    monkeypatch.setattr(node.driver, "deliver", slow)
    request = node_pb2.ExplainReadRequest(group=GROUP, shard=0).SerializeToString()
    asked = [asyncio.ensure_future(calls.unary(GREEDY, "ExplainRead", request)) for _ in range(8)]
    await until(lambda: running == 1, "one is at work")
    other = asyncio.ensure_future(calls.unary(OTHER, "ExplainRead", request))
    await until(lambda: running == 2, "another caller's is not behind them")
    assert await calls.unary(GREEDY, "GetShardMap"), "other calls go on"
    gate.set()
    answers = await asyncio.gather(*asked, other)
    assert 2 == most and 1 == len(set(answers))
    assert RECORDS == node_pb2.ExplainReadResponse.FromString(answers[0]).through


async def commit(calls: Calls, who: str, name: str, lease_ms: int = 60_000) -> bytes:
    request = node_pb2.CommitPositionRequest(group=GROUP, shard=0, subscription=name, offset=0, lease_ms=lease_ms)
    return await calls.unary(who, "CommitPosition", request.SerializeToString())


async def delete(calls: Calls, who: str, name: str) -> bytes:
    request = node_pb2.DeleteSubscriptionRequest(group=GROUP, shard=0, subscription=name)
    return await calls.unary(who, "DeleteSubscription", request.SerializeToString())


async def test_t12_one_caller_creates_so_many_subscriptions_of_a_shard(node: Node, calls: Calls) -> None:
    for name in ("one", "two", "three"):
        await commit(calls, GREEDY, name)
    why = await refused(commit(calls, GREEDY, "four"))
    assert Reason.TOO_MANY_SUBSCRIPTIONS is why.reason and "greedy has created 3" in why.message
    await commit(calls, GREEDY, "two")
    await commit(calls, OTHER, "four")
    await commit(calls, GREEDY, "four")                  # another's, and there already
    await delete(calls, GREEDY, "one")
    await commit(calls, GREEDY, "five")
    assert Reason.TOO_MANY_SUBSCRIPTIONS is (await refused(commit(calls, GREEDY, "six"))).reason


async def test_t12_a_lease_has_a_bound(node: Node, calls: Calls) -> None:
    why = await refused(commit(calls, GREEDY, "long", 60_001))
    assert Reason.INVALID_SPEC is why.reason and "--subscription-lease-seconds-max" in why.message


def test_t12_names_that_are_gone_or_were_never_made_do_not_count() -> None:
    names, held = SubscriptionNames(2), {"a"}
    shard: Any = 7
    assert [None, None] == [names.refusal(shard, name, GREEDY, lambda: held) for name in ("a", "b")]
    with names.under_way(shard, "b"):
        assert names.refusal(shard, "c", GREEDY, lambda: held) is not None, "it may be made yet"
    assert names.refusal(shard, "c", GREEDY, lambda: held) is None, "b was refused by the core"
    assert names.refusal(shard, "d", GREEDY, lambda: {"a", "c"}) is not None
    assert names.refusal(shard, "d", GREEDY, lambda: {"a", "c", "d"}) is None, "it is there, of another leader's time"
    assert names.refusal(shard, "e", OTHER, lambda: held) is None
    assert names.refusal(8, "x", GREEDY, lambda: held) is None, "each shard has its own"  # type: ignore[arg-type]


async def test_t12_unanswered_batches_of_one_caller_leave_room_for_others(node: Node, calls: Calls) -> None:
    pending = node.budgets.appends
    assert pending.take(GREEDY, pending.total // 2)
    assert not pending.take(GREEDY, 1) and pending.take(OTHER, pending.total // 4)


async def test_t12_one_frame_is_encoded_in_each_turn_of_the_loop(node: Node) -> None:
    """Many streams that may send at once: what an append needs of the loop comes in between."""
    turns, encoded_in = 0, list[int]()
    blocked = asyncio.Event()

    def tick() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(tick)

    def encode() -> bytes:
        encoded_in.append(turns)
        return b"frame"

    class Slow:
        async def write(self, frame: bytes) -> None:
            await blocked.wait()

    tick()
    sends = [asyncio.ensure_future(node.budgets.send(who, Slow(), encode)) for who in (GREEDY, OTHER) for _ in range(9)]
    sends[4].cancel()
    await until(lambda: 17 == len(encoded_in), "a stream that is not read keeps no other from sending")
    assert len(set(encoded_in)) == len(encoded_in)
    assert encoded_in[-1] - encoded_in[1] == 15, "each turn has one"
    blocked.set()
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert 1 == sum(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_t12_a_few_readers_are_woken_in_each_turn_of_the_loop() -> None:
    """An append wakes hundreds of tailing readers; what other appends need of the loop comes in between."""
    board, turns, woken = ReleasedBoard(), 0, list[int]()
    goes_on = True

    def tick() -> None:
        nonlocal turns
        turns += 1
        if goes_on:
            asyncio.get_running_loop().call_soon(tick)

    async def reader() -> None:
        await board.moved(SHARD, 60)
        woken.append(turns)

    def watcher() -> None:
        woken.append(turns)

    readers = [asyncio.ensure_future(reader()) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(2):      # the same watcher counts once
        board.watch(SHARD, watcher)
    readers[3].cancel()
    tick()
    board.released(SHARD, 7)
    assert 7 == board.upto(SHARD)
    await until(lambda: 20 == len(woken), "each is woken")
    goes_on = False
    assert max(map(woken.count, woken)) <= 2 * WAKES_PER_TURN and len(set(woken)) >= 20 // WAKES_PER_TURN // 2
    board.unwatch(SHARD, watcher)
    board.released(SHARD, 8)
    await asyncio.gather(*readers, return_exceptions=True)
    assert 20 == len(woken)


async def test_t12_appends_faster_than_the_wakes_queue_each_reader_once() -> None:
    board, woken, turns = ReleasedBoard(), list[int](), 0
    for number in range(40):
        board.watch(SHARD, partial(woken.append, number))
    reader = asyncio.ensure_future(board.moved(SHARD, 60))
    await asyncio.sleep(0)
    for upto in range(100):
        board.released(SHARD, upto)
    while not reader.done():
        board.released(SHARD, 100 + turns)
        turns += 1
        assert turns < 40, "it is behind a wake of each watcher, not of each append"
        await asyncio.sleep(0)
    for _ in range(40):
        await asyncio.sleep(0)
    before = list(woken)
    assert set(before) == set(range(40)) and len(before) <= 2 * turns + 2 * 40
    for _ in range(5):
        await asyncio.sleep(0)
    assert woken == before, "nothing is left to wake"


async def test_t12_a_large_frame_that_is_not_taken_makes_room_for_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets_module, "SEND_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(budgets_module, "LARGE_FRAME_SECONDS", 0.1)
    frames, told = node.budgets.frames, list[str]()
    never, read, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Stuck:
        async def write(self, frame: bytes) -> None:
            await never.wait()

        async def abort(self, code: Any, details: str, trailing: Any = ()) -> None:
            told.append(details)
            await read.wait()   # the status is behind the frame
            raise ConnectionAbortedError(details)

    class Slow(Stuck):
        async def write(self, frame: bytes) -> None:
            await taken.wait()

    async def send(who: str, context: Any) -> None:
        grant = await node.budgets.frame(who, FRAMES_MAX, FRAMES_MAX)
        assert grant.beside
        try:
            await node.budgets.send(who, context, lambda: b"large", grant)
        finally:
            grant.release()

    first = asyncio.ensure_future(send(GREEDY, Stuck()))
    await until(lambda: 0 < frames.beside, "it is under way")
    await remains(lambda: not first.done(), "alone, it has its time")
    second = asyncio.ensure_future(send(OTHER, Slow()))
    await until(lambda: bool(told), "the first one is refused")
    assert 0 < frames.beside, "the next one is under way, though the refusal is not read"
    taken.set()
    await asyncio.wait_for(second, 10)
    assert not frames.beside and not frames.used and not first.done()
    read.set()
    with pytest.raises(ConnectionAbortedError, match="bytes of frames"):
        await asyncio.wait_for(first, 10)
    assert not frames.beside and not frames.used
