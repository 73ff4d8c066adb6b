"""Exactly once: a (producer, sequence) is committed once, in order, and where the answer says (L18, L19).

Fences of claims rise along the log, and a claim is answered with what stands in front of it (L26, L27).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.clients import ClaimRequest
from tidemark_core.replication.messages import Appended, Claimed
from tidemark_core.replication.producer_ids import fence_of

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..clients import Key, Producer
    from ..node import Node
    from ..world import World


class ExactlyOnce:
    def __init__(self, world: World, history: History) -> None:
        self.history = history
        self._claims: dict[tuple[ShardId, int], int] = {}   # by offset: the sequence that was expected before
        self.places: dict[tuple[ShardId, bytes, int], Entry] = {}
        self._next: dict[tuple[ShardId, bytes], int] = {}

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if entry.kind is Kind.CLAIM:
            self._claimed(shard, entry)
        if entry.kind is not Kind.DATA:
            return
        key = (shard, entry.producer, entry.sequence)
        if key in self.places:
            raise Violation("exactly once", f"sequence {entry.sequence} is at {self.places[key].id} and at {entry.id}")
        expected = self._next.get(key[:2], 0)
        if entry.sequence != expected:
            raise Violation("L19", f"sequence {entry.sequence} is committed at {entry.id}, expected {expected}")
        self._next[key[:2]] = expected + 1
        self.places[key] = entry

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        """Lost entries may be appended again, in order (K14e)."""
        for entry in reversed(lost):
            if entry.kind is Kind.CLAIM:
                self._next[shard, entry.producer] = self._claims.pop((shard, entry.base))
            elif entry.kind is Kind.DATA:
                del self.places[shard, entry.producer, entry.sequence]
                self._next[shard, entry.producer] = entry.sequence

    def _claimed(self, shard: ShardId, entry: Entry) -> None:
        expected = self._next.get((shard, entry.producer), 0)
        if fence_of(entry.sequence) <= fence_of(expected):
            raise Violation("L26", f"{entry.id} claims with fence {fence_of(entry.sequence)}, behind {expected:#x}")
        self._claims[shard, entry.base] = expected
        self._next[shard, entry.producer] = entry.sequence + 1

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        """Rule L27: everything in front of a claim that is answered is decided."""
        if not isinstance(event, ClaimRequest) or not isinstance(value, Claimed):
            return
        ranges = self.history.fates.of(event.shard).definite.items()
        standing = next((
            entry for entry in reversed(self.history.of(event.shard).entries)
            if entry.kind is Kind.DATA and entry.producer == event.producer and entry.base < value.offset
            and not any(first <= entry.base < record for record, first in ranges)
        ), None)
        told = (value.sequence, value.batch_epoch, value.base, value.count)
        there = (standing.sequence, standing.epoch, standing.base, standing.count) if standing else (-1, 0, 0, 0)
        if told != there:
            raise Violation("L27", f"{node.name} says that {told} is in front of the claim at {value.offset}: {there}")

    def producer_answered(self, producer: Producer, key: Key, value: Appended) -> None:
        if value.durability != Durability.QUORUM:
            return
        entry = self.places.get((producer.shard, *key))
        if entry is None:
            raise Violation("L19", f"{producer.name}/{key[1]} is answered {value}, and is not committed")
        if (entry.epoch, entry.base, entry.count) != (value.epoch, value.base, value.count):
            raise Violation("L19", f"{producer.name}/{key[1]} is answered {value}, and is at {entry.id}")
