"""Documents of the client: writes with conditions, batches, reads of every level, scans and pins."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster, FakeShard
from fake_documents import FakeDocuments
from tidemark import COMMIT, LOCAL, Delete, Documents, Put, errors
from tidemark_core.base.ids import index_of
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.upr.filters import Filter, KeyRange
from tidemark_core.upr.positions import Scope, decode

from tests.waiting import until


class Setup(NamedTuple):
    """A cluster with the documents `settings`, and a client."""

    cluster: FakeCluster
    client: tidemark.Client
    documents: Documents
    shards: list[FakeShard]

    def of(self, index: int = 0) -> FakeDocuments:
        found = self.shards[index].documents
        assert found is not None
        return found


@pytest.fixture
async def setup(connect_to) -> AsyncIterator[Setup]:
    """Three nodes and the documents `settings` of four shards."""
    cluster, client = await connect_to(nodes=3, shards=1)
    shards = cluster.add_documents("settings", 4)
    await until(lambda: client.routing.find("settings"))
    async with client.documents("settings") as documents:
        yield Setup(cluster, client, documents, shards)


@pytest.fixture
async def one(connect_to) -> AsyncIterator[Setup]:
    """Three nodes and the documents `settings` of one shard, led by n0."""
    cluster, client = await connect_to(nodes=3, shards=1)
    shards = cluster.add_documents("settings", 1)
    await until(lambda: client.routing.find("settings"))
    async with client.documents("settings", timeout_s=30) as documents:
        yield Setup(cluster, client, documents, shards)


# --- writes


async def test_a_document_is_put_and_got(one: Setup):
    first = await one.documents.put(b"k", b"one")
    second = await one.documents.put(b"k", b"two")
    assert (first.seqno, first.replaced, first.existed) == (1, 0, False)
    assert (second.seqno, second.replaced, second.existed, second.durability) == (2, 1, True, tidemark.QUORUM)
    assert await one.documents.get(b"k") == tidemark.Document(b"k", b"two", 2, 0)
    assert await one.documents.get(b"absent") is None
    gone = await one.documents.delete(b"k")
    assert (gone.seqno, gone.existed) == (3, True)
    assert await one.documents.get(b"k") is None
    assert not (await one.documents.delete(b"k")).existed


async def test_u49_a_condition_that_does_not_hold_says_what_is_there(one: Setup):
    documents = one.documents
    made = await documents.put(b"k", b"one", expected=0)
    with pytest.raises(errors.ConditionFailed, match=r"key b'k' has seqno 1, expected no document") as caught:
        await documents.put(b"k", b"two", expected=0)
    assert (caught.value.found, caught.value.expected, caught.value.key) == (made.seqno, 0, b"k")
    assert (await documents.put(b"k", b"two", expected=made.seqno)).replaced == made.seqno
    with pytest.raises(errors.ConditionFailed) as caught:
        await documents.delete(b"k", expected=made.seqno)
    assert caught.value.found == 3
    await documents.delete(b"k", expected=3)
    with pytest.raises(errors.ConditionFailed, match="has no document, expected seqno 5"):
        await documents.put(b"k", b"x", expected=5)


async def test_u50_a_retried_condition_hears_its_first_outcome(one: Setup):
    """The answer to the first attempt is lost; the second one finds the document that the first one made."""
    one.shards[0].silent = 1
    writing = asyncio.create_task(one.documents.put(b"k", b"v", expected=0))
    await until(lambda: len(one.shards[0].sent) == 1)
    one.cluster.elect(one.shards[0], "n1")
    assert (await writing).seqno == 1
    assert len(one.shards[0].sent) == 2


async def test_u50_a_write_whose_replica_goes_is_not_reported_as_refused(one: Setup):
    """It is in the log: the lane asks again under the same sequence, and so do the writes behind it."""
    shard = one.shards[0]
    shard.limbo = True
    first = one.documents.put_nowait(Put(b"k", b"v", expected=0))
    await until(lambda: len(shard.undecided) == 1)
    second = one.documents.put_nowait(Put(b"l", b"v"))
    await until(lambda: len(shard.undecided) == 2)
    for base in shard.undecided:
        shard._answer(base, Refused(Reason.NO_REPLICA, "the replica is removed here"))
    shard.confirm()
    assert [(await each).seqno for each in (first, second)] == [1, 2]
    assert len({producer for producer, _ in shard.sent}) == 1, "no sequence went out under another producer"
    assert len([entry for entry in shard.entries if entry.payload]) == 2, "none is in the log twice"


async def test_a_batch_is_applied_whole_or_not_at_all(one: Setup):
    documents = one.documents
    written = await documents.batch([Put(b"a", b"1"), Put(b"b", b"2", expected=0), Delete(b"c")])
    assert [each.seqno for each in written] == [1, 2, 3]
    assert [each.key for each in written] == [b"a", b"b", b"c"]
    with pytest.raises(errors.ConditionFailed) as caught:
        await documents.batch([Put(b"a", b"9"), Put(b"b", b"9", expected=0), Put(b"c", b"9", expected=7)])
    assert [(each.key, each.expected, each.found) for each in caught.value.failures] == [(b"b", 0, 2), (b"c", 7, 0)]
    assert (await documents.get_many([b"a", b"b", b"c"])).keys() == {b"a", b"b"}
    assert await documents.batch([]) == []


async def test_u49_other_callers_never_join_an_atomic_batch(one: Setup):
    documents = one.documents
    before = documents.put_nowait(Put(b"x", b"1"))
    both = asyncio.create_task(documents.batch([Put(b"a", b"1"), Put(b"b", b"1", expected=9)]))
    await asyncio.sleep(0)
    behind = documents.put_nowait(Put(b"y", b"1"))
    assert (await before).seqno == 1
    with pytest.raises(errors.ConditionFailed):
        await both
    await behind
    entries = [entry for entry in one.shards[0].entries if entry.payload]
    assert [entry.count for entry in entries if entry.payload[4]] == [2], "one atomic entry of two writes"


async def test_a_batch_over_several_shards_is_refused_before_it_is_sent(setup: Setup):
    keys = [b"%d" % number for number in range(20)]
    with pytest.raises(errors.SeveralShards, match=r"keys of \d shards \(shard \d: b'") as caught:
        await setup.documents.batch([Put(key, b"v") for key in keys])
    assert sorted(key for some in caught.value.shards.values() for key in some) == sorted(keys)
    assert {shard for shard in caught.value.shards} == {setup.documents.shard_of(key) for key in keys}
    assert not any(shard.sent for shard in setup.shards)


async def test_a_key_goes_to_the_shard_of_the_appender(setup: Setup):
    group = await setup.client.group("settings")
    for number in range(20):
        key = b"key-%d" % number
        assert (await setup.documents.put(key, b"v")).shard == group.shard_of(key)


async def test_put_many_takes_no_faster_than_it_is_answered(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.add_documents("settings", 2)
    await until(lambda: client.routing.find("settings"))
    taken = 0

    async def source() -> AsyncIterator[Put | Delete | tuple[bytes, bytes]]:
        nonlocal taken
        for number in range(500):
            taken += 1
            yield b"%d" % number, b"v" * 1000
        yield Put(b"0", b"x", expected=0)
        yield Delete(b"1")

    async with client.documents("settings", max_buffered_bytes=20_000) as documents:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, documents.buffered_bytes)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        done = await documents.put_many(source())
        watching.cancel()
        assert (done.applied, done.refused_count, [each.key for each in done.refused]) == (501, 1, [b"0"])
        assert taken == 500
        assert most <= 20_000
        assert documents.written == done.seqnos
        assert await documents.get(b"1") is None
        assert (await documents.get(b"499")).value == b"v" * 1000


async def test_put_many_ends_with_the_error_of_a_write_once_all_are_answered(one: Setup):
    with pytest.raises(errors.InvalidArgument, match="value: must be bytes"):
        await one.documents.put_many([(b"a", b"1"), (b"b", "no bytes")])
    assert (await one.documents.get(b"a")).value == b"1"
    one.shards[0].refusals.append(Refused(Reason.INVALID_BATCH, "no"))
    with pytest.raises(errors.RequestRefused, match="INVALID_BATCH"):
        await one.documents.put_many((b"%d" % number, b"v") for number in range(3))


@pytest.mark.parametrize("closed", ["documents", "client"])
async def test_put_many_writes_nothing_once_its_documents_are_closed(one: Setup, closed: str):
    documents = one.client.documents("settings", timeout_s=2)

    async def source() -> AsyncIterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        await (documents if closed == "documents" else one.client).close()
        yield b"b", b"2"

    with pytest.raises(errors.Closed):
        await documents.put_many(source())
    written = [entry.payload for entry in one.shards[0].entries if entry.payload]
    assert len(written) == 1 and b"b" not in written[0]


async def test_put_many_that_is_cancelled_waits_for_no_answer(one: Setup):
    one.shards[0].deaf = True
    taking = asyncio.Event()

    async def source() -> AsyncIterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        taking.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(one.documents.put_many(source()))
    await taking.wait()
    putting.cancel()
    await asyncio.wait({putting}, timeout=20)   # the write has thirty seconds
    assert putting.cancelled()
    one.shards[0].deaf = False   # closing waits for the write


async def test_a_ttl_travels_in_milliseconds(one: Setup):
    one.shards[0].logged_ms = 10_000
    await one.documents.put(b"a", b"v", ttl_s=1.5)
    await one.documents.put(b"b", b"v", ttl_s=datetime.timedelta(minutes=1))
    found = await one.documents.get_many([b"a", b"b"])
    assert (found[b"a"].expires_at_ms, found[b"b"].expires_at_ms) == (11_500, 70_000)
    assert found[b"a"].expires_at == datetime.datetime(1970, 1, 1, 0, 0, 11, 500_000, datetime.UTC)


async def test_bad_writes_are_refused_before_anything_is_sent(one: Setup):
    documents = one.documents
    for wrong, field in (
        (documents.put("k", b"v"), "key"), (documents.put(b"", b"v"), "key"), (documents.put(b"k" * 1025, b"v"), "key"),
        (documents.put(b"k", "v"), "value"), (documents.put(b"k", b"v", ttl_s=0), "ttl_s"),
        (documents.put(b"k", b"v", ttl_s=1e12), "ttl_s"), (documents.put(b"k", b"v", expected=-1), "expected"),
        (documents.put(b"k", b"v", expected=True), "expected"),
        (documents.put(b"k", b"v", durability=LOCAL), "durability"),
        (documents.batch([Put(b"a", b"1"), Delete(b"")]), "writes[1].key"),
        (documents.batch([(b"a", b"1")]), "writes[0]"),
        (documents.get("k"), "key"), (documents.get(b"k", level="soon"), "level"),
        (documents.get(b"k", min_seqno=-1), "min_seqno"), (documents.get_many([b"a", b""]), "keys[1]"),
        (documents.pin("", 5), "name"), (documents.pin("a", 0), "ttl_s"), (documents.pin("a", None), "ttl_s"),
        (documents.pin(7, 5), "name"),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            await wrong
        assert caught.value.field == field
    with pytest.raises(errors.ValueTooLarge, match=r"1048577 bytes, the limit .* is 1048575") as large:
        await documents.put(b"k", bytes((1 << 20) + 1))
    assert large.value.field == "value"
    long = b"k" * 1025
    for options in ({"prefix": b"a", "first": b"b"}, {"prefix": "a"}, {"limit": 0}, {"level": "x"}, {"until": long}):
        with pytest.raises(errors.InvalidArgument):
            documents.scan(**options)
    with pytest.raises(errors.UnknownShard):
        documents.scan(shards=[9])
    with pytest.raises(errors.InvalidArgument, match="durability: is LOCAL"):
        one.client.documents("settings", durability="local")
    assert not one.shards[0].sent and not one.of().asked


async def test_a_group_of_the_other_kind_is_refused_before_anything_is_sent(one: Setup):
    with pytest.raises(errors.WrongKind, match="group 'orders' is of kind Log, not Documents"):
        one.client.documents("orders")
    with pytest.raises(errors.WrongKind, match="group 'settings' is of kind Documents, not Log"):
        one.client.appender("settings")
    with pytest.raises(errors.WrongKind):
        one.client.read("settings")
    with pytest.raises(errors.UnknownGroup):
        one.client.documents("nowhere")


async def test_documents_of_a_group_whose_default_is_local_are_written_with_a_quorum(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1, default_ack="Local")
    cluster.add_documents("settings", 1)
    await until(lambda: client.routing.find("settings"))
    async with client.documents("settings") as documents:
        assert (await documents.put(b"k", b"v")).durability is tidemark.QUORUM
        assert (await documents.put(b"k", b"v", durability=COMMIT)).durability is COMMIT


async def test_an_answer_without_outcomes_is_no_success(one: Setup):
    one.shards[0].documents = None   # as if the leader took the group for a log
    with pytest.raises(errors.DocumentsNotServed):
        await one.documents.put(b"k", b"v")


async def test_a_write_whose_time_is_over_has_an_unknown_outcome_and_the_shard_goes_on(one: Setup):
    one.shards[0].limbo = True
    async with one.client.documents("settings", timeout_s=1) as documents:
        with pytest.raises(errors.OutcomeUnknown) as caught:
            await documents.put(b"k", b"v")
        with pytest.raises(errors.OutcomeUnknown):
            await documents.batch([Put(b"l", b"v")])
        one.shards[0].confirm()
        one.shards[0].limbo = False
        assert (await one.documents.put(b"m", b"v")).seqno == 3   # which has more time
    outcome = await one.client.outcome("settings", 0, caught.value.producer, caught.value.sequence, wait=False)
    assert (outcome.fate, outcome.base) == (tidemark.Fate.CONFIRMED, 1)


async def test_an_answer_that_comes_too_late_disturbs_no_other_write(one: Setup):
    one.shards[0].limbo = True
    async with one.client.documents("settings", timeout_s=5) as documents:
        first = documents.put_nowait(Put(b"a", b"v"))
        await until(lambda: len(one.shards[0].sent) == 1)
        half = asyncio.get_running_loop().time() + 3
        await until(lambda: asyncio.get_running_loop().time() > half)   # the second write has more time left
        second = documents.put_nowait(Put(b"b", b"v"))
        with pytest.raises(errors.OutcomeUnknown):
            await first
        one.shards[0].confirm()
        assert (await second).seqno == 2
        assert documents.written == {0: 2}
        assert one.cluster.nodes["n0"].streams == 1, "the stream goes on"


async def test_a_rolled_back_write_is_written_again_with_its_condition(one: Setup):
    one.shards[0].limbo = True
    writing = asyncio.create_task(one.documents.put(b"k", b"v", expected=0))
    await until(lambda: one.shards[0].undecided)
    one.shards[0].begin_rollback(1)
    one.shards[0].finish_rollback()
    await until(lambda: 3 in one.shards[0].undecided)
    one.shards[0].confirm()
    assert (await writing).seqno == 3
    assert (await one.documents.get(b"k")).seqno == 3


async def test_use_after_close_is_refused(one: Setup):
    documents = one.client.documents("settings")
    await documents.put(b"k", b"v")
    await documents.close()
    for call in (documents.put(b"k", b"v"), documents.get(b"k"), documents.batch([Put(b"k", b"v")]),
                 documents.put_many([(b"k", b"v")]), documents.describe()):
        with pytest.raises(errors.Closed):
            await call
    with pytest.raises(errors.Closed):
        documents.scan()


@pytest.mark.parametrize("level", ["linearizable", "follower"])
async def test_a_scan_and_a_describe_whose_client_is_closed_raise_closed(one: Setup, level: str):
    """No CancelledError: the task that waits is not the one that ends."""
    await one.documents.put(b"k", b"v")
    asked = one.of().asked

    async def scan() -> None:
        async for _ in one.documents.scan(level=level):
            pass

    for node in one.cluster.nodes.values():
        node.paused.clear()
    waiting = [asyncio.create_task(scan()), asyncio.create_task(one.documents.describe())]
    sent = [asyncio.create_task(one.client.latest("settings", 0))]
    await asyncio.wait(waiting, timeout=0.2)   # the calls are under way, and nothing answers
    assert not any(task.done() for task in (*waiting, *sent)), asked
    await one.client.close()
    for task in (*waiting, *sent):
        with pytest.raises(errors.Closed):
            await task


# --- reads


async def test_concurrent_gets_of_a_shard_share_calls(one: Setup):
    await one.documents.put_many((b"%d" % number, b"v%d" % number) for number in range(500))
    found = await asyncio.gather(*(one.documents.get(b"%d" % number) for number in range(500)))
    assert [document.value for document in found] == [b"v%d" % number for number in range(500)]
    assert len(one.of().gets) <= 2
    assert sum(one.of().gets) == 500


async def test_a_get_joins_no_call_that_was_sent_before_it(one: Setup):
    """Else a linearizable read could be answered with a state from before it began."""
    await one.documents.put(b"k", b"old")
    one.of().delay_s = 0.05
    reading = asyncio.ensure_future(one.documents.get(b"k"))
    await until(lambda: one.of().gets)
    await one.documents.put(b"k", b"new")
    assert (await one.documents.get(b"k")).value == b"new"
    assert (await reading).value in (b"old", b"new")
    assert one.of().gets == [1, 1]


async def test_an_answer_that_stops_early_is_asked_on(one: Setup):
    await one.documents.put_many((b"%d" % number, b"v") for number in range(10))
    one.of().keys_max = 3
    assert len(await one.documents.get_many(b"%d" % number for number in range(12))) == 10
    assert one.of().gets == [12, 9, 6, 3]


async def test_u53_levels_are_asked_of_whom_may_serve_them(one: Setup):
    await one.documents.put(b"k", b"v")
    for level in ("linearizable", "leader", "follower"):
        for _ in range(6):
            assert (await one.documents.get(b"k", level=level)).value == b"v"
        assert set(one.of().levels) == {level}
        assert {node for node, _ in one.of().asked} == ({"n0", "n1", "n2"} if level == "follower" else {"n0"})
        one.of().levels.clear()
        one.of().asked.clear()


async def test_u53_min_seqno_finds_a_member_that_has_it(one: Setup):
    for number in range(4):
        await one.documents.put(b"k", b"%d" % number)
    one.of().lagging.update(n1=2, n2=0)
    stale = [await one.documents.get(b"k", level="follower") for _ in range(3)]
    assert sorted(document.value if document else b"-" for document in stale) == [b"-", b"1", b"3"]
    for _ in range(4):
        found = await one.documents.get(b"k", level="follower", min_seqno=one.documents.written)
        assert found.value == b"3"


async def test_no_member_that_has_enough_is_behind(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    cluster.add_documents("settings", 1)
    await until(lambda: client.routing.find("settings"))
    async with client.documents("settings") as documents:
        await documents.put(b"k", b"v")
    async with client.documents("settings", timeout_s=2) as documents:
        async def refused(level: str) -> None:
            with pytest.raises(errors.Behind) as caught:
                await documents.get(b"k", level=level, min_seqno=99)
            assert caught.value.applied == 1

        await asyncio.gather(*(refused(level) for level in ("follower", "leader", "linearizable")))


async def test_a_last_try_without_time_to_answer_does_not_hide_that_members_are_behind(one: Setup):
    one.of().refusals.append(Refused(Reason.BEHIND, "applied 7", expected=7))
    one.of().delay_s = 60
    async with one.client.documents("settings", timeout_s=0.3) as documents:
        with pytest.raises(errors.Behind) as caught:
            await documents.get(b"k", level="leader")
    assert caught.value.applied == 7


async def test_a_dead_member_is_passed_over(one: Setup):
    await one.documents.put(b"k", b"v")
    await one.cluster.nodes["n1"].kill()
    for _ in range(6):
        assert (await one.documents.get(b"k", level="follower")).value == b"v"


async def test_reads_follow_the_leader(one: Setup):
    await one.documents.put(b"k", b"v")
    one.cluster.elect(one.shards[0], "n2")
    assert (await one.documents.get(b"k")).value == b"v"
    assert one.of().asked[-1] == ("n2", "Get")


async def test_nodes_that_serve_no_documents_say_so(one: Setup):
    for node in one.cluster.nodes.values():
        node.serves_documents = False
    for level in ("linearizable", "follower"):
        with pytest.raises(errors.DocumentsNotServed):
            await one.documents.get(b"k", level=level)
    one.cluster.nodes["n2"].serves_documents = True
    assert await one.documents.get(b"k", level="follower") is None


async def test_a_final_refusal_of_a_read_is_raised(one: Setup):
    for level in ("linearizable", "follower"):
        one.of().refusals.append(Refused(Reason.PERMISSION_DENIED, "readers are a and b"))
        with pytest.raises(errors.PermissionDenied):
            await one.documents.get(b"k", level=level)


# --- scans


async def filled(setup: Setup, count: int = 60) -> list[bytes]:
    keys = [b"%03d" % number for number in range(count)]
    await setup.documents.put_many((key, b"v" + key) for key in keys)
    return keys


async def test_a_scan_yields_every_document_once(setup: Setup):
    keys = await filled(setup)
    found = [document async for document in setup.documents.scan()]
    assert sorted(document.key for document in found) == keys
    assert all(document.value == b"v" + document.key for document in found)
    by_shard = {shard: [each.key for each in found if each.shard == shard] for shard in range(4)}
    assert all(some == sorted(some) and some for some in by_shard.values())


async def test_an_ordered_scan_merges_the_shards_by_key(setup: Setup):
    keys = await filled(setup)
    assert [each.key async for each in setup.documents.scan(ordered=True)] == keys
    assert [each.key async for each in setup.documents.scan(ordered=True, limit=7)] == keys[:7]
    assert [each.key async for each in setup.documents.scan(ordered=True, first=b"010", until=b"015")] == keys[10:15]
    assert [each.key async for each in setup.documents.scan(ordered=True, prefix=b"02")] == keys[20:30]
    only = [each async for each in setup.documents.scan(prefix=b"01", keys_only=True)]
    assert sorted(each.key for each in only) == keys[10:20]
    assert {each.value for each in only} == {b""}
    assert [each async for each in setup.documents.scan(prefix=b"\xff\xff")] == []


async def test_a_scan_reads_a_bounded_number_of_shards_at_once(connect_to):
    cluster, client = await connect_to(nodes=2, shards=1)
    shards = cluster.add_documents("settings", 40)
    await until(lambda: client.routing.find("settings"))
    async with client.documents("settings") as documents:
        await documents.put_many((b"%03d" % number, b"v") for number in range(400))
        began = 0

        def begun() -> int:
            return sum(method == "Scan" for shard in shards for _, method in shard.documents.asked)

        keys = []
        async for page in documents.scan().pages():
            began = began or begun()
            keys += [document.key for document in page]
        assert sorted(keys) == [b"%03d" % number for number in range(400)]
        assert 1 <= began <= 16
        assert begun() == 40


async def test_a_limit_holds_over_all_shards(setup: Setup):
    await filled(setup)
    assert len([each async for each in setup.documents.scan(limit=5)]) == 5
    assert len([each async for each in setup.documents.scan(shards=[1], limit=5)]) == 5


async def test_u53_a_scan_has_a_cut_of_each_shard_that_showed_one_state(setup: Setup):
    keys = await filled(setup)
    scan = setup.documents.scan()
    assert [document async for document in scan]
    assert {shard: cut.seqno for shard, cut in scan.cuts.items()} == setup.documents.written
    setup.of(2).breaks.append(1)
    broken = setup.documents.scan()
    assert sorted([document.key async for document in broken]) == keys, "it goes on behind the last document"
    assert set(broken.cuts) == {0, 1, 3}, "of shard 2 it showed two states"


async def test_a_whole_scan_has_a_position_for_changes_at_its_end(setup: Setup):
    await filled(setup)
    scan = setup.documents.scan()
    assert scan.position is None
    assert [document async for document in scan]
    token = decode(scan.position)
    assert {index_of(shard): point.seqno for shard, point in token.points.items()} == setup.documents.written
    assert token.scope == Scope(2)
    some = setup.documents.scan(prefix=b"01", keys_only=True)
    assert len([document async for document in some]) == 10
    assert decode(some.position).scope == Scope(2, Filter((KeyRange(b"01", b"02"),), values=False).digest)
    for options in ({"limit": 100}, {"shards": [0, 1]}):
        part = setup.documents.scan(**options)
        assert [document async for document in part]
        assert part.position is None
    setup.of(1).breaks.append(1)
    broken = setup.documents.scan()
    assert [document async for document in broken]
    assert broken.position is None
    pin = await setup.documents.pin("p", 60)
    found = pin.scan()
    assert [document async for document in found]
    assert found.position == pin.position is not None
    assert (await setup.documents.pinned("p")).position is None


async def test_a_scan_gives_its_documents_as_arrow_columns(setup: Setup):
    await filled(setup, 20)
    await setup.documents.put(b"short", b"lived", ttl_s=60)
    setup.of(1).breaks.append(1)
    expected = sorted([
        (each.shard, each.key, each.value, each.seqno, each.expires_at_ms or None)
        async for each in setup.documents.scan()])
    found = []
    async for batch in setup.documents.scan().record_batches():
        assert batch.schema.names == ["shard", "key", "value", "seqno", "expires_at_ms"]
        assert len(set(batch.column("shard").to_pylist())) == 1
        found += [tuple(row.values()) for row in batch.to_pylist()]
    assert sorted(found) == expected and sum(row[4] is not None for row in found) == 1
    for scan in (setup.documents.scan(limit=5), setup.documents.scan(shards=[1], limit=5, ordered=True)):
        assert sum([batch.num_rows async for batch in scan.record_batches()]) == 5
        with pytest.raises(errors.Closed):
            await anext(scan.record_batches())
    with pytest.raises(errors.InvalidArgument, match="ordered: is True"):
        await anext(setup.documents.scan(ordered=True).record_batches())


async def test_a_broken_scan_goes_on_behind_the_longest_key(one: Setup):
    keys = sorted([b"a" * 1024, b"a" * 1023 + b"b", b"b" * 1024, b"c", b"\xff" * 1024])
    one.of().page_max = 1
    await one.documents.put_many((key, b"v") for key in keys)
    one.of().breaks.extend([1, 1, 1, 1])
    assert [document.key async for document in one.documents.scan()] == keys
    one.of().breaks.extend([1, 1, 1, 1, 0])
    assert [document.key async for document in one.documents.scan(prefix=b"a")] == keys[:2]


async def test_a_scan_that_goes_on_shows_no_older_state(one: Setup):
    """Behind its first page the scan breaks, and from then on two of three members lag far behind."""
    await filled(one, 9)
    for _ in range(6):
        one.of().lagging.clear()
        one.of().breaks.append(1)
        one.of().on_break = lambda: one.of().lagging.update(n1=2, n2=2)
        assert len([document async for document in one.documents.scan(level="follower")]) == 9


async def test_a_scan_is_left_early(setup: Setup):
    await filled(setup)
    scan = setup.documents.scan()
    async for _ in scan:
        break
    await scan.close()
    with pytest.raises(errors.Closed):
        [document async for document in scan]


async def test_a_refused_scan_raises(one: Setup):
    one.of().refusals.append(Refused(Reason.PERMISSION_DENIED, "no"))
    with pytest.raises(errors.PermissionDenied):
        [document async for document in one.documents.scan()]


# --- pins


async def test_u70_a_pin_shows_what_was(setup: Setup):
    keys = await filled(setup, 20)
    async with await setup.documents.pin("nightly", 60) as pin:
        await setup.documents.put_many([Put(key, b"new") for key in keys[:5]] + [Delete(key) for key in keys[5:10]])
        await setup.documents.put(b"999", b"new")
        assert (await pin.get(keys[0])).value == b"v000"
        assert (await pin.get(keys[7])).value == b"v007"
        assert await pin.get(b"999") is None
        found = [document async for document in pin.scan(ordered=True)]
        assert [(each.key, each.value) for each in found] == [(key, b"v" + key) for key in keys]
        assert (await pin.get_many([*keys, b"999"])).keys() == set(keys)
        scan = pin.scan()
        setup.of(1).breaks.append(1)
        assert len([document async for document in scan]) == 20
        assert {shard: cut.seqno for shard, cut in scan.cuts.items()} == {
            shard: cut.seqno for shard, cut in pin.cuts.items()}, "pages of a pin come from one state"
        assert sum(cut.count for cut in pin.cuts.values()) == 20
    with pytest.raises(errors.NotPinned):
        await pin.get(keys[0])


async def test_u70c_a_pin_that_cannot_be_is_refused_at_once(one: Setup):
    for reason, error in ((Reason.TOO_MANY_PINS, errors.RequestRefused), (
            Reason.PERMISSION_DENIED, errors.PermissionDenied)):
        one.of().refusals.append(Refused(reason, "no"))
        with pytest.raises(error) as caught:
            await one.documents.pin("p", 60)
        assert caught.value.reason == reason
    assert (await one.documents.pin("p", 60)).name == "p"


async def test_u72_any_member_that_has_folded_the_pin_serves_it(one: Setup):
    await one.documents.put(b"k", b"v")
    pin = await one.documents.pin("p", 60)
    one.of().lagging["n1"] = 0
    one.of().asked.clear()
    for _ in range(6):
        assert (await pin.get(b"k")).value == b"v"
    assert {node for node, _ in one.of().asked} == {"n0", "n1", "n2"}


async def test_u72_a_pin_that_was_released_shows_nothing_also_where_a_member_is_behind(one: Setup):
    await one.documents.put(b"k", b"v")
    pin = await one.documents.pin("p", 60)
    await one.documents.put(b"other", b"v")
    for node in ("n0", "n1", "n2"):
        one.of().lagging[node] = (await one.documents.describe())[0].applied
    await pin.release()
    one.of().asked.clear()
    for call in (lambda: pin.get(b"k"), lambda: pin.get_many([b"k"]), lambda: pin.renew(60)):
        with pytest.raises(errors.NotPinned, match="no pin 'p'"):
            await call()
    with pytest.raises(errors.NotPinned):
        pin.scan()
    assert [] == one.of().asked
    await pin.release()


async def test_u70_renewing_a_pin_keeps_its_cut(one: Setup):
    await one.documents.put(b"k", b"old")
    pin = await one.documents.pin("p", 60)
    await one.documents.put(b"k", b"new")
    await pin.renew(120)
    assert (await pin.get(b"k")).value == b"old"
    assert (await one.documents.pin("p", 60)).cuts == pin.cuts
    found = await one.documents.pinned("p")
    assert {shard: cut.seqno for shard, cut in found.cuts.items()} == {0: pin.cuts[0].seqno}
    assert (await found.get(b"k")).value == b"old"


async def test_a_pin_of_another_process_is_read_by_its_cuts(setup: Setup):
    keys = await filled(setup, 20)
    made = await setup.documents.pin("p", 60)
    await setup.documents.put_many([Put(key, b"new") for key in keys])
    for shard in setup.of().asked, setup.of(1).asked:
        shard.clear()
    pin = setup.documents.pin_at("p", {1: made.cuts[1].seqno})
    assert setup.of().asked == setup.of(1).asked == [], "no node is asked"
    shown = [each async for each in pin.scan()]
    assert shown and {each.shard for each in shown} == {1} and all(each.value == b"v" + each.key for each in shown)
    await pin.renew(60)
    other = next(key for key in keys if setup.documents.shard_of(key) != 1)
    for refused in (lambda: pin.get(other), lambda: anext(pin.scan(shards=[0]).pages())):
        with pytest.raises(errors.InvalidArgument, match="pin: does not show shard"):
            await refused()
    assert (await setup.documents.pin("some", 60, shards=[1, 2])).position is None is pin.position
    late = setup.documents.pin_at("p", {1: made.cuts[1].seqno + 1})
    with pytest.raises(errors.NotPinned):
        await late.renew(60)
    with pytest.raises(errors.NotPinned):
        await anext(pin.scan().pages())


async def test_renewing_a_pin_that_ended_is_an_error_and_leaves_none(one: Setup):
    await one.documents.put(b"k", b"old")
    pin = await one.documents.pin("p", 60)
    await one.documents.unpin("p")
    with pytest.raises(errors.NotPinned):
        await pin.renew(60)
    assert (await one.documents.describe())[0].pins == ()
    with pytest.raises(errors.NotPinned):
        await one.documents.pinned("p")
    assert await one.documents.unpin("p") == []


async def test_describe_says_what_a_shard_holds(setup: Setup):
    await filled(setup, 20)
    await setup.documents.pin("p", 60)
    described = await setup.documents.describe()
    assert list(described) == [0, 1, 2, 3]
    assert sum(each.count for each in described.values()) == 20
    for shard, each in described.items():
        assert (each.shard, [pin.name for pin in each.pins], len(each.digest)) == (shard, ["p"], 16)
        assert each.pins[0].seqno == each.applied
        assert 0 < each.pins[0].expires_in_ms <= 60_000


# --- without an event loop


async def test_the_synchronous_documents_do_the_same(setup: Setup):
    def work() -> None:
        with tidemark.sync.connect(setup.cluster.addresses()) as client, client.documents("settings") as documents:
            made = documents.put(b"k", b"v", expected=0)
            assert (made.existed, documents.written) == (False, {made.shard: made.seqno})
            assert documents.get(b"k", level="follower", min_seqno=documents.written).value == b"v"
            assert documents.put_many((b"%03d" % number, b"x") for number in range(50)).applied == 50
            assert documents.batch([Put(b"k", b"w", expected=made.seqno), Delete(b"k")])[1].existed
            assert documents.get_many([b"k", b"001"]).keys() == {b"001"}
            with documents.pin("p", 60) as pin:
                documents.delete(b"001")
                assert pin.get(b"001").value == b"x"
                pin.renew(60)
                assert documents.pinned("p").get_many([b"001"]).keys() == {b"001"}
                scan = pin.scan(ordered=True)
                assert [document.key for document in scan] == [b"%03d" % number for number in range(50)]
                assert scan.cuts.keys() == {0, 1, 2, 3}
                assert documents.describe(shards=[1])[1].pins[0].name == "p"
            for document in documents.scan():
                assert document.value == b"x"
                break
            documents.flush()
            with pytest.raises(errors.ConditionFailed):
                documents.put(b"002", b"y", expected=0)
            assert documents.unpin("p") == []

    await asyncio.to_thread(work)
