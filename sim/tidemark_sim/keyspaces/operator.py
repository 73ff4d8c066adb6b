"""The operator of one range: it moves the range, raises its floor, and gives every node the record.

Each change of the record is one compare-and-swap; here it is an assignment, for there is one operator.
Stays out: when a node is broken (`faults`); the real operator's machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member, OperatorId
from tidemark_core.optimistic.floors import Commit, HintsGone, Promised, Round, Synced, highest
from tidemark_core.optimistic.moving import Announced, Copied, CopyAsked, Known, unfinished
from tidemark_core.optimistic.plane import Assign, Cluster
from tidemark_core.optimistic.ring import Owners, Quorum, Range, aborted, begun, finished, wrong_move

from .options import QUORUMS

if TYPE_CHECKING:
    from .world import RangeWorld

UNIT = (5 << 32) + 3
AT = Address(KEYSPACE_PLANE, UNIT)
NAME = "op"


class Operator:
    """The record of the range, and what members have said of it."""

    def __init__(self, world: RangeWorld, record: Range) -> None:
        self.world = world
        self.id = OperatorId(NAME)
        self.record = record
        self.round: Round | None = None
        self._rounds = 0
        self._known: dict[Member, int] = {}
        self._copied: dict[Member, None] = {}     # under the record's version

    # --- by chance ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Push the record, repeat what was not answered, and perhaps begin or give up something."""
        world, options = self.world, self.world.options.operator
        for name in world.nodes:
            if not world.dice.chance(options.lost):
                self.push(name)
        self.resend()
        if self.record.pending is not None and not self.finish():
            if self.must_abort() or world.dice.chance(options.abort):
                self.abort()
        elif self.record.pending is None and not self.replace_dead() and world.dice.chance(options.swap):
            self.swap()
        elif self.record.pending is None and world.dice.chance(options.resize):
            self.resize(world.dice.pick(QUORUMS))
        if self.round is not None and (world.dice.chance(options.give_up) or self._waits_in_vain()):
            self.round = None
        if self.round is None and self.record.pending is None and world.dice.chance(options.floor):
            self.raise_floor(highest(world.now_ms, world.options.write_window_ms))
        world.after(world.dice.around(options.every_ms), self.tick)

    def swap(self) -> None:
        """Put a node that is no owner in the place of one that is."""
        others = [member for member in self.world.members if member not in self.record.own.members]
        if others:
            self._replace(self.world.dice.pick(self.record.own.members), self.world.dice.pick(others))

    def resize(self, quorum: Quorum) -> None:
        """Change N by at most one, or R and W alone."""
        members = list(self.record.own.members)
        others = [member for member in self.world.members if member not in members]
        if quorum.n > len(members) and others:
            members.insert(self.world.dice.between(0, len(members)), self.world.dice.pick(others))
        elif quorum.n < len(members):
            members.remove(self.world.dice.pick(members))
        self.begin(Owners(tuple(members), quorum))

    def _replace(self, old: Member, new: Member) -> None:
        members, quorum = self.record.own
        self.begin(Owners(tuple(new if each == old else each for each in members), quorum))

    # --- moves --------------------------------------------------------------------------------------------

    def begin(self, pending: Owners) -> bool:
        """Begin a move, where it may."""
        if wrong_move(self.record, pending) is not None:
            return False
        self._change(begun(self.record, pending), "moves_begun")
        return True

    def abort(self) -> None:
        self._change(aborted(self.record), "moves_aborted")

    def must_abort(self) -> bool:
        """Say whether a pending owner that is needed is gone."""
        pending = self.record.pending
        return pending is not None and any(self.is_gone(member) for member in pending.members)

    def replace_dead(self) -> bool:
        """Swap an owner whose disk is gone for another node: a node on its own new disk, as a rule (D67)."""
        world = self.world
        for member in self.record.own.members:
            if self.is_gone(member):
                others = [each for each in world.members if each not in self.record.own.members]
                own = world.nodes[member.node].member
                self._replace(member, own if not others or world.dice.chance(0.7) else world.dice.pick(others))
                return True
        return False

    def is_gone(self, member: Member) -> bool:
        """Say whether the life of a disk is over for good; one that is older than its mark will be given up."""
        node = self.world.nodes[member.node]
        return node.member != member or node.is_old

    def finish(self) -> bool:
        """Finish the move that is open, where it may (D67)."""
        record = self.record
        durable = [member for member in record.members if self._known.get(member, 0) >= record.version]
        gone = [member for member in record.members if self.is_gone(member)]
        if unfinished(record, list(self._copied), durable, gone) is not None:
            return False
        self._change(finished(record), "moves_finished")
        return True

    def _change(self, record: Range, what: str) -> None:
        self.world.trace.note(NAME, what, record)
        self.world.trace.count(what)
        self.record = record
        self._copied = {}
        self.round = None

    # --- floors -------------------------------------------------------------------------------------------

    def raise_floor(self, floor_ms: int) -> None:
        """Begin a round, where the floor would rise."""
        if floor_ms > self.record.floor_ms:
            self._rounds += 1
            self.round = Round(UNIT, self._rounds, self.record, self.world.members, floor_ms)
            self.world.trace.count("rounds_begun")
            self._run(self.round.begin())

    def _waits_in_vain(self) -> bool:
        return self.round is not None and any(self.is_gone(member) for member in self.round.waits)

    def _run(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Commit):
                assert self.round is not None and self.round.on_record(self.record)
                self._change(effect.record, "floors_raised")
            else:
                self.say(effect.member, effect.message)

    # --- messages -----------------------------------------------------------------------------------------

    def push(self, name: str) -> None:
        """Give a node the record and the nodes of the cluster, as the maps that it watches."""
        node = self.world.nodes[name]
        for event in (Cluster(tuple(self.world.members)), Assign(UNIT, self.record)):
            self.world.network.send(NAME, name, node.feed, node.life, event)

    def say(self, member: Member, message: Any) -> None:
        node = self.world.nodes[member.node]
        self.world.network.send(NAME, member.node, node.receive, AT, self.id, member, message)

    def announce(self, member: Member) -> None:
        """Have a member say when the newest record is on its disk."""
        self.say(member, Announced(UNIT, self.record))

    def ask_copy(self, member: Member) -> None:
        """Have a pending owner say when it has copied the range."""
        self.say(member, CopyAsked(UNIT, self.record.version))

    def resend(self) -> None:
        """Ask again what was not answered."""
        record = self.record
        if record.pending is not None:
            for member in record.members:
                if self._known.get(member, 0) < record.version:
                    self.announce(member)
            for member in record.pending.members:
                if member not in self._copied:
                    self.ask_copy(member)
        if self.round is not None:
            self._run(self.round.resend())

    def receive(self, member: Member, message: Any) -> None:
        """Take what a member says."""
        self.world.trace.note(NAME, "receive", message)
        match message:
            case Known(_, version):
                self._known[member] = max(self._known.get(member, 0), version)
            case Copied(_, version) if version == self.record.version:
                self._copied[member] = None
            case HintsGone() | Promised() | Synced() if self.round is not None:
                self._run(self.round.on_answer(member, message))
        if self.record.pending is not None and not self.world.manual:
            self.finish()
