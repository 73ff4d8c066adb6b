"""A node with a disk and without a network: one shard of documents that it leads alone, or follows."""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemark_core.base.effects import (
    Changed,
    Feed,
    LogRead,
    Persist,
    PullSnapshot,
    ReadLog,
    ReadRows,
    Received,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    TimerFired,
    Trace,
)
from tidemark_core.base.entry import Durability
from tidemark_core.base.ids import Member, ShardKind
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import NodeFacts
from tidemark_core.document_changes import Changes
from tidemark_core.document_shard import Documents
from tidemark_core.documents import payload
from tidemark_core.documents.payload import Write, Writes
from tidemark_core.documents.requests import Written
from tidemark_core.node import NodeCore
from tidemark_core.planes import planes
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.messages import BecomeLeader, Fence
from tidemark_sim.checkers.documents import StoreView
from tidemark_sim.disk import Disk, Queued, StoredPlane

from tests.core.support import AT, OPERATOR, PRODUCER, SHARD, A, batch

LIMITS = Limits(expire_look_ms=1_000, tombstone_ms=60_000, checkpoint_entries=1)

ROWS_MAX = 3
"""Rows of a page: fewer than the core asks for, as where rows are large."""


class Desk:
    """Runs effects at once; with `syncs` False writes stay in the queue until `sync`."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.disk = Disk()
        self.now_ms = 1_000
        self.syncs = True
        self.replies: dict[int, Any] = {}
        self.sent: list[Any] = []
        self.pulls: list[PullSnapshot] = []
        self.traces: list[str] = []
        self.changes: list[Changes] = []
        self.timers: dict[str, int] = {}
        self.requests = 0
        self.sequence = 0
        self.core = NodeCore(NodeFacts(A), planes(limits))

    @property
    def documents(self) -> Documents:
        found = self.core.log.shards[SHARD].documents
        assert found is not None
        return found

    @property
    def rows(self) -> StoreView:
        return StoreView(self.disk.durable_tables)

    def lead(self, epoch: int = 1, ensemble: tuple[Member, ...] = (A,), lineage: bytes = b"") -> None:
        self.receive(OPERATOR, Fence(epoch, epoch * 10, kind=ShardKind.DOCUMENTS))
        self.receive(OPERATOR, BecomeLeader(epoch, epoch * 10, ensemble, (), lineage=lineage))

    def crash(self) -> None:
        """Lose what is not synced, and come back."""
        self.disk.power_cut()
        self.timers.clear()
        self.core = NodeCore(NodeFacts(A), planes(self.limits))
        self.core.recover(partial(StoredPlane, self.disk))
        producers = self.core.log.shards[SHARD].replica.log.producers
        self.sequence = producers.judge(PRODUCER, 1 << 40, 0).expected

    def receive(self, sender: Any, message: Any) -> None:
        self.step(Received(AT, sender, A, message))

    def ask(self, kind: type, *arguments: Any) -> int:
        """Send a request; return its number, under which the reply is kept."""
        self.requests += 1
        self.step(kind(SHARD, self.requests, *arguments))
        return self.requests

    def write(self, *records: Write, atomic: bool = False, durability: Durability = Durability.QUORUM) -> int:
        body = payload.encode(Writes(records, atomic))
        return self.append(self.sequence, len(records), body, durability)

    def append(self, sequence: int, count: int, body: bytes, durability: Durability = Durability.QUORUM) -> int:
        self.sequence = max(self.sequence, sequence + 1)
        made = batch(sequence, producer=PRODUCER, count=count, payload=body, durability=durability)
        return self.ask(AppendRequest, made)

    def written(self, *records: Write, atomic: bool = False) -> Written:
        answer = self.replies[self.write(*records, atomic=atomic)]
        assert isinstance(answer, Written), answer
        return answer

    def wait(self, ms: int) -> None:
        """Let time pass in steps, firing timers that are due."""
        until_ms = self.now_ms + ms
        while self.timers and (due := min(self.timers.items(), key=lambda each: each[1]))[1] <= until_ms:
            del self.timers[due[0]]
            self.now_ms = max(self.now_ms, due[1])
            self.step(TimerFired(AT, due[0]))
        self.now_ms = until_ms

    def sync(self) -> None:
        while self.disk.queue:
            [item] = self.disk.take(1)
            self.disk.settle(item)
            self.run(item.then)

    def step(self, event: Any) -> None:
        self.run(self.core.step(self.now_ms, [event]))

    def run(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.disk.enqueue(Queued(effect.address, effect.writes, effect.then), lambda *_: None)
                    if self.syncs:
                        self.sync()
                case Feed():
                    self.step(effect.event)
                case Reply():
                    self.replies[effect.request] = effect.value
                case Send():
                    self.sent.append(effect.message)
                case SetTimer():
                    self.timers.pop(effect.name, None)
                    if effect.at_ms is not None:
                        self.timers[effect.name] = effect.at_ms
                case ReadLog():
                    entries, _ = self.disk.read(SHARD, effect.first, effect.last, effect.bytes_max)
                    self.step(LogRead(SHARD, effect.tag, entries))
                case ReadRows():
                    values = tuple(self.disk.durable_tables.get(*key) for key in effect.keys)
                    self.step(RowsRead(effect.address, effect.tag, values))
                case ScanRows():
                    rows = self.disk.durable_tables.scan(effect.family, effect.first, effect.behind)
                    page = tuple(rows[: min(effect.rows_max, ROWS_MAX)])
                    self.step(RowsScanned(effect.address, effect.tag, page, len(rows) > len(page)))
                case Changed():
                    self.changes.append(effect.changes)
                case PullSnapshot():
                    self.pulls.append(effect)
                case Trace():
                    self.traces.append(effect.what)
