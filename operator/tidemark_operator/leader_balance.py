"""Leader balance: after faults some nodes lead many shards and others none; leaderships move until that is even.

One at a time, and only where nothing is in doubt:

1. Nothing disruptive is under way, and every shard has a leader, for a fifth of the quarantine.
2. The last one that moved did so a thirtieth of the quarantine ago, and at least one second.
3. The member that takes a leadership stays, is up, does not drain and was up for the whole quarantine.
4. Every member of the shard is there, on its own disk, and has no entries before it that are not on their way.
5. The shard has had its leader for the whole quarantine: one that moved, or was just elected, rests.
6. The member that gives a leadership leads at least two more than the one that takes it.  So each move makes the sum of
   the squares of what nodes lead smaller, and moves come to an end.

With a quarantine of 300 s (the default) a node that came back leads again after 5 to 6 minutes, one shard each 10 s.
`reconfiguration.leaderBalance` switches it.  Pure.  Stays out: handing over, and asking who lags (`tending`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidemark_core.base.ids import ShardId

from .giving_back import fairer
from .metadata import NodeLife
from .model import Node, Shard, out_of_sync
from .plan import World

SETTLED_PART, PAUSE_PART = 5, 30
PAUSE_MIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A leadership that should move now; the node that leads it leads `gives` shards, the node `to` leads `takes`."""

    shard: Shard
    to: str
    gives: int
    takes: int

    def __str__(self) -> str:
        giver = f"{self.shard.leader}, which led {self.gives}"
        return f"{self.shard.name}: from {giver}, to {self.to}, which led {self.takes}"


class LeaderBalance:
    """Shown the world at every look.  Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._fit_since: dict[str, float] = {}
        self._led_since: dict[ShardId, tuple[str, float]] = {}
        self._calm_since: float | None = None
        self._moved_at: float | None = None
        self.moving: ShardId | None = None
        """The shard whose leadership is being handed over; that disturbs no calm."""

    def observe(self, now_s: float, world: World, *, calm: bool) -> None:
        """Note since when nodes may lead, shards have their leaders, and nothing else is under way."""
        fit = {name for name, node in world.nodes.items() if may_take(node)}
        self._fit_since = {name: self._fit_since.get(name, now_s) for name in fit}
        led = {shard.shard: shard.leader for shard in world.shards.values() if shard.leader}
        before, self._led_since = self._led_since, {}
        for shard, leader in led.items():
            known = before.get(shard)
            self._led_since[shard] = known if known is not None and known[0] == leader else (leader, now_s)
        if not calm or world.shards.keys() - led.keys() - {self.moving}:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s

    def begins(self, shard: ShardId) -> None:
        """A leadership is being handed over, until `moved`."""
        self.moving = shard

    def moved(self, now_s: float, shard: ShardId) -> None:
        """A leadership was handed over, or the try failed: either way the shard rests."""
        self._moved_at, self.moving = now_s, None
        if shard in self._led_since:
            self._led_since[shard] = (self._led_since[shard][0], now_s)

    def choose(
        self, now_s: float, world: World, quarantine_s: float, behind: Collection[str] = ()
    ) -> Transfer | float | None:
        """Return what moves now, or in how many seconds to look again; None where leaderships are even.

        `behind` are nodes with members that have not been sent every entry.  Call `observe` with the same world before.
        """
        wish = self._best(world, world.nodes.keys(), ())
        if wish is None or self._calm_since is None:
            return None   # news ends the calm, or makes leaderships uneven, and brings another look
        pause_s = max(PAUSE_MIN_S, quarantine_s / PAUSE_PART)
        due_s = self._calm_since + quarantine_s / SETTLED_PART
        if self._moved_at is not None:
            due_s = max(due_s, self._moved_at + pause_s)
        if now_s < due_s:
            return due_s - now_s
        lacking = frozenset(behind)
        fit = {name for name, since in self._fit_since.items() if now_s >= since + quarantine_s}
        resting = {shard for shard, (_leader, since) in self._led_since.items() if now_s < since + quarantine_s}
        incomplete = {
            shard.shard for shard in world.shards.values()
            if out_of_sync(shard, world.nodes) or not lacking.isdisjoint(shard.ensemble)
        }
        found = self._best(world, fit, resting | incomplete)
        if found is not None:
            return found
        begun_s = [*self._fit_since.values(), *(since for _leader, since in self._led_since.values())]
        ends_s = [end_s for since in begun_s if (end_s := since + quarantine_s) > now_s]
        return max(PAUSE_MIN_S, min(ends_s) - now_s) if ends_s else pause_s

    @staticmethod
    def _best(world: World, to: Collection[str], leave: Collection[ShardId]) -> Transfer | None:
        found = fairer(world, to, leave)
        if found is None:
            return None
        (shard, name), leaders = found, world.leaders()
        return Transfer(shard, name, leaders[shard.leader or ""], leaders[name])


def may_take(node: Node) -> bool:
    """Say whether a node may be given leaderships that it need not have: it stays, is up, and hands none over."""
    return node.may_lead and node.life is NodeLife.STAYS
