"""The keyspace plane minus one rule each.

Stays out: mutants of shards (`tidemark_sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.ids import Member
from tidemark_core.optimistic import floors as core_floors
from tidemark_core.optimistic import mover as core_mover
from tidemark_core.optimistic import moving as core_moving
from tidemark_core.optimistic import owner as core_owner
from tidemark_core.optimistic import plane as core_plane
from tidemark_core.optimistic import stamps as core_stamps
from tidemark_core.optimistic import standing as core_standing
from tidemark_core.optimistic import storing as core_storing
from tidemark_core.optimistic.cells import Element, ElementCell, Place, Row, Sort
from tidemark_core.optimistic.coordinating import operations as core_operations
from tidemark_core.optimistic.coordinating.operations import WriteStep
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Read, Repair
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.deleting import Deletions
from tidemark_core.optimistic.exchanging import giving as core_giving
from tidemark_core.optimistic.exchanging.tree import Tree
from tidemark_core.optimistic.floors import Commit, Phase, Round, Synced, To
from tidemark_core.optimistic.hinting.hints import Hints
from tidemark_core.optimistic.holding import unit as core_unit
from tidemark_core.optimistic.holding.unit import Unit
from tidemark_core.optimistic.messages import Load, LoadAnswer, Store
from tidemark_core.optimistic.owner import STORED, Fate, Source, Verdict
from tidemark_core.optimistic.plane import KeyspacePlane
from tidemark_core.optimistic.retracting import TakenBack
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.stamps import ZERO, Actor, Stamp
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import kept

from ..mutant import Mutant, substitute
from . import clients
from .node import Node
from .run import AHEAD, PROFILE

# --- moves --------------------------------------------------------------------------------------------------


def _no_joint(stack: ExitStack) -> None:
    substitute(stack, Range, "write", lambda self, stored, w=0: self.own.missing(stored, w) <= 0)
    substitute(stack, Range, "read", lambda self, answered, r=0: self.own.read(answered, r))


def _read_old_only(stack: ExitStack) -> None:
    substitute(stack, Range, "read", lambda self, answered, r=0: self.own.read(answered, r))


def _no_barrier(stack: ExitStack) -> None:
    unfinished = core_moving.unfinished

    def hasty(record: Range, copied: Any, durable: Any, gone: Any) -> str | None:
        return unfinished(record, copied, record.members, gone)

    substitute(stack, core_mover, "unfinished", hasty)


def _no_fence(stack: ExitStack) -> None:
    """A member stores what a coordinator sends under an older version."""
    on_store = core_storing.on_store

    def lax(standing: Standing, m: Store, latest_ms: int, held: Mapping[Place, Row]) -> Any:
        return on_store(standing, replace(m, version=max(m.version, standing.record.version)), latest_ms, held)

    substitute(stack, core_unit, "on_store", lax)


def _no_fence_of_reads(stack: ExitStack) -> None:
    """A member, also a former one, answers a read of an older version with what it holds."""
    on_load = core_storing.on_load

    def answer(standing: Standing, m: Load, found: Any, behind: Place | None = None) -> LoadAnswer:
        record = standing.record
        if m.version >= record.version:
            return on_load(standing, m, found, behind)
        rows = tuple(kept(dict(found), record.floor_ms).items())
        return LoadAnswer(m.range, record.version, record.floor_ms, m.operation, m.attempt, rows, behind)

    substitute(stack, core_unit, "on_load", answer)


def _sync_one(stack: ExitStack) -> None:
    substitute(stack, core_moving, "sources_needed", lambda record: 1)


def _sync_new_only(stack: ExitStack) -> None:
    unfinished = core_moving.unfinished

    def hasty(record: Range, copied: Any, durable: Any, gone: Any) -> str | None:
        return unfinished(record, [*copied, *record.own.members], durable, gone)

    substitute(stack, core_mover, "unfinished", hasty)


def _no_wipe(stack: ExitStack) -> None:
    substitute(stack, Unit, "_wipe", lambda self: ())


def _ack_mix(stack: ExitStack) -> None:
    on_record = Write.on_record

    def mixing(self: Write, record: Range) -> list[Any]:
        stored = dict(self._stored)
        effects = on_record(self, record)
        self._stored.update(stored)
        return effects

    substitute(stack, Write, "on_record", mixing)


def _no_record_left(stack: ExitStack) -> None:
    """A node that left a range starts again without its record."""
    recover = KeyspacePlane.recover

    def forgetful(self: KeyspacePlane, stored: Any) -> None:
        recover(self, stored)
        for unit in self.records.keys() - self.holders.keys():
            del self.records[unit]

    substitute(stack, KeyspacePlane, "recover", forgetful)


def _no_mark(stack: ExitStack) -> None:
    """A node that forgot a keyspace takes it again."""
    substitute(stack, Deletions, "covers", lambda self, unit: False)


def _import_refused(stack: ExitStack) -> None:
    judged = core_owner.judged

    def strict(standing: Standing, origin: Any, held: Any, cell: Any) -> Verdict:
        return judged(standing._replace(copying=False), origin, held, cell)

    substitute(stack, core_owner, "judged", strict)


# --- floors -------------------------------------------------------------------------------------------------


def _adopt_blind(stack: ExitStack) -> None:
    """A member takes over every floor that it hears of."""
    adopted = core_standing.adopted
    substitute(stack, core_unit, "adopted", lambda before, record: adopted(before, record)._replace(withdrawn=False))


def _no_promise(stack: ExitStack) -> None:
    """Owners promise, and store what comes all the same."""
    judged = core_owner.judged

    def forgetful(standing: Standing, origin: Any, held: Any, cell: Any) -> Verdict:
        return judged(standing._replace(promise_ms=0), origin, held, cell)

    substitute(stack, core_owner, "judged", forgetful)


def _no_sync(stack: ExitStack) -> None:
    """The floor rises as soon as all have promised."""
    heard = Round._heard

    def hasty(self: Round, member: Member) -> list[Any]:
        effects = heard(self, member)
        if self.phase is not Phase.SYNC:
            return effects
        self.phase, self._waits = Phase.COMMIT, {}
        return [Commit(self.next)]

    substitute(stack, Round, "_heard", hasty)


def _sync_early(stack: ExitStack) -> None:
    """A member that has promised pulls at once, and that counts when all have promised."""
    resend, on_answer, heard = Round.resend, Round.on_answer, Round._heard
    synced: dict[Round, dict[Member, None]] = {}

    def asking(self: Round) -> list[Any]:
        effects = resend(self)
        if self.phase is Phase.PROMISES:
            self.phase = Phase.SYNC
            effects += [To(member, self._message(member)) for member in self.record.own.members
                        if member not in self._waits]
            self.phase = Phase.PROMISES
        return effects

    def answered(self: Round, member: Member, m: Any) -> list[Any]:
        if isinstance(m, Synced) and self.phase is Phase.PROMISES and m.round == self._number:
            synced.setdefault(self, {})[member] = None
            return []
        return on_answer(self, member, m)

    def hearing(self: Round, member: Member) -> list[Any]:
        before, effects = self.phase, heard(self, member)
        if before is Phase.PROMISES and self.phase is Phase.SYNC:
            for each in synced.get(self, {}):
                effects = heard(self, each) or effects
        return effects

    for name, value in (("resend", asking), ("on_answer", answered), ("_heard", hearing)):
        substitute(stack, Round, name, value)


def _no_reply_floor(stack: ExitStack) -> None:
    """Answers with different floors are mixed."""
    on_loaded = Read.on_loaded

    def mixing(self: Read, now_ms: int, sender: Member, m: LoadAnswer) -> Sequence[Any]:
        if m.refused is None and m.version == self.record.version and m.attempt == self._attempt:
            m = replace(m, floor_ms=self.record.floor_ms)
        return on_loaded(self, now_ms, sender, m)

    substitute(stack, Read, "on_loaded", mixing)


def _no_floor(stack: ExitStack) -> None:
    """An exchange begins whatever the floors of the two are."""
    unanswered = core_giving.unanswered

    def lax(standing: Standing, exchange: Any, tree: Any) -> Any:
        return unanswered(standing, replace(exchange, floor_ms=standing.record.floor_ms), tree)

    substitute(stack, core_unit, "unanswered", lax)


def _grace_only(stack: ExitStack) -> None:
    """Tombstones go by their age alone."""
    resend = Round.resend

    def at_once(self: Round) -> list[Any]:
        self.phase, self._waits = Phase.COMMIT, {}
        return resend(self)

    substitute(stack, Round, "resend", at_once)
    _adopt_blind(stack)


# --- hints --------------------------------------------------------------------------------------------------


def _hint_one(stack: ExitStack) -> None:
    """A hint goes as soon as one owner has it."""
    judge = Write._judge

    def hasty(self: Write) -> list[Any]:
        return self._end(Outcome.OK) if self._source is Source.HINT and self._stored else judge(self)

    substitute(stack, Write, "_judge", hasty)


def _no_hint_start(stack: ExitStack) -> None:
    """A node takes hints that are older than its process."""

    def began(self: Hints, now_ms: int) -> None:
        self._began_ms = 0

    substitute(stack, Hints, "began", began)


def _beginning(stack: ExitStack, begin: Callable[[Round], None]) -> None:
    """Change a round when it begins."""
    init = Round.__init__

    def changed(self: Round, *arguments: Any) -> None:
        init(self, *arguments)
        begin(self)

    substitute(stack, Round, "__init__", changed)


def _no_holder(stack: ExitStack) -> None:
    """No node is asked for its hints."""

    def begin(self: Round) -> None:
        self.phase, self._waits = Phase.PROMISES, dict.fromkeys(self.record.own.members)

    _beginning(stack, begin)


def _holder_last(stack: ExitStack) -> None:
    """Nodes are asked for their hints when the owners have promised and exchanged."""
    asked: dict[Round, dict[Member, None]] = {}
    heard = Round._heard

    def begin(self: Round) -> None:
        asked[self] = self._waits
        self.phase, self._waits = Phase.PROMISES, dict.fromkeys(self.record.own.members)

    def hearing(self: Round, member: Member) -> list[Any]:
        before, effects = self.phase, heard(self, member)
        if before is Phase.SYNC and self.phase is Phase.HINTS:
            self._waits = asked[self]
            return self.resend()
        return effects

    _beginning(stack, begin)
    substitute(stack, Round, "_heard", hearing)
    substitute(stack, core_floors, "_NEXT", {
        Phase.PROMISES: Phase.SYNC, Phase.SYNC: Phase.HINTS, Phase.HINTS: Phase.COMMIT})


def _owner_hints(stack: ExitStack) -> None:
    """Owners are not asked for their hints."""

    def begin(self: Round) -> None:
        self._waits = {member: None for member in self._waits if member not in self.record.own.members}

    _beginning(stack, begin)


# --- cells --------------------------------------------------------------------------------------------------


def _any_version(stack: ExitStack) -> None:
    """Rows of an exchange are taken whatever the record of the sender was."""
    take = Unit.take

    def lax(self: Unit, now_ms: int, record: Range, rows: Any, event: Any) -> Any:
        return take(self, now_ms, self.standing.record, rows, event)

    substitute(stack, Unit, "take", lax)


def _ack_dominated(stack: ExitStack) -> None:
    newer = core_owner._for

    def pleased(origin: Any, verdict: Verdict) -> Verdict:
        return STORED if verdict.fate is Fate.NEWER else newer(origin, verdict)

    substitute(stack, core_owner, "_for", pleased)
    substitute(stack, core_owner, "_shown", lambda merged, row: STORED)


def _dead_tie(stack: ExitStack) -> None:
    """Of two removals of one dot each owner keeps its own."""

    def merge(one: Element, other: Element) -> Element:
        merged = dict(one)
        for actor, cell in other.items():
            known = merged.get(actor)
            merged[actor] = cell if known is None or (cell.n, cell.dead) > (known.n, known.dead) else known
        return merged

    substitute(stack, core_owner, "merge_elements", merge)
    judged = core_owner.judged

    def tied(standing: Standing, origin: Any, held: Any, cell: Any) -> Verdict:
        if isinstance(held, ElementCell) and held.dead and cell.dead and held.n == cell.n:
            return STORED
        return judged(standing, origin, held, cell)

    substitute(stack, core_owner, "judged", tied)


def _act_disk(stack: ExitStack) -> None:
    """All runs of a node are one actor."""
    substitute(stack, core_plane, "actor_of", lambda node, boot: Actor(node, bytes(8)))


def _rem_empty_ok(stack: ExitStack) -> None:
    """A remove that finds nothing alive ends at once, and its read repairs nothing."""

    def hasty(key: bytes, element: bytes) -> Any:
        found = yield core_operations.ReadStep(core_storing.of_element(key, element), repair=Repair.OFF)
        row: Mapping[Any, ElementCell] = found.rows.get(Place(Sort.ELEMENT, key, element), {})
        if found.outcome is not Outcome.OK or all(cell.dead for cell in row.values()):
            return Done(found.outcome, ZERO, ())
        return (yield core_operations.WriteStep(core_operations._removal(key, element, row), fixed=True))

    substitute(stack, clients, "remove_element", hasty)


def _rem_stamp_low(stack: ExitStack) -> None:
    """A remove has the stamp of the coordinator's own clock, whatever it removes."""

    def low(stamp: Stamp, found: Element) -> Element:
        return {actor: cell if cell.dead else ElementCell(cell.n, True, stamp, 0, b"") for actor, cell in found.items()}

    substitute(stack, core_operations, "remove", low)
    substitute(stack, core_operations, "WriteStep", lambda make, fixed=False, above=None: WriteStep(make, fixed))
    substitute(stack, core_stamps.Clock, "saw", lambda self, stamp, now_ms: None)


def _no_block(stack: ExitStack) -> None:
    """A read answers before what it found is stored by enough."""
    begin = Read.begin

    def hasty(self: Read) -> list[Any]:
        self._repair = Repair.OFF
        return begin(self)

    substitute(stack, Read, "begin", hasty)


def _img_blind(stack: ExitStack) -> None:
    substitute(stack, Node, "is_old", property(lambda self: False))


def _forgotten_as_empty(stack: ExitStack) -> None:
    """A tree that is forgotten answers as if its range had no rows."""
    forget = Tree.forget

    def hasty(self: Tree) -> None:
        forget(self)
        for leaf in self._leaves:
            leaf.built = True

    substitute(stack, Tree, "forget", hasty)


def _no_retractions(stack: ExitStack) -> None:
    substitute(stack, core_storing, "take_retracted", lambda held, string, row: TakenBack(STORED))


KEYSPACE_MUTANTS = (*(
    Mutant(name, missing, change, PROFILE) for name, missing, change in (
        ("D64 joint", "writes and reads need both lists while a move is open", _no_joint),
        ("D64 reads", "reads need both lists while a move is open", _read_old_only),
        ("D67 barrier", "a move ends when enough owners know of it", _no_barrier),
        ("D65 writes", "writes of an older version are refused", _no_fence),
        ("D65 reads", "reads of an older version are refused", _no_fence_of_reads),
        ("D66 sources", "a pending owner copies from enough owners", _sync_one),
        ("D66 staying", "owners that stay copy too", _sync_new_only),
        ("D66 wipe", "rows go where a member leaves or joins", _no_wipe),
        ("D60 record", "acknowledgements count for one record", _ack_mix),
        ("D80", "the record of a range stays where it was left", _no_record_left),
        ("D81", "nothing is taken of a keyspace that was deleted", _no_mark),
        ("D62 import", "a copy takes what is live below the floor", _import_refused),
        ("D69 exchange", "owners exchange before the floor rises", _no_sync),
        ("D69 promise", "owners keep their promise", _no_promise),
        ("D69 all promised", "exchanges begin when all have promised", _sync_early),
        ("D71", "a disk without the promise withdraws", _adopt_blind),
        ("D72", "answers with a lower floor do not count", _no_reply_floor),
        ("D73", "a hint stays until a write quorum has it", _hint_one),
        ("D73 start", "a node takes no hint that is older than its process", _no_hint_start),
        ("D69 hints", "every node is asked for its hints", _no_holder),
        ("D69 hints first", "nodes are asked for their hints before owners promise", _holder_last),
        ("D69 owners", "owners are asked for their hints too", _owner_hints),
        ("D74 floors", "an exchange begins under one floor", _no_floor),
        ("D71 age", "age alone collects nothing", _grace_only),
        ("D61", "rows of an exchange are taken under one record", _any_version),
        ("D60 newer", "a hidden write is not acknowledged", _ack_dominated),
        ("D56", "of two removals of a dot the later one stays", _dead_tie),
        ("D53", "each run of a node is an actor of its own", _act_disk),
        ("D57 dead", "a remove writes also what it found dead", _rem_empty_ok),
        ("D57 stamp", "a remove is above what it removes", _rem_stamp_low),
        ("D75", "a read stores what it found before it answers", _no_block),
        ("D85", "a tree that is forgotten is built again before it answers", _forgotten_as_empty),
        ("marks", "an old disk is noticed", _img_blind),
    )
), Mutant("D84", "owners learn from each other what was taken back", _no_retractions, AHEAD))
