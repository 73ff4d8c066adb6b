"""A loss is accepted only where most disks are lost, and the survivor holds all that is left (K14e, N14).

All other promises go on to judge the entries that it holds: only the rest is forgotten.
Stays out: when a loss is accepted, and what is lost (`losing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.quorum import has_majority
from tidemark_core.replication.ensembles import ensembles_of
from tidemark_core.replication.records import ShardRecord

from ..trace import Violation
from .confirmed import holds
from .history import History

if TYPE_CHECKING:
    from ..world import World

RULE = "K14e"


class Survivors:
    def __init__(self, world: World, history: History) -> None:
        self.world = world

    def loss_accepted(self, shard: ShardId, before: ShardRecord, source: Member, lost: Sequence[Entry]) -> None:
        ensembles = ensembles_of(before)
        left = [member for member in ensembles.fencing if self.world.nodes[member.node].member == member]
        if has_majority(ensembles.fencing, left) or has_majority(ensembles.final, left):
            raise Violation(RULE, f"{source} begins alone, {len(left)} of {len(ensembles.fencing)} have their disks")
        for member in left:
            image = self.world.nodes[member.node].disk.image(shard)
            given_up = next((entry for entry in lost if image.entries and holds(image, entry)), None)
            if given_up is not None:
                raise Violation(RULE, f"{source} begins alone without {given_up.id}, which {member} holds")
