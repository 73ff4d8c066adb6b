"""The plane of keyspaces: every range that a node holds, and the operations that it coordinates.

A range is a unit.  The node is given the records of all ranges, as it is given the shard map, so it coordinates for
each of them.  Messages between a node's own coordinator and its own ranges pass through the core like those of others.
Hints are the node's, not a range's: it keeps those of ranges that it owns no copy of.
Stays out: families and wire (the node's), who plans moves and rounds (the operator's).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, ClassVar

from ..base.effects import (
    ClockStepped,
    DiskSpace,
    Effect,
    Feed,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Reply,
    RowsDurable,
    RowsRead,
    RowsScanned,
    Send,
    SetTimer,
    TimerFired,
)
from ..base.ids import Address, Member, Peer
from ..base.plane import NodeFacts, Stored, Voice
from ..base.refusals import Reason, Refused
from .cells import Place, Row
from .coordinating.inspecting import Inspection, inspect
from .coordinating.operations import Steps
from .coordinating.outcomes import To
from .coordinating.running import STRICT, Answer, Asked, Coordinator, Hold, Inner, Look, Policy
from .deleting import DELETED, PAGE, Deletions, Erased, ForgetAsked
from .exchanging.memory import Memory
from .exchanging.messages import Given, Listed, Open, Opened, Sketch, Unanswered, Want
from .floors import HintsAsked, PromiseAsked, SyncAsked
from .hinting.hints import Bounds
from .hinting.keeping import HINTS, PROMISES, Keeper
from .hinting.replaying import Replays, replay
from .holding.holder import SILENT_TICKS, Holder
from .holding.layout import RETRACTED, place_of, unit_of
from .holding.pulls import LookedAt, Taken
from .holding.removing import Removed
from .holding.states import decode_standing
from .holding.unit import Stood
from .inspection import Block, Facts, RangeReport, Summary, inspected, part_of, seen
from .messages import Inspect, Inspected, Keep, Kept, Load, LoadAnswer, RingTold, Store, StoreAnswer
from .moving import Announced, CopyAsked, Known
from .owner import Fate, Source, Verdict
from .pacing import Pace
from .repairing import Rota
from .ring import Owners, Quorum, Range, keyspace_of
from .settings import DEFAULTS, SKEW_MS, WRITE_WINDOW_MS, KeyspaceSettings
from .stamps import Clock, actor_of, numbers_of
from .standing import Standing

TICK = "keyspaces"
REPAIR = "repair of keyspaces"
BLANK = Range(0, Owners((), Quorum(0, 0, 0)))
"""The record of a range that a node has heard nothing of."""


@dataclass(frozen=True, slots=True)
class KeyspaceLimits:
    """The bounds of the plane.  Times are milliseconds.

    skew_ms             a stamp further ahead of the node's clock is refused (D54)
    tick_ms             what is not answered is asked again so often; a sloppy write waits two of them for owners (D73)
    write_window_ms     a floor stays so far behind the operator's clock (D68), and no hint is taken that is older than
                        half of it
    hint_bytes_max      the hints of the node are no larger together, on disk
    replays_max         so many hints are replayed at once
    replay_pause_ms     a replay ends without success after this time, and its range then rests as long
    repairs_max         so many ranges are compared by themselves at once
    repair_memory_bytes the digests of all ranges take no more together while none of them is compared (D85)
    settings            of keyspaces of which the map says none
    """

    skew_ms: int = SKEW_MS
    tick_ms: int = 50
    write_window_ms: int = WRITE_WINDOW_MS
    hint_bytes_max: int = 64 << 20
    replays_max: int = 16
    replay_pause_ms: int = 1_000
    repairs_max: int = 4
    repair_memory_bytes: int = 64 << 20
    settings: KeyspaceSettings = DEFAULTS


@dataclass(frozen=True, slots=True)
class Assign:
    """The record of a range, from the map that every node is given."""

    unit: int
    record: Range


@dataclass(frozen=True, slots=True)
class Settle:
    """The settings of a keyspace, by its number, from the same map."""

    keyspace: int
    settings: KeyspaceSettings


@dataclass(frozen=True, slots=True)
class Cluster:
    """The members of all nodes of the cluster, those to ask first in front: they may keep hints (D73)."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Operate:
    """A client asks for an operation; the answer is what its generator returns.

    `source` says whether what it writes is new, or of a backup.
    """

    unit: int
    request: int
    timeout_ms: int
    steps: Steps[Any]
    policy: Policy = STRICT
    source: Source = Source.CLIENT


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows that a coordinator asked its own node for."""

    unit: int
    operation: int
    rows: Mapping[Place, Row]


class KeyspacePlane:
    """The ranges of one node."""

    unit = "range"
    events = (Assign, Settle, Cluster, Operate, HeldRows, Stood, Taken, LookedAt, Removed, Erased)
    voices: ClassVar = {
        **dict.fromkeys((Store, StoreAnswer, Load, LoadAnswer, RingTold), Voice.NODE),
        **dict.fromkeys((Keep, Kept, Inspect, Inspected), Voice.NODE),
        **dict.fromkeys((Open, Opened, Sketch, Listed, Want, Given, Unanswered), Voice.NODE),
        **dict.fromkeys((Announced, CopyAsked, PromiseAsked, SyncAsked, HintsAsked, ForgetAsked), Voice.OPERATOR),
    }

    def __init__(self, node: NodeFacts, number: int, limits: KeyspaceLimits) -> None:
        self.me, boot = node
        self.actor = actor_of(self.me.node, boot)
        self.limits = limits
        self.holders: dict[int, Holder] = {}
        self.records: dict[int, Range] = {}
        self._number = number
        self._clock = Clock(self.actor, limits.skew_ms)
        self._coordinator = Coordinator(self.me, self._clock, self.records)
        self._coordinator.nearest = self._coordinator.nodes = (self.me,)
        self._keeper = Keeper(
            number, self._clock, Bounds(limits.write_window_ms, limits.hint_bytes_max),
            Replays(limits.replays_max, limits.replay_pause_ms))
        self._restless: dict[int, Holder] = {}    # something happened since they were last found idle
        self._ticking = False
        self._settings: dict[int, KeyspaceSettings] = {}    # by the numbers of keyspaces
        self._paces: dict[int, Pace] = {}         # by the numbers of keyspaces
        self._left: dict[int, int] = {}           # ranges that the node left, and the versions of the records it kept
        self._rota = Rota(lambda unit: self._settings_of(unit).repair_every_ms, limits.repairs_max)
        self._wakes_ms: int | None = None         # for the next range of the rota
        self._away: dict[Member, int] = {}        # members without a link, and since when
        self._moved_ms: dict[int, int] = {}       # when a move of a range was first heard of
        self._met_ms: dict[int, int] = {}         # when a range was first held in this run
        self._exchanges = numbers_of(self.actor)
        self._deletions = Deletions(number)
        self._memory = Memory(limits.repair_memory_bytes)
        self._now_ms = 0

    # --- the plane ----------------------------------------------------------------------------------------

    def units(self) -> Iterable[int]:
        """Return the ranges held here."""
        return self.holders

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, as the last tick found it."""
        idle = not self._restless and self._coordinator.idle and self._deletions.idle and not self._memory.full
        return idle and not self._keeper.waits(self.records)

    def name(self, unit: int) -> str:
        """Return what people call a range: its keyspace and its index."""
        return f"{keyspace_of(unit)}/{unit & 0xFFFFFFFF}"

    def status(self, unit: int) -> dict[str, Any]:
        """Return the standing of a range here, for people."""
        standing = self.holders[unit].unit.durable
        record = standing.record
        return {
            "version": record.version, "floor_ms": record.floor_ms, "promise_ms": standing.promise_ms,
            "owners": [str(member) for member in record.own.members],
            "pending": [str(member) for member in record.pending.members] if record.pending is not None else [],
            "copying": standing.copying, "withdrawn": standing.withdrawn,
            "exchanged_ms": self.holders[unit].exchanged_ms, "late": self._late(unit),
            "needs_repair": unit in self._keeper.hints.dropped,
        }

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time of a stamp that is not from the future, in milliseconds (D54)."""
        return self._clock.latest_ms(now_ms)

    def report(self, unit: int) -> RangeReport:
        """Return everything of a range that this node knows."""
        holder, record = self.holders.get(unit), self.records.get(unit, BLANK)
        standing = holder.unit.durable if holder is not None else Standing(self.me, record)
        others = {member: ms for member, ms in holder.pulls.complete.items() if member in standing.others} if (
            holder is not None) else {}
        return RangeReport(
            unit, standing.record, part_of(standing), standing.promise_ms, others,
            holder.exchanged_ms if holder is not None else None, self._late(unit),
            unit in self._keeper.hints.dropped, self._keeper.hints.kept(unit), tuple(self._blocks(unit)),
            holder.unit.tree.leaves if holder is not None else 0)

    def summary(self) -> Summary:
        """Return what metrics show of all ranges."""
        since = {unit: ms for unit in self.holders if (ms := self._waits_since(unit)) is not None}
        hints = self._keeper.hints
        return Summary(
            len(self.holders), min(since.values(), default=None), sum(map(self._late, since)),
            len(hints.dropped), len(hints.held), hints.bytes,
            sum(holder.unit.tree.leaves for holder in self.holders.values()), self._memory.bytes,
            self._memory.forgotten)

    @property
    def trees_forgotten(self) -> int:
        """How many trees the node has forgotten since its start (D85)."""
        return self._memory.forgotten

    def _waits_since(self, unit: int) -> int | None:
        """Return since when an owner waits for its next complete exchange, None where it has none to wait for."""
        holder = self.holders.get(unit)
        if holder is None or not holder.unit.standing.others:
            return None
        exchanged_ms = holder.exchanged_ms
        return exchanged_ms if exchanged_ms is not None else self._met_ms.get(unit, self._now_ms)

    def _late(self, unit: int) -> bool:
        since_ms, settings = self._waits_since(unit), self._settings_of(unit)
        # Owners that are compared less often are not late between two turns.
        limit_ms = max(settings.grace_ms // 2, settings.repair_every_ms * 3 // 2)
        return since_ms is not None and self._now_ms - since_ms > limit_ms

    def _settings_of(self, unit: int) -> KeyspaceSettings:
        return self._settings.get(keyspace_of(unit), self.limits.settings)

    def _blocks(self, unit: int) -> Iterator[Block]:
        record, holder = self.records.get(unit, BLANK), self.holders.get(unit)
        if record.pending is not None:
            yield Block("a move is open (D68)", self._moved_ms.get(unit, 0))
        for member in record.members:
            if member in self._away:
                yield Block("it is away (D70)", self._away[member], member)
        if (hints := self._keeper.blocks(unit)) is not None:
            yield hints
        yield from holder.blocks() if holder is not None else ()

    def recover(self, stored: Stored) -> None:
        """Load the standing of every range that is stored, and the hints of the node.

        Of a range that the node has left the record alone is stored: no older one counts here (D80).
        """
        self._keeper.recover(stored.rows(HINTS), stored.rows(PROMISES))
        self._deletions.recover(stored.rows(DELETED))
        retracted: dict[int, list[bytes]] = {}
        for key, _ in stored.rows(RETRACTED):
            retracted.setdefault(unit_of(key), []).append(place_of(key).key)
        for unit in stored.units():
            if self._deletions.covers(unit):
                self._deletions.stored(unit)
                continue
            state, _ = stored.unit(unit)
            standing = decode_standing(state)
            self.records[unit] = standing.record
            if standing.record.holds(standing.me):
                self._restless[unit] = self._hold_range(unit, standing, retracted.get(unit, ()))
                self._rota.add(0, unit)
            else:
                self._left[unit] = standing.record.version

    def not_meant(self, event: Received) -> list[Effect]:
        """A message to another life of this disk changes nothing, and says nothing."""
        return []

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        """Consume one event."""
        self._now_ms = now_ms
        self._keeper.hints.began(now_ms)
        effects = self._told_itself(now_ms, self._route(now_ms, event))
        effects += self._wake()
        if not self._ticking and (
            self._restless or self._memory.full or not self._coordinator.idle or self._keeper.waits(self.records)
        ):
            self._ticking = True
            effects.append(SetTimer(self._at(0), TICK, now_ms + self.limits.tick_ms))
        return effects

    def finish_turn(self, now_ms: int) -> list[Effect]:
        """Nothing is left to the end of a turn."""
        return []

    def _route(self, now_ms: int, event: Any) -> list[Effect]:
        match event:
            case Received(address, sender, _, message):
                return self._on_message(now_ms, address.id, sender, message)
            case RowsRead() | RowsScanned() | RowsDurable():
                return self._on_disk(now_ms, event.address.id, event)
            case Stood() | Taken() | LookedAt() | Removed():
                return self._on_disk(now_ms, event.unit, event)
            case Operate():
                return self._operate(now_ms, event)
            case HeldRows(unit, operation, rows):
                return self._ran(now_ms, self._coordinator.on_held(now_ms, operation, rows))
            case Assign(unit, record):
                return self._assign(now_ms, unit, record)
            case Erased(unit):
                return self._erase(keyspace_of(unit))
            case Settle(keyspace, settings):
                self._settings[keyspace] = settings
                self._rota.changed(now_ms, [unit for unit in self.holders if keyspace_of(unit) == keyspace])
                return []
            case Cluster(members):
                known = self._coordinator.nodes
                self._coordinator.nodes = (self.me, *(member for member in members if member != self.me))
                for member in members:
                    if member not in known and self._away.pop(member, None) is not None:
                        self._hasten(now_ms, member)    # its address was not known
                return []
            case TimerFired(_, name):
                if name == TICK:
                    return self._tick(now_ms)
                self._wakes_ms = None
                return self._repair(now_ms)
            case PeerUp(member):
                self._away.pop(member, None)
                self._hasten(now_ms, member)
                return []
            case PeerDown(member):
                self._away.setdefault(member, now_ms)
                return []
            case DiskSpace() | ClockStepped():
                return []
        raise TypeError(f"no such event: {event!r}")

    # --- events -------------------------------------------------------------------------------------------

    def _on_message(self, now_ms: int, unit: int, sender: Peer, m: Any) -> list[Effect]:
        holder = self.holders.get(unit)
        if isinstance(m, ForgetAsked):
            return self._forget(now_ms, unit, sender, m)
        if self._deletions.covers(unit):
            return []
        match m:
            case StoreAnswer() | LoadAnswer() if isinstance(sender, Member):
                if m.record is not None:
                    self._know(unit, m.record)
                return self._ran(now_ms, self._coordinator.on_answer(now_ms, sender, m))
            case Kept() | Inspected() if isinstance(sender, Member):
                return self._ran(now_ms, self._coordinator.on_answer(now_ms, sender, m))
            case Keep():
                return self._keeper.on_keep(now_ms, sender, m, self._settings_of(unit).hint_window_ms)
            case RingTold(_, record) | Announced(_, record):
                effects = self._assign(now_ms, unit, record)
                holder = self.holders.get(unit)
                if isinstance(m, RingTold):
                    return effects
                if holder is not None:
                    return [*effects, *holder.on_message(now_ms, sender, m)]
                version = self._left.get(unit, 0)   # an operator that is behind the nodes must hear of it
                return [Send(self._at(unit), sender, Known(unit, version))] if version >= record.version else []
            case HintsAsked():
                return self._keeper.on_asked(now_ms, sender, m)
            case Inspect():
                return self._inspect(unit, sender, m)
        if holder is None:
            return self._unknown(unit, sender, m)
        self._restless[unit] = holder
        return holder.on_message(now_ms, sender, m)

    def _inspect(self, unit: int, sender: Peer, m: Inspect) -> list[Effect]:
        holder, hints = self.holders.get(unit), self._keeper.hints
        facts = Facts(
            (holder.exchanged_ms or 0) if holder is not None else 0, unit in hints.dropped,
            tuple(cell for hint in hints.of(unit, m.places) for cell in seen(hint.place, hint.row)))
        if holder is not None:
            return holder.unit.inspect(sender, m, facts)
        return [Send(self._at(unit), sender, inspected(m, self.records.get(unit, BLANK), facts))]

    def _unknown(self, unit: int, sender: Peer, m: Any) -> list[Effect]:
        """Refuse what concerns a range that is not held here: a sender with an older record is given ours (D62, D80).

        A node that has heard of no record without it needs the sender's.
        """
        match m:
            case Store() | Load():
                version = m.version
            case Open() | Sketch() | Want():
                version = m.exchange.version
            case _:
                return []
        known = self.records.get(unit, BLANK)
        older = version < known.version and not known.holds(self.me)
        fate, record = (Fate.OLD_RING, known) if older else (Fate.NEEDS_RING, None)
        match m:
            case Store():
                answer: Any = StoreAnswer(m.range, 0, 0, m.operation, m.attempt, Verdict(fate), record)
            case Load():
                answer = LoadAnswer(m.range, 0, 0, m.operation, m.attempt, refused=fate, record=record)
            case _:
                answer = Unanswered(m.exchange, fate, record)
        return [Send(self._at(unit), sender, answer)]

    def _on_disk(self, now_ms: int, unit: int, event: Any) -> list[Effect]:
        holder = self.holders.get(unit)
        if holder is None:
            return []
        self._restless[unit] = holder
        effects = holder.on_event(now_ms, event)
        if isinstance(event, Stood):
            self._know(unit, event.standing.record)
        return effects

    def _operate(self, now_ms: int, m: Operate) -> list[Effect]:
        if m.unit not in self.records:
            return [Reply(m.request, Refused(Reason.UNKNOWN_SHARD, f"this node knows no range {self.name(m.unit)}"))]
        asked = Asked(m.request, m.unit, now_ms + m.timeout_ms, m.policy, m.source)
        return self._ran(now_ms, self._coordinator.begin(now_ms, asked, m.steps))

    def _assign(self, now_ms: int, unit: int, record: Range) -> list[Effect]:
        if self._deletions.covers(unit):
            return []
        effects: list[Effect] = []
        news = self._know(unit, record)
        record = self.records[unit]     # no older one makes this node a member (D80)
        holder = self.holders.get(unit)
        if holder is None and record.holds(self.me):
            holder = self._hold_range(unit, Standing(self.me, BLANK))
        if holder is not None:
            self._restless[unit] = holder
            self._met_ms.setdefault(unit, now_ms)
            self._rota.add(now_ms, unit)
            effects += holder.unit.adopt(record)
        if news:
            effects += self._ran(now_ms, self._coordinator.on_record(now_ms, unit))
        return effects

    def _hold_range(self, unit: int, standing: Standing, retracted: Iterable[bytes] = ()) -> Holder:
        self._left.pop(unit, None)
        holder = self.holders[unit] = Holder(
            self._at(unit), standing, self._clock, self._exchanges, self._pace_of(unit), retracted, self._memory)
        return holder

    def _pace_of(self, unit: int) -> Pace:
        keyspace = keyspace_of(unit)
        if keyspace not in self._paces:
            self._paces[keyspace] = Pace(lambda: self._settings_of(unit).repair_bytes)
        return self._paces[keyspace]

    def _drop(self, now_ms: int, unit: int) -> None:
        """Forget what is in memory of a range; what is still written of it is written before all that may follow."""
        self.holders.pop(unit, None)
        self._restless.pop(unit, None)
        self._met_ms.pop(unit, None)
        self._memory.gone(unit)
        self._rota.ended(now_ms, unit, missed=False)
        self._rota.forget(unit)

    # --- deletions ----------------------------------------------------------------------------------------

    def _forget(self, now_ms: int, unit: int, sender: Peer, m: ForgetAsked) -> list[Effect]:
        """Forget every range of a keyspace: in memory at once, on the disk page by page (D81)."""
        keyspace = m.keyspace
        if keyspace_of(unit) != keyspace:
            return []
        effects: list[Effect] = []
        if not self._deletions.covers(unit):
            units = [each for each in self.records if keyspace_of(each) == keyspace]
            effects += [
                self._deletions.begin(keyspace, units, (self._keeper.forget(keyspace),)),
                *self._ran(now_ms, self._coordinator.on_forgotten(now_ms, keyspace))]
            for each in units:
                self._drop(now_ms, each)
                for known in (self.records, self._left, self._moved_ms):
                    known.pop(each, None)
            self._settings.pop(keyspace, None)
            self._paces.pop(keyspace, None)
        return [*effects, *(self._erase(keyspace) if self._deletions.asked(sender, m) else ())]

    def _erase(self, keyspace: int) -> list[Effect]:
        return self._deletions.page(keyspace, self._keeper.erase(keyspace, PAGE))

    def _know(self, unit: int, record: Range) -> bool:
        """Coordinate under the newest record that this node has heard of."""
        known = self.records.get(unit)
        if known is not None and (record.version, record.floor_ms) <= (known.version, known.floor_ms):
            return False
        if record.pending is None:
            self._moved_ms.pop(unit, None)
        elif known is None or known.version != record.version:
            self._moved_ms[unit] = self._now_ms
        self.records[unit] = record
        return True

    def _tick(self, now_ms: int) -> list[Effect]:
        """Repeat what was not answered.  A range at which nothing happens costs nothing."""
        self._ticking = False
        effects = [*self._ran(now_ms, self._coordinator.on_tick(now_ms)), *self._replay(now_ms)]
        for unit, holder in list(self._restless.items()):
            effects += holder.on_tick(now_ms)
            if holder.left:
                self._left[unit] = holder.unit.durable.record.version
                self._drop(now_ms, unit)
            elif holder.idle:
                del self._restless[unit]
        if self._memory.full:
            self._shrink(now_ms - SILENT_TICKS * self.limits.tick_ms)
        return [*effects, *self._repair(now_ms)]

    # --- repair -------------------------------------------------------------------------------------------

    def _shrink(self, upto_ms: int) -> None:
        """Forget trees that no member has compared since a time, until the others fit (D85)."""
        for unit in self._memory.oldest(upto_ms):
            if self._memory.full and self.holders[unit].may_forget:
                self.holders[unit].unit.forget_tree()

    def _hasten(self, now_ms: int, member: Member) -> None:
        """Let the ranges of a member that is back come up at once: it lacks what was written meanwhile."""
        self._rota.hasten(now_ms, (unit for unit in self.holders if self.records[unit].holds(member)))

    def _repair(self, now_ms: int) -> list[Effect]:
        """End the turns that are over, and begin the next ones (D74)."""
        for unit in self._rota.running:
            holder = self.holders.get(unit)
            if holder is not None and holder.mending.idle:
                self._mended(now_ms, unit, holder)
        effects: list[Effect] = []
        for unit in self._rota.begin(now_ms):
            self._met_ms.setdefault(unit, now_ms)
            holder = self.holders.get(unit)
            if holder is not None:
                self._restless[unit] = holder
                effects += holder.mend(now_ms, self._away)
            else:
                asked = Asked(Look(unit), unit, now_ms + self.limits.replay_pause_ms)
                effects += self._ran(now_ms, self._coordinator.begin(now_ms, asked, inspect(())))
        return effects

    def _mended(self, now_ms: int, unit: int, holder: Holder) -> None:
        self._rota.ended(now_ms, unit, missed=holder.mending.missed)
        if (exchanged_ms := holder.exchanged_ms) is not None:
            self._keeper.hints.repaired(unit, exchanged_ms)

    def _looked(self, now_ms: int, unit: int, found: Inspection) -> None:
        """A node that is no owner asks the owners whether the hints that it has dropped are missed by none (D73)."""
        exchanged = [found.answers[member].exchanged_ms if member in found.answers else 0
                     for member in found.record.own.members]
        self._keeper.hints.repaired(unit, min(exchanged, default=0) - self.limits.skew_ms)
        self._rota.ended(now_ms, unit, missed=True)
        if unit not in self._keeper.hints.dropped and unit not in self.holders:
            self._rota.forget(unit)

    def _wake(self) -> list[Effect]:
        """Set the timer for the next range of the rota; while one has its turn, ticks do that."""
        for unit in self._keeper.hints.dropped:
            if unit in self.records:
                self._rota.add(self._now_ms, unit)
        at_ms = self._rota.next_ms()
        if at_ms is None or self._rota.running or at_ms == self._wakes_ms:
            return []
        self._wakes_ms = at_ms
        return [SetTimer(self._at(0), REPAIR, at_ms)]

    def _replay(self, now_ms: int) -> list[Effect]:
        """Replay the next hints, each as a write of this node under the record that it knows (D73)."""
        effects: list[Effect] = []
        for number, hint in self._keeper.begin(now_ms, _Free(self, now_ms)):
            self._pace_of(hint.range).spend(hint.size * len(self.records[hint.range].members))
            asked = Asked(
                Inner(number), hint.range, now_ms + self.limits.replay_pause_ms, source=Source.HINT)
            steps = replay(hint.place, hint.row)
            effects += self._ran(now_ms, self._coordinator.begin(now_ms, asked, steps))
        return effects

    # --- effects ------------------------------------------------------------------------------------------

    def _ran(self, now_ms: int, ran: Sequence[Any]) -> list[Effect]:
        """Return the effects of what the coordinator says."""
        effects: list[Effect] = []
        for each in ran:
            match each:
                case To(member, message):
                    effects.append(Send(self._at(message.range), member, message))
                case Hold(operation, unit, places):
                    effects += self._hold(operation, unit, places)
                case Answer(Inner(number), done):
                    effects += [*self._keeper.replayed(now_ms, number, done.outcome), *self._replay(now_ms)]
                case Answer(Look(unit), found):
                    self._looked(now_ms, unit, found)
                case Answer(int(request), value):
                    effects.append(Reply(request, value))
        return effects

    def _hold(self, operation: int, unit: int, places: tuple[Place, ...]) -> list[Effect]:
        holder = self.holders.get(unit)
        if holder is None:
            return [Feed(HeldRows(unit, operation, {}))]
        return holder.unit.rows_at(places, lambda rows: HeldRows(unit, operation, rows))

    def _told_itself(self, now_ms: int, effects: list[Effect]) -> list[Effect]:
        """Take messages to this node itself at once: no link leads there, and a turn for each would take longer."""
        found: list[Effect] = []
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Send) and effect.to == self.me:
                waiting.extend(self._on_message(now_ms, effect.address.id, self.me, effect.message))
            elif isinstance(effect, Persist):
                found.append(self._handed_back(effect))
            else:
                found.append(effect)
        return found

    def _handed_back(self, write: Persist) -> Persist:
        """Hand messages to this node itself that ride on a write back to the core, once it is durable."""
        then = tuple([
            Feed(Received(each.address, self.me, self.me, each.message))
            if isinstance(each, Send) and each.to == self.me else each for each in write.then])
        return write if all(map(is_, then, write.then)) else replace(write, then=then)

    def _at(self, unit: int) -> Address:
        return Address(self._number, unit)


class _Free:
    """The ranges of which the node knows a record and may send for repair now."""

    def __init__(self, plane: KeyspacePlane, now_ms: int) -> None:
        self._plane = plane
        self._now_ms = now_ms

    def __contains__(self, unit: object) -> bool:
        assert isinstance(unit, int)
        return unit in self._plane.records and self._plane._pace_of(unit).free(self._now_ms)
