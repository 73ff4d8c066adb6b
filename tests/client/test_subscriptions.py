"""Reads under a name: they begin where it stands, and commit what the application is done with, no more."""

from __future__ import annotations

import asyncio
import logging

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeShard
from tidemark import GapKind, errors
from tidemark_core.base.refusals import Reason, Refused

from tests.waiting import remains, until

WEEK_MS = 7 * 86_400_000


@pytest.fixture
async def filled(connect_to) -> tuple[FakeShard, tidemark.Client]:
    """One shard with an EPOCH_START and 50 records in batches of ten: offsets 1 to 50."""
    cluster, client = await connect_to(nodes=3, shards=1)
    async with client.appender("orders", batch_records=10) as appender:
        for start in range(0, 50, 10):
            await appender.append_batch([str(number).encode() for number in range(start, start + 10)])
    return cluster.groups["orders"][0], client


@pytest.fixture(params=["leader", "scd"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_a_name_goes_on_where_it_was(filled, mode):
    shard, client = filled
    first = [record.offset async for record in client.read("orders", mode=mode, subscription="one", until=25)]
    assert list(range(1, 26)) == first
    assert {"one": (26, WEEK_MS)} == shard.positions
    again = client.read("orders", mode=mode, subscription="one", lease_s=60)
    assert list(range(26, 51)) == [record.offset async for record in again]
    assert {"one": (51, 60_000)} == shard.positions
    assert [] == [record async for record in client.read("orders", mode=mode, subscription="one", from_=3)]
    assert [50] == [r.offset async for r in client.read("orders", mode=mode, subscription="two", from_=50)]


async def test_what_was_handed_out_last_is_not_done_until_more_is_asked_for(filled, mode):
    """Whoever dies with a record in hand reads it again."""
    shard, client = filled
    reader = client.read("orders", mode=mode, subscription="one")
    async for record in reader:
        if record.offset == 17:
            break
    await reader.close()
    assert {"one": (17, WEEK_MS)} == shard.positions


async def test_an_explicit_commit_covers_what_is_in_hand_and_no_more(filled, mode):
    shard, client = filled
    async with client.read("orders", mode=mode, subscription="one", auto_commit_s=None) as reader:
        async for record in reader:
            if record.offset == 17:
                await reader.commit()
                assert [("one", 18)] == shard.commits
            if record.offset == 30:
                break
    assert {"one": (18, WEEK_MS)} == shard.positions, "without auto-commit closing commits nothing"


async def test_batches_are_done_when_the_next_is_asked_for(filled):
    shard, client = filled
    reader = client.read("orders", subscription="one")
    assert [10, 20] == [batch.last for batch in [*await reader.next_batches(1), *await reader.next_batches(1)]]
    await reader.close()
    assert {"one": (11, WEEK_MS)} == shard.positions


async def test_positions_may_be_named_and_marked(filled):
    shard, client = filled
    reader = client.read("orders", subscription="one", auto_commit_s=None)
    await reader.next_batches(1)
    await reader.commit({0: 4})
    assert 4 == shard.positions["one"][0]
    with pytest.raises(errors.InvalidArgument, match="positions"):
        await reader.commit({0: -1})
    with pytest.raises(errors.InvalidArgument, match="shards"):
        await reader.commit({7: 4})
    await reader.close()
    marked = client.read("orders", subscription="one")
    await marked.next_batches(1)
    marked.mark(0, 7)
    await marked.close()
    assert 7 == shard.positions["one"][0]


async def test_a_reader_commits_by_itself_and_only_what_is_news(filled):
    shard, client = filled
    reader = client.read("orders", subscription="one", until=None, auto_commit_s=0.02)
    for _ in range(5):
        await reader.next_batches(1)
    await until(lambda: shard.positions.get("one", (0,))[0] == 41)
    await remains(
        lambda: 41 == shard.commits[-1][1] and len(shard.commits) == len(set(shard.commits)),
        "a reader that stands still says nothing",
    )
    await reader.close()


async def test_a_reader_that_stands_still_renews_its_lease(filled):
    shard, client = filled
    shard.positions["one"] = 51, 1_000
    reader = client.read("orders", subscription="one", until=None, lease_s=1, auto_commit_s=0.02)
    waiting = asyncio.create_task(reader.next_batches(1))
    await until(lambda: len(shard.commits) >= 2)
    assert {("one", 51)} == set(shard.commits)
    await reader.close()
    assert [] == await waiting


async def test_a_name_that_never_read_anything_is_not_committed(connect_to):
    cluster, client = await connect_to(nodes=1, shards=2)
    async with client.read("orders", subscription="one") as reader:
        assert [] == [record async for record in reader]
    assert [{}, {}] == [shard.positions for shard in cluster.groups["orders"].values()]
    with pytest.raises(errors.InvalidArgument, match="subscription"):
        await client.read("orders").commit()


async def test_commits_follow_the_leader(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"a")
    shard.commit_refusals.append(Refused(Reason.BEHIND, "not confirmed yet", 1, -1, 1))
    reader = client.read("orders", subscription="one", auto_commit_s=None, mode="leader")
    await reader.next_batches(1)
    await cluster.nodes["n0"].kill()
    cluster.elect(shard, "n1")
    await reader.commit()
    assert {"one": (2, WEEK_MS)} == shard.positions
    await reader.close()


async def test_what_cannot_be_committed_ends_the_read(filled):
    shard, client = filled
    shard.commit_refusals.append(Refused(Reason.TOO_MANY_SUBSCRIPTIONS, "the shard holds 1000 subscriptions"))
    reader = client.read("orders", subscription="one", until=None, auto_commit_s=0.02)
    with pytest.raises(errors.RequestRefused, match="1000 subscriptions") as caught:
        while True:
            await reader.next_batches(1)
    assert "TOO_MANY_SUBSCRIPTIONS" == caught.value.reason
    await reader.close()


async def test_a_last_commit_that_fails_is_told_and_closing_goes_on(filled, caplog):
    shard, client = filled
    reader = client.read("orders", subscription="one")
    await reader.next_batches(1)
    reader.mark(0, 5)
    shard.commit_refusals.append(Refused(Reason.INVALID_SPEC, "no such thing"))
    with caplog.at_level(logging.WARNING, "tidemark.subscription"):
        await reader.close()
    assert "the last commit failed" in caplog.text
    assert {} == shard.positions


async def test_two_readers_of_one_name_are_told_and_the_furthest_counts(filled, caplog):
    shard, client = filled
    with caplog.at_level(logging.WARNING, "tidemark.subscription"):
        reader = client.read("orders", subscription="one", auto_commit_s=None)
        await reader.next_batches(1)
        await client.commit_position("orders", 0, "one", 40)
        await reader.commit()
        await reader.commit()
        await reader.close()
    assert 1 == caplog.text.count("another reader uses the name")
    assert 40 == shard.positions["one"][0]


async def test_an_overrun_reader_meets_one_gap(filled, mode):
    shard, client = filled
    shard.positions["one"] = 5, WEEK_MS
    shard.trimmed_to = 21
    with pytest.raises(errors.Trimmed) as caught:
        [record async for record in client.read("orders", mode=mode, subscription="one")]
    assert 21 == caught.value.first
    seen = [item async for item in client.read("orders", mode=mode, subscription="one", gaps=True)]
    assert (GapKind.TRIM, 5, 20) == (seen[0].kind, seen[0].first, seen[0].last)
    assert list(range(21, 51)) == [record.offset for record in seen[1:]]
    assert 51 == shard.positions["one"][0]


async def test_subscriptions_are_listed_and_deleted(connect_to):
    cluster, client = await connect_to(nodes=3, shards=2)
    one, two = cluster.groups["orders"].values()
    one.positions = {"a": (0, WEEK_MS), "b": (1, WEEK_MS)}
    two.positions = {"b": (2, WEEK_MS)}
    seen = await client.subscriptions("orders")
    assert {0: {"a": 0, "b": 1}, 1: {"b": 2}} == {
        shard: {each.name: each.offset for each in view.subscriptions} for shard, view in seen.items()
    }
    assert [0] == list(await client.subscriptions("orders", shards=[0]))
    assert [0] == await client.delete_subscription("orders", "a")
    assert [0, 1] == await client.delete_subscription("orders", "b")
    assert [] == await client.delete_subscription("orders", "b")
    assert 1 == await client.commit_position("orders", 1, "c", 1, lease_s=60)
    assert 1 == await client.commit_position("orders", 1, "c", 0)
    assert 0 == await client.commit_position("orders", 1, "c", 0, seek=True)
    with pytest.raises(errors.UnknownShard):
        await client.subscriptions("orders", shards=[7])


@pytest.mark.parametrize(("options", "field"), [
    ({"subscription": ""}, "subscription"), ({"subscription": "a/b"}, "subscription"), ({"subscription": 7}, "subscr"),
    ({"subscription": "a" * 129}, "subscription"), ({"subscription": "a", "lease_s": 0.5}, "lease_s"),
    ({"subscription": "a", "lease_s": 1e12}, "lease_s"), ({"subscription": "a", "lease_s": "7d"}, "lease_s"),
    ({"subscription": "a", "auto_commit_s": 0}, "auto_commit_s"),
])
async def test_options_that_cannot_be_are_refused_by_name(client, options, field):
    with pytest.raises(errors.InvalidArgument, match=field):
        client.read("orders", **options)


async def test_positions_and_names_that_cannot_be_are_refused(client):
    with pytest.raises(errors.InvalidArgument, match="offset"):
        await client.commit_position("orders", 0, "a", -1)
    with pytest.raises(errors.InvalidArgument, match="subscription"):
        await client.delete_subscription("orders", "a b")


async def test_the_waiting_face_commits_what_was_yielded(filled):
    _, client = filled
    addresses = [node.address for node in client.shard_map.nodes]

    def work() -> list[object]:
        with tidemark.sync.connect(addresses) as waiting:
            reader = waiting.read("orders", subscription="one")
            for record in reader:
                if record.offset == 17:
                    break
            reader.close()
            found: list[object] = [waiting.subscriptions("orders")[0].subscriptions[0].offset]
            reader = waiting.read("orders", subscription="one", auto_commit_s=None)
            for record in reader:
                if record.offset == 33:
                    reader.commit()
                    break
            reader.close()
            found.append(waiting.subscriptions("orders")[0].subscriptions[0].offset)
            reader = waiting.read("orders", subscription="one")
            for batch in reader.batches():
                if batch.last == 50:
                    break
            reader.close()
            found.append(waiting.commit_position("orders", 0, "one", 0))
            found.append(waiting.delete_subscription("orders", "one"))
            return found

    assert [17, 34, 41, [0]] == await asyncio.to_thread(work)


async def test_whoever_closes_second_waits_for_the_last_commit_too(filled):
    """An iteration that was left closes the reader behind the scenes; the client must not cut its commit off."""
    shard, client = filled
    reader = client.read("orders", subscription="one")
    await reader.next_batches(1)
    reader.mark(0, 5)
    left = asyncio.create_task(reader.close())
    await asyncio.sleep(0)
    await client.close()
    assert {"one": (5, WEEK_MS)} == shard.positions
    await left
