from __future__ import annotations

from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.entry import (
    CHAIN,
    EMPTY_CHAIN,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER,
    RECORDS_MAX,
    Batch,
    Durability,
    Entry,
    Kind,
    check_batch,
    control,
    decode,
    decode_header,
    seal,
)
from tidemark_core.base.errors import CorruptEntry
from tidemark_core.base.ids import NOTHING, EntryId

from tests.core.support import PRODUCER, Author, batch

U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
batches = st.builds(
    lambda producer, sequence, count, first, last, payload, durability: Batch(
        producer, sequence, count, first, last, crc32c(payload), payload, durability
    ),
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 63) - 1),
    st.integers(1, RECORDS_MAX),
    I64,
    I64,
    st.binary(max_size=200),
    st.sampled_from(Durability),
)


def reseal(entry: Entry, **changes: Any) -> bytes:
    """Return the entry's header with fields replaced and a checksum that fits again."""
    names = (
        "magic", "version", "kind", "durability", "count", "epoch", "base", "payload_bytes", "payload_crc",
        "prev_epoch", "prev_offset", "first_us", "last_us", "logged_ms", "order", "producer", "sequence", "prev_chain",
    )
    fields = dict(zip(names, HEADER.unpack_from(entry.header), strict=True)) | changes
    body = HEADER.pack(*fields.values())
    return body + CHAIN.pack(crc32c(body))


@given(
    batches, st.sampled_from(Kind), U64, st.integers(1, 1 << 40), st.integers(-1, 1 << 40), st.integers(0, 1 << 40), U64
)
def test_a4_a_sealed_entry_is_decoded_to_itself(
    what: Batch, kind: Kind, epoch: int, prev_epoch: int, prev_offset: int, logged_ms: int, order: int
) -> None:
    entry = seal(
        what, kind=kind, epoch=epoch, prev=EntryId(prev_epoch, prev_offset), prev_chain=7, logged_ms=logged_ms,
        order=order,
    )

    assert entry == decode(entry.header, entry.payload)
    assert entry._replace(payload=b"") == decode_header(entry.header)
    assert HEADER_BYTES == len(entry.header)


def test_a4_an_entry_of_n_records_takes_n_offsets_and_is_named_by_the_last() -> None:
    first = seal(batch(0, count=10), kind=Kind.DATA, epoch=3, prev=NOTHING, prev_chain=EMPTY_CHAIN, logged_ms=5)
    second = seal(batch(1, count=2), kind=Kind.DATA, epoch=3, prev=first.id, prev_chain=first.chain, logged_ms=6)

    assert (0, 9, EntryId(3, 9)) == (first.base, first.last, first.id)
    assert (10, 11, EntryId(3, 11)) == (second.base, second.last, second.id)


def test_a4_a_control_entry_takes_one_offset_and_has_no_producer() -> None:
    entry = control(Kind.EPOCH_START, b"{}", epoch=2, prev=EntryId(1, 9), prev_chain=4, logged_ms=70)

    assert (10, 10, 1) == (entry.base, entry.last, entry.count)
    assert (NO_PRODUCER, -1) == (entry.producer, entry.sequence)
    assert (70_000, 70_000) == (entry.first_timestamp_us, entry.last_timestamp_us)


def test_size_counts_header_and_payload() -> None:
    entry = Author().data(payload=b"12345")

    assert HEADER_BYTES + 5 == entry.size
    assert HEADER_BYTES + 5 == decode_header(entry.header).size


def test_l2_the_chain_vouches_for_the_whole_log_in_front() -> None:
    one, other = Author(), Author()
    one.data(payload=b"x")
    other.data(payload=b"y")

    assert one.data(payload=b"same").chain != other.data(payload=b"same").chain


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_every_damaged_byte_of_a_header_is_noticed(at: int, flip: int) -> None:
    header = bytearray(Author().data().header)
    header[at] ^= flip

    with pytest.raises(CorruptEntry):
        decode_header(bytes(header))


@given(st.integers(0, 99), st.integers(1, 255))
def test_every_damaged_byte_of_a_payload_is_noticed(at: int, flip: int) -> None:
    entry = Author().data(payload=bytes(100))
    payload = bytearray(entry.payload)
    payload[at] ^= flip

    with pytest.raises(CorruptEntry, match="payload of entry 1:0"):
        decode(entry.header, bytes(payload))


@pytest.mark.parametrize("payload", [b"", b"123", b"1234567"])
def test_a_payload_of_another_length_is_noticed(payload: bytes) -> None:
    entry = Author().data(payload=b"12345")

    with pytest.raises(CorruptEntry):
        decode(entry.header, payload)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES + 1])
def test_a_header_of_another_length_is_noticed(size: int) -> None:
    with pytest.raises(CorruptEntry, match=f"header has {size} bytes"):
        decode_header(bytes(size))


@pytest.mark.parametrize(
    "change",
    [{"magic": b"XX"}, {"version": 2}, {"kind": 99}, {"kind": 0}, {"durability": 3}, {"count": 0}],
    ids=lambda change: next(iter(change)),
)
def test_a_header_of_an_unknown_format_is_corrupt_though_its_checksum_fits(change: dict[str, Any]) -> None:
    entry = Author().data()
    assert entry.header == reseal(entry)

    with pytest.raises(CorruptEntry):
        decode_header(reseal(entry, **change))


def test_magic_is_in_front() -> None:
    assert MAGIC == Author().data().header[:2]


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        (batch(0), None),
        (batch(0, count=RECORDS_MAX), None),
        (batch(0, payload=bytes(100)), None),
        (batch(0)._replace(producer=NO_PRODUCER), "producer"),
        (batch(0)._replace(producer=b"short"), "producer"),
        (batch(-1), "sequence is -1"),
        (batch(0, count=0), "record_count is 0"),
        (batch(0, count=RECORDS_MAX + 1), "record_count is 1048577"),
        (batch(0, payload=bytes(101)), "payload has 101 bytes, the limit is 100"),
        (batch(0)._replace(first_timestamp_us=2_001), "first_timestamp"),
        (batch(0)._replace(payload_crc=1), "payload_crc32c"),
    ],
)
def test_check_batch_names_the_field_that_is_wrong(what: Batch, wrong: str | None) -> None:
    found = check_batch(what, 100)

    if wrong is None:
        assert found is None
    else:
        assert found is not None and wrong in found


def test_check_batch_knows_its_producer_from_the_empty_one() -> None:
    assert check_batch(Batch(PRODUCER, 0, 1, 0, 0, crc32c(b""), b""), 0) is None
