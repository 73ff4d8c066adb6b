"""What of a replica outlives its role: durable state, the log's fold, watermarks, and the writes that keep them.

`ReplicaState` is the small record stored beside the log.  `Replica` is the ground both roles stand on; it has
no opinion about messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from ..base.effects import (
    DropBefore,
    Effect,
    Feed,
    LocalStep,
    Persist,
    PutCheckpoint,
    PutState,
    Released,
    Send,
    Space,
    Trace,
    Wipe,
    Write,
)
from ..base.entry import Entry, Kind
from ..base.errors import FormatTooNew, RemoteViolation
from ..base.folds import Table
from ..base.ids import NOTHING, EntryId, Member, Peer, ShardId, ShardKind, lineage_of, of_shard
from ..base.limits import Limits
from ..base.refusals import Reason, Refused
from ..limbo.settings import SynchroSettings
from .checkpoint import FOLDS
from .copies import Seat, seat_of
from .fetches import Fetches
from .log import OFFSET_MAX, Log
from .messages import Fate, Fence, Operation, Rejected
from .producer_rows import ProducerRows
from .producers import Place
from .settings import CopySettings, DocumentSettings, RetentionSettings

STATE_FORMAT = 5
STATE_FORMATS_READ = (3, 4, STATE_FORMAT)   # 3 does not know what was being changed, 4 whom an operator announced
ITEMS_PER_ROW = 8
OPERATORS_MAX = 8
"""So many operators that spoke to it a replica reports to."""

"""Items of a checkpoint that cost about as much as one row of a producer."""
TRIMMING = "trimming"
"""The step behind a part of a trim; its context is the offset to trim to."""
OPENINGS = (Kind.EPOCH_START, Kind.NOOP)   # entries whose payload names the ensemble and the copies


class Role(StrEnum):
    """What the replica does now; stored, so that a restart cannot forget a promise."""

    FENCED = "FENCED"        # silent; may be truncated, attached, or made leader of its epoch
    FOLLOWER = "FOLLOWER"    # has accepted appends of its epoch; never truncates in it again
    LEADER = "LEADER"
    DEPOSED = "DEPOSED"      # led its epoch and stopped; never leads that epoch again
    SEEDING = "SEEDING"      # pulling a snapshot; not a member yet, never votes
    DELETED = "DELETED"      # tombstone: remembers the epoch only


@dataclass(frozen=True, slots=True)
class Pending:
    """A change that was prepared: whoever rebuilds metadata must reckon with its being in force (N3)."""

    operation: Operation
    old: Member | None
    new: Member | None
    copies: int

    def encode(self) -> list[Any]:
        return [self.operation, *(list(member) if member else None for member in (self.old, self.new)), self.copies]

    @classmethod
    def decode(cls, raw: list[Any]) -> Pending:
        operation, old, new, copies = raw
        return cls(Operation(operation), Member(*old) if old else None, Member(*new) if new else None, int(copies))


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The durable record.  `commit` and `confirmed` are as they were read; in force are those of `Replica`.

    `ensemble` and `copies` are the newest this node was told, in the epoch `told`: for repair, for recovery of
    metadata, and to know which payloads it keeps.  `pending` is the change that was prepared in the epoch `opened`,
    None: none was.  A payload may be missing only at or below `dropped`, and only where this member is not designated
    (K9); everything at or below `swept` that was surplus is gone.  `announced` are the members that an operator named
    in the epoch `announced_in`, empty where its build names none (T10).  `lineage` is the newest that an opening named,
    none in a shard without one (U54).
    """

    epoch: int = 0
    election: int = 0                  # 0: epoch adopted from the leader, id unknown
    role: Role = Role.FENCED
    commit: int = -1
    confirmed: int = -1
    ensemble: tuple[Member, ...] = ()
    snapshot_head: EntryId = NOTHING   # SEEDING: where the snapshot ends
    snapshot_commit: int = -1
    snapshot_confirmed: int = -1
    copies: int = 0
    told: int = 0
    dropped: int = -1
    swept: int = -1
    opened: int = 0
    pending: Pending | None = None
    announced: tuple[Member, ...] = ()
    announced_in: int = 0
    kind: ShardKind = ShardKind.LOG
    lineage: bytes = b""

    def encode(self) -> bytes:
        return with_watermarks(self.commit, self.confirmed, self.encode_rest())

    def encode_rest(self) -> bytes:
        """Return everything but what changes with every append; `with_watermarks` makes it whole."""
        return json.dumps(
            [
                self.epoch, self.election, self.role, [list(member) for member in self.ensemble],
                list(self.snapshot_head), self.snapshot_commit, self.snapshot_confirmed, self.copies, self.told,
                self.dropped, self.swept, self.opened, self.pending and self.pending.encode(),
                [list(member) for member in self.announced], self.announced_in,
                *((self.kind, self.lineage.hex()) if self.kind is not ShardKind.LOG or self.lineage else ()),
            ],
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> ReplicaState:
        """Read `encode`'s bytes; raises RemoteViolation when damaged, FormatTooNew when a newer release wrote them."""
        try:
            version, *fields = json.loads(data)
            if version not in STATE_FORMATS_READ:
                formats = ", ".join(map(str, STATE_FORMATS_READ))
                error = FormatTooNew if isinstance(version, int) and version > STATE_FORMAT else RemoteViolation
                raise error(f"replica state has format {version}, this build reads {formats}")
            commit, confirmed, (epoch, election, role, ensemble, snapshot_head, *snapshot) = fields
            snapshot_commit, snapshot_confirmed, copies, told, dropped, swept, *change = snapshot
            # An older build stored no announcement, so the members of its epoch may be others (T10).
            opened, pending, announced, announced_in, *rest = change + [0, None, (), epoch][len(change):]
            kind, lineage = rest or (ShardKind.LOG, "")
            return cls(
                epoch, election, Role(role), commit, confirmed, tuple(Member(*pair) for pair in ensemble),
                EntryId(*snapshot_head), snapshot_commit, snapshot_confirmed, copies, told, dropped, swept,
                opened, Pending.decode(pending) if pending else None,
                tuple(Member(*pair) for pair in announced), announced_in, ShardKind(kind), lineage_of(lineage),
            )
        except (ValueError, TypeError) as error:
            raise RemoteViolation(f"replica state cannot be read: {error!r}") from error


def with_watermarks(commit: int, confirmed: int, rest: bytes) -> bytes:
    """Return an encoded state: format, commit, confirmed, and `ReplicaState.encode_rest`."""
    return b"[%d,%d,%d,%b]" % (STATE_FORMAT, commit, confirmed, rest)


def opening_payload(state: ReplicaState, leader: Member, inherited_head: EntryId) -> bytes:
    """Payload of the control entry that opens an epoch: who was in charge, for whoever rebuilds metadata from logs."""
    return json.dumps(
        {
            "epoch": state.epoch, "election": state.election, "leader": list(leader),
            "ensemble": [list(member) for member in state.ensemble], "copies": state.copies,
            "inherited_head": list(inherited_head), "pending": state.pending and state.pending.encode(),
            **({"lineage": state.lineage.hex()} if state.lineage else {}),
        },
        separators=(",", ":"),
    ).encode()


class Opening(NamedTuple):
    """What the payload of an opening says; `says_pending` is false of those that older builds wrote."""

    ensemble: tuple[Member, ...]
    copies: int
    says_pending: bool
    pending: Pending | None
    lineage: bytes = b""   # none in the openings of a shard without one


def opening_of(entry: Entry) -> Opening:
    """Return what a control entry says of members and changes; raises RemoteViolation when it cannot be read."""
    try:
        payload = json.loads(entry.payload)
        raw = payload.get("pending")
        return Opening(
            tuple(Member(*pair) for pair in payload["ensemble"]), int(payload["copies"]),
            entry.kind is Kind.EPOCH_START or "pending" in payload,   # an election leaves nothing pending
            Pending.decode(raw) if raw else None,
            lineage_of(payload.get("lineage", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteViolation(f"control entry {entry.id} cannot be read: {error!r}") from error


class Replica:
    """Durable state, fold and watermarks of one shard on one node.

    `commit` and `confirmed` never fall while the process lives (H3, L13); `released` is what readers may have (A2).
    """

    __slots__ = (
        "_checkpoint_at", "_operators", "_rest", "_rows", "_trim_next", "_written", "address", "behind_ms", "beside",
        "commit", "confirmed", "copy_settings", "document_settings", "fetches", "folded", "limits", "log", "me",
        "now_ms", "peers_down", "raw_end", "released", "retention", "rows_wanted", "settings", "shard", "space",
        "state",
    )

    def __init__(self, shard: ShardId, me: Member, limits: Limits, table: Table = FOLDS) -> None:
        self.shard = shard
        self.address = of_shard(shard)
        self.me = me
        self.limits = limits
        self.state = ReplicaState()
        self.fetches = Fetches(self.address)   # copies of entries that other members were asked for
        self._rest: bytes | None = None   # encoded state but for watermarks; None when it changed since it was written
        self._written = (-1, -1)          # commit and confirmed as they were written last
        self.log = Log(table=table)
        self.commit = -1
        self.confirmed = -1
        self.released = -1
        self.settings: SynchroSettings | None = None   # what the operator asks of the shard; None: not told yet
        self.retention = RetentionSettings()   # nothing is removed until the operator asks
        self.copy_settings = CopySettings()
        self.document_settings = DocumentSettings()
        self.space = Space.FREE   # of the node's disk
        self.now_ms = 0            # the shell's clock at the event that is being consumed
        self.behind_ms = 0         # how far the wall clock is behind it: it was set back (C1)
        self.peers_down: Collection[Member] = ()  # shared with the node: members without a link
        self.folded = OFFSET_MAX   # durable rows stand for the log up to here (U47); a log without rows needs none
        self.beside: Callable[[Sequence[Write]], Iterable[Write]] | None = None   # what goes with a removal of log
        self.rows_wanted = False   # SEEDING: the rows of the snapshot are not whole yet (U47)
        self.raw_end = -1          # SEEDING: last offset stored in front of the snapshot's checkpoint
        self._trim_next = -1       # the next persist says how far to go on trimming, -1: nothing to say
        self._operators: dict[Peer, None] = {}   # those that spoke since the start, the newest last
        self._checkpoint_at = 0    # settled entries when the last checkpoint was written
        self._rows = ProducerRows(shard)

    @classmethod
    def restore(
        cls, shard: ShardId, me: Member, limits: Limits, state: bytes, checkpoint: bytes | None,
        headers: Iterable[Entry], table: Table = FOLDS, producers: Iterable[tuple[bytes, bytes]] = (),
        folded: int = -1,
    ) -> Replica:
        """Rebuild after a restart.  A leader comes back DEPOSED: its unsynced pushes may live on elsewhere.

        `producers` are the rows of the shard in the family `PRODUCERS`.  Up to `folded` the rows of documents vouch
        for what is confirmed, if the log has the entries (U47).
        """
        replica = cls(shard, me, limits, table)
        replica.state = ReplicaState.decode(state)
        replica._rest = replica.state.encode_rest()
        replica._written = (replica.state.commit, replica.state.confirmed)
        seeding = replica.state.role is Role.SEEDING
        commit = -1 if seeding else replica.state.commit
        stored = list(headers)
        if seeding and not checkpoint and stored and stored[0].base > 0:
            stored = []  # still in front of the snapshot's checkpoint: that part is pulled again
        replica.log = Log.restore(checkpoint, stored, commit, table, lambda: replica._rows.load(producers))
        if seeding:
            replica.log.settle(min(replica.state.snapshot_commit, replica.vouched))
        else:
            if commit > replica.log.head.offset:
                # State is written with or behind the entries it vouches for: synced entries are gone.
                raise RemoteViolation(f"K14: commit {commit} is stored, but the log ends at {replica.log.head}")
            # A CONFIRM in the durable log vouches for as much as the watermark does; EPOCH_START does not (L13).
            # The rows of a snapshot may be ahead of its entries: then the log's head need not be a cut (U46).
            known = folded if folded <= replica.log.head.offset else -1
            replica.confirmed = max(replica.state.confirmed, replica.log.decisions.confirmed, known)
            replica.commit = max(commit, replica.confirmed)
            replica.released = replica.confirmed   # the stage is no promise beyond a life (K10)
            replica.log.settle(replica.commit)
            replica.log.decide(replica.confirmed)
        if replica.state.role is Role.LEADER:
            replica.update(role=Role.DEPOSED)
        return replica

    @property
    def vouched(self) -> int:
        """How far a pulled log vouches for itself: by its last CONFIRM or EPOCH_START, and what it lacks (O32b)."""
        decisions = self.log.decisions
        opening = decisions.openings[-1] if decisions.openings else -1
        return max(decisions.confirmed, opening, self.log.floor.id.offset, self.state.dropped)

    @property
    def seat(self) -> Seat | None:
        """Our slot as we know it, None when we have none."""
        return seat_of(self.me, self.state.ensemble, self.state.copies)

    def adopt_facts(self, ensemble: tuple[Member, ...], copies: int, epoch: int) -> None:
        """Take over who is a member and how many keep each payload; a change makes us look again at what we keep."""
        before = self.seat
        self.update(ensemble=ensemble, copies=copies, told=epoch)
        if self.state.swept >= 0 and self.seat != before:
            self.update(swept=-1)

    def announce(self, members: tuple[Member, ...], epoch: int) -> None:
        """Take the members that an operator names in `epoch`; one whose build names none says nothing of them (T10)."""
        if members or epoch > self.state.announced_in:
            self.update(announced=members, announced_in=epoch)

    def adopt_opening(self, entry: Entry) -> None:
        """An opening entry names ensemble and copies; it is news in an epoch we were not told of.

        A second one in its epoch says what a change put in force there.
        """
        opening = opening_of(entry)
        run = self.log.runs[-1] if self.log.runs else None
        second = run is not None and run.epoch == entry.epoch and run.first < entry.base
        if entry.epoch > self.state.told or (second and entry.epoch == self.state.told):
            self.adopt_facts(opening.ensemble, opening.copies, entry.epoch)
        if opening.says_pending and entry.epoch >= self.state.opened:
            self.update(opened=entry.epoch, pending=opening.pending)
        if opening.lineage:
            self.update(lineage=opening.lineage)

    def update(self, **changes: Any) -> None:
        """Change the durable state in memory; the next `persist` writes it."""
        changed = replace(self.state, **changes)
        if changed != self.state:
            self.state = changed
            self._rest = None

    def persist(self, writes: Iterable[Write], then: Iterable[Effect] = ()) -> Persist:
        """Return a Persist of `writes` plus the state when it changed; watermarks ride along with any write."""
        together = list(writes)
        if self.beside is not None:
            together += self.beside(together)
        if self._rest is None or (together and self._written != (self.commit, self.confirmed)):
            if self._rest is None:
                self._rest = self.state.encode_rest()
            self._written = (self.commit, self.confirmed)
            together.append(PutState(with_watermarks(self.commit, self.confirmed, self._rest)))
        if self._trim_next >= 0:
            then = (*then, Feed(LocalStep(self.shard, self.state.epoch, TRIMMING, (self._trim_next,))))
            self._trim_next = -1
        return Persist(self.address, tuple(together), tuple(then))

    def advance_commit(self, commit: int) -> bool:
        """Raise commit, never lower it (H3); say whether it moved."""
        if commit <= self.commit:
            return False
        assert commit <= self.log.head.offset, "L9: committed past our own head"
        self.commit = commit
        self.log.settle(commit)
        return True

    def advance_confirmed(self, confirmed: int, released: int | None = None) -> list[Effect]:
        """Raise confirmed, never lower it (L13), and release it to readers, no further than `released` (K10)."""
        if confirmed > self.confirmed:
            assert confirmed <= self.commit, "A2: confirmed past commit"
            found = self.log.decisions.covering(confirmed)
            assert found is None, f"L3: confirmed {confirmed} lies inside {found}"
            self.confirmed = confirmed
            self.log.decide(confirmed)
        released = confirmed if released is None else min(released, confirmed)
        if released <= self.released:
            return []
        self.released = released
        return [Released(self.shard, released)]

    def fate(self, place: Place) -> Fate:
        """Return what is known of an entry in the log, at our own `confirmed` (L10, L19)."""
        if (found := self.log.decisions.covering(place.base)) is not None:
            return Fate.ROLLED_BACK if found.at <= self.confirmed else Fate.UNKNOWN
        return Fate.CONFIRMED if place.last <= self.confirmed else Fate.UNKNOWN

    def checkpoint_if_due(self) -> list[Write]:
        """Return a checkpoint write when enough was committed since the last one, to keep restarts short.

        A checkpoint costs as much as it holds, so one that holds much is written less often.  Its rows are as many as
        producers have changed, and never many: then a checkpoint is due, or a part of them where they do not count yet.
        """
        log, limits = self.log, self.limits
        settled, rows = log.settled_entries - self._checkpoint_at, log.producers.unsaved
        if rows > limits.checkpoint_rows and not self._rows.in_force:
            return self._rows.part(log.producers, limits.checkpoint_rows)
        if settled < limits.checkpoint_entries and rows < limits.checkpoint_rows:
            return []    # nearly always, so before the weight is summed
        weight = log.weight
        if settled >= limits.checkpoint_entries and settled >= weight:
            return self._checkpoint()
        if rows >= limits.checkpoint_rows and rows >= weight // ITEMS_PER_ROW:
            return self._checkpoint()
        return []

    def trim_to(self, first: int) -> list[Write]:
        """Return the writes that trim to `first`, an entry boundary; the fold below survives in the checkpoint.

        Where many producers have no rows yet, they are a part of these alone, and the trim goes on when they are
        durable: `persist` says so to the shard, by the step `TRIMMING`.
        """
        first = min(first, self.confirmed + 1, self.folded + 1)
        if first <= self.log.first:
            return []
        if not self._rows.in_force and self.log.producers.unsaved > self.limits.checkpoint_rows:
            self._trim_next = first
            return self._rows.part(self.log.producers, self.limits.checkpoint_rows)
        self.log.trim(first)
        return [*self._checkpoint(), DropBefore(first)]

    def _checkpoint(self) -> list[Write]:
        """Rule L25: the checkpoint leaves the producers to their rows, of which it writes those that have changed."""
        checkpoint = self.log.checkpoint(producers=False)
        self._checkpoint_at = self.log.settled_entries
        self.log.purge(checkpoint.logged_ms)
        return [PutCheckpoint(checkpoint.encode()), *self._rows.rest(self.log.producers)]

    def wipe(self) -> list[Write]:
        """Forget the log; return the writes that remove it and what is stored beside it."""
        self.forget_log()
        return [Wipe(), self._rows.wipe()]

    def forget_log(self) -> None:
        """Start over with an empty log (`wipe` says what to write)."""
        self.log, mark_ms = Log(table=self.log.table), self.log.mark_ms
        self.log.mark_ms = mark_ms
        self.commit = self.confirmed = self.released = -1
        self.update(dropped=-1, swept=-1)
        self.raw_end = -1
        self._checkpoint_at, self._rows = 0, ProducerRows(self.shard)
        self.rows_wanted = self.state.kind is ShardKind.DOCUMENTS

    def wall_behind(self, now_ms: int) -> int:
        """Return what our wall clock says when the shell's clock stands at `now_ms`, in milliseconds."""
        return now_ms - self.behind_ms

    @property
    def wall_ms(self) -> int:
        """Our wall clock, in milliseconds, for others to hear (C2)."""
        return self.now_ms - self.behind_ms

    def send(self, to: Peer, message: Any) -> Send:
        return Send(self.address, to, message)

    def reject(self, to: Peer, request: Any, reason: Reason, message: str = "", expected: int = -1) -> list[Effect]:
        """Answer an operator's request with a typed no that carries our epoch, and an offset where one matters."""
        refusal = Refused(reason, message, self.state.epoch, expected)
        nonce = request.nonce if isinstance(request, Fence) else 0
        return [self.send(to, Rejected(request.epoch, type(request).__name__, refusal, nonce))]

    def heard(self, operator: Peer) -> None:
        """Note that an operator spoke to this replica."""
        self._operators.pop(operator, None)
        self._operators[operator] = None
        if len(self._operators) > OPERATORS_MAX:
            del self._operators[next(iter(self._operators))]

    def report(self, about: Any, reason: Reason, message: str, expected: int) -> list[Effect]:
        """Give every operator that spoke a typed no: one of them is active, and another one may have spoken last."""
        return [each for to in self._operators for each in self.reject(to, about, reason, message, expected)]

    def trace(self, what: str, detail: str = "") -> Trace:
        return Trace(self.address, what, detail)
