"""Documents that differ between members: from a leader's report to the condition and the event (rule U73b)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_views import group, member, nodes, record, shard
from tidemark_core.base.effects import Received
from tidemark_core.base.ids import OperatorId, ShardId, of_shard
from tidemark_core.base.metadata import MetadataLoaded, NodeUp
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.messages import Diverged, Reach
from tidemark_core.replication.records import CoordinatorSettings
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.resources.events import EventReason
from tidemark_operator.status.group import GroupFacts, group_status

ONE = group(shards=1)
SHARD = shard(0, "n1", "n2", "n3", of=ONE)
RECORD = record("n1", "n2", "n3", leader="n1")
MESSAGE = "the documents of orders-0000 on n3 differ from those of its leader n1 at offset 9."


def found(epoch: int = RECORD.epoch) -> Diverged:
    return Diverged(SHARD.shard, epoch, member("n3"), 9)


def stamped(*diverged: Diverged) -> dict[str, Any]:
    facts = GroupFacts(ONE, 3, {SHARD.shard: SHARD}, {SHARD.shard: RECORD}, nodes(3), 7)
    status = group_status(replace(facts, diverged={SHARD.shard: diverged}))
    return ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp("LogGroup", "orders", 1, status)


def test_u73b_the_group_names_the_member_and_an_event_is_told_once() -> None:
    before, after = stamped(), stamped(found())

    conditions = {each["type"]: each for each in after["conditions"]}
    assert "DocumentsDiverged" not in {each["type"] for each in before["conditions"]}
    condition = conditions["DocumentsDiverged"]
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "DigestsDiffer", MESSAGE)
    told = [each for each in occurrences("LogGroup", before, after) if each.reason is EventReason.DOCUMENTS_DIVERGED]
    assert [each.note for each in told] == [MESSAGE]
    assert EventReason.DOCUMENTS_DIVERGED not in [each.reason for each in occurrences("LogGroup", after, after)]


def reported(sender: str, *diverged: Diverged) -> dict[ShardId, tuple[Diverged, ...]]:
    """Return what an operator makes of one report."""
    machine = Coordinators(CoordinatorSettings(OperatorId("op")))
    machine.step(0, MetadataLoaded(of_shard(SHARD.shard), RECORD, 7))
    machine.step(0, NodeUp(member(sender), "boot"))
    reach = Reach((member("n2"),), (), (), diverged)
    machine.step(1, Received(of_shard(ShardId(0)), member(sender), None, reach, "boot"))
    assert machine.diverged(1_000_000) == {}, "an old report counts for nothing"
    return machine.diverged(2)


def test_u73b_the_word_of_a_leader_of_another_epoch_counts_for_nothing() -> None:
    assert reported("n1", found()) == {SHARD.shard: (found(),)}
    assert reported("n1", found(RECORD.epoch + 1)) == {}
    assert reported("n2", found()) == {}
    assert reported("n1") == {}
