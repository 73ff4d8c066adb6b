"""Clients: idempotent producers that retry until answered, and readers that look at every node.

A producer numbers its batches, keeps at most five unanswered, and offers the same batch with the same sequence
to other nodes until one answers with its place.  Some batches are offered twice on purpose, and the fate of old and
new ones is asked for.  A batch that was rolled back has used its sequence up: before it goes out again, the fate of
everything under way is settled, so that records keep their order (L22).
Stays out: whether an answer was right (`checkers`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Durability, Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest, LatestRequest, OutcomeRequest, ReadRequest
from tidemark_core.replication.messages import Appended, Fate, Latest, Outcome
from tidemark_core.replication.producer_ids import prefix_of

from .trace import Violation

if TYPE_CHECKING:
    from .world import World

IN_FLIGHT_MAX = 5
PATIENCE_MS = 150

NEVER = (Reason.INVALID_BATCH, Reason.BATCH_TOO_LARGE, Reason.UNKNOWN_GROUP)
"""Refusals that no batch of ours deserves."""


@dataclass(slots=True)
class ClientOptions:
    """Chances are per batch; `think_ms` is the mean time between two batches of one producer."""

    producers: int = 3
    think_ms: int = 20
    local: float = 0.2
    commit: float = 0.1
    twice: float = 0.05
    old_again: float = 0.02
    ask: float = 0.05           # chance to ask for the fate of some batch
    stragglers: float = 0.1     # chance that a copy sent before a rollback was known arrives long after
    records_max: int = 4
    payload_bytes_max: int = 64
    reads: float = 0.1
    latest: float = 0.0         # chance to ask some node where the log ends
    subscribers: int = 0
    seeks: float = 0.0          # chance that a subscriber goes back instead of on


class Outstanding:
    """A batch that was not answered yet, under the sequence it has now."""

    __slots__ = ("attempt", "batch", "behind", "ended")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.attempt = 0
        self.ended: Refused | None = None    # rolled back: its sequence is used up
        self.behind: Refused | None = None   # not appended, because an earlier batch was rolled back


class Producer:
    """One idempotent producer on one shard."""

    def __init__(self, world: World, name: str, shard: ShardId) -> None:
        self.world = world
        self.name = name
        self.shard = shard
        self.id = prefix_of(f"client/{name}") + world.dice.bytes(15)[:8]
        self.items = 0
        self.next_sequence = 0
        self.resume_after = -1
        self.heard_epoch = -1   # newest epoch that answered
        self.batches: dict[int, Batch] = {}   # by sequence: the batch that has it, or used it up
        self.answered: dict[int, Appended] = {}
        self.rolled_back: dict[int, Refused] = {}
        self.outstanding: dict[int, Outstanding] = {}
        self.rewound = False
        self.unsure = False   # a batch is in the log and nobody can say where: its rollback would go unnoticed
        self.stopped = False
        self.retired = False  # another producer has its place: entries were given up (K14e)
        self.target = world.dice.pick(list(world.nodes))

    def retire(self, lost: Iterable[Entry]) -> None:
        """Send and hear nothing more; keep the answers that name entries that are not lost."""
        self.stopped = self.retired = True
        self.outstanding.clear()
        places = {(entry.epoch, entry.base) for entry in lost}
        records = {base for _, base in places}
        self.answered = {
            sequence: told for sequence, told in self.answered.items() if (told.epoch, told.base) not in places}
        self.rolled_back = {
            sequence: told for sequence, told in self.rolled_back.items() if told.expected not in records}

    @property
    def immediate(self) -> bool:
        """Say whether answers may be wrong about rollbacks."""
        return self.world.options.synchro.immediate

    # --- producing ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Offer a new batch now and then."""
        world, dice = self.world, self.world.dice
        if self.stopped:
            world.idle()
            return
        options = world.options.clients
        if len(self.outstanding) < IN_FLIGHT_MAX and not self._settling:
            self.append(self._durability())
            if dice.chance(options.twice):
                self._send_in_window(self.next_sequence - 1, dice.pick(list(world.nodes)))
        if self.next_sequence and dice.chance(options.old_again):
            sequence = dice.between(max(0, self.next_sequence - 12), self.next_sequence - 1)
            if sequence in self.answered or sequence in self.rolled_back:
                self._send(sequence, self.target)
        if self.next_sequence and dice.chance(options.ask):
            sequence = dice.between(max(0, self.next_sequence - 12), self.next_sequence - 1)
            self._ask(sequence, self.target if dice.chance(0.8) else dice.pick(list(world.nodes)), dice.chance(0.5))
        if dice.chance(options.reads):
            world.readers.read(self.shard)
        if dice.chance(options.latest):
            world.readers.latest(self.shard)
        world.after(dice.around(options.think_ms), self.tick)

    def _durability(self) -> Durability:
        dice, options = self.world.dice, self.world.options.clients
        if dice.chance(options.local):
            return Durability.LOCAL
        return Durability.COMMIT if dice.chance(options.commit) else Durability.QUORUM

    def append(self, durability: Durability = Durability.QUORUM) -> None:
        """Make the next batch and offer it."""
        dice, options = self.world.dice, self.world.options.clients
        if self.world.options.documents.keys:
            count, payload = self.world.documents.payload(self.name, self.items, self.shard)
        else:
            payload = f"{self.name}/{self.items}".encode().ljust(dice.between(0, options.payload_bytes_max), b".")
            count = 0
        self.items += 1
        stamp = self.world.now_ms * 1000
        sequence = self.next_sequence
        self.next_sequence += 1
        batch = Batch(
            self.id, sequence, count or dice.between(1, options.records_max), stamp, stamp, crc32c(payload), payload,
            durability,
        )
        self.outstanding[sequence] = Outstanding(batch)
        self.batches[sequence] = batch
        self._offer(sequence)

    def _offer(self, sequence: int) -> None:
        """Send an unanswered batch, if it is among the oldest five, and again when patience ends."""
        outstanding = self.outstanding.get(sequence)
        if outstanding is None or outstanding.ended is not None:
            return
        outstanding.attempt += 1
        world = self.world
        if sequence in self._undecided():   # else it waits for the fate of others
            self._send_in_window(sequence, self.target)
        world.after(
            PATIENCE_MS + world.dice.between(0, 50), self._patience_ends, sequence, outstanding, outstanding.attempt
        )

    def _send_in_window(self, sequence: int, node: str) -> None:
        """Only the five oldest unanswered batches travel: the log remembers no more of a producer."""
        if sequence < self._window:
            self._send(sequence, node)

    @property
    def _window(self) -> int:
        oldest = min((sequence for sequence, each in self.outstanding.items() if each.ended is None), default=-1)
        return oldest + IN_FLIGHT_MAX

    def _send(self, sequence: int, node: str) -> None:
        self._send_batch(self.batches[sequence], self.resume_after, node)

    def _send_batch(self, batch: Batch, resume_after: int, node: str) -> None:
        world, sequence = self.world, batch.sequence
        if self.retired:
            return
        event = AppendRequest(self.shard, world.request_number(), batch, resume_after)
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, self._answer, sequence, batch, node, value),
        )

    def _ask(self, sequence: int, node: str, wait: bool) -> None:
        """Ask for a batch's fate."""
        world, batch = self.world, self.batches[sequence]
        event = OutcomeRequest(self.shard, world.request_number(), self.id, sequence, wait)
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, self._told, sequence, batch, node, value),
        )

    def _patience_ends(self, sequence: int, outstanding: Outstanding, attempt: int) -> None:
        if self.outstanding.get(sequence) is not outstanding or outstanding.attempt != attempt:
            self.world.idle()
            return
        self._look_elsewhere()
        self._offer(sequence)

    def _look_elsewhere(self) -> None:
        """The shard map may know the leader; it may also be old."""
        dice = self.world.dice
        leader = self.world.metadata.record(self.shard).leader
        self.target = leader.node if leader and dice.chance(0.7) else dice.pick(list(self.world.nodes))

    # --- answers ------------------------------------------------------------------------------------------

    def _answer(self, sequence: int, batch: Batch, node: str, value: Any) -> None:
        """Take an answer to one attempt; the sequence may belong to another batch by now."""
        self.world.trace.note(self.name, "answer", value)
        if self.retired or self.batches[sequence] is not batch:
            return
        if isinstance(value, Appended):
            self._appended(sequence, node, value)
            return
        assert isinstance(value, Refused), f"an append is answered Appended or Refused, not {value!r}"
        outstanding = self.outstanding.get(sequence)
        self.heard_epoch = max(self.heard_epoch, value.epoch)
        if value.reason in NEVER and not self.immediate:
            raise Violation("L19", f"{self.name}/{sequence} was refused: {value.reason} {value.message}")
        if outstanding is not None and outstanding.ended is None:
            self._refused(sequence, outstanding, value)

    def _appended(self, sequence: int, node: str, value: Appended) -> None:
        world = self.world
        self.heard_epoch = max(self.heard_epoch, value.epoch)
        if sequence in self.outstanding:
            del self.outstanding[sequence]
            world.trace.count("appends_acked")
        else:
            world.trace.count("duplicates_answered")
        world.checkers.producer_answered(self, sequence, value)
        known = self.answered.get(sequence)
        if known is None or known.durability == Durability.LOCAL:
            self.answered[sequence] = value
        self.target = node
        self._progress()

    def _refused(self, sequence: int, outstanding: Outstanding, value: Refused) -> None:
        world = self.world
        pause = min(10 * outstanding.attempt, 120) + world.dice.around(10)
        match value.reason:
            case Reason.SEQUENCE_GAP | Reason.PRODUCER_UNKNOWN | Reason.PRODUCER_ROLLED_BACK if (
                value.epoch < self.heard_epoch
            ):
                self._look_elsewhere()   # a leader that was replaced does not know what the log holds
            case Reason.ROLLED_BACK:
                outstanding.ended = self.rolled_back[sequence] = value
                world.trace.count("rollbacks_told")
                self._progress()
                return
            case Reason.PRODUCER_ROLLED_BACK if value.expected > self.resume_after:
                outstanding.behind = value
                self._progress()
                return
            case Reason.SEQUENCE_TOO_OLD | Reason.INVALID_BATCH:
                if not self.rewound and not self.immediate and sequence < self._window:
                    raise Violation("L19", f"{self.name}/{sequence} is among the last five and its place is forgotten")
                # It is in the log, and where can no longer be told: what rewinding after lost batches may cost.
                del self.outstanding[sequence]
                self.unsure = True
                self._progress()
                return
            case Reason.SEQUENCE_GAP | Reason.PRODUCER_UNKNOWN:
                self._rewind(value.expected)
            case Reason.QUORUM_TIMEOUT:
                world.trace.count("timeouts_told")
                if world.dice.chance(0.4):
                    self._ask(sequence, self.target, world.dice.chance(0.7))
                    pause += world.dice.around(200)
            case Reason.ROLLING_BACK | Reason.PRODUCER_ROLLED_BACK:
                pass
            case _:
                self._look_elsewhere()
        self._offer_after(pause, sequence, outstanding)

    def _told(self, sequence: int, batch: Batch, node: str, value: Any) -> None:
        """Take the answer to a question."""
        self.world.trace.note(self.name, "told", value)
        if self.retired or self.batches[sequence] is not batch:
            return
        if isinstance(value, Outcome) and value.fate is Fate.CONFIRMED:
            self._appended(sequence, node, Appended(value.epoch, value.base, value.count, Durability.QUORUM))
            return
        # ROLLED_BACK is heard once more, from an append: only there it says in which epoch.  NOT_FOUND is advice.
        outstanding = self.outstanding.get(sequence)
        if outstanding is not None and outstanding.ended is None:
            self._offer_after(self.world.dice.around(10), sequence, outstanding)

    def _offer_after(self, pause_ms: int, sequence: int, outstanding: Outstanding) -> None:
        outstanding.attempt += 1
        self.world.after(pause_ms, self._pause_ends, sequence, outstanding, outstanding.attempt)

    def _pause_ends(self, sequence: int, outstanding: Outstanding, attempt: int) -> None:
        if self.outstanding.get(sequence) is outstanding and outstanding.attempt == attempt:
            self._offer(sequence)
        else:
            self.world.idle()

    def _rewind(self, expected: int) -> None:
        """L21: batches acknowledged LOCAL and lost at a failover are sent again from `expected`.

        So are batches called rolled back too early, when the rollback itself was lost.
        """
        if self.immediate:
            for sequence, each in self.outstanding.items():
                if each.ended is not None and sequence >= expected:
                    each.ended = None
                    self._offer(sequence)
        lost = [
            sequence
            for sequence in range(expected, self._window - IN_FLIGHT_MAX)
            if sequence not in self.outstanding and (self.immediate or self._is_local(sequence))
        ]
        for sequence in lost:
            self.rewound = True
            self.world.trace.count("local_lost")
            self.outstanding[sequence] = Outstanding(self.batches[sequence])
        for sequence in lost:
            self._offer(sequence)

    def _is_local(self, sequence: int) -> bool:
        return sequence in self.answered and self.answered[sequence].durability == Durability.LOCAL

    # --- rollbacks ----------------------------------------------------------------------------------------

    @property
    def _settling(self) -> bool:
        return any(each.ended or each.behind for each in self.outstanding.values())

    def _undecided(self) -> list[int]:
        """Return what may be in the log, or may yet come there: to be asked before anything is numbered anew.

        Behind a batch that was not appended there is none.  A leader of an older epoch than the rollback's proves
        nothing: the log that won may hold what it lacked.
        """
        epoch = max((each.ended.epoch for each in self.outstanding.values() if each.ended), default=-1)
        asked: list[int] = []
        for sequence in sorted(self.outstanding):
            each = self.outstanding[sequence]
            if each.behind is not None and each.behind.epoch >= epoch:
                break
            if each.ended is None:
                asked.append(sequence)
        return asked

    def _progress(self) -> None:
        """Once every batch under way is rolled back or was not appended, give them new sequences, in their order."""
        if not self._settling or self._undecided():
            return
        newest = max((sequence for sequence, each in self.outstanding.items() if each.ended), default=-1)
        if newest < 0:
            self._go_on_as_before()
            return
        flights = [sequence for sequence in sorted(self.outstanding) if sequence >= newest or self._ended(sequence)]
        sequence = next((each for each in flights if not self._ended(each)), self.next_sequence)
        again = [self.outstanding.pop(each) for each in flights]
        for each in again:
            if self.world.dice.chance(self.world.options.clients.stragglers):
                delay = self.world.dice.around(60)
                self.world.after(delay, self._send_batch, each.batch, self.resume_after, self.target)
        self.resume_after = max(self.resume_after, *(each.ended.expected for each in again if each.ended))
        for each in again:
            # Late answers to what was sent before do not find the new one.
            fresh = Outstanding(each.batch._replace(sequence=sequence))
            self.outstanding[sequence] = fresh
            self.batches[sequence] = fresh.batch
            sequence += 1
        self.next_sequence = max(self.next_sequence, sequence)
        self.world.trace.count("renumberings")
        for sequence, each in list(self.outstanding.items()):
            each.behind = None
            self._offer(sequence)

    def _ended(self, sequence: int) -> bool:
        return self.outstanding[sequence].ended is not None

    def _go_on_as_before(self) -> None:
        """What was rolled back is none of what is under way: the record was lost, or the leader is an old one."""
        behind = [each.behind.expected for each in self.outstanding.values() if each.behind]
        if self.unsure or self.immediate:
            self.resume_after = max(self.resume_after, *behind)
        self._look_elsewhere()
        for sequence, each in self.outstanding.items():
            each.behind = None
            self._offer_after(self.world.dice.around(30), sequence, each)


class Readers:
    """Ask any node what it may serve, and where the log ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: dict[ShardId, int] = {}   # where the log ended by the newest answer

    def read(self, shard: ShardId) -> None:
        world = self.world
        event = ReadRequest(shard, world.request_number())
        name = self._node(shard, 0.7)
        world.network.send("reader", name, world.nodes[name].request, event, lambda value: None)

    def latest(self, shard: ShardId) -> None:
        """Ask where the log ends; half of the readers ask whatever node they know, led or not."""
        world = self.world
        event = LatestRequest(shard, world.request_number())
        name = self._node(shard, 0.5)
        world.checkers.latest_asked(event)
        world.network.send(
            "reader", name, world.nodes[name].request, event,
            lambda value: world.network.send(name, "reader", self._ends, shard, value),
        )

    def _ends(self, shard: ShardId, value: Latest | Refused) -> None:
        if isinstance(value, Latest):
            self.ends[shard] = max(value.offset, self.ends.get(shard, -1))
            self.world.trace.count("latest_answered")
        elif value.reason is Reason.NO_LEADER:
            self.world.trace.count("latest_refused")

    def _node(self, shard: ShardId, knows: float) -> str:
        world = self.world
        record = world.metadata.record(shard)
        known = record.leader.node if record.leader and world.dice.chance(knows) else None
        return known or world.dice.pick(list(world.nodes))
