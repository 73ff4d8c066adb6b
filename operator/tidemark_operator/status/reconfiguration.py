"""The status of a Reconfiguration: its stage, plan, progress, moves and conditions, from how far it is.

Pure.
Stays out: carrying it out (`reconfiguration_run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidemark_core.base.ids import group_of, index_of
from tidemark_core.base.refusals import Reason

from ..condition_memory import TIME, Condition, some
from ..model import shard_name
from ..moves import MoveState
from ..placement import PlanRefusal
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from .standing import Standing

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
class RunFacts:
    """How far a Reconfiguration is; `running_s` is for how long this operator carries it out, `groups` names ids.

    `ahead` is the one that acts, if it is another.
    """

    now: datetime
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


def run_status(run: RunFacts) -> dict[str, Any]:
    """Return the status of an act that this operator looks after."""
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
        "conditions": _conditions(run, done, total),
    }
    if run.plan is not None:
        status["plan"] = {
            "moves": total, "hash": run.plan.hash, "metadataRevision": run.plan.revision, **_sizes(run)}
    if run.target:
        status["targetNode"] = run.target
    if run.outcome is not None:
        status["completionTime"] = f"{run.now:{TIME}}"
    elif not _is_stalled(status["conditions"]) and (left_s := _left_s(run, percent)) is not None:
        eta = run.now + timedelta(seconds=left_s)
        status["progress"]["estimatedCompletionTime"] = f"{eta:{TIME}}"
    return status


def waiting_status(ahead: str) -> dict[str, Any]:
    """Return the status of an act that nothing was done for yet; `ahead` is the one that acts, if any."""
    stage = R.QUEUED if ahead else R.PLANNING
    conditions: list[Condition] = [
        (T.VALIDATED, None, stage, ""),
        (T.APPROVED, None, stage, ""),
        (T.SUCCEEDED, None, stage, f"{ahead} runs" if ahead else ""),
        (T.RECONCILING, True, stage, ""),
        (T.STALLED, False, R.PROGRESSING, ""),
    ]
    return {"stage": str(stage), "conditions": conditions}


def with_refusal(status: Mapping[str, Any], standing: Standing, now: str) -> dict[str, Any]:
    """Return the stamped status of an act whose object asks for something else now, which is refused.

    The act goes on as it was accepted; one that is over has nothing left to refuse.
    """
    if not standing.refused or status.get("stage") == "Finished":
        return dict(status)
    stalled = {
        "status": "True", "reason": str(R.INVALID_SPEC), "message": standing.refused,
        "lastTransitionTime": standing.since or now}
    return {**status, "conditions": [
        {**each, **stalled} if each["type"] == T.STALLED else each for each in status["conditions"]]}


def _is_stalled(conditions: list[Condition]) -> bool:
    return any(type_ == T.STALLED and is_true for type_, is_true, *_ in conditions)


def _left_s(run: RunFacts, percent: int) -> float | None:
    """Return the seconds that are left at the rate so far: of bytes where logs are copied, else of moves.

    None where that is not known: nothing was copied yet, or no node says how much there is.
    """
    if any(state.unsized for state in run.moves):
        return None
    whole = sum(state.total_bytes or 0 for state in run.moves)
    moved = sum(state.received_bytes for state in run.moves)
    if whole:
        return run.running_s * max(0, whole - moved) / moved if moved else None
    return run.running_s * (100 - percent) / percent if 0 < percent < 100 else None


def _sizes(run: RunFacts) -> dict[str, Any]:
    """Return what the moves copy, or the warning that nobody knows: a part of it would pass for the whole."""
    assert run.plan is not None
    unknown = [
        shard_name(_group(run, state), index_of(state.move.shard)) for state in run.moves if state.unsized]
    if unknown:
        unsaid = f"bytes: not known; no node says how much it holds of {some(unknown)}"
        return {"warnings": [*run.plan.warnings, unsaid]}
    whole = sum(state.total_bytes or 0 for state in run.moves)
    return {"bytes": str(whole), "warnings": list(run.plan.warnings)}


def _group(run: RunFacts, state: MoveState) -> str:
    number = group_of(state.move.shard)
    return run.groups.get(number, f"group-{number}")


def _show(run: RunFacts, state: str) -> list[dict[str, Any]]:
    return [
        item.show(_group(run, item)) for item in run.moves if item.state == state
    ][:SHOWN_MOVES_MAX]


def _conditions(run: RunFacts, done: int, total: int) -> list[Condition]:
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
