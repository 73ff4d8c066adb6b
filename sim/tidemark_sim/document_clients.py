"""Clients of documents: the writes that producers make, and clients who read, pin and unpin.

Stays out: retries (`clients`), whether an answer was right (`checkers.documents`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import ShardId
from tidemark_core.documents.payload import Op, Write, Writes, encode
from tidemark_core.documents.requests import Level, PinDocuments, ReadDocuments, UnpinDocuments

if TYPE_CHECKING:
    from .world import World

MARK = b"mark "
PIN_NAMES = ("backup", "audit", "spark")
PIN_OWNERS = ("", "client/eve", "client/shop")


@dataclass(slots=True)
class DocumentOptions:
    """`keys` is how many keys writers share, 0: shards are logs.  Chances are per record, batch or look."""

    keys: int = 0
    deletes: float = 0.25
    conditions: float = 0.4
    atomic: float = 0.3
    ttl: float = 0.3
    ttl_ms_max: int = 300
    pin: float = 0.0
    pin_ms_max: int = 1500
    reads: float = 0.0
    think_ms: int = 40


def item_of(writes: Writes) -> int:
    """Return the number that a producer gave the batch: its first record says it."""
    return int(writes.records[0].value)


class DocumentClients:
    """Everything that clients of documents do in one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = world.options.documents
        self.stopped = False
        self._versions: dict[ShardId, dict[bytes, int]] = {shard: {} for shard in world.shards}

    def begin(self) -> None:
        if self.options.keys:
            self.world.after(self.world.dice.between(0, 60), self.tick)

    def payload(self, name: str, item: int, shard: ShardId) -> tuple[int, bytes]:
        """Return how many records a batch has, and its bytes."""
        dice, options = self.world.dice, self.options
        records = [Write(Op.PUT, MARK + name.encode(), str(item).encode())]
        for _ in range(dice.between(0, 3)):
            key = b"k%d" % dice.between(0, options.keys - 1)
            expected = None
            if dice.chance(options.conditions):
                known = self._versions[shard].get(key, 0)
                expected = 0 if dice.chance(0.3) else known
            if dice.chance(options.deletes):
                records.append(Write(Op.DELETE, key, expected=expected))
            else:
                ttl_ms = dice.between(1, options.ttl_ms_max) if dice.chance(options.ttl) else 0
                records.append(Write(Op.PUT, key, b"%d/%s" % (item, name.encode()), ttl_ms, expected))
        return len(records), encode(Writes(tuple(records), dice.chance(options.atomic)))

    def learn(self, shard: ShardId, key: bytes, seqno: int) -> None:
        """A writer hears of the version that it wrote or met."""
        self._versions[shard][key] = seqno

    def tick(self) -> None:
        """Read somewhere, pin or unpin now and then."""
        world, dice, options = self.world, self.world.dice, self.options
        if self.stopped:
            world.idle()
            return
        shard = dice.pick(world.shards)
        if dice.chance(options.reads):
            level = dice.pick(list(Level))
            least = dice.between(-1, max(-1, world.checkers.committed_last(shard) + 2)) if dice.chance(0.3) else -1
            event = ReadDocuments(shard, world.request_number(), level, least)
            world.checkers.documents_asked(event)
            self._send(shard, event)
        if dice.chance(options.pin):
            name, number = dice.pick(list(PIN_NAMES)), world.request_number()
            owner = PIN_OWNERS[number % len(PIN_OWNERS)]
            if dice.chance(0.6):
                self._send(shard, PinDocuments(shard, number, name, dice.between(50, options.pin_ms_max), owner))
            else:
                self._send(shard, UnpinDocuments(shard, number, name, owner))
        world.after(dice.around(options.think_ms), self.tick)

    def _send(self, shard: ShardId, event: Any) -> None:
        world = self.world
        leader = world.metadata.record(shard).leader
        knows = leader is not None and world.dice.chance(0.7)
        name = leader.node if leader is not None and knows else world.dice.pick(list(world.nodes))
        world.network.send("reader", name, world.nodes[name].request, event, lambda value: None)
