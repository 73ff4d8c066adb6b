"""Operators keep to their turn: answers of one process (O42), a driver that shows progress (O3b), contracts (O27b)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Received
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.quorum import majority
from tidemark_core.replication.cursor import CursorStatus
from tidemark_core.replication.messages import Operation, Prepare
from tidemark_core.replication.records import Phase, ShardRecord

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..operators import Operator
    from ..world import World


class Coordination:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._saved: dict[tuple[ShardId, str], int] = {}   # when the attempt of this name was stored
        self._prepared: set[tuple[Member, ShardId, int]] = set()

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        self._saved[shard, after.writer] = self.world.now_ms

    def operator_answered(self, operator: Operator, event: Received, effects: Iterable[Any]) -> None:
        """O42: what another process of the node said than the one seen last has no effect."""
        assert isinstance(event.sender, Member)
        seen = operator.boot_of(event.sender.node)
        if seen and event.boot and event.boot != seen and any(effects):
            raise Violation("O42", f"{operator.id} heeds {event.message} of {event.boot}, it saw {seen}")

    def operator_resumes(self, operator: Operator, shard: ShardId) -> None:
        """O3b: a PREPARE of another process is taken over by the holder of the lease, or when nothing was written."""
        assert operator.core is not None
        record = operator.core.shards[shard].record
        if record is None or record.change is None or record.change.phase is not Phase.PREPARE:
            return
        if operator.leased or record.writer.partition("#")[0] == operator.id:
            return
        idle_ms = self.world.now_ms - self._saved.get((shard, record.writer), 0)
        if idle_ms < self.world.options.coordinator.takeover_ms:
            raise Violation("O3b", f"{operator.id} takes over from {record.writer}, which wrote {idle_ms} ms ago")

    def node_stepped(self, node: Node, events: Iterable[Any]) -> None:
        """O27b: at the moment it accepts a contract, a leader has a majority of those who stay."""
        for event in events:
            if event.__class__ is not Received or event.message.__class__ is not Prepare:
                continue
            assert node.core is not None
            held = node.core.log.shards.get(event.address.shard)
            leader, asked = held.leader if held is not None else None, event.message
            key = (node.member, event.address.shard, asked.epoch)
            if leader is None or leader.change != asked or asked.operation is not Operation.CONTRACT:
                continue
            if key in self._prepared:
                continue
            self._prepared.add(key)
            remaining = [member for member in leader.ensemble if member not in (asked.old, node.member)]
            following = 1 + sum(
                cursor.up and cursor.status is CursorStatus.ATTACHED for member in remaining
                if (cursor := leader.cursors.get(member)) is not None
            )
            if following < majority(1 + len(remaining)):
                raise Violation("O27b", f"{node.name} prepares a contract, {following} of those who stay follow")
