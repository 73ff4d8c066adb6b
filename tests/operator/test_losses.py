"""A member that may hold the last copy of acknowledged records is shown everywhere, and recovered from (K14c-K14e)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from operator_views import group, member, nodes, nothing_lags, record, shard, world
from tidemark_core.base.ids import Address
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, Holdout, RecoverShard, StartChange, Status
from tidemark_operator.admin import AdminServicer
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import StoredObject
from tidemark_operator.moves import MoveState, run_move
from tidemark_operator.plan import Move, MoveKind, Plan, PlanRefusal, plan_reconfiguration
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.events import EventReason
from tidemark_operator.status.cluster import ClusterFacts, cluster_status
from tidemark_operator.status.group import GroupFacts, group_status
from tidemark_operator.status.shard import ShardFacts, shard_object
from tidemark_operator.status.standing import Standstill
from tidemark_operator.tending import Tender
from tidemark_wire.v1 import admin_pb2

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


def of_cluster(
    stored: Any, *, foreign: bool = False, standstill: Standstill | None = None, **more: Any
) -> dict[str, Any]:
    there = nodes(3)
    if foreign:
        there["n2"] = replace(there["n2"], of_other_cluster=True, reason="it is a node of the cluster 'test'")
    manifest = {"metadata": {"name": "dev"}, "spec": {
        "version": "1", "nodePools": [{"name": "default", "replicas": 3}],
        "metadataStore": {"etcd": {"endpoints": ["http://e:2379"]}}}}
    return cluster_status(ClusterFacts(
        stored=StoredObject(manifest, "uid", "2026-01-01T00:00:00Z"),
        world=world(SHARD, nodes=there, groups=[ONE]), records={SHARD.shard: stored}, key_prefix="/t", endpoints=1,
        last_node_id=3, version="1", standstill=standstill, **more))


@pytest.mark.parametrize(("kind", "status"), [("LogGroup", of_group), ("TidemarkCluster", of_cluster)])
def test_k14c_group_and_cluster_are_not_ready_and_say_who_holds_more(
    kind: str, status: Callable[[Any], dict[str, Any]]
) -> None:
    calm = conditions(status(RECORD), kind)
    assert "DataLossSuspected" not in calm and calm["Ready"][0] == "True"

    told = conditions(status(SUSPECTED), kind)
    assert told["DataLossSuspected"] == ("True", "TruncationRefused", MESSAGE)
    assert told["Ready"] == ("False", "DataLossSuspected", MESSAGE)


def test_k14c_a_node_of_another_cluster_does_not_mask_the_loss() -> None:
    told = conditions(of_cluster(RECORD, foreign=True), "TidemarkCluster")
    assert told["Ready"][:2] == ("False", "ClusterIDMismatch")
    told = conditions(of_cluster(SUSPECTED, foreign=True), "TidemarkCluster")
    assert told["Ready"] == ("False", "DataLossSuspected", MESSAGE)
    assert told["DataLossSuspected"] == ("True", "TruncationRefused", MESSAGE)
    halted = Standstill(R.CLUSTER_ID_MISMATCH, "another cluster's")
    told = conditions(of_cluster(SUSPECTED, standstill=halted), "TidemarkCluster")
    assert told["Ready"][1] == "Stalled" and told["DataLossSuspected"][0] == "True"


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

    async def change(self, _at: Address, make: Callable[[int], StartChange]) -> ChangeDone | Refused:
        self.asked.append(make(len(self.asked)))
        return self.answers.pop(0)


async def test_k14d_a_recovered_shard_gets_its_members_back_one_after_the_other() -> None:
    done = ChangeDone(2, (member("n3"), member("n1")), member("n3"))
    driver = FakeDriver(Refused(Reason.NODE_UNAVAILABLE, "it refused the snapshot"), done, done)
    alone = replace(shard(0, "n3", of=ONE), refill=3)
    tender = Tender(driver, lambda seconds: None, nothing_lags, print)  # type: ignore[arg-type]

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


# --- the act and the override -------------------------------------------------------------------------------------

OTHER = shard(1, "n1", "n2", "n3", of=group(shards=2))
HOLDS = replace(shard(0, "n1", "n2", "n3", of=group(shards=2)), holdouts=("n3",))
TWO = world(HOLDS, OTHER, nodes=nodes(4), groups=[group(shards=2)])


def recovery(source: str, **more: Any) -> dict[str, Any]:
    return {"type": "Recover", "recover": {"from": source}, **more}


def test_k14d_a_recovery_takes_the_shards_where_the_node_holds_more_and_warns() -> None:
    plan = plan_reconfiguration(recovery("n3"), TWO)
    assert isinstance(plan, Plan)
    assert plan.moves == (Move(HOLDS.shard, MoveKind.RECOVER, to_node="n3"),)
    assert plan.warnings == ("orders-0000: records that n3 does not hold are given up",)
    assert not plan.moves[0].done(HOLDS) and plan.moves[0].done(shard(0, "n3", of=group(shards=2)))


@pytest.mark.parametrize(("spec", "reason", "fact"), [
    (recovery("n2"), R.TARGETS_NOTHING, "n2 holds nothing"),
    (recovery("n3", scope={"shardIDs": [1]}), R.TARGETS_NOTHING, "n3 holds nothing"),
    (recovery("n9"), R.NODE_NOT_FOUND, "recover.from"),
    (recovery("n3", scope={"logGroups": ["nothing"]}), R.TARGETS_NOTHING, "nothing"),
])
def test_k14d_a_recovery_from_anywhere_else_is_refused(spec: dict[str, Any], reason: R, fact: str) -> None:
    refused = plan_reconfiguration(spec, TWO)
    assert isinstance(refused, PlanRefusal) and refused.reason is reason and fact in refused.message


LEFT = replace(shard(0, "n1", "n2", "n3", of=ONE), leader=None)
LOST = {name: replace(node, member=member(name, "2")) for name, node in nodes(3).items()}
THIRD = {**LOST, "n3": nodes(3)["n3"]}


def test_k14e_a_recovery_of_lost_disks_needs_consent_and_takes_a_survivor() -> None:
    def planned(source: str, there: dict[str, Any], shown: Any = LEFT, **consent: Any) -> Plan | PlanRefusal:
        spec = {"type": "Recover", "recover": {"from": source, **consent}}
        return plan_reconfiguration(spec, world(shown, nodes=there, groups=[ONE]))

    refused = planned("n3", THIRD)
    assert isinstance(refused, PlanRefusal) and "orders-0000 lost a majority" in refused.message
    assert "recover.acceptLoss" in refused.message
    plan = planned("n3", THIRD, acceptLoss=True)
    assert isinstance(plan, Plan) and plan.moves == (Move(SHARD.shard, MoveKind.RECOVER, to_node="n3", abandon=True),)
    assert plan.warnings == ("orders-0000: records that n3 does not hold are given up",)
    one_lost = {**nodes(3), "n1": LOST["n1"]}
    led = shard(0, "n1", "n2", "n3", of=ONE)
    for source, there, shown in (("n1", THIRD, LEFT), ("n3", one_lost, LEFT), ("n3", THIRD, led), ("n3", LOST, LEFT)):
        assert isinstance(planned(source, there, shown, acceptLoss=True), PlanRefusal)


def test_k14e_a_shard_that_lost_most_of_its_disks_says_which() -> None:
    electing = record("n1", "n2", "n3", status=Status.ELECTION)

    def told(there: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
        facts = GroupFacts(ONE, 3, {SHARD.shard: LEFT}, {SHARD.shard: electing}, there, 7)
        return conditions(group_status(facts), "LogGroup")

    message = "orders-0000 lost the disks of n1, n2; left: n3."
    assert told(THIRD)["DataLossSuspected"] == ("True", "DisksLost", message)
    assert told(THIRD)["Ready"] == ("False", "DataLossSuspected", message)
    assert "left: none." in told(LOST)["DataLossSuspected"][2]
    assert "DataLossSuspected" not in told({**nodes(3), "n1": LOST["n1"]})
    shown = shard_object(ShardFacts(LEFT, electing, 1, ONE, THIRD))
    assert [each["sync"] for each in shown["status"]["ensemble"]] == ["DiskLost", "DiskLost", "InSync"]


def test_k14c_only_a_plan_that_abandons_the_copy_says_so_and_needs_another_approval() -> None:
    spec = {"type": "NodeSwap", "nodeSwap": {"from": "n3", "to": {"node": "n4"}}}
    kept = plan_reconfiguration(spec, TWO)
    given_up = plan_reconfiguration({**spec, "preconditions": {"lastCopy": "Abandoned"}}, TWO)
    assert isinstance(kept, Plan) and isinstance(given_up, Plan)
    assert {move.abandon for move in kept.moves} == {False} and {move.abandon for move in given_up.moves} == {True}
    assert kept.hash != given_up.hash
    state = MoveState(given_up.moves[0])
    assert MoveState.restore(state.store()).move == given_up.moves[0]
    older = {field: value for field, value in state.store().items() if field != "abandon"}
    assert not MoveState.restore(older).move.abandon, "as the release before stored it"


@pytest.mark.parametrize(("move", "asked"), [
    (Move(HOLDS.shard, MoveKind.RECOVER, to_node="n3"), RecoverShard(HOLDS.shard, 0, "n3")),
    (Move(HOLDS.shard, MoveKind.RECOVER, to_node="n3", abandon=True),
     RecoverShard(HOLDS.shard, 0, "n3", accept_loss=True)),
    (Move(HOLDS.shard, MoveKind.SWAP, "n3", "n4", abandon=True),
     StartChange(HOLDS.shard, 0, Operation.SWAP, "n3", "n4", abandon=True)),
    (Move(HOLDS.shard, MoveKind.CONTRACT, "n3", force=True),
     StartChange(HOLDS.shard, 0, Operation.CONTRACT, "n3", None, force=True)),
])
async def test_k14d_a_move_asks_the_coordinator(move: Move, asked: Any) -> None:
    driver = FakeDriver(ChangeDone(2, (member("n3"),), member("n3")))

    async def change(at: Address, make: Callable[[int], Any], _progress: Any) -> Any:
        return await FakeDriver.change(driver, at, make)

    driver.change = change  # type: ignore[method-assign, assignment]
    assert isinstance(await run_move(driver, move, lambda: TWO), ChangeDone)  # type: ignore[arg-type]
    assert driver.asked == [asked]


class Refusal(Exception):
    pass


class Call:
    """One call of the Admin service, without TLS."""

    def peer(self) -> str:
        return "ipv4:1.2.3.4:5"

    async def abort(self, _code: Any, message: str, *_more: Any) -> None:
        raise Refusal(message)


async def test_k14d_the_act_is_audited_and_names_its_node(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    service = SimpleNamespace(
        cluster="dev", tls=None, access_lists=lambda group: None, standstill=None, active=True, driver=driver,
        store=SimpleNamespace(reachable=True), groups=lambda: {"orders": group(shards=2)}, world=lambda: TWO)
    admin = AdminServicer(service)  # type: ignore[arg-type]
    moves: list[Move] = []

    async def run(_driver: Any, move: Move, *_more: Any, **_options: Any) -> ChangeDone:
        moves.append(move)
        return ChangeDone(2, (member("n3"),), member("n3"))

    monkeypatch.setattr("tidemark_operator.admin.run_move", run)

    async def ask(**fields: Any) -> list[Any]:
        request = admin_pb2.ChangeRequest(group="orders", shard=0, **fields)
        return [step async for step in admin.Change(request, Call())]

    with caplog.at_level(logging.INFO, "tidemark.audit"):
        with pytest.raises(Refusal, match="from_node: a recovery names the node"):
            await ask(operation="RECOVER")
        [done] = await ask(operation="RECOVER", from_node="n3")
        await ask(operation="SWAP", from_node="n3", to_node="n4", abandon=True)
        await ask(operation="RECOVER", from_node="n3", abandon=True)
    assert (done.stage, done.leader) == ("DONE", "n3")
    assert moves == [
        Move(HOLDS.shard, MoveKind.RECOVER, to_node="n3"), Move(HOLDS.shard, MoveKind.SWAP, "n3", "n4", abandon=True),
        Move(HOLDS.shard, MoveKind.RECOVER, to_node="n3", abandon=True)]
    told = [json.loads(line)["about"] for line in caplog.messages]
    assert told[1:] == [
        "RECOVER of shard 0 of orders from n3", "SWAP of shard 0 of orders from n3, abandoning its copy",
        "RECOVER of shard 0 of orders from n3, accepting a loss"]
