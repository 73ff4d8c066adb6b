"""Follower role: be fenced, be truncated, append, acknowledge, be seeded, be deleted.

Every acknowledgement rides on the write that justifies it.  Stays out: leading, clocks, storage.
"""

from __future__ import annotations

from ..base.effects import (
    DropAfter,
    Effect,
    PullSnapshot,
    PutCheckpoint,
    PutEntry,
    SetTimer,
    SnapshotChunk,
    SnapshotDescriptor,
    Space,
    Write,
)
from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from ..base.ids import NOTHING, EntryId, Member, Peer
from ..base.refusals import Reason
from .checkpoint import Checkpoint
from .copies import Seat, seat_of
from .holding import check_bare, sweep
from .messages import (
    Append,
    AppendAck,
    AppendRefused,
    DeleteShard,
    Drop,
    Fence,
    Fenced,
    InstallSnapshot,
    ReadRound,
    ReadRoundAck,
    ShardDeleted,
    SnapshotInstalled,
    SnapshotProgress,
    Truncate,
    Truncated,
)
from .replica import OPENINGS, Replica, Role

PULL_TIMER = "pull"


class Follower:
    """Handlers of everything a node is told while it does not lead the shard."""

    __slots__ = ("_below", "_pull", "_round_from", "_source", "replica", "verified")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.verified = -1   # equal to the leader's log up to here, in this epoch
        self._pull: tuple[Peer, Member, SnapshotDescriptor] | None = None
        self._source = 0       # which of the snapshot's sources is asked, counted round and round
        self._round_from = -1  # where the pull stood when this round of its sources began
        self._below: Checkpoint | None = None   # the pulled snapshot's fold of what its leader had trimmed

    # --- fencing ------------------------------------------------------------------------------------------

    def on_fence(self, sender: Peer, m: Fence) -> list[Effect]:
        """Rules O8, O9, O42, L1.  The caller has already resigned if this replica led an older epoch."""
        replica = self.replica
        state = replica.state
        if state.role in (Role.SEEDING, Role.DELETED):
            return replica.reject(sender, m, Reason.NO_REPLICA, f"replica is {state.role}")
        if m.epoch < state.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if m.epoch == state.epoch:
            if state.election not in (0, m.election):
                return replica.reject(sender, m, Reason.STALE_ELECTION)
            if state.role is Role.LEADER:
                return replica.reject(sender, m, Reason.ALREADY_LEADER)
            replica.update(election=m.election)
        else:
            self.verified = -1
            replica.update(epoch=m.epoch, election=m.election, role=Role.FENCED)
        replica.announce(m.members, m.epoch)
        # Ordered behind every earlier write, so the head we name is durable when the answer leaves (L1).
        answer = Fenced(m.epoch, m.election, replica.log.head, m.nonce, replica.wall_ms)
        return [replica.persist((), [replica.send(sender, answer)])]

    # --- truncation ---------------------------------------------------------------------------------------

    def on_truncate(self, sender: Member, m: Truncate) -> list[Effect]:
        """Rules O21, O22, H1: only a fenced replica truncates, and never below commit.

        Operators hear of a leader that asks for that: acknowledged records are lost there (K14c).
        """
        replica = self.replica
        if m.epoch < replica.state.epoch:
            return self._refuse(sender, m.epoch, Reason.STALE_EPOCH)
        if replica.state.role is not Role.FENCED:
            # A repeat from before our first append of this epoch would cut entries we acknowledged.
            return self._refuse(sender, m.epoch, Reason.WRONG_STATE)
        if not replica.log.truncate(m.to):
            return [
                replica.trace("truncate_below_commit_refused", f"to {m.to}, commit {replica.commit}"),
                *self._refuse(sender, m.epoch, Reason.BELOW_COMMIT),
                *self._report_loss(m),
            ]
        self._adopt(m.epoch)
        head = replica.log.head
        return [
            replica.trace("truncated", f"to {head}"),
            replica.persist([DropAfter(head.offset)], [replica.send(sender, Truncated(m.epoch, head))]),
        ]

    def _report_loss(self, m: Truncate) -> list[Effect]:
        replica = self.replica
        why = f"K14c: asked to cut to {m.to}, acknowledged records are held up to {replica.commit}"
        return [replica.persist((), replica.report(m, Reason.BELOW_COMMIT, why, replica.commit))]

    # --- appends ------------------------------------------------------------------------------------------

    def on_append(self, sender: Member, m: Append) -> list[Effect]:
        """Rules L2, K4, K20b, L9: contiguous, behind an entry we hold, acknowledged when durable."""
        replica = self.replica
        log, state = replica.log, replica.state
        if state.role in (Role.SEEDING, Role.DELETED):
            return self._refuse(sender, m.epoch, Reason.NOT_MEMBER)
        if m.epoch < state.epoch:
            return self._refuse(sender, m.epoch, Reason.STALE_EPOCH)
        if state.role in (Role.LEADER, Role.DEPOSED):
            # Only a fence ends a leadership; a leader that never asked us cannot (#513).
            return self._refuse(sender, m.epoch, Reason.WRONG_STATE)
        if m.prev.offset > log.head.offset:
            return self._refuse(sender, m.epoch, Reason.GAP)
        if not log.contains(m.prev):
            return self._refuse(sender, m.epoch, Reason.MISMATCH)
        if m.entries and replica.space is Space.EXHAUSTED and m.entries[-1].last > log.head.offset:
            return self._refuse(sender, m.epoch, Reason.DISK_FULL)
        through = m.entries[-1].last if m.entries else m.prev.offset
        if m.entries and m.entries[-1].epoch > m.epoch:
            raise RemoteViolation(f"N12: entry {m.entries[-1].id} comes in epoch {m.epoch}")
        if m.through != through or m.confirmed > min(m.commit, through):
            raise RemoteViolation(
                f"L9: append vouches through {m.through} and confirms {m.confirmed}, its entries end at {through}"
            )
        head = log.head
        if m.ensemble:
            check_bare(m.entries, seat_of(replica.me, m.ensemble, m.copies), min(m.commit, through))
        try:
            fresh, whole = self._extend(m)
            if (found := log.decisions.covering(m.confirmed)) is not None and whole:
                raise RemoteViolation(f"L3: append confirms {m.confirmed}, which lies inside {found}")
        except RemoteViolation:
            # What was folded in before the bad entry will not be written: take it back.
            log.truncate(head)
            replica.state = state
            raise
        if not whole and m.ensemble:
            # What came without payload is kept only together with the news that it is committed (K8).
            log.truncate(head)
            replica.state, fresh = state, []
        if not whole:
            return [*self._flush(fresh), *self._refuse(sender, m.epoch, Reason.MISMATCH)]
        self._adopt(m.epoch)
        if state.role is not Role.FOLLOWER:
            replica.update(role=Role.FOLLOWER)
        self.verified = max(self.verified, through)
        replica.advance_commit(min(m.commit, through))
        if m.ensemble:
            self._lack(m, head.offset)
        effects = replica.advance_confirmed(m.confirmed, m.released)   # lowered by the leader, never by us (L9)
        writes = [*fresh, *replica.trim_to(m.trim), *replica.checkpoint_if_due()]
        ack = AppendAck(m.epoch, self.verified, replica.commit, replica.wall_ms, replica.space)
        return [*effects, replica.persist(writes, [replica.send(sender, ack)])]

    def _extend(self, m: Append) -> tuple[list[Write], bool]:
        """Fold in the entries we lack; False when one does not fit, and those in front of it are kept."""
        replica, log = self.replica, self.replica.log
        fresh: list[Write] = []
        for entry in m.entries:
            if entry.last <= log.head.offset:
                if not log.contains(entry.id):
                    return fresh, False
            elif entry.base != log.head.offset + 1:
                return fresh, False
            else:
                log.append(entry)
                if entry.kind is Kind.ROLLBACK and entry.sequence <= replica.confirmed:
                    raise RemoteViolation(
                        f"L7: ROLLBACK at {entry.base} reaches back to {entry.sequence}, "
                        f"confirmed is {replica.confirmed}"
                    )
                if len(entry.payload) != entry.payload_bytes and not m.ensemble:
                    raise RemoteViolation(f"K8: entry {entry.id} comes without its payload, and nobody is named")
                fresh.append(PutEntry(entry))
                if entry.kind in OPENINGS:
                    replica.adopt_opening(entry)
        return fresh, True

    def _lack(self, m: Append, head: int) -> None:
        """Remember up to where payloads may be missing from now on (K9)."""
        replica = self.replica
        replica.adopt_facts(m.ensemble, m.copies, m.epoch)
        bare = [entry.last for entry in m.entries if entry.last > head and not entry.held]
        replica.update(dropped=max([replica.state.dropped, *bare]))

    def on_drop(self, m: Drop) -> list[Effect]:
        """Rules K7, K8: drop by the facts of our epoch's leader, in one write with the news that it is committed."""
        replica = self.replica
        if m.epoch != replica.state.epoch or replica.state.role not in (Role.FENCED, Role.FOLLOWER):
            return []
        if not (writes := sweep(replica, m)):
            return []
        return [replica.persist(writes), replica.trace("payloads_dropped", f"up to {replica.state.dropped}")]

    def on_read_round(self, sender: Member, m: ReadRound) -> list[Effect]:
        """Rule O46.  Nothing is written: a fence that this node has answered is durable."""
        replica, state = self.replica, self.replica.state
        if m.epoch < state.epoch:
            return self._refuse(sender, m.epoch, Reason.STALE_EPOCH)
        if state.role not in (Role.FENCED, Role.FOLLOWER):
            return []
        return [replica.send(sender, ReadRoundAck(m.epoch, m.number))]

    def _flush(self, fresh: list[Write]) -> list[Effect]:
        return [self.replica.persist(fresh)] if fresh else []

    def _adopt(self, epoch: int) -> None:
        """A reconfiguration raises only the leader's epoch at first; followers take it from its messages."""
        if epoch > self.replica.state.epoch:
            self.verified = -1
            self.replica.update(epoch=epoch, election=0)

    def _refuse(self, sender: Member, epoch: int, reason: Reason) -> list[Effect]:
        replica = self.replica
        refusal = AppendRefused(epoch, replica.state.epoch, replica.log.head, reason)
        # Behind earlier writes, so that the head it names is durable.
        return [replica.persist((), [replica.send(sender, refusal)])]

    # --- being seeded -------------------------------------------------------------------------------------

    def on_install_snapshot(self, sender: Peer, m: InstallSnapshot) -> list[Effect]:
        """Rules O32, A3, K14: pull everything, vote for nothing until it is durable."""
        replica = self.replica
        state, wanted = replica.state, m.snapshot
        if m.epoch < state.epoch or (m.epoch == state.epoch and state.role is Role.DELETED):
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if m.epoch == state.epoch and state.role is not Role.SEEDING:
            if not replica.log.contains(wanted.head):
                return replica.reject(sender, m, Reason.WRONG_STATE, "a member of this epoch is not seeded again")
            return [replica.persist((), [replica.send(sender, SnapshotInstalled(m.epoch, wanted.head))])]
        if state.role is Role.LEADER:
            return replica.reject(sender, m, Reason.WRONG_STATE, "a leader is not seeded")
        effects: list[Effect] = []
        other = m.epoch != state.epoch or state.snapshot_head != wanted.head
        if other or self._pull is None:
            self._below = Checkpoint.decode(wanted.checkpoint, replica.log.table) if wanted.checkpoint else None
        if other:
            self._pull = None
            wiped = replica.wipe()
            self.verified = -1
            replica.update(
                epoch=m.epoch, election=m.election, role=Role.SEEDING, commit=-1,
                snapshot_head=wanted.head, snapshot_commit=wanted.commit, snapshot_confirmed=wanted.confirmed,
                announced=(m.source, *wanted.sources), announced_in=m.epoch,
            )
            effects.append(replica.persist(wiped))
        already_pulling = self._pull is not None
        if not already_pulling:
            self._source, self._round_from = 0, -1
        self._pull = (sender, m.source, wanted)
        return effects if already_pulling else [*effects, *self.pull()]

    def pull(self) -> list[Effect]:
        """(Re)start the pull right behind what is stored."""
        if self._pull is None or self.replica.state.role is not Role.SEEDING:
            return []
        wanted, rows = self._pull[2], self.replica.rows_wanted
        if self._resume_at(wanted) > wanted.head.offset and not rows:
            return self._seeded()
        return [PullSnapshot(self.replica.shard, self._asked(), wanted, self._resume_at(wanted), rows)]

    def on_snapshot_rows(self, epoch: int) -> list[Effect]:
        """The rows of the snapshot are whole (U47); the replica is seeded once its entries are, too."""
        replica = self.replica
        if self._pull is None or epoch != replica.state.epoch or replica.state.role is not Role.SEEDING:
            return []
        return self._seeded() if replica.log.head.offset >= self._pull[2].head.offset else []

    @property
    def seeding_head(self) -> EntryId | None:
        """The end of the snapshot that is being pulled, None when none is."""
        return self._pull[2].head if self._pull is not None else None

    def give_up_pull(self) -> None:
        """Stop the pull: its snapshot will never be whole; the operator's repeat starts another one."""
        self._pull = None

    def _asked(self) -> Member:
        """Return the member pulled from now: the leader, or another one for what the leader does not keep (K12)."""
        assert self._pull is not None
        _, leader, wanted = self._pull
        return wanted.sources[self._source % len(wanted.sources)] if wanted.sources else leader

    def _resume_at(self, wanted: SnapshotDescriptor) -> int:
        head = self.replica.log.head.offset
        return head + 1 if head >= 0 else max(self.replica.raw_end + 1, wanted.first)

    def on_snapshot_chunk(self, chunk: SnapshotChunk) -> list[Effect]:
        replica = self.replica
        if self._pull is None or chunk.epoch != replica.state.epoch or replica.state.role is not Role.SEEDING:
            return []
        requester, _, wanted = self._pull
        writes: list[Write] = []
        try:
            for entry in chunk.entries:
                if entry.epoch > wanted.head.epoch:
                    # The source was truncated since and follows a newer leader: this snapshot will never be whole.
                    self._pull = None
                    return [replica.persist(writes), replica.trace("snapshot_superseded", f"by {entry.id}")]
                if entry.base == self._resume_at(wanted):  # else a repeat
                    self._take(entry, wanted, writes)
        except RemoteViolation as violation:
            # What came before the bad entry is kept; the operator's repeat starts another pull behind it.
            self._pull = None
            return [replica.persist(writes), replica.trace("violation", str(violation))]
        held = self._resume_at(wanted) - wanted.first
        whole = max(1, wanted.head.offset + 1 - wanted.first)
        progress = SnapshotProgress(chunk.epoch, wanted.payload_bytes * held // whole, wanted.payload_bytes)
        effects: list[Effect] = [replica.persist(writes, [replica.send(requester, progress)])]
        if replica.log.head.offset >= wanted.head.offset and not replica.rows_wanted:
            effects += self._seeded()
        return effects

    def _take(self, entry: Entry, wanted: SnapshotDescriptor, writes: list[Write]) -> None:
        """Take the next entry of a snapshot; in front of its checkpoint only the bytes are kept, the fold has them."""
        replica = self.replica
        below = self._below
        if not entry.held:
            self._check_seeded_bare(entry, wanted)
            replica.update(dropped=max(replica.state.dropped, entry.last))
        if entry.kind in OPENINGS:
            replica.adopt_opening(entry)
        if below is not None and replica.log.head == NOTHING:
            in_front = entry.base <= below.at.offset
            if entry.last == below.at.offset and entry.chain != below.chain:
                raise RemoteViolation("snapshot entries do not lead to their checkpoint")
            if in_front:
                replica.raw_end = entry.last
                writes.append(PutEntry(entry))
            if entry.last >= below.at.offset:
                replica.log.adopt(below)
                writes.append(PutCheckpoint(wanted.checkpoint))
            if in_front:
                return
        replica.log.append(entry)
        replica.log.settle(min(wanted.commit, replica.vouched))
        writes.append(PutEntry(entry))

    def _check_seeded_bare(self, entry: Entry, wanted: SnapshotDescriptor) -> None:
        """Only the leader knows what is surplus in our slot, so only it may leave a payload out (K12)."""
        assert self._pull is not None
        if self._asked() != self._pull[1]:
            raise RemoteViolation(f"K12: {self._asked()} does not lead and leaves out the payload of {entry.id}")
        check_bare((entry,), Seat(wanted.slot, wanted.size, wanted.copies) if wanted.size else None, wanted.commit)

    def on_snapshot_failed(self, now_ms: int, message: str) -> list[Effect]:
        """Ask the next source; the clock only when a whole round of them brought nothing (K12)."""
        replica = self.replica
        if replica.state.role is not Role.SEEDING:
            return []
        if self._pull is not None and (sources := self._pull[2].sources):
            at = self._resume_at(self._pull[2])
            self._source += 1
            round_over = self._source % len(sources) == 0
            stuck, self._round_from = round_over and at <= self._round_from, at if round_over else self._round_from
            if not stuck:
                return [replica.trace("snapshot_source_changed", message), *self.pull()]
        return [
            replica.trace("snapshot_pull_failed", message),
            SetTimer(replica.address, PULL_TIMER, now_ms + replica.limits.pull_retry_ms),
        ]

    def _seeded(self) -> list[Effect]:
        """The snapshot is whole: from the next durable write on this replica is a fenced member of its epoch.

        Another log of the same length is none of it, and the pull ends (O32).
        """
        assert self._pull is not None
        replica = self.replica
        requester, _, wanted = self._pull
        self._pull = None
        if replica.log.head != wanted.head:
            # Its chain is whole, so this is another log: the one of a later leader, whose source kept entries that the
            # leader of this epoch did not have.  Committed entries are the same in every log.
            ends = f"snapshot ends at {replica.log.head}, its descriptor says {wanted.head}"
            what = "snapshot_superseded" if wanted.head.offset > wanted.commit else "violation"
            return [replica.trace(what, ends)]
        replica.update(role=Role.FENCED, announced=(), announced_in=0)   # its last opening names all members
        if wanted.size:
            # The last opening in the snapshot names the ensemble as it was; ours is the slot that changes hands.
            ensemble = list(replica.state.ensemble)
            ensemble[wanted.slot:wanted.slot + 1] = [replica.me]
            replica.adopt_facts(tuple(ensemble), wanted.copies, replica.state.epoch)
        replica.advance_commit(min(wanted.commit, replica.vouched))
        confirmed = min(wanted.confirmed, replica.commit)
        rolled_back = replica.log.decisions.covering(confirmed)
        effects = replica.advance_confirmed(confirmed if rolled_back is None else rolled_back.first - 1)
        installed = SnapshotInstalled(replica.state.epoch, wanted.head)
        return [
            *effects,
            replica.trace("snapshot_installed", f"head {wanted.head}"),
            replica.persist((), [replica.send(requester, installed)]),
        ]

    # --- being deleted ------------------------------------------------------------------------------------

    def on_delete(self, sender: Peer, m: DeleteShard) -> list[Effect]:
        """Allowed at or above our epoch, refused below (#559); a tombstone keeps the epoch."""
        replica = self.replica
        if m.epoch < replica.state.epoch:
            return replica.reject(sender, m, Reason.STALE_EPOCH)
        if replica.state.role is Role.LEADER and m.epoch == replica.state.epoch:
            return replica.reject(sender, m, Reason.ALREADY_LEADER)
        stop: list[Effect] = [PullSnapshot(replica.shard, None, None, 0)] if self._pull else []
        self._pull = None
        wiped = replica.wipe()
        replica.update(
            epoch=m.epoch, election=m.election, role=Role.DELETED, commit=-1, ensemble=(), copies=0, told=0,
            opened=0, pending=None, announced=(), announced_in=0,
            snapshot_head=NOTHING, snapshot_commit=-1, snapshot_confirmed=-1,
        )
        deleted = replica.send(sender, ShardDeleted(m.epoch))
        return [*stop, replica.persist(wiped, [deleted]), replica.trace("deleted")]
