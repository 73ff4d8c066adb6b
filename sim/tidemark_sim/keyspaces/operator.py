"""The operator of one range: the machine of core with the metadata store, and by chance what others ask of both.

An abort is a write of another operator.  That one takes over, as it does where a round is given up: the machine is
another one, and knows nothing but the record.  A machine asks at ticks alone; what it asks earlier is lost.
Stays out: when a node is broken (`faults`), which owners and floors a real operator wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Received, Send, TimerFired
from tidemark_core.base.effects import Trace as Traced
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member, OperatorId
from tidemark_core.base.metadata import MetadataLoaded, MetadataSaved, SaveMetadata, SetActive
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_core.optimistic.floors import Round, highest
from tidemark_core.optimistic.mover import TIMER, Movers, Wanted
from tidemark_core.optimistic.moving import Announced, Copied, CopyAsked, Known
from tidemark_core.optimistic.plane import Assign, Cluster
from tidemark_core.optimistic.raising import FloorDue
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.optimistic.ring import Owners, Quorum, Range, aborted, begun, keyspace_of, wrong_move

from .options import QUORUMS

if TYPE_CHECKING:
    from .world import RangeWorld

UNIT = (5 << 32) + 3
AT = Address(KEYSPACE_PLANE, UNIT)
NAME = "op"
COUNTED = {"move_begun": "moves_begun", "move_finished": "moves_finished", "floor_raised": "floors_raised"}


class Operator:
    """The record of the range, and what members have said of it."""

    def __init__(self, world: RangeWorld, record: Range) -> None:
        self.world = world
        self.id = OperatorId(NAME)
        self._stored = RangeRecord(record)
        self._revision = 1
        self._processes = 0
        self.deletes = False                # the keyspace
        self.forgot: set[Member] = set()
        self._held: list[Received] = []     # what members said of a move, in a story
        self.succeed()

    @property
    def record(self) -> Range:
        """The record in the metadata store."""
        return self._stored.range

    @property
    def round(self) -> Round | None:
        """The round that is open."""
        return self._machine.rounds.open.get(UNIT)

    def succeed(self) -> None:
        """Let another process be the operator."""
        self._processes += 1
        self._machine = Movers(f"{NAME}-{self._processes}")
        self._feed(SetActive(True))
        self._feed(MetadataLoaded(AT, self._stored, self._revision))

    def _feed(self, event: Any) -> list[Send]:
        """Feed the machine and write what it writes; return what it asks."""
        asked: list[Send] = []
        saved: MetadataSaved | None = None
        for effect in self._machine.step(self.world.now_ms, event):
            match effect:
                case SaveMetadata(_, record, expected):
                    assert expected == self._revision, "D63: another record stands"
                    self._write(record)
                    saved = MetadataSaved(AT, record.writer, self._revision)
                case Traced(_, what, _) if what in COUNTED:
                    self._count(COUNTED[what])
                case Send():
                    asked.append(effect)
        return [*asked, *(self._feed(saved) if saved is not None else ())]

    def _write(self, record: RangeRecord) -> None:
        self._stored, self._revision = record, self._revision + 1

    def _write_beside(self, record: Range, what: str) -> None:
        """Write as another operator; the machine sees it by its watch."""
        self._write(RangeRecord(record, "another one"))
        self._count(what)
        self._feed(MetadataLoaded(AT, self._stored, self._revision))

    def _count(self, what: str) -> None:
        self.world.trace.note(NAME, what, self.record)
        self.world.trace.count(what)

    # --- by chance ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Push the record, repeat what was not answered, and perhaps begin or give up something."""
        world, options = self.world, self.world.options.operator
        if self.deletes:
            for member in world.members:
                if member not in self.forgot:
                    self.say(member, ForgetAsked(keyspace_of(UNIT)))
            world.after(world.dice.around(options.every_ms), self.tick)
            return
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
            self.succeed()
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
        self._feed(Wanted(AT, pending))
        if self.record.pending is None:     # a move to the owners that there are, which another operator may begin
            self._write_beside(begun(self.record, pending), "moves_begun")
        return True

    def abort(self) -> None:
        """Abort the move that is open."""
        self._write_beside(aborted(self.record), "moves_aborted")
        self.succeed()

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
        before = self.record
        if before.pending is not None:
            # The machine would abort for a pending owner that is gone; here chance does.
            gone = frozenset(each for each in before.own.members if self.is_gone(each))
            self._feed(Wanted(AT, None, gone.difference(before.pending.members)))
        held, self._held = self._held, []
        for each in held:
            self._feed(each)
        return before.pending is not None and self.record.pending is None

    # --- floors -------------------------------------------------------------------------------------------

    def raise_floor(self, floor_ms: int) -> None:
        """Begin a round, where the floor would rise."""
        if floor_ms > self.record.floor_ms:
            self.give_up()
            self.world.trace.count("rounds_begun")
            self._ask(self._feed(FloorDue(AT, floor_ms, tuple(self.world.members))))

    def give_up(self) -> None:
        """Give up the round that is open."""
        self._feed(FloorDue(AT, None))

    def _waits_in_vain(self) -> bool:
        return self.round is not None and any(self.is_gone(member) for member in self.round.waits)

    def _ask(self, asked: list[Send]) -> None:
        for each in asked:
            assert isinstance(each.to, Member)
            self.say(each.to, each.message)

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
        self._ask(self._feed(TimerFired(AT, TIMER)))

    def receive(self, member: Member, message: Any) -> None:
        """Take what a member says."""
        self.world.trace.note(NAME, "receive", message)
        if isinstance(message, Forgotten):
            self.forgot.add(member)
            return
        heard = Received(AT, member, None, message)
        if isinstance(message, Known | Copied):
            self._held.append(heard)
        else:
            self._ask(self._feed(heard))
        if not self.world.manual:
            self.finish()
