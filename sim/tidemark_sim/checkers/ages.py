"""Ages by true time: nothing younger than its age leaves the log, no producer idle for less is forgotten (rule C4).

The world knows the true time; the nodes know clocks of which one may be wrong by days.
Stays out: runs in which the clocks of many nodes jump, and what goes because it is too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import DropBefore, PutEntry, Send, Write
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest, TrimRequest
from tidemark_core.replication.messages import Fenced
from tidemark_core.replication.producers import IDLE_MS_MAX

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History

SLACK_MS = 300
"""Sane clocks and the travel of an answer make an entry look older by up to this."""


class Ages:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        options = world.options
        self._age_ms = 0 if options.faults.clock_jump or options.retention.bytes_max else options.retention.age_ms
        self._sane = not options.faults.clock_jump
        self._born: dict[tuple[ShardId, int, int], int] = {}        # (shard, epoch, base) -> true time
        self._fenced: dict[tuple[ShardId, int], int] = {}           # (shard, epoch) -> when a fence was answered first
        self._asked: dict[ShardId, int] = {}                        # a client asked to trim up to here
        self._wrote: dict[tuple[ShardId, bytes], Entry] = {}        # the newest committed entry of each producer

    def node_asked(self, node: Node, event: Any) -> None:
        if isinstance(event, TrimRequest):
            self._asked[event.shard] = max(event.before, self._asked.get(event.shard, 0))

    def node_sends(self, node: Node, send: Send) -> None:
        if isinstance(send.message, Fenced):
            self._fenced.setdefault((send.address.shard, send.message.epoch), self.world.now_ms)

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if entry.kind is Kind.DATA:
            self._wrote[shard, entry.producer] = entry

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        for entry in lost:
            self._wrote.pop((shard, entry.producer), None)

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        """An entry is born when it is first written; a leader removes it when it is of age."""
        now_ms = self.world.now_ms
        if write.__class__ is PutEntry:
            self._born.setdefault((shard, write.entry.epoch, write.entry.base), now_ms)
        elif write.__class__ is DropBefore and self._age_ms and node.core is not None:
            held = node.core.log.shards.get(shard)
            if held is None or held.leader is None or write.offset <= self._asked.get(shard, 0):
                return
            for entry in image.entries:
                if entry.last >= write.offset:
                    return
                self._check_age(node, shard, entry)

    def _check_age(self, node: Node, shard: ShardId, entry: Entry) -> None:
        """A leader whose own clock is wrong has only the fence answers until the first acknowledgement comes."""
        now_ms = self.world.now_ms
        born_ms = self._born.get((shard, entry.epoch, entry.base), now_ms)
        waited_ms = max(0, born_ms - self._fenced.get((shard, entry.epoch), born_ms))
        age_ms = now_ms - born_ms
        if age_ms < self._age_ms - SLACK_MS - waited_ms:
            raise Violation(
                "C4", f"{node.name} removes {entry.id}, which is {age_ms} ms old; the log keeps {self._age_ms} ms"
            )

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        """A leader that has a producer's newest entry knows the producer: no life lasts as long as the bound."""
        if not isinstance(event, AppendRequest) or not isinstance(value, Refused):
            return
        if node.core is None or not self._sane or value.reason is not Reason.PRODUCER_UNKNOWN:
            return
        entry = self._wrote.get((event.shard, event.batch.producer))
        log = node.core.log.shards[event.shard].replica.log
        if entry is not None and log.contains(entry.id):
            idle_ms = self.world.now_ms - self._born.get((event.shard, entry.epoch, entry.base), self.world.now_ms)
            if idle_ms < IDLE_MS_MAX:
                raise Violation(
                    "C4", f"{node.name} forgot the producer of {entry.id}, which is {idle_ms} ms old: {value.message}"
                )
