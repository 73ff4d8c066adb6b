"""ReconfigurationRun: one Reconfiguration under way, from its plan to its end.

The plan and the state of every move are stored before and after each step, so that a restarted operator goes
on where the last one was; a move whose effect is already in force counts as done.  A move that cannot run
now (an election, a node that is down) waits; one that fails five times is given up and the others go on.
Stays out: whose turn it is (`turns`), the steps of one move (`moves` and the coordinator), nodes that are made
and removed (`node_exchange`), its status (`status.reconfiguration`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from tidemark_core.base.ids import LOG_PLANE, ShardId, of_shard
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.records import CancelChange, ChangeDone, ChangeProgress
from tidemark_wire.tasks import background, cancelled

from .approval import ApprovedPlan, approval, approved_plan
from .condition_memory import ConditionMemory, some, timestamp
from .copying import whom_to_ask
from .disruption import Act, Disruption
from .driver import MachineDriver
from .etcd import StoreUnavailable
from .metadata import NodeLife, StoredObject
from .mirror import Mirror
from .model import ClusterSettings, out_of_sync, wanted_copies
from .moves import MoveState, run_move
from .node_exchange import NodeExchange
from .node_records import NodeRecords
from .objects import Objects
from .placement import PlanRefusal
from .plan import NEW_NODE, Move, MoveKind, World, plan_reconfiguration
from .resources.conditions import ConditionReason as R
from .status.reconfiguration import AgreedPlan, Outcome, RunFacts, run_status
from .turns import Slot

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
AskLogBytes = Callable[[Mapping[str, Sequence[ShardId]]], Awaitable[Mapping[ShardId, int]]]

ATTEMPTS_MAX = 5
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
UNSAVED_PAUSE_S = 0.5
ASK_PACE_S = 5.0
"""How often nodes are asked again for what nobody said."""
PATIENCE_S = 5.0
"""How long a plan waits for nodes that are down before it is rejected for them."""
PROGRESS_PACE_S = 2.0
"""How often it is told how many bytes of a move were copied."""
SAVE_PACE_S = 0.2
"""Moves that end closer together are stored together; one that is forgotten is found done by its effect."""

PASSING_REFUSALS = frozenset({
    R.TARGET_NOT_ELIGIBLE, R.INSUFFICIENT_CAPACITY, R.NOT_ENOUGH_DOMAINS, R.SHARDS_LEADERLESS})
"""What a node that is down may be the reason of."""

WAITING_REASONS = frozenset({
    Reason.RECONFIGURING, Reason.NO_LEADER, Reason.NODE_UNAVAILABLE, Reason.METADATA_UNAVAILABLE,
    Reason.TRANSFERRING, Reason.SHUTTING_DOWN,
})
"""Not the move's fault: it waits, and the attempt is not counted."""

_STEPS = {"TRANSFER": "LeaderTransfer", "PREPARE": "Prepare", "SNAPSHOT": "Snapshot", "COMMIT": "Commit"}


class ReconfigurationRun:
    """One Reconfiguration under way."""

    def __init__(
        self, stored: StoredObject, driver: MachineDriver, objects: Objects, mirror: Mirror,
        world: Callable[[], World], settings: Callable[[], ClusterSettings], memory: ConditionMemory,
        disruption: Disruption, nodes: NodeRecords | None, log_bytes: AskLogBytes, slot: Slot,
    ) -> None:
        self.name = stored.name
        self.wake = asyncio.Event()
        self._last = stored
        self._driver = driver
        self._objects = objects
        self._mirror = mirror
        self._world = world
        self._settings = settings
        self._memory = memory
        self._disruption = disruption
        self._log_bytes = log_bytes
        self._slot = slot
        self._asked_at = 0.0
        self._told: object = None
        self._exchange = NodeExchange(stored.uid, stored.spec, nodes, mirror)
        memory.learn("Reconfiguration", stored.name, stored.status.get("conditions", ()))
        self._moves = [MoveState.restore(raw) for raw in stored.status.get("moves", ())]
        plan = stored.status.get("plan")
        self._plan = AgreedPlan(plan["hash"], plan["metadataRevision"], tuple(plan["warnings"])) if plan else None
        approved = stored.status.get("approved")
        self._approved_plan = ApprovedPlan.restore(approved) if approved else None
        self._stage = stored.status.get("stage", "Planning")
        self._provision: list[str] | None = stored.status.get("provision")
        self._target: str = stored.status.get("targetNode", "")
        self._started = stored.status.get("startTime") or timestamp()
        self._clock_start = time.monotonic()
        self._outcome: Outcome | None = None
        self._refused: PlanRefusal | None = None
        self._approved: tuple[bool | None, R] = (None, R.PLANNING)
        self._blocked: tuple[R, str] | None = None
        self._running: dict[ShardId, asyncio.Task[None]] = {}
        self._unsaved = False
        self._saved_at = 0.0
        self._saved_bytes = 0

    async def run(self) -> None:
        try:
            if await self._agree_on_plan():
                outcome = await self._make_node()
                if outcome is None:
                    self._stage = "Moving"
                    await self._save()
                    outcome = await self._move()
                self._outcome = await self._remove_source(outcome)
            self._stage = "Finished"
            await self._save()
            await self._end_turn()
        finally:
            await cancelled(*self._running.values())
        log.info("reconfiguration %s: %s", self.name, self._outcome)

    # --- planning and approval ------------------------------------------------------------------------------

    async def _agree_on_plan(self) -> bool:
        """Plan, and wait for approval where it is required, and for our turn behind it.  False: it ended here."""
        if self._plan is not None and self._stage not in ("Planning", "AwaitingApproval", "Queued"):
            automatic = self._last.spec.get("approval", "Automatic") == "Automatic"
            self._approved = (True, R.AUTOMATIC_APPROVAL if automatic else R.APPROVED_BY_USER)
            return True  # a former operator had begun
        await self._save()
        while True:
            self._outcome = self._ended()
            if self._outcome is not None:
                return False
            stored = self._last
            self._see_approval()  # whoever approved has seen the plan as it was till now
            if not self._make_plan(stored):
                if self._outcome is not None:
                    return False
                if self._plan is not None:
                    await self._stand_aside()
                await self._wait(5.0 if self._plan is not None else 0.5)
                continue
            await self._learn_sizes()
            self._see_approval()
            self._approved = approval(stored.spec, self._planned(), self._approved_plan)
            if not self._approved[0]:
                await self._stand_aside()
            elif not self._slot.take(self.name):
                await self._tell("Queued")  # others went ahead while nobody had approved
            else:
                if self._approved[1] is R.APPROVED_BY_USER:
                    await self._learn_sizes(anew=True)  # it may have waited for days
                self._approved_plan = None  # it has served
                return True
            await self._wait(5.0)

    def _see_approval(self) -> None:
        """Keep which moves are approved: the object says no more than the hash of a plan."""
        if self._plan is not None:
            self._approved_plan = approved_plan(
                self._last.spec, self._plan.hash, self._planned(), self._approved_plan)

    def _planned(self) -> list[Move]:
        return [state.move for state in self._moves]

    async def _stand_aside(self) -> None:
        """Hold up nobody while it is a person, or a node, that is waited for."""
        await self._tell("AwaitingApproval")
        self._slot.give_back(self.name)

    async def _tell(self, stage: str) -> None:
        """Store where it stands if that is news."""
        news = stage, self._plan and self._plan.hash, self._refused, self._approved, self._unsized()
        if news != self._told:
            self._told, self._stage = news, stage
            await self._save()

    def _make_plan(self, stored: StoredObject) -> bool:
        """Plan anew; False: that cannot be done.  A plan that waits for approval outlives a node that is away.

        Nor is anything rejected for a node that is away before an operator that has just begun can have met it.
        """
        world = self._world()
        plan = plan_reconfiguration(stored.spec, world)
        if isinstance(plan, PlanRefusal):
            passing = plan.reason in PASSING_REFUSALS and not all(node.up for node in world.nodes.values())
            if not passing or (self._plan is None and time.monotonic() - self._clock_start > PATIENCE_S):
                self._outcome = Outcome(False, R.REJECTED, plan.message)
            if self._outcome is not None or self._plan is not None:
                self._refused = plan
            return False
        self._refused = None
        warnings = (*plan.warnings, *self._exchange.warnings(self._settings()))
        self._provision = list(plan.provision) if plan.provision is not None else None
        sizes = {state.move: state.total_bytes for state in self._moves}
        if self._plan is None or plan.hash != self._plan.hash:
            self._asked_at = 0.0
        self._moves = [MoveState(move, total_bytes=sizes.get(move)) for move in plan.moves]
        self._plan = AgreedPlan(plan.hash, self._mirror.revision, warnings)
        return True

    async def _learn_sizes(self, *, anew: bool = False) -> None:
        """Ask how much the moves will copy where that is not known; what nobody says is asked for again later."""
        wanted = [state for state in self._moves if state.unsized or anew]
        if not wanted or (not anew and time.monotonic() - self._asked_at < ASK_PACE_S):
            return
        self._asked_at = time.monotonic()
        found = await self._log_bytes(whom_to_ask((state.move for state in wanted), self._world()))
        for state in wanted:
            state.total_bytes = found.get(state.move.shard, state.total_bytes)

    def _ended(self) -> Outcome | None:
        """Read the object anew; an outcome where somebody has ended it, or time has."""
        known = self._mirror.reconfigurations.get(self.name)
        if known is None:
            return Outcome(False, R.CANCELED, "it was deleted")
        stored = self._last = known.value
        if stored.spec.get("cancel"):
            return Outcome(False, R.CANCELED, "spec.cancel was set")
        deadline_s = stored.spec.get("activeDeadlineSeconds", 86_400)
        if datetime.now(UTC) - datetime.fromisoformat(self._started) > timedelta(seconds=deadline_s):
            return Outcome(False, R.DEADLINE_EXCEEDED, f"not finished after {deadline_s} seconds")
        return None

    # --- nodes that come and go -----------------------------------------------------------------------------

    async def _make_node(self) -> Outcome | None:
        """Mark the source, and have the new node if one is asked for; an outcome where it ended here."""
        await self._insist(lambda: self._exchange.set_source(NodeLife.LEAVES))
        if self._provision is None:
            return None
        pool_name, zone = self._provision
        while True:
            ended = self._ended()
            pool = self._settings().pools.get(pool_name)
            if ended is not None or pool is None:
                return ended or Outcome(False, R.REJECTED, f"node pool {pool_name} is gone")
            if not self._target:
                self._stage = "Provisioning"
                await self._save()
                self._target = await self._insist(partial(self._exchange.make, pool, zone))
                for state in self._moves:
                    if state.move.to_node == NEW_NODE:
                        state.move = replace(state.move, to_node=self._target)
                await self._save()
            node = self._world().nodes.get(self._target)
            if node is not None and node.eligible:
                return None
            await self._wait(5.0)

    async def _remove_source(self, outcome: Outcome) -> Outcome:
        """Have the emptied source removed if that is asked for; else it stays."""
        source = self._exchange.removes
        if not outcome.succeeded or source is None:
            await self._insist(lambda: self._exchange.set_source(NodeLife.STAYS))
            return outcome
        self._stage = "CleaningUp"
        await self._save()
        while (removed := self._exchange.is_removed()) is not None:
            world, records = self._world(), self._driver.records(LOG_PLANE)
            ended = self._ended()
            if ended is None and not removed and (held := self._exchange.holds(world, records)):
                ended = Outcome(False, R.MOVES_FAILED, f"{source} was given copies meanwhile: {held}")
            if ended is not None:
                await self._insist(lambda: self._exchange.set_source(NodeLife.STAYS))
                return outcome if removed else ended
            if not removed and not self._exchange.cleans(world, records):
                self._blocked = None
                if await self._has_turn():
                    await self._insist(lambda: self._exchange.set_source(NodeLife.REMOVED))
                    continue
            await self._wait(5.0)
        return outcome

    async def _insist(self, write: Callable[[], Awaitable[Answer]]) -> Answer:
        """Have something written, however long etcd is away."""
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                log.warning("reconfiguration %s waits for etcd: %s", self.name, error)
                await asyncio.sleep(UNSAVED_PAUSE_S)

    # --- moving ---------------------------------------------------------------------------------------------

    async def _move(self) -> Outcome:
        if not self._moves:
            return Outcome(True, R.NOTHING_TO_DO, "every shard in scope is as asked already")
        while True:
            ended = self._ended()
            if ended is not None:
                await self._abort()
                return ended
            stored, world = self._last, self._world()
            for state in self._moves:
                if state.state == "Pending" and state.move.done(world.shards.get(state.move.shard)):
                    state.end()
            open_moves = [state for state in self._moves if state.state in ("Pending", "Running")]
            if not open_moves:
                break
            stage = "Suspended" if stored.spec.get("suspend") else "Moving"
            if stage != self._stage:
                self._stage = stage
                await self._save()
            elif time.monotonic() - self._saved_at > (SAVE_PACE_S if self._unsaved else PROGRESS_PACE_S) and (
                    self._unsaved or self._bytes() != self._saved_bytes):
                await self._save()
            self._blocked = self._precondition(stored, open_moves, world)
            if stage == "Moving" and self._blocked is None and (_only_leaders(open_moves) or await self._has_turn()):
                self._start_some(stored, open_moves)
            elif not self._running:
                await self._end_turn()
            await self._wait(0.25 if len(self._running) < len(open_moves) else PROGRESS_PACE_S)
        failed = [state for state in self._moves if state.state == "Failed"]
        if failed:
            return Outcome(False, R.MOVES_FAILED, f"{len(failed)} of {len(self._moves)} moves failed")
        return Outcome(True, R.COMPLETED, f"{len(self._moves)} of {len(self._moves)} moves are done")

    def _precondition(
        self, stored: StoredObject, open_moves: list[MoveState], world: World
    ) -> tuple[R, str] | None:
        """No new move while an affected shard misses a copy elsewhere than on a node to be emptied.

        Nor an Expand while more members are to keep payloads first: with too few it would be refused (K13).
        """
        pending = [
            shard.name for state in open_moves
            if state.move.kind is MoveKind.EXPAND and (shard := world.shards.get(state.move.shard)) is not None
            and wanted_copies(shard, world.groups[shard.group]) is not None
        ]
        if pending:
            return R.PAYLOAD_COPIES_PENDING, f"{some(pending)} do not keep the declared payload copies yet"
        preconditions: Mapping[str, Any] = stored.spec.get("preconditions") or {}
        if preconditions.get("fullyReplicated", "Required") == "Ignored":
            return None
        behind = []
        for state in open_moves:
            shard = None if state.move.kind is MoveKind.RECOVER else world.shards.get(state.move.shard)
            if shard is not None and set(out_of_sync(shard, world.nodes)) - {state.move.from_node}:
                behind.append(shard.name)
        return (R.UNDER_REPLICATED, f"{some(behind)} lack copies") if behind else None

    async def _has_turn(self) -> bool:
        """Moves of copies, restarts and removals of nodes exclude each other."""
        hold = self._disruption.hold
        if hold is not None and hold.has(Act.RECONFIGURATION, self.name):
            return True
        try:
            if await self._disruption.take(Act.RECONFIGURATION, self.name):
                return True
        except StoreUnavailable as error:
            self._blocked = R.METADATA_STORE_UNREACHABLE, str(error)
        else:
            self._blocked = (
                R.DISRUPTION_UNDER_WAY, f"it {self._disruption.in_the_way(Act.RECONFIGURATION, self.name)}")
        return False

    async def _end_turn(self) -> None:
        """Let others act; a hold that cannot be ended now is ended by the Reconfigurer."""
        try:
            await self._disruption.end(Act.RECONFIGURATION, self.name)
        except StoreUnavailable as error:
            log.warning("reconfiguration %s: its turn is not over: %s", self.name, error)

    def _start_some(self, stored: StoredObject, open_moves: list[MoveState]) -> None:
        throttle: Mapping[str, Any] = stored.spec.get("throttle") or {}
        limit = throttle.get("maxConcurrentMoves") or self._settings().max_concurrent_moves
        now = time.monotonic()
        for state in open_moves:
            if len(self._running) >= limit:
                return
            shard = state.move.shard
            if state.state == "Pending" and shard not in self._running and state.not_before <= now:
                state.state, state.started = "Running", timestamp()
                task = background(self._run_one(state), f"a move of {self.name}")
                self._running[shard] = task
                task.add_done_callback(partial(self._one_ended, shard))

    def _one_ended(self, shard: ShardId, _task: object) -> None:
        self._running.pop(shard, None)
        self.wake.set()

    async def _run_one(self, state: MoveState) -> None:
        def progress(news: ChangeProgress) -> None:
            state.step = _STEPS[news.stage]
            if news.total_bytes:
                state.received_bytes, state.total_bytes = news.received_bytes, news.total_bytes

        answer = await run_move(self._driver, state.move, self._world, progress)
        if isinstance(answer, ChangeDone):
            state.end()
        else:
            state.state, state.step = "Pending", "Pending"
            state.message = f"{answer.reason}: {answer.message}"
            if answer.reason not in WAITING_REASONS:
                state.attempts += 1
                if state.attempts >= ATTEMPTS_MAX:
                    state.state = "Failed"
            state.not_before = time.monotonic() + BACKOFF_S[min(state.attempts, len(BACKOFF_S) - 1)]
            log.info("reconfiguration %s: shard %x: %s", self.name, state.move.shard, state.message)
        self._unsaved = True

    async def _abort(self) -> None:
        """Give up moves in PREPARE; those in COMMIT only go forward and are waited for."""
        self._stage = "Aborting"
        await self._save()
        while self._running:
            for shard in list(self._running):
                await self._driver.change(of_shard(shard), partial(CancelChange, shard))
            await self._wait(0.25)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):  # not wait_for: it loses a cancel that comes together with what is waited for
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        self.wake.clear()  # behind the wait: what happened during a pass is looked at in the next one

    # --- status ---------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Store the status; waits for as long as etcd is away, for nothing may go on unrecorded."""
        self._unsaved, self._saved_at, self._saved_bytes = False, time.monotonic(), self._bytes()

        async def save() -> None:
            await self._objects.save_status(self.name, {
                **self.status(), "moves": [state.store() for state in self._moves], "provision": self._provision,
                "approved": self._approved_plan and self._approved_plan.store()})

        await self._insist(save)

    def _unsized(self) -> int:
        return sum(state.unsized for state in self._moves)

    def _bytes(self) -> int:
        return sum(state.received_bytes for state in self._moves)

    def status(self) -> dict[str, Any]:
        facts = RunFacts(
            now=datetime.now(UTC),
            generation=self._last.generation,
            stage=self._stage,
            started=self._started,
            running_s=time.monotonic() - self._clock_start,
            moves=self._moves,
            running=len(self._running),
            plan=self._plan,
            target=self._target,
            outcome=self._outcome,
            refused=self._refused,
            approved=self._approved,
            blocked=self._blocked,
            groups={group.group_id: name for name, group in self._world().groups.items()},
            ahead=self._slot.holder if self._slot.holder != self.name else "")
        return self._memory.stamp("Reconfiguration", self.name, facts.generation, run_status(facts))


def _only_leaders(moves: list[MoveState]) -> bool:
    """Leaderships move whenever they can, whoever's turn it is."""
    return all(state.move.kind is MoveKind.TRANSFER for state in moves)
