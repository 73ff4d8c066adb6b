"""Answers leave in one order per leadership: successes oldest first, a rollback's newest first (L17).

An answer to an append may not leave while a caller waits whose answer should have left before.
Stays out: whether an answer is true (`outcomes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import PutEntry, Write
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.messages import Appended

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History

Life = tuple[str, int, ShardId]


class Replies:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._waiting: dict[Life, dict[int, tuple[bytes, int]]] = {}
        self._bases: dict[Life, dict[tuple[bytes, int], int]] = {}

    def node_asked(self, node: Node, event: Any) -> None:
        if isinstance(event, AppendRequest) and not self._is_folded(node, event):
            waiting = self._waiting.setdefault((node.name, node.life, event.shard), {})
            waiting[event.request] = event.batch.key

    def _is_folded(self, node: Node, event: AppendRequest) -> bool:
        """A retry of a write that is folded waits for a row alone (U50): no other caller waits for it."""
        held = node.core.log.shards.get(event.shard) if node.core is not None else None
        if held is None or held.documents is None:
            return False
        place = held.replica.log.producers.judge(event.batch.producer, event.batch.sequence, 0).place
        return place is not None and place.last <= held.documents.summary.applied

    def node_crashed(self, node: Node) -> None:
        for kept in (self._waiting, self._bases):
            for life in [life for life in kept if life[0] == node.name]:
                del kept[life]

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is PutEntry:
            entry = write.entry
            if entry.kind is Kind.DATA:
                bases = self._bases.setdefault((node.name, node.life, shard), {})
                bases[entry.producer, entry.sequence] = entry.base

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if not isinstance(event, AppendRequest):
            return
        life = (node.name, node.life, event.shard)
        waiting = self._waiting.get(life, {})
        waiting.pop(event.request, None)
        bases = self._bases.get(life, {})
        if isinstance(value, Appended):
            self._success(node, event.shard, value.base, [bases.get(each) for each in waiting.values()])
        elif isinstance(value, Refused) and value.reason is Reason.ROLLED_BACK:
            base = bases.get(event.batch.key)
            if base is not None:
                self._rollback(node, event.shard, base, value.expected, [bases.get(each) for each in waiting.values()])

    def _success(self, node: Node, shard: ShardId, base: int, waiting: list[int | None]) -> None:
        older = [each for each in waiting if each is not None and each < base]
        if not older:
            return
        image = node.disk.written[shard]
        records = [entry for entry in image.entries if entry.kind is Kind.ROLLBACK]
        for each in older:
            if not any(record.sequence <= each < record.base for record in records):
                raise Violation("L17", f"{node.name} acknowledges {base} while the caller of {each} waits")

    def _rollback(self, node: Node, shard: ShardId, base: int, at: int, waiting: list[int | None]) -> None:
        newer = [each for each in waiting if each is not None and base < each < at]
        if newer:
            raise Violation("L17", f"{node.name} calls {base} rolled back at {at}, the caller of {max(newer)} waits")
