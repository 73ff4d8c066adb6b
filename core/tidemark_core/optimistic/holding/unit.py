"""Unit: one member's part of one range, from messages to effects (D60-D62, D65, D66, D69, D71, D74, D85).

Messages become jobs that run in the order they came, each against the newest rows and the newest standing.
Stays out: what a cell becomes (`owner`), operations of clients (`coordinating`), when exchanges begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ...base.effects import (
    DeleteRange,
    Effect,
    Feed,
    PutState,
    RowsDurable,
    RowsRead,
    RowsScanned,
    Send,
    Trace,
    Write,
)
from ...base.ids import Address, Member, Peer
from ..cells import Meta, Place, Row, Sort, encode_place
from ..exchanging.giving import LISTED_ROWS_MAX, on_open, on_sketch, on_want, unanswered, weight_of
from ..exchanging.memory import Memory
from ..exchanging.messages import Given, Listed, Open, Opened, Sketch, Unanswered, Want
from ..exchanging.tree import LEAF_ROWS, Tree, Weighed, weigh
from ..floors import PromiseAsked, Promised
from ..inspection import Facts, inspected
from ..merge import greatest
from ..messages import Change, Inspect, Load, RetractWrite, RingTold, RowsWrite, Span, Store, StoreAnswer
from ..owner import Fate, Source, Verdict
from ..pacing import UNBOUND, Pace
from ..retracting import KEYS_MAX
from ..ring import Range
from ..stamps import Clock
from ..standing import Standing, adopted
from ..storing import BARE, kept, on_load, on_store, places_of, with_related, with_retracted
from .hands import Decided, Hands
from .layout import family_of, span_of
from .removing import Removed, Removing
from .states import encode_standing
from .walks import Rows, Then, Walks

PAGES_MAX = 2 * LEAF_ROWS


class Stood(NamedTuple):
    """Event: this standing is durable."""

    unit: int
    standing: Standing


class Unit:
    """One range at one member.  `pace` says how much it may give to pullers, `memory` counts the trees of the node.

    `retracted` are the keys of Strings of which stamps are taken back, as they are on disk (D84).
    """

    def __init__(
        self, address: Address, standing: Standing, clock: Clock, pace: Pace = UNBOUND,
        retracted: Iterable[bytes] = (), memory: Memory | None = None,
    ) -> None:
        self.address = address
        self.standing = standing    # as the last job left it
        self.durable = standing     # as it is on disk
        self._clock = clock
        self._pace = pace
        self._memory = memory if memory is not None else Memory()
        self._hands = Hands(address, Tree(), retracted)
        self._hands.floor_ms = standing.record.floor_ms
        self._walks = Walks(address)
        self.removing = Removing(address, self._hands, self._walks)

    @property
    def tree(self) -> Tree:
        """The digests of the rows that are durable."""
        return self._hands.tree

    @property
    def left(self) -> bool:
        """Whether the member has left the range, and the disk has answered all that it was asked (D80)."""
        record = self.standing.record
        left = record.version > 0 and not record.holds(self.standing.me)
        return left and self._hands.quiet and self._walks.quiet

    # --- messages -----------------------------------------------------------------------------------------

    def on_message(self, now_ms: int, sender: Peer, m: Any) -> list[Effect]:
        """Take a message of a coordinator, of a puller or of the operator."""
        match m:
            case Store(change=RetractWrite(key)) if self._is_full(key):
                record = self.standing.record
                return [Send(self.address, sender, StoreAnswer(
                    m.range, record.version, record.floor_ms, m.operation, m.attempt, Verdict(Fate.FULL)))]
            case Store():
                return self._hands.submit(
                    self._places_of(m.change), lambda held: self._store(now_ms, sender, m, held))
            case Load():
                return self._load(sender, m)
            case RingTold():
                return self.adopt(m.record)
            case Open() | Sketch() | Want() if not self._may_give(now_ms):
                return [Send(self.address, sender, Unanswered(m.exchange, Fate.NOT_READY))]
            case Open():
                return self._hands.submit((), lambda _: self._give(sender, m, lambda: on_open(m, self.tree)))
            case Sketch():
                return self._read(sender, m, ())
            case Want():
                return self._hands.submit(with_related(m.places), lambda held: self._give(
                    sender, m, lambda: on_want(m, kept(held, self.standing.record.floor_ms))))
            case PromiseAsked():
                return self._hands.submit((), lambda _: self._promise(sender, m))
        return []

    def inspect(self, sender: Peer, m: Inspect, facts: Facts) -> list[Effect]:
        """Say what is here, also what the floor collects; the answer leaves when all that it shows is durable."""
        return self._hands.submit(with_retracted(m.places, self._hands.retracted), lambda held: Decided({}, (Send(
            self.address, sender, inspected(m, self.standing.record, facts, self.standing, held)),)))

    def _store(self, now_ms: int, sender: Peer, m: Store, held: Mapping[Place, Row]) -> Decided:
        answer, rows = on_store(self.standing, m, self._clock.latest_ms(now_ms), held)
        for stamp in dict.fromkeys(map(greatest, rows.values())):    # many rows of one write have one
            self._clock.saw(stamp, now_ms)
        self._note_clears(held, rows)
        return Decided(rows, (Send(self.address, sender, answer),))

    def _is_full(self, key: bytes) -> bool:
        return key not in self._hands.retracted and len(self._hands.retracted) >= KEYS_MAX

    def _places_of(self, change: Change) -> tuple[Place, ...]:
        return with_retracted(places_of(change), self._hands.retracted)

    def _note_clears(self, held: Mapping[Place, Row], rows: Mapping[Place, Row]) -> None:
        """Have the removal go through the elements of keys that are cleared."""
        for place, row in rows.items():
            if isinstance(row, Meta) and row.cleared != cast("Meta", held.get(place, BARE)).cleared:
                self.removing.cleared(place.key)

    def _load(self, sender: Peer, m: Load) -> list[Effect]:
        """A span is read first: a write that was acknowledged before this message came is in it."""
        if m.span is None:
            places = with_retracted(m.places, self._hands.retracted)
            return self._hands.submit(places, lambda held: self._answer(sender, m, tuple(held.items()), None))
        span = m.span
        first, behind = encode_place(span.first), encode_place(span.behind)
        return self._walk(first, behind, span.rows_max, lambda rows, rest: self._hands.submit(
            (*self._retracted_in(span), *m.places),
            lambda held: self._answer(sender, m, (*held.items(), *rows), rest)))

    def _retracted_in(self, span: Span) -> Iterator[Place]:
        """Yield the places of all that is taken back in a span: another member may show what this one lacks (D84)."""
        keys = sorted(self._hands.retracted)
        return (Place(Sort.RETRACTED, key) for key in keys if span.first <= Place(Sort.STRING, key) < span.behind)

    def _walk(self, first: bytes, behind: bytes, rows_max: int, then: Then) -> list[Effect]:
        """Read behind the jobs that came before: one of them may take over a record and delete the rows (D66)."""
        return self._hands.submit((), lambda _: Decided({}, tuple(self._walks.begin(first, behind, rows_max, then))))

    def _answer(self, sender: Peer, m: Load, rows: tuple[tuple[Place, Row], ...], rest: bytes | None) -> Decided:
        behind = None if rest is None else _behind(rows[-1][0])
        return Decided({}, (Send(self.address, sender, on_load(self.standing, m, rows, behind)),))

    def _read(self, sender: Peer, m: Sketch, found: tuple[Sequence[Weighed], ...]) -> list[Effect]:
        """Read the next leaf of a sketch; answer behind the last one, or where rows of one more may not fit."""

        def then(rows: Rows, rest: bytes | None) -> list[Effect]:
            known = (*found, self.weighed(rows))
            left = m.leaves[len(known):]
            if rest is None and left and sum(map(len, known)) <= LISTED_ROWS_MAX - PAGES_MAX:
                return self._read(sender, m, known)
            ended = rest if rest is not None or not left else left[0].first
            return self._hands.submit((), lambda _: self._give(sender, m, lambda: on_sketch(m, known, ended)))

        leaf = m.leaves[len(found)]
        return self._walk(leaf.first, leaf.behind, PAGES_MAX, then)

    def _may_give(self, now_ms: int) -> bool:
        """Note that another member compares with this one, and say whether the pace lets it have an answer."""
        self._memory.used(self.address.id, now_ms)
        return self._pace.free(now_ms)

    def _give(
        self, sender: Peer, m: Open | Sketch | Want, answer: Callable[[], Opened | Listed | Given]
    ) -> Decided:
        """Answer a puller, or say why not; a tree that is away is built again (D85)."""
        why = unanswered(self.standing, m.exchange, self.tree)
        if why is not None:
            if why.why is Fate.NOT_READY:
                self.tree.want()
            return Decided({}, (Send(self.address, sender, why),))
        given = answer()
        self._pace.spend(weight_of(given))
        return Decided({}, (Send(self.address, sender, given),))

    # --- standing -----------------------------------------------------------------------------------------

    def adopt(self, record: Range) -> list[Effect]:
        """Take over a newer record or a higher floor; rows go where the member joins or leaves (D65, D66, D71)."""
        return self._hands.submit((), lambda _: self._adopt(record))

    def _adopt(self, record: Range) -> Decided:
        before = self.standing
        after = adopted(before, record)
        if after == before:
            return Decided({})
        bare = after.copying or not record.holds(after.me)
        return self._stand(after, self._wipe() if bare and before.record.version != record.version else ())

    def _promise(self, sender: Peer, m: PromiseAsked) -> Decided:
        """Take nothing external up to a time any more; a promise never falls (D69)."""
        standing = self.standing
        if m.version != standing.record.version or standing.withdrawn:
            return Decided({})
        promised = standing._replace(promise_ms=max(standing.promise_ms, m.floor_ms))
        answer = Send(self.address, sender, Promised(m.range, m.round))
        if promised == standing:
            return Decided({}, (answer,))
        return self._stand(promised, (), answer)

    def copied(self, version: int) -> list[Effect]:
        """Note that the rows of the move of this version are whole here."""
        return self._hands.submit((), lambda _: self._copied(version))

    def _copied(self, version: int) -> Decided:
        standing = self.standing
        if standing.record.version != version:
            return Decided({})   # another move has begun, and its copy with it
        return self._stand(standing._replace(copying=False), ())

    def exchanged(self, began_ms: Mapping[Member, int]) -> list[Effect]:
        """Note on disk when the last whole exchange with each other owner began (D74)."""
        return self._hands.submit((), lambda _: self._exchanged(began_ms))

    def _exchanged(self, began_ms: Mapping[Member, int]) -> Decided:
        standing = self.standing
        noted = tuple((member, began_ms[member]) for member in standing.others if member in began_ms)
        if noted == standing.exchanged:
            return Decided({})
        return self._stand(standing._replace(exchanged=noted), ())

    def _stand(self, standing: Standing, writes: tuple[Write, ...], *then: Effect) -> Decided:
        self.standing = standing
        self._hands.floor_ms = standing.record.floor_ms
        state = PutState(encode_standing(standing))
        trace = Trace(self.address, "range_withdrawn", "its disk is older than the floor (D71)")
        withdrew = (trace,) if standing.withdrawn and not self.durable.withdrawn else ()
        return Decided({}, (*withdrew, *then, Feed(Stood(self.address.id, standing))), (*writes, state))

    def _wipe(self) -> tuple[Write, ...]:
        self._hands.forget()
        self._memory.sized(self.address.id, self.tree.bytes)
        self._walks.forget()
        self.removing.forget()
        return tuple(DeleteRange(family_of(sort), *span_of(self.address.id, sort)) for sort in Sort)

    # --- what the shell says ------------------------------------------------------------------------------

    def on_event(self, m: RowsRead | RowsScanned | RowsDurable | Stood | Removed) -> list[Effect]:
        """Take what the disk says."""
        match m:
            case RowsRead():
                return self._hands.on_read(m)
            case RowsScanned():
                return self._walks.on_scanned(m)
            case RowsDurable():
                self._hands.on_durable(m)
            case Stood():
                self.durable = m.standing
            case Removed():
                self.removing.on_removed(m)
                return self.grow()
        return []

    # --- exchanges that this member began -------------------------------------------------------------------

    def look(
        self, first: bytes, behind: bytes, then: Callable[[Sequence[Weighed] | None], list[Effect]]
    ) -> list[Effect]:
        """Weigh the rows of a part, and give them to `then`: None where they are more than a page."""
        return self._walks.begin(first, behind, PAGES_MAX, lambda rows, rest: then(
            self.weighed(rows) if rest is None else None))

    def look_at(self, places: Sequence[Place], event: Callable[[Sequence[Weighed]], object]) -> list[Effect]:
        """Weigh the rows at these places; feed `event` of them."""
        return self._hands.submit(places, lambda held: Decided(
            {}, (Feed(event(self.weighed(held.items()))),)))

    def rows_at(self, places: Sequence[Place], event: Callable[[Mapping[Place, Row]], object]) -> list[Effect]:
        """Feed `event` of the rows at these places."""
        return self._hands.submit(places, lambda held: Decided({}, (Feed(event(held)),)))

    def take(
        self, now_ms: int, record: Range, rows: tuple[tuple[Place, Row], ...], event: Callable[[Verdict], object]
    ) -> list[Effect]:
        """Store rows that an owner held under a record; feed `event` of the verdict once they are durable (D61)."""
        change = RowsWrite(rows)
        m = Store(self.address.id, record.version, record.floor_ms, 0, 0, Source.OWNER, change)

        def job(held: Mapping[Place, Row]) -> Decided:
            answer, changed = on_store(self.standing, m, self._clock.latest_ms(now_ms), held)
            self._note_clears(held, changed)
            return Decided(changed, (Feed(event(answer.verdict)),))

        return self._hands.submit(self._places_of(change), job)

    # --- the tree -----------------------------------------------------------------------------------------

    def grow(self) -> list[Effect]:
        """Go on with the removal, and read the next leaf that is unknown, too large, or that the floor thinned out."""
        tree, memory, unit = self.tree, self._memory, self.address.id
        effects = self.removing.go_on()
        if self._hands.bare or self.removing.full or (tree.building and not memory.may_grow(unit)):
            return effects
        scan = tree.next_scan(self.standing.record.floor_ms, self._hands.flying)
        memory.sized(unit, tree.bytes)
        if scan is None:
            if not tree.scanning:
                memory.passes(unit)
            return effects
        return [*effects, *self._walks.begin(scan.first, scan.behind, PAGES_MAX, lambda rows, rest: self._grown(
            tree, rows, rest))]

    def _grown(self, tree: Tree, rows: Rows, rest: bytes | None) -> list[Effect]:
        self.removing.found(rows, known=tree.was_ready)
        if not tree.scanned(self.weighed(rows), rest):
            self._memory.passes(self.address.id)
        self._memory.sized(self.address.id, tree.bytes)
        return self.grow()

    def compares(self, now_ms: int) -> bool:
        """Say whether the tree is whole, so that an exchange may begin; one that is away is built again (D85)."""
        self._memory.used(self.address.id, now_ms)
        self.tree.want()
        return self.tree.ready

    def forget_tree(self) -> None:
        """Forget the tree, which must be settled, until it is wanted (D85)."""
        self.tree.forget()
        self._memory.sized(self.address.id, 0)
        self._memory.forgotten += 1

    def weighed(self, rows: Iterable[tuple[Place, Row]]) -> list[Weighed]:
        """Return rows as the tree knows them, without those that the floor collects."""
        floor_ms = self.standing.record.floor_ms
        return [weight for place, row in rows if (weight := weigh(place, row, floor_ms)) is not None]


def _behind(place: Place) -> Place:
    """Return the first place behind one."""
    sort, key, element = place
    return Place(sort, key, element + b"\0") if sort is Sort.ELEMENT else Place(sort, key + b"\0")
