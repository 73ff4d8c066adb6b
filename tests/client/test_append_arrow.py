"""Whole Arrow batches: columns that one append puts into one batch of a shard, and the note that comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_payloads as hostile
import pyarrow as pa
import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster, FakeShard
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark import SCHEMA, AppendedRange, ProducerId, errors
from tidemark.appending.whole import checked_columns, sealed
from tidemark.batch import BATCH_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES, ReadBatch, Record
from tidemark.checks import Checks
from tidemark.payload import note_of
from tidemark.routing import BATCH_BYTES_MAX, Group
from tidemark_core.base.entry import RECORDS_MAX, Durability, Kind

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import PATIENCE_S, until

GROUP = Group("orders", 1, BATCH_BYTES_MAX, 1 << 20, False, Durability.QUORUM, 5.0, (0,), (1 << 32,))
TIMES, HEADERS = SCHEMA.field("timestamp").type, SCHEMA.field("headers").type
LOOSE_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
async def one(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard]:
    """Three nodes and one shard."""
    cluster, client = await connect_to(nodes=3, shards=1)
    return cluster, client, cluster.groups["orders"][0]


def columns_of(values: list[bytes], **others: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **others})


def batches_of(shard: FakeShard) -> list[ReadBatch]:
    return [ReadBatch(shard.index, each, each.base, each.last) for each in shard.entries if each.kind is Kind.DATA]


def values_of(shard: FakeShard) -> list[list[bytes]]:
    return [[record.value for record in batch.records()] for batch in batches_of(shard)]


# --- columns

names = st.text(max_size=6)
record = st.fixed_dictionaries({
    "value": st.binary(max_size=30), "key": st.none() | st.binary(max_size=8),
    "timestamp": st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    "headers": st.none() | st.lists(st.fixed_dictionaries({"key": names, "value": st.binary(max_size=6)}), max_size=3),
})
records = st.lists(record, min_size=1, max_size=20)


@settings(max_examples=150, deadline=None)
@given(records, st.data(), st.sampled_from([None, "lz4", "zstd"]), st.binary(max_size=40))
def test_columns_come_back_as_they_were_with_their_note(rows, data, compression, note):
    """Slices too, whose buffers begin in the middle; the limit of a record counts all of its bytes."""
    first = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(first + 1, len(rows)))
    times = pa.array([row["timestamp"] for row in rows], pa.int64()).view(TIMES)
    given_columns = pa.RecordBatch.from_pydict({
        "headers": pa.array([row["headers"] for row in rows], HEADERS), "timestamp": times,
        "key": pa.array([row["key"] for row in rows], pa.binary()),
        "value": pa.array([row["value"] for row in rows], pa.binary())}).slice(first, end - first)
    plain = [
        Record(row["value"], row["key"], row["timestamp"],
               None if row["headers"] is None else tuple((each["key"], each["value"]) for each in row["headers"]))
        for row in rows[first:end]]
    sizes = [
        len(each.value) + len(each.key or b"") + sum(
            HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content) for name, content in each.headers or ())
        for each in plain]

    checks = Checks(GROUP._replace(record_bytes_max=max(sizes)), 1 << 20)
    stored = checked_columns(given_columns, checks, now_us=0)
    made = sealed(stored, note, compression)
    assert (made.records, made.first_us, made.last_us) == (
        len(plain), min(each.timestamp_us for each in plain), max(each.timestamp_us for each in plain))
    assert len(made.payload) <= stored.nbytes + len(note) + BATCH_OVERHEAD_BYTES
    batch = ReadBatch(0, hostile.entry_of(made.payload, made.records), 0, made.records - 1)
    assert batch.note == note
    assert batch.record_batch.equals(given_columns.select(SCHEMA.names).cast(SCHEMA))
    assert [each[:4] for each in batch.records()] == [each[:4] for each in plain]
    if max(sizes):
        checks.record_bytes_max -= 1
        with pytest.raises(errors.RecordTooLarge, match=f"has {max(sizes)} bytes, .* is {max(sizes) - 1}"):
            checked_columns(given_columns, checks, now_us=0)


async def test_columns_that_are_missing_are_null_and_of_now(one):
    _, client, shard = one
    before = time.time_ns() // 1000
    async with client.appender("orders") as appender:
        await appender.append_arrow(columns_of([b"a", b""]), shard=0)
    [batch] = batches_of(shard)
    assert batch.note == b""
    [first, second] = batch.records()
    assert (first[:2], second[:2], first.headers, second.headers) == ((b"a", None), (b"", None), None, None)
    assert before <= first.timestamp_us == second.timestamp_us <= time.time_ns() // 1000


def with_nulls(*header: dict[str, Any] | None) -> pa.Array:
    return pa.array([list(header)], HEADERS)


def hiding(valid: bytes) -> pa.Array:
    """Return headers of two records; those that are null hide a header, of which the first is null itself."""
    return pa.ListArray.from_buffers(
        HEADERS, 2, [pa.py_buffer(valid), pa.array([0, 1, 2], pa.int32()).buffers()[1]],
        children=[pa.array([None, {"key": "a", "value": b"b"}], HEADERS.value_type)])


WRONG = {
    "no columns": ([b"a"], "columns", "must be a pyarrow.RecordBatch, not list"),
    "a table": (pa.table({"value": [b"a"]}), "columns", "must be a pyarrow.RecordBatch, not Table"),
    "no records": (columns_of([]), "columns", "have 0 records, must have 1 to 1048576"),
    "too many records": (
        pa.RecordBatch.from_pydict({"value": pa.nulls(RECORDS_MAX + 1)}), "columns", "have 1048577 records"),
    "no value": (pa.RecordBatch.from_pydict({"key": [b"k"]}), "columns.value", "is missing"),
    "a strange column": (columns_of([b"a"], topic=pa.array([1])), "columns.topic", "is no column of a record"),
    "a column twice": (
        pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, ["value", "value"]), "columns.value", "is there 2 times"),
    "null values": (columns_of([b"a", None, None]), "columns.value", "has 2 nulls"),
    "text": (
        pa.RecordBatch.from_pydict({"value": ["a"]}), "columns.value", "has the type string, must have binary"),
    "large binary": (
        pa.RecordBatch.from_pydict({"value": pa.array([b"a"], pa.large_binary())}), "columns.value", "large_binary"),
    "keys of text": (columns_of([b"a"], key=pa.array(["k"])), "columns.key", "has the type string"),
    "times with a zone": (
        columns_of([b"a"], timestamp=pa.array([1], pa.timestamp("us", "UTC"))), "columns.timestamp", "has the type"),
    "null times": (columns_of([b"a"], timestamp=pa.array([None], TIMES)), "columns.timestamp", "has 1 nulls"),
    "times before the years": (
        columns_of([b"a"], timestamp=pa.array([-(1 << 62)], pa.int64()).view(TIMES)), "columns.timestamp", "1 to 9999"),
    "times behind the years": (
        columns_of([b"a"], timestamp=pa.array([1 << 62], pa.int64()).view(TIMES)), "columns.timestamp", "1 to 9999"),
    "headers that may be null": (
        columns_of([b"a"], headers=pa.array([None], LOOSE_HEADERS)), "columns.headers", "has the type list"),
    "a null header": (columns_of([b"a"], headers=with_nulls(None)), "columns.headers", "null"),
    "a null name": (
        columns_of([b"a"], headers=with_nulls({"key": None, "value": b"v"})), "columns.headers", "null"),
    "a null content": (
        columns_of([b"a"], headers=with_nulls({"key": "n", "value": None})), "columns.headers", "null"),
    "a hidden null header": (columns_of([b"a", b"b"], headers=hiding(b"\x02")), "columns.headers", "null"),
    "offsets behind the bytes": (
        columns_of([b"a", b"b"], key=pa.Array.from_buffers(
            pa.binary(), 2, [None, pa.array([0, 99, 1], pa.int32()).buffers()[1], pa.py_buffer(b"k")])),
        "columns.key", "is no valid Arrow array"),
    "a name that is no text": (
        columns_of([b"a"], headers=pa.ListArray.from_arrays(
            pa.array([0, 1], pa.int32()),
            pa.StructArray.from_arrays(
                [pa.array([b"\xff"]).view(pa.string()), pa.array([b"v"])], fields=list(HEADERS.value_type)),
        ).cast(HEADERS, safe=False)), "columns.headers", "is no valid Arrow array"),
    "a record that is too large": (
        columns_of([b"a", bytes(1 << 20), b"c" * ((1 << 20) + 1)]), "columns.value", "the record has 1048577 bytes"),
    "a batch that is too large": (
        columns_of([bytes(1 << 20)] * 8), "columns", r"take \d+ bytes with their note, the room of a batch"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_columns_are_refused_by_name_and_nothing_is_sent(one, wrong):
    _, client, shard = one
    columns, field, why = WRONG[wrong]
    async with client.appender("orders", producer=ProducerId("job")) as appender:
        with pytest.raises(errors.InvalidArgument, match=f": {field}: .*{why}") as caught:
            await appender.append_arrow(columns, shard=0)
        assert caught.value.field == field and appender.buffered_bytes == 0
        await appender.append_arrow(columns_of([b"good"]), shard=0)
    assert values_of(shard) == [[b"good"]]


async def test_what_null_headers_hide_is_not_written(one):
    _, client, shard = one
    async with client.appender("orders") as appender:
        await appender.append_arrow(columns_of([b"a", b"b"], headers=hiding(b"\x00")), shard=0)
    assert [record.headers for record in batches_of(shard)[0].records()] == [None, None]


@pytest.mark.parametrize(("note", "why"), [
    ("text", "must be bytes, not str"), (None, "must be bytes, not NoneType"), (bytes(1025), "has 1025 bytes")])
async def test_a_wrong_note_is_refused(one, note, why):
    _, client, shard = one
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument, match=f"note: {why}"):
            await appender.append_arrow(columns_of([b"a"]), shard=0, note=note)
        with pytest.raises(errors.UnknownShard, match="has no shard 1"):
            await appender.append_arrow(columns_of([b"a"]), shard=1)
    assert values_of(shard) == []


@pytest.mark.parametrize("keys", [None, [b"k", None], [b"k", b""]])
async def test_a_group_that_requires_keys_gets_them(connect_to, keys):
    _, client = await connect_to(nodes=1, shards=1, keys_required=True)
    missing = columns_of([b"a", b"b"], **({} if keys is None else {"key": pa.array(keys, pa.binary())}))
    async with client.appender("orders") as appender:
        with pytest.raises(errors.KeyRequired, match=r"columns\.key: is (missing|empty)"):
            await appender.append_arrow(missing, shard=0)
        await appender.append_arrow(columns_of([b"a"], key=pa.array([b"k"])), shard=0)


# --- one batch


async def test_columns_are_one_batch_in_the_order_of_the_calls(one):
    _, client, shard = one
    async with client.appender("orders", batch_records=2, linger_ms=50) as appender:
        before = appender.append_nowait(b"0", key=b"k")
        whole = asyncio.ensure_future(appender.append_arrow(columns_of([b"1", b"2", b"3"]), shard=0, note=b"n"))
        await asyncio.sleep(0)
        behind = appender.append_nowait(b"4", key=b"k")
        first, place, last = await asyncio.gather(before, whole, behind)
    assert values_of(shard) == [[b"0"], [b"1", b"2", b"3"], [b"4"]]
    assert [batch.note for batch in batches_of(shard)] == [b"", b"n", b""]
    assert place == AppendedRange(
        0, first.offset + 1, 3, 1, tidemark.QUORUM, first.producer, first.sequence + 1)
    assert place.last == last.offset - 1


async def test_no_record_joins_columns_that_wait_for_their_turn(one):
    """Columns need no linger; while five batches have no answer they wait, and nothing is added to them."""
    _, client, shard = one
    shard.limbo = True
    async with client.appender("orders", linger_ms=60_000) as appender:
        calls = []
        for number in range(5):
            calls.append(asyncio.ensure_future(appender.append_arrow(columns_of([b"%d" % number]), shard=0)))
            await until(lambda: len(values_of(shard)) == len(calls))
        calls.append(asyncio.ensure_future(appender.append_arrow(columns_of([b"5"]), shard=0)))
        await asyncio.sleep(0)
        behind = appender.append_nowait(b"6", key=b"k")
        shard.limbo = False
        shard.confirm()
        places = await asyncio.gather(*calls)
        await appender.flush()
    assert [place.first for place in places] == list(range(places[0].first, places[0].first + 6))
    assert (await behind).offset == places[-1].last + 1
    assert values_of(shard) == [[b"%d" % number] for number in range(7)]


async def test_the_caller_chooses_the_shard_whatever_the_keys(cluster, client):
    key = next(b"%d" % number for number in range(100) if client.routing.group("orders").shard_of(b"%d" % number) != 2)
    async with client.appender("orders", compression="zstd") as appender:
        place = await appender.append_arrow(
            columns_of([b"a"], key=pa.array([key])), shard=2, note=b"\0\xff", durability="LOCAL")
    assert (place.shard, place.durability) == (2, tidemark.LOCAL)
    assert [values_of(shard) for shard in cluster.groups["orders"].values()] == [[], [], [[b"a"]], []]
    assert batches_of(cluster.groups["orders"][2])[0].note == b"\0\xff"


async def test_the_largest_batch_is_within_the_limit_of_the_group(one):
    _, client, shard = one
    note, limit, values = b"n" * 1024, BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES, [bytes(1 << 20)] * 7
    framing = checked_columns(columns_of([*values, b""]), Checks(GROUP, 1 << 30), 0).nbytes + len(note)
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument, match=f"take {limit + 1} bytes"):
            await appender.append_arrow(columns_of([*values, bytes(limit - framing + 1)]), shard=0, note=note)
        await appender.append_arrow(columns_of([*values, bytes(limit - framing)]), shard=0, note=note)
    [batch] = batches_of(shard)
    assert limit < len(batch.payload) <= batch.size <= BATCH_BYTES_MAX


async def test_columns_wait_for_room_and_those_that_never_fit_are_refused(one):
    _, client, shard = one
    shard.limbo = True
    async with client.appender("orders", max_buffered_bytes=1000) as appender:
        with pytest.raises(errors.InvalidArgument, match=r"columns: .* the room of the buffer .* is 1000"):
            await appender.append_arrow(columns_of([b"a" * 300] * 3 + [b"a" * 80]), shard=0)
        first = asyncio.ensure_future(appender.append_arrow(columns_of([b"a" * 600]), shard=0))
        await until(lambda: values_of(shard))
        second = asyncio.ensure_future(appender.append_arrow(columns_of([b"b" * 600]), shard=0))
        await asyncio.sleep(0)
        assert 600 < appender.buffered_bytes < 700
        shard.limbo = False
        shard.confirm()
        assert (await first).last < (await second).first
        assert appender.buffered_bytes == 0


async def test_columns_that_wait_while_their_group_is_made_again_are_not_of_the_new_one(cluster, client):
    old = cluster.groups["orders"][3]
    old.limbo = True
    appender = client.appender("orders", max_buffered_bytes=1000)
    first = asyncio.ensure_future(appender.append_arrow(columns_of([b"a" * 600]), shard=3))
    await until(lambda: values_of(old))
    second = asyncio.ensure_future(appender.append_arrow(columns_of([b"b" * 600]), shard=3))
    await asyncio.sleep(0)
    cluster.delete("orders", push=False)
    cluster.add_log("orders", shards=1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(errors.GroupReplaced):
            await second
        with pytest.raises(errors.OutcomeUnknown):
            await first
        await appender.close()
    assert values_of(cluster.groups["orders"][0]) == []


async def test_l28_columns_behind_a_batch_that_did_not_end_well_are_not_appended(one):
    """Rule L28: whole batches are in the prefix that a named producer promises."""
    _, client, shard = one
    shard.limbo = True
    async with client.appender("orders", producer=ProducerId("job"), on_rollback="raise") as appender:
        await appender.claimed()
        calls = [asyncio.ensure_future(appender.append_arrow(columns_of([b"%d" % n]), shard=0)) for n in range(2)]
        await until(lambda: len(values_of(shard)) == 2)
        shard.begin_rollback(batches_of(shard)[0].first)
        shard.finish_rollback()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(ended[0], errors.RolledBack), ended
    assert isinstance(ended[1], errors.RolledBack | errors.ProducerEnded), ended


# --- notes


async def test_l27_a_second_process_finds_the_note_of_the_last_batch(one):
    """Rule L27: `claimed` says where the newest batch lies, and the batch what its writer noted."""
    _, client, _ = one
    job = ProducerId("spark/7")
    async with client.appender("orders", producer=job, compression="lz4") as appender:
        for number in range(3):
            place = await appender.append_arrow(columns_of([b"a", b"b"]), shard=0, note=b"%d" % number)
    async with client.appender("orders", producer=job) as appender:
        last = (await appender.claimed())[0].last
        assert (last.base, last.last, last.sequence) == (place.first, place.last, place.sequence)
        for first in (last.base, last.last):
            reader = client.read("orders", shards=[0], from_=first, until=last.last)
            [batch] = [each async for each in reader.batches()]
            assert (batch.note, len(batch)) == (b"2", last.last - first + 1), "a part has the note of the whole"


async def test_the_example_of_the_page_notes_a_number(one):
    _, client, shard = one
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    [block] = [part.partition("```")[0] for part in page.split("```python\n")[1:] if "async def copy_columns(" in part]
    names: dict[str, Any] = {"tidemark": tidemark, "pyarrow": pa}
    exec(compile(block, "docs/client.md", "exec"), names)
    last = await names["copy_columns"](client, "orders", columns_of([b"a", b"b"]), 7)
    assert last == shard.entries[-1].last and note_of(shard.entries[-1].payload) == b"7"


# --- tidemark.sync


@pytest.fixture
def fake() -> Iterator[FakeInAThread]:
    started = FakeInAThread(shards=2, nodes=1)
    yield started
    started.stop()


def test_the_synchronous_appender_appends_columns_now_and_later(fake: FakeInAThread) -> None:
    with tidemark.sync.connect(fake.address) as client, client.appender("orders") as appender:
        place = appender.append_arrow(columns_of([b"a", b"b"]), shard=1, note=b"0")
        later = [appender.append_arrow_later(columns_of([b"%d" % n]), shard=1, note=b"%d" % n) for n in range(1, 9)]
        assert [each.result().first for each in later] == [place.last + 1 + n for n in range(8)]
        with pytest.raises(errors.InvalidArgument, match="columns: have 0 records"):
            appender.append_arrow_later(columns_of([]), shard=1).result()
        batches = list(client.read("orders", shards=[1]).batches())
    assert [batch.note for batch in batches] == [b"%d" % n for n in range(9)]
    assert values_of(fake.shard(0)) == []
