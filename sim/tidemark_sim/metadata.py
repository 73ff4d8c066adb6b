"""The metadata store as operators see it: conditional writes on a revision, lost answers, outages, a watch.

A transaction whose answer is lost may still take effect, even after its sender has read the record back.
Stays out: what a record means; the checkers look at every version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.base.metadata import LoadMetadata, MetadataLoaded, MetadataSaved, MetadataUncertain, SaveMetadata
from tidemark_core.replication.records import ShardRecord

from . import losing

if TYPE_CHECKING:
    from .operators import Operator
    from .world import World

TIMEOUT_MS = 120


@dataclass(slots=True)
class MetadataOptions:
    """Chances are per transaction."""

    delay_ms_max: int = 4
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0           # the answer times out and the transaction lands afterwards
    watch_delay_ms: int = 10


class MetadataStore:
    """Linearizable: one dictionary, one revision counter."""

    def __init__(self, world: World, options: MetadataOptions) -> None:
        self.world = world
        self.options = options
        self.revision = 0
        self.records: dict[ShardId, tuple[bytes, int]] = {}
        self.down = False
        self.lost = False      # everything: nothing is stored, and no operator starts, until it is rebuilt
        self._watched_at: dict[str, int] = {}

    def record(self, shard: ShardId) -> ShardRecord:
        return ShardRecord.decode(self.records[shard][0])

    def create(self, shard: ShardId, record: ShardRecord) -> None:
        """Store the first version of a shard."""
        self.revision += 1
        self.records[shard] = (record.encode(), self.revision)

    def rebuild(self, shard: ShardId, record: ShardRecord) -> None:
        """Replace a record that was lost; whoever writes knowing the lost one is refused."""
        before = self.record(shard)
        self.create(shard, record)
        self.world.trace.note("store", "rebuilt", record)
        losing.record_stored(self.world, shard, before, record)

    def calm(self) -> None:
        self.down = False
        self.options.request_lost = self.options.answer_lost = self.options.late = 0.0

    def _delay(self) -> int:
        return self.world.dice.between(1, self.options.delay_ms_max)

    def save(self, operator: Operator, effect: SaveMetadata) -> None:
        dice, options = self.world.dice, self.options
        life = operator.life
        uncertain = MetadataUncertain(effect.address, effect.record.writer)
        if dice.chance(options.request_lost):
            self.world.after(TIMEOUT_MS, operator.answer, life, uncertain)
        elif dice.chance(options.late):
            self.world.after(TIMEOUT_MS, operator.answer, life, uncertain)
            self.world.after(TIMEOUT_MS + dice.around(60), self._apply, None, life, effect)
        else:
            self.world.after(self._delay(), self._apply, operator, life, effect)

    def _apply(self, operator: Operator | None, life: int, effect: SaveMetadata) -> None:
        dice, world = self.world.dice, self.world
        uncertain = MetadataUncertain(effect.address, effect.record.writer)
        if self.down or self.lost:
            if operator is not None:
                world.after(TIMEOUT_MS, operator.answer, life, uncertain)
            return
        data, revision = self.records[effect.address.shard]
        if revision != effect.expected:
            world.trace.note("store", "conflict", effect)
            if operator is not None:
                world.after(self._delay(), operator.answer, life, uncertain)
            return
        before = ShardRecord.decode(data)
        self.revision += 1
        self.records[effect.address.shard] = (effect.record.encode(), self.revision)
        world.trace.note("store", "saved", effect)
        losing.record_stored(world, effect.address.shard, before, effect.record)
        world.checkers.record_saved(effect.address.shard, before, effect.record)
        for watcher in world.operators.values():
            self._watch(watcher, effect.address.shard)
        if operator is not None:
            if dice.chance(self.options.answer_lost):
                world.after(TIMEOUT_MS, operator.answer, life, uncertain)
            else:
                saved = MetadataSaved(effect.address, effect.record.writer, self.revision)
                world.after(self._delay(), operator.answer, life, saved)
        world.faults.saw_record(effect.address.shard, before, effect.record)

    def _watch(self, operator: Operator, shard: ShardId) -> None:
        """Tell one operator of the version just stored: later, and in order."""
        data, revision = self.records[shard]
        event = MetadataLoaded(of_shard(shard), ShardRecord.decode(data), revision)
        at = self.world.now_ms + 1 + self.world.dice.around(self.options.watch_delay_ms)
        at = self._watched_at[operator.name] = max(at, self._watched_at.get(operator.name, 0))
        self.world.after(at - self.world.now_ms, operator.answer, operator.life, event)

    def load(self, operator: Operator, effect: LoadMetadata) -> None:
        self.world.after(self._delay(), self._read, operator, operator.life, effect)

    def _read(self, operator: Operator, life: int, effect: LoadMetadata) -> None:
        if operator.life != life:
            return
        if self.down:
            self.world.after(self.world.dice.around(40), self._read, operator, life, effect)
            return
        data, revision = self.records[effect.address.shard]
        event = MetadataLoaded(effect.address, ShardRecord.decode(data), revision, fresh=True)
        self.world.after(self._delay(), operator.answer, life, event)
