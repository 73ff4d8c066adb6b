"""Batch payload: what goes in comes out, and what is no batch is said to be none."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark import errors
from tidemark.batch import ReadBatch, Record, headers_of, timestamp_us_of
from tidemark.payload import UndecodablePayload, decode, encode
from tidemark_core.base.entry import Batch, Kind, seal
from tidemark_core.base.ids import NOTHING

headers = st.none() | st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), min_size=1, max_size=3).map(tuple)
records = st.lists(
    st.tuples(
        st.binary(max_size=50), st.none() | st.binary(max_size=10), st.integers(0, 4_102_444_800_000_000), headers
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(records, st.sampled_from([None, "lz4", "zstd"]))
def test_records_come_back_as_they_were(given_records, compression):
    values, keys, times, pairs = (list(column) for column in zip(*given_records, strict=True))
    payload = encode(
        values,
        keys if any(key is not None for key in keys) else None,
        times,
        pairs if any(pair is not None for pair in pairs) else None,
        compression,
    )
    batch = Batch(b"p" * 16, 0, len(values), min(times), max(times), 0, payload)
    entry = seal(batch, kind=Kind.DATA, epoch=3, prev=NOTHING, prev_chain=0, logged_ms=1)
    back = list(ReadBatch(5, entry, 0, entry.last).records())
    assert [record[:4] for record in back] == given_records
    assert [(record.shard, record.offset, record.epoch) for record in back] == [
        (5, offset, 3) for offset in range(len(values))
    ]


@pytest.mark.parametrize(
    "payload", [b"", b"garbage" * 20, b"\xff\xff\xff\xff\x10\0\0\0", encode([b"x"], None, [1], None)[:100]]
)
def test_damaged_payloads_are_undecodable(payload):
    with pytest.raises(UndecodablePayload):
        decode(payload, 1)


def test_a_wrong_record_count_is_undecodable():
    with pytest.raises(UndecodablePayload, match="holds 1 records, its header says 2"):
        decode(encode([b"x"], None, [1], None), 2)


def test_timestamps_are_utc_microseconds():
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert Record(b"", timestamp_us=timestamp_us_of(moment)).timestamp == moment
    assert Record(b"").timestamp is None
    with pytest.raises(errors.InvalidArgument, match="time zone"):
        timestamp_us_of(datetime.datetime(2024, 1, 1))
    with pytest.raises(errors.InvalidArgument, match="years 1 to 9999"):
        timestamp_us_of(1 << 63)
    with pytest.raises(errors.InvalidArgument, match="timestamp"):
        timestamp_us_of("now")  # type: ignore[arg-type]


def test_headers_are_a_mapping_or_pairs():
    assert headers_of({"a": b"1"}) == headers_of([("a", b"1")]) == (("a", b"1"),)
    assert headers_of({}) is None
    for wrong in ({"a": 1}, [("a",)], [(1, b"")], ["ab" * 3], {"\ud800": b""}):
        with pytest.raises(errors.InvalidArgument, match="headers"):
            headers_of(wrong)  # type: ignore[arg-type]
