"""One leader per epoch: only one member ever leads, pushes or opens an epoch, and one life of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Append, Truncate

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

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.shards.items():
            if held.leader is not None and held.leader.active:
                self._acts(node, shard, held.replica.state.epoch, "leads")

    def node_sends(self, node: Node, send: Send) -> None:
        message = send.message
        if message.__class__ is Append or message.__class__ is Truncate:
            self._acts(node, send.shard, message.epoch, "pushes")

    def _acts(self, node: Node, shard: ShardId, epoch: int, how: str) -> None:
        mine = (str(node.member), node.life)
        first = self._led.setdefault((shard, epoch), mine)
        if first != mine:
            raise Violation(RULE, f"{mine[0]} {how} epoch {epoch} in life {mine[1]}, led by {first[0]} in {first[1]}")
