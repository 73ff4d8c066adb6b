"""Appender against nodes that keep the producer rules: order, coalescing, retries, exactly once, bounds."""

from __future__ import annotations

import asyncio
import random

import pytest
import tidemark
from fake_cluster import FakeCluster, FakeShard
from tidemark import LOCAL, QUORUM, Record, errors
from tidemark.batch import ReadBatch
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.producers import ProducerTable

from tests.waiting import PATIENCE_S, remains, until


def stored(shard: FakeShard) -> list[Record]:
    return [
        record
        for entry in shard.entries
        if entry.kind is Kind.DATA
        for record in ReadBatch(shard.index, entry, entry.base, entry.last).records()
    ]


def everything(cluster: FakeCluster) -> list[Record]:
    return [record for shard in cluster.groups["orders"].values() for record in stored(shard)]


# --- the plain path -----------------------------------------------------------------------------------------


async def test_append_says_where_the_record_lies(cluster, client):
    async with client.appender("orders") as appender:
        place = await appender.append(b"value", key=b"key", headers={"trace": b"7"}, timestamp=1_700_000_000_000_000)
    (record,) = stored(cluster.groups["orders"][place.shard])
    assert (place.shard, place.offset, place.epoch) == (record.shard, record.offset, record.epoch)
    assert record[:4] == (b"value", b"key", 1_700_000_000_000_000, (("trace", b"7"),))
    assert place.durability is QUORUM


async def test_keys_go_to_their_hash_range_and_keyless_batches_go_round(cluster, client):
    async with client.appender("orders") as appender:
        by_key = [await appender.append(b"x", key=b"same") for _ in range(5)]
        assert len({place.shard for place in by_key}) == 1
        assert [place.offset for place in by_key] == [by_key[0].offset + step for step in range(5)]
        keyless = [await appender.append(b"y") for _ in range(8)]
        assert sorted(place.shard for place in keyless) == [0, 0, 1, 1, 2, 2, 3, 3]
        whole = await appender.append_batch([b"z"] * 50)
        assert len(whole.ranges) == 1, "a keyless batch stays whole"


async def test_append_batch_answers_every_record_in_the_order_given(cluster, client):
    records = [Record(f"v{number}".encode(), f"k{number % 40}".encode()) for number in range(5000)]
    async with client.appender("orders", batch_records=100) as appender:
        answer = await appender.append_batch(records)
    assert len(answer) == len(records)
    written = {(record.shard, record.offset): record.value for record in everything(cluster)}
    assert [written[place.shard, place.offset] for place in answer] == [record.value for record in records]
    assert answer[4999] == list(answer)[4999]
    assert answer[-2:] == list(answer)[-2:]


async def test_records_of_one_key_keep_their_order_while_many_batches_fly(cluster, client):
    async with client.appender("orders", batch_records=7, linger_ms=0) as appender:
        futures = [appender.append_nowait(str(number).encode(), key=b"k") for number in range(1000)]
        await asyncio.gather(*futures)
    values = [int(record.value) for record in everything(cluster)]
    assert values == list(range(1000))


async def test_many_small_writers_share_few_batches(cluster, client):
    async def write(appender: tidemark.Appender) -> None:
        for _ in range(50):
            await appender.append(b"x" * 100)

    async with client.appender("orders") as appender:
        await asyncio.gather(*(write(appender) for _ in range(64)))
    assert len(everything(cluster)) == 3200
    assert sum(node.calls for node in cluster.nodes.values()) < 400


async def test_while_no_slot_is_free_records_share_larger_batches(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.nodes["n0"].delay_s = 0.02
    async with client.appender("orders", batch_records=10, linger_ms=0) as appender:
        await asyncio.gather(*(appender.append_nowait(b"x") for _ in range(2000)))
    counts = [entry.count for entry in cluster.groups["orders"][0].entries if entry.kind is Kind.DATA]
    assert sum(counts) == 2000
    assert counts[:5] == [10] * 5, "five batches fly at once"
    assert max(counts) == 40, "then batches grow, bounded"


async def test_at_most_five_batches_of_a_shard_are_unanswered(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.silent = 100
    appender = client.appender("orders", batch_records=1, linger_ms=0)
    futures = [appender.append_nowait(b"x") for _ in range(50)]
    await until(lambda: len(shard.sent) == 5)
    await remains(lambda: len(shard.sent) == 5)
    appender.abort(errors.Closed("done"))
    for future in futures:
        assert isinstance(future.exception(), errors.Closed)


async def test_durabilities_are_not_mixed_in_a_batch(cluster, client):
    async with client.appender("orders", linger_ms=50) as appender:
        first = appender.append_nowait(b"warm", key=b"k")
        futures = [
            appender.append_nowait(b"x", key=b"k", durability=LOCAL if number in (3, 4) else None)
            for number in range(8)
        ]
        answers = await asyncio.gather(first, *futures)
    assert [answer.durability for answer in answers[1:]] == [QUORUM] * 3 + [LOCAL] * 2 + [QUORUM] * 3
    shard = cluster.groups["orders"][answers[0].shard]
    runs = [(entry.durability, entry.count) for entry in shard.entries if entry.kind is Kind.DATA]
    assert sum(count for _, count in runs) == 9
    assert (LOCAL, 2) in runs


async def test_the_groups_default_durability_is_taken(connect_to):
    _, client = await connect_to(default_ack="Local")
    async with client.appender("orders") as appender:
        assert (await appender.append(b"x")).durability is LOCAL
        assert (await appender.append(b"x", durability="quorum")).durability is QUORUM


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_batches_come_back(cluster, client, compression):
    async with client.appender("orders", compression=compression) as appender:
        await appender.append_batch([Record(b"a" * 1000, b"k")] * 100)
    entry = max((e for s in cluster.groups["orders"].values() for e in s.entries), key=lambda entry: entry.count)
    assert len(entry.payload) < 20_000
    assert [record.value async for record in client.read("orders")] == [b"a" * 1000] * 100


# --- trouble --------------------------------------------------------------------------------------------------


async def test_a_retry_is_appended_once(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.silent = 3  # appended, and the answers are lost with the connection
    appender = client.appender("orders", batch_records=1, linger_ms=0)
    futures = [appender.append_nowait(str(number).encode()) for number in range(20)]
    await until(lambda: not shard.silent)
    client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
    places = await asyncio.gather(*futures)
    await appender.close()
    assert [record.value for record in stored(shard)] == [str(number).encode() for number in range(20)]
    assert [place.offset for place in places] == list(range(1, 21))
    assert cluster.nodes["n0"].streams == 2


@pytest.mark.parametrize(
    "reason", [Reason.NOT_LEADER, Reason.TRANSFERRING, Reason.OVERLOADED, Reason.DISK_FULL, Reason.SHUTTING_DOWN]
)
async def test_refusals_that_pass_are_retried_in_order(connect_to, reason):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.refusals.extend([Refused(reason, "not now", 1, -1, 20)] * 3)
    async with client.appender("orders", batch_records=5, linger_ms=0) as appender:
        await asyncio.gather(*(appender.append_nowait(str(number).encode()) for number in range(100)))
    assert [int(record.value) for record in stored(shard)] == list(range(100))


async def test_appends_that_a_full_disk_refused_were_not_appended_and_say_so(connect_to):
    """Each batch ends as Unavailable with the reason; those behind the first were refused for a gap."""
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    appender = client.appender("orders", batch_records=1, linger_ms=0, timeout_s=0.5)
    full = Refused(Reason.DISK_FULL, "the leader's disk is full", 1, -1, 50)
    gap = Refused(Reason.SEQUENCE_GAP, "sequence is 1, expected 0", 1, 0)
    shard.refusals.extend([full, gap, gap, gap, gap] * 100)
    ended = await asyncio.gather(
        *(appender.append_nowait(b"x") for _ in range(5)), return_exceptions=True)
    assert [errors.Unavailable] * 5 == [type(error) for error in ended], ended
    assert all("DISK_FULL" in str(error) and "appended" in str(error) for error in ended), ended
    assert [] == stored(shard)
    shard.refusals.clear()
    await appender.append(b"later")
    assert ["later"] == [record.value.decode() for record in stored(shard)]
    await appender.close()


async def test_refusals_of_batches_in_one_frame_are_retried_together(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders", batch_records=1, linger_ms=0) as appender:
        await appender.append(b"first")
        shard.refusals.extend([Refused(Reason.NOT_LEADER, "not now", 1)] * 5)
        await asyncio.wait_for(asyncio.gather(*(appender.append_nowait(b"x") for _ in range(5))), PATIENCE_S)
    assert len(stored(shard)) == 6
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    assert cluster.nodes["n0"].streams == 1


async def test_overload_is_not_hammered(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.refusals.extend([Refused(Reason.OVERLOADED, "full", 1, -1, 100)] * 3)
    started = asyncio.get_running_loop().time()
    async with client.appender("orders", batch_records=1, linger_ms=0) as appender:
        await asyncio.gather(*(appender.append_nowait(b"x") for _ in range(5)))
    assert asyncio.get_running_loop().time() - started >= 0.1
    assert len(shard.sent) <= 25


async def test_a_hinted_leader_is_followed_before_the_map_arrives(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"before")
        cluster.elect(shard, "n1", push=False)
        place = await asyncio.wait_for(appender.append(b"after"), PATIENCE_S)
    assert place.epoch == 2
    assert [record.value for record in stored(shard)] == [b"before", b"after"]


async def test_without_hints_the_pushed_map_is_followed(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1, hints=False)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"before")
        cluster.elect(shard, "n2", push=False)
        waiting = asyncio.create_task(appender.append(b"after"))
        await until(lambda: cluster.nodes["n0"].calls >= 2)  # refused without a hint
        await remains(lambda: not waiting.done())
        cluster.push()
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).epoch == 2


async def test_a_deposed_leader_that_hears_of_no_newer_one_does_not_keep_the_client(connect_to, monkeypatch):
    """It is cut off from the operators: its refusals carry no hint, and its map is as old as the client's."""
    monkeypatch.setattr("tidemark.routing.random.choice", lambda nodes: nodes[0])  # the client watches n0
    cluster, client = await connect_to(nodes=3, shards=1, hints=False)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"before")
        cluster.elect(shard, "n1", push=False)
        cluster.push(to=["n1", "n2"])
        assert (await asyncio.wait_for(appender.append(b"after"), PATIENCE_S)).epoch == 2


async def test_after_a_failover_everything_unanswered_is_resent_in_order(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    shard.silent = 2
    appender = client.appender("orders", batch_records=1, linger_ms=0)
    futures = [appender.append_nowait(str(number).encode()) for number in range(30)]
    await until(lambda: not shard.silent)
    link = client.links.to(cluster.nodes["n0"].address)
    await cluster.nodes["n0"].kill()
    await until(lambda: link.broken)
    cluster.elect(shard, "n1")
    places = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
    await appender.close()
    assert [int(record.value) for record in stored(shard)] == list(range(30))
    assert [place.offset for place in places] == sorted(place.offset for place in places)


async def test_a_paused_leader_is_left_when_another_is_elected(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"warm")
        cluster.nodes["n0"].paused.clear()  # it also keeps its watchers waiting
        waiting = asyncio.create_task(appender.append(b"x"))
        await until(lambda: cluster.nodes["n0"].calls >= 2)
        cluster.elect(shard, "n1")
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).shard == 0
        cluster.nodes["n0"].paused.set()


async def test_random_trouble_loses_and_repeats_nothing(cluster, client):
    dice = random.Random(7)
    shards = list(cluster.groups["orders"].values())
    stop = asyncio.Event()

    async def trouble() -> None:
        while not stop.is_set():
            await asyncio.sleep(dice.uniform(0.005, 0.03))
            shard = dice.choice(shards)
            what = dice.randrange(4)
            if what == 0:
                reasons = (Reason.OVERLOADED, Reason.TRANSFERRING, Reason.NOT_LEADER)
                shard.refusals.append(Refused(dice.choice(reasons), "", 0, -1, 5))
            elif what == 1:
                cluster.elect(shard, f"n{dice.randrange(3)}", push=dice.random() < 0.7)
            elif what == 2:
                shard.silent += 1
                await asyncio.sleep(dice.uniform(0.005, 0.02))
                client.links.to(cluster.nodes[shard.leader].address).abort("test cuts the stream")
            else:
                node = dice.choice(list(cluster.nodes.values()))
                port = int(node.address.rpartition(":")[2])
                await node.kill()
                await asyncio.sleep(dice.uniform(0.01, 0.03))
                await node.start(port)

    places = []
    async with client.appender("orders", batch_records=20, linger_ms=1) as appender:
        async def write(writer: int) -> None:
            for number in range(120):
                key = f"w{writer}".encode()
                places.append(await appender.append(f"{writer}:{number}".encode(), key=key))

        task = asyncio.create_task(trouble())
        await asyncio.wait_for(asyncio.gather(*(write(writer) for writer in range(24))), 60)
        stop.set()
        await task
    values = [record.value.decode() for record in everything(cluster)]
    assert len(values) == len(set(values)) == 24 * 120
    by_key: dict[str, list[int]] = {}
    for value in values:
        writer, number = value.split(":")
        by_key.setdefault(writer, []).append(int(number))
    assert all(numbers == list(range(120)) for numbers in by_key.values())
    assert len({(place.shard, place.offset) for place in places}) == len(places)


async def test_time_over_for_a_sent_batch_is_an_unknown_outcome(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.groups["orders"][0].deaf = True
    async with client.appender("orders", timeout_s=0.3) as appender:
        with pytest.raises(errors.OutcomeUnknown, match="shard 0 of 'orders'") as caught:
            await appender.append(b"x")
        assert caught.value.advice
        cluster.groups["orders"][0].deaf = False
        client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
        assert (await appender.append(b"y")).offset == 1, "the shard is usable again, under a new producer id"
        assert appender.buffered_bytes == 0


async def test_time_over_before_sending_says_that_nothing_was_appended(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.leader = ""
    cluster.push()
    await client.routing.wait_changed(1)
    async with client.appender("orders", timeout_s=0.3) as appender:
        with pytest.raises(errors.Unavailable, match="not appended"):
            await appender.append(b"x")
        assert not shard.sent
        shard.leader = "n0"
        cluster.push()
        assert (await appender.append(b"y")).offset == 1


async def test_a_forgotten_sequence_is_an_unknown_outcome(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"a")
        shard.refusals.append(Refused(Reason.SEQUENCE_TOO_OLD, "forgotten", 1, 7))
        with pytest.raises(errors.OutcomeUnknown, match="forgotten"):
            await appender.append(b"b")


async def test_a_refused_batch_fails_alone(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders", batch_records=1, linger_ms=0) as appender:
        await appender.append(b"a")
        shard.refusals.append(Refused(Reason.BATCH_TOO_LARGE, "payload has too many bytes", 1))
        futures = [appender.append_nowait(value) for value in (b"b", b"c", b"d")]
        with pytest.raises(errors.RequestRefused, match="BATCH_TOO_LARGE"):
            await futures[0]
        await asyncio.gather(*futures[1:])
    assert [record.value for record in stored(shard)] == [b"a", b"c", b"d"]


async def test_local_appends_lost_in_a_failover_are_reported_and_the_shard_goes_on(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    losses: list[errors.LocalAppendsLost] = []
    async with client.appender("orders", durability=LOCAL, on_loss=losses.append) as appender:
        await appender.append(b"kept", durability=QUORUM)
        await appender.append_batch([b"lost"] * 3)
        shard.drop_last(1)
        cluster.elect(shard, "n1")
        await appender.append(b"next", durability=QUORUM)
        assert appender.lost_local_records == 3
    assert [(loss.shard, loss.records) for loss in losses] == [(0, 3)]
    assert [record.value for record in stored(shard)] == [b"kept", b"next"]


async def test_a_lost_quorum_append_is_never_passed_over_in_silence(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"a")
        await appender.append(b"b")
        shard.drop_last(1)
        cluster.elect(shard, "n1")
        with pytest.raises(errors.AcknowledgedDataLost):
            await appender.append(b"c")


async def test_a_gap_from_a_deposed_leader_is_not_believed(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"a")
        cluster.elect(shard, "n1")
        await client.routing.wait_changed(1)
        shard.refusals.append(Refused(Reason.SEQUENCE_GAP, "expected 0", 1, 0))
        await appender.append(b"b")
    assert [record.value for record in stored(shard)] == [b"a", b"b"]


async def test_l25b_producers_have_ids_that_begin_as_the_node_says(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard, node = cluster.groups["orders"][0], cluster.nodes["n0"]
    assert b"" == node.known.producer_prefix
    async with client.appender("orders") as appender:
        before = await appender.append(b"a")
        for prefix in (b"12345678", b"too short", b""):
            node.known.producer_prefix = prefix
            await client.routing.refresh()
            shard.producers = ProducerTable()
            after = await appender.append(b"b")
            assert after.producer.startswith(b"12345678"), "another length or none says nothing"
            assert after.producer != before.producer
            before = after
    assert 4 == len({entry.producer for entry in shard.entries if entry.kind is Kind.DATA})


async def test_l25_a_forgotten_producer_goes_on_under_another_id(connect_to):
    """Rule L25: nothing is reported as lost, and nothing is written twice."""
    cluster, client = await connect_to(nodes=3, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        first = await appender.append(b"a")
        shard.producers = ProducerTable()
        second = await appender.append(b"b")
    assert first.producer != second.producer
    assert [record.value for record in stored(shard)] == [b"a", b"b"]


async def test_l25_what_is_in_doubt_when_a_producer_is_forgotten_stays_unknown(connect_to):
    """Rule L25: a batch whose answer was lost may be in the log, so it is not written again under another id."""
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    async with client.appender("orders") as appender:
        await appender.append(b"a")
        shard.silent = 1
        waiting = appender.append_nowait(b"b")
        await until(lambda: len(stored(shard)) == 2)
        shard.producers = ProducerTable()
        client.links.to(cluster.nodes["n0"].address).abort("test cuts the stream")
        with pytest.raises(errors.OutcomeUnknown):
            await waiting
        await appender.append(b"c")
    assert [record.value for record in stored(shard)] == [b"a", b"b", b"c"]


# --- bounds and bad input ---------------------------------------------------------------------------------------


async def test_append_waits_when_the_buffer_is_full_and_nowait_refuses(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.nodes["n0"].paused.clear()
    async with client.appender("orders", max_buffered_bytes=10_000) as appender:
        futures = [appender.append_nowait(b"x" * 1000) for _ in range(9)]
        with pytest.raises(errors.BufferFull):
            appender.append_nowait(b"x" * 1000)
        waiting = asyncio.create_task(appender.append(b"x" * 1000))
        many = asyncio.create_task(appender.append_batch([b"x" * 1000] * 100))
        await remains(lambda: not waiting.done() and appender.buffered_bytes <= 10_000)
        cluster.nodes["n0"].paused.set()
        await asyncio.gather(*futures, waiting, many)
        assert appender.buffered_bytes == 0
    assert len(everything(cluster)) == 110


async def test_a_cancelled_append_gives_its_place_in_the_queue_back(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.nodes["n0"].paused.clear()
    async with client.appender("orders", max_buffered_bytes=2000) as appender:
        first = appender.append_nowait(b"x" * 1900)
        waiting = [asyncio.create_task(appender.append(b"y" * 1900)) for _ in range(3)]
        await until(lambda: len(appender._dispatcher.room._line) == 3)
        waiting[0].cancel()
        cluster.nodes["n0"].paused.set()
        await asyncio.gather(first, *waiting[1:])
    assert len(everything(cluster)) == 3


async def test_flush_sends_without_linger_and_waits(cluster, client):
    appender = client.appender("orders", linger_ms=60_000)
    cluster.nodes["n0"].delay_s = cluster.nodes["n1"].delay_s = cluster.nodes["n2"].delay_s = 0.05
    first = appender.append_nowait(b"first", key=b"k")
    await until(lambda: any(node.calls for node in cluster.nodes.values()))
    second = appender.append_nowait(b"second", key=b"k")
    await asyncio.wait_for(appender.flush(), PATIENCE_S)
    assert first.done() and second.done()
    await appender.flush()
    await appender.close()


@pytest.mark.parametrize(
    ("group", "options", "said"),
    [
        ({"max_record_bytes": 1000}, {}, "the limit of group 'orders' is 1000"),
        ({"max_record_bytes": 9 << 20}, {}, r"the room of a batch of group 'orders' is 8\d{6}$"),
        ({}, {"max_buffered_bytes": 1000}, r"the room of the buffer \(max_buffered_bytes\) is 9\d\d$"),
    ],
)
async def test_an_error_names_the_limit_that_a_record_is_over(connect_to, group, options, said):
    _cluster, client = await connect_to(**group)
    async with client.appender("orders", **options) as appender:
        with pytest.raises(errors.RecordTooLarge, match=said):
            await appender.append(b"x" * (1100 if "1000" in f"{group}{options}" else (8 << 20) - 10), key=b"k")


async def test_bad_records_are_refused_before_anything_is_sent(connect_to):
    cluster, client = await connect_to(keys_required=True, max_record_bytes=1000)
    async with client.appender("orders") as appender:
        with pytest.raises(errors.KeyRequired, match="is missing"):
            await appender.append(b"x")
        with pytest.raises(errors.KeyRequired, match="is empty") as caught:
            await appender.append(b"x", key=b"")
        assert (caught.value.field, caught.value.reason) == ("key", "KEY_REQUIRED")
        with pytest.raises(errors.KeyRequired, match=r"records\[1\].key"):
            await appender.append_batch([Record(b"fine", b"k"), Record(b"no key")])
        with pytest.raises(errors.RecordTooLarge, match="1101 bytes, the limit of group 'orders' is 1000"):
            await appender.append(b"x" * 1100, key=b"k")
        with pytest.raises(errors.InvalidArgument, match="value: must be bytes, not str"):
            await appender.append("text", key=b"k")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="key: must be bytes or None, not str"):
            await appender.append(b"x", key="k")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="headers"):
            await appender.append(b"x", key=b"k", headers={"a": "b"})  # type: ignore[dict-item]
        with pytest.raises(errors.InvalidArgument, match="durability"):
            await appender.append(b"x", key=b"k", durability="SOMETIMES")  # type: ignore[arg-type]
        with pytest.raises(errors.RecordTooLarge, match=r"records\[2\].value"):
            await appender.append_batch([Record(b"x", b"k"), Record(b"x", b"k"), Record(b"x" * 2000, b"k")])
        assert appender.buffered_bytes == 0
    assert everything(cluster) == []


async def test_bad_options_name_the_field(client):
    for options, field in (
        ({"batch_records": 0}, "batch_records"),
        ({"batch_bytes": "many"}, "batch_bytes"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"compression": "rar"}, "compression"),
        ({"durability": "maybe"}, "durability"),
        ({"max_buffered_bytes": 0}, "max_buffered_bytes"),
    ):
        with pytest.raises(errors.InvalidArgument, match=field):
            client.appender("orders", **options)


async def test_unknown_group_lists_those_that_exist(client):
    with pytest.raises(errors.UnknownGroup, match="no log group is named 'oders'; there are: orders") as caught:
        client.appender("oders")
    assert caught.value.reason == "UNKNOWN_GROUP"
    assert caught.value.advice


async def test_use_after_close_is_refused(cluster, client):
    appender = client.appender("orders")
    await appender.close()
    with pytest.raises(errors.Closed):
        await appender.append(b"x")
    await client.close()
    with pytest.raises(errors.Closed):
        client.appender("orders")


async def test_a_cancelled_task_leaves_at_once_without_flushing(connect_to):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    shard.deaf = True
    futures = []

    async def work() -> None:
        async with client.appender("orders") as appender:
            futures.append(appender.append_nowait(b"x"))
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await until(lambda: shard.sent)
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()
    assert isinstance(futures[0].exception(), errors.Closed)
