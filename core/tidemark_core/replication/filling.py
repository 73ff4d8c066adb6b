"""Filling: before other members, or more of them, keep payloads, each gets those it will have to keep (K13).

Pulled like a snapshot, from members that keep them now; whoever asked hears how far it is, and that it is done once it
is durable.  Stays out: when it is asked for, and what waits for it; those are `leader`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..base.effects import (
    Effect,
    Feed,
    PullSnapshot,
    PutEntry,
    Received,
    SetTimer,
    SnapshotChunk,
    SnapshotDescriptor,
    Write,
)
from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from ..base.ids import Member
from ..delivery.order import slots_of
from .copies import seat_of
from .follower import PULL_TIMER
from .messages import Fill, Filled
from .replica import Replica, Role


@dataclass(slots=True)
class Span:
    """Entries [first, last] to get, all of one reading order; `sources` in the order to ask them."""

    first: int
    last: int
    sources: tuple[Member, ...]


@dataclass(slots=True)
class Job:
    """One Fill under way; `at` is the next offset to get."""

    asker: Member
    asked: Fill
    spans: list[Span] = field(default_factory=list)
    at: int = -1
    source: int = 0


class Filling:
    """What this member gets before a change is in force."""

    __slots__ = ("_job", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._job: Job | None = None

    def on_fill(self, asker: Member, m: Fill) -> list[Effect]:
        """Begin, or say again how far it is; of another epoch than ours it means nothing."""
        replica = self.replica
        if m.epoch != replica.state.epoch or replica.state.role in (Role.SEEDING, Role.DELETED):
            return []
        if self._job is not None and self._job.asked == m:
            return [self._say(self._job)]
        self._job = Job(asker, m, list(self._spans(m)))
        return self._next()

    def _spans(self, m: Fill) -> Iterator[Span]:
        """Yield what we shall have to keep and need not have now."""
        replica = self.replica
        log, now, then = replica.log, replica.seat, seat_of(replica.me, m.ensemble, m.copies)
        if then is None:
            return
        ensemble = replica.state.ensemble
        for first, last, order in log.order_spans(log.first, min(replica.state.dropped, m.upto)):
            if then.keeps(order) and (now is None or not now.keeps(order)):
                ranked = [ensemble[slot] for slot in slots_of(order, len(ensemble))]
                ranked += [member for member in m.ensemble if member not in ranked]
                yield Span(first, last, tuple(member for member in ranked if member != replica.me))

    def _next(self) -> list[Effect]:
        """Pull the next span, or say that all is durable."""
        job = self._job
        assert job is not None
        if not job.spans:
            job.at = job.asked.upto + 1
            return [self._say(job)]
        job.at, job.source = job.spans[0].first, 0
        return self.pull()

    def _say(self, job: Job) -> Effect:
        """Answer behind every earlier write of ours."""
        replica, filled = self.replica, Filled(job.asked.epoch, job.at - 1)
        if job.asker == replica.me:
            return replica.persist((), [Feed(Received(replica.address, replica.me, replica.me, filled))])
        return replica.persist((), [replica.send(job.asker, filled)])

    def pull(self) -> list[Effect]:
        """(Re)start the pull of the current span behind what is stored of it."""
        job, replica = self._job, self.replica
        if job is None or not job.spans or job.asked.epoch != replica.state.epoch:
            return []
        span = job.spans[0]
        if not span.sources:
            return []
        source = span.sources[job.source % len(span.sources)]
        wanted = SnapshotDescriptor(job.asked.epoch, replica.log.id_at(span.last), job.at, replica.commit, 0)
        return [PullSnapshot(replica.shard, source, wanted, job.at)]

    def on_chunk(self, chunk: SnapshotChunk) -> list[Effect]:
        """Store what we shall have to keep; it is part of our log already, so only its bytes are new."""
        job, replica = self._job, self.replica
        if job is None or not job.spans or chunk.epoch != job.asked.epoch or chunk.epoch != replica.state.epoch:
            return []
        writes: list[Write] = []
        before = job.at
        for entry in chunk.entries:
            if entry.base == job.at and entry.last <= job.spans[0].last:   # else a repeat
                writes += self._take(entry)
                job.at = entry.last + 1
        if job.at == before:
            return []
        replica.update(swept=-1)   # should nothing come of the change, these are surplus again
        effects: list[Effect] = [replica.persist(writes)]
        if job.at <= job.spans[0].last:
            return [*effects, self._say(job)]
        job.spans.pop(0)
        return [*effects, *self._next()]

    def _take(self, entry: Entry) -> list[Write]:
        if not entry.held or not self.replica.log.contains(entry.id):
            raise RemoteViolation(f"K13: entry {entry.id} of a fill is not whole, or not one of our log")
        return [PutEntry(entry)] if entry.kind is Kind.DATA else []

    def on_failed(self, now_ms: int, message: str) -> list[Effect]:
        """Ask the next member; the clock when all were asked."""
        job, replica = self._job, self.replica
        if job is None or not job.spans or not job.spans[0].sources:
            return []
        job.source += 1
        if job.source % len(job.spans[0].sources):
            return self.pull()
        return [
            replica.trace("fill_failed", message),
            SetTimer(replica.address, PULL_TIMER, now_ms + replica.limits.pull_retry_ms),
        ]

    def stop(self) -> list[Effect]:
        """Whatever was to be filled is no longer ours."""
        running = self._job is not None and bool(self._job.spans)
        self._job = None
        return [PullSnapshot(self.replica.shard, None, None, 0)] if running else []
