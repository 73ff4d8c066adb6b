"""A run: perhaps a trace, then chance or not, then healing, then the keyspace is deleted.

Stays out: one seed's result (`runner`).
"""

from __future__ import annotations

from dataclasses import replace

from ..dice import Dice
from ..network import NetworkOptions
from ..trace import Trace
from .deletion import delete
from .faults import AHEAD_MS
from .healing import finish
from .options import RangeOptions, draw, draw_ahead
from .story import Story
from .traces import TRACES
from .traces.trace import Trace as Told
from .world import RangeWorld

PROFILE = "keyspace"
AHEAD = "keyspace-ahead"
"""The profile in which all clocks are ahead at times, and clients take stamps from the future back (D84)."""
TRACED = 0.3
"""The chance that a run begins with a trace."""
ALONE = 0.5
"""The chance that it ends with it: what comes by chance may mend what the trace broke."""
STEPS_MAX = 1_200
"""The events by chance are fewer than in other profiles: a run has one range."""


def play(told: Told, dice: Dice, trace: Trace) -> RangeWorld:
    """Play a trace in a calm world."""
    options = RangeOptions(
        told.nodes, told.quorum, network=NetworkOptions(delay_ms_max=1), sync_ms=1, read_ms=0, repair=told.repair,
        sloppy=told.sloppy, replay_pause_ms=told.replay_pause_ms)
    world = RangeWorld(options, dice, trace, manual=True)
    told.play(Story(world))
    return world


def go_on(world: RangeWorld, options: RangeOptions) -> None:
    """Let chance go on where a trace has ended."""
    world.network.cut.clear()
    world.network.slow.clear()
    world.network.options = options.network
    world.options = options
    world.faults.options = options.faults
    world.manual = False
    for part in (world.operator, world.clients, world.faults):
        world.after(world.dice.between(0, 40), part.tick)


def run_ahead(dice: Dice, trace: Trace, steps: int) -> RangeWorld:
    """Run everything by chance with clocks that are ahead, up to the first broken promise."""
    world = RangeWorld(draw_ahead(dice), dice, trace)
    world.begin()
    world.run_faults(min(steps, STEPS_MAX))
    world.faults.calm()
    world.faults.set_clocks()
    world.options.clients.think_ms = 100 * AHEAD_MS[1]     # clients rest until no stamp is from the future
    world.run_until(world.now_ms + AHEAD_MS[1])
    finish(world)
    return world


def run(dice: Dice, trace: Trace, steps: int) -> RangeWorld:
    """Run everything, up to the first broken promise."""
    options = draw(dice)
    if not dice.chance(TRACED):
        world = RangeWorld(options, dice, trace)
        world.begin()
    else:
        told = TRACES[dice.pick(sorted(TRACES))]
        trace.count(f"trace_{told.name.replace(' ', '_')}")
        world = play(told, dice, trace)
        if dice.chance(ALONE):
            finish(world)
            delete(world)
            return world
        go_on(world, replace(
            options, nodes=told.nodes, quorum=told.quorum, repair=told.repair, sloppy=told.sloppy))
    world.run_faults(world.events + min(steps, STEPS_MAX))
    finish(world)
    delete(world)
    return world
