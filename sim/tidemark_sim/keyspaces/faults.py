"""Faults of a run of the keyspace plane: nodes die, links break, clocks jump, disks are lost.

No more disks are lost than the promise allows: one at a time, and none while an owner whose disk is gone waits to be
replaced.  Stays out: what follows from a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..disk import Tables
from .node import Node
from .operator import NAME

if TYPE_CHECKING:
    from .world import RangeWorld

AHEAD_MS = (300, 3_000)
"""How far all clocks are ahead together, in milliseconds: some stamps come of age within the run."""


class Faults:
    """Breaks things until `calm`, and mends each of them after a while."""

    def __init__(self, world: RangeWorld) -> None:
        self.world = world
        self.options = world.options.faults
        self.over = False
        self._images: dict[str, tuple[Tables, int]] = {}

    def tick(self) -> None:
        """Let one fault happen."""
        if self.over:
            return
        world, options = self.world, self.options
        action = world.dice.weighted((
            (self.ahead, options.ahead),
            (self.crash, options.crash), (self.cut, options.cut), (self.isolate, options.isolate),
            (self.split, options.split), (self.slow, options.slow), (self.clock, options.clock),
            (self.wipe, options.wipe), (self.old_image, options.old_image),
        ))
        if action is not None:
            action(world.dice.pick(list(world.nodes.values())))
        world.after(world.dice.around(options.every_ms), self.tick)

    def calm(self) -> None:
        """Stop all faults: every node is up, every link is whole, every clock is right."""
        self.over = True
        self.world.options.crash_in_step = 0.0
        self.world.network.calm()
        for node in self.world.nodes.values():
            node.skew_ms = 0
            node.start()

    def set_clocks(self) -> None:
        """Start every node that is ahead again: its clock would go on slower for long."""
        for node in self.world.nodes.values():
            if node.now_ms > self.world.now_ms + self.world.options.skew_ms:
                node.crash()
                node.start()

    def down_ms(self) -> int:
        return self.world.dice.around(self.options.down_ms)

    # --- nodes --------------------------------------------------------------------------------------------

    def crash(self, node: Node) -> None:
        node.crash()
        self.revive_later(node)

    def kill(self, node: Node) -> None:
        """Crash a node that does something now, unless the time of faults is over."""
        if not self.over:
            self.crash(node)

    def revive_later(self, node: Node) -> None:
        self.world.after(self.down_ms(), node.start)

    def clock(self, node: Node) -> None:
        """Set a clock: a quarter of them beyond the bound."""
        world = self.world
        bound = world.options.skew_ms // 2
        far = world.dice.chance(0.25)
        node.skew_ms = world.dice.pick((-1, 1)) * world.dice.between(bound, 20 * bound) if far \
            else world.dice.between(-bound, bound)
        world.trace.count("clocks_beyond" if far else "clocks_within")
        if far:
            world.after(self.down_ms(), self._mend_clock, node)

    def _mend_clock(self, node: Node) -> None:
        node.skew_ms = 0

    def ahead(self, _: Node) -> None:
        """Set all clocks ahead together, so that owners store stamps from the future; set them back later."""
        world = self.world
        if any(node.skew_ms > world.options.skew_ms for node in world.nodes.values()):
            return
        by_ms = world.dice.between(*AHEAD_MS)
        for node in world.nodes.values():
            node.skew_ms = by_ms
            world.after(self.down_ms(), self._set_back, node)
        world.trace.count("clocks_ahead")

    def _set_back(self, node: Node) -> None:
        """Give a node the right time; its clock would go on slower until then, so that it starts again."""
        node.skew_ms = 0
        self.kill(node)

    def may_lose(self, node: Node) -> bool:
        """Say whether the promise holds when the disk of a node is lost now."""
        record, operator = self.world.operator.record, self.world.operator
        if self.world.options.sloppy and self.world.trace.counts.get("disks_lost", 0):
            return False    # a node that keeps a write for an owner is not replaced
        if any(operator.is_gone(member) or self.world.nodes[member.node].restored for member in record.members):
            return False
        owns = record.holds(node.member)
        lists = [record.own, *([record.pending] if record.pending is not None else [])]
        return not owns or all(owners.quorum.w >= 2 for owners in lists)

    def wipe(self, node: Node) -> None:
        if self.may_lose(node):
            self.world.trace.count("disks_lost")
            self._images.pop(node.name, None)
            node.wipe()
            self.revive_later(node)

    def old_image(self, node: Node) -> None:
        """Keep a copy of a disk, or start a node from the copy that was kept."""
        image = self._images.pop(node.name, None)
        if image is None:
            self._images[node.name] = node.image()
        elif self.may_lose(node) and node.lacks_writes(image[1]):
            self.world.trace.count("disks_lost")
            node.restore(image)
            self.revive_later(node)

    # --- links --------------------------------------------------------------------------------------------

    def _cut(self, links: list[tuple[str, str]], what: str) -> None:
        self.world.trace.count(what)
        for link in links:
            self.world.network.cut_link(*link)
        self.world.after(self.down_ms(), self._mend, links)

    def _mend(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self.world.network.mend_link(*link)

    def cut(self, node: Node) -> None:
        others = [name for name in self.world.nodes if name != node.name]
        self._cut([(node.name, self.world.dice.pick(others))], "cuts")

    def isolate(self, node: Node) -> None:
        others = [NAME, *(name for name in self.world.nodes if name != node.name)]
        self._cut([pair for name in others for pair in ((name, node.name), (node.name, name))], "isolations")

    def split(self, node: Node) -> None:
        """Part the nodes in two; the operator is on one side."""
        names = self.world.dice.shuffled([NAME, *self.world.nodes])
        at = self.world.dice.between(1, len(names) - 1)
        left, right = names[:at], names[at:]
        self._cut([pair for one in left for two in right for pair in ((one, two), (two, one))], "partitions")

    def slow(self, node: Node) -> None:
        others = [name for name in self.world.nodes if name != node.name]
        link = (node.name, self.world.dice.pick(others))
        self.world.trace.count("slow_links")
        self.world.network.slow[link] = self.world.dice.between(20, 200)
        self.world.after(self.down_ms(), self._quicken, link)

    def _quicken(self, link: tuple[str, str]) -> None:
        self.world.network.slow.pop(link, None)
