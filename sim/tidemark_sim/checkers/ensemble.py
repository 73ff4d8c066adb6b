"""LegalLeaderAndEnsemble and ValidMessages: records and messages never name an impossible role.

A: leader in the ensemble, no member twice.  B: swap and contract never target the leader, a new member is new.
C: nobody is told to follow, push to, or truncate itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark_core.base.effects import Send
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.messages import (
    AddFollower,
    Append,
    BecomeLeader,
    Commit,
    Operation,
    Prepare,
    Truncate,
)
from tidemark_core.replication.records import Phase, ShardRecord, Status

from ..trace import Violation
from .history import History

if TYPE_CHECKING:
    from ..node import Node
    from ..operators import Operator
    from ..world import World

RULE = "LegalLeaderAndEnsemble"


class LegalLeaderAndEnsemble:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self._writers: dict[ShardId, str] = {}

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        _legal(after, "the stored record")
        self._count(shard, before, after)

    def operator_stepped(self, operator: Operator) -> None:
        assert operator.core is not None
        for coordinator in operator.core.shards.values():
            if coordinator.record is not None:
                _legal(coordinator.record, f"the record of {operator.name}")

    def operator_sends(self, operator: Operator, send: Send) -> None:
        message, to = send.message, send.to
        if isinstance(message, AddFollower) and message.follower == to:
            raise Violation("ValidMessages", f"{to} is told to follow itself")
        if isinstance(message, Prepare | Commit):
            if message.old == to:
                raise Violation("ValidMessages", f"O36: {to} is told to remove itself")
            if message.new == to:
                raise Violation("ValidMessages", f"the leader {to} is told to add itself")
        if isinstance(message, BecomeLeader) and to not in message.ensemble:
            raise Violation("ValidMessages", f"{to} is to lead an ensemble it is not in")

    def node_sends(self, node: Node, send: Send) -> None:
        if send.to == node.member and isinstance(send.message, Append | Truncate):
            raise Violation("ValidMessages", f"{node.name} sends {type(send.message).__name__} to itself")

    def _count(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        """Count what the summary shows; a change is resumed when another process finishes what one began."""
        count = self.world.trace.count
        if after.status is Status.STEADY and before.status is Status.ELECTION:
            count("elections")
        was, now = before.change, after.change
        if now is not None and was is None:
            self._writers[shard] = _process(after)
        if was is None or now is not None:
            return
        name = "copies_change" if was.operation is Operation.COPIES else was.operation.lower()
        match was.operation:
            case Operation.CONTRACT:
                holds = was.old not in after.ensemble
            case Operation.COPIES:
                holds = was.copies == after.copies
            case _:
                holds = was.new in after.ensemble
        done = was.phase is Phase.COMMIT and holds
        count(f"{name}s_{'committed' if done else 'aborted'}")
        if self._writers.get(shard) != _process(after):
            count(f"{name}s_resumed")


def _process(record: ShardRecord) -> str:
    """Return the operator process inside a record's attempt name."""
    return record.writer.split("#")[0]


def _legal(record: ShardRecord, where: str) -> None:
    if record.leader is not None and record.leader not in record.ensemble:
        raise Violation(RULE, f"{where} names {record.leader} as leader of {record.ensemble}")
    if len({member.node for member in record.ensemble}) != len(record.ensemble):
        raise Violation(RULE, f"{where} holds a node twice: {record.ensemble}")
    change = record.change
    if change is None:
        return
    if record.leader is not None and record.leader in (change.old, change.new):
        raise Violation(RULE, f"{where} changes its leader {record.leader} by {change.operation}")
    if change.new is not None and change.new in record.ensemble and change.new != change.old:
        raise Violation(RULE, f"{where} adds {change.new}, which it has")
    if change.old is not None and change.old not in record.ensemble:
        raise Violation(RULE, f"{where} removes {change.old}, which it lacks")
