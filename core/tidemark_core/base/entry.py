"""Entry: one batch of records as it is logged, replicated and delivered.

The header is fixed-width and sits in front; the payload is opaque bytes.  An entry of n records takes the
offsets [base, base + n) and its id is (epoch, last offset); a control entry takes one, EXPIRE one a document (A4).
`chain` is crc32c over the header with the predecessor's chain inside, so one number vouches for the whole
log up to here; `payload_crc` vouches for the payload.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from google_crc32c import value as crc32c

from .errors import CorruptEntry, FormatTooNew
from .ids import NOTHING, EntryId

FORMAT_VERSION = 1
MAGIC = b"TM"
HEADER = struct.Struct(">2sBBHIQQIIQqqqqQ16sqI")
CHAIN = struct.Struct(">I")
_WITH_CHAIN = struct.Struct(HEADER.format + "I")
HEADER_BYTES = _WITH_CHAIN.size
NO_PRODUCER = bytes(16)
RECORDS_MAX = 1 << 20


class Kind(IntEnum):
    """What an entry is.  Everything but DATA is a control entry."""

    DATA = 1
    EPOCH_START = 2  # first entry of an elected epoch (L4)
    NOOP = 3         # first entry of an epoch that a reconfiguration began (L4, H3b)
    CONFIRM = 4      # everything up to the offset in `sequence` is confirmed (L11)
    ROLLBACK = 5     # undecided entries from the offset in `sequence` on are rolled back (L7)
    POSITION = 6     # a subscription wants the offset in `sequence` next; its name and lease are the payload (B1)
    EXPIRE = 7       # documents whose time is over, one offset each; keys and versions are the payload (U51)
    PURGE = 8        # tombstones up to the offset in `sequence` do not exist any more (U52)
    PIN = 9          # keep the documents as they are here; name and lease are the payload (U70)
    UNPIN = 10       # the pin named in the payload ends (U70)
    CLAIM = 11       # a process has a producer to itself from here on; the fence is in `sequence` (L26)
    SINK = 12        # of the batch in `sequence` a part begins, or all are complete; the payload says which (W1)


FOLDED_WITH_PAYLOAD = frozenset((Kind.POSITION, Kind.SINK))
"""Kinds whose payload a restart needs; of all others it reads the header alone."""


class Durability(IntEnum):
    """What an append waits for; kept in the two lowest bits of the header's flags."""

    QUORUM = 0  # the synchro quorum has it on disk: confirmed
    LOCAL = 1   # the leader has it on disk; a failover may lose it (L15)
    COMMIT = 2  # a majority of the ensemble has it on disk; the synchro quorum is waived for it alone (L16)


# What a named tuple's own constructor does, without a Python frame around it: readers unpack entries by the thousand.
_new = tuple.__new__

_KINDS = {int(kind): kind for kind in Kind}
_DURABILITIES = {int(durability): durability for durability in Durability}


class Batch(NamedTuple):
    """What a producer hands over, before the leader gives it a place.  Timestamps are microseconds (UTC)."""

    producer: bytes     # 16 bytes
    sequence: int       # from 0, plus one per batch, per producer and shard (L19)
    count: int  # type: ignore[assignment]  # records; hides tuple.count, which nobody wants here
    first_timestamp_us: int
    last_timestamp_us: int
    payload_crc: int
    payload: bytes
    durability: Durability = Durability.QUORUM

    @property
    def key(self) -> tuple[bytes, int]:
        """By what a log knows it: producer and sequence."""
        return self.producer, self.sequence


class Entry(NamedTuple):
    """A batch with its place in the log.  `header` is the packed form of all fields but the payload."""

    epoch: int
    base: int
    count: int  # type: ignore[assignment]  # records
    kind: Kind
    durability: Durability
    prev: EntryId
    first_timestamp_us: int
    last_timestamp_us: int
    logged_ms: int      # leader's clock, never falling along the log
    order: int          # reading order of slots, one nibble each, left-most lowest (K1)
    producer: bytes
    sequence: int
    payload_bytes: int
    payload_crc: int
    prev_chain: int
    chain: int
    header: bytes
    payload: bytes

    @property
    def last(self) -> int:
        """Offset of the last record."""
        return self.base + self.count - 1

    @property
    def id(self) -> EntryId:
        return EntryId(self.epoch, self.base + self.count - 1)

    @property
    def size(self) -> int:
        """Bytes of header and payload."""
        return HEADER_BYTES + self.payload_bytes

    @property
    def held(self) -> bool:
        """Say whether the payload is here; a member that dropped it has the header alone (K6)."""
        return len(self.payload) == self.payload_bytes

    def bare(self) -> Entry:
        """Return the header alone."""
        return self._replace(payload=b"") if self.payload else self


def seal(
    batch: Batch, *, kind: Kind, epoch: int, prev: EntryId, prev_chain: int, logged_ms: int, order: int = 0
) -> Entry:
    """Give `batch` its place right behind `prev` and pack the header."""
    base = prev.offset + 1
    body = HEADER.pack(
        MAGIC, FORMAT_VERSION, kind, batch.durability, batch.count, epoch, base, len(batch.payload),
        batch.payload_crc, prev.epoch, prev.offset, batch.first_timestamp_us, batch.last_timestamp_us,
        logged_ms, order, batch.producer, batch.sequence, prev_chain,
    )
    chain = crc32c(body)
    return Entry(
        epoch, base, batch.count, kind, batch.durability, prev, batch.first_timestamp_us,
        batch.last_timestamp_us, logged_ms, order, batch.producer, batch.sequence, len(batch.payload),
        batch.payload_crc, prev_chain, chain, body + CHAIN.pack(chain), batch.payload,
    )


def control(
    kind: Kind, payload: bytes, *, epoch: int, prev: EntryId, prev_chain: int, logged_ms: int, argument: int = -1,
    count: int = 1, producer: bytes = NO_PRODUCER,
) -> Entry:
    """Seal a control entry: one offset, and of EXPIRE one for each of its `count` documents; CLAIM has a producer.

    `argument` is the offset that a CONFIRM, ROLLBACK, POSITION or PURGE names, or the batch of a SINK; it takes the
    place of the sequence, for a log is recovered from its headers (`recovered`).
    """
    batch = Batch(producer, argument, count, logged_ms * 1000, logged_ms * 1000, crc32c(payload), payload)
    return seal(batch, kind=kind, epoch=epoch, prev=prev, prev_chain=prev_chain, logged_ms=logged_ms)


def decode(header: bytes, payload: bytes) -> Entry:
    """Unpack and verify a whole entry; raises CorruptEntry when either checksum fails."""
    return with_payload(decode_header(header), payload)


def with_payload(entry: Entry, payload: bytes) -> Entry:
    """Return a verified header with its payload; raises CorruptEntry when the payload fails its checksum."""
    if len(payload) != entry.payload_bytes or crc32c(payload) != entry.payload_crc:
        raise CorruptEntry(f"payload of entry {entry.id} fails its checksum")
    return _new(Entry, (*entry[:-1], payload))


def decode_header(header: bytes) -> Entry:
    """Unpack and verify a header; the payload of the result is empty.

    Raises CorruptEntry; FormatTooNew, which is one, when the checksum is right and the version or kind is not known.
    """
    if len(header) != HEADER_BYTES:
        raise CorruptEntry(f"header has {len(header)} bytes, not {HEADER_BYTES}")
    (
        magic, version, kind, durability, count, epoch, base, payload_bytes, payload_crc, prev_epoch,
        prev_offset, first_us, last_us, logged_ms, order, producer, sequence, prev_chain, chain,
    ) = _WITH_CHAIN.unpack(header)
    if crc32c(header[: HEADER.size]) != chain:
        raise CorruptEntry("header fails its checksum")
    if magic != MAGIC:
        raise CorruptEntry(f"entry begins with {magic!r}, not with {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise FormatTooNew(f"entry has format version {version}, this build reads {FORMAT_VERSION}")
    kind_known, durability_known = _KINDS.get(kind), _DURABILITIES.get(durability)
    if kind_known is None or durability_known is None:
        raise FormatTooNew(f"entry is of kind {kind} and durability {durability}, this build does not know both")
    if count < 1:
        raise CorruptEntry("entry holds no record")
    prev = _new(EntryId, (prev_epoch, prev_offset))
    return _new(Entry, (
        epoch, base, count, kind_known, durability_known, prev, first_us, last_us, logged_ms, order, producer, sequence,
        payload_bytes, payload_crc, prev_chain, chain, header, b"",
    ))


def folded_part(entry: Entry) -> bytes:
    """Return what a restart reads of an entry: its header, and the payload of the kinds that are folded with it."""
    return entry.header + entry.payload if entry.kind in FOLDED_WITH_PAYLOAD else entry.header


def recovered(data: bytes) -> Entry:
    """Unpack and verify what `folded_part` returned; raises CorruptEntry."""
    entry = decode_header(data[:HEADER_BYTES])
    if entry.kind in FOLDED_WITH_PAYLOAD:
        return with_payload(entry, data[HEADER_BYTES:])
    if len(data) != HEADER_BYTES:
        raise CorruptEntry(f"header has {len(data)} bytes, not {HEADER_BYTES}")
    return entry


def check_batch(batch: Batch, payload_bytes_max: int) -> str | None:
    """Return what is wrong with a producer's batch, naming the field, or None."""
    if len(batch.producer) != 16 or batch.producer == NO_PRODUCER:
        return "producer must be 16 bytes and not all zero"
    if batch.sequence < 0:
        return f"sequence is {batch.sequence}, must be 0 or more"
    if not 1 <= batch.count <= RECORDS_MAX:
        return f"record_count is {batch.count}, must be 1 to {RECORDS_MAX}"
    if len(batch.payload) > payload_bytes_max:
        return f"payload has {len(batch.payload)} bytes, the limit is {payload_bytes_max}"
    if batch.first_timestamp_us > batch.last_timestamp_us:
        return "first_timestamp is after last_timestamp"
    if crc32c(batch.payload) != batch.payload_crc:
        return "payload_crc32c does not match the payload"
    return None


EMPTY_CHAIN = 0
"""Chain value in front of the first entry."""

assert NOTHING.offset + 1 == 0, "A4: the first entry's base is 0"
