"""The log plane of one node: its shards; routes events to them, creates replicas, closes their turns.

Stays out: protocols; they are behind `shard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .base.effects import (
    ClockStepped,
    DiskSpace,
    Effect,
    LocalDurable,
    LocalStep,
    LogRead,
    LogReadFailed,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Reply,
    RowsDurable,
    RowsRead,
    RowsScanned,
    Send,
    SnapshotChunk,
    SnapshotFailed,
    SnapshotRows,
    Space,
    TimerFired,
    Trace,
)
from .base.entry import Entry
from .base.ids import Member, ShardId, ShardKind, group_of, index_of, of_shard
from .base.limits import Limits
from .base.plane import NodeFacts, Stored
from .base.refusals import Reason, Refused
from .delivery.order import Block
from .document_shard import Documents, StoredRows
from .documents.requests import DOCUMENT_REQUESTS
from .documents.rows import Rows
from .limbo.view import LimboView
from .replication.clients import CLIENT_EVENTS
from .replication.floors import FLOORS, Floors, PromiseRequest
from .replication.holding import may_lack
from .replication.inspection import limbo_view
from .replication.log import recovery_start
from .replication.messages import Append, AppendRefused, Diverged, Fence, InstallSnapshot, Reach, Rejected, Unheard
from .replication.positions import subscriptions_view
from .replication.producer_rows import PRODUCERS, span_of
from .replication.recovery import ReplicaReport
from .replication.replica import ReplicaState, Role
from .replication.settings import Configure
from .replication.trust import VOICES
from .shard import Shard
from .subscriptions.view import SubscriptionsView

__all__ = ["LogPlane", "recovery_start"]

REQUESTS = (*CLIENT_EVENTS, *DOCUMENT_REQUESTS)

LOG_EVENTS = (
    LogRead, LogReadFailed, SnapshotChunk, SnapshotFailed, LocalDurable, LocalStep, Configure, PromiseRequest,
    SnapshotRows, *REQUESTS,
)
"""Events of the log plane alone; all but PromiseRequest carry a ShardId."""

ADDRESSED = frozenset((Received, TimerFired, RowsRead, RowsScanned, RowsDurable))

OFFSETS_END = 1 << 63

NO_SHARD = of_shard(ShardId(0))
"""The address of writes about the plane itself.  No shard has it: groups are numbered from 1."""


class LogPlane:
    """The decisions of one node, for all its shards."""

    unit = "shard"
    events = LOG_EVENTS
    voices = VOICES

    def __init__(self, node: NodeFacts, limits: Limits) -> None:
        self.me = node.me
        self.limits = limits
        self.shards: dict[ShardId, Shard] = {}
        self._floors = Floors()
        self._space = Space.FREE
        self._clock_behind_ms = 0
        self._peers_down: dict[Member, None] = {}
        self._peers_up: dict[Member, None] = {}
        self._restless: dict[ShardId, Shard] = {}   # what their leaders hear may have changed since the last look
        self._touched: dict[ShardId, Shard] = {}

    def recover(self, stored: Stored) -> None:
        """Load every stored shard; call before the first step.  Raises RemoteViolation on damaged state."""
        self._floors.recover(stored.rows(FLOORS))
        for number in stored.units():
            shard = ShardId(number)
            state, checkpoint = stored.unit(number)
            headers = stored.headers(shard, recovery_start(checkpoint))
            documents = ReplicaState.decode(state).kind is ShardKind.DOCUMENTS
            rows = StoredRows(stored) if documents else None
            self.load(shard, state, checkpoint, headers, stored.rows(PRODUCERS, *span_of(shard)), rows)

    def load(
        self, shard: ShardId, state: bytes, checkpoint: bytes | None, headers: Iterable[Entry],
        producers: Iterable[tuple[bytes, bytes]] = (), rows: Rows | None = None,
    ) -> None:
        """Recover one stored shard; call before the first step.  Raises RemoteViolation on damaged state."""
        self._hold(shard, Shard.restore(shard, self.me, self.limits, state, checkpoint, headers, producers, rows))

    def _hold(self, shard_id: ShardId, shard: Shard) -> Shard:
        shard.replica.space = self._space
        shard.replica.behind_ms = self._clock_behind_ms
        shard.replica.peers_down = self._peers_down
        self.shards[shard_id] = shard
        return shard

    def leading(self) -> list[ShardId]:
        """Return the shards this node leads, in order of id."""
        return sorted(shard for shard, held in self.shards.items() if held.leader is not None)

    def lagging(self) -> set[str]:
        """Return the nodes that some shard led here waits for: down, full, or still catching up."""
        leaders = [held.leader for held in self.shards.values() if held.leader is not None]
        return {member.node for leader in leaders for member in leader.lagging()}

    def units(self) -> Iterable[int]:
        """Return the shards held here."""
        return self.shards

    def name(self, unit: int) -> str:
        """Return a shard's name for people: group and index."""
        return f"{group_of(ShardId(unit))}/{index_of(ShardId(unit))}"

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        """Consume one event; return effects in the order the shell must run them."""
        kind = event.__class__      # every event passes here
        if kind in ADDRESSED:
            shard_id = event.address[1]
        elif kind is PeerUp or kind is PeerDown:
            return self._on_peer(now_ms, event)
        elif kind is DiskSpace:
            return self._on_disk_space(event)
        elif kind is ClockStepped:
            return self._on_clock(event)
        elif kind is PromiseRequest:
            return self._on_promise(event)
        else:
            shard_id = event.shard
        if self._floors and kind is Received and (refused := self._below_floor(shard_id, event)):
            return refused
        shard = self.shards.get(shard_id)
        if shard is None:
            if isinstance(event, Received):
                wanted = self._kind_to_create(event)
                if wanted is None:
                    return self._refuse(event, Reason.UNKNOWN_SHARD, "this node holds no such shard")
                if wanted not in self.limits.kinds:
                    what = f"the store of this node has no families for a shard of kind {wanted}"
                    return self._refuse(event, Reason.WRONG_STATE, what)
                shard = self._hold(shard_id, Shard.new(shard_id, self.me, self.limits, wanted))
            elif isinstance(event, REQUESTS):
                return [Reply(event.request, Refused(Reason.UNKNOWN_SHARD, "this node holds no such shard"))]
            else:
                return []
        self._touched[shard_id] = shard
        return shard.step(now_ms, event)

    def finish_turn(self, now_ms: int) -> list[Effect]:
        """Close the turn of every shard that this turn touched."""
        effects: list[Effect] = []
        for shard in self._touched.values():
            effects += shard.finish_turn(now_ms)
        self._restless.update(self._touched)
        self._touched.clear()
        return effects

    def reach(self, now_ms: int, silence_ms: int) -> Reach:
        """Return whom this node reaches, and what its leaders do not hear (O43).

        A shard at which nothing happened since the last look, and nothing waits, costs nothing.
        """
        unheard: list[Unheard] = []
        for shard_id, shard in list(self._restless.items()):
            found, again = shard.leader.hearing.look(now_ms, silence_ms) if shard.leader else (None, False)
            if found is not None:
                unheard.append(found)
            if not again:
                del self._restless[shard_id]
        diverged = tuple(
            Diverged(shard_id, held.leader.epoch, member, at) for shard_id, held in self.shards.items()
            if held.documents is not None and held.leader is not None
            for member, at in held.documents.comparing.diverged.items()
        )
        return Reach(tuple(self._peers_up), tuple(self._peers_down), tuple(unheard), diverged)

    def _kind_to_create(self, event: Received) -> ShardKind | None:
        """A replica begins when an operator fences a new member or seeds one; never by a peer's word."""
        message = event.message
        if not isinstance(message, Fence | InstallSnapshot) or isinstance(event.sender, Member):
            return None
        return message.kind if isinstance(message, Fence) else message.snapshot.kind

    def _on_promise(self, event: PromiseRequest) -> list[Effect]:
        """Rule N10: the reports leave when the promise is durable; everything that they say was written before."""
        refused = self._floors.refusal(event.floors, self._epoch_of)
        if refused is not None:
            return [Reply(event.request, refused)]
        writes = self._floors.promise(event.floors)
        reports = tuple(self.report(shard) for shard in event.floors if shard in self.shards)
        return [Persist(NO_SHARD, tuple(writes), (Reply(event.request, reports),))]

    def _epoch_of(self, shard: ShardId) -> int:
        held = self.shards.get(shard)
        return held.replica.state.epoch if held is not None else 0

    def _below_floor(self, shard: ShardId, event: Received) -> list[Effect]:
        """Refuse an operator's message below the promised epoch; `expected` names that epoch (N10)."""
        floor, epoch = self._floors.of(shard), getattr(event.message, "epoch", 0)
        if epoch >= floor or isinstance(event.sender, Member):
            return []
        own = self._epoch_of(shard)
        return self._refuse(event, Reason.STALE_EPOCH, f"N10: epoch {floor} was promised", own, floor)

    def not_meant(self, event: Received) -> list[Effect]:
        """Refuse a message to another life of this disk and act on nothing (K14)."""
        return self._refuse(event, Reason.NOT_MEMBER, f"this is {self.me}, not {event.to}")

    def _refuse(
        self, event: Received, reason: Reason, message: str, epoch: int = -1, expected: int = -1
    ) -> list[Effect]:
        request = event.message
        if isinstance(event.sender, Member):
            if not isinstance(request, Append):
                return []
            head = AppendRefused(request.epoch, -1, request.prev, reason)
            return [Send(event.address, event.sender, head)]
        refused = Rejected(
            getattr(request, "epoch", -1), type(request).__name__, Refused(reason, message, epoch, expected),
            getattr(request, "nonce", 0),
        )
        return [Send(event.address, event.sender, refused)]

    def _on_peer(self, now_ms: int, event: PeerUp | PeerDown) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, PeerDown):
            self._peers_down[event.member] = None
            self._peers_up.pop(event.member, None)
        else:
            self._peers_up[event.member] = None
            self._peers_down.pop(event.member, None)
        for shard_id, shard in self.shards.items():
            if shard.leader is not None and event.member in shard.leader.cursors:
                self._touched[shard_id] = shard
                effects += shard.leader.on_peer(now_ms, event.member, isinstance(event, PeerUp))
        return effects

    def _on_disk_space(self, event: DiskSpace) -> list[Effect]:
        self._space = event.space
        for shard in self.shards.values():
            shard.replica.space = event.space
        return []

    def _on_clock(self, event: ClockStepped) -> list[Effect]:
        self._clock_behind_ms = event.behind_ms
        for shard in self.shards.values():
            shard.replica.behind_ms = event.behind_ms
            if shard.leader is not None:
                shard.leader.clocks.stepped(event.by_ms)
                shard.leader.hearing.stepped(event.by_ms)
        return []

    def holes(self, shard_id: ShardId, first: int, last: int) -> list[tuple[int, int]] | None:
        """Return what is rolled back of offsets [first, last], inclusive ranges in order: no reader is given them.

        None when that cannot be said: the log is not confirmed that far here, or not any more (it was loaded again).
        """
        shard = self.shards.get(shard_id)
        if shard is None or shard.replica.confirmed < last:
            return None
        return shard.replica.log.decisions.holes(first, last, shard.replica.confirmed)

    def documents(self, shard_id: ShardId) -> Documents | None:
        """Return what is folded here of a shard of documents; None where it is none, or rows are missing."""
        shard = self.shards.get(shard_id)
        if shard is None or shard.replica.state.role in (Role.SEEDING, Role.DELETED):
            return None
        return shard.documents

    def block_at(self, shard_id: ShardId, offset: int) -> Block:
        """Return in which reading order offsets from here on are sent, and how far; of a shard that we hold."""
        return self.shards[shard_id].replica.log.block_at(offset)

    def readable(self, shard_id: ShardId) -> tuple[int, int] | None:
        """Return the first offset held here and the last one that may be shown, -1 when there is none yet.

        None when this node is no member in good standing: it holds no such shard, is being seeded, or gave it up.  A
        follower shows what it knows to be confirmed, so a fenced or stale one shows less, never what others hide.
        """
        shard = self.shards.get(shard_id)
        if shard is None or shard.replica.state.role in (Role.SEEDING, Role.DELETED):
            return None
        return shard.replica.log.first, shard.replica.released

    def pull_refused(self, shard_id: ShardId, puller: Member) -> Trace | None:
        """Say why this node may pull nothing of a shard, None when it may; to be asked before each read (T10)."""
        shard = self.shards.get(shard_id)
        return shard.pull_refused(puller) if shard is not None else None

    def snapshot_part(
        self, shard_id: ShardId, epoch: int, entries: Sequence[Entry]
    ) -> tuple[tuple[Entry, ...], bool]:
        """Return what of `entries`, stored here in a row, a pull of `epoch` may get, and whether it goes on behind.

        The leader of `epoch` leaves out payloads that are surplus in the slot it seeds; others serve whole entries.
        Where it ends, the pulling member asks another one (K12).
        """
        shard = self.shards.get(shard_id)
        return shard.snapshot_part(epoch, entries) if shard is not None else ((), False)

    def may_lack(self, shard_id: ShardId, offset: int) -> bool:
        """Say whether the payload of the data entry at `offset` may rightly be missing here (K9); else it is damage."""
        shard = self.shards.get(shard_id)
        return shard is None or may_lack(shard.replica, offset)

    def lost_at(self, shard_id: ShardId, entries: Sequence[Entry]) -> int | None:
        """Return where the first of `entries` that lacks a payload which belongs here begins (K9), None for none."""
        return next(
            (entry.base for entry in entries if not entry.held and not self.may_lack(shard_id, entry.last)), None)

    def report(self, shard_id: ShardId) -> ReplicaReport:
        """Return what this node persisted of a shard that it holds, for a recovery of metadata."""
        replica = self.shards[shard_id].replica
        state = replica.state
        return ReplicaReport(
            shard_id, self.me, state.role, state.epoch, state.election, state.told, state.ensemble, state.copies,
            state.opened, state.pending, replica.log.head, replica.commit, self._floors.of(shard_id), state.kind,
            state.lineage,
        )

    def trimmed(self) -> dict[ShardId, int]:
        """Return the offset below which entries of each shard were removed, if any were; a deleted replica has none."""
        removed = {
            shard: OFFSETS_END if held.replica.state.role is Role.DELETED else held.replica.log.first
            for shard, held in self.shards.items()
        }
        return {shard: first for shard, first in removed.items() if first > 0}

    def bytes_held(self, shard_id: ShardId) -> int | None:
        """Return how much log of a shard is held here, as a snapshot of it would tell; None when there is none."""
        shard = self.shards.get(shard_id)
        return shard.replica.log.bytes_held if shard is not None else None

    def limbo(self, shard_id: ShardId, now_ms: int, entries_max: int) -> LimboView | None:
        """Return who waits for whom on a shard led here, None when it is not."""
        shard = self.shards.get(shard_id)
        return limbo_view(shard.leader, now_ms, entries_max) if shard is not None and shard.leader else None

    def subscriptions(self, shard_id: ShardId, now_ms: int) -> SubscriptionsView | None:
        """Return where the subscriptions of a shard led here stand, None when it is not."""
        shard = self.shards.get(shard_id)
        if shard is None or shard.leader is None:
            return None
        return subscriptions_view(shard.replica, shard.leader.epoch, now_ms)

    def status(self, unit: int) -> dict[str, Any]:
        """Return what a person wants to know of one shard, ready for JSON."""
        shard = self.shards[ShardId(unit)]
        replica, leader = shard.replica, shard.leader
        view: dict[str, Any] = {
            "shard": self.name(unit),
            "role": replica.state.role,
            "epoch": replica.state.epoch,
            "election": replica.state.election,
            "ensemble": [str(member) for member in replica.state.ensemble],
            "head": str(replica.log.head),
            "commit": replica.commit,
            "confirmed": replica.confirmed,
            "rolled_back": [list(found) for found in replica.log.decisions.ranges[-16:]],
            "released": replica.released,
            "copies": replica.state.copies,
            "dropped": replica.state.dropped,
            "swept": replica.state.swept,
            "first": replica.log.first,
            "oldest_logged_ms": replica.log.marks[0].logged_ms if replica.log.marks else None,
            "retention": {
                "age_ms": replica.retention.age_ms, "bytes_max": replica.retention.bytes_max,
                "bytes_hard": replica.retention.bytes_hard,
            },
            "subscriptions": len(replica.log.subscriptions),
            "bytes": replica.log.bytes_held,
            "unsettled_entries": replica.log.unsettled_entries,
            "producers": len(replica.log.producers),
            "disk_full": bool(replica.space),
            "space": replica.space.name,
        }
        if shard.documents is not None:
            view["documents"] = shard.documents.status()
        if leader is not None and replica.state.role is Role.LEADER:
            view["leader"] = {
                "active": leader.active,
                "durable": leader.durable,
                "limbo": len(leader.outcomes.limbo),
                "limbo_bytes": leader.outcomes.limbo.bytes,
                "change": leader.change.operation if leader.change else None,
                "complete": leader.stages.complete(),
                "clock_skews_ms": {member.node: skew for member, skew in leader.clocks.skews()},
                "transfer_to": leader.transfer.to.node if leader.transfer else None,
                "cursors": {
                    str(member): {
                        "status": cursor.status, "match": cursor.match, "next": cursor.next, "commit": cursor.commit,
                        "up": cursor.up, "inflight_bytes": cursor.inflight_bytes, "space": cursor.space.name,
                    }
                    for member, cursor in leader.cursors.items()
                },
            }
        return view
