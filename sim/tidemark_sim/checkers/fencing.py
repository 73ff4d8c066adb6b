"""A fence answer names the durable head and a durable epoch (L1, O9), and only members of that disk answer (K14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import NOTHING
from tidemark_core.replication.checkpoint import checkpoint_end
from tidemark_core.replication.messages import Fenced
from tidemark_core.replication.replica import ReplicaState

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World


class Fencing:
    def __init__(self, world: World, history: History) -> None:
        self.world = world

    def node_sends(self, node: Node, send: Send) -> None:
        message = send.message
        if message.__class__ is not Fenced:
            return
        image = node.disk.durable.get(send.address.shard)
        if image is None or image.state is None:
            raise Violation("#87", f"{node.name} answers a fence of epoch {message.epoch} with nothing on disk")
        if ReplicaState.decode(image.state).epoch < message.epoch:
            raise Violation("#87", f"{node.name} answers a fence of epoch {message.epoch} before it is durable")
        if image.entries:
            head = image.entries[-1].id
        else:
            head = checkpoint_end(image.checkpoint) if image.checkpoint else NOTHING
        if message.head != head:
            raise Violation("L1", f"{node.name} is fenced with head {message.head}, durable is {head}")
