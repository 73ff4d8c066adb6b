"""Those who operate the cluster: swaps, expansions, contractions, transfers, cancels, trims, accepted losses.

Requests go to one of the operators; refusals are normal and nothing is retried.
Stays out: carrying changes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.refusals import Refused
from tidemark_core.replication.clients import TrimRequest
from tidemark_core.replication.ensembles import can_elect, members_announced
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import CancelChange, RecoverShard, StartChange, StartTransfer

from .impostor import candidates

if TYPE_CHECKING:
    from .world import World


@dataclass(slots=True)
class AdminOptions:
    """Weights of what is asked for; `every_ms` is the mean time between two requests."""

    every_ms: int = 300
    swap: float = 1.0
    expand: float = 0.0
    contract: float = 0.0
    transfer: float = 0.0
    cancel: float = 0.0
    trim: float = 0.0
    copies: float = 0.0
    accept_loss: float = 0.0


class Admin:
    """Asks for changes until stopped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stopped = False

    def tick(self) -> None:
        world = self.world
        if self.stopped:
            world.idle()
            return
        if self.act():
            world.after(world.dice.around(world.options.admin.every_ms), self.tick)

    def act(self) -> bool:
        """Ask for one thing; False when this run's people never ask for anything."""
        world = self.world
        if self.stopped:
            return False
        options = world.options.admin
        wish = world.dice.weighted(
            (
                (self.swap, options.swap),
                (self.expand, options.expand),
                (self.contract, options.contract),
                (self.transfer, options.transfer),
                (self.cancel, options.cancel),
                (self.trim, options.trim),
                (self.copies, options.copies),
                (self.accept_loss, options.accept_loss),
            )
        )
        if wish is not None:
            wish(world.dice.pick(world.shards))
        return wish is not None

    # --- wishes -------------------------------------------------------------------------------------------

    def swap(self, shard: ShardId) -> None:
        """Mostly a member that is not the leader for a spare; sometimes nonsense."""
        world = self.world
        record = world.metadata.record(shard)
        members = [member.node for member in record.ensemble]
        leavers = [name for name in members if not record.leader or name != record.leader.node]
        if world.dice.chance(0.1):
            leavers = members
        spares = [name for name in candidates(world, shard) if name not in members]
        if spares and leavers:
            self._change(shard, Operation.SWAP, world.dice.pick(leavers), world.dice.pick(spares))

    def expand(self, shard: ShardId) -> None:
        members = [member.node for member in self.world.metadata.record(shard).ensemble]
        spares = [name for name in candidates(self.world, shard) if name not in members]
        if spares:
            self._change(shard, Operation.EXPAND, None, self.world.dice.pick(spares))

    def contract(self, shard: ShardId) -> None:
        record = self.world.metadata.record(shard)
        leavers = [member.node for member in record.ensemble if member != record.leader]
        if len(record.ensemble) > 3 and leavers:
            self._change(shard, Operation.CONTRACT, self.world.dice.pick(leavers), None)

    def copies(self, shard: ShardId) -> None:
        """Let more or fewer members keep each payload; now and then a number that cannot be."""
        size = len(self.world.metadata.record(shard).ensemble)
        low = size // 2 if self.world.dice.chance(0.1) else size // 2 + 1
        event = StartChange(
            shard, self.world.request_number(), Operation.COPIES, None, None, copies=self.world.dice.between(low, size)
        )
        self._ask(event)

    def _change(self, shard: ShardId, operation: Operation, old: str | None, new: str | None) -> None:
        event = StartChange(shard, self.world.request_number(), operation, old, new)
        self._ask(event)

    def transfer(self, shard: ShardId) -> None:
        record = self.world.metadata.record(shard)
        others = [member.node for member in record.ensemble if member != record.leader]
        if others:
            to = self.world.dice.pick(others)
            self._ask(StartTransfer(shard, self.world.request_number(), to))

    def cancel(self, shard: ShardId) -> None:
        self._ask(CancelChange(shard, self.world.request_number()))

    def trim(self, shard: ShardId) -> None:
        """Retention asks the leader; any bound is fine, the core lowers it."""
        world = self.world
        record = world.metadata.record(shard)
        if record.leader is None:
            return
        before = world.dice.between(0, world.checkers.committed_last(shard) + 20)
        world.nodes[record.leader.node].request(TrimRequest(shard, world.request_number(), before), lambda _: None)

    def accept_loss(self, shard: ShardId) -> None:
        """Accept the loss of a shard, needed or not, from any member (K14e).

        Some do so without operators, in shards of three (N14): of two that are left, one may hear its lost leader late.
        """
        world = self.world
        members = members_announced(world.metadata.record(shard))
        if len(members) == 3 and not self._can_elect(shard) and world.dice.chance(0.3):
            world.faults.metadata_given_up(shard)
        else:
            self._ask(RecoverShard(
                shard, world.request_number(), world.dice.pick(list(members)).node, accept_loss=True))

    def accept_losses(self) -> None:
        """Accept the loss of each shard that cannot go on without, from every member that has its disk."""
        for shard in self.world.shards:
            if not self._can_elect(shard):
                for member in self._left(shard):
                    self._ask(RecoverShard(shard, self.world.request_number(), member.node, accept_loss=True))

    def _left(self, shard: ShardId) -> list[Member]:
        """Return the members that have their disks, the newcomer of a change among them."""
        announced = members_announced(self.world.metadata.record(shard))
        return [member for member in announced if self.world.nodes[member.node].member == member]

    def _can_elect(self, shard: ShardId) -> bool:
        return can_elect(self.world.metadata.record(shard), self._left(shard))

    def _ask(self, event: Any) -> None:
        world = self.world
        alive = [operator for operator in world.operators.values() if operator.alive]
        if alive:
            world.dice.pick(alive).request(event, partial(self._answer, event))

    def _answer(self, event: Any, value: Any) -> None:
        outcome = f"refused_{value.reason}" if isinstance(value, Refused) else "done"
        if isinstance(event, StartChange):
            self.world.trace.count(f"asked_{event.operation}_{outcome}")
        else:
            self.world.trace.count(f"asked_{type(event).__name__}_{outcome}")
