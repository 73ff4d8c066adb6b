"""DiskMarks: the marks that etcd keeps of the disks of nodes, and which disk is given up or held back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_node import FakeNode
from operator_views import member, record, ring
from test_losses import RECORD, conditions, of_cluster
from test_ring_keeper import KEYS, Store
from test_service import service, three
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.base.marks import Copies, DiskMark
from tidemark_core.optimistic.ring import Quorum
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Holdout, Phase
from tidemark_operator import disk_marks
from tidemark_operator.disk_marks import DiskMarks, copies_of
from tidemark_operator.etcd import OPERATIONS_MAX, Conflict, EtcdStore, StoreUnavailable, Unavailable, Unknown
from tidemark_operator.metadata import NodeRecord, decode_mark, encode_mark
from tidemark_operator.mirror import Mirror
from tidemark_operator.service import OperatorService

from tests.waiting import until

__all__ = ["service", "three"]  # fixtures

S1 = ShardId(1)


class FakeLink:
    """The link to a node whose disk has so many durable writes; gives it up when asked to, as a node does."""

    def __init__(self, node: str, writes: int) -> None:
        self.node, self.up, self.member, self.writes = node, True, member(node), writes
        self.asked: list[tuple[DiskMark | None, bool]] = []
        self.error: BaseException | None = None
        self.before_answer: Callable[[], Any] = lambda: None
        self.life: str | None = None    # that it says instead of its own

    async def check_disk(self, known: DiskMark | None, *, give_up: bool) -> tuple[DiskMark, bool]:
        self.asked.append((known, give_up))
        if self.error is not None:
            raise self.error
        assert self.member is not None
        disk = DiskMark(self.life or self.member.incarnation, self.writes)
        self.before_answer()
        return disk, give_up

    @property
    def gave_up(self) -> bool:
        return any(give_up for _, give_up in self.asked)


class Room:
    """Three nodes that hold one shard, and an operator that is active."""

    def __init__(self, count: int = 3) -> None:
        self.mirror, self.store, self.active, self.shown = Mirror(KEYS), Store(), True, 0
        self.links = [FakeLink(f"n{number}", 100) for number in range(1, count + 1)]
        for link in self.links:
            self.learn(KEYS.node(link.node), NodeRecord(link.node, "").encode())
        self.copies: Iterable[Copies] = list(copies_of({S1: record("n1", "n2", "n3")}, {}))
        self.succeed()

    def succeed(self) -> None:
        """Let another operator go on."""
        self.marks = DiskMarks(
            self.store, KEYS, self.mirror, self.links, lambda: self.active,   # type: ignore[arg-type]
            lambda: self.copies, self.show)

    def show(self) -> None:
        self.shown += 1

    def learn(self, key: str, data: bytes | None) -> None:
        self.store.revision += 1
        self.mirror.learn(key, data, self.store.revision)

    def know(self, node: str, writes: int, life: str = "1") -> None:
        self.learn(KEYS.mark(node), encode_mark(DiskMark(member(node, life).incarnation, writes)))

    async def look(self) -> list[str]:
        """Ask all nodes; return those that were asked to give up their disks."""
        for link in self.links:
            link.asked.clear()
            self.marks.wake(link.node)
        await self.marks.look()
        return [link.node for link in self.links if link.gave_up]

    @property
    def kept(self) -> dict[str, int]:
        return {node: item.value.writes for node, item in self.mirror.marks.items()}


@pytest.fixture
def room() -> Room:
    return Room()


async def test_d52_etcd_keeps_the_greatest_mark_of_each_disk(room: Room) -> None:
    assert await room.look() == [] and room.kept == {"n1": 100, "n2": 100, "n3": 100}
    room.links[0].writes = 130
    room.store.transactions.clear()
    assert await room.look() == [] and room.kept == {"n1": 130, "n2": 100, "n3": 100}
    ((writes, _),) = room.store.transactions
    assert [write.key for write in writes] == [KEYS.mark("n1")], "what did not rise is not written"
    assert room.links[0].asked == [(DiskMark(member("n1").incarnation, 100), False)]


async def test_d52_an_older_disk_is_given_up_where_the_others_hold_everything(room: Room) -> None:
    room.know("n2", 101)
    assert await room.look() == ["n2"] and room.marks.held == {}
    assert room.kept == {"n1": 100, "n2": 101, "n3": 100}, "what it lacks stays known"
    room.links[1].member, room.links[1].writes = member("n2", "2"), 3
    assert await room.look() == [] and room.kept["n2"] == 3, "it is a new life"
    assert decode_mark(room.store.transactions[-1][0][0].value or b"").incarnation == "n2-life-2"


async def test_d52_a_mark_of_another_life_says_nothing(room: Room) -> None:
    room.know("n2", 1 << 60, life="0")
    assert await room.look() == [] and room.kept["n2"] == 100
    room.links[1].life = "n2-life-0"     # an answer of a process that is gone
    room.links[1].writes = 7
    assert await room.look() == [] and room.kept["n2"] == 100


async def test_d52_a_cluster_of_older_copies_is_held_back(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    for link in room.links:
        room.know(link.node, 500)
    assert await room.look() == [] and room.shown == 1
    assert set(room.marks.held) == {"n1", "n2", "n3"}
    assert "too few members of shard 1 are up on disks that lack nothing" in room.marks.held["n1"]
    assert await room.look() == [] and room.shown == 1, "it is said once"
    assert sum(entry.levelno == logging.ERROR for entry in caplog.records) == 3
    room.links[0].writes = 500
    assert await room.look() == [], "one is no majority"
    room.links[1].writes = 500
    assert await room.look() == ["n3"] and room.marks.held == {}


async def test_d52_a_person_accepts_older_disks_by_deleting_their_marks(room: Room) -> None:
    for link in room.links:
        room.know(link.node, 500)
    assert await room.look() == [] and len(room.marks.held) == 3
    for link in room.links:
        room.learn(KEYS.mark(link.node), None)
    assert await room.look() == [] and room.marks.held == {}
    assert room.kept == {"n1": 100, "n2": 100, "n3": 100}


async def test_d52_one_disk_goes_at_a_time() -> None:
    room = Room(5)
    room.copies = list(copies_of({S1: record("n1", "n2", "n3", "n4", "n5")}, {}))
    room.know("n2", 500)
    room.know("n4", 500)
    assert await room.look() == ["n2"]
    room.links[1].up = False
    assert await room.look() == ["n4"]
    room.know("n5", 500)
    assert await room.look() == [] and set(room.marks.held) == {"n4", "n5"}


@pytest.mark.parametrize("change", ["down", "silent", "other", "linked again"])
async def test_d52_a_member_counts_only_while_it_is_up_on_a_disk_that_was_compared(room: Room, change: str) -> None:
    room.know("n2", 101)
    third = room.links[2]
    match change:
        case "down":
            third.up = False
        case "silent":
            third.error = ConnectionError("not linked")
        case "other":
            third.before_answer = lambda: setattr(third, "member", member("n3", "2"))
        case "linked again":
            third.before_answer = lambda: room.marks.wake("n3")
    assert await room.look() == [] and set(room.marks.held) == {"n2"}
    third.up, third.error, third.member, third.before_answer = True, None, member("n3"), lambda: None
    assert await room.look() == ["n2"]


@pytest.mark.parametrize("error", [
    ConnectionError("not linked"),
    grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata(), "an older release"),
    grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "the disk failed")])
async def test_d52_a_node_that_says_nothing_keeps_its_mark_and_its_disk(room: Room, error: BaseException) -> None:
    room.know("n2", 101)
    room.links[1].error = error
    assert await room.look() == [] and room.kept == {"n1": 100, "n2": 101, "n3": 100} and room.marks.held == {}


async def test_d52_an_unreadable_mark_is_told_left_and_harms_no_disk(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    room.learn(KEYS.mark("n2"), b"rubbish")
    real = room.store.transact

    async def transact(writes: Any, unchanged: Any) -> Any:
        wrong = any(write.expected != room.mirror.seen(write.key) for write in writes)
        return Conflict() if wrong else await real(writes, unchanged)

    room.store.transact = transact   # type: ignore[method-assign]
    assert await room.look() == [] and room.kept == {"n1": 100, "n3": 100}, "the others are kept"
    assert any("marks/n2: mark cannot be read" in entry.getMessage() for entry in caplog.records)
    assert any("marks/n2 is left as it is" in entry.getMessage() for entry in caplog.records)


@pytest.mark.parametrize("data", [
    b"{}", b'{"format":1,"incarnation":"","writes":1}', b'{"format":1,"incarnation":"a","writes":-1}',
    b'{"format":1,"incarnation":"a","writes":"9"}', b'{"format":2,"incarnation":"a","writes":1}'])
def test_a_mark_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_mark(data)
    assert decode_mark(encode_mark(DiskMark("a", 9))) == DiskMark("a", 9)


async def test_d52_marks_are_written_in_transactions_that_etcd_takes_and_go_with_their_nodes() -> None:
    room = Room(OPERATIONS_MAX + 3)
    room.learn(KEYS.mark("gone"), encode_mark(DiskMark("x", 1)))
    await room.look()
    assert "gone" not in room.kept and len(room.kept) == OPERATIONS_MAX + 3
    assert all(len(writes) <= OPERATIONS_MAX for writes, _ in room.store.transactions)


@pytest.mark.parametrize("outcome", [Unavailable("away"), Unknown("no answer")])
async def test_d52_without_etcd_nothing_is_given_up_and_nothing_lost(room: Room, outcome: Any) -> None:
    room.know("n2", 101)
    room.store.next = [outcome]
    with pytest.raises(StoreUnavailable):
        await room.look()
    assert not room.links[1].gave_up
    assert await room.look() == ["n2"] and room.kept == {"n1": 100, "n2": 101, "n3": 100}


@pytest.fixture
async def runs(room: Room, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    monkeypatch.setattr(disk_marks, "EVERY_S", 0.02)
    task = asyncio.ensure_future(room.marks.run())
    yield room
    task.cancel()
    await asyncio.wait([task])


async def test_d52_the_task_outlives_an_etcd_that_is_away(runs: Room) -> None:
    runs.store.next = [Unavailable("away"), Unavailable("away")]
    await until(lambda: runs.kept == {"n1": 100, "n2": 100, "n3": 100})
    asked = len(runs.links[0].asked)
    await until(lambda: len(runs.links[0].asked) > asked + 1)   # again and again


async def test_d52_an_operator_that_does_not_lead_asks_nobody(runs: Room) -> None:
    await until(lambda: bool(runs.links[0].asked))
    runs.active = False
    runs.know("n2", 500)
    rounds = 0

    def count() -> bool:
        nonlocal rounds
        rounds += 1
        runs.marks.wake("n2")
        return rounds > 5

    before = [len(link.asked) for link in runs.links]
    await until(count)
    assert [len(link.asked) for link in runs.links] == before
    runs.active = True
    await until(lambda: runs.links[1].gave_up)


async def test_d52_an_operator_that_stops_to_lead_meanwhile_writes_nothing_and_takes_no_disk(room: Room) -> None:
    room.know("n2", 101)
    room.links[0].before_answer = lambda: setattr(room, "active", False)
    assert await room.look() == [] and room.store.transactions == []


def test_d52_what_members_hold_follows_from_the_records() -> None:
    three_owners, moving = ring("n1 n2 n3"), ring("n1 n2 n3")[0]
    steady = record("n1", "n2", "n3")
    moves = replace(steady, change=Change(Operation.SWAP, Phase.PREPARE, member("n3"), member("n4")))
    found = {thing.name: thing for thing in copies_of(
        {S1: steady, ShardId(2): moves, ShardId(3): replace(steady, holdouts=(Holdout(member("n1"), 3),)),
         ShardId(4): record("n1"), ShardId(5): replace(steady, source=member("n1"))},
        {6: three_owners[0], 7: moving._replace(pending=ring("n1 n2 n4")[0].own)})}
    assert found["shard 1"] == Copies("shard 1", steady.ensemble, 2)
    assert not found["shard 2"].at_rest and member("n4") in found["shard 2"].members
    assert not found["shard 3"].at_rest and not found["shard 5"].at_rest and found["shard 4"].needed == 1
    assert found["range 6"] == Copies("range 6", three_owners[0].own.members, 2)
    assert not found["range 7"].at_rest and member("n4") in found["range 7"].members


@pytest.mark.parametrize(("quorum", "needed"), [
    (Quorum(3, 2, 2), 2), (Quorum(3, 1, 3), 1), (Quorum(3, 3, 1), 2), (Quorum(5, 3, 3), 3), (Quorum(2, 1, 2), 1)])
def test_d52_owners_that_are_left_have_every_acknowledged_write(quorum: Quorum, needed: int) -> None:
    names = " ".join(f"n{number}" for number in range(1, quorum.n + 1))
    (thing,) = copies_of({}, {1: ring(names, quorum=quorum)[0]})
    assert thing.needed == needed


def test_d52_a_disk_that_is_held_back_is_shown() -> None:
    status = of_cluster(RECORD, older_disks={"n1": "too few members of shard 1 are up"})
    told = conditions(status, "TidemarkCluster")
    message = "the disk of n1 is an older copy of itself, and too few members of shard 1 are up."
    assert told["DataLossSuspected"] == ("True", "DisksOlder", message)
    assert told["Ready"] == ("False", "DataLossSuspected", message)


# --- in an operator -----------------------------------------------------------------------------------------


@pytest.fixture
async def stored(store: EtcdStore) -> Callable[[str], Any]:
    async def read(node: str) -> DiskMark | None:
        item = await store.get(f"/t/marks/{node}")
        return decode_mark(item.value) if item is not None else None

    return read


@pytest.mark.servers
async def test_d52_an_operator_asks_nodes_when_they_are_linked_and_after_a_restart_from_etcd(
    three: list[FakeNode], service: OperatorService, stored: Callable[[str], Any], etcd: Any
) -> None:
    for one in three:
        one.writes = 100
        await one.break_links()

    async def all_stored() -> bool:
        return [await stored(f"n{i}") for i in (1, 2, 3)] == [DiskMark(f"n{i}-life", 100) for i in (1, 2, 3)]

    await until(all_stored)
    await service.stop()
    three[1].writes = 60
    for one in three:
        one.disk_checks.clear()
    other = OperatorService([etcd.url], "/t", "dev")
    await other.start()
    await until(lambda: any(check.give_up and check.writes == 100 for check in three[1].disk_checks))
    assert not any(check.give_up for check in three[0].disk_checks + three[2].disk_checks)
    assert await stored("n2") == DiskMark("n2-life", 100)
    await other.stop()
