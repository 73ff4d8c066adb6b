"""One leader per epoch: only one member ever leads, pushes or opens an epoch, and one life of it.

And it stays: only a newer epoch ends a leadership, never a message of an older one (#513), or damage above its commit
that stops its followers (K15d).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Received, Send
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Append, AppendRefused, DeleteShard, Fence, Truncate
from tidemark_core.replication.replica import Replica

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World

RULE = "one leader per epoch"


class OneLeaderPerEpoch:
    def __init__(self, world: World, history: History) -> None:
        self.history = history
        self._led: dict[tuple[ShardId, int], tuple[str, int]] = {}
        self._leading: dict[tuple[str, int, ShardId], int] = {}

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            key = (node.name, node.life, shard)
            if held.leader is not None:
                self._leading[key] = held.replica.state.epoch
                if held.leader.active:
                    self._acts(node, shard, held.replica.state.epoch, "leads")
            elif key in self._leading:
                epoch = self._leading.pop(key)
                if not any(_ends(event, shard, epoch) for event in events) and not _damaged(node, shard, held.replica):
                    raise Violation("#513", f"{node.name} stops leading epoch {epoch}, and no newer one is in sight")

    def node_sends(self, node: Node, send: Send) -> None:
        message = send.message
        if message.__class__ is Append or message.__class__ is Truncate:
            self._acts(node, send.address.shard, message.epoch, "pushes")

    def _acts(self, node: Node, shard: ShardId, epoch: int, how: str) -> None:
        mine = (str(node.member), node.life)
        first = self._led.setdefault((shard, epoch), mine)
        if first != mine:
            raise Violation(RULE, f"{mine[0]} {how} epoch {epoch} in life {mine[1]}, led by {first[0]} in {first[1]}")


def _damaged(node: Node, shard: ShardId, replica: Replica) -> bool:
    """Say whether the node's disk holds damage above commit."""
    return any(where == shard and base > replica.commit for where, base in node.disk.corrupt)


def _ends(event: Any, shard: ShardId, epoch: int) -> bool:
    """Say whether this event may end the leadership of `epoch`."""
    if event.__class__ is not Received or event.address.id != shard:
        return False
    message = event.message
    if isinstance(message, Fence | DeleteShard):
        return message.epoch > epoch
    return isinstance(message, AppendRefused) and message.own_epoch > epoch
