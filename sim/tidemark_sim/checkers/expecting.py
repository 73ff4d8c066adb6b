"""A batch that expects an offset lies behind no other record from there on, and lies nowhere once it is refused (L29).

Batches and claims are records, rolled back or not.  Stays out: what became of other batches (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Batch, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest

from ..trace import Violation

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World
    from .history import History

Name = tuple[ShardId, int, int, int]
"""One batch, whatever sequence it has."""


def _name(shard: ShardId, batch: Batch | Entry) -> Name:
    return shard, batch.payload_crc, batch.count, batch.first_timestamp_us


class Expecting:
    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._expected: dict[Name, int] = {}
        self._newest: dict[ShardId, int] = dict.fromkeys(world.shards, -1)   # offset of the newest committed record
        self._placed: dict[Name, Entry] = {}
        self._refused: dict[Name, str] = {}
        self._lossy: dict[ShardId, bool] = {}

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        """Committed records are gone, and with them what they were in front of (K14e)."""
        self._lossy[shard] = True

    def node_asked(self, node: Node, event: Any) -> None:
        if isinstance(event, AppendRequest) and event.expect >= 0:
            self._expected[_name(event.shard, event.batch)] = event.expect

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if entry.kind not in (Kind.DATA, Kind.CLAIM) or shard in self._lossy:
            return
        self._newest[shard] = max(self._newest[shard], entry.last)
        name = _name(shard, entry)
        if entry.kind is Kind.CLAIM or name not in self._expected:
            return
        self._placed[name] = entry
        if name in self._refused:
            raise Violation("L29", f"{entry.id} is committed, which {self._refused[name]} refused for good")
        expected = self._expected[name]
        image = node.disk.written[shard]
        for first in reversed(image.entries[:image.position(entry.base)]):
            if first.last < expected:
                break
            if first.kind in (Kind.DATA, Kind.CLAIM):
                raise Violation("L29", f"{entry.id} expects no record from {expected} on, {first.id} is one")
        self._world.trace.count("expecting_appended")

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if not isinstance(value, Refused) or value.reason is not Reason.RECORD_CAME_FIRST:
            return
        shard, name = event.shard, _name(event.shard, event.batch)
        if shard in self._lossy:
            return
        if self._newest[shard] < event.expect:
            raise Violation(
                "L29", f"{node.name} says that a record lies from {event.expect} on, none that is committed does")
        if name in self._placed:
            raise Violation("L29", f"{node.name} refuses a batch for good that lies at {self._placed[name].id}")
        self._refused[name] = node.name
        self._world.trace.count("expecting_refused")
