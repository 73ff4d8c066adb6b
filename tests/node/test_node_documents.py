"""Documents on real nodes, led by hand: written, read at every level, pinned, and the same after kill -9."""

from __future__ import annotations

import asyncio
import errno
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from node_harness import (
    GROUP,
    LINEAGE,
    VERSIONS,
    Appender,
    NodeProcess,
    OperatorHand,
    Three,
    batch,
    fresh_group,
    push_map,
    read_all,
    shard_map,
)
from tidemark.document_calls import View
from tidemark.document_scans import Page, ShardScan
from tidemark_core.base.entry import Batch, Durability, Kind
from tidemark_core.base.ids import ShardKind, key_hash
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.payload import (
    KEY_BYTES_MAX,
    Op,
    Outcome,
    Verdict,
    Write,
    Writes,
    encode,
)
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import (
    Commit,
    Committed,
    DeleteShard,
    InstallSnapshot,
    Operation,
    Prepare,
    Prepared,
    ShardDeleted,
    SnapshotInstalled,
)
from tidemark_node import budgets, documents
from tidemark_node.main import Node
from tidemark_node.routing import Routing
from tidemark_node.settings import Settings
from tidemark_node.store_errors import Faults
from tidemark_wire import channel
from tidemark_wire.status import HintedRefusal, refusal_from_rpc_error
from tidemark_wire.v1 import documents_pb2 as wire
from tidemark_wire.v1 import documents_pb2_grpc

from tests.waiting import remains, until

APPLIED, REFUSED, ABORTED = Verdict.APPLIED, Verdict.REFUSED, Verdict.ABORTED


def put(key: bytes, value: bytes, **more: Any) -> Write:
    return Write(Op.PUT, key, value, **more)


def writes(sequence: int, *records: Write, atomic: bool = False, **more: Any) -> Batch:
    return batch(sequence, encode(Writes(records, atomic)), count=len(records), **more)


@asynccontextmanager
async def documents_of(node: NodeProcess) -> AsyncIterator[documents_pb2_grpc.DocumentsStub]:
    async with channel.open_channel(node.address) as opened:
        yield documents_pb2_grpc.DocumentsStub(opened)


async def caught_up(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the member has applied what is asked for; a client would ask another one."""
    async def answer() -> Any:
        try:
            return await ask()
        except grpc.aio.AioRpcError as error:
            hinted = refusal_from_rpc_error(error)
            if hinted is None or hinted.refused.reason is not Reason.BEHIND:
                raise
            return None

    return await until(answer, "the member has applied what is asked for")


async def get(node: NodeProcess, *keys: bytes, **more: Any) -> dict[bytes, bytes]:
    answer = await caught_up(lambda: get_answer(node, *keys, **more))
    assert answer.answered == len(keys)
    return {keys[document.place]: document.value for document in answer.documents}


async def get_answer(node: NodeProcess, *keys: bytes, **more: Any) -> wire.GetDocumentsResponse:
    async with documents_of(node) as stub:
        return await stub.Get(wire.GetDocumentsRequest(group=node.group.name, keys=keys, **more), timeout=20)


async def scan_pages(node: NodeProcess, **more: Any) -> list[wire.ScanDocumentsPage]:
    async with documents_of(node) as stub:
        pages = [page async for page in stub.Scan(wire.ScanDocumentsRequest(group=node.group.name, **more), timeout=20)]
    assert [page.last for page in pages] == [False] * (len(pages) - 1) + [True]
    assert len({page.applied for page in pages}) == 1, "one cut"
    return pages


async def scan(node: NodeProcess, **more: Any) -> dict[bytes, bytes]:
    found = [document for page in await caught_up(lambda: scan_pages(node, **more)) for document in page.documents]
    assert sorted(document.key for document in found) == [document.key for document in found]
    return {document.key: document.value for document in found}


async def documents_in_columns(node: NodeProcess, **more: Any) -> list[tuple[bytes, bytes, int, int]]:
    """Return what a scan shows to a client that reads columns."""
    pages = await scan_pages(node, columns=True, **more)
    assert not any(page.documents for page in pages)
    return [
        (each.key, each.value, each.seqno, each.expires_at_ms) for page in pages for each in Page.of(0, page)]


async def describe(node: NodeProcess) -> wire.DescribeDocumentsResponse:
    async with documents_of(node) as stub:
        return await stub.Describe(wire.DescribeDocumentsRequest(group=node.group.name), timeout=20)


async def data_in(node: NodeProcess) -> list[int]:
    """Return the offsets of all writes in the log."""
    return [entry.base for entry in await read_all(node.address, group=node.group.name) if entry.kind is Kind.DATA]


async def refused(call: Any) -> HintedRefusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    hinted = refusal_from_rpc_error(caught.value)
    assert hinted is not None, caught.value
    return hinted


async def reason(call: Any) -> Reason:
    return (await refused(call)).refused.reason


async def test_t13_a_key_outside_the_shard_s_range_is_refused_before_it_is_logged(three: Three):
    names = [b"key-%d" % number for number in range(20)]
    mine, other = (next(name for name in names if key_hash(name) >> 31 == half) for half in (0, 1))
    placed = [(node.member, node.address) for node in three.nodes]
    of_two = shard_map(placed, three.leader.name, next(VERSIONS), kind="Documents", shards=2, of=three.group)
    await push_map(three.leader.address, of_two)
    answers = await three.write(writes(0, put(mine, b"1"), put(other, b"2")), writes(0, put(mine, b"3")))
    assert answers[0].reason is Reason.INVALID_BATCH
    assert answers[0].message == f"key {other!r} does not belong to shard 0 of {three.group.name!r}"
    assert answers[1].outcomes == (Outcome(APPLIED),)
    assert len(await data_in(three.leader)) == 1


async def test_what_is_written_is_read_at_every_level(three: Three):
    a, b, c = three.nodes
    (first,) = await three.write(writes(0, put(b"apple", b"1"), put(b"bread", b"2"), put(b"cream", b"3")))
    assert first == Written(1, 1, 3, Durability.QUORUM, (Outcome(APPLIED),) * 3)
    (second,) = await three.write(writes(1, put(b"apple", b"4"), Write(Op.DELETE, b"bread"), Write(Op.DELETE, b"none")))
    assert [outcome.seqno for outcome in second.outcomes] == [1, 2, 0]

    cut, expected = second.base + 2, {b"apple": b"4", b"cream": b"3"}
    for level in ("linearizable", "leader", ""):
        assert expected == await get(a, b"none", b"apple", b"bread", b"cream", level=level)
        assert expected == await scan(a, level=level)
    for node in (a, b, c):
        assert expected == await get(node, b"apple", b"cream", level="follower", min_seqno=cut)
        assert {b"apple": b"4"} == await scan(node, level="follower", min_seqno=cut, until=b"cream")
    answer = await get_answer(a, b"apple")
    assert (answer.applied >= cut, answer.epoch, answer.documents[0].seqno) == (True, 1, second.base)
    assert {LINEAGE} == {page.lineage for page in await scan_pages(b, level="follower")}
    assert [(1, LINEAGE, -1)] == [(each.epoch, each.lineage, each.head) for each in (await describe(c)).failover_log]
    hinted = await refused(get(b, b"apple"))
    assert (hinted.refused.reason, hinted.leader_node, hinted.leader_address) == (Reason.NOT_LEADER, "a", a.address)


async def test_bad_input_changes_nothing(three: Three):
    a = three.nodes[0]
    await three.write(writes(0, put(b"k", b"v")))
    wrong, atomic = await three.write(
        writes(1, put(b"k", b"w", expected=9), put(b"l", b"new", expected=0)),
        writes(2, put(b"m", b"1"), put(b"k", b"2", expected=0), atomic=True),
    )
    assert wrong.outcomes == (Outcome(REFUSED, 1), Outcome(APPLIED)), "the seqno that is there now"
    assert atomic.outcomes == (Outcome(ABORTED), Outcome(REFUSED, 1))
    assert {b"k": b"v", b"l": b"new"} == await scan(a)

    before = await data_in(a)
    answers = await three.write(
        writes(3, put(b"k", b"x"), durability=Durability.LOCAL),
        batch(4, b"a record of a log"),
        batch(5, encode(Writes((put(b"k", b"v"),))).replace(b"\0\0\0\1", b"\0\0\0\2")),
        writes(6, put(b"k", bytes(2 << 20))),
    )
    assert [(answer.reason, answer.message.split()[0]) for answer in answers if isinstance(answer, Refused)] == [
        (Reason.INVALID_BATCH, "durability"), (Reason.WRONG_KIND, "the"), (Reason.INVALID_BATCH, "payload"),
        (Reason.BATCH_TOO_LARGE, "payload")]
    for call in (
        get(a), get(a, b""), get(a, b"x" * (KEY_BYTES_MAX + 1)), get(a, b"k", level="newest"),
        get(a, b"k", min_seqno=-1),
        scan(a, first=b"x" * (KEY_BYTES_MAX + 1)), scan(a, pin=wire.PinnedCut(name="p", at=-1)),
    ):
        assert Reason.INVALID_SPEC is await reason(call)
    assert before == await data_in(a), "nothing reached the log"
    behind = await refused(get_answer(a, b"k", level="follower", min_seqno=1_000_000))
    assert (behind.refused.reason, behind.refused.expected) == (Reason.BEHIND, (await describe(a)).applied)


async def test_a_log_has_no_documents(nodes: list[NodeProcess]):
    node = nodes[0]
    node.group = fresh_group()
    await push_map(node.address, shard_map([(node.member, node.address)], "a", next(VERSIONS), of=node.group))
    for call in (get(node, b"k"), scan(node), describe(node)):
        assert Reason.WRONG_KIND is await reason(call)


async def test_large_answers_come_in_pieces_and_scans_in_pages(three: Three):
    a = three.nodes[0]
    values = {b"%03d" % number: bytes([number]) * 200_000 for number in range(40)}
    await three.write(*(
        writes(number, *(put(key, values[key]) for key in list(values)[number * 4:number * 4 + 4]))
        for number in range(10)
    ))
    answer = await get_answer(a, *values)
    assert 0 < answer.answered < 40
    assert [document.value for document in answer.documents] == list(values.values())[:answer.answered]
    for bytes_max in (1, 0, 1 << 30):
        pages = await scan_pages(a, bytes_max=bytes_max)
        assert len(pages) > 2
        assert values == {document.key: document.value for page in pages for document in page.documents}
    assert list(values)[5:12] == list(await scan(a, first=b"005", documents_max=7, keys_only=True))
    assert {b""} == set((await scan(a, keys_only=True)).values())
    for more in ({}, {"keys_only": True}, {"first": b"005", "documents_max": 7}, {"first": b"z"}):
        assert await documents_in_columns(a, **more) == [
            (each.key, each.value, each.seqno, each.expires_at_ms)
            for page in await scan_pages(a, **more) for each in page.documents]
    assert {} == await scan(a, first=b"9") == await scan(a, first=b"2", until=b"1")


async def test_a_pin_shows_its_cut_on_every_member_and_after_a_restart(three: Three):
    a, b, c = three.nodes
    old = {b"k%02d" % number: b"old" for number in range(20)}
    await three.write(writes(0, *(put(key, value) for key, value in old.items())))
    async with documents_of(a) as stub:
        pinned = await stub.Pin(wire.PinDocumentsRequest(group=a.group.name, name="p", ttl_ms=600_000), timeout=20)
    assert (pinned.count, pinned.epoch, pinned.lineage) == (20, 1, LINEAGE)
    await three.write(
        writes(1, *(put(key, b"new") for key in list(old)[::2]), Write(Op.DELETE, b"k01"), put(b"k", b"later")))
    pin = wire.PinnedCut(name="p", at=pinned.at)
    for node in (a, b, c):
        assert old == await scan(node, pin=pin, bytes_max=1)
        assert {b"k00": b"old", b"k01": b"old"} == await get(node, b"k00", b"k", b"k01", pin=pin)
    assert b"new" == (await get(a, b"k00"))[b"k00"]

    c.kill()
    c.start()
    await three.lead(a)
    assert old == await scan(c, pin=pin)
    assert [("p", pinned.at)] == [(each.name, each.at) for each in (await describe(c)).pins]
    assert Reason.NOT_PINNED is await reason(scan(c, pin=wire.PinnedCut(name="q", at=pinned.at)))
    async with documents_of(a) as stub:
        unpin = wire.UnpinDocumentsRequest(group=a.group.name, name="p")
        for existed in (True, False):
            assert existed is (await stub.Unpin(unpin, timeout=20)).existed
        assert Reason.NOT_PINNED is await reason(get(a, b"k00", pin=pin))
        for name, ttl_ms in (("", 1), ("p", 0), ("p", 30 * 86_400_000 + 1), ("p", (1 << 64) - 1)):
            assert Reason.INVALID_SPEC is await reason(
                stub.Pin(wire.PinDocumentsRequest(group=a.group.name, name=name, ttl_ms=ttl_ms), timeout=20))


async def test_members_agree_after_kills_and_a_retry_gets_its_first_outcome(three: Three):
    a, b, _ = three.nodes
    conditional = writes(1, put(b"x", b"1", expected=0))
    first = await three.write(writes(0, *(put(b"%d" % number, bytes(1000)) for number in range(50))), conditional)
    assert first[1].outcomes == (Outcome(APPLIED),)
    a.kill()
    await three.lead(b, three.nodes[1:])
    (again,) = await three.write(conditional)
    assert (again.base, again.outcomes) == (first[1].base, first[1].outcomes), "not refused by its own write"
    await three.write(writes(2, put(b"y", b"2")))
    a.start()
    await three.lead(b)
    cut = (await describe(b)).applied

    async def equal() -> bool:
        found = [await describe(node) for node in three.nodes]
        return all(each.applied >= cut for each in found) and len({
            (each.applied, each.count, each.digest) for each in found}) == 1

    await until(equal)
    for node in three.nodes:
        assert 52 == len(await scan(node, level="follower", min_seqno=cut))
    for node in three.nodes:
        node.kill()
        node.start()
    await three.lead(three.nodes[2])
    assert 52 == len(await scan(three.nodes[2]))


async def test_a_scan_shows_one_state_while_writes_go_on(three: Three):
    a = three.nodes[0]
    await three.write(*(
        writes(number, *(put(b"%02d-%02d" % (number, at), b"0" * 20_000) for at in range(20))) for number in range(20)))
    async with documents_of(a) as stub:
        call = stub.Scan(wire.ScanDocumentsRequest(group=a.group.name, bytes_max=1), timeout=20)
        pages = [await call.read()]
        await three.write(writes(20, *(put(b"%02d-00" % number, b"later") for number in range(20)), put(b"zz", b"z")))
        while (page := await call.read()) is not grpc.aio.EOF:
            pages.append(page)
    found = {document.key: document.value for page in pages for document in page.documents}
    assert len(found) == 400 and set(found.values()) == {b"0" * 20_000}
    assert b"later" == (await get(a, b"19-00"))[b"19-00"]


async def test_a_deleted_shard_takes_its_documents_along(three: Three):
    a, b, _ = three.nodes
    await three.write(writes(0, put(b"k", b"v")))
    three.epoch += 1
    await three.ask(b, DeleteShard(three.epoch, three.epoch), ShardDeleted)
    assert Reason.NO_REPLICA is await reason(get(b, b"k", level="follower"))
    assert {b"k": b"v"} == await get(a, b"k", level="leader")


class Expanding:
    """A shard of documents on one node that gets a second member."""

    def __init__(self, three: Three, spare: NodeProcess) -> None:
        self.three, self.source, self.spare, self.epoch = three, three.leader, spare, three.epoch
        spare.group = three.group

    async def prepare(self) -> None:
        await self.connect()
        self.epoch += 1
        request = Prepare(self.epoch, self.epoch, Operation.EXPAND, None, self.spare.member)
        self.prepared = await self.three.ask(self.source, request, Prepared)

    async def connect(self) -> None:
        await push_map(self.spare.address, self.three.map([*self.three.nodes, self.spare]))
        await self.three.operator.link(self.spare.name, self.spare.address)

    @property
    def install(self) -> InstallSnapshot:
        return InstallSnapshot(self.epoch, self.epoch, self.source.member, self.prepared.snapshot)

    async def commit(self) -> None:
        after = (*(node.member for node in self.three.nodes), self.spare.member)
        head = self.prepared.snapshot.head
        commit = Commit(self.epoch, self.epoch, Operation.EXPAND, after, None, self.spare.member, head)
        await self.three.ask(self.source, commit, Committed)


async def one_member(source: NodeProcess, spare: NodeProcess, operator: OperatorHand) -> Expanding:
    alone = Three([source], operator)
    await alone.lead(source)
    return Expanding(alone, spare)


async def test_a_new_member_has_the_rows_and_the_outcomes_of_its_source(
    nodes: list[NodeProcess], operator: OperatorHand
):
    source, spare, _ = nodes
    found = await one_member(source, spare, operator)
    old = {b"%04d" % number: b"old" * 100 for number in range(2000)}
    keys = list(old)
    await found.three.write(*(
        writes(number, *(put(key, old[key]) for key in keys[number * 100:][:100])) for number in range(20)))
    async with documents_of(source) as stub:
        pinned = await stub.Pin(wire.PinDocumentsRequest(group=source.group.name, name="p", ttl_ms=600_000), timeout=20)
    conditional = writes(20, put(b"0000", b"new", expected=1))
    (first,) = await found.three.write(conditional)
    assert first.outcomes == (Outcome(APPLIED, 1),)

    await found.prepare()
    installed = await found.three.ask(spare, found.install, SnapshotInstalled, timeout_seconds=20)
    assert installed.head == found.prepared.snapshot.head
    await found.commit()
    cut = (await describe(source)).applied
    assert old | {b"0000": b"new"} == await scan(spare, level="follower", min_seqno=cut)
    assert old == await scan(spare, pin=wire.PinnedCut(name="p", at=pinned.at))

    source.kill()
    source.start()
    await operator.link(source.name, source.address)
    await operator.elect(9, spare.member, (source.member, spare.member), spare.group.shard, kind=ShardKind.DOCUMENTS)
    appender = Appender(spare.address)
    again = await appender.append(conditional, spare.group.name)
    await appender.close()
    assert (again.base, again.outcomes) == (first.base, first.outcomes)


async def test_rows_of_a_snapshot_are_there_whole_or_not_at_all(
    start_node: Callable[..., NodeProcess], operator: OperatorHand
):
    """It has nodes of its own: the source sends 2 MiB of snapshots a second, so that the test can interrupt one."""
    spare = start_node("b")
    found = await one_member(start_node("a", "--snapshot-bytes-per-second", str(2 << 20)), spare, operator)
    old = {b"%04d" % number: bytes([number]) * 100_000 for number in range(60)}
    keys = list(old)
    await found.three.write(*(
        writes(number, *(put(key, old[key]) for key in keys[number * 6:][:6])) for number in range(10)))
    await found.prepare()
    await operator.send(spare.member, found.install, spare.group.shard)

    async def some() -> bool:
        return await received(spare) > 1_000_000

    await until(some)
    assert Reason.NO_REPLICA is await reason(get(spare, b"0000", level="follower"))
    spare.kill()
    spare.start()
    await found.connect()
    assert Reason.NO_REPLICA is await reason(get(spare, b"0000", level="follower"))
    await found.three.ask(spare, found.install, SnapshotInstalled, timeout_seconds=40)
    assert await received(spare) > 6_000_000, "from the first row again"
    await found.commit()
    assert old == await scan(spare, level="follower", min_seqno=(await describe(found.source)).applied)


async def metrics_of(node: NodeProcess) -> dict[str, float]:
    url = f"http://{node.ready['metrics_address']}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    return {name: float(value) for name, value in (
        line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


async def received(node: NodeProcess) -> float:
    """Return the bytes of snapshots that a node has received since its start."""
    return (await metrics_of(node))["tidemark_snapshot_received_bytes_total"]


async def test_metrics_say_what_is_kept_written_and_read(three: Three):
    a, b, _ = three.nodes
    before = {node.name: await metrics_of(node) for node in (a, b)}   # the file's other tests counted too
    await three.write(
        writes(0, *(put(b"%d" % number, b"v") for number in range(5))),
        writes(1, Write(Op.DELETE, b"0"), put(b"1", b"w", expected=0)))
    async with documents_of(a) as stub:
        await stub.Pin(wire.PinDocumentsRequest(group=a.group.name, name="p", ttl_ms=600_000), timeout=20)
    cut = (await describe(a)).applied
    await get(b, b"1", level="follower", min_seqno=cut)
    for node in (a, b):
        found = await metrics_of(node)
        of = {name: found[f'tidemark_{name}{{shard="{three.group.group_id}/0"}}'] for name in (
            "documents", "document_tombstones", "document_pins", "documents_purged", "documents_lag_records")}
        assert of == {
            "documents": 4, "document_tombstones": 1, "document_pins": 1, "documents_purged": -1,
            "documents_lag_records": 0}
        assert found[f'tidemark_documents_applied{{shard="{three.group.group_id}/0"}}'] >= cut

    async def counted(node: NodeProcess, name: str) -> float:
        return (await metrics_of(node))[name] - before[node.name].get(name, 0)

    for verdict, count in ("APPLIED", 6), ("REFUSED", 1):
        assert await counted(a, f'tidemark_document_writes_total{{verdict="{verdict}"}}') == count
    assert await counted(b, 'tidemark_document_reads_total{method="Get"}') == 1


@pytest.fixture
async def alone(tmp_path: Path, operator: OperatorHand) -> AsyncIterator[Node]:
    """A node of this process that leads a shard of 8 MB of documents by itself."""
    node = Node(
        Settings(node="a", data=tmp_path / "a", metrics_listen="off", disk_reserve_bytes=1 << 20), faults=Faults())
    await node.start()
    await lead_alone(node, operator, 1)
    appender = Appender(node.address)
    for number in range(20):
        await appender.append(writes(number, *(put(b"%02d-%d" % (number, at), bytes(100_000)) for at in range(4))))
    await appender.close()
    yield node
    await node.stop()


async def lead_alone(node: Node, operator: OperatorHand, epoch: int) -> None:
    await push_map(node.address, shard_map([(node.me, node.address)], "a", epoch, kind="Documents"))
    await operator.link("a", node.address)
    await operator.elect(epoch, node.me, (node.me,), kind=ShardKind.DOCUMENTS)


def unread_channel(address: str) -> grpc.aio.Channel:
    """Return a channel on which what a test does not read stays at the node.

    gRPC's client takes in some MiB ahead where it finds the connection fast: the 8 MB of `alone` at times.
    """
    return grpc.aio.insecure_channel(address, options=[*channel.channel_options(), ("grpc.http2.bdp_probe", 0)])


async def test_t12_a_reader_that_takes_no_page_gives_up_its_state_of_the_store(
    alone: Node, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(documents, "STALL_SECONDS", 5.0)
    async with unread_channel(alone.address) as opened:
        call = documents_pb2_grpc.DocumentsStub(opened).Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=60)
        first = await call.read()
        assert first.documents and alone.driver.held_snapshots == 1
        await until(lambda: alone.driver.held_snapshots == 0)
        assert alone.budgets.frames.used == 0

        async def rest() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        ended = await refused(rest())
    assert (ended.refused.reason, "took no page for 5 s" in ended.refused.message) == (Reason.OVERLOADED, True)


async def test_t12_a_large_page_that_is_not_taken_makes_room_for_another(alone: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budgets, "SEND_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(budgets, "LARGE_FRAME_SECONDS", 0.2)
    frames = alone.budgets.frames
    monkeypatch.setattr(frames, "total", 1)
    async with unread_channel(alone.address) as opened, unread_channel(alone.address) as other:
        stalled = documents_pb2_grpc.DocumentsStub(opened).Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=60)
        first = await stalled.read()
        assert first.documents
        await remains(lambda: frames.beside > 0 and alone.driver.held_snapshots == 1, "alone, it has its time")
        read = documents_pb2_grpc.DocumentsStub(other).Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=20)
        found = [document async for page in read for document in page.documents]
        assert len(found) == 80

        async def rest() -> None:
            while await stalled.read() is not grpc.aio.EOF:
                pass

        ended = await refused(rest())
    assert (ended.refused.reason, "bytes of frames" in ended.refused.message) == (Reason.OVERLOADED, True)


async def test_t12_a_page_of_a_scan_reads_so_many_rows(alone: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "PAGE_ROWS_MAX", 7)
    async with unread_channel(alone.address) as opened:
        stub = documents_pb2_grpc.DocumentsStub(opened)
        pinned = await stub.Pin(wire.PinDocumentsRequest(group=GROUP, name="p", ttl_ms=600_000), timeout=20)
        appender = Appender(alone.address)
        keys = [b"%02d-%d" % (number, at) for number in range(20) for at in range(4)]
        for number, (begin, end) in enumerate(((0, 30), (33, 80))):
            await appender.append(writes(20 + number, *(Write(Op.DELETE, key) for key in keys[begin:end])))
        await appender.append(writes(22, *(put(b"02-0%d" % at, b"new") for at in range(20))))
        await appender.close()

        async def pages(**more: Any) -> list[list[bytes]]:
            found = [page async for page in stub.Scan(wire.ScanDocumentsRequest(group=GROUP, **more), timeout=20)]
            assert [page.last for page in found] == [False] * (len(found) - 1) + [True]
            return [[document.key for document in page.documents] for page in found]

        now = await pages()
        assert [] in now and len(now) > 10 and max(map(len, now)) <= 7
        left = keys[30:33] + [b"02-0%d" % at for at in range(20)]
        assert sorted(left) == [key for page in now for key in page]
        then = await pages(pin=wire.PinnedCut(name="p", at=pinned.at))
        assert keys == [key for page in then for key in page] and max(map(len, then)) <= 14
        assert sorted(left)[:3] == [key for page in await pages(documents_max=3) for key in page]


async def test_t12_scans_hold_so_many_states_of_the_store(alone: Node, monkeypatch: pytest.MonkeyPatch):
    scans = alone.budgets.scans
    monkeypatch.setattr(scans, "total", 1)
    monkeypatch.setattr(documents, "SCAN_WAIT_SECONDS", 0.2)
    async with unread_channel(alone.address) as opened:
        stub = documents_pb2_grpc.DocumentsStub(opened)
        call = stub.Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=60)
        assert (await call.read()).documents
        full = await refused(stub.Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=20).read())
        assert (full.refused.reason, "1 scans of documents" in full.refused.message) == (Reason.OVERLOADED, True)
        assert full.refused.retry_after_ms and alone.driver.held_snapshots == 1
        monkeypatch.setattr(documents, "SCAN_WAIT_SECONDS", 20)
        second = asyncio.ensure_future(stub.Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=20).read())
        await until(lambda: scans.waiting == 1)
        call.cancel()
        assert (await second).documents
    await until(lambda: scans.used == 0)


async def test_a_scan_that_lost_its_access_frees_its_state_before_it_is_refused(
    alone: Node, monkeypatch: pytest.MonkeyPatch
):
    """The status is behind a page that may not be read for long."""
    held, wrong, refuse = list[int](), list[Refused](), Routing.refuse

    async def noting(self: Routing, *refusal: Any) -> None:
        held.append(alone.driver.held_snapshots)
        await refuse(self, *refusal)

    monkeypatch.setattr(Routing, "refuse", noting)
    monkeypatch.setattr(documents, "ASK_AGAIN_SECONDS", 0)
    monkeypatch.setattr(alone.deliveries.access, "refusal", lambda *_: next(iter(wrong), None))
    async with unread_channel(alone.address) as opened:
        call = documents_pb2_grpc.DocumentsStub(opened).Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=60)
        assert (await call.read()).documents
        wrong.append(Refused(Reason.PERMISSION_DENIED, "not any more"))

        async def rest() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        assert Reason.PERMISSION_DENIED is await reason(rest())
    assert held == [0]


async def test_a_scan_ends_in_type_when_the_store_is_loaded_again(alone: Node, operator: OperatorHand):
    async with unread_channel(alone.address) as opened:
        stub = documents_pb2_grpc.DocumentsStub(opened)
        call = stub.Scan(wire.ScanDocumentsRequest(group=GROUP, bytes_max=1), timeout=60)
        first = await call.read()
        assert alone.driver.held_snapshots == 1
        alone._faults.sync = OSError(errno.EIO, "Input/output error")
        appender = Appender(alone.address)
        assert (await appender.append(writes(20, put(b"k", b"v")))).reason is Reason.NOT_LEADER
        await appender.close()

        async def rest() -> None:
            while await call.read() is not grpc.aio.EOF:
                pass

        assert Reason.NOT_LEADER is await reason(rest())
        alone._faults.sync = None
        await until(lambda: not alone.driver.reloading)
        assert alone.driver.held_snapshots == 0
        await lead_alone(alone, operator, 2)
        found = [page async for page in stub.Scan(wire.ScanDocumentsRequest(group=GROUP), timeout=60)]
    assert 80 <= sum(len(page.documents) for page in found) <= 81
    assert found[0].applied >= first.applied


async def test_a_scan_has_its_time_again_after_a_page_without_documents(monkeypatch: pytest.MonkeyPatch):
    """A node sends empty pages while it comes through deleted documents."""
    times, seen = iter((10.0, 20.0, 30.0)), list[float]()
    calls: Any = SimpleNamespace(deadline=lambda: next(times))
    scan = ShardScan(calls, 0, View(0), b"", b"", keys_only=False, limit=None, page_bytes=1)
    pages = iter([
        wire.ScanDocumentsPage(), wire.ScanDocumentsPage(),
        wire.ScanDocumentsPage(documents=[wire.Document(key=b"k")], last=True)])

    async def read(deadline: float) -> wire.ScanDocumentsPage:
        seen.append(deadline)
        return next(pages)

    monkeypatch.setattr(scan, "_read", read)
    assert [b"k"] == [document.key for document in await scan.next_page() or ()]
    assert seen == [10.0, 20.0, 30.0]
