"""When a Reconfiguration may be done: from bytes and their rate, and nothing while it is stalled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tidemark_core.base.ids import shard_id
from tidemark_operator.moves import MoveState
from tidemark_operator.plan import Move, MoveKind
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.status.reconfiguration import AgreedPlan, RunFacts, run_status

NOW = datetime(2026, 1, 31, tzinfo=UTC)
MIB = 1 << 20


def move(index: int, state: str, total: int | None, received: int, kind: MoveKind = MoveKind.SWAP) -> MoveState:
    made = MoveState(Move(shard_id(1, index), kind, "a", "b"))
    made.state, made.total_bytes, made.received_bytes = state, total, received
    return made


def left_s(*moves: MoveState, blocked: tuple[R, str] | None = None) -> float | None:
    """Return the seconds that the status says are left, after ten seconds of work."""
    status = run_status(RunFacts(
        now=NOW, generation=1, stage="Moving", started="", running_s=10.0, moves=moves, running=1,
        plan=AgreedPlan("hash", 1), target="", outcome=None, refused=None, approved=(True, R.PLAN_ACCEPTED),
        blocked=blocked, groups={1: "orders"}, ahead=""))
    told = status["progress"].get("estimatedCompletionTime")
    return None if told is None else (datetime.fromisoformat(told) - NOW) / timedelta(seconds=1)


def test_bytes_count_and_not_moves():
    """Nine small moves of ten are done, and nearly all bytes are still to be copied."""
    small = [move(index, "Done", MIB, MIB) for index in range(9)]
    assert left_s(*small, move(9, "Running", 300 * MIB, MIB)) == pytest.approx(299, abs=1)


def test_nothing_is_promised_while_it_is_stalled_or_the_bytes_are_not_known():
    half = move(0, "Running", 100 * MIB, 50 * MIB)
    assert left_s(half) == pytest.approx(10, abs=1)
    assert left_s(half, blocked=(R.NODE_UNAVAILABLE, "b is down")) is None
    assert left_s(half, move(1, "Pending", None, 0)) is None
    assert left_s(move(0, "Running", 100 * MIB, 0)) is None


def test_moves_count_where_nothing_is_copied():
    done = move(0, "Done", 0, 0, MoveKind.TRANSFER)
    assert left_s(done, move(1, "Pending", 0, 0, MoveKind.TRANSFER)) == pytest.approx(10, abs=1)
