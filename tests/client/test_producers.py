"""Producers that survive their process: claims, fences, where a restart goes on, and what ends one (L26 to L28)."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tidemark
from fake_cluster import FakeCluster, FakeShard
from tidemark import ProducerId, Resumed, errors
from tidemark.batch import ReadBatch
from tidemark.producer import LastBatch
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.producer_ids import FENCE_MAX, fence_of, named

from tests.waiting import PATIENCE_S, remains, until

JOB = ProducerId("copy-job/7")


@pytest.fixture
async def one(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard]:
    """Three nodes and one shard."""
    cluster, client = await connect_to(nodes=3, shards=1)
    return cluster, client, cluster.groups["orders"][0]


def single(client: tidemark.Client, **options: object) -> tidemark.Appender:
    return client.appender("orders", **{"batch_records": 1, "linger_ms": 0, "producer": JOB, **options})


def values_of(shard: FakeShard) -> list[bytes]:
    return [
        record.value for entry in shard.entries
        if entry.kind is Kind.DATA and shard.covering(entry.base) is None
        for record in ReadBatch(shard.index, entry, entry.base, entry.last).records()
    ]


def claims_of(shard: FakeShard) -> list[int]:
    """Return the fences of the claims in a log."""
    return [fence_of(entry.sequence) for entry in shard.entries if entry.kind is Kind.CLAIM]


# --- claiming


async def test_l26_a_producer_is_claimed_before_its_first_batch_and_has_the_id_of_its_name(one):
    _, client, shard = one
    async with single(client) as appender:
        place = await appender.append(b"a")
    assert [entry.kind for entry in shard.entries] == [Kind.EPOCH_START, Kind.CLAIM, Kind.DATA]
    [(producer, sequence)] = shard.claimed
    assert producer == place.producer == named("copy-job/7")
    assert (fence_of(sequence), place.sequence) == (1, sequence + 1)


async def test_l27_every_shard_is_claimed_and_says_that_nothing_is_there(cluster, client):
    async with client.appender("orders", producer=JOB) as appender:
        claimed = await appender.claimed()
        assert await appender.claimed() == claimed, "asked again it claims nothing"
    assert claimed == {shard: Resumed(shard, 1, None) for shard in range(4)}
    assert [claims_of(shard) for shard in cluster.groups["orders"].values()] == [[1]] * 4


async def test_l27_a_restart_learns_where_its_records_end_and_reads_the_last(one):
    _, client, shard = one
    async with single(client, batch_records=3) as appender:
        await appender.append_batch([b"1", b"2", b"3"])
        place = await appender.append(b"4")
        await appender.append_batch([b"5", b"6"])

    async with single(client) as appender:
        resumed = (await appender.claimed())[0]
        assert resumed == Resumed(0, 2, LastBatch(place.offset + 1, 2, 1, place.sequence + 1))
        assert (resumed.last.base, resumed.last.last) == (6, 7)
        last = resumed.last
        read = [record.value async for record in client.read("orders", shards=[0], from_=last.base, until=last.last)]
        assert read == [b"5", b"6"]
        await appender.append(b"7")
    assert values_of(shard) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert claims_of(shard) == [1, 2]


async def test_l26_names_are_producers_of_their_own(one):
    _, client, shard = one
    async with single(client) as first, single(client, producer=ProducerId("other")) as second:
        await first.append(b"1")
        assert (await second.claimed())[0] == Resumed(0, 1, None)
        await second.append(b"2")
        await first.append(b"3")
    assert values_of(shard) == [b"1", b"2", b"3"]


async def test_l26_the_id_begins_as_the_node_says(one):
    cluster, client, _ = one
    for node in cluster.nodes.values():
        node.known.producer_prefix = b"\xf5tm\xf5will"
    await client.routing.refresh()
    async with single(client) as appender:
        place = await appender.append(b"a")
    assert place.producer == named("copy-job/7", b"\xf5tm\xf5will") != named("copy-job/7")


async def test_the_example_of_the_page_copies_each_line_once_however_often_it_is_started(cluster, client):
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    [block] = [part.partition("```")[0] for part in page.split("```python\n")[1:] if part.startswith("async def copy(")]
    names: dict[str, Any] = {"tidemark": tidemark}
    exec(compile(block, "docs/client.md", "exec"), names)
    lines = [b"line %d" % number for number in range(10)]
    for count in (0, 3, 3, 10, 10):
        await names["copy"](client, "orders", lines[:count])
        assert [value for shard in cluster.groups["orders"].values() for value in values_of(shard)] == lines[:count]


# --- fences


async def test_l26_a_second_appender_fences_the_first(one):
    _, client, shard = one
    async with single(client) as first:
        await first.append(b"1")
        second = single(client)
        await second.claimed()
        await second.append(b"2")
        with pytest.raises(errors.ProducerFenced) as caught:
            await first.append(b"never")
        error = caught.value
        assert (error.group, error.shard, error.fence, error.reason) == ("orders", 0, 2, "PRODUCER_FENCED")
        assert "newer fence" in error.advice
        with pytest.raises(errors.ProducerFenced):
            await first.append(b"never either")
        assert first.buffered_bytes == 0
        await second.append(b"3")
        await second.close()
    assert values_of(shard) == [b"1", b"2", b"3"]


async def test_l26_a_fence_of_ones_own_is_taken_and_an_older_one_or_the_same_is_refused(one):
    _, client, shard = one
    async with single(client, fence=7) as first:
        assert (await first.claimed())[0].fence == 7
        for fence in (6, 7):
            async with single(client, fence=fence) as late:
                with pytest.raises(errors.ProducerFenced, match="claimed with fence 7") as caught:
                    await late.claimed()
                assert caught.value.fence == 7
                with pytest.raises(errors.ProducerFenced):
                    await late.append(b"never")
                assert late.buffered_bytes == 0
        await first.append(b"1")
        async with single(client) as newest:
            assert (await newest.claimed())[0] == Resumed(0, 8, LastBatch(2, 1, 1, shard.claimed[0][1] + 1))
    assert values_of(shard) == [b"1"]
    assert claims_of(shard) == [7, 8]


async def test_l26_the_next_fence_behind_the_highest_is_none(one):
    _, client, _ = one
    async with single(client, fence=FENCE_MAX) as first:
        await first.claimed()
        with pytest.raises(errors.ProducerFenced):
            await single(client).claimed()
        await first.append(b"goes on")


async def test_l27_batches_in_flight_of_the_older_process_are_decided_before_the_newer_goes_on(one):
    _, client, shard = one
    shard.limbo = True
    async with single(client) as older:
        await older.claimed()
        waiting = [older.append_nowait(value) for value in (b"1", b"2")]
        await until(lambda: len(shard.undecided) == 2)
        newer = single(client)
        claiming = asyncio.create_task(newer.claimed())
        await until(lambda: claims_of(shard) == [1, 2])
        await remains(lambda: not claiming.done())
        shard.confirm()
        resumed = (await claiming)[0]
        places = await asyncio.gather(*waiting)
        assert (resumed.last.base, resumed.last.sequence) == (places[1].offset, places[1].sequence)
        shard.limbo = False
        await newer.append(b"3")
        with pytest.raises(errors.ProducerFenced):
            await older.append(b"never")
        await newer.close()
    assert values_of(shard) == [b"1", b"2", b"3"]


async def test_l27_a_batch_that_was_rolled_back_is_not_the_last(one):
    _, client, shard = one
    async with single(client, on_rollback="raise") as older:
        place = await older.append(b"1")
        shard.limbo = True
        waiting = older.append_nowait(b"2")
        await until(lambda: shard.undecided)
        newer = single(client)
        claiming = asyncio.create_task(newer.claimed())
        await until(lambda: claims_of(shard) == [1, 2])
        first = next(iter(shard.undecided))
        shard.begin_rollback(first)
        shard.finish_rollback()
        with pytest.raises(errors.RolledBack):
            await waiting
        assert (await claiming)[0].last == LastBatch(place.offset, 1, 1, place.sequence)
        await newer.close()


# --- what ends a claim


async def test_l28_a_refused_batch_ends_the_claim_and_nothing_behind_it_is_appended(one):
    _, client, shard = one
    async with single(client) as appender:
        await appender.append(b"1")
        shard.refusals.append(Refused(Reason.BATCH_TOO_LARGE, "too large"))
        waiting = [appender.append_nowait(value) for value in (b"2", b"3", b"4")]
        with pytest.raises(errors.RequestRefused, match="BATCH_TOO_LARGE"):
            await waiting[0]
        for behind in waiting[1:]:
            with pytest.raises(errors.ProducerEnded, match="BATCH_TOO_LARGE: too large") as caught:
                await behind
        assert (caught.value.group, caught.value.shard, caught.value.reason) == ("orders", 0, "PRODUCER_ENDED")
        assert "claimed" in caught.value.advice
        with pytest.raises(errors.ProducerEnded):
            await appender.append(b"5")
        assert appender.buffered_bytes == 0
    async with single(client) as again:
        await again.append(b"2")
    assert values_of(shard) == [b"1", b"2"]


async def test_l28_a_rollback_is_retried_and_with_raise_it_ends_the_claim(one):
    _, client, shard = one
    shard.limbo = True

    async def roll_back() -> None:
        await until(lambda: any(shard.undecided.values()))
        shard.begin_rollback(next(iter(shard.undecided)))
        shard.limbo = False
        shard.finish_rollback()

    async with single(client) as retries:
        waiting = retries.append_nowait(b"1")
        await roll_back()
        await waiting
    shard.limbo = True
    async with single(client, on_rollback="raise") as raises:
        waiting = raises.append_nowait(b"2")
        await roll_back()
        with pytest.raises(errors.RolledBack):
            await waiting
        with pytest.raises(errors.ProducerEnded, match="ROLLED_BACK"):
            await raises.append(b"3")
    assert values_of(shard) == [b"1"]


@pytest.mark.parametrize("key", [None, b"key"])
async def test_l28_a_batch_whose_time_is_over_before_it_was_sent_is_no_gap(one, key):
    """The client must not send what was appended behind it."""
    _, client, shard = one
    async with single(client, timeout_s=0.5) as appender:
        await appender.claimed()
        shard.deaf = True
        sent = [appender.append_nowait(b"%d" % number, key=key) for number in range(5)]
        await until(lambda: len(shard.sent) == 5)
        queued = appender.append_nowait(b"queued", key=key)
        with pytest.raises(errors.Unavailable):
            await asyncio.wait_for(queued, PATIENCE_S)
        for each in sent:
            with pytest.raises(errors.OutcomeUnknown):
                await each
        shard.deaf = False
        with pytest.raises(errors.ProducerEnded):
            await appender.append(b"behind", key=key)
        assert appender.buffered_bytes == 0
    assert b"behind" not in values_of(shard)


@pytest.mark.parametrize("key", [None, b"key"])
async def test_l28_the_queue_behind_a_batch_that_was_not_sent_ends_with_it(one, key):
    _, client, shard = one
    shard.deaf = True
    async with single(client, timeout_s=0.4) as appender:
        first = appender.append_nowait(b"first", key=key)
        loop = asyncio.get_running_loop()
        opened_s = loop.time()
        await until(lambda: loop.time() > opened_s + 0.25)   # the client looks every 0.1 s whose time is over
        second = appender.append_nowait(b"second", key=key, durability="COMMIT")
        with pytest.raises(errors.Unavailable):
            await first
        with pytest.raises(errors.ProducerEnded, match="could not be sent in time"):
            await second
        assert appender.buffered_bytes == 0


# --- trouble while claiming


async def test_a_claim_whose_answer_is_lost_is_asked_again_at_the_next_leader(one):
    cluster, client, shard = one
    shard.lost_claims = 1
    appender = single(client)
    claiming = asyncio.create_task(appender.claimed())
    waiting = appender.append_nowait(b"1")
    await until(lambda: claims_of(shard) == [1])
    cluster.elect(shard, "n1")
    assert (await asyncio.wait_for(claiming, PATIENCE_S))[0] == Resumed(0, 1, None)
    await waiting
    assert claims_of(shard) == [1], "the claim is repeated, not made twice"
    assert values_of(shard) == [b"1"]
    await appender.close()


async def test_a_claim_that_the_next_leader_does_not_have_is_made_there(one):
    cluster, client, shard = one
    shard.limbo, shard.lost_claims = True, 1
    appender = single(client)
    await until(lambda: claims_of(shard) == [1])
    shard.drop_last(1)
    cluster.elect(shard, "n1")
    assert (await asyncio.wait_for(appender.claimed(), PATIENCE_S))[0].fence == 1
    await appender.close()


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.BEHIND, Reason.TRANSFERRING])
async def test_refusals_of_a_claim_that_pass_are_retried(one, reason):
    _, client, shard = one
    shard.claim_refusals += [Refused(reason, "later", 1, -1, 10)] * 2
    async with single(client) as appender:
        assert (await appender.claimed())[0].fence == 1
    assert len({sequence for _, sequence in shard.claimed}) == 1


async def test_a_claim_without_an_answer_names_shard_and_trouble(one):
    _, client, shard = one
    shard.deaf = True
    appender = single(client, timeout_s=0.3)
    with pytest.raises(errors.Unavailable, match=r"not be claimed on shard 0 of 'orders' within 0.1 s \(silence\)"):
        await appender.claimed(0.1)
    with pytest.raises(errors.Unavailable, match="records for 'orders' could not be sent within"):
        await appender.append(b"1")
    shard.deaf = False
    appender.abort(errors.Closed("over"))


async def test_a_refused_claim_tells_appends_why(one):
    _, client, shard = one
    refused = Refused(Reason.PERMISSION_DENIED, "no writer")
    shard.claim_refusals.append(refused)
    async with single(client) as appender:
        for call in (appender.claimed(), appender.append(b"1"), appender.claimed()):
            with pytest.raises(errors.PermissionDenied, match="no writer"):
                await call
    assert shard.sent == []


async def test_a_leader_of_the_release_before_is_named(one):
    _, client, shard = one
    shard.claim_refusals.append(Refused(Reason.INVALID_BATCH, "record_count is 0, must be 1 to 1048576"))
    async with single(client) as appender:
        with pytest.raises(errors.RequestRefused, match="of a release before named producers; upgrade it") as caught:
            await appender.claimed()
    assert caught.value.refused.reason is Reason.NEEDS_UPGRADE


async def test_close_while_claiming_ends_the_wait(one):
    _, client, shard = one
    shard.deaf = True
    appender = single(client)
    claiming = asyncio.create_task(appender.claimed())
    await until(lambda: shard.claimed)
    await appender.close()
    with pytest.raises(errors.Closed):
        await claiming
    with pytest.raises(errors.Closed):
        await appender.claimed()
    assert "copy-job/7" in repr(appender)


@pytest.mark.parametrize("again", [False, True])
async def test_t13_a_producer_ends_with_its_group(one, again):
    """The batches that a caller goes on behind are in no other group: the appender does not go on there by itself."""
    cluster, client, shard = one
    shard.deaf = True
    appender = single(client)
    claiming = asyncio.create_task(appender.claimed())
    waiting = appender.append_nowait(b"1")
    await until(lambda: shard.claimed)
    cluster.delete("orders", push=not again)
    expected: type[errors.RequestRefused] = errors.UnknownGroup
    if again:
        cluster.add_log("orders", 1)
        expected = errors.GroupReplaced
    for each in (claiming, waiting):
        with pytest.raises(expected):
            await asyncio.wait_for(each, PATIENCE_S)
    if not again:
        cluster.add_log("orders", 1)
        await until(lambda: client.routing.find("orders"))
    with pytest.raises(expected):
        await appender.append(b"2")
    with pytest.raises(expected):
        await appender.claimed()
    assert appender.buffered_bytes == 0
    await appender.close()
    async with single(client) as opened:
        assert (await opened.claimed())[0] == Resumed(0, 1, None)


# --- arguments


@pytest.mark.parametrize("name", ["", "x" * 256, "tab\t", "line\n", "\ud800", 7, None, b"job"])
def test_a_name_that_is_wrong_is_refused(name):
    with pytest.raises(errors.InvalidArgument) as caught:
        ProducerId(name)
    assert caught.value.field == "name"


def test_names_are_frozen_values():
    assert ProducerId("a") == ProducerId("a")
    assert ProducerId("ü" * 255) != ProducerId("a b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        JOB.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(("options", "field"), [
    ({"producer": "job"}, "producer"), ({"fence": 1}, "fence"), ({"producer": JOB, "fence": 0}, "fence"),
    ({"producer": JOB, "fence": FENCE_MAX + 1}, "fence"), ({"producer": JOB, "fence": True}, "fence"),
    ({"producer": JOB, "fence": "1"}, "fence"), ({"producer": JOB, "fence": 1.0}, "fence"),
])
async def test_options_that_are_wrong_are_refused(client, options, field):
    with pytest.raises(errors.InvalidArgument) as caught:
        client.appender("orders", **options)
    assert caught.value.field == field


async def test_an_appender_without_a_producer_claims_nothing(client):
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument) as caught:
            await appender.claimed()
        assert caught.value.field == "producer"


async def test_the_synchronous_client_claims_too(cluster):
    def use() -> dict[int, Resumed]:
        with tidemark.sync.connect(cluster.addresses()) as client, \
                client.appender("orders", producer=JOB, fence=3) as appender:
            claimed = appender.claimed()
            appender.append(b"1", key=b"k")
            return claimed

    assert await asyncio.to_thread(use) == {shard: Resumed(shard, 3, None) for shard in range(4)}
