"""Clients: producers that append until they are answered, and readers that look at every node.

A producer is the shell of core's producer, as the client library has one: core says what is sent, and when.  The shell
is slow to hear who leads and at times hears it wrong.  It sends some batches twice on purpose, and old ones once more
long after, and asks for the fate of old and new ones.
Stays out: sequences and retries (core's `producing`), whether an answer was right (`checkers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Durability, Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing import producer as core
from tidemark_core.producing.messages import (
    Answered,
    Append,
    AskLeader,
    Claim,
    Doubt,
    Ending,
    Event,
    Fail,
    Led,
    LocalLost,
    Lost,
    OnTime,
    Send,
    Settings,
    Settle,
    Taken,
    WakeAt,
)
from tidemark_core.replication.clients import AppendRequest, ClaimRequest, LatestRequest, OutcomeRequest, ReadRequest
from tidemark_core.replication.messages import Appended, Claimed, Fate, Latest, Outcome
from tidemark_core.replication.producer_ids import named, prefix_of

from .trace import Violation

if TYPE_CHECKING:
    from .world import World

QUORUM_TIMEOUT_MS, STALLED_MS, ABANDONED_MS, LAST_ANSWER_MS = 100, 150, 100, 20
FOREVER_MS = 10**9
RECENT_MAX = 12
PRODUCERS_MAX = 12
GENERATION = 1_000_000
"""The batches of a process that claims a producer of another one have numbers from a multiple of this on."""

NEVER = (Reason.INVALID_BATCH, Reason.BATCH_TOO_LARGE, Reason.UNKNOWN_GROUP)
"""Refusals that no batch of ours deserves."""

Key = tuple[bytes, int]
"""Producer id and sequence."""


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
    sinks: int = 0
    raises: float = 0.2         # chance that callers hear of quorum timeouts, and that they hear of rollbacks
    gives_up: float = 0.03      # chance that callers of a batch do not wait for ever
    wrong: float = 0.2          # chance to hear of a leader that is none
    seeks: float = 0.0          # chance that a subscriber goes back instead of on
    claimed: float = 0.0        # chance that a producer is claimed
    expects: float = 0.0        # chance that a batch is appended only where no other record comes first
    succeeds: float = 0.0       # chance, per batch, that another process claims the producer and the former goes on


class Producer:
    """One idempotent producer on one shard."""

    def __init__(self, world: World, name: str, shard: ShardId, former: Producer | None = None) -> None:
        """With a `former` one, which goes on, it is another process that claims its producer."""
        self.world = world
        self.name = name
        self.generation = len(world.producers) if former is not None else 0
        self.fence = 0
        self.shard = shard
        dice, raises = world.dice, world.options.clients.raises
        settings = Settings(
            not dice.chance(raises), not dice.chance(raises), QUORUM_TIMEOUT_MS, STALLED_MS, ABANDONED_MS,
            LAST_ANSWER_MS)
        claim, prefix = None, prefix_of(f"client/{name}")
        if former is not None or dice.chance(world.options.clients.claimed):
            fence = former.fence + 1 if former is not None and dice.chance(0.3) else 0
            claim = Claim(dice.between(0, 1 << 30), fence)
        producer = former.id if former is not None else named(name, prefix) if claim else prefix + dice.bytes(15)[:8]
        self.core = core.Producer(producer, settings, claim)
        old_map = Led(0, dice.pick(list(world.nodes)))   # before it hears of any leader
        if claim is None:
            self.core.step(0, old_map)
        else:
            world.after(0, self._step, old_map)
        self.items = self.generation * GENERATION
        self.outstanding: set[int] = set()    # numbers of batches whose callers wait
        self.batches: dict[Key, Batch] = {}   # the batch that has the sequence, or used it up
        self.answered: dict[Key, Appended] = {}
        self.rolled_back: dict[Key, Refused] = {}
        self.recent: deque[Send] = deque(maxlen=RECENT_MAX)
        self.stopped = False
        self.retired = False  # another producer has its place: entries were given up (K14e)
        self._queue: deque[Append] = deque()
        self._newest: dict[int, Send] = {}    # attempt, by number
        self._wakes_ms: int | None = None
        self._looking = False

    @property
    def id(self) -> bytes:
        """The id under which new batches go out."""
        return self.core.id

    def retire(self, lost: Iterable[Entry]) -> None:
        """Send and hear nothing more; keep the answers that name entries that are not lost."""
        self.stopped = self.retired = True
        self.outstanding.clear()
        places = {(entry.epoch, entry.base) for entry in lost}
        records = {base for _, base in places}
        self.answered = {key: told for key, told in self.answered.items() if (told.epoch, told.base) not in places}
        self.rolled_back = {key: told for key, told in self.rolled_back.items() if told.expected not in records}

    @property
    def immediate(self) -> bool:
        """Say whether answers may be wrong about rollbacks."""
        return self.world.options.synchro.immediate

    # --- producing ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Append a batch now and then."""
        world, dice = self.world, self.world.dice
        if self.stopped or self.core.over is not None:
            world.idle()
            return
        options = world.options.clients
        if self.core.claim is not None and len(world.producers) < PRODUCERS_MAX and dice.chance(options.succeeds):
            world.succeed(self)
        if not self._queue and self.core.has_room():
            self.append(self._durability(), dice.around(500) if dice.chance(options.gives_up) else FOREVER_MS)
            if self.recent and dice.chance(options.twice):
                self._repeat(self.recent[-1], dice.pick(list(world.nodes)))
        if self.recent and dice.chance(options.old_again):
            old = dice.pick(self.recent)
            if old.batch.key in self.answered or old.batch.key in self.rolled_back:
                self._repeat(old, dice.pick(list(world.nodes)))
        if self.recent and dice.chance(options.ask):
            self._ask(dice.pick(self.recent), dice.chance(0.5))
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

    def append(self, durability: Durability = Durability.QUORUM, patience_ms: int = FOREVER_MS) -> None:
        """Make the next batch and append it, now or when there is room."""
        dice, options = self.world.dice, self.world.options.clients
        if self.world.options.documents.keys:
            count, payload = self.world.documents.payload(self.name, self.items, self.shard)
        else:
            payload = f"{self.name}/{self.items}".encode().ljust(dice.between(0, options.payload_bytes_max), b".")
            count = 0
        number, stamp = self.items, self.world.now_ms * 1000
        self.items += 1
        self.outstanding.add(number)
        self._queue.append(Append(
            number, self.world.now_ms + patience_ms, count or dice.between(1, options.records_max), stamp, stamp,
            crc32c(payload), payload, durability, self._expected() if dice.chance(options.expects) else -1))
        self._pump()

    def _expected(self) -> int:
        """Return an offset that some node has got to by its own log, or one near it."""
        dice, nodes = self.world.dice, self.world.nodes
        image = nodes[dice.pick(list(nodes))].disk.written.get(self.shard)
        return max(0, (image.last + 1 if image else 0) - dice.pick([0, 0, 0, 1, 2]))

    def turn_to(self, node: str) -> None:
        """Hear that a node leads."""
        self._step(Led(self.world.metadata.record(self.shard).epoch, node))

    def _pump(self) -> None:
        while self._queue and not self.retired and self.core.has_room():
            self._run(self._queue.popleft())

    def _step(self, event: Event) -> None:
        if not self.retired:
            self._run(event)
            self._pump()

    def _run(self, event: Event) -> None:
        world = self.world
        for effect in self.core.step(world.now_ms, event):
            match effect:
                case Send():
                    self._take(effect)
                case Taken(fence):
                    self.fence = fence
                    world.trace.count("claims_taken")
                case Settle(number):
                    self.outstanding.discard(number)
                    world.trace.count("appends_acked")
                case Fail():
                    self._failed(effect)
                case WakeAt(at_ms):
                    self._wakes_ms = at_ms
                    world.after(max(0, at_ms - world.now_ms), self._wake, at_ms)
                case AskLeader() if not self._looking:
                    self._looking = True
                    world.after(world.dice.between(1, 30), self._look)
                case Doubt(target):
                    world.after(0, self._step, Lost(target, "silence"))
                case LocalLost():
                    world.trace.count("local_lost")

    def _wake(self, at_ms: int) -> None:
        if self._wakes_ms == at_ms:
            self._wakes_ms = None
            self._step(OnTime())
        else:
            self.world.idle()

    def _look(self) -> None:
        """Hear who leads: the shard map knows, and a hint may be wrong."""
        dice, record = self.world.dice, self.world.metadata.record(self.shard)
        self._looking = False
        node = record.leader.node if record.leader else None
        if dice.chance(self.world.options.clients.wrong):
            node = dice.pick(list(self.world.nodes))
        self._step(Led(record.epoch, node))

    def _take(self, send: Send) -> None:
        """Send a batch; when it has another sequence than before, the attempt before may arrive long after."""
        world, key = self.world, send.batch.key
        before, self._newest[send.number] = self._newest.get(send.number), send
        if before is not None and before.batch is not send.batch:
            world.trace.count("renumberings")
            if world.dice.chance(world.options.clients.stragglers):
                world.after(world.dice.around(60), self._repeat, before, before.target)
        self.batches[key] = send.batch
        self.recent.append(send)
        self._send(send, send.target)

    def _repeat(self, send: Send, node: str) -> None:
        self._send(send._replace(target=node), node)   # another attempt: its answer is not the one that counts

    def _send(self, send: Send, node: str) -> None:
        world = self.world
        if self.retired:
            return
        batch, request = send.batch, world.request_number()
        event = AppendRequest(
            self.shard, request, batch, send.resume_after, send.expect
        ) if batch.count else ClaimRequest(self.shard, request, *batch.key)
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, self._answer, send, value),
        )

    def _ask(self, send: Send, wait: bool) -> None:
        """Ask for a batch's fate."""
        world, dice, batch = self.world, self.world.dice, send.batch
        node = send.target if dice.chance(0.8) else dice.pick(list(world.nodes))
        event = OutcomeRequest(self.shard, world.request_number(), batch.producer, batch.sequence, wait)
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, self._told, send, value),
        )

    # --- answers ------------------------------------------------------------------------------------------

    def _answer(self, send: Send, value: Any) -> None:
        """Take an answer to one attempt; the sequence may belong to another batch by now."""
        world, key = self.world, send.batch.key
        world.trace.note(self.name, "answer", value)
        if self.retired:
            return
        if self.batches[key] is send.batch:
            if isinstance(value, Appended):
                self._appended(send, value)
            elif not isinstance(value, Claimed):
                assert isinstance(value, Refused), f"an append is answered Appended or Refused, not {value!r}"
                self._refused(send, value)
        self._step(Answered(send, value))

    def _appended(self, send: Send, value: Appended) -> None:
        key = send.batch.key
        if send.number not in self.outstanding:
            self.world.trace.count("duplicates_answered")
        self.world.checkers.producer_answered(self, key, value)
        known = self.answered.get(key)
        if known is None or known.durability == Durability.LOCAL:
            self.answered[key] = value

    def _refused(self, send: Send, value: Refused) -> None:
        world, key = self.world, send.batch.key
        if value.reason in NEVER and not self.immediate:
            raise Violation("L19", f"{self.name}/{key[1]} was refused: {value.reason} {value.message}")
        if value.reason is Reason.ROLLED_BACK:
            self.rolled_back[key] = value
            world.trace.count("rollbacks_told")
        elif value.reason is Reason.QUORUM_TIMEOUT:
            world.trace.count("timeouts_told")
            if world.dice.chance(0.4):
                self._ask(send, world.dice.chance(0.7))

    def _told(self, send: Send, value: Any) -> None:
        """Take the answer to a question."""
        self.world.trace.note(self.name, "told", value)
        known = not self.retired and self.batches[send.batch.key] is send.batch
        if known and isinstance(value, Outcome) and value.fate is Fate.CONFIRMED:
            self._appended(send, Appended(value.epoch, value.base, value.count, Durability.QUORUM))

    def _failed(self, failed: Fail) -> None:
        """Callers hear of an ending; some endings no producer of ours deserves."""
        self.outstanding.discard(failed.number)
        self.world.trace.count(f"told_{failed.ending.lower()}")
        reason = failed.refused.reason if failed.refused is not None else None
        undeserved = failed.ending in (Ending.REFUSED, Ending.BROKEN) and reason is not Reason.RECORD_CAME_FIRST
        if (undeserved or reason is Reason.SEQUENCE_TOO_OLD) and not self.immediate:
            raise Violation("L19", f"{self.name}/{failed.batch.sequence} ends {failed.ending}: {failed.refused}")


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
