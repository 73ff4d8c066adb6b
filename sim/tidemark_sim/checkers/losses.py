"""A majority lost the synced end of its logs: that is reported, and one act brings the records back.

This checker replaces all others from such a fault on: the leader lacks acknowledged records (K14c, K14d).
Stays out: losing the end (`disk`), asking for the act (a story).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord, Status

from ..trace import Violation

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World

RULE = "K14d"


class Losses:
    """Remembers what was acknowledged of one shard when its stores lost their ends."""

    def __init__(self, world: World, shard: ShardId) -> None:
        self.world = world
        self.shard = shard
        self.kept: list[Entry] = [
            entry for entry in world.checkers.history.of(shard).entries if entry.kind is Kind.DATA
        ]
        self._source = ""
        self._seeded: set[str] = set()   # nodes that a change began to fill: their old copies are replaced

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        """Note the source; while its copy is the only one no other may be led from, and none may be deleted."""
        if after.source is not None:
            self._source = after.source.node
        if after.change is not None and after.change.new is not None:
            self._seeded.add(after.change.new.node)
        if self._source and after.status is Status.STEADY and len(after.ensemble) == 1:
            if after.leader is None or after.leader.node != self._source:
                raise Violation(RULE, f"{after.leader} leads alone, the source is {self._source}")
            if not after.refill:
                raise Violation(RULE, "the shard keeps one member: its others do not come back")

    def node_stepped(self, node: Node, events: object) -> None:
        """No other copy is removed before a second one of the source's log is there."""
        record = self.world.metadata.record(self.shard)
        if not self._source or len(record.ensemble) > 1 or record.change is not None:
            return
        for member in record.removed:
            if member.node in self._seeded:
                continue
            image = self.world.nodes[member.node].disk.written.get(self.shard)
            if image is None or not image.entries:
                raise Violation(RULE, f"{member.node} removed its copy while {self._source} has the only one")

    def check(self) -> None:
        """Every member holds everything that was acknowledged before the loss, at its place."""
        record = self.world.metadata.record(self.shard)
        for member in record.ensemble:
            image = self.world.nodes[member.node].disk.image(self.shard)
            for entry in self.kept:
                held = image.at(entry.base)
                if held is None or held.chain != entry.chain or not held.held:
                    there = held.id if held is not None else "nothing"
                    raise Violation(RULE, f"{member.node} holds {there} in the place of the acknowledged {entry.id}")
