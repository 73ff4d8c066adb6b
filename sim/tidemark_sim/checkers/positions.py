"""Subscriptions: what was told committed is in every later leader and never goes back, what is pinned is not trimmed.

What a node shows is compared with a plain replay of the committed log.
Stays out: who is told what when; an older leader may still say an older position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark_core.base.effects import DropBefore, Write
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.clients import CommitPosition, SubscriptionsRequest
from tidemark_core.replication.messages import PositionCommitted
from tidemark_core.subscriptions.fold import Noted, noted
from tidemark_core.subscriptions.view import SubscriptionsView

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History


class Record(NamedTuple):
    """A committed POSITION of one name: it lies at offset `at`, a leader of `epoch` wrote it."""

    at: int
    epoch: int
    offset: int


class Told(NamedTuple):
    """An answer: a leader of `epoch` said what `record` says."""

    epoch: int
    record: Record


class Positions:
    def __init__(self, world: World, history: History) -> None:
        self.history = history
        # Of each shard and name: what is committed and not rolled back, in log order.
        self._records: dict[ShardId, dict[str, list[Record]]] = {shard: {} for shard in world.shards}
        # Of each shard and name: answers, epoch and place in the log both rising.
        self._told: dict[ShardId, dict[str, list[Told]]] = {shard: {} for shard in world.shards}
        self._sought: dict[ShardId, set[tuple[str, int]]] = {shard: set() for shard in world.shards}

    # --- what is committed --------------------------------------------------------------------------------

    def node_asked(self, node: Node, event: Any) -> None:
        if isinstance(event, CommitPosition) and event.seek:
            self._sought[event.shard].add((event.name, event.offset))

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        """B6: a record that goes back is one that somebody asked to go back to."""
        if entry.kind is Kind.ROLLBACK:
            for records in self._records[shard].values():
                while records and records[-1].at >= entry.sequence:
                    records.pop()
        elif entry.kind is Kind.POSITION:
            name, offset = noted(entry).name, entry.sequence
            records = self._records[shard].setdefault(name, [])
            if records and offset < records[-1].offset and (name, offset) not in self._sought[shard]:
                raise Violation("B6", f"{entry.id} moves {name} back to {offset}, it stood at {records[-1].offset}")
            records.append(Record(entry.base, entry.epoch, offset))

    # --- what is told -------------------------------------------------------------------------------------

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(event, CommitPosition) and isinstance(value, PositionCommitted):
            self._committed(node, event, value)
        elif isinstance(event, SubscriptionsRequest) and isinstance(value, SubscriptionsView):
            self._shown(node, event.shard, value)

    def _committed(self, node: Node, event: CommitPosition, value: PositionCommitted) -> None:
        if value.offset < event.offset or (event.seek and value.offset > event.offset):
            raise Violation("B6", f"{node.name} answers {value} to a commit of {event.offset} by {event.name}")
        # The newest such record that this leader can know.
        record = next(
            (
                each for each in reversed(self._records[event.shard].get(event.name, ()))
                if each.offset == value.offset and each.epoch <= value.epoch
            ),
            None,
        )
        if record is None:
            raise Violation("B8", f"{node.name} tells {event.name} of {value.offset}, which no committed record says")
        told = self._told[event.shard].setdefault(event.name, [])
        if not told or record.at > told[-1].record.at:
            told.append(Told(max(value.epoch, told[-1].epoch if told else 0), record))

    def _stands(self, shard: ShardId, name: str, before: int) -> Record | None:
        """Return the furthest record told by a leader of an epoch older than `before`."""
        told = (each.record for each in reversed(self._told[shard].get(name, ())) if each.epoch < before)
        return next(told, None)

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """The newest record of each name in a new leader's log is not older than what was told before its election."""
        assert node.core is not None
        log = node.core.log.shards[shard].replica.log
        for name in self._told[shard]:
            stands = self._stands(shard, name, epoch)
            found = log.subscriptions.newest(name, log.decisions.covering)
            if stands is not None and not self._as_new(shard, name, found, stands):
                raise Violation(
                    "B3",
                    f"{node.name} leads epoch {epoch} with {name} at {found}, it was told to stand at {stands.offset}",
                )

    def _as_new(self, shard: ShardId, name: str, found: Noted | None, stands: Record) -> bool:
        """Say whether a log has `stands` of a name or a later record; of what is confirmed it keeps no place."""
        if found is None or found.at >= 0:
            return found is not None and found.at >= stands.at
        records = self._records[shard].get(name, ())
        return any(each.offset == found.position.offset for each in records if each.at >= stands.at)

    # --- what is kept, what is shown ----------------------------------------------------------------------

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        """B10: a leader removes nothing that a name still wants, as far as its log and what was told say.

        What was told holds until a later record moves on: one that this leader knows to be confirmed, or its newest.
        """
        if write.__class__ is not DropBefore or node.core is None:
            return
        held = node.core.log.shards[shard]
        if held.leader is None:
            return
        first = write.offset
        self.history.look(node, shard)
        for name in self._told[shard]:
            stands = self._stands(shard, name, held.replica.state.epoch + 1)
            newest = held.replica.log.subscriptions.newest(name, held.replica.log.decisions.covering)
            if stands is None or (newest is not None and newest.position.offset >= first):
                continue
            since = (
                each for each in self._records[shard][name]
                if each.at == stands.at or stands.at < each.at <= held.replica.confirmed
            )
            if all(each.offset < first for each in since):
                raise Violation("B10", f"{node.name} removes what lies below {first}, {name} stands at {stands.offset}")

    def _shown(self, node: Node, shard: ShardId, view: SubscriptionsView) -> None:
        assert node.core is not None
        confirmed = node.core.log.shards[shard].replica.confirmed
        stands: dict[str, int] = {}
        for entry in self.history.standing(shard, confirmed):
            if entry.kind is Kind.POSITION:
                stands[noted(entry).name] = entry.sequence
        shown = {each.name: each.offset for each in view.subscriptions}
        if shown != stands:
            raise Violation("B2", f"{node.name} shows {shown} at {confirmed}, the log says {stands}")
