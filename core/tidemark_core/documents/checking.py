"""Checking: rows of another member, which may be any bytes, are read before they are stored (U47, T11).

Stays out: whether the rows fit together, which their digest says (U73).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..base.errors import RemoteViolation
from ..base.ids import ShardId
from .payload import KEY_BYTES_MAX, SEQNO_MAX, VALUE_BYTES_MAX, decode_outcomes
from .pinning import wrong_owner, wrong_pin
from .rows import (
    BYSEQ,
    DOCS,
    EFFECTS,
    EXPIRED,
    EXPIRY,
    LIVE_CLASS,
    PINNED,
    PINS,
    SUMMARY,
    TOMBSTONE_CLASS,
    Pin,
    Row,
    Summary,
    decode_row,
    due_of,
    name_of_pin,
    pinned_key,
    pinned_of,
    prefix,
    seqno_key,
    seqno_of,
    superseded,
)


def check_row(shard: ShardId, family: str, key: bytes, value: bytes) -> None:
    """Read a row as the fold, readers and the next start will.

    Raises RemoteViolation, whatever the bytes are; FormatTooNew, which is one, for a summary of a newer release.
    """
    check = _CHECKS.get(family)
    if check is None or not key.startswith(prefix(shard)):
        wrong: str | None = "it is none of its documents"
    else:
        try:
            wrong = check(shard, key, value)
        except (struct.error, ValueError, KeyError) as error:
            wrong = str(error)
    if wrong is not None:
        raise RemoteViolation(
            f"U47: a snapshot of {shard} brings a row of {family[:24]!r}, key {key[:24].hex()}: {wrong}"
        )


def check_summary(summary: Summary) -> None:
    """Raise RemoteViolation when a pulled summary says what no fold writes."""
    if not -1 <= summary.purged <= summary.applied <= SEQNO_MAX:
        raise RemoteViolation(f"U47: documents are folded up to {summary.applied}, purged up to {summary.purged}")
    for name, pin in summary.pins.items():
        if pin.at > summary.applied:
            raise RemoteViolation(f"U70: pin {name!r} is at {pin.at}, documents are folded up to {summary.applied}")


def _wrong_key(key: bytes) -> str | None:
    return None if 1 <= len(key) <= KEY_BYTES_MAX else f"a document's key has {len(key)} bytes"


def _wrong_version(key: bytes, row: Row, state: int) -> str | None:
    if state > EXPIRED or row.ms < 0 or row.seqno > SEQNO_MAX or len(row.value) > VALUE_BYTES_MAX:
        return f"seqno {row.seqno}, state {state}, ms {row.ms}, {len(row.value)} bytes of value"
    return _wrong_key(key)


def _doc(shard: ShardId, key: bytes, value: bytes) -> str | None:
    row = decode_row(value)
    return _wrong_version(key[len(prefix(shard)):], row, value[_LIVE_AT])


def _byseq(_: ShardId, key: bytes, value: bytes) -> str | None:
    if seqno_of(key) > SEQNO_MAX or value[:1] not in (b"\0", b"\1"):
        return f"seqno {seqno_of(key)}, live {value[:1].hex()}"
    return _wrong_key(value[1:])


def _expiry(shard: ShardId, key: bytes, value: bytes) -> str | None:
    due, of_class = due_of(key, value), key[len(prefix(shard))]
    if of_class not in (LIVE_CLASS, TOMBSTONE_CLASS) or not due.seqno <= due.last <= SEQNO_MAX:
        return f"class {of_class}, seqno {due.seqno}, last {due.last}"
    return _wrong_key(due.key)


def _effects(shard: ShardId, key: bytes, value: bytes) -> str | None:
    return None if key == seqno_key(shard, seqno_of(key)) and decode_outcomes(value) else "no outcomes"


def _pin(_: ShardId, key: bytes, value: bytes) -> str | None:
    if wrong_owner(owner := Pin.decode(value).owner):
        return f"owner is {owner[:24]!r}"
    return wrong_pin(name_of_pin(key), 1)


def _pinned(shard: ShardId, key: bytes, value: bytes) -> str | None:
    of_key, seqno = pinned_of(key)
    if key != pinned_key(shard, of_key, seqno):
        return "the key is not escaped as it must be"
    replaced_by, row = superseded(value)
    if row.seqno != seqno or not seqno < replaced_by <= SEQNO_MAX:
        return f"seqno {seqno}, its row says {row.seqno}, replaced by {replaced_by}"
    return _wrong_version(of_key, row, value[len(prefix(shard)) + _LIVE_AT])


def _summary(shard: ShardId, key: bytes, value: bytes) -> str | None:
    Summary.decode(value, {})
    return None if key == prefix(shard) else "a shard has one summary"


_LIVE_AT = 8   # in a row of `docs`: behind its seqno
_CHECKS: dict[str, Callable[[ShardId, bytes, bytes], str | None]] = {
    DOCS: _doc, BYSEQ: _byseq, EXPIRY: _expiry, EFFECTS: _effects, PINS: _pin, PINNED: _pinned, SUMMARY: _summary,
}
