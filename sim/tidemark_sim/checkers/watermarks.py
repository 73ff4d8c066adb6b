"""Who may confirm how much: a leader what the synchro quorum holds, a follower what a leader confirmed (L3, L9, L13).

The quorum is counted here once more, in copies on disks, with the settings that the leader was told.
Stays out: what is visible below a watermark (`fates`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import Send, Write
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import Append
from tidemark_core.replication.replica import Role
from tidemark_core.shard import Shard

from ..shard_map import needed
from ..trace import Violation
from .confirmed import holds
from .fates import covered_by

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History


class Watermarks:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._led: dict[ShardId, dict[int, int]] = {shard: {} for shard in world.shards}
        self._seen: dict[tuple[str, int, ShardId], int] = {}

    # --- what leaders confirmed, seen before anything of it can reach others --------------------------------

    def node_sends(self, node: Node, send: Send) -> None:
        if send.message.__class__ is Append:
            self._leads(node, send.address.shard)

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        self._leads(node, shard)

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        if node.core is not None and event.shard in node.core.log.shards:
            self._look(node, event.shard, node.core.log.shards[event.shard])

    def _leads(self, node: Node, shard: ShardId) -> None:
        held = node.core.log.shards.get(shard) if node.core is not None else None
        if held is not None and held.leader is not None:
            led, epoch = self._led[shard], held.replica.state.epoch
            if held.replica.confirmed > led.get(epoch, -2):
                led[epoch] = held.replica.confirmed

    # --- judging ------------------------------------------------------------------------------------------

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            self._look(node, shard, held)

    def _look(self, node: Node, shard: ShardId, held: Shard) -> None:
        replica = held.replica
        key = (node.name, node.life, shard)
        seen = self._seen.get(key)
        if replica.confirmed == seen:
            return
        self._seen[key] = replica.confirmed
        if replica.state.role in (Role.SEEDING, Role.DELETED):
            return
        if seen is not None and replica.confirmed < seen and seen_in_place(node, shard):
            raise Violation("L13", f"confirmed of {node.name} went back from {seen} to {replica.confirmed}")
        if held.leader is not None:
            self._leads(node, shard)
            if seen is not None:
                self._quorum(node, shard, held, seen)
            return
        led = max((upto for epoch, upto in self._led[shard].items() if epoch <= replica.state.epoch), default=-1)
        if replica.confirmed > led:
            raise Violation("L9", f"{node.name} has confirmed {replica.confirmed}, its leaders had {led}")

    def _quorum(self, node: Node, shard: ShardId, held: Shard, seen: int) -> None:
        """Every QUORUM entry of this leadership that passed just now is on enough disks."""
        assert held.leader is not None
        image = node.disk.written[shard]
        fresh = image.entries[image.position(seen + 1):]
        opening = max((entry.base for entry in image.entries if entry.kind is Kind.EPOCH_START), default=-1)
        hidden = covered_by(fresh, held.replica.confirmed)
        newest: Entry | None = None
        for entry in fresh:
            if entry.last > held.replica.confirmed:
                break
            if (
                entry.base > opening and entry.kind is Kind.DATA and entry.durability is Durability.QUORUM
                and entry.base not in hidden
            ):
                newest = entry
        if newest is None:
            return
        settings = node.told.get(shard)
        ensemble = held.leader.ensemble
        holders = [
            member for member in ensemble
            if (other := self.world.nodes[member.node]).lost(member, shard)
            or holds(other.disk.durable.get(shard), newest)
        ]
        wanted = needed(settings, len(ensemble))
        if len(holders) < wanted:
            raise Violation(
                "L3", f"{node.name} confirms {newest.id} on {len(holders)} of {len(ensemble)} disks, asked are {wanted}"
            )
        if settings is not None and settings.zones:
            zone_of = dict(settings.zone_of)
            zones = {zone_of[member.node] for member in holders}
            if len(zones) < settings.zones:
                raise Violation("L3", f"{node.name} confirms {newest.id} in {len(zones)} zones of {settings.zones}")


def seen_in_place(node: Node, shard: ShardId) -> bool:
    """Say whether the replica is still the one that was seen: one that is seeded or deleted starts over."""
    image = node.disk.written.get(shard)
    return image is not None and bool(image.entries)
