"""ShardMachine: the coordinators of all shards as the operator's machine of the log plane, and what they know.

Stays out: every decision about epochs, elections and ensembles (`replication.coordinator`), running effects (`driver`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.messages import Diverged

from .driver import now_ms
from .metrics import ElectionWatch


class ShardMachine:
    """The machine of the log plane: its units are shards."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._reports = coordinators.reports
        self.elections = ElectionWatch()
        self.on_reach: Callable[[], None] = lambda: None     # what nodes say of whom they reach has changed

    @property
    def units(self) -> Mapping[ShardId, Coordinator]:
        return self._coordinators.shards

    def step(self, now_ms: int, event: Any) -> list[Any]:
        """Consume one event."""
        before = self._reports.version
        effects = self._coordinators.step(now_ms, event)
        if self._reports.version != before:
            self.on_reach()
        return list(effects)

    def damage(self, shard: ShardId) -> str:
        """Say which damaged entries the election of a shard waits for, empty when it waits for none (K15c)."""
        coordinator = self.units.get(shard)
        return coordinator.damage if coordinator is not None else ""

    def missing(self, shard: ShardId) -> frozenset[Member]:
        """Return the members of a shard's ensemble that hold no replica (N11)."""
        coordinator = self.units.get(shard)
        return frozenset(coordinator.missing) if coordinator is not None else frozenset()

    def unheard(self) -> dict[ShardId, frozenset[str]]:
        """Return the nodes of each shard that its leader does not hear, as leaders say; only shards with some (O45)."""
        found = self._coordinators.unheard(now_ms())
        return {shard: frozenset(member.node for member in members) for shard, members in found.items()}

    def diverged(self) -> Mapping[ShardId, tuple[Diverged, ...]]:
        """Return the members of each shard whose documents its leader finds to differ; only shards with some (U73b)."""
        return self._coordinators.diverged(now_ms())

    def cut(self) -> list[tuple[str, str]]:
        """Return the pairs of nodes of which one lost the other, though both report (O43)."""
        return self._reports.cut(now_ms())

    @property
    def quorum_silence_ms(self) -> int:
        return self._reports.silence_ms

    def set_quorum_silence(self, silence_ms: int) -> None:
        """Hold elections after another time without a majority (O44), in milliseconds."""
        self._reports.silence_ms = silence_ms
