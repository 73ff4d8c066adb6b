"""The impostor: a node that belongs to other shards and sends any message with any field to members of one (T10).

It knows all that the members know, forges and replays messages, and pulls snapshots.  Every act is judged at once: what
it sends leaves the replica, the operator's view of the shard, and its own knowledge of the log as they were.
Stays out: what a forged message looks like (`forging`), the faults around it (`faults`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Received, Send
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import Member, OperatorId, of_shard
from tidemark_core.replication.messages import (
    Aborted,
    Append,
    AppendRefused,
    BecameLeader,
    CommitPending,
    Committed,
    Fenced,
    Fetch,
    Fetched,
    FollowerAdded,
    Prepared,
    Rejected,
    ShardDeleted,
    SnapshotInstalled,
    SnapshotProgress,
    TransferReady,
)
from tidemark_core.replication.replica import Role
from tidemark_core.replication.trust import STANDINGS

from .forging import EXTREMES, Known, forged, rewritten
from .trace import Violation

if TYPE_CHECKING:
    from tidemark_core.shard import Shard

    from .node import Node
    from .operators import Operator
    from .world import World

TO_NODES = tuple(STANDINGS)
TO_OPERATORS = (
    Fenced, BecameLeader, FollowerAdded, Prepared, SnapshotProgress, SnapshotInstalled, Committed, CommitPending,
    Aborted, TransferReady, ShardDeleted, Rejected,
)
REMEMBERED = 200


@dataclass(slots=True)
class ImpostorOptions:
    """Mean time between two acts in milliseconds, 0: there is no impostor."""

    every_ms: int = 0


class Impostor:
    """The last node of a world; its shard under attack is the first one, of which it never becomes a member."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shard = world.shards[0]
        self.node = list(world.nodes.values())[-1]
        self.lied_to: Node | None = None   # a tombstone that takes a forged message now: it hears every node
        self._heard: deque[Any] = deque(maxlen=REMEMBERED)   # what members and operators said of the shard
        self._entries: deque[Entry] = deque(maxlen=REMEMBERED)

    def overhears(self, effect: Send, sender: Node | None) -> None:
        """Remember a message of the shard; fail where a node answers a pull of the impostor.  No sender: an operator.

        A tombstone answers every sender, but has neither an entry nor a trim point.
        """
        if effect.address != of_shard(self.shard):
            return
        message = effect.message
        if effect.to == self.node.member and isinstance(message, Append | Fetched):
            held = self._held(sender) if sender is not None else None
            is_deleted = held is not None and held.replica.state.role is Role.DELETED
            if not (is_deleted and isinstance(message, Fetched) and message == Fetched(message.base, None, 0)):
                raise Violation("T10d", f"the impostor is given {message}")
        self._heard.append(message)
        if isinstance(message, Append):
            self._entries.extend(message.entries)

    def tick(self) -> None:
        world, dice = self.world, self.world.dice
        if world.faults.over:
            world.idle()
            return
        act = dice.weighted(((self._forge, 5.0), (self._attack, 5.0), (self._replay, 3.0), (self._answer, 3.0),
                             (self._pull, 2.0)))
        if self.node.alive and act is not None:
            act()
        else:
            world.idle()
        world.after(dice.around(world.options.impostor.every_ms), self.tick)

    # --- acts ---------------------------------------------------------------------------------------------

    def _target(self) -> Node:
        ensemble = self.world.metadata.record(self.shard).ensemble
        return self.world.nodes[self.world.dice.pick([member.node for member in ensemble])]

    def _held(self, target: Node) -> Shard | None:
        return target.core.log.shards.get(self.shard) if target.core is not None else None

    def _known(self, target: Node) -> Known:
        record = self.world.metadata.record(self.shard)
        numbers = [record.epoch, record.epoch + 1]
        if (held := self._held(target)) is not None:
            replica = held.replica
            numbers += [
                replica.state.epoch, replica.state.election, replica.log.head.offset, replica.log.head.epoch,
                replica.commit, replica.confirmed, replica.log.first,
            ]
        return Known(numbers, (*record.ensemble, self.node.member, target.member), self._entries)

    def _forge(self) -> None:
        target = self._target()
        kind = self.world.dice.pick(TO_NODES)
        self._send(target, forged(kind, self.world.dice, self._known(target)))

    def _attack(self) -> None:
        """Send what would do harm at once, with the receiver's own numbers."""
        dice, target = self.world.dice, self._target()
        held = self._held(target)
        if held is None:
            return
        log, epoch = held.replica.log, held.replica.state.epoch
        open_bases = [base for _, base in held.replica.fetches.open]   # the impostor guesses what was asked of others
        base = dice.pick(open_bases) if open_bases and dice.chance(0.7) else dice.between(0, max(0, log.head.offset))
        harm: list[Any] = [
            AppendRefused(epoch, epoch + 1, log.head, "STALE_EPOCH"),
            AppendRefused(epoch, dice.pick(EXTREMES), log.head, "STALE_EPOCH"),
            Append(dice.pick((epoch, epoch + 1, EXTREMES[-1])), log.head, (), log.head.offset, log.head.offset,
                   max(held.replica.confirmed, -1), dice.pick((0, 1 << 60))),
            Fetched(base, None, 1 << 60), Fetch(base, log.epoch_at(base)),
        ]
        if self._entries:
            entry = rewritten(dice.pick(list(self._entries)))
            harm.append(Fetched(entry.base, entry))
        self._send(target, dice.pick(harm))

    def _replay(self) -> None:
        if self._heard:
            self._send(self._target(), self.world.dice.pick(list(self._heard)))

    def _answer(self) -> None:
        """Tell an operator something of a shard that is none of ours."""
        world, target = self.world, self._target()
        operator = world.dice.pick(list(world.operators.values()))
        kind = world.dice.pick(TO_OPERATORS)
        message = forged(kind, world.dice, self._known(target))
        world.network.send(self.node.name, operator.name, self._reach_operator, operator, operator.id, message)

    def _pull(self) -> None:
        target = self._target()
        self.world.network.send(self.node.name, target.name, self._read, target)

    # --- judgements ---------------------------------------------------------------------------------------

    def _send(self, target: Node, message: Any) -> None:
        world = self.world
        world.network.send(self.node.name, target.name, self._arrive, target, target.member, self.node.member, message)

    def _arrive(self, target: Node, meant: Member, sender: Member, message: Any) -> None:
        if target.core is None or target.held is not None or target.member != meant:
            self.world.idle()
            return
        before, life = self._facts(target), target.life
        self.world.trace.note(target.name, "forged", message)
        self.world.trace.count("forged_messages")
        held = self._held(target)
        self.lied_to = target if held is not None and held.replica.state.role is Role.DELETED else None
        target.turn((Received(of_shard(self.shard), sender, meant, message),))
        self.lied_to = None
        if target.life == life and self._facts(target) != before:
            raise Violation("T10", f"{target.name} heeds {message} of {sender}, which is no member of its shard")

    def _facts(self, target: Node) -> tuple[Any, ...] | None:
        """Return what a message of a stranger may not change."""
        held = self._held(target)
        if held is None:
            return None
        replica, leader = held.replica, held.leader
        cursors = [] if leader is None else [
            (cursor.match, cursor.commit, cursor.status, cursor.absent) for cursor in leader.cursors.values()]
        # A tombstone answers every sender, behind a write of nothing.
        queued = [item for item in target.disk.queue if item.writes or replica.state.role is not Role.DELETED]
        return (
            replica.state, replica.log.head, replica.log.first, replica.commit, replica.confirmed, leader is None,
            cursors, len(queued),
        )

    def _reach_operator(self, operator: Operator, meant: OperatorId, message: Any) -> None:
        coordinator = operator.core.shards.get(self.shard) if operator.core is not None else None
        if coordinator is None or operator.id != meant:
            self.world.idle()
            return

        def facts() -> tuple[Any, ...]:
            return (
                coordinator.record, coordinator.revision, coordinator.settled, dict(coordinator.unattached),
                set(coordinator.missing), coordinator.behind, coordinator.election and dict(coordinator.election.heads),
            )

        before, life = facts(), operator.life
        self.world.trace.note(operator.name, "forged", message)
        self.world.trace.count("forged_answers")
        operator.turn(Received(of_shard(self.shard), self.node.member, None, message, self.node.boot))
        if operator.life == life and facts() != before:
            raise Violation("T10c", f"{operator.name} heeds {message} of {self.node.member}")

    def _read(self, target: Node) -> None:
        """Ask for the log as a newcomer would; what a member gives is judged here."""
        if target.core is None:
            self.world.idle()
            return
        self.world.trace.count("forged_pulls")
        if target.core.log.pull_refused(self.shard, self.node.member) is not None or self._held(target) is None:
            return
        entries, _ = target.disk.read(self.shard, 0, 1 << 62, 1000)
        part, _ = target.core.log.snapshot_part(self.shard, self.world.metadata.record(self.shard).epoch, entries)
        if part:
            raise Violation("T10d", f"{target.name} gives the impostor {len(part)} entries")


def candidates(world: World, shard: int) -> list[str]:
    """Return the nodes that may be members of a shard."""
    kept_out = world.impostor.node.name if world.impostor is not None and shard == world.impostor.shard else None
    return [name for name in world.nodes if name != kept_out]


