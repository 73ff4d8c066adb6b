"""A small deterministic cluster for tests of the core: no faults but those a test asks for.

`Node` is one node's shell: it runs effects, keeps what is written apart from what is durable, and collects what
was sent.  It can be used alone, by hand (`complete` makes the next persist durable).  `Cluster` connects nodes,
operators and a metadata store by one event queue; messages take a millisecond, so do writes.
Stays out: random faults; those are the simulator's.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from google_crc32c import value as crc32c
from tidemark_core.base.effects import (
    Changed,
    Delete,
    DeleteRange,
    DropAfter,
    DropBefore,
    DropPayloads,
    Effect,
    Feed,
    LogRead,
    LogReadFailed,
    PeerDown,
    PeerUp,
    Persist,
    PullSnapshot,
    Put,
    PutCheckpoint,
    PutEntry,
    PutMany,
    PutState,
    ReadLog,
    Received,
    Released,
    Reply,
    Send,
    SetTimer,
    SnapshotChunk,
    SnapshotFailed,
    TimerFired,
    Trace,
    Wipe,
    Write,
)
from tidemark_core.base.entry import (
    FOLDED_WITH_PAYLOAD,
    Batch,
    Durability,
    Entry,
    Kind,
    control,
    decode,
    decode_header,
    seal,
)
from tidemark_core.base.errors import CorruptEntry
from tidemark_core.base.ids import LOG_PLANE, NOTHING, EntryId, Member, OperatorId, Peer, ShardId, of_shard, shard_id
from tidemark_core.base.limits import Limits
from tidemark_core.base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    SaveMetadata,
)
from tidemark_core.base.plane import NodeFacts
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.limbo.view import LimboView
from tidemark_core.node import NodeCore
from tidemark_core.planes import planes
from tidemark_core.replication import invariants
from tidemark_core.replication.clients import (
    AppendRequest,
    CommitPosition,
    DeleteSubscription,
    LatestRequest,
    OutcomeRequest,
    ReadRequest,
    SubscriptionsRequest,
    TrimRequest,
)
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.follower import Follower
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.log import Log
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    Appended,
    BecomeLeader,
    Fate,
    Fence,
    Operation,
    Outcome,
    ReadGrant,
)
from tidemark_core.replication.outcomes import QUORUM_TIMER
from tidemark_core.replication.records import (
    CancelChange,
    ChangeProgress,
    CoordinatorSettings,
    ShardRecord,
    StartChange,
    StartTransfer,
    first_record,
)
from tidemark_core.replication.replica import Replica, Role, opening_payload, with_watermarks
from tidemark_core.replication.settings import Configure, RetentionSettings
from tidemark_core.shard import Shard
from tidemark_core.subscriptions.fold import LEASE_MS_DEFAULT, position_payload

SHARD = shard_id(1, 0)
AT = of_shard(SHARD)
OPERATOR = OperatorId("op/1")
PRODUCER = b"producer-number1"
OTHER_PRODUCER = b"producer-number2"
CHUNK_ENTRIES = 4


def member(name: str) -> Member:
    """Return the first life of a node's disk."""
    return Member(name, f"{name}-disk1")


A, B, C, D, E, F = (member(name) for name in "abcdef")


def batch(
    sequence: int, *, producer: bytes = PRODUCER, count: int = 1, payload: bytes | None = None,
    durability: Durability = Durability.QUORUM,
) -> Batch:
    """Return a producer's batch whose payload says what it is."""
    body = payload if payload is not None else b"%s/%d" % (producer, sequence)
    return Batch(producer, sequence, count, 1_000, 2_000, crc32c(body), body, durability)


class Author:
    """Writes entries as a leader would, each right behind the one before; for logs made by hand."""

    def __init__(self, epoch: int = 1, ensemble: Sequence[Member] = (A, B, C)) -> None:
        self.log = Log()
        self.epoch = epoch
        self.ensemble = tuple(ensemble)
        self.entries: list[Entry] = []
        self._sequences: Counter[bytes] = Counter()

    def data(
        self, count: int = 1, *, producer: bytes = PRODUCER, logged_ms: int = 0, payload: bytes | None = None,
        sequence: int | None = None, durability: Durability = Durability.QUORUM, order: int = 0,
    ) -> Entry:
        """Append the producer's next batch."""
        if sequence is None:
            sequence = self._sequences[producer]
        self._sequences[producer] = sequence + 1
        return self._take(
            seal(
                batch(sequence, producer=producer, count=count, payload=payload, durability=durability),
                kind=Kind.DATA, epoch=self.epoch, prev=self.log.head, prev_chain=self.log.chain,
                logged_ms=max(logged_ms, self.log.logged_ms), order=order,
            )
        )

    def opening(self, kind: Kind = Kind.EPOCH_START, epoch: int | None = None, lineage: bytes = b"") -> Entry:
        """Append the control entry that opens an epoch."""
        self.epoch = epoch if epoch is not None else self.epoch
        replica = Replica(SHARD, self.ensemble[0], Limits())
        replica.update(epoch=self.epoch, election=self.epoch * 10, ensemble=self.ensemble, lineage=lineage)
        return self._take(self._control(kind, opening_payload(replica.state, self.ensemble[0], self.log.head)))

    def confirm(self, upto: int) -> Entry:
        """Append CONFIRM(upto)."""
        return self._take(self._control(Kind.CONFIRM, argument=upto))

    def rollback(self, first: int) -> Entry:
        """Append ROLLBACK(first)."""
        return self._take(self._control(Kind.ROLLBACK, argument=first))

    def position(self, name: str, offset: int, lease_ms: int = LEASE_MS_DEFAULT, *, logged_ms: int = 0) -> Entry:
        """Append a POSITION record."""
        payload = position_payload(name, lease_ms)
        return self._take(
            control(
                Kind.POSITION, payload, epoch=self.epoch, prev=self.log.head, prev_chain=self.log.chain,
                logged_ms=max(logged_ms, self.log.logged_ms), argument=offset,
            )
        )

    def forged(self, kind: Kind, argument: int) -> Entry:
        """Return a CONFIRM or ROLLBACK right behind our log that no fold needs to accept."""
        return self._control(kind, argument=argument)

    def _control(self, kind: Kind, payload: bytes = b"", argument: int = -1) -> Entry:
        return control(
            kind, payload, epoch=self.epoch, prev=self.log.head, prev_chain=self.log.chain,
            logged_ms=self.log.logged_ms, argument=argument,
        )

    def fork(self, upto: EntryId, epoch: int) -> Author:
        """Return an author who goes on from our entry `upto` in another epoch."""
        twin = Author(epoch, self.ensemble)
        for entry in self.entries:
            if entry.id <= upto:
                twin._take(entry)
                if entry.kind is Kind.DATA:
                    twin._sequences[entry.producer] = entry.sequence + 1
        return twin

    def _take(self, entry: Entry) -> Entry:
        self.log.append(entry)
        self.entries.append(entry)
        return entry


def append_of(
    entries: Sequence[Entry], epoch: int, commit: int = -1, trim: int = 0, prev: EntryId = NOTHING,
    confirmed: int | None = None,
) -> Append:
    """Return the message that pushes `entries`, or a heartbeat behind `prev`; committed is confirmed unless said."""
    through = entries[-1].last if entries else prev.offset
    commit = min(commit, through)
    confirmed = commit if confirmed is None else confirmed
    return Append(epoch, entries[0].prev if entries else prev, tuple(entries), through, commit, confirmed, trim)


def answer_reads(node: Node) -> None:
    """Answer what a node reads of its own log to check a copy that it was given, and make its writes durable."""
    while node.reads:
        node.step(node.answer_read(node.reads.pop()))
    node.complete()


def visible(entries: Iterable[Entry], cut: int) -> list[Entry]:
    """Rule L5 word for word: what a reader may be shown of a log whose `confirmed` is `cut`."""
    shown: list[Entry] = []
    pending: list[Entry] = []
    for entry in entries:
        if entry.kind is Kind.DATA:
            pending.append(entry)
        elif entry.base > cut:
            continue   # records above the cut have no effect
        elif entry.kind is Kind.CONFIRM:
            shown += [waiting for waiting in pending if waiting.last <= entry.sequence]
            pending = [waiting for waiting in pending if waiting.last > entry.sequence]
        elif entry.kind is Kind.EPOCH_START:
            shown, pending = shown + pending, []
        elif entry.kind is Kind.ROLLBACK:
            pending = [waiting for waiting in pending if waiting.base < entry.sequence]
    return shown + [waiting for waiting in pending if waiting.last <= cut]


# --- disks ------------------------------------------------------------------------------------------------


@dataclass
class Image:
    """What a store holds of one shard."""

    state: bytes | None = None
    checkpoint: bytes | None = None
    entries: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    rows: dict[tuple[str, bytes], bytes] = field(default_factory=dict)   # of families beside the log

    def copy(self) -> Image:
        return Image(self.state, self.checkpoint, dict(self.entries), dict(self.rows))

    def apply(self, write: Write) -> None:
        match write:
            case Put(family, key, value):
                self.rows[family, key] = value
            case PutMany(family, rows):
                self.rows.update(((family, key), value) for key, value in rows)
            case Delete(family, key):
                self.rows.pop((family, key), None)
            case DeleteRange(family, begin, behind):
                self.rows = {
                    at: value for at, value in self.rows.items() if at[0] != family or not begin <= at[1] < behind
                }
            case PutEntry(entry):
                self.entries[entry.base] = (entry.header, entry.payload)
            case DropAfter(offset):
                self.entries = {base: kept for base, kept in self.entries.items() if base <= offset}
            case DropBefore(offset):
                self.entries = {
                    base: kept for base, kept in self.entries.items() if decode_header(kept[0]).last >= offset
                }
            case DropPayloads(first, last):
                for base in self.entries:
                    if first <= base <= last:
                        entry = decode_header(self.entries[base][0])
                        if entry.kind in FOLDED_WITH_PAYLOAD:
                            continue   # it lies with the header
                        assert entry.kind is Kind.DATA or not entry.payload_bytes, f"K9: control entry {entry.id}"
                        self.entries[base] = (entry.header, b"")
            case PutState(state):
                self.state = state
            case PutCheckpoint(checkpoint):
                self.checkpoint = checkpoint
            case Wipe():
                self.entries = {}
                self.checkpoint = None

    def headers(self, first: int) -> list[Entry]:
        found = [(decode_header(self.entries[base][0]), base) for base in sorted(self.entries) if base >= first]
        return [
            decode(*self.entries[base]) if header.kind in FOLDED_WITH_PAYLOAD else header for header, base in found
        ]

    def all(self) -> list[Entry]:
        """Return every entry, as its header where its payload is not kept; raises CorruptEntry at a damaged one."""
        return [self._decode(*self.entries[base]) for base in sorted(self.entries)]

    def intact(self) -> list[Entry]:
        """Return every entry whose stored bytes are what was written."""
        found = []
        for base in sorted(self.entries):
            with suppress(CorruptEntry):
                found.append(self._decode(*self.entries[base]))
        return found

    @staticmethod
    def _decode(header: bytes, payload: bytes) -> Entry:
        return decode(header, payload) if payload else decode_header(header)

    def read(self, first: int, last: int, bytes_max: int) -> tuple[tuple[Entry, ...], int | None]:
        """Return entries as `ReadLog` asks for them, and the base of a damaged one that comes first."""
        found: list[Entry] = []
        size = 0
        for base in sorted(self.entries):
            if base < first or decode_header(self.entries[base][0]).last > last or (found and size >= bytes_max):
                continue
            try:
                found.append(self._decode(*self.entries[base]))
            except CorruptEntry:
                return tuple(found), None if found else base
            size += found[-1].size
        return tuple(found), None


class StoredImages:
    """The images of a node as its core reads them at start."""

    def __init__(self, images: dict[ShardId, Image]) -> None:
        self.images = images

    def units(self) -> list[int]:
        return [shard for shard, image in self.images.items() if image.state is not None]

    def unit(self, unit: int) -> tuple[bytes, bytes | None]:
        image = self.images[ShardId(unit)]
        assert image.state is not None
        return image.state, image.checkpoint

    def headers(self, shard: ShardId, first: int) -> list[Entry]:
        return self.images[shard].headers(first)

    def rows(self, family: str, first: bytes = b"", behind: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for image in self.images.values():
            for (of, key), value in sorted(image.rows.items()):
                if of == family and first <= key and (behind is None or key < behind):
                    yield key, value


# --- a node -----------------------------------------------------------------------------------------------


class Node:
    """The shell of one node.  Alone it is driven by hand; in a cluster the cluster completes and delivers."""

    def __init__(self, me: Member, limits: Limits | None = None, cluster: Cluster | None = None) -> None:
        self.me = me
        self.limits = limits or Limits()
        self.cluster = cluster
        self.core: NodeCore | None = None
        self.life = 0
        self.now_ms = 0
        self.durable: dict[ShardId, Image] = {}
        self.written: dict[ShardId, Image] = {}
        self.queue: deque[Persist] = deque()
        self.sent: list[Send] = []
        self.replies: dict[int, list[Any]] = {}
        self.timers: dict[tuple[ShardId, str], int] = {}
        self.released: dict[ShardId, int] = {}   # of this life
        self.pulls: list[PullSnapshot] = []
        self.reads: list[ReadLog] = []
        self.traces: Counter[str] = Counter()
        self.settings: SynchroSettings | None = SynchroSettings()   # told to every shard that was not told before
        self.retention = RetentionSettings()
        self.start()

    # --- lives ---

    def start(self) -> None:
        """Recover what is durable."""
        self.life += 1
        self.queue.clear()
        self.timers.clear()
        self.released = {}
        self.written = {shard: image.copy() for shard, image in self.durable.items()}
        self.core = NodeCore(NodeFacts(self.me), planes(self.limits))
        self.core.recover(lambda plane: StoredImages(self.durable if plane == LOG_PLANE else {}))
        self._configure()
        self.check()

    def power_cut(self) -> None:
        """Stop at once; whatever was not completed is lost."""
        self.core = None
        self.life += 1
        self.queue.clear()
        self.timers.clear()
        self.written = {}

    def restart(self) -> None:
        self.power_cut()
        self.start()

    def wipe(self) -> None:
        """Lose the disk: from now on another member (K14)."""
        self.power_cut()
        self.durable = {}
        name, life = self.me.incarnation.rsplit("-disk", 1)
        self.me = Member(self.me.node, f"{name}-disk{int(life) + 1}")
        self.start()

    # --- looking in ---

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def boot(self) -> str:
        return f"{self.me.node}-boot{self.life}"

    @property
    def shard(self) -> Shard:
        assert self.core is not None
        return self.core.log.shards[SHARD]

    @property
    def replica(self) -> Replica:
        return self.shard.replica

    @property
    def follower(self) -> Follower:
        return self.shard.follower

    @property
    def leader(self) -> Leader:
        assert self.shard.leader is not None
        return self.shard.leader

    @property
    def leads(self) -> bool:
        return self.core is not None and SHARD in self.core.log.shards and self.shard.leader is not None

    def stored(self) -> list[Entry]:
        """Return the durable entries."""
        return self.durable[SHARD].all() if SHARD in self.durable else []

    def state_write(self) -> PutState:
        """Return the write of the state now in force."""
        return PutState(with_watermarks(self.replica.commit, self.replica.confirmed, self.replica.state.encode_rest()))

    def take_sent(self, kind: type | None = None) -> list[Any]:
        """Return and forget the messages sent, all or those of one kind."""
        taken = [send.message for send in self.sent if kind is None or isinstance(send.message, kind)]
        self.sent = [send for send in self.sent if kind is not None and not isinstance(send.message, kind)]
        return taken

    def answer(self, request: int) -> Any:
        """Return the one answer to a request, or None when there is none yet."""
        answers = self.replies.get(request, [])
        assert len(answers) <= 1, f"request {request} was answered {len(answers)} times"
        return answers[0] if answers else None

    # --- events in, effects out ---

    def step(self, *events: Any) -> list[Effect]:
        """Feed one turn's events, run and return the effects."""
        assert self.core is not None
        effects = self.core.step(self.now_ms, events)
        self.run(effects)
        self._configure()
        self.check()
        return effects

    def _configure(self) -> None:
        """A shell tells every new shard its settings."""
        assert self.core is not None
        for shard, held in self.core.log.shards.items():
            if held.replica.settings is None and self.settings is not None:
                self.run(self.core.step(self.now_ms, [Configure(shard, self.settings, self.retention)]))

    def receive(self, sender: Peer, message: Any) -> list[Effect]:
        return self.step(Received(AT, sender, self.me, message))

    def append(self, request: int, what: Batch, resume_after: int = -1) -> Any:
        """Ask for an append; return the answer if it came at once."""
        self.step(AppendRequest(SHARD, request, what, resume_after))
        return self.answer(request)

    def outcome(self, request: int, sequence: int, *, producer: bytes = PRODUCER, wait: bool = False) -> Any:
        """Ask what became of a batch; return the answer if it came at once."""
        self.step(OutcomeRequest(SHARD, request, producer, sequence, wait))
        return self.answer(request)

    def configure(self, **changes: Any) -> None:
        """Other settings are in force from now on, after restarts too."""
        self.settings = replace(self.settings or SynchroSettings(), **changes)
        self.step(Configure(SHARD, self.settings, self.retention))

    def retain(self, **changes: int) -> list[Effect]:
        """Another retention is in force from now on, after restarts too."""
        self.retention = replace(self.retention, **changes)
        return self.step(Configure(SHARD, self.settings or SynchroSettings(), self.retention))

    def holes(self, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
        """Return what this node knows to be rolled back."""
        assert self.core is not None
        holes = self.core.log.holes(SHARD, first, self.replica.confirmed if last is None else last)
        assert holes is not None
        return holes

    def limbo(self, entries_max: int = 100) -> LimboView:
        assert self.core is not None
        view = self.core.log.limbo(SHARD, self.now_ms, entries_max)
        assert view is not None, "does not lead"
        return view

    def read_grant(self, request: int, position: int = -1) -> Any:
        self.step(ReadRequest(SHARD, request, position))
        return self.answer(request)

    def latest(self, request: int) -> Any:
        """Ask where the log ends; return the answer if it came at once."""
        self.step(LatestRequest(SHARD, request))
        return self.answer(request)

    def trim(self, request: int, before: int) -> Any:
        self.step(TrimRequest(SHARD, request, before))
        return self.answer(request)

    def commit(self, request: int, name: str, offset: int, lease_ms: int = LEASE_MS_DEFAULT, **options: bool) -> Any:
        """Commit a position; return the answer if it came at once."""
        self.step(CommitPosition(SHARD, request, name, offset, lease_ms, **options))
        return self.answer(request)

    def delete_subscription(self, request: int, name: str) -> Any:
        self.step(DeleteSubscription(SHARD, request, name))
        return self.answer(request)

    def subscriptions(self, request: int) -> Any:
        self.step(SubscriptionsRequest(SHARD, request))
        return self.answer(request)

    def fire(self, name: str) -> list[Effect]:
        self.timers.pop((SHARD, name), None)
        return self.step(TimerFired(AT, name))

    def time_out(self) -> list[Effect]:
        """Let the clock come to the next deadline of the limbo."""
        self.now_ms = max(self.now_ms, self.timers[SHARD, QUORUM_TIMER])
        return self.fire(QUORUM_TIMER)

    def complete(self, count: int | None = None) -> int:
        """Make the next `count` persists durable (all when None), running `then` of each; return how many."""
        done = 0
        while self.queue and (count is None or done < count):
            persist = self.queue.popleft()
            image = self.durable.setdefault(persist.address.shard, Image())
            for write in persist.writes:
                image.apply(write)
            done += 1
            feeds = [effect.event for effect in persist.then if isinstance(effect, Feed)]
            self.run([effect for effect in persist.then if not isinstance(effect, Feed)])
            if feeds and self.core is not None:
                self.step(*feeds)
        return done

    def run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.queue.append(effect)
                    shard = effect.address.shard
                    image = self.written.setdefault(shard, Image())
                    for write in effect.writes:
                        image.apply(write)
                        if isinstance(write, Wipe):
                            self.released.pop(shard, None)
                    if self.cluster is not None:
                        self.cluster.written(self)
                case Send():
                    self._send(effect)
                case Reply(request, value):
                    self.replies.setdefault(request, []).append(value)
                    if self.cluster is not None:
                        self.cluster.replied(self, request, value)
                case SetTimer(address, name, at_ms):
                    self._set_timer(address.shard, name, at_ms)
                case Released(shard, upto):
                    assert upto > self.released.get(shard, -1), "L13: released fell"
                    self.released[shard] = upto
                case Changed():
                    pass    # a node without change streams
                case ReadLog():
                    self.reads.append(effect)
                    if self.cluster is not None:
                        self.cluster.reading(self, effect)
                case PullSnapshot():
                    self.pulls.append(effect)
                    if self.cluster is not None:
                        self.cluster.pulling(self, effect)
                case Trace(_, what, _):
                    self.traces[what] += 1
                case _:
                    raise AssertionError(f"a node cannot run {effect!r}")

    def _send(self, effect: Send) -> None:
        if self.cluster is not None:
            self.cluster.post(self.me, effect.address.shard, effect.to, effect.message)
        else:
            self.sent.append(effect)

    def _set_timer(self, shard: ShardId, name: str, at_ms: int | None) -> None:
        if at_ms is None:
            self.timers.pop((shard, name), None)
            return
        self.timers[shard, name] = at_ms
        if self.cluster is not None:
            self.cluster.timer(self, shard, name, at_ms)

    def answer_read(self, read: ReadLog) -> LogRead | LogReadFailed:
        """Return the event that answers a read from what is written."""
        image = self.written.get(read.shard) or Image()
        entries, damaged = image.read(read.first, read.last, read.bytes_max)
        if damaged is not None:
            return LogReadFailed(read.shard, read.tag, damaged)
        return LogRead(read.shard, read.tag, entries)

    def damage(self, base: int) -> None:
        """Flip the stored payload of one entry."""
        for images in (self.written, self.durable):
            header, payload = images[SHARD].entries[base]
            images[SHARD].entries[base] = (header, bytes([payload[0] ^ 1]) + payload[1:])

    def check(self) -> None:
        """Run the invariants that one node can be held to."""
        if self.core is None:
            return
        for shard in self.core.log.shards.values():
            invariants.check_replica(shard.replica)
            if shard.leader is not None:
                invariants.check_leader(shard.leader)
            self._check_visible(shard.replica)
            if (image := self.written.get(shard.replica.shard)) is not None and shard.replica.state.dropped >= 0:
                invariants.check_payloads(shard.replica, image.intact())

    def _check_visible(self, replica: Replica) -> None:
        """L10: what this node would show of what it holds is what rule L5 says, at its own `confirmed`."""
        image = self.written.get(replica.shard)
        if image is None or replica.state.role in (Role.SEEDING, Role.DELETED) or replica.log.first > 0:
            return
        entries = image.headers(0)
        if not entries or entries[-1].last < replica.confirmed:
            return   # appended in this turn
        cut, holes = replica.confirmed, replica.log.decisions.holes(0, 1 << 62, replica.confirmed)
        shown = [
            entry.base for entry in entries
            if entry.kind is Kind.DATA and entry.last <= cut
            and not any(first <= entry.base <= last for first, last in holes)
        ]
        told = [entry.base for entry in visible(entries, cut)]
        assert told == shown, f"L5: rules show {told}, the fold shows {shown}"


def fence(node: Node, epoch: int, election: int | None = None) -> list[Effect]:
    return node.receive(OPERATOR, Fence(epoch, election if election is not None else epoch * 10))


def lead(
    node: Node, epoch: int = 1, ensemble: Sequence[Member] = (A, B, C),
    followers: Sequence[tuple[Member, EntryId]] | None = None,
) -> Leader:
    """Make a lone node the durable leader of `epoch`; everybody else is attached with an empty log by default."""
    if followers is None:
        followers = [(other, NOTHING) for other in ensemble if other != node.me]
    fence(node, epoch)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(
        epoch, epoch * 10, tuple(ensemble), tuple(followers), clocks=tuple((each, node.now_ms) for each, _ in followers)
    ))
    vetted(node)
    node.complete()
    return node.leader


def vetted(node: Node) -> None:
    """Answer what a lone node reads of its own log before it leads (K15b)."""
    while node.reads and node.reads[-1].tag[0] == "vet":
        node.step(node.answer_read(node.reads.pop()))


def ack(node: Node, sender: Member, upto: int | None = None, commit: int = -1) -> list[Effect]:
    """Hand a lone leader an acknowledgement, of everything by default."""
    leader = node.leader
    return node.receive(sender, AppendAck(leader.epoch, leader.head if upto is None else upto, commit, node.now_ms))


def serving(
    node: Node, ensemble: Sequence[Member] = (A, B, C), epoch: int = 1, **settings: Any
) -> Leader:
    """Make a lone node the leader of `ensemble`, its EPOCH_START confirmed by everybody."""
    node.settings = replace(node.settings or SynchroSettings(), **settings)
    leader = lead(node, epoch, ensemble)
    everybody_acks(node)
    node.complete()
    return leader


def everybody_acks(node: Node, upto: int | None = None, commit: int = -1) -> None:
    """Every follower holds the log durably, up to the head by default."""
    for follower in list(node.leader.cursors):
        ack(node, follower, upto, commit)


# --- operators --------------------------------------------------------------------------------------------


class Operator:
    """One operator process.  `steps_left` counts its boundaries: at 0 it dies in front of the next one."""

    def __init__(self, cluster: Cluster, name: str, settings: dict[str, int]) -> None:
        self.cluster = cluster
        self.name = OperatorId(name)
        self.core = Coordinators(CoordinatorSettings(self.name, **settings))
        self.alive = True
        self.boundaries: list[str] = []
        self.steps_left: int | None = None
        self.timers: dict[tuple[ShardId, str], int] = {}
        self.progress: list[ChangeProgress] = []
        self.traces: Counter[str] = Counter()

    @property
    def shard(self) -> Coordinator:
        return self.core.shards[SHARD]

    def step(self, event: Any) -> list[Any]:
        if not self.alive:
            return []
        effects: list[Any] = list(self.core.step(self.cluster.now_ms, event))
        for effect in effects:
            self._run(effect)
        for coordinator in self.core.shards.values():
            invariants.check_coordinator(coordinator)
        return effects

    def _boundary(self, effect: SaveMetadata | Send) -> bool:
        """Say whether the process still lives when it comes to this effect."""
        if not self.alive or self.steps_left == 0:
            self.alive = False
            return False
        if self.steps_left is not None:
            self.steps_left -= 1
        self.boundaries.append(
            f"save {effect.record.status} {effect.record.change.phase if effect.record.change else ''}".strip()
            if isinstance(effect, SaveMetadata)
            else f"send {type(effect.message).__name__}"
        )
        return True

    def _run(self, effect: Any) -> None:
        match effect:
            case SaveMetadata():
                if self._boundary(effect):
                    self.cluster.save(self, effect)
            case LoadMetadata(address):
                self.cluster.after(1, self.cluster.load, self, address.shard)
            case Send(address, to, message):
                if self._boundary(effect):
                    self.cluster.post(self.name, address.shard, to, message)
            case SetTimer(address, name, at_ms):
                self._set_timer(address.shard, name, at_ms)
            case Reply(request, value):
                if self.alive:
                    self.cluster.answers.setdefault(request, []).append(value)
            case ChangeProgress():
                self.progress.append(effect)
            case Trace(_, what, _):
                self.traces[what] += 1
            case _:
                raise AssertionError(f"an operator cannot run {effect!r}")

    def _set_timer(self, shard: ShardId, name: str, at_ms: int | None) -> None:
        if at_ms is None:
            self.timers.pop((shard, name), None)
            return
        self.timers[shard, name] = at_ms
        self.cluster.after(at_ms - self.cluster.now_ms, self._fire, shard, name, at_ms)

    def _fire(self, shard: ShardId, name: str, at_ms: int) -> None:
        if self.alive and self.timers.get((shard, name)) == at_ms:
            del self.timers[shard, name]
            self.step(TimerFired(of_shard(shard), name))


# --- a cluster --------------------------------------------------------------------------------------------


@dataclass
class Rule:
    """What to do with messages of one kind; `caught` are those that were held or dropped."""

    action: str                     # hold, drop or repeat
    kind: type
    sender: str | None = None
    to: str | None = None
    left: int | None = None         # how many more; None is all
    caught: list[tuple[Peer, ShardId, Peer, Any]] = field(default_factory=list)
    boots: list[str] = field(default_factory=list)   # of those who sent them

    def matches(self, sender: Peer, to: Peer, message: Any) -> bool:
        return (
            self.left != 0
            and isinstance(message, self.kind)
            and self.sender in (None, name_of(sender))
            and self.to in (None, name_of(to))
        )


def name_of(peer: Peer) -> str:
    return peer.node if isinstance(peer, Member) else str(peer)


class Cluster:
    """Nodes, operators, one metadata store, one clock."""

    def __init__(
        self, names: str = "abc", *, ensemble: str | None = None, limits: Limits | None = None,
        settings: dict[str, int] | None = None, copies: int = 0,
    ) -> None:
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0
        self.limits = limits
        self.nodes = {name: Node(member(name), limits, self) for name in names}
        self.settings = settings or {}
        self.operators: dict[str, Operator] = {}
        self.records: dict[ShardId, tuple[ShardRecord, int]] = {}
        self.history: list[ShardRecord] = []      # every version stored, oldest first
        self.rules: list[Rule] = []
        self.posted: list[tuple[Peer, Peer, Any]] = []
        self.answers: dict[int, list[Any]] = {}   # requests to operators and nodes
        self.asked: dict[int, Batch] = {}
        self.questions: dict[int, tuple[bytes, int]] = {}
        self.acked: dict[tuple[bytes, int], tuple[int, int, int]] = {}   # told CONFIRMED: epoch, base, count
        self.rolled_back: dict[tuple[bytes, int], int] = {}              # told ROLLED_BACK: offset of the record
        self.leaders: dict[int, Member] = {}      # epoch -> who led it
        self.pull_lives: dict[Member, int] = {}
        self.saves_lost = 0                       # next saves that vanish: nothing stored, outcome unknown
        self.saves_unanswered = 0                 # next saves that succeed with the answer lost
        self._requests = 0
        self.store(first_record(tuple(member(name) for name in (ensemble or names)), copies))

    # --- time ---

    def after(self, delay_ms: int, action: Callable[..., Any], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), self._count, action, args))

    def run_for(self, duration_ms: int) -> None:
        self.run_until(lambda: False, duration_ms)

    def run_until(self, reached: Callable[[], bool], limit_ms: int = 20_000) -> bool:
        """Run events until `reached`; say whether it was reached in time."""
        end_ms = self.now_ms + limit_ms
        while not reached():
            if not self._events or self._events[0][0] > end_ms:
                self._advance(end_ms)
                return reached()
            at_ms, _, action, args = heapq.heappop(self._events)
            self._advance(at_ms)
            action(*args)
        return True

    def _advance(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for node in self.nodes.values():
            node.now_ms = now_ms

    def settle(self, limit_ms: int = 20_000) -> None:
        """Run until an operator calls the shard settled and everybody has everything."""
        assert self.run_until(lambda: self.settled, limit_ms), f"not settled: {self.describe()}"

    @property
    def settled(self) -> bool:
        operators = [o for o in self.operators.values() if o.alive]
        record = self.record
        if not any(SHARD in o.core.shards and o.shard.settled for o in operators) or record.leader is None:
            return False
        leader = self.nodes[record.leader.node]
        if not leader.leads or not leader.leader.active or leader.replica.state.epoch != record.epoch:
            return False
        head = leader.replica.log.head
        to_delete = [m for m in record.removed if self.nodes[m.node].me == m]
        return not to_delete and all(
            self.nodes[m.node].alive and not self.nodes[m.node].queue and self.nodes[m.node].replica.log.head == head
            and self.nodes[m.node].replica.commit == head.offset
            for m in record.ensemble
        )

    def describe(self) -> str:
        lines = [f"at {self.now_ms} ms, {self.record}"]
        for node in self.nodes.values():
            if node.core is None:
                lines.append(f"  {node.me}: down")
            else:
                lines += [f"  {node.me}: {node.core.log.status(shard)}" for shard in node.core.log.shards]
        for operator in self.operators.values():
            if operator.alive and SHARD in operator.core.shards:
                lines.append(f"  {operator.name}: unattached {operator.shard.unattached} {operator.boundaries[-6:]}")
        return "\n".join(lines)

    # --- the network ---

    def post(self, sender: Peer, shard: ShardId, to: Peer, message: Any) -> None:
        self.posted.append((sender, to, message))
        boot = self.nodes[sender.node].boot if isinstance(sender, Member) else ""
        for rule in self.rules:
            if rule.matches(sender, to, message):
                if rule.left is not None:
                    rule.left -= 1
                rule.caught.append((sender, shard, to, message))
                rule.boots.append(boot)
                if rule.action != "repeat":
                    return
                self.after(1, self.deliver, sender, shard, to, message, boot)
        self.after(1, self.deliver, sender, shard, to, message, boot)

    def deliver(self, sender: Peer, shard: ShardId, to: Peer, message: Any, boot: str = "") -> None:
        if isinstance(to, Member):
            node = self.nodes[to.node]
            if node.alive:
                node.step(Received(of_shard(shard), sender, to, message))
                self.note_leader(node)
        elif (operator := self.operators.get(str(to))) is not None:
            operator.step(Received(of_shard(shard), sender, None, message, boot))

    def rule(
        self, action: str, kind: type, *, sender: str | None = None, to: str | None = None, left: int | None = None
    ) -> Rule:
        """Hold, drop or repeat messages of one kind until `lift`."""
        rule = Rule(action, kind, sender, to, left)
        self.rules.append(rule)
        return rule

    def lift(self, rule: Rule, *, deliver: bool = True) -> None:
        """End a rule; held messages arrive now, in the order they were sent."""
        self.rules.remove(rule)
        if rule.action == "hold" and deliver:
            for (sender, shard, to, message), boot in zip(rule.caught, rule.boots, strict=True):
                self.after(1, self.deliver, sender, shard, to, message, boot)

    def isolate(self, name: str) -> list[Rule]:
        """Cut a node off from everybody, without telling anybody."""
        return [self.rule("drop", object, sender=name), self.rule("drop", object, to=name)]

    def sent(self, kind: type, to: str | None = None) -> list[Any]:
        """Return every message of one kind ever posted."""
        return [m for _, t, m in self.posted if isinstance(m, kind) and to in (None, name_of(t))]

    # --- nodes ---

    def written(self, node: Node) -> None:
        self.after(1, self._complete, node, node.life)

    def _complete(self, node: Node, life: int) -> None:
        if node.life == life and node.alive:
            node.complete(1)
            self.note_leader(node)

    def reading(self, node: Node, read: ReadLog) -> None:
        self.after(1, self._answer_read, node, node.life, read)

    def _answer_read(self, node: Node, life: int, read: ReadLog) -> None:
        if node.life == life and node.alive:
            node.step(node.answer_read(read))

    def timer(self, node: Node, shard: ShardId, name: str, at_ms: int) -> None:
        self.after(at_ms - self.now_ms, self._fire, node, node.life, shard, name, at_ms)

    def _fire(self, node: Node, life: int, shard: ShardId, name: str, at_ms: int) -> None:
        if node.life == life and node.timers.get((shard, name)) == at_ms:
            del node.timers[shard, name]
            node.step(TimerFired(of_shard(shard), name))

    def pulling(self, node: Node, pull: PullSnapshot) -> None:
        self.pull_lives[node.me] = self.pull_lives.get(node.me, 0) + 1
        if pull.source is not None:
            self.after(1, self._pull, node, node.life, self.pull_lives[node.me], pull, pull.first)

    def _pull(self, node: Node, life: int, pull_life: int, pull: PullSnapshot, first: int) -> None:
        if node.life != life or self.pull_lives[node.me] != pull_life or not node.alive:
            return
        assert pull.source is not None and pull.descriptor is not None
        source = self.nodes[pull.source.node]
        epoch, head = pull.descriptor.epoch, pull.descriptor.head.offset
        if not source.alive or source.me != pull.source:
            node.step(SnapshotFailed(pull.shard, epoch, "the source is away"))
            return
        entries, damaged = source.written[pull.shard].read(first, head, 1 << 30)
        if damaged is not None:
            node.step(SnapshotFailed(pull.shard, epoch, "the source is damaged"))
            return
        assert source.core is not None
        chunk, goes_on = source.core.log.snapshot_part(pull.shard, epoch, entries[:CHUNK_ENTRIES])
        if chunk:
            if goes_on and chunk[-1].last < head:
                self.after(1, self._pull, node, life, pull_life, pull, chunk[-1].last + 1)
            node.step(SnapshotChunk(pull.shard, epoch, chunk))
        if not goes_on or not chunk:
            node.step(SnapshotFailed(pull.shard, epoch, f"{source.me.node} may not serve what follows"))

    def crash(self, name: str, *, tell: bool = True) -> None:
        """Cut a node's power; peers see the links break, the failure detector gives it up."""
        node = self.nodes[name]
        node.power_cut()
        self._tell_peers(node, PeerDown(node.me))
        if tell:
            self._tell_operators(NodeDown(name))

    def restart(self, name: str, *, tell: bool = True) -> None:
        node = self.nodes[name]
        node.power_cut()
        node.start()
        for other in self.nodes.values():
            if other is not node and not other.alive:
                node.step(PeerDown(other.me))
        self._tell_peers(node, PeerUp(node.me))
        if tell:
            self._tell_operators(NodeUp(node.me, node.boot))

    def wipe(self, name: str) -> None:
        """The node comes back with an empty disk."""
        self.nodes[name].wipe()
        self._tell_peers(self.nodes[name], PeerUp(self.nodes[name].me))
        self._tell_operators(NodeUp(self.nodes[name].me, self.nodes[name].boot))

    def _tell_peers(self, about: Node, event: PeerUp | PeerDown) -> None:
        for node in self.nodes.values():
            if node is not about and node.alive:
                node.step(event)

    def _tell_operators(self, event: NodeUp | NodeDown) -> None:
        for operator in self.operators.values():
            self.after(1, operator.step, event)

    def note_leader(self, node: Node) -> None:
        """One leader per epoch, for ever."""
        if node.leads and node.leader.active:
            epoch = node.leader.epoch
            assert self.leaders.setdefault(epoch, node.me) == node.me, f"two leaders in epoch {epoch}"

    # --- the metadata store ---

    def store(self, record: ShardRecord, shard: ShardId = SHARD) -> int:
        """Store a version unconditionally, as first version or as a test's doing."""
        revision = self.records.get(shard, (None, 0))[1] + 1
        self.records[shard] = (record, revision)
        self.history.append(record)
        return revision

    @property
    def record(self) -> ShardRecord:
        return self.records[SHARD][0]

    def save(self, operator: Operator, effect: SaveMetadata) -> None:
        if self.saves_lost:
            self.saves_lost -= 1
            self.after(5, self._outcome, operator, effect, None)
            return
        self.after(1, self._save, operator, effect)

    def _save(self, operator: Operator, effect: SaveMetadata) -> None:
        stored, revision = self.records[effect.address.shard]
        if revision != effect.expected:
            self._outcome(operator, effect, None)
            return
        invariants.check_record(effect.record)
        assert effect.record.epoch >= stored.epoch, "H2: the stored epoch went backwards"
        record = ShardRecord.decode(effect.record.encode())
        assert record == effect.record
        revision = self.store(record, effect.address.shard)
        for other in self.operators.values():
            self.after(2, self._watched, other, effect.address.shard, record, revision)
        if self.saves_unanswered:
            self.saves_unanswered -= 1
            self.after(5, self._outcome, operator, effect, None)
        else:
            self.after(1, self._outcome, operator, effect, revision)

    def _outcome(self, operator: Operator, effect: SaveMetadata, revision: int | None) -> None:
        if revision is None:
            operator.step(MetadataUncertain(effect.address, effect.record.writer))
        else:
            operator.step(MetadataSaved(effect.address, effect.record.writer, revision))

    def _watched(self, operator: Operator, shard: ShardId, record: ShardRecord, revision: int) -> None:
        operator.step(MetadataLoaded(of_shard(shard), record, revision))

    def load(self, operator: Operator, shard: ShardId) -> None:
        self.after(1, lambda: operator.step(MetadataLoaded(of_shard(shard), *self.records[shard], fresh=True)))

    # --- operators ---

    def start_operator(self, name: str = "op/1") -> Operator:
        """Start an operator process: it learns which nodes are up, then what is stored."""
        operator = self.operators[name] = Operator(self, name, self.settings)
        for node in self.nodes.values():
            if node.alive:
                operator.step(NodeUp(node.me, node.boot))
        for shard, (record, revision) in self.records.items():
            operator.step(MetadataLoaded(of_shard(shard), record, revision))
        return operator

    @property
    def operator(self) -> Operator:
        return next(operator for operator in self.operators.values() if operator.alive)

    def request(self) -> int:
        self._requests += 1
        return self._requests

    def change(
        self, operation: Operation, old: str | None = None, new: str | None = None, *, force: bool = False,
        copies: int = 0,
    ) -> int:
        """Ask the operator for a change; return the request."""
        request = self.request()
        self.operator.step(StartChange(SHARD, request, operation, old, new, force, copies))
        return request

    def transfer(self, to: str) -> int:
        request = self.request()
        self.operator.step(StartTransfer(SHARD, request, to))
        return request

    def cancel(self) -> int:
        request = self.request()
        self.operator.step(CancelChange(SHARD, request))
        return request

    # --- clients ---

    @property
    def leader(self) -> Node:
        """Return the node that metadata names as leader."""
        assert self.record.leader is not None, "nobody leads"
        return self.nodes[self.record.leader.node]

    def followers(self) -> list[Node]:
        return [self.nodes[m.node] for m in self.record.ensemble if m != self.record.leader]

    def configure(self, **changes: Any) -> None:
        """Every node is told other settings of the limbo."""
        for node in self.nodes.values():
            node.settings = replace(node.settings or SynchroSettings(), **changes)
            if node.core is not None and SHARD in node.core.log.shards:
                node.step(Configure(SHARD, node.settings, node.retention))

    def append(self, what: Batch, to: str | None = None, resume_after: int = -1) -> int:
        """Ask a node, by default the leader, for an append; return the request."""
        request = self.request()
        self.asked[request] = what
        node = self.nodes[to] if to else self.leader
        node.step(AppendRequest(SHARD, request, what, resume_after))
        return request

    def outcome(
        self, sequence: int, *, producer: bytes = PRODUCER, to: str | None = None, wait: bool = False
    ) -> int:
        """Ask a node, by default the leader, what became of a batch; return the request."""
        request = self.request()
        self.questions[request] = (producer, sequence)
        node = self.nodes[to] if to else self.leader
        node.step(OutcomeRequest(SHARD, request, producer, sequence, wait))
        return request

    def append_all(self, sequences: Iterable[int], *, producer: bytes = PRODUCER) -> list[int]:
        return [self.append(batch(sequence, producer=producer)) for sequence in sequences]

    def appended(self, what: Batch) -> Appended:
        """Append and run until it is answered with a place, trying again when the refusal says that it may pass."""
        for _ in range(100):
            assert self.run_until(lambda: self.record.leader is not None), self.describe()
            request = self.append(what)
            assert self.run_until(partial(self.answers.__contains__, request)), self.describe()
            answer = self.answer(request)
            if isinstance(answer, Appended):
                return answer
            assert isinstance(answer, Refused), answer
            assert answer.retry_after_ms > 0 or answer.reason is Reason.NOT_LEADER, f"refused: {answer}"
            self.run_for(50)
        raise AssertionError(f"refused for too long: {answer}")

    def read_grant(self, name: str) -> ReadGrant | Any:
        request = self.request()
        self.nodes[name].step(ReadRequest(SHARD, request))
        return self.answer(request)

    def latest(self, name: str, for_ms: int = 100) -> Any:
        """Ask a node where the log ends; return what it answers within `for_ms`, None for silence."""
        request = self.request()
        self.nodes[name].step(LatestRequest(SHARD, request))
        self.run_until(lambda: self.answer(request) is not None, for_ms)
        return self.answer(request)

    def replied(self, node: Node, request: int, value: Any) -> None:
        self.answers.setdefault(request, []).append(value)
        asked = self.asked.get(request)
        who = (asked.producer, asked.sequence) if asked is not None else self.questions.get(request)
        if who is None:
            return
        match value:
            case Appended(epoch, base, count, Durability.QUORUM) | Outcome(Fate.CONFIRMED, epoch, base, count):
                before = self.acked.setdefault(who, (epoch, base, count))
                assert before == (epoch, base, count), f"L19: {who} was answered {before}, then {value}"
            case Refused(Reason.ROLLED_BACK, expected=at) | Outcome(Fate.ROLLED_BACK, rolled_back_at=at):
                assert self.rolled_back.setdefault(who, at) == at, f"L19: {who} was rolled back elsewhere, then {value}"
        both = self.acked.keys() & self.rolled_back.keys()
        assert not both, f"L8: told CONFIRMED and ROLLED_BACK: {both}"

    def answer(self, request: int) -> Any:
        answers = self.answers.get(request, [])
        assert len(answers) <= 1, f"request {request} was answered {len(answers)} times: {answers}"
        return answers[0] if answers else None

    # --- looking from outside ---

    def log_of(self, name: str) -> list[Entry]:
        """Return the durable entries of one node."""
        return self.nodes[name].stored()

    def check(self) -> None:
        """Run every invariant on every replica, leader, operator and record; compare logs and acknowledgements."""
        for record in self.history:
            invariants.check_record(record)
        for operator in self.operators.values():
            for coordinator in operator.core.shards.values():
                invariants.check_coordinator(coordinator)
        replicas: list[tuple[Node, list[Entry]]] = []
        for node in self.nodes.values():
            node.check()
            if node.alive and node.core is not None and SHARD in node.core.log.shards and not node.queue:
                entries = node.stored()
                invariants.check_contiguous(entries)
                replicas.append((node, entries))
        record = self.record
        members = [(n, entries) for n, entries in replicas if n.me in record.ensemble]
        for one, entries in members:
            for other, theirs in members:
                upto = min(one.replica.commit, other.replica.commit)
                invariants.check_same_log(entries, theirs, upto)
            assert not one.traces["violation"], f"{one.me} was sent what breaks the protocol"
            self._check_rolled_back(one, entries)
        if record.leader is not None and (leader := self.nodes[record.leader.node]).leads and not leader.queue:
            self._check_acknowledged(leader)

    def _check_rolled_back(self, node: Node, entries: list[Entry]) -> None:
        """Whoever was told ROLLED_BACK is shown by nobody, ever (L5, L8)."""
        first = node.replica.log.first
        for entry in visible(entries, node.replica.confirmed) if first == 0 else ():
            at = self.rolled_back.get((entry.producer, entry.sequence))
            assert at is None, f"L8: {node.me} shows {entry.id}, which was told to be rolled back at {at}"

    def _check_acknowledged(self, leader: Node) -> None:
        """NoLossOfConfirmedWrite, and nothing twice."""
        entries = {entry.base: entry for entry in leader.stored()}
        for (producer, sequence), (epoch, base, count) in self.acked.items():
            assert not leader.holes(base, base + count - 1), f"L8: confirmed sequence {sequence} lies in a hole"
            if base >= leader.replica.log.first:
                entry = entries.get(base)
                assert entry is not None, f"NoLossOfConfirmedWrite: sequence {sequence} at {base} is gone"
                assert (entry.producer, entry.sequence, entry.epoch) == (producer, sequence, epoch)
        seen = Counter((e.producer, e.sequence) for e in entries.values() if e.kind is Kind.DATA)
        twice = [key for key, times in seen.items() if times > 1]
        assert not twice, f"L19: appended twice: {twice}"


def begun_cluster(
    names: str = "abc", *, ensemble: str | None = None, limits: Limits | None = None, settled: bool = True,
    copies: int = 0, **settings: int,
) -> Cluster:
    """Return a cluster with one operator, settled unless asked otherwise."""
    cluster = Cluster(names, ensemble=ensemble, limits=limits, settings=settings, copies=copies)
    if settled:
        cluster.start_operator()
        cluster.settle()
    return cluster
