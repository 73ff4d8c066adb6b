"""Several Reconfigurations of one cluster: one acts at a time, and who waits for a person holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_moves import FakeDriver
from operator_views import group, nodes, shard, world
from tidemark_core.replication.records import ChangeDone
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.metadata import StoredObject
from tidemark_operator.reconfigure import Reconfigurer
from tidemark_operator.turns import ACTING

from tests.waiting import until

PATIENCE_S = 10
REQUIRED = {"approval": "Required"}


class Line:
    """A cluster with two shards on n1, n2, n3, what is stored of its Reconfigurations, and one operator at a time."""

    def __init__(self) -> None:
        self.group = group(spread_zones=False)
        self.shards = {one.shard: one for one in (
            replace(shard(index, "n1", "n2", "n3"), leader="n2") for index in (0, 1))}
        self.nodes = nodes(5)
        self.told: list[tuple[str, str]] = []
        self.mirror = SimpleNamespace(revision=7, cluster=object(), nodes={}, reconfigurations={})
        self.begin()

    def begin(self) -> None:
        """An operator takes over."""
        async def true(*_arguments: Any) -> bool:
            return True

        async def unknown(_asked: Any) -> dict[int, int]:
            return {}

        self.driver = FakeDriver()
        self.operator = Reconfigurer(
            self.driver, SimpleNamespace(save_status=self._save), self.mirror,  # type: ignore[arg-type]
            lambda: world(*self.shards.values(), nodes=self.nodes, groups=[self.group]),
            lambda: SimpleNamespace(max_concurrent_moves=4), ConditionMemory(),  # type: ignore[arg-type, return-value]
            SimpleNamespace(hold=None, take=true, end=true), None, self._poke, unknown)  # type: ignore[arg-type]
        self.operator.look()

    async def replaced(self) -> None:
        self.operator.let_go()
        await self.operator.stop()
        self.begin()

    def _poke(self, _seconds: float) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.operator.look())

    async def _save(self, name: str, status: dict[str, Any]) -> bool:
        if name not in self.mirror.reconfigurations:
            return False
        self._put(replace(self.stored(name), status=status))
        self.told.append((name, status["stage"]))
        acts = [each for each in self.mirror.reconfigurations if self.stage(each) in ACTING]
        assert len(acts) <= 1, f"{acts} act at once"
        return True

    def _put(self, stored: StoredObject) -> None:
        self.mirror.reconfigurations[stored.name] = SimpleNamespace(value=stored)
        self._poke(0)

    def ask(self, name: str, source: str, target: str, **spec: Any) -> None:
        """A person asks for a swap of all copies on a node."""
        self._put(StoredObject(
            {"metadata": {"name": name}, "spec": {
                "type": "NodeSwap", "nodeSwap": {"from": source, "to": {"node": target}, "removeSource": "Keep"},
                **spec}},
            "uid", "2026-01-01T00:00:00Z", number=len(self.mirror.reconfigurations) + 1))

    def say(self, name: str, **spec: Any) -> None:
        stored = self.stored(name)
        self._put(replace(stored, manifest={**stored.manifest, "spec": {**stored.spec, **spec}}))

    def approve(self, name: str) -> None:
        self.say(name, approvedPlan=self.stored(name).status["plan"]["hash"])

    def stored(self, name: str) -> StoredObject:
        return self.mirror.reconfigurations[name].value

    def stage(self, name: str) -> str:
        return self.stored(name).status.get("stage", "")

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        status = self.operator.status_of(self.stored(name))
        return next(each for each in status["conditions"] if each["type"] == kind)

    def end_moves(self) -> list[tuple[str, str]]:
        """Every move that runs comes to its end; return from where to where."""
        ended = []
        for asked, answer, _tell in self.driver.moves:
            if not answer.done():
                there = self.shards[asked.shard]
                names = [asked.new_node if name == asked.old_node else name for name in there.ensemble]
                moved = replace(shard(there.index, *names), leader="n2")
                self.shards[asked.shard] = moved
                answer.set_result(ChangeDone(2, moved.members, None))
                ended.append((asked.old_node, asked.new_node))
        return ended

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds, timeout_s=PATIENCE_S)

    async def at(self, stage: str, *names: str) -> None:
        await self.until(lambda: all(self.stage(name) == stage for name in names))

    async def carried_out(self, name: str, *ways: tuple[str, str]) -> None:
        """The moves of a swap run and end, and with them the swap."""
        await self.until(lambda: len([1 for _, answer, _ in self.driver.moves if not answer.done()]) == len(ways))
        assert self.operator.active == name
        assert self.end_moves() == list(ways)
        await self.at("Finished", name)
        assert self.condition(name, "Succeeded")["status"] == "True"


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    await made.operator.stop()


async def test_who_waits_for_a_person_lets_others_pass_and_is_in_line_again_by_age(line: Line) -> None:
    line.ask("asked", "n1", "n4", **REQUIRED)
    await line.at("AwaitingApproval", "asked")
    assert line.operator.active == ""
    line.ask("running", "n3", "n5")
    await line.until(lambda: len(line.driver.moves) == 2)
    assert line.operator.active == "running"
    line.ask("behind", "n5", "n3")
    assert line.operator.status_of(line.stored("behind"))["stage"] == "Queued"
    line.approve("asked")
    await line.at("Queued", "asked")
    assert line.condition("asked", "Approved")["reason"] == "ApprovedByUser"
    assert line.condition("asked", "Succeeded")["message"] == "running runs"
    assert len(line.driver.moves) == 2, "one acts at a time"
    await line.carried_out("running", *[("n3", "n5")] * 2)
    await line.carried_out("asked", *[("n1", "n4")] * 2)
    await line.carried_out("behind", *[("n5", "n3")] * 2)


async def test_a_plan_that_others_shrank_meanwhile_is_carried_out_as_approved(line: Line) -> None:
    line.ask("asked", "n1", "n4", **REQUIRED)
    await line.at("AwaitingApproval", "asked")
    before = line.stored("asked").status["plan"]["hash"]
    line.ask("canary", "n1", "n5", scope={"shardIDs": [0]})
    await line.until(lambda: len(line.driver.moves) == 1)
    line.approve("asked")
    await line.at("Queued", "asked")
    line.told.clear()
    assert line.end_moves() == [("n1", "n5")]
    await line.carried_out("asked", ("n1", "n4"))
    assert line.stored("asked").status["plan"]["hash"] != before
    assert ("asked", "AwaitingApproval") not in line.told


async def test_a_plan_that_others_changed_meanwhile_is_not_the_one_that_was_approved(line: Line) -> None:
    first = next(iter(line.shards))
    line.shards[first] = replace(shard(0, "n4", "n2", "n3"), leader="n2")
    line.ask("asked", "n4", "n5", **REQUIRED)
    await line.at("AwaitingApproval", "asked")
    before = line.stored("asked").status["plan"]["hash"]
    line.ask("running", "n3", "n4", scope={"shardIDs": [1]})
    await line.until(lambda: len(line.driver.moves) == 1)
    line.approve("asked")
    await line.at("Queued", "asked")
    assert line.end_moves() == [("n3", "n4")]
    await line.until(lambda: line.stage("asked") == "AwaitingApproval")
    assert line.condition("asked", "Approved")["reason"] == "PlanChanged"
    assert line.stored("asked").status["plan"]["hash"] != before
    assert line.stored("asked").status["plan"]["moves"] == 2
    line.ask("behind", "n1", "n3", scope={"shardIDs": [1]})
    await line.carried_out("behind", ("n1", "n3"))
    line.approve("asked")
    await line.carried_out("asked", *[("n4", "n5")] * 2)


async def test_an_operator_that_takes_over_leaves_each_where_it_was(line: Line) -> None:
    line.ask("one", "n1", "n4", **REQUIRED)
    await line.at("AwaitingApproval", "one")
    line.ask("two", "n1", "n4", **REQUIRED)
    await line.at("AwaitingApproval", "two")
    await line.replaced()
    line.ask("running", "n3", "n5")
    await line.until(lambda: len(line.driver.moves) == 2)
    line.approve("one")
    await line.at("Queued", "one")
    await line.replaced()
    await line.until(lambda: len(line.driver.moves) == 2)
    assert line.operator.active == "running", "it goes on before the older one begins"
    assert (line.stage("one"), line.stage("two")) == ("Queued", "AwaitingApproval")
    await line.carried_out("running", *[("n3", "n5")] * 2)
    await line.carried_out("one", *[("n1", "n4")] * 2)
    assert line.stage("two") == "AwaitingApproval"


async def test_who_stands_aside_is_canceled_or_deleted_without_a_turn(line: Line) -> None:
    for name in ("canceled", "deleted"):
        line.ask(name, "n1", "n4", **REQUIRED)
        await line.at("AwaitingApproval", name)
    line.ask("running", "n3", "n5")
    await line.until(lambda: len(line.driver.moves) == 2)
    line.say("canceled", cancel=True)
    del line.mirror.reconfigurations["deleted"]
    await line.at("Finished", "canceled")
    assert line.condition("canceled", "Succeeded")["reason"] == "Canceled"
    assert line.operator.active == "running"
    await line.carried_out("running", *[("n3", "n5")] * 2)


async def test_an_approved_one_whose_node_is_down_steps_back_and_comes_again(line: Line) -> None:
    line.ask("asked", "n1", "n4", **REQUIRED)
    await line.at("AwaitingApproval", "asked")
    line.nodes["n4"] = replace(line.nodes["n4"], up=False, reason="probes fail")
    line.approve("asked")
    line.ask("mends", "n3", "n5")
    await line.carried_out("mends", *[("n3", "n5")] * 2)
    assert line.stage("asked") == "AwaitingApproval"
    line.nodes["n4"] = replace(line.nodes["n4"], up=True)
    line.operator.look()
    await line.carried_out("asked", *[("n1", "n4")] * 2)
    assert ("asked", "Queued") not in line.told, "nobody was in its way"
