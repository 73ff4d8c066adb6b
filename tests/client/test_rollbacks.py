"""Appender against a limbo: quorum timeouts, rollbacks and retries in order, whatever is lost in between."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

import pytest
import tidemark
from fake_cluster import FakeCluster, FakeShard
from tidemark import COMMIT, LOCAL, QUORUM, errors
from tidemark.appending import batches
from tidemark.batch import ReadBatch
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing.messages import Settings

from tests.waiting import PATIENCE_S, remains, until


def log_of(shard: FakeShard) -> list[bytes]:
    """Values in the log that are not rolled back."""
    return [
        record.value
        for entry in shard.entries
        if entry.kind is Kind.DATA and shard.covering(entry.base) is None
        for record in ReadBatch(shard.index, entry, entry.base, entry.last).records()
    ]


@pytest.fixture
async def one(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard]:
    """Three nodes and one shard whose appends wait for their fate."""
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    shard.limbo = True
    return cluster, client, shard


def single(client: tidemark.Client, **options: object) -> tidemark.Appender:
    return client.appender("orders", batch_records=1, linger_ms=0, **options)


# --- quorum timeouts ------------------------------------------------------------------------------------------


async def test_a_quorum_timeout_is_asked_again_and_the_fate_is_the_answer(one):
    _, client, shard = one
    async with single(client) as appender:
        waiting = asyncio.create_task(appender.append(b"a"))
        await until(lambda: shard.sent)
        shard.time_out()
        await until(lambda: len(shard.sent) == 2)
        assert shard.sent[0] == shard.sent[1], "the same sequence is asked again, never a new one"
        assert not waiting.done()
        shard.confirm()
        place = await waiting
        assert (place.producer, place.sequence) == shard.sent[0]
        assert place.durability is QUORUM
        assert appender.quorum_timeouts == 1
    assert log_of(shard) == [b"a"]


async def test_a_leader_that_does_not_know_is_not_asked_without_pause(one):
    _, client, shard = one
    appender = single(client)
    waiting = appender.append_nowait(b"a")
    for _ in range(5):
        await until(lambda: any(shard.undecided.values()))
        shard.time_out()
    asked_in_a_row = len(shard.sent)
    started = asyncio.get_running_loop().time()
    await until(lambda: any(shard.undecided.values()))
    for _ in range(3):
        shard.time_out()
        await until(lambda: any(shard.undecided.values()))
    assert asyncio.get_running_loop().time() - started >= 0.25
    assert asked_in_a_row <= 6
    shard.confirm()
    assert (await waiting).offset == 1, "and asking often is no trouble that backs off"
    await appender.close()


async def test_waiting_ends_with_the_appenders_time_and_names_the_batch(one):
    _, client, shard = one
    async with single(client, timeout_s=0.4) as appender:
        waiting = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.time_out()
        with pytest.raises(errors.OutcomeUnknown, match="QUORUM_TIMEOUT") as caught:
            await waiting
    error = caught.value
    assert (error.group, error.shard, error.producer, error.sequence) == ("orders", 0, *shard.sent[0])


async def test_raise_tells_callers_at_once_and_the_lane_goes_on(one):
    _, client, shard = one
    async with single(client, on_quorum_timeout="raise") as appender:
        first = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.time_out()
        with pytest.raises(errors.QuorumTimeout) as caught:
            await first
        assert isinstance(caught.value, errors.OutcomeUnknown)
        assert (caught.value.producer, caught.value.sequence) == shard.sent[0]
        assert caught.value.reason == "QUORUM_TIMEOUT"
        assert appender.buffered_bytes == 0
        second = appender.append_nowait(b"b")
        await until(lambda: len(shard.sent) == 2)
        assert shard.sent[1] == (shard.sent[0][0], 1), "the first one's sequence stays used"
        shard.confirm()
        assert (await second).offset == 2
    assert log_of(shard) == [b"a", b"b"], "the outcome was unknown, and this is what it came to"


async def test_an_undecided_batch_that_a_failover_lost_fills_its_place_again(one):
    cluster, client, shard = one
    losses: list[errors.LocalAppendsLost] = []
    async with single(client, on_quorum_timeout="raise", on_loss=losses.append) as appender:
        await until(lambda: client.routing.leader("orders", 0))
        first = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.time_out()
        with pytest.raises(errors.QuorumTimeout):
            await first
        second = appender.append_nowait(b"b")
        await until(lambda: len(shard.sent) == 2)
        shard.resign()
        shard.drop_last(2)
        shard.limbo = False
        cluster.elect(shard, "n1")
        assert (await asyncio.wait_for(second, PATIENCE_S)).sequence == 1
        assert len({producer for producer, _ in shard.sent}) == 1
    assert log_of(shard) == [b"a", b"b"]
    assert losses == [], "nothing that was acknowledged is gone"


async def test_more_undecided_batches_than_the_cluster_remembers_are_left_behind_in_silence(one):
    cluster, client, shard = one
    losses: list[errors.LocalAppendsLost] = []
    async with single(client, on_quorum_timeout="raise", on_loss=losses.append) as appender:
        for number in range(7):
            waiting = appender.append_nowait(b"%d" % number)
            await until(lambda: any(shard.undecided.values()))
            shard.time_out()
            with pytest.raises(errors.QuorumTimeout):
                await waiting
        shard.drop_last(7)
        shard.limbo = False
        cluster.elect(shard, "n1")
        await client.routing.refresh()   # what goes to the old leader first may be in its log (L25)
        assert (await asyncio.wait_for(appender.append(b"after"), PATIENCE_S)).sequence == 0
        assert appender.lost_local_records == 0
    assert losses == []
    assert log_of(shard) == [b"after"]


async def test_a_long_quorum_timeout_is_no_dead_stream(connect_to, monkeypatch):
    monkeypatch.setattr(batches, "Settings", partial(Settings, stalled_ms=50, abandoned_ms=50))
    cluster, client = await connect_to(nodes=1, shards=1, quorum_timeout_ms=600)
    shard = cluster.groups["orders"][0]
    shard.limbo = True
    async with single(client) as appender:
        began = time.monotonic()
        waiting = appender.append_nowait(b"a")
        await until(lambda: cluster.nodes["n0"].streams == 2)
        assert time.monotonic() - began >= 0.6, "a leader may take the quorum timeout to answer"
        shard.confirm()
        await waiting


# --- rollbacks --------------------------------------------------------------------------------------------------


async def three_in_limbo_and_a_fourth_refused(
    appender: tidemark.Appender, shard: FakeShard
) -> tuple[list[asyncio.Future], int]:
    futures = [appender.append_nowait(value) for value in (b"a", b"b", b"c")]
    await until(lambda: len(shard.sent) == 3)
    shard.limbo = False
    at = shard.begin_rollback(1)
    futures.append(appender.append_nowait(b"d"))
    await until(lambda: len(shard.sent) == 4)
    return futures, at


async def test_rolled_back_batches_go_out_again_in_order_before_the_one_that_was_refused(one):
    _, client, shard = one
    async with single(client) as appender:
        futures, at = await three_in_limbo_and_a_fourth_refused(appender, shard)
        await remains(lambda: len(shard.sent) == 4, "the fate of those in front is waited for")
        shard.finish_rollback()
        places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
        assert log_of(shard) == [b"a", b"b", b"c", b"d"]
        assert [place.offset for place in places] == [at + 1, at + 2, at + 3, at + 4]
        assert [place.sequence for place in places] == [3, 4, 5, 6], "used sequences are not used again"
        assert shard.marks == [-1, -1, -1, -1, at, at, at, at]
        assert appender.rolled_back_batches == 3


async def test_no_batch_takes_the_sequence_of_one_that_may_have_been_appended(one):
    """The answer to the fourth is lost, so it may be behind the three in the log: it is asked about first."""
    _, client, shard = one
    async with single(client) as appender:
        futures = [appender.append_nowait(value) for value in (b"a", b"b", b"c")]
        await until(lambda: len(shard.sent) == 3)
        futures.append(appender.append_nowait(b"d"))
        await until(lambda: len(shard.sent) == 4)
        at = shard.begin_rollback(1)
        for base in (1, 2, 3):
            shard._answer(base, Refused(Reason.ROLLED_BACK, "rolled back", 1, at))
        shard.final.add(at)
        await until(lambda: appender.rolled_back_batches == 3)
        shard.limbo = False
        client.links.to(one[0].nodes["n0"].address).abort("test cuts the stream")
        await until(lambda: len(shard.sent) >= 5)
        assert shard.sent[4][1] == 3, "the fourth is asked about under its old sequence"
        assert shard.marks[4] == -1
        shard.finish_rollback()
        places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    assert log_of(shard) == [b"a", b"b", b"c", b"d"]
    assert [place.sequence for place in places] == [4, 5, 6, 7]


async def test_a_fourth_that_never_arrived_is_asked_about_too(one):
    cluster, client, shard = one
    async with single(client) as appender:
        futures = [appender.append_nowait(value) for value in (b"a", b"b", b"c")]
        await until(lambda: len(shard.sent) == 3)
        shard.deaf = True
        futures.append(appender.append_nowait(b"d"))
        await until(lambda: len(shard.sent) == 4)
        shard.deaf = shard.limbo = False
        at = shard.begin_rollback(1)
        shard.finish_rollback()
        await until(lambda: appender.rolled_back_batches == 3)
        client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
        places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    assert shard.marks == [-1, -1, -1, -1, -1, at, at, at, at]
    assert log_of(shard) == [b"a", b"b", b"c", b"d"]
    assert [place.sequence for place in places] == [3, 4, 5, 6]


async def test_raise_tells_callers_and_the_refused_batch_goes_on_behind_the_rollback(one):
    _, client, shard = one
    async with single(client, on_rollback="raise") as appender:
        futures, at = await three_in_limbo_and_a_fourth_refused(appender, shard)
        shard.finish_rollback()
        for number, future in enumerate(futures[:3]):
            with pytest.raises(errors.RolledBack) as caught:
                await future
            error = caught.value
            assert (error.group, error.shard, error.sequence, error.rolled_back_at) == ("orders", 0, number, at)
            assert error.producer == shard.sent[0][0]
        assert (await asyncio.wait_for(futures[3], PATIENCE_S)).sequence == 3, "refused before the append, so unused"
        assert (await appender.append(b"e")).sequence == 4
        assert shard.marks[-2:] == [at, at]
    assert log_of(shard) == [b"d", b"e"]


async def test_after_raised_timeouts_the_lane_resumes_behind_a_rollback_it_only_hears_of(one):
    _, client, shard = one
    async with single(client, on_quorum_timeout="raise") as appender:
        first = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.time_out()
        with pytest.raises(errors.QuorumTimeout) as caught:
            await first
        shard.limbo = False
        at = shard.begin_rollback(1)
        place = await asyncio.wait_for(appender.append(b"b"), PATIENCE_S)
        assert (place.sequence, shard.marks) == (1, [-1, -1, at])
        shard.finish_rollback()
        outcome = await client.outcome("orders", 0, caught.value.producer, caught.value.sequence)
        assert (outcome.fate, outcome.rolled_back_at) == (tidemark.Fate.ROLLED_BACK, at)
    assert log_of(shard) == [b"b"]


async def test_when_time_is_over_and_no_new_try_was_taken_rolled_back_is_the_truth(one):
    _, client, shard = one
    async with single(client, timeout_s=0.5) as appender:
        futures, _ = await three_in_limbo_and_a_fourth_refused(appender, shard)
        shard.refusals.extend([Refused(Reason.ROLLING_BACK, "being written", 1, -1, 10)] * 1000)
        shard.finish_rollback()
        for future in futures[:3]:
            with pytest.raises(errors.RolledBack):
                await asyncio.wait_for(future, PATIENCE_S)
        with pytest.raises(errors.Unavailable, match="nothing of it was appended"):
            await futures[3]
        await remains(lambda: log_of(shard) == [])
        shard.refusals.clear()
        await appender.append(b"next")
        assert appender.buffered_bytes == 0
    assert log_of(shard) == [b"next"], "what callers were told is gone never comes back"


async def test_a_rollback_heard_of_after_time_was_over_is_not_retried(one):
    _, client, shard = one
    async with single(client, timeout_s=2.0) as appender:
        late = appender.append_nowait(b"late")
        await remains(lambda: not late.done(), for_s=1.0)  # so much longer than it the next one has
        futures = [appender.append_nowait(b"in time")]
        with pytest.raises(errors.OutcomeUnknown):
            await late
        shard.limbo = False
        shard.begin_rollback(1)
        shard.finish_rollback()
        await asyncio.gather(*futures)
    assert log_of(shard) == [b"in time"]


async def test_a_rollback_of_a_batch_given_up_lets_nobody_pass_those_behind_it(one):
    cluster, client, shard = one
    async with single(client, timeout_s=2.0) as appender:
        late = appender.append_nowait(b"late")
        await remains(lambda: not late.done(), for_s=1.0)  # so much longer than it the next ones have
        futures = [appender.append_nowait(value) for value in (b"b", b"c")]
        await until(lambda: len(shard.sent) == 3)
        shard.deaf = True
        futures.append(appender.append_nowait(b"d"))
        await until(lambda: len(shard.sent) == 4)
        shard.deaf = shard.limbo = False
        with pytest.raises(errors.OutcomeUnknown):
            await late
        at = shard.begin_rollback(1)
        shard._answer(1, Refused(Reason.ROLLED_BACK, "rolled back", 1, at))
        await until(lambda: appender.rolled_back_batches == 1)
        client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
        await until(lambda: len(shard.sent) == 7)
        shard.finish_rollback()
        await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    assert log_of(shard) == [b"b", b"c", b"d"]


async def test_a_batch_that_may_have_been_taken_is_unknown_when_its_time_is_over(one):
    cluster, client, shard = one
    shard.limbo, shard.silent = False, 1
    async with single(client, timeout_s=0.5) as appender:
        waiting = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.refusals.extend([Refused(Reason.OVERLOADED, "full", 1, -1, 20)] * 1000)
        client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
        with pytest.raises(errors.OutcomeUnknown):
            await waiting
        shard.refusals.clear()
    assert log_of(shard) == [b"a"]


async def test_a_deposed_leaders_refusal_says_nothing_of_the_try_that_is_under_way(one):
    cluster, client, shard = one
    async with single(client, timeout_s=3.0, on_quorum_timeout="raise") as appender:
        first = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.time_out()
        with pytest.raises(errors.QuorumTimeout):
            await first
        shard.begin_rollback(1)
        cluster.nodes["n0"].paused.clear()
        deposed = client.links.to(cluster.nodes["n0"].address)
        answered_at = deposed.answered_at
        second = appender.append_nowait(b"b")
        await until(lambda: len(shard.sent) == 2)
        shard.limbo, shard.silent = False, 1
        shard.drop_last(1)
        cluster.elect(shard, "n1")
        client.routing.refresh_soon()  # its watch may be at n0, which is paused
        await until(lambda: len(shard.sent) == 3)  # taken by n1, which does not answer
        shard.refusals.extend([Refused(Reason.OVERLOADED, "full", 2, -1, 20)] * 1000)
        cluster.nodes["n0"].paused.set()
        await until(lambda: deposed.answered_at > answered_at)
        client.links.to(cluster.nodes["n1"].address).abort("test cuts the stream")
        with pytest.raises(errors.OutcomeUnknown):
            await second
        shard.refusals.clear()
    assert b"b" in log_of(shard)


async def test_a_rollback_told_by_two_leaders_is_one(one):
    cluster, client, shard = one
    async with single(client) as appender:
        cluster.nodes["n0"].paused.clear()
        waiting = appender.append_nowait(b"a")
        await until(lambda: shard.sent)
        shard.begin_rollback(1)
        cluster.nodes["n1"].delay_s = 0.3
        cluster.elect(shard, "n1")
        client.routing.refresh_soon()  # its watch may be at n0, which is paused
        await until(lambda: len(shard.sent) == 2)
        shard.limbo = False
        shard.finish_rollback()
        cluster.nodes["n0"].paused.set()
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert appender.rolled_back_batches == 1
    assert log_of(shard) == [b"a"]


async def test_rolling_back_is_retried_here(one):
    cluster, client, shard = one
    shard.limbo = False
    shard.refusals.extend([Refused(Reason.ROLLING_BACK, "being written", 1, -1, 10)] * 3)
    async with single(client) as appender:
        await appender.append(b"a")
        assert len(shard.sent) == 4
        assert cluster.nodes["n0"].streams == 1
    assert log_of(shard) == [b"a"]


# --- failovers in between -----------------------------------------------------------------------------------------


async def test_a_failover_that_lost_some_of_the_undecided_gets_them_again(one):
    cluster, client, shard = one
    async with single(client) as appender:
        futures = [appender.append_nowait(value) for value in (b"a", b"b", b"c", b"d")]
        await until(lambda: len(shard.sent) == 4)
        shard.time_out()
        shard.drop_last(2)  # the new leader asks for the third: a gap to a sequence without a fate
        shard.refusals.append(Refused(Reason.SEQUENCE_GAP, "expected 2", 2, 2))
        cluster.elect(shard, "n1")
        await until(lambda: len(shard.undecided) == 4)
        shard.confirm()
        places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    assert log_of(shard) == [b"a", b"b", b"c", b"d"]
    assert [place.sequence for place in places] == [0, 1, 2, 3]


async def test_a_rollback_that_a_failover_lost_never_happened(one):
    cluster, client, shard = one
    async with single(client) as appender:
        futures, _ = await three_in_limbo_and_a_fourth_refused(appender, shard)
        shard.time_out()
        shard.drop_last(1)  # the rollback record
        cluster.elect(shard, "n2")
        await until(lambda: all(shard.undecided.values()))
        shard.confirm()
        places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    assert log_of(shard) == [b"a", b"b", b"c", b"d"]
    assert [place.sequence for place in places] == [0, 1, 2, 3], "each in its first place"
    assert set(shard.marks) == {-1}, "the mark of a rollback that is gone is not sent"


@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_random_fates_and_failovers_keep_every_outcome_true(connect_to, seed):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    shard.limbo = True
    dice = random.Random(seed)

    async def fate() -> None:
        while any(not task.done() for task in writers):
            await asyncio.sleep(dice.uniform(0.001, 0.02))
            what = dice.randrange(12)
            open_bases = [base for base in shard.undecided if shard.covering(base) is None]
            unfinished = [at for _, at in shard.rollbacks if at not in shard.final]
            if what < 4:
                shard.confirm()
            elif what < 6:
                shard.time_out()
            elif what < 8 and open_bases and not unfinished:
                shard.begin_rollback(min(open_bases))
            elif what < 10:
                shard.finish_rollback()
            elif what == 10:
                client.links.to(cluster.nodes[shard.leader].address).abort("test cuts the stream")
            else:
                shard.resign()
                if dice.random() < 0.5:
                    keep = max((entry.last for entry in shard.entries if entry.last <= shard.readable), default=-1)
                    newer = [entry for entry in shard.entries if entry.last > keep]
                    shard.drop_last(dice.randrange(len(newer) + 1))
                cluster.elect(shard, f"n{dice.randrange(3)}", push=dice.random() < 0.8)
                await asyncio.sleep(dice.uniform(0, 0.01))
                shard.finish_rollback()  # the election's first entry is committed: it settles what is inherited
                shard.confirm()

    async with client.appender("orders", batch_records=4, linger_ms=1, timeout_s=60) as appender:
        async def write(writer: int) -> None:
            for number in range(0, 240, 4):
                futures = [
                    appender.append_nowait(b"%d:%d" % (writer, number + step), key=b"w%d" % writer)
                    for step in range(4)
                ]
                await asyncio.gather(*futures)

        writers = [asyncio.create_task(write(writer)) for writer in range(6)]
        await asyncio.wait_for(asyncio.gather(*writers, fate()), 60)
    values = [value.decode() for value in log_of(shard)]
    assert len(shard.final) > 5
    assert len(values) == len(set(values)) == 6 * 240
    by_writer: dict[str, list[int]] = {}
    for value in values:
        writer, number = value.split(":")
        by_writer.setdefault(writer, []).append(int(number))
    assert all(numbers == list(range(240)) for numbers in by_writer.values()), "order holds for every key"


# --- options --------------------------------------------------------------------------------------------------------


async def test_commit_durability_is_accepted_and_reported_as_what_it_is(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders", durability="commit") as appender:
        assert (await appender.append(b"a")).durability is COMMIT
        shard.limbo = True
        waiting = appender.append_nowait(b"b")
        await until(lambda: shard.undecided)
        shard.confirm()
        assert (await waiting).durability is COMMIT, "the synchro quorum was not waited for, so it is not claimed"
        shard.limbo = False
        assert (await appender.append(b"c", durability="local")).durability is LOCAL
    kinds = [entry.durability for entry in shard.entries if entry.kind is Kind.DATA]
    assert kinds == [COMMIT, COMMIT, LOCAL]


async def test_the_groups_default_may_be_commit(connect_to):
    _, client = await connect_to(nodes=1, shards=1, default_ack="Commit")
    assert client.appender("orders").durability is COMMIT


@pytest.mark.parametrize("field", ["on_quorum_timeout", "on_rollback"])
async def test_wrong_words_name_their_option(client, field):
    with pytest.raises(errors.InvalidArgument, match=f"{field}: 'never' is not one of"):
        client.appender("orders", **{field: "never"})


async def test_batches_name_their_producer_and_sequence(cluster, client):
    async with client.appender("orders") as appender:
        answer = await appender.append_batch([b"x"] * 5)
    assert {(place.producer, place.sequence) for place in answer} == set(answer.batches)
    assert len(answer.batches) == len(answer.ranges) == 1
    assert answer[3] == list(answer)[3]
