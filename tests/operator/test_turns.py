"""Whose turn it is among Reconfigurations, and how fast copies may move meanwhile."""

from __future__ import annotations

import pytest
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import BYTES_MAX
from tidemark_operator.turns import acting, snapshot_rate


def act(number: int, stage: str, rate: str | None = None) -> StoredObject:
    spec = {"throttle": {"bytesPerSecondPerNode": rate}} if rate is not None else {}
    return StoredObject(
        {"metadata": {"name": f"act-{number}"}, "spec": spec}, "uid", "2026-01-01T00:00:00Z", number=number,
        status={"stage": stage} if stage else {})


@pytest.mark.parametrize("stage", ["Provisioning", "Moving", "Suspended", "Aborting", "CleaningUp"])
def test_the_rate_in_force_is_that_of_the_act_that_is_carried_out(stage: str) -> None:
    others = [act(1, "Finished", "1Ki"), act(2, "AwaitingApproval", "2Ki"), act(3, "", "3Ki")]
    behind = [act(5, "Queued", "5Ki"), act(6, "Planning", "6Ki")]
    assert snapshot_rate([*others, act(4, stage, "50Mi"), *behind]) == 50 << 20
    assert snapshot_rate([*others, act(4, stage)]) == 0, "what it does not say the cluster does"
    assert snapshot_rate([*others, *behind]) == 0
    assert acting([*others, *behind]) is None


@pytest.mark.parametrize(("written", "rate"), [("0", 1), ("0.5", 1), ("99999999Ti", BYTES_MAX), ("1.5Ki", 1536)])
def test_a_rate_fits_on_the_wire_and_lets_something_through(written: str, rate: int) -> None:
    assert snapshot_rate([act(1, "Moving", written)]) == rate
