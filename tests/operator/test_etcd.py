"""EtcdStore against a real etcd: outcomes, paging, following across a restart, leases."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from aetcd import rpc
from tidemark_operator.etcd import (
    Changes,
    Conflict,
    EtcdStore,
    Saved,
    Snapshot,
    StoreUnavailable,
    Unavailable,
    Unknown,
    Write,
)
from tidemark_operator.metadata import Keys, allocate


async def test_put_applies_only_on_the_expected_revision(store: EtcdStore) -> None:
    created = await store.put("/a", b"1", expected=0)
    assert isinstance(created, Saved)
    assert await store.put("/a", b"2", expected=0) == Conflict()
    assert await store.put("/a", b"2", expected=created.revision + 1) == Conflict()
    changed = await store.put("/a", b"2", expected=created.revision)
    assert isinstance(changed, Saved) and changed.revision > created.revision
    item = await store.get("/a")
    assert item is not None and (item.value, item.revision) == (b"2", changed.revision)
    assert await store.delete("/a", expected=created.revision) == Conflict()
    assert isinstance(await store.delete("/a", expected=changed.revision), Saved)
    assert await store.get("/a") is None


async def test_transaction_is_all_or_nothing(store: EtcdStore) -> None:
    await store.put("/taken", b"", expected=0)
    outcome = await store.transact([Write("/fresh", b"1", 0), Write("/taken", b"1", 0)])
    assert outcome == Conflict()
    assert await store.get("/fresh") is None


async def test_load_reads_more_keys_than_a_page_at_one_revision(store: EtcdStore) -> None:
    for start in range(0, 1200, 100):
        await store.transact([Write(f"/many/{i:05}", b"x", 0) for i in range(start, start + 100)])
    await store.put("/manyother", b"not under the prefix", expected=0)
    snapshot = await store.load("/many/")
    assert len(snapshot.items) == 1200
    assert snapshot.revision >= max(item.revision for item in snapshot.items.values())


async def test_follow_shows_every_change_over_a_restart(store: EtcdStore, etcd) -> None:
    first = await store.put("/p/a", b"1", expected=0)
    assert isinstance(first, Saved)
    stream = store.follow("/p/")
    async with asyncio.timeout(30):
        snapshot = await anext(stream)
        assert isinstance(snapshot, Snapshot) and snapshot.items["/p/a"].value == b"1"
        await store.put("/p/b", b"2", expected=0)
        changes = await anext(stream)
        assert isinstance(changes, Changes)
        assert [(c.key, c.value) for c in changes.changes] == [("/p/b", b"2")]
        pending = asyncio.ensure_future(anext(stream))
        etcd.kill()
        etcd.start()
        await etcd.ready()
        await store.delete("/p/a", expected=first.revision)
        seen = await pending
        assert isinstance(seen, Changes) and [(c.key, c.value) for c in seen.changes] == [("/p/a", None)]
    await stream.aclose()


async def test_follow_starts_over_with_a_snapshot_after_compaction(store: EtcdStore) -> None:
    await store.put("/p/a", b"1", expected=0)
    old = (await store.load("/p/")).revision
    for i in range(5):
        item = await store.get("/p/a")
        assert item is not None
        last = await store.put("/p/a", str(i).encode(), expected=item.revision)
    assert isinstance(last, Saved)
    async with store._line() as line:
        await rpc.KVStub(line.channel).Compact(rpc.CompactionRequest(revision=last.revision))

    loads = [Snapshot({}, old), await store.load("/p/")]

    async def load(prefix: str) -> Snapshot:  # the first load is as old as a client that was away for long
        return loads.pop(0)

    store.load = load  # type: ignore[method-assign]
    stream = store.follow("/p/")
    async with asyncio.timeout(10):
        assert (await anext(stream)).revision == old
        again = await anext(stream)
    assert isinstance(again, Snapshot) and again.items["/p/a"].value == b"4"
    await stream.aclose()


async def test_without_a_server_writes_are_unavailable_and_reads_raise(etcd) -> None:
    etcd.kill()
    store = EtcdStore([etcd.url], timeout_ms=300)
    told: list[bool] = []
    store.on_reachable = told.append
    assert not store.last_error
    assert isinstance(await store.put("/a", b"", expected=0), Unavailable)
    with pytest.raises(StoreUnavailable):
        await store.get("/a")
    assert not store.reachable and store.last_error
    assert told == [False], "once, and the first time too"
    await store.close()


async def test_a_write_whose_answer_is_lost_is_unknown_and_may_have_been_applied(etcd) -> None:
    await etcd.ready()
    store = EtcdStore([etcd.url], timeout_ms=500)
    await store.get("/a")
    etcd.pause()
    assert isinstance(await store.put("/a", b"1", expected=0), Unknown)
    etcd.resume()
    await store.get("/a")  # whichever it was, reading back tells
    assert store.reachable
    await store.close()


async def test_reads_move_on_to_another_endpoint(etcd) -> None:
    await etcd.ready()
    store = EtcdStore(["http://127.0.0.1:1", etcd.url], timeout_ms=3_000)
    assert await store.get("/a") is None
    assert isinstance(await store.put("/a", b"", expected=0), Saved)
    await store.close()


async def test_a_key_goes_with_its_lease(store: EtcdStore) -> None:
    lease = await store.grant_lease(5)
    await store.put("/leased", b"", expected=0, lease=lease)
    assert await store.refresh_lease(lease) > 0
    await store.revoke_lease(lease)
    assert await store.get("/leased") is None
    assert await store.refresh_lease(lease) == 0
    assert isinstance(await store.put("/leased", b"", expected=0, lease=lease), Unavailable)


async def test_ids_are_never_given_out_twice(store: EtcdStore) -> None:
    keys = Keys("/test")
    firsts = await asyncio.gather(*(allocate(store, keys, "next-node-id", 2) for _ in range(8)))
    assert len(set(firsts)) == 8 and all((first - 1) % 2 == 0 for first in firsts)


@pytest.mark.parametrize("endpoint", ["localhost:2379", "ftp://a:1", "http://", "https://a:1"])
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        EtcdStore([endpoint])


async def test_etcd_is_told_to_be_away_when_nobody_answers_not_when_somebody_is_late() -> None:
    def failure(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "somehow")

    late, away = failure(grpc.StatusCode.DEADLINE_EXCEEDED), failure(grpc.StatusCode.UNAVAILABLE)
    one, three = EtcdStore(["http://a:1"]), EtcdStore(["http://a:1", "http://b:1", "http://c:1"])
    for store, errors, expected in [
        (one, [late], []), (one, [late, late], [False]), (one, [away], [False]), (one, [late, away], [False]),
        (three, [away, late], []), (three, [late, late, late], []), (three, [late, late, away], [False]),
        (three, [late] * 4, [False]), (three, [away] * 9, [False]),
    ]:
        store._answered()
        told: list[bool] = []
        store.on_reachable = told.append
        for error in errors:
            store._failed(error)
        assert told == expected
        assert store.reachable is not bool(expected) and bool(store.last_error) is bool(expected)
        store._answered()
        for _ in range(3):
            store._failed(late)
            store._answered()
            assert store.reachable, "late now and then is no news"
        assert told == expected + [True] * bool(expected)
    for store in (one, three):
        await store.close()
