"""What is shown of a Reconfiguration: its stage, plan, progress, moves and conditions, out of how far it is.

Pure but for the clock and the memory of when a condition last changed.
Stays out: carrying it out (`reconfiguration_run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_core.base.ids import group_of, index_of
from tidemark_core.base.refusals import Reason

from .condition_memory import Condition, ConditionMemory, some, timestamp
from .model import shard_name
from .moves import MoveState
from .placement import PlanRefusal
from .resources.conditions import ConditionReason as R
from .resources.conditions import ConditionType as T

SHOWN_MOVES_MAX = 16


@dataclass(slots=True)
class Outcome:
    """How a Reconfiguration ended."""

    succeeded: bool
    reason: R
    message: str = ""


@dataclass(slots=True)
class AgreedPlan:
    """The plan that is, or may be, carried out."""

    hash: str
    revision: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunView:
    """How far a Reconfiguration is; `running_s` is for how long this operator carries it out, `groups` names ids.

    `ahead` is the one that acts, if it is another.
    """

    generation: int
    stage: str
    started: str
    running_s: float
    moves: Sequence[MoveState]
    running: int
    plan: AgreedPlan | None
    target: str
    outcome: Outcome | None
    refused: PlanRefusal | None
    approved: tuple[bool | None, R]
    blocked: tuple[R, str] | None
    groups: Mapping[int, str]
    ahead: str


def run_status(name: str, run: RunView, memory: ConditionMemory) -> dict[str, Any]:
    states = [state.state for state in run.moves]
    done, total = states.count("Done"), len(states)
    parts = sum(
        1.0 if state.state == "Done" else state.received_bytes / (state.total_bytes or 1)
        for state in run.moves if state.state == "Done" or state.total_bytes
    )
    percent = int(100 * parts / total) if total else 100 if run.outcome else 0
    status: dict[str, Any] = {
        "observedGeneration": run.generation,
        "stage": run.stage,
        "startTime": run.started,
        "progress": {
            "completed": done, "inProgress": run.running, "failed": states.count("Failed"),
            "bytesMoved": str(sum(state.received_bytes for state in run.moves)),
            "percent": percent, "summary": f"{done}/{total}",
        },
        "activeMoves": _show(run, "Running"),
        "failedMoves": _show(run, "Failed"),
        "conditions": memory.write("Reconfiguration", name, run.generation, _conditions(run, done, total)),
    }
    if run.plan is not None:
        status["plan"] = {
            "moves": total, "hash": run.plan.hash, "metadataRevision": run.plan.revision, **_sizes(run)}
    if run.target:
        status["targetNode"] = run.target
    if run.outcome is not None:
        status["completionTime"] = timestamp()
    elif 0 < percent < 100:
        eta = datetime.now(UTC) + timedelta(seconds=run.running_s * (100 - percent) / percent)
        status["progress"]["estimatedCompletionTime"] = eta.strftime("%Y-%m-%dT%H:%M:%SZ")
    return status


def _sizes(run: RunView) -> dict[str, Any]:
    """Return what the moves copy, or the warning that nobody knows: a part of it would pass for the whole."""
    assert run.plan is not None
    unknown = [
        shard_name(_group(run, state), index_of(state.move.shard)) for state in run.moves if state.unsized]
    if unknown:
        unsaid = f"bytes: not known; no node says how much it holds of {some(unknown)}"
        return {"warnings": [*run.plan.warnings, unsaid]}
    whole = sum(state.total_bytes or 0 for state in run.moves)
    return {"bytes": str(whole), "warnings": list(run.plan.warnings)}


def _group(run: RunView, state: MoveState) -> str:
    number = group_of(state.move.shard)
    return run.groups.get(number, f"group-{number}")


def _show(run: RunView, state: str) -> list[dict[str, Any]]:
    return [
        item.show(_group(run, item)) for item in run.moves if item.state == state
    ][:SHOWN_MOVES_MAX]


def _conditions(run: RunView, done: int, total: int) -> list[Condition]:
    if run.refused is not None:
        validated: Condition = (T.VALIDATED, False, run.refused.reason, run.refused.message)
    elif run.plan is None:
        validated = (T.VALIDATED, None, R.PLANNING, "")
    else:
        validated = (T.VALIDATED, True, R.PLAN_ACCEPTED, f"{total} moves.")
    succeeded: Condition = (T.SUCCEEDED, None, R(run.stage), f"{done} of {total} moves are done.")
    if run.stage == R.QUEUED and run.ahead:
        succeeded = (T.SUCCEEDED, None, R.QUEUED, f"{run.ahead} runs")
    if run.outcome is not None:
        succeeded = (T.SUCCEEDED, run.outcome.succeeded, run.outcome.reason, run.outcome.message)
    waiting = [state for state in run.moves if state.state == "Pending" and state.message]
    stalled: Condition = (T.STALLED, False, R.PROGRESSING if run.outcome is None else R.FINISHED, "")
    if run.outcome is None and run.blocked is not None:
        stalled = (T.STALLED, True, *run.blocked)
    elif run.outcome is None and waiting and not run.running:
        unavailable = any(str(Reason.NODE_UNAVAILABLE) in state.message for state in waiting)
        stalled = (T.STALLED, True, R.NODE_UNAVAILABLE if unavailable else R.MOVES_FAILING, waiting[0].message)
    return [
        validated,
        (T.APPROVED, run.approved[0], run.approved[1], ""),
        succeeded,
        (T.RECONCILING, run.outcome is None, R(run.stage), ""),
        stalled,
    ]
