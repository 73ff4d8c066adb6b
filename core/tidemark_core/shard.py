"""One shard on one node: the only place that composes its protocols.

Routes events to the role that is in force, merges effects, repairs damaged entries from other members.
Stays out: which shards a node has; that is `node`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from .base.effects import (
    Effect,
    LocalDurable,
    LocalStep,
    LogRead,
    LogReadFailed,
    PutEntry,
    ReadLog,
    Received,
    Reply,
    RowsDurable,
    RowsRead,
    RowsScanned,
    SnapshotChunk,
    SnapshotFailed,
    SnapshotRows,
    TimerFired,
    Trace,
)
from .base.entry import Entry
from .base.errors import RemoteViolation
from .base.folds import Table
from .base.ids import NOTHING, Member, Peer, ShardId, ShardKind, wrong_lineage
from .base.limits import Limits
from .base.plane import STRANGER_REFUSED
from .base.refusals import Reason, Refused
from .document_changes import failover_of
from .document_shard import TAG as FOLD_TAG
from .document_shard import TIMERS as DOCUMENT_TIMERS
from .document_shard import Documents
from .documents.requests import DOCUMENT_REQUESTS
from .documents.rows import Rows
from .documents.rows import load as load_summary
from .replication import claims, sinks
from .replication.checkpoint import FOLDS as REPLICATION_FOLDS
from .replication.clients import (
    CLIENT_EVENTS,
    AppendRequest,
    ClaimRequest,
    ClientEvent,
    DeleteSink,
    JoinSink,
    LatestRequest,
    MarkSink,
    OutcomeRequest,
    ReadRequest,
    SinksRequest,
    TrimRequest,
)
from .replication.filling import Filling
from .replication.follower import PULL_TIMER, Follower
from .replication.holding import lacks_rightly
from .replication.leader import Leader
from .replication.messages import (
    EPOCH_JUMP_MAX,
    Abort,
    AddFollower,
    Append,
    AppendAck,
    AppendRefused,
    BecomeLeader,
    Commit,
    DeleteShard,
    Digests,
    DigestsAsked,
    Drop,
    Fence,
    Fetch,
    Fetched,
    Fill,
    Filled,
    InstallSnapshot,
    Prepare,
    PrepareTransfer,
    ReadRound,
    ReadRoundAck,
    Truncate,
    Truncated,
)
from .replication.replica import TRIMMING, Replica, Role
from .replication.retention import mark_every_ms
from .replication.settings import Configure
from .replication.trust import FROM_LEADERS, Trust
from .replication.vetting import VET_TIMER, Vetting
from .sinks.fold import Sinks

FOLDS: Table = (*REPLICATION_FOLDS, Sinks)
"""The folds of every log in this release; a new fold is a row behind these."""


class Shard:
    """A replica with the role it plays now."""

    __slots__ = ("documents", "filling", "follower", "leader", "replica", "trust", "vetting")

    def __init__(self, replica: Replica, documents: Documents | None = None) -> None:
        self.replica = replica
        self.documents = documents    # None: the shard is a log alone
        self.follower = Follower(replica)
        self.filling = Filling(replica)
        self.leader: Leader | None = None
        self.trust = Trust(replica)
        self.vetting = Vetting(replica)

    @classmethod
    def new(cls, shard: ShardId, me: Member, limits: Limits, kind: ShardKind = ShardKind.LOG) -> Shard:
        replica = Replica(shard, me, limits, (*FOLDS, *limits.extra_folds))
        replica.update(kind=kind)
        return cls(replica, Documents(replica) if kind is ShardKind.DOCUMENTS else None)

    @classmethod
    def restore(
        cls, shard: ShardId, me: Member, limits: Limits, state: bytes, checkpoint: bytes | None,
        headers: Iterable[Entry], producers: Iterable[tuple[bytes, bytes]] = (), rows: Rows | None = None,
    ) -> Shard:
        """Rebuild after a restart; `rows` are those of the store, which a shard of documents needs."""
        summary = load_summary(shard, rows) if rows is not None else None
        folded = summary.applied if summary is not None else -1
        table = (*FOLDS, *limits.extra_folds)
        replica = Replica.restore(shard, me, limits, state, checkpoint, headers, table, producers, folded)
        if replica.state.kind is not ShardKind.DOCUMENTS:
            return cls(replica)
        replica.rows_wanted = replica.state.role is Role.SEEDING and summary is None
        # Rows without a summary are part of a snapshot that did not come whole.
        failover = failover_of(shard, rows) if rows is not None and summary is not None else None
        return cls(replica, Documents(replica, summary, failover, restored=True))

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        """Consume one event; return effects in the order the shell must run them."""
        replica = self.replica
        replica.now_ms = now_ms
        epoch_before, commit_before, seeded = replica.state.epoch, replica.commit, replica.state.role
        confirmed_before = replica.confirmed
        try:
            effects = self._route(now_ms, event)
        except RemoteViolation as violation:
            return [replica.trace("violation", str(violation))]
        assert replica.state.epoch >= epoch_before, "O7: epoch went backwards"
        if seeded is not Role.SEEDING and replica.state.role not in (Role.SEEDING, Role.DELETED):
            assert replica.commit >= commit_before, "H3: commit went backwards"
            assert replica.confirmed >= confirmed_before, "L13: confirmed went backwards"
            assert replica.state.dropped <= replica.commit, "K8: a payload above commit was dropped"
        return effects if self.documents is None else self.documents.after(now_ms, self.leader, effects)

    def finish_turn(self, now_ms: int) -> list[Effect]:
        effects = self.leader.finish_turn(now_ms) if self.leader else []
        return effects if self.documents is None else self.documents.after(now_ms, self.leader, effects)

    @property
    def _seeding(self) -> bool:
        return self.replica.state.role is Role.SEEDING

    # --- routing ------------------------------------------------------------------------------------------

    def _route(self, now_ms: int, event: Any) -> list[Effect]:
        match event:
            case Received():
                return self._on_received(now_ms, event.sender, event.message)
            case LocalDurable():
                return self.leader.on_local_durable(now_ms, event) if self.leader else []
            case _ if isinstance(event, CLIENT_EVENTS):
                return self._on_client(now_ms, event)
            case TimerFired():
                if self.documents is not None and event.name in DOCUMENT_TIMERS:
                    return self.documents.on_timer(now_ms, self.leader, event.name)
                if event.name == PULL_TIMER:
                    return self.follower.pull() if self._seeding else self.filling.pull()
                if event.name == VET_TIMER:
                    return self.vetting.on_timer(now_ms)
                return self._on_leader_timer(now_ms, event.name)
            case Configure():
                return self._on_configure(now_ms, event)
            case LocalStep() if event.name == TRIMMING:
                return self._on_trimming(event)
            case LocalStep():
                return self.leader.on_step(now_ms, event) if self.leader else []
            case LogRead():
                return self._on_log_read(now_ms, event)
            case LogReadFailed():
                return self._on_log_read_failed(now_ms, event)
            case SnapshotChunk():
                return self.follower.on_snapshot_chunk(event) if self._seeding else self.filling.on_chunk(event)
            case SnapshotFailed():
                if self.documents is not None and self.documents.pulls:
                    return self.documents.on_pull_failed(now_ms, event)
                failed = self.follower.on_snapshot_failed if self._seeding else self.filling.on_failed
                return failed(now_ms, event.message)
            case _ if self.documents is not None:
                return self._on_documents(now_ms, self.documents, event)
            case _ if isinstance(event, DOCUMENT_REQUESTS):
                return [Reply(event.request, Refused(Reason.WRONG_KIND, "the shard is a log, it has no documents"))]
        raise TypeError(f"no such event: {event!r}")

    def _on_trimming(self, step: LocalStep) -> list[Effect]:
        """A part of the producers is durable: go on with the trim that it was written for (L25)."""
        if step.epoch != self.replica.state.epoch:
            return []   # asked for by an earlier leader; the next one asks again
        if self.leader is not None:
            return self.leader.trim(*step.context)
        writes = self.replica.trim_to(*step.context) if self.replica.state.role is Role.FOLLOWER else []
        return [self.replica.persist(writes)] if writes else []

    def _on_documents(self, now_ms: int, documents: Documents, event: Any) -> list[Effect]:
        match event:
            case RowsRead():
                return documents.on_rows_read(event)
            case RowsScanned():
                return documents.on_scanned(now_ms, self.leader, event)
            case RowsDurable():
                return documents.on_durable(event)
            case SnapshotRows():
                if self._seeding:
                    return self._on_snapshot_rows(documents, event)
                return documents.on_other_rows(now_ms, event)
            case _ if isinstance(event, DOCUMENT_REQUESTS):
                return documents.on_request(now_ms, self.leader, event)
        raise TypeError(f"no such event: {event!r}")

    def _on_snapshot_rows(self, documents: Documents, event: SnapshotRows) -> list[Effect]:
        """Rule U47: the replica is seeded with its rows or not at all."""
        follower, head = self.follower, self.follower.seeding_head
        if head is None or event.epoch != self.replica.state.epoch:
            return []
        try:
            effects, whole = documents.on_snapshot_rows(head, event)
        except RemoteViolation as violation:
            # The operator's repeat starts another pull, which brings the rows again.
            follower.give_up_pull()
            return [self.replica.trace("violation", str(violation))]
        if whole is None:
            follower.give_up_pull()
        return [*effects, *follower.on_snapshot_rows(event.epoch)] if whole else effects

    def _on_leader_timer(self, now_ms: int, name: str) -> list[Effect]:
        leader = self.leader
        if leader is None:
            return []
        effects = leader.on_timer(now_ms, name)
        unreadable = leader.unreadable
        return effects if unreadable is None else [*effects, *self._give_up(now_ms, unreadable)]

    def _give_up(self, now_ms: int, offset: int) -> list[Effect]:
        """Rule K15d: the shard stands still behind an entry that no member gives; another may lead without it."""
        resigned = self._resign()
        self.replica.update(role=Role.DEPOSED)
        return [*resigned, self.replica.persist((), self.vetting.give_up(now_ms, offset))]

    def _on_configure(self, now_ms: int, event: Configure) -> list[Effect]:
        replica, leader = self.replica, self.leader
        replica.settings, replica.retention, replica.copy_settings = event.settings, event.retention, event.copies
        replica.document_settings = event.documents
        # Followers mark their logs alike: any of them may lead next.
        replica.log.mark_ms = mark_every_ms(event.retention, replica.limits.retention_look_ms)
        if leader is None:
            return []
        return [*leader.outcomes.on_settings(now_ms), *leader.retention.on_settings(now_ms)]

    def _on_client(self, now_ms: int, event: ClientEvent) -> list[Effect]:
        if self.leader is None:
            return [Reply(event.request, Refused(Reason.NOT_LEADER, "", self.replica.state.epoch))]
        match event:
            case AppendRequest():
                if self.documents is not None and (refused := self.documents.refuse(event)) is not None:
                    return [Reply(event.request, refused)]
                return self.leader.on_append_request(now_ms, event)
            case ClaimRequest():
                return claims.on_request(self.leader, now_ms, event)
            case OutcomeRequest():
                return self.leader.outcomes.on_request(now_ms, event)
            case ReadRequest():
                return self.leader.on_read_request(event)
            case LatestRequest():
                return self.leader.read_index.on_request(now_ms, event)
            case TrimRequest():
                return self.leader.on_trim_request(now_ms, event)
            case JoinSink() | MarkSink() | DeleteSink() | SinksRequest():
                return sinks.on_request(self.leader, now_ms, event)
            case _:
                return self.leader.positions.on_request(now_ms, event)

    def _on_received(self, now_ms: int, sender: Peer, message: Any) -> list[Effect]:
        """Members talk about the log, operators about who leads and who belongs (O4); neither may do the other.

        Rule T10: what a node says that is no member here changes nothing.
        Rule N12: an epoch far above ours is refused; a replica that begins, in epoch 0, takes any.
        """
        epoch = self.replica.state.epoch
        jumps = getattr(message, "epoch", 0) - EPOCH_JUMP_MAX > epoch > 0
        if sender.__class__ is Member:
            leader = self.leader
            if not self.trust.hears(sender, message, leader.cursors if leader is not None else ()):
                return self._unheard(sender, message)
            if jumps:
                raise RemoteViolation(f"N12: epoch {message.epoch} is far above {epoch}, says {sender}")
            return self._on_peer_message(now_ms, sender, message)
        if jumps:
            far = f"N12: epoch {message.epoch} is far above {epoch}"
            return self.replica.reject(sender, message, Reason.WRONG_STATE, far)
        return self._on_operator_message(now_ms, sender, message)

    def _unheard(self, sender: Member, message: Any) -> list[Effect]:
        """A late answer of a member is no news; anything of a stranger is (T10).

        A leader that left while it was cut off hears that its epoch is over, and nothing of the log.
        """
        if sender in self.trust.members():
            return []
        own = self.replica.state.epoch
        if isinstance(message, FROM_LEADERS) and message.epoch < own:
            return [self.replica.send(sender, AppendRefused(message.epoch, own, NOTHING, Reason.STALE_EPOCH))]
        what = f"T10: {type(message).__name__} of {sender}, which is no member of this shard"
        return [self.replica.trace(STRANGER_REFUSED, what)]

    def pull_refused(self, puller: Member) -> Trace | None:
        """Say why this node may read nothing of the log, None when it may (T10)."""
        if puller in self.trust.members():
            return None
        return self.replica.trace(STRANGER_REFUSED, f"T10: a pull of {puller}, which is no member of this shard")

    def _on_peer_message(self, now_ms: int, sender: Member, message: Any) -> list[Effect]:
        leader, follower = self.leader, self.follower
        match message:
            case AppendAck():
                return leader.on_ack(now_ms, sender, message) if leader else []
            case Append():
                effects = follower.on_append(sender, message)
                if self.vetting.broken >= 0 and self.replica.state.role is Role.FOLLOWER:
                    effects += self.vetting.ask_again(sender)
                return effects
            case AppendRefused():
                return self._on_append_refused(now_ms, sender, message)
            case Truncate():
                return follower.on_truncate(sender, message)
            case Truncated():
                return leader.on_truncated(now_ms, sender, message) if leader else []
            case ReadRound():
                return follower.on_read_round(sender, message)
            case ReadRoundAck():
                return leader.read_index.on_ack(sender, message) if leader else []
            case DigestsAsked() | Digests():
                return self._on_digests(sender, message)
            case Fetch():
                return self._on_fetch(sender, message)
            case Fetched():
                return self._on_fetched(sender, message)
            case Drop():
                return follower.on_drop(message)
            case Fill():
                return self.filling.on_fill(sender, message)
            case Filled():
                return leader.on_filled(sender, message) if leader else []
        raise RemoteViolation(f"{type(message).__name__} from {sender} is not for a node")

    def _on_digests(self, sender: Member, m: DigestsAsked | Digests) -> list[Effect]:
        """Rule U73b; a log has no documents to compare."""
        documents, leader = self.documents, self.leader
        if documents is None:
            return []
        if isinstance(m, DigestsAsked):
            return documents.comparing.on_asked(sender, m, documents.summary)
        return documents.comparing.on_digests(leader, sender, m, documents.summary) if leader is not None else []

    def _on_operator_message(self, now_ms: int, sender: Peer, message: Any) -> list[Effect]:
        leader, follower = self.leader, self.follower
        self.replica.heard(sender)
        match message:
            case Fence():
                resigned = self._resign() if leader and message.epoch > self.replica.state.epoch else []
                if message.epoch > self.replica.state.epoch:
                    self.vetting.stop()
                return [*resigned, *follower.on_fence(sender, message)]
            case BecomeLeader():
                return self._on_become_leader(now_ms, sender, message)
            case AddFollower() | Prepare() | Commit() | Abort() | PrepareTransfer():
                return self._on_leader_request(now_ms, sender, message)
            case InstallSnapshot():
                return follower.on_install_snapshot(sender, message)
            case DeleteShard():
                resigned = self._resign() if leader and message.epoch > self.replica.state.epoch else []
                stopped = self.filling.stop() if message.epoch >= self.replica.state.epoch else []
                return [*resigned, *stopped, *follower.on_delete(sender, message)]
        raise RemoteViolation(f"{type(message).__name__} from {sender} is not for a node")

    def _on_leader_request(
        self, now_ms: int, sender: Peer, message: AddFollower | Prepare | Commit | Abort | PrepareTransfer
    ) -> list[Effect]:
        leader = self.leader
        if leader is None:
            return self.replica.reject(sender, message, Reason.NOT_LEADER, f"replica is {self.replica.state.role}")
        match message:
            case AddFollower():
                return leader.on_add_follower(sender, message)
            case Prepare():
                return leader.on_prepare(now_ms, sender, message)
            case Commit():
                return leader.on_commit(now_ms, sender, message)
            case Abort():
                return leader.on_abort(now_ms, sender, message)
            case PrepareTransfer():
                return leader.on_prepare_transfer(now_ms, sender, message)

    def _on_become_leader(self, now_ms: int, sender: Peer, m: BecomeLeader) -> list[Effect]:
        replica = self.replica
        state = replica.state
        if m.epoch < state.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if m.epoch > state.epoch:
            return replica.reject(sender, m, Reason.WRONG_STATE, "fence first")
        if m.election != state.election:
            return replica.reject(sender, m, Reason.STALE_ELECTION)
        if replica.me not in m.ensemble:
            return replica.reject(sender, m, Reason.NOT_MEMBER, f"{replica.me} is not in the ensemble")
        if self.leader is not None:
            return self.leader.on_become_leader_again(sender, m)
        if state.role is not Role.FENCED:
            return replica.reject(sender, m, Reason.WRONG_STATE, f"replica is {state.role} in epoch {state.epoch}")
        if m.lineage and (wrong := wrong_lineage(m.lineage)) is not None:
            return replica.reject(sender, m, Reason.WRONG_STATE, f"{wrong} (U54)")
        if self.vetting.passed():
            return self._lead(now_ms, sender, m)
        return self.vetting.begin(sender, m)

    def _lead(self, now_ms: int, sender: Peer, m: BecomeLeader) -> list[Effect]:
        self.leader = Leader(self.replica)
        return self.leader.begin(now_ms, sender, m)

    def _on_vetted(self, now_ms: int, read: LogRead | LogReadFailed) -> list[Effect]:
        """Rule K15b: lead once everything above commit is whole."""
        result = self.vetting.on_read(now_ms, read)
        return self._lead(now_ms, *result) if isinstance(result, tuple) else result

    def _on_append_refused(self, now_ms: int, sender: Member, m: AppendRefused) -> list[Effect]:
        leader = self.leader
        if leader is None:
            return []
        if m.own_epoch - EPOCH_JUMP_MAX > leader.epoch:
            raise RemoteViolation(f"N12: epoch {m.own_epoch} is far above {leader.epoch}, says {sender}")
        if m.epoch == leader.epoch and m.own_epoch > leader.epoch and m.reason == Reason.STALE_EPOCH:
            # Somebody was elected behind our back: a stale leader fences itself.
            resigned = self._resign()
            self.replica.update(role=Role.DEPOSED)
            return [*resigned, self.replica.persist(())]
        return leader.on_append_refused(now_ms, sender, m)

    def _resign(self) -> list[Effect]:
        leader, self.leader = self.leader, None
        self.follower.verified = -1
        if leader is None:
            return []
        return [*leader.resign(), *(self.documents.resigned() if self.documents is not None else ())]

    # --- reads and repair ---------------------------------------------------------------------------------

    def _on_log_read(self, now_ms: int, m: LogRead) -> list[Effect]:
        if m.tag[0] == "vet":
            return self._on_vetted(now_ms, m)
        if m.tag[0] == "mend":
            return self._on_next_read(m)
        bare = (entry for entry in m.entries if not entry.held)
        damaged = next((entry for entry in bare if not lacks_rightly(self.replica, entry)), None)
        if damaged is not None:
            # The payload is gone though it should be here: no better than one that fails its checksum.
            intact = tuple(takewhile(lambda entry: entry.base < damaged.base, m.entries))
            if not intact:
                return self._on_log_read_failed(now_ms, LogReadFailed(m.shard, m.tag, damaged.base))
            m = LogRead(m.shard, m.tag, intact)
        if m.tag[0] == "fetch":
            _, asker, base, epoch = m.tag
            entry = m.entries[0] if m.entries and m.entries[0].base == base and m.entries[0].epoch == epoch else None
            return [self.replica.send(asker, Fetched(base, entry if entry is not None and entry.held else None))]
        if m.tag[0] == FOLD_TAG and self.documents is not None:
            return self.documents.on_log_read(now_ms, m.tag, m.entries)
        return self.leader.on_log_read(now_ms, m) if self.leader else []

    def _on_log_read_failed(self, now_ms: int, m: LogReadFailed) -> list[Effect]:
        """A stored entry is damaged: ask every other member for its copy; nobody serves ours meanwhile."""
        replica = self.replica
        if m.tag is not None and m.tag[0] == "vet":
            return self._on_vetted(now_ms, m)
        if m.tag is not None and m.tag[0] == "mend":
            return self._on_next_read(LogRead(m.shard, m.tag, ()))
        if m.tag is not None and m.tag[0] == "fetch":
            return [replica.send(m.tag[1], Fetched(m.tag[2], None))]
        epoch = replica.log.epoch_at(m.first)
        effects: list[Effect] = [replica.trace("corrupt_entry", f"offset {m.first}")]
        effects += [replica.fetches.ask(member, m.first, epoch) for member in self._others()]
        if m.tag is not None and m.tag[0] == FOLD_TAG and self.documents is not None:
            effects += self.documents.on_log_read(now_ms, m.tag, ())
        elif m.tag is not None and self.leader is not None:
            effects += self.leader.on_read_failed(now_ms, m.tag[1], m.first)
        return effects

    def _others(self) -> list[Member]:
        known = list(self.replica.state.ensemble)
        if self.leader is not None:
            known += [member for member in self.leader.cursors if member not in known]
        return [member for member in known if member != self.replica.me]

    def _on_fetch(self, sender: Member, m: Fetch) -> list[Effect]:
        replica = self.replica
        if m.base < replica.log.first:
            return [replica.send(sender, Fetched(m.base, None, replica.log.first))]
        if not m.entry_epoch or replica.log.epoch_at(m.base) != m.entry_epoch:   # 0: no entry has it (T10d)
            return [replica.send(sender, Fetched(m.base, None))]
        tag = ("fetch", sender, m.base, m.entry_epoch)
        return [ReadLog(replica.shard, tag, m.base, replica.log.head.offset, 1)]

    def _on_fetched(self, sender: Member, m: Fetched) -> list[Effect]:
        """An epoch's offsets have one author, so the entry of that id in the chain of our headers is the entry (T10).

        Memory holds the chain from commit on; below, the header behind the entry names its chained checksum.
        """
        passed_on = self.leader.fetching.on_fetched(sender, m) if self.leader else None
        if passed_on is not None:
            return list(passed_on)
        replica, entry = self.replica, m.entry
        if m.base < m.first:
            # Trimmed there by a leader that might: nobody can give us that part any more, and nobody misses it.
            writes = replica.trim_to(m.first)
            gone = self.documents.on_gone(sender, m.first) if self.documents is not None else []
            return [*([replica.persist(writes)] if writes else ()), *gone]
        if entry is None or not self._lacks(m):
            return self.vetting.on_not_held(sender, m)
        chain = replica.log.chain_at(entry.last)
        if chain is None:
            return [ReadLog(replica.shard, ("mend", sender, m), entry.last + 1, replica.log.head.offset, 1)]
        return self._mend(sender, m, chain)

    def _lacks(self, m: Fetched) -> bool:
        entry = m.entry
        return entry is not None and entry.base == m.base and entry.held and self.replica.log.contains(entry.id)

    def _on_next_read(self, read: LogRead) -> list[Effect]:
        """Where the header behind the entry cannot be read either, the word of the member that was asked counts."""
        _, sender, m = read.tag
        if not self._lacks(m):
            return []   # truncated since we asked
        behind = read.entries[0] if read.entries else None
        if behind is not None and behind.base != m.entry.last + 1:
            return self._mend(sender, m, None)
        return self._mend(sender, m, m.entry.chain if behind is None else behind.prev_chain)

    def _mend(self, sender: Member, m: Fetched, chain: int | None) -> list[Effect]:
        replica, entry = self.replica, m.entry
        assert entry is not None
        if entry.last < replica.log.first:
            return []   # trimmed since we asked, and with it the header behind that would judge it
        if entry.chain != chain:
            raise RemoteViolation(f"T10: entry {entry.id} of {sender} is not the one of our log")
        if entry.last <= replica.state.swept and lacks_rightly(replica, entry):
            # Dropped as surplus: only its header can have been damaged.  Above that we may still be one who has to have
            # the payload, though not designated: too few left of us had it yet (K7).
            entry = entry.bare()
        repaired = replica.persist([PutEntry(entry)], self.vetting.repaired(entry.base))
        return [replica.trace("entry_repaired", f"{entry.id}"), repaired]

    def snapshot_part(self, epoch: int, entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], bool]:
        """Return what of `entries` a pull of `epoch` may get from here, and whether it goes on behind (K12).

        A pull of an earlier epoch gets none: its log may be another one since (T10d).
        """
        leader, replica = self.leader, self.replica
        if epoch < replica.state.epoch:
            return (), False
        if leader is not None and leader.epoch == epoch and leader.change is not None and leader.change.new is not None:
            return leader.snapshot_part(entries)
        seat = replica.seat
        # Beside the leader, members vouch only for what is committed.
        last = replica.commit if seat is not None and seat.selective else replica.log.head.offset
        part = tuple(takewhile(lambda entry: entry.held and entry.last <= last, entries))
        return part, len(part) == len(entries)
