"""Exactly once: a (producer, sequence) is committed once, in order, and where the answer says (L18, L19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Appended

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..clients import Key, Producer
    from ..node import Node
    from ..world import World


class ExactlyOnce:
    def __init__(self, world: World, history: History) -> None:
        self.places: dict[tuple[ShardId, bytes, int], Entry] = {}
        self._next: dict[tuple[ShardId, bytes], int] = {}

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
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
            if entry.kind is Kind.DATA:
                del self.places[shard, entry.producer, entry.sequence]
                self._next[shard, entry.producer] = entry.sequence

    def producer_answered(self, producer: Producer, key: Key, value: Appended) -> None:
        if value.durability != Durability.QUORUM:
            return
        entry = self.places.get((producer.shard, *key))
        if entry is None:
            raise Violation("L19", f"{producer.name}/{key[1]} is answered {value}, and is not committed")
        if (entry.epoch, entry.base, entry.count) != (value.epoch, value.base, value.count):
            raise Violation("L19", f"{producer.name}/{key[1]} is answered {value}, and is at {entry.id}")
