"""All coordinators of one operator process: who hears what, which nodes are up.

Stays out: what a coordinator decides.
"""

from __future__ import annotations

from typing import Any

from ..base.effects import Received, Reply
from ..base.ids import Member, ShardId
from ..base.metadata import MetadataLoaded, NodeDown, NodeUp, SetActive
from ..base.refusals import Reason, Refused
from .coordinator import Coordinator, CoordinatorEffect
from .ensembles import concerned
from .messages import Diverged, Reach
from .reach import Reports
from .records import CancelChange, CoordinatorSettings, RecoverShard, ShardRecord, StartChange, StartTransfer

REQUESTS = (CancelChange, RecoverShard, StartChange, StartTransfer)
"""The events that name a shard; all others at a shard have its address."""


class Coordinators:
    """All shards of a cluster in one operator process."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.shards: dict[ShardId, Coordinator] = {}
        self.nodes: dict[str, Member | None] = {}
        self.reports = Reports(settings.quorum_silence_ms)
        self._boots: dict[str, str] = {}       # of the process that was seen last
        self.active = True
        self.leased = False                    # this operator holds the operators' lease

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        """Consume one event; node news goes to the shards it concerns."""
        match event:
            case NodeUp():
                self.nodes[event.member.node] = event.member
                if self._boots.get(event.member.node) != event.boot:
                    self.reports.forget(event.member.node)
                self._boots[event.member.node] = event.boot
                return self._tell(now_ms, event.member.node, event)
            case NodeDown():
                self.nodes[event.node] = None
                self.reports.forget(event.node)
                return self._tell(now_ms, event.node, event)
            case SetActive():
                return self._set_active(now_ms, event.active)
            case Received() if self._is_of_another_boot(event):
                return []
            case Received(sender=Member() as sender, message=Reach() as reach):
                return self._on_reach(now_ms, sender, reach)
        shard = event.shard if isinstance(event, REQUESTS) else event.address.shard
        coordinator = self.shards.get(shard)
        if coordinator is None:
            if not isinstance(event, MetadataLoaded):
                request = getattr(event, "request", None)
                return [] if request is None else [
                    Reply(request, Refused(Reason.UNKNOWN_SHARD, "no such shard in the metadata store"))
                ]
            coordinator = Coordinator(shard, self.settings, self.nodes, self.reports)
            coordinator.active, coordinator.leased = self.active, self.leased
            self.shards[shard] = coordinator
        effects = coordinator.step(now_ms, event)
        if isinstance(event, MetadataLoaded) and event.record is None:
            self.shards.pop(shard, None)
        return effects

    def unheard(self, now_ms: int) -> dict[ShardId, tuple[Member, ...]]:
        """Return the members of each shard that its leader does not hear, as the leader says (O43, O45)."""
        found: dict[ShardId, tuple[Member, ...]] = {}
        for member, said in self.reports.unheard(now_ms):
            record = self.shards[said.shard].record if said.shard in self.shards else None
            if said.members and record is not None and (record.leader, record.epoch) == (member, said.epoch):
                found[said.shard] = said.members
        return found

    def diverged(self, now_ms: int) -> dict[ShardId, tuple[Diverged, ...]]:
        """Return the members of each shard whose documents its leader finds to differ from its own (U73b)."""
        found: dict[ShardId, tuple[Diverged, ...]] = {}
        for member, said in self.reports.diverged(now_ms):
            record = self.shards[said.shard].record if said.shard in self.shards else None
            if record is not None and (record.leader, record.epoch) == (member, said.epoch):
                found[said.shard] = (*found.get(said.shard, ()), said)
        return found

    def _on_reach(self, now_ms: int, sender: Member, m: Reach) -> list[CoordinatorEffect]:
        """Rule O43: take a node's report; shards whose leaders hear everybody cost nothing."""
        if self.nodes.get(sender.node) != sender:
            return []
        self.reports.take(now_ms, sender, m)
        effects: list[CoordinatorEffect] = []
        for found in m.unheard:
            if (coordinator := self.shards.get(found.shard)) is not None:
                effects += coordinator.on_unheard(now_ms, sender, found)
        return effects

    def _is_of_another_boot(self, event: Received) -> bool:
        """Say whether the answer is of another process than the one that was seen last (O42)."""
        seen = self._boots.get(event.sender.node) if isinstance(event.sender, Member) else None
        return bool(seen and event.boot) and event.boot != seen

    def _tell(self, now_ms: int, node: str, event: NodeUp | NodeDown) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for coordinator in self.shards.values():
            if (record := coordinator.record) is not None and _concerns(record, node):
                effects += coordinator.step(now_ms, event)
        return effects

    def _set_active(self, now_ms: int, active: bool) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        became = active and not self.active
        self.active = self.leased = active
        for coordinator in self.shards.values():
            coordinator.active = coordinator.leased = active
            if became:
                effects += coordinator.resume(now_ms)
        return effects


def _concerns(record: ShardRecord, node: str) -> bool:
    return any(member.node == node for member in concerned(record))
