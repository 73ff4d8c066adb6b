"""What an approval covers: the moves of the plan whose hash it names, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidemark_core.base.ids import shard_id
from tidemark_operator.approval import ApprovedPlan, approval, approved_plan
from tidemark_operator.plan import Move, MoveKind, Plan
from tidemark_operator.resources.conditions import ConditionReason as R


def swap(index: int, to_node: str = "n4", from_node: str = "n1", kind: MoveKind = MoveKind.SWAP) -> Move:
    return Move(shard_id(1, index), kind, from_node, to_node)


READ = Plan((swap(0), swap(1), swap(2)))
APPROVED = {"approval": "Required", "approvedPlan": READ.hash}
YES, CHANGED, WAITS = (True, R.APPROVED_BY_USER), (False, R.PLAN_CHANGED), (False, R.WAITING_FOR_APPROVAL)


def verdict(spec: dict[str, Any], plan: Plan, known: ApprovedPlan | None) -> tuple[bool, R]:
    return approval(spec, plan.moves, approved_plan(spec, plan.hash, plan.moves, known))


@pytest.mark.parametrize(("moves", "expected"), [
    ([swap(0), swap(1), swap(2)], YES),
    ([swap(2), swap(0), swap(1)], YES),
    ([swap(0), swap(2)], YES),
    ([swap(1)], YES),
    ([], YES),
    ([swap(0), swap(1), swap(2), swap(3)], CHANGED),
    ([swap(3)], CHANGED),
    ([swap(0), swap(1, "n5")], CHANGED),
    ([swap(0), swap(1, from_node="n2")], CHANGED),
    ([swap(0, kind=MoveKind.EXPAND)], CHANGED),
    ([swap(2, "n5"), swap(1), swap(0)], CHANGED),
    ([swap(0, "n1", "n4")], CHANGED),
])
def test_a_plan_that_only_shrank_keeps_its_approval(moves: list[Move], expected: tuple[bool, R]) -> None:
    shown = approved_plan(APPROVED, READ.hash, READ.moves, None)
    assert shown is not None
    assert verdict(APPROVED, Plan(tuple(moves)), shown) == expected
    restored = ApprovedPlan.restore(json.loads(json.dumps(shown.store())))  # by the next operator
    assert verdict(APPROVED, Plan(tuple(moves)), restored) == expected


def test_what_shrank_may_grow_again_to_what_was_approved_and_no_further() -> None:
    known = approved_plan(APPROVED, READ.hash, READ.moves, None)
    for moves, expected in (([swap(0)], YES), ([swap(0), swap(3)], CHANGED), ([swap(1), swap(2)], YES)):
        plan = Plan(tuple(moves))
        known = approved_plan(APPROVED, plan.hash, plan.moves, known)
        assert approval(APPROVED, plan.moves, known) == expected


@pytest.mark.parametrize(("spec", "expected"), [
    ({}, (True, R.AUTOMATIC_APPROVAL)),
    ({"approval": "Required"}, WAITS),
    ({"approval": "Required", "approvedPlan": READ.hash}, YES),
    ({"approval": "Required", "approvedPlan": "sha256:00000000"}, CHANGED),
])
def test_a_plan_is_approved_by_its_hash(spec: dict[str, str], expected: tuple[bool, R]) -> None:
    assert verdict(spec, READ, None) == expected


@pytest.mark.parametrize(("spec", "expected"), [
    ({"approval": "Required"}, WAITS),
    ({"approval": "Required", "approvedPlan": "sha256:00000000"}, CHANGED),
])
def test_an_approval_that_was_taken_back_or_given_to_another_plan_covers_nothing(
    spec: dict[str, str], expected: tuple[bool, R]
) -> None:
    shown = approved_plan(APPROVED, READ.hash, READ.moves, None)
    assert verdict(spec, Plan((swap(0),)), shown) == expected
    assert verdict(spec, Plan(()), shown) == expected


def test_a_plan_that_nobody_was_shown_approves_nothing_smaller() -> None:
    assert verdict(APPROVED, Plan((swap(0),)), None) == CHANGED
