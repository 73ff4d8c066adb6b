"""A crowd: callers that write under a new producer id each time, in a shard that remembers few producers (L25b).

Each batch is sent once, to the leader or to any node, and its answer is not waited for.
Stays out: whether producers of other callers are remembered (`checkers.remembered`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch
from tidemark_core.replication import producers
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.producer_ids import prefix_of

if TYPE_CHECKING:
    from .world import World


@dataclass(slots=True)
class CrowdOptions:
    """`callers` of 0 make no crowd; `every_ms` is the mean time between two batches of one caller."""

    callers: int = 0
    every_ms: int = 5
    remembered: int = producers.PRODUCERS_MAX


class Crowd:
    """All callers of the crowd."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.prefixes = [prefix_of(f"client/crowd{number}") for number in range(world.options.crowd.callers)]
        self.over = False

    def begin(self) -> None:
        for prefix in self.prefixes:
            self.world.after(self.world.dice.between(0, 60), self.tick, prefix)

    def tick(self, prefix: bytes) -> None:
        """Write one batch as a producer that writes no other."""
        world, dice = self.world, self.world.dice
        if self.over:
            world.idle()
            return
        shard, stamp, payload = dice.pick(world.shards), world.now_ms * 1000, b"crowd/0"
        batch = Batch(prefix + dice.bytes(8), 0, 1, stamp, stamp, crc32c(payload), payload)
        leader = world.metadata.record(shard).leader
        node = leader.node if leader and dice.chance(0.9) else dice.pick(list(world.nodes))
        world.network.send(
            "crowd", node, world.nodes[node].request, AppendRequest(shard, world.request_number(), batch, -1),
            lambda value: None,
        )
        world.after(dice.around(world.options.crowd.every_ms), self.tick, prefix)


@contextmanager
def remembered(options: CrowdOptions) -> Iterator[None]:
    """Let shards remember as few producers as the options say."""
    before, producers.PRODUCERS_MAX = producers.PRODUCERS_MAX, options.remembered
    try:
        yield
    finally:
        producers.PRODUCERS_MAX = before
