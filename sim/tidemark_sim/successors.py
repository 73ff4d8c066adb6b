"""Ambushes on a change of leaders: what the next one does not know yet, and what its disk no longer has.

A reader that goes back is told so by a leader that dies of it, with one follower far ahead of the others; whoever
leads next is asked to trim before it knows what was confirmed; who is about to lead finds a header without its payload.
Stays out: all other faults (`faults`), whether a leader may do what it does (`checkers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.clients import TrimRequest
from tidemark_core.replication.copies import selective
from tidemark_core.replication.messages import BecomeLeader
from tidemark_core.replication.replica import Role

if TYPE_CHECKING:
    from .node import Node
    from .world import World

BACK_MS = 25


@dataclass(slots=True)
class SuccessorOptions:
    """Chances of each ambush."""

    position: float = 0.0   # as a reader asks to go back, and again as it is told
    opening: float = 0.0    # per acknowledgement that a leader gets before its EPOCH_START is confirmed
    payload: float = 0.0    # per member that is asked to lead where members drop payloads


class Successors:
    """Lies in wait until `calm`; everything it breaks it mends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = world.options.successors
        self.over = False
        self._chosen: dict[tuple[ShardId, str], tuple[int, int]] = {}   # the election that was looked at last

    def calm(self) -> None:
        self.over = True

    # --- positions ----------------------------------------------------------------------------------------

    def goes_back(self, node: Node, shard: ShardId) -> None:
        """A reader asks to go back: the leader's disk is slow, and so are its links to all followers but one."""
        world, dice = self.world, self.world.dice
        record = world.metadata.record(shard)
        if self.over or record.leader != node.member or not dice.chance(self.options.position):
            return
        others = dice.shuffled([member.node for member in record.ensemble if member != node.member])
        node.slow_disk_ms = dice.between(30, 100)
        world.after(dice.between(40, 200), self._quicken_disk, node)
        for name in others[1:]:
            world.network.slow[node.name, name] = dice.between(15, 50)
            world.after(dice.between(40, 200), self._quicken_link, (node.name, name))

    def went_back(self, node: Node, shard: ShardId) -> None:
        """It is told: the leader dies of it, and what is under way to those that are slow is lost with it."""
        world, dice = self.world, self.world.dice
        record = world.metadata.record(shard)
        pairs = [(node.name, member.node) for member in record.ensemble if member != node.member]
        slow = [pair for pair in pairs if pair in world.network.slow]
        if self.over or record.leader != node.member or not slow or not dice.chance(self.options.position):
            return
        world.trace.count("positions_ambushed")
        node.doomed = True
        world.faults.cut(slow)
        world.after(dice.between(1, BACK_MS), node.start)

    def _quicken_disk(self, node: Node) -> None:
        self.world.idle()
        node.slow_disk_ms = 0

    def _quicken_link(self, pair: tuple[str, str]) -> None:
        self.world.idle()
        self.world.network.slow.pop(pair, None)

    def acked(self, node: Node, shard: ShardId) -> None:
        """A leader hears of what a follower holds, and of its EPOCH_START not yet enough: somebody wants to trim."""
        world = self.world
        held = node.core.log.shards.get(shard) if node.core is not None else None
        if (
            not self.options.opening or self.over or held is None or held.leader is None
            or held.replica.confirmed >= held.leader.outcomes.limbo.opening
            or not world.dice.chance(self.options.opening)
        ):
            return
        world.trace.count("trims_before_opening")
        before = world.checkers.committed_last(shard) + 1
        node.request(TrimRequest(shard, world.request_number(), before), lambda _: None)

    # --- payloads -----------------------------------------------------------------------------------------

    def chosen(self, node: Node, shard: ShardId, m: BecomeLeader) -> None:
        """Somebody is asked to lead: a payload above its commit may be gone, if another could lead as well as it."""
        world = self.world
        held = node.core.log.shards.get(shard) if node.core is not None else None
        election = (m.epoch, m.election)
        if not self.options.payload or self.over or held is None or self._chosen.get((shard, node.name)) == election:
            return
        state = held.replica.state
        if (*election, Role.FENCED) != (state.epoch, state.election, state.role):
            return
        self._chosen[shard, node.name] = election   # a repeat may come when the disk was looked at
        if not selective(m.copies, len(m.ensemble)) or not world.faults.can_lose(shard, node):
            return
        entries = [
            entry for entry in node.disk.image(shard).entries
            if entry.last > held.replica.commit and entry.kind is Kind.DATA and entry.payload
            and any(self._as_good(other, node, shard, entry) for other in m.ensemble)
        ]
        if not entries or not world.dice.chance(self.options.payload):
            return
        entry = world.dice.pick(entries)
        world.trace.count("payloads_lost")
        world.trace.note(node.name, "lost", entry)
        node.disk.lose_payload((shard, entry.base), world.now_ms)
        world.after(world.faults.down_ms(), self._found_again, node, (shard, entry.base))

    def _as_good(self, other: Member, node: Node, shard: ShardId, entry: Entry) -> bool:
        """Say whether another member's log is as long as the node's, and its copy of the entry whole."""
        peer = self.world.nodes[other.node]
        if peer is node or peer.member != other:
            return False
        mine, theirs = node.disk.image(shard).entries, peer.disk.image(shard).entries
        copy = peer.disk.image(shard).at(entry.base)
        return (
            bool(theirs) and theirs[-1].chain == mine[-1].chain and copy is not None and copy.held
            and (shard, entry.base) not in peer.disk.corrupt
        )

    def _found_again(self, node: Node, place: tuple[ShardId, int]) -> None:
        if place in node.disk.lost:
            node.disk.mend(place)
        else:
            self.world.idle()
