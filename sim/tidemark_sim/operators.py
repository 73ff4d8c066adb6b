"""The shell of one simulated operator: failure detector, metadata driver, and the rule that re-seeds wiped nodes.

It drives a `Coordinators`.  Its own rules are those of the real operator's shell: report nodes as up or down, and
when a node of an ensemble answers with another disk, start a swap into its own slot (K14); give a recovered shard as
many members as it had (K14d).
Stays out: elections and changes; they are the core's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Received, Reply, Send, SetTimer, TimerFired, Trace
from tidemark_core.base.ids import Address, Member, OperatorId, ShardId, of_shard
from tidemark_core.base.metadata import LoadMetadata, NodeDown, NodeUp, SaveMetadata, SetActive
from tidemark_core.node import NODE
from tidemark_core.replication.coordinator import CoordinatorEffect
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.messages import Operation, Reach
from tidemark_core.replication.records import (
    ChangeProgress,
    StartChange,
)

from .timers import Timers

if TYPE_CHECKING:
    from .world import World


class Operator:
    """One operator through all its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.core: Coordinators | None = None
        self.id = OperatorId(name)
        self.life = 0
        self.boots = 0
        self.skew_ms = 0
        self.active = True
        self.leased = False     # the lease came to this process
        self._seen: dict[str, tuple[Member, str] | None] = {}
        self._boots: dict[str, str] = {}     # of the process of each node that was seen last
        self._missed: dict[str, int] = {}
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._returning: dict[tuple[ShardId, str], int] = {}
        self._timers = Timers(world, self._on_timer)

    @property
    def alive(self) -> bool:
        return self.core is not None

    # --- lives --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Come up as a new process and load every shard."""
        if self.core is not None:
            return
        world = self.world
        if world.metadata.lost:
            world.after(world.options.cluster.probe_ms, self.start)
            return
        self.life += 1
        self.boots += 1
        self.id = OperatorId(f"{self.name}.{self.boots}")
        self.core = Coordinators(replace(world.options.coordinator, operator=self.id))
        world.trace.note(self.name, "start", str(self.id))
        if not self.active:
            self.turn(SetActive(False))
        for shard in world.shards:
            world.metadata.load(self, LoadMetadata(of_shard(shard)))
        world.after(world.dice.between(0, world.options.cluster.probe_ms), self._probe, self.life)

    def crash(self) -> None:
        if self.core is None:
            return
        self.world.trace.note(self.name, "crash")
        self.world.trace.count("operator_crashes")
        self.life += 1
        self.leased = False
        self.core = None
        self._seen.clear()
        self._boots.clear()
        self._missed.clear()
        self._requests.clear()
        self._returning.clear()
        self._timers.clear()

    def set_active(self, active: bool) -> None:
        self.active = active
        if self.core is not None:
            self.leased = active
            self.turn(SetActive(active))

    def boot_of(self, node: str) -> str:
        """Return the process of a node that this one saw last, empty when it saw none."""
        return self._boots.get(node, "")

    # --- what comes in ------------------------------------------------------------------------------------

    def receive(self, address: Address, sender: Member, to: OperatorId, message: Any, boot: str) -> None:
        if self.core is not None and to == self.id:
            self.world.trace.note(self.name, "receive", message)
            self.turn(Received(address, sender, None, message, boot))

    def hear(self, sender: Member, boot: str, reach: Reach) -> None:
        """A node says whom it reaches."""
        if self.core is not None:
            self.world.trace.note(self.name, "receive", reach)
            self.turn(Received(NODE, sender, None, reach, boot))

    def answer(self, life: int, event: Any) -> None:
        """The metadata store speaks."""
        if self.life == life and self.core is not None:
            self.world.trace.note(self.name, "metadata", event)
            self.turn(event)

    def request(self, event: Any, answer: Callable[[Any], None]) -> None:
        if self.core is not None:
            self.world.trace.note(self.name, "request", event)
            self._requests[event.request] = answer
            self.turn(event)

    # --- failure detector ---------------------------------------------------------------------------------

    def _probe(self, life: int) -> None:
        if self.life != life or self.core is None:
            self.world.idle()
            return
        world = self.world
        world.idle()
        for name, node in world.nodes.items():
            answers = (
                node.alive
                and world.network.is_open(self.name, name)
                and world.network.is_open(name, self.name)
                and not world.dice.chance(world.options.cluster.probe_lost)
            )
            if answers:
                self._missed[name] = 0
                now = (node.member, node.boot)
                if self._seen.get(name) != now:
                    self._seen[name], self._boots[name] = now, node.boot
                    world.trace.note(self.name, "sees", f"{node.member} up")
                    self.turn(NodeUp(node.member, node.boot))
            else:
                self._missed[name] = self._missed.get(name, 0) + 1
                # A node that never answered this process is reported too: its record may still name it leader.
                if self._missed[name] == world.options.cluster.probes_missed_max:
                    self._seen[name] = None
                    world.trace.note(self.name, "sees", f"{name} down")
                    self.turn(NodeDown(name))
            if self.life != life:
                return
        if self.active:
            self._return_wiped()
        if self.active and self.life == life:
            self._refill()
        if self.life == life:
            world.after(world.options.cluster.probe_ms, self._probe, life)

    def _return_wiped(self) -> None:
        """K14, N11: a node of an ensemble with another disk, or without a replica, is swapped into its own slot."""
        assert self.core is not None
        for shard, coordinator in self.core.shards.items():
            record = coordinator.record
            for member in record.ensemble if record else ():
                seen = self._seen.get(member.node)
                away = seen and (seen[0] != member or member in coordinator.missing)
                if away and (shard, member.node) not in self._returning:
                    request = self.world.request_number()
                    self._returning[shard, member.node] = request
                    event = StartChange(shard, request, Operation.SWAP, member.node, member.node)
                    self.request(event, partial(self._is_back, shard, member.node))
                    return

    def _refill(self) -> None:
        """K14d: a shard that was recovered from one member gets as many as it had, one after the other."""
        assert self.core is not None
        for shard, coordinator in self.core.shards.items():
            record = coordinator.record
            if record is None or record.refill <= len(record.ensemble) or not coordinator.settled:
                continue
            members = {member.node for member in record.ensemble}
            node = next((name for name, seen in self._seen.items() if seen and name not in members), None)
            if node is not None and (shard, node) not in self._returning:
                request = self.world.request_number()
                self._returning[shard, node] = request
                event = StartChange(shard, request, Operation.EXPAND, None, node)
                self.request(event, partial(self._is_back, shard, node))
                return

    def _is_back(self, shard: ShardId, node: str, _answer: Any) -> None:
        self._returning.pop((shard, node), None)

    # --- effects ------------------------------------------------------------------------------------------

    def turn(self, event: Any) -> None:
        world = self.world
        assert self.core is not None
        life = self.life
        effects = self.core.step(world.now_ms + self.skew_ms, event)
        if isinstance(event, Received):
            world.checkers.operator_answered(self, event, effects)
        crash_at = -1
        if effects and world.dice.chance(world.options.cluster.operator_crash_in_step):
            crash_at = world.dice.between(0, len(effects))
        self._run(effects, crash_at)
        if crash_at >= 0:
            self.crash()
            world.faults.revive_operator_later(self)
        if self.life == life:
            world.checkers.operator_stepped(self)

    def _run(self, effects: list[CoordinatorEffect], stop_at: int) -> None:
        world = self.world
        effect: Any  # its class says which one it is
        for number, effect in enumerate(effects):
            if number == stop_at:
                return
            kind = effect.__class__
            if kind is Send:
                world.checkers.operator_sends(self, effect)
                world.send_from_operator(self, effect)
            elif kind is SaveMetadata:
                world.metadata.save(self, effect)
            elif kind is LoadMetadata:
                world.metadata.load(self, effect)
            elif kind is SetTimer:
                self._timers.set(effect, lambda at_ms: at_ms - (world.now_ms + self.skew_ms))
            elif kind is Reply:
                world.trace.note(self.name, "reply", effect.value)
                answer = self._requests.pop(effect.request, None)
                if answer is not None:
                    answer(effect.value)
            elif kind is ChangeProgress:
                pass  # for people; nothing follows from it
            elif kind is Trace:
                world.trace.count(f"core_{effect.what}")
                world.trace.note(self.name, "trace", f"{effect.what} {effect.detail}")
                if effect.what == "resumed":
                    world.checkers.operator_resumes(self, effect.address.shard)
            else:
                raise TypeError(f"an operator cannot run {effect!r}")

    def _on_timer(self, event: TimerFired) -> None:
        self.world.trace.note(self.name, "timer", event.name)
        self.turn(event)
