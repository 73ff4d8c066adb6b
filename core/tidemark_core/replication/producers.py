"""Idempotent producers: the fold of a log that says where a (producer, sequence) lies (rules L18-L20).

It covers the whole log, pending entries included.  An entry that is truncated is undone exactly.  A producer
that was idle for a week of *logged* time is forgotten: decided at look-up from the log's own clock, so every
replica decides alike.  Of more than `PRODUCERS_MAX` producers one is forgotten, which follows from the log alone too:
of the caller that has most, the one whose newest batch is the oldest in the log (L25, L25b).
A claim is remembered as a batch without records, and of a claimed producer what stands of it too (L26, L27).
Stays out: what an entry's fate is; that is a matter of watermarks.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import NamedTuple

from ..base.entry import Entry, Kind
from ..base.folds import NO_OFFSET, Fold
from .producer_ids import caller_of, fence_of

REMEMBERED_MAX = 5
CLAIMED_MAX = REMEMBERED_MAX + 1
"""Of a claimed producer: as many batches, and its claim."""
PRODUCERS_MAX = 100_000
PURGED_MAX = 1_024
"""Forgotten producers whose memory one call frees: a shard that was idle for a week has many."""
IDLE_MS_MAX = 7 * 24 * 3600 * 1000

_PRODUCER = struct.Struct(">16s")
_KNOWN = struct.Struct(">qB")
_HIT = struct.Struct(">q")
_WITH_HIT = 0x80
"""Set in the number of places of a claimed producer behind which `hit` and `anchor` follow."""
_COUNT = struct.Struct(">I")
_PLACES = tuple(struct.Struct(">" + "qQQI" * size) for size in range(256))
"""The places of a producer, by how many it has: one call packs or unpacks them all."""
_PLACE_FIELDS = 4


class Place(NamedTuple):
    """Where a remembered batch lies, or a claim."""

    sequence: int
    epoch: int
    base: int
    count: int  # type: ignore[assignment]  # records, 0 of a claim; hides tuple.count

    @property
    def last(self) -> int:
        return self.base + self.count - 1


NOWHERE = Place(-1, 0, 0, 0)


class Known(NamedTuple):
    """The memory of one producer: when it last wrote (log's clock) and its last batches, oldest first.

    Of a claimed producer also the newest rollback that hit it, and the newest batch in front of `places` that none hit.
    """

    logged_ms: int
    places: tuple[Place, ...]
    hit: int = -1
    anchor: Place = NOWHERE

    @property
    def oldest(self) -> int:
        """The lowest offset remembered."""
        return self.anchor.base if self.anchor.count else self.places[0].base

    def encode(self) -> bytes:
        """Return the bytes of a producer's row."""
        size = len(self.places)
        places = _PLACES[size].pack(*chain.from_iterable(self.places))
        if self.hit < 0 and not self.anchor.count:
            return _KNOWN.pack(self.logged_ms, size) + places
        hit = _HIT.pack(self.hit) + _PLACES[1].pack(*self.anchor)
        return _KNOWN.pack(self.logged_ms, size | _WITH_HIT) + places + hit

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> tuple[Known, int]:
        """Read what `encode` wrote, and return where it ended; raises struct.error when it is cut short or empty."""
        logged_ms, size = _KNOWN.unpack_from(data, at)
        at += _KNOWN.size
        was_hit, size = size & _WITH_HIT, size & ~_WITH_HIT
        places = _places(size, data, at)
        at += _PLACES[size].size
        if not was_hit:
            return _new(cls, (logged_ms, places, -1, NOWHERE)), at
        [hit] = _HIT.unpack_from(data, at)
        [anchor] = _places(1, data, at + _HIT.size)
        return cls(logged_ms, places, hit, anchor), at + _HIT.size + _PLACES[1].size

    def then(self, place: Place, logged_ms: int) -> Known:
        """Return a claimed producer's memory behind one more batch or claim."""
        places = self.places if place.count or self.places[-1].count else self.places[:-1]   # of claims the newest
        anchor = self.anchor
        for dropped in places[: 1 - CLAIMED_MAX]:
            if dropped.count and dropped.base > self.hit:
                anchor = dropped
        return Known(logged_ms, (*places[1 - CLAIMED_MAX:], place), self.hit, anchor)

    def behind(self, first: int, at: int) -> Known:
        """Return a claimed producer's memory behind the ROLLBACK at `at`, from `first` on.

        A producer has at most five batches undecided, so the rollback reaches back to none in front of `places`.
        """
        standing = [place for place in self.places if place.count and self.hit < place.base < first]
        return Known(self.logged_ms, self.places, at, standing[-1] if standing else self.anchor)


class Verdict(NamedTuple):
    """The answer for a batch: `place` when it is in the log, else the one `expected` sequence.

    `too_old` says that the sequence was used and its place forgotten, `known` whether the producer is remembered.
    `fence` is that of a newer claim, 0 where there is none.
    """

    place: Place | None
    expected: int
    too_old: bool
    known: bool = True
    fence: int = 0


class _Undo(NamedTuple):
    """The table's record of a producer before the entry that ends at `last`, and the producer that it evicted."""

    last: int
    producer: bytes
    before: Known | None
    evicted: tuple[bytes, Known] | None


_new = tuple.__new__   # what a named tuple's own constructor does, without a Python frame around it


class ProducerTable(Fold):
    """The fold.  Entries that are not settled can be undone, newest first.

    Producers stand in the order of their newest batches in the log, and those of each caller once more (L25b).
    The table notes which of them changed by what is committed, until `save` has said how they stand.
    """

    __slots__ = ("_callers", "_known", "_undo", "_unsaved")

    tag = b"prod"
    kinds = frozenset((Kind.DATA, Kind.CLAIM, Kind.ROLLBACK))
    begins_empty = False

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._callers: defaultdict[bytes, OrderedDict[bytes, None]] = defaultdict(OrderedDict)   # none is empty
        self._undo: deque[_Undo] = deque()
        self._unsaved: dict[bytes, None] = {}   # in order; a set would have another order in each process

    @classmethod
    def of(cls, known: Iterable[tuple[bytes, Known]]) -> ProducerTable:
        """Return the table of these producers, all of them saved."""
        table = cls()
        table._order(known)
        return table

    def _order(self, known: Iterable[tuple[bytes, Known]]) -> None:
        """Take these producers for those that are known, in any order."""
        self._known = OrderedDict(sorted(known, key=lambda each: each[1].places[-1].base))
        self._callers = defaultdict(OrderedDict)
        for producer in self._known:
            self._callers[caller_of(producer)][producer] = None

    def __len__(self) -> int:
        return len(self._known)

    @property
    def oldest(self) -> int:
        """The lowest offset remembered, or remembered again when what is not committed yet is undone (L19)."""
        now = (known.oldest for known in self._known.values())
        again = (undo.before.oldest for undo in self._undo if undo.before is not None)
        evicted = (undo.evicted[1].oldest for undo in self._undo if undo.evicted is not None)
        return min(chain(now, again, evicted), default=NO_OFFSET)

    @property
    def unsaved(self) -> int:
        """How many producers may stand otherwise than at the last `save`."""
        return len(self._unsaved)

    @property
    def newest(self) -> Place | None:
        """The newest batch or claim of all; the table keeps it whatever it forgets, but for tables of old releases."""
        return next(reversed(self._known.values())).places[-1] if self._known else None

    def places(self, producer: bytes) -> tuple[Place, ...]:
        """Return where the remembered batches of a producer lie, oldest first."""
        known = self._known.get(producer)
        return known.places if known else ()

    def note(self, entry: Entry) -> None:
        """Fold one entry in."""
        if entry.kind is Kind.ROLLBACK:
            self._note_rollback(entry)
            return
        producer, base, count = entry.producer, entry.base, entry.count
        before = self._known.get(producer)
        place = _new(Place, (entry.sequence, entry.epoch, base, count if entry.kind is Kind.DATA else 0))
        if before is not None and fence_of(entry.sequence) and entry.logged_ms - before.logged_ms <= IDLE_MS_MAX:
            now = before.then(place, entry.logged_ms)
        else:
            # Entries arrive here in log order, so a sequence that starts again means that the producer was forgotten.
            continues = before is not None and entry.sequence == before.places[-1].sequence + 1
            places = (*before.places[-(REMEMBERED_MAX - 1):], place) if before and continues else (place,)
            now = _new(Known, (entry.logged_ms, places, -1, NOWHERE))
        known, of_caller, evicted = self._known, self._callers[caller_of(producer)], None
        known[producer] = now
        of_caller[producer] = None
        if before is not None:
            known.move_to_end(producer)
            of_caller.move_to_end(producer)
        elif len(known) > PRODUCERS_MAX:
            least = self._least(entry.logged_ms)
            evicted = least, known[least]
            self._forget(least)
        self._undo.append(_new(_Undo, (base + count - 1, producer, before, evicted)))

    def _note_rollback(self, entry: Entry) -> None:
        """Remember of each claimed producer that is hit what stands of it in front of the rollback (L27)."""
        first = entry.sequence
        hit = takewhile(lambda each: each[1].places[-1].base >= first, reversed(self._known.items()))
        for producer, before in [each for each in hit if fence_of(each[1].places[-1].sequence)]:
            self._known[producer] = before.behind(first, entry.base)
            self._undo.append(_Undo(entry.base, producer, before, None))

    def _least(self, logged_ms: int) -> bytes:
        """Return the producer that a table with one too many forgets (L25b); it takes a look at every caller."""
        oldest = next(iter(self._known))
        if logged_ms - self._known[oldest].logged_ms > IDLE_MS_MAX:
            return oldest   # forgotten by everybody (L18), whether its memory was freed or not
        most, caller = max(zip(map(len, self._callers.values()), self._callers, strict=True))
        return next(iter(self._callers[caller])) if most > 1 else oldest

    def _forget(self, producer: bytes) -> None:
        del self._known[producer]
        caller = caller_of(producer)
        del self._callers[caller][producer]
        if not self._callers[caller]:
            del self._callers[caller]

    def settle(self, commit: int) -> None:
        """Forget how to undo what is committed."""
        undo, unsaved = self._undo, self._unsaved
        while undo and undo[0].last <= commit:
            settled = undo.popleft()
            unsaved[settled.producer] = None
            if settled.evicted is not None:
                unsaved[settled.evicted[0]] = None

    def save(self, most: int) -> Iterator[tuple[bytes, Known | None]]:
        """Yield at most `most` unsaved producers as they stand by what is settled, None for one that is forgotten."""
        before: dict[bytes, Known | None] = {}
        for undo in self._undo:   # oldest first: the first one says how the producer stood
            before.setdefault(undo.producer, undo.before)
            if undo.evicted is not None:
                before.setdefault(*undo.evicted)
        for producer in list(islice(self._unsaved, most)):
            del self._unsaved[producer]
            yield producer, before[producer] if producer in before else self._known.get(producer)

    def undo_to(self, head: int) -> None:
        """Undo entries behind `head`, newest first."""
        undone = []
        while self._undo and self._undo[-1].last > head:
            undone.append(self._undo.pop())
        self._take_back(undone)

    def _take_back(self, undone: Iterable[_Undo]) -> None:
        """Undo entries, given newest first."""
        known, changed = self._known, False
        for undo in undone:
            changed = True
            if undo.before is None:
                known.pop(undo.producer, None)
            else:
                known[undo.producer] = undo.before
            if undo.evicted is not None:
                known[undo.evicted[0]] = undo.evicted[1]
        if changed:
            self._order(known.items())

    def judge(self, producer: bytes, sequence: int, now_logged_ms: int) -> Verdict:
        """Say what a batch with this sequence is to the log whose newest entry was logged at `now_logged_ms`."""
        known = self._known.get(producer)
        if known is None or now_logged_ms - known.logged_ms > IDLE_MS_MAX:
            return Verdict(None, 0, False, False)
        newest = known.places[-1].sequence
        if sequence > newest:
            return Verdict(None, newest + 1, False)
        for place in reversed(known.places):
            if place.sequence == sequence:
                return Verdict(place, newest + 1, False)
        fence = fence_of(newest)
        return Verdict(None, newest + 1, True) if fence_of(sequence) == fence else Verdict(
            None, newest + 1, False, True, fence)

    def standing(self, producer: bytes, upto: int, covering: Callable[[int], object]) -> Place:
        """Return the newest batch of a claimed producer at or below `upto` that no rollback covers, else NOWHERE."""
        known = self._known[producer]
        for place in reversed(known.places):
            if place.count and place.base <= upto and covering(place.base) is None:
                return place
        return known.anchor

    def purge(self, logged_ms: int) -> None:
        """Free the memory of producers that a committed entry proves forgotten; changes no verdict."""
        self._purge(logged_ms, PURGED_MAX)

    def _purge(self, logged_ms: int, most: int) -> None:
        known = self._known
        # The log's clock never falls along the log, so those that were idle for longest stand first.  The newest one
        # stays, for it says where the newest record lies (L29).
        while most and len(known) > 1 and logged_ms - known[oldest := next(iter(known))].logged_ms > IDLE_MS_MAX:
            self._unsaved[oldest] = None
            self._forget(oldest)
            most -= 1

    def upto(self, offset: int, logged_ms: int) -> ProducerTable:
        """Return the table as it was behind `offset`; the remembered values are shared, being immutable."""
        twin = ProducerTable()
        twin._known, twin._unsaved = self._known.copy(), self._unsaved.copy()
        twin._callers = defaultdict(OrderedDict, {caller: own.copy() for caller, own in self._callers.items()})
        twin._take_back(takewhile(lambda undo: undo.last > offset, reversed(self._undo)))
        twin._purge(logged_ms, len(twin))
        return twin

    def snapshot(self) -> dict[bytes, Known]:
        """Return the table as a plain mapping, for invariants and dumps."""
        return dict(self._known)

    def encode(self) -> bytes:
        parts = [_COUNT.pack(len(self._known))]
        for producer, known in sorted(self._known.items()):
            parts += (producer, known.encode())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[ProducerTable, int]:
        """Read `encode`'s bytes at `at`; return the table, of which nothing is saved, and where it ended.

        Raises struct.error when they are cut short, or a producer has no place.
        """
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        found: list[tuple[bytes, Known]] = []
        for _ in range(count):
            (producer,) = _PRODUCER.unpack_from(data, at)
            known, at = Known.decode(data, at + _PRODUCER.size)
            found.append((producer, known))
        table = cls.of(found)
        table._unsaved = dict.fromkeys(table._known)
        return table, at


def _places(size: int, data: bytes, at: int) -> tuple[Place, ...]:
    if not size:
        raise struct.error("a producer has no place")
    fields = iter(_PLACES[size].unpack_from(data, at))
    return tuple([_new(Place, four) for four in zip(*[fields] * _PLACE_FIELDS, strict=True)])
