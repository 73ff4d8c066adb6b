"""What seeds taught about operators: each story once ended with a shard that nobody led or a member that nobody fed."""

from __future__ import annotations

from typing import Any

from scenario import Scenario
from tidemark_core.base.metadata import NodeDown
from tidemark_core.base.refusals import Refused
from tidemark_core.replication.messages import Abort, BecomeLeader, Operation
from tidemark_core.replication.records import CancelChange, Phase, Status


def test_chosen_leader_loses_its_disk_before_it_hears_of_it() -> None:
    story = Scenario()
    story.wait_led(1)
    story.append(1)
    story.run(100)

    def lose() -> bool:
        story.world.nodes["n2"].wipe()
        story.start(1, 2)
        return False

    story.when_operator_sends(BecomeLeader, lose)
    story.crash(1)
    story.wait(lambda: story.record.epoch >= 3 and story.record.status is Status.STEADY, "another is elected")

    assert story.leader in ("n1", "n3")
    story.finish()
    assert story.member(2) in story.record.ensemble


def test_lost_abort_does_not_leave_the_leader_with_its_change() -> None:
    story = Scenario(nodes=4)
    story.wait_led(1)
    for number in (1, 2, 3):
        story.cut(number, 4)
    outcome = story.change(Operation.EXPAND, None, 4)
    story.wait(lambda: story.record.change is not None, "PREPARE is stored")
    story.run(100)

    def die() -> bool:
        story.world.operators["op1"].crash()
        return True

    story.when_operator_sends(Abort, die)
    story.world.operators["op1"].request(CancelChange(story.shard, story.world.request_number()), outcome.append)
    story.wait(lambda: not story.world.operators["op1"].alive, "the operator dies before it says Abort")
    assert story.record.status is Status.STEADY
    story.world.operators["op1"].start()

    story.finish()


def test_leader_restarts_while_its_steady_is_being_stored() -> None:
    story = Scenario()

    def restart() -> None:
        story.world.metadata.options.answer_lost = 0.0
        story.crash(1)
        story.start(1)

    story.world.metadata._watch = lambda *_: None  # type: ignore[method-assign]
    story.world.metadata.options.answer_lost = 1.0
    story.when_stored(lambda record: record.status is Status.STEADY, restart)
    story.wait(lambda: story.record.status is Status.STEADY, "somebody is elected")

    story.wait(lambda: any(story.leads(number) for number in (1, 2, 3)), "somebody leads")
    story.finish()


def test_operator_that_finishes_a_change_attaches_whoever_does_not_follow() -> None:
    story = Scenario(nodes=5, replicas=4)
    story.crash(4)
    story.wait_led(1)
    story.when_stored(
        lambda record: record.change is not None and record.change.phase is Phase.COMMIT,
        lambda: (story.world.operators["op1"].crash(), story.start(4)),
    )
    story.wait(lambda: story.world.operators["op1"].core.nodes.get("n4", 0) is None, "n4 is known down")
    story.run(100)
    story.change(Operation.SWAP, 3, 5, settled=False)
    story.wait(lambda: not story.world.operators["op1"].alive, "the operator dies in COMMIT")
    story.run(50)
    story.world.metadata.down = True   # so that it meets the nodes before the record
    story.world.operators["op1"].start()
    story.run(100)
    story.world.metadata.down = False

    story.finish()
    assert story.log(4) == story.log(1)


def test_leader_elected_while_believed_down_is_not_trusted_for_ever() -> None:
    story = Scenario()
    story.wait_led(1)
    story.cut(1, 2)
    story.cut(1, 3)
    story.append(1)
    story.world.options.cluster.probe_ms = 300
    story.run(30)   # only n1 has the batch, so its log is the longest
    operator = story.world.operators["op1"]
    operator._missed["n1"] = 100
    operator._seen["n1"] = None
    story.when_stored(lambda record: record.status is Status.STEADY and record.epoch == 2, lambda: story.crash(1))
    operator.turn(NodeDown("n1"))
    story.wait(lambda: not story.world.nodes["n1"].alive, "n1 is elected again and dies", 500)

    story.wait(lambda: story.leader in ("n2", "n3"), "another is elected")
    story.mend(1, 2)
    story.mend(1, 3)
    story.finish()


def test_takeover_waits_for_the_store() -> None:
    story = Scenario(operators=2)
    story.wait_led(1)
    first, second = story.world.operators["op1"], story.world.operators["op2"]
    story.wait_settled("op2")
    story.crash(1)
    story.wait(lambda: story.record.status is Status.ELECTION, "an election is stored")
    (first if story.record.writer.startswith(str(first.id)) else second).crash()
    story.world.metadata.down = True
    story.run(1_000)
    assert story.record.status is Status.ELECTION
    story.world.metadata.down = False

    story.wait(lambda: story.record.status is Status.STEADY, "the other takes over")
    story.start(1)
    story.finish()


def test_contract_that_the_rest_cannot_carry_is_rolled_back() -> None:
    story = Scenario(nodes=5, replicas=5)
    story.wait_led(1)
    sequence = story.append(1)
    story.wait(lambda: story.acknowledged(sequence), "the append commits")
    story.wait_settled()
    for number in (2, 3):   # five members bear the loss of two disks
        story.crash(number)
        story.world.nodes[f"n{number}"].wipe()
    outcome = story.change(Operation.CONTRACT, 4, None, settled=False)
    story.wait(lambda: story.record.change is not None and story.record.change.phase is Phase.COMMIT, "COMMIT")
    story.start(2, 3)

    story.wait(lambda: outcome, "the contract is given up")
    assert isinstance(outcome[0], Refused), outcome
    story.finish()
    assert len(story.record.ensemble) == 5


def test_c6_an_operators_clock_never_falls() -> None:
    story = Scenario()
    story.wait_led(1)
    core = story.world.operators["op1"].core
    assert core is not None
    step, heard = core.step, []

    def listening(now_ms: int, event: Any) -> Any:
        heard.append(now_ms)
        return step(now_ms, event)

    core.step = listening  # type: ignore[method-assign]
    for _ in range(40):
        story.world.faults.clock_jump()
        story.crash(3)
        story.run(60)
        story.start(3)
        story.run(60)

    assert heard == sorted(heard) and heard[-1] > story.world.now_ms + 1_000
