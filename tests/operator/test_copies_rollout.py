"""Payload copies: how many a group means for an ensemble of any size, and how shards are brought there one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from operator_views import group, member, nodes, nothing_lags, shard, world
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, StartChange
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import out_of_sync, wanted_copies
from tidemark_operator.moves import MoveState
from tidemark_operator.plan import Move, MoveKind
from tidemark_operator.reconfiguration_run import ReconfigurationRun
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_operator.tending import Tender

from tests.waiting import until

NAMES = ("n1", "n2", "n3", "n4", "n5")


@pytest.mark.parametrize(("declared", "members", "copies"), [
    (0, 5, 0), (0, 3, 0),
    (3, 5, 3), (4, 5, 4), (5, 5, 0),
    (3, 4, 3), (3, 3, 0), (3, 2, 0), (2, 3, 2),
    (2, 4, 3), (3, 6, 4), (1, 1, 0), (1, 2, 0),         # an ensemble that is larger than declared: a majority at least
])
def test_copies_of_an_ensemble_that_is_not_of_the_declared_size(declared: int, members: int, copies: int) -> None:
    assert group(payload_copies=declared).copies(members) == copies
    assert copies == 0 or members // 2 + 1 <= copies < members


@pytest.mark.parametrize(("declared", "in_force", "wanted"), [
    (0, 0, None), (0, 3, 0), (0, 5, None), (5, 0, None), (3, 3, None), (3, 0, 3), (3, 4, 3), (4, 3, 4),
])
def test_a_shard_that_keeps_as_many_as_declared_is_left_alone(declared: int, in_force: int, wanted: int | None) -> None:
    one = group(factor=5, payload_copies=declared)
    assert wanted_copies(replace(shard(0, *NAMES, of=one), copies=in_force), one) == wanted


class FakeDriver:
    """Notes what is asked; each request is answered when the test says so."""

    def __init__(self) -> None:
        self.asked: list[StartChange] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def change(self, _shard: int, make: Callable[[int], StartChange]) -> ChangeDone | Refused:
        self.asked.append(make(len(self.asked)))
        self.answers.append(asyncio.get_running_loop().create_future())
        answer: ChangeDone | Refused = await self.answers[-1]
        return answer


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_n11_a_member_without_a_replica_is_missing_and_swapped_for_itself() -> None:
    driver = FakeDriver()
    tender = Tender(driver, lambda seconds: None, nothing_lags, print)  # type: ignore[arg-type]
    whole = shard(0, "n1", "n2", "n3")
    lacking = replace(whole, missing=frozenset({whole.members[2]}))
    assert not out_of_sync(whole, nodes(3)) and ["n3"] == out_of_sync(lacking, nodes(3))
    tender.look(world(whole, nodes=nodes(3)), 1)
    await settled()
    assert not driver.asked
    tender.look(world(lacking, nodes=nodes(3)), 1)
    await settled()
    assert [(Operation.SWAP, "n3", "n3")] == [(one.operation, one.old_node, one.new_node) for one in driver.asked]
    await tender.close()


async def test_shards_follow_few_at_a_time() -> None:
    one, driver, pokes = group(shards=3, factor=5, payload_copies=3), FakeDriver(), []
    tender = Tender(driver, pokes.append, nothing_lags, print)  # type: ignore[arg-type]
    shards = [shard(index, *NAMES, of=one) for index in range(3)]
    now = world(*shards, nodes=nodes(5), groups=[one])
    tender.look(now, 2)
    tender.look(now, 2)
    await settled()
    assert [(asked.shard, asked.operation, asked.copies) for asked in driver.asked] == [
        (made.shard, Operation.COPIES, 3) for made in shards[:2]]
    driver.answers[0].set_result(ChangeDone(2, shards[0].members, None))
    await settled()
    assert pokes, "there is room for the next one"
    shards[0] = replace(shards[0], copies=3)
    tender.look(world(*shards, nodes=nodes(5), groups=[one]), 2)
    await settled()
    assert [asked.shard for asked in driver.asked] == [made.shard for made in shards]
    await tender.close()


async def test_a_refusal_is_told_until_it_is_over() -> None:
    one, driver = group(shards=1, factor=5, payload_copies=3), FakeDriver()
    tender = Tender(driver, lambda seconds: None, nothing_lags, print)  # type: ignore[arg-type]
    made = shard(0, *NAMES, of=one)
    tender.look(world(made, nodes=nodes(5), groups=[one]), 4)
    await settled()
    driver.answers[0].set_result(Refused(Reason.RECONFIGURING, "a swap runs"))
    await settled()
    assert tender.copies_trouble == {made.shard: f"{made.name}: RECONFIGURING: a swap runs"}

    def asked_again() -> bool:
        tender.look(world(made, nodes=nodes(5), groups=[one]), 4)
        return len(driver.asked) == 2

    await until(asked_again)
    driver.answers[1].set_result(ChangeDone(2, made.members, None))
    await settled()
    assert tender.copies_trouble == {}
    await tender.close()


async def test_nothing_is_begun_while_a_member_is_away() -> None:
    """A member that is gone cannot take over payloads; one that came back empty is swapped in first."""
    one, driver = group(shards=1, factor=5, payload_copies=3), FakeDriver()
    tender = Tender(driver, lambda seconds: None, nothing_lags, print)  # type: ignore[arg-type]
    made, known = shard(0, *NAMES, of=one), nodes(5)
    known["n4"] = replace(known["n4"], up=False)
    tender.look(world(made, nodes=known, groups=[one]), 4)
    await settled()
    assert driver.asked == [] and tender.copies_trouble == {made.shard: f"{made.name} waits for n4"}
    known["n4"] = replace(known["n4"], up=True, member=member("n4", "2"))
    tender.look(world(made, nodes=known, groups=[one]), 4)
    await settled()
    assert [asked.operation for asked in driver.asked] == [Operation.SWAP]
    await tender.close()


def expanding(declared: int, in_force: int) -> Any:
    """What holds up the expand of a shard of three members to four."""
    one = group(shards=1, factor=4, payload_copies=declared)
    made = replace(shard(0, *NAMES[:3], of=one), copies=in_force)
    now = world(made, nodes=nodes(5), groups=[one])
    stored = StoredObject(
        {"metadata": {"name": "grow"}, "spec": {"type": "Expand"}}, "uid", "2026-01-01T00:00:00Z")
    run = ReconfigurationRun(stored, *[None] * 5, ConditionMemory(), *[None] * 4)  # type: ignore[arg-type]
    return run._precondition(stored, [MoveState(Move(made.shard, MoveKind.EXPAND, to_node="n4"))], now)


def test_an_expand_waits_until_enough_members_keep_payloads() -> None:
    """K13: old entries would have two copies among four members; the declared three come first."""
    assert expanding(declared=3, in_force=2) == (
        ConditionReason.PAYLOAD_COPIES_PENDING, "orders-0000 do not keep the declared payload copies yet")
    assert expanding(declared=3, in_force=0) is None
    assert expanding(declared=0, in_force=0) is None
