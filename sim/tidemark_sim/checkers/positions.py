"""Subscriptions: what was told committed is in every later leader and never goes back, what is pinned is not trimmed.

What a node shows is compared with a plain replay of the committed log.
Stays out: who is told what when; an older leader may still say an older position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import DropBefore, Write
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.clients import CommitPosition, SubscriptionsRequest
from tidemark_core.replication.messages import PositionCommitted
from tidemark_core.subscriptions.fold import noted
from tidemark_core.subscriptions.view import SubscriptionsView

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History


class Positions:
    def __init__(self, world: World, history: History) -> None:
        self.history = history
        # Of each shard and name: (epoch that answered, offset), both rising.
        self._told: dict[ShardId, dict[str, list[tuple[int, int]]]] = {shard: {} for shard in world.shards}

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(event, CommitPosition) and isinstance(value, PositionCommitted):
            self._committed(node, event, value)
        elif isinstance(event, SubscriptionsRequest) and isinstance(value, SubscriptionsView):
            self._shown(node, event.shard, value)

    def _committed(self, node: Node, event: CommitPosition, value: PositionCommitted) -> None:
        if value.offset < event.offset:
            raise Violation("P6", f"{node.name} answers {value} to a commit of {event.offset} by {event.name}")
        if not any(
            entry.kind is Kind.POSITION and entry.sequence == value.offset and noted(entry).name == event.name
            for entry in reversed(self.history.of(event.shard).entries)
        ):
            raise Violation("P8", f"{node.name} tells {event.name} of {value.offset}, which no committed record says")
        told = self._told[event.shard].setdefault(event.name, [])
        if not told or value.offset > told[-1][1]:
            told.append((max(value.epoch, told[-1][0] if told else 0), value.offset))

    def _stands(self, shard: ShardId, name: str, before: int) -> int:
        """Return the furthest offset told by a leader of an epoch older than `before`, -1 when there is none."""
        return max((offset for epoch, offset in self._told[shard].get(name, ()) if epoch < before), default=-1)

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """The newest record of each name in a new leader's log says at least what was told before its election."""
        assert node.core is not None
        log = node.core.shards[shard].replica.log
        for name in self._told[shard]:
            stands = self._stands(shard, name, epoch)
            found = log.subscriptions.newest(name, log.decisions.covering)
            if stands >= 0 and (found is None or found.position.offset < stands):
                raise Violation(
                    "P3", f"{node.name} leads epoch {epoch} with {name} at {found}, it was told to stand at {stands}"
                )

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        """P10: a leader removes nothing that a name still wants, as far as its log and what was told say."""
        if write.__class__ is not DropBefore or node.core is None:
            return
        held = node.core.shards[shard]
        if held.leader is None:
            return
        first = write.offset  # type: ignore[union-attr]
        for name in self._told[shard]:
            stands = self._stands(shard, name, held.replica.state.epoch + 1)
            newest = held.replica.log.subscriptions.newest(name, held.replica.log.decisions.covering)
            if 0 <= stands < first and (newest is None or newest.position.offset < first):
                raise Violation("P10", f"{node.name} removes what lies below {first}, {name} stands at {stands}")

    def _shown(self, node: Node, shard: ShardId, view: SubscriptionsView) -> None:
        assert node.core is not None
        confirmed = node.core.shards[shard].replica.confirmed
        stands: dict[str, int] = {}
        for entry in self._replayed(shard, confirmed):
            if entry.kind is Kind.POSITION:
                stands[noted(entry).name] = entry.sequence
        shown = {each.name: each.offset for each in view.subscriptions}
        if shown != stands:
            raise Violation("P2", f"{node.name} shows {shown} at {confirmed}, the log says {stands}")

    def _replayed(self, shard: ShardId, upto: int) -> list[Entry]:
        """Return what is committed up to `upto` and not rolled back, whatever it is."""
        kept: list[Entry] = []
        for entry in self.history.of(shard).entries:
            if entry.base > upto:
                break
            if entry.kind is Kind.ROLLBACK:
                while kept and kept[-1].base >= entry.sequence:
                    kept.pop()
            kept.append(entry)
        return kept
