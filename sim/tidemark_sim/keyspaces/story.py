"""A story: a world in which nothing happens but what is asked for, step by step.

A story must pass on the product: where the product refuses a step, such as finishing a move too early, the story goes
on without it.  Stays out: the stories (`traces`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark_core.base.ids import Member
from tidemark_core.optimistic.plane import BLANK
from tidemark_core.optimistic.ring import Owners, Quorum

from ..disk import Tables
from ..trace import Violation
from .judge import Change
from .node import Node
from .operator import UNIT
from .world import RangeWorld

PATIENCE_MS = 20_000

STRING, SET = b"s1", b"set1"


class Story:
    """The nodes are n1, n2, ..., the first N own the range; messages take a millisecond."""

    def __init__(self, world: RangeWorld) -> None:
        self.world = world
        self.operator = world.operator
        world.begin()
        for name in world.nodes:
            self.push(name)
        self.settle()

    # --- time ---------------------------------------------------------------------------------------------

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now_ms + ms)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for a fact that the product must bring about."""
        latest_ms = self.world.now_ms + PATIENCE_MS
        while not holds():
            if self.world.now_ms >= latest_ms:
                raise Violation("story", f"waited in vain: {what}")
            self.run(5)

    def settle(self) -> None:
        """Let messages and disks finish what is under way."""
        self.run(60)

    # --- links --------------------------------------------------------------------------------------------

    def cut(self, source: str, *targets: str) -> None:
        """Lose every message from one node, or the operator, to others."""
        for target in targets:
            self.world.network.cut_link(source, target)

    def only(self, source: str, *targets: str) -> None:
        """Lose every message from one node to all nodes but some."""
        self.mend(source)
        self.cut(source, *(name for name in self.world.nodes if name not in targets and name != source))

    def mend(self, *sources: str) -> None:
        """Make the links from these whole, without names all links."""
        for source, target in list(self.world.network.cut):
            if not sources or source in sources:
                del self.world.network.cut[source, target]

    def late(self, source: str, target: str, ms: int) -> None:
        """Let messages that are sent from now on come late."""
        self.world.network.slow[source, target] = ms

    def in_time(self) -> None:
        """Let messages that are sent from now on come in time."""
        self.world.network.slow.clear()

    # --- the range ----------------------------------------------------------------------------------------

    def member(self, name: str) -> Member:
        return self.world.nodes[name].member

    def push(self, *names: str) -> None:
        """Give nodes the newest record, as their watch of the map does."""
        for name in names:
            self.operator.push(name)

    def move(self, *names: str, quorum: Quorum | None = None, known: tuple[str, ...] | None = None) -> None:
        """Begin a move to these owners; `known` are the nodes that hear of it, all where it is None."""
        own = self.operator.record.own
        begun = self.operator.begin(Owners(tuple(map(self.member, names)), quorum or own.quorum))
        if not begun:
            raise Violation("story", "the move before has not ended")
        self.know(*(self.world.nodes if known is None else known))

    def know(self, *names: str) -> None:
        """Give nodes the newest record, and wait until those that hold the range have it on disk."""
        record = self.operator.record
        for name in names:
            self.operator.push(name)
            self.operator.announce(self.member(name))
        at = record.version, record.floor_ms
        self.wait("the record is known", lambda: all(self._knows(name) >= at for name in names))

    def _knows(self, name: str) -> tuple[int, int]:
        """Return the version and the floor that a node has; a member's are those on its disk."""
        plane = self.world.nodes[name].plane
        holder = plane.holders.get(UNIT)
        record = plane.records.get(UNIT, BLANK) if holder is None else holder.unit.durable.record
        return record.version, record.floor_ms

    def copies(self, *names: str) -> None:
        """Give pending owners time to copy the range, and to say so; some may not be able to."""
        for _ in range(6):
            for name in names:
                self.operator.ask_copy(self.member(name))
            self.settle()

    def finish(self, *known: str) -> bool:
        """Finish the move where it may be; `known` are the nodes that hear of it."""
        if self.operator.record.pending is None or not self.operator.finish():
            return False
        self.know(*known)
        return True

    def raise_floor(self, floor_ms: int | None = None, tries: int = 40) -> bool:
        """Try to raise the floor, to now where no time is given; nodes are not given the new record."""
        if self.operator.record.pending is not None:
            return False
        before = self.operator.record
        self.begin_round(floor_ms)
        self.rounds(tries)
        self.give_up()
        return self.operator.record != before

    def begin_round(self, floor_ms: int | None = None) -> None:
        """Begin a round, and let every node hear of it."""
        self.operator.raise_floor(self.world.now_ms if floor_ms is None else floor_ms)
        self.run(2)

    def rounds(self, tries: int) -> None:
        """Repeat what the round has asked and not heard, so many times or until it is over."""
        for _ in range(tries):
            if self.operator.round is not None:
                self.settle()
                self.operator.resend()

    def give_up(self) -> None:
        """Give up the round that is open."""
        self.operator.give_up()

    # --- operations ---------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        return self.world.nodes[name]

    def set(self, name: str, *reached: str, key: bytes = STRING) -> Change:
        """Set a String through a node whose messages reach some nodes; wait for the end, whatever it is."""
        return self._write(name, reached, lambda node: self.world.clients.set(node, key))

    def unset(self, name: str, *reached: str, key: bytes = STRING) -> Change:
        """Delete a String through a node."""
        return self._write(name, reached, lambda node: self.world.clients.unset(node, key))

    def add(self, name: str, *reached: str, element: bytes = b"a") -> Change:
        """Add a member of a Set through a node."""
        return self._write(name, reached, lambda node: self.world.clients.put(node, SET, element))

    def remove(self, name: str, *reached: str, element: bytes = b"a") -> Change:
        """Remove a member of a Set through a node."""
        return self._write(name, reached, lambda node: self.world.clients.remove(node, SET, element))

    def _write(self, name: str, reached: tuple[str, ...], ask: Callable[[Node], Change]) -> Change:
        self.only(name, *reached)
        change = ask(self.node(name))
        self.until(change)
        self.mend(name)
        return change

    def until(self, change: Change) -> None:
        """Wait until an operation is acknowledged, or its deadline is over."""
        latest_ms = self.world.now_ms + self.world.options.clients.timeout_ms + 200
        while change.ended_ms is None and self.world.now_ms < latest_ms:
            self.run(1)
        self.run(1)

    def get(self, name: str, *reached: str, key: bytes = STRING) -> None:
        """Read a String through a node whose messages reach some nodes; the judge looks at what it shows."""
        self._read(name, reached, lambda node: self.world.clients.get(node, key))

    def look(self, name: str, *reached: str, element: bytes = b"a") -> None:
        """Read a member of a Set through a node."""
        self._read(name, reached, lambda node: self.world.clients.look(node, SET, element))

    def _read(self, name: str, reached: tuple[str, ...], ask: Callable[[Node], Any]) -> None:
        self.only(name, *reached)
        before = self._reads()
        ask(self.node(name))
        latest_ms = self.world.now_ms + self.world.options.clients.timeout_ms + 200
        while self._reads() == before and self.world.now_ms < latest_ms:
            self.run(1)
        self.mend(name)

    def _reads(self) -> int:
        return sum(count for what, count in self.world.trace.counts.items() if what.startswith("read_"))

    def reach_later(self, name: str, first: tuple[str, ...], then: tuple[str, ...]) -> Change:
        """Remove a member through a node that reads some nodes, and whose write reaches fewer."""
        self.only(name, *first)
        change = self.world.clients.remove(self.node(name), SET, b"a")
        while not change.stamps:
            self.run(1)
        self.only(name, *then)
        self.until(change)
        self.mend(name)
        return change

    # --- disks --------------------------------------------------------------------------------------------

    def lose(self, name: str) -> None:
        """Lose a node's disk, and start it with another one."""
        self.node(name).wipe()
        self.node(name).start()

    def old_disk(self, name: str, image: tuple[Tables, int]) -> None:
        """Start a node from an older copy of its disk."""
        self.node(name).restore(image)
        self.node(name).start()

    def age(self, name: str) -> None:
        """Let a node write the next mark on its disk, and in the store."""
        self.node(name).raise_mark()

    def restart(self, name: str) -> None:
        self.node(name).crash()
        self.node(name).start()
        self.push(name)
        self.settle()
