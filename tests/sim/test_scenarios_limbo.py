"""A leader is lost at every point around its ROLLBACK: each time one outcome, the same for everybody, for good.

n1 leads and n3 hears nothing from it: with every member asked for, what n1 and n2 hold is committed and never
confirmed, so it times out.  All checkers watch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scenario import Scenario
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.replication.clients import OutcomeRequest
from tidemark_core.replication.messages import Fate

TIMEOUT_MS = 200
ALL = SynchroSettings(quorum="N", timeout_ms=TIMEOUT_MS)


def begin(settings: SynchroSettings = ALL) -> Scenario:
    """Return the world in which the next QUORUM append at n1 will time out."""
    story = Scenario()
    shard_map = story.world.shard_map
    shard_map.settings[story.shard] = settings
    story.wait_led(1)
    shard_map.version += 1
    for node in story.world.nodes.values():
        node.learn(node.life, story.shard, shard_map.version, settings)
    story.append(1)
    story.wait(lambda: story.acknowledged(0), "everybody holds the first batch")
    story.run(50)
    story.cut(1, 3)
    return story


def when(story: Scenario, node: str, stage: str, action: Callable[[], Any]) -> list[str]:
    """Run `action` when the record is first at this stage at this node; return what was seen until then."""
    seen: list[str] = []

    def saw(where: Any, shard: Any, what: str) -> None:
        before = f"{node} {stage}" in seen
        seen.append(f"{where.name} {what}")
        if not before and f"{node} {stage}" in seen:
            action()

    story.world.faults.saw_rollback = saw  # type: ignore[method-assign]
    return seen


def dies_at_once(story: Scenario, number: int) -> Callable[[], None]:
    def act() -> None:
        story.world.nodes[f"n{number}"].doomed = True

    return act


def outcome(story: Scenario, number: int, sequence: int) -> Any:
    """Ask a node what became of a batch."""
    answers: list[Any] = []
    event = OutcomeRequest(story.shard, story.world.request_number(), story.producer.id, sequence, wait=True)
    story.world.nodes[f"n{number}"].request(event, answers.append)
    story.wait(lambda: answers, "the outcome is told")
    return answers[0]


def stay_down(story: Scenario) -> None:
    """Nobody starts a node before the story does."""
    story.world.faults.revive_later = lambda node: None  # type: ignore[method-assign]


def elected(story: Scenario, *numbers: int) -> int:
    story.wait(lambda: any(story.leads(number) for number in numbers), f"one of {numbers} leads")
    return next(number for number in numbers if story.leads(number))


def kinds(story: Scenario, number: int) -> list[Kind]:
    return [entry.kind for entry in story.world.nodes[f"n{number}"].disk.image(story.shard).entries]


def test_leader_dies_as_it_writes_the_record_and_the_batch_is_confirmed_by_the_next() -> None:
    story = begin()
    stay_down(story)
    seen = when(story, "n1", "written", dies_at_once(story, 1))
    sequence = story.append(1)
    leader = elected(story, 2, 3)

    assert seen == ["n1 written"]
    assert leader == 2, "n3 lacks what is committed"
    story.wait(lambda: story.acknowledged(sequence), "EPOCH_START confirms what it inherits")
    assert outcome(story, 2, sequence).fate is Fate.CONFIRMED
    story.mend(1, 3)
    story.start(1)
    story.finish()
    assert Kind.ROLLBACK not in kinds(story, 1)


def test_record_on_the_leaders_disk_alone_is_truncated_and_the_batch_is_confirmed_by_the_next() -> None:
    story = begin()
    stay_down(story)
    when(story, "n1", "written", lambda: story.cut(1, 2))
    sequence = story.append(1)
    story.wait(lambda: Kind.ROLLBACK in kinds(story, 1), "the record is durable")
    story.crash(1)
    assert elected(story, 2, 3) == 2
    story.wait(lambda: story.acknowledged(sequence), "EPOCH_START confirms what it inherits")

    story.mend(1, 2)
    story.mend(1, 3)
    story.start(1)
    story.finish()

    assert Kind.ROLLBACK not in kinds(story, 1)
    assert outcome(story, 2, sequence).fate is Fate.CONFIRMED
    assert story.world.trace.counts["rollbacks_lost"] == 1


@pytest.mark.parametrize("stage", ["acked", "confirmed"])
def test_record_on_a_majority_survives_its_leader_and_nobody_was_told_before(stage: str) -> None:
    """Lost when the acknowledgement arrives, and again when confirmed has passed the record but no answer has left."""
    story = begin()
    stay_down(story)
    seen = when(story, "n1", stage, dies_at_once(story, 1))
    sequence = story.append(1)
    assert elected(story, 2, 3) == 2
    assert f"n1 {stage}" in seen
    told = outcome(story, 2, sequence)

    assert told.fate is Fate.ROLLED_BACK
    story.mend(1, 3)
    story.start(1)
    story.wait(lambda: story.acknowledged(sequence + 1), "the batch goes out again under the next sequence")
    at = story.producer.rolled_back[story.producer.id, sequence].expected
    assert at == told.rolled_back_at == story.producer.recent[-1].resume_after
    assert outcome(story, 2, sequence) == told
    story.finish()
    assert [Kind.ROLLBACK in kinds(story, number) for number in (1, 2, 3)] == [True, True, True]


def test_quorum_lowered_while_the_record_is_written_confirms_nothing_that_it_covers() -> None:
    story = begin()
    shard_map = story.world.shard_map

    def lower() -> None:
        story.world.after(0, shard_map.change, story.shard, story.world.nodes["n1"])

    shard_map._draw = lambda: replace(ALL, quorum="")  # type: ignore[method-assign]
    when(story, "n1", "written", lower)
    sequence = story.append(1)

    story.wait(lambda: (story.producer.id, sequence) in story.producer.rolled_back, "it is rolled back all the same")
    story.wait(lambda: story.acknowledged(sequence + 1), "and confirmed under the next sequence")
    story.mend(1, 3)
    story.finish()


def test_local_batch_in_front_is_acknowledged_and_kept_the_ones_behind_cascade() -> None:
    story = begin()
    local = story.producer
    local.turn_to("n1")
    local.append(Durability.LOCAL)
    story.wait(lambda: (local.id, 1) in local.answered, "LOCAL in front is told at once")
    local.append(Durability.QUORUM)
    local.append(Durability.LOCAL)
    local.append(Durability.COMMIT)
    story.wait(lambda: len(local.rolled_back) == 3, "the oldest times out, the others cascade")

    gone = {(local.id, 2), (local.id, 3), (local.id, 4)}
    assert set(local.rolled_back) == gone
    assert outcome(story, 1, 1).fate is Fate.CONFIRMED
    story.mend(1, 3)
    story.finish()
    assert gone & set(local.answered) == set()


def test_a_majority_that_stands_still_leaves_outcomes_unknown_until_it_is_back() -> None:
    """Neither the batch nor the record commits: nobody is told more than is known."""
    story = begin()
    story.cut(1, 2)
    answers: list[Any] = []
    answer = story.producer._refused

    def watch(send: Any, value: Refused) -> None:
        answers.append(value.reason)
        answer(send, value)

    story.producer._refused = watch  # type: ignore[method-assign]
    story.world.operators["op1"].crash()
    sequence = story.append(1)
    story.run(3 * TIMEOUT_MS)

    assert Reason.QUORUM_TIMEOUT in answers
    assert Reason.ROLLED_BACK not in answers
    story.mend(1, 2)
    story.mend(1, 3)
    story.wait(lambda: (story.producer.id, sequence) in story.producer.rolled_back, "the record commits")
    story.world.operators["op1"].start()
    story.finish()
