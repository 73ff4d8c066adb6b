"""Sequences behind a rollback (L22): what is asked about first, and which batches get new numbers."""

from __future__ import annotations

from tidemark_core.base.entry import Batch
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing.flights import Flight, Rollbacks


def flight(sequence: int) -> Flight:
    return Flight(sequence, Batch(b"p" * 16, sequence, 1, 0, 0, 0, b""), 1000)


def test_l22_a_mark_heard_of_does_not_outlive_its_leader() -> None:
    """The rollback behind it was lost, so a later one may lie lower: under a newer epoch it says nothing."""
    rollbacks = Rollbacks()
    held = flight(0)
    held.behind = Refused(Reason.PRODUCER_ROLLED_BACK, "", epoch=2, expected=9)
    assert rollbacks.settle([held], [], 1) == 1
    assert (rollbacks.resume_after(2), rollbacks.resume_after(3)) == (9, -1)
    rollbacks.on_rolled_back(held, Refused(Reason.ROLLED_BACK, "", epoch=3, expected=7))
    rollbacks.go_on()
    assert rollbacks.resume_after(4) == 7, "a committed one counts for ever"


def test_l22_a_refusal_older_than_the_rollback_proves_nothing() -> None:
    rollbacks = Rollbacks()
    first, second, third = flight(0), flight(1), flight(2)
    rollbacks.on_rolled_back(first, Refused(Reason.ROLLED_BACK, "", epoch=3, expected=5))
    first.ended = True
    second.behind = Refused(Reason.PRODUCER_ROLLED_BACK, "", epoch=2, expected=5)
    assert rollbacks.to_ask([first, second, third]) == [second, third]
    second.behind = Refused(Reason.PRODUCER_ROLLED_BACK, "", epoch=3, expected=5)
    assert rollbacks.to_ask([first, second, third]) == []
    assert rollbacks.settle([first, second, third], [third], 3) == 3
    assert [first.batch.sequence, second.batch.sequence] == [1, 2]
