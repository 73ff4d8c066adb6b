"""Reader: order, bounds, failover at the position behind the last record, tail."""

from __future__ import annotations

import asyncio

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster
from google_crc32c import value as crc32c
from tidemark import errors
from tidemark_core.base.entry import Batch

from tests.waiting import PATIENCE_S, remains, until


@pytest.fixture(params=["leader", "scd"])
def mode(request: pytest.FixtureRequest) -> str:
    """Who sends."""
    return request.param


async def fill(client: tidemark.Client, count: int, **options: object) -> None:
    async with client.appender("orders", batch_records=10) as appender:
        for start in range(0, count, 10):
            await appender.append_batch([str(number).encode() for number in range(start, start + 10)], **options)


async def test_reads_everything_in_order_per_shard(cluster, client, mode):
    await fill(client, 400)
    records = [record async for record in client.read("orders", mode=mode)]
    assert sorted(int(record.value) for record in records) == list(range(400))
    for shard in range(4):
        offsets = [record.offset for record in records if record.shard == shard]
        assert offsets == list(range(1, 101)), "control entries take an offset and are not delivered"
    assert {record.epoch for record in records} == {1}


async def test_bounds_cut_inside_batches(connect_to, mode):
    _, client = await connect_to(nodes=1, shards=1)
    await fill(client, 50)
    records = [record async for record in client.read("orders", mode=mode, from_=15, until=33)]
    assert [record.offset for record in records] == list(range(15, 34))
    assert [int(record.value) for record in records] == list(range(14, 33))
    batches = [batch async for batch in client.read("orders", mode=mode, from_={0: 5}, until={0: 12}).batches()]
    assert [(batch.first, batch.last, len(batch), batch.record_batch.num_rows) for batch in batches] == [
        (5, 10, 6, 6), (11, 12, 2, 2),
    ]


async def test_empty_shards_end_at_once(client, mode):
    assert [record async for record in client.read("orders", mode=mode)] == []


async def test_elections_passed_over_are_counted_once(connect_to, mode):
    cluster, client = await connect_to(nodes=1, shards=2)
    await fill(client, 40)
    cluster.elect(cluster.groups["orders"][1], "n0")
    await fill(client, 40)
    reader = client.read("orders", mode=mode)
    assert len([record async for record in reader]) == 80
    assert reader.epochs_begun == 3


async def test_chosen_shards_only(cluster, client, mode):
    await fill(client, 400)
    reader = client.read("orders", mode=mode, shards=[2])
    assert {record.shard async for record in reader} == {2}
    assert reader.positions == {2: 101}


async def test_tail_delivers_what_comes_later_and_stops_on_close(cluster, client, mode):
    reader = client.read("orders", mode=mode, until=None)
    seen: list[int] = []

    async def tail() -> None:
        async for record in reader:
            seen.append(int(record.value))

    task = asyncio.create_task(tail())
    await fill(client, 40)
    await until(lambda: len(seen) >= 40)
    await fill(client, 20)
    await until(lambda: len(seen) >= 60)
    await reader.close()
    await asyncio.wait_for(task, PATIENCE_S)
    assert sorted(seen) == sorted([*range(40), *range(20)])


async def test_after_a_failover_the_read_goes_on_behind_the_last_record(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    await fill(client, 200)
    shard = cluster.groups["orders"][0]
    cluster.nodes["n0"].read_delay_s = 0.05
    values: list[int] = []
    async for record in client.read("orders", mode="leader", buffer_bytes=1):
        values.append(int(record.value))
        if len(values) == 25:
            await cluster.nodes["n0"].kill()
            cluster.elect(shard, "n1")
    assert values == list(range(200))
    assert cluster.reads[-1][1] > 10
    assert cluster.reads[-1][2] == 200, "'latest' is what it was when the read began"


async def test_a_paused_leader_is_left_when_another_is_elected(connect_to):
    cluster, client = await connect_to(nodes=3, shards=1)
    await fill(client, 200)
    cluster.nodes["n0"].read_delay_s = 0.05
    values: list[int] = []
    async with asyncio.timeout(10):
        async for record in client.read("orders", mode="leader", buffer_bytes=1):
            values.append(int(record.value))
            if len(values) == 25:
                cluster.nodes["n0"].paused.clear()
                cluster.elect(cluster.groups["orders"][0], "n1")
    cluster.nodes["n0"].paused.set()
    assert values == list(range(200))


async def test_trimmed_records_are_skipped_from_earliest_and_refused_by_offset(connect_to, mode):
    cluster, client = await connect_to(nodes=1, shards=1)
    await fill(client, 50)
    cluster.groups["orders"][0].trimmed_to = 21
    assert [record.offset async for record in client.read("orders", mode=mode)] == list(range(21, 51))
    with pytest.raises(errors.Trimmed) as caught:
        _ = [record async for record in client.read("orders", mode=mode, from_=5)]
    assert caught.value.first == 21
    items = [item async for item in client.read("orders", mode=mode, from_=5, until=23, gaps=True)]
    assert items[0] == tidemark.Gap(tidemark.GapKind.TRIM, 0, 5, 20), "one gap, and the read goes on"
    assert [item.offset for item in items[1:]] == [21, 22, 23]
    (gap,) = [item async for item in client.read("orders", mode=mode, until=15, gaps=True)]
    assert (gap.first, gap.last) == (0, 15)


async def test_no_leader_within_the_time_is_unavailable(connect_to, mode):
    cluster, client = await connect_to(nodes=1, shards=1)
    cluster.groups["orders"][0].leader = ""
    cluster.push()
    await client.routing.wait_changed(1)
    with pytest.raises(errors.Unavailable, match="shard 0 of 'orders'"):
        _ = [record async for record in client.read("orders", mode=mode, timeout_s=0.3)]


async def test_a_foreign_payload_is_named_and_its_bytes_stay_readable(connect_to, mode):
    cluster, client = await connect_to(nodes=1, shards=1)
    payload = b"not arrow at all"
    cluster.groups["orders"][0].add(Batch(b"p" * 16, 0, 1, 1, 1, crc32c(payload), payload))
    with pytest.raises(errors.UndecodableBatch, match="offsets 1 to 1 of shard 0") as caught:
        _ = [record async for record in client.read("orders", mode=mode)]
    assert (caught.value.shard, caught.value.first, caught.value.last) == (0, 1, 1)
    assert [batch.payload async for batch in client.read("orders", mode=mode).batches()] == [payload]


async def with_a_foreign_batch(connect_to) -> tuple[tidemark.Client, FakeCluster]:
    """Ten records, a batch of three that no appender wrote, ten records."""
    cluster, client = await connect_to(nodes=1, shards=1)
    payload = b"not arrow at all"
    await fill(client, 10)
    cluster.groups["orders"][0].add(Batch(b"p" * 16, 0, 3, 1, 1, crc32c(payload), payload))
    await fill(client, 10)
    return client, cluster


async def test_t11_a_reader_passes_over_what_it_cannot_decode_where_asked(connect_to, mode):
    """Rule T11: as a gap, or in silence; it never ends early and counts what it passed over."""
    client, _ = await with_a_foreign_batch(connect_to)
    gap = tidemark.Gap(tidemark.GapKind.UNDECODABLE, 0, 11, 13)

    items = [item async for item in client.read("orders", mode=mode, gaps=True)]
    assert items[10] == gap
    assert [int(item.value) for item in items if item != gap] == [*range(10), *range(10)]
    assert [item.offset for item in items if item != gap] == [*range(1, 11), *range(14, 24)]
    [only] = [item async for item in client.read("orders", mode=mode, gaps=True, from_=12, until=12)]
    assert only == tidemark.Gap(tidemark.GapKind.UNDECODABLE, 0, 12, 12)

    reader = client.read("orders", mode=mode, undecodable="skip")
    assert [record.offset async for record in reader] == [*range(1, 11), *range(14, 24)]
    assert (reader.undecodable, reader.positions) == (3, {0: 24})
    reader = client.read("orders", mode=mode, undecodable="skip", from_=11)
    found = []
    while batches := await reader.next_batches(1):
        found += batches
    assert [batch.first for batch in found] == [14], "an empty list is the end alone"


async def test_t11_a_read_goes_on_behind_what_it_cannot_decode(connect_to, mode):
    """Rule T11: the error says where to begin."""
    client, _ = await with_a_foreign_batch(connect_to)
    reader = client.read("orders", mode=mode)
    seen = []
    with pytest.raises(errors.UndecodableBatch) as caught:
        async for record in reader:
            seen.append(record.offset)
    rest = [record.offset async for record in client.read("orders", mode=mode, from_=caught.value.last + 1)]
    assert (seen, rest) == ([*range(1, 11)], [*range(14, 24)])


async def test_t11_a_subscription_is_done_with_what_was_passed_over(connect_to, mode):
    """Rule T11: a batch that no reader can decode holds no subscription back."""
    client, _ = await with_a_foreign_batch(connect_to)
    named = {"subscription": "one", "mode": mode}
    assert 20 == len([record async for record in client.read("orders", undecodable="skip", **named)])
    assert [] == [record async for record in client.read("orders", **named)]
    first = client.read("orders", subscription="two", mode=mode, until=13, undecodable="skip")
    assert 10 == len([record async for record in first])
    rest = [record.offset async for record in client.read("orders", subscription="two", mode=mode)]
    assert rest == [*range(14, 24)]


async def test_t11_the_synchronous_reader_passes_over_too(connect_to, mode):
    """Rule T11."""
    _, cluster = await with_a_foreign_batch(connect_to)

    def read() -> tuple[list, list, int, int]:
        with tidemark.sync.connect(cluster.addresses()) as client:
            with_gaps = list(client.read("orders", mode=mode, gaps=True))
            reader = client.read("orders", mode=mode, undecodable="skip")
            plain = list(reader)
            with pytest.raises(errors.UndecodableBatch) as caught:
                list(client.read("orders", mode=mode))
            return with_gaps, plain, reader.undecodable, caught.value.first

    with_gaps, plain, undecodable, first = await asyncio.to_thread(read)
    assert with_gaps[10] == tidemark.Gap(tidemark.GapKind.UNDECODABLE, 0, 11, 13)
    assert (len(with_gaps), len(plain), undecodable, first) == (21, 20, 3, 11)


async def test_t11_the_bound_of_what_a_batch_decompresses_to_is_an_option(connect_to, mode):
    """Rule T11."""
    _, client = await connect_to(nodes=1, shards=1)
    async with client.appender("orders", compression="zstd") as appender:
        await appender.append(bytes(100_000))
    assert [len(record.value) async for record in client.read("orders", mode=mode)] == [100_000]
    with pytest.raises(errors.UndecodableBatch, match="the bound is 90000"):
        _ = [record async for record in client.read("orders", mode=mode, decoded_bytes_max=90_000)]
    for option in ({"undecodable": "ignore"}, {"decoded_bytes_max": 0}):
        with pytest.raises(errors.InvalidArgument, match=next(iter(option))):
            client.read("orders", **option)


async def test_slow_readers_bound_what_is_read_ahead(connect_to, mode):
    _, client = await connect_to(nodes=3, shards=1)
    async with client.appender("orders") as appender:
        for _ in range(100):
            await appender.append_batch([b"x" * 1_000] * 10)
    reader = client.read("orders", mode=mode, buffer_bytes=300_000)
    batches = reader.batches()
    await anext(batches)
    await until(lambda: reader.buffered_bytes > 100_000)
    await remains(lambda: reader.buffered_bytes <= 300_000 + 3 * 11_000, "each sender oversteps by a batch at most")
    assert 1 + len([batch async for batch in batches]) == 100


async def test_paused_shards_wait_and_hold_nobody_up(cluster, client, mode):
    await fill(client, 400)
    reader = client.read("orders", mode=mode, buffer_bytes=2_000)
    reader.pause(1, 3)
    assert reader.paused == {1, 3}
    seen: list[tidemark.ReadBatch] = []
    while sum(len(batch) for batch in seen) < 200:
        seen += await asyncio.wait_for(reader.next_batches(100), PATIENCE_S)
    assert {batch.shard for batch in seen} == {0, 2}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.next_batches(1), 0.1)
    assert {shard: reader.positions[shard] for shard in (1, 3)} == {1: 0, 3: 0}
    reader.resume(1)
    (batch,) = await asyncio.wait_for(reader.next_batches(1), PATIENCE_S)
    assert (batch.shard, batch.first) == (1, 1)
    reader.pause()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.next_batches(1), 0.1)
    reader.resume()
    rest = [batch]
    while batches := await asyncio.wait_for(reader.next_batches(100), PATIENCE_S):
        rest += batches
    for shard in (1, 3):
        assert [batch.first for batch in rest if batch.shard == shard] == list(range(1, 101, 10))
    assert set(reader.positions.values()) == {101}
    with pytest.raises(errors.InvalidArgument, match="shard 9 is not among"):
        reader.pause(9)
    await reader.close()


async def test_what_crossed_the_network_is_counted(connect_to, mode):
    _, client = await connect_to(nodes=3, shards=2)
    await fill(client, 400)
    reader = client.read("orders", mode=mode)
    assert len([record async for record in reader]) == 400
    stats = reader.stats
    assert stats.bytes_received > stats.bytes_delivered > 400 * 10
    assert 1 < stats.received_over_delivered < 1.5, "small batches in frames of their own"
    assert sum(stats.shares.values()) == pytest.approx(1)
    assert set(stats.shares) == ({"n0", "n1"} if mode == "leader" else {"n0", "n1", "n2"})
    assert (stats.duplicates, stats.failovers, stats.rewinds, stats.known_down) == (0, 0, {}, {})


async def test_bad_bounds_name_the_field(client):
    with pytest.raises(errors.InvalidArgument, match="from_"):
        client.read("orders", from_="yesterday")
    with pytest.raises(errors.InvalidArgument, match="from_"):
        client.read("orders", from_=-4)
    with pytest.raises(errors.InvalidArgument, match="until"):
        client.read("orders", until="tomorrow")
    with pytest.raises(errors.UnknownShard, match="has no shard 9"):
        client.read("orders", shards=[9])
    with pytest.raises(errors.UnknownGroup):
        client.read("nothing")


async def test_a_reader_may_be_left_early_and_closed_twice(cluster: FakeCluster, client: tidemark.Client, mode: str):
    await fill(client, 100)
    reader = client.read("orders", mode=mode)
    async for _ in reader:
        break
    assert sum(reader.positions.values()) == 1 + 1, "only what was handed out counts"
    await reader.close()
    assert sum(reader.positions.values()) == 1 + 1
    await reader.close()
    with pytest.raises(errors.Closed):
        await anext(reader.batches())


# --- holes ----------------------------------------------------------------------------------------------------


async def holed(connect_to) -> tuple[FakeCluster, tidemark.Client]:  # type: ignore[no-untyped-def]
    """One shard: records 1-20, a hole 21-40 with its record at 41, records 42-61."""
    cluster, client = await connect_to(nodes=2, shards=1)
    shard = cluster.groups["orders"][0]
    await fill(client, 20)
    shard.limbo = True
    appender = client.appender("orders", batch_records=10, on_rollback="raise")
    lost = appender.append_batch([b"rolled back"] * 20)
    waiting = asyncio.create_task(lost)
    await until(lambda: len(shard.undecided) == 2)
    shard.begin_rollback(21)
    shard.finish_rollback()
    with pytest.raises(errors.RolledBack):
        await waiting
    shard.limbo = False
    await fill(client, 20)
    return cluster, client


async def test_holes_are_passed_over_and_counted(connect_to, mode):
    _, client = await holed(connect_to)
    reader = client.read("orders", mode=mode)
    offsets = [record.offset async for record in reader]
    assert offsets == [*range(1, 21), *range(42, 62)]
    assert reader.holes == 20
    assert reader.positions == {0: 62}


async def test_gaps_are_yielded_in_their_place_when_asked_for(connect_to, mode):
    _, client = await holed(connect_to)
    hole = tidemark.Gap(tidemark.GapKind.HOLE, 0, 21, 40)
    reader = client.read("orders", mode=mode, gaps=True)
    items = [item async for item in reader]
    assert items[20] == hole
    assert hole.offsets == 20
    assert [item.offset for item in items[:20] + items[21:]] == [*range(1, 21), *range(42, 62)]
    batches = [item async for item in client.read("orders", mode=mode, gaps=True).batches()]
    assert [(item.first, item.last) for item in batches] == [(1, 10), (11, 20), (21, 40), (42, 51), (52, 61)]
    assert batches[2] == hole


async def test_bounds_may_lie_in_a_hole(connect_to, mode):
    _, client = await holed(connect_to)
    assert [record.offset async for record in client.read("orders", mode=mode, from_=30, until=43)] == [42, 43]
    (gap, *rest) = [item async for item in client.read("orders", mode=mode, from_=30, until=42, gaps=True)]
    assert (gap.first, gap.last, len(rest)) == (30, 40, 1)
    reader = client.read("orders", mode=mode, from_=19, until=25, gaps=True)
    items = [item async for item in reader]
    assert [items[0].offset, items[1].offset, items[2].first, items[2].last] == [19, 20, 21, 25]
    assert reader.positions == {0: 26}
    reader = client.read("orders", mode=mode, from_=22, until=24)
    assert [item async for item in reader] == []
    assert (reader.holes, reader.positions) == (3, {0: 25})


async def test_a_position_taken_behind_a_gap_goes_on_there(connect_to, mode):
    _, client = await holed(connect_to)
    reader = client.read("orders", mode=mode, gaps=True)
    async for item in reader:
        if isinstance(item, tidemark.Gap):
            break
    await reader.close()
    assert reader.positions == {0: 41}
    rest = client.read("orders", mode=mode, from_=reader.positions)
    assert [record.offset async for record in rest] == list(range(42, 62))


async def test_after_a_failover_a_hole_is_counted_once(connect_to):
    cluster, client = await holed(connect_to)
    cluster.nodes["n0"].read_delay_s = 0.05
    reader = client.read("orders", mode="leader", gaps=True, buffer_bytes=1)
    gaps = offsets = 0
    async for item in reader:
        if isinstance(item, tidemark.Gap):
            gaps += 1
            await cluster.nodes["n0"].kill()
            cluster.elect(cluster.groups["orders"][0], "n1")
        else:
            offsets += 1
    assert (gaps, offsets, reader.holes) == (1, 40, 20)


async def test_a_tail_is_told_of_holes_too_and_undecided_records_are_not_shown(connect_to, mode):
    cluster, client = await connect_to(nodes=1, shards=1)
    shard = cluster.groups["orders"][0]
    reader = client.read("orders", mode=mode, until=None, gaps=True)
    seen: list[object] = []

    async def tail() -> None:
        async for item in reader:
            seen.append(item)

    tailing = asyncio.create_task(tail())
    shard.limbo = True
    appender = client.appender("orders", on_rollback="raise")
    waiting = appender.append_nowait(b"rolled back")
    await until(lambda: shard.undecided and (cluster.reads or cluster.nodes["n0"].delivery.starts))
    await remains(lambda: seen == [])
    shard.begin_rollback(1)
    shard.finish_rollback()
    with pytest.raises(errors.RolledBack):
        await waiting
    shard.limbo = False
    await appender.append(b"kept")
    await until(lambda: len(seen) == 2)
    await reader.close()
    await tailing
    assert seen[0] == tidemark.Gap(tidemark.GapKind.HOLE, 0, 1, 1)
    assert seen[1].value == b"kept"


async def test_the_synchronous_reader_yields_gaps_too(connect_to, mode):
    cluster, _ = await holed(connect_to)

    def read() -> tuple[list, list, int]:
        with tidemark.sync.connect(cluster.addresses()) as client:
            reader = client.read("orders", mode=mode)
            return list(client.read("orders", mode=mode, gaps=True)), list(reader), reader.holes

    with_gaps, plain, holes = await asyncio.to_thread(read)
    assert with_gaps[20] == tidemark.Gap(tidemark.GapKind.HOLE, 0, 21, 40)
    assert (len(with_gaps), len(plain), holes) == (41, 40, 20)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("gaps", {"gaps": "HOLE"}),
        ("mode", {"mode": "fast"}),
        ("location", {"mode": "local"}),
        ("location", {"location": "planet=earth"}),
        ("location", {"location": 7}),
        ("location", {"mode": "leader", "location": "zone=a"}),
        ("window_bytes", {"window_bytes": 0}),
        ("buffer_bytes", {"buffer_bytes": "much"}),
        ("scd_timeout_s", {"scd_timeout_s": -1}),
        ("all_send_all_timeout_s", {"all_send_all_timeout_s": None}),
        ("slow_detection", {"slow_detection": "yes"}),
    ],
)
async def test_bad_options_name_the_field(client, field, options):
    with pytest.raises(errors.InvalidArgument) as caught:
        client.read("orders", **{"mode": "scd", **options})
    assert caught.value.field == field
    assert str(caught.value).count(field) == 1
