"""Warrants: the facts that must be on disks before an effect may leave a node, one row for each message and answer.

A `Watch` sits in a simulated node where effects run.  It judges every effect that leaves against what is durable at
that moment, and every effect that rides on a write against the two worlds in which it does not: the node crashed
between the two (all earlier writes are durable, this one is not), or the effect overtook the writes (what is durable
now).  A row that is content with both worlds does not see the write.
Stays out: what the log must look like afterwards; those are the simulator's own checkers.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tidemark_core
from tidemark_core.base.effects import (
    Effect,
    Feed,
    LocalDurable,
    LocalStep,
    LogRead,
    LogReadFailed,
    Persist,
    PutCheckpoint,
    PutEntry,
    ReadLog,
    Received,
    Released,
    Reply,
    RowsDurable,
    Send,
    TimerFired,
    Write,
)
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import LOG_PLANE, NOTHING, Address, EntryId, Member, ShardId
from tidemark_core.base.plane import NodeFacts
from tidemark_core.base.quorum import majority
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import Shipment
from tidemark_core.document_shard import TAG as FOLD_TAG
from tidemark_core.documents.requests import Pinned, ReadGranted, Unpinned, Written
from tidemark_core.documents.rows import load, wipe
from tidemark_core.limbo.settings import Rollback
from tidemark_core.log_plane import NO_SHARD
from tidemark_core.node import NodeCore
from tidemark_core.planes import planes
from tidemark_core.replication import messages as m
from tidemark_core.replication.checkpoint import checkpoint_end
from tidemark_core.replication.copies import seat_of
from tidemark_core.replication.floors import FLOORS, PromiseRequest
from tidemark_core.replication.invariants import check_replica
from tidemark_core.replication.replica import Replica, ReplicaState, Role
from tidemark_core.sinks.view import SinksView
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_sim.checkers.documents import StoreView
from tidemark_sim.delivery import Stream
from tidemark_sim.disk import STORE_WRITES, Disk, Image, StoredPlane, Tables
from tidemark_sim.mutant import substitute
from tidemark_sim.node import Node
from tidemark_sim.trace import Violation

CORE = Path(tidemark_core.__file__).parent
WRITERS = ("persist", "_persist_fresh")
"""The functions of core that make a write with effects behind it, for their callers."""

decoded = lru_cache(maxsize=4096)(ReplicaState.decode)
NEVER = ReplicaState(epoch=-1, role=Role.DELETED)


def state_of(image: Image) -> ReplicaState:
    return decoded(image.state) if image.state is not None else NEVER


@dataclass(slots=True)
class Leaving:
    """An effect about to leave, and what it is judged by: the disk of the node, and the disks of all."""

    watch: Watch
    node: Node
    shard: ShardId
    image: Image
    value: Any
    tables: Tables
    event: Any = None       # a client's request that this answers
    restored: Replica | None = None

    @property
    def state(self) -> ReplicaState:
        return state_of(self.image)

    @property
    def replica(self) -> Replica:
        if self.restored is not None:
            return self.restored
        assert self.node.core is not None
        return self.node.core.log.shards[self.shard].replica

    @property
    def head(self) -> EntryId:
        if self.image.entries:
            return self.image.entries[-1].id
        if self.image.checkpoint is not None:
            return checkpoint_end(self.image.checkpoint)
        return NOTHING

    # --- questions of rows ------------------------------------------------------------------------------------------

    def promised(self, epoch: int, *roles: Role) -> str:
        """The epoch of the message is the stored one, and so is the role."""
        state = self.state
        if state.epoch != epoch:
            return f"epoch {epoch} is said, {state.epoch} is stored"
        return f"role {state.role} is stored" if roles and state.role not in roles else ""

    def ends(self, head: EntryId) -> str:
        return f"the log is said to end at {head}, stored is {self.head}" if head != self.head else ""

    def leads(self, epoch: int) -> str:
        """The leadership is stored.  A change raises its epoch in the operator's record before the leader hears."""
        state = self.state
        if state.role is not Role.LEADER or state.epoch > epoch:
            return f"speaks as leader of {epoch}, stored is {state.role} of {state.epoch}"
        return ""

    def on_majority(self, base: int, epoch: int = -1) -> str:
        """The entry at `base` was made durable by a majority of some ensemble of the shard."""
        written = self.node.disk.written.get(self.shard)
        entry = written.at(base) if written is not None else None
        if entry is None:
            return "" if base <= self.replica.confirmed else f"no entry at {base} here"
        if epoch not in (-1, entry.epoch):
            return f"entry {entry.id} is not of epoch {epoch}"
        return self.held_by_many(entry)

    def held_by_many(self, entry: Entry) -> str:
        watch = self.watch
        holders = watch.holders[self.shard, entry.base, entry.chain]
        ensembles = {*watch.ensembles[self.shard], self.replica.state.ensemble}
        for ensemble in ensembles:
            held = [each in holders or watch.folded.get((each, self.shard), -1) >= entry.last for each in ensemble]
            if ensemble and sum(held) >= majority(len(ensemble)):
                return ""
        return f"entry {entry.id} is durable on {sorted(map(str, holders))} alone"


Row = Callable[[Leaving], str]


# --- rows -----------------------------------------------------------------------------------------------------------


def fenced(on: Leaving) -> str:
    said = on.value
    if on.state.election != said.election:
        return f"election {said.election} is said, {on.state.election} is stored"
    return on.promised(said.epoch, Role.FENCED, Role.FOLLOWER, Role.DEPOSED) or on.ends(said.head)


def became_leader(on: Leaving) -> str:
    said = on.value
    if on.state.election != said.election:
        return f"election {said.election} is said, {on.state.election} is stored"
    return on.promised(said.epoch, Role.LEADER)


def prepared(on: Leaving) -> str:
    said, state = on.value, on.state
    if state.pending is None or state.opened != said.epoch:
        return f"no change of epoch {said.epoch} is stored"
    return on.promised(said.epoch, Role.LEADER)


def committed(on: Leaving) -> str:
    state, memory = on.state, on.replica.state
    if state.pending is not None:
        return "the change is stored as pending"
    if state.opened != on.value.epoch:
        return f"stored facts are of epoch {state.opened}"
    if memory.opened == state.opened and (memory.ensemble, memory.copies) != (state.ensemble, state.copies):
        return "other members are stored"
    return on.promised(on.value.epoch)


def installed(on: Leaving) -> str:
    said = on.value
    if on.state.role is Role.SEEDING:
        return "the snapshot is not stored"
    entry = on.image.ending_at(said.head.offset)
    if entry is None and on.image.entries and said.head.offset >= on.image.bases[0]:
        return f"the log does not hold {said.head}"
    if not on.image.entries and on.head.offset < said.head.offset:
        return f"the log ends at {on.head}"
    return on.promised(said.epoch)


def transfer_ready(on: Leaving) -> str:
    to = on.node.world.nodes[on.value.to.node]
    theirs = to.disk.durable.get(on.shard)
    mine = on.node.disk.written[on.shard]
    if to.member == on.value.to and (theirs is None or theirs.last < mine.last):
        return f"{on.value.to} holds up to {theirs.last if theirs else -1} of {mine.last}"
    return on.leads(on.value.epoch)


def deleted(on: Leaving) -> str:
    if on.image.entries or on.image.checkpoint is not None:
        return "a log is stored"
    return on.promised(on.value.epoch, Role.DELETED)


def rejected(on: Leaving) -> str:
    """A no promises nothing, except for damage (it leads that epoch no more) and for records it holds (K14c)."""
    refusal = on.value.refusal
    if refusal.reason == Reason.CORRUPT and on.state.role is Role.LEADER:
        return "leads, as stored"
    if refusal.reason == Reason.BELOW_COMMIT and on.head.offset < refusal.expected:
        return f"records up to {refusal.expected} are said to be held, the log ends at {on.head}"
    return ""


def acked(on: Leaving) -> str:
    said = on.value
    if (wrong := on.promised(said.epoch, Role.FOLLOWER)):
        return wrong
    if said.upto < 0 or on.image.ending_at(said.upto) is not None:
        return ""
    below = on.image.bases[0] if on.image.bases else on.head.offset + 1
    return f"{said.upto} is said, no stored entry ends there" if said.upto >= below else ""


def refused_append(on: Leaving) -> str:
    said = on.value
    if said.own_epoch < 0:
        return ""       # no such shard, or another member: it says nothing of a log
    if on.state.epoch != said.own_epoch:
        return f"own epoch {said.own_epoch} is said, {on.state.epoch} is stored"
    if said.reason is Reason.STALE_EPOCH and said.head == NOTHING:
        return ""       # to a leader that left: it hears of the epoch, and nothing of the log (T10)
    return on.ends(said.head) if on.state.role is not Role.SEEDING else ""


def filled(on: Leaving) -> str:
    said = on.value
    asked = on.watch.fills.get((on.node.member, on.shard, said.epoch))
    seat = seat_of(on.node.member, asked.ensemble, asked.copies) if asked is not None else None
    if seat is None:
        return ""
    for entry in on.image.entries:
        if entry.last > said.upto:
            break
        if entry.kind is Kind.DATA and not entry.held and seat.keeps(entry.order):
            return f"up to {said.upto} is said, the payload of {entry.id} is not stored"
    return ""


def fetched(on: Leaving) -> str:
    said = on.value
    if said.entry is not None:
        stored = on.image.at(said.base)
        return "" if stored is None or stored.chain == said.entry.chain else "another entry is stored"
    last = on.node.world.checkers.committed_last(on.shard)
    return f"trimmed to {said.first}, committed is {last}" if said.first > last + 1 else ""


def appended(on: Leaving) -> str:
    said = on.value
    if said.durability == Durability.LOCAL:
        entry = on.image.at(said.base)
        return "" if entry is not None and entry.epoch == said.epoch else f"{said.base} is not stored here"
    return on.on_majority(said.base, said.epoch)


def rolled_back(on: Leaving, at: int) -> str:
    settings = on.replica.settings
    if settings is not None and settings.rollback is Rollback.IMMEDIATE:
        return "" if on.image.at(at) is not None or at <= on.replica.confirmed else f"rollback {at} is not stored here"
    return on.on_majority(at)


def outcome(on: Leaving) -> str:
    said = on.value
    if said.fate is m.Fate.CONFIRMED:
        return on.on_majority(said.base, said.epoch)
    if said.fate is m.Fate.ROLLED_BACK and said.rolled_back_at >= 0:
        return rolled_back(on, said.rolled_back_at)
    return ""


def refused(on: Leaving) -> str:
    return rolled_back(on, on.value.expected) if on.value.reason == Reason.ROLLED_BACK else ""


def grant(on: Leaving) -> str:
    return shown(on, on.value.released)


def shown(on: Leaving, upto: int) -> str:
    """Everything up to `upto`, which readers may have, is on a majority."""
    written = on.node.disk.written.get(on.shard)
    entry = written.ending_at(upto) if written is not None else None
    return on.held_by_many(entry) if entry is not None else ""


def position(on: Leaving) -> str:
    """The record of a subscription's place is on a majority."""
    name = on.event.name.encode()
    written = on.node.disk.written.get(on.shard)
    records = [
        entry for entry in (written.entries if written is not None else ())
        if entry.kind is Kind.POSITION and name in entry.payload
    ]
    wanted = getattr(on.value, "offset", None)
    fitting = [entry for entry in records if wanted is None or entry.sequence == wanted]
    broken = [on.held_by_many(entry) for entry in fitting]
    return broken[-1] if broken and all(broken) else ""


def sink(on: Leaving) -> str:
    """A record of the sink that says the batch is on a majority."""
    name, batch = on.event.name.encode(), getattr(on.event, "batch", 0)
    written = on.node.disk.written.get(on.shard)
    broken = [
        on.held_by_many(entry) for entry in (written.entries if written is not None else ())
        if entry.kind is Kind.SINK and name in entry.payload and entry.sequence == batch]
    return broken[-1] if broken and all(broken) else ""


def reports(on: Leaving) -> str:
    """The promise of a floor is durable, and so is what the reports say (N10)."""
    for shard, floor in on.event.floors.items():
        held = on.tables.get(FLOORS, shard.to_bytes(8, "big")) or bytes(8)
        if int.from_bytes(held, "big") < floor:
            return f"floor {floor} of shard {shard:#x} is promised, {int.from_bytes(held, 'big')} is stored"
    return ""


def fed(on: Leaving) -> str:
    """An event that a node feeds itself behind a write says that the write is durable."""
    event = on.value
    if isinstance(event, LocalDurable):
        last = on.image.last
        return f"{event.upto} is fed as durable, stored is {last}" if last < event.upto else ""
    if isinstance(event, LocalStep):
        return on.promised(event.epoch, Role.LEADER)
    if isinstance(event, Received) and isinstance(event.message, m.Filled):
        return filled(replace(on, value=event.message))
    if isinstance(event, RowsDurable):
        assert on.node.core is not None
        documents = on.node.core.log.shards[on.shard].documents
        if documents._job == "cleaning" and documents._number == event.number:
            return cleaned(on)
        applied = next((batch.applied for batch in documents._batches if batch.number == event.number), -1)
        return stands(on, applied)
    return ""


def cleaned(on: Leaving) -> str:
    """Rows that were never whole are gone before anything is folded (U47)."""
    left = [each.family for each in wipe(on.shard) if any(on.tables.scan(each.family, each.first, each.behind))]
    return f"rows are said to be removed, and are left in {left}" if left else ""


def stands(on: Leaving, applied: int) -> str:
    """The stored rows of documents stand for everything up to `applied` (U47)."""
    summary = load(on.shard, StoreView(on.tables))
    stored = summary.applied if summary is not None else -1
    return f"rows up to {applied} are said to be stored, they stand at {stored}" if stored < applied else ""


def read_behind(on: Leaving) -> str:
    """A read that rides on a repair finds the repaired entry, and one for the fold finds what is confirmed."""
    if on.value.tag[0] == FOLD_TAG:
        return "the entry is not stored yet" if on.image.at(on.value.first) is None else ""
    return "the entry is still damaged" if (on.shard, on.value.first) in on.node.disk.corrupt else ""


SAID: dict[type, Row] = {
    m.Fenced: fenced,
    m.BecameLeader: became_leader,
    m.FollowerAdded: lambda on: on.leads(on.value.epoch),
    m.Prepared: prepared,
    m.SnapshotInstalled: installed,
    m.Committed: committed,
    m.Aborted: lambda on: on.leads(on.value.epoch),
    m.TransferReady: transfer_ready,
    m.ShardDeleted: deleted,
    m.Rejected: rejected,
    m.Append: lambda on: on.leads(on.value.epoch),
    m.AppendAck: acked,
    m.AppendRefused: refused_append,
    m.Truncate: lambda on: on.leads(on.value.epoch),
    m.Truncated: lambda on: on.promised(on.value.epoch, Role.FENCED) or on.ends(on.value.head),
    m.Drop: lambda on: on.leads(on.value.epoch),
    m.Fill: lambda on: on.leads(on.value.epoch),
    m.Filled: filled,
    m.Fetched: fetched,
    m.Appended: appended,
    Written: appended,
    ReadGranted: lambda on: stands(on, on.value.applied),
    Pinned: lambda on: on.on_majority(on.value.at),
    m.Outcome: outcome,
    Refused: refused,
    m.ReadGrant: grant,
    m.Claimed: lambda on: on.on_majority(on.value.offset),
    m.PositionCommitted: position,
    m.SubscriptionDeleted: position,
    m.SinkJoined: sink,
    m.SinkMarked: sink,
    m.SinkDeleted: sink,
    m.ReadRound: lambda on: on.leads(on.value.epoch),
    m.ReadRoundAck: lambda on: "a newer epoch is stored" if on.state.epoch > on.value.epoch else "",
    m.DigestsAsked: lambda on: on.leads(on.value.epoch),
    m.Digests: lambda on: shown(on, on.value.cuts[-1].applied),
    tuple: reports,
}
"""The row of each message and answer that promises something."""

HARMLESS: dict[type, str] = {
    m.SnapshotProgress: "for people: an operator decides nothing by it",
    m.CommitPending: "asks to be asked again",
    m.Fetch: "a question",
    m.Latest: "where a read ends; the checkers of O46 judge it",
    Unpinned: "the checkers of documents judge which pins are active",
    m.Reach: "what a node sees of others now",
    SubscriptionsView: "shows what is confirmed; the checkers of positions judge it",
    SinksView: "shows what is confirmed; the checker of sinks judges it",
    int: "where the log begins; a trim that a crash loses is made again",
}
"""Messages and answers that promise nothing, each with the reason."""

REMEMBERED = (
    m.Fenced, m.BecameLeader, m.Prepared, m.SnapshotInstalled, m.Committed, m.AppendAck, m.Truncated, m.ShardDeleted,
)
"""By these messages a node promises their epoch: it never goes back behind it."""

# --- where core writes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A call that makes a write, maybe with effects behind it."""

    module: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}.{self.function}:{self.line}"


OF_RANGES = "optimistic"
"""The room of core that writes for ranges: `range_warrants` judges it, in runs of keyspaces."""


def sites(*, of_ranges: bool = False) -> Iterator[Site]:
    """Yield every call in core that makes a write with effects behind it, as the source shows them."""
    for path in sorted(CORE.rglob("*.py")):
        module = ".".join(path.relative_to(CORE).with_suffix("").parts)
        if (module.split(".")[0] == OF_RANGES) is not of_ranges:
            continue
        for name, function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            if function.name in WRITERS:
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _writes_and_more(node):
                    yield Site(module, name, node.lineno)


def _writes_and_more(call: ast.Call) -> bool:
    """Say whether a call makes a write with effects behind it; `_persist_fresh` always has one."""
    arguments = len(call.args) + len(call.keywords)
    if isinstance(call.func, ast.Name):
        return call.func.id == Persist.__name__ and arguments > 2
    return isinstance(call.func, ast.Attribute) and call.func.attr in WRITERS and (
        arguments > 1 or call.func.attr == WRITERS[1])


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))


def site_of_caller() -> Site | None:
    """Return where core makes the write that is being made; None when it is not core's."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in WRITERS:
        assert frame.f_back is not None
        frame = frame.f_back
    code = frame.f_code
    if not code.co_filename.startswith(str(CORE)):
        return None
    module = ".".join(Path(code.co_filename).relative_to(CORE).with_suffix("").parts)
    return Site(module, code.co_qualname.split(".<locals>")[0], frame.f_lineno)


# --- the watch --------------------------------------------------------------------------------------------------------


CRASHED, OVERTAKEN = "crashed", "overtaken"
Pair = tuple[str, str]
"""A function of core that writes, and the kind of an effect behind its write."""


def kind_of(effect: Effect) -> str:
    if isinstance(effect, Send):
        return type(effect.message).__name__
    if isinstance(effect, Reply):
        return type(effect.value).__name__
    if isinstance(effect, Feed):
        return f"feed {type(effect.event).__name__}"
    return type(effect).__name__


class Watch:
    """Judge of all effects of all nodes in the runs that it accompanies; `early` plants a bug in one pair."""

    def __init__(self, early: Pair | None = None) -> None:
        self.early = early
        self.reached: set[Site] = set()
        self.events: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self.seen: dict[Pair, Counter[str]] = defaultdict(Counter)   # in which world a pair's row sees the write
        self.first_seen: dict[Pair, tuple[Any, ...]] = {}            # the run of the first time
        self.left: Counter[str] = Counter()                          # effects judged
        self.past: Counter[str] = Counter()                          # of those, with a write of their shard under way
        self.restored = 0
        self.run: tuple[Any, ...] = ()
        self._made: dict[int, tuple[Persist, Site, Any]] = {}
        self._event: Any = None
        self._restores: Counter[Site] = Counter()
        self._forget()

    def _forget(self) -> None:
        self.holders: dict[tuple[ShardId, int, int], set[Member]] = defaultdict(set)
        self.ensembles: dict[ShardId, set[tuple[Member, ...]]] = defaultdict(set)
        self.folded: dict[tuple[Member, ShardId], int] = {}
        self.fills: dict[tuple[Member, ShardId, int], m.Fill] = {}
        self.promised: dict[tuple[Member, ShardId], int] = {}
        self.acked: dict[tuple[Member, ShardId], tuple[int, Entry]] = {}

    @contextmanager
    def watching(self, *run: Any) -> Iterator[None]:
        """Accompany one run, described so that it can be repeated."""
        self.run = run
        self._forget()
        with ExitStack() as stack:
            self._patch(stack)
            yield

    def _patch(self, stack: ExitStack) -> None:
        watch = self
        on_event, step, make, run = NodeCore._on_event, NodeCore.step, Persist.__init__, Node.run
        say = Stream.say

        def watched_step(core: NodeCore, now_ms: int, events: Any) -> list[Effect]:
            watch._made.clear()
            return step(core, now_ms, events)

        def watched_on_event(core: NodeCore, now_ms: int, event: Any) -> list[Effect]:
            watch._event = event
            watch._sees_event(core, event)
            return on_event(core, now_ms, event)

        def watched_make(made: Persist, *arguments: Any, **named: Any) -> None:
            make(made, *arguments, **named)
            site = site_of_caller()
            if site is not None:
                watch.reached.add(site)
                watch._made[id(made)] = made, site, watch._event

        def watched_run(node: Node, effects: Iterable[Effect], stop_at: int = -1) -> list[Any]:
            return run(node, watch._pass(node, effects), stop_at)

        def watched_say(stream: Stream, message: Any) -> None:
            watch._ships(stream, message)
            say(stream, message)

        substitute(stack, NodeCore, "step", watched_step)
        substitute(stack, NodeCore, "_on_event", watched_on_event)
        substitute(stack, Persist, "__init__", watched_make)
        substitute(stack, Node, "run", watched_run)
        substitute(stack, Stream, "say", watched_say)

    def checker(self, world: Any, history: Any) -> Watch:
        """Take part in a run as one of its checkers."""
        return self

    # --- hooks of the simulator ---------------------------------------------------------------------------------

    def node_synced(self, node: Node, item: Any) -> None:
        for write in item.writes:
            if isinstance(write, PutEntry):
                self.holders[item.shard, write.entry.base, write.entry.chain].add(node.member)
            elif isinstance(write, PutCheckpoint) and node.core is not None:
                # A new member gets what its leader had trimmed as a fold.
                self.folded[node.member, item.shard] = checkpoint_end(write.checkpoint).offset

    def record_saved(self, shard: ShardId, before: Any, after: Any) -> None:
        for record in (before, after):
            if record is not None:
                self.ensembles[shard].add(record.ensemble)

    def _sees_event(self, core: NodeCore, event: Any) -> None:
        self.events[name_of(event)] += 1
        match event:
            case Received(address, _, _, m.Fill() as asked):
                self.fills[core.me, address.shard, asked.epoch] = asked
            case Received(address, _, _, m.Commit() as asked):
                self.ensembles[address.shard].add(asked.ensemble)   # in force before the record says that it is

    # --- judging ------------------------------------------------------------------------------------------------

    def _pass(self, node: Node, effects: Iterable[Effect]) -> Iterator[Effect]:
        for effect in effects:
            if isinstance(effect, Persist) and effect.address.plane == LOG_PLANE:
                yield from self._writes(node, effect)
            else:
                self._leaves(node, effect)
                yield effect

    def _writes(self, node: Node, effect: Persist) -> Iterator[Effect]:
        """Judge what rides on a write in the two worlds in which it does not; let it go early when that is the bug."""
        _, site, event = self._made[id(effect)]
        shard = effect.address.shard
        kept: list[Effect] = []
        for behind in effect.then:
            pair = (f"{site.module}.{site.function}", kind_of(behind))
            self.pairs[pair] += 1
            # Everything under way is durable, and this write alone is lost.
            disk = node.disk
            crashed = (CRASHED, disk.written.get(shard) or Image(), disk.written_tables)
            for world, image, tables in (crashed, (OVERTAKEN, disk.image(shard), disk.durable_tables)):
                if self._broken(node, shard, image, tables, behind, rides=True):
                    self.seen[pair][world] += 1
                    self.first_seen.setdefault(pair, self.run)
            if pair == self.early:
                self._leaves(node, behind, rides=True)
                yield behind
            else:
                kept.append(behind)
        self._restores[site] += 1
        if self._restores[site] <= RESTORES_MAX and shard != NO_SHARD.shard:
            self._crash_between(node, shard, event)
        yield replace(effect, then=tuple(kept)) if self.early is not None else effect

    def _broken(
        self, node: Node, shard: ShardId, image: Image, tables: Tables, effect: Effect, *, rides: bool
    ) -> str:
        if isinstance(effect, Send):
            row, value = SAID.get(type(effect.message)), effect.message
        elif isinstance(effect, Reply):
            row, value = SAID.get(type(effect.value)), effect.value
        elif isinstance(effect, Feed):
            row, value = fed, effect.event
        elif isinstance(effect, Released):
            row, value = (lambda on: shown(on, on.value)), effect.upto
        elif isinstance(effect, ReadLog) and rides:
            row, value = read_behind, effect
        else:
            return ""
        if row is None:
            assert type(value) in HARMLESS, f"{type(value).__name__} has no row: what does it vouch for?"
            return ""
        event, _ = node._requests.get(effect.request, (None, None)) if isinstance(effect, Reply) else (None, None)
        return row(Leaving(self, node, shard, image, value, tables, event))

    def _leaves(self, node: Node, effect: Effect, *, rides: bool = False) -> None:
        shard = _shard_of(node, effect)
        if shard is None or node.core is None or (shard not in node.core.log.shards and shard != NO_SHARD.shard):
            return
        kind = kind_of(effect)
        image = node.disk.image(shard)
        self.left[kind] += 1
        if any(item.shard == shard for item in node.disk.queue):
            self.past[kind] += 1
        broken = self._broken(node, shard, image, node.disk.durable_tables, effect, rides=rides)
        if broken:
            raise Violation("warrant", f"{node.name} lets {effect} go: {broken}")
        if isinstance(effect, Send) and isinstance(effect.message, REMEMBERED):
            key = node.member, shard
            self.promised[key] = max(effect.message.epoch, self.promised.get(key, 0))
            if isinstance(effect.message, m.AppendAck) and (ended := image.ending_at(effect.message.upto)) is not None:
                self.acked[key] = effect.message.epoch, ended

    def _ships(self, stream: Stream, message: Any) -> None:
        """Readers of deliveries are given what is durable on a majority."""
        node, shard = stream.node, stream.client.shard
        self.left[type(message).__name__] += 1
        for item in message.items if isinstance(message, Shipment) else ():
            for entry in item.body if isinstance(item.body, tuple) else ():
                leaving = Leaving(self, node, shard, node.disk.image(shard), message, node.disk.durable_tables)
                broken = leaving.held_by_many(entry)
                if broken:
                    raise Violation("warrant", f"{node.name} ships what it may not: {broken}")

    # --- crashing -----------------------------------------------------------------------------------------------

    def _crash_between(self, node: Node, shard: ShardId, event: Any) -> None:
        """Restore the shard as a crash in front of this write leaves it, once behind each write under way."""
        image, tables = node.disk.image(shard).copy(), node.disk.durable_tables.copy()
        if image.state is not None:
            self._restore(node, shard, image, tables, event)
        for item in node.disk.queue:
            if item.address.plane == LOG_PLANE and item.shard == shard:
                _apply(image, tables, item.address, item.writes)
                self._restore(node, shard, image, tables, event)

    def _restore(self, node: Node, shard: ShardId, image: Image, tables: Tables, event: Any) -> None:
        self.restored += 1
        disk = Disk()
        disk.durable[shard], disk.durable_tables = image, tables
        core = NodeCore(NodeFacts(node.member), planes(node.world.options.limits))
        core.recover(partial(StoredPlane, disk))
        replica = core.log.shards[shard].replica
        check_replica(replica)
        promised = self.promised.get((node.member, shard), 0)
        assert replica.state.epoch >= promised, f"promised epoch {promised}, a crash leaves {replica.state.epoch}"
        epoch, acked = self.acked.get((node.member, shard), (0, None))
        if acked is not None and epoch == replica.state.epoch and acked.base >= replica.log.first:
            assert replica.log.contains(acked.id), f"acknowledged {acked.id}, a crash leaves {replica.log.head}"
        if isinstance(event, Received):
            made, self._made, asked = self._made, {}, self._event
            self._again(node, core, shard, image.copy(), tables.copy(), event)
            self._made, self._event = made, asked

    def _again(
        self, node: Node, core: NodeCore, shard: ShardId, image: Image, tables: Tables, event: Received
    ) -> None:
        """The sender asks again after the restart: what is answered now is warranted as well."""
        waiting = core.step(node.world.now_ms, [event])
        replica = core.log.shards[shard].replica
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Persist):
                _apply(image, tables, effect.address, effect.writes)
                waiting[:0] = effect.then
            elif isinstance(effect, Send) and (row := SAID.get(type(effect.message))) is not None:
                broken = row(Leaving(
                    self, node, shard, image, effect.message, tables, restored=replica))
                assert not broken, f"{effect} goes after a restart: {broken}"


def _apply(image: Image, tables: Tables, address: Address, writes: Iterable[Write]) -> None:
    for write in writes:
        if write.__class__ in STORE_WRITES:
            tables.apply(address, write)
        else:
            image.apply(write)


RESTORES_MAX = 3
"""How often the crash in front of one site's write is played through; each time restores a shard some times."""


def _shard_of(node: Node, effect: Effect) -> ShardId | None:
    if isinstance(effect, Send):
        return effect.address.shard if effect.address.plane == LOG_PLANE else None
    if isinstance(effect, Released | ReadLog):
        return effect.shard
    if isinstance(effect, Reply):
        event, _ = node._requests.get(effect.request, (None, None))
        return NO_SHARD.shard if isinstance(event, PromiseRequest) else getattr(event, "shard", None)
    if isinstance(effect, Feed):
        event = effect.event
        return event.address.shard if isinstance(event, Received | RowsDurable) else getattr(event, "shard", None)
    return None


def name_of(event: Any) -> str:
    """Return the name of the handler that an event reaches."""
    match event:
        case Received():
            return type(event.message).__name__
        case TimerFired():
            return f"timer {event.name}"
        case LogRead() | LogReadFailed():
            return f"{type(event).__name__} {event.tag[0] if event.tag else 'of a reader'}"
    return type(event).__name__
