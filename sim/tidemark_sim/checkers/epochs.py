"""Epochs are monotone: in the store by one at a time with one election id each (H2), in a node across restarts.

A node that answered in an epoch has it on disk: it comes back knowing it (#87).  The stored epoch leaps only to a floor
that nodes were asked to promise; below its floor a node answers no operator (N10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.messages import (
    Aborted,
    AppendAck,
    BecameLeader,
    Committed,
    Fenced,
    Prepared,
    ShardDeleted,
    SnapshotInstalled,
    Truncated,
)
from tidemark_core.replication.records import ShardRecord

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World

PROMISES = (Fenced, AppendAck, BecameLeader, Prepared, SnapshotInstalled, Truncated)
OBEDIENCE = (Fenced, Prepared, Committed, Aborted, ShardDeleted)
"""Answers to operators that leave with the write that the message asked for."""


class Epochs:
    def __init__(self, world: World, history: History) -> None:
        self._promised: dict[tuple[Member, ShardId], int] = {}
        self._elections: dict[tuple[ShardId, int], int] = {}
        self._floors: dict[tuple[Member, ShardId], int] = {}
        self._asked: set[tuple[ShardId, int]] = set()

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        leaps = after.epoch > before.epoch and (shard, after.epoch) in self._asked
        if not before.epoch <= after.epoch <= before.epoch + 1 and not leaps:
            raise Violation("H2", f"the stored epoch goes from {before.epoch} to {after.epoch}")
        if self._elections.setdefault((shard, after.epoch), after.election) != after.election:
            raise Violation("H2", f"epoch {after.epoch} has two election ids")

    def floors_asked(self, floors: Mapping[ShardId, int]) -> None:
        self._asked.update(floors.items())

    def node_promised(self, node: Node, floors: Mapping[ShardId, int]) -> None:
        for shard, floor in floors.items():
            key = (node.member, shard)
            self._floors[key] = max(floor, self._floors.get(key, 0))

    def node_sends(self, node: Node, send: Send) -> None:
        if send.message.__class__ in OBEDIENCE:
            floor = self._floors.get((node.member, send.address.shard), 0)
            if send.message.epoch < floor:
                raise Violation("N10", f"{node.name} promised epoch {floor} and answers {send.message}")
        if send.message.__class__ in PROMISES:
            key = (node.member, send.address.shard)
            epoch = send.message.epoch
            if epoch > self._promised.get(key, 0):
                self._promised[key] = epoch

    def node_started(self, node: Node) -> None:
        assert node.core is not None
        for (member, shard), epoch in self._promised.items():
            if member != node.member:
                continue
            held = node.core.log.shards.get(shard)
            if held is None or held.replica.state.epoch < epoch:
                has = held.replica.state.epoch if held else "none"
                raise Violation("#87", f"{node.name} answered in epoch {epoch} and restarts with {has}")
