"""Logs of document writes made by hand, rows in memory, and the model that folds are compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidemark_core.base.effects import Delete, DeleteRange, Put, PutMany, StoreWrite
from tidemark_core.base.entry import Entry, Kind, control
from tidemark_core.documents import payload, pinning
from tidemark_core.documents.fold import DigestAt, Folded, decoded, fold, keys_of
from tidemark_core.documents.payload import Op, Outcome, Verdict, Write, Writes
from tidemark_core.documents.rows import DOCS, Row, Summary, decode_row, doc_key, load

from tests.core.support import PRODUCER, SHARD, Author


class MemoryRows:
    """The families as dictionaries."""

    def __init__(self) -> None:
        self.families: dict[str, dict[bytes, bytes]] = {}

    def apply(self, writes: Iterable[StoreWrite]) -> None:
        for write in writes:
            family = self.families.setdefault(write.family, {})
            if isinstance(write, Put):
                family[write.key] = write.value
            elif isinstance(write, PutMany):
                family.update(write.rows)
            elif isinstance(write, Delete):
                family.pop(write.key, None)
            else:
                assert isinstance(write, DeleteRange)
                for key in [key for key in family if write.first <= key < write.behind]:
                    del family[key]

    def get(self, family: str, key: bytes) -> bytes | None:
        return self.families.get(family, {}).get(key)

    def scan(self, family: str, first: bytes = b"", behind: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self.families.get(family, {}).items())
        return ((key, value) for key, value in rows if key >= first and (behind is None or key < behind))


class Documents:
    """A member's documents: folds a log's entries up to a cut, in slices."""

    def __init__(self) -> None:
        self.rows = MemoryRows()
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}
        self.on_folded: Callable[[tuple[DigestAt, ...]], None] = lambda digests: None

    @property
    def summary(self) -> Summary:
        return load(SHARD, self.rows) or Summary()

    def row(self, key: bytes) -> Row | None:
        stored = self.rows.get(DOCS, doc_key(SHARD, key))
        return decode_row(stored) if stored is not None else None

    def fold(self, author: Author, cut: int | None = None, *, slice_entries: int = 1 << 30) -> Folded | None:
        """Fold up to `cut`, a value that `confirmed` may take; the log's end when it is None."""
        end = author.log.head.offset if cut is None else cut
        behind = [entry for entry in author.entries if self.summary.applied < entry.base <= end]
        folded: Folded | None = None
        while behind:
            taken, behind = behind[:slice_entries], behind[slice_entries:]
            at = taken[-1].last
            if (found := author.log.decisions.covering(taken[-1].base)) is not None:
                at = found.first - 1
                if at < self.summary.applied:
                    at = self.summary.applied
            steps = decoded(taken, hidden_in(author))
            wanted = {key: self.row(key) for key in keys_of(steps)}
            folded = fold(SHARD, self.summary, steps, at, taken[-1].epoch, wanted.__getitem__)
            self.rows.apply(folded.writes)
            self.outcomes |= folded.outcomes
            self.on_folded(folded.digests)
        return folded


def hidden_in(author: Author) -> Callable[[int], bool]:
    return lambda base: author.log.decisions.covering(base) is not None


def put(key: bytes, value: bytes = b"v", *, ttl_ms: int = 0, expected: int | None = None) -> Write:
    return Write(Op.PUT, key, value, ttl_ms, expected)


def delete(key: bytes, *, expected: int | None = None) -> Write:
    return Write(Op.DELETE, key, expected=expected)


class DocumentAuthor(Author):
    """Writes logs of documents as a leader would."""

    def write(self, *records: Write, atomic: bool = False, logged_ms: int = 0, producer: bytes = PRODUCER) -> Entry:
        body = payload.encode(Writes(records, atomic))
        return self.data(len(records), payload=body, logged_ms=logged_ms, producer=producer)

    def expire(self, *expired: payload.Expired, logged_ms: int) -> Entry:
        return self.note(Kind.EXPIRE, payload.encode_expired(expired), logged_ms=logged_ms, count=len(expired))

    def purge(self, upto: int) -> Entry:
        return self.note(Kind.PURGE, argument=upto)

    def pin(self, name: str, ttl_ms: int = 1_000, *, logged_ms: int = 0, owner: str = "") -> Entry:
        return self.note(Kind.PIN, pinning.encode_pin(name, ttl_ms, owner), logged_ms=logged_ms)

    def unpin(self, name: str, owner: str = "") -> Entry:
        return self.note(Kind.UNPIN, pinning.encode_unpin(name, pinning.Ended.ASKED, owner))

    def note(
        self, kind: Kind, body: bytes = b"", *, logged_ms: int = 0, argument: int = -1, count: int = 1
    ) -> Entry:
        return self._take(control(
            kind, body, epoch=self.epoch, prev=self.log.head, prev_chain=self.log.chain,
            logged_ms=max(logged_ms, self.log.logged_ms), argument=argument, count=count,
        ))


# --- the model --------------------------------------------------------------------------------------------


class Version(NamedTuple):
    """A live document of the model."""

    seqno: int
    expires_at_ms: int
    value: bytes


class Model:
    """The documents of the visible entries up to a cut, folded in the plainest way and from the beginning."""

    def __init__(self, entries: Iterable[Entry], cut: int) -> None:
        self.documents: dict[bytes, Version] = {}
        self.deleted: dict[bytes, int] = {}
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}
        self.pins: dict[str, tuple[int, dict[bytes, Version]]] = {}
        self.purged = -1
        kept: list[Entry] = []
        for entry in entries:
            if entry.base > cut:
                break
            if entry.kind is Kind.ROLLBACK:
                kept = [each for each in kept if each.base < entry.sequence]
            kept.append(entry)
        for entry in kept:
            self._step(entry)

    def _step(self, entry: Entry) -> None:
        if entry.kind is Kind.DATA:
            self.outcomes[entry.base] = self._data(entry)
        elif entry.kind is Kind.EXPIRE:
            for number, (key, seqno) in enumerate(payload.decode_expired(entry.payload, entry.count)):
                found = self.documents.get(key)
                if found and found.seqno == seqno and 0 < found.expires_at_ms <= entry.logged_ms:
                    del self.documents[key]
                    self.deleted[key] = entry.base + number
        elif entry.kind is Kind.PURGE:
            self.purged = max(self.purged, entry.sequence)
        elif entry.kind is Kind.PIN:
            name = pinning.decode_pin(entry.payload).name
            self.pins.setdefault(name, (entry.base, dict(self.documents)))
        elif entry.kind is Kind.UNPIN:
            self.pins.pop(pinning.decode_unpin(entry.payload).name, None)

    def _data(self, entry: Entry) -> tuple[Outcome, ...]:
        try:
            writes = payload.decode(entry.payload, entry.count)
        except payload.MalformedWrites:
            return (Outcome(Verdict.MALFORMED),) * entry.count
        documents, deleted = dict(self.documents), dict(self.deleted)
        outcomes: list[Outcome] = []
        for number, write in enumerate(writes.records):
            found = documents[write.key].seqno if write.key in documents else 0
            if write.expected not in (None, found):
                outcomes.append(Outcome(Verdict.REFUSED, found))
                continue
            outcomes.append(Outcome(Verdict.APPLIED, found))
            seqno = entry.base + number
            if write.op is Op.PUT:
                expires_at_ms = entry.logged_ms + write.ttl_ms if write.ttl_ms else 0
                documents[write.key] = Version(seqno, expires_at_ms, write.value)
                deleted.pop(write.key, None)
            elif documents.pop(write.key, None) is not None:
                deleted[write.key] = seqno
        if writes.atomic and any(each.verdict is Verdict.REFUSED for each in outcomes):
            return tuple(
                each if each.verdict is Verdict.REFUSED else Outcome(Verdict.ABORTED, each.seqno) for each in outcomes
            )
        self.documents, self.deleted = documents, deleted
        return tuple(outcomes)


KEYS = [b"a", b"a\0", b"a\0\1", b"b", b"ba", b"c", b"\0", b"\xff\xff"]


def random_log(dice: random.Random, entries: int) -> DocumentAuthor:
    """Write a log with everything in it: conditions, atomic entries, ttls, pins, purges, rollbacks, bad payloads."""
    author = DocumentAuthor()
    author.opening()
    clock, undecided_from = 0, author.log.head.offset + 1
    versions: list[payload.Expired] = [payload.Expired(b"a", 1)]
    for _ in range(entries):
        clock += dice.randrange(4)
        lot = dice.random()
        if lot < 0.6:
            records = []
            for _ in range(dice.choice((1, 1, 2, 4))):
                key = dice.choice(KEYS)
                known = [each.seqno for each in versions[-20:] if each.key == key]
                expected = dice.choice((None, None, None, 0, *known[-1:], *known[-1:]))
                if dice.random() < 0.7:
                    records.append(put(key, b"%d" % clock, ttl_ms=dice.choice((0, 0, 5, 50)), expected=expected))
                else:
                    records.append(delete(key, expected=expected))
            entry = author.write(*records, atomic=dice.random() < 0.3, logged_ms=clock)
            versions += [payload.Expired(each.key, entry.base + at) for at, each in enumerate(records)]
        elif lot < 0.64:
            author.data(dice.choice((1, 3)), payload=dice.randbytes(dice.randrange(80)), logged_ms=clock)
        elif lot < 0.74:
            author.expire(*dice.sample(versions, min(len(versions), 3)), logged_ms=clock)
        elif lot < 0.79:
            author.pin(dice.choice("xyz"), logged_ms=clock)
        elif lot < 0.83:
            author.unpin(dice.choice("xyz"))
        elif lot < 0.87:
            author.purge(dice.choice((author.log.head.offset, dice.randrange(author.log.head.offset + 1))))
        elif lot < 0.91:
            bases = [each.base for each in author.entries if each.kind is Kind.DATA and each.base >= undecided_from]
            if bases:
                author.rollback(dice.choice(bases))
                undecided_from = author.log.head.offset + 1
        elif lot < 0.94:
            author.opening(epoch=author.epoch + 1)
            undecided_from = author.log.head.offset + 1
        else:
            author.confirm(author.log.head.offset)
            undecided_from = author.log.head.offset + 1
    return author


def cuts_of(author: Author) -> list[int]:
    """Return every value that `confirmed` may take."""
    covering = author.log.decisions.covering
    return [entry.last for entry in author.entries if covering(entry.base) is None]
