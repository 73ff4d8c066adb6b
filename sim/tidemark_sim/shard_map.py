"""The shard map as nodes hear of it: what is asked of the limbo of each shard, pushed late, lost, or never.

A node remembers what it heard for as long as its process lives, and tells every shard it holds.
Stays out: who leads (clients ask the metadata store), and when a quorum is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark_core.base.ids import ShardId
from tidemark_core.limbo.settings import Rollback, SynchroSettings

if TYPE_CHECKING:
    from .node import Node
    from .world import World

ZONES = 3

FORMULAS: dict[str, Callable[[int], int]] = {
    "": lambda members: members // 2 + 1,
    "N": lambda members: members,
    "N-1": lambda members: members - 1,
    "N/2+1": lambda members: members // 2 + 1,
    "2": lambda members: 2,
    "max(2, N-1)": lambda members: max(2, members - 1),
    "min(N, N/2+2)": lambda members: min(members, members // 2 + 2),
}
"""What may be asked for, and what it means: told once more, so that the core's reading of it is judged."""

STRICT = ("N", "N", "N-1", "min(N, N/2+2)")


@dataclass(slots=True)
class SynchroOptions:
    """What the settings of a run look like; times are milliseconds, chances are per drawing or per push."""

    timeout_ms_min: int = 5_000
    timeout_ms_max: int = 5_000
    formula: float = 0.0            # chance to ask for something else than the majority
    zones: float = 0.0              # chance to ask for two zones
    immediate: bool = False         # rollbacks are told when they are on the leader's disk, which is unsafe
    change_every_ms: int = 0        # mean time between two changes; 0: never
    delay_ms_max: int = 30
    lost: float = 0.0


def needed(settings: SynchroSettings | None, members: int) -> int:
    """Return how many of `members` must hold a QUORUM entry; everybody, for a leader that was never told."""
    if settings is None:
        return members
    return min(members, max(members // 2 + 1, FORMULAS[settings.quorum](members)))


class ShardMap:
    """The settings in force and their way to the nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = world.options.synchro
        self.stopped = False
        self.version = 1
        self.zone_of = tuple((name, f"z{number % ZONES}") for number, name in enumerate(world.nodes))
        self.settings: dict[ShardId, SynchroSettings] = {shard: self._draw() for shard in world.shards}

    def _draw(self) -> SynchroSettings:
        dice, options = self.world.dice, self.options
        return SynchroSettings(
            quorum=dice.pick(STRICT if dice.chance(0.5) else list(FORMULAS)) if dice.chance(options.formula) else "",
            timeout_ms=dice.between(options.timeout_ms_min, options.timeout_ms_max),
            rollback=Rollback.IMMEDIATE if options.immediate else Rollback.DEFINITE,
            zones=2 if dice.chance(options.zones) else 0,
            zone_of=self.zone_of,
        )

    # --- changing -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Change something now and then."""
        world = self.world
        if self.stopped:
            world.idle()
            return
        self.change(world.dice.pick(world.shards))
        world.after(world.dice.around(self.options.change_every_ms), self.tick)

    def change(self, shard: ShardId, at_once: Node | None = None) -> None:
        """Ask for something else; `at_once` hears of it without delay."""
        self._put(shard, self._draw())
        if at_once is not None:
            at_once.learn(at_once.life, shard, self.version, self.settings[shard])

    def _put(self, shard: ShardId, settings: SynchroSettings) -> None:
        world = self.world
        self.version += 1
        self.settings[shard] = settings
        world.trace.note("map", "settings", f"{settings.quorum or 'majority'} {settings.timeout_ms} {settings.zones}")
        for node in world.nodes.values():
            self._push(node, shard)

    def calm(self, absent: bool) -> None:
        """Ask for what those who are up can give, and reach everybody."""
        self.stopped = True
        self.options.lost = 0.0
        for shard, settings in self.settings.items():
            quorum = "" if absent or self.world.dice.chance(0.5) else settings.quorum
            self._put(shard, replace(settings, quorum=quorum, zones=0))

    # --- telling ------------------------------------------------------------------------------------------

    def node_started(self, node: Node) -> None:
        """A process that starts knows nothing of the map."""
        for shard in self.world.shards:
            self._push(node, shard)

    def _push(self, node: Node, shard: ShardId) -> None:
        world, options = self.world, self.options
        if node.alive and not world.dice.chance(options.lost):
            delay = world.dice.between(0, options.delay_ms_max)
            world.after(delay, node.learn, node.life, shard, self.version, self.settings[shard])
