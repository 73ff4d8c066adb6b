"""Whose turn it is among Reconfigurations, and how fast copies may move meanwhile."""

from __future__ import annotations

import pytest
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import BYTES_MAX
from tidemark_operator.turns import Slot, acting, next_in_line, snapshot_rate


def act(number: int, stage: str = "", rate: str | None = None) -> StoredObject:
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


ASIDE = "AwaitingApproval"


@pytest.mark.parametrize(("stages", "first"), [
    ([], None),
    (["Finished", ""], 2),
    (["", "Planning"], 1),
    ([ASIDE, ""], 2),
    ([ASIDE, "Finished", ASIDE, "Queued"], 4),
    (["Queued", "", ""], 1),
    ([ASIDE], None),
    (["Queued", "Moving"], 2),
    (["", ASIDE, "Suspended"], 3),
    (["Planning", "CleaningUp", "Aborting"], 2),
])
def test_the_oldest_is_next_but_for_those_that_wait_for_a_person(stages: list[str], first: int | None) -> None:
    known = [act(number, stage) for number, stage in enumerate(stages, start=1)]
    for order in (known, known[::-1]):
        found = next_in_line(order)
        assert (found.number if found else None) == first


def test_who_is_approved_is_in_line_by_its_age() -> None:
    known = [act(1, ASIDE), act(2), act(3, ASIDE)]
    assert [next_in_line(known, approved=name) for name in ("act-1", "act-3")] == [known[0], known[1]]
    assert next_in_line([known[0], act(2, "Moving")], approved="act-1") == act(2, "Moving"), "who acts goes on"


def test_a_slot_has_one_holder_at_a_time() -> None:
    freed: list[int] = []
    slot = Slot(lambda name: name != "later", lambda: freed.append(1))
    assert not slot.take("later")
    assert slot.take("one") and slot.take("one") and not slot.take("two")
    slot.give_back("two")
    assert (slot.holder, freed) == ("one", [])
    slot.give_back("one")
    assert freed == [1] and slot.take("two")

