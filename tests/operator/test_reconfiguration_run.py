"""One Reconfiguration under way: approval, suspension, cancel, deadline, progress, and an operator that takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fake_moves import FakeDriver
from operator_views import group, member, nodes, shard, world
from tidemark_core.replication.records import ChangeDone, ChangeProgress
from tidemark_operator import reconfiguration_run
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.metadata import StoredObject
from tidemark_operator.reconfiguration_run import ReconfigurationRun
from tidemark_operator.turns import Slot
from tidemark_wire.tasks import cancelled

from tests.waiting import remains, until

SWAP: dict[str, Any] = {
    "clusterRef": {"name": "dev"}, "type": "NodeSwap", "approval": "Automatic",
    "nodeSwap": {"from": "n1", "to": {"node": "n4"}, "removeSource": "Keep"}}
PATIENCE_S = 10


class World:
    """Two shards on n1, n2, n3, and n4 free; one operator after another runs the same Reconfiguration."""

    def __init__(self, spec: dict[str, Any], **status: Any) -> None:
        self.group = group(spread_zones=False)
        self.shards = [replace(shard(index, "n1", "n2", "n3"), leader="n2") for index in (0, 1)]
        self.nodes = nodes(4)
        self.driver = FakeDriver()
        self.saves = 0
        self.stages: list[str] = []
        self.sizes: dict[str, int] = {}   # what nodes say of every shard; the others are silent
        self.asked = 0
        self.slot = Slot(lambda _name: True, lambda: None)   # it is the only one
        self.mirror = SimpleNamespace(revision=7, reconfigurations={})
        self.put(StoredObject({"metadata": {"name": "swap"}, "spec": spec}, "uid", "2026-01-01T00:00:00Z",
                              status=status))

    def put(self, stored: StoredObject) -> None:
        self.mirror.reconfigurations["swap"] = SimpleNamespace(value=stored)

    @property
    def stored(self) -> StoredObject:
        return self.mirror.reconfigurations["swap"].value

    @property
    def status(self) -> dict[str, Any]:
        return self.stored.status

    def say(self, **spec: Any) -> None:
        """A person changes the spec."""
        self.put(replace(self.stored, manifest={**self.stored.manifest, "spec": {**self.stored.spec, **spec}}))
        self.run.wake.set()

    async def save_status(self, _name: str, status: dict[str, Any]) -> bool:
        if not self.mirror.reconfigurations:
            return False  # it was deleted
        self.saves += 1
        self.stages.append(status["stage"])
        self.put(replace(self.stored, status=status))
        asyncio.get_running_loop().call_soon(self.run.wake.set)  # as the news of the mirror do
        return True

    async def log_bytes(self, asked: Mapping[str, Sequence[int]]) -> dict[int, int]:
        self.asked += 1
        return {shard: self.sizes[node] for node, shards in asked.items() if node in self.sizes for shard in shards}

    def condition(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.run.status()["conditions"] if each["type"] == kind)

    def change(self, index: int, **fields: Any) -> None:
        self.nodes[f"n{index}"] = replace(self.nodes[f"n{index}"], **fields)
        self.run.wake.set()

    def moved(self, index: int) -> None:
        """The shard has n4 in place of n1."""
        self.shards[index] = replace(shard(index, "n4", "n2", "n3"), leader="n2")

    def finish(self, number: int) -> None:
        """A move ends: the shard has n4 in place of n1."""
        asked, answer, tell = self.driver.moves[number]
        tell(ChangeProgress(asked.shard, number, "SNAPSHOT", 100, 100))
        index = asked.shard & 0xFFFF
        self.moved(index)
        answer.set_result(ChangeDone(2, self.shards[index].members, None))

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[asyncio.Task[None]]:
        """An operator that is killed at the end, wherever it is."""
        self.slot.holder = ""

        async def true(*_arguments: Any) -> bool:
            return True

        self.run = ReconfigurationRun(
            self.stored, self.driver, SimpleNamespace(save_status=self.save_status), self.mirror,  # type: ignore[arg-type]
            lambda: world(*self.shards, nodes=self.nodes, groups=[self.group]),
            lambda: SimpleNamespace(max_concurrent_moves=1), ConditionMemory(),  # type: ignore[arg-type, return-value]
            SimpleNamespace(hold=None, take=true, end=true), None, self.log_bytes, self.slot)  # type: ignore[arg-type]
        task = asyncio.ensure_future(self.run.run())
        try:
            yield task
        finally:
            await cancelled(task)

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds, timeout_s=PATIENCE_S)

    async def at(self, stage: str) -> None:
        await self.until(lambda: self.status.get("stage") == stage)


async def test_one_move_after_the_other_with_bytes_and_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfiguration_run, "PROGRESS_PACE_S", 0.05)
    there = World(SWAP)
    async with there.operator() as task:
        await there.until(lambda: len(there.driver.moves) == 1)
        there.driver.moves[0][2](ChangeProgress(there.shards[0].shard, 0, "SNAPSHOT", 50, 100))
        await there.until(lambda: there.status["progress"]["bytesMoved"] == "50")
        assert there.status["progress"]["percent"] == 25
        assert there.status["activeMoves"][0]["step"] == "Snapshot"
        saves = there.saves
        await remains(lambda: there.saves == saves, "without news nothing is stored", 0.3)
        there.finish(0)
        await there.until(lambda: len(there.driver.moves) == 2)
        there.finish(1)
        await task
    assert there.status["progress"] == {
        "completed": 2, "inProgress": 0, "failed": 0, "bytesMoved": "200", "percent": 100, "summary": "2/2"}
    assert there.condition("Succeeded")["reason"] == "Completed"


async def test_an_operator_that_takes_over_goes_on_at_every_step() -> None:
    there = World({**SWAP, "approval": "Required"})
    async with there.operator():
        await there.at("AwaitingApproval")
    plan = there.status["plan"]["hash"]
    async with there.operator():
        there.say(approvedPlan="sha256:00000000")
        await there.until(lambda: there.condition("Approved")["reason"] == "PlanChanged")
        assert there.driver.moves == []
        there.say(approvedPlan=plan)
        await there.until(lambda: len(there.driver.moves) == 1)
    async with there.operator():  # killed in the first move
        await there.until(lambda: len(there.driver.moves) == 2)
        there.finish(1)
        await there.until(lambda: len(there.driver.moves) == 3)
        await there.until(lambda: there.status["progress"]["completed"] == 1)
    async with there.operator() as task:  # and in the second
        assert there.run.status()["progress"]["bytesMoved"] == "100", "what was copied is not forgotten"
        await there.until(lambda: len(there.driver.moves) == 4)
        there.finish(3)
        await task
    assert [move.shard & 0xFFFF for move, _answer, _tell in there.driver.moves] == [0, 0, 1, 1]
    assert there.status["plan"]["hash"] == plan
    assert there.status["progress"]["bytesMoved"] == "200"
    assert there.condition("Approved")["reason"] == "ApprovedByUser"


async def test_an_approved_plan_that_shrank_in_the_queue_is_carried_out_by_the_next_operator() -> None:
    there = World({**SWAP, "approval": "Required"})
    there.slot = Slot(lambda _name: False, lambda: None)  # another one acts
    async with there.operator():
        await there.at("AwaitingApproval")
        approved = there.status["plan"]["hash"]
        there.say(approvedPlan=approved)
        await there.at("Queued")
        there.moved(0)
        there.run.wake.set()
        await there.until(lambda: there.status["plan"]["moves"] == 1)
        assert there.status["plan"]["hash"] != approved
    there.slot = Slot(lambda _name: True, lambda: None)
    async with there.operator() as task:
        await there.until(lambda: len(there.driver.moves) == 1)
        there.finish(0)
        await task
    assert there.condition("Approved")["reason"] == "ApprovedByUser"
    assert there.condition("Succeeded")["reason"] == "Completed"
    assert there.status["progress"]["summary"] == "1/1"
    assert there.status["approved"] is None, "it is kept no longer than it is of use"


async def test_a_plan_that_shrinks_in_the_moment_it_is_approved_is_carried_out() -> None:
    there = World({**SWAP, "approval": "Required"})
    async with there.operator():
        await there.at("AwaitingApproval")
        there.moved(0)
        there.say(approvedPlan=there.status["plan"]["hash"])
        await there.until(lambda: len(there.driver.moves) == 1)
        assert there.status["plan"]["moves"] == 1


async def test_a_plan_that_was_approved_beforehand_waits_for_nobody() -> None:
    asked = World({**SWAP, "approval": "Required"})
    async with asked.operator():
        await asked.at("AwaitingApproval")
    there = World({**SWAP, "approval": "Required", "approvedPlan": asked.status["plan"]["hash"]})
    async with there.operator():
        await there.until(lambda: len(there.driver.moves) == 1)
    assert "AwaitingApproval" not in there.stages


async def test_an_approved_plan_of_which_nothing_is_left_has_succeeded() -> None:
    there = World({**SWAP, "approval": "Required"})
    there.slot = Slot(lambda _name: False, lambda: None)
    async with there.operator():
        await there.at("AwaitingApproval")
        there.say(approvedPlan=there.status["plan"]["hash"])
        await there.at("Queued")
        there.moved(0)
        there.moved(1)
        there.run.wake.set()
        await there.until(lambda: there.status["plan"]["moves"] == 0)
        assert there.status["stage"] == "Queued"
    there.slot = Slot(lambda _name: True, lambda: None)
    async with there.operator() as task:
        await asyncio.wait_for(task, PATIENCE_S)
    assert (there.condition("Succeeded")["status"], there.condition("Succeeded")["reason"]) == ("True", "NothingToDo")
    assert there.driver.moves == []


async def test_an_approved_plan_that_grew_waits_for_another_approval_until_it_shrinks_again() -> None:
    there = World({**SWAP, "approval": "Required"})
    there.moved(1)
    there.slot = Slot(lambda _name: False, lambda: None)
    async with there.operator():
        await there.at("AwaitingApproval")
        there.say(approvedPlan=there.status["plan"]["hash"])
        await there.at("Queued")
        there.shards[1] = replace(shard(1, "n1", "n2", "n3"), leader="n2")
        there.slot.may_take = lambda _name: True
        there.run.wake.set()
        await there.at("AwaitingApproval")
        assert there.condition("Approved")["reason"] == "PlanChanged"
        assert there.driver.moves == []
    async with there.operator():
        await there.until(lambda: there.condition("Approved")["reason"] == "PlanChanged")
        there.moved(1)
        there.run.wake.set()
        await there.until(lambda: len(there.driver.moves) == 1)


async def test_a_move_that_took_effect_unnoticed_counts_as_done() -> None:
    there = World(SWAP)
    async with there.operator():
        await there.until(lambda: len(there.driver.moves) == 1)
    there.shards[0] = replace(shard(0, "n4", "n2", "n3"), leader="n2")
    async with there.operator() as task:
        await there.until(lambda: len(there.driver.moves) == 2)
        assert there.driver.moves[1][0].shard == there.shards[1].shard
        there.finish(1)
        await task
    assert there.status["progress"]["summary"] == "2/2"


async def test_a_plan_that_waits_for_approval_outlives_a_node_that_is_away() -> None:
    """Nor does an operator that takes over, and has met no node yet, reject it."""
    there = World({**SWAP, "approval": "Required"})
    async with there.operator():
        await there.at("AwaitingApproval")
        there.change(4, up=False, reason="probes fail")
        await there.until(lambda: there.condition("Validated")["reason"] == "TargetNotEligible")
        saves = there.saves
        there.say(approvedPlan=there.status["plan"]["hash"])
        await remains(lambda: there.status["stage"] == "AwaitingApproval" and not there.driver.moves)
        assert there.saves <= saves + 1, "it waits, it does not spin"
    for name, node in there.nodes.items():
        there.nodes[name] = replace(node, up=False, member=None)
    async with there.operator():
        await remains(lambda: there.status["stage"] == "AwaitingApproval", for_s=0.1)
        for number in range(1, 5):
            there.change(number, up=True, member=member(f"n{number}"))
        await there.until(lambda: len(there.driver.moves) == 1)
        assert there.condition("Validated")["status"] == "True"


async def test_nodes_are_waited_for_before_a_plan_is_rejected_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there = World(SWAP)
    there.nodes["n4"] = replace(there.nodes["n4"], up=False)
    async with there.operator():
        await there.until(lambda: there.condition("Validated")["status"] == "Unknown")
        await remains(lambda: there.condition("Validated")["status"] == "Unknown", for_s=0.1)
        there.change(4, up=True)
        await there.until(lambda: len(there.driver.moves) == 1)
    monkeypatch.setattr(reconfiguration_run, "PATIENCE_S", 0.2)
    gone = World(SWAP)
    gone.nodes["n4"] = replace(gone.nodes["n4"], up=False, reason="probes fail")
    async with gone.operator() as task:
        await asyncio.wait_for(task, PATIENCE_S)
    assert gone.condition("Validated")["message"] == "nodeSwap.to.node: n4 is down (probes fail)"
    nowhere = World({**SWAP, "nodeSwap": {"from": "n9", "to": {"spread": {}}}})
    nowhere.nodes["n4"] = replace(nowhere.nodes["n4"], up=False)
    monkeypatch.setattr(reconfiguration_run, "PATIENCE_S", 3_600.0)
    async with nowhere.operator() as task:  # no node that comes back would change that
        await asyncio.wait_for(task, PATIENCE_S)
    assert nowhere.condition("Validated")["reason"] == "NodeNotFound"


async def test_suspended_moves_end_and_none_starts() -> None:
    there = World(SWAP)
    async with there.operator():
        await there.until(lambda: len(there.driver.moves) == 1)
        there.say(suspend=True)
        await there.at("Suspended")
        there.finish(0)
        await there.until(lambda: there.status["progress"]["completed"] == 1)
        await remains(lambda: len(there.driver.moves) == 1, for_s=0.3)
        there.say(suspend=False)
        await there.until(lambda: len(there.driver.moves) == 2)


@pytest.mark.parametrize(("ends", "reason"), [
    (lambda there: there.say(cancel=True), "Canceled"),
    (lambda there: there.say(activeDeadlineSeconds=60), "DeadlineExceeded"),
    (lambda there: (there.mirror.reconfigurations.clear(), there.run.wake.set()), "Canceled"),
])
async def test_what_ends_it_early_gives_up_moves_that_are_not_committed(
    ends: Callable[[World], object], reason: str
) -> None:
    started = (datetime.now(UTC) - timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    there = World(SWAP, startTime=started)
    async with there.operator() as task:
        await there.until(lambda: len(there.driver.moves) == 1)
        ends(there)
        await asyncio.wait_for(task, PATIENCE_S)
    assert there.driver.canceled, "the coordinator was asked to give the move up"
    assert len(there.driver.moves) == 1
    assert (there.condition("Succeeded")["status"], there.condition("Succeeded")["reason"]) == ("False", reason)


async def test_the_throttle_may_be_raised_while_it_runs() -> None:
    there = World(SWAP)
    async with there.operator():
        await there.until(lambda: len(there.driver.moves) == 1)
        await remains(lambda: len(there.driver.moves) == 1, for_s=0.3)
        there.say(throttle={"maxConcurrentMoves": 2})
        await there.until(lambda: len(there.driver.moves) == 2)


async def test_no_move_starts_while_a_copy_is_away_elsewhere() -> None:
    there = World(SWAP)
    there.nodes["n3"] = replace(there.nodes["n3"], up=False)
    async with there.operator():
        await there.until(lambda: there.condition("Stalled")["status"] == "True")
        assert there.condition("Stalled")["reason"] == "UnderReplicated"
        assert "orders-0000, orders-0001 lack copies" in there.condition("Stalled")["message"]
        assert there.driver.moves == []
        there.change(3, up=True)
        await there.until(lambda: len(there.driver.moves) == 1)
        assert there.condition("Stalled")["status"] == "False"


async def test_what_a_plan_copies_is_known_before_it_does_and_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconfiguration_run, "ASK_PACE_S", 0.05)
    monkeypatch.setattr(reconfiguration_run, "PROGRESS_PACE_S", 0.05)
    there = World({**SWAP, "approval": "Required"})
    there.shards[1] = replace(there.shards[1], leader="n3")
    there.sizes = {"n2": 90}
    async with there.operator():
        await there.at("AwaitingApproval")
        plan = there.status["plan"]
        assert "bytes" not in plan, "of one shard nobody says it, so the whole is not known"
        assert plan["warnings"] == ["bytes: not known; no node says how much it holds of orders-0001"]
        there.sizes["n3"] = 30
        there.run.wake.set()
        await there.until(lambda: there.status["plan"].get("bytes") == "120")
        assert there.status["plan"]["warnings"] == []
        asked, saves = there.asked, there.saves
        there.run.wake.set()
        await remains(lambda: (there.asked, there.saves) == (asked, saves), "what is known is asked for no more")
    there.sizes["n2"] = 95  # it grew while nobody approved
    async with there.operator():
        there.say(approvedPlan=plan["hash"])
        await there.until(lambda: len(there.driver.moves) == 1)
        assert there.status["plan"]["bytes"] == "125"
        there.driver.moves[0][2](ChangeProgress(there.shards[0].shard, 0, "SNAPSHOT", 50, 100))
        await there.until(lambda: there.status["progress"]["bytesMoved"] == "50")
        assert there.status["plan"]["bytes"] == "130", "a snapshot under way says itself what it has"
    there.sizes = {}
    async with there.operator() as task:
        await there.until(lambda: len(there.driver.moves) == 2)
        assert there.status["plan"]["bytes"] == "130", "the next operator has it from the last"
        there.finish(1)
        await there.until(lambda: len(there.driver.moves) == 3)
        there.finish(2)
        await task
    assert (there.status["plan"]["bytes"], there.status["progress"]["bytesMoved"]) == ("200", "200")


async def test_what_moves_no_copies_copies_nothing() -> None:
    there = World({"clusterRef": {"name": "dev"}, "type": "LeaderTransfer", "leaderTransfer": {"to": "n3"},
                   "approval": "Required"})
    async with there.operator():
        await there.at("AwaitingApproval")
    assert (there.status["plan"]["bytes"], there.asked) == ("0", 0)
