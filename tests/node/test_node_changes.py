"""Change streams from real nodes, led by hand: followed through kill -9, resumed, refused in type (U54-U69)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import tidemark
from node_harness import LINEAGE, ORDERS, Group, Three
from test_node_documents import alone, put, scan_pages, writes
from tidemark.change_events import Snapshot
from tidemark.changes import Changes
from tidemark.errors import ChangesFailed, InvalidArgument
from tidemark_core.base.ids import shard_id
from tidemark_core.documents.payload import Op, Write
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import DeleteShard, ShardDeleted
from tidemark_core.upr.decision import Behind, HistoryLost, NotMyShard
from tidemark_core.upr.history import START, Point
from tidemark_core.upr.messages import End, EndReason, Marker, Rows, StreamEnd, size_of
from tidemark_core.upr.positions import NO_FILTER, Scope, Token, encode
from tidemark_node import changes as changes_module
from tidemark_node.main import Node
from tidemark_node.settings import FRAME_COPIES
from tidemark_wire import channel
from tidemark_wire.changes import (
    CHANGES,
    Ack,
    Answer,
    Barrier,
    BarrierRejected,
    Close,
    Cookie,
    Open,
    Said,
    decode_answers,
    encode_request,
)

from tests.waiting import remains, until

__all__ = ["alone"]   # the fixture

WAIT_S = 60.0   # on a busy machine


class View:
    """A view that applies whole snapshots, and the store's state behind every write as the writer knows it."""

    def __init__(self) -> None:
        self.documents: dict[bytes, tuple[int, bytes]] = {}
        self.seqno = -1
        self.starts: list[int] = []

    def apply(self, snapshot: Snapshot) -> None:
        if snapshot.fresh:
            self.documents = {}
        last = snapshot.start
        for change in snapshot:
            assert last < change.seqno <= snapshot.seqno, "U59"
            last = change.seqno
            if change.deleted:
                self.documents.pop(change.key, None)
            else:
                self.documents[change.key] = change.seqno, change.value
        self.seqno = snapshot.seqno
        self.starts.append(snapshot.start)


class Writer:
    """Writes batches, and keeps the documents behind each."""

    def __init__(self, three: Three) -> None:
        self.three = three
        self.sequence = 0
        self.documents: dict[bytes, tuple[int, bytes]] = {}
        self.states: dict[int, dict[bytes, tuple[int, bytes]]] = {}

    async def write(self, *records: Write) -> int:
        (answer,) = await self.three.write(writes(self.sequence, *records))
        assert isinstance(answer, Written), answer
        self.sequence += 1
        for seqno, record in enumerate(records, answer.base):
            if record.op is Op.PUT:
                self.documents[record.key] = seqno, record.value
            else:
                self.documents.pop(record.key, None)
        end = answer.base + answer.count - 1
        self.states[end] = dict(self.documents)
        return end

    def at(self, seqno: int) -> dict[bytes, tuple[int, bytes]]:
        """Return the documents as of a seqno: what was written up to there."""
        known = [end for end in self.states if end <= seqno]
        return self.states[max(known)] if known else {}


async def follow(changes: Changes, view: View, writer: Writer, until: int) -> None:
    """Apply snapshots until the view has everything up to `until`; it equals the store at every END."""
    async with asyncio.timeout(WAIT_S):
        async for snapshot in changes.snapshots():
            view.apply(snapshot)
            assert view.documents == writer.at(view.seqno), f"U59: at {view.seqno} the view is not the store"
            if view.seqno >= until:
                await changes.ack()
                return


async def test_u59_a_consumer_follows_while_the_leader_is_killed_and_equals_the_store_at_every_end(
    three: Three, client: tidemark.Client,
) -> None:
    writer, view = Writer(three), View()
    await writer.write(*(put(b"k%d" % number, b"first") for number in range(50)))
    async with client.changes(three.group.name) as changes:
        end = await writer.write(put(b"k1", b"second"), Write(Op.DELETE, b"k2"))
        await follow(changes, view, writer, end)

        killed = three.leader
        killed.kill()
        left = [node for node in three.nodes if node is not killed]
        await three.lead(left[0], left)
        for number in range(20):
            end = await writer.write(put(b"k%d" % number, b"third"), put(b"new%d" % number, b"x" * 300))
        await follow(changes, view, writer, end)

        assert changes.positions == {0: view.seqno}
    assert view.documents == writer.documents
    assert {document.key for page in await scan_pages(three.leader) for document in page.documents} == set(
        view.documents)


async def test_u55_a_consumer_that_dies_goes_on_from_its_token(three: Three, client: tidemark.Client) -> None:
    writer, view = Writer(three), View()
    end = await writer.write(put(b"a", b"1"), put(b"b", b"1"))
    async with client.changes(three.group.name) as changes:
        await follow(changes, view, writer, end)
        token, stood = changes.position, view.seqno
        view.starts.clear()
    end = await writer.write(Write(Op.DELETE, b"a"), put(b"c", b"2"))

    async with client.changes(three.group.name, from_=token) as changes:
        await follow(changes, view, writer, end)
        assert view.starts[0] == stood, "nothing came twice"

    assert view.documents == writer.documents and set(view.documents) == {b"b", b"c"}


async def test_r1_a_named_consumer_goes_on_behind_what_it_acknowledged(
    three: Three, client: tidemark.Client,
) -> None:
    writer, view = Writer(three), View()
    end = await writer.write(put(b"a", b"1"))
    async with client.changes(three.group.name, consumer="index", commit_s=None) as changes:
        await follow(changes, view, writer, end)   # acknowledges
        second = await writer.write(put(b"b", b"2"))
        async with asyncio.timeout(WAIT_S):
            async for snapshot in changes.snapshots():
                if snapshot.seqno >= second:
                    break    # given, and not acknowledged

    again = View()
    again.documents = dict(view.documents)
    async with client.changes(three.group.name, consumer="index", commit_s=None) as changes:
        refused = 0
        async with asyncio.timeout(WAIT_S):
            async for snapshot in changes.snapshots():
                assert snapshot.start == view.seqno, "it begins behind what was acknowledged"
                if refused < 2:   # the sink fails: the same snapshot comes again
                    refused += 1
                    changes.nack(0.01)
                    continue
                again.apply(snapshot)
                break
        assert changes.nacks == 2

    assert again.documents == writer.documents


async def test_u60_u69_a_barrier_covers_what_was_written_before_it(three: Three, client: tidemark.Client) -> None:
    writer, view = Writer(three), View()
    await writer.write(put(b"a", b"1"))
    async with client.changes(three.group.name, prefix=b"b") as changes:
        end = await writer.write(put(b"b", b"2"), put(b"a", b"3"))

        async def consume() -> None:
            async for snapshot in changes.snapshots():
                view.apply(snapshot)

        consuming = asyncio.create_task(consume())
        async with asyncio.timeout(WAIT_S):
            over = await changes.barrier()
            end = await writer.write(put(b"a", b"4"))   # no row of it passes the filter
            again = await changes.barrier()
        consuming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await consuming

        assert over.complete and again.complete
        assert changes.positions[0] >= end
        assert set(view.documents) == {b"b"}

    async with client.changes(three.group.name) as idle:     # the application asks for nothing, so nothing is applied
        late = await idle.barrier(timeout_s=0.5)
    assert not late.complete and set(late.not_covered) == {0}


async def test_r8_now_shows_what_comes_later_only(three: Three, client: tidemark.Client) -> None:
    writer, view = Writer(three), View()
    await writer.write(put(b"old", b"1"))
    async with client.changes(three.group.name, from_="now", consumer="later") as changes:
        snapshots = changes.snapshots()
        following = asyncio.create_task(anext(snapshots))
        await until(lambda: changes.positions.get(0), "the position of now is known")
        await writer.write(put(b"new", b"2"))
        async with asyncio.timeout(WAIT_S):
            view.apply(await following)
            while not view.documents:   # the scan that begins a stream may find nothing
                view.apply(await anext(snapshots))

    assert set(view.documents) == {b"new"}


async def test_u57_positions_that_cannot_be_are_refused_in_type(three: Three, client: tidemark.Client) -> None:
    writer = Writer(three)
    end = await writer.write(put(b"a", b"1"))

    def token(group: int = three.group.group_id, digest: bytes = NO_FILTER, seqno: int = 1, epoch: int = 1) -> str:
        return encode(Token(Scope(group, digest), {shard_id(group, 0): Point(LINEAGE, epoch, seqno)}))

    for wrong, field in ((token(group=three.group.group_id + 1), "group"), (token(digest=b"f" * 16), "filter")):
        async with client.changes(three.group.name, from_=wrong) as changes:
            with pytest.raises(InvalidArgument, match=f"position is of {field}"):
                await changes.snapshots().__anext__()
    with pytest.raises(InvalidArgument, match="checksum"):
        client.changes(three.group.name, from_=token()[:-4] + "AAAA")
    with pytest.raises(InvalidArgument, match="must be 'committed'"):
        client.changes(three.group.name, level="sure")

    async with client.changes(three.group.name, from_=token(seqno=end + 1_000)) as changes, asyncio.timeout(WAIT_S):
        with pytest.raises(ChangesFailed) as failed:
            await changes.snapshots().__anext__()
    assert failed.value.reason == "HISTORY_LOST"

    async with client.changes(three.group.name, from_=token(epoch=7), on_lost="rebuild") as changes:
        async with asyncio.timeout(WAIT_S):
            snapshot = await changes.snapshots().__anext__()
    assert snapshot.fresh and [change.key for change in snapshot] == [b"a"]


# --- the connection itself --------------------------------------------------------------------------------


class Raw:
    """One connection, message by message."""

    def __init__(self, opened: Any) -> None:
        self.call = opened.stream_stream(CHANGES)(metadata=channel.hello_metadata())
        self.unread: list[Answer] = []

    async def say(self, *messages: Any) -> None:
        await self.call.write(b"".join(map(encode_request, messages)))

    async def hear(self) -> Answer:
        async with asyncio.timeout(WAIT_S):
            while not self.unread:
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                self.unread += decode_answers(frame)
        return self.unread.pop(0)


@contextlib.asynccontextmanager
async def raw(address: str) -> AsyncIterator[Raw]:
    async with channel.open_channel(address) as opened:
        connection = Raw(opened)
        try:
            yield connection
        finally:
            connection.call.cancel()


def asking(number: int = 1, group: Group = ORDERS, start: Point = START, **more: Any) -> Open:
    return Open(number, group.name, 0, Scope(group.group_id), start, **more)


async def until_end(connection: Raw) -> list[Answer]:
    heard = [await connection.hear()]
    while not (isinstance(heard[-1], Said) and isinstance(heard[-1].message, End | StreamEnd)):
        heard.append(await connection.hear())
    return heard


async def until_stream_ends(connection: Raw, count: int) -> list[Said]:
    """Return what is heard of streams until so many of them have ended."""
    heard: list[Said] = []
    while sum(isinstance(each.message, StreamEnd) for each in heard) < count:
        answer = await connection.hear()
        heard += [answer] if isinstance(answer, Said) else []
    return heard


async def test_u69_an_outstanding_cookie_is_refused_and_changes_nothing(three: Three) -> None:
    writer = Writer(three)
    end = await writer.write(put(b"a", b"1"))
    async with raw(three.leader.address) as connection:
        await connection.say(asking(group=three.group))
        heard = await until_end(connection)
        assert [type(each.message) for each in heard if isinstance(each, Said)] == [Marker, Rows, End]

        target = end + 20
        await connection.say(Barrier("c", {1: target}), Barrier("c", {1: target}), Barrier("d", {9: 1}))
        refused: list[BarrierRejected] = []
        while len(refused) < 2:
            answer = await connection.hear()
            assert not isinstance(answer, Cookie), "it came back before its target"
            refused += [answer] if isinstance(answer, BarrierRejected) else []
        assert [(each.cookie, each.field) for each in refused] == [("c", "DuplicateCookie"), ("d", "stream")]

        await writer.write(*(put(b"b", b"2") for _ in range(30)))
        reached = 0
        while (answer := await connection.hear()) != Cookie("c"):
            if isinstance(answer, Said) and isinstance(answer.message, End):
                reached = answer.message.seqno
        assert reached >= target


async def test_u61_a_consumer_that_takes_nothing_costs_a_bounded_feed_and_gets_everything_later(
    three: Three,
) -> None:
    writer = Writer(three)
    await writer.write(put(b"a", b"1"))
    async with raw(three.leader.address) as connection:
        await connection.say(asking(group=three.group, window=64 << 10))
        await until_end(connection)
        for number in range(40):   # far above the feed and the window
            end = await writer.write(*(put(b"%d" % at, bytes([number]) * 4_000) for at in range(10)))
        sent, view, total = 0, {}, 0
        while True:
            answer = await connection.hear()
            if not isinstance(answer, Said):
                continue
            message = answer.message
            assert not isinstance(message, StreamEnd), message
            if isinstance(message, Rows):
                view.update((row.key, (row.seqno, row.value)) for row in message.rows)
                sent += len(message.rows)
            total += size_of(message)
            await connection.say(Ack(1, total))
            if isinstance(message, End) and message.seqno >= end:
                break

        assert {key: found for key, found in writer.documents.items() if key != b"a"} == view
        assert sent < 400, "versions that were overwritten while the consumer slept did not travel"

        await connection.say(Ack(1, total + (1 << 40)))
        last = (await until_end(connection))[-1]
        assert isinstance(last, Said) and isinstance(last.message, StreamEnd)
        assert last.message.reason is EndReason.PROTOCOL_ERROR


async def test_u57_a_lagging_start_is_behind_at_a_follower_and_lost_at_the_leader_alone(three: Three) -> None:
    writer = Writer(three)
    end = await writer.write(put(b"a", b"1"))
    above = Point(LINEAGE, 1, end + 50)
    follower = next(node for node in three.nodes if node is not three.leader)
    async with raw(follower.address) as connection:
        await connection.say(asking(group=three.group, start=above))
        behind = (await until_end(connection))[-1]
        assert isinstance(behind, Said) and isinstance(behind.message, StreamEnd)
        assert isinstance(behind.message.refusal, Behind)
    async with raw(three.leader.address) as connection:
        await connection.say(asking(group=three.group, start=above, certain=True))
        lost = (await until_end(connection))[-1]
        assert isinstance(lost, Said) and isinstance(lost.message, StreamEnd)
        assert isinstance(lost.message.refusal, HistoryLost)


async def test_a_malformed_frame_ends_the_call_and_a_node_that_stops_says_so(three: Three) -> None:
    await Writer(three).write(put(b"a", b"1"))
    async with raw(three.leader.address) as connection:
        await connection.call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_SPEC"):
            await connection.hear()
    async with raw(three.leader.address) as connection:
        await connection.say(asking(group=three.group))
        first = (await until_end(connection))[-1]
        assert isinstance(first, Said) and isinstance(first.message, End)
        three.leader.signal(signal.SIGTERM)
        three.leader.signal(signal.SIGTERM)
        last = (await until_end(connection))[-1]
        assert isinstance(last, Said) and last.message == StreamEnd(
            EndReason.SHUTTING_DOWN, None, "the node stops")
    three.leader.kill()   # The next test must not take a node that still stops for one that runs.


async def test_a_stream_ends_where_its_shard_is_removed_and_the_consumer_goes_on_elsewhere(
    three: Three, client: tidemark.Client,
) -> None:
    writer = Writer(three)
    await writer.write(put(b"a", b"1"))
    removed = next(node for node in three.nodes if node is not three.leader)
    async with raw(removed.address) as connection:
        await connection.say(asking(group=three.group))
        await until_end(connection)
        three.epoch += 1
        await three.ask(removed, DeleteShard(three.epoch, three.epoch), ShardDeleted)
        last = (await until_stream_ends(connection, 1))[-1]    # the first scan may have found nothing
        assert isinstance(last.message, StreamEnd) and last.message.reason is EndReason.STATE_CHANGED
        await connection.say(asking(2, three.group))
        again = (await until_end(connection))[-1]
        assert isinstance(again, Said) and isinstance(again.message, StreamEnd)
        assert isinstance(again.message.refusal, NotMyShard)

    view, end = View(), await writer.write(put(b"b", b"2"))
    async with client.changes(three.group.name) as changes:   # one of the members that it may choose refuses
        await follow(changes, view, writer, end)
    assert view.documents == writer.documents


# --- what a consumer keeps of its node ----------------------------------------------------------------------


def keeps_nothing(node: Node) -> bool:
    """Say whether no stream keeps anything of the node."""
    budgets = node.budgets
    used = budgets.snapshots.used, budgets.frames.used, budgets.frames.beside, budgets.change_streams.used
    return not any(used) and not node.driver.held_snapshots


async def test_u61_a_consumer_that_reads_nothing_gives_up_its_snapshot(
    alone: Node, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its window of 4 MiB never fills: the frames wait in gRPC."""
    monkeypatch.setattr(changes_module, "STALL_SECONDS", 1.0)
    async with raw(alone.address) as connection:
        await connection.say(asking(window=4 << 20))
        await until(lambda: alone.driver.held_snapshots == 1, "the scan has begun")
        assert alone.budgets.snapshots.used == 1
        await until(lambda: keeps_nothing(alone), "the scan is given up", 20)
        with pytest.raises(grpc.aio.AioRpcError, match=r"OVERLOADED.*read no frame for 1 s"):
            while True:
                await connection.hear()


@pytest.mark.parametrize("total", [256 << 20, 1_000_000, 500_000], ids=["it grows", "it waits", "beside the budget"])
async def test_t12_rows_of_a_page_count_until_the_last_of_them_is_sent(alone: Node, total: int) -> None:
    """A page ends behind 256 KiB, so it has three documents of 100 kB; a message has two of them."""
    frames = alone.budgets.frames
    frames.total = total
    async with raw(alone.address) as connection:
        await connection.say(asking(window=64 << 10))
        heard, rows = 0, 0
        while not rows:
            rows, heard = _count(await connection.hear(), rows, heard)
        assert rows == 2
        page = FRAME_COPIES * 300_000
        await remains(lambda: page <= frames.used + frames.beside < page + 1_000, "the third document waits")
        while rows < 80:
            await connection.say(Ack(1, heard))
            rows, heard = _count(await connection.hear(), rows, heard)
        await until(lambda: not frames.used and not frames.beside, "all is sent")


def _count(answer: Answer, rows: int, heard: int) -> tuple[int, int]:
    assert isinstance(answer, Said) and not isinstance(answer.message, StreamEnd), answer
    return rows + len(getattr(answer.message, "rows", ())), heard + size_of(answer.message)


async def test_a_stream_opens_where_the_one_before_said_its_last_message(
    alone: Node, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The consumer hears END and opens again, before the node has freed what the stream held."""
    again, release = asyncio.Event(), changes_module._Stream._release
    on_request = changes_module._Connection._on_request

    async def released(stream: Any) -> None:
        if stream.last_said:
            await again.wait()
        await release(stream)

    async def requested(connection: Any, request: Any) -> None:
        if isinstance(request, Open) and request.stream > 1:
            again.set()
        await on_request(connection, request)

    monkeypatch.setattr(changes_module._Stream, "_release", released)
    monkeypatch.setattr(changes_module._Connection, "_on_request", requested)
    async with raw(alone.address) as connection:
        await connection.say(asking())
        await connection.hear()
        await connection.say(Close(1))
        while isinstance(heard := await connection.hear(), Said) and not isinstance(heard.message, StreamEnd):
            pass
        await connection.say(asking(2))
        first = await connection.hear()
        assert isinstance(first, Said) and isinstance(first.message, Marker), first
        await connection.say(Close(2), asking(3))
        answers = await until_stream_ends(connection, 2)
        ends = {heard.stream: heard.message.reason for heard in answers if isinstance(heard.message, StreamEnd)}
        assert ends == {2: EndReason.CLOSED, 3: EndReason.OVERLOADED}, "it is asked again"



async def test_t12_a_page_beside_the_budget_that_is_not_taken_makes_room_for_another(
    alone: Node, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes_module, "LARGE_FRAME_SECONDS", 0.5)
    frames = alone.budgets.frames
    frames.total = 500_000
    async with raw(alone.address) as first, raw(alone.address) as second:
        await first.say(asking(window=64 << 10))
        await until(lambda: frames.beside, "a page is beside the budget, and the rest of it waits for credit")
        await second.say(asking(window=64 << 10))
        with pytest.raises(grpc.aio.AioRpcError, match=r"OVERLOADED.*bytes of frames"):
            while True:
                await first.hear()
        heard = await second.hear()
        assert isinstance(heard, Said) and isinstance(heard.message, Marker)
        assert isinstance(rows := await second.hear(), Said) and isinstance(rows.message, Rows)
