"""Hands: the rows of a range that messages wait for, or that are on their way to the disk.

A change is decided from the newest rows, also from those that an earlier change has written and the disk has not.  So a
row stays at hand from the moment that a job waits for it until everything that was written is durable.  Jobs run in the
order they came.  An answer leaves behind every write that it shows (D60).  Stays out: what a job decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from ...base.effects import Effect, Feed, Persist, ReadRows, RowsDurable, RowsRead, Write
from ...base.ids import Address
from ..cells import Place, Row, Sort, decode_row, encode_place, encode_row
from ..exchanging.tree import Tree, Weighed, weigh
from .layout import family_of, key_at, writes_of


class Decided(NamedTuple):
    """The decision of a job: rows to write, None to remove one, other writes, and what leaves once all is durable."""

    rows: Mapping[Place, Row | None]
    then: tuple[Effect, ...] = ()
    writes: tuple[Write, ...] = ()


Job = Callable[[Mapping[Place, Row]], Decided]
"""Takes the rows there are at the places that it named."""


class _Hand:
    __slots__ = ("at", "encoded", "known", "place", "row", "users", "writing")

    def __init__(self, place: Place, *, known: bool) -> None:
        self.place = place
        self.at = encode_place(place)
        self.known = known
        self.row: Row | None = None
        self.encoded: bytes | None = None   # the bytes of the row
        self.users = 0      # jobs that wait, and writes that are not durable
        self.writing = 0


_known = attrgetter("known")


class _Waiting(NamedTuple):
    """A job, and the hands that it waits for."""

    hands: Sequence[_Hand]
    job: Job


_Weights = tuple[_Hand, Weighed | None, Weighed | None]
"""A row that is being written, as the tree knows it before and after."""


class Hands:
    """The rows at hand of one range."""

    def __init__(self, address: Address, tree: Tree, retracted: Iterable[bytes] = ()) -> None:
        self.address = address
        self.retracted = set(retracted)     # the keys of which stamps are or may be taken back (D84)
        self.tree = tree
        self.floor_ms = 0       # by which the tree weighs rows
        self._hands: dict[Place, _Hand] = {}
        self._jobs: deque[_Waiting] = deque()
        self._writes: dict[int, tuple[Tree, list[_Weights]]] = {}   # not durable yet
        self._facts: set[int] = set()   # of them, those that every later answer rests on
        self._number = 0
        self._reads = 0                 # that the disk has not answered
        self._wipe: int | None = None   # the newest write that deletes all rows
        self._deciding = False

    def submit(self, places: Sequence[Place], job: Job) -> list[Effect]:
        """Run a job once its rows are known and the jobs before it have run."""
        known, bare = self._hands, self.bare
        hands: list[_Hand] = []
        missing: list[_Hand] = []
        for place in places:
            hand = known.get(place)
            if hand is None:
                hand = known[place] = _Hand(place, known=bare)
                if not bare:
                    missing.append(hand)
            hand.users += 1
            hands.append(hand)
            if place.sort is Sort.RETRACTED:
                self.retracted.add(place.key)
        self._jobs.append(_Waiting(hands, job))
        if not missing:
            return self._run()
        unit = self.address.id
        keys = tuple([(family_of(hand.place.sort), key_at(unit, hand.at)) for hand in missing])
        self._reads += 1
        return [ReadRows(self.address, tuple([hand.place for hand in missing]), keys), *self._run()]

    def on_read(self, m: RowsRead) -> list[Effect]:
        """Take rows from the disk.  Raises RemoteViolation when one is damaged."""
        self._reads -= 1
        for place, value in zip(m.tag, m.values, strict=True):
            hand = self._hands.get(place)
            if hand is not None and not hand.known:
                hand.known = True
                if value is not None:
                    hand.row, hand.encoded = decode_row(place.sort, value), value
        return self._run()

    def on_durable(self, m: RowsDurable) -> None:
        """Forget rows that are on disk now, and count them in the tree."""
        self._facts.discard(m.number)
        tree, weights = self._writes.pop(m.number)
        for hand, before, after in weights:
            tree.wrote(hand.at, before, after)
            hand.writing -= 1
        self._release([hand for hand, _, _ in weights])

    @property
    def quiet(self) -> bool:
        """Whether no job waits, and the disk has answered everything."""
        return not (self._jobs or self._writes or self._reads)

    @property
    def bare(self) -> bool:
        """Whether rows are on the disk that are gone: the write that deletes them all is not durable."""
        return self._wipe in self._facts

    def flying(self) -> Iterator[bytes]:
        """Yield the places of rows that are on their way to the disk."""
        return (hand.at for hand in self._hands.values() if hand.writing)

    def forget(self) -> None:
        """All rows go with the write of this job; what is being read is void, and the tree is a new one."""
        self._wipe = self._number
        self.tree = Tree()
        for hand in self._hands.values():
            hand.known, hand.row, hand.encoded = True, None, None
        self.retracted = {place.key for place in self._hands if place.sort is Sort.RETRACTED}

    def _run(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._jobs and all(map(_known, self._jobs[0].hands)):
            hands, job = self._jobs.popleft()
            held = {hand.place: hand.row for hand in hands if hand.row is not None}
            assert not self._deciding, "a job begins no other one"
            self._deciding = True
            decided = job(held)
            self._deciding = False
            if decided.rows or decided.writes:
                effects.append(self._persist(decided))
            elif self._facts or any([hand.writing for hand in hands]):
                effects.append(Persist(self.address, (), decided.then))
            else:
                effects += decided.then
            self._release(hands)
        return effects

    def _persist(self, decided: Decided) -> Persist:
        number, self._number = self._number, self._number + 1
        if decided.writes:
            self._facts.add(number)
        weighed: list[_Weights] = []
        rows: list[tuple[Sort, bytes, bytes | None]] = []
        floor_ms, tree = self.floor_ms, self.tree
        for place, row in decided.rows.items():
            hand = self._hands.get(place)
            if hand is None:
                hand = self._hands[place] = _Hand(place, known=True)
            at, encoded = hand.at, None if row is None else encode_row(row)
            before = None if hand.row is None else weigh(place, hand.row, floor_ms, at, hand.encoded)
            after = None if row is None else weigh(place, row, floor_ms, at, encoded)
            hand.known, hand.row, hand.encoded = True, row, encoded
            hand.users += 1
            hand.writing += 1
            tree.writing(at)
            weighed.append((hand, before, after))
            rows.append((place.sort, at, encoded))
        self._writes[number] = tree, weighed
        writes = (*decided.writes, *writes_of(self.address.id, rows))
        return Persist(self.address, writes, (*decided.then, Feed(RowsDurable(self.address, number))))

    def _release(self, hands: Iterable[_Hand]) -> None:
        for hand in hands:
            hand.users -= 1
            if not hand.users:
                place = hand.place
                del self._hands[place]
                if place.sort is Sort.RETRACTED and hand.row is None:
                    self.retracted.discard(place.key)
