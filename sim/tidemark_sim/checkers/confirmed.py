"""NoLossOfConfirmedWrite: whoever leads holds everything committed before, and what was acknowledged is safe.

An acknowledged QUORUM batch is committed and durable on so many members that every election meets one of them:
a majority, or after an expansion what was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import Reply
from tidemark_core.base.entry import Durability, Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.base.quorum import majority
from tidemark_core.replication.messages import Appended

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World

RULE = "NoLossOfConfirmedWrite"


class NoLossOfConfirmedWrite:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """A new leader's log must hold the newest entry committed in an older epoch, and with it all others.

        A BecomeLeader that comes late may begin a leadership that the record has passed already: it cannot commit
        anything, and what was committed after its election is not asked of it.
        """
        history = self.history.of(shard)
        for entry, committed_in in zip(reversed(history.entries), reversed(history.committed_in), strict=True):
            if committed_in < epoch:
                if not holds(node.disk.written.get(shard), entry):
                    raise Violation(RULE, f"{node.name} leads epoch {epoch} without the committed entry {entry.id}")
                return

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        """What commits late, under an older leader, must be in the newest leader's log."""
        history = self.history.of(shard)
        if history.leader is None or history.leader == node.member:
            return
        image = self.history.leading_image(shard, history)
        if image is not None and not holds(image, entry):
            raise Violation(
                RULE, f"{node.name} commits {entry.id}, which the leader {history.leader} of epoch "
                f"{history.leader_epoch} does not hold",
            )

    def node_replies(self, node: Node, shard: ShardId, reply: Reply) -> None:
        value = reply.value
        if value.__class__ is not Appended or value.durability != Durability.QUORUM:
            return
        assert node.core is not None
        held = node.core.log.shards[shard]
        entry = node.disk.written[shard].at(value.base)
        if held.leader is None or entry is None:
            return  # answered while it stepped down, or trimmed since
        if (entry.epoch, entry.count) != (value.epoch, value.count):
            raise Violation(RULE, f"{node.name} answers {value}, and holds {entry.id} there")
        if entry.last > held.replica.confirmed:
            raise Violation(RULE, f"{node.name} acknowledges {entry.id}, confirmed is {held.replica.confirmed}")
        ensemble = held.leader.ensemble
        copies = 0
        for member in ensemble:
            other = self.world.nodes[member.node]
            # A copy lost after its ack still counts: one loss is what a majority is for.
            if other.lost(member, shard) or holds(other.disk.durable.get(shard), entry):
                copies += 1
        if copies + majority(len(ensemble)) <= len(ensemble):
            raise Violation(
                RULE, f"{node.name} acknowledges {entry.id}, durable on {copies} of {len(ensemble)} members"
            )


def holds(image: Image | None, entry: Entry) -> bool:
    """Say whether the image holds this very entry, or has trimmed it away."""
    if image is None or not image.bases:
        return image is not None and image.checkpoint is not None
    held = image.at(entry.base)
    return entry.base < image.bases[0] if held is None else held.chain == entry.chain
