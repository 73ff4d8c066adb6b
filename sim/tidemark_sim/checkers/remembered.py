"""The producer table is bounded, and a caller that makes ids without end evicts no other's producers (L25, L25b).

Stays out: runs without a crowd, whose tables never fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.producer_ids import caller_of

from ..trace import Violation

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World
    from .history import History


class Remembered:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._wrote: dict[tuple[ShardId, bytes], Entry] = {}   # newest committed entries, without those of the crowd

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        """Look at the table of the node that knows this entry as committed."""
        crowd, limit = self.world.crowd.prefixes, self.world.options.crowd.remembered
        if not crowd or entry.kind is not Kind.DATA or node.core is None:
            return
        if caller_of(entry.producer) not in crowd:
            self._wrote[shard, entry.producer] = entry
        log = node.core.log.shards[shard].replica.log
        if len(log.producers) > limit:
            raise Violation("L25", f"{node.name} remembers {len(log.producers)} producers, at most {limit}")
        if len(log.producers) == limit:
            self.world.trace.count("producers_full")
        for (where, producer), newest in self._wrote.items():
            if where == shard and log.contains(newest.id) and not log.producers.places(producer):
                raise Violation("L25b", f"{node.name} forgot the producer of {newest.id} for one of a crowd")

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        for entry in lost:
            self._wrote.pop((shard, entry.producer), None)
