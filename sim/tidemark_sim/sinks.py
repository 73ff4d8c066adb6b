"""Sinks: jobs that write in batches, whose parts join a batch before they append and whose driver marks it.

An attempt at a batch may have another number of parts than the one before it, whose parts go on asking.  A job that is
refused gives its batch up; one whose mark was answered goes on to the next batch, or repeats the one it has marked.
Stays out: what parts append, whether an answer was right (`checkers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import JoinSink, MarkSink, SinksRequest
from tidemark_core.replication.messages import SinkJoined, SinkMarked
from tidemark_core.sinks.fold import LEASE_MS_MAX, SinkEnd

if TYPE_CHECKING:
    from .world import World

THINK_MS = 30
PARTS_MAX = 4
LOOKS = 0.2
FINAL = (Reason.BATCH_PASSED, Reason.PART_LEFT_OUT)


class Attempt:
    """One attempt at a batch: each part asks until it is answered, then the driver does."""

    def __init__(self, job: SinkJob, parts: int) -> None:
        self.job = job
        self.batch = job.batch
        self.parts = parts
        self.waiting = set(range(parts))
        self.over = False

    def tick(self) -> None:
        """Let a part ask, or the driver once all have joined."""
        job, dice = self.job, self.job.world.dice
        if self.over or job.stopped:
            job.world.idle()
            return
        if self.waiting:
            part = dice.pick(sorted(self.waiting))
            job.ask(
                lambda number: JoinSink(job.shard, number, job.name, self.batch, part, LEASE_MS_MAX),
                lambda value: self._joined(part, value))
        elif self is job.newest:    # Spark has one driver: an attempt that was replaced marks nothing
            marks = (SinkEnd(0, self.batch, self.parts, self.batch % 7),)
            job.ask(
                lambda number: MarkSink(
                    job.shard, number, job.name, self.batch, self.parts, marks, LEASE_MS_MAX),
                self._marked)
        job.world.after(dice.around(THINK_MS), self.tick)

    def _joined(self, part: int, value: Any) -> None:
        if isinstance(value, SinkJoined):
            self.waiting.discard(part)
        elif isinstance(value, Refused) and value.reason in FINAL:
            self._refused(value.reason)

    def _marked(self, value: Any) -> None:
        if isinstance(value, Refused) and value.reason in FINAL:
            self._refused(value.reason)
        elif isinstance(value, SinkMarked) and not self.over:
            self.over = True
            self.job.world.trace.count("sinks_marked")
            self.job.go_on(self, again=True)

    def _refused(self, reason: Reason) -> None:
        if not self.over:
            self.over = True
            self.job.world.trace.count(f"sinks_{reason.lower()}")
            self.job.go_on(self, again=False)


class SinkJob:
    """One name on one shard."""

    def __init__(self, world: World, name: str, shard: ShardId) -> None:
        self.world = world
        self.name = name
        self.shard = shard
        self.batch = 0
        self.stopped = False
        self.newest: Attempt | None = None
        self._target = world.dice.pick(list(world.nodes))

    def tick(self) -> None:
        """Look how far the sink has come, and now and then begin the batch once more."""
        world, dice = self.world, self.world.dice
        if self.stopped:
            world.idle()
            return
        if dice.chance(0.3):
            leader = world.metadata.record(self.shard).leader
            self._target = leader.node if leader and dice.chance(0.8) else dice.pick(list(world.nodes))
        if self.newest is None or dice.chance(0.1):
            self._begin(dice.between(0, PARTS_MAX))
        if dice.chance(LOOKS):
            self.ask(lambda number: SinksRequest(self.shard, number), lambda value: None)
        world.after(dice.around(THINK_MS), self.tick)

    def ask(self, event: Callable[[int], Any], answer: Callable[[Any], None]) -> None:
        """Send a request to whom the job takes for the leader."""
        world, node = self.world, self._target
        world.network.send(
            self.name, node, world.nodes[node].request, event(world.request_number()),
            lambda value: world.network.send(node, self.name, answer, value),
        )

    def go_on(self, attempt: Attempt, *, again: bool) -> None:
        """Go on to the next batch, or repeat one that was marked as it was."""
        if attempt is not self.newest:
            return
        if again and self.world.dice.chance(0.3):
            self._begin(attempt.parts)
            return
        self.batch += 1
        self.newest = None

    def _begin(self, parts: int) -> None:
        self.newest = Attempt(self, parts)
        self.world.after(self.world.dice.around(THINK_MS), self.newest.tick)
