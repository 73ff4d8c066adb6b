"""Reconfigurer: has Reconfigurations carried out, one at a time; those that wait for approval are watched beside it.

Stays out: whose turn it is (`turns`), carrying one out (`reconfiguration_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_wire.tasks import background, cancelled

from .condition_memory import ConditionMemory
from .disruption import Act, Disruption
from .driver import MachineDriver
from .metadata import StoredObject
from .mirror import Mirror
from .model import ClusterSettings
from .node_records import NodeRecords
from .objects import Objects
from .plan import World
from .reconfiguration_run import AskLogBytes, ReconfigurationRun
from .status.reconfiguration import waiting_status
from .turns import Slot, next_in_line, stands_aside, unfinished

FINISHED_KEPT = 10


class Reconfigurer:
    """Call `look` when objects, nodes or records change, while this operator is active."""

    def __init__(
        self,
        driver: MachineDriver,
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
        self._slot = Slot(self._may_act, lambda: poke_later(0))
        self._runs: dict[str, ReconfigurationRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def active(self) -> str:
        """Name of the Reconfiguration whose turn it is, or empty."""
        return self._slot.holder

    def status_of(self, stored: StoredObject) -> dict[str, Any]:
        """Return the status as it is shown: live for those that are looked after, with Queued for those in line."""
        run = self._runs.get(stored.name)
        if run is not None:
            status = run.status()
        else:
            status = dict(stored.status)
            if not status:
                status = self._memory.stamp(
                    "Reconfiguration", stored.name, stored.generation, waiting_status(self.active))
        for own in ("moves", "provision", "approved"):
            status.pop(own, None)
        return status

    def look(self) -> None:
        if self._mirror.cluster is None:
            return
        known = self._known()
        for run in self._runs.values():
            run.wake.set()
        first = next_in_line(known)
        if first is not None and self._slot.take(first.name):
            self._begin(first)
        for stored in unfinished(known):
            if stands_aside(stored):
                self._begin(stored)

    def _known(self) -> list[StoredObject]:
        return [item.value for item in self._mirror.reconfigurations.values()]

    def _may_act(self, name: str) -> bool:
        first = next_in_line(self._known(), approved=name)
        return first is not None and first.name == name

    def _begin(self, stored: StoredObject) -> None:
        """Have one looked after, if it is not yet."""
        name = stored.name
        if name in self._runs:
            return
        run = self._runs[name] = ReconfigurationRun(
            stored, self._driver, self._objects, self._mirror, self._world, self._settings, self._memory,
            self._disruption, self._nodes, self._log_bytes, self._slot)
        task = self._tasks[name] = background(run.run(), f"reconfiguration {name}")
        task.add_done_callback(lambda done: self._ended(name, done))

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
        for task in self._tasks.values():
            task.cancel()

    async def stop(self) -> None:
        await cancelled(*self._tasks.values())

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._runs[name], self._tasks[name]
        if task.cancelled():   # `let_go` or `stop`: nobody here takes the next turn
            if self._slot.holder == name:
                self._slot.holder = ""
        else:
            self._slot.give_back(name)
            self._poke_later(0)
