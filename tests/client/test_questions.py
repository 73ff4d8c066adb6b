"""Questions to leaders: the outcome of a batch and the limbo of a shard, whoever leads meanwhile."""

from __future__ import annotations

import asyncio
import datetime

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster, FakeShard
from tidemark import Fate, Outcome, errors
from tidemark_core.base.refusals import Reason

from tests.waiting import PATIENCE_S, until


@pytest.fixture
async def undecided(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard, bytes]:
    """A shard with one batch whose callers were told that nobody knows, and its producer."""
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    shard.limbo = True
    appender = client.appender("orders", on_quorum_timeout="raise")
    waiting = appender.append_nowait(b"a")
    await until(lambda: shard.sent)
    shard.time_out()
    with pytest.raises(errors.QuorumTimeout) as caught:
        await waiting
    return cluster, client, shard, caught.value.producer


async def test_without_wait_the_first_answer_is_the_answer(undecided):
    _, client, shard, producer = undecided
    assert await client.outcome("orders", 0, producer, 0, wait=False) == Outcome(Fate.UNKNOWN, 1, 1, 1)
    shard.confirm()
    assert await client.outcome("orders", 0, producer, 0, wait=False) == Outcome(Fate.CONFIRMED, 1, 1, 1)
    assert await client.outcome("orders", 0, producer, 1, wait=False) == Outcome(Fate.NOT_FOUND, 1, -1, 0)


async def test_waiting_goes_on_over_the_leaders_own_timeout(undecided):
    cluster, client, shard, producer = undecided
    asking = asyncio.create_task(client.outcome("orders", 0, producer, 0))
    for _ in range(3):
        await until(lambda: shard.undecided[1])
        shard.time_out()
    assert not asking.done()
    await until(lambda: shard.undecided[1])
    at = shard.begin_rollback(1)
    shard.finish_rollback()
    assert await asyncio.wait_for(asking, PATIENCE_S) == Outcome(Fate.ROLLED_BACK, 1, 1, 1, at)
    assert len(cluster.questions) == 4


async def test_when_time_is_over_unknown_is_the_answer(undecided):
    _, client, shard, producer = undecided
    asking = asyncio.create_task(client.outcome("orders", 0, producer, 0, timeout_s=0.4))
    await until(lambda: shard.undecided[1])
    shard.time_out()
    assert (await asyncio.wait_for(asking, PATIENCE_S)).fate is Fate.UNKNOWN


async def test_the_question_follows_the_leader(undecided):
    cluster, client, shard, producer = undecided
    cluster.elect(shard, "n2", push=False)
    asking = asyncio.create_task(client.outcome("orders", 0, producer, 0))
    await until(lambda: cluster.nodes["n0"].asked)  # it leads no longer and knows no newer leader
    cluster.push()
    await until(lambda: shard.undecided[1])
    shard.confirm()
    assert (await asyncio.wait_for(asking, PATIENCE_S)).fate is Fate.CONFIRMED
    assert cluster.questions == [("n2", 0)]


async def test_a_paused_leader_is_left_when_another_is_elected(undecided):
    cluster, client, shard, producer = undecided
    cluster.nodes["n0"].paused.clear()
    asking = asyncio.create_task(client.outcome("orders", 0, producer, 0))
    await until(lambda: cluster.nodes["n0"].asked)
    cluster.elect(shard, "n1")
    await until(lambda: shard.undecided[1])
    shard.confirm()
    assert (await asyncio.wait_for(asking, PATIENCE_S)).fate is Fate.CONFIRMED
    cluster.nodes["n0"].paused.set()


async def test_nobody_who_answers_is_unavailable(undecided):
    cluster, client, shard, producer = undecided
    shard.leader = ""
    cluster.push()
    await client.routing.wait_changed(1)
    with pytest.raises(errors.Unavailable, match=r"leader of shard 0 of 'orders' did not answer within 0\.3 s"):
        await client.outcome("orders", 0, producer, 0, timeout_s=0.3)


async def test_bad_questions_name_the_field(client):
    producer = b"p" * 16
    for arguments, options, field in (
        (("orders", 0, "text", 0), {}, "producer"),
        (("orders", 0, b"short", 0), {}, "producer"),
        (("orders", 0, bytes(16), 0), {}, "producer"),
        (("orders", 0, producer, -1), {}, "sequence"),
        (("orders", 0, producer, "1"), {}, "sequence"),
        (("orders", 0, producer, 0), {"timeout_s": 0}, "timeout_s"),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"^INVALID_ARGUMENT: {field}:"):
            await client.outcome(*arguments, **options)
    with pytest.raises(errors.UnknownShard):
        await client.outcome("orders", 9, producer, 0)
    with pytest.raises(errors.UnknownGroup):
        await client.outcome("nothing", 0, producer, 0)
    with pytest.raises(errors.InvalidArgument, match="entries_max"):
        await client.limbo("orders", 0, entries_max=-1)
    await client.close()
    with pytest.raises(errors.Closed):
        await client.outcome("orders", 0, producer, 0)
    with pytest.raises(errors.Closed):
        await client.limbo("orders", 0)


async def test_the_limbo_shows_who_waits_for_whom(undecided):
    _, client, shard, producer = undecided
    view = await client.limbo("orders", 0)
    (entry,) = view.entries
    assert (entry.base, entry.count, entry.durability.name, entry.producer) == (1, 1, "QUORUM", producer)
    assert (entry.acked, entry.missing, entry.state) == (("n0", "n1"), ("n2",), "WAITING")
    assert (view.quorum, view.members, view.length) == (3, ("n0", "n1", "n2"), 1)
    assert (await client.limbo("orders", 0, entries_max=0)).entries == ()
    shard.begin_rollback(1)
    view = await client.limbo("orders", 0)
    assert (view.entries[0].state, view.rollback_pending_from) == ("ROLLING_BACK", 1)


async def test_the_synchronous_client_asks_the_same(undecided):
    cluster, _, shard, producer = undecided
    shard.confirm()

    def ask() -> tuple[Outcome, int]:
        with tidemark.sync.connect(cluster.addresses()) as client:
            return client.outcome("orders", 0, producer, 0, wait=False), client.limbo("orders", 0).length

    assert await asyncio.to_thread(ask) == (Outcome(Fate.CONFIRMED, 1, 1, 1), 0)


async def test_a_refusal_that_asking_again_does_not_change_is_raised(undecided):
    _, client, shard, _ = undecided
    shard.limbo = False
    async with client.appender("orders") as appender:
        places = [await appender.append(b"x") for _ in range(6)]
    with pytest.raises(errors.RequestRefused) as caught:
        await client.outcome("orders", 0, places[0].producer, places[0].sequence)
    assert caught.value.refused.reason is Reason.SEQUENCE_TOO_OLD
    assert (await client.outcome("orders", 0, places[1].producer, places[1].sequence)).base == places[1].offset


# --- where the log ends, and where it was at some time


async def append_at(client: tidemark.Client, shard: FakeShard, logged_ms: int, count: int = 10) -> None:
    shard.logged_ms = logged_ms
    async with client.appender("orders", batch_records=10) as appender:
        await appender.append_batch([b"x"] * count)


async def test_the_last_offset_that_may_be_read(connect_to):
    cluster, client = await connect_to(nodes=2, shards=1)
    shard = cluster.groups["orders"][0]
    assert await client.latest("orders", 0) == 0, "the mark of the election"
    await append_at(client, shard, 2000)
    assert await client.latest("orders", 0) == 10
    shard.limbo = True
    appender = client.appender("orders")
    waiting = appender.append_nowait(b"a")
    await until(lambda: shard.undecided)
    assert await client.latest("orders", 0) == 10
    shard.confirm()
    await waiting
    assert await client.latest("orders", 0) == 11
    with pytest.raises(errors.UnknownShard):
        await client.latest("orders", 3)
    shard.leader = ""
    cluster.push()
    await until(lambda: client.routing.leader("orders", 0) is None)
    with pytest.raises(errors.Unavailable):
        await client.latest("orders", 0, timeout_s=0.2)


async def test_the_first_offset_logged_at_a_time_or_later(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    for logged_ms in (2000, 3000, 3000, 5000):
        await append_at(client, shard, logged_ms, 20)  # 1-20, 21-40, 41-60, 61-80
    expected = {0: 0, 1000: 0, 1001: 1, 2000: 1, 2001: 21, 3000: 21, 3001: 61, 5000: 61, 5001: 81}
    found = {at: await client.offset_at("orders", 0, at * 1000) for at in expected}
    assert found == expected
    assert await client.offset_at("orders", 0, 2_000_001) == 21, "a fraction of a millisecond later"
    later = datetime.datetime.fromtimestamp(3, datetime.UTC)
    records = [record async for record in client.read("orders", from_=await client.offset_at("orders", 0, later))]
    assert [record.offset for record in records] == list(range(21, 81))
    shard.trimmed_to = 31
    assert await client.offset_at("orders", 0, 0) == 31
    assert await client.offset_at("orders", 0, 5_000_000) == 61
    with pytest.raises(errors.InvalidArgument, match="time zone"):
        await client.offset_at("orders", 0, datetime.datetime(2026, 1, 1))
    with pytest.raises(errors.InvalidArgument, match="timestamp"):
        await client.offset_at("orders", 0, None)


async def test_the_first_offset_that_retention_has_left(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    await append_at(client, shard, 2000, 20)
    assert await client.earliest("orders", 0) == 0
    shard.trimmed_to = 5
    assert await client.earliest("orders", 0) == 5
    shard.trimmed_to = shard.head + 1
    assert await client.earliest("orders", 0) == 21 == await client.latest("orders", 0) + 1
    shard.entries.clear()
    assert await client.earliest("orders", 0) == 0, "a log without any entry"
    with pytest.raises(errors.UnknownShard):
        await client.earliest("orders", 1)


async def test_a_time_may_lie_in_a_hole(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    await append_at(client, shard, 2000)
    shard.limbo, shard.logged_ms = True, 3000
    appender = client.appender("orders", batch_records=10, on_rollback="raise")
    waiting = asyncio.create_task(appender.append_batch([b"lost"] * 30))
    await until(lambda: len(shard.undecided) == 3)
    shard.logged_ms = 4000
    shard.begin_rollback(11)
    shard.finish_rollback()
    with pytest.raises(errors.RolledBack):
        await waiting
    shard.limbo = False
    await append_at(client, shard, 5000)  # 42-51
    found = [await client.offset_at("orders", 0, at * 1000) for at in (2000, 2500, 3000, 4000, 4500, 5000, 6000)]
    assert found == [1, 11, 11, 11, 42, 42, 52]
