"""No ack without its predecessor (#1239), only durable entries are acked (L1, #1177), and they match the leader's.

An AppendAck up to x leaves only while the node's durable log ends an entry at x whose chained checksum is that of
the leader's entry; log contiguity is held by NoLogDivergence.  After a fence no older-epoch ack leaves (L1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.messages import AppendAck, Fenced

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World


class Acks:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._fenced: dict[tuple[Member, ShardId], int] = {}

    def node_sends(self, node: Node, send: Send) -> None:
        message = send.message
        kind = message.__class__
        if kind is Fenced:
            self._fenced[node.member, send.address.shard] = message.epoch
        elif kind is AppendAck:
            self._check(node, send)

    def _check(self, node: Node, send: Send) -> None:
        message, shard = send.message, send.address.shard
        if message.epoch < self._fenced.get((node.member, shard), 0):
            raise Violation("L1", f"{node.name} acks epoch {message.epoch} after it was fenced in a newer one")
        if message.upto < 0:
            return
        image = node.disk.durable.get(shard)
        entry = image.ending_at(message.upto) if image else None
        if entry is None:
            if image is None or message.upto >= max(image.first, image.bases[0] if image.bases else 0):
                last = image.last if image else -1
                raise Violation("L1", f"{node.name} acks up to {message.upto}, durable is {last}")
            return
        leader = self.world.nodes[send.to.node] if isinstance(send.to, Member) else None
        if leader is None or leader.core is None or leader.member != send.to:
            return
        held = leader.core.log.shards.get(shard)
        if held is None or held.leader is None or held.replica.state.epoch != message.epoch:
            return
        theirs = leader.disk.written[shard].at(entry.base)
        if theirs is None or theirs.chain != entry.chain:
            if theirs is None and leader.disk.written[shard].bases and entry.base < leader.disk.written[shard].bases[0]:
                return
            raise Violation(
                "#1239", f"{node.name} acks up to {entry.id}, the leader {leader.name} has "
                f"{theirs.id if theirs else 'nothing'} there",
            )
