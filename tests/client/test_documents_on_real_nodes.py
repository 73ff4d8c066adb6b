"""Documents on real node processes: every call once, and counters by compare-and-set while leaders fall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark
from tidemark import Delete, Documents, Put, errors
from tidemark_operator import local

from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.servers
GROUP = "settings"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[local.Runtime]:
    started = await local.up(tmp_path, nodes=3, cluster="real")
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": GROUP},
        "spec": {
            "clusterRef": {"name": "real"}, "kind": "Documents", "shards": 2,
            "replication": {"factor": 3, "spread": "Node"},
        },
    }
    try:
        await started.apply(json.dumps(manifest))
        yield started
    finally:
        await local.down(tmp_path, wipe=True)


@pytest.fixture
async def documents(runtime: local.Runtime) -> AsyncIterator[Documents]:
    async with await tidemark.connect(runtime.bootstrap()) as client:
        await client.group(GROUP)
        async with client.documents(GROUP, timeout_s=60) as opened:
            yield opened


async def test_every_call_once(runtime: local.Runtime, documents: Documents):
    made = await documents.put(b"k", b"v", expected=0)
    with pytest.raises(errors.ConditionFailed) as caught:
        await documents.put(b"k", b"w", expected=0)
    assert caught.value.found == made.seqno
    for level in ("linearizable", "leader", "follower"):
        for _ in range(3):
            found = await documents.get(b"k", level=level, min_seqno=documents.written)
            assert (found.key, found.value, found.seqno, found.shard) == (b"k", b"v", made.seqno, made.shard)
    await documents.batch([Put(b"k", b"x", expected=made.seqno), Delete(b"k")])
    assert await documents.get(b"k") is None

    keys = [b"key-%05d" % number for number in range(5_000)]
    assert (await documents.put_many((key, b"v" + key) for key in keys)).applied == len(keys)
    assert [each.key async for each in documents.scan(ordered=True)] == keys
    scan = documents.scan(prefix=b"key-000", level="follower", min_seqno=documents.written)
    assert sorted([each.value async for each in scan]) == [b"v" + key for key in keys[:100]]
    assert scan.cuts.keys() == {0, 1}
    assert len(await documents.get_many(keys)) == len(keys)

    pin = await documents.pin("nightly", 60)
    assert sum(cut.count for cut in pin.cuts.values()) == len(keys)
    await documents.put_many([*(Delete(key) for key in keys[::2]), *(Put(key, b"new") for key in keys[1::2])])
    assert [(each.key, each.value) async for each in pin.scan(ordered=True)] == [(key, b"v" + key) for key in keys]
    assert (await pin.get(keys[0])).value == b"v" + keys[0]
    await pin.renew(120)
    described = await documents.describe()
    assert sum(each.count for each in described.values()) == len(keys) // 2
    assert all(each.pins[0].expires_in_ms > 60_000 for each in described.values())
    await pin.release()
    with pytest.raises(errors.NotPinned):
        await pin.get(keys[0])

    await documents.put(b"short", b"v", ttl_s=5)
    assert await documents.get(b"short") is not None

    async def expired() -> bool:
        return await documents.get(b"short") is None

    await until(expired, "it expires")
    large = bytes(range(256)) * 3_000
    await documents.put(b"large", large)
    assert (await documents.get(b"large", level="follower", min_seqno=documents.written)).value == large


async def test_r3_changes_go_on_behind_a_scan_and_behind_a_pin(runtime: local.Runtime, documents: Documents):
    keys = [b"%04d" % number for number in range(1_000)]
    await documents.put_many((key, b"before") for key in keys)
    whole, some = documents.scan(), documents.scan(prefix=b"00")
    assert len([document async for document in whole]) == 1_000
    assert len([document async for document in some]) == 100
    pin = await documents.pin("p", 60)
    await documents.put_many([Put(b"0001", b"after"), Put(b"0500", b"after"), Delete(b"0002")])
    async with await tidemark.connect(runtime.bootstrap()) as client:
        await client.group(GROUP)
        for position, filters, wanted in (
            (whole.position, {}, {b"0001", b"0002", b"0500"}), (some.position, {"prefix": b"00"}, {b"0001", b"0002"}),
            (pin.position, {}, {b"0001", b"0002", b"0500"}),
        ):
            seen: list[bytes] = []
            async with client.changes(GROUP, from_=position, **filters) as changes, asyncio.timeout(PATIENCE_S):
                async for snapshot in changes.snapshots():
                    seen += [row.key for row in snapshot.rows]
                    if len(seen) >= len(wanted):
                        break
            assert sorted(seen) == sorted(wanted)


async def test_u50_counters_count_every_increment_once_while_leaders_fall(
    runtime: local.Runtime, documents: Documents
):
    """Each increment is a compare-and-set that is retried over the falls; one applied twice or lost shows."""
    done, stop = [0] * 8, asyncio.Event()

    async def count(number: int) -> None:
        key = b"counter-%d" % (number % 4)
        while not stop.is_set():
            read = await documents.get(key)
            value = int(read.value) if read is not None else 0
            try:
                await documents.put(key, b"%d" % (value + 1), expected=read.seqno if read is not None else 0)
                done[number] += 1
            except errors.ConditionFailed:
                continue

    counting = [asyncio.create_task(count(number)) for number in range(len(done))]
    for shard in (0, 1):
        mark = sum(done)
        await until(lambda mark=mark: sum(done) > mark + 50, "counters move", PATIENCE_S)
        leader = documents._routing.leader(GROUP, shard)
        assert leader is not None
        runtime.kill(leader.node)
        mark = sum(done)
        await until(lambda mark=mark: sum(done) > mark + 50, "counters move again", PATIENCE_S)
        await runtime.start(leader.node)
    stop.set()
    await asyncio.gather(*counting)
    for counter in range(4):
        found = await documents.get(b"counter-%d" % counter)
        assert int(found.value) == done[counter] + done[counter + 4]
