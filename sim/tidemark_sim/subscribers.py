"""Subscribers: readers with a name that ask any node how far they may read and commit where they stand.

Their leases outlive every clock of a run, so whatever they committed must hold; some of them commit less than
they did before, some go back and say so, and some commit to whoever led long ago.
Stays out: whether an answer was right (`checkers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import CommitPosition, ReadRequest, SubscriptionsRequest
from tidemark_core.replication.messages import PositionCommitted, ReadGrant
from tidemark_core.subscriptions.fold import LEASE_MS_MAX

if TYPE_CHECKING:
    from .world import World

THINK_MS = 40
LOOKS = 0.2
BACK = 0.1


class Subscriber:
    """One name on one shard."""

    def __init__(self, world: World, name: str, shard: ShardId) -> None:
        self.world = world
        self.name = name
        self.shard = shard
        self.offset = 0       # wanted next
        self.stopped = False
        self._reads_until = 0   # it went back, and says nothing new before it has read that again
        self._target = world.dice.pick(list(world.nodes))

    def tick(self) -> None:
        """Look how far reading is allowed, go on some way, commit; now and then look where all stand."""
        world, dice = self.world, self.world.dice
        if self.stopped:
            world.idle()
            return
        if world.now_ms < self._reads_until:
            world.idle()
            world.after(self._reads_until - world.now_ms, self.tick)
            return
        if dice.chance(0.3):
            leader = world.metadata.record(self.shard).leader
            self._target = leader.node if leader and dice.chance(0.8) else dice.pick(list(world.nodes))
        if dice.chance(LOOKS):
            self._ask(SubscriptionsRequest(self.shard, world.request_number()), lambda value: None)
        self._ask(ReadRequest(self.shard, world.request_number(), self.offset), self._granted)
        world.after(dice.around(THINK_MS), self.tick)

    def _ask(self, event: Any, answer: Any) -> None:
        world, node = self.world, self._target
        world.network.send(
            self.name, node, world.nodes[node].request, event,
            lambda value: world.network.send(node, self.name, answer, value),
        )

    def _granted(self, value: Any) -> None:
        dice = self.world.dice
        if isinstance(value, Refused) and value.reason is Reason.TRIMMED:
            self.offset = max(self.offset, value.expected)   # what it had not come to is gone: it goes on behind
        if not isinstance(value, ReadGrant) or value.released < 0 or self.world.now_ms < self._reads_until:
            return
        if dice.chance(self.world.options.clients.seeks):
            self._go_back(value)
            return
        self.offset = max(self.offset, dice.between(min(self.offset, value.released + 1), value.released + 1))
        offset = dice.between(0, self.offset) if dice.chance(BACK) else self.offset
        self._ask(
            CommitPosition(self.shard, self.world.request_number(), self.name, offset, LEASE_MS_MAX), self._committed
        )

    def _go_back(self, grant: ReadGrant) -> None:
        """Read something again, often everything, and say so."""
        dice = self.world.dice
        self._reads_until = self.world.now_ms + dice.between(100, 400)
        self.offset = grant.first if dice.chance(0.5) else dice.between(grant.first, max(grant.first, self.offset))
        self._ask(
            CommitPosition(self.shard, self.world.request_number(), self.name, self.offset, LEASE_MS_MAX, seek=True),
            self._committed,
        )

    def _committed(self, value: Any) -> None:
        self.world.trace.note(self.name, "position", value)
        if isinstance(value, PositionCommitted):
            self.world.trace.count("positions_committed")
