"""Tender: what the operator does by itself for running shards.

Rule K14: a node that came back with another disk is a new member; for each shard that names its old disk,
the operator swaps it back into its own slot, and so it does with a member that holds no replica (N11).
A node that drains or is to yield hands its leaderships over; one that yields no more is given its share back
(`giving_back`).  Leaderships that faults left uneven are balanced (`leader_balance`).  A shard whose members keep
another number of payloads than its group declares is changed to that
number (K13).  A shard that was recovered from one member gets as many members as it had (K14d).
Stays out: which steps that takes (the coordinator), moves that people ask for (`reconfigure`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.base.refusals import Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import StartChange, StartTransfer
from tidemark_wire.tasks import background, cancelled

from .driver import MachineDriver
from .giving_back import GivingBack
from .leader_balance import LeaderBalance, Transfer
from .metrics import LEADER_BALANCE
from .model import Shard, out_of_sync, wanted_copies
from .plan import World, choose_member, next_leader

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
TRANSFERS_MAX = 32
"""Leaderships handed over at once: they move no data."""
ANSWERS_FRESH_S = 5.0
"""What nodes said of members that lag holds for so long."""
REFUSALS_MAX = 3
"""A leadership that is to go back, and does not for so many times in a row, stays where it is."""


class Tender:
    """Call `look` when nodes or records change; it starts what is due and not under way."""

    def __init__(
        self, driver: MachineDriver, poke_later: Callable[[float], None],
        lagging: Callable[[], Awaitable[Collection[str]]], on_balanced: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lagging` asks the nodes which of them lack entries; `on_balanced` gets a sentence on each such transfer."""
        self._driver = driver
        self._lagging = lagging
        self._on_balanced = on_balanced
        self._now = now
        self._poke_later = poke_later
        self._tasks: dict[ShardId, asyncio.Task[Any]] = {}
        self._moving: set[ShardId] = set()          # what may move data
        self._transferring: set[ShardId] = set()
        self._refusals: Counter[ShardId] = Counter()  # in a row
        self._giving_back = GivingBack(now)
        self._going_back: set[ShardId] = set()
        self._balance = LeaderBalance()
        self._again_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._behind: tuple[float, Collection[str]] | None = None   # the answer of the nodes, and when it came
        self.copies_trouble: dict[ShardId, str] = {}  # why a shard does not keep the declared copies yet

    def look(
        self, world: World, moves_max: int, *, calm: bool = False, balance_quarantine_s: float | None = None
    ) -> None:
        """`calm` is that nothing disruptive is under way but what is started here.

        `balance_quarantine_s` is the quarantine of `leader_balance`; None: uneven leaderships stay as they are.
        """
        leaders = world.leaders()
        for shard in world.shards.values():
            if shard.shard in self._tasks:
                continue
            node = world.nodes.get(shard.leader or "")
            if node is not None and node.up and (node.draining or node.yielding):
                to = next_leader(shard, world, leaders)
                if to is not None and len(self._transferring) < TRANSFERS_MAX:
                    leaders[to] += 1
                    self._transferring.add(shard.shard)
                    self._start(shard, self._transfer(shard, to))
                continue
            if len(self._moving) >= moves_max:
                continue
            stale, copies = _came_back_empty(shard, world), wanted_copies(shard, world.groups[shard.group])
            if stale is not None:
                self._moving.add(shard.shard)
                self._start(shard, self._reseed(shard, stale))
            elif shard.refill > len(shard.ensemble):
                chosen = choose_member(shard, None, world)
                if isinstance(chosen, str):
                    self._moving.add(shard.shard)
                    self._start(shard, self._refill(shard, chosen))
            elif copies is not None and (away := out_of_sync(shard, world.nodes)):
                self.copies_trouble[shard.shard] = f"{shard.name} waits for {', '.join(away)}"
            elif copies is not None:
                self._moving.add(shard.shard)
                self._start(shard, self._change_copies(shard, copies))
            else:
                self.copies_trouble.pop(shard.shard, None)
        if not self._going_back:
            self._give_back(world, calm=calm and not self._tasks)
        self._balance.observe(self._now(), world, calm=calm and self._tasks.keys() <= {self._balance.moving})
        if balance_quarantine_s is not None and not self._tasks:
            self._even_out(world, balance_quarantine_s)

    def _even_out(self, world: World, quarantine_s: float) -> None:
        """Ask who lags when a leadership is due to move, and move one that may then."""
        now = self._now()
        known = self._behind if self._behind is not None and now < self._behind[0] + ANSWERS_FRESH_S else None
        found = self._balance.choose(now, world, quarantine_s, known[1] if known is not None else ())
        if isinstance(found, float):
            if not now < self._again_at <= now + found:   # else a look is due by then
                self._again_at = now + found
                self._poke_later(found)
        elif found is not None and known is None:
            if self._asking is None:
                self._asking = background(self._ask_who_lags(), "asking who lags")
        elif found is not None:
            self._behind = None
            self._balance.begins(found.shard.shard)
            self._start(found.shard, self._even_transfer(found))

    async def _ask_who_lags(self) -> None:
        try:
            behind = await self._lagging()
            self._behind = (self._now(), behind)
        finally:
            self._asking = None
        self._poke_later(0)

    async def _even_transfer(self, found: Transfer) -> None:
        try:
            moved = await self._transfer(found.shard, found.to)
        finally:
            self._balance.moved(self._now(), found.shard.shard)
        LEADER_BALANCE.labels("Moved" if moved else "Refused").inc()
        if moved:
            log.info("leadership balanced: %s", found)
            self._on_balanced(f"{found}.")

    def _give_back(self, world: World, *, calm: bool) -> None:
        unwilling = {shard for shard, times in self._refusals.items() if times >= REFUSALS_MAX}
        found = self._giving_back.choose(world, calm=calm, unwilling=unwilling)
        if isinstance(found, float):
            self._poke_later(found)
        elif found is not None:
            shard, to = found
            self._going_back.add(shard.shard)
            self._start(shard, self._transfer(shard, to))

    async def close(self) -> None:
        await cancelled(*self._tasks.values(), self._asking)

    def _start(self, shard: Shard, work: Coroutine[Any, Any, Any]) -> None:
        task = background(work, f"tending {shard.name}")
        self._tasks[shard.shard] = task
        task.add_done_callback(lambda _task: self._ended(shard.shard))

    def _ended(self, shard: ShardId) -> None:
        del self._tasks[shard]
        self._moving.discard(shard)
        self._transferring.discard(shard)
        self._going_back.discard(shard)
        self._poke_later(0)

    async def _reseed(self, shard: Shard, node: str) -> None:
        await self._fill(shard, Operation.SWAP, node, old=node, waits="waits for its slot", done="is back in its slot")

    async def _refill(self, shard: Shard, node: str) -> None:
        await self._fill(
            shard, Operation.EXPAND, node, old=None, waits="does not join yet", done="has a copy of the recovered log")

    async def _fill(
        self, shard: Shard, operation: Operation, node: str, *, old: str | None, waits: str, done: str
    ) -> None:
        """Give `node` a copy; `waits` and `done` say in the log what became of it."""
        answer = await self._driver.change(
            of_shard(shard.shard),
            lambda request: StartChange(shard.shard, request, operation, old_node=old, new_node=node),
        )
        if isinstance(answer, Refused):
            log.info("%s: %s %s: %s %s", shard.name, node, waits, answer.reason, answer.message)
            await self._back_off(shard)
        else:
            del self._refusals[shard.shard]
            log.info("%s: %s %s", shard.name, node, done)

    async def _change_copies(self, shard: Shard, copies: int) -> None:
        answer = await self._driver.change(
            of_shard(shard.shard),
            lambda request: StartChange(
                shard.shard, request, Operation.COPIES, old_node=None, new_node=None, copies=copies),
        )
        if isinstance(answer, Refused):
            self.copies_trouble[shard.shard] = f"{shard.name}: {answer.reason}: {answer.message}"
            log.info("%s: payload copies stay: %s %s", shard.name, answer.reason, answer.message)
            await self._back_off(shard)
        else:
            del self._refusals[shard.shard]
            self.copies_trouble.pop(shard.shard, None)
            log.info("%s: %s of %d members keep payloads", shard.name, copies or "all", len(shard.ensemble))

    async def _transfer(self, shard: Shard, to: str) -> bool:
        """Hand a leadership over; say whether that was done."""
        answer = await self._driver.change(
            of_shard(shard.shard), lambda request: StartTransfer(shard.shard, request, to))
        if isinstance(answer, Refused):
            log.info("%s: leadership not handed over: %s %s", shard.name, answer.reason, answer.message)
            await self._back_off(shard)
            return False
        del self._refusals[shard.shard]
        return True

    async def _back_off(self, shard: Shard) -> None:
        self._refusals[shard.shard] += 1
        await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(8, self._refusals[shard.shard] - 1)))


def _came_back_empty(shard: Shard, world: World) -> str | None:
    """Return a node of the ensemble that is up with another disk than the ensemble names, or holds no replica."""
    for member in shard.members:
        node = world.nodes.get(member.node)
        if node is not None and node.up and node.member is not None and (
            node.member != member or member in shard.missing
        ):
            return member.node
    return None
