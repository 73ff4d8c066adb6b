"""Honest outcomes: what a caller was told of a (producer, sequence) is true, stays true, and is the same everywhere.

CONFIRMED: visible, for good.  ROLLED_BACK: a committed record covers it, and it was visible nowhere (L8, L19).  LOCAL:
on the leader's disk, past no undecided QUORUM entry (L14), and no rollback ever covers it (L15).
With rollback Immediate, ROLLED_BACK is not judged: that is why it is unsafe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import PutEntry, Write
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest, OutcomeRequest
from tidemark_core.replication.messages import Appended, Fate, Outcome

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History

Key = tuple[ShardId, bytes, int]


class Outcomes:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._told: dict[Key, str] = {}
        self._local: dict[tuple[ShardId, int, int], str] = {}
        self._places: dict[Key, Entry] = {}

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if entry.kind is Kind.DATA:
            self._places[shard, entry.producer, entry.sequence] = entry

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        """The answers about a lost entry end with it; a lost record rolls nothing back (K14e)."""
        records = any(entry.kind is Kind.ROLLBACK for entry in lost)
        gone = {(shard, entry.producer, entry.sequence) for entry in lost if entry.kind is Kind.DATA}
        for key in gone:
            self._places.pop(key, None)
        self._told = {
            key: fate for key, fate in self._told.items()
            if key not in gone and not (records and key[0] == shard and fate == "ROLLED_BACK")}

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(event, AppendRequest):
            key = (event.shard, event.batch.producer, event.batch.sequence)
            if isinstance(value, Appended):
                self._appended(node, key, value)
            elif isinstance(value, Refused) and value.reason is Reason.ROLLED_BACK:
                self._rolled_back(node, key, value.expected)
        elif isinstance(event, OutcomeRequest) and isinstance(value, Outcome):
            self.world.trace.count("outcomes_asked")
            key = (event.shard, event.producer, event.sequence)
            if value.fate is Fate.CONFIRMED:
                self._confirmed(node, key, value.epoch, value.base, value.count)
            elif value.fate is Fate.ROLLED_BACK:
                self._rolled_back(node, key, value.rolled_back_at)

    def _appended(self, node: Node, key: Key, value: Appended) -> None:
        if value.durability == Durability.LOCAL:
            self._acknowledged(node, key, value)
        else:
            self._confirmed(node, key, value.epoch, value.base, value.count)

    def _tell(self, key: Key, fate: str) -> None:
        before = self._told.setdefault(key, fate)
        if before != fate:
            raise Violation("L19", f"sequence {key[2]} was {before} once and is {fate} now")

    def _confirmed(self, node: Node, key: Key, epoch: int, base: int, count: int) -> None:
        assert node.core is not None
        shard = key[0]
        entry = self._places.get(key)
        if entry is None or (entry.epoch, entry.base, entry.count) != (epoch, base, count):
            at = entry.id if entry else "nowhere"
            raise Violation("L19", f"{node.name} calls sequence {key[2]} confirmed at {epoch}:{base}, it is {at}")
        confirmed = node.core.log.shards[shard].replica.confirmed
        if entry.last > confirmed:
            raise Violation("L3", f"{node.name} calls {entry.id} confirmed, its watermark is {confirmed}")
        fates = self.history.fates.of(shard)
        if (epoch, base) in fates.hidden:
            raise Violation("L5", f"{node.name} calls {entry.id} confirmed, which was rolled back")
        if base >= node.core.log.shards[shard].replica.log.first and (epoch, base) not in fates.visible:
            raise Violation("L5", f"{node.name} calls {entry.id} confirmed, which nobody shows")
        self._tell(key, "CONFIRMED")

    def _rolled_back(self, node: Node, key: Key, at: int) -> None:
        if self.world.options.synchro.immediate:
            return
        shard = key[0]
        entry = self._places.get(key)
        first = self.history.fates.of(shard).definite.get(at)
        if entry is None or first is None or not first <= entry.base < at:
            raise Violation(
                "L8", f"{node.name} calls sequence {key[2]} rolled back at {at}: no committed record says so"
            )
        if (entry.epoch, entry.base) in self.history.fates.of(shard).visible:
            raise Violation("L8", f"{node.name} calls {entry.id} rolled back, which was visible")
        self._tell(key, "ROLLED_BACK")

    # --- LOCAL --------------------------------------------------------------------------------------------

    def _acknowledged(self, node: Node, key: Key, value: Appended) -> None:
        assert node.core is not None
        shard = key[0]
        image, durable = node.disk.written[shard], node.disk.durable.get(shard)
        entry = image.at(value.base)
        confirmed = node.core.log.shards[shard].replica.confirmed
        if entry is None:
            return   # trimmed since
        if (entry.epoch, entry.producer, entry.sequence) != (value.epoch, *key[1:]):
            raise Violation("L14", f"{node.name} acknowledges {value}, and holds {entry.id} there")
        if entry.last > confirmed and (durable is None or durable.at(entry.base) is None):
            raise Violation("L14", f"{node.name} acknowledges LOCAL {entry.id}, which is not on its disk")
        undecided = image.entries[image.position(confirmed + 1):]
        self._passes_nobody(node, entry, undecided)
        for record in undecided:
            if record.kind is Kind.ROLLBACK and record.sequence <= entry.base < record.base:
                raise Violation("L15", f"{node.name} acknowledges LOCAL {entry.id}, which {record.id} rolls back")
        self._local[shard, entry.epoch, entry.base] = node.name

    def _passes_nobody(self, node: Node, entry: Entry, undecided: list[Entry]) -> None:
        records = [record for record in undecided if record.kind is Kind.ROLLBACK]
        for before in undecided:
            if before.base >= entry.base:
                return
            if before.kind is Kind.EPOCH_START:
                raise Violation("L14", f"{node.name} acknowledges LOCAL {entry.id}, {before.id} is not confirmed")
            if before.kind is not Kind.DATA or before.durability is not Durability.QUORUM:
                continue
            if not any(record.sequence <= before.base < record.base for record in records):
                raise Violation("L14", f"{node.name} acknowledges LOCAL {entry.id} past the undecided {before.id}")

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is not PutEntry or not self._local:
            return
        record = write.entry
        if record.kind is not Kind.ROLLBACK:
            return
        for entry in reversed(image.entries):
            if entry.base < record.sequence:
                return
            if entry.base < record.base and (shard, entry.epoch, entry.base) in self._local:
                raise Violation("L15", f"{node.name} writes {record.id}, which rolls back the acknowledged {entry.id}")
