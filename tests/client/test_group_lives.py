"""Groups that are deleted, or deleted and made again under their name, while programs use them (T13)."""

from __future__ import annotations

import asyncio

import pytest
import tidemark
from fake_cluster import FakeCluster
from tidemark import errors
from tidemark.batch import ReadBatch
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import key_hash
from tidemark_wire.v1 import common_pb2

from tests.waiting import PATIENCE_S, until

LOG, DOCUMENTS = "orders", "settings"
KEYS = [b"key-%02d" % number for number in range(40)]


@pytest.fixture
async def cluster() -> FakeCluster:
    """A log and a group of documents, of one shard each."""
    started = await FakeCluster().start(shards=1)
    started.add_documents(DOCUMENTS, 1)
    yield started
    await started.stop()


@pytest.fixture
async def client(cluster: FakeCluster) -> tidemark.Client:
    async with await tidemark.connect(cluster.addresses()) as opened:
        yield opened


def make_again(cluster: FakeCluster, name: str, shards: int, *, push: bool = True) -> None:
    """Replace a group; without `push` the nodes know it, and no client does yet."""
    cluster.delete(name, push=False)
    if name == LOG:
        cluster.add_log(name, shards, push=False)
    else:
        cluster.add_documents(name, shards, push=False)
    if push:
        cluster.push()


async def heard(client: tidemark.Client, name: str, shards: int) -> None:
    await until(lambda: (group := client.routing.find(name)) is not None and len(group.shards) == shards)


def keys_of(cluster: FakeCluster, index: int) -> set[bytes]:
    """Return the keys of the records in a shard of the log."""
    return {
        record.key for entry in cluster.groups[LOG][index].entries if entry.kind is Kind.DATA
        for record in ReadBatch(index, entry, entry.base, entry.last).records()}


# --- writers


async def test_t13_appends_go_where_the_new_group_has_their_keys(cluster, client):
    appender = client.appender(LOG)
    await appender.append(b"before", key=b"before")
    make_again(cluster, LOG, 4)
    await heard(client, LOG, 4)
    await appender.append_batch([tidemark.Record(b"v", key) for key in KEYS])
    found = [keys_of(cluster, index) for index in range(4)]
    assert found == [{key for key in KEYS if key_hash(key) >> 30 == index} for index in range(4)]


@pytest.mark.parametrize("key", [b"key", None])
async def test_t13_an_append_that_the_new_group_refused_ends_when_the_map_says_why(cluster, client, key):
    appender = client.appender(LOG)
    make_again(cluster, LOG, 4, push=False)
    waiting = asyncio.create_task(appender.append(b"v", key=key))
    await until(lambda: "GROUP_REPLACED" in appender._dispatcher.lanes[0].trouble)
    cluster.push()
    with pytest.raises(errors.GroupReplaced, match=f"'{LOG}' was deleted and made again: its id was 1 and is 3"):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert [entry for shard in cluster.groups[LOG].values() for entry in shard.entries if entry.kind is Kind.DATA] == []
    assert (await appender.append(b"v", key=key)).offset == 1
    assert appender.buffered_bytes == 0


async def test_t13_a_batch_sent_to_the_group_that_is_gone_has_an_open_outcome(cluster, client):
    appender = client.appender(LOG)
    cluster.groups[LOG][0].deaf = True
    sent = appender.append_nowait(b"v", key=b"key")
    await until(lambda: cluster.groups[LOG][0].sent)
    make_again(cluster, LOG, 1)
    with pytest.raises(errors.OutcomeUnknown, match="made again"):
        await asyncio.wait_for(sent, PATIENCE_S)


async def test_t13_the_parts_of_a_call_that_wait_for_room_end_with_their_group(cluster, client):
    appender = client.appender(LOG, max_buffered_bytes=1 << 20)
    cluster.groups[LOG][0].deaf = True
    records = [tidemark.Record(bytes(1 << 18), key) for key in KEYS[:8]]
    waiting = asyncio.create_task(appender.append_batch(records))
    await until(lambda: cluster.groups[LOG][0].sent)
    make_again(cluster, LOG, 4)
    with pytest.raises((errors.GroupReplaced, errors.OutcomeUnknown)):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert all(keys_of(cluster, index) == set() for index in range(4))


async def test_t13_documents_of_a_group_that_was_made_again_are_found_by_their_keys(cluster, client):
    documents = client.documents(DOCUMENTS)
    before = await documents.put(b"before", b"v")
    assert documents.written == {0: before.seqno}
    make_again(cluster, DOCUMENTS, 4)
    await heard(client, DOCUMENTS, 4)
    with pytest.raises(errors.ConditionFailed):
        await documents.put(b"before", b"w", expected=before.seqno)
    await documents.put_many([(key, b"v") for key in KEYS])
    async with await tidemark.connect(cluster.addresses()) as other:
        assert (await other.documents(DOCUMENTS).get_many(KEYS)).keys() == set(KEYS)
    assert {shard for shard in documents.written if documents.written[shard]} == set(range(4))


async def test_t13_a_get_does_not_miss_a_document_of_the_new_group(cluster, client):
    documents = client.documents(DOCUMENTS)
    make_again(cluster, DOCUMENTS, 4, push=False)
    waiting = asyncio.create_task(documents.get(b"key"))
    await until(lambda: cluster.refused)
    cluster.push()
    with pytest.raises(errors.GroupReplaced):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert await documents.get(b"key") is None


@pytest.mark.parametrize("level", ["linearizable", "follower"])
async def test_writes_and_reads_of_a_deleted_group_are_refused_at_once(cluster, client, level):
    documents, appender = client.documents(DOCUMENTS, timeout_s=60), client.appender(LOG, timeout_s=60)
    cluster.groups[DOCUMENTS][0].leader = cluster.groups[LOG][0].leader = ""
    cluster.push()
    await until(lambda: not client.routing.leader(LOG, 0) and not client.routing.leader(DOCUMENTS, 0))
    calls = [documents.put(b"key", b"v"), documents.get(b"key"), appender.append(b"v"), appender.append(b"v", key=b"k")]
    waiting = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    cluster.delete(DOCUMENTS)
    cluster.delete(LOG)
    for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S):
        assert isinstance(ended, errors.UnknownGroup)
    for call in (documents.put(b"key", b"v"), documents.put_many([(b"key", b"v")]), documents.get(b"key", level=level),
                 documents.pin("a", 60), appender.append(b"v"), appender.append_batch([b"v"])):
        with pytest.raises(errors.UnknownGroup):
            await call
    cluster.add_documents(DOCUMENTS, 2)
    await heard(client, DOCUMENTS, 2)
    assert (await documents.put(b"key", b"v")).seqno


async def test_a_group_that_comes_back_with_its_data_is_written_to_again(cluster, client):
    appender = client.appender(LOG)
    await appender.append(b"1", key=b"k")
    detached = cluster.groups[LOG]
    detached[0].leader = ""
    cluster.push()
    await until(lambda: not client.routing.leader(LOG, 0))
    unsent = appender.append_nowait(b"2", key=b"k")
    await until(lambda: appender._dispatcher.lanes[0].trouble == "no leader is known")
    del cluster.groups[LOG]
    cluster.push()
    with pytest.raises(errors.UnknownGroup):
        await asyncio.wait_for(unsent, PATIENCE_S)
    detached[0].leader = "n1"
    cluster.groups[LOG] = detached
    cluster.push()
    await until(lambda: client.routing.find(LOG))
    sent = [appender.append_nowait(b"%d" % number, key=b"k") for number in range(2, 5)]
    assert [(await each).offset for each in sent] == [2, 3, 4]
    detached[0].deaf = True
    lost = appender.append_nowait(b"5", key=b"k")
    await until(lambda: len(detached[0].sent) == 3)
    del cluster.groups[LOG]
    cluster.push()
    with pytest.raises(errors.OutcomeUnknown):
        await asyncio.wait_for(lost, PATIENCE_S)
    cluster.groups[LOG], detached[0].deaf = detached, False
    cluster.push()
    await until(lambda: client.routing.find(LOG))
    assert (await asyncio.wait_for(appender.append(b"6", key=b"k"), PATIENCE_S)).offset == 5


async def test_t13_a_pin_of_a_group_that_is_gone_shows_nothing_of_the_new_one(cluster, client):
    documents = client.documents(DOCUMENTS)
    await documents.put(b"key", b"v")
    pin = await documents.pin("cut", 60)
    make_again(cluster, DOCUMENTS, 1)
    await until(lambda: client.routing.group(DOCUMENTS).group_id == cluster.group_ids[DOCUMENTS])
    for call in (pin.get(b"key"), pin.get_many([b"key"]), pin.renew(60), pin.release()):
        with pytest.raises(errors.GroupReplaced):
            await call
    with pytest.raises(errors.GroupReplaced):
        pin.scan()


# --- readers


@pytest.mark.parametrize("mode", ["leader", "scd"])
@pytest.mark.parametrize("again", [False, True])
async def test_t13_a_reader_ends_with_its_group_and_commits_nothing_to_the_next_one(cluster, client, mode, again):
    async with client.appender(LOG) as appender:
        await appender.append_batch([b"1", b"2"])
    reader = client.read(LOG, mode=mode, until=None, subscription="name", auto_commit_s=0.01)
    assert [batch.last for batch in await reader.next_batches(1)] == [2]
    waiting = asyncio.create_task(reader.next_batches(1))
    await until(lambda: cluster.groups[LOG][0].commits)
    if again:
        make_again(cluster, LOG, 1)
    else:
        cluster.delete(LOG)
    with pytest.raises(errors.GroupReplaced if again else errors.UnknownGroup):
        await asyncio.wait_for(waiting, PATIENCE_S)
    await reader.close()
    assert not again or cluster.groups[LOG][0].commits == []


@pytest.mark.parametrize("again", [False, True])
async def test_t13_changes_and_their_consumer_end_with_their_group(cluster, client, again):
    async with client.documents(DOCUMENTS) as documents:
        await documents.put(b"key", b"v")
    changes = client.changes(DOCUMENTS, consumer="name", commit_s=0.01)
    snapshots = changes.snapshots()
    assert [change.key for change in await anext(snapshots)] == [b"key"]
    waiting = asyncio.create_task(anext(snapshots))
    await until(lambda: cluster.groups[DOCUMENTS][0].commits)
    if again:
        make_again(cluster, DOCUMENTS, 1)
    else:
        cluster.delete(DOCUMENTS)
    with pytest.raises(errors.GroupReplaced if again else errors.UnknownGroup):
        await asyncio.wait_for(waiting, PATIENCE_S)
    await changes.close()
    assert not again or cluster.groups[DOCUMENTS][0].commits == []


async def test_t13_a_question_about_a_group_that_is_gone_is_not_answered_by_the_next_one(cluster, client):
    make_again(cluster, LOG, 1, push=False)
    waiting = asyncio.create_task(client.latest(LOG, 0))
    await until(lambda: cluster.refused)
    cluster.push()
    with pytest.raises(errors.GroupReplaced):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert await client.latest(LOG, 0) == 0


async def test_t13_frames_for_older_nodes_say_no_id(client):
    shard_map = common_pb2.ShardMap()
    shard_map.CopyFrom(client.routing.map)
    shard_map.version += 1
    shard_map.nodes[0].wire_version = 4
    shard_map.nodes[1].wire_version = 0
    client.routing._take(shard_map)
    assert [client.routing.id_for(name, 7) for name in ("n0", "n1", "n2", "unknown")] == [0, 0, 7, 0]
