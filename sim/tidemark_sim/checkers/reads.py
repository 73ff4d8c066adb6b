"""Reads are prefix-consistent: what may be read is confirmed, whole from the trim point on, and never changes.

Nothing that was rolled back is given out, and nothing else is kept back (L10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import Released, Reply
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import ReadGrant

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World

READ_BYTES_MAX = 2000


class PrefixReads:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history

    def node_released(self, node: Node, released: Released) -> None:
        assert node.core is not None
        confirmed = node.core.log.shards[released.shard].replica.confirmed
        if released.upto > confirmed:
            raise Violation("A2", f"{node.name} releases {released.upto}, it has confirmed {confirmed}")

    def node_replies(self, node: Node, shard: ShardId, reply: Reply) -> None:
        """A reader was let in: read a stretch the way the shell would, and compare."""
        if reply.value.__class__ is ReadGrant:
            self._read(node, shard, reply.value)

    def _read(self, node: Node, shard: ShardId, grant: ReadGrant) -> None:
        if grant.first > grant.released:
            return
        first = self.world.dice.between(grant.first, grant.released)
        image = node.disk.image(shard)
        while first >= grant.first and image.at(first) is None:
            first -= 1
        entries, damaged = node.disk.read(shard, max(first, grant.first), grant.released, READ_BYTES_MAX)
        if not entries and damaged is None and image.last >= grant.released:
            raise Violation("A2", f"{node.name} grants [{grant.first}, {grant.released}], {first} cannot be read")
        committed = self.history.of(shard).at_base
        rolled_back = self.history.fates.of(shard).definite
        assert node.core is not None
        holes = node.core.log.holes(shard, max(first, grant.first), grant.released)
        assert holes is not None, "what is granted is confirmed"
        for entry in entries:
            known = committed.get(entry.base)
            if known is None or known.chain != entry.chain:
                raise Violation("A2", f"{node.name} serves {entry.id}, committed is {known.id if known else 'nothing'}")
            if entry.kind is not Kind.DATA:
                continue
            held_back = any(low <= entry.base <= high for low, high in holes)
            if held_back != any(low <= entry.base < at for at, low in rolled_back.items()):
                raise Violation("L10", f"{node.name} {'keeps back' if held_back else 'gives out'} {entry.id}")
