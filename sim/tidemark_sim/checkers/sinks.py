"""Sinks: a mark leaves out no part that was let in, batches only go on, and later leaders know both (W1-W3).

Views of nodes are compared with a plain replay of the committed log.  Stays out: leases, which outlive every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.clients import JoinSink, MarkSink, SinksRequest
from tidemark_core.replication.messages import SinkJoined, SinkMarked
from tidemark_core.replication.sinks import sinks_of
from tidemark_core.sinks.fold import Join, Mark, Noted, noted
from tidemark_core.sinks.view import SinksView

from ..trace import Violation

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World
    from .history import History


class Reached(NamedTuple):
    """How far a sink has come by some records: its newest batch, the parts that joined it, and its newest mark."""

    batch: int = -1
    joined: frozenset[int] = frozenset()
    marked: int = -1
    mark: Mark | None = None


def reached(records: Iterable[Noted]) -> Reached:
    """Replay the records of one sink."""
    found = Reached()
    for record in records:
        if isinstance(record.change, Mark):
            found = Reached(record.batch, frozenset(), record.batch, record.change)
        elif isinstance(record.change, Join) and record.batch > found.marked:
            before = found.joined if record.batch == found.batch else frozenset()
            found = found._replace(batch=record.batch, joined=before | {record.change.part})
    return found


class SinksAreWhole:
    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        # Of each shard and name: what is committed and not rolled back, in log order.
        self._records: dict[ShardId, dict[str, list[Noted]]] = {shard: {} for shard in world.shards}
        # Requests that were answered, with the epoch of the leader that answered.
        self._told: dict[tuple[ShardId, str], list[tuple[int, JoinSink | MarkSink]]] = {}
        self._lossy: set[ShardId] = set()

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        """Committed records are gone, and with them what they said (K14e)."""
        self._lossy.add(shard)

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if entry.kind is Kind.ROLLBACK:
            for records in self._records[shard].values():
                while records and records[-1].at >= entry.sequence:
                    records.pop()
        elif entry.kind is Kind.SINK and shard not in self._lossy:
            record = noted(entry)
            records = self._records[shard].setdefault(record.name, [])
            if (wrong := _wrong(reached(records), record)) is not None:
                raise Violation(wrong[:2], f"{entry.id} {wrong[3:]}: {record} comes after {reached(records)}")
            records.append(record)

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(event, SinksRequest) and isinstance(value, SinksView):
            self._shown(node, event.shard, value)
        elif isinstance(value, SinkJoined | SinkMarked) and event.shard not in self._lossy:
            if not self._is_said(event, value):
                raise Violation("W3", f"{node.name} answers {value} to {event}, which no committed record says")
            self._told.setdefault((event.shard, event.name), []).append((value.epoch, event))

    def _is_said(self, event: JoinSink | MarkSink, value: SinkJoined | SinkMarked) -> bool:
        records = [each for each in self._records[event.shard].get(event.name, ()) if each.batch == event.batch]
        if isinstance(event, MarkSink):
            return any(each.change == Mark(event.parts, event.shards) for each in records)
        if isinstance(value, SinkJoined) and value.marked:
            return any(isinstance(each.change, Mark) and event.part < each.change.parts for each in records)
        return any(each.change == Join(event.part) for each in records)

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """A new leader's log has what was answered before its election, or what came after that."""
        if shard in self._lossy:
            return
        assert node.core is not None
        log = node.core.log.shards[shard].replica.log
        for (where, name), told in self._told.items():
            for before, event in told if where == shard else ():
                _, sink = sinks_of(node.core.log.shards[shard].replica).newest(name, log.decisions.covering)
                knows = sink is not None and (sink.batch > event.batch or sink.marked == event.batch or (
                    isinstance(event, JoinSink) and sink.batch == event.batch and bool(sink.joined >> event.part & 1)))
                if before < epoch and not knows:
                    raise Violation("W3", f"{node.name} leads epoch {epoch} with {name} at {sink}, after {event}")

    def _shown(self, node: Node, shard: ShardId, view: SinksView) -> None:
        assert node.core is not None
        if shard in self._lossy:
            return
        confirmed = node.core.log.shards[shard].replica.confirmed
        records: dict[str, list[Noted]] = {}
        for entry in self._history.standing(shard, confirmed):
            if entry.kind is Kind.SINK:
                records.setdefault(noted(entry).name, []).append(noted(entry))
        wanted = {name: reached(some) for name, some in records.items()}
        shown = {
            each.name: (each.batch, each.joined, each.marked, each.parts, {end.last for end in each.ends})
            for each in view.sinks}
        said = {
            name: (each.batch, len(each.joined), each.marked, each.mark.parts if each.mark else 0,
                   {end.last for end in each.mark.shards} if each.mark else set())
            for name, each in wanted.items()}
        if shown != said:
            raise Violation("W3", f"{node.name} shows {shown} at {confirmed}, the log says {said}")
        self._world.trace.count("sinks_shown")


def _wrong(before: Reached, record: Noted) -> str | None:
    """Say the rule that a record breaks after those before it, and how."""
    change = record.change
    if record.batch < before.batch:
        return "W1 goes back to an older batch"
    if record.batch == before.marked:
        if isinstance(change, Mark) and change != before.mark:
            return "W2 marks a batch once more with other ends"
        if isinstance(change, Join) and before.mark is not None and change.part >= before.mark.parts:
            return "W2 lets a part into a batch that was marked without it"
    elif isinstance(change, Mark) and record.batch == before.batch and max(before.joined, default=-1) >= change.parts:
        return "W2 leaves out a part that has joined"
    return None
