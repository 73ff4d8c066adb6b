"""The world of one run of the keyspace plane: nodes, operator, clients, faults and the judge on one timeline.

Stays out: what the parts do.
"""

from __future__ import annotations

from typing import Any

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import Member
from tidemark_core.base.marks import DiskMark
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.messages import RetractWrite, Store
from tidemark_core.optimistic.plane import KeyspaceLimits
from tidemark_core.optimistic.ring import Owners, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.stamps import ZERO

from ..dice import Dice
from ..network import Network
from ..timeline import Timeline
from ..trace import Trace
from .clients import Clients
from .faults import Faults
from .judge import Judge
from .node import Node
from .operator import NAME, Operator
from .options import RangeOptions

BEGIN_MS = 10_000
"""The clocks at the begin of a run: far enough from 0 that a floor can rise."""


class RangeWorld(Timeline):
    """Everything of one run.  `manual`: a story decides what the operator and the clients do."""

    def __init__(self, options: RangeOptions, dice: Dice, trace: Trace, *, manual: bool = False) -> None:
        super().__init__(dice, trace)
        self.now_ms = BEGIN_MS
        self.options = options
        self.manual = manual
        self.notice_ms = 3_000 if manual else 1     # until the operator swaps a disk out that is older than the floor
        self.limits = KeyspaceLimits(
            skew_ms=options.skew_ms, write_window_ms=options.write_window_ms, replay_pause_ms=options.replay_pause_ms,
            settings=KeyspaceSettings(repair_every_ms=options.repair_every_ms))
        self.marks: dict[str, DiskMark] = {}     # of the disk of each node, as the store has them
        self.network = Network(options.network, dice, self.after, lambda: self.now_ms)
        self.nodes = {f"n{number}": Node(self, f"n{number}") for number in range(1, options.nodes + 1)}
        owners = Owners(tuple(self.members[:options.quorum.n]), options.quorum)
        self.operator = Operator(self, Range(1, owners))
        self.judge = Judge(strict=not options.sloppy, monotonic=options.repair is Repair.BLOCKING)
        self.clients = Clients(self)
        self.faults = Faults(self)

    @property
    def members(self) -> list[Member]:
        """The members that the nodes are now."""
        return [node.member for node in self.nodes.values()]

    def begin(self) -> None:
        """Start every node; without a story also the operator, the clients and the faults."""
        for node in self.nodes.values():
            node.start()
        if not self.manual:
            for part in (self.operator, self.clients, self.faults):
                self.after(self.dice.between(0, 40), part.tick)

    def note_retraction(self, message: Any) -> None:
        """Let the judge know of a stamp that a member, the sender too, may put in the place of another one."""
        match message:
            case Store(change=RetractWrite(_, was, became)) if became != ZERO:
                self.judge.took_back(was, became)
                self.trace.count("stamps_taken_back")

    def send_from_node(self, node: Node, effect: Send) -> None:
        to = effect.to
        self.note_retraction(effect.message)
        if isinstance(to, Member):
            target = self.nodes[to.node]
            self.network.send(node.name, to.node, target.receive, effect.address, node.member, to, effect.message)
        else:
            self.network.send(node.name, NAME, self.operator.receive, node.member, effect.message)
