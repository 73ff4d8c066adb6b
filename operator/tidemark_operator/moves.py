"""Moves: one protocol operation on one shard each, how it is run, and how far it is.

Stays out: which moves there are (`plan`), their order and number (`reconfiguration_run`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.ids import LINEAGE_BYTES, ShardId, index_of, of_shard
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, RecoverShard, StartChange, StartTransfer

from .copying import copies
from .driver import MachineDriver, ProgressListener
from .plan import Move, MoveKind, World, next_leader

_OPERATIONS = {
    MoveKind.SWAP: Operation.SWAP, MoveKind.EXPAND: Operation.EXPAND, MoveKind.CONTRACT: Operation.CONTRACT,
}


async def run_move(
    driver: MachineDriver, move: Move, world: Callable[[], World], progress: ProgressListener | None = None,
    *, transfer: bool = True,
) -> ChangeDone | Refused:
    """Run one move on one shard.  Where the leader is to leave, leadership is handed over first."""
    now = world()
    shard = now.shards.get(move.shard)
    if shard is None:
        return Refused(Reason.UNKNOWN_SHARD, f"shard {move.shard:#x} does not exist")
    if move.kind is MoveKind.TRANSFER:
        assert move.to_node is not None
        to_node = move.to_node
        return await driver.change(
            of_shard(move.shard), lambda request: StartTransfer(move.shard, request, to_node), progress)
    if move.kind is MoveKind.RECOVER:
        assert move.to_node is not None
        source, accept_loss = move.to_node, move.abandon
        lineage = secrets.token_bytes(LINEAGE_BYTES)
        return await driver.change(
            of_shard(move.shard),
            lambda request: RecoverShard(move.shard, request, source, lineage, accept_loss), progress)
    leaves = move.kind in (MoveKind.SWAP, MoveKind.CONTRACT) and shard.leader == move.from_node
    if leaves and transfer:
        to = next_leader(shard, now, now.leaders(), avoid=(move.from_node or "",))
        if to is None:
            return Refused(Reason.NODE_UNAVAILABLE, f"no other member of {shard.name} can lead it now")
        answer = await driver.change(
            of_shard(move.shard), lambda request: StartTransfer(move.shard, request, to), progress)
        if isinstance(answer, Refused):
            return answer
    return await driver.change(
        of_shard(move.shard),
        lambda request: StartChange(
            move.shard, request, _OPERATIONS[move.kind], move.from_node, move.to_node, move.force,
            abandon=move.abandon),
        progress,
    )


@dataclass(slots=True)
class MoveState:
    """One move and how far it is."""

    move: Move
    state: str = "Pending"  # Pending, Running, Done, Failed
    attempts: int = 0
    step: str = "Pending"
    message: str = ""
    received_bytes: int = 0
    total_bytes: int | None = None   # None: not known yet
    started: str = ""
    not_before: float = 0.0

    @property
    def unsized(self) -> bool:
        """Say whether it copies nobody knows how much."""
        return self.total_bytes is None and copies(self.move)

    def end(self) -> None:
        """It is in force: all that was to be copied was."""
        self.state, self.step, self.message = "Done", "Done", ""
        self.received_bytes = self.total_bytes = self.total_bytes or self.received_bytes

    def store(self) -> dict[str, Any]:
        move = self.move
        return {
            "shard": f"{move.shard:x}", "kind": str(move.kind), "from": move.from_node, "to": move.to_node,
            "force": move.force, "abandon": move.abandon, "state": "Pending" if self.state == "Running" else self.state,
            "attempts": self.attempts, "message": self.message, "bytes": self.total_bytes or 0,
            "sized": self.total_bytes is not None, "received": self.received_bytes,
        }

    @classmethod
    def restore(cls, raw: Mapping[str, Any]) -> MoveState:
        move = Move(
            ShardId(int(raw["shard"], 16)), MoveKind(raw["kind"]), raw["from"], raw["to"], raw["force"],
            raw.get("abandon", False))
        return cls(
            move, raw["state"], raw["attempts"], message=raw["message"],
            total_bytes=raw["bytes"] if raw.get("sized", raw["bytes"] > 0) else None,
            received_bytes=raw.get("received", 0))

    def show(self, group: str) -> dict[str, Any]:
        shown = {
            "kind": "LogGroup", "name": group, "shard": index_of(self.move.shard),
            "operation": str(self.move.kind), "from": self.move.from_node, "to": self.move.to_node,
            "step": "Failed" if self.state == "Failed" else self.step, "attempt": self.attempts + 1,
            "startTime": self.started, "message": self.message,
        }
        return {field: value for field, value in shown.items() if value not in (None, "")}
