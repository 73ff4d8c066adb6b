"""The core's own whole-state invariants, looked at after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.ids import ShardId
from tidemark_core.replication.invariants import check_coordinator, check_leader, check_record, check_replica
from tidemark_core.replication.records import ShardRecord

from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..operators import Operator
    from ..world import World


class CoreInvariants:
    def __init__(self, world: World, history: History) -> None:
        pass

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for held in node.core.log.shards.values():
            check_replica(held.replica)
            if held.leader is not None:
                check_leader(held.leader)

    def operator_stepped(self, operator: Operator) -> None:
        assert operator.core is not None
        for coordinator in operator.core.shards.values():
            check_coordinator(coordinator)

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        check_record(after)
