"""Sinks: what a leader does when parts of a batch join it and when the batch is marked (rules W1-W5).

Stays out: the fold itself (`sinks.fold`), who waits for a record (`confirmations`), the rows of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.effects import Effect, Reply
from ..base.entry import Kind
from ..base.folds import find
from ..base.refusals import Reason, Refused
from ..sinks.fold import (
    BATCH_MAX,
    ENDS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Change,
    Deletion,
    Join,
    Mark,
    Sink,
    Sinks,
    sink_payload,
    wrong_change,
    wrong_name,
)
from ..sinks.judging import judge
from ..sinks.view import SinksView, SinkView
from .clients import DeleteSink, JoinSink, MarkSink, SinkEvent, SinksRequest
from .messages import SinkDeleted, SinkJoined, SinkMarked
from .positions import RENEWALS
from .replica import Replica

if TYPE_CHECKING:
    from .leader import Leader

Answer = SinkJoined | SinkMarked | SinkDeleted


def on_request(leader: Leader, now_ms: int, m: SinkEvent) -> list[Effect]:
    """Judge a request by all that can be confirmed, and answer it once that is (W3)."""
    if not leader.active:
        return [Reply(m.request, Refused(Reason.NOT_LEADER, "leadership is being established", leader.epoch))]
    match m:
        case JoinSink(_, _, name, batch, part, lease_ms):
            return _Judged(leader, now_ms, m.request, name, batch, lease_ms).change(Join(part))
        case MarkSink(_, _, name, batch, parts, shards, lease_ms):
            return _Judged(leader, now_ms, m.request, name, batch, lease_ms).change(Mark(parts, shards))
        case DeleteSink(_, _, name):
            return _Judged(leader, now_ms, m.request, name, 0, 0).delete()
        case SinksRequest():
            return _on_look(leader, now_ms, m)


class _Judged:
    """One request about one sink."""

    __slots__ = ("_at", "_batch", "_leader", "_lease_ms", "_name", "_now_ms", "_request", "_sink")

    def __init__(
        self, leader: Leader, now_ms: int, request: int, name: str, batch: int, lease_ms: int
    ) -> None:
        self._leader = leader
        self._now_ms = now_ms
        self._request = request
        self._name = name
        self._batch = batch
        self._lease_ms = lease_ms
        self._at, sink = sinks_of(leader.replica).newest(name, leader.replica.log.decisions.covering)
        self._sink: Sink | None = sink if sink is not None and sink.live(self._logged_ms) else None

    def change(self, change: Join | Mark) -> list[Effect]:
        """Let a part join its batch (W1), or mark a batch (W2)."""
        if (wrong := self._wrong(change)) is not None:
            return self._refuse(Reason.INVALID_SPEC, wrong)
        sink, epoch = self._sink, self._leader.epoch
        verdict = judge(sink, self._batch, change)
        if verdict.refused is not None:
            return self._refuse(verdict.refused, verdict.message)
        answer = SinkJoined(epoch, verdict.marked) if isinstance(change, Join) else SinkMarked(epoch)
        if verdict.known and sink is not None and self._fresh(sink):
            return self._when(self._at, answer)
        return self._write(change, answer)

    def delete(self) -> list[Effect]:
        """Forget the sink (W4)."""
        if (wrong := wrong_name(self._name)) is not None:
            return self._refuse(Reason.INVALID_SPEC, wrong)
        epoch = self._leader.epoch
        if self._sink is None:
            return self._when(self._at, SinkDeleted(epoch, False))
        return self._write(Deletion(), SinkDeleted(epoch, True))

    # --- inside -------------------------------------------------------------------------------------------

    @property
    def _logged_ms(self) -> int:
        """The log's clock as the next entry would set it."""
        return self._leader.clocks.next_stamp(self._now_ms)

    def _wrong(self, change: Change) -> str | None:
        if (wrong := wrong_name(self._name) or wrong_change(change)) is not None:
            return wrong
        if not 0 <= self._batch <= BATCH_MAX:
            return f"batch is {self._batch}, must be 0 to {BATCH_MAX}"
        if not LEASE_MS_MIN <= self._lease_ms <= LEASE_MS_MAX:
            return f"lease_ms is {self._lease_ms}, must be {LEASE_MS_MIN} to {LEASE_MS_MAX}"
        return None

    def _fresh(self, sink: Sink) -> bool:
        """Say whether a repetition need not renew the lease, as for a subscription (B7)."""
        return sink.lease_ms == self._lease_ms and self._logged_ms - sink.logged_ms < sink.lease_ms // RENEWALS

    def _write(self, change: Change, answer: Answer) -> list[Effect]:
        leader, sinks = self._leader, sinks_of(self._leader.replica)
        if not sinks.has_room_for(self._name, change):
            return self._refuse(Reason.TOO_MANY_SINKS, f"the sinks of the shard have {ENDS_MAX} ends already")
        if sinks.crowded:
            return self._refuse(Reason.OVERLOADED, "too many records of sinks wait for their quorum", 50)
        if (refused := leader.refuse_control()) is not None:
            return [Reply(self._request, refused)]
        payload = sink_payload(self._name, self._lease_ms, change)
        leader.append_control(self._now_ms, Kind.SINK, payload, argument=self._batch)
        return self._when(leader.head, answer)

    def _when(self, at: int, answer: Answer) -> list[Effect]:
        """Answer once the record at `at` is confirmed."""
        return self._leader.confirmations.when(
            at, self._now_ms, self._request, lambda: self._unless_covered(at, answer))

    def _unless_covered(self, at: int, answer: Answer) -> Answer | Refused:
        if at < 0 or self._leader.replica.log.decisions.covering(at) is None:
            return answer
        return Refused(Reason.BEHIND, "a rollback took the record with it; retry", self._leader.epoch, -1, 10)

    def _refuse(self, reason: Reason, message: str, retry_after_ms: int = -1) -> list[Effect]:
        return [Reply(self._request, Refused(reason, message, self._leader.epoch, -1, retry_after_ms))]


def _on_look(leader: Leader, now_ms: int, m: SinksRequest) -> list[Effect]:
    """A new leader does not know yet what it inherited is confirmed: it would show older batches (L12)."""
    replica = leader.replica
    if replica.confirmed < leader.outcomes.limbo.opening:
        behind = Refused(Reason.BEHIND, "what this leader inherited is not confirmed yet", leader.epoch, -1, 20)
        return [Reply(m.request, behind)]
    return [Reply(m.request, _view(replica, leader.epoch, m.name))]


def _view(replica: Replica, epoch: int, wanted: str) -> SinksView:
    logged_ms = replica.log.logged_ms
    return SinksView(epoch, tuple(
        SinkView(
            name, sink.batch, sink.joined.bit_count(), sink.marked, sink.parts, sink.lease_ms, sink.logged_ms,
            sink.logged_ms + sink.lease_ms - logged_ms, sink.ends)
        for name, sink in sinks_of(replica).known(logged_ms) if wanted in ("", name)))


def sinks_of(replica: Replica) -> Sinks:
    """Return the fold of a replica's log."""
    return find(replica.log.folds, Sinks)
