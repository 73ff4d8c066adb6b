"""Arrow columns as one batch, and the note that travels with them."""

from __future__ import annotations

import pyarrow as pa
import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster, FakeShard
from hypothesis import given
from hypothesis import strategies as st
from tidemark import ProducerId, errors
from tidemark.batch import ReadBatch
from tidemark.payload import (
    COMPRESSIONS,
    NOTE_BYTES_MAX,
    SCHEMA,
    UndecodablePayload,
    decode,
    encode_columns,
    note_of,
)
from tidemark_core.base.entry import Kind

from tests.fake_in_a_thread import FakeInAThread


@pytest.fixture
async def one(connect_to) -> tuple[FakeCluster, tidemark.Client, FakeShard]:
    """Three nodes and one shard."""
    cluster, client = await connect_to(nodes=3, shards=1)
    return cluster, client, cluster.groups["orders"][0]


def columns(*values: bytes, **others: list[object]) -> pa.RecordBatch:
    """Return columns of the schema with these values."""
    given = {"value": list(values), **others}
    fields = [field for field in SCHEMA if field.name in given]
    return pa.RecordBatch.from_arrays(
        [pa.array(given[field.name], field.type) for field in fields], schema=pa.schema(fields))


def batches_of(shard: FakeShard) -> list[ReadBatch]:
    return [ReadBatch(0, entry, entry.base, entry.last) for entry in shard.entries if entry.kind is Kind.DATA]


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_columns_are_one_batch_behind_what_was_appended_before(one, compression):
    _, client, shard = one
    async with client.appender("orders", compression=compression, linger_ms=50) as appender:
        first = appender.append_nowait(b"first", key=b"k")
        place = await appender.append_arrow(columns(b"a", b"b", b"c"), shard=0, note=b"7 of 9")
        last = await appender.append(b"last", key=b"k")
    assert (place.shard, place.first, place.count, place.last) == (0, (await first).offset + 1, 3, last.offset - 1)
    assert place.durability is tidemark.QUORUM and last.producer == place.producer
    assert [[record.value for record in batch.records()] for batch in batches_of(shard)] == [
        [b"first"], [b"a", b"b", b"c"], [b"last"]]
    assert [batch.note for batch in batches_of(shard)] == [b"", b"7 of 9", b""]


@given(
    st.lists(st.tuples(
        st.none() | st.binary(max_size=3), st.binary(max_size=5), st.integers(-10**9, 10**9),
        st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=2), "value": st.binary(max_size=2)}))),
        min_size=1, max_size=8),
    st.sampled_from(COMPRESSIONS), st.binary(max_size=40))
def test_any_columns_and_note_come_back(rows, compression, note):
    keys, values, times, headers = zip(*rows, strict=True)
    whole = columns(*values, key=list(keys), timestamp=list(times), headers=list(headers))
    payload = encode_columns(whole, compression, note)
    assert decode(payload, len(rows)).equals(whole) and note_of(payload) == note


def test_a_payload_without_a_note_is_what_it_always_was():
    whole = columns(b"a", key=[None], timestamp=[5], headers=[None])
    assert encode_columns(whole) == whole.serialize().to_pybytes()
    assert b"tidemark.note" not in encode_columns(whole, "lz4")


def test_a_slice_is_stored_without_its_neighbours():
    whole = columns(*[bytes(1000)] * 100, key=[None] * 100, timestamp=[5] * 100, headers=[None] * 100)
    assert len(encode_columns(whole.slice(50, 1), None, b"n")) < 2500


def test_a_note_that_is_cut_or_too_long_is_refused():
    whole = columns(b"a", key=[None], timestamp=[5], headers=[None])
    payload = encode_columns(whole, None, b"n" * 100)
    for cut in range(0, len(payload), 7):
        with pytest.raises(UndecodablePayload):
            decode(payload[:cut], 1)
    assert note_of(encode_columns(whole, None, b"n" * NOTE_BYTES_MAX)) == b"n" * NOTE_BYTES_MAX
    with pytest.raises(UndecodablePayload, match="the note has 1025 bytes"):
        note_of(encode_columns(whole, None, b"n" * (NOTE_BYTES_MAX + 1)))
    with pytest.raises(UndecodablePayload, match="no metadata that Arrow reads"):
        note_of(b"tidemark.note")


@pytest.mark.parametrize(("given", "options", "said"), [
    ({"columns": 7}, {}, "columns: must be a pyarrow.RecordBatch"),
    ({"columns": columns()}, {}, "columns: has 0 records"),
    ({"columns": columns(b"a").rename_columns(["offset"])}, {}, "columns: has 'offset'"),
    ({"columns": pa.RecordBatch.from_pydict({"key": [b"a"]})}, {}, "columns: must have 'value'"),
    ({"columns": pa.RecordBatch.from_pydict({"value": ["a"]})}, {}, r"columns\.value: is string, must be binary"),
    ({"columns": pa.RecordBatch.from_pydict({"value": [b"a", None]})}, {}, r"columns\.value: has nulls"),
    ({"columns": columns(b"a", timestamp=[1 << 62])}, {}, r"columns\.timestamp: lies outside the years"),
    ({"columns": columns(bytes(2 << 20))}, {}, "value: the record has 2097152 bytes"),
    ({"columns": columns(b"a", headers=[[{"key": "h", "value": bytes(2 << 20)}]])}, {}, "value: the record has"),
    ({"columns": columns(*[bytes(600 << 10)] * 20)}, {}, "columns: have .* divide them"),
    ({"columns": pa.RecordBatch.from_arrays(
        [pa.array([b"a"]), pa.array([[{"key": "h", "value": None}]], SCHEMA.field("headers").type)],
        names=["value", "headers"])}, {}, r"columns\.headers: has a pair, a name or a value that is null"),
    ({"shard": 1}, {}, "shard: is 1; 'orders' has 0"),
    ({"note": "text"}, {}, "note: must be bytes"),
    ({"note": bytes(1025)}, {}, "note: has 1025 bytes"),
    ({"durability": "most"}, {}, "durability"),
])
async def test_columns_that_are_wrong_are_refused_by_name_and_nothing_is_sent(one, given, options, said):
    _, client, shard = one
    async with client.appender("orders") as appender:
        with pytest.raises(errors.InvalidArgument, match=said):
            await appender.append_arrow(**{"columns": columns(b"a"), "shard": 0, **given})
        assert appender.buffered_bytes == 0
    assert shard.sent == []


async def test_the_next_process_finds_the_note_of_the_last_batch(one):
    _, client, _ = one
    for number in range(3):
        async with client.appender("orders", producer=ProducerId("job")) as appender:
            last = (await appender.claimed())[0].last
            if last is not None:
                reader = client.read("orders", shards=[0], from_=last.last, until=last.last)
                assert [batch.note async for batch in reader.batches()] == [b"%d" % (number - 1)]
            await appender.append_arrow(columns(b"a", b"b"), shard=0, note=b"%d" % number)


def test_columns_are_appended_without_an_event_loop():
    fake = FakeInAThread(shards=2)
    try:
        with tidemark.sync.connect(fake.address) as client, client.appender("orders") as appender:
            later = [appender.append_arrow_later(columns(b"%d" % each), shard=1) for each in range(40)]
            assert [each.result().first for each in later] == list(range(1, 41))
            assert appender.append_arrow(columns(b"last"), shard=0).shard == 0
    finally:
        fake.stop()
