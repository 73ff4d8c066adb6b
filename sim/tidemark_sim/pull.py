"""A snapshot pull: the new member asks the source for its stored entries, chunk by chunk, over the network.

A lost question or answer is asked again a few times; then the pull gives up and the core decides.
Stays out: what a snapshot must contain; the core checks every entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import (
    LogReadFailed,
    SnapshotChunk,
    SnapshotDescriptor,
    SnapshotFailed,
    SnapshotRows,
)
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.documents.rows import FAMILIES, behind, prefix

if TYPE_CHECKING:
    from .node import Node

PATIENCE_MS = 60
TRIES_MAX = 3


class Pull:
    """One running pull; `life` ties it to one life of the node that pulls."""

    __slots__ = ("descriptor", "life", "next", "node", "question", "rows", "shard", "source", "stopped", "tries")

    def __init__(
        self, node: Node, shard: ShardId, source: Member, descriptor: SnapshotDescriptor, first: int, rows: bool
    ) -> None:
        self.rows = rows       # those of documents come first, all of one state (U47)
        self.node = node
        self.shard = shard
        self.source = source
        self.descriptor = descriptor
        self.next = first
        self.life = node.life
        self.tries = 0
        self.question = 0
        self.stopped = False
        self._ask()

    def stop(self) -> None:
        self.stopped = True

    @property
    def _over(self) -> bool:
        return self.stopped or self.node.life != self.life

    def _ask(self) -> None:
        world = self.node.world
        self.question += 1
        world.network.send(self.node.name, self.source.node, self._answer, self.question)
        world.after(PATIENCE_MS, self._patience_ends, self.question)

    def _answer(self, question: int) -> None:
        """Runs at the source: read a chunk of what is durable and send it back."""
        world = self.node.world
        source = world.nodes[self.source.node]
        if self._over or source.core is None or source.held is not None or source.member != self.source:
            return
        if source.core.log.pull_refused(self.shard, self.node.member) is not None:
            world.network.send(self.source.node, self.node.name, self._arrive, question, (), False)
            return
        if self.rows:
            tables, bounds = source.disk.durable_tables, (prefix(self.shard), behind(self.shard))
            rows = tuple((family, *row) for family in FAMILIES for row in tables.scan(family, *bounds))
            world.network.send(self.source.node, self.node.name, self._rows_arrive, question, rows)
            return
        bytes_max = world.dice.between(1, world.options.cluster.chunk_bytes_max)
        entries, damaged = source.disk.read(self.shard, self.next, self.descriptor.head.offset, bytes_max)
        part, goes_on = source.core.log.snapshot_part(self.shard, self.descriptor.epoch, entries)
        if not part:
            damaged = source.core.log.lost_at(self.shard, entries[:1]) if entries else damaged
        if damaged is not None and not part:
            # Whoever reads for others reports damage to the core beside it, which repairs the copy from a peer.
            world.trace.count("damage_met")
            source.feed(source.life, LogReadFailed(self.shard, None, damaged))
            return
        world.network.send(self.source.node, self.node.name, self._arrive, question, part, goes_on)

    def _rows_arrive(self, question: int, rows: tuple[tuple[str, bytes, bytes], ...]) -> None:
        """Feed the rows in two parts, so that a crash may come between."""
        if self._over or question != self.question:
            return
        self.tries, self.rows = 0, False
        node, shard, epoch, half = self.node, self.shard, self.descriptor.epoch, len(rows) // 2
        node.world.trace.count("snapshot_rows", len(rows))
        for part, first, last in ((rows[:half], True, False), (rows[half:], False, True)):
            node.feed(self.life, SnapshotRows(shard, epoch, part, first, last))
            if self._over:
                return
        if self.next <= self.descriptor.head.offset:
            self._ask()
        else:
            self.stopped = True

    def _arrive(self, question: int, entries: tuple[Entry, ...], goes_on: bool) -> None:
        if self._over or question != self.question:
            return
        if not entries:
            if not goes_on:
                self._fail(f"{self.source} may not serve what follows")
            return  # not durable at the source yet; patience runs
        self.tries = 0
        self.next = entries[-1].last + 1
        node = self.node
        node.world.trace.count("snapshot_chunks")
        node.feed(self.life, SnapshotChunk(self.shard, self.descriptor.epoch, entries))
        if self._over:
            return
        if self.next <= self.descriptor.head.offset:
            self._ask()
        else:
            self.stopped = True

    def _patience_ends(self, question: int) -> None:
        if self._over or question != self.question:
            self.node.world.idle()
            return
        self.tries += 1
        if self.tries < TRIES_MAX:
            self._ask()
            return
        self._fail(f"{self.source} does not answer")

    def _fail(self, why: str) -> None:
        self.stopped = True
        self.node.feed(self.life, SnapshotFailed(self.shard, self.descriptor.epoch, why))
