"""The bytes of document writes: golden vectors, and bytes that no client should have sent (rules U48, U49)."""

from __future__ import annotations

import random
import re
import struct

import pytest
from tidemark_core.documents.payload import (
    KEY_BYTES_MAX,
    RECORDS_MAX,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    Expired,
    MalformedWrites,
    Op,
    Outcome,
    Verdict,
    Write,
    Writes,
    check,
    decode,
    decode_expired,
    decode_outcomes,
    encode,
    encode_expired,
    encode_outcomes,
)

from tests.core.documents.support import delete, put

GOLDEN = [
    (
        Writes((put(b"a", b"one"),)),
        "544d440100000000" "0100000100000003" "0000000000000000" "0000000000000000" "61" "6f6e65",
    ),
    (
        Writes((put(b"a", b"", ttl_ms=1_000, expected=0), delete(b"bc", expected=7)), atomic=True),
        "544d440101000000"
        "0101000100000000" "00000000000003e8" "0000000000000000"
        "0201000200000000" "0000000000000000" "0000000000000007" "61" "6263",
    ),
]


@pytest.mark.parametrize(("writes", "golden"), GOLDEN, ids=["put", "atomic"])
def test_u48_the_bytes_of_an_entry_never_change(writes: Writes, golden: str) -> None:
    assert encode(writes).hex() == golden
    assert decode(bytes.fromhex(golden), len(writes.records)) == writes


def test_u48_whatever_is_written_is_read_again() -> None:
    dice = random.Random(1)
    for _ in range(300):
        records = tuple(
            put(
                dice.randbytes(dice.randrange(1, 20)), dice.randbytes(dice.randrange(50)), ttl_ms=dice.randrange(9),
                expected=dice.choice((None, 0, 5)),
            )
            if dice.random() < 0.7 else delete(dice.randbytes(3), expected=dice.choice((None, 1 << 40)))
            for _ in range(dice.randrange(1, 6))
        )
        writes = Writes(records, dice.random() < 0.5)

        assert decode(encode(writes), len(records)) == writes


@pytest.mark.parametrize(("write", "field"), [
    (put(b""), "key"), (put(b"k" * (KEY_BYTES_MAX + 1)), "key"), (put(b"k", bytes(VALUE_BYTES_MAX + 1)), "value"),
    (put(b"k", ttl_ms=TTL_MS_MAX + 1), "ttl_ms"), (put(b"k", ttl_ms=-1), "ttl_ms"),
    (put(b"k", expected=-1), "expected"),
    (put(b"k", expected=1 << 63), "expected"), (Write(Op.DELETE, b"k", b"v"), "delete"),
    (Write(Op.DELETE, b"k", ttl_ms=1), "delete"),
])
def test_u48_a_record_over_a_bound_is_refused_by_name(write: Write, field: str) -> None:
    with pytest.raises(ValueError, match=rf"record 0: .*{field}"):
        encode(Writes((write,)))


def test_u49_an_entry_has_at_most_ten_thousand_records() -> None:
    """The bound decides outcomes, so it never changes."""
    assert RECORDS_MAX == 10_000
    records = (delete(b"k"),) * 10_000
    whole = encode(Writes(records))
    assert decode(whole, 10_000) == Writes(records)
    record = bytes.fromhex("0200000100000000" "0000000000000000" "0000000000000000")
    assert whole == bytes.fromhex("544d440100000000") + record * 10_000 + b"k" * 10_000

    with pytest.raises(MalformedWrites, match="10001 records, the limit is 10000"):
        decode(whole[:8] + record * 10_001 + b"k" * 10_001, 10_001)
    with pytest.raises(ValueError, match="10001 records, the limit is 10000"):
        encode(Writes((*records, delete(b"k"))))


def forged(
    *, op: int = 1, conditional: int = 0, key: int = 1, value: int = 1, ttl: int = 0, expected: int = 0
) -> bytes:
    """Return one record that says these things, with two bytes behind it."""
    record = struct.pack(">BBHIQQ", op, conditional, key, value, ttl, expected)
    return bytes.fromhex("544d440100000000") + record + b"kv"


@pytest.mark.parametrize("data", [
    b"", b"TMD\x01", forged()[:-1], forged() + b"x", b"TMD\x02" + forged()[4:], forged()[:4] + b"\x02" + forged()[5:],
    forged()[:7] + b"\x01" + forged()[8:], forged(op=0), forged(op=3), forged(conditional=2), forged(expected=1),
    forged(key=0, value=2), forged(value=1 << 31), forged(key=1 << 15), forged(op=2), forged(ttl=1 << 63),
    forged(conditional=1, expected=1 << 63),
])
def test_u49_hostile_bytes_are_refused_in_type(data: bytes) -> None:
    assert decode(forged(), 1) == Writes((put(b"k"),))
    with pytest.raises(MalformedWrites):
        decode(data, 1)


def test_u49_no_bytes_raise_anything_else() -> None:
    """Each byte of an entry is changed, and the entry cut anywhere; a count that is too high costs nothing."""
    whole = encode(Writes((put(b"key", b"value", ttl_ms=5), delete(b"other", expected=3)), atomic=True))
    dice = random.Random(2)
    refused = 0
    for _ in range(4_000):
        at = dice.randrange(len(whole))
        data = whole[:at] + dice.randbytes(1) + whole[at + 1:] if dice.random() < 0.7 else whole[:at]
        count = dice.choice((1, 2, 2, 2, 3, 1 << 20))
        try:
            decode(data, count)
        except MalformedWrites as wrong:
            refused += 1
            with pytest.raises(MalformedWrites, match=re.escape(str(wrong))):   # the leader refuses what no fold reads
                check(data, count)
        else:
            check(data, count)

    assert refused > 1_000


def test_u51_an_expire_names_versions_and_is_read_with_its_count_alone() -> None:
    expired = (Expired(b"a", 7), Expired(b"", 1 << 40), Expired(b"\xff" * 300, 0))

    assert decode_expired(encode_expired(expired), 3) == expired
    for data, count in ((encode_expired(expired), 2), (encode_expired(expired)[:-1], 3), (b"", 1), (b"x" * 40, 9)):
        with pytest.raises(MalformedWrites):
            decode_expired(data, count)


def test_u50_outcomes_are_read_as_they_were_written() -> None:
    outcomes = tuple(Outcome(verdict, number << 40) for number, verdict in enumerate(Verdict))

    assert decode_outcomes(encode_outcomes(outcomes)) == outcomes
