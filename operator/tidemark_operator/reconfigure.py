"""Reconfigurer: whose turn it is among the Reconfigurations: one at a time, in the order of creation.

Stays out: carrying one out (`reconfiguration_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_wire.tasks import background, cancelled

from .condition_memory import Condition, ConditionMemory
from .disruption import Act, Disruption
from .driver import CoordinatorDriver
from .metadata import StoredObject
from .mirror import Mirror
from .model import ClusterSettings
from .node_records import NodeRecords
from .objects import Objects
from .plan import World
from .reconfiguration_run import AskLogBytes, ReconfigurationRun
from .resources.conditions import ConditionReason as R
from .resources.conditions import ConditionType as T

FINISHED_KEPT = 10


class Reconfigurer:
    """Call `look` when objects, nodes or records change, while this operator is active."""

    def __init__(
        self,
        driver: CoordinatorDriver,
        objects: Objects,
        mirror: Mirror,
        world: Callable[[], World],
        settings: Callable[[], ClusterSettings],
        memory: ConditionMemory,
        disruption: Disruption,
        nodes: NodeRecords | None,
        poke_later: Callable[[float], None],
        log_bytes: AskLogBytes,
    ) -> None:
        """`nodes` is None where nobody makes or removes any."""
        self._driver = driver
        self._objects = objects
        self._mirror = mirror
        self._world = world
        self._settings = settings
        self._memory = memory
        self._disruption = disruption
        self._nodes = nodes
        self._poke_later = poke_later
        self._log_bytes = log_bytes
        self._run: ReconfigurationRun | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> str:
        """Name of the Reconfiguration that runs, or empty."""
        return self._run.name if self._run is not None else ""

    def status_of(self, stored: StoredObject) -> dict[str, Any]:
        """Return the status as it is shown: live for the one that runs, with Queued for those behind it."""
        if self._run is not None and self._run.name == stored.name:
            status = self._run.status()
        else:
            status = dict(stored.status)
            if not status:
                behind = self.active
                stage = R.QUEUED if behind else R.PLANNING
                conditions: list[Condition] = [
                    (T.VALIDATED, None, stage, ""),
                    (T.APPROVED, None, stage, ""),
                    (T.SUCCEEDED, None, stage, f"{behind} runs" if behind else ""),
                    (T.RECONCILING, True, stage, ""),
                    (T.STALLED, False, R.PROGRESSING, ""),
                ]
                status = {
                    "stage": str(stage),
                    "conditions": self._memory.write(
                        "Reconfiguration", stored.name, stored.generation, conditions),
                }
        for own in ("moves", "provision"):
            status.pop(own, None)
        return status

    def look(self) -> None:
        unfinished = sorted(
            (item.value for item in self._mirror.reconfigurations.values()
             if item.value.status.get("stage") != "Finished"),
            key=lambda stored: stored.number,
        )
        if self._run is not None:
            self._run.wake.set()
        elif unfinished and self._mirror.cluster is not None:
            self._run = ReconfigurationRun(
                unfinished[0], self._driver, self._objects, self._mirror, self._world, self._settings,
                self._memory, self._disruption, self._nodes, self._log_bytes)
            self._task = background(self._run.run(), f"reconfiguration {self._run.name}")
            self._task.add_done_callback(self._ended)

    async def remove_old(self) -> None:
        """Delete what finished long ago; the newest are kept anyway.  Raises StoreUnavailable."""
        finished = sorted(
            (item.value for item in self._mirror.reconfigurations.values()
             if item.value.status.get("stage") == "Finished"),
            key=lambda stored: stored.number,
        )
        for stored in finished[:-FINISHED_KEPT]:
            ended = datetime.fromisoformat(stored.status["completionTime"])
            ttl = timedelta(seconds=stored.spec.get("ttlSecondsAfterFinished", 604_800))
            if datetime.now(UTC) - ended > ttl:
                await self._objects.delete("Reconfiguration", stored.name)

    async def end_stale_turn(self) -> None:
        """What does not run here needs no turn: it ended, or its operator did.  Raises StoreUnavailable."""
        hold = self._disruption.hold
        if hold is not None and hold.act is Act.RECONFIGURATION:
            for name in hold.subjects:
                if name != self.active:
                    await self._disruption.end(Act.RECONFIGURATION, name)

    def let_go(self) -> None:
        """End what runs here: another operator, or this one later, goes on from what is stored."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        await cancelled(self._task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._run = None
        self._task = None
        if not task.cancelled():
            self._poke_later(0)
