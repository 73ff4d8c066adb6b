"""Space: a leader appends nothing that too few disks can store, as far as members told it (K20).

Stays out: whether full members hear of trims and writes resume; the end of a run judges that (`full_disks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import PutEntry, Received, Write
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.quorum import has_majority
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.cursor import CursorStatus
from tidemark_core.replication.messages import AppendAck, AppendRefused

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History


class SpaceForAppends:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._full: dict[tuple[str, int, ShardId, int], set[Member]] = {}   # (node, life, shard, epoch) -> said so

    def node_stepped(self, node: Node, events: tuple[Any, ...]) -> None:
        for event in events:
            if event.__class__ is Received and isinstance(event.message, AppendAck | AppendRefused):
                self._heard(node, event.address.shard, event.sender, event.message)

    def _heard(self, node: Node, shard: ShardId, sender: Any, m: AppendAck | AppendRefused) -> None:
        if node.core is None:
            return
        held = node.core.log.shards.get(shard)
        leader = held.leader if held is not None else None
        if leader is None or leader.epoch != m.epoch or (cursor := leader.cursors.get(sender)) is None:
            return
        said = self._full.setdefault((node.name, node.life, shard, m.epoch), set())
        if isinstance(m, AppendRefused):
            if m.reason == Reason.DISK_FULL and leader.active:
                said.add(sender)
        elif cursor.status is CursorStatus.ATTACHED:
            (said.add if m.space else said.discard)(sender)

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(event, AppendRequest) and isinstance(value, Refused) and value.reason is Reason.DISK_FULL:
            self.world.trace.count("disk_full_refusals")

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is not PutEntry or write.entry.kind is not Kind.DATA or node.core is None:
            return
        held = node.core.log.shards.get(shard)
        leader = held.leader if held is not None else None
        if leader is None or leader.epoch != write.entry.epoch:
            return
        if node.space:
            raise Violation("K20", f"{node.name} appends {write.entry.id} to a disk that is {node.space.name}")
        said = self._full.get((node.name, node.life, shard, leader.epoch), set())
        if said and not has_majority(leader.ensemble, set(leader.ensemble) - said):
            full = ", ".join(sorted(member.node for member in said))
            raise Violation("K20", f"{node.name} appends {write.entry.id}, and the disks of {full} are full")
