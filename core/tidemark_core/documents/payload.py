"""Payload: the bytes of one entry of document writes, as clients send it, and of EXPIRE.

    bytes             what
    8                 TMD, version 1, flags (bit 0: atomic), 3 zero bytes
    24 a record       operation, 1 if it is conditional, key bytes, value bytes, ttl in ms, expected seqno
    the rest          all keys in order of the records, then all values

Numbers are big-endian.  The entry's header says how many records there are, and every byte is accounted for.  A client
may send any bytes, so a decoder checks each length before it cuts (T11).
Stays out: what a write does to a document (`fold`), PIN and UNPIN (`pinning`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"TMD\x01"
ATOMIC = 1
_HEAD = struct.Struct(">4sB3s")
_RECORD = struct.Struct(">BBHIQQ")
_ZEROS = bytes(3)

KEY_BYTES_MAX = 1024
RECORDS_MAX = 10_000
"""Records of one entry: the fold takes an entry whole, so it bounds a turn, a write to the store and `effects`."""
VALUE_BYTES_MAX = 3 << 20
"""A value with the value it replaces and their headers fits into one message of the default limit."""
TTL_MS_MAX = 100 * 365 * 24 * 3600 * 1000
SEQNO_MAX = (1 << 63) - 1


class Op(IntEnum):
    """The operation of a record."""

    PUT = 1
    DELETE = 2


_OPS = {int(op): op for op in Op}


class Write(NamedTuple):
    """One record.  `expected` None: whatever is there; 0: no live document; else the seqno of a live one (U49)."""

    op: Op
    key: bytes
    value: bytes = b""
    ttl_ms: int = 0                # 0: it never expires
    expected: int | None = None


_new_write = tuple.__new__   # half the time of the class, and a decoder makes very many


class Writes(NamedTuple):
    """The records of one entry; of an atomic one all are applied or none."""

    records: tuple[Write, ...]
    atomic: bool = False


class MalformedWrites(ValueError):
    """The payload is none of document writes; the text names the field."""


def wrong_write(write: Write) -> str | None:
    """Return what is wrong with one record, naming the field, or None."""
    return _wrong(write.op, len(write.key), len(write.value), write.ttl_ms, write.expected or 0)


def _wrong(op: int, key_bytes: int, value_bytes: int, ttl_ms: int, expected: int) -> str | None:
    if not 1 <= key_bytes <= KEY_BYTES_MAX:
        return f"key has {key_bytes} bytes, must have 1 to {KEY_BYTES_MAX}"
    if value_bytes > VALUE_BYTES_MAX:
        return f"value has {value_bytes} bytes, the limit is {VALUE_BYTES_MAX}"
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        return f"ttl_ms is {ttl_ms}, must be 0 to {TTL_MS_MAX}"
    if op == Op.DELETE and (value_bytes or ttl_ms):
        return "a delete has neither a value nor a ttl"
    if not 0 <= expected <= SEQNO_MAX:
        return f"expected is {expected}, must be 0 to {SEQNO_MAX}"
    return None


def encode(writes: Writes) -> bytes:
    """Return the payload of an entry; raises ValueError when a record, or their number, breaks a bound."""
    if len(writes.records) > RECORDS_MAX:
        raise ValueError(_too_many(len(writes.records)))
    table: list[bytes] = []
    for number, write in enumerate(writes.records):
        if (wrong := wrong_write(write)) is not None:
            raise ValueError(f"record {number}: {wrong}")
        table.append(_RECORD.pack(
            write.op, write.expected is not None, len(write.key), len(write.value), write.ttl_ms, write.expected or 0
        ))
    return b"".join((
        _HEAD.pack(MAGIC, ATOMIC if writes.atomic else 0, _ZEROS), *table,
        *(write.key for write in writes.records), *(write.value for write in writes.records),
    ))


def _too_many(count: int) -> str:
    return f"entry has {count} records, the limit is {RECORDS_MAX}"


def decode(payload: bytes, count: int) -> Writes:
    """Read the payload of an entry of `count` records; raises MalformedWrites, whatever the bytes are."""
    table, atomic, keys_at, values_at = _read_table(payload, count)
    records: list[Write] = []
    for op, conditional, key_bytes, value_bytes, ttl_ms, expected in table:
        key = payload[keys_at:keys_at + key_bytes]
        value = payload[values_at:values_at + value_bytes]
        keys_at, values_at = keys_at + key_bytes, values_at + value_bytes
        records.append(_new_write(Write, (_OPS[op], key, value, ttl_ms, expected if conditional else None)))
    return Writes(tuple(records), atomic)


def keys_of(payload: bytes, count: int) -> Iterator[bytes]:
    """Yield the keys of an entry that `check` lets pass; of any other one nothing, or bytes that are no keys."""
    at = _HEAD.size + count * _RECORD.size
    if count <= RECORDS_MAX and len(payload) >= at:
        for row in _RECORD.iter_unpack(memoryview(payload)[_HEAD.size:at]):
            yield payload[at:at + row[2]]
            at += row[2]


def check(payload: bytes, count: int) -> None:
    """Raise MalformedWrites where `decode` does; it reads no key and no value."""
    _read_table(payload, count)


def _read_table(payload: bytes, count: int) -> tuple[list[tuple[int, ...]], bool, int, int]:
    """Return the fields of all records, whether the entry is atomic, and where keys and values begin."""
    if count > RECORDS_MAX:
        raise MalformedWrites(_too_many(count))
    if len(payload) < _HEAD.size + count * _RECORD.size:
        raise MalformedWrites(f"payload has {len(payload)} bytes, too few for {count} records")
    magic, flags, zeros = _HEAD.unpack_from(payload)
    if magic != MAGIC:
        raise MalformedWrites(f"payload begins with {magic!r}, not with {MAGIC!r}")
    if flags > ATOMIC or zeros != _ZEROS:
        raise MalformedWrites(f"flags are {flags:#x} {zeros.hex()}, must be 0 or {ATOMIC} and three zero bytes")
    keys_at = _HEAD.size + count * _RECORD.size
    table = list(_RECORD.iter_unpack(memoryview(payload)[_HEAD.size:keys_at]))
    values_at = keys_at + sum(row[2] for row in table)
    ends_at = values_at + sum(row[3] for row in table)
    if ends_at != len(payload):
        raise MalformedWrites(f"payload has {len(payload)} bytes, its records say {ends_at}")
    for number, (op, conditional, key_bytes, value_bytes, ttl_ms, expected) in enumerate(table):
        if op not in _OPS:
            raise MalformedWrites(f"record {number}: operation is {op}, must be 1 or 2")
        if conditional > 1 or (expected and not conditional):
            raise MalformedWrites(f"record {number}: expected is {expected} and the condition is {conditional}")
        wrong = _wrong(op, key_bytes, value_bytes, ttl_ms, expected)
        if wrong is not None:
            raise MalformedWrites(f"record {number}: {wrong}")
    return table, bool(flags), keys_at, values_at


# --- EXPIRE, which leaders write; a fold ignores one that it cannot read ---------------------------------------

EXPIRE_KEYS_MAX = 1000
_EXPIRED = struct.Struct(">QH")


class Expired(NamedTuple):
    """A version that is to be deleted if it is still the live one (U51)."""

    key: bytes
    seqno: int


def encode_expired(expired: Sequence[Expired]) -> bytes:
    """Return the payload of EXPIRE, whose entry has one offset for each version."""
    return b"".join((*(_EXPIRED.pack(each.seqno, len(each.key)) for each in expired), *(each.key for each in expired)))


def decode_expired(payload: bytes, count: int) -> tuple[Expired, ...]:
    """Read EXPIRE of `count` versions; raises MalformedWrites."""
    at = count * _EXPIRED.size
    table = list(_EXPIRED.iter_unpack(memoryview(payload)[:at])) if len(payload) >= at else []
    if len(table) != count or len(payload) != at + sum(size for _, size in table):
        raise MalformedWrites(f"EXPIRE of {count} versions has {len(payload)} bytes")
    found: list[Expired] = []
    for seqno, size in table:
        found.append(Expired(payload[at:at + size], seqno))
        at += size
    return tuple(found)


# --- outcomes ---------------------------------------------------------------------------------------------


class Verdict(IntEnum):
    """The decision of the fold on one record (U49, U50)."""

    APPLIED = 1
    REFUSED = 2      # its condition did not hold
    ABORTED = 3      # another record of its atomic entry was refused
    MALFORMED = 4    # the entry cannot be read


class Outcome(NamedTuple):
    """The verdict and the seqno of the live document that the record replaced or found, 0 when there was none."""

    verdict: Verdict
    seqno: int = 0


_OUTCOME = struct.Struct(">BQ")
OUTCOME_BYTES = _OUTCOME.size
_VERDICTS = {int(verdict): verdict for verdict in Verdict}


def encode_outcomes(outcomes: Sequence[Outcome]) -> bytes:
    """Return the row of `effects` of one entry."""
    if outcomes and outcomes.count(outcomes[0]) == len(outcomes):   # nearly always: all keys were new
        return _OUTCOME.pack(*outcomes[0]) * len(outcomes)
    return b"".join(_OUTCOME.pack(*outcome) for outcome in outcomes)


def decode_outcomes(row: bytes) -> tuple[Outcome, ...]:
    """Read `encode_outcomes`; raises struct.error or KeyError when it is damaged."""
    return tuple(Outcome(_VERDICTS[verdict], seqno) for verdict, seqno in _OUTCOME.iter_unpack(row))
