"""A majority of stores loses the synced end of its logs without noticing; one member still holds everything."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scenario import Scenario
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, RecoverShard, StartChange, Status
from tidemark_sim.checkers.losses import Losses
from tidemark_sim.clients import Producer


class Loss(Scenario):
    """n1..nN follow n1; a majority loses its last `lost` batches while all are down, the last node keeps all."""

    def __init__(self, nodes: int, before: int, lost: int, later: int) -> None:
        super().__init__(nodes, nodes)
        self.losers = range(1, nodes // 2 + 2)
        self.keepers = range(nodes // 2 + 2, nodes + 1)
        self.wait_led(1)
        self.acknowledge(1, before)
        disks = {number: self.world.nodes[f"n{number}"].disk for number in self.losers}
        older = {number: disk.older(self.shard) for number, disk in disks.items()}
        self.acknowledge(1, lost + 1)   # the last one carries the commit of those before to every disk
        self.losses = Losses(self.world, self.shard)
        self.crash(*range(1, nodes + 1))
        for number, disk in disks.items():
            disk.lose_synced_end(self.shard, older[number])
        self.world.checkers.replace(self.losses)
        self.start(*self.losers)
        self.wait(lambda: any(map(self.leads, self.losers)), "a member with a shorter log leads")
        self.wait(lambda: self.record.status is Status.STEADY, "the election is stored")
        self.other_producer()
        self.acknowledge(int(self.leader[1:]), later)   # by a majority that knows no better
        self.start(*self.keepers)

    def acknowledge(self, number: int, count: int) -> None:
        for _ in range(count):
            sequence = self.append(number)
            self.wait(lambda sequence=sequence: self.acknowledged(sequence), "the batch is acknowledged")
        self.run(100)

    def other_producer(self) -> None:
        """Go on as a new producer: what is lost is a gap in the sequences of the first."""
        self.producer.stopped = True
        self.producer = Producer(self.world, f"p{self.world.request_number() + 1}", self.shard)

    def wait_suspected(self) -> None:
        keepers = {f"n{number}" for number in self.keepers}
        self.wait(
            lambda: {each.member.node for each in self.record.holdouts} == keepers,
            "the record names who holds more than the leader",
        )

    def ask(self, event: Any) -> Any:
        self.wait_settled()
        outcome: list[Any] = []
        self.world.operators["op1"].request(event, outcome.append)
        self.wait(lambda: outcome, "the operator answers")
        return outcome[0]

    def recover(self, number: int) -> Any:
        return self.ask(RecoverShard(self.shard, self.world.request_number(), f"n{number}"))


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("lost", [1, 4])
@pytest.mark.parametrize("later", [0, 1, 6])
def test_k14d_every_acknowledged_record_comes_back_from_the_member_that_holds_it(
    nodes: int, lost: int, later: int
) -> None:
    story = Loss(nodes, before=2, lost=lost, later=later)
    story.wait_suspected()
    assert story.world.trace.counts["core_data_loss_suspected"] >= 1

    assert isinstance(story.recover(nodes), ChangeDone)
    story.wait(
        lambda: len(story.record.ensemble) == nodes and story.record.status is Status.STEADY, "all members are back")
    story.wait_settled()
    story.losses.check()
    assert 0 == story.record.refill and not story.record.holdouts
    story.other_producer()
    story.acknowledge(int(story.leader[1:]), 1)


def test_k14c_the_copy_that_holds_more_is_not_destroyed_without_an_explicit_wish() -> None:
    story = Loss(3, before=2, lost=3, later=1)
    story.wait_suspected()
    for operation in (Operation.SWAP, Operation.CONTRACT):
        event = StartChange(story.shard, story.world.request_number(), operation, "n3", "n3", force=True)
        refused = story.ask(event)
        assert isinstance(refused, Refused) and refused.reason in (Reason.LAST_COPY, Reason.ALREADY_MEMBER)

    gone = StartChange(
        story.shard, story.world.request_number(), Operation.CONTRACT, "n3", None, force=True, abandon=True)
    assert isinstance(story.ask(gone), ChangeDone)
    assert not story.record.holdouts


def test_k14d_a_member_that_holds_no_more_than_the_leader_is_no_source() -> None:
    story = Loss(3, before=2, lost=3, later=1)
    story.wait_suspected()
    before = story.record
    for number in (1, 2):
        refused = story.recover(number)
        assert isinstance(refused, Refused) and refused.reason is Reason.WRONG_STATE
    assert before == story.record


@pytest.mark.parametrize("moment", ["fenced", "leads"])
def test_k14d_another_operator_goes_on_and_the_source_is_waited_for(moment: str) -> None:
    """The operator dies in mid-act and so does the source: the others never elect each other meanwhile."""
    story = Loss(3, before=2, lost=3, later=1)
    story.wait_suspected()
    story.wait_settled()
    story.world.operators["op1"].request(
        RecoverShard(story.shard, story.world.request_number(), "n3"), lambda answer: None)
    story.wait(lambda: story.record.source is not None, "the act is stored")
    if moment == "leads":
        story.wait(lambda: story.leads(3), "n3 leads")
    story.world.operators["op1"].crash()
    story.crash(3)
    story.world.operators["op1"].start()
    story.run(2_000)
    assert story.record.leader is None or story.leader == "n3"
    assert not story.leads(1) and not story.leads(2)
    story.start(3)
    story.wait(
        lambda: len(story.record.ensemble) == 3 and story.record.status is Status.STEADY, "all members are back")
    story.losses.check()


def test_k14d_the_source_leads_only_once_a_majority_is_fenced() -> None:
    """The operator reaches the source alone: the two others could go on to acknowledge what the source never gets."""
    story = Loss(3, before=2, lost=3, later=1)
    story.wait_suspected()
    story.wait_settled()
    network = story.world.network
    pairs = [pair for name in ("n1", "n2") for pair in (("op1", name), (name, "op1"))]
    story.when_stored(
        lambda record: record.source is not None, lambda: [network.cut_link(*pair) for pair in pairs] and None)
    story.world.operators["op1"].request(
        RecoverShard(story.shard, story.world.request_number(), "n3"), lambda answer: None)
    story.wait(lambda: story.record.source is not None, "the act is stored")
    story.run(1_000)
    assert not story.leads(3)
    for pair in pairs:
        network.mend_link(*pair)
    story.wait(
        lambda: len(story.record.ensemble) == 3 and story.record.status is Status.STEADY, "all members are back")
    story.losses.check()


@pytest.mark.parametrize("seed", range(30))
def test_k14d_the_act_ends_well_though_nodes_and_the_operator_die_at_any_moment(seed: int) -> None:
    dice = random.Random(seed)
    nodes = dice.choice([3, 5])
    story = Loss(nodes, before=dice.randint(1, 3), lost=dice.randint(1, 4), later=dice.randint(0, 3))
    story.wait_suspected()
    operator = story.world.operators["op1"]

    def recovered() -> bool:
        record = story.record
        return not record.holdouts and len(record.ensemble) == nodes and record.status is Status.STEADY

    def ask() -> None:
        if operator.alive and story.record.holdouts and story.record.status is Status.STEADY:
            operator.request(RecoverShard(story.shard, story.world.request_number(), f"n{nodes}"), lambda answer: None)

    for _ in range(3):
        ask()
        story.run(dice.randint(0, 60))
        victim = dice.randint(0, nodes)
        story.crash(victim) if victim else operator.crash()
        story.run(dice.randint(0, 400))
        story.start(victim) if victim else operator.start()
    deadline = story.world.now_ms + 30_000
    while not recovered():
        assert story.world.now_ms < deadline, f"not recovered: {story.record}"
        ask()
        story.run(100)
    story.wait_settled()
    story.losses.check()
    story.other_producer()
    story.acknowledge(int(story.leader[1:]), 1)


@pytest.mark.parametrize("leader_lost", [True, False])
def test_k14e_a_shard_that_lost_two_disks_of_three_goes_on_from_the_third(leader_lost: bool) -> None:
    story = Scenario(3, 3)
    story.wait_led(1)
    kept = [story.append(1) for _ in range(3)]
    story.wait(lambda: all(map(story.acknowledged, kept)), "the batches are acknowledged")
    story.wait_settled()
    survivor = 3 if leader_lost else 1
    lost = [number for number in (1, 2, 3) if number != survivor]
    story.wait(lambda: len(story.log(survivor)) == len(story.log(1)), "the survivor has them")
    story.crash(1, 2, 3)
    for number in lost:
        story.world.nodes[f"n{number}"].wipe()
    story.start(1, 2, 3)
    story.run(3_000)
    assert story.record.leader is None, "the shard has no leader"

    answers: list[Any] = []

    def accept(number: int) -> Any:
        answers.clear()
        story.world.operators["op1"].request(
            RecoverShard(story.shard, story.world.request_number(), f"n{number}", accept_loss=True), answers.append)
        story.wait(lambda: answers, "the act is answered")
        return answers[0]

    assert isinstance(accept(lost[0]), Refused)
    assert isinstance(accept(survivor), ChangeDone)
    story.wait(
        lambda: len(story.record.ensemble) == 3 and story.record.status is Status.STEADY, "all members are back")
    story.wait_settled()
    [story.producer] = story.world.producers   # another one, as after every accepted loss; the first is judged further
    again = story.append(int(story.leader[1:]))
    story.wait(lambda: story.acknowledged(again), "appends go on")
    story.finish()
