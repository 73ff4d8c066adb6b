"""The latest offset is linearizable: it covers whatever any client had been shown before the question (O46).

Stays out: what a caller may read up to there (`reads`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Durability
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.clients import LatestRequest
from tidemark_core.replication.messages import Appended, Latest, ReadGrant

from ..trace import Violation

if TYPE_CHECKING:
    from ..node import Node
    from ..world import World
    from .history import History


class LatestIsLinearizable:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._shown: dict[ShardId, int] = dict.fromkeys(world.shards, -1)
        self._floors: dict[int, int] = {}   # by question: what had been shown when the client asked it

    def latest_asked(self, event: LatestRequest) -> None:
        """A client asks; the question is not under way yet."""
        self._floors[event.request] = self._shown[event.shard]

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        """An answer leaves: what it shows is known from now on, though its client may never get it."""
        match value:
            case Latest():
                floor = self._floors[event.request]   # a question that the network repeats is answered twice
                if value.offset < floor:
                    raise Violation(
                        "O46", f"{node.name} says that the log ends at {value.offset}, {floor} was shown before"
                    )
                end = value.offset
            case Appended() if value.durability != Durability.LOCAL:
                end = value.base + value.count - 1
            case ReadGrant():
                end = value.released
            case _:
                return
        self._shown[event.shard] = max(self._shown[event.shard], end)
