"""Fold: what the confirmed entries of one log do to the documents of its shard (rules U46-U52, U70, U71, U73).

A pure function of the summary, the next entries and the rows that they touch.  Its result is one batch of writes with
the summary behind them: a cut, the digest and the outcomes of every entry.  Every member that folds the same entries
gets the same rows and outcomes, whatever it had removed in the background.
Stays out: which entries are confirmed, reading rows and storing them (`document_shard`), background work (`sweeping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..base.effects import Delete, Put, PutMany, StoreWrite
from ..base.entry import Entry, Kind
from ..base.ids import ShardId
from .payload import (
    Expired,
    MalformedWrites,
    Op,
    Outcome,
    Verdict,
    Write,
    Writes,
    decode,
    decode_expired,
    encode_outcomes,
)
from .pinning import decode_pin, decode_unpin, why_not_pinned, why_not_unpinned
from .rows import (
    BYSEQ,
    DIGEST_MASK,
    DOCS,
    EFFECTS,
    EXPIRY,
    LIVE_CLASS,
    PINNED,
    PINS,
    SUMMARY,
    TOMBSTONE_CLASS,
    Pin,
    Row,
    Summary,
    byseq_value,
    due_value,
    encode_row,
    expiry_key,
    kept_bytes,
    live_row,
    pin_key,
    pinned_key,
    pinned_value,
    prefix,
    seqno_key,
    tombstone,
)

DIGEST_EVERY = 4096
"""Members keep the digest at the first entry that ends behind each multiple of so many offsets (U73b)."""

NONE = 0
"""The seqno of a document that is not there."""

ReadRow = Callable[[bytes], Row | None]
"""Return the row of `docs` of a document's key, as the fold of everything before left it."""


class DigestAt(NamedTuple):
    """Count and digest of the live documents at a cut."""

    applied: int
    live: int
    digest: int


class Folded(NamedTuple):
    """A batch: everything that entries did, and where they led."""

    summary: Summary
    writes: tuple[StoreWrite, ...]
    rows: Mapping[bytes, Row | None]           # of `docs` that changed, by key
    outcomes: dict[int, tuple[Outcome, ...]]   # by base offset of each visible data entry
    digests: tuple[DigestAt, ...] = ()         # at cuts that are the same on every member, whatever its slices
    unpinned: bool = False                     # a pin ended, one that this batch began or begins again, too


class Step(NamedTuple):
    """One visible entry, decoded; of one that cannot be read `work` is None."""

    entry: Entry
    work: Writes | tuple[Expired, ...] | None


def decoded(entries: Iterable[Entry], hidden: Callable[[int], bool]) -> tuple[Step, ...]:
    """Decode the entries that are visible; `hidden` says whether a rollback covers an offset (U46)."""
    return tuple(Step(entry, _work(entry)) for entry in entries if not hidden(entry.base))


def _work(entry: Entry) -> Writes | tuple[Expired, ...] | None:
    try:
        if entry.kind is Kind.DATA:
            return decode(entry.payload, entry.count)
        if entry.kind is Kind.EXPIRE:
            return decode_expired(entry.payload, entry.count)
    except MalformedWrites:
        pass   # an outcome, not an error: a member that stopped here could never go on (U49)
    return None


def keys_of(steps: Iterable[Step]) -> set[bytes]:
    """Return the keys of the documents whose rows the fold of these entries reads."""
    return {key for step in steps for key in _keys(step)}


def _keys(step: Step) -> Iterator[bytes]:
    if isinstance(step.work, Writes):
        return (write.key for write in step.work.records)
    return (each.key for each in step.work or ())


def fold(shard: ShardId, summary: Summary, steps: Iterable[Step], cut: int, epoch: int, read: ReadRow) -> Folded:
    """Fold entries behind `summary.applied` up to `cut`, which the entry of `epoch` ends at."""
    folding = _Folding(shard, summary, read)
    for step in steps:
        folding.step(step)
    return folding.folded(cut, epoch)


_PUT, _APPLIED = Op.PUT, Verdict.APPLIED   # the lookup of an enum's member costs as much as a record's tuple
_NEW = Outcome(_APPLIED, NONE)


class _Folding:
    """The fold of one batch, in the middle."""

    __slots__ = (
        "at",
        "byseq",
        "count",
        "digest",
        "digests",
        "expiring",
        "kept",
        "ops",
        "outcomes",
        "pins",
        "prefix",
        "purged",
        "read",
        "rows",
        "shard",
        "since",
        "start",
        "tombstones",
        "unpinned",
    )

    def __init__(self, shard: ShardId, summary: Summary, read: ReadRow) -> None:
        self.shard = shard
        self.prefix = prefix(shard)
        self.start = summary
        self.at = summary.applied
        self.digests: list[DigestAt] = []
        self.read = read
        self.rows: dict[bytes, Row] = {}
        self.byseq: dict[int, bytes | None] = {}               # by seqno: a value, or it is removed
        self.ops: dict[tuple[str, bytes], bytes | None] = {}   # the same of the other families
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}
        self.count, self.digest = summary.count, summary.digest
        self.expiring, self.tombstones = summary.expiring, summary.tombstones
        self.purged = summary.purged
        self.pins = dict(summary.pins)
        self.unpinned = False
        self.kept: dict[str, int] = {}   # bytes of versions that pins show and this batch superseded
        self.since = max((pin.at for pin in self.pins.values()), default=-1)   # the newest pin

    def folded(self, cut: int, epoch: int) -> Folded:
        for name, size in self.kept.items():
            pin = self.pins[name] = replace(self.pins[name], kept_bytes=self.pins[name].kept_bytes + size)
            self.ops[PINS, pin_key(self.shard, name)] = pin.encode()
        summary = replace(
            self.start, applied=cut, epoch=epoch, purged=self.purged, count=self.count, digest=self.digest,
            expiring=self.expiring, tombstones=self.tombstones, pins=self.pins,
        )
        shard, start = self.shard, self.prefix
        writes: list[StoreWrite] = [
            PutMany(DOCS, tuple([(start + key, encode_row(row)) for key, row in self.rows.items()])),
            PutMany(BYSEQ, tuple([
                (seqno_key(shard, seqno), value) for seqno, value in self.byseq.items() if value is not None
            ])),
            *(Delete(BYSEQ, seqno_key(shard, seqno)) for seqno, value in self.byseq.items() if value is None),
            *(
                Delete(family, key) if value is None else Put(family, key, value)
                for (family, key), value in self.ops.items()
            ),
        ]
        writes.append(Put(SUMMARY, prefix(self.shard), summary.encode()))
        return Folded(summary, tuple(writes), self.rows, self.outcomes, tuple(self.digests), self.unpinned)

    def step(self, step: Step) -> None:
        entry = step.entry
        match entry.kind:
            case Kind.DATA:
                self._data(entry, step.work if isinstance(step.work, Writes) else None)
            case Kind.EXPIRE:
                self._expire(entry, step.work if not isinstance(step.work, Writes) else None)
            case Kind.PURGE:
                self.purged = max(self.purged, min(entry.sequence, entry.base - 1))
            case Kind.PIN:
                self._pin(entry)
            case Kind.UNPIN:
                self._unpin(entry)
        if entry.last // DIGEST_EVERY != self.at // DIGEST_EVERY:
            self.digests.append(DigestAt(entry.last, self.count, self.digest))
        self.at = entry.last

    # --- writes -------------------------------------------------------------------------------------------

    def _data(self, entry: Entry, writes: Writes | None) -> None:
        if writes is None:
            outcomes = (Outcome(Verdict.MALFORMED),) * entry.count
        else:
            outcomes = self._judge(entry, writes)
            for seqno, (write, outcome) in enumerate(zip(writes.records, outcomes, strict=True), entry.base):
                if outcome[0] is _APPLIED:
                    self._apply(entry, seqno, write)
        self.outcomes[entry.base] = outcomes
        self.ops[EFFECTS, seqno_key(self.shard, entry.base)] = encode_outcomes(outcomes)

    def _judge(self, entry: Entry, writes: Writes) -> tuple[Outcome, ...]:
        """Judge records in order, each seeing the earlier ones of its entry; one refusal refuses all atomic ones (U49).
        """
        live: dict[bytes, int] = {}
        outcomes: list[Outcome] = []
        for seqno, (op, key, _, _, expected) in enumerate(writes.records, entry.base):
            found = live.get(key, -1)
            if found < 0:
                row = self._row(key)
                found = row.seqno if row is not None and row.live else NONE
            if expected is not None and expected != found:
                outcomes.append(Outcome(Verdict.REFUSED, found))
                continue
            outcomes.append(Outcome(_APPLIED, found) if found else _NEW)
            live[key] = seqno if op is _PUT else NONE
        if writes.atomic and any(outcome.verdict is Verdict.REFUSED for outcome in outcomes):
            return tuple(
                outcome if outcome.verdict is Verdict.REFUSED else Outcome(Verdict.ABORTED, outcome.seqno)
                for outcome in outcomes
            )
        return tuple(outcomes)

    def _apply(self, entry: Entry, seqno: int, write: Write) -> None:
        op, key, value, ttl_ms, _ = write
        if op is not _PUT:
            self._delete(entry, seqno, key)
            return
        expires_at_ms = entry.logged_ms + ttl_ms if ttl_ms else 0   # U51
        self._replace(key, live_row(key, seqno, expires_at_ms, value), entry)

    def _delete(self, entry: Entry, seqno: int, key: bytes, expired: bool = False) -> None:
        """Write a tombstone; where no live document is, nothing changes: whether one was swept is no matter (U52)."""
        row = self._row(key)
        if row is not None and row.live:
            self._replace(key, tombstone(seqno, entry.logged_ms, expired), entry)

    def _expire(self, entry: Entry, expired: tuple[Expired, ...] | None) -> None:
        """Delete each version that is still the live one and past its time by the log's clock (U51)."""
        for number, (key, seqno) in enumerate(expired or ()):
            row = self._row(key)
            if row is not None and row.live and row.seqno == seqno and 0 < row.ms <= entry.logged_ms:
                self._delete(entry, entry.base + number, key, expired=True)

    # --- rows ---------------------------------------------------------------------------------------------

    def _row(self, key: bytes) -> Row | None:
        return self.rows[key] if key in self.rows else self.read(key)

    def _replace(self, key: bytes, row: Row, entry: Entry) -> None:
        """Write the newest version of a key; the rows of the one before go in the same batch (U48)."""
        old, (seqno, live, ms, hashed, _, _) = self._row(key), row
        if old is not None:
            self._forget(key, old, seqno)
        self.rows[key] = row
        self.byseq[seqno] = byseq_value(key, live)
        if live:
            self.count += 1
            self.digest = self.digest + int.from_bytes(hashed, "big") & DIGEST_MASK
            if ms:
                self.expiring += 1
                self.ops[EXPIRY, expiry_key(self.shard, LIVE_CLASS, ms, seqno)] = due_value(key, entry.last)
        else:
            self.tombstones += 1
            self.ops[EXPIRY, expiry_key(self.shard, TOMBSTONE_CLASS, ms, seqno)] = due_value(key, entry.last)

    def _forget(self, key: bytes, old: Row, replaced_by: int) -> None:
        shard, ops = self.shard, self.ops
        self.byseq[old.seqno] = None
        if not old.live:
            self.tombstones -= 1
            ops[EXPIRY, expiry_key(shard, TOMBSTONE_CLASS, old.ms, old.seqno)] = None
            return
        self.count -= 1
        self.digest = self.digest - old.number & DIGEST_MASK
        if old.ms:
            self.expiring -= 1
            ops[EXPIRY, expiry_key(shard, LIVE_CLASS, old.ms, old.seqno)] = None
        if self.since >= old.seqno:   # some pin shows this version (U71)
            ops[PINNED, pinned_key(shard, key, old.seqno)] = pinned_value(replaced_by, old)
            size = kept_bytes(key, old.value)
            for name, pin in self.pins.items():
                if pin.at >= old.seqno:
                    self.kept[name] = self.kept.get(name, 0) + size

    # --- pins ---------------------------------------------------------------------------------------------

    def _pin(self, entry: Entry) -> None:
        """Pin the documents as they are now, or renew the lease of an active pin, which never moves (U70, U70b)."""
        try:
            name, owner, ttl_ms = decode_pin(entry.payload)
        except MalformedWrites:
            return
        if why_not_pinned(self.pins, name, owner) is not None:
            return
        known, until_ms = self.pins.get(name), entry.logged_ms + ttl_ms
        pin = (
            replace(known, until_ms=until_ms) if known is not None
            else Pin(entry.base, until_ms, entry.epoch, self.count, self.digest, owner=owner)
        )
        self.pins[name] = pin
        self.since = max(self.since, pin.at)
        self.ops[PINS, pin_key(self.shard, name)] = pin.encode()

    def _unpin(self, entry: Entry) -> None:
        try:
            name, owner, _ = decode_unpin(entry.payload)
        except MalformedWrites:
            return
        if why_not_unpinned(self.pins, name, owner) is not None:
            return
        self.kept.pop(name, None)
        if self.pins.pop(name, None) is not None:
            self.unpinned = True
            self.since = max((pin.at for pin in self.pins.values()), default=-1)
            self.ops[PINS, pin_key(self.shard, name)] = None
