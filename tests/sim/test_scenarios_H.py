"""The holes H1-H6 of the published model, each as the schedule that falls into it.

Every story passes on the product and fails when its repair is removed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scenario import Scenario
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import ChangeDone, Phase, Status
from tidemark_sim.mutants import MUTANTS
from tidemark_sim.trace import Violation


def h1_truncation_is_repeated_until_the_head_is_the_leaders() -> None:
    """F holds e1:{o1,o2}, e3:{o3}; L holds e2:{o1}: one truncation to (2,o1) leaves (1,o1), (1,o2) behind."""
    story = Scenario()
    for one, other in ((1, 2), (1, 3), (2, 3)):
        story.cut(one, other)
    story.wait_led(1)
    story.append(1)
    story.wait(lambda: story.log(1) == ["1:0", f"1:{story.world.nodes['n1'].disk.image(story.shard).last}"], "o2")
    story.crash(1)
    story.wait_led(2)
    story.crash(2)
    story.start(1)
    story.wait_led(1)
    story.crash(1)
    story.start(2)
    story.wait_led(2)
    assert [entry[0] for entry in story.log(1)] == ["1", "1", "3"], story.log(1)
    assert [entry[0] for entry in story.log(2)] == ["2", "4"], story.log(2)
    for one, other in ((1, 2), (1, 3), (2, 3)):
        story.mend(one, other)
    story.start(1)
    story.finish()
    assert story.log(1) == story.log(2) == story.log(3)


def h2_a_stale_operator_cannot_take_the_epoch_back() -> None:
    """An operator about to clear its swap is overtaken by a rival's election."""
    story = Scenario(nodes=4, operators=2)
    world = story.world
    world.operators["op2"].set_active(False)
    story.wait_led(1)
    held = []
    save = world.metadata.save

    def hold(operator, effect) -> None:
        if operator.name == "op1" and effect.record.status is Status.STEADY and story.record.change is not None:
            held.append((operator, operator.life, effect))
        else:
            save(operator, effect)

    world.metadata.save = hold
    story.change(Operation.SWAP, 3, 4)
    story.wait(lambda: held, "op1 wants to clear the swap")
    world.metadata.save = save
    epoch = story.record.epoch
    world.operators["op2"].set_active(True)
    story.crash(1)
    story.wait(lambda: story.record.epoch > epoch, "op2 elects")
    world.metadata._apply(*held[0])
    assert story.record.epoch > epoch, "H2: the stale record is in force"
    story.start(1)
    story.finish()


def h3_commit_does_not_fall_when_a_change_is_committed() -> None:
    """After PREPARE nobody has acknowledged anything of the new epoch, so commit recomputed is nothing."""
    story = Scenario(nodes=4)
    story.wait_led(1)
    sequence = story.append(1)
    story.wait(lambda: story.acknowledged(sequence), "the append commits")
    story.cut(1, 2)
    outcome = story.change(Operation.SWAP, 3, 4)
    story.wait(lambda: outcome, "the swap completes")
    assert isinstance(outcome[0], ChangeDone)
    story.mend(1, 2)
    story.finish()


def h3b_an_idle_shard_contracts() -> None:
    """Without an entry of the new epoch the commit offset of the smaller ensemble can never be shown unaffected."""
    story = Scenario(nodes=4, replicas=4)
    story.wait_led(1)
    story.run(200)
    outcome = story.change(Operation.CONTRACT, 4, None)
    story.wait(lambda: outcome, "the contract completes")
    assert isinstance(outcome[0], ChangeDone), outcome
    assert len(story.record.ensemble) == 3
    story.finish()


def h4_every_commit_of_a_change_counts_with_the_new_size() -> None:
    """After two expansions two of five copies are no majority."""
    story = Scenario(nodes=5)
    story.wait_led(1)
    for new in (4, 5):
        outcome = story.change(Operation.EXPAND, None, new)
        story.wait(lambda outcome=outcome: outcome, f"n{new} is added")
        assert isinstance(outcome[0], ChangeDone), outcome
        story.run(100)
    for other in (2, 3, 5):
        story.cut(1, other)
    sequence = story.append(1)
    story.run(60)
    assert not story.acknowledged(sequence), "H4: acknowledged by two of five members"
    for other in (2, 3, 5):
        story.mend(1, other)
    story.finish()


def h4_an_election_that_completes_an_expansion_counts_with_the_new_size() -> None:
    """The expansion stalls in COMMIT and the old leader dies: the new leader needs three of four."""
    story = Scenario(nodes=4)
    story.wait_led(1)
    story.when_stored(
        lambda record: record.change is not None and record.change.phase is Phase.COMMIT,
        story.world.operators["op1"].crash,
    )
    story.change(Operation.EXPAND, None, 4)
    story.wait(lambda: not story.world.operators["op1"].alive, "the operator dies in COMMIT")
    story.crash(1)
    story.world.operators["op1"].start()
    story.wait(lambda: story.record.status is Status.STEADY and len(story.record.ensemble) == 4, "completed")
    leader = int(story.leader[1])
    others = [number for number in (2, 3, 4) if number != leader]
    story.cut(leader, others[0])
    sequence = story.append(leader)
    story.run(60)
    assert not story.acknowledged(sequence), "H4: acknowledged by two of four members"
    story.mend(leader, others[0])
    story.start(1)
    story.finish()


def h5_the_new_member_is_fenced_too() -> None:
    """A dead node is being swapped out, the change stalls in COMMIT, the leader dies: two of the final three live."""
    story = Scenario(nodes=4)
    story.wait_led(1)
    story.crash(3)
    story.run(100)
    story.when_stored(
        lambda record: record.change is not None and record.change.phase is Phase.COMMIT,
        story.world.operators["op1"].crash,
    )
    story.change(Operation.SWAP, 3, 4)
    story.wait(lambda: not story.world.operators["op1"].alive, "the operator dies in COMMIT")
    story.crash(1)
    story.world.operators["op1"].start()
    story.wait(lambda: story.leader in ("n2", "n4"), "H5: the election never finishes")
    sequence = story.append(int(story.leader[1]))
    story.wait(lambda: story.acknowledged(sequence), "the shard works")
    story.start(1, 3)
    story.finish()


def h6_a_stalled_contract_is_rolled_back() -> None:
    """A write on {leader, n2, n5}; n5 is being contracted away; then leader and n2 die."""
    story = Scenario(nodes=5, replicas=5)
    story.wait_led(1)
    story.run(100)
    story.cut(1, 3)
    story.cut(1, 4)
    sequence = story.append(1)
    story.wait(lambda: story.acknowledged(sequence), "three of five have it")
    story.when_stored(
        lambda record: record.change is not None and record.change.phase is Phase.COMMIT,
        story.world.operators["op1"].crash,
    )
    story.change(Operation.CONTRACT, 5, None)
    story.wait(lambda: not story.world.operators["op1"].alive, "the operator dies in COMMIT")
    story.crash(1, 2)
    story.world.operators["op1"].start()
    story.wait(lambda: story.record.status is Status.STEADY and story.leader not in ("", "n1"), "n3, n4, n5 elect")
    assert story.leader == "n5", f"H6: {story.leader} leads without the confirmed write"
    assert len(story.record.ensemble) == 5
    story.start(1, 2)
    story.finish()


STORIES: tuple[tuple[str, Callable[[], None]], ...] = (
    ("H1", h1_truncation_is_repeated_until_the_head_is_the_leaders),
    ("H2", h2_a_stale_operator_cannot_take_the_epoch_back),
    ("H3", h3_commit_does_not_fall_when_a_change_is_committed),
    ("H3b", h3b_an_idle_shard_contracts),
    ("H4", h4_every_commit_of_a_change_counts_with_the_new_size),
    ("H5", h5_the_new_member_is_fenced_too),
    ("H6", h6_a_stalled_contract_is_rolled_back),
)


@pytest.mark.parametrize(("rule", "story"), STORIES, ids=[rule for rule, _ in STORIES])
def test_story_passes_on_the_product(rule: str, story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize(("rule", "story"), STORIES, ids=[rule for rule, _ in STORIES])
def test_story_fails_without_its_repair(rule: str, story: Callable[[], None]) -> None:
    (mutant,) = [each for each in MUTANTS if each.name == rule]
    with mutant.active(), pytest.raises((AssertionError, Violation)):
        story()


def test_election_that_completes_an_expansion_counts_with_the_new_size() -> None:
    h4_an_election_that_completes_an_expansion_counts_with_the_new_size()
