"""Approval: whether a plan may be carried out, judged by the plan that somebody approved.

An approval names the hash of the plan that was read, so that another one is not approved by accident.  A plan that
only shrank since, because some of its moves are needed no more, keeps it: every move that is left was approved.
Pure.  Stays out: which moves there are (`plan`), when they are worked out anew (`reconfiguration_run`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from .plan import Move
from .resources.conditions import ConditionReason as R


@dataclass(frozen=True, slots=True)
class ApprovedPlan:
    """The plan that `spec.approvedPlan` names, with the keys of its moves."""

    hash: str
    moves: frozenset[str]

    def store(self) -> dict[str, Any]:
        return {"hash": self.hash, "moves": sorted(self.moves)}

    @classmethod
    def restore(cls, raw: Mapping[str, Any]) -> Self:
        return cls(raw["hash"], frozenset(raw["moves"]))


def approved_plan(
    spec: Mapping[str, Any], plan_hash: str, moves: Iterable[Move], known: ApprovedPlan | None
) -> ApprovedPlan | None:
    """Return the plan that is approved: the one that is shown now, or one that was; None where it was never seen."""
    named = spec.get("approvedPlan")
    if named == plan_hash:
        return ApprovedPlan(plan_hash, frozenset(move.key for move in moves))
    return known if known is not None and known.hash == named else None


def approval(spec: Mapping[str, Any], moves: Iterable[Move], approved: ApprovedPlan | None) -> tuple[bool, R]:
    """Return whether these moves may be carried out, and why."""
    if spec.get("approval", "Automatic") == "Automatic":
        return True, R.AUTOMATIC_APPROVAL
    if approved is not None and approved.moves.issuperset(move.key for move in moves):
        return True, R.APPROVED_BY_USER
    return False, R.PLAN_CHANGED if spec.get("approvedPlan") else R.WAITING_FOR_APPROVAL
