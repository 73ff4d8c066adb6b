"""Rows: the families, keys and values in which a member keeps the documents of its shards (U47, U48).

    family    key                              value
    docs      shard, key                       seqno, live, ms, hash, value
    byseq     shard, seqno                     live, key
    expiry    shard, class, ms, seqno          last offset of the entry, key
    effects   shard, base offset of an entry   one verdict and seqno for each record
    pins      shard, name                      seqno of the cut, lease, epoch, count, digest, bytes kept for it, owner
    pinned    shard, key (escaped), seqno      seqno that replaced it, its row of docs
    summary   shard                            applied and what goes with it
    summary   shard, "failover"                the failover log up to applied (`document_changes`)

The first byte behind a seqno in `docs` is 1 for a live document, 0 for a deleted and 2 for an expired one.
`ms` is when a live document expires (0: never) and when a deleted one was deleted.  `expiry` holds what time removes:
class 0 are live documents with a ttl, class 1 are tombstones.  A tombstone has its row of `docs` and of `byseq`.
Numbers are big-endian, so keys sort as numbers do.  Stays out: when a row is written (`fold`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from xxhash import xxh3_128_digest

from ..base.effects import DeleteRange
from ..base.errors import FormatTooNew, RemoteViolation
from ..base.ids import ShardId

DOCS, BYSEQ, EXPIRY, EFFECTS = "docs", "byseq", "expiry", "effects"
PINS, PINNED, SUMMARY = "pins", "pinned", "summary"
FAMILIES = (DOCS, BYSEQ, EXPIRY, EFFECTS, PINS, PINNED, SUMMARY)

DIGEST_MASK = (1 << 128) - 1
LIVE_CLASS, TOMBSTONE_CLASS = 0, 1
EXPIRED = 2

_SHARD = struct.Struct(">Q")
_SHARD_SEQNO = struct.Struct(">QQ")
_EXPIRY_KEY = struct.Struct(">QBQQ")
_ROW = struct.Struct(">QBq16s")
_HASHED = struct.Struct(">IQq")
_LAST = struct.Struct(">Q")


class Rows(Protocol):
    """One consistent state of the families: a snapshot of the store."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is not there."""

    def scan(self, family: str, first: bytes, behind: bytes) -> Iterable[tuple[bytes, bytes]]:
        """Yield the rows with keys in [first, behind), in byte order."""


class Row(NamedTuple):
    """A row of `docs`: the newest version of a key; a tombstone when it is not live."""

    seqno: int
    live: bool
    ms: int
    hash: bytes
    value: bytes
    expired: bool = False   # of a tombstone: time removed the document (U51)

    @property
    def number(self) -> int:
        """The number that a live row adds to the digest of its shard (U73)."""
        return int.from_bytes(self.hash, "big")


_new_row = tuple.__new__   # folds and scans make one for each document; this way in half the time


def hash_of(key: bytes, seqno: int, ms: int, value: bytes) -> bytes:
    """Return the hash of a live document: 16 bytes (U73)."""
    return xxh3_128_digest(_HASHED.pack(len(key), seqno, ms) + key + value)


def live_row(key: bytes, seqno: int, expires_at_ms: int, value: bytes) -> Row:
    return _new_row(Row, (seqno, True, expires_at_ms, hash_of(key, seqno, expires_at_ms, value), value, False))


def tombstone(seqno: int, deleted_ms: int, expired: bool = False) -> Row:
    return Row(seqno, False, deleted_ms, bytes(16), b"", expired)


def encode_row(row: Row) -> bytes:
    seqno, live, ms, digest, value, expired = row
    return _ROW.pack(seqno, EXPIRED if expired else live, ms, digest) + value


def decode_row(data: bytes) -> Row:
    """Read `encode_row`; raises struct.error when it is cut short."""
    seqno, state, ms, digest = _ROW.unpack_from(data)
    return _new_row(Row, (seqno, state == 1, ms, digest, data[_ROW.size:], state == EXPIRED))


# --- keys -------------------------------------------------------------------------------------------------


def prefix(shard: ShardId) -> bytes:
    """Return what all keys of a shard begin with."""
    return _SHARD.pack(shard)


def behind(shard: ShardId) -> bytes:
    """Return the first key behind those of a shard."""
    return _SHARD.pack(shard + 1)


def doc_key(shard: ShardId, key: bytes) -> bytes:
    return _SHARD.pack(shard) + key


def seqno_key(shard: ShardId, seqno: int) -> bytes:
    """Return the key in `byseq` of a seqno, and in `effects` of an entry's base offset."""
    return _SHARD_SEQNO.pack(shard, seqno)


def seqno_of(key: bytes) -> int:
    return int(_SHARD_SEQNO.unpack(key)[1])


def expiry_key(shard: ShardId, of_class: int, ms: int = 0, seqno: int = 0) -> bytes:
    return _EXPIRY_KEY.pack(shard, of_class, ms, seqno)


class Due(NamedTuple):
    """A row of `expiry`."""

    ms: int
    seqno: int
    last: int      # of the entry that wrote it
    key: bytes


def due_of(key: bytes, value: bytes) -> Due:
    _, _, ms, seqno = _EXPIRY_KEY.unpack(key)
    return Due(ms, seqno, _LAST.unpack_from(value)[0], value[_LAST.size:])


def due_value(key: bytes, last: int) -> bytes:
    return _LAST.pack(last) + key


def byseq_value(key: bytes, live: bool) -> bytes:
    return bytes((live,)) + key


_ZERO, _ESCAPED, _END = b"\0", b"\0\xff", b"\0\x01"


def pinned_key(shard: ShardId, key: bytes, seqno: int) -> bytes:
    """Return the key in `pinned`; escaped, so that rows sort by key and then by seqno."""
    return b"".join((_SHARD.pack(shard), key.replace(_ZERO, _ESCAPED), _END, _SHARD.pack(seqno)))


def pinned_of(row_key: bytes) -> tuple[bytes, int]:
    """Return the document's key and seqno of a key in `pinned`."""
    escaped, seqno = row_key[_SHARD.size:-_SHARD.size], row_key[-_SHARD.size:]
    return escaped[:-len(_END)].replace(_ESCAPED, _ZERO), int(_SHARD.unpack(seqno)[0])


def pinned_value(replaced_by: int, row: Row) -> bytes:
    return _SHARD.pack(replaced_by) + encode_row(row)


def superseded(value: bytes) -> tuple[int, Row]:
    """Return the seqno that replaced a pinned version, and its row."""
    return int(_SHARD.unpack_from(value)[0]), decode_row(value[_SHARD.size:])


def kept_bytes(key: bytes, value: bytes) -> int:
    """Return how many bytes the row of a superseded version counts, but for escapes in its key."""
    return len(key) + len(value) + _KEPT_BYTES


def wipe(shard: ShardId) -> tuple[DeleteRange, ...]:
    """Return the writes that remove all documents of a shard."""
    return tuple(DeleteRange(family, prefix(shard), behind(shard)) for family in FAMILIES)


# --- summary and pins -------------------------------------------------------------------------------------

_PIN = struct.Struct(">QqQQ16sQ")
_KEPT_BYTES = 2 * _SHARD.size + len(_END) + _SHARD.size + _ROW.size
_SUMMARY = struct.Struct(">BqQqQQQ16s")
SUMMARY_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Pin:
    """A cut that readers asked to keep: the documents after folding everything up to `at` (U70)."""

    at: int
    until_ms: int    # by the leader's clock
    epoch: int
    count: int
    digest: int
    kept_bytes: int = 0   # of superseded versions that this pin shows (U71), key and row of each
    owner: str = ""       # which alone renews it, and with admins ends it; empty: every caller may (U70b)

    def encode(self) -> bytes:
        return _PIN.pack(
            self.at, self.until_ms, self.epoch, self.count, self.digest.to_bytes(16, "big"), self.kept_bytes
        ) + self.owner.encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Pin:
        """Read `encode`; raises struct.error, UnicodeDecodeError."""
        at, until_ms, epoch, count, digest, kept_bytes = _PIN.unpack_from(data)
        owner = data[_PIN.size:].decode("ascii")
        return cls(at, until_ms, epoch, count, int.from_bytes(digest, "big"), kept_bytes, owner)


@dataclass(frozen=True, slots=True)
class Summary:
    """How far the documents are folded, and what is known of all of them at that cut; it goes with their rows (U47)."""

    applied: int = -1
    epoch: int = 0        # of the entry that ends at `applied`
    purged: int = -1      # tombstones up to here do not exist (U52)
    count: int = 0        # live documents
    digest: int = 0       # U73
    expiring: int = 0     # live documents with a ttl
    tombstones: int = 0   # rows of them that are still stored here; the only field that may differ between members
    pins: dict[str, Pin] = field(default_factory=dict)   # in their own family

    def encode(self) -> bytes:
        return _SUMMARY.pack(
            SUMMARY_FORMAT, self.applied, self.epoch, self.purged, self.count, self.expiring, self.tombstones,
            self.digest.to_bytes(16, "big"),
        )

    @classmethod
    def decode(cls, data: bytes, pins: dict[str, Pin]) -> Summary:
        """Read `encode`; raises RemoteViolation when it is damaged, FormatTooNew when a newer release wrote it."""
        if data[:1] != bytes((SUMMARY_FORMAT,)):
            error = FormatTooNew if data[:1] > bytes((SUMMARY_FORMAT,)) else RemoteViolation
            raise error(f"summary of documents has format {data[:1].hex()}, this build reads {SUMMARY_FORMAT:02x}")
        if len(data) != _SUMMARY.size:
            raise RemoteViolation(f"summary of documents has {len(data)} bytes, must have {_SUMMARY.size}")
        _, applied, epoch, purged, count, expiring, tombstones, digest = _SUMMARY.unpack(data)
        return cls(applied, epoch, purged, count, int.from_bytes(digest, "big"), expiring, tombstones, pins)

    def agrees_with(self, other: Summary) -> bool:
        """Say whether two members that folded equally far hold equal documents and pins (U73)."""
        return replace(self, tombstones=0) == replace(other, tombstones=0)


def pin_key(shard: ShardId, name: str) -> bytes:
    return _SHARD.pack(shard) + name.encode("ascii")


def name_of_pin(key: bytes) -> str:
    return key[_SHARD.size:].decode("ascii")


def load(shard: ShardId, rows: Rows) -> Summary | None:
    """Return the stored summary of a shard with its pins, None when it has none.

    Raises RemoteViolation when a row is damaged, FormatTooNew when a newer release wrote the summary.
    """
    summary = load_without_pins(shard, rows)
    if summary is None:
        return None
    try:
        pins = {name_of_pin(key): Pin.decode(value) for key, value in rows.scan(PINS, prefix(shard), behind(shard))}
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteViolation(f"a pin of shard {shard} is damaged: {error}") from error
    return replace(summary, pins=pins)


def load_without_pins(shard: ShardId, rows: Rows) -> Summary | None:
    """Return the stored summary of a shard, None when it has none; raises as `load`."""
    stored = rows.get(SUMMARY, prefix(shard))
    return Summary.decode(stored, {}) if stored is not None else None
