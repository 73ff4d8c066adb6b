"""Batches that expect an offset: what a producer makes of a refusal, and of a rollback (rule L29)."""

from __future__ import annotations

import pytest
from tidemark_core.base.entry import Durability
from tidemark_core.base.refusals import Reason
from tidemark_core.producing.messages import Append, Effect, Ending, Fail, Led, Lost, Release, Send

from .test_claims import ClaimDesk
from .test_producer import FIRST_ID, TIMEOUT_MS, Desk, ending, sends, sequences


def expecting(desk: Desk, offset: int) -> Send:
    """Append a batch that expects an offset, and return what is sent."""
    desk.numbers += 1
    [send] = sends(desk.step(Append(
        desk.numbers, desk.now_ms + TIMEOUT_MS, 1, 0, 0, 0, b"p", Durability.QUORUM, offset)))
    return send


def came_first(desk: Desk, send: Send) -> list[Effect]:
    return desk.refuse(send, Reason.RECORD_CAME_FIRST, expected=9)


def test_l29_the_offset_goes_along_however_often_a_batch_is_sent() -> None:
    desk = Desk()
    first = expecting(desk, 7)
    [again] = sends(desk.step(Lost("a", "reset")) + desk.wake())
    [moved] = sends(desk.step(Led(2, "b")))
    assert [(send.expect, send.batch) for send in (first, again, moved)] == [(7, first.batch)] * 3
    assert desk.sent()[0].expect == -1


@pytest.mark.parametrize("in_doubt", [False, True])
def test_l29_a_refused_batch_leaves_its_sequence_to_the_next_one(in_doubt: bool) -> None:
    desk = Desk()
    [other] = desk.sent()
    desk.acknowledge(other)
    send = expecting(desk, 7)
    if in_doubt:
        [send] = sends(desk.step(Lost("a", "reset")) + desk.wake())
    assert ending(came_first(desk, send)) == (Ending.REFUSED, True)
    assert desk.producer.idle and desk.producer.id == FIRST_ID
    assert sequences(desk.append()) == [1]


def test_l29_batches_behind_a_refused_one_go_on_under_another_id() -> None:
    """An attempt at one of them may be under way, which a lower sequence would not recognize."""
    desk = Desk()
    first = expecting(desk, 7)
    [second] = desk.sent()
    assert ending(came_first(desk, first)) == (Ending.REFUSED, False)
    effects = desk.refuse(second, Reason.SEQUENCE_GAP, expected=0)
    [again] = sends(effects) or sends(desk.wake_until(Send))
    assert Release(first.number) in desk.seen
    assert again.batch.producer != FIRST_ID and (again.batch.sequence, again.number) == (0, second.number)


def test_l29_a_rolled_back_batch_is_not_tried_again() -> None:
    """It was the record that came first there."""
    desk = Desk()
    first = expecting(desk, 7)
    assert ending(desk.refuse(first, Reason.ROLLED_BACK, expected=9)) == (Ending.ROLLED_BACK, True)
    [later] = desk.sent()
    assert (later.batch.sequence, later.resume_after) == (1, 9)


def test_l29_a_claim_ends_with_a_refused_batch() -> None:
    desk = ClaimDesk()
    desk.take(*sends(desk.began))
    assert ending(came_first(desk, expecting(desk, 7))) == (Ending.REFUSED, True)
    assert [effect.ending for effect in desk.append() if isinstance(effect, Fail)] == [Ending.ENDED]
