"""ReconfigurationRun: one Reconfiguration under way, from its plan to its end.

The plan and the state of every move are stored before and after each step, so that a restarted operator goes
on where the last one was; a move whose effect is already in force counts as done.  A move that cannot run
now (an election, a node that is down) waits; one that fails five times is given up and the others go on.
Stays out: whose turn it is (`reconfigure`), the steps of one move (`moves` and the coordinator).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_core.base.ids import ShardId, group_of
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.records import CancelChange, ChangeDone, ChangeProgress
from tidemark_wire.tasks import background, cancelled

from .condition_memory import Condition, ConditionMemory, some, timestamp
from .disruption import Act, Disruption
from .driver import CoordinatorDriver
from .etcd import StoreUnavailable
from .metadata import StoredObject
from .mirror import Mirror
from .model import ClusterSettings, out_of_sync, wanted_copies
from .moves import MoveState, run_move
from .objects import Objects
from .plan import MoveKind, PlanRefusal, World, plan_reconfiguration
from .resources.conditions import ConditionReason as R
from .resources.conditions import ConditionType as T

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
SHOWN_MOVES_MAX = 16
UNSAVED_PAUSE_S = 0.5
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


@dataclass(slots=True)
class Outcome:
    """How a Reconfiguration ended."""

    succeeded: bool
    reason: R
    message: str = ""


@dataclass(slots=True)
class _Plan:
    hash: str
    revision: int
    warnings: tuple[str, ...] = ()


class ReconfigurationRun:
    """One Reconfiguration under way."""

    def __init__(
        self, stored: StoredObject, driver: CoordinatorDriver, objects: Objects, mirror: Mirror,
        world: Callable[[], World], settings: Callable[[], ClusterSettings], memory: ConditionMemory,
        disruption: Disruption,
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
        memory.learn("Reconfiguration", stored.name, stored.status.get("conditions", ()))
        self._moves = [MoveState.restore(raw) for raw in stored.status.get("moves", ())]
        plan = stored.status.get("plan")
        self._plan = _Plan(plan["hash"], plan["metadataRevision"], tuple(plan["warnings"])) if plan else None
        self._stage = stored.status.get("stage", "Planning")
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

    @property
    def _stored(self) -> StoredObject | None:
        known = self._mirror.reconfigurations.get(self.name)
        if known is not None:
            self._last = known.value
        return known.value if known is not None else None

    async def run(self) -> None:
        try:
            if await self._agree_on_plan():
                self._stage = "Moving"
                await self._save()
                self._outcome = await self._move()
            self._stage = "Finished"
            await self._save()
            await self._end_turn()
        finally:
            await cancelled(*self._running.values())
        log.info("reconfiguration %s: %s", self.name, self._outcome)

    # --- planning and approval ------------------------------------------------------------------------------

    async def _agree_on_plan(self) -> bool:
        """Plan, and wait for approval where it is required.  False: it ended here."""
        if self._moves and self._stage not in ("Planning", "AwaitingApproval", "Queued"):
            automatic = self._last.spec.get("approval", "Automatic") == "Automatic"
            self._approved = (True, R.AUTOMATIC_APPROVAL if automatic else R.APPROVED_BY_USER)
            return True  # a former operator had begun
        await self._save()
        while True:
            stored = self._stored
            if stored is None or self._over(stored) is not None:
                self._outcome = self._over(stored) if stored else Outcome(False, R.CANCELED, "it was deleted")
                return False
            before, refused = self._plan.hash if self._plan else None, self._refused
            if not self._make_plan(stored):
                if self._outcome is not None:
                    return False
                if refused != self._refused:
                    await self._save()
                await self._wait(5.0 if self._plan is not None else 0.5)
                continue
            assert self._plan is not None
            if stored.spec.get("approval", "Automatic") == "Automatic":
                self._approved = (True, R.AUTOMATIC_APPROVAL)
                return True
            approved = stored.spec.get("approvedPlan")
            if approved == self._plan.hash:
                self._approved = (True, R.APPROVED_BY_USER)
                return True
            self._approved = (False, R.PLAN_CHANGED if approved else R.WAITING_FOR_APPROVAL)
            if before != self._plan.hash or refused is not None or self._stage != "AwaitingApproval":
                self._stage = "AwaitingApproval"
                await self._save()
            await self._wait(5.0)

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
        warnings = plan.warnings
        if stored.spec["type"] == "NodeSwap" and stored.spec["nodeSwap"].get("removeSource") == "Delete":
            warnings = (*warnings, "the emptied node keeps running: a local cluster does not remove nodes")
        if (stored.spec.get("throttle") or {}).get("bytesPerSecondPerNode"):
            warnings = (*warnings, "throttle.bytesPerSecondPerNode: nodes keep the rate of the cluster's own throttle")
        self._moves = [MoveState(move) for move in plan.moves]
        self._plan = _Plan(plan.hash, self._mirror.revision, warnings)
        return True

    def _over(self, stored: StoredObject) -> Outcome | None:
        if stored.spec.get("cancel"):
            return Outcome(False, R.CANCELED, "spec.cancel was set")
        deadline_s = stored.spec.get("activeDeadlineSeconds", 86_400)
        if datetime.now(UTC) - datetime.fromisoformat(self._started) > timedelta(seconds=deadline_s):
            return Outcome(False, R.DEADLINE_EXCEEDED, f"not finished after {deadline_s} seconds")
        return None

    # --- moving ---------------------------------------------------------------------------------------------

    async def _move(self) -> Outcome:
        if not self._moves:
            return Outcome(True, R.NOTHING_TO_DO, "every shard in scope is as asked already")
        while True:
            stored = self._stored
            ended = self._over(stored) if stored else Outcome(False, R.CANCELED, "it was deleted")
            if ended is not None:
                await self._abort()
                return ended
            assert stored is not None
            world = self._world()
            for state in self._moves:
                if state.state == "Pending" and state.move.done(world.shards.get(state.move.shard)):
                    state.state, state.step, state.received_bytes = "Done", "Done", state.total_bytes
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
            if stage == "Moving" and self._blocked is None and await self._has_turn(open_moves):
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
            shard = world.shards.get(state.move.shard)
            if shard is not None and set(out_of_sync(shard, world.nodes)) - {state.move.from_node}:
                behind.append(shard.name)
        return (R.UNDER_REPLICATED, f"{some(behind)} lack copies") if behind else None

    async def _has_turn(self, open_moves: list[MoveState]) -> bool:
        """Moves of copies and restarts of nodes exclude each other; leaderships move whenever they can."""
        hold = self._disruption.hold
        if (hold is not None and hold.has(Act.RECONFIGURATION, self.name)) or all(
                state.move.kind is MoveKind.TRANSFER for state in open_moves):
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
                task.add_done_callback(lambda _task, shard=shard: self._one_ended(shard))

    def _one_ended(self, shard: ShardId) -> None:
        self._running.pop(shard, None)
        self.wake.set()

    async def _run_one(self, state: MoveState) -> None:
        def progress(news: ChangeProgress) -> None:
            state.step = _STEPS[news.stage]
            if news.total_bytes:
                state.received_bytes, state.total_bytes = news.received_bytes, news.total_bytes

        answer = await run_move(self._driver, state.move, self._world, progress)
        if isinstance(answer, ChangeDone):
            state.state, state.step, state.message = "Done", "Done", ""
            state.received_bytes = state.total_bytes
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
                await self._driver.change(shard, lambda request, shard=shard: CancelChange(shard, request))
            await self._wait(0.25)

    async def _wait(self, seconds: float) -> None:
        self.wake.clear()
        try:
            await asyncio.wait_for(self.wake.wait(), seconds)
        except TimeoutError:
            return

    # --- status ---------------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Store the status; waits for as long as etcd is away, for nothing may go on unrecorded."""
        self._unsaved, self._saved_at, self._saved_bytes = False, time.monotonic(), self._bytes()
        while True:
            try:
                await self._objects.save_status(
                    self.name, {**self.status(), "moves": [state.store() for state in self._moves]})
                return
            except StoreUnavailable as error:
                log.warning("reconfiguration %s waits for etcd: %s", self.name, error)
                await asyncio.sleep(UNSAVED_PAUSE_S)

    def _bytes(self) -> int:
        return sum(state.received_bytes for state in self._moves)

    def status(self) -> dict[str, Any]:
        states = [state.state for state in self._moves]
        done, total = states.count("Done"), len(states)
        parts = sum(
            1.0 if state.state == "Done" else state.received_bytes / state.total_bytes
            for state in self._moves if state.state == "Done" or state.total_bytes
        )
        groups = {group.group_id: name for name, group in self._world().groups.items()}
        percent = int(100 * parts / total) if total else 100 if self._outcome else 0
        status: dict[str, Any] = {
            "observedGeneration": self._last.generation,
            "stage": self._stage,
            "startTime": self._started,
            "progress": {
                "completed": done, "inProgress": len(self._running), "failed": states.count("Failed"),
                "bytesMoved": str(self._bytes()),
                "percent": percent, "summary": f"{done}/{total}",
            },
            "activeMoves": self._show("Running", groups),
            "failedMoves": self._show("Failed", groups),
            "conditions": self._memory.write(
                "Reconfiguration", self.name, self._last.generation, self._conditions(done, total)),
        }
        if self._plan is not None:
            status["plan"] = {
                "moves": total, "hash": self._plan.hash, "metadataRevision": self._plan.revision,
                "warnings": list(self._plan.warnings),
            }
        if self._outcome is not None:
            status["completionTime"] = timestamp()
        elif 0 < percent < 100:
            left_s = (time.monotonic() - self._clock_start) * (100 - percent) / percent
            eta = datetime.now(UTC) + timedelta(seconds=left_s)
            status["progress"]["estimatedCompletionTime"] = eta.strftime("%Y-%m-%dT%H:%M:%SZ")
        return status

    def _show(self, state: str, groups: Mapping[int, str]) -> list[dict[str, Any]]:
        return [
            item.show(groups.get(number := group_of(item.move.shard), f"group-{number}"))
            for item in self._moves if item.state == state
        ][:SHOWN_MOVES_MAX]

    def _conditions(self, done: int, total: int) -> list[Condition]:
        if self._refused is not None:
            validated: Condition = (T.VALIDATED, False, self._refused.reason, self._refused.message)
        elif self._plan is None:
            validated = (T.VALIDATED, None, R.PLANNING, "")
        else:
            validated = (T.VALIDATED, True, R.PLAN_ACCEPTED, f"{total} moves.")
        succeeded: Condition = (T.SUCCEEDED, None, R(self._stage), f"{done} of {total} moves are done.")
        if self._outcome is not None:
            succeeded = (T.SUCCEEDED, self._outcome.succeeded, self._outcome.reason, self._outcome.message)
        waiting = [state for state in self._moves if state.state == "Pending" and state.message]
        stalled: Condition = (T.STALLED, False, R.PROGRESSING if self._outcome is None else R.FINISHED, "")
        if self._outcome is None and self._blocked is not None:
            stalled = (T.STALLED, True, *self._blocked)
        elif self._outcome is None and waiting and not self._running:
            unavailable = any(str(Reason.NODE_UNAVAILABLE) in state.message for state in waiting)
            stalled = (T.STALLED, True, R.NODE_UNAVAILABLE if unavailable else R.MOVES_FAILING, waiting[0].message)
        return [
            validated,
            (T.APPROVED, self._approved[0], self._approved[1], ""),
            succeeded,
            (T.RECONCILING, self._outcome is None, R(self._stage), ""),
            stalled,
        ]
