"""Warrants of ranges: the facts that must be on the disk before an effect of the keyspace plane may leave a node.

As `warrants` does for logs, a `RangeWatch` judges every effect that leaves against the durable rows, and every effect
that rides on a write against the two worlds in which it does not.
Stays out: the promise to clients; the judge of the simulated keyspaces holds it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tidemark_core.base.effects import Effect, Feed, Persist, Received, RowsDurable, Send
from tidemark_core.base.ids import Address, Member
from tidemark_core.node import NodeCore
from tidemark_core.optimistic import deleting, floors, messages, moving
from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, StringCell, decode_row
from tidemark_core.optimistic.deleting import DELETED
from tidemark_core.optimistic.exchanging import messages as exchanging
from tidemark_core.optimistic.exchanging.tree import weigh
from tidemark_core.optimistic.hinting.hints import decode_hint
from tidemark_core.optimistic.hinting.keeping import HINTS, PROMISES
from tidemark_core.optimistic.holding.hands import Decided, Hands
from tidemark_core.optimistic.holding.layout import FAMILIES, family_of, key_of
from tidemark_core.optimistic.holding.pulls import LookedAt, Taken
from tidemark_core.optimistic.holding.removing import Removed, Removing
from tidemark_core.optimistic.holding.states import decode_standing
from tidemark_core.optimistic.holding.unit import Stood, Unit
from tidemark_core.optimistic.merge import merge_rows
from tidemark_core.optimistic.owner import STORED, Fate
from tidemark_core.optimistic.plane import HeldRows, KeyspacePlane
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import _parts
from tidemark_sim.disk import Tables
from tidemark_sim.keyspaces.node import Node
from tidemark_sim.mutant import substitute
from tidemark_sim.trace import Violation

from tests.sim.warrants import CRASHED, OVERTAKEN, Pair, Site, kind_of, site_of_caller


@dataclass(frozen=True, slots=True)
class Leaving:
    """A message or an event about to leave, the disk of the node, and what the watch remembers."""

    watch: RangeWatch
    node: Node
    unit: Address
    to: Any
    value: Any
    tables: Tables

    # --- questions of rows ------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Standing | None:
        state, _ = self.tables.units.get(self.unit, (None, None))
        return decode_standing(state) if state is not None else None

    @property
    def gone(self) -> bool:
        """Whether the node has forgotten the range: no event of it reaches anything."""
        return self.unit.id not in self.node.plane.holders

    def row(self, place: Place) -> Row | None:
        value = self.tables.get(family_of(place.sort), key_of(self.unit.id, place))
        return decode_row(place.sort, value) if value is not None else None

    def asked(self, *key: Any) -> Any:
        return self.watch.asked.get((self.node.member, *key))

    def stands(self, version: int, floor_ms: int = 0) -> str:
        """The record that is said to be the node's is stored, or a newer one."""
        known = self.standing.record if self.standing is not None else None
        stored = (known.version, known.floor_ms) if known is not None else (0, 0)
        return f"{(version, floor_ms)} is said, stored is {stored}" if stored < (version, floor_ms) else ""

    def holds(self, place: Place, row: Row) -> str:
        """Every cell of the row is stored, or a greater one, but what a clear or the floor made void."""
        held = self.row(place)
        if isinstance(row, Meta):
            row = Meta(row.cleared)     # the greatest stamp is each member's own (D58)
        if held is not None and merge_rows(held, row) == held:
            return ""
        floor_ms = self.standing.record.floor_ms if self.standing is not None else 0
        meta = self.row(Place(Sort.META, place.key))
        cleared = meta.cleared if isinstance(meta, Meta) else None
        match row:
            case StringCell():
                lacking = [row.stamp]
            case Meta():
                lacking = [row.cleared]
            case _:
                has = held if isinstance(held, Mapping) else {}
                lacking = [cell.stamp for actor, cell in row.items() if actor not in has or has[actor] < cell]
                lacking = [stamp for stamp in lacking if cleared is None or stamp > cleared]
        lost = [stamp for stamp in lacking if stamp.ms > floor_ms]
        return f"{place} is said to hold {lost}, stored is {held}" if lost else ""

    def all_held(self, rows: Iterable[tuple[Place, Row]]) -> str:
        return next((broken for place, row in rows if (broken := self.holds(place, row))), "")

    def all_equal(self, rows: Mapping[Place, Row | None]) -> str:
        """The rows are stored as they were decided."""
        wrong = [place for place, row in rows.items() if self.row(place) != row]
        return f"{wrong} are not stored as they were decided" if wrong else ""


Warrant = Callable[[Leaving], str]


# --- rows -----------------------------------------------------------------------------------------------------------


def stored(on: Leaving) -> str:
    said = on.value
    if (broken := on.stands(said.version, said.floor_ms)) or said.verdict.fate is not Fate.STORED:
        return broken
    asked = on.asked(messages.Store, on.to, said.operation, said.attempt)
    return on.all_held((place, row) for place, row, _ in _parts(asked.change))


def loaded(on: Leaving) -> str:
    return on.stands(on.value.version, on.value.floor_ms) or on.all_held(on.value.rows)


def kept(on: Leaving) -> str:
    said = on.value
    if said.refused is not None:
        return ""
    asked = on.asked(messages.Keep, on.to, said.operation, said.attempt)
    hints = [decode_hint(value) for _, value in on.tables.scan(HINTS)]
    if any((hint.range, hint.place, hint.row, hint.obliged) == (said.range, asked.place, asked.row, True)
           for hint in hints):
        return ""
    return f"a hint of {asked.place} is said to be kept, and is not stored"


def promised(on: Leaving) -> str:
    floor_ms = on.asked(floors.PromiseAsked, on.value.range, on.value.round).floor_ms
    promise_ms = on.standing.promise_ms if on.standing is not None else -1
    return f"{floor_ms} is promised, stored is {promise_ms}" if promise_ms < floor_ms else ""


def hints_gone(on: Leaving) -> str:
    """The promise is stored, and no obliged hint up to it is left."""
    floor_ms = on.asked(floors.HintsAsked, on.value.range, on.value.round).floor_ms
    held = on.tables.get(PROMISES, on.value.range.to_bytes(8, "big"))
    if held is None or int.from_bytes(held, "big") < floor_ms:
        return f"no hint up to {floor_ms} is promised to be taken, stored is {held!r}"
    hints = (decode_hint(value) for _, value in on.tables.scan(HINTS))
    left = [hint for hint in hints if hint.range == on.value.range and hint.stamp.ms <= floor_ms]
    return f"{len(left)} hints up to {floor_ms} are left" if left else ""


def copied(on: Leaving) -> str:
    """The rows are stored as whole.

    An owner that stays may say so before the record of the move is stored here: a write that it takes meanwhile is
    among its own rows, and the operator counts who has the record by `Known` (D66, D67).
    """
    standing = on.standing
    if standing is None:
        return "no standing is stored"
    if standing.record.version == on.value.version and standing.copying:
        return "the copy is not stored as whole"
    return "" if standing.me in standing.record.own.members else on.stands(on.value.version)


def stood(on: Leaving) -> str:
    return "" if on.standing == on.value.standing else f"stored is {on.standing}"


def durable(on: Leaving) -> str:
    if on.gone:
        return ""
    hands = on.watch.hands_of(on.node, on.unit.id)
    return on.all_equal(on.watch.wrote.get((hands, on.value.number), {}))


def removed(on: Leaving) -> str:
    assert on.node.core is not None
    if on.gone:
        return ""
    removing = on.node.plane.holders[on.unit.id].unit.removing
    return on.all_equal(on.watch.removes.get((removing, on.value.page), {}))


def taken(on: Leaving) -> str:
    """The rows of another owner are stored here, so that an exchange may count them (D74)."""
    if on.value.verdict.fate is not Fate.STORED:
        return ""
    return on.all_held(on.watch.takes[on.node.member, on.value.number])


def looked_at(on: Leaving) -> str:
    """A row that counts as ours is stored, or the exchange would end without it."""
    if on.gone:
        return ""
    hands = on.watch.hands_of(on.node, on.unit.id)
    looked = {each.at: each.digest for each in on.value.rows}
    places = on.watch.looks[on.node.member, on.value.number]
    ours = {weight.at: weight.digest for place in places
            if (row := on.row(place)) is not None and (weight := weigh(place, row, hands.floor_ms)) is not None}
    wrong = {at for at, digest in looked.items() if ours.get(at) != digest}
    return f"{wrong} count as ours and are not stored so" if wrong else ""


def forgotten(on: Leaving) -> str:
    """The number of the keyspace is stored, and nothing else of it."""
    prefix = on.value.keyspace.to_bytes(4, "big")
    marked = on.tables.get(DELETED, on.value.keyspace.to_bytes(8, "big")) is not None
    rows = sum(key.startswith(prefix) for family in (*FAMILIES.values(), PROMISES) for key, _ in on.tables.scan(family))
    hints = sum(decode_hint(value).range >> 32 == on.value.keyspace for _, value in on.tables.scan(HINTS))
    records = sum(at.plane == on.unit.plane and at.id >> 32 == on.value.keyspace for at in on.tables.units)
    return "" if marked and not rows and not hints and not records else (
        f"{rows} rows, {hints} hints and {records} records are left, and the number is stored: {marked}")


def erased(on: Leaving) -> str:
    """Records and hints that the node has forgotten are not stored any more."""
    plane, keyspace = on.node.plane, on.unit.id >> 32
    left = plane._deletions._deleted[keyspace]
    records = [at.id for at in on.tables.units if at.plane == on.unit.plane and at.id >> 32 == keyspace]
    hints = [int.from_bytes(key, "big") for key, value in on.tables.scan(HINTS)
             if decode_hint(value).range >> 32 == keyspace]
    stored = [*(each for each in records if each not in left), *(each for each in hints if each not in (
        plane._keeper.hints.held))]
    return f"{stored} are stored" if stored else ""


WARRANTS: dict[type, Warrant] = {
    messages.StoreAnswer: stored,
    messages.LoadAnswer: loaded,
    messages.Kept: kept,
    exchanging.Opened: lambda on: on.stands(on.value.exchange.version, on.value.exchange.floor_ms),
    exchanging.Listed: lambda on: on.stands(on.value.exchange.version, on.value.exchange.floor_ms),
    exchanging.Given: lambda on: (
        on.stands(on.value.exchange.version, on.value.exchange.floor_ms) or on.all_held(on.value.rows)),
    moving.Known: lambda on: on.stands(on.value.version),
    moving.Copied: copied,
    floors.HintsGone: hints_gone,
    floors.Promised: promised,
    floors.Synced: lambda on: "",     # `taken` vouches for the rows of every exchange that it rests on
    deleting.Forgotten: forgotten,
    deleting.Erased: erased,
    Stood: stood,
    RowsDurable: durable,
    Removed: removed,
    Taken: taken,
    LookedAt: looked_at,
    HeldRows: lambda on: on.all_held(on.value.rows.items()),
}
"""The row of each message and event that says something of the disk."""

QUESTIONS = (
    messages.Store, messages.Load, messages.Keep, messages.Inspect, messages.RingTold, exchanging.Open,
    exchanging.Sketch, exchanging.Want, exchanging.Unanswered, messages.Inspected,
)
"""Messages that promise nothing: they ask, refuse, tell people, or hand on a record that the operator wrote."""


# --- the watch ------------------------------------------------------------------------------------------------------


class RangeWatch:
    """Judge of all effects of all nodes in the runs that it accompanies; `early` plants a bug in one pair."""

    def __init__(self, early: Pair | None = None) -> None:
        self.early = early
        self.reached: set[Site] = set()
        self.pairs: Counter[Pair] = Counter()
        self.seen: dict[Pair, Counter[str]] = defaultdict(Counter)   # in which world a pair's row sees the write
        self.first_seen: dict[Pair, int] = {}                        # the seed of the first time
        self.left: Counter[str] = Counter()
        self._seed = 0
        self._forget()

    def _forget(self) -> None:
        self.asked: dict[Any, Any] = {}
        self.wrote: dict[tuple[Hands, int], Mapping[Place, Row | None]] = {}
        self.removes: dict[tuple[Removing, int], Mapping[Place, Row | None]] = {}
        self.takes: dict[Any, tuple[tuple[Place, Row], ...]] = {}
        self.looks: dict[Any, tuple[Place, ...]] = {}
        self._made: dict[int, tuple[Persist, Site]] = {}

    def hands_of(self, node: Node, unit: int) -> Hands:
        return node.plane.holders[unit].unit._hands

    @contextmanager
    def watching(self, seed: int) -> Iterator[None]:
        """Accompany the run of one seed."""
        self._seed = seed
        self._forget()
        with ExitStack() as stack:
            self._patch(stack)
            yield

    def _patch(self, stack: ExitStack) -> None:
        watch = self
        step, on_message, hand_back = NodeCore.step, KeyspacePlane._on_message, KeyspacePlane._handed_back
        make, run, persist, decide = Persist.__init__, Node.run, Hands._persist, Removing._decide
        take, look_at = Unit.take, Unit.look_at

        def watched_step(core: NodeCore, now_ms: int, events: Any) -> list[Effect]:
            watch._made.clear()
            return step(core, now_ms, events)

        def watched_on_message(plane: KeyspacePlane, now_ms: int, unit: int, sender: Any, m: Any) -> list[Effect]:
            watch._sees(plane.me, sender, m)
            return on_message(plane, now_ms, unit, sender, m)

        def watched_make(made: Persist, *arguments: Any, **named: Any) -> None:
            make(made, *arguments, **named)
            if (site := site_of_caller()) is not None:
                watch.reached.add(site)
                watch._made[id(made)] = made, site

        def watched_hand_back(plane: KeyspacePlane, write: Persist) -> Persist:
            """The plane makes its writes again, with feeds for messages to itself."""
            again = hand_back(plane, write)
            watch._made[id(again)] = again, watch._made[id(write)][1]
            return again

        def watched_run(node: Node, effects: Iterable[Effect], stop_at: int = -1) -> list[Any]:
            return run(node, watch._pass(node, effects), stop_at)

        def watched_persist(hands: Hands, decided: Decided) -> Persist:
            watch.wrote[hands, hands._number] = decided.rows
            return persist(hands, decided)

        def watched_decide(removing: Removing, page: int, *arguments: Any) -> Decided:
            decided = decide(removing, page, *arguments)
            watch.removes[removing, page] = decided.rows
            return decided

        def watched_take(unit: Unit, now_ms: int, record: Any, rows: Any, event: Any) -> list[Effect]:
            watch.takes[unit.standing.me, event(STORED).number] = rows
            return take(unit, now_ms, record, rows, event)

        def watched_look_at(unit: Unit, places: Any, event: Any) -> list[Effect]:
            watch.looks[unit.standing.me, event(()).number] = places
            return look_at(unit, places, event)

        for target, name, value in (
            (NodeCore, "step", watched_step), (KeyspacePlane, "_on_message", watched_on_message),
            (KeyspacePlane, "_handed_back", watched_hand_back), (Persist, "__init__", watched_make),
            (Node, "run", watched_run), (Hands, "_persist", watched_persist), (Removing, "_decide", watched_decide),
            (Unit, "take", watched_take), (Unit, "look_at", watched_look_at),
        ):
            substitute(stack, target, name, value)

    def _sees(self, me: Member, sender: Any, m: Any) -> None:
        """Remember questions: an answer says only which one it is for."""
        match m:
            case messages.Store() | messages.Keep():
                self.asked[me, type(m), sender, m.operation, m.attempt] = m
            case floors.PromiseAsked() | floors.HintsAsked():
                self.asked[me, type(m), m.range, m.round] = m

    # --- judging ----------------------------------------------------------------------------------------------------

    def _pass(self, node: Node, effects: Iterable[Effect]) -> Iterator[Effect]:
        for effect in effects:
            if not isinstance(effect, Persist):
                self._leaves(node, effect)
                yield effect
                continue
            site = self._made[id(effect)][1]
            kept_back: list[Effect] = []
            for behind in effect.then:
                pair = (f"{site.module}.{site.function}", kind_of(behind))
                self.pairs[pair] += 1
                disk = node.disk
                for world, tables in ((CRASHED, disk.written_tables), (OVERTAKEN, disk.durable_tables)):
                    if self._broken(node, tables, behind):
                        self.seen[pair][world] += 1
                        self.first_seen.setdefault(pair, self._seed)
                if pair == self.early:
                    self._leaves(node, behind)
                    yield behind
                else:
                    kept_back.append(behind)
            yield replace(effect, then=tuple(kept_back)) if self.early is not None else effect

    def _leaves(self, node: Node, effect: Effect) -> None:
        self.left[kind_of(effect)] += 1
        if node.core is not None and (broken := self._broken(node, node.disk.durable_tables, effect)):
            raise Violation("warrant", f"{node.name} lets {effect} go: {broken}")

    def _broken(self, node: Node, tables: Tables, effect: Effect) -> str:
        match effect:
            case Send(unit, to, value):
                pass
            case Feed(Received(unit, to, _, value)):
                pass
            case Feed(RowsDurable(unit) as value):
                to = None
            case Feed(value):
                unit, to = node.plane._at(value.unit), None
            case _:
                return ""
        if isinstance(value, QUESTIONS):
            return ""
        row = WARRANTS.get(type(value))
        assert row is not None, f"{type(value).__name__} has no row: what does it vouch for?"
        return row(Leaving(self, node, unit, to, value, tables))
