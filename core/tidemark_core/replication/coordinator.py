"""Coordinator: elects leaders and changes ensembles from what the metadata store holds.

One `Coordinator` per shard in each operator process.  It writes ahead: each step is stored before anybody is
told, so any operator can go on from the record alone.  Every write is conditioned on the revision it was
decided from (H2); an operator that lost a race reads and starts over.  Rules O1-O4, O7-O20, O27-O40, A3,
K14c-K14e, N11b.
Stays out: failure detection, placement, which changes are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..base.effects import Effect, Received, Reply, Send, SetTimer, SnapshotDescriptor, TimerFired, Trace
from ..base.ids import NOTHING, EntryId, Member, ShardId, of_shard
from ..base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    SaveMetadata,
)
from ..base.plane import STRANGER_REFUSED
from ..base.quorum import has_majority
from ..base.refusals import Reason, Refused
from .ensembles import (
    ROLLED_BACK,
    Ensembles,
    alone_with,
    changed_ensemble,
    choose_leader,
    concerned,
    ensembles_of,
    goes_back,
    lost_disks,
    members_announced,
    planned_change,
    refuse_recovery,
    refuse_survivor,
)
from .messages import (
    EPOCH_JUMP_MAX,
    Abort,
    Aborted,
    AddFollower,
    BecameLeader,
    BecomeLeader,
    Commit,
    CommitPending,
    Committed,
    DeleteShard,
    Fence,
    Fenced,
    FollowerAdded,
    InstallSnapshot,
    Prepare,
    Prepared,
    PrepareTransfer,
    Rejected,
    ShardDeleted,
    SnapshotInstalled,
    SnapshotProgress,
    TransferReady,
    Unheard,
)
from .reach import Patience, Reports, candidate, choose
from .records import (
    CancelChange,
    Change,
    ChangeDone,
    ChangeProgress,
    CoordinatorSettings,
    Holdout,
    Phase,
    RecoverShard,
    ShardRecord,
    StartChange,
    StartTransfer,
    Status,
)

RETRY_TIMER = "retry"
GRACE_TIMER = "grace"
TAKEOVER_TIMER = "takeover"
RENEWAL_TIMER = "renewal"
DEADLINE_TIMER = "deadline"

CoordinatorEffect = Effect | SaveMetadata | LoadMetadata | ChangeProgress


@dataclass(slots=True)
class Election:
    """An election whose record is stored: answers so far, and who was told to lead."""

    ensembles: Ensembles
    heads: dict[Member, EntryId] = field(default_factory=dict)
    clocks: dict[Member, int] = field(default_factory=dict)   # what their answers said of them
    leader: Member | None = None
    told: tuple[tuple[Member, EntryId], ...] = ()   # followers named in BecomeLeader
    grace_over: bool | None = None   # None: no grace began yet, and the timer of an earlier election says nothing
    refused: bool = False      # by a leader that refused before: there is nobody better, elect again in a while


@dataclass(slots=True)
class RunningChange:
    """The volatile side of a change this operator drives."""

    request: int | None
    snapshot: SnapshotDescriptor | None = None
    prepared: bool = False     # the leader is known to have adopted the epoch
    filled: int = 0            # what members filled so far, as the leader counts it
    resumed: bool = False      # found in COMMIT in the record of an operator that is gone
    vacant: bool = False       # the member that is swapped into its own slot said to us that it holds no replica (N11b)


@dataclass(slots=True)
class RunningTransfer:
    request: int
    to: Member
    epoch: int
    elected: bool = False
    """The new leader is ready and the election has begun: from here on only the election says how it ends."""


class Coordinator:
    """One shard's coordinator in one operator process."""

    def __init__(
        self, shard: ShardId, settings: CoordinatorSettings, nodes: dict[str, Member | None],
        reports: Reports | None = None,
    ) -> None:
        self.shard = shard
        self.address = of_shard(shard)
        self.settings = settings
        self.nodes = nodes                     # node -> its member when up, None when down; shared by all shards
        self.reports = reports or Reports(settings.quorum_silence_ms)   # who hears whom; shared by all shards
        self.active = True
        self.leased = False                    # holds the operators' lease, so no other operator does (O3b)
        self.record: ShardRecord | None = None
        self.revision = 0
        self.election: Election | None = None
        self.change: RunningChange | None = None
        self.transfer: RunningTransfer | None = None
        self.recovery: int | None = None       # the request that makes one member the source of the shard (K14d)
        self.unattached: dict[Member, EntryId | None] = {}   # members the leader does not push to yet; fenced head
        self._saving: ShardRecord | None = None
        self._loading = False
        self._again = False                    # something asked for an election while a write was under way
        self._abort_why = ""                   # a change in PREPARE ends once the write under way is known
        self._attempts = 0
        self._leader_doubted = False           # its node came up since it was chosen or last said that it leads
        self._nonce = 1                        # of the fences sent now; a doubt takes a new one (O42)
        self._abort_owed = False               # the leader is to be told that nothing is changing, and has not said so
        self.behind = False                    # the store lost what a node was told: nothing is begun from this record
        self._suspicion = ""                   # a node is ahead of our record; the store is asked whether it is, too
        self._doubts = 0                       # how often the store has said since that it is not
        self.missing: set[Member] = set()      # of the steady ensemble: they said that they hold no replica (N11)
        self._floor = 0                        # the highest epoch that a node promised to a recovery, as it said (N10)
        self._damaged: dict[Member, int] = {}  # members that reported damage above commit, and its offset (K15b)
        self._patience = Patience()            # with a leader that reaches no majority (O44)
        self._cut: frozenset[frozenset[Member]] = frozenset()   # whom that leader did not hear, until one leads
        self._damage_waits = False             # too few others answered to elect without them (K15c)

    # --- what others may ask --------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Steady, led, nothing running, every member attached."""
        record = self.record
        return (
            record is not None and record.status is Status.STEADY and record.leader is not None
            and not self._busy and self.change is None and self.transfer is None and not self.unattached
        )

    @property
    def _busy(self) -> bool:
        return self._saving is not None or self._loading

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        """Consume one event; return effects in order."""
        epoch_before = self.record.epoch if self.record else -1
        effects = self._route(now_ms, event)
        assert self.record is None or self.record.epoch >= epoch_before, "H2: metadata epoch went backwards"
        return effects

    def _route(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        match event:
            case Received():
                if isinstance(event.sender, Member):
                    return self._on_message(now_ms, event.sender, event.message)
                return []
            case MetadataSaved() | MetadataUncertain() if self._saving is None or event.writer != self._saving.writer:
                return []   # of a write that was given up, when somebody else's was seen first
            case MetadataSaved():
                return self._on_saved(now_ms, event.revision) + self._after_write(now_ms)
            case MetadataUncertain():
                return self._load()
            case MetadataLoaded():
                return self._on_loaded(now_ms, event) + self._after_write(now_ms)
            case TimerFired():
                return self._on_timer(now_ms, event.name)
            case NodeUp():
                return self._on_node_up(now_ms, event)
            case NodeDown():
                return self._on_node_down(now_ms, event.node)
            case StartChange():
                return self._start_change(now_ms, event)
            case StartTransfer():
                return self._start_transfer(now_ms, event)
            case RecoverShard():
                return self._recover(now_ms, event)
            case CancelChange():
                return self._cancel(now_ms, event)
        raise TypeError(f"no such event: {event!r}")

    # --- metadata -------------------------------------------------------------------------------------------

    def _save(self, record: ShardRecord) -> list[CoordinatorEffect]:
        """Write the next version of the record; nothing else happens until its outcome is known."""
        assert not self._busy, "one write at a time"
        self._attempts += 1
        # A node that is back with another disk took its old replica with it: nothing is left to delete (K14).
        removed = tuple(member for member in record.removed if self.nodes.get(member.node) in (None, member))
        holdouts = tuple(each for each in record.holdouts if each.member in record.ensemble)
        refill = record.refill if record.refill > len(record.ensemble) else 0
        record = replace(
            record, removed=removed, holdouts=holdouts, refill=refill,
            writer=f"{self.settings.operator}#{self._attempts}",
        )
        self._saving = record
        return [SaveMetadata(self.address, record, self.revision)]

    def _load(self) -> list[CoordinatorEffect]:
        if self._loading:
            return []
        self._loading = True
        return [LoadMetadata(self.address)]

    def _on_saved(self, now_ms: int, revision: int) -> list[CoordinatorEffect]:
        if self._saving is None or revision <= self.revision:
            return []
        record, self._saving = self._saving, None
        before, self.record, self.revision = self.record, record, revision
        return self._stored(now_ms, before, record)

    def _on_loaded(self, now_ms: int, m: MetadataLoaded) -> list[CoordinatorEffect]:
        """A fresh read, or news from the watch."""
        asked, self._loading = self._loading, False
        if self._suspicion and m.fresh and m.record is not None and m.revision == self.revision:
            return self._found_behind()
        if m.record is None:
            self.record = None
            self._saving = None
            return self._forget("the shard was deleted")
        if m.revision < self.revision or (m.revision == self.revision and not asked):
            self._loading = asked and m.revision < self.revision
            return [LoadMetadata(self.address)] if self._loading else []
        if self._saving is not None:
            if m.record.writer == self._saving.writer:
                return self._on_saved(now_ms, m.revision)   # our write did succeed
            if m.revision == self.revision and not asked:
                return []
            renewal, self._saving = self._renews(self._saving), None
            if m.revision == self.revision and renewal:
                return [self._renewal(now_ms)]   # a renewal that was lost leaves the change as it is
            if m.revision == self.revision:
                # Our write was lost; the world is as it was: decide anew from the record.
                return self._adopt(now_ms, m.record, m.revision)
        if m.revision == self.revision:
            return []
        return self._adopt(now_ms, m.record, m.revision)

    def _found_behind(self) -> list[CoordinatorEffect]:
        """Rule N9: the store knows nothing of the epoch that a node is in, so it was set back.

        Read twice: the first answer may be to a question that was asked before the node spoke.
        """
        self._doubts += 1
        if self._doubts < 2:
            return self._load()
        if self.behind:
            return []
        self.behind = True
        behind = Trace(self.address, "metadata_behind", self._suspicion)
        return [*self._forget("the metadata store was set back"), behind]

    def _adopt(self, now_ms: int, record: ShardRecord, revision: int) -> list[CoordinatorEffect]:
        """Start over from a record that somebody else wrote, or that we find at start."""
        effects = self._forget("another operator changed the shard")
        first = self.record is None
        # This operator began the change, and no other operator works on it.
        ours = record.writer.split("#")[0] == self.settings.operator and record.status is not Status.STEADY
        self.record, self.revision = record, revision
        self._again = self.behind = False
        self._suspicion = ""
        if not self.active:
            return effects
        # The driver of a PREPARE may be at work, and holds the lease unless we do (O3b).
        theirs = record.change is not None and record.change.phase is Phase.PREPARE and not self.leased
        if record.status is Status.STEADY or ours or (first and not theirs):
            return effects + self.resume(now_ms)
        # Another operator is at work: give it time, then take over (O2, O3).
        return [*effects, SetTimer(self.address, TAKEOVER_TIMER, now_ms + self.settings.takeover_ms)]

    def resume(self, now_ms: int) -> list[CoordinatorEffect]:
        """Go on from the record alone, whoever wrote it.

        A change in COMMIT is sent again (a mismatch ends in an election); a PREPARE or an election that nobody
        drives is resolved by a new election.
        """
        record = self.record
        if record is None or not self.active or self.behind:
            return []
        if self._busy:
            self._again = True
            return []
        if record.status is Status.STEADY:
            return self._settle_in(now_ms)
        resumed = Trace(self.address, "resumed", f"{record.status} epoch {record.epoch}")
        leader = record.leader
        change = record.change
        if (
            record.status is Status.RECONFIGURATION and change is not None and change.phase is Phase.COMMIT
            and leader is not None and not self._lost(leader)
        ):
            # It may be our own, interrupted: whoever asked for it still waits.
            asked = self.change.request if self.change is not None else None
            self.change = RunningChange(asked, prepared=True, resumed=True)
            return [resumed, *self._send_commit(now_ms)]
        return [resumed, *self._elect(now_ms)]

    def _lost(self, member: Member) -> bool:
        """Known to be down, or back with another disk; an unknown node gets the benefit of the doubt."""
        return member.node in self.nodes and self.nodes[member.node] != member

    def _forget(self, why: str) -> list[CoordinatorEffect]:
        """Drop everything volatile; whoever waits learns that it was given up here."""
        effects: list[CoordinatorEffect] = []
        self.election = None
        self.unattached = {}
        self.missing.clear()
        self._abort_owed = False
        if self.change is not None and self.change.request is not None:
            effects.append(Reply(self.change.request, Refused(Reason.ABORTED, why)))
        if self.transfer is not None:
            effects.append(Reply(self.transfer.request, Refused(Reason.ABORTED, why)))
        effects += self._end_recovery(Refused(Reason.ABORTED, why))
        self.change = None
        self.transfer = None
        self._abort_why = ""
        return effects

    def _after_write(self, now_ms: int) -> list[CoordinatorEffect]:
        why, record = self._abort_why, self.record
        if why and not self._busy:
            self._abort_why = ""
            if record is not None and record.change is not None and record.change.phase is Phase.PREPARE:
                return self._abort(now_ms, why)
        if self._again and not self._busy:
            self._again = False
            return self._elect(now_ms)
        return []

    def _stored(self, now_ms: int, before: ShardRecord | None, record: ShardRecord) -> list[CoordinatorEffect]:
        """Our own write is stored: now tell whom it concerns."""
        match record.status:
            case Status.ELECTION:
                return self._fence_all(now_ms)
            case Status.RECONFIGURATION:
                assert record.change is not None
                if record.change.phase is Phase.PREPARE:
                    renewal = before is not None and before.change == record.change
                    return [self._renewal(now_ms)] if renewal else self._send_prepare(now_ms)
                return self._send_commit(now_ms)
            case Status.STEADY:
                return self._steady(now_ms, before, record)

    # --- election -------------------------------------------------------------------------------------------

    def elect(self, now_ms: int) -> list[CoordinatorEffect]:
        """Ask for an election: the leader is down, gone or unknown."""
        if self.record is None or not self.active:
            return []
        if self._busy:
            if self._saving is None or self._saving.status is not Status.ELECTION:   # else it is on its way
                self._again = True
            return []
        return self._elect(now_ms)

    def on_unheard(self, now_ms: int, sender: Member, m: Unheard) -> list[CoordinatorEffect]:
        """Rule O44: the leader reaches no majority; elect when another member does, and not again and again.

        Members that the leader does not hear are asked where they stand: one may hold no replica (N11).
        """
        record, silence_ms = self.record, self.reports.silence_ms
        if (
            record is None or not self.active or self._busy or sender != record.leader or m.epoch != record.epoch
            or record.status is Status.ELECTION
        ):
            return []
        asked = self._ask_unheard(now_ms, record, m)
        if m.silent_ms < silence_ms or not self._patience.has_ended(now_ms):
            return asked
        better = candidate(ensembles_of(record), sender, self.nodes, self.reports, now_ms)
        if better is None:
            return asked
        self._patience.begin(now_ms, silence_ms)
        self._cut = frozenset(frozenset((sender, member)) for member in m.members)
        why = f"{sender.node} reaches no majority, {better.node} does"
        return [Trace(self.address, "leader_cut_off", why), *self.elect(now_ms)]

    def _elect(self, now_ms: int) -> list[CoordinatorEffect]:
        """Rule O7: epoch+1 and ELECTION are stored first.  A change survives only in COMMIT, never a contract."""
        record = self.record
        assert record is not None
        if self.behind:
            return []
        effects: list[CoordinatorEffect] = []
        change = record.change
        if change is not None and goes_back(change):
            effects.append(Trace(self.address, "change_dropped", f"{change.operation} in {change.phase}"))
            effects += self._end_change(Refused(Reason.ABORTED, "an election dropped the change; nothing changed"))
            removed = self._also_removed(record, change.new)
            change = None
        else:
            removed = record.removed
        self.election = None
        return effects + self._save(
            replace(
                record, epoch=self._next_epoch(record), election=self.revision, status=Status.ELECTION,
                leader=None, change=change, removed=removed,
                source=None if self._wiped(record.source) else record.source,
            )
        )

    def _wiped(self, member: Member | None) -> bool:
        """Say whether its node is back with another disk: the copy of this member is gone (K14)."""
        return member is not None and self.nodes.get(member.node) not in (None, member)

    def _next_epoch(self, record: ShardRecord) -> int:
        """Return the next epoch: one more, or the one that a node promised to a recovery that was given up (N10)."""
        return max(record.epoch + 1, self._floor)

    @staticmethod
    def _also_removed(record: ShardRecord, member: Member | None) -> tuple[Member, ...]:
        """A member that was being seeded holds a replica nobody will ask for: delete it later."""
        if member is None or member in record.removed or member in record.ensemble:
            return record.removed
        return (*record.removed, member)

    def _fence_all(self, now_ms: int) -> list[CoordinatorEffect]:
        """Rules O8, H5: the whole fencing ensemble."""
        assert self.record is not None
        self.unattached = {}
        self.missing.clear()
        self._abort_owed = False
        self.election = Election(ensembles_of(self.record))
        return [
            Trace(self.address, "election", f"epoch {self.record.epoch}"),
            *(self._fence(member) for member in self.election.ensembles.fencing),
            self._retry(now_ms),
        ]

    def _fence(self, member: Member) -> Send:
        record = self.record
        assert record is not None
        members = members_announced(record)
        return Send(self.address, member, Fence(record.epoch, record.election, self._nonce, members, record.kind))

    def _on_fenced(self, now_ms: int, sender: Member, m: Fenced) -> list[CoordinatorEffect]:
        record, election = self.record, self.election
        if record is None or m.epoch != record.epoch or m.election != record.election:
            return []
        if election is None:
            return self._on_late_fenced(now_ms, sender, m)
        if sender not in election.ensembles.fencing or self.nodes.get(sender.node) not in (None, sender):
            return []   # a stranger, or a disk that is gone since (K14)
        election.heads[sender] = m.head   # late answers are kept until the leader is confirmed (O12)
        if m.clock_ms is not None:
            election.clocks[sender] = m.clock_ms
        return self._maybe_choose(now_ms)

    def _maybe_choose(self, now_ms: int) -> list[CoordinatorEffect]:
        """Rules O10, O11, A3; a short grace lets nodes believed up take part in the choice."""
        election = self.election
        if election is None or election.leader is not None or not election.ensembles.answered(election.heads):
            return []
        if self._suspicion:
            return []   # somebody is ahead of us
        missing = [
            member for member in election.ensembles.fencing
            if member not in election.heads and self.nodes.get(member.node) == member
        ]
        if missing and not election.grace_over:
            # The member that reaches a majority may be the last to answer, and without it nothing is won (O44).
            # Without the target of a transfer another member leads, and the transfer is refused (O12).
            awaited = self._cut or (self.transfer is not None and self.transfer.to in missing)
            grace_ms = self.settings.retry_ms if awaited else self.settings.grace_ms
            election.grace_over = False
            return [SetTimer(self.address, GRACE_TIMER, now_ms + grace_ms)]
        heads = self._eligible(election)
        self._damage_waits = self._damage_waits and heads is election.heads
        preferred = self.transfer.to if self.transfer and self.transfer.to not in self._damaged else None
        leader = choose_leader(election.ensembles.final, heads, preferred)
        if leader is not None and preferred is None and self._unwanted(leader):
            # Given up by the detector, yet it answered; or it cannot lead: another is better if its log is as long.
            better = (m for m in election.ensembles.final if m in heads and not self._unwanted(m))
            leader = choose_leader(election.ensembles.final, heads, next(
                (member for member in better if heads[member] == heads[leader]), leader
            ))
        if leader is None:
            return []
        assert self.record is not None
        election.leader = leader = choose(
            election.ensembles, heads, leader, self.reports, now_ms, self._cut)
        self._leader_doubted = False
        election.told = tuple(
            (member, election.heads[member])
            for member in election.ensembles.final
            if member in election.heads and member != leader
        )
        return [self._become_leader(), self._retry(now_ms)]

    def _eligible(self, election: Election) -> dict[Member, EntryId]:
        """Rule K15c: a majority without damage elects as if the others were down; without one they are asked again."""
        whole = {member: head for member, head in election.heads.items() if member not in self._damaged}
        return whole if election.ensembles.answered(whole) else election.heads

    def _unwanted(self, member: Member) -> bool:
        return self._lost(member) or member in self._damaged

    @property
    def damage(self) -> str:
        """Say which damaged entries the election waits for, empty when it waits for none (K15c)."""
        if not self._damage_waits:
            return ""
        entries = ", ".join(f"offset {offset} of {member.node}" for member, offset in self._damaged.items())
        return f"damaged at {entries}: a majority of members without damage must answer"

    def _become_leader(self) -> Send:
        """Rules O13, H4: the final ensemble travels, its length is the factor."""
        assert self.record is not None and self.election is not None and self.election.leader is not None
        record, election = self.record, self.election
        clocks = tuple((member, election.clocks[member]) for member, _ in election.told if member in election.clocks)
        message = BecomeLeader(
            record.epoch, record.election, election.ensembles.final, election.told, record.copies, clocks,
            bytes.fromhex(record.lineage),
        )
        return Send(self.address, self.election.leader, message)

    def _on_became_leader(self, now_ms: int, sender: Member, m: BecameLeader) -> list[CoordinatorEffect]:
        """Rule O15: STEADY, and a change stalled in COMMIT is thereby complete (O19)."""
        record, election = self.record, self.election
        if (
            record is None or election is None or self._busy or m.epoch != record.epoch
            or m.election != record.election or sender != election.leader
        ):
            return []
        removed = record.removed
        if record.change is not None:
            removed = (*removed, *_leavers(record.change))
        if record.source is not None:
            removed = (*removed, *(member for member in record.ensemble if member != sender))
        return self._save(
            replace(
                record, status=Status.STEADY, leader=sender, ensemble=election.ensembles.final, change=None,
                removed=removed, holdouts=self._still_ahead(record, sender, election.heads[sender]),
                source=None,
                refill=max(record.refill, len(record.ensemble)) if record.source is not None else record.refill,
                copies=record.copies if record.source is None else 0,
            )
        )

    @staticmethod
    def _still_ahead(record: ShardRecord, leader: Member, head: EntryId) -> tuple[Holdout, ...]:
        """Return the holdouts that may hold more than this leader: none, where a holdout that holds as much leads."""
        if all(each.member != leader for each in record.holdouts):
            return record.holdouts
        return tuple(each for each in record.holdouts if each.commit > head.offset)

    # --- steady ---------------------------------------------------------------------------------------------

    def _steady(self, now_ms: int, before: ShardRecord | None, record: ShardRecord) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        election, self.election = self.election, None
        if election is not None:
            self._cut = frozenset()
            self._damaged.clear()
            self._damage_waits = False
            told = dict(election.told)
            self.unattached = {
                member: election.heads.get(member)
                for member in record.ensemble
                if member != record.leader and member not in told
            }
            effects.append(Trace(self.address, "elected", f"{record.leader} epoch {record.epoch}"))
            if before is not None and before.change is not None:
                effects.append(Trace(self.address, "change_resumed", f"{before.change.operation} by election"))
        elif before is not None and before.change is not None:
            done = before.change.phase is Phase.COMMIT
            if done and self.change is not None and self.change.resumed:
                effects.append(Trace(self.address, "change_resumed", f"{before.change.operation} by another operator"))
                # Found in mid-change, so nobody here knows yet who follows.
                for member in record.ensemble:
                    if member != record.leader:
                        self.unattached.setdefault(member, None)
            name = "change_committed" if done else "change_aborted"
            effects.append(Trace(self.address, name, f"{before.change.operation}"))
            if not done or before.change.operation in ROLLED_BACK:
                self._abort_owed = True
                effects += self._send_abort()
        if before is not None and before.change is not None:
            self.missing.clear()
            self._take_nonce(now_ms)   # what a member answers to an earlier fence was true before the change (N11)
            changed = (record.ensemble, record.copies) != (before.ensemble, before.copies)
            returned = before.change.phase is Phase.COMMIT and before.change.new in record.ensemble
            outcome: ChangeDone | Refused = (
                self._done(record)
                if changed or returned
                else Refused(Reason.ABORTED, "the change was given up; nothing changed")
            )
            effects += self._end_change(outcome)
        # Nobody owes anything to a member that has left, least of all to a disk that is gone.
        self.unattached = {member: head for member, head in self.unattached.items() if member in record.ensemble}
        effects += self._finish_transfer(record)
        effects += self._end_recovery(self._done(record))
        effects += self._clear_away(record)
        for member, head in self.unattached.items():
            effects.append(self._fence(member) if head is None else self._add_follower(member, head))
        return [*effects, *self._retry_if_needed(now_ms)]

    def _settle_in(self, now_ms: int) -> list[CoordinatorEffect]:
        """A steady record we did not write: make sure that the leader leads and every member is attached.

        A repeated fence of the same pair changes nothing on a node: its leader says so, a follower answers its head.
        """
        record = self.record
        assert record is not None
        if record.leader is None or self._lost(record.leader):
            return self._elect(now_ms)
        self._doubt_leader(now_ms)
        self.unattached = {member: None for member in record.ensemble if member != record.leader}
        # Whoever aborted a change may have died before the leader heard of it.
        self._abort_owed = True
        return [
            *(self._fence(member) for member in record.ensemble),
            *self._send_abort(),
            *self._clear_away(record),
            *self._retry_if_needed(now_ms),
        ]

    def _send_abort(self) -> list[CoordinatorEffect]:
        """A steady record has no change, so the leader may hold none of this epoch either."""
        record = self.record
        if record is None or record.leader is None:
            return []
        return [Send(self.address, record.leader, Abort(record.epoch, record.election))]

    def _on_late_fenced(self, now_ms: int, sender: Member, m: Fenced) -> list[CoordinatorEffect]:
        """Rule O16; or the leader itself answers, which means that it restarted and leads no more."""
        record = self.record
        if record is None or record.status is Status.ELECTION:
            return []
        if sender == record.leader:
            return self.elect(now_ms) if self._answers_doubt(m) else []
        if sender not in record.ensemble:
            return []   # #880: an old member's late answer
        if record.change is not None and record.change.old == sender:
            return self._keep_whole(now_ms, record.change)
        self.unattached[sender] = m.head
        self.missing.discard(sender)
        return [self._add_follower(sender, m.head), *self._retry_if_needed(now_ms)]

    def _keep_whole(self, now_ms: int, change: Change) -> list[CoordinatorEffect]:
        """Rule N11b: the member that is to be seeded in its own slot holds a replica: leave it as it is."""
        if change.old != change.new or change.phase is not Phase.PREPARE or self.change is None or self.change.vacant:
            return []
        return self._abort(now_ms, f"{change.old} holds a whole replica")

    def _add_follower(self, member: Member, head: EntryId) -> Send:
        assert self.record is not None and self.record.leader is not None
        record = self.record
        assert record.leader is not None
        return Send(self.address, record.leader, AddFollower(record.epoch, record.election, member, head))

    def _clear_away(self, record: ShardRecord) -> list[Send]:
        """Delete the replicas of members that left; those beside a source that is alone yet are only fenced (K14d)."""
        if self._alone(record):
            return [self._fence(member) for member in record.removed if self.nodes.get(member.node) == member]
        return [self._delete(member) for member in self._deletable(record)]

    @staticmethod
    def _alone(record: ShardRecord) -> bool:
        """Say whether the shard was recovered from one member and no other has a copy of that log yet (K14d)."""
        return record.refill > 0 and len(record.ensemble) == 1

    def _deletable(self, record: ShardRecord) -> list[Member]:
        if self._alone(record):
            return []
        return [member for member in record.removed if self.nodes.get(member.node) == member]

    def _delete(self, member: Member) -> Send:
        assert self.record is not None
        return Send(self.address, member, DeleteShard(self.record.epoch, self.record.election))

    def _on_deleted(self, sender: Member) -> list[CoordinatorEffect]:
        record = self.record
        if record is None or sender not in record.removed or self._busy or record.status is not Status.STEADY:
            return []
        if self.change is not None or self.transfer is not None:
            return []
        return self._save(replace(record, removed=tuple(member for member in record.removed if member != sender)))

    def _ask_unheard(self, now_ms: int, record: ShardRecord, m: Unheard) -> list[CoordinatorEffect]:
        asked = [
            member for member in m.members
            if member in record.ensemble and self.nodes.get(member.node) == member
            and member not in self.unattached and member not in self.missing
        ]
        if record.status is not Status.STEADY or not asked:
            return []
        self.unattached.update(dict.fromkeys(asked))
        return [*(self._fence(member) for member in asked), *self._retry_if_needed(now_ms)]

    def _on_missing(self, sender: Member, m: Rejected) -> list[CoordinatorEffect]:
        """Rule N11: a member of a led shard holds no replica; it is seeded again in its own slot, by a swap."""
        record = self.record
        assert record is not None
        if sender not in record.ensemble or sender in self.missing or m.nonce != self._nonce:
            return []
        self.missing.add(sender)
        return [Trace(self.address, "replica_missing", f"{sender}: {m.refusal.message}")]

    # --- nodes come and go ------------------------------------------------------------------------------------

    def _on_node_up(self, now_ms: int, m: NodeUp) -> list[CoordinatorEffect]:
        """A node answers (again): it may have restarted, so find out where it stands."""
        record = self.record
        if record is None or not self.active:
            return []
        if record.status is Status.ELECTION:
            election = self.election
            if election is None:
                return []
            if self._wiped(record.source):
                return self.elect(now_ms)   # its copy is gone: the others' are what is left
            if election.leader is None:
                self._forget_heads(m.member.node, m.member)
            elif election.leader.node == m.member.node:
                if election.leader != m.member:
                    return self.elect(now_ms)   # the chosen one lost its disk (K14)
                self._doubt_leader(now_ms)
                return [self._become_leader()]
            if m.member in election.ensembles.fencing and m.member not in election.heads:
                return [self._fence(m.member)]
            return []
        effects: list[CoordinatorEffect] = []
        if m.member in record.ensemble:
            if m.member == record.leader:
                self._doubt_leader(now_ms)
            elif record.change is None or record.change.old != m.member:
                self.unattached.setdefault(m.member, None)
            effects += self._fence_again(m.member)
        elif record.leader is not None and record.leader.node == m.member.node:
            effects += self.elect(now_ms)   # the leader's disk was wiped: that member is gone for good
        elif (seed := self._seed(record)) is not None and seed.node == m.member.node and seed != m.member:
            effects += self._abort(now_ms, f"{seed.node} came back with another disk while it was being seeded")
        if m.member in record.removed:
            effects += self._clear_away(record)
        return [*effects, *self._retry_if_needed(now_ms)]

    def _forget_heads(self, node: str, but: Member | None = None) -> None:
        """An answer of a node that has gone since is void: to be chosen, or to count, it must answer again."""
        assert self.election is not None
        heads = self.election.heads
        for member in [member for member in heads if member.node == node and member != but]:
            del heads[member]

    def _on_node_down(self, now_ms: int, node: str) -> list[CoordinatorEffect]:
        record = self.record
        if record is None or not self.active:
            return []
        if record.leader is not None and record.leader.node == node:
            return self.elect(now_ms)
        if self.election is not None:
            if self.election.leader is not None and self.election.leader.node == node:
                return self.elect(now_ms)   # the chosen one died before it answered
            if self.election.leader is None:
                self._forget_heads(node)
            return self._maybe_choose(now_ms)
        if self.transfer is not None and not self.transfer.elected and self.transfer.to.node == node:
            return self._give_up_transfer(f"{node} went down")
        if (seed := self._seed(record)) is not None and seed.node == node:
            return self._abort(now_ms, f"{node} went down while it was being seeded")
        return []

    @staticmethod
    def _seed(record: ShardRecord) -> Member | None:
        """Return the member that a change in PREPARE is about to seed."""
        return record.change.new if record.change is not None and record.change.phase is Phase.PREPARE else None

    def _fence_again(self, member: Member) -> list[CoordinatorEffect]:
        """Ask a member of a led shard where it stands.

        Not before the leader is known to have adopted the record's epoch: it would resign, and a follower would
        refuse the leader that it has.  The repeat of Prepare finds out whether the leader still leads.
        """
        record = self.record
        assert record is not None
        if record.status is Status.RECONFIGURATION and (self.change is None or not self.change.prepared):
            return []
        return [self._fence(member)]

    # --- timers -----------------------------------------------------------------------------------------------

    def _retry(self, now_ms: int) -> SetTimer:
        return SetTimer(self.address, RETRY_TIMER, now_ms + self.settings.retry_ms)

    def _retry_if_needed(self, now_ms: int) -> list[CoordinatorEffect]:
        """Only while something is owed to a node that is believed up: a settled shard has no timer."""
        record = self.record
        if record is None or not self.active:
            return []
        owed = (
            record.status is not Status.STEADY
            or self.transfer is not None
            or self._leader_in_doubt(record)
            or self._abort_due(record)
            or (record.leader is not None and self._lost(record.leader))
            or any(self.nodes.get(member.node) == member for member in self.unattached)
            or bool(self._deletable(record))
        )
        return [self._retry(now_ms)] if owed else []

    def _doubt_leader(self, now_ms: int) -> None:
        """Doubt the leader until it answers a fence with a new nonce, unique also after a coordinator is re-created."""
        self._leader_doubted = True
        self._take_nonce(now_ms)

    def _take_nonce(self, now_ms: int) -> None:
        self._nonce = max(self._nonce + 1, now_ms)

    def _answers_doubt(self, m: Fenced | Rejected) -> bool:
        """Rule O42: only the answer to the fence of the newest doubt counts; an old build repeats no nonce."""
        return not self._leader_doubted or m.nonce in (0, self._nonce)

    def _leader_in_doubt(self, record: ShardRecord) -> bool:
        """A restart ends a leadership: only the answer to a fence tells, not a record that is stored meanwhile."""
        leader = record.leader
        return leader is not None and self._leader_doubted and self.nodes.get(leader.node) == leader

    def _abort_due(self, record: ShardRecord) -> bool:
        leader = record.leader
        return (
            self._abort_owed and record.status is Status.STEADY and leader is not None
            and self.nodes.get(leader.node) == leader
        )

    def _on_timer(self, now_ms: int, name: str) -> list[CoordinatorEffect]:
        record = self.record
        if record is None or not self.active:
            return []
        if name == TAKEOVER_TIMER:
            if record.status is Status.STEADY or self.election or self.change:
                return []
            if self._busy:   # the store is away: whoever is at work has time until it answers
                return [SetTimer(self.address, TAKEOVER_TIMER, now_ms + self.settings.takeover_ms)]
            return self.resume(now_ms)
        if self._busy:
            # A grace that ends meanwhile means nothing; the others are still wanted once the outcome is known.
            return [] if name == GRACE_TIMER else [SetTimer(self.address, name, now_ms + self.settings.retry_ms)]
        if name == GRACE_TIMER:
            if self.election is None or self.election.grace_over is None:
                return []
            self.election.grace_over = True
            return self._maybe_choose(now_ms)
        if name == RENEWAL_TIMER:
            return self._renew()
        if name == DEADLINE_TIMER:
            if self.transfer is not None and record.status is Status.STEADY:
                return self._give_up_transfer("the new leader did not catch up in time")
            if self.recovery is not None:
                return self._end_recovery(Refused(Reason.NO_LEADER, "the election of the source goes on"))
            if self.change is not None and record.change is not None and record.change.phase is Phase.PREPARE:
                return self._abort(now_ms, "no progress in PREPARE before the deadline")
            if self.change is not None and record.change is not None and record.change.operation in ROLLED_BACK:
                return self._elect(now_ms)
            return []
        return self._resend(now_ms)

    def _resend(self, now_ms: int) -> list[CoordinatorEffect]:
        """Say again whatever has not been answered."""
        record = self.record
        assert record is not None
        effects: list[CoordinatorEffect] = []
        if record.status is Status.ELECTION:
            if self.election is None:
                return []
            if self.election.refused or (self.election.leader is not None and self._lost(self.election.leader)):
                # Or it was fenced while it was believed down, and has not confirmed since: no NodeDown will come.
                return self.elect(now_ms)
            effects += [
                self._fence(member)
                for member in self.election.ensembles.fencing
                if member not in self.election.heads
            ]
            if self.election.leader is not None:
                effects.append(self._become_leader())
        elif record.status is Status.RECONFIGURATION and self.change is not None:
            assert record.change is not None
            effects += self._resend_change()
        for member, head in self.unattached.items():
            if self.nodes.get(member.node) == member and record.leader is not None:
                effects += self._fence_again(member) if head is None else [self._add_follower(member, head)]
        if record.leader is not None and self._leader_in_doubt(record):
            effects += self._fence_again(record.leader)
        if record.status is Status.STEADY:
            if record.leader is None or self._lost(record.leader):
                # It answered while it was believed down, and no NodeUp came since: no NodeDown will come either.
                return self.elect(now_ms)
            effects += [self._delete(member) for member in self._deletable(record)]
            if self._abort_due(record):
                effects += self._send_abort()
            if self.transfer is not None and record.leader is not None:
                effects.append(self._prepare_transfer())
        return [*effects, *self._retry_if_needed(now_ms)]

    # --- changes of the ensemble ------------------------------------------------------------------------------

    def _start_change(self, now_ms: int, m: StartChange) -> list[CoordinatorEffect]:
        """Validate (O27, O36), then write PREPARE ahead (O30)."""
        checked = self._check_change(m)
        if isinstance(checked, Refused):
            return [Reply(m.request, checked)]
        record = self.record
        assert record is not None
        self.change = RunningChange(m.request)
        return [
            Trace(self.address, "change_started", f"{m.operation} {checked.old} -> {checked.new}"),
            *self._save(
                replace(
                    record, epoch=self._next_epoch(record), election=self.revision, status=Status.RECONFIGURATION,
                    change=checked,
                    removed=tuple(member for member in record.removed if member != checked.new),
                )
            ),
        ]

    def _check_change(self, m: StartChange) -> Change | Refused:
        """Rules O27, O27b: only on a led shard with nothing else running, and only what can commit."""
        record = self.record
        if record is None:
            return Refused(Reason.UNKNOWN_SHARD, "no such shard in the metadata store")
        if record.status is not Status.STEADY or self._busy or self.change or self.transfer:
            return Refused(Reason.RECONFIGURING, f"the shard is in {record.status}; try again when it is STEADY")
        if record.leader is None or self.nodes.get(record.leader.node) != record.leader:
            return Refused(Reason.NO_LEADER, "the shard has no live leader")
        return planned_change(record, self.nodes, m, self.unattached, self.missing)

    def _send_prepare(self, now_ms: int) -> list[CoordinatorEffect]:
        if self.change is None:
            self.change = RunningChange(None)
        return [
            *self._progress("PREPARE"),
            *self._resend_change(),
            self._retry(now_ms),
            self._renewal(now_ms),
            SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms),
        ]

    def _renewal(self, now_ms: int) -> SetTimer:
        """Plan the next write of a PREPARE that this operator drives, three within the time another waits (O3b)."""
        return SetTimer(self.address, RENEWAL_TIMER, now_ms + self.settings.takeover_ms // 3)

    def _renew(self) -> list[CoordinatorEffect]:
        record = self.record
        if record is None or self.change is None or record.change is None or record.change.phase is not Phase.PREPARE:
            return []
        return self._save(record)

    def _renews(self, saving: ShardRecord) -> bool:
        record = self.record
        return (
            record is not None and record.change is not None and saving.change == record.change
            and saving.epoch == record.epoch
        )

    def _resend_change(self) -> list[CoordinatorEffect]:
        """Send what the present step of the change waits for."""
        record, running = self.record, self.change
        assert record is not None and record.change is not None and record.leader is not None
        change = record.change
        if running is None:
            return []
        if change.phase is Phase.COMMIT:
            commit = Commit(
                record.epoch, record.election, change.operation, changed_ensemble(record.ensemble, change),
                change.old, change.new, change.new_head, change.copies,
            )
            return [Send(self.address, record.leader, commit)]
        if not running.prepared:
            prepare = Prepare(
                record.epoch, record.election, change.operation, change.old, change.new, change.copies
            )
            return [Send(self.address, record.leader, prepare)]
        if change.new is None or running.snapshot is None:
            return []
        if change.old == change.new and not running.vacant:
            return [self._fence(change.new)]
        install = InstallSnapshot(record.epoch, record.election, record.leader, running.snapshot)
        # The leaver may hold the last copy of a payload, and hears nothing of its leader any more (T10, K12).
        asked = change.old in running.snapshot.sources and change.old != change.new
        announced = [self._fence(change.old)] if asked and change.old is not None else []
        return [*announced, Send(self.address, change.new, install)]

    def _on_prepared(self, now_ms: int, sender: Member, m: Prepared) -> list[CoordinatorEffect]:
        record, running = self.record, self.change
        if (
            record is None or running is None or self._busy or m.epoch != record.epoch or sender != record.leader
            or record.change is None or record.change.phase is not Phase.PREPARE or running.prepared
        ):
            return []
        if m.snapshot is not None and m.snapshot.kind is not record.kind:
            what = f"{sender} prepared a snapshot of kind {m.snapshot.kind}, the shard is of kind {record.kind}"
            return [Trace(self.address, "violation", what)]
        running.prepared = True
        if record.change.new is None:
            return self._save_commit(record, NOTHING)
        running.snapshot = m.snapshot
        return [*self._progress("SNAPSHOT"), *self._resend_change()]

    def _on_snapshot_progress(self, now_ms: int, m: SnapshotProgress) -> list[CoordinatorEffect]:
        record = self.record
        if record is None or self.change is None or m.epoch != record.epoch:
            return []
        deadline = SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms)
        return [*self._progress("SNAPSHOT", m.received_bytes, m.total_bytes), deadline]

    def _on_snapshot_installed(self, now_ms: int, sender: Member, m: SnapshotInstalled) -> list[CoordinatorEffect]:
        """A3: only now, with everything of PREPARE durable on the new member, may COMMIT be stored."""
        record, running = self.record, self.change
        if record is not None and record.status is Status.STEADY and sender in self.missing:
            return [self._fence(sender)]   # seeded by a change that was given up since (N11b)
        if (
            record is None or running is None or self._busy or m.epoch != record.epoch or record.change is None
            or record.change.phase is not Phase.PREPARE or sender != record.change.new or running.snapshot is None
        ):
            return []
        if m.head < running.snapshot.head:
            return [Trace(self.address, "violation", f"A3: {sender} installed {m.head}, asked {running.snapshot.head}")]
        return self._save_commit(record, m.head)

    def _save_commit(self, record: ShardRecord, new_head: EntryId) -> list[CoordinatorEffect]:
        assert record.change is not None
        change = replace(record.change, phase=Phase.COMMIT, new_head=new_head)
        return [SetTimer(self.address, DEADLINE_TIMER, None), *self._save(replace(record, change=change))]

    def _send_commit(self, now_ms: int) -> list[CoordinatorEffect]:
        effects = [*self._progress("COMMIT"), *self._resend_change(), self._retry(now_ms)]
        if self.record is not None and self.record.change is not None and (
            self.record.change.operation in ROLLED_BACK
        ):
            # A contract waits for a majority of those who stay (O40), and like more copies for payloads to be filled
            # (K13).  If too many have lost their disks they return only by swaps, which wait for the change: then an
            # election rolls it back (H6).
            effects.append(SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms))
        return effects

    def _on_committed(self, now_ms: int, sender: Member, m: Committed) -> list[CoordinatorEffect]:
        """Rule O35: the ensemble is in force; clear the operation."""
        record = self.record
        if (
            record is None or self._busy or m.epoch != record.epoch or sender != record.leader
            or record.change is None or record.change.phase is not Phase.COMMIT
        ):
            return []
        removed = (*record.removed, *_leavers(record.change))
        return self._save(
            replace(
                record, status=Status.STEADY, ensemble=changed_ensemble(record.ensemble, record.change), change=None,
                removed=removed, copies=record.change.copies,
            )
        )

    def _on_commit_pending(self, now_ms: int, m: CommitPending) -> list[CoordinatorEffect]:
        """The retry timer asks again (O40); as long as payloads are being filled there is time (K13)."""
        record, running = self.record, self.change
        if record is None or running is None or m.epoch != record.epoch or m.filled <= running.filled:
            return []
        running.filled = m.filled
        return [SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms)]

    def _awaits_prepared(self, record: ShardRecord) -> bool:
        """A repeat of Prepare may be refused long after the first was heeded; only the first answer matters."""
        return (
            record.change is not None and record.change.phase is Phase.PREPARE
            and self.change is not None and not self.change.prepared
        )

    def _abort(self, now_ms: int, why: str) -> list[CoordinatorEffect]:
        """Give up in PREPARE: stored first, then the leader is told; the epoch stays.

        A leader that may not have adopted the epoch cannot be left with it: then an election drops the change.
        """
        record = self.record
        assert record is not None and record.change is not None and record.change.phase is Phase.PREPARE
        if self._busy:
            self._abort_why = why
            return []
        prepared = self.change is not None and self.change.prepared
        ended = self._end_change(Refused(Reason.ABORTED, why))
        if not prepared:
            return [*ended, *self._elect(now_ms)]
        removed = self._also_removed(record, record.change.new)
        old = record.change.old
        if old is not None and old != record.leader:
            self.unattached.setdefault(old, None)
        saved = self._save(replace(record, status=Status.STEADY, change=None, removed=removed))
        return [*ended, SetTimer(self.address, DEADLINE_TIMER, None), *saved]

    def _cancel(self, now_ms: int, m: CancelChange) -> list[CoordinatorEffect]:
        record = self.record
        committing = self._busy and (self._saving is None or not self._renews(self._saving))
        if record is None or record.change is None or record.change.phase is not Phase.PREPARE or committing:
            return [Reply(m.request, Refused(Reason.WRONG_STATE, "no change is in PREPARE; COMMIT only goes forward"))]
        effects = self._abort(now_ms, "cancelled")
        return [*effects, Reply(m.request, self._done(record))]

    def _progress(self, stage: str, received: int = 0, total: int = 0) -> list[CoordinatorEffect]:
        if self.change is None or self.change.request is None:
            return []
        return [ChangeProgress(self.shard, self.change.request, stage, received, total)]

    @staticmethod
    def _done(record: ShardRecord) -> ChangeDone:
        return ChangeDone(record.epoch, record.ensemble, record.leader, record.copies)

    def _end_change(self, outcome: ChangeDone | Refused) -> list[CoordinatorEffect]:
        running, self.change = self.change, None
        return [Reply(running.request, outcome)] if running and running.request is not None else []

    # --- acknowledged records that only some members hold --------------------------------------------------------

    def _suspect(self, now_ms: int, sender: Member, commit: int) -> list[CoordinatorEffect]:
        """Rule K14c: remember durably that this member holds acknowledged records that its leader lacks.

        The member repeats its report, so one that comes at a bad moment is left to the next.
        """
        record = self.record
        assert record is not None
        if sender not in record.ensemble or any(each.member == sender for each in record.holdouts):
            return []
        if record.change is not None and record.change.old == sender and record.change.phase is Phase.PREPARE:
            return self._abort(now_ms, f"{sender.node} holds acknowledged records that the leader lacks (K14c)")
        if record.status is not Status.STEADY or self.change is not None or self.transfer is not None:
            return []
        what = f"{sender} refuses to cut its log below its commit {commit}, which the leader {record.leader} asks for"
        return [
            Trace(self.address, "data_loss_suspected", what),
            *self._save(replace(record, holdouts=(*record.holdouts, Holdout(sender, commit)))),
        ]

    def _recover(self, now_ms: int, m: RecoverShard) -> list[CoordinatorEffect]:
        """Rule K14d: store an election that only the source can win; everything follows from the record."""
        record = self.record
        if record is None:
            return [Reply(m.request, Refused(Reason.UNKNOWN_SHARD, "no such shard in the metadata store"))]
        source = self._source(record, m)
        if isinstance(source, Refused):
            return [Reply(m.request, source)]
        if record.lineage and m.lineage.hex() in ("", record.lineage):
            return [Reply(m.request, Refused(Reason.INVALID_SPEC, "lineage: a recovery needs a new one (U54)"))]
        self.recovery, self.election = m.request, None
        return [
            *self._end_change(Refused(Reason.ABORTED, "the loss of most disks was accepted")),
            Trace(self.address, "recovery_started", f"from {source}, whose leader is {record.leader}"),
            SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms),
            *self._save(
                replace(
                    alone_with(record, source, self.nodes) if m.accept_loss else record,
                    epoch=self._next_epoch(record), election=self.revision, status=Status.ELECTION, leader=None,
                    source=source, lineage=m.lineage.hex() if record.lineage else "",
                )
            ),
        ]

    def _source(self, record: ShardRecord, m: RecoverShard) -> Member | Refused:
        """Return the member that may become the source of the shard, or why not (K14d, K14e)."""
        election, wanted = self.election, Status.ELECTION if m.accept_loss else Status.STEADY
        if m.accept_loss and record.leader is not None and not self._lost(record.leader):
            return Refused(Reason.WRONG_STATE, f"{record.leader.node} leads the shard: no acknowledged record is lost")
        lost = lost_disks(record.ensemble, self.nodes)
        if not m.accept_loss and record.leader is None and not has_majority(
                record.ensemble, set(record.ensemble) - set(lost)):
            names = ", ".join(member.node for member in lost)
            return Refused(Reason.WRONG_STATE, f"the disks of {names} are lost: accept the loss to go on without them")
        # An election that cannot end is all that is left of a change or a transfer which it goes on with.
        moves = (self.change or self.transfer) and not m.accept_loss
        if self.behind or record.status is not wanted or self._busy or moves:
            return Refused(Reason.RECONFIGURING, f"the shard is in {record.status}; try again")
        if not m.accept_loss:
            return refuse_recovery(record, self.nodes, m.from_node)
        if election is None or election.leader is not None:
            return Refused(Reason.RECONFIGURING, "the shard elects a leader; try again")
        return refuse_survivor(record, self.nodes, election.heads, m.from_node)

    def _end_recovery(self, outcome: ChangeDone | Refused) -> list[CoordinatorEffect]:
        request, self.recovery = self.recovery, None
        return [Reply(request, outcome)] if request is not None else []

    # --- handing leadership over ------------------------------------------------------------------------------

    def _start_transfer(self, now_ms: int, m: StartTransfer) -> list[CoordinatorEffect]:
        record = self.record
        if record is None:
            return [Reply(m.request, Refused(Reason.UNKNOWN_SHARD, "no such shard in the metadata store"))]
        if record.status is not Status.STEADY or self._busy or self.change or self.transfer or record.leader is None:
            return [Reply(m.request, Refused(Reason.RECONFIGURING, f"the shard is in {record.status}"))]
        to = next((member for member in record.ensemble if member.node == m.to_node), None)
        if to is None:
            return [Reply(m.request, Refused(Reason.NOT_MEMBER, f"{m.to_node} is not in the ensemble"))]
        if to == record.leader:
            return [Reply(m.request, self._done(record))]
        if self.nodes.get(to.node) != to:
            return [Reply(m.request, Refused(Reason.NODE_UNAVAILABLE, f"{to.node} is down"))]
        self.transfer = RunningTransfer(m.request, to, record.epoch)
        return [
            ChangeProgress(self.shard, m.request, "TRANSFER"),
            self._prepare_transfer(),
            self._retry(now_ms),
            SetTimer(self.address, DEADLINE_TIMER, now_ms + self.settings.change_timeout_ms),
        ]

    def _prepare_transfer(self) -> Send:
        assert self.record is not None and self.record.leader is not None and self.transfer is not None
        message = PrepareTransfer(self.record.epoch, self.record.election, self.transfer.to)
        return Send(self.address, self.record.leader, message)

    def _on_transfer_ready(self, now_ms: int, sender: Member, m: TransferReady) -> list[CoordinatorEffect]:
        record, transfer = self.record, self.transfer
        if (
            record is None or transfer is None or self._busy or m.epoch != record.epoch or sender != record.leader
            or m.to != transfer.to or record.status is not Status.STEADY
        ):
            return []
        transfer.elected = True
        return self._elect(now_ms)

    def _finish_transfer(self, record: ShardRecord) -> list[CoordinatorEffect]:
        transfer = self.transfer
        if transfer is None or not (transfer.elected or record.leader == transfer.to or record.epoch > transfer.epoch):
            return []
        self.transfer = None
        outcome: ChangeDone | Refused = (
            self._done(record)
            if record.leader == transfer.to
            else Refused(Reason.ABORTED, f"{record.leader} leads instead: {transfer.to.node} answered the election "
                                         "too late or had a shorter log; try again")
        )
        return [Reply(transfer.request, outcome)]

    def _give_up_transfer(self, why: str) -> list[CoordinatorEffect]:
        transfer, self.transfer = self.transfer, None
        return [Reply(transfer.request, Refused(Reason.ABORTED, why))] if transfer else []

    # --- messages ---------------------------------------------------------------------------------------------

    def _on_message(self, now_ms: int, sender: Member, message: Any) -> list[CoordinatorEffect]:
        if not self.active:
            return []
        if self.record is not None and sender not in concerned(self.record):
            what = f"T10: {type(message).__name__} of {sender}, which is no member of this shard"
            return [Trace(self.address, STRANGER_REFUSED, what)]
        match message:
            case Fenced():
                return self._on_fenced(now_ms, sender, message)
            case BecameLeader():
                return self._on_became_leader(now_ms, sender, message)
            case FollowerAdded():
                if self.record is not None and message.epoch == self.record.epoch:
                    self.unattached.pop(message.follower, None)
                return []
            case Prepared():
                return self._on_prepared(now_ms, sender, message)
            case SnapshotProgress():
                return self._on_snapshot_progress(now_ms, message)
            case SnapshotInstalled():
                return self._on_snapshot_installed(now_ms, sender, message)
            case Committed():
                return self._on_committed(now_ms, sender, message)
            case TransferReady():
                return self._on_transfer_ready(now_ms, sender, message)
            case ShardDeleted():
                return self._on_deleted(sender)
            case Rejected():
                return self._on_rejected(now_ms, sender, message)
            case Aborted():
                if self.record is not None and message.epoch == self.record.epoch:
                    self._abort_owed = False
                return []
            case CommitPending():
                return self._on_commit_pending(now_ms, message)
        return []

    def _on_rejected(self, now_ms: int, sender: Member, m: Rejected) -> list[CoordinatorEffect]:
        """A typed no: most are answered by doing nothing, some say that our record is behind the truth."""
        record = self.record
        if record is None or m.epoch != record.epoch or self._busy:
            return []
        reason, theirs = m.refusal.reason, m.refusal.epoch
        if m.about == "DeleteShard" and reason is Reason.UNKNOWN_SHARD:
            return self._on_deleted(sender)   # it never had a replica, or has forgotten it
        if m.about == "Truncate" and reason is Reason.BELOW_COMMIT:
            return self._suspect(now_ms, sender, m.refusal.expected)
        if reason is Reason.STALE_EPOCH and record.epoch < m.refusal.expected <= record.epoch + EPOCH_JUMP_MAX:
            self._floor = max(self._floor, m.refusal.expected)
            return self._elect(now_ms)
        if theirs > record.epoch or (reason is Reason.STALE_ELECTION and theirs == record.epoch):
            # Somebody was faster, and the store says so; or the store does not know of it either (N9).
            self._doubts = 0
            self._suspicion = f"{sender.node} is in epoch {theirs}, its record in epoch {record.epoch}"
            return self._load()
        if record.status is Status.ELECTION:
            election = self.election
            if (
                election is None or election.leader is None or sender.node != election.leader.node
                or m.about != "BecomeLeader"
            ):
                return []
            if sender in self._damaged:
                election.refused = True   # at once, elections would follow each other as fast as the store answers
                self._damaged[sender] = m.refusal.expected
                self._damage_waits = True
                # Too few members without damage answered to show that the damaged entry is not committed (K15c).
                return [Trace(self.address, "damage_waits", self.damage)]
            if reason is Reason.CORRUPT:
                self._damaged[sender] = m.refusal.expected
            return self._elect(now_ms)
        if sender == record.leader:
            if reason is Reason.CORRUPT and m.about == "BecomeLeader":
                self._damaged[sender] = m.refusal.expected   # it resigned (K15d)
                return self._elect(now_ms)
            if reason is Reason.ALREADY_LEADER:
                if self._answers_doubt(m):
                    self._leader_doubted = False
                return []
            if reason is Reason.RECONFIGURING and record.change is None:
                # The leader missed our Abort: it still holds a change that the record no longer has.
                return [Send(self.address, sender, Abort(record.epoch, record.election))]
            if reason in (Reason.NOT_LEADER, Reason.UNKNOWN_SHARD):
                return self._elect(now_ms)
            if reason in (Reason.NOT_MEMBER, Reason.NO_REPLICA) and m.about == "Fence":
                return self._elect(now_ms)
            if m.about == "Prepare" and self._awaits_prepared(record):
                return self._abort(now_ms, m.refusal.message or str(reason))
            if record.change is not None and m.about == "Commit" and reason is Reason.WRONG_STATE:
                return self._elect(now_ms)
            if m.about == "PrepareTransfer" and self.transfer is not None:
                return self._give_up_transfer(m.refusal.message or str(reason))
        change = record.change
        if reason is Reason.NO_REPLICA and m.about == "Fence" and record.status is Status.STEADY:
            return self._on_missing(sender, m)
        if (
            change is not None and self.change is not None and sender == change.old == change.new
            and m.about == "Fence" and reason is Reason.NO_REPLICA and change.phase is Phase.PREPARE
        ):
            self.change.vacant = True
            return self._resend_change()
        if (
            change is not None and sender == change.new and m.about == "InstallSnapshot"
            and change.phase is Phase.PREPARE
        ):
            return self._abort(now_ms, f"{sender.node} refused the snapshot: {m.refusal.message or reason}")
        return []


def _leavers(change: Change) -> tuple[Member, ...]:
    """Return the member that leaves by a change that is done; one that was seeded again in its slot stays (N11)."""
    return (change.old,) if change.old is not None and change.old != change.new else ()
