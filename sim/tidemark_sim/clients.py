"""Clients: idempotent producers that retry until answered, and readers that look at every node.

A producer numbers its batches, keeps at most five unanswered, and offers the same batch with the same sequence
to other nodes until one answers with its place.  Some batches are offered twice on purpose.
Stays out: whether an answer was right (`checkers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Durability
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest, ReadRequest
from tidemark_core.replication.messages import Appended

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
    twice: float = 0.05
    old_again: float = 0.02
    records_max: int = 4
    payload_bytes_max: int = 64
    reads: float = 0.1


class Outstanding:
    """A batch that was not answered yet."""

    __slots__ = ("attempt", "batch")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.attempt = 0


class Producer:
    """One idempotent producer on one shard."""

    def __init__(self, world: World, name: str, shard: ShardId) -> None:
        self.world = world
        self.name = name
        self.shard = shard
        self.id = world.dice.bytes(15) + b"\x01"
        self.next_sequence = 0
        self.batches: list[Batch] = []
        self.answered: dict[int, Appended] = {}
        self.outstanding: dict[int, Outstanding] = {}
        self.rewound = False
        self.stopped = False
        self.target = world.dice.pick(list(world.nodes))

    # --- producing ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Offer a new batch now and then."""
        world = self.world
        if self.stopped:
            world.idle()
            return
        options = world.options.clients
        if len(self.outstanding) < IN_FLIGHT_MAX:
            self.append(local=world.dice.chance(options.local))
            if world.dice.chance(options.twice):
                self._send_in_window(self.next_sequence - 1, world.dice.pick(list(world.nodes)))
        if self.answered and world.dice.chance(options.old_again):
            sequence = world.dice.between(max(0, self.next_sequence - 12), self.next_sequence - 1)
            if sequence in self.answered:
                self._send(sequence, self.target)
        if world.dice.chance(options.reads):
            world.readers.read(self.shard)
        world.after(world.dice.around(options.think_ms), self.tick)

    def append(self, local: bool = False) -> None:
        """Make the next batch and offer it."""
        dice, options = self.world.dice, self.world.options.clients
        sequence = self.next_sequence
        self.next_sequence += 1
        payload = f"{self.name}/{sequence}".encode().ljust(dice.between(0, options.payload_bytes_max), b".")
        stamp = self.world.now_ms * 1000
        batch = Batch(
            self.id, sequence, dice.between(1, options.records_max), stamp, stamp, crc32c(payload), payload,
            Durability.LOCAL if local else Durability.QUORUM,
        )
        self.batches.append(batch)
        self.outstanding[sequence] = Outstanding(batch)
        self._offer(sequence)

    def _offer(self, sequence: int) -> None:
        """Send an unanswered batch, if it is among the oldest five, and again when patience ends."""
        outstanding = self.outstanding.get(sequence)
        if outstanding is None:
            return
        outstanding.attempt += 1
        world = self.world
        self._send_in_window(sequence, self.target)
        world.after(PATIENCE_MS + world.dice.between(0, 50), self._patience_ends, sequence, outstanding.attempt)

    def _send_in_window(self, sequence: int, node: str) -> None:
        """Only the five oldest unanswered batches travel: the log remembers no more of a producer."""
        if self.outstanding and sequence < min(self.outstanding) + IN_FLIGHT_MAX:
            self._send(sequence, node)

    def _send(self, sequence: int, node: str) -> None:
        world = self.world
        event = AppendRequest(self.shard, world.request_number(), self.batches[sequence])
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, self._answer, sequence, node, value),
        )

    def _patience_ends(self, sequence: int, attempt: int) -> None:
        outstanding = self.outstanding.get(sequence)
        if outstanding is None or outstanding.attempt != attempt:
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

    def _answer(self, sequence: int, node: str, value: Any) -> None:
        world = self.world
        world.trace.note(self.name, "answer", value)
        if isinstance(value, Appended):
            if sequence in self.outstanding:
                del self.outstanding[sequence]
                world.trace.count("appends_acked")
            else:
                world.trace.count("duplicates_answered")
            world.checkers.producer_answered(self, sequence, value)
            self.answered[sequence] = value
            self.target = node
            return
        assert isinstance(value, Refused), f"an append is answered Appended or Refused, not {value!r}"
        if value.reason in NEVER:
            raise Violation("L19", f"{self.name}/{sequence} was refused: {value.reason} {value.message}")
        if sequence not in self.outstanding:
            return
        if value.reason is Reason.SEQUENCE_TOO_OLD:
            if not self.rewound and sequence < min(self.outstanding) + IN_FLIGHT_MAX:
                raise Violation("L19", f"{self.name}/{sequence} is among the last five and its place is forgotten")
            # It is in the log, and where can no longer be told: what rewinding after lost LOCAL batches may cost.
            del self.outstanding[sequence]
            return
        if value.reason is Reason.SEQUENCE_GAP:
            self._rewind(value.expected)
        else:
            self._look_elsewhere()
        outstanding = self.outstanding[sequence]
        outstanding.attempt += 1
        pause = min(10 * outstanding.attempt, 120) + world.dice.around(10)
        world.after(pause, self._patience_ends_of_refused, sequence, outstanding.attempt)

    def _patience_ends_of_refused(self, sequence: int, attempt: int) -> None:
        outstanding = self.outstanding.get(sequence)
        if outstanding is not None and outstanding.attempt == attempt:
            self._offer(sequence)
        else:
            self.world.idle()

    def _rewind(self, expected: int) -> None:
        """L21: batches acknowledged LOCAL and lost at a failover are sent again from `expected`."""
        lost = [
            sequence
            for sequence in range(expected, min(self.outstanding, default=expected))
            if sequence in self.answered and self.answered[sequence].durability == Durability.LOCAL
        ]
        for sequence in lost:
            self.rewound = True
            self.world.trace.count("local_lost")
            self.outstanding[sequence] = Outstanding(self.batches[sequence])
        for sequence in lost:
            self._offer(sequence)


class Readers:
    """Ask any node what it may serve."""

    def __init__(self, world: World) -> None:
        self.world = world

    def read(self, shard: ShardId) -> None:
        world = self.world
        record = world.metadata.record(shard)
        known = record.leader.node if record.leader and world.dice.chance(0.7) else None
        name = known or world.dice.pick(list(world.nodes))
        event = ReadRequest(shard, world.request_number())
        world.network.send("reader", name, world.nodes[name].request, event, lambda value: None)
