"""Change streams of the client on the fake cluster: positions, breaks, acknowledgements, ends, barriers, consumers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tidemark
from fake_cluster import FakeCluster
from tidemark import Change, ChangeBatch, Discarded, Rebuilding, Snapshot, SnapshotBegin, SnapshotEnd, consumer
from tidemark.errors import ChangesFailed, Closed, InvalidArgument, UnknownGroup, ViewFailed, ViewRefused
from tidemark_core.upr.decision import Behind, NotMyShard, Purged
from tidemark_core.upr.messages import EndReason, Op, Row, StreamEnd

from tests.waiting import until

GROUP = "settings"
WAIT_S = 20.0


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    started = await FakeCluster().start(shards=1)
    started.add_documents(GROUP, 2)
    yield started
    await started.stop()


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[tidemark.Client]:
    async with await tidemark.connect(cluster.addresses()) as client:
        yield client


@pytest.fixture
async def documents(client: tidemark.Client) -> Any:
    return client.documents(GROUP)


class View:
    def __init__(self) -> None:
        self.documents: dict[bytes, bytes] = {}
        self.snapshots: list[Snapshot] = []

    def apply(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        if snapshot.fresh:
            self.documents = {
                key: value for key, value in self.documents.items() if self.shards.get(key) != snapshot.shard}
        for change in snapshot:
            self.shards[change.key] = change.shard
            if change.deleted:
                self.documents.pop(change.key, None)
            else:
                self.documents[change.key] = change.value

    shards: dict[bytes, int] = {}   # noqa: RUF012


async def catch_up(client: tidemark.Client, changes: tidemark.Changes, view: View) -> None:
    """Apply snapshots until a barrier that began now is complete."""
    ends = (await client.barrier(GROUP)).seqnos

    async def consume() -> None:
        async for snapshot in changes.snapshots():
            view.apply(snapshot)
            await changes.ack()

    consuming = asyncio.create_task(consume())
    over = await changes.barrier(WAIT_S)
    consuming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await consuming
    assert over.complete, over
    assert all(changes.positions[shard] >= end for shard, end in ends.items())


async def test_it_shows_the_documents_and_then_the_changes(client: tidemark.Client, documents: Any) -> None:
    for number in range(40):
        await documents.put(b"k%d" % number, b"v%d" % number)
    await documents.delete(b"k3")
    view = View()
    async with client.changes(GROUP) as changes:
        await catch_up(client, changes, view)
        assert view.documents == {b"k%d" % at: b"v%d" % at for at in range(40) if at != 3}
        await documents.put(b"k3", b"again")
        await documents.put(b"k4", b"new")
        await catch_up(client, changes, view)
        assert (view.documents[b"k3"], view.documents[b"k4"]) == (b"again", b"new")
        token = changes.position

    await documents.delete(b"k5")
    later = View()
    async with client.changes(GROUP, from_=token) as changes, asyncio.timeout(WAIT_S):
        async for snapshot in changes.snapshots():
            later.apply(snapshot)
            break
    assert [(change.key, change.deleted) for each in later.snapshots for change in each] == [(b"k5", True)]


async def test_events_come_in_order_and_one_by_one(client: tidemark.Client, documents: Any) -> None:
    for number in range(30):
        await documents.put(b"k%d" % number, b"v" * 200)
    seen: list[Any] = []
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        async for event in changes:
            seen.append(event)
            if sum(isinstance(each, SnapshotEnd) for each in seen) == 2:
                break
    for shard in (0, 1):
        kinds = [type(each) for each in seen if each.shard == shard]
        assert (kinds[0], kinds[-1]) == (SnapshotBegin, SnapshotEnd)
        rows = [each for each in seen if isinstance(each, Change) and each.shard == shard]
        assert len(kinds) == len(rows) + 2 and [row.seqno for row in rows] == sorted(row.seqno for row in rows)
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        found = 0
        async for event in changes.batches():
            if isinstance(event, ChangeBatch):
                found += event.record_batch.num_rows
                assert event.record_batch.column("key")[0].as_py() == event.rows[0].key
            if found == 30:
                break


async def filled(documents: Any) -> list[tuple[int, bytes]]:
    """Put documents so that batches have many rows; return shard and key of each."""
    done = [await documents.put(b"k%d" % number, b"v") for number in range(30)]
    return sorted((each.shard, each.key) for each in done)


def snapshots_of(events: list[Any]) -> int:
    return sum(isinstance(each, SnapshotEnd) for each in events)


async def test_an_iteration_that_is_left_inside_a_batch_goes_on_there(client: tidemark.Client, documents: Any) -> None:
    wanted = await filled(documents)
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        seen: list[Any] = []
        while snapshots_of(seen) < 2:
            async for event in changes:
                seen.append(event)
                if isinstance(event, Change):
                    await changes.ack()
                    ended = {each.shard for each in seen if isinstance(each, SnapshotEnd)}
                    moved = {shard for shard, seqno in changes.positions.items() if seqno > 0}
                    assert moved <= ended, "no position is behind changes that were not handed out"
                    assert changes.next_position == changes.position
                    break
                if snapshots_of(seen) == 2:
                    break
    assert sorted((each.shard, each.key) for each in seen if isinstance(each, Change)) == wanted


async def test_batches_begin_with_what_another_iteration_left(client: tidemark.Client, documents: Any) -> None:
    wanted = await filled(documents)
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        seen: list[Any] = []
        async for event in changes:
            seen.append(event)
            if isinstance(event, Change):
                break
        with pytest.raises(InvalidArgument, match="left inside a snapshot of shard"):
            await anext(changes.snapshots())
        async for batch in changes.batches():
            seen += batch if isinstance(batch, ChangeBatch) else [batch]
            if snapshots_of(seen) == 2:
                break
    assert sorted((each.shard, each.key) for each in seen if isinstance(each, Change)) == wanted


async def test_batches_have_the_rows_that_whole_snapshots_wait_for(client: tidemark.Client, documents: Any) -> None:
    wanted = await filled(documents)
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        found: list[tuple[int, bytes]] = []
        found += [(each.shard, each.key) for each in await anext(changes.snapshots())]
        ends = 1
        async for batch in changes.batches():
            if isinstance(batch, ChangeBatch):
                found += [(each.shard, each.key) for each in batch]
            ends += isinstance(batch, SnapshotEnd)
            if ends == 2:
                break
    assert sorted(found) == wanted


@pytest.mark.parametrize("seed", range(5))
async def test_u62_connections_that_break_anywhere_lose_and_repeat_nothing(
    cluster: FakeCluster, client: tidemark.Client, documents: Any, seed: int,
) -> None:
    dice = random.Random(seed)
    expected: dict[bytes, bytes] = {}
    view = View()
    for node in cluster.nodes.values():
        node.changes.breaks.extend(dice.randrange(1, 12) for _ in range(6))
        node.changes.garbage.extend(dice.choice((-1, 2, 5)) for _ in range(6))
    async with client.changes(GROUP, buffer_bytes=128 << 10) as changes:
        for _ in range(4):
            for _ in range(25):
                key = b"k%d" % dice.randrange(40)
                if dice.random() < 0.25 and key in expected:
                    await documents.delete(key)
                    del expected[key]
                else:
                    expected[key] = b"v" * dice.randrange(400)
                    await documents.put(key, expected[key])
            if dice.random() < 0.5:
                shard = cluster.groups[GROUP][dice.randrange(2)]
                cluster.elect(shard, dice.choice(list(cluster.nodes)))
            await catch_up(client, changes, view)
            assert view.documents == expected, "U59: the view is not the store"
    assert sum(node.changes.connections for node in cluster.nodes.values()) > 6
    for shard in (0, 1):
        ends = [(each.start, each.seqno) for each in view.snapshots if each.shard == shard]
        assert all(before[1] <= after[0] for before, after in pairwise(ends)), "U55: nothing comes twice"


async def test_u61_each_byte_is_acknowledged_once_and_a_window_bounds_what_waits(
    cluster: FakeCluster, client: tidemark.Client, documents: Any,
) -> None:
    for number in range(120):
        await documents.put(b"k%d" % number, b"v" * 3_000)
    async with client.changes(GROUP, buffer_bytes=128 << 10) as changes:
        stream = changes.batches()
        async with asyncio.timeout(WAIT_S):
            await anext(stream)

            def owed() -> int:
                return max(node.changes.most_owed for node in cluster.nodes.values())

            await until(lambda: owed() >= 64 << 10, "a window is full, for the application does nothing")
            assert owed() <= (64 << 10) + 3_200
            ended = 0
            while ended < 2:
                ended += isinstance(await anext(stream), SnapshotEnd)
            taking = asyncio.ensure_future(anext(stream))

            def books() -> tuple[dict[Any, int], dict[Any, int]]:
                nodes = cluster.nodes.values()
                return (
                    {(node.name, *key): size for node in nodes for key, size in node.changes.sent.items()},
                    {(node.name, *key): size for node in nodes for key, size in node.changes.acked.items()},
                )

            await until(lambda: books()[0] == books()[1], "each byte is acknowledged, once")
            taking.cancel()


@pytest.mark.parametrize("end", [
    StreamEnd(EndReason.TOO_SLOW), StreamEnd(EndReason.OVERLOADED), StreamEnd(EndReason.STATE_CHANGED),
    StreamEnd(EndReason.SHUTTING_DOWN), StreamEnd(EndReason.READ_FAILED),
    StreamEnd(EndReason.REFUSED, Behind(1)), StreamEnd(EndReason.REFUSED, NotMyShard(1)),
])
async def test_an_end_that_another_try_helps_against_is_followed_by_one(
    cluster: FakeCluster, client: tidemark.Client, documents: Any, end: StreamEnd,
) -> None:
    await documents.put(b"a", b"1")
    for node in cluster.nodes.values():
        node.changes.ends.extend((end, end))
    view = View()
    async with client.changes(GROUP) as changes:
        await catch_up(client, changes, view)
    assert view.documents == {b"a": b"1"}


@pytest.mark.parametrize(("end", "reason"), [
    (StreamEnd(EndReason.LOST_PRIVILEGES, None, "no reader"), "PERMISSION_DENIED"),
    (StreamEnd(EndReason.CANNOT_SEND, None, "document b'k' at seqno 4"), "CANNOT_SEND"),
    (StreamEnd(EndReason.PROTOCOL_ERROR, None, "more than was sent"), "PROTOCOL_ERROR"),
    (StreamEnd(EndReason.REFUSED, Purged(9)), "PURGED"),
])
async def test_an_end_for_good_is_raised_in_type(
    cluster: FakeCluster, client: tidemark.Client, end: StreamEnd, reason: str,
) -> None:
    for node in cluster.nodes.values():
        node.changes.ends.append(end)
    async with client.changes(GROUP) as changes, asyncio.timeout(WAIT_S):
        with pytest.raises(ChangesFailed) as failed:
            async for _ in changes.snapshots():
                pass
        assert failed.value.reason == reason
        assert not end.message or end.message in failed.value.message
        with pytest.raises(ChangesFailed):
            await anext(changes.snapshots())


async def test_u58_a_rebuild_is_announced_and_replaces_the_view(
    cluster: FakeCluster, client: tidemark.Client, documents: Any,
) -> None:
    await documents.put(b"a", b"1")
    view = View()
    async with client.changes(GROUP) as changes:
        await catch_up(client, changes, view)
        token = changes.position
    for node in cluster.nodes.values():
        node.changes.purged = 1_000
    async with client.changes(GROUP, from_=token) as changes, asyncio.timeout(WAIT_S):
        with pytest.raises(ChangesFailed, match="PURGED"):
            await anext(changes.snapshots())
    events: list[Any] = []
    async with client.changes(GROUP, from_=token, on_lost="rebuild") as changes, asyncio.timeout(WAIT_S):
        async for event in changes:
            events.append(event)
            if isinstance(event, SnapshotEnd) and event.seqno > 0:
                break
    shard = events[-1].shard
    kinds = [type(each) for each in events if each.shard == shard and not isinstance(each, Change)]
    assert kinds == [Rebuilding, Discarded, SnapshotBegin, SnapshotEnd]
    assert events[-1].fresh
    told = next(each for each in events if isinstance(each, Rebuilding))
    assert (told.reason, "up to 1000" in told.message) == ("PURGED", True)


async def test_u60_a_named_consumer_commits_behind_the_application(
    cluster: FakeCluster, client: tidemark.Client, documents: Any,
) -> None:
    await documents.put(b"a", b"1")
    await documents.put(b"b", b"2")
    shards = cluster.groups[GROUP]
    async with client.changes(GROUP, consumer="view", commit_s=None) as changes, asyncio.timeout(WAIT_S):
        given = 0
        async for _ in changes.snapshots():
            given += 1
            assert all(not offset for shard in shards.values() for _, offset in shard.commits), "nothing is applied yet"
            if given == 2:
                break
        # The first one counts as applied since the second one was asked for.
        await changes.ack()
        positions = changes.positions
    for index, shard in shards.items():
        assert shard.positions["view"][0] == positions[index] + 1
    await documents.put(b"c", b"3")
    again = View()
    async with client.changes(GROUP, consumer="view") as changes:
        await catch_up(client, changes, again)
    assert set(again.documents) == {b"c"}
    async with client.changes(GROUP, consumer="view", prefix="c") as changes:   # another filter: another consumer
        filtered = View()
        await catch_up(client, changes, filtered)
    assert set(filtered.documents) == {b"c"} and all(each.fresh for each in filtered.snapshots)


async def test_u60_a_consumer_whose_filter_passes_nothing_moves_too(
    cluster: FakeCluster, client: tidemark.Client, documents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stride = 100
    monkeypatch.setattr(consumer, "STRIDE", stride)
    await documents.put(b"mine", b"v")
    commits = [shard.commits for shard in cluster.groups[GROUP].values()]
    async with client.changes(GROUP, consumer="index", prefix="mine", commit_s=0.02) as changes:
        await catch_up(client, changes, View())
        await until(lambda: all(commits), "rows and first positions are committed")
        before = [len(each) for each in commits]
        await documents.put_many([(b"other-%02d" % number, b"v") for number in range(2 * (stride - 10))])
        await catch_up(client, changes, View())     # it acknowledges
        await changes.ack()
        assert [len(each) for each in commits] == before, "a commit moves other consumers: not for a few seqnos"
        await documents.put_many([(b"more-%03d" % number, b"v") for number in range(2 * stride)])
        await catch_up(client, changes, View())
        await until(lambda: all(len(each) > count for each, count in zip(commits, before, strict=True)))
        await documents.put_many([(b"last-%02d" % number, b"v") for number in range(20)])
        await catch_up(client, changes, View())
        ends, name = changes.positions, changes.consumer.name
    assert [each[-1] for each in commits] == [(name, ends[index] + 1) for index in (0, 1)], "at the end all of it"
    async with client.changes(GROUP, consumer="index", prefix="mine") as changes:
        await changes.open()
        assert changes.positions == ends


async def test_rows_of_a_part_of_a_snapshot_are_acknowledged(
    cluster: FakeCluster, client: tidemark.Client, documents: Any,
) -> None:
    keys = [key for number in range(40) if documents.shard_of(key := b"%02d" % number) == 0][:6]
    written = [(await documents.put(key, b"v")).seqno for key in keys]
    async with client.changes(GROUP, consumer="some", commit_s=None) as changes:
        snapshots = changes.snapshots()
        while (snapshot := await anext(snapshots)).shard != 0:
            pass
        assert [change.seqno for change in snapshot] == written
        assert await changes.ack_rows({0: written[2]}) != changes.position
        assert cluster.groups[GROUP][0].commits[-1] == ("some", written[2] + 1)
        assert changes.positions[0] == 0
    async with client.changes(GROUP, consumer="some") as changes:
        snapshots = changes.snapshots()
        while (snapshot := await anext(snapshots)).shard != 0:
            pass
        assert [change.seqno for change in snapshot] == written[3:]


async def test_u61_a_member_that_hangs_is_left_for_another_one(
    cluster: FakeCluster, client: tidemark.Client, documents: Any,
) -> None:
    for shard in cluster.groups[GROUP].values():
        cluster.elect(shard, "n0")
    cluster.nodes["n0"].changes.ends.extend([StreamEnd(EndReason.TOO_SLOW)] * 100)   # the others serve
    await documents.put(b"a", b"1")
    view = View()
    async with client.changes(GROUP) as changes:
        changes.noop_ms = 150
        await catch_up(client, changes, view)
        hung = next(node for name, node in cluster.nodes.items() if name != "n0" and node.changes.opens)
        hung.paused.clear()   # its connection stays open
        await documents.put(b"a", b"2")
        await documents.put(b"b", b"3")
        await catch_up(client, changes, view)
    assert view.documents == {b"a": b"2", b"b": b"3"}


async def test_filters_choose_keys_and_values(client: tidemark.Client, documents: Any) -> None:
    for key in (b"a1", b"a2", b"b1", b"c1"):
        await documents.put(key, b"value")
    for options, wanted in (
        ({"prefix": "a"}, {b"a1", b"a2"}), ({"prefix": [b"b", "c"]}, {b"b1", b"c1"}),
        ({"key_range": (b"a2", b"c")}, {b"a2", b"b1"}), ({"values": False}, {b"a1", b"a2", b"b1", b"c1"}),
    ):
        view = View()
        async with client.changes(GROUP, **options) as changes:
            await catch_up(client, changes, view)
        assert set(view.documents) == wanted
        assert set(view.documents.values()) == ({b""} if options == {"values": False} else {b"value"})


async def test_a_scan_is_followed_by_the_changes_behind_it(client: tidemark.Client, documents: Any) -> None:
    for number in range(20):
        await documents.put(b"k%d" % number, b"1")
    vector = await client.barrier(GROUP)
    await documents.put(b"later", b"2")
    view = View()
    async with client.changes(GROUP, from_=vector.position) as changes:
        await catch_up(client, changes, view)
    assert view.documents == {b"later": b"2"}
    assert sorted(vector.seqnos) == [0, 1]


@pytest.mark.parametrize(("options", "field"), [
    ({"from_": "yesterday"}, "from_"), ({"from_": 7}, "from_"), ({"from_": "tmc9.abc"}, "from_"),
    ({"from_": {0: "x"}}, "from_"), ({"level": "tentative"}, "level"), ({"history": "all"}, "history"),
    ({"on_lost": "cry"}, "on_lost"), ({"prefix": 3}, "prefix"), ({"prefix": []}, "prefix"),
    ({"key_range": (b"b", b"a")}, "key_range"), ({"key_range": b"a"}, "key_range"),
    ({"consumer": "a b"}, "subscription"),
    ({"lease_s": 0}, "lease_s"), ({"commit_s": 0}, "commit_s"), ({"buffer_bytes": 1}, "buffer_bytes"),
])
async def test_a_wrong_option_is_refused_by_name(client: tidemark.Client, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as wrong:
        client.changes(GROUP, **options)
    assert wrong.value.field == field


async def test_u73_a_verification_knows_nothing_of_one_that_broke(
    client: tidemark.Client, documents: Any, tmp_path: Path
) -> None:
    """The view has a row that the store lost: the broken comparison had seen its key."""
    await documents.put(b"k", b"v")
    async with client.view(GROUP, tmp_path / "view.db") as view, asyncio.timeout(WAIT_S):
        await view.catch_up()
        store = view._opened()
        await view._in_thread(lambda: store.compare(store.scan()))   # so far a broken verification came
        await documents.delete(b"k")
        await view.catch_up()
        await view._in_thread(lambda: store.stage(0, [Row(1, b"k", Op.PUT, b"v")]))
        await view._in_thread(lambda: store.apply(0, 99, store.position, fresh=False))
        assert (await view.verify()).mismatches == (b"k",)


async def test_a_view_waits_for_another_program_s_transaction(
    client: tidemark.Client, documents: Any, tmp_path: Path
) -> None:
    path = tmp_path / "view.db"
    async with client.view(GROUP, path) as view, asyncio.timeout(WAIT_S):
        await view.catch_up()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await documents.put(b"k", b"v")
            waiting = asyncio.create_task(view.catch_up())
            await until(lambda: view.received == 1, "the row is there, and nothing can be applied")
            assert await view.get(b"k") is None
            other.execute("COMMIT")
        await waiting
        assert await view.get(b"k") is not None


async def test_one_view_is_fed_and_another_one_reads_and_verifies_beside_it(
    client: tidemark.Client, documents: Any, tmp_path: Path
) -> None:
    path = tmp_path / "view.db"
    async with client.view(GROUP, path), asyncio.timeout(WAIT_S):
        with pytest.raises(ViewRefused, match="another process feeds this view"):
            await client.view(GROUP, path).open()
        async with client.view(GROUP, path, beside=True) as second:
            for number in range(5):
                await documents.put(b"%d" % number, b"v")
                assert (await second.verify()).good
            assert len(await second.scan()) == 5
    async with client.view(GROUP, path, beside=True) as alone, asyncio.timeout(WAIT_S):
        await documents.put(b"later", b"v")
        await alone.catch_up()
        assert await alone.get(b"later") is not None, "where no other process feeds it, it does"


async def test_a_view_that_the_file_refuses_ends_with_the_cause(
    client: tidemark.Client, documents: Any, tmp_path: Path
) -> None:
    async with client.view(GROUP, tmp_path / "view.db") as view, asyncio.timeout(WAIT_S):
        await view.catch_up()
        store = view._opened()
        await view._in_thread(lambda: store._db.execute("CREATE UNIQUE INDEX u ON documents (value)"))
        await documents.put_many([(b"a", b"v"), (b"b", b"v"), (b"c", b"v")])
        with pytest.raises(ViewFailed, match="UNIQUE constraint failed"):
            await view.catch_up()


async def test_a_group_that_is_not_there_and_a_closed_stream(client: tidemark.Client) -> None:
    async with client.changes("nowhere") as changes:
        with pytest.raises(UnknownGroup):
            await anext(changes.snapshots())
    changes = client.changes(GROUP, from_=datetime.now(UTC))
    await changes.close()
    with pytest.raises(Closed):
        await anext(changes.batches())
    with pytest.raises(InvalidArgument, match="no snapshot was given"):
        changes.nack()


async def test_the_synchronous_iteration_that_is_left_inside_a_batch_goes_on_there(cluster: FakeCluster) -> None:
    def work() -> None:
        with tidemark.sync.connect(cluster.addresses()) as client, client.documents(GROUP) as documents:
            wanted = sorted(documents.put(b"k%d" % number, b"v").key for number in range(30))
            with client.changes(GROUP) as changes:
                seen: list[Any] = []
                while snapshots_of(seen) < 2:
                    for event in changes:
                        seen.append(event)
                        if isinstance(event, Change) or snapshots_of(seen) == 2:
                            break
            assert sorted(each.key for each in seen if isinstance(each, Change)) == wanted

    async with asyncio.timeout(WAIT_S):
        await asyncio.to_thread(work)


async def test_synchronous_changes_are_closed_with_their_client(cluster: FakeCluster) -> None:
    def work() -> None:
        client = tidemark.sync.connect(cluster.addresses())
        with client.changes(GROUP) as changes:
            client.close()
            with pytest.raises(Closed):
                next(iter(changes))

    await asyncio.to_thread(work)


async def test_the_synchronous_twin_does_the_same(cluster: FakeCluster) -> None:
    def work() -> None:
        with tidemark.sync.connect(cluster.addresses()) as client, client.documents(GROUP) as documents:
            documents.put(b"a", b"1")
            end = client.barrier(GROUP).seqnos
            with client.changes(GROUP, consumer="twin") as changes:
                seen: dict[bytes, bytes] = {}
                given = False
                for snapshot in changes.snapshots():
                    seen.update((change.key, change.value) for change in snapshot)
                    if not given:
                        given = True
                        changes.nack(0.01)
                        continue
                    changes.ack()
                    if seen and all(changes.positions[shard] >= seqno for shard, seqno in end.items()):
                        break
                position = changes.position
            documents.put(b"b", b"2")
            with client.changes(GROUP, from_=position) as changes:
                assert next(each.key for each in changes if isinstance(each, Change)) == b"b"
                assert not changes.barrier(0.2).complete
            assert seen == {b"a": b"1"}

    await asyncio.to_thread(work)
