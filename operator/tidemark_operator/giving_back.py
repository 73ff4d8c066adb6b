"""Giving back: nodes that handed their leaderships over, for a restart or a drain, lead their share again afterwards.

Without this the node that a rollout restarted last would lead nothing.  Once every node may lead again, every copy
is there and nothing disruptive has been under way for a moment, leaderships go to these nodes, one at a time, from
whoever leads at least two more, until there is nobody like that.  Who leads is left alone otherwise: people may have
wanted it so.  Which nodes these are is remembered here and nowhere else: an operator that takes over knows those that
hand over from then on, and the last ones of a rollout, which lack most, are among them.
Stays out: handing over, and carrying out what is chosen here (`tending`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from tidemark_core.base.ids import ShardId

from .metadata import NodeLife
from .model import Shard, out_of_sync
from .plan import World

SETTLED_S = 5.0
"""For how long nothing disruptive is under way before any go back: between two restarts they would go in vain."""


class GivingBack:
    """Told of the world at every look."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._owed: set[str] = set()
        self._calm_since: float | None = None

    def choose(
        self, world: World, *, calm: bool, unwilling: Collection[ShardId] = (),
    ) -> tuple[Shard, str] | float | None:
        """Return the leadership that goes back now and to whom, or in how many seconds to look again.

        `calm` is that nothing disruptive is under way; `unwilling` are shards whose leader did not change though asked.
        """
        self._owed |= {node.node for node in world.nodes.values() if node.yielding}
        if not self._owed:
            return None
        if not calm or not _everybody_is_there(world):
            self._calm_since = None
            return None
        if self._calm_since is None:
            self._calm_since = self._now()
        left_s = self._calm_since + SETTLED_S - self._now()
        if left_s > 0:
            return left_s
        found = fairer(world, self._owed, unwilling)
        if found is None:
            self._owed.clear()
        return found


def _everybody_is_there(world: World) -> bool:
    return all(node.may_lead for node in world.nodes.values() if node.life is NodeLife.STAYS) and not any(
        out_of_sync(shard, world.nodes) for shard in world.shards.values())


def fairer(world: World, to: Collection[str], unwilling: Collection[ShardId] = ()) -> tuple[Shard, str] | None:
    """Return a shard and which of the nodes `to` should lead it; None where no transfer makes anything more even."""
    leaders, best = world.leaders(), None
    most = 1
    for shard in world.shards.values():
        if shard.leader is None or shard.shard in unwilling:
            continue
        for name in shard.ensemble:
            gain = leaders[shard.leader] - leaders[name]
            if name in to and gain > most and world.nodes[name].may_lead:
                best, most = (shard, name), gain
    return best
