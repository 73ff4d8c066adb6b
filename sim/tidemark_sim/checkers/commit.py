"""Commit is monotone while a process lives (H3), and nothing at or below it is ever truncated.

A leader commits only by an entry of its own epoch (O24, O25): counting copies of older ones is Raft's figure 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import DropAfter, DropBefore, Wipe, Write
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.replica import Role

from ..node import votes
from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World


class CommitMonotone:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._commit: dict[tuple[str, int, ShardId], int] = {}
        self._leading: dict[tuple[str, int, ShardId], bool] = {}

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        kind = write.__class__
        if kind is DropAfter:
            keep = image.position(write.offset + 1)  # type: ignore[union-attr]
            removed = image.entries[keep:]
            if removed:
                self.world.trace.count("truncations")
            committed = self.history.of(shard).at_base
            for entry in removed:
                known = committed.get(entry.base)
                if known is not None and known.chain == entry.chain:
                    raise Violation("BELOW_COMMIT", f"{node.name} truncates {entry.id}, which is committed")
        elif kind is DropBefore:
            self.history.look(node, shard)   # a member alone commits and trims in one step
            if write.offset > self.history.of(shard).last + 1:  # type: ignore[union-attr]
                raise Violation("#281", f"{node.name} trims to {write.offset}, past commit")  # type: ignore[union-attr]
            self.world.trace.count("trims")
        elif kind is Wipe and image.entries:
            record = self.world.metadata.record(shard)
            change = record.change
            seeded = change is not None and change.new == node.member
            if change is not None and change.old == node.member and votes(image):
                seeded = False
            if node.member in record.ensemble and not seeded and self.world.faults.deleting is not node:
                raise Violation("BELOW_COMMIT", f"{node.name} is a member and removes its whole log")

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            replica = held.replica
            key = (node.name, node.life, shard)
            before = self._commit.get(key, -1)
            if held.leader is None:
                self._leading.pop(key, None)
            elif key not in self._leading:
                self._leading[key] = True
                self._commit[key] = before = replica.commit
            if replica.commit == before:
                continue
            if replica.commit < before and replica.state.role not in (Role.SEEDING, Role.DELETED):
                raise Violation("H3", f"commit of {node.name} went back from {before} to {replica.commit}")
            if replica.commit > replica.log.head.offset:
                raise Violation("H3", f"commit of {node.name} is {replica.commit}, its head {replica.log.head}")
            if held.leader is not None and key in self._leading:
                epoch = replica.log.epoch_at(replica.commit)
                if epoch != replica.state.epoch:
                    raise Violation(
                        "O25", f"{node.name} leads epoch {replica.state.epoch} and commits {epoch}:{replica.commit}"
                    )
            self._commit[key] = replica.commit
