"""A member that may hold the last copy of acknowledged records is shown everywhere, and recovered from (K14c, K14d)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from operator_views import group, member, nodes, record, shard, world
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, Holdout, StartChange
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import StoredObject
from tidemark_operator.resources.events import EventReason
from tidemark_operator.status.cluster import ClusterFacts, cluster_status
from tidemark_operator.status.group import GroupFacts, group_status
from tidemark_operator.tending import Tender

from tests.waiting import until

ONE = group(shards=1)
SHARD = shard(0, "n1", "n2", "n3", of=ONE)
RECORD = record("n1", "n2", "n3", leader="n1")
SUSPECTED = replace(RECORD, holdouts=(Holdout(member("n3"), 9),))
MESSAGE = "n3 holds records of orders-0000 up to offset 9 that its leader lacks."


def conditions(status: dict[str, Any], kind: str) -> dict[str, tuple[str, str, str]]:
    stamped = ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp(kind, "x", 1, status)
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in stamped["conditions"]}


def of_group(stored: Any) -> dict[str, Any]:
    return group_status(GroupFacts(ONE, 3, {SHARD.shard: SHARD}, {SHARD.shard: stored}, nodes(3), 7))


def of_cluster(stored: Any) -> dict[str, Any]:
    manifest = {"metadata": {"name": "dev"}, "spec": {
        "version": "1", "nodePools": [{"name": "default", "replicas": 3}],
        "metadataStore": {"etcd": {"endpoints": ["http://e:2379"]}}}}
    return cluster_status(ClusterFacts(
        stored=StoredObject(manifest, "uid", "2026-01-01T00:00:00Z"),
        world=world(SHARD, nodes=nodes(3), groups=[ONE]), records={SHARD.shard: stored}, key_prefix="/t", endpoints=1,
        last_node_id=3, version="1"))


@pytest.mark.parametrize(("kind", "status"), [("LogGroup", of_group), ("TidemarkCluster", of_cluster)])
def test_k14c_group_and_cluster_are_not_ready_and_say_who_holds_more(
    kind: str, status: Callable[[Any], dict[str, Any]]
) -> None:
    calm = conditions(status(RECORD), kind)
    assert "DataLossSuspected" not in calm and calm["Ready"][0] == "True"

    told = conditions(status(SUSPECTED), kind)
    assert told["DataLossSuspected"] == ("True", "TruncationRefused", MESSAGE)
    assert told["Ready"] == ("False", "DataLossSuspected", MESSAGE)


def test_k14c_an_event_is_told_once() -> None:
    def stamped(stored: Any) -> dict[str, Any]:
        return ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp("LogGroup", "orders", 1, of_group(stored))

    before, after = stamped(RECORD), stamped(SUSPECTED)
    told = [each for each in occurrences("LogGroup", before, after) if each.reason is EventReason.DATA_LOSS_SUSPECTED]
    assert [each.note for each in told] == [MESSAGE]
    assert EventReason.DATA_LOSS_SUSPECTED not in [each.reason for each in occurrences("LogGroup", after, after)]


class FakeDriver:
    """Note each request, and give the next answer."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[StartChange] = []
        self.answers = list(answers)

    async def change(self, _shard: int, make: Callable[[int], StartChange]) -> ChangeDone | Refused:
        self.asked.append(make(len(self.asked)))
        return self.answers.pop(0)


async def test_k14d_a_recovered_shard_gets_its_members_back_one_after_the_other() -> None:
    done = ChangeDone(2, (member("n3"), member("n1")), member("n3"))
    driver = FakeDriver(Refused(Reason.NODE_UNAVAILABLE, "it refused the snapshot"), done, done)
    alone = replace(shard(0, "n3", of=ONE), refill=3)
    tender = Tender(driver, lambda seconds: None)  # type: ignore[arg-type]

    def looked(made: Any, times: int) -> Callable[[], bool]:
        def look() -> bool:
            if len(driver.asked) < times:
                tender.look(world(made, nodes=nodes(3), groups=[ONE]), 4)
            return len(driver.asked) == times

        return look

    await until(looked(alone, 2))
    pair = replace(shard(0, "n3", "n1", of=ONE), refill=3)
    await until(looked(pair, 3))
    await asyncio.sleep(0)
    assert {(one.operation, one.old_node) for one in driver.asked} == {(Operation.EXPAND, None)}
    assert driver.asked[0].new_node in ("n1", "n2") and driver.asked[2].new_node == "n2"
    tender.look(world(shard(0, "n3", "n1", "n2", of=ONE), nodes=nodes(3), groups=[ONE]), 4)
    assert len(driver.asked) == 3
    await tender.close()
