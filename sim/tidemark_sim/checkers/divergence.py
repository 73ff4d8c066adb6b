"""NoLogDivergence: logs are contiguous, an id names one entry, and committed prefixes agree.

Log matching follows: every entry written stands behind the entry it names as its predecessor, and the chained
checksum under one (epoch, base) is always the same, so two logs that share an id share everything below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import PutEntry, Send, Write
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Append
from tidemark_core.replication.replica import Role

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..disk import Image, Queued
    from ..node import Node
    from ..world import World

RULE = "NoLogDivergence"


class NoLogDivergence:
    def __init__(self, world: World, history: History) -> None:
        self.history = history

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is not PutEntry:
            return
        entry = write.entry
        if self.history.of(shard).chains.get((entry.epoch, entry.base), entry.chain) != entry.chain:
            raise Violation(RULE, f"{node.name} writes another entry {entry.id} than the one known by that id")
        if not image.entries:
            return
        newest = image.entries[-1]
        if entry.base > newest.last:
            if entry.prev != newest.id or entry.prev_chain != newest.chain or entry.base != newest.last + 1:
                raise Violation(
                    RULE, f"L2: {node.name} writes {entry.id} behind {newest.id}, but it belongs behind {entry.prev}"
                )
            return
        held = image.at(entry.base)
        if held is None or held.chain != entry.chain:
            there = held.id if held else "nothing"
            raise Violation(RULE, f"{node.name} overwrites {there} at {entry.base} with {entry.id}")

    def node_synced(self, node: Node, item: Queued) -> None:
        for write in item.writes:
            if write.__class__ is PutEntry:
                self._known(node, item.shard, write.entry)

    def node_sends(self, node: Node, send: Send) -> None:
        if send.message.__class__ is Append:
            for entry in send.message.entries:
                self._known(node, send.address.shard, entry)

    def _known(self, node: Node, shard: ShardId, entry: Entry) -> None:
        """An entry exists once it is durable or was sent; one that was neither dies with its node."""
        if self.history.of(shard).chains.setdefault((entry.epoch, entry.base), entry.chain) != entry.chain:
            raise Violation(RULE, f"{node.name} has another entry {entry.id} than the one known by that id")

    def node_stepped(self, node: Node, events: Any) -> None:
        """What a core thinks its log is, is what it wrote."""
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            image = node.disk.written.get(shard)
            if image is None or held.replica.state.role is Role.SEEDING:
                continue
            head = held.replica.log.head
            if image.entries and head != image.entries[-1].id:
                raise Violation(
                    RULE, f"{node.name} thinks its log ends at {head}, on disk it ends at {image.entries[-1].id}"
                )
