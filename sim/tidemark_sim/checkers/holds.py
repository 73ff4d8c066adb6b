"""A leader that said that the target of a transfer holds everything pushes no new record before `transfer_ms` (O47).

The time is the true one: a node's timers neither jump nor slow down with its wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Send, TimerFired
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.leader import TRANSFER_TIMER
from tidemark_core.replication.messages import Append, TransferReady

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World

Leadership = tuple[str, int, ShardId, int]
"""Node, life, shard, epoch."""


@dataclass(slots=True)
class _Hold:
    until_ms: int
    pushed: int          # the last offset that the target was sent before the hold
    ended: bool = False  # the leader's timer fired: the next answer begins another hold


class HoldsWhileHandingOver:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._pushed: dict[tuple[Leadership, Member], int] = {}
        self._holds: dict[Leadership, _Hold] = {}

    def node_stepped(self, node: Node, events: Any) -> None:
        for event in events:
            if event.__class__ is TimerFired and event.name == TRANSFER_TIMER:
                for (name, life, shard, _), hold in self._holds.items():
                    if (name, life, shard) == (node.name, node.life, event.address.shard):
                        hold.ended = True

    def node_sends(self, node: Node, send: Send) -> None:
        message = send.message
        if message.__class__ is Append:
            self._pushes(node, send, message)
        elif message.__class__ is TransferReady:
            leadership = (node.name, node.life, send.address.shard, message.epoch)
            hold = self._holds.get(leadership)
            if hold is None or hold.ended:
                until_ms = self.world.now_ms + self.world.options.limits.transfer_ms
                self._holds[leadership] = _Hold(until_ms, self._pushed.get((leadership, message.to), -1))

    def _pushes(self, node: Node, send: Send, m: Append) -> None:
        if not m.entries:
            return
        leadership = (node.name, node.life, send.address.shard, m.epoch)
        hold = self._holds.get(leadership)
        if hold is not None and self.world.now_ms < hold.until_ms:
            new = next((each for each in m.entries if each.base > hold.pushed and each.kind is Kind.DATA), None)
            if new is not None:
                raise Violation("O47", f"{node.name} hands over until {hold.until_ms}, and pushes {new.id}")
        assert isinstance(send.to, Member)
        place = (leadership, send.to)
        self._pushed[place] = max(self._pushed.get(place, -1), m.entries[-1].last)
