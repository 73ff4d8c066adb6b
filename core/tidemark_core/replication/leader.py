"""Leader role: give batches their place, push them to followers, learn what is safe, change the ensemble.

A leader acts only once its leadership is durable (`active`).  Stays out: who should lead, that is the
coordinator's; who is told what and when, that is `outcomes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from ..base.effects import (
    Effect,
    Feed,
    LocalDurable,
    LocalStep,
    LogRead,
    Persist,
    PutEntry,
    ReadLog,
    Received,
    Reply,
    SetTimer,
    SnapshotDescriptor,
    Space,
    Write,
)
from ..base.entry import HEADER_BYTES, NO_PRODUCER, Batch, Durability, Entry, Kind, control, seal
from ..base.ids import EntryId, Member, Peer, ShardKind, index_of
from ..base.refusals import Reason, Refused
from ..delivery.copysets import Copysets
from . import expecting
from .acks import committable
from .clients import AppendRequest, ReadRequest, TrimRequest
from .clocks import Clocks
from .confirmations import CONFIRMATION_TIMER, Confirmations
from .copies import Seat, selective
from .cursor import Cursor, CursorStatus
from .dropping import DROP_TIMER, Dropping, strip
from .ensembles import ROLLED_BACK, contract_lacks, ensemble_after
from .fetching import Fetching
from .hearing import Hearing
from .holding import may_lack
from .messages import (
    Abort,
    Aborted,
    AddFollower,
    Append,
    AppendAck,
    AppendRefused,
    BecameLeader,
    BecomeLeader,
    Commit,
    CommitPending,
    Committed,
    Fill,
    Filled,
    FollowerAdded,
    Operation,
    Prepare,
    Prepared,
    PrepareTransfer,
    ReadGrant,
    Rejected,
    TransferReady,
    Truncate,
    Truncated,
)
from .outcomes import QUORUM_TIMER, Outcomes
from .positions import Positions
from .read_index import READ_INDEX_TIMER, ReadIndex
from .replica import Pending, Replica, ReplicaState, Role, opening_payload
from .retention import RETENTION_TIMER, Retention
from .space import enough, storing
from .stages import RELEASE_TIMER, Stages

RESEND_TIMER = "resend"
NOTICE_TIMER = "notice"
TRANSFER_TIMER = "transfer"
LEADING = "leading"
FULL_RETRY_MS = 1000
LOOKS_MAX = 3
"""So often a leader looks whether some member gave the entry that a follower needs (K15d)."""

@dataclass(slots=True)
class Transfer:
    """A leadership on its way to `to`; `asker` wants to know when `to` holds everything."""

    to: Member
    asker: Peer
    ready: bool = False       # the asker heard so since it asked last
    prolonged: bool = False   # the hold began again when `to` had everything, which happens once (O47)


class Leader:
    """One leadership: from BecomeLeader until fenced, refused by a newer epoch, or restarted."""

    __slots__ = (
        "_copysets", "_described_commit", "_dirty", "_fill", "_filled", "_fresh", "_held", "_held_in", "_notice_armed",
        "_pushed_later", "_released_told", "_resend_armed", "active", "change", "clocks", "confirmations", "contracted",
        "cursors", "dropping", "durable", "epoch_first", "fetching", "hearing", "outcomes", "positions", "read_index",
        "replica", "retention", "selective", "stages", "transfer",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.active = False                       # our leadership is durable
        self.durable = -1                         # our own log is durable up to here
        self._held = -1                           # what a majority held at the last `advance`, in the state `_held_in`
        self._held_in: ReplicaState | None = None
        self.epoch_first = 0                      # offset of the control entry that opened the elected epoch
        self.cursors: dict[Member, Cursor] = {}
        self.clocks = Clocks(replica, replica.now_ms)
        self.hearing = Hearing(self)              # whose answers arrive
        self.outcomes = Outcomes(self)            # who waits for what
        self.confirmations = Confirmations(self)  # who waits for a record
        self.positions = Positions(self)          # commits of subscriptions
        self.read_index = ReadIndex(self)         # who asks where the log ends
        self.retention = Retention(self)          # what is removed when
        self.selective = False                    # fewer than all members keep payloads; else the next three rest
        self.stages = Stages(self)                # what readers may have
        self.dropping = Dropping(self)            # what nobody needs to keep
        self.fetching = Fetching(self)            # what followers need and we do not keep
        self.change: Prepare | None = None        # prepared, neither committed nor aborted
        self.contracted = False                   # a contract or other copies are in force, maybe not stored as done
        self.transfer: Transfer | None = None
        limits = replica.limits
        self._copysets = Copysets(
            index_of(replica.shard) + replica.state.epoch, limits.order_block_bytes, limits.order_block_ms
        )
        self._fresh: list[Entry] = []             # appended in this turn, not yet handed to the store
        self._dirty = False                       # something to push at the end of the turn
        self._pushed_later = False                # something to push once our own copy is durable
        self._resend_armed = False
        self._notice_armed = False
        self._released_told = -1
        self._fill: Fill | None = None            # what members have to get before the change is in force
        self._filled: dict[Member, int] = {}      # how far they are
        self._described_commit = -1               # commit when the snapshot of the change was described first

    @property
    def epoch(self) -> int:
        return self.replica.state.epoch

    @property
    def head(self) -> int:
        return self.replica.log.head.offset

    @property
    def ensemble(self) -> tuple[Member, ...]:
        return self.replica.state.ensemble

    # --- becoming leader ----------------------------------------------------------------------------------

    def begin(self, now_ms: int, sender: Peer, m: BecomeLeader) -> list[Effect]:
        """Rules O13, O14, L4, H4.  Nothing is pushed before the leadership is durable."""
        replica = self.replica
        replica.log.tail_bytes_max = replica.limits.tail_bytes_max
        replica.update(role=Role.LEADER, lineage=m.lineage or replica.state.lineage)
        for member, clock_ms in m.clocks:
            self.clocks.heard(member, clock_ms, now_ms)
        released = self._put_in_force(m.ensemble, m.copies)
        self._open_epoch(now_ms, Kind.EPOCH_START)
        self.epoch_first = self.head
        self.outcomes.open(self.head)
        heads = dict(m.followers)
        for member in m.ensemble:
            if member in heads and member != replica.me:
                self.cursors[member] = self._cursor(member)
        step = LocalStep(replica.shard, m.epoch, LEADING, (m.followers,))
        return [
            *released,
            replica.trace("became_leader", f"epoch {m.epoch}, head {replica.log.head}"),
            self._persist_fresh([Feed(step), replica.send(sender, BecameLeader(m.epoch, m.election))]),
        ]

    def _put_in_force(self, ensemble: tuple[Member, ...], copies: int) -> list[Effect]:
        """Who is a member, and how many of them keep each payload, from now on."""
        replica = self.replica
        replica.adopt_facts(ensemble, copies, self.epoch)
        replica.update(opened=self.epoch, pending=None)
        self.selective = selective(copies, len(ensemble))
        # Where all keep everything nothing waits for a stage (S29).
        return [] if self.selective else replica.advance_confirmed(replica.confirmed)

    def on_step(self, now_ms: int, step: LocalStep) -> list[Effect]:
        """Our leadership is durable: truncate or attach each follower."""
        if step.name != LEADING or step.epoch != self.epoch or self.active:
            return []
        self.active = True
        effects: list[Effect] = []
        for member, head in step.context[0]:
            if (cursor := self.cursors.get(member)) is not None:
                effects += self._attach(cursor, head)
        self._dirty = True
        return effects + self.retention.on_growth(now_ms)

    def on_become_leader_again(self, sender: Peer, m: BecomeLeader) -> list[Effect]:
        """A repeat: answer once what we are is durable."""
        return [self.replica.persist((), [self.replica.send(sender, BecameLeader(m.epoch, m.election))])]

    def on_add_follower(self, sender: Peer, m: AddFollower) -> list[Effect]:
        """Rule O16; a follower that has a cursor keeps it."""
        replica = self.replica
        if m.epoch != self.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if m.follower not in self.ensemble or m.follower == replica.me:
            return replica.reject(sender, m, Reason.NOT_MEMBER, f"{m.follower} is not in the ensemble (#880)")
        if self.change is not None and self.change.old == m.follower:
            return replica.reject(sender, m, Reason.RECONFIGURING, f"{m.follower} is leaving")
        if not self.active:
            return replica.reject(sender, m, Reason.WRONG_STATE, "leadership is not durable yet")
        effects: list[Effect] = [replica.send(sender, FollowerAdded(m.epoch, m.follower))]
        if m.follower not in self.cursors:
            self.cursors[m.follower] = cursor = self._cursor(m.follower)
            effects += self._attach(cursor, m.head)
        return effects

    def resign(self) -> list[Effect]:
        """Stop leading: every waiting caller learns that the outcome is not known here."""
        replica = self.replica
        refusal = Refused(Reason.NOT_LEADER, "leadership ended before the outcome was known; retry the same sequence")
        waiting = (*self.outcomes.limbo.everybody(), *self.confirmations.everybody(), *self.read_index.everybody())
        effects: list[Effect] = [Reply(waiter, refusal) for waiter in waiting]
        if self._fresh:
            effects.append(self._persist_fresh())
        for timer in (
            RESEND_TIMER, NOTICE_TIMER, TRANSFER_TIMER, QUORUM_TIMER, RETENTION_TIMER, CONFIRMATION_TIMER,
            READ_INDEX_TIMER,
        ):
            effects.append(SetTimer(replica.address, timer, None))
        if self.selective:
            effects += (SetTimer(replica.address, timer, None) for timer in (DROP_TIMER, RELEASE_TIMER))
        replica.log.tail_bytes_max = 0
        replica.log.forget_tail()
        return [*effects, replica.trace("resigned", f"epoch {self.epoch}")]

    # --- appends ------------------------------------------------------------------------------------------

    def on_append_request(self, now_ms: int, m: AppendRequest) -> list[Effect]:
        """Rules L18-L21: a batch that is in the log is never appended again; it is answered with its fate."""
        replica = self.replica
        log, batch = replica.log, m.batch
        if not self.active:
            return [Reply(m.request, Refused(Reason.NOT_LEADER, "leadership is being established", self.epoch))]
        verdict = log.producers.judge(batch.producer, batch.sequence, log.logged_ms)
        if verdict.place is not None:
            return self.outcomes.of_known(now_ms, m, verdict.place)
        if verdict.fence:
            text = f"the producer was claimed with fence {verdict.fence}, which is newer"
            return [Reply(m.request, Refused(Reason.PRODUCER_FENCED, text, self.epoch, verdict.fence))]
        if verdict.too_old:
            return [
                Reply(m.request, Refused(
                    Reason.SEQUENCE_TOO_OLD,
                    f"sequence {batch.sequence} was used and its place is no longer remembered",
                    self.epoch, verdict.expected,
                ))
            ]
        if batch.sequence != verdict.expected:
            if replica.commit < self.outcomes.limbo.opening:
                # Another log may yet win, which holds what this one lacks: the producer must not go on without it.
                text = "what this leader inherited is not committed yet"
                return [Reply(m.request, Refused(Reason.BEHIND, text, self.epoch, retry_after_ms=20))]
            return [
                Reply(m.request, Refused(
                    Reason.SEQUENCE_GAP if verdict.known else Reason.PRODUCER_UNKNOWN,
                    f"sequence is {batch.sequence}, expected {verdict.expected}",
                    self.epoch, verdict.expected,
                ))
            ]
        refused = self.outcomes.refuse_producer(m)
        if refused is None and (came_first := expecting.refuse(self, now_ms, m)) is not None:
            return came_first
        refused = refused or self._refuse_append(batch)
        if refused is not None:
            return [Reply(m.request, refused)]
        entry = seal(
            batch, kind=Kind.DATA, epoch=self.epoch, prev=log.head, prev_chain=log.chain,
            logged_ms=self.clocks.stamp(now_ms), order=self._order(now_ms, batch),
        )
        log.append(entry)
        self._fresh.append(entry)
        if entry.durability is Durability.LOCAL:
            self._pushed_later = True   # our own disk answers it: that write goes first, the followers' next
        else:
            self._dirty = True
        return self.outcomes.enter(now_ms, entry, m.request)

    def _refuse_append(self, batch: Batch) -> Refused | None:
        replica, limits = self.replica, self.replica.limits
        if self.transfer is not None:
            return Refused(Reason.TRANSFERRING, f"leadership moves to {self.transfer.to.node}", self.epoch, -1, 50)
        if (full := self._no_space(batch.durability)) is not None:
            return Refused(Reason.DISK_FULL, full, self.epoch, -1, FULL_RETRY_MS)
        if len(batch.payload) > limits.batch_bytes_max:
            return Refused(
                Reason.BATCH_TOO_LARGE, f"payload has {len(batch.payload)} bytes, the limit is {limits.batch_bytes_max}"
            )
        limbo = self.outcomes.limbo
        entries = max(len(limbo), replica.log.unsettled_entries)
        bytes_held = max(limbo.bytes, replica.log.unsettled_bytes)
        if entries >= limits.pending_entries_max or bytes_held + len(batch.payload) > limits.pending_bytes_max:
            return Refused(Reason.OVERLOADED, f"{entries} batches wait for their quorum", self.epoch, -1, 50)
        return None

    def refuse_control(self) -> Refused | None:
        """Say why a record of a client, a position or a claim, cannot be appended now."""
        if self.transfer is not None:
            return Refused(Reason.TRANSFERRING, f"leadership moves to {self.transfer.to.node}", self.epoch, -1, 50)
        if self.replica.space is Space.EXHAUSTED:
            return Refused(Reason.DISK_FULL, "the leader's disk takes no entries", self.epoch, -1, FULL_RETRY_MS)
        if (waiting := self.replica.log.unsettled_entries) >= self.replica.limits.pending_entries_max:
            return Refused(Reason.OVERLOADED, f"{waiting} entries wait for their quorum", self.epoch, -1, 50)
        return None

    def _no_space(self, durability: Durability) -> str | None:
        """Say why an entry of this durability finds too few disks with space, None when it finds enough (K20)."""
        if self.replica.space:
            return "the leader's disk is full"
        full = [cursor.follower.node for cursor in self.cursors.values() if cursor.space]
        if not full or self._enough_space(durability):
            return None
        return f"the disks of {', '.join(full)} are full: too few of {len(self.ensemble)} members can store an append"

    def _enough_space(self, durability: Durability) -> bool:
        able = storing(self.replica.me, self.ensemble, self.cursors)
        return enough(durability, self.outcomes.settings, self.ensemble, able)

    def _order(self, now_ms: int, batch: Batch) -> int:
        """Reading order of slots (K1)."""
        settings = self.replica.settings
        return self._copysets.order(
            now_ms, HEADER_BYTES + len(batch.payload), self.ensemble, self.replica.peers_down,
            settings.zone_of if settings else (),
        )

    def _open_epoch(self, now_ms: int, kind: Kind) -> None:
        """Append the entry that opens an epoch (L4); it names the lineage, so a new member hears of it (U54)."""
        replica = self.replica
        self.append_control(now_ms, kind, opening_payload(replica.state, replica.me, replica.log.head))

    def append_control(
        self, now_ms: int, kind: Kind, payload: bytes = b"", argument: int = -1, count: int = 1,
        producer: bytes = NO_PRODUCER,
    ) -> None:
        """Append a control entry; it leaves at the end of the turn."""
        log = self.replica.log
        entry = control(
            kind, payload, epoch=self.epoch, prev=log.head, prev_chain=log.chain,
            logged_ms=self.clocks.stamp(now_ms), argument=argument, count=count, producer=producer,
        )
        log.append(entry)
        self._fresh.append(entry)
        self._dirty = True

    def _persist_fresh(self, then: Iterable[Effect] = (), writes: Iterable[Write] = ()) -> Persist:
        entries, self._fresh = self._fresh, []
        durable = Feed(LocalDurable(self.replica.shard, self.epoch, self.head))
        return self.replica.persist([*(PutEntry(entry) for entry in entries), *writes], [durable, *then])

    def finish_turn(self, now_ms: int) -> list[Effect]:
        """Hand this turn's entries to the store and to every follower at once."""
        effects: list[Effect] = []
        if self._fresh:
            effects.append(self._persist_fresh(writes=self.replica.checkpoint_if_due()))
            effects += self.retention.on_growth(now_ms)
        if self._dirty:
            self._dirty = False
            effects += self.push_all(now_ms)
        if self.read_index.waiting:
            effects += self.read_index.begin()
        return effects

    # --- pushing ------------------------------------------------------------------------------------------

    def push_all(self, now_ms: int) -> list[Effect]:
        if not self.active:
            return []
        effects: list[Effect] = []
        for cursor in self.cursors.values():
            effects += self._push(cursor)
        return effects + self._arm_resend(now_ms)

    def _cursor(self, follower: Member) -> Cursor:
        return Cursor(follower, up=follower not in self.replica.peers_down)

    def _attach(self, cursor: Cursor, head: EntryId) -> list[Effect]:
        """Start the cursor at `head`, or cut the follower back until its head is an entry of ours (H1)."""
        log = self.replica.log
        if log.contains(head):
            cursor.attach(head)
            self._dirty = True
            return []
        cursor.status = CursorStatus.TRUNCATING
        cursor.truncate_to = log.highest_at_or_below(head.epoch)
        return [self.replica.send(cursor.follower, Truncate(self.epoch, cursor.truncate_to))]

    def _push(self, cursor: Cursor) -> list[Effect]:
        """Push what the follower lacks, within its window; from memory, else by way of a read."""
        if (
            cursor.status is not CursorStatus.ATTACHED or not cursor.up or cursor.reading or cursor.absent
            or (cursor.space and self._spares(cursor))
        ):
            return []
        replica, limits = self.replica, self.replica.limits
        log = replica.log
        effects: list[Effect] = []
        while cursor.next <= self.head and cursor.inflight_bytes < limits.inflight_bytes_max:
            if not log.in_tail(cursor.next):
                cursor.reading = True
                tag = ("push", cursor.follower, self.epoch, cursor.next)
                effects.append(ReadLog(replica.shard, tag, cursor.next, self.head, limits.push_bytes_max))
                break
            entries = tuple(log.take(cursor.next, limits.push_bytes_max))
            if self.selective:
                entries, _ = self.dropping.part_for(cursor.follower, entries, replica.commit)
            effects.append(self._push_entries(cursor, entries))
        return effects

    def _spares(self, cursor: Cursor) -> bool:
        """Say whether a full disk gets no entries: it takes none, or the others decide without it (K20b)."""
        return cursor.space is Space.EXHAUSTED or self._enough_space(Durability.QUORUM)

    def _push_entries(self, cursor: Cursor, entries: tuple[Entry, ...]) -> Effect:
        size = sum(entry.size for entry in entries)
        message = self._message(entries[0].prev, entries)
        cursor.pushed(entries[-1].last, size)
        return self.replica.send(cursor.follower, message)

    def push_read(self, cursor: Cursor, entries: tuple[Entry, ...]) -> list[Effect]:
        """Push what was read; what the follower must have and we do not keep is fetched first (K16)."""
        if self.selective or self.replica.state.dropped >= 0:
            entries, missing = self.dropping.part_for(cursor.follower, entries, self.replica.commit)
            if missing:
                return self.fetching.begin(cursor, entries, missing)
        return [self._push_entries(cursor, entries), *self._push(cursor)]

    def _message(self, prev: EntryId, entries: tuple[Entry, ...]) -> Append:
        """Watermarks are lowered to what the message vouches for (L9)."""
        replica = self.replica
        through = entries[-1].last if entries else prev.offset
        confirmed = replica.log.decisions.safe_cut(min(replica.confirmed, through), replica.confirmed)
        message = Append(self.epoch, prev, entries, through, min(replica.commit, through), confirmed, replica.log.first)
        if not self.selective:
            return message
        bare = any(not entry.held for entry in entries)
        return replace(
            message, released=replica.released if replica.released < confirmed else None,
            ensemble=self.ensemble if bare else (), copies=replica.state.copies if bare else 0,
        )

    def _heartbeat(self, cursor: Cursor) -> Effect:
        """Say the watermarks behind what was pushed."""
        return self.replica.send(cursor.follower, self._message(self.replica.log.id_at(cursor.next - 1), ()))

    def on_log_read(self, now_ms: int, m: LogRead) -> list[Effect]:
        """Entries read for a lagging follower."""
        _, follower, epoch, first = m.tag
        cursor = self.cursors.get(follower)
        if cursor is None or epoch != self.epoch or not cursor.reading or cursor.next != first:
            return []
        cursor.reading = False
        if m.entries:
            cursor.was_read()
        if not m.entries or m.entries[0].base != first or cursor.status is not CursorStatus.ATTACHED or not self.active:
            return []   # trimmed meanwhile, or no longer wanted: the resend timer looks again
        return [*self.push_read(cursor, m.entries), *self._arm_resend(now_ms)]

    def on_read_failed(self, now_ms: int, follower: Member, base: int) -> list[Effect]:
        """Our copy is damaged: this cursor waits for the repair, the resend timer tries again."""
        if (cursor := self.cursors.get(follower)) is not None:
            cursor.not_read(base)
        return self._arm_resend(now_ms)

    @property
    def unreadable(self) -> int | None:
        """Return the base of an entry above commit that no member gave at three looks, None when there is none (K15d).

        An entry at or below commit stays where it is: another leader could do no better.
        """
        return next(
            (cursor.unread for cursor in self.cursors.values()
             if cursor.looks >= LOOKS_MAX and cursor.unread > self.replica.commit), None)

    def on_peer(self, now_ms: int, member: Member, up: bool) -> list[Effect]:
        cursor = self.cursors.get(member)
        if cursor is None:
            return []
        cursor.up = up
        if not self.active:
            return []
        if not up:
            return self.stages.advance(now_ms, self.matches()) if self.selective else []   # nobody waits for it (K11)
        return [*self._resend(cursor), *self.dropping.on_attached(cursor), *self._arm_resend(now_ms)]

    def on_timer(self, now_ms: int, name: str) -> list[Effect]:
        match name:
            case "resend":
                self._resend_armed = False
                effects: list[Effect] = []
                for cursor in self.cursors.values():
                    cursor.look()
                    seen, cursor.progress_seen = cursor.progress_seen, (cursor.match, cursor.commit)
                    # Progress since the last look means that nothing is lost, only slow.  A member with a full disk
                    # is asked every time: it says when there is space, and the heartbeat brings trims (K21).
                    if cursor.up and (cursor.space or (
                        seen == cursor.progress_seen and cursor.behind(self.head, self.replica.commit)
                        and not self.fetching.moved(cursor)
                    )):
                        effects += self._resend(cursor)
                return effects + self._arm_resend(now_ms)
            case "notice":
                self.outcomes.note_confirmed(now_ms)
                # Followers learn of what was confirmed late by the CONFIRM alone: one that cannot be written is owed.
                self._notice_armed = self.outcomes.owes_confirm
                owed = [SetTimer(self.replica.address, NOTICE_TIMER, now_ms + self.replica.limits.resend_ms)]
                late = self._released_told < self.replica.released and self.selective
                self._released_told = self.replica.released
                return (owed if self._notice_armed else []) + [
                    self._heartbeat(cursor)
                    for cursor in self.cursors.values()
                    if cursor.status is CursorStatus.ATTACHED and cursor.up and cursor.next > self.head
                    and (cursor.commit < self.replica.commit or late)
                ]
            case "release":
                return self.stages.on_timer(now_ms) + self._notice_soon(now_ms)
            case "drop":
                return self.dropping.on_timer(now_ms)
            case "quorum":
                return self.outcomes.on_timer(now_ms)
            case "retention":
                return self.retention.on_timer(now_ms)
            case "confirmation":
                return self.confirmations.on_timer(now_ms)
            case "read_index":
                return self.read_index.on_timer(now_ms)
            case "transfer":
                expired, self.transfer = self.transfer, None
                return self._transfer_expired(expired) if expired else []
        return []

    def _resend(self, cursor: Cursor) -> list[Effect]:
        if cursor.status is CursorStatus.TRUNCATING and cursor.truncate_to is not None:
            return [self.replica.send(cursor.follower, Truncate(self.epoch, cursor.truncate_to))]
        if cursor.status is not CursorStatus.ATTACHED:
            return []
        cursor.rewind()
        self.fetching.forget(cursor.follower)
        return self._push(cursor) or [self._heartbeat(cursor)]

    def _arm_resend(self, now_ms: int) -> list[Effect]:
        """No timer while every reachable follower has everything and space: an idle shard costs nothing."""
        if self._resend_armed or not any(
            cursor.up and (cursor.space or cursor.behind(self.head, self.replica.commit))
            for cursor in self.cursors.values()
        ):
            return []
        self._resend_armed = True
        return [SetTimer(self.replica.address, RESEND_TIMER, now_ms + self.replica.limits.resend_ms)]

    # --- answers of followers -----------------------------------------------------------------------------

    def on_ack(self, now_ms: int, sender: Member, m: AppendAck) -> list[Effect]:
        cursor = self.cursors.get(sender)
        if cursor is None or m.epoch != self.epoch or cursor.status is not CursorStatus.ATTACHED:
            return []  # an older epoch, or a member that is leaving: not counted (K4, K12)
        self.clocks.heard(sender, m.clock_ms, now_ms)
        cursor.heard_ms = now_ms
        cursor.acknowledged(min(m.upto, self.head), m.commit, m.space)
        effects = [] if self._is_late(cursor) else self.advance(now_ms)
        if self.read_index.waiting:
            effects += self.read_index.advance()
        if m.space:
            effects += self._arm_resend(now_ms)
        effects += self._push(cursor)
        self._shrink_tail()
        return effects + self._transfer_ready(now_ms)

    def _is_late(self, cursor: Cursor) -> bool:
        """Say whether an acknowledgement moves nothing: a majority held as much already, and a majority decides."""
        return (
            cursor.match <= self._held and self.replica.state is self._held_in
            and not self.selective and self.outcomes.majority_decides
        )

    def on_append_refused(self, now_ms: int, sender: Member, m: AppendRefused) -> list[Effect]:
        cursor = self.cursors.get(sender)
        if cursor is None or m.epoch != self.epoch or not self.active:
            return []
        cursor.heard_ms = now_ms
        match m.reason:
            case Reason.GAP | Reason.MISMATCH if cursor.status is CursorStatus.ATTACHED:
                if m.head.offset < cursor.match or m.head == cursor.rewound_for:
                    # Sent before an ack that overtook it, or one of many in flight behind the same loss.
                    return self._arm_resend(now_ms)
                if self.replica.log.contains(m.head):
                    cursor.floor = m.head.offset + 1
                    cursor.rewind()
                    cursor.rewound_for = m.head
                    return [*self._push(cursor), *self._arm_resend(now_ms)]
                return [*self._attach(cursor, m.head), *self._arm_resend(now_ms)]
            case Reason.DISK_FULL:
                cursor.space = Space.EXHAUSTED
            case Reason.NOT_MEMBER | Reason.UNKNOWN_SHARD:
                cursor.absent = True
        return self._arm_resend(now_ms)

    def on_truncated(self, now_ms: int, sender: Member, m: Truncated) -> list[Effect]:
        """Rules O23, H1: attach at the new head, or cut back further."""
        cursor = self.cursors.get(sender)
        if cursor is None or m.epoch != self.epoch or cursor.status is not CursorStatus.TRUNCATING:
            return []
        cursor.heard_ms = now_ms
        effects = self._attach(cursor, m.head)
        return [*effects, *self._push(cursor), *self._arm_resend(now_ms)]

    def on_local_durable(self, now_ms: int, m: LocalDurable) -> list[Effect]:
        """Our own copy counts only once it is on disk (L1)."""
        if m.epoch != self.epoch:
            return []
        self.durable = max(self.durable, m.upto)
        if self._pushed_later:
            self._pushed_later, self._dirty = False, True
        if not self.cursors:
            self._shrink_tail()
        return self.outcomes.on_durable(self.durable) + self.advance(now_ms) + self._transfer_ready(now_ms)

    # --- what is safe -------------------------------------------------------------------------------------

    def lagging(self) -> list[Member]:
        """Return the members that are not there, or have entries before them that are not even on their way."""
        return [
            member for member in self.ensemble
            if member != self.replica.me and (
                not self.active or (cursor := self.cursors.get(member)) is None or not cursor.up or cursor.space
                or cursor.absent or cursor.status is not CursorStatus.ATTACHED or cursor.next <= self.head)
        ]

    def _following(self) -> list[Member]:
        """Return the members that can acknowledge what is appended now, ourselves among them."""
        return [self.replica.me, *(
            member for member, cursor in self.cursors.items()
            if cursor.status is CursorStatus.ATTACHED and cursor.up and not cursor.space and not cursor.absent
        )]

    def matches(self) -> dict[Member, int]:
        """Durable matches of the current epoch that count: ours and those of active cursors."""
        matches = {
            member: cursor.match
            for member, cursor in self.cursors.items()
            if cursor.status is CursorStatus.ATTACHED
        }
        matches[self.replica.me] = self.durable
        return matches

    def advance(self, now_ms: int) -> list[Effect]:
        """Recompute commit (O24), walk confirmed behind it (L3), answer whoever waited."""
        replica = self.replica
        matches = self.matches()
        held = committable(replica.log, self.epoch, self.ensemble, matches)
        self._held, self._held_in = held, replica.state
        committed = replica.advance_commit(held)
        confirmed = replica.confirmed
        effects = self.outcomes.decide(matches, held)
        if replica.confirmed > confirmed:
            effects += self.confirmations.on_confirmed()
        released = replica.released
        if self.selective:
            effects += self.stages.advance(now_ms, matches) + self.dropping.on_progress(now_ms)
        if committed or replica.confirmed > confirmed or replica.released > released:
            effects += self._notice_soon(now_ms) + self._arm_resend(now_ms)
        return effects

    def _notice_soon(self, now_ms: int) -> list[Effect]:
        if self._notice_armed or not self.cursors:
            return []
        self._notice_armed = True
        replica, limits = self.replica, self.replica.limits
        documents = replica.state.kind is ShardKind.DOCUMENTS
        notice_ms = limits.documents_notice_ms if documents else limits.commit_notice_ms
        return [SetTimer(replica.address, NOTICE_TIMER, now_ms + notice_ms)]

    def is_dead(self, member: Member) -> bool:
        """Say whether nothing reaches a member now, as far as we know."""
        cursor = self.cursors.get(member)
        return member != self.replica.me and (cursor is None or not cursor.up)

    def say_watermarks(self) -> list[Effect]:
        """Say them to everybody who has all entries: what was said may be lost, and nobody acknowledges `released`."""
        return [
            self._heartbeat(cursor)
            for cursor in self.cursors.values()
            if cursor.status is CursorStatus.ATTACHED and cursor.up and cursor.next > self.head
        ]

    def _shrink_tail(self) -> None:
        """Keep in memory only what a reachable follower still lacks, or rows do not stand for yet."""
        everybody = min((cursor.match for cursor in self.cursors.values() if cursor.up), default=self.head)
        self.replica.log.shrink_tail(min(everybody, self.durable, self.replica.folded) + 1)

    # --- changes of the ensemble --------------------------------------------------------------------------

    def on_prepare(self, now_ms: int, sender: Peer, m: Prepare) -> list[Effect]:
        """Rules O27b, O31, O36, O37, O38, H3b: adopt the epoch, silence the leaver, open the epoch with a NOOP."""
        replica = self.replica
        if m.epoch == self.epoch and self.change == m:
            return [replica.persist((), [replica.send(sender, Prepared(m.epoch, self._describe(m)))])]
        if m.epoch <= self.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if not self.active:
            return replica.reject(sender, m, Reason.RECONFIGURING)
        if m.old == replica.me:
            return replica.reject(sender, m, Reason.LEADER_CANNOT_LEAVE, "transfer leadership first")
        if m.old is not None and m.old not in self.ensemble:
            return replica.reject(sender, m, Reason.NOT_MEMBER, f"{m.old} is not in the ensemble")
        if m.new is not None and m.new != m.old and m.new in self.ensemble:
            return replica.reject(sender, m, Reason.ALREADY_MEMBER, f"{m.new} is in the ensemble")
        if m.operation is Operation.CONTRACT:
            remaining = ensemble_after(self.ensemble, m.operation, m.old, None)
            if (lacking := contract_lacks(remaining, self._following())) is not None:
                return replica.reject(sender, m, Reason.NODE_UNAVAILABLE, lacking)
        # PREPARE is only stored on a steady record, so a change we still hold was given up and the Abort lost.
        self._drop_change()
        flush = [*self._give_up_transfer(), *([self._persist_fresh()] if self._fresh else [])]
        # What is about to change is durable here before COMMIT can be stored, and in whatever log goes on from here.
        replica.update(
            epoch=m.epoch, election=m.election, told=m.epoch, opened=m.epoch,
            pending=Pending(m.operation, m.old, m.new, m.copies),
        )
        self.change = m
        self._described_commit = replica.commit
        self.durable = -1
        for cursor in self.cursors.values():
            cursor.new_epoch()
        if m.old is not None and (leaver := self.cursors.get(m.old)) is not None:
            leaver.status = CursorStatus.SILENCED
        self._open_epoch(now_ms, Kind.NOOP)
        self._fill, self._filled = self._to_fill(m), {}
        return [
            *flush,
            replica.trace("prepared", f"{m.operation} epoch {m.epoch}"),
            self._persist_fresh([replica.send(sender, Prepared(m.epoch, self._describe(m)))]),
        ]

    def _to_fill(self, m: Prepare) -> Fill | None:
        """Return what members have to get before the change is in force, None when nobody can lack anything (K13)."""
        if not self.selective or m.operation not in ROLLED_BACK:
            return None
        if m.operation is Operation.COPIES and selective(m.copies, len(self.ensemble)) and (
            m.copies <= self.replica.state.copies
        ):
            return None   # fewer keep payloads: all of those do now
        ensemble = ensemble_after(self.ensemble, m.operation, m.old, m.new)
        return Fill(self.epoch, ensemble, m.copies, self.head)

    def on_filled(self, sender: Member, m: Filled) -> list[Effect]:
        if m.epoch == self.epoch:
            self._filled[sender] = max(m.upto, self._filled.get(sender, -1))
        return []

    def _ask_to_fill(self) -> list[Effect]:
        """Ask whoever is not done; ourselves too.  Empty when all are."""
        if self._fill is None:
            return []
        replica, fill, matches = self.replica, self._fill, self.matches()
        return [
            replica.send(member, fill) if member != replica.me else
            replica.persist((), [Feed(Received(replica.address, member, member, fill))])
            for member in fill.ensemble
            # A member that lags has nothing to fill in what it does not hold at all: that has to come first.
            if min(self._filled.get(member, -1), matches.get(member, -1)) < fill.upto
        ]

    def _describe(self, m: Prepare) -> SnapshotDescriptor | None:
        """Everything in our log now (A3); a repeat may describe more, never less."""
        log = self.replica.log
        if m.new is None:
            return None
        checkpoint = log.checkpoint().encode() if log.first > 0 else b""
        replica = self.replica
        described = SnapshotDescriptor(
            self.epoch, log.head, log.first, replica.commit, log.bytes_held, checkpoint, confirmed=replica.confirmed,
            kind=replica.state.kind,
        )
        seat = self._seat_of_new(m)
        if not seat.selective:
            return described
        others = [member for member in self.ensemble if member not in (replica.me, m.old)]
        sources = (replica.me, *others, *((m.old,) if m.old not in (None, m.new) else ()))
        return replace(described, copies=seat.copies, slot=seat.slot, size=seat.size, sources=sources)

    def _seat_of_new(self, m: Prepare) -> Seat:
        assert m.new is not None, "O33: a swap or expand has a new member"
        ensemble = ensemble_after(self.ensemble, m.operation, m.old, m.new)
        return Seat(ensemble.index(m.new), len(ensemble), m.copies)

    def snapshot_part(self, entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], bool]:
        """Return what the new member may get of these, without what is surplus in its slot, and whether that is all."""
        assert self.change is not None
        seat = self._seat_of_new(self.change)
        # The slot that changes hands counts as having nothing, and so does one that is added (K6, K12).
        matches = (*self.dropping.facts().matches, -1)[: seat.size]
        part, missing = strip(seat, matches, entries, self._described_commit)
        if not missing:
            return part, True
        return tuple(takewhile(lambda entry: entry.base < missing[0].base, part)), False

    def on_commit(self, now_ms: int, sender: Peer, m: Commit) -> list[Effect]:
        """Rules O34, O39, H3, H4: the ensemble of the message is in force; commit never falls."""
        replica = self.replica
        if m.epoch != self.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if (self.ensemble, replica.state.copies) == (m.ensemble, m.copies) and self.change is None:
            return [replica.persist((), [replica.send(sender, Committed(m.epoch))])]
        if self.change is None or self.change.operation != m.operation:
            return replica.reject(sender, m, Reason.WRONG_STATE, "the change is not prepared here")
        if m.operation is Operation.CONTRACT:
            without = {member: match for member, match in self.matches().items() if member != m.old}
            if committable(replica.log, self.epoch, m.ensemble, without) < max(replica.commit, 0):
                return [replica.send(sender, CommitPending(m.epoch))]
        if (asked := self._ask_to_fill()):
            filled = sum(upto + 1 for upto in self._filled.values())
            return [*asked, replica.send(sender, CommitPending(m.epoch, filled))]
        if m.old is not None:
            self.cursors.pop(m.old, None)
        self.change = None
        self.contracted = m.operation in ROLLED_BACK
        told = self.contracted and (self.selective or selective(m.copies, len(m.ensemble)))
        effects = self._put_in_force(m.ensemble, m.copies)
        if told:
            self._open_epoch(now_ms, Kind.NOOP)   # whoever keeps other payloads from now on learns it from the log
        if m.new is not None:
            self.cursors[m.new] = cursor = self._cursor(m.new)
            effects += self._attach(cursor, m.new_head)
        self._dirty = True
        effects.append(replica.trace("ensemble_changed", f"{m.operation} epoch {m.epoch}"))
        effects.append(replica.persist((), [replica.send(sender, Committed(m.epoch))]))
        return effects + self.advance(now_ms)

    def on_abort(self, now_ms: int, sender: Peer, m: Abort) -> list[Effect]:
        """The stored record is steady: a change still in PREPARE here is off, a contract is final; the epoch stays."""
        replica = self.replica
        if m.epoch != self.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        dropped = [replica.trace("change_aborted", f"epoch {m.epoch}")] if self.change is not None else []
        self._drop_change()
        resumed = self.dropping.on_progress(now_ms) if self.selective else []
        return [*dropped, *resumed, replica.send(sender, Aborted(m.epoch))]

    def _drop_change(self) -> None:
        """Nothing is changing any more; an old member that was silenced is pushed to again."""
        self.contracted = False
        self._fill = None
        if self.change is None:
            return
        self.replica.update(pending=None)
        if self.change.old is not None and (cursor := self.cursors.get(self.change.old)) is not None:
            cursor.status = CursorStatus.TRUNCATING if cursor.truncate_to else CursorStatus.ATTACHED
            cursor.rewind()
        self.change = None
        self._dirty = True

    # --- handing leadership over --------------------------------------------------------------------------

    def on_prepare_transfer(self, now_ms: int, sender: Peer, m: PrepareTransfer) -> list[Effect]:
        """Rule O47: new appends are held from here on, and the asker hears when the target has everything."""
        replica = self.replica
        if m.epoch != self.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if self.change is not None or not self.active:
            return replica.reject(sender, m, Reason.RECONFIGURING)
        cursor = self.cursors.get(m.to)
        if cursor is None or cursor.status is not CursorStatus.ATTACHED:
            return replica.reject(sender, m, Reason.NODE_UNAVAILABLE, f"{m.to} does not follow")
        if self.transfer is not None and self.transfer.to == m.to:
            # Asked again: answered again, but writers wait no longer for it.
            self.transfer.asker, self.transfer.ready = sender, False
            return self._transfer_ready(now_ms)
        self.transfer = Transfer(m.to, sender)
        return self._transfer_ready(now_ms) or [self._hold(now_ms)]

    def _hold(self, now_ms: int) -> SetTimer:
        """Hold new appends for `transfer_ms` from now on."""
        return SetTimer(self.replica.address, TRANSFER_TIMER, now_ms + self.replica.limits.transfer_ms)

    def _transfer_expired(self, transfer: Transfer) -> list[Effect]:
        """Writers have waited long enough: appends are accepted again, and whoever asked is told."""
        why = "no election came in time" if transfer.prolonged else f"{transfer.to.node} did not catch up in time"
        late = Refused(Reason.ABORTED, why, self.epoch)
        return [
            self.replica.trace("transfer_expired", f"to {transfer.to.node}"),
            self.replica.send(transfer.asker, Rejected(self.epoch, PrepareTransfer.__name__, late)),
        ]

    def _give_up_transfer(self) -> list[Effect]:
        """Rule O47: a change of members ends a transfer, whose asker knows an epoch that is over."""
        transfer, self.transfer = self.transfer, None
        if transfer is None:
            return []
        refused = Refused(Reason.ABORTED, "the ensemble is changing", self.epoch)
        return [
            SetTimer(self.replica.address, TRANSFER_TIMER, None),
            self.replica.send(transfer.asker, Rejected(self.epoch, PrepareTransfer.__name__, refused)),
        ]

    def _transfer_ready(self, now_ms: int) -> list[Effect]:
        """Rule O47: say that the target has everything; the election that follows gets a hold of its own."""
        transfer = self.transfer
        if transfer is None or transfer.ready:
            return []
        cursor = self.cursors.get(transfer.to)
        if cursor is None or cursor.match < self.head or self._fresh:
            return []
        held = [] if transfer.prolonged else [self._hold(now_ms)]
        transfer.ready = transfer.prolonged = True
        return [*held, self.replica.send(transfer.asker, TransferReady(self.epoch, transfer.to))]

    # --- readers and retention ----------------------------------------------------------------------------

    def on_read_request(self, m: ReadRequest) -> list[Effect]:
        """L12: a new leader serves up to the commit it already knew until its EPOCH_START commits."""
        first, released = self.replica.log.first, self.replica.released
        if 0 <= m.position < first:
            trimmed = f"offset {m.position} was removed, the first one kept is {first}"
            return [Reply(m.request, Refused(Reason.TRIMMED, trimmed, self.epoch, first))]
        if may_lack(self.replica, m.position):
            copies = f"{self.replica.state.copies} of {len(self.ensemble)} members keep each payload"
            not_held = f"{copies}, not all of them this leader: read the shard by single copy delivery"
            return [Reply(m.request, Refused(Reason.NOT_HELD, not_held, self.epoch))]
        return [Reply(m.request, ReadGrant(first, released, self.epoch))]

    def on_trim_request(self, now_ms: int, m: TrimRequest) -> list[Effect]:
        """#281, B10: as far as members and subscriptions allow; nothing while members change."""
        if self._membership_moves:
            return [Reply(m.request, Refused(Reason.RECONFIGURING, "the ensemble is changing", self.epoch))]
        return [*self.trim(min(m.before, self.retention.pinned(now_ms))), Reply(m.request, self.replica.log.first)]

    @property
    def _membership_moves(self) -> bool:
        """While an election may still roll a contract back (H6), the member that left may need the log again."""
        return self.change is not None or self.contracted

    def trim(self, before: int) -> list[Effect]:
        """#281: bounded by commit and by every member's match; one that never answered blocks it.

        B10: nothing goes before this leader knows all that was confirmed before it: a position may be among it.
        """
        replica = self.replica
        if self._membership_moves or replica.confirmed < self.outcomes.limbo.opening:
            return []
        matches = self.matches()
        everybody = min(matches.get(member, -1) for member in self.ensemble)
        first = replica.log.first
        writes = replica.trim_to(replica.log.trim_point(min(before, replica.confirmed + 1, everybody + 1)))
        if replica.log.first == first:
            return [replica.persist(writes)] if writes else []
        self._dirty = True
        return [
            replica.persist(writes),
            *(  # the others learn it with their next entries
                self._heartbeat(cursor)
                for cursor in self.cursors.values()
                if cursor.status is CursorStatus.ATTACHED and cursor.up and cursor.next > self.head
            ),
        ]

    def trim_blocked_by(self, before: int) -> str:
        """Say for a person what keeps `trim` from reaching `before`."""
        if self._membership_moves:
            return "the ensemble is changing"
        matches = self.matches()
        behind = [
            f"{member.node} holds up to {matches[member]}" if matches.get(member, -1) >= 0 else
            f"{member.node} has not answered in this epoch"
            for member in self.ensemble if matches.get(member, -1) < before - 1
        ]
        return ", ".join(behind) or f"confirmed is {self.replica.confirmed}"
